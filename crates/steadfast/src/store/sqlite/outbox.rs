//! Messages on SQLite: written in the call that ends the transaction.

use serde_json::json;
use sqlx::{SqlStr, SqliteConnection};

use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::outbox::{NewMessage, TargetRow};

/// Writes messages, and a delivery for each target that wants one, whichever process declared it: `$1` is a list of
/// messages as JSON, `$2` the time.
macro_rules! publish_statements {
    () => {
        "
        INSERT INTO steadfast_messages
               (created_at, expires_at, version, id, type, source, content_type, correlation_id, causation_id, traceparent,
                ordering_key, redacted, payload)
        SELECT $2, $2 + (m.value ->> 'expires_after'), m.value ->> 'version', m.value ->> 'id', m.value ->> 'type',
               m.value ->> 'source', 'application/json', m.value ->> 'correlation_id', m.value ->> 'causation_id', m.value ->> 'traceparent',
               m.value ->> 'ordering_key', m.value ->> 'redacted', CAST(m.value ->> 'payload' AS BLOB)
        FROM json_each($1) AS m
        WHERE true
        ORDER BY m.key;
        INSERT INTO steadfast_queue (visible_at, due_at, number, item, state, kind, chain)
        SELECT DISTINCT $2 + (m.value ->> 'delay'), $2 + (m.value ->> 'delay'),
               CASE WHEN s.ordering_key IS NOT NULL THEN s.number END,
               s.id, 'pending',
               t.name || CASE WHEN t.is_versioned AND s.version > 1 THEN '@' || s.version ELSE '' END,
               t.name || ' ' || s.ordering_key
        FROM json_each($1) AS m
        JOIN steadfast_messages AS s ON s.id = m.value ->> 'id'
        JOIN steadfast_targets AS t
          ON t.pattern = s.type
          OR (substr(t.pattern, -1) = '*'
              AND substr(s.type, 1, length(t.pattern) - 1) = substr(t.pattern, 1, length(t.pattern) - 1))"
    };
}
pub(super) use publish_statements;

/// The messages, as `publish_statements!` takes them.
pub(super) fn encode(messages: &[NewMessage]) -> String {
    let encode = |message: &NewMessage| {
        json!({
            "id": message.id.to_string(),
            "type": message.event_type,
            "version": message.version,
            "delay": micros(message.delay),
            "expires_after": message.expires_after.map(micros),
            "ordering_key": message.ordering_key,
            "redacted": message.redacted,
            "correlation_id": message.origin.correlation_id.as_deref(),
            "causation_id": message.origin.causation_id.as_deref(),
            "source": &*message.origin.source,
            "traceparent": message.origin.traceparent.as_deref(),
            "payload": message.payload,
        })
    };
    serde_json::Value::from_iter(messages.iter().map(encode)).to_string()
}

/// Writes messages into the transaction that is open.
pub(super) async fn publish(
    conn: &mut SqliteConnection,
    names: &Names,
    messages: &[NewMessage],
    offset: Offset,
) -> Result<()> {
    write(conn, names.sql(publish_statements!()), messages, offset).await
}

async fn write(conn: &mut SqliteConnection, statement: SqlStr, messages: &[NewMessage], offset: Offset) -> Result<()> {
    sqlx::query(statement)
        .bind(encode(messages))
        .bind(offset.now().0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "writing messages"))
}

/// Writes where messages go.
pub(super) async fn declare(
    conn: &mut SqliteConnection,
    names: &Names,
    targets: &[TargetRow],
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_targets (name, pattern, is_versioned, since)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (name, pattern) DO UPDATE SET is_versioned = excluded.is_versioned",
    );
    for target in targets {
        sqlx::query(statement.clone())
            .bind(&*target.name)
            .bind(&*target.pattern)
            .bind(target.is_versioned)
            .bind(offset.now().0)
            .execute(&mut *conn)
            .await
            .map_err(|error| SqliteStore::error(error, "declaring targets"))?;
    }
    Ok(())
}
