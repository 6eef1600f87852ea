//! Calls in this process that are tried again.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::policy::{Decision, RetryPolicy};
use crate::clock::random;
use crate::failure::{Failure, FailureKind};
use crate::telemetry::{self, Retry};

/// How often one call may ask to be called later without an attempt being spent. Who is put off more often than that has
/// no time to tell.
const SNOOZES_MAX: u32 = 100;

/// A call that is tried again by a [`RetryPolicy`]: [`RetryPolicy::operation`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is called until it is run"]
pub struct Retrying<'r> {
    policy: RetryPolicy,
    operation: &'r str,
    correlation_id: Option<&'r str>,
    cancellation: Option<&'r CancellationToken>,
}

impl RetryPolicy {
    /// Calls until it succeeds or this policy gives up. Whoever wants a name in the log, or to cancel, begins with
    /// [`operation`](Self::operation).
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::io::{Error, ErrorKind};
    /// use steadfast::RetryPolicy;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let calls = Cell::new(0);
    /// let answer = RetryPolicy::default().run(async || {
    ///     calls.set(calls.get() + 1);
    ///     if calls.get() < 3 { Err(Error::from(ErrorKind::ConnectionRefused)) } else { Ok("here you are") }
    /// });
    /// assert_eq!(answer.await.unwrap(), "here you are");
    /// # }
    /// ```
    ///
    /// The call borrows what it needs, as it is made more than once; what it borrows mutably goes through
    /// `|| async { .. }`.
    ///
    /// # Errors
    /// The failure of the last attempt.
    pub async fn run<T, E, F>(self, call: impl FnMut() -> F) -> Result<T, Failure>
    where
        E: Into<Failure>,
        F: Future<Output = Result<T, E>>,
    {
        self.operation(std::any::type_name::<F>()).run(call).await
    }

    /// A call with a name, which stands in the log when it is tried again.
    pub fn operation(self, name: &str) -> Retrying<'_> {
        Retrying {
            policy: self,
            operation: name,
            correlation_id: None,
            cancellation: None,
        }
    }
}

impl<'r> Retrying<'r> {
    /// What stands in the log of everybody who has to do with it.
    pub fn correlation_id(mut self, id: &'r str) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// Once this is cancelled, nobody waits and no attempt begins. An attempt that runs is not interrupted.
    pub fn cancelled_by(mut self, token: &'r CancellationToken) -> Self {
        self.cancellation = Some(token);
        self
    }

    /// Calls until it succeeds or the policy gives up.
    ///
    /// # Errors
    /// The failure of the last attempt, or after a cancellation [`Failure::cancelled`]. Once an attempt has ended unknown, only
    /// a success or a definitive failure settles it: anything else is returned as unknown, too.
    pub async fn run<T, E, F>(self, mut call: impl FnMut() -> F) -> Result<T, Failure>
    where
        E: Into<Failure>,
        F: Future<Output = Result<T, E>>,
    {
        let started = Instant::now();
        let (mut attempt, mut snoozes) = (1, 0);
        let mut may_have_happened = false;
        if self.cancellation.is_some_and(CancellationToken::is_cancelled) {
            return Err(Failure::cancelled());
        }
        loop {
            let failure: Failure = match call().await {
                Ok(value) => return Ok(value),
                Err(error) => error.into(),
            };
            may_have_happened |= failure.kind() == FailureKind::Unknown;
            let is_snooze = failure.kind() == FailureKind::Snooze;
            let after = match self.policy.decide(attempt, &failure, started.elapsed(), random) {
                Decision::Retry(after) if !is_snooze || snoozes < SNOOZES_MAX => after,
                Decision::Retry(_) | Decision::GiveUp(_) => return Err(told(failure, may_have_happened)),
            };
            telemetry::retrying(&Retry {
                operation: self.operation,
                attempt,
                after,
                correlation_id: self.correlation_id,
                code: failure.code(),
            });
            if self.is_cancelled_within(after).await {
                return Err(told(Failure::cancelled(), may_have_happened));
            }
            match is_snooze {
                true => snoozes += 1,
                false => attempt += 1,
            }
        }
    }

    /// Waits this long, or until it is cancelled.
    async fn is_cancelled_within(&self, after: Duration) -> bool {
        let wait = tokio::time::sleep(after);
        match self.cancellation {
            None => {
                wait.await;
                false
            }
            // Where both are ready, the one who cancels is right.
            Some(token) => token.run_until_cancelled(wait).await.is_none() || token.is_cancelled(),
        }
    }
}

/// What nobody has denied may still have happened.
fn told(failure: Failure, may_have_happened: bool) -> Failure {
    match failure.kind() {
        FailureKind::Transient | FailureKind::Snooze | FailureKind::Cancelled if may_have_happened => {
            failure.with_kind(FailureKind::Unknown)
        }
        FailureKind::Transient
        | FailureKind::Definitive(_)
        | FailureKind::Snooze
        | FailureKind::Cancelled
        | FailureKind::Unknown => failure,
    }
}
