//! `#[derive(Event)]`: the fact's stored name and how it travels, as the trait `Event` has them. What it has in common with a job
//! ([`job`](crate::job)) is here too: both are stored under a name.

mod redact;

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, Fields, Generics, Item, LitInt, LitStr, Meta, Path, Result, parse_quote};

use crate::mistakes::{Mistakes, did_you_mean};
use crate::name;
use crate::service::elsewhere::find;
use crate::value::{DURATION_MAX, Given, Value, options, twice, unknown, written};

const OPTIONS: [&str; 6] = [
    "version",
    "in_process",
    "ordering_key",
    "expires_after",
    "delay",
    "crate",
];

pub(crate) fn expand(item: TokenStream) -> TokenStream {
    let (written, mistakes) = expand_collecting(item);
    let mistakes = mistakes.into_compile_errors();
    quote!(#mistakes #written)
}

/// What is said of something that is stored under a name.
pub(crate) struct Words {
    pub(crate) code: &'static str,
    /// `an event`
    pub(crate) thing: &'static str,
    pub(crate) attribute: &'static str,
    /// The trait that is implemented.
    pub(crate) name: &'static str,
    /// A stored name.
    pub(crate) example: &'static str,
    /// Who has written it.
    pub(crate) writer: &'static str,
}

const EVENT: Words = Words {
    code: "SF015",
    thing: "an event",
    attribute: "event",
    name: "Event",
    example: "order.placed",
    writer: "publisher",
};

/// The expansion, of all that could be understood, and what could not.
fn expand_collecting(item: TokenStream) -> (TokenStream, Mistakes) {
    let mut mistakes = Mistakes::default();
    let written = mistakes
        .keep(syn::parse2(item))
        .and_then(|item| mistakes.keep(Declared::parse(item, &EVENT)))
        .and_then(|declared| Some(write(&declared, &Settings::parse(&declared, &mut mistakes)?)));
    (written.unwrap_or_default(), mistakes)
}

/// What the derive stands on.
pub(crate) struct Declared {
    pub(crate) name: Ident,
    attrs: Vec<Attribute>,
    shape: Shape,
    words: &'static Words,
}

enum Shape {
    Struct(Fields),
    Enum(Vec<syn::Variant>),
}

impl Declared {
    pub(crate) fn parse(item: Item, words: &'static Words) -> Result<Self> {
        let Words { code, thing, .. } = words;
        let (name, attrs, generics, shape) = match item {
            Item::Struct(item) => (item.ident, item.attrs, item.generics, Shape::Struct(item.fields)),
            Item::Enum(item) => {
                let variants = item.variants.into_iter().collect();
                (item.ident, item.attrs, item.generics, Shape::Enum(variants))
            }
            other => {
                let message = format!("{code}: {thing} is what JSON can say; write a struct or an enum");
                return Err(Error::new_spanned(other, message));
            }
        };
        check_generics(&name, &generics, words)?;
        Ok(Self {
            name,
            attrs,
            shape,
            words,
        })
    }

    /// The members of its JSON that nobody shall see.
    pub(crate) fn redacted(&self, mistakes: &mut Mistakes) -> Vec<String> {
        redact::parse(self, mistakes)
    }

    /// What its attribute says: the name, and options behind it. `None`: there is no name, and that has been said.
    pub(crate) fn attribute(&self, mistakes: &mut Mistakes) -> Option<(LitStr, Vec<(Ident, Given)>)> {
        let Words {
            code,
            thing,
            attribute: word,
            example,
            ..
        } = self.words;
        let mut ours = self.attrs.iter().filter(|attribute| attribute.path().is_ident(word));
        let unnamed = |at: &dyn ToTokens| {
            let message = format!(
                "{code}: {thing} has a name that outlives `{}`, because it is stored; write `#[{word}(\"{example}\")]`",
                self.name
            );
            Error::new_spanned(at, message)
        };
        let Some(attribute) = ours.next() else {
            mistakes.push(unnamed(&self.name));
            return None;
        };
        ours.for_each(|other| {
            let message = format!("{code}: {thing} is declared once; put both attributes into one");
            mistakes.at(other, message);
        });
        let Meta::List(list) = &attribute.meta else {
            mistakes.push(unnamed(attribute));
            return None;
        };
        let parser = |input: ParseStream| {
            let stored_name: LitStr = input.parse().map_err(|_| unnamed(attribute))?;
            Ok((stored_name, options(input)?))
        };
        let (stored_name, options) = mistakes.keep(parser.parse2(list.tokens.clone()))?;
        if let Err(wrong) = name::check(&stored_name.value()) {
            mistakes.at(&stored_name, format!("{code}: {wrong}"));
        }
        Some((stored_name, options))
    }

    /// The names of its fields, if they have some.
    fn fields(&self) -> Vec<String> {
        match &self.shape {
            Shape::Struct(fields) => fields
                .iter()
                .filter_map(|field| Some(field.ident.as_ref()?.unraw().to_string()))
                .collect(),
            Shape::Enum(_) => Vec::new(),
        }
    }
}

fn check_generics(name: &Ident, generics: &Generics, words: &Words) -> Result<()> {
    let Words {
        code,
        writer,
        name: of_trait,
        ..
    } = words;
    if let Some(lifetime) = generics.lifetimes().next() {
        let message = format!(
            "{code}: `{name}` is read from a row long after its {writer} is gone, so it borrows nothing; write owned types, as `String` for `&str`"
        );
        return Err(Error::new_spanned(lifetime, message));
    }
    if !generics.params.is_empty() {
        let message = format!(
            "{code}: rows are stored under one name, and `{name}` would be many types; write concrete ones, or implement `{of_trait}` by hand for each"
        );
        return Err(Error::new_spanned(&generics.params, message));
    }
    Ok(())
}

/// What `#[event(..)]` and `#[redact]` say.
struct Settings {
    krate: Path,
    stored_name: LitStr,
    version: Option<LitInt>,
    is_in_process: bool,
    delay: Option<Duration>,
    expires_after: Option<Duration>,
    ordering_key: Option<TokenStream>,
    redacted: Vec<String>,
}

impl Settings {
    /// `None`: without a name there is no event, and that has been said.
    fn parse(declared: &Declared, mistakes: &mut Mistakes) -> Option<Self> {
        let redacted = declared.redacted(mistakes);
        let (stored_name, options) = declared.attribute(mistakes)?;
        let mut settings = Self {
            krate: parse_quote!(::steadfast),
            stored_name,
            version: None,
            is_in_process: false,
            delay: None,
            expires_after: None,
            ordering_key: None,
            redacted,
        };
        for (place, (name, given)) in options.iter().enumerate() {
            let is_there = options[..place].iter().any(|(other, _)| other == name);
            mistakes.keep(match is_there {
                true => Err(twice(name)),
                false => settings.option(declared, name, given),
            });
        }
        settings.check(&options, mistakes);
        Some(settings)
    }

    fn option(&mut self, declared: &Declared, name: &Ident, given: &Given) -> Result<()> {
        match name.to_string().as_str() {
            "in_process" => match given {
                Given::Nothing => self.is_in_process = true,
                Given::Value(_) | Given::List(_) => {
                    let message = "SF011: `in_process` takes no value, since an event that is stored does not have it; write it alone, or remove it";
                    return Err(Error::new(name.span(), message));
                }
            },
            "version" => self.version = Some(version(given.value(name)?, &EVENT)?),
            "ordering_key" => self.ordering_key = Some(ordering_key(given.value(name)?, declared)?),
            "expires_after" => self.expires_after = Some(given.value(name)?.fixed_duration(Some(DURATION_MAX))?),
            "delay" => self.delay = Some(given.value(name)?.fixed_duration(Some(DURATION_MAX))?),
            "crate" => self.krate = given.value(name)?.parse("a path; write `crate = reliable`")?,
            _ => return Err(unknown(name, "an event", &OPTIONS)),
        }
        Ok(())
    }

    /// What no option can know of itself.
    fn check(&self, options: &[(Ident, Given)], mistakes: &mut Mistakes) {
        let find = |known: &str| options.iter().map(|(name, _)| name).find(|name| *name == known);
        if self.is_in_process {
            for name in ["ordering_key", "delay", "expires_after"].into_iter().filter_map(find) {
                let message = format!(
                    "SF015: an event in process is never stored, so there is no row that `{name}` could stand in; remove it, or remove `in_process`"
                );
                mistakes.here(name.span(), message);
            }
        } else if let (Some(delay), Some(expires_after), Some(name)) =
            (self.delay, self.expires_after, find("expires_after"))
            && expires_after <= delay
        {
            let message = "SF015: this event would be of no use before it is due; write an `expires_after` that is more than its `delay`";
            mistakes.here(name.span(), message);
        }
    }
}

pub(crate) fn version(value: &Value, words: &Words) -> Result<LitInt> {
    let Words { code, thing, .. } = words;
    let version: Option<LitInt> = value.parse("a number").ok();
    version
        .filter(|version| version.suffix().is_empty() && version.base10_parse::<u32>().is_ok_and(|version| version > 0))
        .ok_or_else(|| {
            value.refuse(format!(
                "{code}: versions of {thing} are counted from 1; write `version = 2` for the second"
            ))
        })
}

/// The text of a field, or of an expression of `self`.
fn ordering_key(value: &Value, declared: &Declared) -> Result<TokenStream> {
    // What has no text is said at the key.
    let at_key = Span::call_site().located_at(value.span());
    let text = |lent: TokenStream| quote_spanned!(at_key=> ::std::string::ToString::to_string(#lent));
    if let Expr::Path(path) = &value.0
        && let Some(field) = path.path.get_ident()
        && field != "self"
    {
        check_field(field, declared)?;
        return Ok(text(quote_spanned!(at_key=> &self.#field)));
    }
    if find(value.to_token_stream(), "self").is_none() {
        return Err(value.refuse(
            "SF015: an event is ordered by something of its own; write a field, as in `ordering_key = order_id`, or an expression of `self`, as in `self.order.id`",
        ));
    }
    // `self` is hygienic, and may have come through a `macro_rules!`.
    let key = value.with_self(|this| {
        let this = Ident::new("self", Span::call_site().located_at(this.span()));
        this.into_token_stream()
    });
    let lent = match &value.0 {
        Expr::Field(_) | Expr::MethodCall(_) | Expr::Call(_) | Expr::Macro(_) | Expr::Path(_) => {
            quote_spanned!(at_key=> &#key)
        }
        _ => quote_spanned!(at_key=> &(#key)),
    };
    Ok(text(lent))
}

fn check_field(field: &Ident, declared: &Declared) -> Result<()> {
    let (fields, name) = (declared.fields(), &declared.name);
    let word = field.unraw().to_string();
    if fields.contains(&word) {
        return Ok(());
    }
    let known: Vec<_> = fields.iter().map(String::as_str).collect();
    let advice = match &declared.shape {
        Shape::Struct(Fields::Named(_)) => match did_you_mean(&word, &known) {
            guess if guess.is_empty() => "; write one of its fields, or an expression of `self`".to_owned(),
            guess => guess,
        },
        Shape::Struct(_) => "; write `self.0` for the first".to_owned(),
        Shape::Enum(_) => "; an enum has a key by a method of its own, write `ordering_key = self.key()`".to_owned(),
    };
    Err(Error::new(
        field.span(),
        format!("SF015: `{field}` is no field of `{name}`{advice}"),
    ))
}

fn write(declared: &Declared, settings: &Settings) -> TokenStream {
    let Settings {
        krate,
        stored_name,
        version,
        is_in_process,
        delay,
        expires_after,
        ordering_key,
        redacted,
    } = settings;
    let name = &declared.name;
    let version = version.as_ref().map(|version| quote!(const VERSION: u32 = #version;));
    let in_process = is_in_process.then(|| {
        quote!(
            const IN_PROCESS: bool = true;
        )
    });
    let delay = delay
        .map(written)
        .map(|delay| quote!(const DELAY: ::core::time::Duration = #delay;));
    let expires_after = expires_after.map(written).map(|expires_after| {
        quote!(const EXPIRES_AFTER: ::core::option::Option<::core::time::Duration> = ::core::option::Option::Some(#expires_after);)
    });
    let redacted = (!redacted.is_empty()).then(|| quote!(const REDACTED: &'static [&'static str] = &[#(#redacted),*];));
    let ordering_key = ordering_key.as_ref().map(|key| {
        quote! {
            fn ordering_key(&self) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::Some(#key)
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl #krate::Event for #name {
            const TYPE: &'static str = #stored_name;
            #version
            #in_process
            #delay
            #expires_after
            #redacted
            #ordering_key
        }
    }
}

#[cfg(test)]
mod tests;
