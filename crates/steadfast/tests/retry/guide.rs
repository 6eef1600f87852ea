//! The page on failures and retries: its table is the library's, and its programs are here.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use steadfast::CLASSIFICATION;
use steadfast::FailureKind;

const PAGE: &str = include_str!("../../../../docs/guide/failures.md");

#[test]
fn the_guide_classifies_as_the_library_does() {
    let row = |what: &str, kind: &str, why: &str| format!("| {what} | {kind} | {why} |\n");
    let rows = CLASSIFICATION
        .iter()
        .map(|rule| row(rule.what, &rule.kind.to_string(), rule.why));
    let table: String = [row("Found", "Kind", "Because"), "|---|---|---|\n".into()]
        .into_iter()
        .chain(rows)
        .collect();
    assert!(PAGE.contains(&table), "the guide lacks this:\n{table}");
}

mod call {
    use super::Carrier;
    // guide: call
    use steadfast::{Failure, RetryPolicy, retry};

    const PATIENCE: RetryPolicy = retry!(retries = 3, backoff = exponential("100ms"), cap = "2s", max_age = "10s");

    pub(crate) async fn quote(carrier: &Carrier, order_id: &str) -> Result<u32, Failure> {
        let ask = async || {
            let (status, headers, cents) = carrier.ask(order_id).await?;
            Failure::check_status(status, &headers)?;
            Ok::<_, Failure>(cents)
        };
        let retrying = PATIENCE.operation("shipping.quote").correlation_id(order_id);
        retrying.run(ask).await
    }
    // guide: end
}

mod own {
    // guide: own
    use steadfast::{Classify, FailureClass, FailureKind};

    #[derive(Debug)]
    pub(crate) enum CardError {
        Declined,
        Busy,
        NoReply,
    }

    impl Classify for CardError {
        fn kind(&self) -> FailureKind {
            match self {
                CardError::Declined => FailureKind::Definitive(FailureClass::BusinessRule),
                CardError::Busy => FailureKind::Transient,
                CardError::NoReply => FailureKind::Unknown,
            }
        }

        fn code(&self) -> Option<&'static str> {
            matches!(self, CardError::Declined).then_some("card_declined")
        }
    }
    // guide: end

    impl std::fmt::Display for CardError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{self:?}")
        }
    }

    impl std::error::Error for CardError {}
}

mod alone {
    // guide: alone
    use std::time::Duration;
    use steadfast::{Decision, Failure, RetryPolicy};

    pub(crate) fn next(policy: &RetryPolicy, attempt: u32, failure: &Failure, age: Duration) -> Option<Duration> {
        match policy.decide(attempt, failure, age, rand) {
            Decision::Retry(after) => Some(after),
            Decision::GiveUp(_) => None,
        }
    }
    // guide: end

    fn rand() -> u64 {
        u64::MAX
    }
}

/// A carrier that is busy twice and then answers.
struct Carrier {
    asked: Cell<u32>,
    prices: HashMap<String, u32>,
}

impl Carrier {
    async fn ask(&self, order_id: &str) -> std::io::Result<(StatusCode, HeaderMap, u32)> {
        self.asked.set(self.asked.get() + 1);
        let (status, cents) = match (self.asked.get(), self.prices.get(order_id)) {
            (1, _) => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            (2, _) => (StatusCode::SERVICE_UNAVAILABLE, 0),
            (_, None) => (StatusCode::NOT_FOUND, 0),
            (_, Some(cents)) => (StatusCode::OK, *cents),
        };
        Ok((status, HeaderMap::new(), cents))
    }
}

#[tokio::test(start_paused = true)]
async fn the_programs_of_the_guide_do_what_it_says() {
    let carrier = Carrier {
        asked: Cell::new(0),
        prices: HashMap::from([("order-7".to_owned(), 490)]),
    };
    assert_eq!(call::quote(&carrier, "order-7").await.unwrap(), 490);
    assert_eq!(carrier.asked.get(), 3);
    let failure = call::quote(&carrier, "order-8").await.unwrap_err();
    assert_eq!((failure.code(), carrier.asked.get()), ("not_found", 4));

    use own::CardError::{Busy, Declined, NoReply};
    use steadfast::FailureExt;
    let kinds = [Declined, Busy, NoReply].map(|error| Err::<(), _>(error).classified().unwrap_err());
    assert_eq!(
        kinds.each_ref().map(|failure| failure.code()),
        ["card_declined", "internal", "outcome_unknown"]
    );
    assert_eq!(kinds[2].kind(), FailureKind::Unknown);

    let policy = steadfast::retry!(retries = 1);
    let next = |attempt| alone::next(&policy, attempt, &kinds[1], Duration::ZERO);
    assert_eq!((next(1), next(2)), (Some(Duration::from_millis(200)), None));
}

#[test]
fn the_guide_shows_the_programs_as_they_are() {
    let parts: Vec<_> = include_str!("guide.rs").split("    // guide: ").collect();
    for name in ["call\n", "own\n", "alone\n"] {
        let program = parts.iter().find_map(|part| part.strip_prefix(name)).unwrap();
        let lines = program
            .lines()
            .map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n");
        let public = lines.collect::<String>().trim().replace("pub(crate) ", "pub ");
        assert!(PAGE.contains(&public), "the guide lacks this:\n{public}");
    }
}
