//! `"POST /orders/{id}"`: the method and the path of a handler.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::{Error, LitStr, Path, Result};

use super::options::Kind;
use crate::mistakes::{did_you_mean, list};

const COMMAND_METHODS: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];
const QUERY_METHODS: [&str; 1] = ["GET"];

pub(super) struct Route {
    method: String,
    pub(super) path: String,
    /// The names in braces, in order.
    pub(super) parameters: Vec<String>,
    pub(super) span: Span,
}

impl Route {
    pub(super) fn parse(text: &LitStr, kind: Kind) -> Result<Self> {
        let refuse = |message: String| Err(Error::new(text.span(), message));
        let value = text.value();
        let Some((method, path)) = value.split_once(' ').filter(|(_, path)| path.starts_with('/')) else {
            return refuse(format!(
                "SF010: a route is a method and a path, with a space between them; write \"{} /orders\"",
                kind.methods()[0]
            ));
        };
        if !kind.methods().contains(&method) {
            return refuse(wrong_method(method, kind));
        }
        match parameters(path) {
            Some(parameters) => Ok(Self {
                method: method.to_owned(),
                path: path.to_owned(),
                parameters,
                span: text.span(),
            }),
            None => refuse(format!(
                "SF010: a parameter of {path:?} is not `{{name}}` as a whole segment, or is there twice; write \"/orders/{{id}}\""
            )),
        }
    }

    /// The method, as axum has it.
    pub(super) fn filter(&self, krate: &Path) -> TokenStream {
        let method = format_ident!("{}", self.method);
        quote_spanned!(self.span=> #krate::service::MethodFilter::#method)
    }
}

impl Kind {
    fn methods(self) -> &'static [&'static str] {
        match self {
            Kind::Command => &COMMAND_METHODS,
            Kind::Query => &QUERY_METHODS,
        }
    }
}

fn wrong_method(method: &str, kind: Kind) -> String {
    match (kind, method) {
        (Kind::Command, "GET" | "HEAD") => format!(
            "SF002: {method} changes nothing and has no key, so nothing would protect this command; write {}, or make it a `#[query]`",
            list(&COMMAND_METHODS)
        ),
        (Kind::Query, method) if COMMAND_METHODS.contains(&method) => {
            format!(
                "SF002: a query changes nothing, and {method} says that it does; write `GET`, or make it a `#[command]`"
            )
        }
        _ => format!(
            "SF010: `{method}` is no method of a {kind}; write {}{}",
            list(kind.methods()),
            did_you_mean(method, kind.methods())
        ),
    }
}

/// The names in braces; `None` if one is not well formed, or is there twice.
fn parameters(path: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for segment in path.split('/').filter(|segment| segment.contains(['{', '}'])) {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        let name = name.strip_prefix('*').unwrap_or(name).to_owned();
        if name.is_empty() || name.contains(['{', '}']) || names.contains(&name) {
            return None;
        }
        names.push(name);
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, kind: Kind) -> Result<Route> {
        Route::parse(&LitStr::new(text, Span::call_site()), kind)
    }

    #[test]
    fn a_route_is_a_method_and_a_path_with_names() {
        let route = parsed("PUT /orders/{id}/lines/{*line}", Kind::Command).expect("a route");
        assert_eq!(route.method, "PUT");
        assert_eq!(route.parameters, ["id", "line"]);
    }

    #[test]
    fn what_is_no_route_is_refused_with_what_to_write() {
        for (text, kind, says) in [
            ("/orders", Kind::Command, "write \"POST /orders\""),
            ("POST orders", Kind::Command, "a method and a path"),
            ("GET /orders", Kind::Command, "SF002: GET changes nothing"),
            ("POST /orders", Kind::Query, "SF002: a query changes nothing"),
            ("PSOT /orders", Kind::Command, "did you mean `POST`?"),
            ("POST /orders/{id", Kind::Command, "as a whole segment"),
            ("POST /orders/x{id}", Kind::Command, "as a whole segment"),
            ("POST /orders/{id}/{id}", Kind::Command, "there twice"),
        ] {
            let message = parsed(text, kind).err().expect(text).to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }
}
