//! The business of every case: an order of about 150 bytes, placed by one INSERT and answered with about 170 bytes.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use steadfast::Owner;

pub(crate) const OPERATION: &str = "orders.place";

/// Binds sku, quantity and note; `$1` is read by both databases.
pub(crate) const INSERT: &str = "INSERT INTO orders (sku, quantity, note) VALUES ($1, $2, $3) RETURNING id";

/// What is asked for, by everybody alike: the cost is that of the row, not of its content.
pub(crate) static ORDER: LazyLock<Order> = LazyLock::new(|| Order {
    sku: "TEA-EARL-GREY-250".to_owned(),
    quantity: 2,
    note: "Please ring twice and leave it with the neighbour, or behind the green door if nobody is at home."
        .to_owned(),
});

pub(crate) static OWNER: LazyLock<Owner> = LazyLock::new(|| Owner::new("tenant-1", "user-a"));

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) sku: String,
    pub(crate) quantity: i32,
    pub(crate) note: String,
}

/// The answer, which is stored with the key.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Placed {
    id: i64,
    #[serde(flatten)]
    order: Order,
}

impl Order {
    pub(crate) fn placed(&self, id: i64) -> Placed {
        Placed {
            id,
            order: self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_its_answer_have_the_size_they_are_said_to_have() {
        let length = |json: serde_json::Result<String>| json.map_or(0, |json| json.len());
        assert!((140..=160).contains(&length(serde_json::to_string(&*ORDER))));
        assert!((150..=180).contains(&length(serde_json::to_string(&ORDER.placed(1_000_000)))));
    }
}
