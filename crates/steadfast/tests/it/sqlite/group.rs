//! Commands that share a COMMIT: what they gain, and that none of them pays for another.
//!
//! The tests run on one thread, so what has asked to begin stands in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::Connection;
use sqlx::sqlite::SqlitePoolOptions;
use steadfast::testing::Observer;
use steadfast::{Clock, Code, Error, Failure, Owner, Reply, Steadfast};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

type Told = Result<Reply<u32>, Error>;

/// Counts those who have asked for a turn.
#[derive(Clone, Default)]
struct Queue(Arc<AtomicUsize>);

impl Observer for Queue {
    fn asked(&self, statement: &'static str) {
        if statement == "begin and claim" {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// What a member of a group does in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Well,
    /// As well, but it cannot be run again.
    WellOnce,
    Fail,
    Panic,
    /// Stays in the middle of its turn until its time limit.
    Hold,
    /// Makes SQLite roll the whole transaction back, and goes on as if nothing was.
    RollBackBehindOurBack,
    /// Fails the COMMIT, whoever else is in it.
    BreakDeferredKey,
    /// Fails if it sees the effect of the command `guilty`.
    RefuseIfGuiltyActed,
    /// Needs more room than there is.
    FillTheDisk,
    /// Fails while a transaction inside its own is open, which sqlx then undoes in the background.
    FailInside,
    PanicInside,
}

impl Does {
    async fn act(self, tx: &mut steadfast::Tx<Db>, key: &str) -> Result<u32, Failure> {
        sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
            .bind(key)
            .execute(tx.db())
            .await?;
        let statement = match self {
            Does::Well | Does::WellOnce => return Ok(1),
            Does::RefuseIfGuiltyActed => {
                let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM effects WHERE tag = 'guilty'")
                    .fetch_one(tx.db())
                    .await?;
                return match seen {
                    0 => Ok(1),
                    _ => Err(Failure::definitive(
                        steadfast::FailureClass::BusinessRule,
                        "taken",
                        "somebody was quicker",
                    )),
                };
            }
            Does::FailInside | Does::PanicInside => {
                let mut inside = tx.db().begin().await?;
                sqlx::query("INSERT INTO effects (tag) VALUES ('inside')")
                    .execute(&mut *inside)
                    .await?;
                assert!(self == Does::FailInside, "in the middle of a transaction inside");
                return Err(Failure::transient("not_today", "not today"));
            }
            Does::Fail => return Err(Failure::transient("not_today", "not today")),
            Does::Panic => panic!("in the middle of a group"),
            Does::Hold => return std::future::pending().await,
            Does::RollBackBehindOurBack => "ROLLBACK",
            Does::BreakDeferredKey => "INSERT INTO children (parent) VALUES (42)",
            Does::FillTheDisk => "INSERT INTO effects (tag) VALUES (hex(randomblob(10000000)))",
        };
        let ended = sqlx::raw_sql(statement).execute(tx.db()).await;
        if self == Does::FillTheDisk {
            ended?;
        }
        Ok(1)
    }
}

/// Somebody who has the turn.
struct Held {
    gate: Arc<Semaphore>,
    first: JoinHandle<Result<(), Error>>,
}

impl Held {
    async fn release(self) {
        self.gate.close();
        assert!(self.first.await.unwrap().is_err());
    }
}

/// A process whose turns can be lined up.
struct Line {
    harness: Harness<Db>,
    sf: Steadfast<Db>,
    queue: Queue,
}

impl Line {
    async fn new() -> Self {
        Self::at(fresh::<Db>().await).await
    }

    async fn at(harness: Harness<Db>) -> Self {
        let queue = Queue::default();
        let pool = Db::another_pool(&harness, PoolSize::default());
        let sf = Steadfast::builder(pool).observer(queue.clone()).build().await.unwrap();
        Self { harness, sf, queue }
    }

    /// Takes the turn and keeps it, so that others line up.
    async fn hold(&self) -> Held {
        let gate = Arc::new(Semaphore::new(0));
        let is_in = Arc::new(AtomicBool::new(false));
        let (sf, entered, released) = (self.sf.clone(), is_in.clone(), gate.clone());
        let first = tokio::spawn(async move {
            sf.transact(async |_| {
                entered.store(true, Ordering::SeqCst);
                drop(released.acquire().await);
                Err::<(), _>(Failure::transient("held", "only there to hold the turn"))
            })
            .await
        });
        eventually("the first has the turn", async || is_in.load(Ordering::SeqCst)).await;
        Held { gate, first }
    }

    /// Starts something, and sees it wait for its turn.
    async fn queue_up<T>(&self, start: impl FnOnce() -> JoinHandle<T>) -> JoinHandle<T> {
        let before = self.queue.0.load(Ordering::SeqCst);
        let started = start();
        eventually("it waits for its turn", async || {
            self.queue.0.load(Ordering::SeqCst) > before
        })
        .await;
        started
    }

    /// Lets the commands take their turns one after the other, all waiting before the first begins.
    async fn together(&self, members: &[(&'static str, Does)]) -> Vec<Told> {
        let held = self.hold().await;
        let mut waiting = Vec::new();
        for (key, does) in members {
            waiting.push(self.queue_up(|| self.spawn(key, *does)).await);
        }
        held.release().await;
        let mut told = Vec::new();
        for member in waiting {
            told.push(member.await.unwrap());
        }
        told
    }

    fn spawn(&self, key: &'static str, does: Does) -> JoinHandle<Told> {
        let (sf, owner) = (self.sf.clone(), self.harness.owner.clone());
        tokio::spawn(async move {
            let command = sf
                .command("effects.make", key)
                .owner(&owner)
                .time_limit(Duration::from_millis(if does == Does::Hold { 100 } else { 10_000 }));
            match does {
                Does::WellOnce => command.run_once(async |tx| does.act(tx, key).await).await,
                _ => command.run(async |tx| does.act(tx, key).await).await,
            }
        })
    }

    /// Everybody who was told of success has an effect, everybody else has none.
    async fn assert_nobody_was_told_a_lie(&self, members: &[(&'static str, Does)], told: &[Told]) {
        self.harness.assert_effects_match_keys().await;
        for ((key, does), told) in members.iter().zip(told) {
            let effects = format!("SELECT count(*) FROM effects WHERE tag = '{key}'");
            let effects = Db::count(&self.harness.admin, &effects).await;
            assert_eq!(effects == 1, told.is_ok(), "{key} ({does:?}) was told {told:?}");
        }
    }

    /// How many COMMITs the write-ahead log holds: frames that say how large the database is after them.
    fn commits(&self) -> usize {
        let file = self.harness.admin.connect_options().get_filename().to_owned();
        let log = std::fs::read(file.with_extension("db-wal")).unwrap();
        let (header, frames) = log.split_at(32);
        let page_size = u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize;
        let salt = &header[16..24];
        frames
            .chunks_exact(24 + page_size)
            .take_while(|frame| &frame[8..16] == salt)
            .filter(|frame| frame[4..8] != [0; 4])
            .count()
    }
}

#[tokio::test]
async fn commands_that_wait_for_each_other_share_one_commit() {
    let line = Line::new().await;
    let before = line.commits();
    let members = [
        ("a", Does::Well),
        ("b", Does::Well),
        ("c", Does::Well),
        ("d", Does::WellOnce),
    ];
    let told = line.together(&members).await;
    assert!(told.iter().all(Result::is_ok), "{told:?}");
    line.assert_nobody_was_told_a_lie(&members, &told).await;
    assert_eq!(line.commits() - before, 1);

    let alone = line.spawn("e", Does::Well).await.unwrap();
    assert!(!alone.unwrap().replayed);
    assert_eq!(line.commits() - before, 2, "nobody waits, so nobody is waited for");
}

#[tokio::test]
async fn a_group_has_at_most_32_commands() {
    const KEYS: [&str; 33] = [
        "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7",
        "b8", "b9", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "d0", "d1", "d2",
    ];
    let line = Line::new().await;
    let before = line.commits();
    let told = line.together(&KEYS.map(|key| (key, Does::Well))).await;
    assert!(told.iter().all(Result::is_ok), "{told:?}");
    let commits = line.commits() - before;
    assert!(commits >= 2, "33 do not fit into one");
    assert_eq!(line.harness.effects().await, 33);
}

#[tokio::test]
async fn a_refusal_that_rests_on_what_a_neighbour_wrote_waits_for_its_commit() {
    let line = Line::new().await;
    line.harness.defer_a_foreign_key().await;
    // The second refuses because it sees the first one's effect, whose COMMIT fails; alone, it would have done well.
    let members = [
        ("guilty", Does::BreakDeferredKey),
        ("watches", Does::RefuseIfGuiltyActed),
    ];
    let told = line.together(&members).await;
    assert_eq!(told[0].as_ref().unwrap_err().code(), Code::CommitRefused);
    assert!(told[1].is_ok(), "{:?}", told[1]);
    line.assert_nobody_was_told_a_lie(&members, &told).await;
}

#[tokio::test]
async fn who_fails_panics_or_holds_in_a_group_is_undone_alone() {
    let line = Line::new().await;
    let members = [
        ("before", Does::WellOnce),
        ("fails", Does::Fail),
        ("between", Does::WellOnce),
        ("panics", Does::Panic),
        ("holds", Does::Hold),
        ("after", Does::WellOnce),
    ];
    let told = line.together(&members).await;
    line.assert_nobody_was_told_a_lie(&members, &told).await;
    let code = |told: &Told| told.as_ref().map_or_else(Error::code, |_| unreachable!());
    assert!(told[0].is_ok() && told[2].is_ok() && told[5].is_ok(), "{told:?}");
    assert_eq!(code(&told[1]), Code::HandlerFailed);
    assert_eq!(code(&told[3]), Code::HandlerPanicked);
    assert_eq!(code(&told[4]), Code::TimeLimit);
    for key in ["fails", "panics", "holds"] {
        assert!(
            !line.spawn(key, Does::Well).await.unwrap().unwrap().replayed,
            "{key} is free"
        );
    }
}

#[tokio::test]
async fn who_fails_or_panics_in_a_nested_transaction_harms_nobody() {
    for _ in 0..10 {
        let line = Line::new().await;
        let members = [
            ("before", Does::WellOnce),
            ("fails", Does::FailInside),
            ("between", Does::WellOnce),
            ("panics", Does::PanicInside),
            ("after", Does::WellOnce),
        ];
        let told = line.together(&members).await;
        line.assert_nobody_was_told_a_lie(&members, &told).await;
        assert!(told[0].is_ok() && told[2].is_ok() && told[4].is_ok(), "{told:?}");
    }
}

#[tokio::test]
async fn a_transaction_that_leaves_a_nested_one_open_harms_nobody() {
    let line = Line::new().await;
    let held = line.hold().await;
    let good = line.queue_up(|| line.spawn("good", Does::WellOnce)).await;
    let sf = line.sf.clone();
    let leaving = async move {
        sf.transact(async |tx| {
            std::mem::forget(tx.db().begin().await?);
            Ok(())
        })
        .await
    };
    let bad = line.queue_up(|| tokio::spawn(leaving)).await;
    held.release().await;
    assert_eq!(bad.await.unwrap().unwrap_err().code(), Code::TransactionBroken);
    good.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_replay_of_what_a_neighbour_has_not_committed_waits_for_that() {
    let harness = fresh::<Db>().await;
    let tables =
        "CREATE TABLE parents (id INTEGER PRIMARY KEY); CREATE TABLE children (parent REFERENCES parents (id))";
    harness.run(tables).await;
    let (queue, clock) = (Queue::default(), Clock::default());
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let sf = builder
        .observer(queue.clone())
        .clock(clock.clone())
        .build()
        .await
        .unwrap();
    let line = Line { harness, sf, queue };
    // The key has expired, so whoever brings it looks again in its turn.
    let command = line.sf.command("effects.make", "k").owner(&line.harness.owner);
    let retention = Duration::from_secs(1);
    command.retention(retention).run(async |_| Ok(1)).await.unwrap();
    clock.set_offset(retention * 2);

    let held = line.hold().await;
    // It makes the key `k` as a guest of its own transaction, so nobody knows that it works on it.
    let (sf, owner) = (line.sf.clone(), line.harness.owner.clone());
    let guest = async move {
        sf.transact(async |tx| {
            let command = sf.on(tx.db()).command("effects.make", "k").owner(&owner);
            let make = command.run_once(async |db| {
                sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                    .execute(db)
                    .await?;
                Ok(7_u32)
            });
            make.await?;
            Ok(())
        })
        .await
    };
    let guest = line.queue_up(|| tokio::spawn(guest)).await;
    let replay = line.queue_up(|| line.spawn("k", Does::WellOnce)).await;
    let sf = line.sf.clone();
    let spoiler = async move {
        let spoil = "PRAGMA defer_foreign_keys = ON; INSERT INTO children (parent) VALUES (42)";
        sf.transact(async |tx| Ok(sqlx::raw_sql(spoil).execute(tx.db()).await.map(drop)?))
            .await
    };
    let spoiler = line.queue_up(|| tokio::spawn(spoiler)).await;
    held.release().await;
    // On a slow machine the guest's group may have ended before the spoiler had its turn; then it is durable.
    let guest = guest.await.unwrap();
    assert!(spoiler.await.unwrap().is_err());
    let told = replay.await.unwrap();
    assert_eq!(
        told.is_ok(),
        line.harness.effects().await == 1,
        "{told:?} after {guest:?}"
    );
}

#[test]
fn a_runtime_that_goes_away_with_a_turn_leaves_the_writer_to_others() {
    let make = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    let (gone, stays) = (make(), make());
    let harness = stays.block_on(fresh::<Db>());
    let is_in = Arc::new(AtomicBool::new(false));
    let (sf, entered) = (harness.sf.clone(), is_in.clone());
    gone.spawn(async move {
        sf.transact(async |_| {
            entered.store(true, Ordering::SeqCst);
            std::future::pending::<Result<(), Failure>>().await
        })
        .await
    });
    stays.block_on(eventually("it has the turn", async || is_in.load(Ordering::SeqCst)));
    gone.shutdown_background();
    stays.block_on(eventually("others get the turn", async || {
        harness.sf.transact(async |_| Ok(())).await.is_ok()
    }));
}

#[tokio::test]
async fn a_transaction_that_vanishes_takes_its_group_along_and_the_innocent_run_again() {
    let line = Line::new().await;
    let members = [
        ("rerun", Does::Well),
        ("once", Does::WellOnce),
        ("guilty", Does::RollBackBehindOurBack),
        ("later", Does::WellOnce),
    ];
    let told = line.together(&members).await;
    line.assert_nobody_was_told_a_lie(&members, &told).await;
    assert!(!told[0].as_ref().unwrap().replayed, "run again, by itself");
    let once = told[1].as_ref().unwrap_err();
    assert_eq!(once.code(), Code::Conflict, "{once:?}");
    assert!(once.retry_after().is_some());
    assert_eq!(told[2].as_ref().unwrap_err().code(), Code::TransactionBroken);
    assert!(told[3].is_ok(), "it came after the group had ended: {:?}", told[3]);
    for key in ["once", "guilty"] {
        assert!(
            !line.spawn(key, Does::Well).await.unwrap().unwrap().replayed,
            "{key} is free"
        );
    }
}

#[tokio::test]
async fn a_commit_that_fails_for_one_is_repeated_one_by_one() {
    let line = Line::new().await;
    line.harness.defer_a_foreign_key().await;
    let members = [
        ("before", Does::Well),
        ("once", Does::WellOnce),
        ("guilty", Does::BreakDeferredKey),
        ("after", Does::Well),
    ];
    let told = line.together(&members).await;
    line.assert_nobody_was_told_a_lie(&members, &told).await;
    assert!(told[0].is_ok() && told[3].is_ok(), "{told:?}");
    assert_eq!(told[1].as_ref().unwrap_err().code(), Code::Conflict);
    assert_eq!(
        told[2].as_ref().unwrap_err().code(),
        Code::CommitRefused,
        "alone it is told what it did"
    );
}

#[tokio::test]
async fn a_schema_with_deferred_foreign_keys_commits_one_by_one() {
    let harness = fresh::<Db>().await;
    harness.defer_a_foreign_key().await;
    let line = Line::at(harness).await;
    let before = line.commits();
    let members = [
        ("before", Does::WellOnce),
        ("guilty", Does::BreakDeferredKey),
        ("after", Does::WellOnce),
    ];
    let told = line.together(&members).await;
    line.assert_nobody_was_told_a_lie(&members, &told).await;
    assert!(told[0].is_ok() && told[2].is_ok(), "{told:?}");
    assert_eq!(told[1].as_ref().unwrap_err().code(), Code::CommitRefused);
    assert_eq!(line.commits() - before, 2);
}

#[tokio::test]
async fn a_full_disk_fails_who_filled_it_and_nobody_who_fits() {
    let line = Line::new().await;
    line.sf
        .transact(async |tx| {
            sqlx::raw_sql("PRAGMA max_page_count = 100").execute(tx.db()).await?;
            Ok(())
        })
        .await
        .unwrap();
    let members = [
        ("before", Does::Well),
        ("guilty", Does::FillTheDisk),
        ("after", Does::Well),
    ];
    let told = line.together(&members).await;
    line.assert_nobody_was_told_a_lie(&members, &told).await;
    assert!(told[0].is_ok() && told[2].is_ok(), "{told:?}");
    assert_eq!(told[1].as_ref().unwrap_err().code(), Code::Full);
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_or_runs_leaves_the_group_alone() {
    let line = Line::new().await;
    let owner = Owner::new("tenant-1", "user-a");
    for polls in 1..60 {
        let key = format!("dropped-{polls}");
        let command = line.sf.command("effects.make", &key).owner(&owner);
        let mut doomed = Box::pin(command.run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(&key)
                .execute(tx.db())
                .await?;
            Ok(1)
        }));
        let neighbour = line.spawn("neighbour", Does::WellOnce);
        for _ in 0..polls {
            if futures_util::poll!(&mut doomed).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(doomed);
        neighbour.await.unwrap().unwrap();
        // The same caller comes back, and its command runs or is replayed.
        eventually("the key is free or has ended", async || {
            let again = line.sf.command("effects.make", &key).owner(&owner);
            let told = again
                .run(async |tx| {
                    sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                        .bind(&key)
                        .execute(tx.db())
                        .await?;
                    Ok(1)
                })
                .await;
            match told {
                Ok(_) => true,
                Err(error) if error.code() == Code::InFlight => false,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
    }
    line.harness.assert_effects_match_keys().await;
    assert_eq!(line.harness.effects().await, 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_always_writes_does_not_starve_another_one() {
    let line = Line::new().await;
    let options = (*line.harness.admin.connect_options()).clone();
    let other = Steadfast::<Db>::new(SqlitePoolOptions::new().connect_lazy_with(options))
        .await
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..8)
        .map(|caller| {
            let (sf, owner, is_over) = (line.sf.clone(), line.harness.owner.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut count = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let key = format!("{caller}-{count}");
                    make(&sf, &owner, &key).await;
                    count += 1;
                }
                count
            })
        })
        .collect();
    for number in 0..50 {
        make(&other, &line.harness.owner, &format!("other-{number}")).await;
    }
    is_over.store(true, Ordering::SeqCst);
    let mut count = 50;
    for caller in busy {
        count += caller.await.unwrap();
    }
    assert_eq!(line.harness.effects().await, count);
    line.harness.assert_effects_match_keys().await;
}

async fn make(sf: &Steadfast<Db>, owner: &Owner, key: &str) {
    let command = sf.command("effects.make", key).owner(owner);
    command
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(key)
                .execute(tx.db())
                .await?;
            Ok(1)
        })
        .await
        .unwrap();
}
