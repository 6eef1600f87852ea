//! How long the shop keeps its answers, as the command line says it.

use std::time::Duration;

use steadfast::parse_duration;

const OPERATIONS: [&str; 3] = ["orders.place", "orders.cancel", "payments.make"];

/// What holds when nobody says otherwise.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// `24h` for every command, or `payments.make=1s` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retention {
    operation: Option<&'static str>,
    duration: Duration,
}

impl Retention {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let (operation, duration) = match text.split_once('=') {
            Some((operation, duration)) => (Some(find(operation)?), duration),
            None => (None, text),
        };
        let duration = parse_duration(duration).map_err(|error| error.to_string())?;
        Ok(Self { operation, duration })
    }

    /// What holds for an operation: its own word before the general one, the last before the first.
    pub(crate) fn of(all: &[Self], operation: &str) -> Duration {
        let find = |wanted: Option<&str>| all.iter().rev().find(|said| said.operation == wanted);
        find(Some(operation))
            .or_else(|| find(None))
            .map_or(RETENTION, |said| said.duration)
    }
}

fn find(operation: &str) -> Result<&'static str, String> {
    let known = OPERATIONS.into_iter().find(|known| *known == operation);
    known.ok_or_else(|| format!("{operation:?} is no operation; they are {}", OPERATIONS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operations_own_retention_goes_before_the_general_one() {
        let all = ["payments.make=1s", "2h"].map(|text| Retention::read(text).expect(text));
        assert_eq!(Retention::of(&all, "payments.make"), Duration::from_secs(1));
        assert_eq!(Retention::of(&all, "orders.place"), Duration::from_secs(7200));
        assert_eq!(Retention::of(&all[..1], "orders.place"), RETENTION);
        for text in ["", "soon", "orders.place=", "orders=1s"] {
            assert!(Retention::read(text).is_err(), "{text}");
        }
    }
}
