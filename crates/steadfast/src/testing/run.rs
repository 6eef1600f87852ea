//! One test: a runtime, a database, the test, and the database away again.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;
use tokio::runtime::Runtime;

use super::database::TestDatabase;
use super::harness::Harness;
use super::site::Site;
use super::wait::Watcher;

/// Enough for a command and a duplicate to run at the same time, wherever the test's own thread is.
const WORKERS: usize = 2;

/// What a test may return: nothing, or a `Result`.
pub trait TestResult {
    #[doc(hidden)]
    fn is_ok(&self) -> bool;
}

impl TestResult for () {
    fn is_ok(&self) -> bool {
        true
    }
}

impl<T, E> TestResult for Result<T, E> {
    fn is_ok(&self) -> bool {
        Result::is_ok(self)
    }
}

/// Runs a test on a fresh database, and removes the database when the test has passed: what
/// [`#[steadfast::test]`](macro@crate::test) does for each database that it names.
///
/// The test runs on a tokio runtime of its own with two workers. A PostgreSQL database of a test that failed is kept,
/// and its name printed.
///
/// ```
/// use steadfast::sqlx::Sqlite;
/// use steadfast::testing::{self, Harness};
///
/// # // Written out, since an example cannot be a test.
/// testing::run(async |t: Harness<Sqlite>| {
///     t.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)").await;
///     t.assert_count("orders", 0).await;
///     t.assert_keys(0).await;
/// });
/// ```
///
/// # Panics
/// If the test does, or no database can be made: PostgreSQL needs the variable `TEST_DATABASE_URL`.
pub fn run<Db: TestDatabase, T: TestResult>(test: impl AsyncFnOnce(Harness<Db>) -> T) -> T {
    run_until(Passed::ByReturning, test)
}

/// The same for a test that passes by panicking.
#[doc(hidden)]
pub fn run_to_a_panic<Db: TestDatabase, T: TestResult>(test: impl AsyncFnOnce(Harness<Db>) -> T) -> T {
    run_until(Passed::ByPanicking, test)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Passed {
    ByReturning,
    ByPanicking,
}

fn run_until<Db: TestDatabase, T: TestResult>(passed: Passed, test: impl AsyncFnOnce(Harness<Db>) -> T) -> T {
    let runtime = runtime();
    let ended = runtime.block_on(async {
        let site = Site::<Db>::create().await;
        let harness = Harness::open(site.clone(), Watcher::default()).await;
        let ended = AssertUnwindSafe(test(harness)).catch_unwind().await;
        let has_passed = match &ended {
            Ok(result) => passed == Passed::ByReturning && result.is_ok(),
            Err(_) => passed == Passed::ByPanicking,
        };
        if has_passed {
            site.remove().await;
        } else {
            site.keep().await;
        }
        ended
    });
    // Not waited for: what a test has left running does not hold the next one up.
    runtime.shutdown_background();
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The runtime of a test.
pub(super) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(WORKERS).enable_all().build();
    built.unwrap_or_else(|error| panic!("no runtime for the test can be made: {error}"))
}
