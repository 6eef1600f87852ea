//! A policy as text: the same words at compile time and at run time.

use std::time::Duration;

use steadfast::{Code, Failure, RetryPolicy, retry};

fn read(text: &str) -> RetryPolicy {
    text.parse().unwrap()
}

#[test]
fn the_compiler_and_the_program_read_the_same_policy() {
    const ALL: RetryPolicy = retry!(
        retries = 5,
        backoff = exponential("200ms"),
        cap = "10s",
        jitter = full,
        max_age = "1h"
    );
    for (compiled, text) in [
        (
            ALL,
            r#"retries = 5, backoff = exponential("200ms"), cap = "10s", jitter = full, max_age = "1h""#,
        ),
        (retry!(), ""),
        (retry!(retries = 0), "retries=0"),
        (retry!(backoff = immediate,), "backoff = immediate,"),
        (
            retry!(backoff = constant("1s"), jitter = none),
            r#" jitter = none , backoff = constant( "1s" )"#,
        ),
        (
            retry!(backoff = linear("5m"), jitter = equal),
            r#"backoff = linear("5m"), jitter = equal"#,
        ),
        (
            retry!(jitter = decorrelated, cap = "7d"),
            r#"jitter = decorrelated, cap = "7d""#,
        ),
    ] {
        assert_eq!(format!("{compiled:?}"), format!("{:?}", read(text)), "{text}");
    }
    assert_eq!(format!("{:?}", retry!()), format!("{:?}", RetryPolicy::default()));
}

#[test]
fn what_is_no_policy_is_refused_with_code_rule_and_advice() {
    for (text, message) in [
        ("retries", "`retries` has no value; write `name = value`"),
        ("retries = -1", "-1 is no number of retries; write 0 to 1000"),
        ("retries = 4294967296", "4294967296 is no number of retries"),
        ("retries = 1001", "`retries` is 1001; write at most 1000"),
        ("retries = 1, retries = 2", "`retries` is there twice"),
        ("retry = 5", "`retry` is no option of a retry policy; write"),
        ("retires = 5", "; did you mean `retries`?"),
        (
            "patience = 5",
            "write `retries`, `backoff`, `cap`, `jitter` or `max_age`",
        ),
        ("backoff = exponential", "write `backoff = exponential(\"200ms\")`"),
        ("backoff = exponental(\"1s\")", "did you mean `exponential`?"),
        ("backoff = exponential(\"1s\"", "`backoff = exponential` has no delay"),
        ("backoff = exponential(\"-1s\")", "\"-1s\" is not a duration"),
        ("backoff = exponential(\"0s\")", "`backoff` is no time at all"),
        ("backoff = constant(\"366d\")", "`backoff` is more than 365 days"),
        (
            "backoff = immediate(\"1s\")",
            "`backoff = immediate(\"1s\")` is not known",
        ),
        (
            "cap = 10s",
            "10s is not a duration; write a whole number and a unit in quotes",
        ),
        ("cap = \"100ms\"", "`cap` is 100ms and the first delay 200ms"),
        (
            "jitter = 1.5",
            "`jitter = 1.5` is not known; write `none`, `full`, `equal` or `decorrelated`",
        ),
        ("jitter = fill", "did you mean `full`?"),
        ("max_age = \"0s\"", "`max_age` is no time at all"),
    ] {
        let error = text.parse::<RetryPolicy>().unwrap_err();
        assert_eq!(error.code(), Code::RetryInvalid, "{text}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}

#[test]
fn a_policy_can_be_copied_and_shared() {
    fn is_copy<T: Copy + Send + Sync>() {}
    is_copy::<RetryPolicy>();
    let policy = retry!(jitter = none);
    let busy = Failure::transient("busy", "not now");
    let (one, other) = (policy, policy);
    let decide = |policy: RetryPolicy| policy.decide(1, &busy, Duration::ZERO, || 0);
    assert_eq!(decide(one), decide(other));
}
