//! Mistakes, collected: a person wants to see all of them at once.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::Error;

pub(crate) use crate::words::{did_you_mean, list};

/// What is wrong, each at its place. Nothing more is said of a thing after its first mistake.
#[derive(Default)]
pub(crate) struct Mistakes(Option<Error>);

impl Mistakes {
    /// Says what is wrong with these tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Into<String>) {
        self.push(Error::new_spanned(tokens, message.into()));
    }

    /// Says what is wrong at a place.
    pub(crate) fn here(&mut self, span: Span, message: impl Into<String>) {
        self.push(Error::new(span, message.into()));
    }

    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// The value, or nothing and one mistake more.
    pub(crate) fn keep<T>(&mut self, parsed: syn::Result<T>) -> Option<T> {
        parsed.map_err(|error| self.push(error)).ok()
    }

    #[cfg(test)]
    pub(crate) fn into_error(self) -> Option<Error> {
        self.0
    }

    /// One `compile_error!` for each mistake.
    pub(crate) fn into_compile_errors(self) -> TokenStream {
        self.0.map(|error| error.to_compile_error()).unwrap_or_default()
    }
}
