//! How a webhook is described, and what cannot be one.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::connection::{Connections, Internet, Network};
use super::guard::{Allowed, Endpoint};
use super::signature::{SigningKey, WebhookSecret};
use super::{Inner, Webhook};
use crate::breaker::Breaker;
use crate::broker::away::Away;
use crate::clock::ReadDuration;
use crate::error::{Code, Error, Result};

/// More requests at once than this are an attack.
const CONCURRENCY: RangeInclusive<usize> = 1..=1_000;

/// How long a request may take.
const TIME_LIMIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);

/// The name of a breaker is not longer than this.
const BREAKER_NAME_LENGTH_MAX: usize = 255;

/// Settings of a [`Webhook`]: see [`Webhook::to`].
#[must_use = "nothing happens until `build`"]
pub struct WebhookOptions {
    url: String,
    secrets: Vec<WebhookSecret>,
    is_unsigned: bool,
    concurrency: usize,
    time_limit: Result<Duration>,
    allowed: Allowed,
    trusted: Vec<Vec<u8>>,
    breaker: Option<Breaker>,
}

impl WebhookOptions {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            secrets: Vec::new(),
            is_unsigned: false,
            concurrency: 8,
            time_limit: Ok(Duration::from_secs(10)),
            allowed: Allowed::default(),
            trusted: Vec::new(),
            breaker: None,
        }
    }

    /// Signs with these secrets, the current one first. Each of them signs each message: while a secret is replaced, the other side
    /// may know the old one or the new one.
    ///
    /// ```
    /// # use steadfast::Webhook;
    /// let webhook = Webhook::to("https://example.org/hooks").signed_by(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).build()?;
    ///
    /// let refused = Webhook::to("https://example.org/hooks").signed_by(["hunter2"]).build().unwrap_err();
    /// assert!(refused.to_string().contains("is not `whsec_` and base64"));
    /// # Ok::<(), steadfast::Error>(())
    /// ```
    pub fn signed_by(mut self, secrets: impl IntoIterator<Item: Into<WebhookSecret>>) -> Self {
        self.secrets = secrets.into_iter().map(Into::into).collect();
        self
    }

    /// Sends without a signature: the other side cannot tell who has sent a message.
    pub fn unsigned(mut self) -> Self {
        self.is_unsigned = true;
        self
    }

    /// How many requests may be at the endpoint at once; 8 by default.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// How long a request may take, from looking up the name to the status of the answer; 10 seconds by default. Keep it below
    /// half of the sink's own [limit](crate::SinkTarget::time_limit), which is 30.
    pub fn time_limit(mut self, time_limit: impl ReadDuration) -> Self {
        self.time_limit = time_limit.read_duration();
        self
    }

    /// Lets the webhook go to this machine and to private addresses: for endpoints of your own, never for URLs that others give.
    pub fn allow_private(mut self) -> Self {
        self.allowed.private = true;
        self
    }

    /// Lets the webhook speak plain HTTP to this machine, together with [`allow_private`](Self::allow_private). Beyond it, https
    /// is all there is.
    pub fn allow_plaintext(mut self) -> Self {
        self.allowed.plaintext = true;
        self
    }

    /// Trusts the certificates in this PEM text, besides those that browsers trust: for an authority of your own. It may be said
    /// more than once.
    pub fn trust(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.trusted.push(pem.into());
        self
    }

    /// Watches over the endpoint with this breaker, for instance one that is shared with other processes. By default it is one of
    /// its own, which opens after 5 failures in a row, for 1 second, then for twice as long each time up to 30.
    ///
    /// ```
    /// # use steadfast::{Breaker, Steadfast, Webhook, sqlx::Sqlite};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let breaker = sf.breaker(Breaker::named("partner").open_for("10s").shared())?;
    /// let webhook = Webhook::to("https://example.org/hooks").unsigned().breaker(breaker).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Makes the sink. Nothing is connected to yet.
    ///
    /// # Errors
    /// SF303 for a URL that webhooks may not go to and for a setting that means nothing, naming the rule and what to write.
    pub fn build(self) -> Result<Webhook> {
        self.build_on(Box::new(Internet))
    }

    pub(super) fn build_on(self, network: Box<dyn Network>) -> Result<Webhook> {
        let endpoint = Endpoint::new(&self.url, self.allowed).map_err(refused)?;
        let origin = endpoint.origin();
        let rule = |rule: String| refused(format!("the webhook {origin} {rule}"));
        if self.secrets.is_empty() != self.is_unsigned {
            let either = match self.is_unsigned {
                true => "has secrets and is .unsigned(); remove one of them",
                false => "has no secret; add .signed_by([..]), or .unsigned() if the other side knows who sends",
            };
            return Err(rule(either.to_owned()));
        }
        let keys: Result<Vec<_>, _> = self.secrets.into_iter().map(SigningKey::new).collect();
        let keys = keys.map_err(rule)?;
        if !CONCURRENCY.contains(&self.concurrency) {
            let (least, most) = (CONCURRENCY.start(), CONCURRENCY.end());
            let concurrency = self.concurrency;
            return Err(rule(format!(
                "has a concurrency of {concurrency}; write {least} to {most}"
            )));
        }
        let time_limit = self.time_limit?;
        if !TIME_LIMIT.contains(&time_limit) {
            return Err(rule(format!("has a time_limit of {time_limit:?}; write 1ms to 1h")));
        }
        let connections = Connections::new(endpoint, &self.trusted, network).map_err(rule)?;
        let breaker = match self.breaker {
            Some(breaker) => breaker,
            None => own_breaker(&origin)?,
        };
        Ok(Webhook(Arc::new(Inner {
            connections,
            origin,
            keys,
            time_limit,
            concurrency: self.concurrency,
            slots: Semaphore::new(self.concurrency),
            breaker,
            away: Away::default(),
        })))
    }
}

fn refused(message: String) -> Error {
    Error::new(Code::ConfigurationInvalid, message)
}

fn own_breaker(origin: &str) -> Result<Breaker> {
    let name = format!("webhook {origin}");
    let name = &name[..name.floor_char_boundary(BREAKER_NAME_LENGTH_MAX)];
    Breaker::named(name).open_for("1s").cap("30s").build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_webhook_is_refused_with_its_rule() {
        let secret =
            || Webhook::to("https://example.org/hunter2").signed_by(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
        assert!(secret().build().is_ok());
        for (options, says) in [
            (Webhook::to("https://example.org/hunter2"), "has no secret"),
            (secret().unsigned(), "remove one of them"),
            (secret().concurrency(0), "write 1 to 1000"),
            (secret().time_limit("0s"), "write 1ms to 1h"),
            (secret().time_limit("soon"), "is not a duration"),
            (secret().trust("nobody"), "give it as PEM"),
            (secret().signed_by([[7; 7]]), "7 bytes"),
        ] {
            let error = options.build().expect_err(says);
            assert_eq!(error.code(), Code::ConfigurationInvalid);
            assert!(error.to_string().contains(says), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn a_webhook_shows_no_secret() {
        let webhook = Webhook::to("https://example.org/hunter2").signed_by([*b"hunter2hunter2hunter2hunter2"]);
        let shown = format!("{:?}", webhook.build().expect("a webhook"));
        assert!(
            shown.contains("https://example.org") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
