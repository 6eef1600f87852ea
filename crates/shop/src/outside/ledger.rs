//! The ledger: every call that was received and every effect that was made, in two plain tables.
//!
//! A call, its effect and its answer are one transaction, committed before anything is sent: what the ledger does not have
//! did not happen.

use std::str::FromStr;
use std::time::SystemTime;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection, SqliteConnection, SqlitePool};
use steadfast::rfc3339;

use super::Service;
use super::behaviour::Behaviour;
use crate::StartError;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS calls (
        id        INTEGER PRIMARY KEY,
        at        TEXT    NOT NULL,
        service   TEXT    NOT NULL,
        operation TEXT    NOT NULL,
        key       TEXT,
        behaviour TEXT    NOT NULL,  -- what the service was told to do with it
        status    INTEGER NOT NULL,  -- what was answered, or would have been
        replayed  INTEGER NOT NULL,  -- 1: the answer of an earlier call with this key
        request   TEXT    NOT NULL
    );
    CREATE TABLE IF NOT EXISTS effects (
        id        INTEGER PRIMARY KEY,
        call      INTEGER NOT NULL REFERENCES calls (id),
        at        TEXT    NOT NULL,
        service   TEXT    NOT NULL,
        operation TEXT    NOT NULL,
        key       TEXT,
        detail    TEXT    NOT NULL
    );
    CREATE TABLE IF NOT EXISTS answers (
        operation TEXT    NOT NULL,
        key       TEXT    NOT NULL,
        request   TEXT    NOT NULL,
        status    INTEGER NOT NULL,
        body      TEXT    NOT NULL,
        PRIMARY KEY (operation, key)
    );
    CREATE TABLE IF NOT EXISTS payments (
        id       TEXT    PRIMARY KEY,
        key      TEXT    UNIQUE,
        amount   INTEGER NOT NULL,  -- in minor units: 1250 is 12.50
        currency TEXT    NOT NULL,
        state    TEXT    NOT NULL   -- authorised, captured or refunded
    );
";

/// A call as it came in.
#[derive(Clone, Copy)]
pub(super) struct Call<'c> {
    pub(super) service: Service,
    pub(super) operation: &'static str,
    pub(super) key: Option<&'c str>,
    pub(super) request: &'c Value,
    /// Whether a second call with its key gets the first one's answer.
    pub(super) is_remembered: bool,
}

/// What a service answers.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    body: Value,
    /// What was done, if anything was.
    effect: Option<Value>,
    is_replayed: bool,
}

impl Answer {
    pub(super) fn done(status: u16, body: Value, effect: Value) -> Self {
        Self {
            effect: Some(effect),
            ..Self::found(status, body)
        }
    }

    /// An answer that changed nothing.
    pub(super) fn found(status: u16, body: Value) -> Self {
        Self {
            status,
            body,
            effect: None,
            is_replayed: false,
        }
    }

    pub(super) fn refused(status: u16, code: &str, detail: &str) -> Self {
        let title = StatusCode::from_u16(status)
            .ok()
            .and_then(|status| status.canonical_reason());
        let body = json!({ "type": "about:blank", "title": title.unwrap_or("error"), "status": status, "code": code, "detail": detail });
        Self::found(status, body)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let media_type = match self.status {
            ..400 => "application/json",
            _ => "application/problem+json",
        };
        let mut response = (status, [(CONTENT_TYPE, media_type)], self.body.to_string()).into_response();
        if self.is_replayed {
            let replayed = axum::http::HeaderValue::from_static("true");
            response.headers_mut().insert("idempotent-replayed", replayed);
        }
        response
    }
}

/// What a service does for a call, in the ledger's transaction.
pub(super) trait Work: AsyncFnOnce(&mut SqliteConnection) -> sqlx::Result<Answer> {}

impl<W: AsyncFnOnce(&mut SqliteConnection) -> sqlx::Result<Answer>> Work for W {}

#[derive(Clone)]
pub(super) struct Ledger(SqlitePool);

impl Ledger {
    pub(super) async fn open(url: &str) -> Result<Self, StartError> {
        let unusable = |error: sqlx::Error| format!("the ledger {url} cannot be opened: {error}; write sqlite://FILE");
        let options = SqliteConnectOptions::from_str(url)
            .map_err(unusable)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true);
        // One connection: calls happen one after the other, as in any ledger.
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await
            .map_err(unusable)?;
        sqlx::raw_sql(TABLES).execute(&pool).await.map_err(unusable)?;
        Ok(Self(pool))
    }

    /// Writes a call down that does nothing.
    pub(super) async fn record(&self, call: &Call<'_>, behaviour: Behaviour, answer: &Answer) -> sqlx::Result<()> {
        let mut conn = self.0.acquire().await?;
        write_call(&mut conn, call, behaviour, answer).await?;
        Ok(())
    }

    /// Does what a call asks for, or finds what it did before, and writes it down.
    pub(super) async fn carry_out(
        &self,
        call: &Call<'_>,
        behaviour: Behaviour,
        work: impl Work,
    ) -> sqlx::Result<Answer> {
        let mut conn = self.0.acquire().await?;
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        let answer = match remembered(&mut tx, call).await? {
            Some(answer) => answer,
            None => {
                let answer = work(&mut tx).await?;
                remember(&mut tx, call, &answer).await?;
                answer
            }
        };
        let id = write_call(&mut tx, call, behaviour, &answer).await?;
        if let Some(effect) = &answer.effect {
            let insert =
                "INSERT INTO effects (call, at, service, operation, key, detail) VALUES ($1, $2, $3, $4, $5, $6)";
            sqlx::query(insert)
                .bind(id)
                .bind(rfc3339(SystemTime::now()))
                .bind(call.service.as_str())
                .bind(call.operation)
                .bind(call.key)
                .bind(effect.to_string())
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(answer)
    }

    /// Part of the ledger, oldest first: `{"calls": [..], "effects": [..]}`.
    pub(super) async fn page(&self, page: &Page) -> sqlx::Result<Value> {
        let calls = "
            SELECT json_object('id', id, 'at', at, 'service', service, 'operation', operation, 'key', key, 'behaviour', behaviour,
                               'status', status, 'replayed', json(iif(replayed, 'true', 'false')), 'request', json(request))
            FROM calls
            WHERE id > $1 AND ($2 IS NULL OR service = $2) AND ($3 IS NULL OR key = $3)
            ORDER BY id LIMIT $4";
        let effects = "
            SELECT json_object('id', id, 'call', call, 'at', at, 'service', service, 'operation', operation, 'key', key,
                               'detail', json(detail))
            FROM effects
            WHERE call > $1 AND ($2 IS NULL OR service = $2) AND ($3 IS NULL OR key = $3)
            ORDER BY id LIMIT $4";
        Ok(json!({ "calls": self.rows(calls, page).await?, "effects": self.rows(effects, page).await? }))
    }

    async fn rows(&self, select: &'static str, page: &Page) -> sqlx::Result<Vec<Value>> {
        let rows: Vec<String> = sqlx::query_scalar(select)
            .bind(page.after)
            .bind(&page.service)
            .bind(&page.key)
            .bind(page.limit.clamp(1, LIMIT_MAX))
            .fetch_all(&self.0)
            .await?;
        let read = |row: String| row.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)));
        rows.into_iter().map(read).collect()
    }
}

/// The answer that the key of a call has already, if it is remembered.
async fn remembered(conn: &mut SqliteConnection, call: &Call<'_>) -> sqlx::Result<Option<Answer>> {
    let Some(key) = call.key.filter(|_| call.is_remembered) else {
        return Ok(None);
    };
    let select = "SELECT request, status, body FROM answers WHERE operation = $1 AND key = $2";
    let found: Option<(String, u16, String)> = sqlx::query_as(select)
        .bind(call.operation)
        .bind(key)
        .fetch_optional(conn)
        .await?;
    let asked = call.request.to_string();
    Ok(found.map(|(request, status, body)| match request == asked {
        true => Answer {
            is_replayed: true,
            ..Answer::found(status, body.parse().unwrap_or_default())
        },
        false => Answer::refused(422, "key_reused", "this key was used for another request"),
    }))
}

/// Keeps what succeeded: what was refused may be asked for again.
async fn remember(conn: &mut SqliteConnection, call: &Call<'_>, answer: &Answer) -> sqlx::Result<()> {
    let Some(key) = call.key.filter(|_| call.is_remembered && answer.effect.is_some()) else {
        return Ok(());
    };
    let insert = "INSERT INTO answers (operation, key, request, status, body) VALUES ($1, $2, $3, $4, $5)";
    sqlx::query(insert)
        .bind(call.operation)
        .bind(key)
        .bind(call.request.to_string())
        .bind(answer.status)
        .bind(answer.body.to_string())
        .execute(conn)
        .await?;
    Ok(())
}

async fn write_call(
    conn: &mut SqliteConnection,
    call: &Call<'_>,
    behaviour: Behaviour,
    answer: &Answer,
) -> sqlx::Result<i64> {
    let insert = "
        INSERT INTO calls (at, service, operation, key, behaviour, status, replayed, request)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id";
    sqlx::query_scalar(insert)
        .bind(rfc3339(SystemTime::now()))
        .bind(call.service.as_str())
        .bind(call.operation)
        .bind(call.key)
        .bind(behaviour.to_string())
        .bind(answer.status)
        .bind(answer.is_replayed)
        .bind(call.request.to_string())
        .fetch_one(conn)
        .await
}

/// The most rows of one answer.
const LIMIT_MAX: u32 = 10_000;

/// Which part of the ledger is shown: calls after this one, of one service, with one key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Page {
    after: i64,
    limit: u32,
    service: Option<String>,
    key: Option<String>,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            after: 0,
            limit: 1_000,
            service: None,
            key: None,
        }
    }
}
