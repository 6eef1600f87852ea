//! How the outbox is doing, and what becomes of old messages.

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, FailureClass, Steadfast};

use super::{Database, Db};
use crate::process::Call;

#[derive(Serialize, Deserialize)]
struct Placed {
    sku: String,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
}

/// A dead letter, a message that was delivered, and one that waits.
async fn with_messages(database: &Database) {
    let sf = Steadfast::<Db>::open(&database.url()).await.unwrap();
    let send = |_: &EventCx, event: Placed| async move {
        match &*event.sku {
            "bad" => Err(Failure::definitive(FailureClass::BusinessRule, "bad", "never")),
            _ => Ok(()),
        }
    };
    sf.reaction::<Placed>("mail.send").run_outside(send);
    sf.declare().await.unwrap();
    for sku in ["tea", "bad"] {
        publish(&sf, sku).await;
    }
    sf.drain().await.unwrap();
    publish(&sf, "jam").await;
}

async fn publish(sf: &Steadfast<Db>, sku: &str) {
    let event = Placed { sku: sku.to_owned() };
    let published = sf.transact(async |tx| {
        tx.publish(&event)?;
        Ok(())
    });
    published.await.unwrap();
}

/// Lets everything have happened so many days earlier.
async fn age(database: &Database, days: u32) {
    let earlier = |column: &str| match Database::FAR.starts_with('\'') {
        true => format!("{column} = {column} - interval '{days} days'"),
        false => format!("{column} = {column} - {days} * 86400000000"),
    };
    let (messages, history) = (Database::table("messages"), Database::table("history"));
    let (created_at, finished_at) = (earlier("created_at"), earlier("finished_at"));
    database
        .run(&format!(
            "UPDATE {messages} SET {created_at}; UPDATE {history} SET {finished_at}"
        ))
        .await;
}

#[tokio::test]
async fn status_shows_what_waits_and_what_comes_of_it() {
    let database = Database::fresh().await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    call("migrate up").run().await.ok();
    let told = call("status").run().await.ok();
    assert!(told.starts_with("no target was ever declared\n\ntable "), "{told}");
    assert!(
        told.contains("\nbacklog    nothing waits, and nothing comes\n"),
        "{told}"
    );

    with_messages(&database).await;
    let told = call("status").run().await.ok();
    let mut lines = told.lines();
    let header: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(
        header[..7],
        ["target", "pending", "waiting", "leased", "dead", "oldest", "lag"]
    );
    let row: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["mail.send", "1", "0", "0", "1"], "{told}");
    assert!(told.lines().any(|line| line.starts_with("messages ")), "{told}");
    assert!(
        told.contains("\nbacklog    the backlog grows by 1 an hour; at this pace it doubles in 60 min\n"),
        "{told}"
    );
    assert!(
        told.contains("\nretention  7 d: at this pace 504 messages, about "),
        "{told}"
    );

    let told = call("status --json --message-retention 1d").run().await.ok();
    assert_eq!(told.lines().count(), 1);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let target = &told["targets"][0];
    assert_eq!(
        (&target["target"], &target["pending"], &target["dead"]),
        (&"mail.send".into(), &1.into(), &1.into())
    );
    assert_eq!(
        (&target["known"], &target["paused_by"]),
        (&true.into(), &serde_json::Value::Null)
    );
    assert_eq!(
        (&told["growth_per_hour"], &told["doubles_in_seconds"]),
        (&1.into(), &3600.into())
    );
    assert_eq!(
        (&told["retained_messages"], &told["retention_seconds"]),
        (&72.into(), &86_400.into())
    );
}

#[tokio::test]
async fn status_says_who_has_paused_a_target_and_why() {
    let database = Database::fresh().await;
    with_messages(&database).await;
    let kinds = Database::table("kinds");
    database
        .run(&format!(
            "UPDATE {kinds} SET paused_at = seen_at, paused_by = 'ann', paused_reason = 'no \x1b[31mmail'"
        ))
        .await;
    let told = Call::new("status")
        .env("DATABASE_URL", &database.url())
        .run()
        .await
        .ok();
    assert!(told.contains("  paused by ann: no \\u{1b}[31mmail\n"), "{told}");
    let doctor = Call::new("doctor").env("DATABASE_URL", &database.url()).run().await.out;
    assert!(doctor.contains("warn  paused "), "{doctor}");
    assert!(
        doctor.contains("warn  dead_letters ") && doctor.contains("mail.send (1)"),
        "{doctor}"
    );
}

#[tokio::test]
async fn status_is_drawn_anew_on_a_terminal_and_nowhere_else() {
    let database = Database::fresh().await;
    with_messages(&database).await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    for line in ["status --watch", "status --watch --json"] {
        call(line)
            .run()
            .await
            .refused(2, "only a terminal can be watched", "leave --watch out");
    }
    let drawn = call("status --watch")
        .on_a_terminal()
        .until(|said| said.matches("\x1b[H\x1b[2J").count() == 2);
    let drawn = drawn.await;
    assert!(drawn.contains("mail.send "), "{drawn}");
}

#[tokio::test]
async fn purge_takes_finished_messages_when_they_are_old_enough() {
    let database = Database::fresh().await;
    with_messages(&database).await;
    age(&database, 8).await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    let none = "expired keys         0, not deleted\nfinished messages    0, not deleted\nfinished deliveries  0, not deleted\n\
                old entries          0, not deleted\nold streams          0, not deleted\nold inbox records    0, not deleted\n\
                old ticks            0, not deleted\n";
    let kept = call("purge --dry-run").env("STEADFAST_MESSAGE_RETENTION", "30d");
    assert_eq!(kept.run().await.ok(), none);
    let told = call("purge --dry-run").run().await.ok();
    assert!(
        told.contains("finished messages    1, not deleted\nfinished deliveries  1, not"),
        "{told}"
    );
    let told = call("purge --json").run().await.ok();
    assert_eq!(
        told,
        "{\"expired_keys\":0,\"finished_messages\":1,\"finished_deliveries\":1,\"old_entries\":0,\"old_streams\":0,\"old_records\":0,\"old_ticks\":0,\"deleted\":true}\n"
    );
    assert_eq!(
        call("purge --dry-run").run().await.ok(),
        none,
        "what waits and what is dead stays"
    );
    let said = call("purge --message-retention soon").run().await;
    said.refused(2, "\"soon\" is not a setting of message-retention", "from 1m to 36500d");
}

#[tokio::test]
async fn doctor_tells_of_messages_that_nobody_purges() {
    let database = Database::fresh().await;
    with_messages(&database).await;
    age(&database, 9).await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    let told = call("doctor").run().await.out;
    assert!(
        told.contains("messages are kept for 7 d, and the oldest that nobody waits for is 9 d old"),
        "{told}"
    );
    call("purge").run().await.ok();
    let told = call("doctor").run().await.out;
    assert!(told.contains("nothing is kept much longer than 7 d"), "{told}");
}
