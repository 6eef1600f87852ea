//! The shop's own tables: plain ones that anybody can read with `sqlite3` or `psql`.

use steadfast::Steadfast;

use super::{BE_ALONE, COUNT_TABLES, Db};
use crate::StartError;

/// The types mean the same on both databases; times are text (RFC 3339), which sorts and reads well on both.
const BUSINESS: &str = "
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
    CREATE TABLE IF NOT EXISTS stock (
        sku     TEXT   NOT NULL PRIMARY KEY,
        on_hand BIGINT NOT NULL,

        CONSTRAINT stock_is_not_negative CHECK (on_hand >= 0)
    );
    -- Nothing here keeps an order from being reserved twice: that is what is promised.
    CREATE TABLE IF NOT EXISTS reservations (
        order_id   TEXT   NOT NULL REFERENCES orders (id),
        sku        TEXT   NOT NULL,
        quantity   BIGINT NOT NULL,
        state      TEXT   NOT NULL,  -- reserved, back_ordered or released
        created_at TEXT   NOT NULL
    );
    CREATE INDEX IF NOT EXISTS reservations_of_order ON reservations (order_id);
    CREATE INDEX IF NOT EXISTS reservations_of_article ON reservations (sku);
    INSERT INTO stock (sku, on_hand) VALUES ('tea', 100000), ('coffee', 1000), ('jam', 5) ON CONFLICT DO NOTHING;
";

/// How far the lab is ahead of time: one row, the same for all processes on this database.
const LAB: &str = "
    CREATE TABLE IF NOT EXISTS lab_clock (
        id        INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        offset_ms BIGINT  NOT NULL
    );
";

/// Creates what is missing. Looks first, so that a role without the right to create tables can run a prepared shop.
pub(super) async fn create(sf: &Steadfast<Db>, is_lab: bool) -> Result<(), StartError> {
    let wanted = if is_lab { 6 } else { 5 };
    sf.transact(async |tx| {
        let found: i64 = sqlx::query_scalar(COUNT_TABLES).fetch_one(tx.db()).await?;
        if found >= wanted {
            return Ok(());
        }
        sqlx::query(BE_ALONE).execute(tx.db()).await?;
        sqlx::raw_sql(BUSINESS).execute(tx.db()).await?;
        if is_lab {
            sqlx::raw_sql(LAB).execute(tx.db()).await?;
        }
        Ok(())
    })
    .await
    .map_err(|error| {
        format!("{error:?}\nthe tables of the shop cannot be created; start it once with a role that may create tables")
            .into()
    })
}
