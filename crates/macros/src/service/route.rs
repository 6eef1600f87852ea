//! `"POST /orders/{id}"`: the method and the path of a handler.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Error, Ident, LitStr, Path, Result};

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
            None => refuse(format!(
                "SF010: a parameter of {path:?} is not `{{name}}` as a whole segment, or is there twice; write \"/orders/{{id}}\""
            )),
            Some(_) if path.contains(|c: char| c.is_whitespace() || c == '?' || c == '#') => refuse(format!(
                "SF010: no request has the path {path:?}; write it without spaces, `?` and `#`; a query string is read into the argument that is no parameter"
            )),
            Some(_) if path.rsplit('/').skip(1).any(|segment| segment.starts_with("{*")) => refuse(format!(
                "SF010: nothing is left of {path:?} behind a `{{*name}}`, which takes the rest; let it be the last segment"
            )),
            Some(parameters) => Ok(Self {
                method: method.to_owned(),
                path: path.to_owned(),
                parameters,
                span: text.span(),
            }),
        }
    }

    /// The path as requests have it: what is not ASCII is percent-encoded, but for the names in braces.
    pub(super) fn mounted_path(&self) -> LitStr {
        let encoded = |segment: &str| match segment.starts_with('{') {
            true => segment.to_owned(),
            false => segment.bytes().fold(String::new(), |mut encoded, byte| {
                match byte.is_ascii() {
                    true => encoded.push(byte.into()),
                    false => encoded.push_str(&format!("%{byte:02X}")),
                }
                encoded
            }),
        };
        let segments: Vec<_> = self.path.split('/').map(encoded).collect();
        LitStr::new(&segments.join("/"), self.span)
    }

    /// What to write instead, if axum could not tell this route from another one.
    pub(super) fn conflict(&self, other: &Self) -> Option<String> {
        let shape = |route: &Self| -> Vec<String> {
            let segments = route.path.split('/');
            segments.map(|segment| shape_of(segment).to_owned()).collect()
        };
        if shape(self) != shape(other) {
            return None;
        }
        match self.path == other.path {
            true => (self.method == other.method).then(|| "give it another method or path".to_owned()),
            false => Some(format!("write {:?} here as well", self.path)),
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

/// A segment without the name that is in its braces.
fn shape_of(segment: &str) -> &str {
    match segment.strip_prefix('{') {
        Some(name) if name.starts_with('*') => "{*}",
        Some(_) => "{}",
        None => segment,
    }
}

/// `/orders/{id}`: where the thing is that a command has made, by fields of its answer.
pub(super) struct Location {
    /// `/orders/{}`
    pub(super) format: LitStr,
    pub(super) fields: Vec<Ident>,
}

impl Location {
    pub(super) fn parse(text: &LitStr) -> Result<Self> {
        let (span, mut fields) = (text.span(), Vec::new());
        let mut format = Vec::new();
        for segment in text.value().split('/') {
            if !segment.contains(['{', '}']) {
                format.push(segment.to_owned());
                continue;
            }
            let name = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'));
            let Some(field) = name.and_then(|name| field(name, span)) else {
                let message = format!(
                    "SF010: {segment:?} is not one field of the answer as a whole segment; write \"/orders/{{id}}\""
                );
                return Err(Error::new(span, message));
            };
            format.push("{}".to_owned());
            fields.push(field);
        }
        let format = LitStr::new(&format.join("/"), span);
        Ok(Self { format, fields })
    }
}

/// The name of a field, also one that is `r#` in Rust.
fn field(name: &str, span: Span) -> Option<Ident> {
    let mut ident = Ident::parse_any.parse_str(name).ok()?;
    if syn::parse_str::<Ident>(name).is_err() {
        let cannot_be_raw = ["self", "Self", "super", "crate", "_"].contains(&name);
        ident = (!cannot_be_raw).then(|| Ident::new_raw(name, span))?;
    }
    ident.set_span(span);
    Some(ident)
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
    fn what_is_not_ascii_is_mounted_as_requests_have_it() {
        let route = parsed("PUT /größen/{größe}/a%20b", Kind::Command).expect("a route");
        assert_eq!(route.mounted_path().value(), "/gr%C3%B6%C3%9Fen/{größe}/a%20b");
    }

    #[test]
    fn routes_that_axum_could_not_tell_apart_are_found() {
        for (one, other, advice) in [
            ("POST /orders", "POST /orders", Some("another method or path")),
            (
                "PUT /orders/{id}",
                "DELETE /orders/{order}",
                Some("write \"/orders/{id}\" here"),
            ),
            ("POST /orders", "DELETE /orders", None),
            ("POST /orders/{id}", "POST /orders/{*rest}", None),
            ("POST /orders/{id}", "POST /orders/mine", None),
        ] {
            let [one, other] = [one, other].map(|text| parsed(text, Kind::Command).expect(text));
            let said = one.conflict(&other);
            match advice {
                Some(advice) => assert!(said.expect(advice).contains(advice)),
                None => assert_eq!(said, None, "{}", other.path),
            }
        }
    }

    #[test]
    fn a_location_is_made_of_whole_fields() {
        let parsed = |text: &str| Location::parse(&LitStr::new(text, Span::call_site()));
        let location = parsed("/orders/{id}/{type}/x?y").expect("a location");
        assert_eq!(location.format.value(), "/orders/{}/{}/x?y");
        assert_eq!(location.fields, ["id", "r#type"]);
        for wrong in [
            "/orders/a-{id}",
            "/orders/{0}",
            "/orders/{self}",
            "/orders/{",
            "/orders/{a.b}",
        ] {
            let message = parsed(wrong).err().expect(wrong).to_string();
            assert!(message.contains("as a whole segment"), "{wrong}: {message}");
        }
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
            ("GET /orders?page=1", Kind::Query, "no request has the path"),
            ("GET /my orders", Kind::Query, "no request has the path"),
            ("GET /{*rest}/orders", Kind::Query, "the last segment"),
        ] {
            let message = parsed(text, kind).err().expect(text).to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }
}
