//! Keys: listing, showing and forgetting them.

use steadfast::{AuditEntry, Owner, Steadfast};

use super::{Database, Db};
use crate::process::Call;

/// Places an order under a key, and says its id.
pub(super) async fn place(sf: &Steadfast<Db>, key: &str) -> String {
    let owner = Owner::new("tenant-1", "user-a");
    let command = sf.command("orders.place", key).owner(&owner);
    command.run(async |_| Ok("your secret".to_owned())).await.unwrap();
    let page = sf.keys().limit(1000).page().await.unwrap();
    let placed = page.keys.iter().find(|found| found.value == key).unwrap();
    placed.id.to_string()
}

/// A JSON line with the times, which differ from run to run, replaced.
fn steady(line: &str) -> String {
    let mut steady = line.trim_end().to_owned();
    for name in ["created_at", "expires_at", "at"] {
        let start = format!("\"{name}\":\"");
        if let Some(found) = steady.find(&start) {
            let time = found + start.len()..found + start.len() + "2026-01-31T12:00:00.000Z".len();
            let text = &steady[time.clone()];
            assert!(text.ends_with('Z') && &text[10..11] == "T", "RFC 3339 in UTC: {text}");
            steady.replace_range(time, "TIME");
        }
    }
    steady
}

struct Shop {
    database: Database,
    sf: Steadfast<Db>,
}

impl Shop {
    async fn open() -> Self {
        let database = Database::fresh().await;
        let sf = Steadfast::open(&database.url()).await.unwrap();
        Self { database, sf }
    }

    fn call(&self, line: &str) -> Call {
        Call::new(line).env("DATABASE_URL", &self.database.url())
    }
}

#[tokio::test]
async fn keys_are_listed_for_people_and_for_programs() {
    let shop = Shop::open().await;
    let id = place(&shop.sf, "key-1").await;
    let told = shop.call("keys list").run().await.ok();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(
        lines[0].starts_with("id            operation     tenant    user    key    state      status"),
        "{told}"
    );
    assert!(lines[1].starts_with(&format!(
        "{}  orders.place  tenant-1  user-a  key-1  completed  200",
        &id[..12]
    )));
    assert!(lines[1].contains(" s ago") && lines[1].contains("in 23 h"), "{told}");

    let object = shop.call("keys list --json").run().await.ok();
    assert_eq!(
        steady(&object),
        format!(
            r#"{{"id":"{id}","operation":"orders.place","scope":"user","tenant":"tenant-1","user":"user-a","key":"key-1","state":"completed","status":200,"answer_bytes":13,"created_at":"TIME","expires_at":"TIME","expired":false}}"#
        )
    );
}

#[tokio::test]
async fn a_filter_and_a_page_narrow_the_list() {
    let shop = Shop::open().await;
    for number in 0..5 {
        place(&shop.sf, &format!("key-{number}")).await;
    }
    let count = async |line: &str| shop.call(line).run().await.ok().lines().count();
    assert_eq!(count("keys list --json").await, 5);
    assert_eq!(
        count("keys list --json --operation orders.place --tenant tenant-1 --user user-a").await,
        5
    );
    assert_eq!(count("keys list --json --user somebody").await, 0);
    assert_eq!(count("keys list --json --state failed").await, 0);
    assert_eq!(count("keys list --json --since 1h").await, 5);
    assert_eq!(count("keys list --json --since 200000000000d").await, 5, "ever");

    let first = shop.call("keys list --limit 3").run().await;
    let after = first.err.trim().strip_prefix("there are more: add --after ").unwrap();
    assert_eq!(count(&format!("keys list --json --after {after}")).await, 2);
    let none = shop.call("keys list --user somebody").run().await;
    assert_eq!((none.exit, &*none.out, &*none.err), (0, "", "there are none\n"));
}

#[tokio::test]
async fn a_key_is_shown_without_its_answer_unless_asked() {
    let shop = Shop::open().await;
    let id = place(&shop.sf, "key-1").await;
    let told = shop.call(&format!("keys show {}", &id[..6])).run().await.ok();
    assert!(told.contains(&id) && told.contains("13 bytes"), "{told}");
    assert!(!told.contains("your secret"), "{told}");
    let told = shop.call(&format!("keys show {id} --answer")).run().await.ok();
    assert!(told.ends_with("body       \"your secret\"\n"), "{told}");

    let object = shop.call(&format!("keys show {id} --json")).run().await.ok();
    assert_eq!(object, shop.call("keys list --json").run().await.ok());
    let object = shop.call(&format!("keys show {id} --json --answer")).run().await.ok();
    assert!(
        object.ends_with(",\"answer\":\"\\\"your secret\\\"\",\"answer_hex\":null}\n"),
        "{object}"
    );
}

#[tokio::test]
async fn an_id_that_is_unknown_ambiguous_or_no_id_is_refused_with_what_to_write() {
    let shop = Shop::open().await;
    let mut ids = Vec::new();
    // Of seventeen ids two begin with the same digit.
    for number in 0..17 {
        ids.push(place(&shop.sf, &format!("key-{number}")).await);
    }
    let digit = |id: &String| id[..1].to_owned();
    let twice = ids
        .iter()
        .find(|id| ids.iter().filter(|other| digit(other) == digit(id)).count() > 1);
    let prefix = digit(twice.unwrap());
    let ambiguous = shop.call(&format!("keys show {prefix}")).run().await;
    ambiguous.refused(
        4,
        "is the beginning of several ids",
        "write more digits of one of them:",
    );
    for id in ids.iter().filter(|id| id.starts_with(&prefix)) {
        assert!(ambiguous.err.contains(id), "{id} is a candidate: {}", ambiguous.err);
    }
    let unknown = (0..=0xfff)
        .map(|number| format!("{number:03x}"))
        .find(|prefix| !ids.iter().any(|id| id.starts_with(prefix)));
    let unknown = unknown.unwrap();
    for verb in ["show", "forget --reason test --yes"] {
        let said = shop.call(&format!("keys {verb} {unknown}")).run().await;
        said.refused(
            3,
            &format!("there is no key whose id begins with {unknown}"),
            "`steadfast keys list`",
        );
    }
    let said = shop.call("keys show key-1").run().await;
    said.refused(
        2,
        "error[SF303]: \"key-1\" is not the id of a key",
        "hexadecimal digits",
    );
}

#[tokio::test]
async fn a_key_is_forgotten_with_a_reason_and_the_command_runs_again() {
    let shop = Shop::open().await;
    let id = place(&shop.sf, "key-1").await;
    let forget = |more: &str| shop.call(&format!("keys forget {id} {more}"));

    let said = forget("--yes").run().await;
    assert!(said.exit == 2 && said.err.contains("--reason <REASON>"), "{}", said.err);
    let said = forget("--reason test").run().await;
    said.refused(2, "nobody can be asked", "add --yes");
    let said = Call::of(["keys", "forget", &id, "--reason", " ", "--yes"]).env("DATABASE_URL", &shop.database.url());
    said.run().await.refused(2, "the reason is empty", "--reason");
    assert_eq!(
        shop.call("keys list --json").run().await.ok().lines().count(),
        1,
        "nothing was forgotten"
    );

    let told = forget("--reason entered-by-hand --yes --operator ann").run().await.ok();
    assert!(told.contains("the next one with this key executes again"), "{told}");
    assert_eq!(shop.call("keys list --json").run().await.ok(), "");
    forget("--reason test --yes")
        .run()
        .await
        .refused(3, "there is no key", "`steadfast keys list`");

    let audit = shop.call("audit --json").run().await.ok();
    assert_eq!(
        steady(&audit),
        format!(
            r#"{{"id":1,"at":"TIME","actor":"ann","action":"key.evict","subject":"orders.place {}","reason":"entered-by-hand"}}"#,
            &id[..12]
        )
    );
    let again = place(&shop.sf, "key-1").await;
    assert_eq!(again, id, "it is the same key, and was executed again");
    let object = forget("--reason test --yes --json").run().await.ok();
    assert_eq!(
        object,
        format!(
            "{{\"id\":\"{id}\",\"operation\":\"orders.place\",\"key\":\"key-1\",\"forgotten\":true,\"operator\":\"ops\",\"reason\":\"test\"}}\n"
        )
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn on_a_terminal_it_asks_and_only_yes_is_yes() {
    let shop = Shop::open().await;
    let id = place(&shop.sf, "key-1").await;
    let forget = async |answer: &str| {
        let call = shop.call(&format!("keys forget {id} --reason test"));
        call.input(&format!("{answer}\n")).on_a_terminal().run().await
    };
    for no in ["", "n", "yesterday"] {
        let said = forget(no).await;
        assert!(
            said.exit == 1 && said.out.contains("[y/N] nothing was changed"),
            "{no:?}: {}",
            said.out
        );
        assert_eq!(shop.call("keys list --json").run().await.ok().lines().count(), 1);
    }
    for yes in ["y", "YES"] {
        let told = forget(yes).await.ok();
        assert!(
            told.contains("Forget orders.place key-1? What the command did stays") && told.contains("key.evict by ops"),
            "{told}"
        );
        assert_eq!(shop.call("keys list --json").run().await.ok(), "");
        place(&shop.sf, "key-1").await;
    }
}

#[tokio::test]
async fn the_audit_is_filtered_and_what_would_move_the_cursor_is_spelled_out() {
    let shop = Shop::open().await;
    for actor in ["ann", "bob"] {
        let entry = AuditEntry::new(actor, "order.cancel", "order 7").because("first line\nsecond \x1b[2J");
        let entry = &entry;
        shop.sf.transact(async |tx| Ok(tx.audit(entry).await?)).await.unwrap();
    }
    let told = shop
        .call("audit --actor ann --action order.cancel --since 1h")
        .run()
        .await
        .ok();
    assert_eq!(told.lines().count(), 2, "a line for the entry: {told}");
    assert!(
        told.contains("first line\\nsecond \\u{1b}[2J") && !told.contains('\x1b'),
        "{told}"
    );
    let first = shop.call("audit --limit 1").run().await;
    assert!(first.out.contains("bob"), "newest first: {}", first.out);
    let before = first.err.trim().strip_prefix("there are more: add --before ").unwrap();
    let rest = shop.call(&format!("audit --before {before}")).run().await.ok();
    assert!(rest.contains("ann") && !rest.contains("bob"), "{rest}");
}
