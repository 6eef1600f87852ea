//! `#[derive(Job)]`: the stored name of work that is to be done later, as the trait `Job` has it.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::{Error, LitInt, LitStr, Path, Result, parse_quote};

use crate::event::{Declared, Words, version};
use crate::mistakes::Mistakes;
use crate::name;
use crate::value::{Given, twice, unknown};

const OPTIONS: [&str; 3] = ["version", "queue", "crate"];

const JOB: Words = Words {
    code: "SF017",
    thing: "a job",
    attribute: "job",
    name: "Job",
    example: "receipt.send",
    writer: "sender",
};

pub(crate) fn expand(item: TokenStream) -> TokenStream {
    let (written, mistakes) = expand_collecting(item);
    let mistakes = mistakes.into_compile_errors();
    quote!(#mistakes #written)
}

/// The expansion, of all that could be understood, and what could not.
fn expand_collecting(item: TokenStream) -> (TokenStream, Mistakes) {
    let mut mistakes = Mistakes::default();
    let written = mistakes
        .keep(syn::parse2(item))
        .and_then(|item| mistakes.keep(Declared::parse(item, &JOB)))
        .and_then(|declared| Some(write(&declared, &Settings::parse(&declared, &mut mistakes)?)));
    (written.unwrap_or_default(), mistakes)
}

/// What `#[job(..)]` and `#[redact]` say.
struct Settings {
    krate: Path,
    stored_name: LitStr,
    version: Option<LitInt>,
    queue: Option<LitStr>,
    redacted: Vec<String>,
}

impl Settings {
    /// `None`: without a name there is no job, and that has been said.
    fn parse(declared: &Declared, mistakes: &mut Mistakes) -> Option<Self> {
        let redacted = declared.redacted(mistakes);
        let (stored_name, options) = declared.attribute(mistakes)?;
        let mut settings = Self {
            krate: parse_quote!(::steadfast),
            stored_name,
            version: None,
            queue: None,
            redacted,
        };
        for (place, (name, given)) in options.iter().enumerate() {
            let is_there = options[..place].iter().any(|(other, _)| other == name);
            mistakes.keep(match is_there {
                true => Err(twice(name)),
                false => settings.option(name, given),
            });
        }
        Some(settings)
    }

    fn option(&mut self, name: &Ident, given: &Given) -> Result<()> {
        match name.to_string().as_str() {
            "version" => self.version = Some(version(given.value(name)?, &JOB)?),
            "queue" => {
                let queue = given.value(name)?.text()?;
                name::check(&queue.value()).map_err(|wrong| {
                    Error::new(queue.span(), format!("{}: no queue can be called {wrong}", JOB.code))
                })?;
                self.queue = Some(queue);
            }
            "crate" => self.krate = given.value(name)?.parse("a path; write `crate = reliable`")?,
            _ => return Err(unknown(name, "a job", &OPTIONS)),
        }
        Ok(())
    }
}

fn write(declared: &Declared, settings: &Settings) -> TokenStream {
    let Settings {
        krate,
        stored_name,
        version,
        queue,
        redacted,
    } = settings;
    let name = &declared.name;
    let version = version.as_ref().map(|version| quote!(const VERSION: u32 = #version;));
    let queue = queue
        .as_ref()
        .map(|queue| quote!(const QUEUE: ::core::option::Option<&'static str> = ::core::option::Option::Some(#queue);));
    let redacted = (!redacted.is_empty()).then(|| quote!(const REDACTED: &'static [&'static str] = &[#(#redacted),*];));
    quote! {
        #[automatically_derived]
        impl #krate::Job for #name {
            const NAME: &'static str = #stored_name;
            #version
            #queue
            #redacted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::said;

    fn written(item: &str) -> String {
        let (written, mistakes) = expand_collecting(item.parse().expect("tokens"));
        assert_eq!(said(mistakes), [], "{item}");
        written.to_string().replace(' ', "")
    }

    #[test]
    fn a_job_is_written_as_a_person_would() {
        let few = written("#[job(\"stock.count\")] struct Count;");
        let expected = "#[automatically_derived]impl::steadfast::JobforCount{constNAME:&'staticstr=\"stock.count\";}";
        assert_eq!(few, expected);
        let all = written(
            "#[job(\"receipt.send\", version = 2, queue = \"mail\", crate = reliable)] struct SendReceipt { order: u64, #[redact] email: String }",
        );
        assert_eq!(
            all,
            "#[automatically_derived]implreliable::JobforSendReceipt{constNAME:&'staticstr=\"receipt.send\";\
             constVERSION:u32=2;constQUEUE:::core::option::Option<&'staticstr>=::core::option::Option::Some(\"mail\");\
             constREDACTED:&'static[&'staticstr]=&[\"email\"];}"
        );
    }

    #[test]
    fn what_cannot_be_a_job_is_said_with_what_to_write() {
        for (item, says) in [
            (
                "struct Count;",
                "SF017: a job has a name that outlives `Count`, because it is stored; write `#[job(\"receipt.send\")]`",
            ),
            (
                "#[job(\"Count\")] struct Count;",
                "SF017: \"Count\" has 'C' in it; write ",
            ),
            (
                "#[job(\"count\", queue = \"a b\")] struct Count;",
                "SF017: no queue can be called \"a b\" has ' ' in it; write ",
            ),
            (
                "#[job(\"count\", version = 0)] struct Count;",
                "SF017: versions of a job are counted from 1; write `version = 2` for the second",
            ),
            (
                "#[job(\"count\")] struct Count<'a>(&'a str);",
                "SF017: `Count` is read from a row long after its sender is gone, so it borrows nothing; ",
            ),
            (
                "#[job(\"count\")] struct Count<T>(T);",
                "SF017: rows are stored under one name, and `Count` would be many types; ",
            ),
            (
                "#[job(\"count\")] struct Count(#[redact] u8);",
                "SF017: a field is hidden by its name in JSON, and this one has none; give it a name",
            ),
            ("#[job(\"count\", line = \"mail\")] struct Count;", "SF011: "),
            (
                "fn count() {}",
                "SF017: a job is what JSON can say; write a struct or an enum",
            ),
        ] {
            let (_, mistakes) = expand_collecting(item.parse().expect("tokens"));
            let mistakes = said(mistakes);
            assert!(
                mistakes.len() == 1 && mistakes[0].0.starts_with(says),
                "{item}: {mistakes:?}"
            );
        }
    }
}
