//! Dying at every point of making jobs of ticks, and going on.

use serde::{Deserialize, Serialize};
use steadfast::testing::{Harness, TestDatabase};
use steadfast::{Job, Missed};

#[derive(Serialize, Deserialize)]
struct Digest {}

impl Job for Digest {
    const NAME: &'static str = "test.digest";
}

/// The name of a table of ours.
fn table<Db: TestDatabase>(short: &str) -> String {
    match Db::NAME {
        "SQLite" => format!("steadfast_{short}"),
        _ => format!("steadfast.{short}"),
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_process_that_dies_anywhere_while_it_makes_jobs_loses_no_tick_and_doubles_none(t: Harness<Db>) {
    async fn tick(t: &Harness<Db>) -> steadfast::Result<u64> {
        t.sf()
            .schedule("test.a")
            .every("1h")
            .missed(Missed::All)
            .job(&Digest {});
        t.sf()
            .schedule("test.b")
            .every("2h")
            .missed(Missed::All)
            .job(&Digest {});
        t.sf().tick().await
    }

    let report = t
        .given(async |t| {
            assert_eq!(tick(t).await.unwrap(), 0);
            t.advance("6h");
        })
        .crash_everywhere(
            async |t| tick(t).await,
            async |t, told| {
                let made = tick(t).await.unwrap();
                assert!(
                    told.is_none_or(|told| (told, made) == (9, 0)),
                    "{told:?}, and then {made}"
                );
                t.assert_count(&table::<Db>("ticks"), 9).await;
                t.assert_count(&table::<Db>("messages"), 9).await;
                t.assert_count(&table::<Db>("queue"), 9).await;
                let apart = format!(
                    "SELECT count(*) FROM {} t WHERE NOT EXISTS (SELECT 1 FROM {} m WHERE m.id = t.job)",
                    table::<Db>("ticks"),
                    table::<Db>("messages")
                );
                t.assert_count(&apart, 0).await;
                assert_eq!(tick(t).await.unwrap(), 0);
            },
        )
        .await;
    let names = report.names();
    for name in [
        "declare a schedule",
        "look at schedules",
        "lock a schedule",
        "write ticks",
        "write how far the schedule has come",
        "before `seal`",
        "before `commit`",
        "COMMIT applied, its reply lost",
        "after COMMIT",
    ] {
        assert!(
            names.iter().any(|point| point.contains(name)),
            "{name} is not in {names:?}"
        );
    }
}
