//! The methods of a service over HTTP: a request becomes arguments, what came out a response.
//!
//! Keys, transactions and replays are the business of the idempotent layer around it.

use std::fmt::{self, Display, Write};
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Query, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::axum::{Idempotent, media_type};
use super::cmd_tx::CmdTx;
use super::problem;
use crate::command::{Owner, is_form_type, is_json_type};
use crate::error::{Code, Error, Result};
use crate::steadfast::Steadfast;
use crate::store::Database;

/// A command of a service under its layer, as a method of a route.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::service::{self, Answer, MethodFilter, Router};
/// use steadfast::{Failure, Steadfast, Tx, sqlx::{self, Sqlite}};
///
/// struct Orders;
///
/// impl Orders {
///     async fn place(&self, tx: &mut Tx<Sqlite>, sku: String) -> Result<i64, Failure> {
///         let insert = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ($1) RETURNING id");
///         Ok(insert.bind(sku).fetch_one(tx.db()).await?)
///     }
/// }
///
/// fn routes(orders: &Arc<Orders>, sf: &Steadfast<Sqlite>) -> Router {
///     let layer = sf.idempotent().operation("orders.place");
///     let place = service::command(MethodFilter::POST, layer, orders, |orders, mut tx, call| async move {
///         let id = orders.place(&mut tx, call.input()?).await.map_err(service::failed)?;
///         Answer::new(201, &id)
///     });
///     Router::new().route("/orders", place)
/// }
/// ```
pub fn command<Db, T, S, F, Fut>(
    method: MethodFilter,
    layer: Idempotent<Db>,
    service: &Arc<T>,
    handler: F,
) -> MethodRouter<S>
where
    Db: Database,
    T: Send + Sync + 'static,
    S: Clone + Send + Sync + 'static,
    F: Fn(Arc<T>, CmdTx<Db>, Call) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer>> + Send + 'static,
{
    let (service, sf) = (service.clone(), layer.steadfast().clone());
    let run = async move |tx: CmdTx<Db>, call: Call| respond(&sf, handler(service, tx, call).await);
    on(method, run).route_layer(layer)
}

/// A query of a service, as the GET of a route.
pub fn query<Db, T, S, F, Fut>(sf: &Steadfast<Db>, service: &Arc<T>, handler: F) -> MethodRouter<S>
where
    Db: Database,
    T: Send + Sync + 'static,
    S: Clone + Send + Sync + 'static,
    F: Fn(Arc<T>, Steadfast<Db>, Call) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer>> + Send + 'static,
{
    let (service, sf) = (service.clone(), sf.clone());
    let run = async move |call: Call| respond(&sf, handler(service, sf.clone(), call).await);
    on(MethodFilter::GET, run)
}

fn respond<Db: Database>(sf: &Steadfast<Db>, ended: Result<Answer>) -> Response {
    match ended.map_err(Error::into_failure) {
        Ok(answer) => answer.into_response(),
        // The layer looks in here whether the database asks for a repetition.
        Err(Ok(failure)) => failure.into_response(),
        Err(Err(error)) => problem::problem(&error, sf.problem_base(), None),
    }
}

/// A request to a handler of a service, read completely: its arguments are taken from it one by one.
pub struct Call {
    parts: Parts,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    body: Bytes,
}

/// What the body of a command may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// `application/json`, or a type that ends in `+json`.
    Json,
    /// `application/x-www-form-urlencoded`, as a browser sends a form.
    Form,
    /// Either of them.
    JsonOrForm,
}

impl Accept {
    fn in_words(self) -> &'static str {
        match self {
            Accept::Json => "application/json",
            Accept::Form => "application/x-www-form-urlencoded",
            Accept::JsonOrForm => "application/json or application/x-www-form-urlencoded",
        }
    }
}

impl<S: Send + Sync> FromRequest<S> for Call {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let (mut parts, body) = request.into_parts();
        let parameters = RawPathParams::from_request_parts(&mut parts, state).await;
        // The layer has read it, within its limit, and a query has none.
        let body = match parts.method.is_safe() {
            true => Bytes::new(),
            false => body.collect().await.map(|body| body.to_bytes()).map_err(|error| {
                Error::new(Code::BodyRefused, "the request body could not be read completely").with_source(error)
            })?,
        };
        Ok(Self {
            parts,
            parameters,
            body,
        })
    }
}

impl Call {
    /// Who asks.
    ///
    /// # Errors
    /// SF023 if the authentication has inserted no [`Owner`].
    pub fn owner(&self) -> Result<&Owner> {
        self.parts.extensions.get::<Owner>().ok_or_else(|| {
            let message = format!(
                "{} wants to know its owner, but this call carries no Owner; insert one as a request extension in your authentication",
                self.route()
            );
            Error::new(Code::OwnerMissing, message)
        })
    }

    /// The part of the path that stands where the route has `{name}`.
    ///
    /// # Errors
    /// SF102 if it is not of this type.
    pub fn path<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T> {
        let mut parameters = match &self.parameters {
            Ok(parameters) => parameters.iter(),
            Err(error) => return Err(self.invalid(name, error)),
        };
        let text = parameters.find_map(|(known, text)| (known == name).then_some(text));
        let text = text.ok_or_else(|| self.invalid(name, "it is not in the path"))?;
        text.parse().map_err(|error| self.invalid(name, error))
    }

    /// The JSON body.
    ///
    /// # Errors
    /// SF124 if it does not say that it is JSON, SF102 if it is not of this type.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T> {
        self.input_as(Accept::Json)
    }

    /// The body, as one of the things that are accepted.
    ///
    /// # Errors
    /// SF124 if it is something else, SF102 if it is not of this type.
    pub fn input_as<T: DeserializeOwned>(&self, accept: Accept) -> Result<T> {
        let media_type = media_type(&self.parts.headers);
        if accept != Accept::Form && is_json_type(media_type) {
            serde_json::from_slice(&self.body).map_err(|error| self.invalid("the body", error))
        } else if accept != Accept::Json && is_form_type(media_type) {
            serde_urlencoded::from_bytes(&self.body).map_err(|error| self.invalid("the body", error))
        } else {
            let says = match media_type {
                [] => "does not say what it is".to_owned(),
                known => format!("says that it is {:?}", String::from_utf8_lossy(known)),
            };
            let message = format!(
                "the body of {} {says}; send {} as its Content-Type",
                self.route(),
                accept.in_words()
            );
            Err(Error::new(Code::MediaTypeRefused, message))
        }
    }

    /// The query string.
    ///
    /// # Errors
    /// SF102 if it is not of this type.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T> {
        let Query(query) = Query::try_from_uri(&self.parts.uri)
            .map_err(|error| self.invalid("the query string", error.body_text()))?;
        Ok(query)
    }

    fn invalid(&self, part: &str, why: impl Display) -> Error {
        Error::new(
            Code::InputInvalid,
            format!("{part} of {} is not usable: {why}", self.route()),
        )
    }

    fn route(&self) -> String {
        let path = self.parts.extensions.get::<MatchedPath>();
        let path = path.map_or(self.parts.uri.path(), MatchedPath::as_str);
        format!("{} {path}", self.parts.method)
    }
}

/// What a handler of a service answers over HTTP: a value as JSON.
pub struct Answer {
    status: StatusCode,
    location: Option<String>,
    max_age: Option<Duration>,
    body: Vec<u8>,
}

impl Answer {
    /// A value, under a status. 204 and 205 have no body.
    ///
    /// # Errors
    /// SF027 if the value cannot be written as JSON; SF303 if this is no status.
    pub fn new(status: u16, value: &impl Serialize) -> Result<Self> {
        let status = StatusCode::from_u16(status).map_err(|_| {
            Error::new(
                Code::ConfigurationInvalid,
                format!("{status} is no status; write 200 to 299"),
            )
        })?;
        let body = serde_json::to_vec(value).map_err(|error| {
            Error::new(Code::AnswerNotReplayable, "the answer cannot be written as JSON").with_source(error)
        })?;
        Ok(Self {
            status,
            location: None,
            max_age: None,
            body,
        })
    }

    /// Where the thing is that was made.
    pub fn location(mut self, location: String) -> Self {
        self.location = Some(location);
        self
    }

    /// How long the caller, and nobody else, may use this answer again.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let has_body = !matches!(self.status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT);
        let mut response = match has_body {
            true => ([(CONTENT_TYPE, "application/json")], self.body).into_response(),
            false => ().into_response(),
        };
        *response.status_mut() = self.status;
        let max_age = self.max_age.map(|age| format!("private, max-age={}", age.as_secs()));
        for (name, text) in [(LOCATION, self.location), (CACHE_CONTROL, max_age)] {
            if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// A value as one segment of a path: what would end it is percent-encoded.
pub fn segment(value: &impl Display) -> impl Display {
    let mut encoded = String::new();
    // Writing to a String does not fail; a Display that does leaves what it has written.
    let _ = write!(Encoder(&mut encoded), "{value}");
    encoded
}

struct Encoder<'e>(&'e mut String);

impl Write for Encoder<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                // RFC 3986, 2.3: what never needs to be encoded.
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => self.0.push(byte.into()),
                _ => write!(self.0, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_ends_where_the_value_ends() {
        assert_eq!(segment(&"a/b?c#d é").to_string(), "a%2Fb%3Fc%23d%20%C3%A9");
        assert_eq!(segment(&-42).to_string(), "-42");
    }

    #[test]
    fn an_answer_has_a_body_unless_its_status_forbids_one() {
        let answer = Answer::new(201, &"tea")
            .expect("JSON")
            .location("/orders/1".into())
            .into_response();
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(answer.headers()[LOCATION], "/orders/1");
        for status in [204, 205] {
            let empty = Answer::new(status, &()).expect("JSON").into_response();
            assert!(!empty.headers().contains_key(CONTENT_TYPE), "{status}");
        }
    }
}
