//! Aggregates: things of the business that say by themselves what has happened to them.

use super::event::Event;
use super::message::NewMessage;
use super::origin::Origin;
use crate::error::Result;

/// Something that collects events while it is changed, to be published when it is saved by
/// [`Tx::save`](crate::Tx::save).
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::sqlx::{self, Sqlite};
/// use steadfast::{Aggregate, Event, Raised, Steadfast};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event("order.shipped", ordering_key = order)]
/// struct OrderShipped { order: i64 }
///
/// struct Order { id: i64, is_shipped: bool, raised: Vec<Raised> }
///
/// impl Order {
///     fn ship(&mut self) {
///         self.is_shipped = true;
///         self.raised.push(Raised::new(OrderShipped { order: self.id }));
///     }
/// }
///
/// impl Aggregate for Order {
///     fn raised(&mut self) -> &mut Vec<Raised> {
///         &mut self.raised
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
/// # sf.transact(async |tx| {
/// #     sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, is_shipped BOOLEAN)").execute(tx.db()).await?;
/// #     sqlx::query("INSERT INTO orders VALUES (7, false)").execute(tx.db()).await?;
/// #     Ok(())
/// # }).await?;
/// let mut order = Order { id: 7, is_shipped: false, raised: Vec::new() };
/// order.ship();
/// sf.transact(async |tx| {
///     tx.save(&mut order, async |order, db| {
///         sqlx::query("UPDATE orders SET is_shipped = $1 WHERE id = $2")
///             .bind(order.is_shipped)
///             .bind(order.id)
///             .execute(db)
///             .await?;
///         Ok(())
///     })
///     .await
/// })
/// .await?;
/// assert!(order.raised.is_empty(), "they are published");
/// # Ok(())
/// # }
/// ```
pub trait Aggregate {
    /// What has happened since it was last saved, in order.
    fn raised(&mut self) -> &mut Vec<Raised>;
}

/// An event that has happened and is not published yet.
pub struct Raised(Box<dyn Raise>);

impl Raised {
    /// Keeps an event.
    pub fn new<E: Event>(event: E) -> Self {
        Self(Box::new(event))
    }

    pub(crate) fn message(&self, origin: &Origin) -> Result<NewMessage> {
        self.0.message(origin)
    }

    pub(crate) fn is_in_process(&self) -> bool {
        self.0.is_in_process()
    }
}

impl std::fmt::Debug for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Raised").field(&self.0.name()).finish()
    }
}

/// An event whose type is forgotten.
trait Raise: Send + Sync {
    fn name(&self) -> &'static str;
    fn is_in_process(&self) -> bool;
    fn message(&self, origin: &Origin) -> Result<NewMessage>;
}

impl<E: Event> Raise for E {
    fn name(&self) -> &'static str {
        E::TYPE
    }

    fn is_in_process(&self) -> bool {
        E::IN_PROCESS
    }

    fn message(&self, origin: &Origin) -> Result<NewMessage> {
        NewMessage::of(self, origin)
    }
}
