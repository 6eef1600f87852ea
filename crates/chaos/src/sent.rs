//! The checker of what was sent: every message that was committed is at every broker under its id, and nothing else is.
//!
//! A message may be there twice where its history says why: an attempt that was not confirmed, or a process that died before it
//! could say that it was.

use std::collections::{HashMap, HashSet};

use crate::broker::{Arrived, Broker};
use crate::check::Violation;

/// The codes of failures after which a message may have arrived.
const CAUSES: [&str; 2] = ["unconfirmed", "lease_expired"];

/// What the database says of the messages.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Every message that was committed.
    pub(crate) ids: HashSet<String>,
    /// Deliveries that are neither made nor on their way: dead letters.
    pub(crate) dead: Vec<(String, String)>,
    /// Attempts that failed: id, target and code.
    pub(crate) failures: Vec<(String, String, String)>,
}

impl Published {
    /// How many attempts failed with this code.
    pub(crate) fn failed(&self, code: &str) -> u64 {
        self.failures.iter().filter(|(_, _, failed)| failed == code).count() as u64
    }
}

/// Judges each broker.
pub(crate) fn judge(published: &Published, arrived: &[(Broker, Arrived)]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut violated = |sentence: String| {
        violations.push(Violation {
            rule: "OUT-2",
            sentence,
            command: None,
        });
    };
    let mut causes: HashMap<(&str, &str), u64> = HashMap::new();
    for (id, target, code) in &published.failures {
        *causes.entry((id, target)).or_default() += u64::from(CAUSES.contains(&&**code));
    }
    for (broker, arrived) in arrived {
        let target = broker.target();
        for id in &published.ids {
            let times = arrived.get(id).copied().unwrap_or(0);
            let allowed = 1 + causes.get(&(&**id, target)).copied().unwrap_or(0);
            if times == 0 {
                violated(format!("message {id} was committed, and is not there for {target}"));
            } else if times > allowed {
                violated(format!(
                    "message {id} is there {times} times for {target}, and its history has a cause for {allowed}"
                ));
            }
        }
        for id in arrived.keys().filter(|id| !published.ids.contains(*id)) {
            violated(format!(
                "message {id} is there for {target}, and nobody has published it"
            ));
        }
    }
    for (id, target) in &published.dead {
        violated(format!(
            "message {id} is dead for {target}, although nothing refuses it"
        ));
    }
    violations
}

/// How many messages were there more than once.
pub(crate) fn twice(arrived: &[(Broker, Arrived)]) -> u64 {
    let counts = arrived.iter().flat_map(|(_, arrived)| arrived.values());
    counts.filter(|times| **times > 1).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ids: &[&str], failures: &[(&str, &str, &str)], arrived: &[(&str, u64)]) -> Vec<String> {
        let text = |text: &&str| (*text).to_owned();
        let published = Published {
            ids: ids.iter().map(text).collect(),
            dead: Vec::new(),
            failures: failures
                .iter()
                .map(|(id, target, code)| (text(id), text(target), text(code)))
                .collect(),
        };
        let arrived = arrived.iter().map(|(id, times)| (text(id), *times)).collect();
        let violations = judge(&published, &[(Broker::Nats, arrived)]);
        violations.into_iter().map(|violation| violation.sentence).collect()
    }

    #[test]
    fn what_is_there_once_is_fine_and_twice_with_a_cause() {
        assert!(judged(&["a"], &[], &[("a", 1)]).is_empty());
        assert!(judged(&["a"], &[("a", "shop.nats", "unconfirmed")], &[("a", 2)]).is_empty());
        assert!(judged(&["a"], &[("a", "shop.nats", "lease_expired")], &[("a", 1)]).is_empty());
    }

    #[test]
    fn what_is_lost_invented_or_there_without_a_cause_is_found() {
        assert!(judged(&["a"], &[], &[])[0].contains("is not there"));
        assert!(judged(&[], &[], &[("a", 1)])[0].contains("nobody has published it"));
        for failures in [
            &[][..],
            &[("a", "shop.redis", "unconfirmed")],
            &[("b", "shop.nats", "unconfirmed")],
            &[("a", "shop.nats", "no_stream")],
        ] {
            assert!(
                judged(&["a"], failures, &[("a", 2)])[0].contains("a cause for 1"),
                "{failures:?}"
            );
        }
        let once_unconfirmed = [("a", "shop.nats", "unconfirmed")];
        assert!(judged(&["a"], &once_unconfirmed, &[("a", 3)])[0].contains("a cause for 2"));
    }
}
