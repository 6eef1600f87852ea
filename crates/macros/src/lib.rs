//! The macros of Steadfast. Use them through the crate `steadfast`, which re-exports and describes them.
//!
//! An entry point here is one line; a file for each macro does the work in three steps: parse, check, expand. What a
//! macro writes is short and calls ordinary functions of `steadfast`.

#[allow(dead_code, reason = "the walk along the time needs more of it")]
mod cron_text;
mod database;
mod duration;
mod event;
mod job;
mod mistakes;
mod name;
mod retry;
mod service;
#[cfg(test)]
mod snapshot;
mod test;
mod value;
mod words;
#[cfg(any(feature = "schedule", test))]
mod zone;

use proc_macro::TokenStream;

/// One async function, one test for each database: see `steadfast::test`.
#[proc_macro_attribute]
pub fn test(databases: TokenStream, function: TokenStream) -> TokenStream {
    test::expand(databases.into(), function.into())
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}

/// Commands and queries declared in an `impl` block: see `steadfast::service`.
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, block: TokenStream) -> TokenStream {
    service::expand(arguments.into(), block.into()).into()
}

/// A fact that others react to: see `steadfast::Event`.
#[proc_macro_derive(Event, attributes(event, redact))]
pub fn event(item: TokenStream) -> TokenStream {
    event::expand(item.into()).into()
}

/// Work that is to be done later: see `steadfast::Job`.
#[proc_macro_derive(Job, attributes(job, redact))]
pub fn job(item: TokenStream) -> TokenStream {
    job::expand(item.into()).into()
}

/// A retry policy as people write it: see `steadfast::retry`.
#[proc_macro]
pub fn retry(options: TokenStream) -> TokenStream {
    retry::expand(options.into()).into()
}
