//! Mail, through the outside world. It cannot be taken back and commits with nothing, so each mail is asked for with the key of its
//! delivery or its job: asked twice, it is sent once.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Url};
use serde::Serialize;
use steadfast::breaker::{Breaker, BreakerOptions};
use steadfast::{EventCx, Failure, JobCx};

use crate::StartError;
use crate::events::OrderPlaced;
use crate::jobs::{SendDigest, SendReceipt, SendReminder};
use crate::lab::{self, Lab};
use crate::outside_url::outside_url;

/// How long one attempt may take. If it takes longer nobody knows whether the mail was sent, and the key makes that harmless.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Who reads the digests.
const OFFICE: &str = "office@example.com";

pub(crate) struct Mail {
    client: Client,
    url: Url,
    breaker: Breaker,
    lab: Option<Arc<Lab>>,
}

#[derive(Serialize)]
struct Letter<'l> {
    to: &'l str,
    subject: String,
}

impl Mail {
    /// When to stop asking: after five failures in a row, for two seconds, then for longer. A delivery that finds the
    /// breaker open comes back later, and that counts as no attempt.
    pub(crate) fn breaker() -> BreakerOptions {
        Breaker::named("mail").consecutive_failures(5).open_for("2s")
    }

    pub(crate) fn new(outside: &str, breaker: Breaker, lab: Option<Arc<Lab>>) -> Result<Self, StartError> {
        Ok(Self {
            client: Client::builder().timeout(TIME_LIMIT).build()?,
            url: outside_url(outside, &["mail"])?,
            breaker,
            lab,
        })
    }

    async fn send(&self, key: &str, letter: &Letter<'_>) -> Result<(), Failure> {
        let sending = async || {
            let request = self.client.post(self.url.clone()).header("Idempotency-Key", key);
            let answer = request.json(letter).send().await?;
            Failure::check_status(answer.status(), answer.headers())
        };
        Ok(self.breaker.call(sending).await?)
    }
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Mail {
    /// Tells a customer that his order has come in.
    #[on(OrderPlaced, retry(retries = 8, backoff = exponential("200ms"), cap = "1m"), concurrency = 8)]
    pub(crate) async fn confirm(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
        let letter = Letter {
            to: &event.email,
            subject: format!("Your order {}: {} × {}", event.order_id, event.quantity, event.sku),
        };
        self.send(cx.key(), &letter).await?;
        lab::after_reaction(self.lab.as_ref(), Some(cx), Some(&event.sku)).await
    }

    /// Tells a customer that his money has come in.
    #[job(SendReceipt, retry(retries = 5, backoff = exponential("200ms"), cap = "1m"))]
    pub(crate) async fn receipt(&self, cx: &JobCx<Db>, job: SendReceipt) -> Result<(), Failure> {
        let letter = Letter {
            to: &job.email,
            subject: format!("Your payment {}: {} {}", job.payment_id, job.amount, job.currency),
        };
        self.send(cx.key(), &letter).await?;
        lab::after_job(self.lab.as_ref(), cx.name(), cx.attempt(), Some(&job.currency)).await
    }

    /// Reminds a customer of an order, unless that has become needless: who paid while this was under way, or with somebody who died of
    /// it, could not cancel it any more.
    #[job(SendReminder, retry(retries = 5, backoff = exponential("200ms"), cap = "1m"))]
    pub(crate) async fn remind(&self, cx: &JobCx<Db>, job: SendReminder) -> Result<(), Failure> {
        let select = "
            SELECT EXISTS (SELECT 1 FROM payments WHERE order_id = $1)
                OR EXISTS (SELECT 1 FROM cancellations WHERE order_id = $1)";
        let is_needless: bool = sqlx::query_scalar(select)
            .bind(&job.order_id)
            .fetch_one(cx.pool())
            .await?;
        if is_needless {
            return Ok(());
        }
        let letter = Letter {
            to: &job.email,
            subject: format!(
                "Not paid yet: your order {}, {} × {}",
                job.order_id, job.quantity, job.sku
            ),
        };
        self.send(cx.key(), &letter).await?;
        lab::after_job(self.lab.as_ref(), cx.name(), cx.attempt(), Some(&job.sku)).await
    }

    /// Tells the office what the day has brought.
    #[job(SendDigest, retry(retries = 5, backoff = exponential("200ms"), cap = "1m"))]
    pub(crate) async fn digest(&self, cx: &JobCx<Db>, job: SendDigest) -> Result<(), Failure> {
        let letter = Letter {
            to: OFFICE,
            subject: format!(
                "The day until {}: {} orders, {} pieces, {} payments",
                job.until, job.orders, job.pieces, job.payments
            ),
        };
        self.send(cx.key(), &letter).await?;
        lab::after_job(self.lab.as_ref(), cx.name(), cx.attempt(), None).await
    }
}
