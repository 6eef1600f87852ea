//! Door one: an HTTP request through axum.
//!
//! The layer reads the request completely, finds the key, and runs the inner handler to its end, so that a client
//! that hangs up cannot take the command down with it. The handler gets the transaction by the
//! extractor [`CmdTx`](super::cmd_tx::CmdTx).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, OriginalUri, Request};
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, LINK, LOCATION, ORIGIN,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower::{Layer, Service, ServiceExt};

use super::cmd_tx::Slot;
use super::{http_key, problem};
use crate::command::execute::{Executed, Handled, Handler, Verdict, execute, transact, trouble_of};
use crate::command::{
    Claimant, CommandOptions, Key, KeyState, Meaning, Outcome, Owner, keeping_options, running_options,
};
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::tx::Tx;

/// The largest request body that is read; axum's own default.
const BODY_LENGTH_MAX: usize = 2 * 1024 * 1024;

/// Marks an answer that was given before.
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The headers that belong to an answer and are stored with it. Everything else (cookies, dates, trace ids) belongs to
/// the one response it was sent with.
const REPLAYED_HEADERS: [HeaderName; 4] = [CONTENT_TYPE, LOCATION, ETAG, LINK];

/// What happens to a request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRequirement {
    /// It is refused with 400. The default.
    #[default]
    Required,
    /// It runs in a transaction, without protection against duplicates.
    Optional,
}

type Authorize = Arc<dyn Fn(Parts) -> Pin<Box<dyn Future<Output = Result<(), Response>> + Send>> + Send + Sync>;

/// Makes the handlers under it idempotent: [`Steadfast::idempotent`].
pub struct Idempotent<Db: Database> {
    steadfast: Steadfast<Db>,
    operation: Option<Arc<str>>,
    key: KeyRequirement,
    key_field: Option<Arc<str>>,
    mismatch: StatusCode,
    body_limit: usize,
    options: CommandOptions,
    authorize: Option<Authorize>,
}

impl<Db: Database> Clone for Idempotent<Db> {
    fn clone(&self) -> Self {
        Self {
            steadfast: self.steadfast.clone(),
            operation: self.operation.clone(),
            key: self.key,
            key_field: self.key_field.clone(),
            mismatch: self.mismatch,
            body_limit: self.body_limit,
            options: self.options.clone(),
            authorize: self.authorize.clone(),
        }
    }
}

impl<Db: Database> Steadfast<Db> {
    /// A layer that makes existing axum handlers idempotent.
    ///
    /// `GET`, `HEAD`, `OPTIONS` and `TRACE` pass through untouched. Every other request needs an
    /// `Idempotency-Key`; its handler takes the transaction by [`CmdTx`](crate::CmdTx)(crate::CmdTx), and its response is stored and
    /// committed together with what it wrote.
    ///
    /// Mount it by `route_layer`, on a method or a whole `Router`: that leaves the 404 of unknown paths and the 405 of
    /// unknown methods alone.
    ///
    /// ```
    /// use axum::{Extension, Json, Router, routing::post};
    /// use steadfast::{CmdTx, Failure, Owner, Steadfast, sqlx::{self, Sqlite}};
    ///
    /// async fn place(mut tx: CmdTx<Sqlite>, Json(sku): Json<String>) -> Result<Json<i64>, Failure> {
    ///     let (id,): (i64,) = sqlx::query_as("INSERT INTO orders (sku) VALUES ($1) RETURNING id")
    ///         .bind(sku)
    ///         .fetch_one(tx.db())
    ///         .await?;
    ///     Ok(Json(id))
    /// }
    ///
    /// # async fn app(sf: Steadfast<Sqlite>) {
    /// let app: Router = Router::new()
    ///     .route("/orders", post(place).route_layer(sf.idempotent()))
    ///     .layer(Extension(Owner::new("tenant-1", "user-a"))); // your authentication
    /// # }
    /// ```
    pub fn idempotent(&self) -> Idempotent<Db> {
        Idempotent {
            steadfast: self.clone(),
            operation: None,
            key: KeyRequirement::Required,
            key_field: None,
            mismatch: problem::status_of(Code::Mismatch),
            body_limit: BODY_LENGTH_MAX,
            options: CommandOptions::default(),
            authorize: None,
        }
    }
}

impl<Db: Database> Idempotent<Db> {
    /// The stable name of the operation; `POST /orders/{id}`, the method and the matched route, by default.
    ///
    /// Name it before you rename a route: a retry across the deployment would else be a new command.
    pub fn operation(mut self, name: impl Into<Arc<str>>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// What happens to a request without a key; it is refused by default.
    pub fn key(mut self, requirement: KeyRequirement) -> Self {
        self.key = requirement;
        self
    }

    /// A member of the JSON body that holds the key of a request without the header, as AIP-155's `request_id` does.
    ///
    /// ```
    /// # use steadfast::{Steadfast, sqlx::Sqlite};
    /// # fn layer(sf: &Steadfast<Sqlite>) {
    /// let layer = sf.idempotent().key_field("request_id"); // {"request_id": "5b1c2f3e", "sku": "tea"}
    /// # }
    /// ```
    pub fn key_field(mut self, name: impl Into<Arc<str>>) -> Self {
        self.key_field = Some(name.into());
        self
    }

    /// The status for a key that was used for another request: 422 by default, 409 for those who agreed on that.
    pub fn mismatch(mut self, status: StatusCode) -> Self {
        self.mismatch = status;
        self
    }

    /// The largest request body; 2 MiB by default.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// Checks the right to do this on every request, replays included: a right that was taken away between two
    /// attempts takes the stored answer away too.
    pub fn authorize<F, Fut, R>(mut self, check: F) -> Self
    where
        F: Fn(Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), R>> + Send + 'static,
        R: IntoResponse,
    {
        self.authorize = Some(Arc::new(move |parts| {
            let checked = check(parts);
            Box::pin(async move { checked.await.map_err(IntoResponse::into_response) })
        }));
        self
    }

    keeping_options!();
    running_options!();

    pub(super) fn steadfast(&self) -> &Steadfast<Db> {
        &self.steadfast
    }

    /// Takes a request through: authorise, let pass what changes nothing, name the operation, read the key and the body, execute.
    async fn handle<S>(self, inner: S, request: Request) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let (parts, body) = request.into_parts();
        if let Some(authorize) = &self.authorize
            && let Err(refusal) = authorize(parts.clone()).await
        {
            return refusal;
        }
        if parts.method.is_safe() {
            let passed = inner.oneshot(Request::from_parts(parts, body)).await;
            return passed.unwrap_or_else(|never| match never {});
        }
        let is_cross_origin = parts.headers.contains_key(ORIGIN);
        let mut response = match self.read(parts, body).await {
            Ok(read) => {
                // From here on the client may hang up: it goes on to the end of the command.
                self.steadfast.to_the_end(self.clone().execute(inner, read)).await
            }
            Err(error) => self.problem(&error),
        };
        if is_cross_origin {
            let exposed = HeaderValue::from_static("Idempotent-Replayed, Retry-After, Location");
            response
                .headers_mut()
                .entry(ACCESS_CONTROL_EXPOSE_HEADERS)
                .or_insert(exposed);
        }
        response
    }

    async fn read(&self, parts: Parts, body: Body) -> Result<Read> {
        if parts.extensions.get::<Slot<Db>>().is_some() {
            return Err(Error::new(
                Code::ConfigurationInvalid,
                format!(
                    "{} {} has the idempotent layer twice; remove one of them",
                    parts.method,
                    parts.uri.path()
                ),
            ));
        }
        let route = parts
            .extensions
            .get::<MatchedPath>()
            .map(MatchedPath::as_str)
            .unwrap_or_default();
        let operation = match &self.operation {
            Some(name) => name.to_string(),
            None if route.is_empty() => {
                return Err(Error::new(
                    Code::OperationUnnamed,
                    format!(
                        "{} {} has no matched route to be named after; mount the layer on a route of a Router, or name it by .operation(..)",
                        parts.method,
                        parts.uri.path()
                    ),
                ));
            }
            None => format!("{} {route}", parts.method),
        };
        let of_header = http_key::of_header(&parts.headers)?;
        if of_header.is_none() && self.key_field.is_none() {
            // Refused before its body is read.
            self.allow_no_key(&operation)?;
        }
        let body = self.read_body(body).await?;
        let value = match &self.key_field {
            Some(field) => http_key::one(of_header, meaning(&parts, &body).member(field)?, field)?,
            None => of_header,
        };
        let Some(value) = value else {
            self.allow_no_key(&operation)?;
            return Ok(Read {
                parts,
                body,
                claimant: None,
            });
        };
        let owner = parts.extensions.get::<Owner>();
        let key = Key::new(self.options.scope, owner, &operation, &value)?;
        let input = meaning(&parts, &body).input(&self.options.fingerprint)?;
        let claimant = Some(Claimant::new(key, input, self.options.clone())?);
        Ok(Read { parts, body, claimant })
    }

    fn allow_no_key(&self, operation: &str) -> Result<()> {
        let place = match (self.key, &self.key_field) {
            (KeyRequirement::Optional, _) => return Ok(()),
            (KeyRequirement::Required, None) => "an Idempotency-Key header".to_owned(),
            (KeyRequirement::Required, Some(field)) => {
                format!("an Idempotency-Key header, or {field:?} in its JSON body")
            }
        };
        let message =
            format!("{operation} needs {place}: one fresh value for each wish, the same with every retry of it");
        Err(Error::new(Code::KeyMissing, message))
    }

    async fn read_body(&self, body: Body) -> Result<Bytes> {
        let too_large = || {
            let message = format!("the request body has more than {} bytes", self.body_limit);
            Error::new(Code::BodyTooLarge, message)
        };
        if body.size_hint().lower() > self.body_limit as u64 {
            // Its Content-Length says so; nothing needs to be read.
            return Err(too_large());
        }
        match Limited::new(body, self.body_limit).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
            Err(error) => {
                Err(Error::new(Code::BodyRefused, "the request body could not be read completely").with_source(error))
            }
        }
    }

    async fn execute<S>(self, inner: S, read: Read) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let Read { parts, body, claimant } = read;
        let handler = HttpHandler { inner, parts, body };
        let executed = match claimant {
            Some(claimant) => execute(&self.steadfast, &claimant, handler).await,
            None => {
                let answered = transact(&self.steadfast, &self.options, None, handler).await;
                return answered.unwrap_or_else(|error| self.problem(&error));
            }
        };
        match executed {
            Ok(Executed::Committed(response) | Executed::Failed(response)) => response,
            Ok(Executed::Replayed(outcome)) => replayed(outcome),
            Err(error) => self.problem(&error),
        }
    }

    fn problem(&self, error: &Error) -> Response {
        let status = (error.code() == Code::Mismatch).then_some(self.mismatch);
        problem::problem(error, self.steadfast.problem_base(), status)
    }
}

/// A request that has been read to its end.
struct Read {
    parts: Parts,
    body: Bytes,
    claimant: Option<Claimant>,
}

/// What a request means: method, path, query, media type and body.
fn meaning<'m>(parts: &'m Parts, body: &'m [u8]) -> Meaning<'m> {
    let original = parts.extensions.get::<OriginalUri>();
    let uri = original.map_or(&parts.uri, |original| &original.0);
    Meaning::Request {
        method: parts.method.as_str(),
        path: uri.path(),
        query: uri.query().unwrap_or_default(),
        media_type: media_type(&parts.headers),
        body,
    }
}

pub(super) fn media_type(headers: &HeaderMap) -> &[u8] {
    headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default()
}

/// Calls the inner service. The request is kept, so it can be called again.
struct HttpHandler<S> {
    inner: S,
    parts: Parts,
    body: Bytes,
}

impl<Db, S> Handler<Db> for HttpHandler<S>
where
    Db: Database,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Answer = Response;

    fn can_run(&self) -> bool {
        true
    }

    async fn run(&mut self, mut tx: Tx<Db>, options: &CommandOptions) -> Handled<Db, Response> {
        tx.read_origin(&self.parts.headers);
        let slot = Slot::new(tx);
        // Whatever ends this future, the transaction does not live on in a copy of the request's extensions.
        let _lent = slot.lend();
        let mut request = Request::from_parts(self.parts.clone(), Body::from(self.body.clone()));
        request.extensions_mut().insert(slot.clone());
        let response = self
            .inner
            .clone()
            .oneshot(request)
            .await
            .unwrap_or_else(|never| match never {});
        let ended = judge::<Db>(response, options).await;
        if matches!(ended, Ok((Verdict::Commit(_), _))) && !slot.was_taken() {
            tracing::warn!(
                method = %self.parts.method,
                path = self.parts.uri.path(),
                "the handler did not take its transaction (CmdTx): what it wrote elsewhere does not commit with its key"
            );
        }
        Handled { tx: slot.take(), ended }
    }
}

/// Decides what becomes of a response, and reads it to its end if it is to be stored.
async fn judge<Db: Database>(response: Response, options: &CommandOptions) -> Result<(Verdict, Response)> {
    if let Some(failure) = response.extensions().get::<Arc<Failure>>()
        && let Some(error) = trouble_of::<Db>(failure)
    {
        return Err(error);
    }
    let is_success = response.status().as_u16() < 400;
    let is_kept = problem::class_of(response.status()).is_some_and(|class| options.store_failures.keeps(class));
    if !is_success && !is_kept {
        return Ok((Verdict::Discard, response));
    }
    let status = response.status();
    if status.is_informational()
        || response.body().size_hint().exact().is_none()
        || response.headers().contains_key(CONTENT_ENCODING)
    {
        return Err(Error::new(
            Code::AnswerNotReplayable,
            "the handler answered with a stream, an upgrade or an encoded body, which cannot be replayed to any client; return \
             a complete body, and put compression outside the idempotent layer",
        ));
    }
    let (parts, body) = response.into_parts();
    let body = match Limited::new(body, options.answer_limit).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(Error::new(
                Code::AnswerTooLarge,
                format!(
                    "the handler's answer has more than {} bytes; return a reference to it, or raise .answer_limit(..)",
                    options.answer_limit
                ),
            ));
        }
        Err(error) => {
            return Err(Error::new(Code::AnswerNotReplayable, "the handler's answer broke off").with_source(error));
        }
    };
    let outcome = Outcome {
        state: if is_success {
            KeyState::Completed
        } else {
            KeyState::Failed
        },
        status: status.as_u16(),
        headers: REPLAYED_HEADERS
            .iter()
            .flat_map(|name| parts.headers.get_all(name).iter().map(move |value| (name, value)))
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: body.clone(),
    };
    let verdict = if is_success {
        Verdict::Commit(outcome)
    } else {
        Verdict::Keep(outcome)
    };
    Ok((verdict, Response::from_parts(parts, Body::from(body))))
}

/// The stored answer, as it was, and marked as such.
fn replayed(outcome: Outcome) -> Response {
    let mut response = Response::new(Body::from(outcome.body));
    *response.status_mut() = StatusCode::from_u16(outcome.status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    for (name, value) in outcome.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(&value)) {
            headers.append(name, value);
        }
    }
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The service [`Idempotent`] makes.
pub struct IdempotentService<Db: Database, S> {
    layer: Idempotent<Db>,
    inner: S,
}

impl<Db: Database, S: Clone> Clone for IdempotentService<Db, S> {
    fn clone(&self) -> Self {
        Self {
            layer: self.layer.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<Db: Database, S> Layer<S> for Idempotent<Db> {
    type Service = IdempotentService<Db, S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotentService {
            layer: self.clone(),
            inner,
        }
    }
}

impl<Db, S> Service<Request> for IdempotentService<Db, S>
where
    Db: Database,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The inner service is made ready when it is called, in the command's own task.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (layer, inner) = (self.layer.clone(), self.inner.clone());
        Box::pin(async move { Ok(layer.handle(inner, request).await) })
    }
}
