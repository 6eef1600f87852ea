//! doctor and Redis, the real server.

use std::path::Path;

use crate::private::Private;
use crate::process::{Call, Said};

/// A Redis of this test alone, with these settings.
async fn private(settings: &str) -> Option<Private> {
    let whole = |port: u16, directory: &Path| {
        format!(
            "bind 127.0.0.1\nport {port}\ndir {}\nsave \"\"\n{settings}",
            directory.display()
        )
    };
    let redis = Private::start("redis-server", whole).await;
    if redis.is_none() {
        eprintln!("skipped: redis-server is not installed");
    }
    redis
}

async fn doctor(redis: &Private, user: &str) -> Said {
    let url = format!("redis://{user}127.0.0.1:{}", redis.port);
    Call::new(&format!("doctor --broker {url}")).run().await
}

#[tokio::test]
async fn doctor_says_what_a_crash_of_the_machine_would_cost() {
    let url = std::env::var("TEST_REDIS_URL").expect("TEST_REDIS_URL says where Redis is");
    let told = Call::new(&format!("doctor --broker {url}")).run().await.ok();
    assert!(
        told.contains("ok    appendonly        the server writes an append-only file"),
        "{told}"
    );
    assert!(
        told.contains("warn  appendfsync       a crash of the machine loses the last second"),
        "{told}"
    );
    assert!(
        told.contains("ok    maxmemory_policy  the policy is noeviction"),
        "{told}"
    );
}

#[tokio::test]
async fn doctor_finds_a_server_that_keeps_nothing_and_deletes_streams() {
    let Some(redis) = private("maxmemory 64mb\nmaxmemory-policy allkeys-lru\n").await else {
        return;
    };
    let said = doctor(&redis, "").await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    assert!(
        said.out
            .contains("fail  appendonly        the server writes no append-only file"),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("fail  maxmemory_policy  the policy is allkeys-lru"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn doctor_has_nothing_against_a_server_that_syncs_everything() {
    let Some(redis) = private("appendonly yes\nappendfsync always\n").await else {
        return;
    };
    let told = doctor(&redis, "").await.ok();
    assert!(
        !told.contains("warn  ") && told.contains("what is confirmed is on the disk"),
        "{told}"
    );
}

#[tokio::test]
async fn what_a_user_may_not_see_is_not_known_and_a_wrong_password_fails() {
    let users = "requirepass hunter2\nuser looker on >open-sesame ~* +@all -config -info\n";
    let Some(redis) = private(users).await else {
        return;
    };
    let told = doctor(&redis, "looker:open-sesame@").await.ok();
    for check in ["appendonly", "appendfsync", "maxmemory_policy"] {
        assert!(told.contains(&format!("warn  {check:16}  not known: ")), "{told}");
    }
    assert!(!told.contains("open-sesame"), "{told}");
    for user in ["looker:swordfish@", ":swordfish@"] {
        let said = doctor(&redis, user).await;
        assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
        assert!(
            said.out.contains("fail  reachable  Redis is not to be had: "),
            "{}",
            said.out
        );
        assert!(
            said.out.contains("fix: look at user and password in the URL"),
            "{}",
            said.out
        );
        assert!(!said.out.contains("swordfish"), "{}", said.out);
    }
}
