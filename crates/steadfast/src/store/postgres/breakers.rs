//! Breakers on PostgreSQL, each statement within a limit: a server that says nothing must not stop the sharing for longer
//! than it is silent.

use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::timeout;

use super::{Names, PostgresStore, Store};
use crate::breaker::{BreakerRow, BreakerWrite};
use crate::clock::{Offset, micros};
use crate::error::{Code, Error, Result};

/// How long one statement may take, and a connection for it.
const LIMIT: Duration = Duration::from_secs(2);

/// Reads the breakers of these names, or all of them.
pub(super) async fn read(store: &PostgresStore, breakers: Option<&[&str]>, offset: Offset) -> Result<Vec<BreakerRow>> {
    let statement = store.names.sql(
        "
        SELECT name, state,
               (extract(epoch FROM until - clock_timestamp() - $2 * interval '1 microsecond') * 1000000)::bigint,
               openings, epoch
        FROM steadfast.breakers
        WHERE $1::text[] IS NULL OR name = ANY($1)
        ORDER BY name",
    );
    let read = async |conn: &mut PgConnection| {
        sqlx::query_as(statement)
            .bind(breakers)
            .bind(offset.0)
            .fetch_all(conn)
            .await
    };
    let rows: Vec<(String, String, i64, i32, i64)> = within_limit(store, "reading breakers", read).await?;
    let row = |(name, state, remaining, openings, epoch)| BreakerRow {
        name,
        state,
        remaining: Duration::from_micros(u64::try_from(remaining).unwrap_or_default()),
        openings: u32::try_from(openings).unwrap_or_default(),
        epoch,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Writes a breaker and says its new epoch. `None`: the row has another one than was expected.
pub(super) async fn write(store: &PostgresStore, write: &BreakerWrite<'_>, offset: Offset) -> Result<Option<i64>> {
    let insert = async |conn: &mut PgConnection| insert(conn, &store.names, write, offset).await;
    within_limit(store, "writing a breaker", insert).await
}

/// The same on a connection that is there.
pub(super) async fn insert(
    conn: &mut PgConnection,
    names: &Names,
    write: &BreakerWrite<'_>,
    offset: Offset,
) -> sqlx::Result<Option<i64>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.breakers AS b (name, state, until, openings, epoch)
        VALUES ($1, $2, clock_timestamp() + ($3::bigint + $4::bigint) * interval '1 microsecond', $5, 1)
        ON CONFLICT ON CONSTRAINT breakers_one_state DO UPDATE
        SET state    = excluded.state,
            until    = excluded.until,
            openings = excluded.openings,
            epoch    = b.epoch + 1
        WHERE $6::bigint IS NULL OR b.epoch = $6
        RETURNING epoch",
    );
    sqlx::query_scalar(statement)
        .bind(write.name)
        .bind(write.state)
        .bind(micros(write.remaining))
        .bind(offset.0)
        .bind(i32::try_from(write.openings).unwrap_or(i32::MAX))
        .bind(write.expected)
        .fetch_optional(conn)
        .await
}

/// Runs a statement on a connection that is closed if there is no answer in time.
async fn within_limit<T>(
    store: &PostgresStore,
    what: &'static str,
    statement: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
) -> Result<T> {
    let silent = || Error::new(Code::Unreachable, format!("{what}: no answer within {LIMIT:?}"));
    let mut conn = timeout(LIMIT, store.acquire()).await.map_err(|_| silent())??;
    let Ok(answer) = timeout(LIMIT, statement(&mut conn)).await else {
        conn.close_on_drop();
        return Err(silent());
    };
    answer.map_err(|error| PostgresStore::error(error, what))
}
