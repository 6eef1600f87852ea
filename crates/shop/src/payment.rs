//! A payment: what is asked for, what is kept, and the rules.

use serde::{Deserialize, Serialize};
use steadfast::Failure;
use uuid::Uuid;

use crate::input::{check_text, invalid};

/// Ten million in a currency with cents: a slip of the keyboard, rather than a payment, is larger.
const AMOUNT_MAX: i64 = 1_000_000_000;
/// One line of a bank statement.
const DESCRIPTION_LENGTH_MAX: usize = 200;

/// What a customer asks for.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPayment {
    /// In minor units: 1250 is 12.50 EUR.
    pub(crate) amount: i64,
    pub(crate) currency: String,
    pub(crate) order_id: Option<String>,
    pub(crate) description: Option<String>,
}

impl NewPayment {
    /// Whether it keeps the rules.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !(1..=AMOUNT_MAX).contains(&self.amount) {
            return Err(invalid(format!(
                "amount is {}; send 1 to {AMOUNT_MAX} in minor units, 1250 for 12.50",
                self.amount
            )));
        }
        if self.currency.len() != 3 || !self.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(invalid(
                "currency is not three upper-case letters; send EUR, USD or another code of ISO 4217",
            ));
        }
        if let Some(order_id) = &self.order_id {
            let id = Uuid::parse_str(order_id).map(|id| id.to_string());
            if id.as_ref() != Ok(order_id) {
                return Err(invalid(
                    "order_id is not an id as the shop writes it; send the id of one of your orders",
                ));
            }
        }
        match &self.description {
            Some(description) => check_text("description", description, DESCRIPTION_LENGTH_MAX),
            None => Ok(()),
        }
    }
}

/// A payment as it is answered.
#[derive(Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) amount: i64,
    pub(crate) currency: String,
    pub(crate) order_id: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) created_at: String,
}

/// The columns of a payment, in the order of its fields.
pub(crate) type PaymentRow = (String, String, i64, String, Option<String>, Option<String>, String);

impl From<PaymentRow> for Payment {
    fn from((id, owner, amount, currency, order_id, description, created_at): PaymentRow) -> Self {
        Self {
            id,
            owner,
            amount,
            currency,
            order_id,
            description,
            created_at,
        }
    }
}
