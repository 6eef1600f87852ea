//! Breakers on SQLite: read by a reader, written in a turn like anything else.

use std::time::Duration;

use sqlx::{SqliteConnection, SqlitePool};

use super::{Names, SqliteStore, Store};
use crate::breaker::{BreakerRow, BreakerWrite};
use crate::clock::Offset;
use crate::error::Result;

/// Reads the breakers of these names, or all of them.
pub(super) async fn read(
    readers: &SqlitePool,
    names: &Names,
    breakers: Option<&[&str]>,
    offset: Offset,
) -> Result<Vec<BreakerRow>> {
    let statement = names.sql(
        "
        SELECT name, state, until - $2, openings, epoch
        FROM steadfast_breakers
        WHERE $1 IS NULL OR name IN (SELECT value FROM json_each($1))
        ORDER BY name",
    );
    let rows: Vec<(String, String, i64, i64, i64)> = sqlx::query_as(statement)
        .bind(breakers.map(|breakers| serde_json::json!(breakers).to_string()))
        .bind(offset.now().0)
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "reading breakers"))?;
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
pub(super) async fn write(
    conn: &mut SqliteConnection,
    names: &Names,
    write: &BreakerWrite<'_>,
    offset: Offset,
) -> Result<Option<i64>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_breakers (name, state, until, openings, epoch)
        VALUES ($1, $2, $3, $4, 1)
        ON CONFLICT (name) DO UPDATE
        SET state    = excluded.state,
            until    = excluded.until,
            openings = excluded.openings,
            epoch    = epoch + 1
        WHERE $5 IS NULL OR epoch = $5
        RETURNING epoch",
    );
    sqlx::query_scalar(statement)
        .bind(write.name)
        .bind(write.state)
        .bind(offset.now().after(write.remaining).0)
        .bind(write.openings)
        .bind(write.expected)
        .fetch_optional(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "writing a breaker"))
}
