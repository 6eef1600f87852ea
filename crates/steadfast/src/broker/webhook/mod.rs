//! The webhook: a sink that posts events to somebody's HTTP endpoint.
//!
//! `guard.rs` says where it may lead, `connection.rs` goes there and nowhere else, `request.rs` and `signature.rs` write what is
//! sent, `answer.rs` reads what comes back. `trial.rs` sends one event to see whether all of that works.

mod answer;
mod connection;
mod guard;
mod options;
mod request;
mod signature;
mod trial;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::away::Away;
use super::{Confirmation, Sink};
use crate::breaker::Breaker;
use crate::failure::{Failure, FailureClass, FailureKind};
use crate::outbox::EventCx;
use answer::Answer;
use connection::{Connection, Connections, Unconnected, Way};
pub use options::WebhookOptions;
use signature::SigningKey;
pub use signature::WebhookSecret;
pub use trial::WebhookTrial;

/// How long it may take to find the endpoint, to connect and to agree on keys. Whoever is there does it in less.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

type Verdict = Result<Confirmation, Failure>;

/// The answer, or that nobody knows whether the request has arrived; if nothing was sent, why not.
type Exchanged = Result<Result<Answer, Failure>, Unconnected>;

/// A sink that posts each event to an HTTP endpoint, signed. Cheap to clone; clones share connections and limits.
///
/// ```no_run
/// use steadfast::Webhook;
/// # use steadfast::{Steadfast, sqlx::Sqlite};
/// # fn declare(sf: &Steadfast<Sqlite>, new_secret: &str, old_secret: &str) -> steadfast::Result<()> {
///
/// let endpoint = Webhook::to("https://example.org/hooks")
///     .signed_by([new_secret, old_secret])
///     .concurrency(4)
///     .time_limit("5s")
///     .build()?;
/// sf.sink("partner.orders").events("order.*").deliver_to(endpoint);
/// # Ok(())
/// # }
/// ```
///
/// # What is sent
///
/// A `POST` with the payload as its body, `content-type: application/json`, and these headers:
///
/// | header | is |
/// |---|---|
/// | `webhook-id`, `idempotency-key` | the [id](EventCx::id) of the event: the same whenever it is sent |
/// | `webhook-timestamp` | the time of this attempt, in seconds since 1970 |
/// | `webhook-signature` | `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`, for each secret, with spaces between them |
/// | `ce-id`, `ce-type`, `ce-source`, .. | the [envelope](EventCx::attributes), as the HTTP binding of CloudEvents writes it |
///
/// The first three are those of [Standard Webhooks](https://www.standardwebhooks.com): there are libraries that verify them in
/// most languages.
///
/// # What becomes of it
///
/// | the other side | the message |
/// |---|---|
/// | answers 2xx | is delivered |
/// | answers 408, 425, 429 or 5xx | is tried again, after `Retry-After` if that is said, in seconds or as a date |
/// | answers any other 4xx | is dead: the same request would be refused again |
/// | redirects | is dead, with the code `redirected`: nobody is followed |
/// | does not answer in time, or hangs up | is tried again: it may have arrived |
/// | cannot be reached, or TLS fails | waits, and no attempt is spent |
/// | has a name that leads to a forbidden address | is dead, with the code `address_refused` |
///
/// After five failures in a row a [breaker](WebhookOptions::breaker) opens: all messages of the endpoint wait, and one of them
/// tries it after 1 second, then 2, and so on up to 30.
///
/// # Where it may lead
///
/// Who lets others say where events go lets them say any address that our servers can reach. So a webhook goes to public addresses
/// by https and nowhere else, unless it is built with [`allow_private`](WebhookOptions::allow_private); never to link-local
/// addresses, where clouds hand out credentials. The name is resolved once for each connection, all its addresses are checked, and
/// one of those is connected to. No proxy is used.
#[derive(Clone)]
pub struct Webhook(Arc<Inner>);

struct Inner {
    connections: Connections,
    /// As it may be shown.
    origin: String,
    keys: Vec<SigningKey>,
    time_limit: Duration,
    concurrency: usize,
    slots: Semaphore,
    breaker: Breaker,
    away: Away,
}

impl Webhook {
    /// Describes a webhook to this URL. `build` checks it.
    ///
    /// ```
    /// use steadfast::Webhook;
    ///
    /// let refused = Webhook::to("https://169.254.169.254/latest/meta-data").unsigned().build().unwrap_err();
    /// assert_eq!(refused.code().as_str(), "SF303");
    /// ```
    pub fn to(url: impl Into<String>) -> WebhookOptions {
        WebhookOptions::new(url.into())
    }
}

impl Sink for Webhook {
    async fn send(&self, batch: &[EventCx]) -> Vec<Verdict> {
        join_all(batch.iter().map(|event| self.0.deliver(event))).await
    }

    /// Two batches are on their way at once: together they fill the limit, and no message waits for a place for long.
    fn batch_max(&self) -> usize {
        self.0.concurrency.div_ceil(2)
    }
}

impl Inner {
    async fn deliver(&self, event: &EventCx) -> Verdict {
        // It is never closed.
        let _slot = self.slots.acquire().await;
        let permit = self.breaker.permit()?;
        let exchanged = self.exchange(event).await;
        let was_refused = matches!(exchanged, Err(Unconnected::Refused(_)));
        let verdict = self.verdict(exchanged);
        match &verdict {
            Ok(_) => permit.success(),
            // Nobody was asked.
            Err(_) if was_refused => {}
            // A snooze would not count, and this is what a breaker is for.
            Err(failure) if failure.kind() == FailureKind::Snooze => {
                permit.failure(&Failure::transient("away", "nobody is there"));
            }
            Err(failure) => permit.failure(failure),
        }
        verdict
    }

    /// What becomes of the message.
    fn verdict(&self, exchanged: Exchanged) -> Verdict {
        match exchanged {
            Ok(answered) => answered?.verdict(&self.origin),
            Err(Unconnected::Refused(rule)) => {
                let message = format!("{} {rule}", self.origin);
                Err(Failure::definitive(FailureClass::Forbidden, "address_refused", message))
            }
            Err(Unconnected::Away(error)) => {
                let pause = self.away.has_missed(&self.origin, &error.to_string());
                Err(Failure::snooze(pause).with_source(error))
            }
        }
    }

    /// Sends a message and waits for the answer.
    async fn exchange(&self, event: &EventCx) -> Exchanged {
        let mut request = match self.request(event) {
            Ok(request) => request,
            Err(unsendable) => return Ok(Err(unsendable)),
        };
        let deadline = Instant::now() + self.time_limit;
        if let Some(connection) = self.connections.idle() {
            match self.send_over(connection, request, deadline).await {
                Ok(answered) => return Ok(answered),
                // The other side had hung up meanwhile.
                Err(unsent) => request = *unsent,
            }
        }
        self.exchange_anew(request, deadline, &mut Way::default()).await
    }

    /// The same over a connection of its own.
    async fn exchange_anew(&self, request: Request<Full<Bytes>>, deadline: Instant, way: &mut Way) -> Exchanged {
        let connection = self.connect(deadline, way).await?;
        let sent = self.send_over(connection, request, deadline).await;
        sent.map_err(|_| Unconnected::Away("it hung up before anything was sent".into()))
    }

    fn request(&self, event: &EventCx) -> Result<Request<Full<Bytes>>, Failure> {
        request::request(&self.connections.endpoint, &self.keys, event).map_err(|error| {
            let message = format!("its envelope does not fit into headers: {error}");
            Failure::definitive(FailureClass::Validation, "unsendable", message)
        })
    }

    async fn connect(&self, deadline: Instant, way: &mut Way) -> Result<Connection, Unconnected> {
        let deadline = deadline.min(Instant::now() + CONNECT_TIME_MAX);
        let connected = timeout_at(deadline, self.connections.connect(way)).await;
        let connected = connected.unwrap_or_else(|_| Err(Unconnected::Away("there was no connection in time".into())));
        if connected.is_ok() {
            self.away.is_back(&self.origin);
        }
        connected
    }

    /// Sends a request over a connection, and keeps the connection if it is still good.
    ///
    /// # Errors
    /// The request: nothing of it was sent.
    async fn send_over(
        &self,
        mut connection: Connection,
        request: Request<Full<Bytes>>,
        deadline: Instant,
    ) -> Result<Result<Answer, Failure>, Box<Request<Full<Bytes>>>> {
        let sending = connection.sender.try_send_request(request);
        let response = match timeout_at(deadline, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(mut error)) => {
                return match error.take_message() {
                    Some(unsent) => Err(Box::new(unsent)),
                    None => Ok(Err(self
                        .unconfirmed("hung up without a proper answer")
                        .with_source(error.into_error()))),
                };
            }
            Err(_) => {
                let silence = format!("did not answer within {:?}", self.time_limit);
                return Ok(Err(self.unconfirmed(&silence)));
            }
        };
        let answer = Answer::read(response).await;
        if answer.is_whole() && connection.is_reusable().await {
            self.connections.keep(connection);
        }
        Ok(Ok(answer))
    }

    fn unconfirmed(&self, why: &str) -> Failure {
        Failure::unknown("unconfirmed", format!("{} {why}; it may have arrived", self.origin))
    }
}

/// Without secrets, and a URL's path may be one.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("origin", &self.0.origin)
            .field("breaker", &self.0.breaker)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::io;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use futures_util::future::BoxFuture;
    use serde::{Deserialize, Serialize};
    use tokio::net::TcpStream;

    use super::*;
    use crate::{DeliveryState, Event, Steadfast};

    /// A network in which every name is this machine, and nobody may dial.
    struct Home;

    impl connection::Network for Home {
        fn resolve<'n>(&'n self, _: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>> {
            Box::pin(async { Ok(vec![Ipv4Addr::LOCALHOST.into()]) })
        }

        fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
            panic!("{address} was dialled")
        }
    }

    #[derive(Serialize, Deserialize)]
    struct OrderPlaced;

    impl Event for OrderPlaced {
        const TYPE: &'static str = "order.placed";
    }

    #[tokio::test]
    async fn a_message_to_a_name_that_leads_home_is_dead_at_once() -> crate::Result<()> {
        let sf = Steadfast::<sqlx::Sqlite>::open("sqlite::memory:").await?;
        let webhook = Webhook::to("https://hooks.example.org/").unsigned();
        sf.sink("partner").deliver_to(webhook.build_on(Box::new(Home))?);
        sf.declare().await?;
        let id = sf.transact(async |tx| Ok(tx.publish(&OrderPlaced)?)).await?;
        sf.drain().await?;
        let message = sf.message(id).look().await?.expect("it was published");
        let delivery = &message.deliveries[0];
        assert_eq!(delivery.state, DeliveryState::Dead);
        let failure = delivery.last_failure.as_ref().expect("a failure");
        assert_eq!(failure.code, "address_refused");
        let rule =
            "https://hooks.example.org leads to 127.0.0.1, this machine itself; add .allow_private() if it is yours";
        assert_eq!(failure.message, rule);
        Ok(())
    }
}
