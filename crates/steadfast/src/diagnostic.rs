//! What the macros say at compile time, by code: the sibling of [`Code`](crate::Code), which is for run time.

/// A mistake that `#[steadfast::service]`, `#[derive(Event)]` and `steadfast::retry!` find before anything runs.
///
/// ```
/// let found = steadfast::Diagnostic::ALL.iter().find(|diagnostic| diagnostic.code == "SF001");
/// assert_eq!(found.unwrap().title, "the handler does not return a `Result`");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The stable code: never reused, never renumbered.
    pub code: &'static str,
    /// One line that is the same for every occurrence.
    pub title: &'static str,
    /// What the rule is and what to do about it.
    pub explanation: &'static str,
}

impl Diagnostic {
    /// Every code, in order.
    pub const ALL: &[Diagnostic] = &[
        Diagnostic {
            code: "SF001",
            title: "the handler does not return a `Result`",
            explanation: "Whether a command is committed is decided by what its handler returns: `Ok` commits, `Err` rolls back. \
                          Return `Result<T, E>`, written out, where `T` is the answer and `E` becomes a `Failure`.",
        },
        Diagnostic {
            code: "SF002",
            title: "a query has something that only a command has",
            explanation: "GET changes nothing, so it needs no key, and there is no answer to keep. Give what changes something a \
                          route with POST, PUT, PATCH or DELETE; remove options of keys from what only reads.",
        },
        Diagnostic {
            code: "SF003",
            title: "a duration or a time is not usable",
            explanation: "A duration is a whole number and a unit: 500ms, 30s, 5m, 24h or 7d. It is more than nothing, and what is \
                          kept or waits is kept or waits for ten years at most: what stays longer belongs into a table of yours. A \
                          schedule is due by a cron expression in a time zone of the IANA database, or every 1s to 365d; what is \
                          missed is `skip`, `last` or `all`, and what overlaps `allow` or `skip`.",
        },
        Diagnostic {
            code: "SF004",
            title: "a command cannot be cached",
            explanation: "A cache in front of the service would answer instead of it, without looking at the key. The answer of \
                          a command is replayed by its key, and `max_age` has no effect on it: remove it, or make it a query.",
        },
        Diagnostic {
            code: "SF005",
            title: "all callers share one circle of keys",
            explanation: "With `scope = global` whoever knows or guesses a key gets the answer stored under it, and two callers \
                          who choose the same one get in each other's way. Use `user` or `tenant`; if all callers are one party, \
                          write `#[allow(deprecated)]` on the method.",
        },
        Diagnostic {
            code: "SF010",
            title: "the service or a handler does not have the right shape",
            explanation: "A command is `async fn name(&self, tx: &mut Tx<Db>, ..)`, a query `async fn name(&self, db: &Pool<Db>, ..)`. \
                          Then come `owner: &Owner` if it is wanted, an argument for each `{name}` of the route, and at most one \
                          more, the input.",
        },
        Diagnostic {
            code: "SF011",
            title: "an option is unknown, or its value is",
            explanation: "The message lists what is known. The options of commands, queries, reactions and events are described in the guide \
                          on services.",
        },
        Diagnostic {
            code: "SF012",
            title: "two handlers have one operation name",
            explanation: "Keys belong to an operation by its name. With one name for two handlers, the key of one would be answered \
                          by the other. Give each its own.",
        },
        Diagnostic {
            code: "SF013",
            title: "a feature of steadfast is missing",
            explanation: "The service names a database or a route, and steadfast was built without the feature for it. Add the \
                          feature in Cargo.toml, as the message shows it.",
        },
        Diagnostic {
            code: "SF014",
            title: "a retry policy is not usable",
            explanation: "At most 1000 retries; delays are more than nothing and at most 365 days, and the cap is not below the first of \
                          them; decorrelated jitter goes with exponential backoff. The message says what to write instead. The same \
                          rules hold at run time, with SF304.",
        },
        Diagnostic {
            code: "SF015",
            title: "an event is not declared as it can be stored",
            explanation: "An event is a struct or an enum of owned, concrete types with `#[event(\"order.placed\")]`: a name of 1 to 100 \
                          lower-case letters, digits, `_` and `-`, in parts with a dot between them. Its version is counted from 1, \
                          its `ordering_key` is a field or an expression of `self`, and `#[redact]` stands on fields with a name. An \
                          event that is `in_process` has no row, so nothing of it can be delayed, expire or be ordered.",
        },
        Diagnostic {
            code: "SF016",
            title: "a reaction does not have the right shape",
            explanation: "A reaction is `#[on(OrderPlaced)] async fn name(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), E>`, or \
                          takes `cx: &EventCx` instead of the transaction to call others; the event may be `&OrderPlaced`. Deliveries \
                          are stored under the name of their target, by default the service's and the method's (`stock.reserve`): no \
                          two reactions have the same, and `name = \"..\"` gives another.",
        },
        Diagnostic {
            code: "SF017",
            title: "a job is not declared as it can be stored",
            explanation: "A job is a struct or an enum of owned, concrete types with `#[job(\"receipt.send\")]`: a name of 1 to 100 \
                          lower-case letters, digits, `_` and `-`, in parts with a dot between them. Its version is counted from 1, \
                          and `#[redact]` stands on fields with a name.",
        },
        Diagnostic {
            code: "SF018",
            title: "the handler of a job does not have the right shape",
            explanation: "It is `#[job(SendReceipt)] async fn name(&self, tx: &mut Tx<Db>, job: SendReceipt) -> Result<(), E>`, or takes \
                          `cx: &JobCx<Db>` instead of the transaction to call others; the job may be `&SendReceipt`. A job has one \
                          handler in a process, and is stored under the name of its type.",
        },
        Diagnostic {
            code: "SF019",
            title: "a schedule does not have the right shape",
            explanation: "It is `#[cron(\"0 9 * * MON-FRI\", tz = \"Europe/Madrid\")]` or `#[every(\"15m\")]` on a method that takes \
                          `tx: &mut Tx<Db>` or `cx: &JobCx<Db>` and nothing else, or on one with `#[job(DailyDigest)]`, whose job is \
                          then `Default`. A method has one schedule; it is stored under the service's name and the method's \
                          (`shop.digest`), no two are the same, and `name = \"..\"` gives another.",
        },
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn compile_time_and_run_time_share_no_code() {
        let mut codes: Vec<_> = Diagnostic::ALL.iter().map(|diagnostic| diagnostic.code).collect();
        assert!(codes.is_sorted_by(|one, next| one < next));
        codes.retain(|code| Code::ALL.iter().any(|other| other.as_str() == *code));
        assert_eq!(codes, [""; 0]);
    }
}
