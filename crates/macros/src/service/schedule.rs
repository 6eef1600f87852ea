//! `#[cron(..)]` and `#[every(..)]`, understood: when a job is made, and of which method.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Error, Ident, LitStr, Meta, Path, Result};

use super::reaction::{JOB_OPTIONS, default_target};
use crate::cron_text::Text;
use crate::mistakes::{Mistakes, did_you_mean, list};
use crate::name;
use crate::value::{Given, Value, options, twice, unknown};

const OPTIONS: [&str; 4] = ["tz", "missed", "overlap", "name"];

/// What `Every` takes: what is due more often is a loop, and what is due more rarely has a date.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 60 * 60);

/// What says when a schedule is due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Cron,
    Every,
}

impl Word {
    /// What this attribute is, if it is one of a schedule.
    pub(super) fn of(attribute: &Attribute) -> Option<Self> {
        match attribute.path().segments.last()?.ident.to_string().as_str() {
            "cron" => Some(Self::Cron),
            "every" => Some(Self::Every),
            _ => None,
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::Cron => "#[cron(\"0 9 * * MON-FRI\", tz = \"Europe/Madrid\")]",
            Self::Every => "#[every(\"15m\")]",
        }
    }
}

/// A schedule that a method has.
pub(super) struct Scheduled {
    pub(super) name: LitStr,
    /// Calls of the builder: `.cron(..)`.
    pub(super) calls: TokenStream,
}

/// Options that are the handler's, in its order.
pub(super) type Rest = Vec<(Ident, Given)>;

impl Scheduled {
    /// Understands an attribute. Without a `#[job]` beside it, it has the handler's options too, which are handed back.
    pub(super) fn parse(
        word: Word,
        attribute: &Attribute,
        service: &Ident,
        method: &Ident,
        has_job: bool,
        krate: &Path,
        mistakes: &mut Mistakes,
    ) -> Option<(Self, Rest)> {
        let (timing, options) = mistakes.keep(declared(word, attribute))?;
        let mut reader = Reader {
            word,
            has_job,
            krate,
            zone: None,
            name: None,
            calls: TokenStream::new(),
        };
        let mut rest = Rest::new();
        let mut seen: Vec<Ident> = Vec::new();
        for (name, given) in options {
            let read = match seen.contains(&name) {
                true => Err(twice(&name)),
                false => reader.option(&name, &given),
            };
            seen.push(name.clone());
            if mistakes.keep(read) == Some(Taken::No) {
                rest.push((name, given));
            }
        }
        let due = mistakes.keep(due(word, &timing, reader.zone.as_ref()));
        let name = match reader.name {
            Some(name) => name,
            None => mistakes.keep(default_target(service, method))?,
        };
        let calls = reader.calls;
        let calls = due.map(|due| quote!(#due #calls))?;
        Some((Self { name, calls }, rest))
    }
}

/// The expression or the interval, and the options behind it.
fn declared(word: Word, attribute: &Attribute) -> Result<(LitStr, Vec<(Ident, Given)>)> {
    let message = format!(
        "SF019: a schedule says when it is due, as text that the compiler can check; write `{}`",
        word.example()
    );
    let Meta::List(list) = &attribute.meta else {
        return Err(Error::new_spanned(attribute, message));
    };
    let parser = |input: ParseStream| {
        if !input.peek(LitStr) {
            return Err(Error::new_spanned(attribute, &message));
        }
        Ok((input.parse()?, options(input)?))
    };
    parser.parse2(list.tokens.clone())
}

/// Whether an option was the schedule's.
#[derive(PartialEq, Eq)]
enum Taken {
    Yes,
    No,
}

struct Reader<'k> {
    word: Word,
    has_job: bool,
    krate: &'k Path,
    zone: Option<LitStr>,
    name: Option<LitStr>,
    calls: TokenStream,
}

impl Reader<'_> {
    fn option(&mut self, name: &Ident, given: &Given) -> Result<Taken> {
        let krate = self.krate;
        let text = name.to_string();
        match text.as_str() {
            "tz" if self.word == Word::Cron => self.zone = Some(zone(given.value(name)?)?),
            "missed" => {
                let missed = policy(given.value(name)?, "missed ticks", &["skip", "last", "all"])?;
                self.calls.extend(quote!(.missed(#krate::Missed::#missed)));
            }
            "overlap" => {
                let overlap = policy(given.value(name)?, "ticks that overlap", &["allow", "skip"])?;
                self.calls.extend(quote!(.overlap(#krate::Overlap::#overlap)));
            }
            "name" => {
                let stored = given.value(name)?.text()?;
                name::check(&stored.value()).map_err(|wrong| Error::new_spanned(&stored, format!("SF019: {wrong}")))?;
                self.name = Some(stored);
            }
            option if JOB_OPTIONS.contains(&option) && !self.has_job => return Ok(Taken::No),
            option if JOB_OPTIONS.contains(&option) => {
                let message = format!("SF019: `{name}` is about running the job; write it in `#[job(..)]`");
                return Err(Error::new(name.span(), message));
            }
            _ => {
                let own = OPTIONS
                    .into_iter()
                    .filter(|option| *option != "tz" || self.word == Word::Cron);
                let of_job = JOB_OPTIONS.into_iter().filter(|_| !self.has_job);
                let known: Vec<_> = own.chain(of_job).collect();
                return Err(unknown(name, "a schedule", &known));
            }
        }
        Ok(Taken::Yes)
    }
}

/// `.cron("0 9 * * *", "Europe/Madrid")` or `.every("15m")`, if that is due at all.
fn due(word: Word, timing: &LitStr, zone: Option<&LitStr>) -> Result<TokenStream> {
    match word {
        Word::Cron => {
            Text::read(&timing.value()).map_err(|wrong| Error::new_spanned(timing, format!("SF003: {wrong}")))?;
            let zone = zone.map_or_else(|| quote!("UTC"), ToTokens::to_token_stream);
            Ok(quote!(.cron(#timing, #zone)))
        }
        Word::Every => {
            let value = Value(syn::parse2(timing.to_token_stream())?);
            if !INTERVALS.contains(&value.fixed_duration(None)?) {
                let message = format!(
                    "SF003: {:?} is no interval of a schedule; write 1s to 365d",
                    timing.value()
                );
                return Err(value.refuse(message));
            }
            Ok(quote!(.every(#timing)))
        }
    }
}

fn zone(value: &Value) -> Result<LitStr> {
    let name = value.text()?;
    #[cfg(any(feature = "schedule", test))]
    crate::zone::check(&name.value()).map_err(|wrong| value.refuse(format!("SF003: {wrong}")))?;
    Ok(name)
}

/// One of these words, in quotes or without, as the variant that it names.
fn policy(value: &Value, of: &str, known: &[&str]) -> Result<Ident> {
    let Ok(text) = value.text() else {
        return value.word(known);
    };
    let word = text.value();
    if !known.contains(&word.as_str()) {
        let message = format!(
            "SF003: {word:?} is no policy for {of}; write {}{}",
            list(known),
            did_you_mean(&word, known)
        );
        return Err(value.refuse(message));
    }
    crate::value::variant(&Ident::new(&word, text.span()), known)
}
