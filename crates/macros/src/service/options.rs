//! What stands in `#[command(..)]` and `#[query(..)]`.
//!
//! An option is parsed, checked and turned into a call of the builder that has it. One that is wrong is reported and left
//! out, so that the rest of the service stands and nothing else is said to be wrong.

use std::fmt;
use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, Expr, ExprPath, Ident, LitInt, LitStr, Meta, Path, Result, Token, Type, bracketed};

use super::elsewhere::without_self;
use super::route::{Location, Route};
use crate::mistakes::Mistakes;
use crate::value::{DURATION_MAX, Given, Value, options, twice, unknown, variant};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Command,
    Query,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Kind {
    /// Which kind of handler an attribute makes, if any.
    pub(super) fn of(attribute: &Attribute) -> Option<Self> {
        let name = &attribute.path().segments.last()?.ident;
        [Kind::Command, Kind::Query]
            .into_iter()
            .find(|kind| name == kind.word())
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Command => "command",
            Kind::Query => "query",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Kind::Command => &[
                "route",
                "status",
                "location",
                "scope",
                "retention",
                "conflict",
                "mismatch",
                "key",
                "key_field",
                "accept",
                "store_failures",
                "time_limit",
                "answer_limit",
                "body_limit",
                "authorize",
                "fingerprint",
            ],
            Kind::Query => &["route", "max_age", "authorize"],
        }
    }
}

/// The longest name of an operation, as the corridor has it.
const NAME_LENGTH_MAX: usize = 255;

/// The options that only mean something over HTTP.
const OF_HTTP: [&str; 9] = [
    "status",
    "location",
    "mismatch",
    "key",
    "key_field",
    "accept",
    "body_limit",
    "authorize",
    "max_age",
];

/// What an attribute says.
pub(super) struct Options {
    pub(super) operation: LitStr,
    pub(super) route: Option<Route>,
    pub(super) status: Option<LitInt>,
    pub(super) location: Option<Location>,
    /// What the body of a command may be, as a variant of `Accept`; JSON where it is not said.
    pub(super) accept: Option<Ident>,
    /// Only a query has one.
    pub(super) max_age: Option<Duration>,
    /// Calls of the builders of both doors: `.retention(..)`.
    pub(super) of_command: TokenStream,
    /// Calls of the layer alone: `.mismatch(..)`.
    pub(super) of_layer: TokenStream,
    pub(super) authorize: Option<ExprPath>,
    /// Uses of deprecated constants, each at its place: that is how a macro can warn on stable Rust.
    pub(super) warnings: Vec<TokenStream>,
}

impl Options {
    /// `None`: without a name there is no handler, and that has been said.
    pub(super) fn parse(
        attribute: &Attribute,
        kind: Kind,
        self_ty: &Type,
        krate: &Path,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let unnamed = || {
            let message = format!(
                "SF010: a {kind} has a name that outlives the method's, because keys belong to it; write `#[{kind}(\"orders.name\", ..)]`"
            );
            Error::new_spanned(attribute, message)
        };
        let Meta::List(arguments) = &attribute.meta else {
            mistakes.push(unnamed());
            return None;
        };
        let parser = |input: ParseStream| {
            let operation: LitStr = input.parse().map_err(|_| unnamed())?;
            check_name(&operation)?;
            let mut reader = Reader::new(operation, kind, krate);
            for (name, given) in options(input)? {
                reader.option(name, &given);
            }
            Ok(reader)
        };
        let reader = mistakes.keep(parser.parse2(without_self(arguments.tokens.clone(), self_ty)))?;
        Some(reader.end(mistakes))
    }
}

/// As `command::Key` has it.
fn check_name(operation: &LitStr) -> Result<()> {
    let name = operation.value();
    if name.is_empty() || name.len() > NAME_LENGTH_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "SF010: no key could belong to this name; write 1 to {NAME_LENGTH_MAX} bytes without control characters, as in \"orders.place\""
        );
        return Err(Error::new(operation.span(), message));
    }
    Ok(())
}

/// Reads one option after the other.
struct Reader<'k> {
    kind: Kind,
    krate: &'k Path,
    options: Options,
    seen: Vec<Ident>,
    mistakes: Vec<Error>,
}

impl<'k> Reader<'k> {
    fn new(operation: LitStr, kind: Kind, krate: &'k Path) -> Self {
        let options = Options {
            operation,
            route: None,
            status: None,
            location: None,
            accept: None,
            max_age: None,
            of_command: TokenStream::new(),
            of_layer: TokenStream::new(),
            authorize: None,
            warnings: Vec::new(),
        };
        Self {
            kind,
            krate,
            options,
            seen: Vec::new(),
            mistakes: Vec::new(),
        }
    }

    fn option(&mut self, name: Ident, given: &Given) {
        let mistake = match self.seen.contains(&name) {
            true => Err(twice(&name)),
            false => given.value(&name).and_then(|value| self.read(&name, value)),
        };
        self.mistakes.extend(mistake.err());
        self.seen.push(name);
    }

    fn read(&mut self, name: &Ident, value: &Value) -> Result<()> {
        let krate = self.krate;
        match (self.kind, name.to_string().as_str()) {
            (kind, "route") => self.options.route = Some(Route::parse(&value.text()?, kind)?),
            (_, "authorize") => self.options.authorize = Some(value.path()?),
            (Kind::Query, "max_age") => self.options.max_age = Some(value.whole_seconds()?),
            (Kind::Command, "max_age") => self.warn("SF004", name.span()),
            (Kind::Command, "status") => self.options.status = Some(value.status()?),
            (Kind::Command, "location") => self.options.location = Some(Location::parse(&value.text()?)?),
            (Kind::Command, "scope") => {
                let scope = value.word(&["user", "tenant", "global"])?;
                if scope == "Global" {
                    self.warn("SF005", scope.span());
                }
                self.of_command(name, quote!(#krate::Scope::#scope));
            }
            (Kind::Command, "conflict") => {
                let conflict = value.word(&["fail", "wait"])?;
                self.of_command(name, quote!(#krate::Conflict::#conflict));
            }
            (Kind::Command, "store_failures") => {
                let failures = value.failures(krate)?;
                self.of_command(name, quote!(#krate::StoreFailures::#failures));
            }
            (Kind::Command, "retention") => self.of_command(name, value.duration(Some(DURATION_MAX), of_face)?),
            (Kind::Command, "time_limit") => self.of_command(name, value.duration(None, of_face)?),
            (Kind::Command, "answer_limit" | "fingerprint") => self.of_command(name, value.with_self(of_face)),
            (Kind::Command, "body_limit") => self.of_layer(name, value.with_self(of_face)),
            (Kind::Command, "key_field") => self.of_layer(name, value.text()?),
            (Kind::Command, "accept") => self.options.accept = Some(value.accept()?),
            (Kind::Command, "key") => {
                let requirement = value.word(&["required", "optional"])?;
                self.of_layer(name, quote!(#krate::KeyRequirement::#requirement));
            }
            (Kind::Command, "mismatch") => {
                let status = value.mismatch()?;
                self.of_layer(name, quote!(#krate::service::StatusCode::#status));
            }
            (kind, _) => return Err(not_an_option(name, kind)),
        }
        Ok(())
    }

    fn of_command(&mut self, name: &Ident, value: impl ToTokens) {
        self.options.of_command.extend(quote!(.#name(#value)));
    }

    fn of_layer(&mut self, name: &Ident, value: impl ToTokens) {
        self.options.of_layer.extend(quote!(.#name(#value)));
    }

    fn warn(&mut self, code: &str, span: Span) {
        let (code, krate) = (Ident::new(code, span), respanned(self.krate, span));
        self.options
            .warnings
            .push(quote_spanned!(span=> #krate::service::#code));
    }

    fn end(self, mistakes: &mut Mistakes) -> Options {
        let of_http = self.seen.iter().find(|name| OF_HTTP.iter().any(|known| name == known));
        match of_http {
            Some(name) if !self.seen.iter().any(|name| name == "route") => mistakes.here(
                name.span(),
                format!(
                    "SF010: `{name}` is about HTTP, and this {} has no route; add `route = ..` or remove it",
                    self.kind
                ),
            ),
            _ => {}
        }
        let is_form = self.options.accept.as_ref().is_some_and(|accept| accept == "Form");
        if let Some(name) = self.seen.iter().find(|name| is_form && *name == "key_field") {
            let message = "SF010: the key is a member of a JSON body, and this command takes only forms; remove `key_field`, or write `accept = [json, form]`";
            mistakes.here(name.span(), message);
        }
        self.mistakes.into_iter().for_each(|mistake| mistakes.push(mistake));
        self.options
    }
}

fn not_an_option(name: &Ident, kind: Kind) -> Error {
    let word = name.to_string();
    if kind == Kind::Query && Kind::Command.options().contains(&word.as_str()) {
        let message = format!(
            "SF002: a query changes nothing and keeps no answer, so it has no `{word}`; remove it, or make this a `#[command]`"
        );
        return Error::new(name.span(), message);
    }
    unknown(name, &format!("a {kind}"), kind.options())
}

/// `self` of a method as the face has it.
fn of_face(this: &Ident) -> TokenStream {
    quote_spanned!(this.span()=> self.service)
}

impl Value {
    fn path(&self) -> Result<ExprPath> {
        self.parse("the path of a function; write `authorize = may_order` for an `async fn may_order(parts: Parts) -> Result<(), ..>`")
    }

    fn failures(&self, krate: &Path) -> Result<TokenStream> {
        let Expr::Array(_) = &self.0 else {
            return Ok(self.word(&["none", "definitive"])?.into_token_stream());
        };
        let known = ["validation", "business_rule", "not_found", "forbidden"];
        let words = bracketed_words.parse2(self.to_token_stream())?;
        let classes = words
            .iter()
            .map(|word| variant(word, &known))
            .collect::<Result<Vec<_>>>()?;
        Ok(quote!(Classes(::std::vec![#(#krate::FailureClass::#classes),*])))
    }

    /// A duration as `Cache-Control` can say it.
    fn whole_seconds(&self) -> Result<Duration> {
        let duration = self.fixed_duration(None)?;
        match duration.subsec_millis() {
            0 => Ok(duration),
            _ => Err(self.refuse(
                "SF003: caches count in seconds, and this is not a whole number of them; write \"1s\" or more",
            )),
        }
    }

    /// `json`, `form` or `[json, form]`
    fn accept(&self) -> Result<Ident> {
        let known = ["json", "form"];
        let Expr::Array(array) = &self.0 else {
            return self.word(&known);
        };
        let words = bracketed_words.parse2(self.to_token_stream())?;
        for word in &words {
            variant(word, &known)?;
        }
        match words.as_slice() {
            [one, other] if one != other => Ok(Ident::new("JsonOrForm", array.bracket_token.span.join())),
            _ => Err(self.refuse(
                "SF011: this is not one or both of what a body can be; write `json`, `form` or `[json, form]`",
            )),
        }
    }

    fn status(&self) -> Result<LitInt> {
        let status: Option<LitInt> = syn::parse2(self.to_token_stream()).ok();
        let is_success = |status: &LitInt| {
            status
                .base10_parse()
                .is_ok_and(|status: u16| (200..300).contains(&status))
        };
        status
            .filter(is_success)
            .ok_or_else(|| self.refuse("SF011: a command that succeeds answers with 200 to 299; write `status = 201`"))
    }

    fn mismatch(&self) -> Result<Ident> {
        match self.to_token_stream().to_string().as_str() {
            "409" => Ok(format_ident!("CONFLICT")),
            "422" => Ok(format_ident!("UNPROCESSABLE_ENTITY")),
            _ => Err(self.refuse(
                "SF011: a key that was used for another request is refused with 422 or 409; write one of them",
            )),
        }
    }
}

/// `[validation, not_found]`
fn bracketed_words(input: ParseStream) -> Result<Vec<Ident>> {
    let content;
    bracketed!(content in input);
    let words = Punctuated::<Ident, Token![,]>::parse_terminated(&content)?;
    Ok(words.into_iter().collect())
}

/// The path as if it stood at this place, so that a warning about it points there.
fn respanned(path: &Path, span: Span) -> TokenStream {
    path.to_token_stream()
        .into_iter()
        .map(|mut token| {
            token.set_span(span);
            token
        })
        .collect()
}
