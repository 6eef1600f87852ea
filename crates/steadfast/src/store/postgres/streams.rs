//! Streams on PostgreSQL.

use sha2::{Digest, Sha256};
use sqlx::postgres::{PgListener, PgRow};
use sqlx::{PgConnection, Postgres, Row};

use super::{Names, PostgresStore, Store, queue};
use crate::clock::{Offset, Timestamp};
use crate::error::{Code, Error, Result};
use crate::store::streams::{Ahead, EntryRow, NewEntry, Place, Streams};

impl Streams<Postgres> for PostgresStore {
    /// The rows of the streams are locked in the order of their names, so that two who append do not wait for each other. A
    /// number whose entry turns out to be there already is left out.
    async fn append(
        &self,
        conn: &mut PgConnection,
        entries: &[NewEntry],
        notice: Option<&str>,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            WITH given AS MATERIALIZED (
                SELECT g.*
                FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[], $5::text[])
                     WITH ORDINALITY AS g (stream, item, type, created_at, data, place)
                WHERE NOT EXISTS (SELECT FROM steadfast.entries AS e WHERE e.item = g.item AND e.stream = g.stream)
            ), sizes AS MATERIALIZED (
                SELECT stream, count(*) AS size FROM given GROUP BY stream
            ), moved AS (
                INSERT INTO steadfast.streams AS s (stream, last)
                SELECT stream,
                       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $6 + size - 1
                FROM sizes
                ORDER BY stream
                ON CONFLICT ON CONSTRAINT streams_one DO UPDATE
                SET last = greatest(excluded.last, s.last + (SELECT size FROM sizes WHERE sizes.stream = s.stream))
                RETURNING s.stream, s.last
            ), appended AS (
                INSERT INTO steadfast.entries (stream, number, item, type, created_at, data)
                SELECT g.stream,
                       m.last - z.size + row_number() OVER (PARTITION BY g.stream ORDER BY g.place),
                       g.item, g.type, to_timestamp(0) + g.created_at * interval '1 microsecond', g.data
                FROM given AS g
                JOIN sizes AS z ON z.stream = g.stream
                JOIN moved AS m ON m.stream = g.stream
                -- Somebody else may be appending the same.
                ON CONFLICT DO NOTHING
                RETURNING 1
            )
            SELECT pg_notify($7, $8) FROM (SELECT count(*) FROM appended) AS done WHERE $8 IS NOT NULL",
        );
        sqlx::query(statement)
            .bind(entries.iter().map(|entry| &*entry.stream).collect::<Vec<_>>())
            .bind(entries.iter().map(|entry| entry.item).collect::<Vec<_>>())
            .bind(entries.iter().map(|entry| &*entry.event_type).collect::<Vec<_>>())
            .bind(entries.iter().map(|entry| entry.created_at.0).collect::<Vec<_>>())
            .bind(entries.iter().map(|entry| &*entry.data).collect::<Vec<_>>())
            .bind(offset.0)
            .bind(notify_channel(&self.names))
            .bind(notice)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("appending to streams"))
    }

    async fn look_ahead(&self, places: &[Place<'_>], many: i64, offset: Offset) -> Result<Vec<Ahead>> {
        let statement = self.names.sql(
            "
            SELECT s.last,
                   EXISTS (SELECT FROM steadfast.entries AS e
                           WHERE e.stream = p.stream AND e.number > p.number
                           ORDER BY e.number
                           OFFSET $3)                                          AS is_far,
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $4 AS now
            FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS p (stream, number, place)
            LEFT JOIN steadfast.streams AS s ON s.stream = p.stream
            ORDER BY p.place",
        );
        let (streams, numbers): (Vec<_>, Vec<_>) = places.iter().map(|place| (place.stream, place.number)).unzip();
        let rows: Vec<PgRow> = sqlx::query(statement)
            .bind(streams)
            .bind(numbers)
            .bind(many)
            .bind(offset.0)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("looking at streams"))?;
        let read = |row: &PgRow| {
            Ok(Ahead {
                last: row.try_get("last")?,
                is_far: row.try_get("is_far")?,
                now: Timestamp(row.try_get("now")?),
            })
        };
        let aheads: sqlx::Result<_> = rows.iter().map(read).collect();
        aheads.map_err(Self::fail("looking at streams"))
    }

    async fn entries_after(&self, places: &[Place<'_>], limit: i64) -> Result<Vec<EntryRow>> {
        let statement = self.names.sql(
            "
            SELECT e.stream, e.number, e.item, e.type, e.data,
                   (extract(epoch FROM e.created_at) * 1000000)::bigint AS created_at
            FROM unnest($1::text[], $2::bigint[]) AS p (stream, number)
            CROSS JOIN LATERAL (
                SELECT *
                FROM steadfast.entries
                WHERE stream = p.stream AND number > p.number
                ORDER BY number
                LIMIT $3) AS e
            ORDER BY e.stream, e.number",
        );
        let (streams, numbers): (Vec<_>, Vec<_>) = places.iter().map(|place| (place.stream, place.number)).unzip();
        let rows: Vec<PgRow> = sqlx::query(statement)
            .bind(streams)
            .bind(numbers)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading entries"))?;
        let read = |row: &PgRow| {
            Ok(EntryRow {
                stream: row.try_get("stream")?,
                number: row.try_get("number")?,
                item: row.try_get("item")?,
                event_type: row.try_get("type")?,
                created_at: Timestamp(row.try_get("created_at")?),
                data: row.try_get("data")?,
            })
        };
        let entries: sqlx::Result<_> = rows.iter().map(read).collect();
        entries.map_err(Self::fail("reading entries"))
    }

    type Ear = PgListener;

    async fn open_ear(&self) -> Result<PgListener> {
        let options = (*self.pool.connect_options()).clone();
        let opened = queue::listen(Some(&notify_channel(&self.names)), options).await;
        opened.map_err(Self::fail("opening the connection that hears of streams"))
    }

    async fn hear(&self, ear: &mut PgListener) -> Result<Option<String>> {
        match ear.try_recv().await {
            Ok(Some(notice)) => Ok(Some(notice.payload().to_owned())),
            Ok(None) => Err(Error::new(
                Code::ConnectionLost,
                "the connection that hears of streams was closed",
            )),
            Err(error) => Err(Self::error(error, "hearing of streams")),
        }
    }

    /// The moment of the first migration sets an instance apart from others whose database has the same name. It needs no right
    /// that a service does not have, and stays the same when the server is replaced.
    async fn channel(&self) -> Result<String> {
        let statement = self.names.sql(
            "
            SELECT current_database()::text, (extract(epoch FROM applied_at) * 1000000)::bigint
            FROM steadfast.migrations
            ORDER BY version
            LIMIT 1",
        );
        let (database, since): (String, i64) = sqlx::query_as(statement)
            .fetch_one(&self.pool)
            .await
            .map_err(Self::fail("asking what the instance is called"))?;
        // No name has a NUL in it, so no two instances are written alike.
        let instance = Sha256::digest(format!("{database}\0{}\0{since}", self.names.name()));
        let short: String = instance.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("steadfast.streams.{short}"))
    }
}

fn notify_channel(names: &Names) -> String {
    format!("{}_streams", names.name())
}
