//! What those who look after a database see: keys, the audit, the migrations, and what is wrong.

use std::time::Duration;

use steadfast::{Check, Code, KeyState, Meaning, Owner, Steadfast, StoreFailures, Verdict};

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, fresh};

const HOUR: Duration = Duration::from_secs(3600);

async fn place(sf: &Steadfast<Db>, owner: &Owner, key: &str) {
    let place = sf.command("orders.place", key).owner(owner).retention(HOUR);
    place.run(async |_| Ok(key.to_owned())).await.unwrap();
}

/// The same instance with all rights, which reading the audit needs.
async fn as_admin(harness: &Harness<Db>) -> Steadfast<Db> {
    Steadfast::new(harness.admin.clone()).await.unwrap()
}

fn named<'c>(checks: &'c [Check], name: &str) -> &'c Check {
    let found = checks.iter().find(|check| check.name == name);
    found.unwrap_or_else(|| panic!("{name} was not looked at: {checks:?}"))
}

#[tokio::test]
async fn pages_show_every_key_once_whatever_is_written_meanwhile() {
    let harness = fresh::<Db>().await;
    for number in 0..25 {
        place(&harness.sf, &harness.owner, &format!("key-{number}")).await;
    }
    let (mut seen, mut next) = (Vec::new(), None);
    loop {
        let mut list = harness.sf.keys().limit(4);
        if let Some(last) = next {
            list = list.after(last);
        }
        let page = list.page().await.unwrap();
        assert!(page.keys.len() <= 4);
        seen.extend(page.keys.into_iter().map(|key| key.value));
        let Some(last) = page.next else { break };
        next = Some(last);
        place(&harness.sf, &harness.owner, &format!("late-{}", seen.len())).await;
    }
    let mut first: Vec<_> = seen.iter().filter(|value| value.starts_with("key-")).collect();
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 25, "none is missing: {seen:?}");
    let mut all = seen.clone();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), seen.len(), "none is shown twice: {seen:?}");
}

#[tokio::test]
async fn a_list_has_what_its_filter_says() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    let other = Owner::new("tenant-2", "user-b");
    place(&sf, &harness.owner, "old").await;
    clock.set_offset(2 * HOUR);
    place(&sf, &harness.owner, "new").await;
    place(&sf, &other, "theirs").await;
    let refuse = sf.command("orders.cancel", "no").owner(&other);
    let refused = refuse
        .store_failures(StoreFailures::Definitive)
        .run(async |_| -> Result<(), _> {
            let class = steadfast::FailureClass::BusinessRule;
            Err(steadfast::Failure::definitive(class, "shipped", "it is on its way"))
        })
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::HandlerFailed);

    let values = async |list: steadfast::KeyList<'_, Db>| {
        let page = list.page().await.unwrap();
        let mut values: Vec<_> = page.keys.into_iter().map(|key| key.value).collect();
        values.sort();
        values
    };
    assert_eq!(values(sf.keys()).await, ["new", "no", "old", "theirs"]);
    assert_eq!(values(sf.keys().operation("orders.cancel")).await, ["no"]);
    assert_eq!(values(sf.keys().tenant("tenant-2")).await, ["no", "theirs"]);
    assert_eq!(values(sf.keys().user("user-a")).await, ["new", "old"]);
    assert_eq!(values(sf.keys().state(KeyState::Failed)).await, ["no"]);
    assert_eq!(values(sf.keys().stored_within(HOUR)).await, ["new", "no", "theirs"]);
    assert_eq!(
        values(sf.keys().tenant("tenant-2").state(KeyState::Completed)).await,
        ["theirs"]
    );

    let page = sf.keys().user("user-a").page().await.unwrap();
    let key = |value: &str| page.keys.iter().find(|key| key.value == value).unwrap();
    assert!(key("old").is_expired && !key("new").is_expired);
    let kept = key("new").expires_at.duration_since(key("new").created_at).unwrap();
    // PostgreSQL looks at its clock for each of the two.
    assert!(kept.abs_diff(HOUR) < Duration::from_secs(1), "{kept:?}");
    assert_eq!(
        (key("new").status, key("new").answer_bytes),
        (200, 5),
        "the answer is \"new\" in quotes"
    );
}

#[tokio::test]
async fn a_key_is_found_by_the_beginning_of_its_id_and_can_be_evicted() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    for number in 0..20 {
        place(sf, &harness.owner, &format!("key-{number}")).await;
    }
    let all = sf.keys().page().await.unwrap().keys;
    for key in &all {
        let id = key.id.to_string();
        let by_id = sf.keys().id_prefix(&id).unwrap().page().await.unwrap();
        assert_eq!(by_id.keys, std::slice::from_ref(key));
        let by_digit = sf.keys().id_prefix(&id[..1]).unwrap().page().await.unwrap();
        assert!(by_digit.keys.contains(key));
        assert!(
            by_digit
                .keys
                .iter()
                .all(|found| found.id.to_string().starts_with(&id[..1]))
        );
    }
    let answer = all[7].look_up(sf).outcome().await.unwrap().unwrap();
    assert_eq!(answer.body, format!("\"{}\"", all[7].value));
    assert!(all[7].look_up(sf).evict("ops", "a test").await.unwrap());
    assert!(!all[7].look_up(sf).evict("ops", "a test").await.unwrap(), "it is gone");
    assert_eq!(harness.keys().await, 19);

    let entries = as_admin(&harness).await.audit_entries().page().await.unwrap().entries;
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (&*entries[0].actor, &*entries[0].action, &*entries[0].reason),
        ("ops", "key.evict", "a test")
    );
    assert!(
        entries[0].subject.ends_with(&all[7].id.to_string()[..12]),
        "{:?}",
        entries[0]
    );
}

#[tokio::test]
async fn the_audit_is_read_newest_first_and_page_by_page() {
    let harness = fresh::<Db>().await;
    for number in 0..7 {
        let actor = if number % 2 == 0 { "even" } else { "odd" };
        let entry = steadfast::AuditEntry::new(actor, "order.cancel", format!("order {number}"));
        let entry = &entry;
        harness
            .sf
            .transact(async |tx| Ok(tx.audit(entry).await?))
            .await
            .unwrap();
    }
    let sf = as_admin(&harness).await;
    let first = sf.audit_entries().limit(4).page().await.unwrap();
    let rest = sf.audit_entries().before(first.next.unwrap()).page().await.unwrap();
    let subjects: Vec<_> = first
        .entries
        .iter()
        .chain(&rest.entries)
        .map(|entry| &*entry.subject)
        .collect();
    assert_eq!(subjects, [6, 5, 4, 3, 2, 1, 0].map(|number| format!("order {number}")));
    assert_eq!(rest.next, None);
    assert_eq!(sf.audit_entries().actor("odd").page().await.unwrap().entries.len(), 3);
    assert_eq!(sf.audit_entries().action("key.evict").page().await.unwrap().entries, []);
    assert_eq!(
        sf.audit_entries()
            .written_within(HOUR)
            .page()
            .await
            .unwrap()
            .entries
            .len(),
        7
    );
}

#[tokio::test]
async fn counting_expired_keys_deletes_none_and_says_what_purge_will() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    for number in 0..12 {
        place(&sf, &harness.owner, &format!("key-{number}")).await;
    }
    assert_eq!(sf.count_expired(|_| ()).await.unwrap().keys, 0);
    clock.set_offset(2 * HOUR);
    let mut last = None;
    assert_eq!(sf.count_expired(|walked| last = Some(walked)).await.unwrap().keys, 12);
    assert_eq!(
        last.map(|walked| (walked.part, walked.expired.keys)),
        Some((1.0, 12)),
        "all of it was walked"
    );
    assert_eq!(harness.keys().await, 12);
    let mut last = None;
    sf.purge_watched(|walked| last = Some(walked)).await.unwrap();
    assert_eq!(last.map(|walked| (walked.part, walked.expired.keys)), Some((1.0, 12)));
    assert_eq!(harness.keys().await, 0);
}

#[tokio::test]
async fn migrations_are_listed_with_what_a_newer_program_ran() {
    let harness = fresh::<Db>().await;
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let all = builder.migrations().await.unwrap();
    assert!(
        all.iter()
            .all(|migration| migration.applied_at.is_some() && migration.is_known)
    );
    let later = format!(
        "INSERT INTO {} (version, name, applied_at) VALUES (99, 'later', {})",
        Db::table("migrations"),
        if Db::IS_SQLITE { "0" } else { "now()" }
    );
    harness.run(&later).await;
    let last = builder.migrations().await.unwrap().pop().unwrap();
    assert_eq!((last.version, &*last.name, last.is_known), (99, "later", false));
    let elsewhere = Steadfast::builder(harness.admin.clone()).schema("nowhere").unwrap();
    let none = elsewhere.migrations().await.unwrap();
    assert!(none.len() == all.len() && none.iter().all(|migration| migration.applied_at.is_none()));
}

#[tokio::test]
async fn the_examination_finds_missing_tables_and_says_what_to_run() {
    let harness = fresh::<Db>().await;
    let builder = Steadfast::builder(harness.admin.clone());
    let checks = builder.examine().await;
    assert_eq!(named(&checks, "reachable").verdict, Verdict::Ok);
    assert_eq!(named(&checks, "tables").verdict, Verdict::Ok);
    let checks = builder.schema("billing").unwrap().examine().await;
    let tables = named(&checks, "tables");
    assert_eq!(tables.verdict, Verdict::Fail);
    assert!(
        tables.fix.as_ref().unwrap().contains("steadfast migrate up"),
        "{tables:?}"
    );
    assert!(tables.fix.as_ref().unwrap().contains("--schema billing"), "{tables:?}");
}

#[tokio::test]
async fn the_script_makes_the_tables_of_another_instance() {
    let harness = fresh::<Db>().await;
    let script = Steadfast::<Db>::migration_script_for("billing", None).unwrap();
    harness.run(&script).await;
    let builder = Steadfast::builder(harness.admin.clone()).schema("billing").unwrap();
    place(&builder.build().await.unwrap(), &harness.owner, "key-1").await;
    assert_eq!(harness.keys().await, 0, "it is in the other instance");
    for version in [0, 99] {
        let wrong = Steadfast::<Db>::migration_script_for("billing", Some(version));
        assert_eq!(wrong.unwrap_err().code(), Code::ConfigurationInvalid);
    }
}

#[tokio::test]
async fn a_stored_fingerprint_is_the_one_that_the_meaning_has() {
    let harness = fresh::<Db>().await;
    let command = harness.sf.command("orders.place", "key-1").owner(&harness.owner);
    command.input(&("tea", 2)).run(async |_| Ok(())).await.unwrap();
    let meaning = Meaning::Call {
        operation: "orders.place",
        input: b"[ \"tea\", 2.0 ]",
    };
    let stored = format!(
        "SELECT count(*) FROM {} WHERE request_hash = '{}'",
        Db::table("idempotency_records"),
        meaning.fingerprint().unwrap()
    );
    assert_eq!(Db::count(&harness.admin, &stored).await, 1);
    assert_eq!(
        Meaning::Call {
            operation: "orders.place",
            input: b"{"
        }
        .fingerprint()
        .unwrap_err()
        .code(),
        Code::BodyRefused
    );
}
