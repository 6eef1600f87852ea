//! Why a message is where it is: for each of its deliveries what keeps it there, and what to do.

use std::time::{Duration, SystemTime};

use super::delivery::{DeliveryState, ListedDelivery};
use super::look_up::LookedMessage;
use super::message::MessageId;
use super::targets::{Paused, is_known};
use super::why_job;
use crate::breaker::BreakerRow;
use crate::clock::{Timestamp, rfc3339};
use crate::error::Result;
use crate::inbox::is_as_it_came;
use crate::queue::{JOBS, done_word, is_key};
use crate::steadfast::Steadfast;
use crate::store::letters::{DeliveryRow, KindRow, Letters, Targets};
use crate::store::{Database, Store};

/// What keeps a delivery where it is. The words are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhyWord {
    /// No target wanted the message when it was published.
    NoTarget,
    /// It is due, and nobody has taken it yet.
    Ready,
    /// It waits for its due time.
    NotDue,
    /// Somebody works on it.
    Leased,
    /// Whoever worked on it said nothing any more.
    LeaseExpired,
    /// It waits for an earlier message of its ordering key.
    Behind,
    /// No node knows how to deliver it.
    UnknownKind,
    /// Its target or its queue is paused.
    Paused,
    /// As many jobs of its queue run as may.
    AtLimit,
    /// As many jobs of its limit key run as may.
    KeyAtLimit,
    /// As many jobs of its queue have begun lately as may.
    RateUsedUp,
    /// The breaker with the name of its target is open.
    BreakerOpen,
    /// Its time was over before it was delivered.
    Expired,
    /// It was given up.
    Dead,
    /// It was delivered.
    Delivered,
    /// It was not wanted any more.
    Skipped,
    /// It was dead, and given up for good.
    Discarded,
}

impl WhyWord {
    /// The word, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoTarget => "no_target",
            Self::Ready => "ready",
            Self::NotDue => "not_due",
            Self::Leased => "leased",
            Self::LeaseExpired => "lease_expired",
            Self::Behind => "behind",
            Self::UnknownKind => "unknown_kind",
            Self::Paused => "paused",
            Self::AtLimit => "at_limit",
            Self::KeyAtLimit => "key_at_limit",
            Self::RateUsedUp => "rate_used_up",
            Self::BreakerOpen => "breaker_open",
            Self::Expired => "expired",
            Self::Dead => "dead",
            Self::Delivered => "delivered",
            Self::Skipped => "skipped",
            Self::Discarded => "discarded",
        }
    }
}

/// One thing that keeps a delivery where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// The word for it.
    pub word: WhyWord,
    /// The same in a sentence, with times and names.
    pub what: String,
    /// What to do about it; empty if there is nothing to do.
    pub remedy: String,
}

/// One delivery, and why it is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WhyDelivery {
    /// The target.
    pub target: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// Everything that keeps it there.
    pub reasons: Vec<Reason>,
}

/// Why a message is where it is: [`Steadfast::why`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Why {
    /// The message, masked.
    pub message: LookedMessage,
    /// The reason that it has no deliveries, if it has none.
    pub no_target: Option<Reason>,
    /// Each delivery.
    pub deliveries: Vec<WhyDelivery>,
    /// The database's time when it was asked.
    pub now: SystemTime,
}

impl<Db: Database> Steadfast<Db> {
    /// Says for each delivery of a message why it is where it is, and what to do. `None`: there is no such message.
    ///
    /// ```
    /// # use steadfast::{MessageId, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # async fn example(sf: &Steadfast<Sqlite>, id: MessageId) -> steadfast::Result<()> {
    /// if let Some(why) = sf.why(id).await? {
    ///     for delivery in why.deliveries {
    ///         for reason in delivery.reasons {
    ///             println!("{}: {}; {}", delivery.target, reason.what, reason.remedy);
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn why(&self, id: MessageId) -> Result<Option<Why>> {
        let Some(message) = self.message(id).look().await? else {
            return Ok(None);
        };
        let now = self.clock().at(self.store().now().await?);
        let kinds = self.ask("list kinds").list_kinds(1).await?;
        let rows = self.ask("read deliveries").deliveries_of(id.as_uuid()).await?;
        let mut deliveries = Vec::with_capacity(rows.len());
        for row in rows {
            let kind = kinds.iter().find(|kind| kind.kind == row.kind);
            let delivery = ListedDelivery::read(row.clone())?;
            let reasons = match delivery.state {
                DeliveryState::Pending => self.why_pending(&row, &message, kind, now).await?,
                _ => vec![why_not_pending(&delivery, now)],
            };
            deliveries.push(WhyDelivery {
                target: delivery.target,
                state: delivery.state,
                reasons,
            });
        }
        let no_target = deliveries.is_empty().then(|| no_target(&message));
        Ok(Some(Why {
            message,
            no_target,
            deliveries,
            now: now.into(),
        }))
    }

    /// Everything that keeps a pending delivery from being claimed.
    async fn why_pending(
        &self,
        row: &DeliveryRow,
        message: &LookedMessage,
        kind: Option<&KindRow>,
        now: Timestamp,
    ) -> Result<Vec<Reason>> {
        let mut reasons = Vec::new();
        if !kind.is_some_and(|kind| is_known(kind, now)) {
            reasons.push(match row.kind.starts_with(JOBS) {
                true => why_job::unknown_kind(row, kind),
                false => unknown_kind(row, kind),
            });
        }
        if let Some(paused) = kind.and_then(Paused::read) {
            reasons.push(why_paused(row.target(), &paused));
        }
        if row.kind.starts_with(JOBS) {
            reasons.extend(self.why_in_queue(row, now).await?);
        }
        if let (Some(chain), Some(number)) = (&row.chain, row.number)
            && !is_key(chain)
            && let Some(head) = self.ask("look at a chain").head_of(chain, number).await?
        {
            reasons.push(behind(MessageId::of(head), message));
        }
        let names = [row.target()];
        let breakers = self
            .ask("read breakers")
            .read_breakers(Some(&names), self.clock().ahead())
            .await?;
        reasons.extend(breakers.iter().filter_map(breaker_open));
        if let Some(at) = message.expires_at.filter(|at| *at <= SystemTime::from(now)) {
            reasons.push(Reason {
                word: WhyWord::Expired,
                what: format!("it expired at {}, before it was delivered", rfc3339(at)),
                remedy: "none: it is skipped when a node takes it".to_owned(),
            });
        }
        if let Some(due_at) = row.due_at.filter(|due_at| *due_at > now.0) {
            reasons.push(match row.kind.starts_with(JOBS) {
                true => why_job::not_due(row, due_at),
                false => not_due(row, due_at),
            });
        }
        if reasons.is_empty() {
            reasons.push(Reason {
                word: WhyWord::Ready,
                what: "it is due, and any node that knows its target may take it".to_owned(),
                remedy: format!(
                    "look whether the nodes that know {} are busy or cut off, or the other side of a sink is away",
                    row.target()
                ),
            });
        }
        Ok(reasons)
    }
}

fn no_target(message: &LookedMessage) -> Reason {
    Reason {
        word: WhyWord::NoTarget,
        what: format!(
            "no target wanted {} when it was published at {}",
            message.event_type,
            rfc3339(message.published_at)
        ),
        remedy: "declare the reaction before events are published: a process that serves or dispatches does; `steadfast targets \
                 list` shows who wants what"
            .to_owned(),
    }
}

pub(super) fn unknown_kind(row: &DeliveryRow, kind: Option<&KindRow>) -> Reason {
    let what = match kind.and_then(|kind| kind.seen_at) {
        Some(at) => format!(
            "no node knows {}; the last one that did said so at {}",
            row.kind,
            rfc3339(Timestamp(at).into())
        ),
        None => format!("no node has ever known {}", row.kind),
    };
    Reason {
        word: WhyWord::UnknownKind,
        what,
        remedy: "start a node whose program has this reaction or handler, and its version; an older program leaves newer ones alone"
            .to_owned(),
    }
}

fn why_paused(target: &str, paused: &Paused) -> Reason {
    Reason {
        word: WhyWord::Paused,
        what: format!(
            "{target} was paused by {} at {}: {}",
            paused.by,
            rfc3339(paused.at),
            paused.reason
        ),
        remedy: format!("`steadfast targets resume {target} --reason WHY`"),
    }
}

fn behind(head: MessageId, message: &LookedMessage) -> Reason {
    let key = message.ordering_key.as_deref().unwrap_or_default();
    Reason {
        word: WhyWord::Behind,
        what: format!("it is behind message {head} in the order of the key {key:?}"),
        remedy: format!("`steadfast why {head}`"),
    }
}

pub(super) fn not_due(row: &DeliveryRow, due_at: i64) -> Reason {
    let because = match (&row.code, row.attempts) {
        (Some(code), 1..) => format!(", after attempt {} failed with {code}", row.attempts),
        _ => String::new(),
    };
    let target = row.target();
    Reason {
        word: WhyWord::NotDue,
        what: format!("it is due at {}{because}", rfc3339(Timestamp(due_at).into())),
        remedy: format!(
            "wait, or `steadfast outbox requeue {} --target {target} --reason WHY` to have it tried now",
            row.item
        ),
    }
}

fn breaker_open(breaker: &BreakerRow) -> Option<Reason> {
    let (what, remedy) = match &*breaker.state {
        "open" if breaker.remaining > Duration::ZERO => (
            format!(
                "the breaker {} is open for another {:.0?}",
                breaker.name, breaker.remaining
            ),
            "wait until what it calls is well again".to_owned(),
        ),
        "forced_open" => (
            format!("the breaker {} is held open by a person", breaker.name),
            format!(
                "`steadfast breakers close {} --reason WHY` lets it judge by itself again",
                breaker.name
            ),
        ),
        _ => return None,
    };
    Some(Reason {
        word: WhyWord::BreakerOpen,
        what,
        remedy,
    })
}

/// A delivery that nobody waits for.
fn why_not_pending(delivery: &ListedDelivery, now: Timestamp) -> Reason {
    let at = |at: Option<SystemTime>| at.map(rfc3339).unwrap_or_default();
    let (id, target) = (delivery.id, &delivery.target);
    let because = delivery
        .detail
        .as_deref()
        .map_or_else(String::new, |detail| format!(": {detail}"));
    let is_job = delivery.kind.starts_with(JOBS);
    let (word, what, remedy) = match delivery.state {
        DeliveryState::Leased => {
            let holder = delivery.holder.as_deref().unwrap_or("somebody");
            let until = at(delivery.leased_until);
            if delivery
                .leased_until
                .is_some_and(|until| until <= SystemTime::from(now))
            {
                let what = format!("the lease of {holder} ended at {until} without a word");
                let remedy = "none: the next node that knows its target takes it over".to_owned();
                (WhyWord::LeaseExpired, what, remedy)
            } else {
                let what = format!(
                    "{holder} works on it, attempt {}, until {until} unless it is renewed",
                    delivery.attempts
                );
                (WhyWord::Leased, what, "wait".to_owned())
            }
        }
        DeliveryState::Dead => {
            let failure = delivery.last_failure.as_ref();
            let failed = failure.map_or_else(String::new, |failure| {
                format!(": {}: {}", failure.code, failure.message)
            });
            let since = at(failure.map(|failure| failure.at));
            let what = format!("it is dead since {since}, after {}{failed}", counted(delivery.attempts));
            let edit = match is_as_it_came(&id.as_uuid(), &delivery.kind, delivery.event_type.as_deref()) {
                true => "",
                false => "add --edited FILE to correct it, or ",
            };
            let remedy = match is_job {
                true => why_job::dead_remedy(id),
                false => format!(
                    "remove the cause, then `steadfast dead requeue {id} --target {target} --reason WHY`; {edit}write discard instead of \
                     requeue to give it up"
                ),
            };
            (WhyWord::Dead, what, remedy)
        }
        DeliveryState::Skipped => (
            WhyWord::Skipped,
            format!(
                "it was {} at {}{because}",
                if is_job { "cancelled" } else { "skipped" },
                at(delivery.finished_at)
            ),
            String::new(),
        ),
        DeliveryState::Discarded => (
            WhyWord::Discarded,
            format!("it was discarded at {}{because}", at(delivery.finished_at)),
            String::new(),
        ),
        _ => (
            WhyWord::Delivered,
            format!(
                "it was {} at {}, by attempt {}{because}",
                done_word(&delivery.kind),
                at(delivery.finished_at),
                delivery.attempts
            ),
            String::new(),
        ),
    };
    Reason { word, what, remedy }
}

fn counted(attempts: u32) -> String {
    match attempts {
        1 => "1 attempt".to_owned(),
        several => format!("{several} attempts"),
    }
}
