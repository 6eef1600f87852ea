//! `retry!`: a policy as text, checked by the compiler.
//!
//! Each option is read as text by the same file as at run time, and a mistake is said at that option.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the library waits by it, here it is only checked"
)]
mod backoff;
mod text;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote;
use syn::{Path, parse_quote};

use crate::mistakes::Mistakes;
use crate::value::written;
use backoff::{Backoff, Jitter, Settings};
use text::Reader;

pub(crate) fn expand(tokens: TokenStream) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let policy = policy(tokens, Span::call_site(), &parse_quote!(::steadfast), &mut mistakes);
    let mistakes = mistakes.into_compile_errors();
    quote!({ #mistakes #policy })
}

/// The policy that these options say; `span` is where they stand.
pub(crate) fn policy(tokens: TokenStream, span: Span, krate: &Path, mistakes: &mut Mistakes) -> TokenStream {
    let settings = read(&split(tokens), span, mistakes);
    // After a mistake the default stands there, so that nothing else is said to be wrong.
    write(&settings.unwrap_or(Settings::DEFAULT), krate)
}

/// The tokens between commas.
fn split(tokens: TokenStream) -> Vec<TokenStream> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
    let options = tokens.split(is_comma).filter(|option| !option.is_empty());
    options.map(|option| option.iter().cloned().collect()).collect()
}

fn read(options: &[TokenStream], span: Span, mistakes: &mut Mistakes) -> Option<Settings> {
    let mut reader = Reader::new();
    let mut is_fine = true;
    for option in options {
        if let Err(mistake) = reader.option(&option.to_string()) {
            mistakes.at(option, format!("SF014: {mistake}"));
            is_fine = false;
        }
    }
    if !is_fine {
        return None;
    }
    let refusal = match reader.end() {
        Ok(settings) => return Some(settings),
        Err(refusal) => refusal,
    };
    let message = format!("SF014: {refusal}");
    match options
        .iter()
        .find(|option| option.to_string().starts_with(refusal.option))
    {
        Some(option) => mistakes.at(option, message),
        None => mistakes.here(span, message),
    }
    None
}

fn write(settings: &Settings, krate: &Path) -> TokenStream {
    let Settings {
        retries,
        backoff,
        cap,
        jitter,
        max_age,
    } = settings;
    let (growth, base) = match backoff {
        Backoff::Immediate => (quote!(Immediate), None),
        Backoff::Constant(base) => (quote!(Constant), Some(*base)),
        Backoff::Linear(base) => (quote!(Linear), Some(*base)),
        Backoff::Exponential(base) => (quote!(Exponential), Some(*base)),
        Backoff::Custom(_) => unreachable!("no text says this"),
    };
    let base = base.map(written).map(|base| quote!((#base)));
    let jitter = match jitter {
        Jitter::None => quote!(None),
        Jitter::Full => quote!(Full),
        Jitter::Equal => quote!(Equal),
        Jitter::Decorrelated => quote!(Decorrelated),
    };
    let cap = written(*cap);
    let max_age = match max_age.map(written) {
        Some(max_age) => quote!(::core::option::Option::Some(#max_age)),
        None => quote!(::core::option::Option::None),
    };
    quote! {
        #krate::RetryPolicy::checked(
            #retries,
            #krate::Backoff::#growth #base,
            #cap,
            #krate::Jitter::#jitter,
            #max_age,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        expand(text.parse().expect("tokens")).to_string()
    }

    #[test]
    fn a_policy_becomes_one_call_with_its_values() {
        let written = expanded(r#"retries = 3, backoff = linear("2s"), cap = "1m", jitter = equal, max_age = "1h""#);
        let expected = quote!({
            ::steadfast::RetryPolicy::checked(
                3u32,
                ::steadfast::Backoff::Linear(::core::time::Duration::from_millis(2000u64)),
                ::core::time::Duration::from_millis(60000u64),
                ::steadfast::Jitter::Equal,
                ::core::option::Option::Some(::core::time::Duration::from_millis(3600000u64)),
            )
        });
        assert_eq!(written, expected.to_string());
    }

    #[test]
    fn all_mistakes_of_a_policy_are_said_at_once() {
        let written = expanded(r#"retries = -1, jitter = ful, cap = "soon""#);
        assert_eq!(written.matches("SF014").count(), 3, "{written}");
    }
}
