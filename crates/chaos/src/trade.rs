//! The checker of the trade between shops and warehouses: every order that was committed is reserved in the warehouse once, said to be
//! so once, and shown so in the shop once. Nothing else is, nothing is dead, and nothing is left at the broker.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::time::sleep;

use crate::check::{ORDERS, Violation};
use crate::error::{Context, Result};
use crate::history::Mark;
use crate::options::Database;
use crate::scene::Scene;
use crate::snapshot::{Effect, Snapshot};

/// How long the way there and back may take when everything works again: the longest pause before a broker is called, a lease of the
/// lab, the longest pause of a policy, and a backlog.
const SETTLED_WITHIN: Duration = Duration::from_secs(90);

/// How often is looked whether it has come to its end, and for how many looks it must have.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS: u32 = 5;

/// What is in both databases and at the broker when all is over. Orders are there as often as something was done about them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Trade {
    /// In the warehouse.
    pub(crate) reserved: Vec<String>,
    /// In what the warehouse has published.
    pub(crate) said: Vec<String>,
    /// In the shop.
    pub(crate) shown: Vec<String>,
    /// In what the shop has published of it.
    pub(crate) told: Vec<String>,
    /// Deliveries that were given up, wherever: target and id.
    pub(crate) dead: Vec<String>,
    /// Messages that the broker still has for somebody.
    pub(crate) left: u64,
    /// Messages that were handed out before, kept, and worked on by the engines.
    pub(crate) kept: Vec<String>,
    /// Deliveries that were taken over from a process that had died.
    pub(crate) taken_over: Vec<String>,
}

/// The statements; the same SQL on both databases, but for the names.
macro_rules! statements {
    ($schema:literal) => {
        Statements {
            said: concat!(
                "SELECT payload FROM ",
                $schema,
                "messages WHERE type = 'stock.reserved'"
            ),
            told: concat!(
                "SELECT payload FROM ",
                $schema,
                "messages WHERE type = 'order.reserved'"
            ),
            dead: concat!(
                "SELECT kind || ' ' || CAST(item AS TEXT) FROM ",
                $schema,
                "queue WHERE state = 'dead'"
            ),
            kept: concat!(
                "SELECT kind || ' ' || CAST(item AS TEXT) FROM ",
                $schema,
                "history WHERE kind IN ('stock.reserve', 'warehouse.reserved')"
            ),
            taken_over: concat!(
                "SELECT kind || ' ' || CAST(item AS TEXT) FROM ",
                $schema,
                "failures WHERE code = 'lease_expired'"
            ),
        }
    };
}

struct Statements {
    said: &'static str,
    told: &'static str,
    dead: &'static str,
    kept: &'static str,
    taken_over: &'static str,
}

const POSTGRES: Statements = statements!("steadfast.");
const SQLITE: Statements = statements!("steadfast_");

const PLACED: &str = "SELECT id FROM orders";
const RESERVED: &str = "SELECT order_id FROM reservations";
const SHOWN: &str = "SELECT order_id FROM warehouse_reservations";

/// One of the two databases, read past the toolkit.
struct Reader<'r> {
    database: Database,
    url: &'r str,
}

impl Reader<'_> {
    async fn texts(&self, sql: &'static str) -> Result<Vec<String>> {
        let reading = async {
            match self.database {
                Database::Postgres => {
                    let mut conn = PgConnection::connect(self.url).await?;
                    sqlx::query_scalar(sql).fetch_all(&mut conn).await
                }
                Database::Sqlite => {
                    let options: SqliteConnectOptions = self.url.parse()?;
                    let mut conn = SqliteConnection::connect_with(&options).await?;
                    sqlx::query_scalar(sql).fetch_all(&mut conn).await
                }
            }
        };
        reading.await.context("reading a database")
    }

    /// The orders that events are about.
    async fn orders_in(&self, sql: &'static str) -> Result<Vec<String>> {
        let reading = async {
            match self.database {
                Database::Postgres => {
                    let mut conn = PgConnection::connect(self.url).await?;
                    sqlx::query_scalar(sql).fetch_all(&mut conn).await
                }
                Database::Sqlite => {
                    let options: SqliteConnectOptions = self.url.parse()?;
                    let mut conn = SqliteConnection::connect_with(&options).await?;
                    sqlx::query_scalar(sql).fetch_all(&mut conn).await
                }
            }
        };
        let payloads: Vec<Vec<u8>> = reading.await.context("reading events")?;
        let order = |payload: &Vec<u8>| {
            let event: Value = serde_json::from_slice(payload).ok()?;
            event["order_id"].as_str().map(str::to_owned)
        };
        Ok(payloads.iter().filter_map(order).collect())
    }
}

impl Scene {
    /// The shops' database and that of the warehouses, if there are any.
    fn readers(&self) -> Option<[Reader<'_>; 2]> {
        let warehouse_url = self.warehouse_url.as_deref()?;
        Some([&*self.database_url, warehouse_url].map(|url| Reader {
            database: self.database,
            url,
        }))
    }

    async fn left_at_broker(&self) -> Result<u64> {
        let mut left = 0;
        for (broker, server) in &self.brokers {
            left += broker.left(server).await?;
        }
        Ok(left)
    }
}

/// Waits until every order has gone to the warehouse and back, and nobody has anything to do. One that got lost will not come back:
/// when it takes too long, what there is is judged.
pub(crate) async fn until_settled(scene: &Scene) -> Result<()> {
    let Some([shop, warehouse]) = scene.readers() else {
        return Ok(());
    };
    let (began, mut looks) = (Instant::now(), 0);
    while looks < LOOKS && began.elapsed() < SETTLED_WITHIN {
        sleep(LOOK_EVERY).await;
        let waiting = Snapshot::waiting(scene.database, shop.url).await?
            + Snapshot::waiting(scene.database, warehouse.url).await?;
        let placed = shop.texts(PLACED).await?.len();
        let is_settled = waiting == 0
            && warehouse.texts(RESERVED).await?.len() >= placed
            && shop.texts(SHOWN).await?.len() >= placed
            && scene.left_at_broker().await? == 0;
        looks = if is_settled { looks + 1 } else { 0 };
    }
    Ok(())
}

impl Trade {
    /// Reads both databases and the broker, when all processes have ended.
    pub(crate) async fn take(scene: &Scene) -> Result<Self> {
        let Some([shop, warehouse]) = scene.readers() else {
            return Ok(Self::default());
        };
        let statements = match scene.database {
            Database::Postgres => POSTGRES,
            Database::Sqlite => SQLITE,
        };
        let both =
            async |sql| -> Result<Vec<String>> { Ok([shop.texts(sql).await?, warehouse.texts(sql).await?].concat()) };
        Ok(Self {
            reserved: warehouse.texts(RESERVED).await?,
            said: warehouse.orders_in(statements.said).await?,
            shown: shop.texts(SHOWN).await?,
            told: shop.orders_in(statements.told).await?,
            dead: both(statements.dead).await?,
            left: scene.left_at_broker().await?,
            kept: both(statements.kept).await?,
            taken_over: both(statements.taken_over).await?,
        })
    }
}

/// Judges every order, and what nobody has ordered.
pub(crate) fn judge(effects: &[Effect], trade: &Trade) -> Vec<Violation> {
    let orders: HashMap<&str, Option<usize>> = effects
        .iter()
        .filter(|effect| effect.operation == ORDERS)
        .map(|order| (&*order.id, command_of(order)))
        .collect();
    let mut violations = Vec::new();
    for (done, ids) in [
        ("reserved in the warehouse", &trade.reserved),
        ("said to be reserved", &trade.said),
        ("shown as reserved in the shop", &trade.shown),
        ("told to its customer", &trade.told),
    ] {
        let mut times: HashMap<&str, u64> = HashMap::new();
        for id in ids {
            *times.entry(id).or_default() += 1;
        }
        for (order, command) in &orders {
            let times = times.remove(order).unwrap_or(0);
            if times != 1 {
                violations.push(Violation {
                    rule: "INB-1",
                    sentence: format!("the order {order} is {done} {times} times"),
                    command: *command,
                });
            }
        }
        violations.extend(times.into_keys().map(|order| Violation {
            rule: "INB-1",
            sentence: format!("{order} is {done}, and there is no such order"),
            command: None,
        }));
    }
    violations.extend(trade.dead.iter().map(|letter| Violation {
        rule: "INB-5",
        sentence: format!("{letter} is dead, although nothing is wrong with it"),
        command: None,
    }));
    if trade.left > 0 {
        violations.push(Violation {
            rule: "INB-2",
            sentence: format!(
                "the broker still has {} messages that nobody has acknowledged",
                trade.left
            ),
            command: None,
        });
    }
    violations
}

fn command_of(order: &Effect) -> Option<usize> {
    match Mark::read(&order.mark)? {
        Mark::Of(number) | Mark::OfMutated(number) => Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: &str, number: usize) -> Effect {
        Effect {
            operation: ORDERS.into(),
            id: id.into(),
            tenant: "tenant-1".into(),
            owner: "user-a".into(),
            mark: Mark::Of(number).write(),
            at_ms: 0,
        }
    }

    fn good() -> Trade {
        let ids = || vec!["a".to_owned(), "b".to_owned()];
        Trade {
            reserved: ids(),
            said: ids(),
            shown: ids(),
            told: ids(),
            ..Trade::default()
        }
    }

    fn judged(trade: &Trade) -> Vec<(&'static str, Option<usize>)> {
        let violations = judge(&[order("a", 1), order("b", 2)], trade);
        violations
            .iter()
            .map(|violation| (violation.rule, violation.command))
            .collect()
    }

    #[test]
    fn what_went_there_and_back_once_is_fine() {
        assert_eq!(judged(&good()), []);
    }

    #[test]
    fn what_is_lost_doubled_or_invented_on_the_way_is_found() {
        let steps: [fn(&mut Trade) -> &mut Vec<String>; 4] = [
            |trade| &mut trade.reserved,
            |trade| &mut trade.said,
            |trade| &mut trade.shown,
            |trade| &mut trade.told,
        ];
        for step in steps {
            let mut lost = good();
            step(&mut lost).pop();
            assert_eq!(judged(&lost), [("INB-1", Some(2))]);
            let mut twice = good();
            step(&mut twice).push("a".into());
            assert_eq!(judged(&twice), [("INB-1", Some(1))]);
            let mut invented = good();
            step(&mut invented).push("c".into());
            assert_eq!(judged(&invented), [("INB-1", None)]);
        }
    }

    #[test]
    fn what_is_given_up_or_left_is_found() {
        let mut dead = good();
        dead.dead.push("stock.reserve 7".into());
        assert_eq!(judged(&dead), [("INB-5", None)]);
        let mut left = good();
        left.left = 1;
        assert_eq!(judged(&left), [("INB-2", None)]);
    }
}
