//! A method with `#[on(..)]`, `#[job(..)]` or a schedule of its own, understood: which event it reacts to or which job it runs, under which
//! name, and how often it is tried.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, FnArg, Ident, ImplItemFn, LitInt, LitStr, Meta, Path, Result, ReturnType, Signature, Token,
    Type, Visibility, parse_quote,
};

use super::elsewhere::{attributes, find, ungrouped, without_self};
use super::handler::{check_signature, first_type, is_named, last_segment};
use super::schedule::{Rest, Scheduled};
use super::speaks_of_db;
use crate::mistakes::Mistakes;
use crate::value::{DURATION_MAX, Given, Value, options, twice, unknown};
use crate::{name, retry};

const OPTIONS: [&str; 7] = [
    "retry",
    "name",
    "lease",
    "concurrency",
    "on_dead",
    "duplicates",
    "time_limit",
];

/// The options of a job: its name is its type's, and nothing waits behind it.
pub(super) const JOB_OPTIONS: [&str; 5] = ["retry", "lease", "concurrency", "time_limit", "breaker"];

/// What a method is called for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Event,
    Job,
    /// A tick of a schedule, and nothing else that could be said of it.
    Tick,
}

/// What is said of it.
struct Words {
    code: &'static str,
    /// `a reaction`
    handler: &'static str,
    attribute: &'static str,
    /// `event`, and with its article.
    thing: &'static str,
    a_thing: &'static str,
    /// What the handler is for.
    subject: &'static str,
    /// A type of one.
    example: &'static str,
    cx: &'static str,
    /// What commits with what it writes.
    commits: &'static str,
}

impl Of {
    fn words(self) -> Words {
        match self {
            Self::Event => Words {
                code: "SF016",
                handler: "a reaction",
                attribute: "on",
                thing: "event",
                a_thing: "an event",
                subject: "its event",
                example: "OrderPlaced",
                cx: "EventCx",
                commits: "its delivery",
            },
            Self::Job => Words {
                code: "SF018",
                handler: "the handler of a job",
                attribute: "job",
                thing: "job",
                a_thing: "a job",
                subject: "the job",
                example: "SendReceipt",
                cx: "JobCx<Db>",
                commits: "the end of its job",
            },
            Self::Tick => Words {
                code: "SF019",
                handler: "a method with a schedule",
                attribute: "cron",
                thing: "job",
                a_thing: "a schedule",
                subject: "the job",
                example: "DailyDigest",
                cx: "JobCx<Db>",
                commits: "the end of its job",
            },
        }
    }
}

pub(super) struct Reaction {
    pub(super) of: Of,
    pub(super) event: Type,
    /// The name that deliveries are stored under; a job has its own.
    pub(super) target: Option<LitStr>,
    /// Calls of the builder: `.lease(..)`.
    pub(super) options: TokenStream,
    pub(super) name: Ident,
    pub(super) vis: Visibility,
    /// Whether its callers are told to stop: we are one, and go on.
    pub(super) is_deprecated: bool,
    /// What decides whether the method is there.
    pub(super) cfgs: Vec<Attribute>,
    /// Whether the method is there once for each database, where there are two.
    pub(super) is_of_one_database: bool,
    /// `Db` as it stands in the signature.
    pub(super) db: Option<Ident>,
    pub(super) shape: Shape,
    /// When jobs of it are made by themselves.
    pub(super) schedule: Option<Scheduled>,
}

/// A signature that a reaction can have.
pub(super) struct Shape {
    pub(super) works: Works,
    /// Where the transaction or the context is declared.
    pub(super) first: Span,
    /// Where the event is declared, and whether it is lent.
    pub(super) event: Span,
    pub(super) is_lent: bool,
    /// Where the answer is declared.
    pub(super) returned: Span,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Works {
    /// With `tx: &mut Tx<Db>`.
    InTransaction,
    /// With `cx: &EventCx` or `cx: &JobCx<Db>`.
    Outside,
}

impl Reaction {
    /// Of what an attribute makes one, if it does.
    pub(super) fn declared_by(attribute: &Attribute) -> Option<Of> {
        let last = attribute.path().segments.last()?;
        match last.ident.to_string().as_str() {
            "on" => Some(Of::Event),
            "job" => Some(Of::Job),
            _ => None,
        }
    }

    /// Understands a method; `None` if that is not possible, and it has been said why.
    pub(super) fn parse(
        of: Of,
        service: &Ident,
        attribute: &Attribute,
        method: &ImplItemFn,
        self_ty: &Type,
        krate: &Path,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let declared = mistakes.keep(declared(of, attribute, self_ty));
        Self::of(of, service, declared, method, krate, mistakes)
    }

    /// Understands a method that has a schedule, and no other job than its ticks.
    pub(super) fn of_ticks(
        service: &Ident,
        scheduled: Scheduled,
        options: Rest,
        method: &ImplItemFn,
        krate: &Path,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let ticks = ticks_of(&method.sig.ident);
        let declared = Some((parse_quote!(#krate::service::Ticks<#ticks>), options));
        let reaction = Self::of(Of::Tick, service, declared, method, krate, mistakes)?;
        Some(Self {
            schedule: Some(scheduled),
            ..reaction
        })
    }

    fn of(
        of: Of,
        service: &Ident,
        declared: Option<(Type, Vec<(Ident, Given)>)>,
        method: &ImplItemFn,
        krate: &Path,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let shape = mistakes.keep(Shape::parse(of, &method.sig));
        let ((event, options), shape) = declared.zip(shape)?;
        let mut reader = Reader {
            of,
            krate,
            target: None,
            calls: TokenStream::new(),
        };
        for (place, (name, given)) in options.iter().enumerate() {
            let is_there = options[..place].iter().any(|(other, _)| other == name);
            let read = match is_there {
                true => Err(twice(name)),
                false => reader.option(name, given, mistakes),
            };
            mistakes.keep(read);
        }
        let name = method.sig.ident.clone();
        let target = match (reader.target, of) {
            (target @ Some(_), _) => target,
            (None, Of::Event) => Some(mistakes.keep(default_target(service, &name))?),
            (None, Of::Job | Of::Tick) => None,
        };
        let has = |name: &str| attributes(&method.attrs, name);
        Some(Self {
            of,
            event,
            target,
            options: reader.calls,
            vis: method.vis.clone(),
            is_deprecated: !has("deprecated").is_empty(),
            cfgs: has("cfg"),
            is_of_one_database: speaks_of_db(method),
            db: method
                .sig
                .inputs
                .get(1)
                .and_then(|first| find(first.to_token_stream(), "Db")),
            name,
            shape,
            schedule: None,
        })
    }
}

/// The event's type, and the options behind it.
fn declared(of: Of, attribute: &Attribute, self_ty: &Type) -> Result<(Type, Vec<(Ident, Given)>)> {
    let Words {
        code,
        handler,
        attribute: word,
        subject,
        example,
        ..
    } = of.words();
    let message = format!(
        "{code}: {handler} says the type of {subject}, so that the compiler can check what it takes; write `#[{word}({example}, ..)]`"
    );
    let no_event = || Error::new_spanned(attribute, &message);
    let Meta::List(list) = &attribute.meta else {
        return Err(no_event());
    };
    let parser = |input: ParseStream| {
        if input.peek(LitStr) {
            return Err(input.error(&message));
        }
        if input.peek2(Token![=]) {
            return Err(no_event());
        }
        let event: Type = input.parse().map_err(|_| no_event())?;
        match ungrouped(&event) {
            Type::Path(_) => Ok((ungrouped(&event).clone(), options(input)?)),
            other => Err(Error::new_spanned(other, &message)),
        }
    };
    parser.parse2(without_self(list.tokens.clone(), self_ty))
}

/// `stock.reserve` for `Stock::reserve`.
pub(super) fn default_target(service: &Ident, method: &Ident) -> Result<LitStr> {
    let target = format!("{}.{}", in_snake_case(&service.unraw().to_string()), method.unraw());
    match name::check(&target) {
        Ok(()) => Ok(LitStr::new(&target, method.span())),
        Err(_) => Err(Error::new(
            method.span(),
            format!(
                "SF016: deliveries are stored under the name of their target, and {target:?} cannot be one; give it another by `name = \"stock.reserve\"`"
            ),
        )),
    }
}

/// `TicksOfDigest` for `digest`: a type that no name of the user's is mistaken for.
pub(super) fn ticks_of(method: &Ident) -> Ident {
    let capitalised = |part: &str| {
        part.chars()
            .take(1)
            .flat_map(char::to_uppercase)
            .chain(part.chars().skip(1))
            .collect()
    };
    let name: String = method
        .unraw()
        .to_string()
        .split('_')
        .map(capitalised)
        .collect::<Vec<String>>()
        .concat();
    Ident::new(&format!("TicksOf{name}"), method.span())
}

/// `OrderMails` as `order_mails`, `HTTPGateway` as `http_gateway`.
fn in_snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut written = String::new();
    for (place, letter) in letters.iter().enumerate() {
        let before = place.checked_sub(1).map(|place| letters[place]);
        let next = letters.get(place + 1);
        let begins_a_word = letter.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_numeric()
                    || before.is_uppercase() && next.is_some_and(|next| next.is_lowercase())
            });
        if begins_a_word {
            written.push('_');
        }
        written.extend(letter.to_lowercase());
    }
    written
}

/// Reads one option after the other.
struct Reader<'k> {
    of: Of,
    krate: &'k Path,
    target: Option<LitStr>,
    calls: TokenStream,
}

impl Reader<'_> {
    fn option(&mut self, name: &Ident, given: &Given, mistakes: &mut Mistakes) -> Result<()> {
        let krate = self.krate;
        let value = || given.value(name);
        if self.of != Of::Event && !JOB_OPTIONS.contains(&name.to_string().as_str()) {
            return Err(unknown(name, "the handler of a job", &JOB_OPTIONS));
        }
        let code = self.of.words().code;
        let call = match name.to_string().as_str() {
            "name" => {
                let target = value()?.text()?;
                if let Err(wrong) = name::check(&target.value()) {
                    mistakes.at(&target, format!("{code}: {wrong}"));
                }
                self.target = Some(target);
                return Ok(());
            }
            "retry" => match given {
                Given::List(policy) => retry::policy(policy.clone(), name.span(), krate, mistakes),
                Given::Value(policy) => policy.with_self(of_service),
                Given::Nothing => {
                    let message = "SF011: `retry` says nothing; write `retry(retries = 5, backoff = exponential(\"1s\"))`, or a policy, `retry = POLICY`";
                    return Err(Error::new(name.span(), message));
                }
            },
            "lease" => value()?.duration(Some(DURATION_MAX), of_service)?,
            "time_limit" => value()?.duration(None, of_service)?,
            "concurrency" => concurrency(value()?, code)?,
            "breaker" if self.of != Of::Event => breaker(value()?, code)?,
            "on_dead" => {
                let on_dead = value()?.word(&["wait", "skip"])?;
                quote!(#krate::OnDead::#on_dead)
            }
            "duplicates" => {
                let duplicates = value()?.word(&["drop", "allow"])?;
                quote!(#krate::Duplicates::#duplicates)
            }
            _ => return Err(unknown(name, "a reaction", &OPTIONS)),
        };
        self.calls.extend(quote!(.#name(#call)));
        Ok(())
    }
}

/// `self` of a method where reactions are registered.
fn of_service(this: &Ident) -> TokenStream {
    Ident::new("service", Span::mixed_site().located_at(this.span())).into_token_stream()
}

/// The name of one.
fn breaker(value: &Value, code: &str) -> Result<TokenStream> {
    let name = value.text()?;
    if name.value().is_empty() {
        let message = format!(
            "{code}: `breaker` is the name of a circuit breaker, and nobody finds this one; write `breaker = \"mail\"`"
        );
        return Err(Error::new(name.span(), message));
    }
    Ok(name.into_token_stream())
}

/// A number, which is checked here, or an expression, whose value is checked where it is used.
fn concurrency(value: &Value, code: &str) -> Result<TokenStream> {
    let (Expr::Lit(_) | Expr::Unary(_)) = &value.0 else {
        return Ok(value.with_self(of_service));
    };
    let number: Option<LitInt> = value.parse("a number").ok();
    match number.filter(|number| number.base10_parse::<usize>().is_ok_and(|number| number > 0)) {
        Some(number) => Ok(number.into_token_stream()),
        None => Err(value.refuse(format!(
            "{code}: `concurrency` is how many run at once, and with less than one none would; write `concurrency = 1` or more"
        ))),
    }
}

impl Shape {
    fn parse(of: Of, signature: &Signature) -> Result<Self> {
        let Words {
            code, thing, a_thing, ..
        } = of.words();
        let name = &signature.ident;
        if name == "on" {
            let what = if of == Of::Event { "reaction" } else { "handler" };
            let message = format!("{code}: `on` is what puts the service on a database; give this {what} another name");
            return Err(Error::new(name.span(), message));
        }
        check_signature(code, a_thing, signature)?;
        let mut inputs = signature.inputs.iter().skip(1);
        let (works, first) = first(of, inputs.next(), signature)?;
        let (event, is_lent) = match of {
            Of::Event | Of::Job => event(of, inputs.next(), signature)?,
            Of::Tick => (name.span(), false),
        };
        if let Some(other) = inputs.next() {
            let message = match of {
                Of::Tick => format!(
                    "{code}: a tick brings nothing along, so `{name}` takes nothing more; remove this, or write `#[job(DailyDigest)]` below \
                     the schedule for a job that is `Default`"
                ),
                Of::Event | Of::Job => format!(
                    "{code}: `{name}` is called with its {thing} and nothing else; remove this, and put what it needs into the {thing} or the service"
                ),
            };
            return Err(Error::new_spanned(other, message));
        }
        check_answer(of, signature)?;
        Ok(Self {
            works,
            first,
            event,
            is_lent,
            returned: signature.output.span(),
        })
    }
}

fn first(of: Of, first: Option<&FnArg>, signature: &Signature) -> Result<(Works, Span)> {
    let Words { code, cx, commits, .. } = of.words();
    let message = format!(
        "{code}: `{}` writes in the transaction that {commits} commits with, or calls others without one; write `tx: &mut Tx<Db>` or \
         `cx: &{cx}` after `&self`",
        signature.ident
    );
    let Some(FnArg::Typed(argument)) = first else {
        return Err(Error::new(signature.paren_token.span.join(), message));
    };
    let Type::Reference(reference) = ungrouped(&argument.ty) else {
        return Err(Error::new_spanned(argument, message));
    };
    let is_one_of = |names: &[&str]| names.iter().any(|name| is_named(&reference.elem, name));
    match reference.mutability {
        Some(_) if !is_one_of(&["EventCx", "JobCx"]) => Ok((Works::InTransaction, argument.ty.span())),
        None if !is_one_of(&["Tx", "Pool", "Owner"]) => Ok((Works::Outside, argument.ty.span())),
        _ => Err(Error::new_spanned(argument, message)),
    }
}

/// Where the event or the job is, and whether it is lent.
fn event(of: Of, event: Option<&FnArg>, signature: &Signature) -> Result<(Span, bool)> {
    let Words {
        code,
        thing,
        a_thing,
        example,
        ..
    } = of.words();
    let Some(FnArg::Typed(argument)) = event else {
        let message = format!(
            "{code}: `{}` does not take its {thing}; write `{thing}: {example}` or `{thing}: &{example}` as the last argument",
            signature.ident
        );
        return Err(Error::new(signature.paren_token.span.join(), message));
    };
    match ungrouped(&argument.ty) {
        Type::Reference(reference) if reference.mutability.is_some() => {
            let why = match of {
                Of::Event => "is what has happened, and nobody changes it",
                Of::Job | Of::Tick => "is read anew for each attempt, and nobody sees what is changed in it",
            };
            let message = format!("{code}: {a_thing} {why}; write `{example}` or `&{example}`");
            Err(Error::new_spanned(reference, message))
        }
        Type::Reference(reference) => Ok((reference.span(), true)),
        ty => Ok((ty.span(), false)),
    }
}

/// It ends with `Ok` or `Err`, and with nothing else that anybody could take.
fn check_answer(of: Of, signature: &Signature) -> Result<()> {
    let code = of.words().code;
    let name = &signature.ident;
    let done = match of {
        Of::Event => "has handled its event",
        Of::Job | Of::Tick => "has done its job",
    };
    let message = format!(
        "SF001: whether `{name}` {done} is decided by `Ok` or `Err`, and it does not return a `Result`; write `-> Result<(), E>`"
    );
    let ReturnType::Type(_, returned) = &signature.output else {
        return Err(Error::new_spanned(name, message));
    };
    let value = last_segment(returned)
        .filter(|segment| segment.ident == "Result")
        .and_then(first_type);
    match value.as_ref().map(ungrouped) {
        Some(Type::Tuple(tuple)) if tuple.elems.is_empty() => Ok(()),
        Some(value) => Err(Error::new_spanned(
            value,
            format!(
                "{code}: nobody waits for what `{name}` returns; write `Result<(), E>`, and publish an event of what others need to know"
            ),
        )),
        None => Err(Error::new_spanned(returned, message)),
    }
}
