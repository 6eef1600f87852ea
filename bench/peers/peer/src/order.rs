//! What each job is about: the order of our own benches, of about 150 bytes.

use serde::{Deserialize, Serialize};

/// An order. Its quantity tells one from another where that matters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    sku: String,
    /// How many.
    pub quantity: i32,
    note: String,
}

impl Order {
    /// So many of the same.
    pub fn of(quantity: i32) -> Self {
        Self {
            sku: "TEA-EARL-GREY-250".to_owned(),
            quantity,
            note: "Please ring twice and leave it with the neighbour, or behind the green door if nobody is at home."
                .to_owned(),
        }
    }
}
