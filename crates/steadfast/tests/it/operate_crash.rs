//! Dying at every point of a bulk operation, and going on.

use std::ops::ControlFlow;

use steadfast::testing::{Harness, TestDatabase};
use steadfast::{BulkState, BulkVerb};

use crate::sqlite::bulk::graves;

/// A little more than one batch: the second one begins where the first ended.
const LETTERS: u32 = 510;

/// The name of a table of ours.
fn table<Db: TestDatabase>(short: &str) -> String {
    match Db::NAME {
        "SQLite" => format!("steadfast_{short}"),
        _ => format!("steadfast.{short}"),
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_bulk_operation_goes_on_wherever_its_process_died_and_does_nothing_twice(t: Harness<Db>) {
    async fn work(t: &Harness<Db>) -> steadfast::Result<()> {
        let operations = t.sf().bulk_operations(1).await?;
        let id = match operations.first() {
            Some(begun) => begun.id,
            None => {
                t.sf()
                    .dead_letters()
                    .start(BulkVerb::Discard, "ann", "too old")
                    .await?
                    .id
            }
        };
        let ended = t.sf().bulk_operation(id).resume(|_| ControlFlow::Continue(())).await?;
        assert_eq!((ended.state, ended.done, ended.batches), (BulkState::Done, 510, 2));
        Ok(())
    }

    let is_sqlite = table::<Db>("queue").contains("steadfast_");
    t.prepare(&graves(is_sqlite, LETTERS)).await;
    let report = t
        .crash_everywhere(
            async |t| work(t).await,
            async |t, _| {
                // What died held the lease.
                t.advance("11s");
                work(t).await.unwrap();
                t.assert_count(&table::<Db>("queue"), 0).await;
                t.assert_count(&table::<Db>("history"), i64::from(LETTERS)).await;
                t.assert_count(&table::<Db>("operations"), 1).await;
                // Once that it began, once that it ended.
                t.assert_count(&table::<Db>("audit"), 2).await;
            },
        )
        .await;
    let names = report.names();
    for name in [
        "lock deliveries",
        "end deliveries",
        "write how far it has come",
        "after COMMIT",
    ] {
        assert!(
            names.iter().any(|point| point.contains(name)),
            "{name} is not in {names:?}"
        );
    }
}
