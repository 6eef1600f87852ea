//! Options of an attribute: read, checked, and said at its place what is wrong with them.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Error, Expr, LitStr, Result, Token, parenthesized, token};

use crate::duration;
use crate::mistakes::{did_you_mean, list};
use crate::service::elsewhere::{replaced, ungrouped_value};

/// The longest time that rows are kept, or wait, as the corridor has it for keys: ten years.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What an option was given.
pub(crate) enum Given {
    /// `name`
    Nothing,
    /// `name = value`
    Value(Value),
    /// `name(..)`
    List(TokenStream),
}

impl Given {
    /// The value, of an option that has one.
    pub(crate) fn value(&self, name: &Ident) -> Result<&Value> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Nothing | Self::List(_) => Err(Error::new(
                name.span(),
                format!("SF011: `{name}` has no value; write `{name} = ..`"),
            )),
        }
    }
}

/// The options behind what an attribute begins with, each after a comma. Only what cannot be read past is an `Err`.
pub(crate) fn options(input: ParseStream) -> Result<Vec<(Ident, Given)>> {
    let mut options = Vec::new();
    while !input.is_empty() {
        let separated: Result<Token![,]> = input.parse();
        separated.map_err(|error| {
            let message = "SF011: an option ends where the next one begins; write `,` before this";
            Error::new(error.span(), message)
        })?;
        if !input.is_empty() {
            options.push((Ident::parse_any(input)?, given(input)?));
        }
    }
    Ok(options)
}

fn given(input: ParseStream) -> Result<Given> {
    if input.peek(Token![=]) {
        input.parse::<Token![=]>()?;
        return Ok(Given::Value(Value(ungrouped_value(input.parse()?))));
    }
    if input.peek(token::Paren) {
        let content;
        parenthesized!(content in input);
        return Ok(Given::List(content.parse()?));
    }
    Ok(Given::Nothing)
}

/// What is said of an option that was there before.
pub(crate) fn twice(name: &Ident) -> Error {
    Error::new(name.span(), format!("SF011: `{name}` is there twice; once is enough"))
}

/// What is said of an option that nobody knows.
pub(crate) fn unknown(name: &Ident, what: &str, known: &[&str]) -> Error {
    let message = format!(
        "SF011: `{name}` is no option of {what}{}\nknown: {}",
        did_you_mean(&name.to_string(), known),
        known.join(", ")
    );
    Error::new(name.span(), message)
}

/// What stands behind `=`.
pub(crate) struct Value(pub(crate) Expr);

impl ToTokens for Value {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.0.to_tokens(tokens);
    }
}

impl Value {
    pub(crate) fn refuse(&self, message: impl Into<String>) -> Error {
        Error::new_spanned(self, message.into())
    }

    /// Reads the value again, as something else than an expression.
    pub(crate) fn parse<T: syn::parse::Parse>(&self, wanted: &str) -> Result<T> {
        syn::parse2(self.to_token_stream()).map_err(|_| self.refuse(format!("SF011: this is not {wanted}")))
    }

    pub(crate) fn text(&self) -> Result<LitStr> {
        self.parse("text; write it in quotes")
    }

    /// One of these words, as the variant that it names.
    pub(crate) fn word(&self, known: &[&str]) -> Result<Ident> {
        let word: Option<Ident> = syn::parse2(self.to_token_stream()).ok();
        match word {
            Some(word) => variant(&word, known),
            None => Err(self.refuse(format!(
                "SF011: this is not one of the words that are known here; write {}",
                list(known)
            ))),
        }
    }

    /// Text, which is checked here, or an expression, whose value is checked where it is used.
    pub(crate) fn duration(
        &self,
        max: Option<Duration>,
        service: impl Fn(&Ident) -> TokenStream,
    ) -> Result<TokenStream> {
        match &self.0 {
            Expr::Lit(_) | Expr::Unary(_) => self.fixed_duration(max).map(written),
            _ => Ok(self.with_self(service)),
        }
    }

    pub(crate) fn fixed_duration(&self, max: Option<Duration>) -> Result<Duration> {
        let refuse = |message: String| Err(self.refuse(message));
        let Ok(text) = syn::parse2::<LitStr>(self.to_token_stream()) else {
            return refuse("SF003: a duration is text; write \"500ms\", \"30s\", \"5m\", \"24h\" or \"7d\"".into());
        };
        let value = text.value();
        match duration::read(&value) {
            None => refuse(format!(
                "SF003: {value:?} is not a duration; write a whole number and a unit: 500ms, 30s, 5m, 24h or 7d"
            )),
            Some(duration) if duration.is_zero() => refuse(format!(
                "SF003: {value:?} is no time at all; write a duration of more than nothing"
            )),
            Some(duration) if max.is_some_and(|max| duration > max) => refuse(format!(
                "SF003: {value:?} is more than ten years; write less, and keep what must stay longer in a table of yours"
            )),
            Some(duration) => Ok(duration),
        }
    }

    /// The expression, where `self` is what it is in the methods of the user's type.
    pub(crate) fn with_self(&self, written: impl Fn(&Ident) -> TokenStream) -> TokenStream {
        replaced(self.to_token_stream(), &mut |ident, _| {
            (ident == "self").then(|| written(ident))
        })
    }
}

/// `business_rule` as `BusinessRule`, if it is known.
pub(crate) fn variant(word: &Ident, known: &[&str]) -> Result<Ident> {
    let text = word.to_string();
    if !known.contains(&text.as_str()) {
        let message = format!(
            "SF011: `{text}` is not known here; write {}{}",
            list(known),
            did_you_mean(&text, known)
        );
        return Err(Error::new(word.span(), message));
    }
    let capitalised = |part: &str| part[..1].to_uppercase() + &part[1..];
    let name: String = text.split('_').map(capitalised).collect();
    Ok(Ident::new(&name, word.span()))
}

/// Text has no finer unit than this.
pub(crate) fn written(duration: Duration) -> TokenStream {
    let millis = duration.as_millis() as u64;
    quote!(::core::time::Duration::from_millis(#millis))
}
