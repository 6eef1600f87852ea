//! A breaker around a tower service: an HTTP client, or anything else that answers requests.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use tower::{Layer, Service};

use super::state::Answer;
use super::{Breaker, Held, Open};

/// Puts a service behind a breaker. An open breaker answers with [`LayerError::Open`] and does not ask the service.
///
/// ```
/// use http::{Request, Response};
/// use steadfast::breaker::{Breaker, BreakerLayer, LayerError};
/// use tower::{Layer, Service, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// let client = service_fn(async |_: Request<()>| {
///     let mut down = Response::new("sorry");
///     *down.status_mut() = http::StatusCode::BAD_GATEWAY;
///     Ok::<_, std::io::Error>(down)
/// });
/// let breaker = Breaker::named("quotes").consecutive_failures(1).build()?;
/// let mut client = BreakerLayer::new(breaker).layer(client);
///
/// assert_eq!(client.ready().await.unwrap().call(Request::new(())).await.unwrap().status(), 502);
/// let postponed = client.ready().await.unwrap().call(Request::new(())).await;
/// assert!(matches!(postponed, Err(LayerError::Open(_))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BreakerLayer<C = ServerErrors> {
    breaker: Breaker,
    classify: C,
}

/// A service behind a breaker: see [`BreakerLayer`].
#[derive(Clone, Debug)]
pub struct BreakerService<S, C = ServerErrors> {
    inner: S,
    breaker: Breaker,
    classify: C,
}

/// Which answers say that the dependency is in trouble. A function of the result is one.
pub trait Classify<Response, Error> {
    /// Whether this answer counts against it.
    fn counts(&self, answer: &Result<Response, Error>) -> bool;
}

/// Statuses from 500 on and errors of the service itself count.
#[derive(Clone, Copy, Debug)]
pub struct ServerErrors;

impl<B, E> Classify<Response<B>, E> for ServerErrors {
    fn counts(&self, answer: &Result<Response<B>, E>) -> bool {
        answer
            .as_ref()
            .map_or(true, |response| response.status().is_server_error())
    }
}

impl<R, E, F: Fn(&Result<R, E>) -> bool> Classify<R, E> for F {
    fn counts(&self, answer: &Result<R, E>) -> bool {
        self(answer)
    }
}

impl BreakerLayer {
    /// Counts statuses from 500 on, and errors.
    pub fn new(breaker: Breaker) -> Self {
        Self {
            breaker,
            classify: ServerErrors,
        }
    }
}

impl<C> BreakerLayer<C> {
    /// Counts what a function of the result says.
    pub fn classify<D>(self, classify: D) -> BreakerLayer<D> {
        BreakerLayer {
            breaker: self.breaker,
            classify,
        }
    }
}

impl<S, C: Clone> Layer<S> for BreakerLayer<C> {
    type Service = BreakerService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        BreakerService {
            inner,
            breaker: self.breaker.clone(),
            classify: self.classify.clone(),
        }
    }
}

impl<S, C, Request> Service<Request> for BreakerService<S, C>
where
    S: Service<Request, Response: Send + 'static, Error: Send + 'static, Future: Send + 'static>,
    C: Classify<S::Response, S::Error> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = LayerError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(LayerError::Inner)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let held = match self.breaker.enter() {
            Ok(pass) => Held {
                breaker: self.breaker.clone(),
                pass: Some(pass),
            },
            Err(open) => return Box::pin(std::future::ready(Err(LayerError::Open(open)))),
        };
        let (answer, classify) = (self.inner.call(request), self.classify.clone());
        Box::pin(async move {
            let answer = answer.await;
            held.end(if classify.counts(&answer) {
                Answer::Failure
            } else {
                Answer::Success
            });
            answer.map_err(LayerError::Inner)
        })
    }
}

/// Why a service behind a breaker has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerError<E> {
    /// The breaker is open, and the service was not asked.
    Open(Open),
    /// The service failed.
    Inner(E),
}

impl<E: fmt::Display> fmt::Display for LayerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(open) => open.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for LayerError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open(_) => None,
            Self::Inner(error) => error.source(),
        }
    }
}
