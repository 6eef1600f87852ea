//! Schedules: listing them, looking at one, and deciding about it.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast::{Job, Steadfast};

use super::{Database, Db};
use crate::process::Call;

const HOUR: Duration = Duration::from_secs(60 * 60);

#[derive(Serialize, Deserialize)]
struct Digest {
    of: String,
    email: String,
}

impl Job for Digest {
    const NAME: &'static str = "shop.digest";
    const REDACTED: &'static [&'static str] = &["email"];
}

/// An office with a digest on working days and a count of its stock every hour.
struct Office {
    database: Database,
    sf: Steadfast<Db>,
}

impl Office {
    async fn open() -> Self {
        let database = Database::fresh().await;
        let sf = Steadfast::open(&database.url()).await.unwrap();
        let digest = || Digest {
            of: "orders".into(),
            email: "ann@example.org".into(),
        };
        sf.schedule("shop.digest")
            .cron("0 9 * * MON-FRI", "Europe/Madrid")
            .job(&digest());
        sf.declare().await.unwrap();
        sf.schedules()
            .make("stock.count")
            .every("1h")
            .job(&digest())
            .await
            .unwrap();
        Self { database, sf }
    }

    fn call(&self, line: &str) -> Call {
        Call::new(line).env("DATABASE_URL", &self.database.url())
    }

    async fn json(&self, line: &str) -> Vec<Value> {
        let told = self.call(line).run().await.ok();
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn schedules_are_listed_with_their_next_run_and_one_is_shown_whole_but_masked() {
    let office = Office::open().await;
    let told = office.call("schedules list").run().await.ok();
    assert!(
        told.starts_with("schedule     due                            job          last   next"),
        "{told}"
    );
    assert!(
        told.contains("\nshop.digest  0 9 * * MON-FRI Europe/Madrid  shop.digest  never  in "),
        "{told}"
    );
    assert!(
        told.contains("\nstock.count  every 1h                       shop.digest  never  in "),
        "{told}"
    );
    let listed = office.json("schedules list --json").await;
    assert_eq!(
        (&listed[0]["source"], &listed[1]["source"]),
        (&"declared".into(), &"made".into())
    );
    assert_eq!(listed[0]["next"].as_array().map(Vec::len), Some(1));

    let told = office.call("schedules show shop.digest -n 3").run().await.ok();
    assert_eq!(told.matches("\nnext ").count(), 3, "{told}");
    assert!(told.contains("T09:00:00+0"), "as the clocks there show it: {told}");
    assert!(told.contains("orders") && !told.contains("ann@example.org"), "{told}");
    let shown = office.json("schedules show stock.count -n 2 --json").await;
    assert_eq!(
        (&shown[0]["missed"], &shown[0]["overlap"]),
        (&"last".into(), &"allow".into())
    );
    assert_eq!(shown[0]["next"].as_array().map(Vec::len), Some(2));

    let said = office.call("schedules show shop.digets").run().await;
    said.refused(3, "there is no schedule shop.digets", "did you mean shop.digest?");
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_triggered_and_removed_with_a_reason() {
    let office = Office::open().await;
    let paused = office
        .call("schedules pause shop.digest --reason away --operator ann")
        .run()
        .await
        .ok();
    assert!(paused.starts_with("paused   shop.digest\n"), "{paused}");
    let told = office.call("schedules list").run().await.ok();
    assert!(told.contains("paused by ann: away"), "{told}");
    office
        .call("schedules resume shop.digest --reason back --operator ann")
        .run()
        .await
        .ok();
    assert!(!office.call("schedules list").run().await.ok().contains("paused by"));

    let triggered = office
        .json("schedules trigger shop.digest --reason test --operator ann --json")
        .await;
    let id = triggered[0]["job"].as_str().unwrap();
    let job = office.json(&format!("jobs show {id} --json")).await;
    assert_eq!(job[0]["causation_id"], "schedule:shop.digest");

    let said = office.call("schedules remove stock.count --reason gone").run().await;
    said.refused(2, "nobody can be asked", "--yes");
    office
        .call("schedules remove stock.count --reason gone --operator ann --yes")
        .run()
        .await
        .ok();
    assert_eq!(office.json("schedules list --json").await.len(), 1);
    let actions: Vec<_> = office
        .json("audit --json")
        .await
        .iter()
        .map(|entry| entry["action"].clone())
        .collect();
    assert_eq!(
        actions,
        [
            "schedule.remove",
            "schedule.trigger",
            "schedule.resume",
            "schedule.pause"
        ]
    );
    let said = office.call("schedules pause stock.count --reason gone").run().await;
    said.refused(3, "there is no schedule stock.count", "schedules list");
    let said = office.call("schedules pause shop.digest").run().await;
    assert_eq!(said.exit, 2, "{}", said.err);
}

#[tokio::test]
async fn a_backfill_shows_what_it_would_make_and_makes_it_when_it_is_told_to() {
    let office = Office::open().await;
    let now = SystemTime::now();
    let (from, until) = (steadfast::rfc3339(now - HOUR * 5), steadfast::rfc3339(now));
    let line = format!("schedules backfill stock.count --from {from} --until {until}");
    for more in ["--dry-run", "--reason gone"] {
        let said = office.call(&format!("{line} {more}")).run().await;
        assert_eq!(said.exit, 0, "{}", said.err);
        assert_eq!(said.out.matches("to be made").count(), 5, "{}", said.out);
        assert!(
            said.err.contains("5 to be made; nothing was made: add --yes"),
            "{}",
            said.err
        );
    }
    assert_eq!(office.sf.jobs().count().await.unwrap().number, 0);
    let made = office
        .json(&format!("{line} --reason gone --operator ann --yes --json"))
        .await;
    assert!(
        made.len() == 5 && made.iter().all(|tick| tick["made"] == true),
        "{made:?}"
    );
    assert_eq!(office.sf.jobs().count().await.unwrap().number, 5);
    let said = office
        .call(&format!("{line} --reason gone --operator ann --yes"))
        .run()
        .await;
    assert_eq!(said.out.matches("had a job").count(), 5, "{}", said.out);
    assert!(said.err.contains("nothing was made"), "{}", said.err);
    assert_eq!(office.sf.jobs().count().await.unwrap().number, 5);

    let said = office
        .call("schedules backfill stock.count --from tomorrow --until 2026-01-01 --dry-run")
        .run()
        .await;
    assert!(
        said.exit != 0 && said.err.contains("is no moment since 1970"),
        "{}",
        said.err
    );
    let said = office
        .call("schedules backfill stock.count --from 2026-01-01 --until 2099-01-01 --dry-run")
        .run()
        .await;
    assert!(
        said.exit != 0 && said.err.contains("ends in the future"),
        "{}",
        said.err
    );
}
