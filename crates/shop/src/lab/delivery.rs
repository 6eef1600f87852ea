//! The accidents of deliveries, of jobs, and of messages that come from a broker, which no request asks for: whoever starts a process
//! says by `--fault` what happens in it.

use std::fmt;
use std::sync::Arc;

use steadfast::testing::{WorkId, WorkPoint};
use steadfast::{EventCx, Failure, Job};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::Lab;
use super::fault::{AFTER_WRITE, Fault, kill};
use crate::jobs::SendDigest;
use crate::{digest, jobs, live, sinks, sources, warehouse};

/// How `--fault` is written.
pub(super) const GRAMMAR: &str = "[TARGET[/ARTICLE]:]FAULT[@ATTEMPT]";

/// Who is told of events of the shop, besides [`sinks`].
pub(super) const TARGETS: [&str; 4] = ["stock.reserve", "stock.release", "mail.confirm", live::TARGET];

/// Who is told of what comes from [`sources`] only.
pub(super) const FED: [&str; 1] = [warehouse::TARGET];

/// Every knob: an example, and what it does.
pub(super) const KNOBS: [(&str, &str); 12] = [
    (
        "hold=5s",
        "wait so long before the handler, with the lease and no transaction; hold=until-released waits for POST /lab/release",
    ),
    (
        "stock.reserve:fail=transient@1",
        "the first attempt fails after its write: rolled back, tried again",
    ),
    (
        "fail=definitive",
        "every attempt fails for good after its write: a dead letter",
    ),
    (
        "mail.confirm:panic",
        "panic after the mail was sent: the process survives, the mail is asked for again with its key",
    ),
    (
        "kill=after_handler",
        "kill -9 the process at one of the kill points, at every attempt",
    ),
    (
        "stock.reserve/poison:kill=after_write",
        "an order of this article kills every process that reserves it, until it is dead",
    ),
    (
        "receipt.send:kill=after_handler@1",
        "kill -9 when the receipt of a payment is sent and nobody has noted it: it is asked for again with the key of its job",
    ),
    (
        "receipt.send/XTS:kill=after_write",
        "a payment in this currency kills every process that sends its receipt, until it is dead",
    ),
    (
        "shop.rabbitmq:kill=before_finish@1",
        "kill -9 when the broker has confirmed and nobody has noted it: it is sent again, with the same id",
    ),
    (
        "orders.nats:hold=5s",
        "wait so long when a message has come, and nothing is done about it: the broker may hand it to somebody else",
    ),
    (
        "orders.rabbitmq:kill=after_receive",
        "kill -9 when a message has come, and the database knows nothing of it: it comes again",
    ),
    (
        "orders.redis:kill=after_commit_before_ack",
        "kill -9 when all is durable, and the broker has not heard of it: it comes again, and does nothing",
    ),
];

/// The names of all points, in the order a delivery passes them, and then those of a message from a broker.
pub(super) fn kill_points() -> Vec<&'static str> {
    let mut names: Vec<_> = WorkPoint::ALL.into_iter().map(WorkPoint::as_str).collect();
    let handler = names.iter().position(|name| *name == WorkPoint::AfterHandler.as_str());
    names.insert(handler.unwrap_or(names.len()), AFTER_WRITE);
    names.extend(WorkPoint::INBOX.map(WorkPoint::as_str));
    names
}

/// An accident, and to which deliveries it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryFault {
    text: String,
    target: Option<&'static str>,
    article: Option<String>,
    attempt: Option<u32>,
    fault: Fault,
}

impl fmt::Display for DeliveryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl DeliveryFault {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let (whose, what) = match text.split_once(':') {
            Some((whose, what)) => (Some(whose), what),
            None => (None, text),
        };
        let (target, article) = match whose.map(|whose| whose.split_once('/').unwrap_or((whose, ""))) {
            Some((target, article)) => (Some(find(target)?), Some(article).filter(|article| !article.is_empty())),
            None => (None, None),
        };
        let (what, attempt) = match what.split_once('@') {
            Some((what, attempt)) => (what, Some(read_attempt(attempt)?)),
            None => (what, None),
        };
        let fault = Fault::read(what, &kill_points())?;
        let happens_in_handler = !matches!(&fault, Fault::Hold(_)) && !is_steadfasts(&fault);
        let knows_none = target.is_some_and(|target| [digest::NAME, SendDigest::NAME].contains(&target));
        if article.is_some() && (!happens_in_handler || knows_none) {
            return Err(format!(
                "{text:?} names an article, or a currency, which only the handler of an order or a payment knows; write fail=.., panic or \
                 kill={AFTER_WRITE}"
            ));
        }
        let is_source = target.is_some_and(|target| sources::NAMES.contains(&target));
        if target.is_some() && is_steadfasts(&fault) && is_source != is_of_messages(&fault) {
            let points = WorkPoint::INBOX.map(WorkPoint::as_str).join(" and ");
            return Err(format!(
                "{text:?} never happens: {points} are the points of {}, which have no others",
                sources::NAMES.join(", ")
            ));
        }
        let has_no_handler = |target| target == live::TARGET || is_sink(target) || sources::NAMES.contains(&target);
        if happens_in_handler && target.is_some_and(has_no_handler) {
            return Err(format!(
                "{text:?} happens in a handler of the shop, and this target has none; write hold=.. or kill=POINT, and another \
                 point than {AFTER_WRITE}"
            ));
        }
        Ok(Self {
            text: text.to_owned(),
            target,
            article: article.map(str::to_owned),
            attempt,
            fault,
        })
    }

    fn is_about(&self, target: &str, attempt: u32) -> bool {
        self.target.is_none_or(|wanted| wanted == target) && self.attempt.is_none_or(|wanted| wanted == attempt)
    }
}

fn is_steadfasts(fault: &Fault) -> bool {
    matches!(fault, Fault::Kill(point) if *point != AFTER_WRITE)
}

/// Whether it happens to a message from a broker, before or after the handler.
fn is_of_messages(fault: &Fault) -> bool {
    matches!(fault, Fault::Kill(point) if WorkPoint::INBOX.iter().any(|of_messages| of_messages.as_str() == *point))
}

fn is_sink(target: &str) -> bool {
    sinks::TARGETS.contains(&target) || sinks::WAREHOUSE_TARGETS.contains(&target)
}

fn find(target: &str) -> Result<&'static str, String> {
    let sinks = [&sinks::TARGETS[..], &sinks::WAREHOUSE_TARGETS].concat();
    let all = [&TARGETS[..], &jobs::NAMES, &FED, &sinks, &sources::NAMES].concat();
    let known = all.iter().find(|known| **known == target).copied();
    known.ok_or_else(|| format!("{target:?} is no target and no job; they are {}", all.join(", ")))
}

fn read_attempt(text: &str) -> Result<u32, String> {
    let attempt = text.parse().ok().filter(|attempt| *attempt > 0);
    attempt.ok_or_else(|| format!("{text:?} is no attempt; write a number from 1"))
}

impl Lab {
    /// Steadfast's observer: a delivery or a job has come to a point of its way.
    pub(super) fn worked(&self, point: WorkPoint, id: &WorkId<'_>) {
        // Of a job it is the name behind the prefix.
        let name = id.kind.strip_prefix("job:").unwrap_or(id.kind);
        for delivery in self.deliveries.iter().filter(|fault| fault.is_about(name, id.attempt)) {
            // Who names a source means its messages, and nobody's handler.
            let of_source = delivery.target.is_some_and(|target| sources::NAMES.contains(&target));
            let held_at = match of_source {
                true => WorkPoint::AfterReceive,
                false => WorkPoint::BeforeHandler,
            };
            match &delivery.fault {
                // The observer waits for nobody, so its thread does, and the others take over what it had to do.
                Fault::Hold(hold) if point == held_at => {
                    block_in_place(|| Handle::current().block_on(hold.last(self)));
                }
                Fault::Kill(name) if *name == point.as_str() => kill(name),
                _ => {}
            }
        }
    }
}

/// To be called by a reaction that has done its work, in its transaction if it has one: everything may happen here, if the
/// lab was told so.
pub(crate) async fn after_reaction(
    lab: Option<&Arc<Lab>>,
    cx: Option<&EventCx>,
    article: Option<&str>,
) -> Result<(), Failure> {
    match cx {
        Some(cx) => after_job(lab, cx.target(), cx.attempt(), article).await,
        None => Ok(()),
    }
}

/// The same for a job, by its name.
pub(crate) async fn after_job(
    lab: Option<&Arc<Lab>>,
    name: &str,
    attempt: u32,
    article: Option<&str>,
) -> Result<(), Failure> {
    let Some(lab) = lab else {
        return Ok(());
    };
    let about = lab.deliveries.iter().filter(|fault| {
        fault.is_about(name, attempt) && (fault.article.is_none() || fault.article.as_deref() == article)
    });
    for delivery in about {
        if !matches!(delivery.fault, Fault::Hold(_)) {
            delivery.fault.strike(lab).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_in_the_list_and_every_point_can_be_read() {
        for (example, _) in KNOBS {
            assert!(DeliveryFault::read(example).is_ok(), "{example}");
        }
        for point in kill_points() {
            assert!(DeliveryFault::read(&format!("kill={point}")).is_ok(), "{point}");
        }
    }

    #[test]
    fn a_fault_is_about_a_target_and_an_attempt_or_about_all() {
        let first = DeliveryFault::read("stock.reserve:kill=before_finish@1").expect("a fault");
        assert!(first.is_about("stock.reserve", 1));
        assert!(!first.is_about("stock.reserve", 2) && !first.is_about("stock.release", 1));
        let all = DeliveryFault::read("panic").expect("a fault");
        assert!(all.is_about("stock.reserve", 1) && all.is_about("receipt.send", 7));
        assert_eq!(first.to_string(), "stock.reserve:kill=before_finish@1");
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        for (text, says) in [
            ("", "is not a fault"),
            (
                "kill=before_commit",
                "after_claim_message, before_handler, after_write, after_handler, before_finish",
            ),
            ("stock:panic", "they are stock.reserve"),
            (":panic", "they are stock.reserve"),
            ("panic@0", "a number from 1"),
            ("panic@", "a number from 1"),
            (
                "stock.reserve/poison:kill=before_handler",
                "write fail=.., panic or kill=after_write",
            ),
            (
                "stock.reserve/poison:hold=1s",
                "write fail=.., panic or kill=after_write",
            ),
            ("digest.send/poison:panic", "only the handler of an order"),
            ("mail.receipt:panic", "receipt.send, reminder.send"),
            ("shop.nats:panic", "this target has none"),
            ("shop.live:kill=after_write", "this target has none"),
            ("shop.kafka:kill=before_finish", "shop.rabbitmq, shop.nats"),
            ("orders.nats:panic", "this target has none"),
            ("orders.nats:kill=after_handler", "never happens: after_receive"),
            (
                "stock.reserve:kill=after_receive",
                "are the points of reservations.rabbitmq",
            ),
            ("warehouse.nats:kill=after_commit_before_ack", "never happens"),
        ] {
            let refused = DeliveryFault::read(text).expect_err(text);
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
