//! The tables: migrating, and what happens where they are missing, old or new.

use steadfast::Steadfast;

use super::{Database, Db};
use crate::process::{Call, Said};

/// The migrations, in order, by version.
const MIGRATIONS: [(u32, &str); 15] = [
    (1, "keys"),
    (2, "audit"),
    (3, "claim"),
    (4, "purge"),
    (5, "breakers"),
    (6, "queue"),
    (7, "operations"),
    (8, "streams"),
    (9, "inbox"),
    (10, "letters"),
    (11, "jobs"),
    (12, "queues"),
    (13, "schedules"),
    (14, "runs"),
    (15, "finish"),
];

#[tokio::test]
async fn migrating_makes_the_tables_once_and_says_what_ran() {
    let database = Database::fresh().await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    let status = call("migrate status --json").run().await.ok();
    let missing = MIGRATIONS.iter().map(|(version, name)| {
        format!("{{\"version\":{version},\"name\":\"{name}\",\"applied_at\":null,\"known\":true}}\n")
    });
    assert_eq!(status, missing.collect::<String>());
    assert!(
        call("migrate status")
            .run()
            .await
            .ok()
            .contains("1        keys        missing\n")
    );
    let ran = call("migrate up").run().await.ok();
    let all = MIGRATIONS
        .iter()
        .map(|(version, name)| format!("ran {version} {name}\n"));
    assert_eq!(ran, all.collect::<String>());
    let again = call("migrate up").run().await;
    assert_eq!((again.exit, &*again.out), (0, ""));
    assert_eq!(again.err, "nothing to do: the tables are up to date\n");
    assert!(
        Steadfast::<Db>::connect(&database.url())
            .await
            .unwrap()
            .build()
            .await
            .is_ok()
    );
    let status = call("migrate status --json").run().await.ok();
    assert!(
        status.lines().count() == MIGRATIONS.len() && !status.contains("null"),
        "{status}"
    );
}

#[tokio::test]
async fn missing_old_and_newer_tables_are_refused_with_what_to_do() {
    let database = Database::fresh().await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    for line in ["keys list", "audit", "purge --dry-run", "keys show ab"] {
        let said = call(line).run().await;
        said.refused(
            1,
            "error[SF301]: the tables of steadfast are missing",
            "run `steadfast migrate up --database-url",
        );
    }
    let said = call("keys list --schema billing").run().await;
    said.refused(
        1,
        "error[SF301]: the tables of billing are missing",
        "--schema billing`",
    );
    call("migrate up").run().await.ok();
    let migrations = Database::table("migrations");
    let [.., (before, _), (newest, _)] = MIGRATIONS;
    database
        .run(&format!("DELETE FROM {migrations} WHERE version = {newest}"))
        .await;
    let said = call("keys list").run().await;
    said.refused(
        1,
        &format!("error[SF301]: the tables of steadfast have version {before}, this program needs {newest}"),
        "run `steadfast migrate up --database-url",
    );
    database
        .run(&format!("INSERT INTO {migrations} (version, name, applied_at) SELECT 99, 'later', applied_at FROM {migrations} WHERE version = 1"))
        .await;
    for line in ["keys list", "migrate up"] {
        let said = call(line).run().await;
        said.refused(
            1,
            &format!("error[SF301]: the tables of steadfast have version 99, this program knows {newest}"),
            "run the newer version",
        );
    }
    let status = call("migrate status --json").run().await.ok();
    assert!(
        status
            .lines()
            .last()
            .unwrap()
            .starts_with("{\"version\":99,\"name\":\"later\",\"applied_at\":\""),
        "{status}"
    );
    assert!(status.ends_with("\"known\":false}\n"), "{status}");
}

#[tokio::test]
async fn a_schema_of_ones_own_is_migrated_and_used() {
    let database = Database::fresh().await;
    let call = |line: &str| {
        let call = Call::new(line).env("DATABASE_URL", &database.url());
        call.env("STEADFAST_SCHEMA", "billing")
    };
    call("migrate up").run().await.ok();
    assert_eq!(call("keys list --json").run().await.ok(), "");
    let said = call("keys list --schema steadfast").run().await;
    said.refused(1, "the tables of steadfast are missing", "migrate up");
    let said = call("keys list --schema Billing").run().await;
    said.refused(2, "error[SF303]: \"Billing\" cannot name the tables", "lower-case");
}

#[tokio::test]
async fn of_those_who_migrate_at_once_one_says_what_ran() {
    let database = Database::fresh().await;
    let call = || {
        Call::new("migrate up --json")
            .env("DATABASE_URL", &database.url())
            .run()
    };
    let said: [Said; 4] = tokio::join!(call(), call(), call(), call()).into();
    let ran: Vec<_> = said.into_iter().map(Said::ok).filter(|ran| !ran.is_empty()).collect();
    assert_eq!(ran.len(), 1, "{ran:?}");
    let status = Call::new("migrate status --json").env("DATABASE_URL", &database.url());
    assert_eq!(ran[0], status.run().await.ok(), "what ran is shown as what has run");
}
