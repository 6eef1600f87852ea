//! Streams on SQLite.

use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection};

use super::{SqliteStore, Store, queue};
use crate::clock::{Offset, Timestamp};
use crate::error::{Code, Error, Result};
use crate::store::streams::{Ahead, EntryRow, NewEntry, Place, Streams};

impl Streams<Sqlite> for SqliteStore {
    /// Whoever has the turn is alone. Other processes hear of it by the file, so there is no notice.
    async fn append(
        &self,
        conn: &mut SqliteConnection,
        entries: &[NewEntry],
        _notice: Option<&str>,
        offset: Offset,
    ) -> Result<()> {
        let take_number = self.names.sql(
            "
            INSERT INTO steadfast_streams (stream, last)
            SELECT $1, $3
            WHERE NOT EXISTS (SELECT 1 FROM steadfast_entries WHERE item = $2 AND stream = $1)
            ON CONFLICT (stream) DO UPDATE SET last = max(excluded.last, last + 1)
            RETURNING last",
        );
        let append = self.names.sql(
            "
            INSERT INTO steadfast_entries (stream, number, item, type, created_at, data)
            VALUES ($1, $2, $3, $4, $5, $6)",
        );
        for entry in entries {
            let item = entry.item.to_string();
            let number: Option<i64> = sqlx::query_scalar(take_number.clone())
                .bind(&*entry.stream)
                .bind(&*item)
                .bind(offset.now().0)
                .fetch_optional(&mut *conn)
                .await
                .map_err(Self::fail("appending to a stream"))?;
            let Some(number) = number else { continue };
            sqlx::query(append.clone())
                .bind(&*entry.stream)
                .bind(number)
                .bind(&*item)
                .bind(&*entry.event_type)
                .bind(entry.created_at.0)
                .bind(&*entry.data)
                .execute(&mut *conn)
                .await
                .map_err(Self::fail("appending to a stream"))?;
        }
        Ok(())
    }

    async fn look_ahead(&self, places: &[Place<'_>], many: i64, offset: Offset) -> Result<Vec<Ahead>> {
        let statement = self.names.sql(
            "
            SELECT (SELECT last FROM steadfast_streams WHERE stream = $1) AS last,
                   EXISTS (SELECT 1 FROM steadfast_entries
                           WHERE stream = $1 AND number > $2
                           ORDER BY number
                           LIMIT 1 OFFSET $3)                             AS is_far",
        );
        let mut aheads = Vec::with_capacity(places.len());
        for place in places {
            let (last, is_far) = sqlx::query_as(statement.clone())
                .bind(place.stream)
                .bind(place.number)
                .bind(many)
                .fetch_one(&self.readers)
                .await
                .map_err(Self::fail("looking at a stream"))?;
            let now = offset.now();
            aheads.push(Ahead { last, is_far, now });
        }
        Ok(aheads)
    }

    async fn entries_after(&self, places: &[Place<'_>], limit: i64) -> Result<Vec<EntryRow>> {
        let statement = self.names.sql(
            "
            SELECT number, item, type, created_at, data
            FROM steadfast_entries
            WHERE stream = $1 AND number > $2
            ORDER BY number
            LIMIT $3",
        );
        let mut entries = Vec::new();
        for place in self.behind(places).await? {
            let rows: Vec<SqliteRow> = sqlx::query(statement.clone())
                .bind(place.stream)
                .bind(place.number)
                .bind(limit)
                .fetch_all(&self.readers)
                .await
                .map_err(Self::fail("reading entries"))?;
            for row in &rows {
                entries.push(read(place.stream, row).map_err(Self::fail("reading entries"))?);
            }
        }
        Ok(entries)
    }

    type Ear = queue::Link;

    async fn open_ear(&self) -> Result<queue::Link> {
        self.open_link().await
    }

    async fn hear(&self, ear: &mut queue::Link) -> Result<Option<String>> {
        ear.woken().await;
        Ok(None)
    }

    /// They share a file, and see what is written to it.
    async fn channel(&self) -> Result<String> {
        let message = "the processes of one file need no broker to hear of each other";
        Err(Error::new(Code::ConfigurationInvalid, message))
    }
}

impl SqliteStore {
    /// Those of these places that have something behind them. Whoever has written to the file may have written anything: most
    /// streams are as they were, and one statement says so of all of them.
    async fn behind<'p, 'n>(&self, places: &'p [Place<'n>]) -> Result<Vec<&'p Place<'n>>> {
        let statement = self.names.sql(
            "
            SELECT p.key
            FROM json_each($1) AS p
            JOIN steadfast_streams AS s ON s.stream = p.value ->> 0 AND s.last > p.value ->> 1
            ORDER BY p.key",
        );
        let asked: Vec<_> = places.iter().map(|place| json!([place.stream, place.number])).collect();
        let found: Vec<i64> = sqlx::query_scalar(statement)
            .bind(json!(asked).to_string())
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("looking at streams"))?;
        let place = |place: i64| places.get(usize::try_from(place).ok()?);
        Ok(found.into_iter().filter_map(place).collect())
    }
}

fn read(stream: &str, row: &SqliteRow) -> sqlx::Result<EntryRow> {
    let item: &str = row.try_get("item")?;
    Ok(EntryRow {
        stream: stream.to_owned(),
        number: row.try_get("number")?,
        item: item.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        event_type: row.try_get("type")?,
        created_at: Timestamp(row.try_get("created_at")?),
        data: row.try_get("data")?,
    })
}
