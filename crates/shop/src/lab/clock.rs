//! The lab's clock: an offset in the database, so that all processes on it live at the same time.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::Pool;
use steadfast::{AuditEntry, Failure, FailureClass, Tx, parse_duration};

use crate::input::invalid;

/// How far ahead the clock can be moved in all: a hundred years, far from the end of any column.
const AHEAD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(crate) struct Clock;

/// The body of `POST /lab/clock`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Advance {
    advance: String,
}

/// How far the time has been moved.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ahead {
    ahead_ms: u64,
}

impl Ahead {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.ahead_ms)
    }
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Clock {
    #[query("lab.clock", route = "GET /lab/clock")]
    pub(crate) async fn show(&self, db: &Pool<Db>) -> Result<Ahead, Failure> {
        let offset_ms: Option<i64> = sqlx::query_scalar("SELECT offset_ms FROM lab_clock")
            .fetch_optional(db)
            .await?;
        let ahead_ms = offset_ms.unwrap_or(0).unsigned_abs();
        Ok(Ahead { ahead_ms })
    }

    /// Moves the time. Nobody is asked who he is: all who come to the lab are one party.
    #[allow(deprecated, reason = "the scope is global on purpose")]
    #[command("lab.clock.advance", route = "POST /lab/clock", key = optional, scope = global)]
    pub(crate) async fn advance(&self, tx: &mut Tx<Db>, by: Advance) -> Result<Ahead, Failure> {
        let advance = parse_duration(&by.advance).map_err(|error| invalid(error.to_string()))?;
        if advance > AHEAD_MAX {
            return Err(invalid(format!(
                "advance is {}; move the clock by at most a hundred years",
                by.advance
            )));
        }
        let upsert = "
            INSERT INTO lab_clock (id, offset_ms) VALUES (1, $1)
            ON CONFLICT (id) DO UPDATE SET offset_ms = lab_clock.offset_ms + excluded.offset_ms
            RETURNING offset_ms";
        let offset_ms: i64 = sqlx::query_scalar(upsert)
            .bind(i64::try_from(advance.as_millis())?)
            .fetch_one(tx.db())
            .await?;
        let ahead = Ahead {
            ahead_ms: offset_ms.unsigned_abs(),
        };
        if ahead.duration() > AHEAD_MAX {
            return Err(Failure::definitive(
                FailureClass::BusinessRule,
                "too_far_ahead",
                "the clock would be more than a hundred years ahead; start with a fresh database",
            ));
        }
        let entry = AuditEntry::new("lab", "clock.advance", by.advance.as_str()).because("asked by POST /lab/clock");
        tx.audit(&entry).await?;
        Ok(ahead)
    }
}
