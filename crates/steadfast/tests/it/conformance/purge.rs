//! What leaves the table of keys, and what must not: purge, eviction, erasure, quota.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfast::{Code, Error, KeyState, Owner, Purged, Quota, Reply, Steadfast};

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, fresh};

async fn make(sf: &Steadfast<Db>, owner: &Owner, key: &str, retention: Duration) -> Result<Reply<String>, Error> {
    sf.command("effects.make", key)
        .owner(owner)
        .retention(retention)
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(key)
                .execute(tx.db())
                .await?;
            Ok("x".repeat(98))
        })
        .await
}

/// How many keys a purge deletes. `None`: another process is at it.
pub(crate) async fn purged(sf: &Steadfast<Db>) -> Option<u64> {
    match sf.purge().await.unwrap() {
        Purged::Done(expired) => Some(expired.keys),
        Purged::Elsewhere => None,
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// A process with a quota, on the same database.
async fn with_quota(harness: &Harness<Db>, quota: Quota) -> Steadfast<Db> {
    let pool = Db::another_pool(harness, PoolSize::default());
    Steadfast::builder(pool).quota(quota).build().await.unwrap()
}

#[tokio::test]
async fn purge_removes_what_has_expired_and_nothing_else() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    for number in 0..20 {
        make(&sf, &harness.owner, &format!("short-{number}"), HOUR)
            .await
            .unwrap();
        make(&sf, &harness.owner, &format!("long-{number}"), 48 * HOUR)
            .await
            .unwrap();
    }
    assert_eq!(purged(&sf).await, Some(0), "nothing has expired");
    clock.set_offset(2 * HOUR);
    assert_eq!(purged(&sf).await, Some(20));
    assert_eq!(purged(&sf).await, Some(0));
    assert_eq!(harness.keys().await, 20);
    assert!(make(&sf, &harness.owner, "long-7", HOUR).await.unwrap().replayed);
    assert!(!make(&sf, &harness.owner, "short-7", HOUR).await.unwrap().replayed);
}

#[tokio::test]
async fn one_process_purges_at_a_time_and_a_dead_one_is_succeeded() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    make(&sf, &harness.owner, "k", HOUR).await.unwrap();
    clock.set_offset(2 * HOUR);
    // Somebody took the lease and died.
    let held = format!(
        "INSERT INTO {} (name, holder, token, expires_at) VALUES ('purge', 'somebody else', 7, {})",
        Db::table("leases"),
        if Db::IS_SQLITE {
            "(strftime('%s', 'now') + 7230) * 1000000"
        } else {
            "clock_timestamp() + interval '7230 seconds'"
        }
    );
    harness.run(&held).await;
    assert_eq!(purged(&sf).await, None);
    assert_eq!(harness.keys().await, 1);
    clock.set_offset(2 * HOUR + Duration::from_secs(60));
    assert_eq!(purged(&sf).await, Some(1), "the lease has expired");
    let tokens = format!("SELECT token FROM {} WHERE name = 'purge'", Db::table("leases"));
    assert!(Db::count(&harness.admin, &tokens).await > 7, "the token only grows");
    let (another, clock) = harness.another_with_clock().await;
    clock.set_offset(2 * HOUR);
    assert_eq!(purged(&another).await, Some(0), "the lease was given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_races_the_purge_replays_or_runs_cleanly() {
    let harness = fresh::<Db>().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut purges = Vec::new();
    for _ in 0..2 {
        let (sf, is_over) = (harness.another().await, is_over.clone());
        purges.push(tokio::spawn(async move {
            let mut count = 0;
            while !is_over.load(Ordering::SeqCst) {
                count += purged(&sf).await.unwrap_or(0);
            }
            count
        }));
    }
    let mut clients = Vec::new();
    for client in 0..4 {
        let (sf, owner) = (harness.another().await, harness.owner.clone());
        clients.push(tokio::spawn(async move {
            let (mut ran, mut replayed) = (0, 0);
            for _ in 0..100 {
                // So short that a retry finds its key alive, expired or purged.
                let key = format!("client-{client}");
                match make(&sf, &owner, &key, Duration::from_millis(5))
                    .await
                    .unwrap()
                    .replayed
                {
                    true => replayed += 1,
                    false => ran += 1,
                }
            }
            (ran, replayed)
        }));
    }
    let (mut ran, mut replayed) = (0, 0);
    for client in clients {
        let (more_ran, more_replayed) = client.await.unwrap();
        ran += more_ran;
        replayed += more_replayed;
    }
    is_over.store(true, Ordering::SeqCst);
    for purge in purges {
        purge.await.unwrap();
    }
    assert_eq!(ran + replayed, 400, "nobody was told of trouble");
    assert_eq!(
        harness.effects().await,
        ran,
        "an effect for each execution, none for a replay"
    );
}

#[tokio::test]
async fn a_key_can_be_looked_up_and_evicted_with_a_reason() {
    let harness = fresh::<Db>().await;
    let key = || harness.sf.key("effects.make", "k").owner(&harness.owner);
    assert_eq!(key().outcome().await.unwrap(), None);
    assert!(!key().evict("ops", "there is nothing yet").await.unwrap());
    make(&harness.sf, &harness.owner, "k", HOUR).await.unwrap();

    let answer = key().outcome().await.unwrap().unwrap();
    assert_eq!((answer.state, answer.status), (KeyState::Completed, 200));
    assert_eq!(answer.body, format!("\"{}\"", "x".repeat(98)));
    let stranger = Owner::new("tenant-1", "user-b");
    let elsewhere = harness.sf.key("effects.make", "k").owner(&stranger).outcome();
    assert_eq!(elsewhere.await.unwrap(), None, "a stranger does not see it");
    let unowned = harness.sf.key("effects.make", "k").outcome().await.unwrap_err();
    assert_eq!(unowned.code(), Code::OwnerMissing);

    assert!(key().evict("ops@example.com", "entered twice by hand").await.unwrap());
    assert_eq!(key().outcome().await.unwrap(), None);
    let audit = format!(
        "SELECT count(*) FROM {} WHERE actor = 'ops@example.com' AND action = 'key.evict' AND reason = 'entered twice by hand'",
        Db::table("audit")
    );
    assert_eq!(Db::count(&harness.admin, &audit).await, 1);
    let again = make(&harness.sf, &harness.owner, "k", HOUR).await.unwrap();
    assert!(!again.replayed, "it runs as if it was the first");
}

#[tokio::test]
async fn an_owner_is_erased_and_nobody_else() {
    let harness = fresh::<Db>().await;
    let (gone, stays) = (Owner::new("tenant-1", "gone"), Owner::new("tenant-1", "stays"));
    for number in 0..5 {
        for owner in [&gone, &stays] {
            make(&harness.sf, owner, &format!("k{number}"), HOUR).await.unwrap();
        }
    }
    assert_eq!(
        harness.sf.erase(&gone, "ops", "asked to be forgotten").await.unwrap(),
        5
    );
    assert_eq!(harness.sf.erase(&gone, "ops", "once more").await.unwrap(), 0);
    assert_eq!(harness.keys().await, 5);
    assert!(make(&harness.sf, &stays, "k1", HOUR).await.unwrap().replayed);
    let audit = format!(
        "SELECT count(*) FROM {} WHERE action = 'owner.erase'",
        Db::table("audit")
    );
    assert_eq!(Db::count(&harness.admin, &audit).await, 2);
}

#[tokio::test]
async fn an_owner_with_too_many_keys_is_refused_until_some_are_gone() {
    let harness = fresh::<Db>().await;
    let sf = with_quota(&harness, Quota::new(3, 1_000_000)).await;
    for key in ["a", "b", "c"] {
        make(&sf, &harness.owner, key, HOUR).await.unwrap();
    }
    let error = make(&sf, &harness.owner, "d", HOUR).await.unwrap_err();
    assert_eq!(error.code(), Code::QuotaExceeded, "{error:?}");
    assert!(error.retry_after().is_some());
    assert_eq!(harness.effects().await, 3, "the refused one was rolled back");
    assert!(
        make(&sf, &harness.owner, "a", HOUR).await.unwrap().replayed,
        "a replay needs no room"
    );
    let neighbour = Owner::new("tenant-1", "user-b");
    make(&sf, &neighbour, "d", HOUR).await.unwrap();

    sf.key("effects.make", "a")
        .owner(&harness.owner)
        .evict("ops", "room")
        .await
        .unwrap();
    make(&sf, &harness.owner, "d", HOUR).await.unwrap();
    assert_eq!(
        make(&sf, &harness.owner, "e", HOUR).await.unwrap_err().code(),
        Code::QuotaExceeded
    );
    assert_eq!(sf.erase(&harness.owner, "ops", "room").await.unwrap(), 3);
    make(&sf, &harness.owner, "e", HOUR).await.unwrap();
}

#[tokio::test]
async fn an_owner_with_too_many_bytes_is_refused_and_purge_gives_them_back() {
    let harness = fresh::<Db>().await;
    let sf = with_quota(&harness, Quota::new(1_000, 250)).await;
    // Each answer has a hundred bytes.
    for key in ["a", "b"] {
        make(&sf, &harness.owner, key, Duration::from_millis(1)).await.unwrap();
    }
    let error = make(&sf, &harness.owner, "c", HOUR).await.unwrap_err();
    assert_eq!(error.code(), Code::QuotaExceeded, "{error:?}");
    assert_eq!(purged(&sf).await, Some(2));
    make(&sf, &harness.owner, "c", Duration::from_millis(1)).await.unwrap();
    make(&sf, &harness.owner, "c", HOUR).await.unwrap();
    make(&sf, &harness.owner, "d", HOUR).await.unwrap();
    let too_large = with_quota(&harness, Quota::new(1_000, 99)).await;
    let stranger = Owner::new("tenant-1", "user-b");
    assert_eq!(
        make(&too_large, &stranger, "a", HOUR).await.unwrap_err().code(),
        Code::QuotaExceeded
    );
}

#[tokio::test]
async fn a_service_purges_by_itself_until_it_stops() {
    let harness = fresh::<Db>().await;
    let pool = Db::another_pool(&harness, PoolSize::default());
    let sf = Steadfast::builder(pool)
        .purge_every(Duration::from_millis(20))
        .build()
        .await
        .unwrap();
    make(&sf, &harness.owner, "k", Duration::from_millis(1)).await.unwrap();
    let house = sf.clone();
    let house = tokio::spawn(async move { house.keep_house().await });
    crate::harness::eventually("the key is purged", async || harness.keys().await == 0).await;
    sf.stop();
    house.await.unwrap();
}
