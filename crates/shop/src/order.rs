//! An order: what is asked for, what is kept, and the rules.

use serde::{Deserialize, Serialize};

use steadfast::Failure;

use crate::input::{check_text, invalid};

/// Longer than any article number, short enough for one line of a table.
const SKU_LENGTH_MAX: usize = 64;
/// More than one customer takes home.
const QUANTITY_MAX: i64 = 1000;

/// What a customer asks for.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewOrder {
    pub(crate) sku: String,
    pub(crate) quantity: i64,
}

impl NewOrder {
    /// Whether it keeps the rules.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        check_text("sku", &self.sku, SKU_LENGTH_MAX)?;
        match self.quantity {
            1..=QUANTITY_MAX => Ok(()),
            quantity => Err(invalid(format!("quantity is {quantity}; order 1 to {QUANTITY_MAX}"))),
        }
    }
}

/// An order as it is answered.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    pub(crate) created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancelled_at: Option<String>,
    /// What a warehouse has said, if it has: `reserved` or `back_ordered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reservation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserved_at: Option<String>,
}

/// The columns of an order, in the order of its fields.
pub(crate) type OrderRow = (
    String,
    String,
    String,
    i64,
    String,
    Option<String>,
    Option<String>,
    Option<String>,
);

impl From<OrderRow> for Order {
    fn from(row: OrderRow) -> Self {
        let (id, owner, sku, quantity, created_at, cancelled_at, reservation, reserved_at) = row;
        Self {
            id,
            owner,
            sku,
            quantity,
            created_at,
            cancelled_at,
            reservation,
            reserved_at,
        }
    }
}
