//! Messages on SQLite: written in the call that ends the transaction.

use serde_json::json;
use sqlx::SqliteConnection;

use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, Timestamp, micros};
use crate::error::Result;
use crate::outbox::{NewMessage, TargetRow, When};

/// Writes any number of messages: `$1` is a list of them as JSON, `$2` the time.
macro_rules! publish_statement {
    () => {
        "
        INSERT INTO steadfast_publications
               (id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
                created_at, expires_at, due_at, kind, chain, unique_key)
        SELECT m.value ->> 'id', m.value ->> 'type', m.value ->> 'version', m.value ->> 'source',
               m.value ->> 'correlation_id', m.value ->> 'causation_id', m.value ->> 'traceparent',
               m.value ->> 'ordering_key', m.value ->> 'redacted', CAST(m.value ->> 'payload' AS BLOB),
               $2, $2 + (m.value ->> 'expires_after'), m.value ->> 'due_at', m.value ->> 'kind', m.value ->> 'chain',
               m.value ->> 'unique_key'
        FROM json_each($1) AS m
        ORDER BY m.key"
    };
}
pub(super) use publish_statement;

/// When something is due that is written now.
pub(super) fn when_due(due: When, now: Timestamp) -> Timestamp {
    match due {
        When::After(delay) => now.after(delay),
        When::At(at) => at.max(now),
    }
}

/// The messages, as `publish_statement!` takes them.
pub(super) fn encode(messages: &[NewMessage], now: Timestamp) -> String {
    let encode = |message: &NewMessage| {
        json!({
            "id": message.id.to_string(),
            "type": message.event_type,
            "version": message.version,
            "source": &*message.origin.source,
            "correlation_id": message.origin.correlation_id.as_deref(),
            "causation_id": message.origin.causation_id.as_deref(),
            "traceparent": message.origin.traceparent.as_deref(),
            "ordering_key": message.ordering_key,
            "redacted": message.redacted,
            "payload": message.payload,
            "expires_after": message.expires_after.map(micros),
            "due_at": when_due(message.due, now).0,
            "kind": message.kind.as_deref(),
            "chain": message.chain,
            "unique_key": message.unique_key,
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
    let now = offset.now();
    sqlx::query(names.sql(publish_statement!()))
        .bind(encode(messages, now))
        .bind(now.0)
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
