//! Purging, and whether the database is well.

use std::time::Duration;

use steadfast::{Owner, Steadfast};

use super::{Database, Db};
use crate::process::Call;

/// A key that has expired, and one that has not.
async fn with_an_expired_key(database: &Database) {
    let sf = Steadfast::<Db>::open(&database.url()).await.unwrap();
    let owner = Owner::new("tenant-1", "user-a");
    sf.command("orders.place", "live")
        .owner(&owner)
        .run(async |_| Ok(()))
        .await
        .unwrap();
    let short = sf.command("orders.place", "gone").owner(&owner);
    short
        .retention(Duration::from_millis(1))
        .run(async |_| Ok(()))
        .await
        .unwrap();
    let page = async || sf.keys().page().await.unwrap();
    while !page().await.keys.iter().any(|key| key.is_expired) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn purge_counts_and_then_deletes_what_has_expired() {
    let database = Database::fresh().await;
    with_an_expired_key(&database).await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    assert_eq!(
        call("purge --dry-run").run().await.ok(),
        "expired keys         1, not deleted\nfinished messages    0, not deleted\nfinished deliveries  0, not deleted\n\
         old entries          0, not deleted\nold streams          0, not deleted\nold inbox records    0, not deleted\n\
         old ticks            0, not deleted\n"
    );
    assert_eq!(
        call("purge --dry-run --json").run().await.ok(),
        "{\"expired_keys\":1,\"finished_messages\":0,\"finished_deliveries\":0,\"old_entries\":0,\"old_streams\":0,\"old_records\":0,\"old_ticks\":0,\"deleted\":false}\n"
    );
    assert_eq!(call("keys list --json").run().await.ok().lines().count(), 2);
    let purged = call("purge --json").run().await;
    assert_eq!(purged.err, "", "no bar where there is no terminal");
    assert!(purged.ok().starts_with("{\"expired_keys\":1,"));
    assert!(
        call("purge")
            .run()
            .await
            .ok()
            .starts_with("expired keys         0, deleted\n")
    );
    assert_eq!(call("keys list --json").run().await.ok().lines().count(), 1);
}

#[tokio::test]
async fn purge_leaves_it_to_the_process_that_is_at_it() {
    let database = Database::fresh().await;
    with_an_expired_key(&database).await;
    let (leases, far) = (Database::table("leases"), Database::FAR);
    database
        .run(&format!(
            "INSERT INTO {leases} (name, holder, token, expires_at) VALUES ('purge', 'another', 1, {far})"
        ))
        .await;
    let said = Call::new("purge").env("DATABASE_URL", &database.url()).run().await;
    said.refused(4, "another process is purging", "lease runs out");
}

#[tokio::test]
async fn health_and_doctor_tell_of_missing_tables_and_what_to_run() {
    let database = Database::fresh().await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    let health = call("health").run().await;
    health.refused(
        5,
        "error[SF301]: the tables of steadfast are missing",
        "run `steadfast migrate up --database-url",
    );
    let doctor = call("doctor --json").run().await;
    assert_eq!(doctor.exit, 5);
    let tables = doctor
        .out
        .lines()
        .find(|line| line.starts_with("{\"check\":\"tables\""))
        .unwrap();
    assert!(tables.starts_with("{\"check\":\"tables\",\"verdict\":\"fail\",\"found\":\"SF301: the tables of steadfast are missing\",\"fix\":\"run `steadfast migrate up"), "{tables}");

    call("migrate up").run().await.ok();
    assert_eq!(
        call("health --json").run().await.ok(),
        "{\"healthy\":true,\"code\":null,\"what\":null}\n"
    );
    let doctor = call("doctor --json").run().await.out;
    assert!(doctor.contains("{\"check\":\"tables\",\"verdict\":\"ok\",\"found\":\"those of steadfast are of this version\",\"fix\":null}\n"), "{doctor}");
    for color in ["doctor --color always", "doctor --color never", "doctor"] {
        let told = call(color).run().await.out;
        assert_eq!(told.contains("\x1b[32mok"), color.contains("always"), "{told}");
    }
}
