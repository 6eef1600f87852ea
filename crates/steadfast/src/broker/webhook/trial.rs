//! One event to an endpoint, to see whether it is there and takes what it is sent: as a sink would send it, and told step by step.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::LOCATION;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::connection::Way;
use super::{Exchanged, Inner, Verdict, Webhook};
use crate::clock::{Timestamp, micros};
use crate::failure::FailureKind;
use crate::outbox::{EventCx, Message, MessageId, Origin};

/// The type of a test event, which no event of a user has.
const TYPE: &str = "dev.steadfast.webhook.test";

const PAYLOAD: &[u8] = br#"{"test":true}"#;

impl Webhook {
    /// Sends a test event of the type `dev.steadfast.webhook.test`, exactly as an event of yours would be sent, and says what
    /// happened on the way. No database is needed.
    ///
    /// It goes over a connection of its own and past the breaker, and counts for none: somebody wants to know how things are now.
    ///
    /// ```
    /// use axum::{Router, http::StatusCode, routing::post};
    /// use steadfast::Webhook;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?;
    /// let endpoint = Router::new().route("/hooks", post(|| async { (StatusCode::GONE, "we have moved") }));
    /// tokio::spawn(async { axum::serve(listener, endpoint).await });
    ///
    /// let webhook = Webhook::to(format!("http://{address}/hooks")).unsigned().allow_private().allow_plaintext().build()?;
    /// let trial = webhook.try_out().await;
    /// assert_eq!((trial.connected_to, trial.status), (Some(address), Some(410)));
    /// assert_eq!(trial.answer, "we have moved");
    /// assert_eq!(trial.verdict.as_ref().unwrap_err().code(), "http_410"); // definitive: a message would be dead
    /// assert!(trial.remedy().is_some_and(|remedy| remedy.contains("remove the webhook")));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_out(&self) -> WebhookTrial {
        let event = test_event();
        let start = Instant::now();
        let mut way = Way::default();
        let exchanged = self.0.try_out(&event, start, &mut way).await;
        let answer = exchanged.as_ref().ok().and_then(|answered| answered.as_ref().ok());
        let location = answer.and_then(|answer| answer.headers.get(LOCATION)?.to_str().ok());
        WebhookTrial {
            id: event.id(),
            event_type: TYPE,
            origin: self.0.origin.clone(),
            signatures: self.0.keys.len(),
            took: start.elapsed(),
            addresses: way.addresses.iter().map(SocketAddr::ip).collect(),
            connected_to: way.peer,
            is_https: self.0.connections.endpoint.is_tls,
            tls: way.tls,
            status: answer.map(|answer| answer.status.as_u16()),
            location: location.map(ToOwned::to_owned),
            answer: answer.map_or_else(String::new, |answer| answer.words()),
            verdict: self.0.verdict(exchanged),
        }
    }
}

impl Inner {
    async fn try_out(&self, event: &EventCx, start: Instant, way: &mut Way) -> Exchanged {
        match self.request(event) {
            Ok(request) => self.exchange_anew(request, start + self.time_limit, way).await,
            Err(unsendable) => Ok(Err(unsendable)),
        }
    }
}

/// What happened to a test event: [`Webhook::try_out`].
#[derive(Debug)]
#[non_exhaustive]
pub struct WebhookTrial {
    /// The id that it was sent under.
    pub id: MessageId,
    /// Its type.
    pub event_type: &'static str,
    /// The endpoint as it may be shown: path and query may be secret.
    pub origin: String,
    /// How many secrets have signed it.
    pub signatures: usize,
    /// How long it took, from looking up the name to the end of the answer.
    pub took: Duration,
    /// What the host stands for; none if its name has no address.
    pub addresses: Vec<IpAddr>,
    /// The address that a connection was made to.
    pub connected_to: Option<SocketAddr>,
    is_https: bool,
    /// What the connection is encrypted with: `TLS 1.3` or `TLS 1.2`.
    pub tls: Option<&'static str>,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// Where the answer leads to. Webhooks follow nobody.
    pub location: Option<String>,
    /// The beginning of the answer, on one line.
    pub answer: String,
    /// What would have become of a message of yours.
    pub verdict: Verdict,
}

impl WebhookTrial {
    /// What to do, unless it was delivered.
    pub fn remedy(&self) -> Option<&'static str> {
        let failure = self.verdict.as_ref().err()?;
        Some(match (failure.code(), self.status) {
            ("address_refused", _) => "look at what the name stands for: somebody may lead you to a server of your own",
            ("redirected", _) => "use the URL that it leads to, if you know whose it is: webhooks follow nobody",
            ("unconfirmed", _) => {
                "let the endpoint answer every request before it begins its work, or allow it more time; it may have got the \
                 event, and gets it again with the same webhook-id"
            }
            (_, Some(401 | 403)) => {
                "compare the secret on both sides, and let the other one verify the bytes as they came, before they are parsed; look \
                 at its clock too, since it may refuse old timestamps"
            }
            (_, Some(404)) => "look at the path of the URL",
            (_, Some(410)) => "the endpoint is gone for good: remove the webhook, or ask for its new URL",
            (_, Some(405)) => "look at the path of the URL: what is there takes no POST",
            (_, Some(413)) => "let the endpoint take larger requests: events have up to 256 KiB",
            (_, Some(429)) => "let the endpoint take more requests, or send fewer at once (`concurrency`)",
            (_, Some(500..)) => "look into the log of the endpoint, or of the proxy before it",
            (_, Some(_)) => {
                "look into the log of the endpoint; one that refuses types it does not know should answer 2xx instead"
            }
            (_, None) if failure.kind() == FailureKind::Snooze => self.remedy_for_absence(),
            (_, None) => "report it as a mistake of ours",
        })
    }

    /// Nothing was sent: it depends on how far it came.
    fn remedy_for_absence(&self) -> &'static str {
        match (self.addresses.is_empty(), self.connected_to, self.tls) {
            (true, ..) => "look at the host of the URL, and at the resolver of this machine: the name has no address",
            (false, None, _) => {
                "start the endpoint, look at the port, and at firewalls in between: nobody answers at the address"
            }
            (false, Some(_), None) if self.is_https => {
                "look at the certificate of the endpoint: it needs the whole chain, the host's name and a date that has not passed; \
                 trust its authority if that is one of your own"
            }
            _ => "look at what listens there: it hung up before it was asked anything",
        }
    }
}

fn test_event() -> EventCx {
    let id = Uuid::now_v7();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let message = Message {
        id,
        event_type: TYPE.into(),
        version: 1,
        created_at: Timestamp(micros(now)),
        has_expired: false,
        ordering_key: None,
        origin: Origin::of("steadfast".into()),
        payload: PAYLOAD.into(),
        elsewhere: None,
    };
    EventCx::new(message, "webhook.test".into(), 1, CancellationToken::new())
}
