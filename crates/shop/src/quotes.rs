//! Shipping quotes from the outside world. Nothing is lost without one: an order is shown with its quote, or quickly
//! without.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::breaker::{Breaker, BreakerOptions};
use steadfast::{Failure, FailureExt, RetryPolicy, retry};

use crate::StartError;
use crate::order::Order;

/// One more attempt, and no attempt for somebody who has waited half a second: people look at orders, and do not wait for quotes.
const POLICY: RetryPolicy = retry!(retries = 1, backoff = constant("50ms"), max_age = "500ms");

/// How long one attempt may take.
const TIME_LIMIT: Duration = Duration::from_millis(300);

/// What shipping an order would cost.
#[derive(Serialize, Deserialize)]
pub(crate) struct Quote {
    price: i64,
    currency: String,
    days: u32,
}

pub(crate) struct Quotes {
    client: reqwest::Client,
    url: String,
    breaker: Breaker,
}

impl Quotes {
    /// When to stop asking: after three failures in a row, for five seconds, then for longer.
    pub(crate) fn breaker() -> BreakerOptions {
        Breaker::named("shipping").consecutive_failures(3).open_for("5s")
    }

    pub(crate) fn new(outside: &str, breaker: Breaker) -> Result<Self, StartError> {
        let client = reqwest::Client::builder().timeout(TIME_LIMIT).build()?;
        let url = format!("{}/shipping/quote", outside.trim_end_matches('/'));
        if let Err(error) = client.get(&url).build() {
            return Err(
                format!("{outside} is not where the outside world can be: {error}; write http://HOST:PORT").into(),
            );
        }
        Ok(Self { client, url, breaker })
    }

    /// A quote, if one can be had now. While the breaker is open nobody is asked.
    pub(crate) async fn quote(&self, order: &Order) -> Option<Quote> {
        let asked = POLICY
            .operation("shipping.quote")
            .run(async || self.breaker.call(async || self.ask(order).await).await);
        match asked.await {
            Ok(quote) => Some(quote),
            Err(failure) => {
                tracing::debug!(?failure, "shown without a quote");
                None
            }
        }
    }

    async fn ask(&self, order: &Order) -> Result<Quote, Failure> {
        let question = self
            .client
            .get(&self.url)
            .query(&[("sku", &order.sku), ("quantity", &order.quantity.to_string())]);
        // A question changes nothing: if its answer is lost, it may be asked again.
        let answer = question.send().await.transient()?;
        Failure::check_status(answer.status(), answer.headers())?;
        answer.json().await.transient()
    }
}
