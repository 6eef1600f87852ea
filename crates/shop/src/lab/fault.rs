//! The accidents a request can ask for, and how they happen.

use std::process::Command;
use std::time::Duration;

use steadfast::testing::Point;
use steadfast::{Failure, FailureClass, parse_duration};

use super::Lab;

/// One accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Hold(Hold),
    FailTransiently,
    FailDefinitively,
    Panic,
    /// At a point of this name: in the handler, or one of Steadfast's own.
    Kill(&'static str),
}

/// How long a request is held with its transaction open. The command's time limit ends any hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    For(Duration),
    UntilReleased,
}

/// The name of the one point that is in the handler.
pub(super) const AFTER_WRITE: &str = "after_write";

/// Every knob: an example, and what it does.
pub(super) const KNOBS: [(&str, &str); 6] = [
    ("hold=500ms", "wait so long after the write, with the transaction open"),
    ("hold=until-released", "wait after the write until POST /lab/release"),
    ("fail=transient", "503 after the write: rolled back, the key is free"),
    ("fail=definitive", "422 after the write: rolled back, the key is free"),
    ("panic", "panic after the write: rolled back, the process survives"),
    ("kill=before_commit", "kill -9 the process at one of the kill points"),
];

/// The names of all points, in the order a command passes them.
pub(super) fn kill_points() -> Vec<&'static str> {
    let mut names: Vec<_> = Point::ALL.into_iter().map(Point::as_str).collect();
    let claimed = names.iter().position(|name| *name == Point::AfterClaim.as_str());
    names.insert(claimed.map_or(names.len(), |position| position + 1), AFTER_WRITE);
    names
}

impl Fault {
    /// Reads a header: one fault, or several separated by `,` or `;`, which then happen in this order.
    pub(super) fn read_all(text: &str) -> Result<Vec<Self>, String> {
        text.split([',', ';'])
            .map(|part| Self::read(part.trim(), &kill_points()))
            .collect()
    }

    pub(super) fn read(text: &str, kill_points: &[&'static str]) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let fault = match (name, value) {
            ("hold", "until-released") => Some(Fault::Hold(Hold::UntilReleased)),
            ("hold", duration) => parse_duration(duration)
                .ok()
                .map(|duration| Fault::Hold(Hold::For(duration))),
            ("fail", "transient") => Some(Fault::FailTransiently),
            ("fail", "definitive") => Some(Fault::FailDefinitively),
            ("panic", "") => Some(Fault::Panic),
            ("kill", point) => kill_points
                .iter()
                .find(|known| **known == point)
                .copied()
                .map(Fault::Kill),
            _ => None,
        };
        fault.ok_or_else(|| {
            let points = kill_points.join(", ");
            format!(
                "{text:?} is not a fault; send hold=500ms, hold=until-released, fail=transient, fail=definitive, panic or \
                 kill=POINT; the points to kill at are {points}"
            )
        })
    }

    /// Happens, in the handler, after its write.
    pub(super) async fn strike(&self, lab: &Lab) -> Result<(), Failure> {
        match self {
            Fault::Hold(hold) => {
                hold.last(lab).await;
                Ok(())
            }
            Fault::FailTransiently => Err(Failure::transient(
                "lab_transient",
                "the lab made this fail; it may succeed later",
            )),
            Fault::FailDefinitively => Err(Failure::definitive(
                FailureClass::BusinessRule,
                "lab_definitive",
                "the lab made this fail for good",
            )),
            Fault::Panic => panic!("the lab made this handler panic"),
            Fault::Kill(AFTER_WRITE) => kill(AFTER_WRITE),
            // Steadfast's observer does it, where it belongs.
            Fault::Kill(_) => Ok(()),
        }
    }
}

impl Hold {
    pub(super) async fn last(&self, lab: &Lab) {
        match self {
            Hold::For(duration) => {
                let _held = lab.held.clone();
                tokio::time::sleep(*duration).await;
            }
            Hold::UntilReleased => {
                // In this order: who sees the count go up may release at once, and must not be missed.
                let mut released = lab.released.subscribe();
                let _held = lab.held.clone();
                // The lab is there as long as whom it holds.
                let _ = released.changed().await;
            }
        }
    }
}

/// `kill -9`: no destructor runs, no buffer is flushed, nobody is told. The calling thread does not go on.
///
/// By a shell, whose parent is this process, because the safe part of Rust can only abort itself, which is another signal.
pub(super) fn kill(point: &str) -> ! {
    tracing::warn!(point, "the lab kills this process");
    let killed = Command::new("/bin/sh").args(["-c", "kill -9 $PPID"]).status();
    // Only reached where there is no shell: the next best end.
    tracing::error!(?killed, "kill -9 did not work, aborting instead");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_in_the_list_and_every_point_can_be_read() {
        for (example, _) in KNOBS {
            assert!(Fault::read_all(example).is_ok(), "{example}");
        }
        for point in kill_points() {
            assert!(Fault::read_all(&format!("kill={point}")).is_ok(), "{point}");
        }
    }

    #[test]
    fn several_faults_happen_in_the_order_they_are_written() {
        let faults = Fault::read_all("hold=500ms; fail=transient").expect("two faults");
        let hold = Fault::Hold(Hold::For(Duration::from_millis(500)));
        assert_eq!(faults, [hold, Fault::FailTransiently]);
    }

    #[test]
    fn an_unknown_fault_is_refused_with_the_known_ones() {
        for text in [
            "",
            "explode",
            "hold=",
            "hold=soon",
            "fail",
            "fail=maybe",
            "panic=now",
            "kill=after_lunch",
            "panic,",
        ] {
            let refusal = Fault::read_all(text).expect_err(text);
            assert!(
                refusal.contains("hold=500ms") && refusal.contains("after_write"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn the_points_are_listed_in_the_order_a_command_passes_them() {
        assert_eq!(
            kill_points(),
            [
                "before_claim",
                "after_claim",
                "after_write",
                "before_commit",
                "after_commit"
            ]
        );
    }
}
