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
    counts: C,
}

/// A service behind a breaker: see [`BreakerLayer`].
#[derive(Clone, Debug)]
pub struct BreakerService<S, C = ServerErrors> {
    inner: S,
    breaker: Breaker,
    counts: C,
}

/// Which answers say that the dependency is in trouble. A function of the result is one.
pub trait Counts<Response, Error> {
    /// Whether this answer counts against it.
    fn counts(&self, answer: &Result<Response, Error>) -> bool;
}

/// Statuses from 500 on and errors of the service itself count.
#[derive(Clone, Copy, Debug)]
pub struct ServerErrors;

impl<B, E> Counts<Response<B>, E> for ServerErrors {
    fn counts(&self, answer: &Result<Response<B>, E>) -> bool {
        answer
            .as_ref()
            .map_or(true, |response| response.status().is_server_error())
    }
}

impl<R, E, F: Fn(&Result<R, E>) -> bool> Counts<R, E> for F {
    fn counts(&self, answer: &Result<R, E>) -> bool {
        self(answer)
    }
}

impl BreakerLayer {
    /// Counts statuses from 500 on, and errors.
    pub fn new(breaker: Breaker) -> Self {
        Self {
            breaker,
            counts: ServerErrors,
        }
    }
}

impl<C> BreakerLayer<C> {
    /// Counts what a function of the result says.
    pub fn counting<D>(self, counts: D) -> BreakerLayer<D> {
        BreakerLayer {
            breaker: self.breaker,
            counts,
        }
    }
}

impl<S, C: Clone> Layer<S> for BreakerLayer<C> {
    type Service = BreakerService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        BreakerService {
            inner,
            breaker: self.breaker.clone(),
            counts: self.counts.clone(),
        }
    }
}

impl<S, C, Request> Service<Request> for BreakerService<S, C>
where
    S: Service<Request, Response: Send + 'static, Error: Send + 'static, Future: Send + 'static>,
    C: Counts<S::Response, S::Error> + Clone + Send + 'static,
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
        let (answer, counts) = (self.inner.call(request), self.counts.clone());
        Box::pin(async move {
            let answer = answer.await;
            held.end(if counts.counts(&answer) {
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

/// Its source is what is in it, so that `?` finds an open breaker to be a snooze, and the service's own error to be what it is.
impl<E: Error + 'static> Error for LayerError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open(open) => Some(open),
            Self::Inner(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::breaker::BreakerState;
    use crate::clock::Clock;
    use crate::failure::{Failure, FailureKind};

    fn breaker(clock: &Clock) -> Breaker {
        let options = Breaker::named("quotes").consecutive_failures(1).open_for("1h");
        options.clock(clock.clone()).build().expect("good settings")
    }

    fn answer(status: StatusCode) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        response
    }

    #[tokio::test]
    async fn an_open_breaker_does_not_ask_the_service_behind_it() {
        let (clock, asked) = (Clock::default(), Arc::new(AtomicU32::new(0)));
        let count = asked.clone();
        let client = service_fn(move |answer: Result<Response<()>, &'static str>| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(answer)
        });
        let breaker = breaker(&clock);
        let client = BreakerLayer::new(breaker.clone()).layer(client);
        let ask = async |answer| client.clone().oneshot(answer).await;
        for passes in [StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::TOO_MANY_REQUESTS] {
            assert_eq!(ask(Ok(answer(passes))).await.expect("an answer").status(), passes);
            assert_eq!(breaker.state(), BreakerState::Closed);
        }
        for counts in [Ok(answer(StatusCode::BAD_GATEWAY)), Err("no route")] {
            let _ = ask(counts).await;
            assert_eq!(breaker.state(), BreakerState::Open);
            let before = asked.load(Ordering::Relaxed);
            let refused = ask(Ok(answer(StatusCode::OK))).await;
            assert!(matches!(refused, Err(LayerError::Open(open)) if open.breaker() == "quotes"));
            assert_eq!(asked.load(Ordering::Relaxed), before);
            breaker.reset();
        }
    }

    #[test]
    fn what_a_layer_returns_is_classified_by_what_is_in_it() {
        let breaker = breaker(&Clock::default());
        breaker
            .permit()
            .expect("closed")
            .failure(&Failure::transient("lost", "no reply"));
        let open = breaker.permit().map(|_| ()).expect_err("it is open");
        let postponed = Failure::from(LayerError::<std::io::Error>::Open(open));
        assert_eq!(postponed.kind(), FailureKind::Snooze, "no attempt is spent");
        assert!(
            postponed
                .retry_after()
                .is_some_and(|after| after > Duration::from_secs(60))
        );

        let lost = LayerError::Inner(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(Failure::from(lost).kind(), FailureKind::Unknown);
    }

    #[tokio::test]
    async fn what_counts_can_be_said_by_a_function_and_a_dropped_call_counts_as_nothing() {
        let clock = Clock::default();
        let breaker = breaker(&clock);
        let too_many = |answer: &Result<u16, ()>| *answer == Ok(429);
        let layer = BreakerLayer::new(breaker.clone()).counting(too_many);
        let client = layer.layer(service_fn(async |status: u16| Ok::<_, ()>(status)));
        let ask = async |status| client.clone().oneshot(status).await;
        assert_eq!(ask(500).await, Ok(500));
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(ask(429).await, Ok(429));
        assert_eq!(breaker.state(), BreakerState::Open);

        clock.set_offset(Duration::from_secs(3600));
        let never_polled = client.clone().call(200);
        assert!(matches!(ask(200).await, Err(LayerError::Open(_))), "the place is taken");
        drop(never_polled);
        assert_eq!(ask(200).await, Ok(200));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
