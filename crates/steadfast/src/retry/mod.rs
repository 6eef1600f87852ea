//! When to try again: a policy, usable alone.
//!
//! [`policy`] decides, as a pure function of the attempt, the failure, the time that has passed and some random bits.
//! [`backoff`] has the delays, [`text`] reads a policy as people write it, at compile time and at run time. [`run`] is the
//! one that waits, for calls in this process.

mod policy;
mod backoff;
mod text;
mod run;

pub use backoff::{Backoff, Jitter};
pub use policy::{Decision, GiveUp, RetryBuilder, RetryPolicy};
pub use run::Retrying;
