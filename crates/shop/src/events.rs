//! What the shop tells: facts that others react to, in this process or in another.
//!
//! Everything about one order has its id as the ordering key, so that each target hears of it in the order in which it
//! happened. What is told to two targets has no order between them: `stock.release` may come before `stock.reserve`.

use serde::{Deserialize, Serialize};
use steadfast::{Event, Owner};

/// Somebody wants something.
#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = order_id)]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    #[redact]
    pub(crate) email: String,
}

/// He does not want it any more.
#[derive(Serialize, Deserialize, Event)]
#[event("order.cancelled", ordering_key = order_id)]
pub(crate) struct OrderCancelled {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
}

/// A warehouse keeps the pieces of an order, or has not got them.
#[derive(Serialize, Deserialize, Event)]
#[event("stock.reserved", ordering_key = order_id)]
pub(crate) struct StockReserved {
    pub(crate) order_id: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    /// `reserved` or `back_ordered`.
    pub(crate) state: String,
    pub(crate) reserved_at: String,
}

/// The shop has heard so, and shows it.
#[derive(Serialize, Deserialize, Event)]
#[event("order.reserved", ordering_key = order_id)]
pub(crate) struct OrderReserved {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) state: String,
}

/// Money has come in, for an order or for nothing in particular.
#[derive(Serialize, Deserialize, Event)]
#[event("payment.captured", ordering_key = self.subject())]
pub(crate) struct PaymentCaptured {
    pub(crate) payment_id: String,
    pub(crate) customer: String,
    pub(crate) order_id: Option<String>,
    pub(crate) amount: i64,
    pub(crate) currency: String,
    #[redact]
    pub(crate) email: String,
}

impl PaymentCaptured {
    fn subject(&self) -> &str {
        self.order_id.as_ref().unwrap_or(&self.payment_id)
    }
}

/// Where a customer gets his mail: the demo tokens have no other.
pub(crate) fn email_of(owner: &Owner) -> String {
    format!("{}@example.com", owner.user())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_comes_after_what_was_told_of_its_order() {
        let mut captured = PaymentCaptured {
            payment_id: "p-1".into(),
            customer: "tenant-1/user-a".into(),
            order_id: Some("o-1".into()),
            amount: 5,
            currency: "EUR".into(),
            email: email_of(&Owner::new("tenant-1", "user-a")),
        };
        assert_eq!(captured.ordering_key().as_deref(), Some("o-1"));
        captured.order_id = None;
        assert_eq!(captured.ordering_key().as_deref(), Some("p-1"));
        assert_eq!(PaymentCaptured::REDACTED, ["email"]);
    }
}
