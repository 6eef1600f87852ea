//! The tables of a shop, and of a warehouse: plain ones that anybody can read with `sqlite3` or `psql`.

use serde_json::json;
use steadfast::{Failure, Steadfast, Tx};

use super::{BE_ALONE, COUNT_TABLES, Db};
use crate::StartError;

/// The types mean the same on both databases; times are text (RFC 3339), which sorts and reads well on both.
const SHOP: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id         TEXT    NOT NULL PRIMARY KEY,
        tenant     TEXT    NOT NULL,
        owner      TEXT    NOT NULL,
        sku        TEXT    NOT NULL,
        quantity   BIGINT  NOT NULL,
        created_at TEXT    NOT NULL
    );
    CREATE INDEX IF NOT EXISTS orders_of_owner ON orders (tenant, owner, created_at);
    CREATE TABLE IF NOT EXISTS payments (
        id          TEXT    NOT NULL PRIMARY KEY,
        tenant      TEXT    NOT NULL,
        owner       TEXT    NOT NULL,
        amount      BIGINT  NOT NULL,  -- in minor units: 1250 is 12.50
        currency    TEXT    NOT NULL,
        order_id    TEXT    REFERENCES orders (id),
        description TEXT,
        created_at  TEXT    NOT NULL
    );
    CREATE INDEX IF NOT EXISTS payments_of_owner ON payments (tenant, owner, created_at);
    CREATE INDEX IF NOT EXISTS payments_of_order ON payments (order_id);
    CREATE TABLE IF NOT EXISTS cancellations (
        order_id     TEXT NOT NULL PRIMARY KEY REFERENCES orders (id),
        cancelled_at TEXT NOT NULL
    );
    -- What a warehouse has said of an order. Nothing here keeps it from being noted twice either.
    CREATE TABLE IF NOT EXISTS warehouse_reservations (
        order_id    TEXT NOT NULL REFERENCES orders (id),
        state       TEXT NOT NULL,  -- reserved or back_ordered
        reserved_at TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS warehouse_reservations_of_order ON warehouse_reservations (order_id);
    -- Nothing here keeps a day from having two.
    CREATE TABLE IF NOT EXISTS digests (
        until    TEXT   NOT NULL,
        orders   BIGINT NOT NULL,
        pieces   BIGINT NOT NULL,
        payments BIGINT NOT NULL
    );
";

/// The stock, which is the shop's or a warehouse's: it knows orders by their ids.
const STOCK: &str = "
    CREATE TABLE IF NOT EXISTS stock (
        sku     TEXT   NOT NULL PRIMARY KEY,
        on_hand BIGINT NOT NULL,

        CONSTRAINT stock_is_not_negative CHECK (on_hand >= 0)
    );
    -- Nothing here keeps an order from being reserved twice: that is what is promised.
    CREATE TABLE IF NOT EXISTS reservations (
        order_id   TEXT   NOT NULL,
        sku        TEXT   NOT NULL,
        quantity   BIGINT NOT NULL,
        state      TEXT   NOT NULL,  -- reserved, back_ordered or released
        created_at TEXT   NOT NULL
    );
    CREATE INDEX IF NOT EXISTS reservations_of_order ON reservations (order_id);
    CREATE INDEX IF NOT EXISTS reservations_of_article ON reservations (sku);
    INSERT INTO stock (sku, on_hand) VALUES ('tea', 100000), ('coffee', 1000), ('jam', 5) ON CONFLICT DO NOTHING;
";

/// The orders themselves are in the shops.
const WAREHOUSE: &str = "
    CREATE TABLE IF NOT EXISTS known_orders (
        id           TEXT NOT NULL PRIMARY KEY,
        cancelled_at TEXT
    );
";

/// How far the lab is ahead of time: one row, the same for all processes on this database.
const LAB: &str = "
    CREATE TABLE IF NOT EXISTS lab_clock (
        id        INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        offset_ms BIGINT  NOT NULL
    );
";

/// Tables that are there together: their names, and what makes them.
type Tables = (&'static [&'static str], &'static str);

const OF_A_SHOP: Tables = (
    &[
        "orders",
        "payments",
        "cancellations",
        "warehouse_reservations",
        "digests",
    ],
    SHOP,
);
const OF_A_WAREHOUSE: Tables = (&["known_orders"], WAREHOUSE);
const OF_THE_STOCK: Tables = (&["stock", "reservations"], STOCK);
const OF_THE_LAB: Tables = (&["lab_clock"], LAB);

/// Creates what is missing of a shop.
pub(super) async fn create(sf: &Steadfast<Db>, is_lab: bool) -> Result<(), StartError> {
    create_all(sf, OF_A_SHOP, is_lab).await
}

/// Creates what is missing of a warehouse. It refuses the database of a shop: both would take each other's events for their own.
pub(super) async fn create_warehouse(sf: &Steadfast<Db>, is_lab: bool) -> Result<(), StartError> {
    let is_a_shop = sf.transact(async |tx| Ok(count(tx, &["payments"]).await? > 0)).await?;
    if is_a_shop {
        return Err(
            "this database is a shop's, and a warehouse has one of its own; choose another by --database-url".into(),
        );
    }
    create_all(sf, OF_A_WAREHOUSE, is_lab).await
}

/// Looks first, so that a role without the right to create tables can run what somebody else has prepared.
async fn create_all(sf: &Steadfast<Db>, business: Tables, is_lab: bool) -> Result<(), StartError> {
    let lab = is_lab.then_some(OF_THE_LAB);
    sf.transact(async |tx| {
        for (names, create) in [business, OF_THE_STOCK].into_iter().chain(lab) {
            if count(tx, names).await? < names.len() as i64 {
                sqlx::query(BE_ALONE).execute(tx.db()).await?;
                sqlx::raw_sql(create).execute(tx.db()).await?;
            }
        }
        Ok(())
    })
    .await
    .map_err(|error| {
        format!("{error:?}\nthe tables cannot be created; start it once with a role that may create tables").into()
    })
}

/// How many of these tables are there.
async fn count(tx: &mut Tx<Db>, names: &[&str]) -> Result<i64, Failure> {
    let names = json!(names).to_string();
    Ok(sqlx::query_scalar(COUNT_TABLES).bind(names).fetch_one(tx.db()).await?)
}
