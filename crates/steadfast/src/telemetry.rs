//! Every span, metric and health word, in one place.
//!
//! Spans and logs carry a short hash of the key, never the key, the payload or the answer. Metrics go
//! through the [`metrics`] facade; with the feature `prometheus`, [`install_prometheus`] puts a recorder behind it.

use std::any::Any;
use std::time::{Duration, Instant, SystemTime};

use metrics::{Counter, counter, gauge, histogram};
use tracing::Span;
use uuid::Uuid;

use crate::breaker::BreakerState;
use crate::clock::rfc3339;
use crate::command::Key;
use crate::command::execute::Executed;
use crate::error::{Error, Result};
use crate::outbox::{EventCx, KindStats};
use crate::purge::Expired;
use crate::queue::{Claimed, Row};

/// Commands that ended, by `operation` and `outcome` (`committed`, `failed`, `replayed`, or an SF code).
pub const COMMANDS_TOTAL: &str = "steadfast_commands_total";
/// How long commands took, from the door to their end, by `operation` and `outcome`.
pub const COMMAND_SECONDS: &str = "steadfast_command_seconds";
/// Handlers run again after a conflict, by `operation`.
pub const COMMAND_REPEATS_TOTAL: &str = "steadfast_command_repeats_total";
/// Commits whose reply was lost, by how they were `resolved`.
pub const COMMITS_RESOLVED_TOTAL: &str = "steadfast_commits_resolved_total";

/// Expired keys that were deleted.
pub const KEYS_PURGED_TOTAL: &str = "steadfast_keys_purged_total";
/// COMMITs on SQLite, by whether the group of commands `ended` as `committed` or `failed`.
pub const GROUPS_TOTAL: &str = "steadfast_groups_total";

/// Messages that were deleted since nobody waited for them any more.
pub const MESSAGES_PURGED_TOTAL: &str = "steadfast_messages_purged_total";

/// Attempts to deliver that ended, by `kind` and `result`: `delivered` or, for jobs, `completed`, `skipped`, `retried` (it failed,
/// and is tried again), `dead`, or `lost` (others had taken it over).
pub const DELIVERIES_TOTAL: &str = "steadfast_deliveries_total";
/// How long it took from when a delivery was due, which is the commit of its message unless that says later, to the first start
/// of its handler, by `kind`.
pub const DELIVERY_LAG_SECONDS: &str = "steadfast_delivery_lag_seconds";
/// Rows of the queue, by `kind` and `state` (`pending`, `leased`, `dead`); counted up to a hundred thousand. One process shows
/// them, the others show zeros.
pub const QUEUE_ROWS: &str = "steadfast_queue_rows";
/// How long the oldest row has been due that is neither finished nor dead, by `kind`. One process shows it, the others show
/// zeros.
pub const QUEUE_OLDEST_SECONDS: &str = "steadfast_queue_oldest_seconds";
/// Leases that were lost while somebody worked, by `kind`.
pub const LEASES_LOST_TOTAL: &str = "steadfast_leases_lost_total";

/// Ticks that were dealt with, by `schedule` and `result`: `made` (a job), `missed` (its time had passed, and the policy was not to make up
/// for it) or `overlapped` (the job of an earlier tick was still to do).
pub const TICKS_TOTAL: &str = "steadfast_ticks_total";

/// Messages from elsewhere, by `source` and `result`, each counted once for each of its consumers: `handled`, `duplicate` (it was
/// handled before), `kept` (it failed, was handed out before or is worked on outside a transaction: from here on it is a delivery),
/// `dead` (it failed for good, or cannot be read) or `ignored` (nobody wants this type).
pub const INBOX_MESSAGES_TOTAL: &str = "steadfast_inbox_messages_total";
/// How long after it was published a message was received, by `source`, if it says when that was.
pub const INBOX_LAG_SECONDS: &str = "steadfast_inbox_lag_seconds";
/// Messages that were received and are not acknowledged yet, by `source`.
pub const INBOX_IN_FLIGHT: &str = "steadfast_inbox_in_flight";
/// Records of the inbox; counted up to a hundred thousand. One process shows them, the others show zeros.
pub const INBOX_RECORDS: &str = "steadfast_inbox_records";

/// Live clients that this process pushes to.
pub const PUSH_SUBSCRIBERS: &str = "steadfast_push_subscribers";
/// Live clients that were told to fetch everything anew, by `why`: `away` for too long or too far behind, `slow`, or at an
/// `unknown` place.
pub const PUSH_RESYNCS_TOTAL: &str = "steadfast_push_resyncs_total";

/// What each breaker, by `name`, is doing: -1 forced closed, 0 closed, 1 half-open, 2 open, 3 forced open.
pub const BREAKER_STATE: &str = "steadfast_breaker_state";
/// How often breakers changed their state, by `name` and what they changed `to`.
pub const BREAKER_TRANSITIONS_TOTAL: &str = "steadfast_breaker_transitions_total";
/// Calls that were postponed since their breaker was open, by `name`.
pub const BREAKER_REJECTED_TOTAL: &str = "steadfast_breaker_rejected_total";

/// A handler that holds its transaction longer than this is worth a line: on SQLite everybody else waits for it.
const SLOW_HANDLER: Duration = Duration::from_secs(1);

pub(crate) fn command_span(key: &Key) -> Span {
    tracing::info_span!("command", operation = key.operation(), key = key.short())
}

pub(crate) fn command_ended<A>(key: &Key, elapsed: Duration, ended: &Result<Executed<A>>) {
    let outcome = match ended {
        Ok(Executed::Committed(_)) => "committed",
        Ok(Executed::Failed(_)) => "failed",
        Ok(Executed::Replayed(_)) => "replayed",
        Err(error) => error.code().as_str(),
    };
    let labels = [
        ("operation", key.operation().to_owned()),
        ("outcome", outcome.to_owned()),
    ];
    counter!(COMMANDS_TOTAL, &labels).increment(1);
    histogram!(COMMAND_SECONDS, &labels).record(elapsed.as_secs_f64());
    match ended {
        Ok(_) => tracing::debug!(outcome, ?elapsed, "command ended"),
        Err(error) => report(error),
    }
}

/// Expected answers are quiet, trouble is loud. The sources hold the database's words; they go no further than here.
fn report(error: &Error) {
    use crate::error::Code::{BodyRefused, HandlerFailed, InFlight, KeyInvalid, KeyMissing, Mismatch};
    match error.code() {
        InFlight | Mismatch | KeyMissing | KeyInvalid | BodyRefused | HandlerFailed => {
            tracing::debug!(code = %error.code(), %error, "command refused");
        }
        code => {
            tracing::warn!(%code, ?error, "command not executed");
        }
    }
}

/// The corridor runs a handler again. The attempt before was `attempt`, from 1.
pub(crate) fn repeated(key: &Key, attempt: u32, after: Duration, error: &Error) {
    counter!(COMMAND_REPEATS_TOTAL, "operation" => key.operation().to_owned()).increment(1);
    retrying(&Retry {
        operation: key.operation(),
        attempt,
        after,
        correlation_id: Some(&key.short()),
        code: error.code().as_str(),
    });
}

/// Something failed and is tried again.
pub(crate) struct Retry<'r> {
    pub(crate) operation: &'r str,
    /// The one that failed, from 1.
    pub(crate) attempt: u32,
    pub(crate) after: Duration,
    pub(crate) correlation_id: Option<&'r str>,
    pub(crate) code: &'r str,
}

/// What was only put off has not failed, and there may be thousands of them: it is for those who look closely.
pub(crate) fn put_off(operation: &str, after: Duration) {
    tracing::debug!(operation, ?after, "put off");
}

/// The one line for every retry there is.
pub(crate) fn retrying(retry: &Retry<'_>) {
    let next_attempt = SystemTime::now().checked_add(retry.after).map(rfc3339);
    tracing::info!(
        operation = retry.operation,
        attempt = retry.attempt,
        next_attempt,
        correlation_id = retry.correlation_id,
        code = retry.code,
        "failed, is tried again"
    );
}

pub(crate) fn handler_ran(elapsed: Duration) {
    if elapsed > SLOW_HANDLER {
        tracing::warn!(?elapsed, "the handler held its transaction for long");
    }
}

pub(crate) fn panicked(panic: &(dyn Any + Send)) {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)");
    tracing::error!(message, "the handler panicked");
}

pub(crate) fn resolved(resolved: &'static str) {
    counter!(COMMITS_RESOLVED_TOTAL, "resolved" => resolved).increment(1);
    tracing::warn!(resolved, "the reply to a commit was lost");
}

pub(crate) fn purged(expired: &Expired) {
    let Expired {
        keys,
        messages,
        deliveries,
        entries,
        streams,
        records,
        ticks,
    } = *expired;
    counter!(KEYS_PURGED_TOTAL).increment(keys);
    counter!(MESSAGES_PURGED_TOTAL).increment(messages);
    if keys + messages + deliveries + entries + streams + records + ticks > 0 {
        tracing::info!(
            keys,
            messages,
            deliveries,
            entries,
            streams,
            records,
            ticks,
            "what has expired was purged"
        );
    }
}

pub(crate) fn purge_failed(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "what has expired could not be purged; it is tried again");
}

pub(crate) fn breaker_is(name: &str, state: BreakerState) {
    let level = match state {
        BreakerState::ForcedClosed => -1.0,
        BreakerState::Closed => 0.0,
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open => 2.0,
        BreakerState::ForcedOpen => 3.0,
    };
    gauge!(BREAKER_STATE, "name" => name.to_owned()).set(level);
}

pub(crate) fn breaker_changed(name: &str, to: BreakerState) {
    breaker_is(name, to);
    counter!(BREAKER_TRANSITIONS_TOTAL, "name" => name.to_owned(), "to" => to.as_str()).increment(1);
}

/// Opening and closing are worth a line; asking whether it is over is not.
pub(crate) fn breaker_turned(name: &str, from: BreakerState, to: BreakerState, is_elsewhere: bool) {
    let (state, from, to) = (to, from.as_str(), to.as_str());
    match state {
        BreakerState::Open | BreakerState::ForcedOpen => {
            tracing::warn!(breaker = name, from, to, is_elsewhere, "a breaker has opened");
        }
        BreakerState::HalfOpen => tracing::debug!(breaker = name, from, to, "a breaker lets a probe through"),
        BreakerState::Closed | BreakerState::ForcedClosed => {
            tracing::info!(breaker = name, from, to, is_elsewhere, "a breaker has closed");
        }
    }
}

pub(crate) fn breaker_rejections(name: &str) -> Counter {
    counter!(BREAKER_REJECTED_TOTAL, "name" => name.to_owned())
}

/// Whether breakers are shared has changed.
pub(crate) fn breakers_shared(shared: &Result<()>) {
    match shared {
        Ok(()) => tracing::info!("breakers are shared through the database again"),
        Err(error) => tracing::warn!(
            code = %error.code(), ?error,
            "breakers are not shared through the database for now; each process goes on by what it sees itself"
        ),
    }
}

/// Rows of one kind are worked on. Several of them have one span, and are events in it: each says what it belongs to.
pub(crate) fn work_span(rows: &[Row]) -> Span {
    let [row] = rows else {
        let kind = rows.first().map(|row| &*row.claimed.lease.kind);
        return tracing::info_span!("work", kind, rows = rows.len());
    };
    let Claimed { lease, message, .. } = &*row.claimed;
    tracing::info_span!(
        "work",
        kind = &*lease.kind,
        item = %lease.item,
        attempt = row.claimed.attempt,
        event_type = &*message.event_type,
        correlation_id = message.origin.correlation_id.as_deref(),
        traceparent = message.origin.traceparent.as_deref(),
    )
}

/// A message from elsewhere is handled, in a transaction with others.
pub(crate) fn message_span(cx: &EventCx) -> Span {
    tracing::info_span!(
        "message",
        consumer = cx.target(),
        item = %cx.id(),
        event_type = cx.event_type(),
        correlation_id = cx.correlation_id(),
        traceparent = cx.traceparent(),
    )
}

/// The handler of deliveries of one kind starts; those for which it is the first time are counted.
pub(crate) fn deliveries_start(rows: &[Row]) {
    let mut first = rows.iter().filter(|row| row.claimed.attempt == 1).peekable();
    let Some(row) = first.peek() else { return };
    let (lags, now) = (
        histogram!(DELIVERY_LAG_SECONDS, "kind" => row.claimed.lease.kind.to_string()),
        Instant::now(),
    );
    for row in first {
        let lag = row.claimed.due_for + now.duration_since(row.asked_at);
        lags.record(lag.as_secs_f64());
    }
}

/// Attempts to deliver have ended.
pub(crate) fn deliveries_ended(kind: &str, result: &'static str, count: u64) {
    counter!(DELIVERIES_TOTAL, "kind" => kind.to_owned(), "result" => result).increment(count);
}

pub(crate) fn rows_were_late(late: u64) {
    tracing::warn!(
        late,
        "rows were done, and by then others had taken them over; they are done again there"
    );
}

pub(crate) fn row_died(kind: &str, item: &Uuid, code: &str) {
    tracing::error!(kind, %item, code, "given up: it is dead until somebody requeues it");
}

pub(crate) fn ticked(schedule: &str, results: [(&'static str, u64); 3]) {
    for (result, count) in results {
        if count > 0 {
            counter!(TICKS_TOTAL, "schedule" => schedule.to_owned(), "result" => result).increment(count);
            match result {
                "made" => tracing::debug!(schedule, count, "jobs were made of ticks"),
                "missed" => tracing::warn!(schedule, count, "ticks were missed, and are not made up for"),
                _ => tracing::info!(
                    schedule,
                    count,
                    "no job was made, since that of an earlier tick is still to do"
                ),
            }
        }
    }
}

pub(crate) fn schedule_unreadable(schedule: &str, why: &str) {
    tracing::error!(
        schedule,
        why,
        "a schedule cannot be read by this version, and makes no jobs here"
    );
}

pub(crate) fn schedule_failed(schedule: &str, error: &Error) {
    tracing::warn!(schedule, code = %error.code(), ?error, "no job could be made of a tick; it is tried again");
}

pub(crate) fn schedules_not_seen(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "schedules could not be looked at; it is tried again");
}

#[cfg(feature = "postgres")]
pub(crate) fn limited_not_claimed(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "queues with limits could not be claimed from; it is tried again");
}

pub(crate) fn row_was_cancelled(kind: &str, item: &Uuid) {
    tracing::info!(kind, %item, "cancelled, as somebody wanted");
}

pub(crate) fn batch_not_seen(batch: &Uuid, error: &Error) {
    tracing::warn!(%batch, code = %error.code(), ?error, "nobody could see how a batch stands; it is looked at again");
}

pub(crate) fn job_not_told(item: &Uuid, error: &Error) {
    tracing::debug!(%item, code = %error.code(), ?error, "what a job told was not written yet");
}

pub(crate) fn job_lines_lost(item: &Uuid) {
    tracing::warn!(%item, "a job has ended, and what it told last could not be written");
}

/// What there is of a kind in the queue.
pub(crate) fn queue_is(kind: &KindStats) {
    for (state, count) in [("pending", kind.pending), ("leased", kind.leased), ("dead", kind.dead)] {
        gauge!(QUEUE_ROWS, "kind" => kind.kind.clone(), "state" => state).set(count.number as f64);
    }
    gauge!(QUEUE_OLDEST_SECONDS, "kind" => kind.kind.clone()).set(kind.oldest.unwrap_or_default().as_secs_f64());
}

/// There is nothing of a kind, or another process says what there is.
pub(crate) fn queue_is_not(kind: &str) {
    let kind = kind.to_owned();
    queue_is(&KindStats {
        kind,
        ..KindStats::default()
    });
}

pub(crate) fn not_counted(error: &Error) {
    tracing::debug!(code = %error.code(), ?error, "the rows of the queue could not be counted; it is tried again");
}

pub(crate) fn kind_unknown(kind: &KindStats) {
    tracing::warn!(
        kind = kind.kind, due = %kind.due, last_seen = ?kind.seen,
        "rows are due that no running process knows how to work on: start one that has this reaction, in this version"
    );
}

pub(crate) fn lease_lost(kind: &str, item: &Uuid) {
    counter!(LEASES_LOST_TOTAL, "kind" => kind.to_owned()).increment(1);
    tracing::warn!(kind, %item, "the lease was lost: others will do it again");
}

pub(crate) fn sink_is_away(server: &str, why: &str) {
    tracing::warn!(
        server,
        why,
        "a sink cannot be reached; its messages wait, and it is tried again"
    );
}

pub(crate) fn sink_is_back(server: &str) {
    tracing::info!(server, "a sink can be reached again");
}

pub(crate) fn source_is_away(server: &str, why: &str) {
    tracing::warn!(
        server,
        why,
        "nothing can be received from a source; its messages wait, and it is tried again"
    );
}

pub(crate) fn source_is_stuck(server: &str, why: &str) {
    tracing::error!(
        server,
        why,
        "a source has a message that cannot be received, nor can those with it and behind it; take it away there"
    );
}

pub(crate) fn source_is_back(server: &str) {
    tracing::info!(server, "messages are received from a source again");
}

pub(crate) fn dead_letters_are_away(server: &str, why: &str) {
    tracing::warn!(
        server,
        why,
        "a broker does not take a dead letter; it is in the database, its copy waits, and is sent again"
    );
}

pub(crate) fn dead_letters_are_back(server: &str) {
    tracing::info!(server, "a broker takes dead letters again");
}

/// A message that the database does not take as it is. It has failed on its own, and is stored in a form that every database takes.
pub(crate) fn message_set_apart(source: &str, item: &Uuid, error: &Error) {
    tracing::error!(source, %item, %error, "the database has refused a message: it is set apart as a dead letter");
}

/// The database does not answer a source: what was received waits, and is not acknowledged.
pub(crate) fn inbox_failed(source: &str, error: &Error) {
    tracing::warn!(
        source, code = %error.code(), ?error,
        "messages from elsewhere cannot be handled for now; they are not acknowledged, and it is tried again"
    );
}

/// Messages from elsewhere, each for one of its consumers, were dealt with. Duplicates are for those who look closely.
pub(crate) fn messages_were(source: &str, result: &'static str, count: u64) {
    if count == 0 {
        return;
    }
    counter!(INBOX_MESSAGES_TOTAL, "source" => source.to_owned(), "result" => result).increment(count);
    if result == "duplicate" {
        tracing::debug!(source, count, "messages came again that were handled before");
    }
}

/// A message was received so long after it was published.
pub(crate) fn message_came(source: &str, lag: Duration) {
    histogram!(INBOX_LAG_SECONDS, "source" => source.to_owned()).record(lag.as_secs_f64());
}

pub(crate) fn messages_in_flight(source: &str, count: usize) {
    gauge!(INBOX_IN_FLIGHT, "source" => source.to_owned()).set(count as f64);
}

/// How many records the inbox has.
pub(crate) fn inbox_has(records: u64) {
    gauge!(INBOX_RECORDS).set(records as f64);
}

pub(crate) fn message_unreadable(source: &str, item: &Uuid, code: &str) {
    tracing::error!(source, %item, code, "a message cannot be read: it is dead until somebody requeues it");
}

pub(crate) fn redis_keeps_nothing(server: &str) {
    tracing::warn!(
        server,
        "a sink's Redis writes no append-only file: what it confirms may be lost when it crashes; set appendonly yes"
    );
}

pub(crate) fn subscribers_are(count: usize) {
    gauge!(PUSH_SUBSCRIBERS).set(count as f64);
}

pub(crate) fn resynced(why: &'static str) {
    counter!(PUSH_RESYNCS_TOTAL, "why" => why).increment(1);
}

pub(crate) fn streams_not_read(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "streams could not be read for live clients; it is tried again");
}

pub(crate) fn streams_not_heard(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "nothing is heard of what others push; streams are looked at by the clock until then");
}

pub(crate) fn others_are_not_told(server: &str, why: &str) {
    tracing::warn!(
        server,
        why,
        "other processes cannot be told of what is pushed; they find it by the clock, and it is tried again"
    );
}

pub(crate) fn others_are_told(server: &str) {
    tracing::info!(server, "other processes are told of what is pushed again");
}

pub(crate) fn others_are_not_heard(server: &str, why: &str) {
    tracing::warn!(
        server,
        why,
        "nothing is heard of what others push; streams are looked at by the clock, and it is tried again"
    );
}

pub(crate) fn others_are_heard(server: &str) {
    tracing::info!(server, "what others push is heard of again");
}

pub(crate) fn subscription_failed(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "a live client could not be served; it comes back");
}

pub(crate) fn message_missing(item: &str) {
    tracing::error!(item, "a row of the queue has no message: somebody has deleted it");
}

pub(crate) fn not_announced(error: &Error) {
    tracing::debug!(code = %error.code(), ?error, "a commit was not announced; it will be found by looking");
}

pub(crate) fn raised_in_vain(event_type: &str, id: &Uuid) {
    tracing::error!(event_type, %id, "a reaction in this process was given up, and the event is lost to it");
}

pub(crate) fn engine_failed(error: &Error) {
    tracing::warn!(code = %error.code(), ?error, "messages cannot be delivered for now; it is tried again");
}

pub(crate) fn engine_recovered(after: Duration) {
    tracing::info!(?after, "messages are delivered again");
}

#[cfg(feature = "sqlite")]
pub(crate) fn group_ended(is_committed: bool) {
    let ended = if is_committed { "committed" } else { "failed" };
    counter!(GROUPS_TOTAL, "ended" => ended).increment(1);
}

#[cfg(feature = "prometheus")]
mod prometheus {
    use std::sync::OnceLock;
    use std::time::Duration;

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    /// From a replay on the same machine to a handler at its time limit, in seconds.
    const BUCKETS: [f64; 14] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ];

    /// How often samples are folded into their buckets, so that they do not pile up while nobody asks for `/metrics`.
    const UPKEEP: Duration = Duration::from_secs(10);

    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

    /// Puts a Prometheus recorder behind the metrics of this process; `/metrics` then shows them.
    ///
    /// Call it inside the tokio runtime. Returns false if another recorder is installed already; that one keeps getting
    /// everything.
    pub fn install_prometheus() -> bool {
        let recorder = RECORDER.get_or_init(|| {
            let handle = PrometheusBuilder::new()
                .set_buckets(&BUCKETS)
                .ok()?
                .install_recorder()
                .ok()?;
            let upkeep = handle.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(UPKEEP).await;
                    upkeep.run_upkeep();
                }
            });
            Some(handle)
        });
        recorder.is_some()
    }

    /// What `/metrics` shows, if the recorder is ours.
    #[cfg(feature = "axum")]
    pub(crate) fn render() -> Option<String> {
        RECORDER.get()?.as_ref().map(PrometheusHandle::render)
    }
}
#[cfg(feature = "prometheus")]
pub use prometheus::install_prometheus;
#[cfg(all(feature = "prometheus", feature = "axum"))]
pub(crate) use prometheus::render;
