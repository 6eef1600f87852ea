//! What is in the database when all is over, read with plain SQL past the toolkit.

use serde::Serialize;
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::error::{Context, Result};
use crate::options::Database;
use crate::sent::Published;

#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) effects: Vec<Effect>,
    pub(crate) keys: Vec<Key>,
    /// The orders that stock was reserved for, as often as it was.
    pub(crate) reserved: Vec<String>,
    /// The orders that it was given up for: their events are dead letters.
    pub(crate) dead: Vec<String>,
    /// The payments whose receipt was given up.
    pub(crate) dead_receipts: Vec<String>,
    /// How many deliveries were taken over from a process that had died, or was cut off.
    pub(crate) taken_over: u64,
    /// What was to be sent to brokers.
    pub(crate) published: Published,
}

/// A row of the shop.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Effect {
    /// The name of the operation that made it.
    pub(crate) operation: String,
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) owner: String,
    pub(crate) mark: String,
    /// When its transaction began, in milliseconds of the database's clock.
    pub(crate) at_ms: i64,
}

/// A stored answer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Key {
    pub(crate) operation: String,
    pub(crate) tenant: String,
    pub(crate) owner: String,
    pub(crate) value: String,
    /// The effect that it tells of.
    pub(crate) id: Option<String>,
    pub(crate) is_live: bool,
}

/// The rows of the shop: the same SQL on both databases, but for the time.
macro_rules! effects {
    ($at_ms:literal) => {
        concat!(
            "SELECT 'orders.place' AS operation, id, tenant, owner, sku AS mark, ",
            $at_ms,
            " AS at_ms FROM orders
             UNION ALL
             SELECT 'payments.make', id, tenant, owner, coalesce(description, ''), ",
            $at_ms,
            " FROM payments"
        )
    };
}

const EFFECTS_POSTGRES: &str = effects!("(extract(epoch FROM created_at::timestamptz) * 1000)::bigint");
const EFFECTS_SQLITE: &str = effects!("CAST(round((julianday(created_at) - 2440587.5) * 86400000) AS INTEGER)");

const KEYS_POSTGRES: &str = "
    SELECT operation, tenant, owner, value, body, expires_at > clock_timestamp() AS is_live
    FROM steadfast.keys";
/// Times are in microseconds.
const KEYS_SQLITE: &str = "
    SELECT operation, tenant, owner, value, body,
           expires_at > CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) AS is_live
    FROM steadfast_keys";

const RESERVED: &str = "SELECT order_id FROM reservations";

/// What the shop's event says of its order: the same SQL on both databases, but for the names.
macro_rules! of_deliveries {
    ($schema:literal) => {
        Deliveries {
            waiting: concat!(
                "SELECT count(*) FROM ",
                $schema,
                "queue WHERE state <> 'dead' AND kind <> 'job:reminder.send'"
            ),
            dead: concat!(
                "SELECT m.payload FROM ",
                $schema,
                "queue AS q JOIN ",
                $schema,
                "messages AS m ON m.id = q.item WHERE q.state = 'dead' AND q.kind = 'stock.reserve'"
            ),
            dead_receipts: concat!(
                "SELECT m.payload FROM ",
                $schema,
                "queue AS q JOIN ",
                $schema,
                "messages AS m ON m.id = q.item WHERE q.state = 'dead' AND q.kind = 'job:receipt.send'"
            ),
            taken_over: concat!(
                "SELECT count(*) FROM ",
                $schema,
                "failures WHERE code = 'lease_expired'"
            ),
            messages: concat!("SELECT CAST(id AS TEXT) FROM ", $schema, "messages WHERE kind IS NULL"),
            dead_at_sinks: concat!(
                "SELECT CAST(item AS TEXT), kind FROM ",
                $schema,
                "queue WHERE state = 'dead' AND kind LIKE 'shop.%'"
            ),
            failed_at_sinks: concat!(
                "SELECT CAST(item AS TEXT), kind, code FROM ",
                $schema,
                "failures WHERE kind LIKE 'shop.%'"
            ),
        }
    };
}

struct Deliveries {
    waiting: &'static str,
    dead: &'static str,
    dead_receipts: &'static str,
    taken_over: &'static str,
    messages: &'static str,
    dead_at_sinks: &'static str,
    failed_at_sinks: &'static str,
}

const DELIVERIES_POSTGRES: Deliveries = of_deliveries!("steadfast.");
const DELIVERIES_SQLITE: Deliveries = of_deliveries!("steadfast_");

type EffectRow = (String, String, String, String, String, i64);
type KeyRow = (String, String, String, String, Vec<u8>, bool);

impl Snapshot {
    pub(crate) async fn take(database: Database, url: &str) -> Result<Self> {
        let reading = match database {
            Database::Postgres => Self::from_postgres(url).await,
            Database::Sqlite => Self::from_sqlite(url).await,
        };
        reading.context("reading the database")
    }

    /// How many deliveries are still to be made, and jobs to be done. Reminders are due in days.
    pub(crate) async fn waiting(database: Database, url: &str) -> Result<i64> {
        let counting = async {
            match database {
                Database::Postgres => {
                    let mut conn = PgConnection::connect(url).await?;
                    sqlx::query_scalar(DELIVERIES_POSTGRES.waiting)
                        .fetch_one(&mut conn)
                        .await
                }
                Database::Sqlite => {
                    let options: SqliteConnectOptions = url.parse()?;
                    let mut conn = SqliteConnection::connect_with(&options).await?;
                    sqlx::query_scalar(DELIVERIES_SQLITE.waiting).fetch_one(&mut conn).await
                }
            }
        };
        counting.await.context("counting deliveries")
    }

    async fn from_postgres(url: &str) -> sqlx::Result<Self> {
        let mut conn = PgConnection::connect(url).await?;
        let effects: Vec<EffectRow> = sqlx::query_as(EFFECTS_POSTGRES).fetch_all(&mut conn).await?;
        let keys: Vec<KeyRow> = sqlx::query_as(KEYS_POSTGRES).fetch_all(&mut conn).await?;
        let reserved = sqlx::query_scalar(RESERVED).fetch_all(&mut conn).await?;
        let dead = sqlx::query_scalar(DELIVERIES_POSTGRES.dead)
            .fetch_all(&mut conn)
            .await?;
        let dead_receipts = sqlx::query_scalar(DELIVERIES_POSTGRES.dead_receipts)
            .fetch_all(&mut conn)
            .await?;
        let taken_over = sqlx::query_scalar(DELIVERIES_POSTGRES.taken_over);
        let taken_over = taken_over.fetch_one(&mut conn).await?;
        let ids: Vec<String> = sqlx::query_scalar(DELIVERIES_POSTGRES.messages)
            .fetch_all(&mut conn)
            .await?;
        let published = Published {
            ids: ids.into_iter().collect(),
            dead: sqlx::query_as(DELIVERIES_POSTGRES.dead_at_sinks)
                .fetch_all(&mut conn)
                .await?,
            failures: sqlx::query_as(DELIVERIES_POSTGRES.failed_at_sinks)
                .fetch_all(&mut conn)
                .await?,
        };
        Ok(Self::new(effects, keys).with_deliveries(reserved, [&dead, &dead_receipts], taken_over, published))
    }

    async fn from_sqlite(url: &str) -> sqlx::Result<Self> {
        let options: SqliteConnectOptions = url.parse()?;
        let mut conn = SqliteConnection::connect_with(&options).await?;
        let effects: Vec<EffectRow> = sqlx::query_as(EFFECTS_SQLITE).fetch_all(&mut conn).await?;
        let keys: Vec<KeyRow> = sqlx::query_as(KEYS_SQLITE).fetch_all(&mut conn).await?;
        let reserved = sqlx::query_scalar(RESERVED).fetch_all(&mut conn).await?;
        let dead = sqlx::query_scalar(DELIVERIES_SQLITE.dead).fetch_all(&mut conn).await?;
        let dead_receipts = sqlx::query_scalar(DELIVERIES_SQLITE.dead_receipts)
            .fetch_all(&mut conn)
            .await?;
        let taken_over = sqlx::query_scalar(DELIVERIES_SQLITE.taken_over);
        let taken_over = taken_over.fetch_one(&mut conn).await?;
        let ids: Vec<String> = sqlx::query_scalar(DELIVERIES_SQLITE.messages)
            .fetch_all(&mut conn)
            .await?;
        let published = Published {
            ids: ids.into_iter().collect(),
            dead: sqlx::query_as(DELIVERIES_SQLITE.dead_at_sinks)
                .fetch_all(&mut conn)
                .await?,
            failures: sqlx::query_as(DELIVERIES_SQLITE.failed_at_sinks)
                .fetch_all(&mut conn)
                .await?,
        };
        Ok(Self::new(effects, keys).with_deliveries(reserved, [&dead, &dead_receipts], taken_over, published))
    }

    fn new(effects: Vec<EffectRow>, keys: Vec<KeyRow>) -> Self {
        let effects = effects
            .into_iter()
            .map(|(operation, id, tenant, owner, mark, at_ms)| Effect {
                operation,
                id,
                tenant,
                owner,
                mark,
                at_ms,
            });
        let keys = keys
            .into_iter()
            .map(|(operation, tenant, owner, value, body, is_live)| Key {
                operation,
                tenant,
                owner,
                value,
                id: id_in(&body, "id"),
                is_live,
            });
        Self {
            effects: effects.collect(),
            keys: keys.collect(),
            ..Self::default()
        }
    }

    fn with_deliveries(
        self,
        reserved: Vec<String>,
        [dead, dead_receipts]: [&[Vec<u8>]; 2],
        taken_over: i64,
        published: Published,
    ) -> Self {
        Self {
            reserved,
            published,
            dead: dead.iter().filter_map(|event| id_in(event, "order_id")).collect(),
            dead_receipts: dead_receipts
                .iter()
                .filter_map(|job| id_in(job, "payment_id"))
                .collect(),
            taken_over: taken_over.unsigned_abs(),
            ..self
        }
    }
}

fn id_in(json: &[u8], member: &str) -> Option<String> {
    let json: Value = serde_json::from_slice(json).ok()?;
    json[member].as_str().map(str::to_owned)
}
