//! Every shape of schedule that a user may write on a method.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::service::React;
use steadfast::sqlx::{self, Postgres, Sqlite};
use steadfast::{Failure, Job, JobCx, Missed, Overlap, RetryPolicy, Steadfast, Tx};

const POLICY: RetryPolicy = RetryPolicy::checked(
    1,
    steadfast::Backoff::Immediate,
    Duration::from_secs(1),
    steadfast::Jitter::None,
    None,
);

/// What the stock of all warehouses is, or of one.
#[derive(Default, Serialize, Deserialize, Job)]
#[job("stock.count")]
struct CountStock {
    warehouse: Option<u32>,
}

/// A type of the user's that is called like nothing of ours.
struct Shop {
    limit: Duration,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Shop {
    #[cron("0 9 * * MON-FRI", tz = "Europe/Madrid", missed = "last", overlap = "skip", time_limit = self.limit)]
    async fn digest(&self, cx: &JobCx<Db>) -> Result<(), std::io::Error> {
        assert_eq!((cx.schedule(), cx.tick().is_some()), (Some("shop.digest"), true));
        Ok(())
    }

    #[every("1h", name = "shop.tidy", retry = POLICY, concurrency = 1, lease = "1m", missed = all)]
    async fn tidy_up(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        sqlx::query("INSERT INTO tidied (times) VALUES (1)")
            .execute(tx.db())
            .await?;
        Ok(())
    }

    /// The job has a type of its own, which can be enqueued with something in it as well.
    #[cron("@daily", missed = "skip")]
    #[job(CountStock, concurrency = 2)]
    async fn count(&self, tx: &mut Tx<Db>, job: &CountStock) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO counted (warehouse) VALUES ($1)")
            .bind(job.warehouse.map(i64::from))
            .execute(tx.db())
            .await?;
        Ok(())
    }

    #[cfg(any())]
    #[every("1m")]
    async fn not_there(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        tx.is_not_compiled()
    }
}

#[test]
fn schedules_are_written_for_both_databases() {
    fn reacts<S: React<Sqlite> + React<Postgres>>() {}
    reacts::<Shop>();
}

#[tokio::test]
async fn a_method_with_a_schedule_is_called_once_for_each_tick() {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    let tables = sf.transact(async |tx| {
        sqlx::query("CREATE TABLE tidied (times INTEGER)")
            .execute(tx.db())
            .await?;
        sqlx::query("CREATE TABLE counted (warehouse INTEGER)")
            .execute(tx.db())
            .await?;
        Ok(())
    });
    tables.await.unwrap();
    let limit = Duration::from_secs(5);
    let _shop = Shop { limit }.on(&sf);
    let _again = Shop { limit }.on(&sf);
    assert_eq!(sf.tick().await.unwrap(), 0);

    let schedules = sf.schedules().list().await.unwrap();
    let told: Vec<_> = schedules
        .iter()
        .map(|schedule| {
            (
                &*schedule.name,
                &*schedule.written,
                schedule.time_zone.as_deref(),
                &*schedule.job,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("shop.count", "@daily", Some("UTC"), "stock.count"),
            ("shop.digest", "0 9 * * MON-FRI", Some("Europe/Madrid"), "shop.digest"),
            ("shop.tidy", "every 1h", None, "shop.tidy"),
        ]
    );
    let policies: Vec<_> = schedules
        .iter()
        .map(|schedule| (schedule.missed.unwrap(), schedule.overlap.unwrap()))
        .collect();
    assert_eq!(
        policies,
        [
            (Missed::Skip, Overlap::Allow),
            (Missed::Last, Overlap::Skip),
            (Missed::All, Overlap::Allow)
        ]
    );

    // A week has a working day, whichever day it is now.
    sf.clock().set_offset(Duration::from_secs(7 * 24 * 60 * 60));
    sf.tick().await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!(sf.jobs().count().await.unwrap().number, 0, "all of them have ended");
    let tidied: i64 = sqlx::query_scalar("SELECT count(*) FROM tidied")
        .fetch_one(sf.pool())
        .await
        .unwrap();
    assert_eq!(tidied, 7 * 24);
    let digest = sf.schedules().look("shop.digest").await.unwrap().unwrap();
    assert_eq!((digest.made.len(), &*digest.payload), (1, "{}"));
    let job = sf.job(digest.made[0].job).look().await.unwrap().unwrap();
    assert_eq!(job.job.state.as_str(), "completed");
}
