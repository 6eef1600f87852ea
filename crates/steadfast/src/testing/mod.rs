//! The test kit of a service that works with Steadfast (feature `testing`).
//!
//! [`#[steadfast::test(sqlite, postgres)]`](macro@crate::test) makes one async function a test on each database, and
//! hands it a [`Harness`]: a fresh database with our tables. From there
//!
//! - [`Harness::advance`] moves the time,
//! - [`Harness::another`] and [`Harness::reopen`] are other processes on the same database,
//! - [`eventually`], [`Harness::reached`] and [`Harness::hold`] wait for facts instead of sleeping,
//! - [`Harness::crash_everywhere`] runs a scenario once for each place where its process could die, dies there, and
//!   lets the test look at what is left.
//!
//! Below all of it is the [`Observer`], which the shop's fault lab uses directly.

mod run;
mod harness;
mod wait;
mod crash;
mod queue;
mod sink;
mod source;
mod site;
mod database;

pub mod proxy;

use std::any::Any;

pub use crash::{CrashFailure, CrashFailures, CrashPoint, CrashReport, Given};
pub use database::TestDatabase;
pub use harness::{Harness, IntoDuration};
pub use queue::{TestFeed, TestQueue};
pub use run::{TestResult, run};
pub use sink::{Arrived, SinkTrial, try_sink};
pub use source::{SourceTrial, try_source};
pub use wait::{Hold, eventually};

#[doc(hidden)]
pub use run::run_to_a_panic;

pub use crate::command::Point;
/// What the engine says to PostgreSQL, by name, and the settings of its connections: for the tests that look at plans.
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub const ENGINE_STATEMENTS: &[(&str, &str)] = crate::store::postgres::STATEMENTS;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub const ENGINE_SETTINGS: &[(&str, &str)] = &crate::store::postgres::PLANNER;
pub use crate::queue::{WorkId, WorkPoint};

use crate::command::Key;

/// Sees what happens inside, and may stop it there: kill the process, or lose a reply.
///
/// It runs on the command's own task, in the middle of its transaction: whatever it does, the command waits.
pub trait Observer: Send + Sync + 'static {
    /// A command has reached a point of the corridor.
    fn reached(&self, _point: Point, _key: &Key) {}

    /// A row of the queue has come to a point of its way.
    fn worked(&self, _point: WorkPoint, _id: &WorkId<'_>) {}

    /// A statement is about to be sent: one of the toolkit's, by its name, or one of the handler's (`tx.db()`).
    fn asked(&self, _statement: &'static str) {}

    /// The database has applied a COMMIT, and nobody knows yet.
    fn commit_applied(&self) -> CommitReply {
        CommitReply::Arrives
    }
}

/// What becomes of the reply to a COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitReply {
    /// It arrives.
    Arrives,
    /// It is lost: the toolkit must find out by itself what happened.
    IsLost,
}

impl<F: Fn(Point, &Key) + Send + Sync + 'static> Observer for F {
    fn reached(&self, point: Point, key: &Key) {
        self(point, key);
    }
}

/// The payload of a panic that stands for the death of the process. Nothing catches it on its way.
struct Crash;

/// Goes on with a panic that is a crash; gives back any other.
pub(crate) fn crash_on(panic: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    if panic.is::<Crash>() {
        std::panic::resume_unwind(panic);
    }
    panic
}

/// What a panic says.
fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without words")
}
