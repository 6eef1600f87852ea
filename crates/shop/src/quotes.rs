//! Shipping quotes from the outside world. Nothing is lost without one: an order is shown with its quote, or quickly
//! without.

use std::time::Duration;

use reqwest::{Client, Response, Url};
use serde::{Deserialize, Serialize};
use steadfast::breaker::{Breaker, BreakerOptions, CallError};
use steadfast::{Failure, FailureExt, RetryPolicy, retry};

use crate::StartError;
use crate::order::Order;
use crate::outside_url::outside_url;

/// One more attempt, and no attempt for somebody who has waited half a second: people look at orders, and do not wait for quotes.
const POLICY: RetryPolicy = retry!(retries = 1, backoff = constant("50ms"), max_age = "500ms");

/// How long one attempt may take.
const TIME_LIMIT: Duration = Duration::from_millis(300);

/// More than any quote has. Who sends more could fill the memory within the time limit.
const QUOTE_BYTES_MAX: usize = 16 * 1024;

/// What shipping an order would cost.
#[derive(Serialize, Deserialize)]
pub(crate) struct Quote {
    price: i64,
    currency: String,
    days: u32,
}

pub(crate) struct Quotes {
    client: Client,
    url: Url,
    breaker: Breaker,
}

impl Quotes {
    /// When to stop asking: after three failures in a row, for five seconds, then for longer.
    pub(crate) fn breaker() -> BreakerOptions {
        Breaker::named("shipping").consecutive_failures(3).open_for("5s")
    }

    pub(crate) fn new(outside: &str, breaker: Breaker) -> Result<Self, StartError> {
        let client = Client::builder().timeout(TIME_LIMIT).build()?;
        let url = outside_url(outside, &["shipping", "quote"])?;
        Ok(Self { client, url, breaker })
    }

    /// A quote, if one can be had now. While the breaker is open nobody is asked.
    pub(crate) async fn quote(&self, order: &Order) -> Option<Quote> {
        let asked = POLICY
            .operation("shipping.quote")
            .correlation_id(&order.id)
            .run(async || {
                self.breaker
                    .call(async || self.ask(order).await)
                    .await
                    .map_err(unless_open)
            });
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
            .get(self.url.clone())
            .query(&[("sku", &order.sku), ("quantity", &order.quantity.to_string())]);
        // A question changes nothing: if its answer is lost, it may be asked again.
        let answer = question.send().await.transient()?;
        Failure::check_status(answer.status(), answer.headers())?;
        serde_json::from_slice(&body(answer).await?).transient()
    }
}

/// Nobody waits for an open breaker here, not even if it is open for the blink of an eye only: the order is shown without a quote.
fn unless_open(error: CallError) -> Failure {
    match error {
        CallError::Open(open) => Failure::cancelled().with_source(open),
        CallError::Failed(failure) => failure,
    }
}

async fn body(mut answer: Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.transient()? {
        if body.len() + chunk.len() > QUOTE_BYTES_MAX {
            return Err(Failure::transient("too_long", "this is no quote: it does not end"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn order() -> Order {
        Order {
            id: "1".into(),
            owner: "user-a".into(),
            sku: "tea".into(),
            quantity: 2,
            created_at: "2026-11-16T08:00:00.000Z".into(),
            cancelled_at: None,
            reservation: None,
            reserved_at: None,
        }
    }

    fn quotes(outside: &str, breaker: BreakerOptions) -> Quotes {
        let breaker = breaker.build().expect("good settings");
        Quotes::new(outside, breaker).expect("a good address")
    }

    #[tokio::test]
    async fn nobody_waits_for_a_breaker_that_is_open_for_a_moment_or_for_ever() {
        let moment = quotes(
            "http://127.0.0.1:1",
            Quotes::breaker().consecutive_failures(1).open_for("400ms"),
        );
        let lost = Failure::transient("lost", "no reply");
        moment.breaker.permit().expect("closed").failure(&lost);
        let for_ever = quotes("http://127.0.0.1:1", Quotes::breaker());
        for_ever.breaker.force_open();
        for quotes in [moment, for_ever] {
            let order = order();
            let at_once = tokio::time::timeout(Duration::ZERO, quotes.quote(&order)).await;
            assert!(at_once.expect("at once").is_none());
        }
    }

    #[tokio::test]
    async fn an_answer_that_does_not_end_is_no_quote() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a client");
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while socket.write_all(&[b' '; 4096]).await.is_ok() {}
        });
        let asked = quotes(&url, Quotes::breaker()).ask(&order()).await;
        assert_eq!(asked.err().expect("no quote").code(), "too_long");
    }
}
