use steadfast::{RetryPolicy, retry};

const ZERO: RetryPolicy = retry!(backoff = exponential("0s"));
const NEGATIVE: RetryPolicy = retry!(retries = -1, cap = "-10s");
const HUGE: RetryPolicy = retry!(retries = 100000);
const FOR_EVER: RetryPolicy = retry!(max_age = "3650d");
const CAP_BELOW_BASE: RetryPolicy = retry!(backoff = exponential("30s"), cap = "10s");
const JITTER_OUT_OF_RANGE: RetryPolicy = retry!(jitter = 1.5);
const JITTER_WITHOUT_A_BASE: RetryPolicy = retry!(backoff = linear("1s"), jitter = decorrelated);
const UNKNOWN: RetryPolicy = retry!(retires = 5, jitter = ful, backoff = exponental("1s"));
const TWICE: RetryPolicy = retry!(retries = 1, retries = 2);
const NO_VALUE: RetryPolicy = retry!(retries, backoff = linear);

fn main() {
    // Each is a policy all the same: nothing is said about this.
    let _ = [ZERO, NEGATIVE, HUGE, FOR_EVER, CAP_BELOW_BASE];
    let _ = [JITTER_OUT_OF_RANGE, JITTER_WITHOUT_A_BASE, UNKNOWN, TWICE, NO_VALUE];
}
