//! What a duplicate meets while the first one still runs.

use std::sync::Arc;
use std::time::Duration;

use steadfast::{Code, Conflict, Error, Failure, Reply, Steadfast};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

/// A command that says when it runs and ends when it is allowed to.
struct Held {
    call: JoinHandle<Result<Reply<String>, Error>>,
    release: Arc<Semaphore>,
}

impl Held {
    async fn start(harness: &Harness<Db>, sf: &Steadfast<Db>, succeed: bool) -> Self {
        let (running, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (sf, owner) = (sf.clone(), harness.owner.clone());
        let (say, wait) = (running.clone(), release.clone());
        let call = tokio::spawn(async move {
            sf.command("effects.make", "k")
                .owner(&owner)
                .run(async |tx| {
                    sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                        .execute(tx.db())
                        .await?;
                    say.add_permits(1);
                    let _released = wait.acquire().await;
                    if succeed {
                        Ok("first".to_owned())
                    } else {
                        Err(Failure::transient("later", "not now"))
                    }
                })
                .await
        });
        let _ = running.acquire().await.unwrap();
        Self { call, release }
    }

    async fn end(self) -> Result<Reply<String>, Error> {
        self.release.add_permits(1);
        self.call.await.unwrap()
    }
}

fn ask(harness: &Harness<Db>, sf: &Steadfast<Db>, conflict: Conflict) -> JoinHandle<Result<Reply<String>, Error>> {
    let (sf, owner) = (sf.clone(), harness.owner.clone());
    tokio::spawn(async move {
        sf.command("effects.make", "k")
            .owner(&owner)
            .conflict(conflict)
            .run(async |tx| {
                sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                    .execute(tx.db())
                    .await?;
                Ok("second".to_owned())
            })
            .await
    })
}

#[tokio::test]
async fn a_duplicate_in_flight_is_told_to_come_back() {
    let harness = fresh::<Db>().await;
    let held = Held::start(&harness, &harness.sf, true).await;
    let error = ask(&harness, &harness.sf, Conflict::Fail).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::InFlight);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    held.end().await.unwrap();
    let reply = ask(&harness, &harness.sf, Conflict::Fail).await.unwrap().unwrap();
    assert_eq!((reply.value.as_str(), reply.replayed), ("first", true));
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_first_answer() {
    let harness = fresh::<Db>().await;
    let held = Held::start(&harness, &harness.sf, true).await;
    let waiting = ask(&harness, &harness.sf, Conflict::Wait);
    held.end().await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!((reply.value.as_str(), reply.replayed), ("first", true));
}

#[tokio::test]
async fn a_waiting_duplicate_runs_itself_when_the_first_one_fails() {
    let harness = fresh::<Db>().await;
    let held = Held::start(&harness, &harness.sf, false).await;
    let waiting = ask(&harness, &harness.sf, Conflict::Wait);
    held.end().await.unwrap_err();
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!((reply.value.as_str(), reply.replayed), ("second", false));
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_duplicate_in_another_process_waits_and_replays() {
    let harness = fresh::<Db>().await;
    let other = harness.another().await;
    let held = Held::start(&harness, &harness.sf, true).await;
    let waiting = ask(&harness, &other, Conflict::Wait);
    held.end().await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!((reply.value.as_str(), reply.replayed), ("first", true));
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn waiters_hold_no_connection_and_beyond_64_are_turned_away() {
    let harness = Db::create(PoolSize {
        connections: 2,
        patience: Duration::from_secs(10),
    })
    .await;
    let held = Held::start(&harness, &harness.sf, true).await;
    let waiting: Vec<_> = (0..80).map(|_| ask(&harness, &harness.sf, Conflict::Wait)).collect();
    // 16 of the 80 are more than may wait; the others wait without a connection, so another one is to be had.
    eventually("the surplus is turned away", async || {
        waiting.iter().filter(|call| call.is_finished()).count() == 16
    })
    .await;
    sqlx::query("SELECT 1").execute(harness.sf.pool()).await.unwrap();
    held.end().await.unwrap();
    let mut refused = 0;
    for call in waiting {
        match call.await.unwrap() {
            Ok(reply) => assert_eq!((reply.value.as_str(), reply.replayed), ("first", true)),
            Err(error) => {
                assert_eq!(error.code(), Code::InFlight);
                refused += 1;
            }
        }
    }
    // Those who were let in together meet each other again, briefly, on the way to the replay.
    assert!(refused >= 16, "{refused}");
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_side_by_side_do_not_refuse_each_other() {
    let harness = fresh::<Db>().await;
    ask(&harness, &harness.sf, Conflict::Fail).await.unwrap().unwrap();
    let calls: Vec<_> = (0..50).map(|_| ask(&harness, &harness.sf, Conflict::Fail)).collect();
    for call in calls {
        assert!(call.await.unwrap().unwrap().replayed);
    }
}

#[tokio::test]
async fn a_duplicate_in_this_process_is_answered_without_a_connection() {
    let harness = Db::create(PoolSize {
        connections: 1,
        patience: Duration::from_millis(200),
    })
    .await;
    let held = Held::start(&harness, &harness.sf, true).await;
    let _reader = harness.sf.pool().try_acquire();
    let error = ask(&harness, &harness.sf, Conflict::Fail).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::InFlight, "{error:?}");
    held.end().await.unwrap();
}
