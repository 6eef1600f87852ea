//! Why a job is where it is: what its queue keeps it from, and what differs from a delivery.

use std::time::Duration;

use super::message::MessageId;
use super::targets::Paused;
use super::why::{self, Reason, WhyWord};
use crate::clock::{Timestamp, rfc3339};
use crate::error::Result;
use crate::job::{limit_key, queue_of};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::jobs::{Jobs, QueueStateRow};
use crate::store::letters::{DeliveryRow, KindRow};

impl<Db: Database> Steadfast<Db> {
    /// Everything about its queue that keeps a job from being claimed.
    pub(super) async fn why_in_queue(&self, row: &DeliveryRow, now: Timestamp) -> Result<Vec<Reason>> {
        let Some(name) = queue_of(&row.kind, row.queue.as_deref()) else {
            return Ok(Vec::new());
        };
        let queues = self.ask("list queues").list_queues().await?;
        let Some(queue) = queues.iter().find(|queue| queue.name == name) else {
            return Ok(Vec::new());
        };
        let mut reasons = Vec::new();
        reasons.extend(paused(queue));
        reasons.extend(at_limit(queue));
        if let (Some(chain), Some(max)) = (&row.chain, queue.key_running_max)
            && let Some((_, key)) = limit_key(chain)
        {
            let held = self.ask("count what runs of a key").held_by_key(chain).await?;
            reasons.extend((held >= max).then(|| key_at_limit(name, key, held, max)));
        }
        reasons.extend(rate_used_up(queue, now));
        Ok(reasons)
    }
}

/// No node that has a handler for it works on its queue.
pub(super) fn unknown_kind(row: &DeliveryRow, kind: Option<&KindRow>) -> Reason {
    let (Some(queue), None) = (queue_of(&row.kind, None), kind.and_then(|kind| kind.seen_at)) else {
        return why::unknown_kind(row, kind);
    };
    Reason {
        word: WhyWord::UnknownKind,
        what: format!("no node that has a handler for it has ever declared its queue {queue}"),
        remedy: format!(
            "look whether the queue is spelled right (`steadfast queues list`); start a node whose program declares it, \
             `sf.queue({queue:?}, ..)`, and has the handler; or cancel it and enqueue another one"
        ),
    }
}

fn paused(queue: &QueueStateRow) -> Option<Reason> {
    let paused = Paused::of_queue(queue)?;
    let name = &queue.name;
    Some(Reason {
        word: WhyWord::Paused,
        what: format!(
            "its queue {name} was paused by {} at {}: {}",
            paused.by,
            rfc3339(paused.at),
            paused.reason
        ),
        remedy: format!("`steadfast queues resume {name} --reason WHY`"),
    })
}

fn at_limit(queue: &QueueStateRow) -> Option<Reason> {
    let max = queue.running_max.filter(|max| queue.held >= *max)?;
    Some(Reason {
        word: WhyWord::AtLimit,
        what: format!(
            "its queue {} is at its limit: {} of {max} jobs run on all nodes together",
            queue.name, queue.held
        ),
        remedy: format!(
            "wait until one ends, see `steadfast jobs list --queue {} --state running`; or declare a higher limit",
            queue.name
        ),
    })
}

fn key_at_limit(queue: &str, key: &str, held: i64, max: i64) -> Reason {
    Reason {
        word: WhyWord::KeyAtLimit,
        what: format!(
            "its limit key {key:?} is at the limit of the queue {queue}: {held} of {max} jobs of the key run"
        ),
        remedy: "wait until one of them ends; the keys take turns. Or declare a higher limit for each key".to_owned(),
    }
}

/// As many have begun as may. Tokens come back evenly, so the next one is known.
fn rate_used_up(queue: &QueueStateRow, now: Timestamp) -> Option<Reason> {
    let (count, every) = queue.rate_count.zip(queue.rate_every)?;
    let (tokens, at) = queue.tokens.zip(queue.tokens_at)?;
    let passed = now.0.saturating_sub(at).max(0);
    let per_token = every as f64 / count.max(1) as f64;
    let tokens = tokens + passed as f64 / per_token;
    if tokens >= 1.0 {
        return None;
    }
    let wait = Duration::from_micros(((1.0 - tokens) * per_token).ceil() as u64);
    let every = Duration::from_micros(every.unsigned_abs());
    Some(Reason {
        word: WhyWord::RateUsedUp,
        what: format!(
            "the rate of its queue {} is used up: {count} may begin within {every:?}, and the next one at {}",
            queue.name,
            rfc3339(now.after(wait).into())
        ),
        remedy: "wait, or declare a higher rate".to_owned(),
    })
}

pub(super) fn not_due(row: &DeliveryRow, due_at: i64) -> Reason {
    Reason {
        remedy: format!(
            "wait, or `steadfast jobs run-now {} --reason WHY` to have it run now",
            row.item
        ),
        ..why::not_due(row, due_at)
    }
}

pub(super) fn dead_remedy(id: MessageId) -> String {
    format!(
        "remove the cause, then `steadfast jobs retry {id} --reason WHY`; or give it up by `steadfast jobs cancel {id} --reason WHY`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(tokens: f64) -> QueueStateRow {
        QueueStateRow {
            name: "mail".to_owned(),
            running_max: Some(3),
            key_running_max: None,
            rate_count: Some(2),
            rate_every: Some(60_000_000),
            tokens: Some(tokens),
            tokens_at: Some(0),
            paused_at: None,
            paused_by: None,
            paused_reason: None,
            held: 3,
        }
    }

    #[test]
    fn the_next_one_may_begin_when_a_token_has_come_back() {
        let used_up = rate_used_up(&queue(0.5), Timestamp(0)).expect("half a token is none");
        assert!(
            used_up
                .what
                .contains("2 may begin within 60s, and the next one at 1970-01-01T00:00:15")
        );
        assert!(rate_used_up(&queue(0.5), Timestamp(15_000_000)).is_none());
        let never_used = QueueStateRow {
            tokens: None,
            ..queue(0.0)
        };
        assert!(rate_used_up(&never_used, Timestamp(0)).is_none());
        assert!(at_limit(&queue(0.0)).expect("three run").what.contains("3 of 3 jobs"));
    }
}
