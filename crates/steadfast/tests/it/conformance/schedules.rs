//! Schedules: one job for one tick, whoever sees it, whatever the clock does.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use steadfast::testing::Observer;
use steadfast::{Clock, Cron, Failure, Job, Missed, Overlap, Steadfast, Timing, Tx, Verdict};

use super::Db;
use super::queue::rows;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Digest {
    pub(super) of: String,
}

impl Job for Digest {
    const NAME: &'static str = "test.digest";
    const REDACTED: &'static [&'static str] = &["secret"];
}

pub(super) fn digest() -> Digest {
    Digest { of: "orders".into() }
}

/// Another process, with this clock.
pub(super) async fn process(harness: &Harness<Db>, clock: &Clock) -> Steadfast<Db> {
    let pool = Db::another_pool(harness, PoolSize::default());
    Steadfast::builder(pool).clock(clock.clone()).build().await.unwrap()
}

/// The ticks that jobs were made of, in order, in microseconds since 1970.
pub(super) async fn ticks(harness: &Harness<Db>, schedule: &str) -> Vec<i64> {
    let tick = match Db::IS_SQLITE {
        true => "tick",
        false => "(extract(epoch FROM tick) * 1000000)::bigint",
    };
    let query = format!(
        "SELECT {tick} FROM {} WHERE schedule = '{schedule}' ORDER BY tick",
        Db::table("ticks")
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(query))
        .fetch_all(&harness.admin)
        .await
        .unwrap()
}

/// Fails unless each tick has the job that its row names, and each job its tick.
pub(super) async fn assert_one_job_each(harness: &Harness<Db>) {
    let (ticks, messages) = (Db::table("ticks"), Db::table("messages"));
    let lonely =
        format!("SELECT count(*) FROM {ticks} t WHERE NOT EXISTS (SELECT 1 FROM {messages} m WHERE m.id = t.job)");
    assert_eq!(Db::count(&harness.admin, &lonely).await, 0, "a tick without its job");
    let (jobs, ticks) = (rows(harness, "messages").await, rows(harness, "ticks").await);
    assert_eq!(jobs, ticks, "one job for one tick");
}

pub(super) fn micros(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

/// Up to when everything is dealt with.
async fn handled(sf: &Steadfast<Db>, name: &str) -> SystemTime {
    let looked = sf.schedules().look(name).await.unwrap();
    looked.expect("it is there").schedule.handled
}

#[tokio::test]
async fn a_tick_is_one_job_and_its_handler_is_told_which_tick_it_was() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let keep = told.clone();
    sf.handler::<Digest>().run(move |tx: &mut Tx<Db>, job: Digest| {
        let cx = tx.job().expect("it is one");
        let told = (job.of, cx.schedule().map(str::to_owned), cx.tick());
        keep.lock().unwrap().push(told);
        std::future::ready(Ok(()))
    });
    sf.schedule("test.hourly").every("1h").job(&digest());

    assert_eq!(
        sf.tick().await.unwrap(),
        0,
        "nothing is due that was due before it was there"
    );
    clock.set_offset(HOUR);
    assert_eq!(sf.tick().await.unwrap(), 1);
    assert_eq!(sf.tick().await.unwrap(), 0, "one job for one tick");
    assert_eq!(sf.drain().await.unwrap(), 1);

    let looked = sf.schedules().look("test.hourly").await.unwrap().expect("it is there");
    let tick = looked.schedule.last_tick.expect("there was one");
    assert_eq!(micros(tick) % micros(SystemTime::UNIX_EPOCH + HOUR), 0, "a full hour");
    assert_eq!(looked.made.len(), 1);
    assert_eq!(Some(looked.made[0].job), looked.schedule.last_job);
    assert_eq!(looked.payload, r#"{"of":"orders"}"#);
    let expected = ("orders".to_owned(), Some("test.hourly".to_owned()), Some(tick));
    assert_eq!(*told.lock().unwrap(), [expected]);
    let job = sf.job(looked.made[0].job).look().await.unwrap().expect("it is kept");
    assert_eq!(
        job.causation_id,
        Some(format!("schedule:test.hourly:{}", steadfast::rfc3339(tick)))
    );
    assert_one_job_each(&harness).await;
}

/// However many look at once, in whichever order: the constraint judges.
async fn race(schedulers: usize) {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let mut all = Vec::new();
    for _ in 0..schedulers {
        let sf = process(&harness, &clock).await;
        sf.schedule("test.a").every("10m").missed(Missed::All).job(&digest());
        sf.schedule("test.b")
            .cron("*/15 * * * *", "Europe/Madrid")
            .missed(Missed::All)
            .job(&digest());
        all.push(sf);
    }
    all[0].declare().await.unwrap();
    let begins = [handled(&all[0], "test.a").await, handled(&all[0], "test.b").await];
    let mut jobs = 0;
    for step in 1..=10 {
        clock.set_offset(Duration::from_secs(step * 17 * 60));
        let ticking = all
            .iter()
            .cloned()
            .map(|sf| tokio::spawn(async move { sf.tick().await }));
        for ended in futures_util::future::join_all(ticking).await {
            jobs += ended.unwrap().unwrap();
        }
    }
    let ends = [handled(&all[0], "test.a").await, handled(&all[0], "test.b").await];
    let a = Timing::from(steadfast::Every::new("10m").unwrap());
    let b = Timing::from(Cron::parse("*/15 * * * *", "Europe/Madrid").unwrap());
    for (name, timing, begin, end) in [("test.a", a, begins[0], ends[0]), ("test.b", b, begins[1], ends[1])] {
        let expected: Vec<_> = timing.between(begin, end, 1_000).into_iter().map(micros).collect();
        assert!(expected.len() >= 10, "{name}: {}", expected.len());
        assert_eq!(ticks(&harness, name).await, expected, "{name}");
    }
    assert_eq!(i64::try_from(jobs).unwrap(), rows(&harness, "ticks").await);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn two_schedulers_at_once_make_one_job_of_each_tick() {
    race(2).await;
}

#[tokio::test]
async fn eight_schedulers_at_once_make_one_job_of_each_tick() {
    race(8).await;
}

#[tokio::test]
async fn processes_that_dispatch_make_jobs_by_themselves_and_follow_the_clock() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let mut running = Vec::new();
    for _ in 0..3 {
        let sf = process(&harness, &clock).await;
        sf.handler::<Digest>().run(async |tx: &mut Tx<Db>, _: Digest| {
            let insert = sqlx::query("INSERT INTO effects (tag) VALUES ('digest')");
            insert.execute(tx.db()).await?;
            Ok::<(), Failure>(())
        });
        sf.schedule("test.daily")
            .cron("0 9 * * *", "Europe/Madrid")
            .job(&digest());
        let dispatching = tokio::spawn({
            let sf = sf.clone();
            async move { sf.dispatch().await }
        });
        running.push((sf, dispatching));
    }
    eventually("it is declared", async || rows(&harness, "schedules").await == 1).await;
    for day in 1..=3 {
        clock.set_offset(DAY * day);
        eventually("the job of the day is done", async || {
            harness.effects().await == i64::from(day)
        })
        .await;
    }
    for (sf, _) in &running {
        sf.stop();
    }
    for (_, dispatching) in running {
        dispatching.await.unwrap().unwrap();
    }
    assert_eq!(harness.effects().await, 3);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn a_schedule_that_is_made_at_run_time_is_due_at_once_where_it_was_made() {
    let harness = fresh::<Db>().await;
    let sf = harness.sf.clone();
    let dispatching = tokio::spawn({
        let sf = sf.clone();
        async move { sf.dispatch().await }
    });
    // The loop has looked, and would look again in three quarters of a minute.
    sf.schedules()
        .make("test.often")
        .every("1s")
        .job(&digest())
        .await
        .unwrap();
    eventually("jobs are made", async || rows(&harness, "ticks").await >= 2).await;
    sf.schedules().remove("test.often", "ann", "seen enough").await.unwrap();
    let made = rows(&harness, "ticks").await;
    sf.stop();
    dispatching.await.unwrap().unwrap();
    assert!(
        rows(&harness, "ticks").await <= made + 1,
        "none is made of what was removed"
    );
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn after_an_outage_each_policy_makes_what_it_says() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    let policies = [Missed::Skip, Missed::Last, Missed::All];
    let declare = |sf: &Steadfast<Db>| {
        for missed in policies {
            sf.schedule(&format!("test.{}", missed.as_str()))
                .every("1h")
                .missed(missed)
                .job(&digest());
        }
    };
    declare(&sf);
    sf.tick().await.unwrap();
    let begin = handled(&sf, "test.all").await;

    // Everybody is away for ten hours and a quarter of an hour; the last full hour may lie any time before that, but the grace period.
    let into_the_hour = Duration::from_micros(u64::try_from(micros(begin) % 3_600_000_000).unwrap());
    let away = HOUR * 10 + HOUR / 4 - into_the_hour + HOUR;
    clock.set_offset(away);
    let sf = process(&harness, &clock).await;
    declare(&sf);
    assert_eq!(sf.tick().await.unwrap(), 1 + 11);
    let made = [
        ticks(&harness, "test.skip").await.len(),
        ticks(&harness, "test.last").await.len(),
        ticks(&harness, "test.all").await.len(),
    ];
    assert_eq!(made, [0, 1, 11]);
    let all = ticks(&harness, "test.all").await;
    assert_eq!(
        ticks(&harness, "test.last").await.last(),
        all.last(),
        "it was the last one"
    );

    // What is on time is made whatever the policy is.
    clock.set_offset(away + HOUR * 3 / 4 + Duration::from_secs(30));
    assert_eq!(sf.tick().await.unwrap(), 3);
    assert_eq!(sf.tick().await.unwrap(), 0);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn more_ticks_than_a_transaction_makes_are_made_up_for_all_the_same() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.schedule("test.minutes")
        .every("1m")
        .missed(Missed::All)
        .job(&digest());
    sf.tick().await.unwrap();
    clock.set_offset(HOUR * 6);
    let made = sf.tick().await.unwrap();
    assert!((359..=361).contains(&made), "{made}");
    let ticks = ticks(&harness, "test.minutes").await;
    assert!(
        ticks.windows(2).all(|pair| pair[1] - pair[0] == 60_000_000),
        "without a gap"
    );
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn over_400_days_with_their_clock_changes_no_tick_is_lost_or_doubled() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    // Times of day that are skipped in spring and come twice in autumn, on both halves of the earth, and a rhythm.
    let schedules = [
        ("test.madrid", "30 2 * * *", "Europe/Madrid"),
        ("test.new_york", "15 1,2 * * *", "America/New_York"),
        ("test.lord_howe", "0 2 * * *", "Australia/Lord_Howe"),
        ("test.rhythm", "0 * * * *", "Europe/Madrid"),
    ];
    for (name, expression, zone) in schedules {
        sf.schedule(name)
            .cron(expression, zone)
            .missed(Missed::All)
            .job(&digest());
    }
    sf.declare().await.unwrap();
    let mut begins = Vec::new();
    for (name, ..) in schedules {
        begins.push(handled(&sf, name).await);
    }
    // Not by whole days, so that every hour of the day is a moment at which somebody looks; and now and then it goes back.
    let mut offset = Duration::ZERO;
    let mut step = 0_u32;
    while offset < DAY * 400 {
        offset += HOUR * 53;
        clock.set_offset(offset);
        sf.tick().await.unwrap();
        step += 1;
        if step.is_multiple_of(7) {
            clock.set_offset(offset - HOUR);
            assert_eq!(
                sf.tick().await.unwrap(),
                0,
                "a clock that is set back makes nothing due again"
            );
        }
    }
    for ((name, expression, zone), begin) in schedules.into_iter().zip(begins) {
        let timing = Timing::from(Cron::parse(expression, zone).unwrap());
        let expected = timing.between(begin, handled(&sf, name).await, 20_000);
        let expected: Vec<_> = expected.into_iter().map(micros).collect();
        assert!(expected.len() >= 400, "{name}: {}", expected.len());
        assert_eq!(ticks(&harness, name).await, expected, "{name}");
    }
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn a_clock_that_is_set_by_an_hour_doubles_and_loses_nothing() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.schedule("test.a").every("20m").missed(Missed::All).job(&digest());
    sf.tick().await.unwrap();
    let begin = handled(&sf, "test.a").await;
    for hours in [1, 2, 1, 2, 3, 2, 1, 4, 3, 5] {
        clock.set_offset(HOUR * hours);
        sf.tick().await.unwrap();
    }
    let every = steadfast::Every::new("20m").unwrap();
    let expected = every.between(begin, handled(&sf, "test.a").await, 100);
    let expected: Vec<_> = expected.into_iter().map(micros).collect();
    assert_eq!(expected.len(), 15);
    assert_eq!(ticks(&harness, "test.a").await, expected);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn no_job_is_made_while_that_of_the_tick_before_is_to_do_unless_they_may_overlap() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.handler::<Digest>()
        .run(async |_: &mut Tx<Db>, _: Digest| Ok::<(), Failure>(()));
    sf.schedule("test.skip")
        .every("1h")
        .overlap(Overlap::Skip)
        .missed(Missed::All)
        .job(&digest());
    sf.schedule("test.allow").every("1h").missed(Missed::All).job(&digest());
    sf.tick().await.unwrap();
    let made = async |name: &str| ticks(&harness, name).await.len();
    for hours in 1..=3 {
        clock.set_offset(HOUR * hours);
        sf.tick().await.unwrap();
    }
    assert_eq!((made("test.skip").await, made("test.allow").await), (1, 3));
    sf.drain().await.unwrap();
    clock.set_offset(HOUR * 4);
    sf.tick().await.unwrap();
    assert_eq!(
        (made("test.skip").await, made("test.allow").await),
        (2, 4),
        "it is done"
    );

    // Several ticks at once are in each other's way, too.
    sf.drain().await.unwrap();
    clock.set_offset(HOUR * 9);
    sf.tick().await.unwrap();
    assert_eq!((made("test.skip").await, made("test.allow").await), (3, 9));

    // What is dead is nobody's to do.
    harness
        .run(&format!("UPDATE {} SET state = 'dead'", Db::table("queue")))
        .await;
    clock.set_offset(HOUR * 10);
    sf.tick().await.unwrap();
    assert_eq!((made("test.skip").await, made("test.allow").await), (4, 10));
}

/// What was asked for.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Asked {
    fn asked(&self, statement: &'static str) {
        self.0.lock().unwrap().push(statement);
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_reported_and_is_in_nobodys_way() {
    let harness = fresh::<Db>().await;
    let (clock, asked) = (Clock::default(), Asked::default());
    let pool = Db::another_pool(&harness, PoolSize::default());
    let builder = Steadfast::builder(pool).clock(clock.clone()).observer(asked.clone());
    let sf = builder.build().await.unwrap();
    for name in [
        "test.a",
        "test.interval",
        "test.missed",
        "test.overlap",
        "test.zone",
        "test.z",
    ] {
        let schedule = sf.schedules().make(name).cron("0 * * * *", "Europe/Madrid");
        schedule.job(&digest()).await.unwrap();
    }
    // As a newer version might write them, or an administrator.
    for (name, change) in [
        ("test.interval", "timing = 'on full moon', time_zone = NULL"),
        ("test.missed", "missed = 'some'"),
        ("test.overlap", "overlap = 'replace'"),
        ("test.zone", "time_zone = 'Mars/Olympus'"),
    ] {
        let table = Db::table("schedules");
        harness
            .run(&format!("UPDATE {table} SET {change} WHERE name = '{name}'"))
            .await;
    }
    clock.set_offset(HOUR);
    assert_eq!(sf.tick().await.unwrap(), 2, "the two that can be read");
    let schedules = sf.schedules().list().await.unwrap();
    let troubles: Vec<_> = schedules
        .iter()
        .filter_map(|schedule| Some((&*schedule.name, schedule.trouble.as_deref()?)))
        .collect();
    for (place, (name, says)) in [
        ("test.interval", "on full moon"),
        ("test.missed", "some"),
        ("test.overlap", "replace"),
        ("test.zone", "Mars/Olympus"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(troubles[place].0, name);
        assert!(troubles[place].1.contains(says), "{}", troubles[place].1);
    }
    assert!(schedules[1].next_runs(3).is_empty(), "nobody knows when it is due");
    let error = sf
        .schedules()
        .backfill("test.zone", SystemTime::now(), SystemTime::now());
    assert!(error.preview().await.unwrap_err().to_string().contains("Mars/Olympus"));

    // They are due for ever, and nobody looks for that.
    asked.0.lock().unwrap().clear();
    let dispatching = tokio::spawn({
        let sf = sf.clone();
        async move { sf.dispatch().await }
    });
    clock.set_offset(HOUR * 2);
    eventually("the others are made", async || rows(&harness, "ticks").await == 4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    sf.stop();
    dispatching.await.unwrap().unwrap();
    let looks = asked
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|asked| **asked == "look at schedules")
        .count();
    assert!(looks <= 4, "{looks} looks");
}

#[tokio::test]
async fn the_doctor_tells_of_schedules_that_are_late_or_cannot_be_read() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    let examined = async || {
        let pool = Db::another_pool(&harness, PoolSize::default());
        let checks = Steadfast::builder(pool).clock(clock.clone()).examine().await;
        let check = checks.into_iter().find(|check| check.name == "schedules");
        check.expect("schedules are looked at")
    };
    for name in ["test.hourly", "test.paused"] {
        sf.schedules().make(name).every("1h").job(&digest()).await.unwrap();
    }
    sf.schedules().pause("test.paused", "ana", "not now").await.unwrap();
    assert_eq!(examined().await.verdict, Verdict::Ok);

    clock.set_offset(HOUR * 2);
    let late = examined().await;
    assert_eq!(late.verdict, Verdict::Warn);
    assert!(late.found.contains("test.hourly (for "), "{}", late.found);
    assert!(!late.found.contains("test.paused"), "{}", late.found);
    sf.tick().await.unwrap();
    assert_eq!(examined().await.verdict, Verdict::Ok);

    let table = Db::table("schedules");
    let change = format!("UPDATE {table} SET timing = 'on full moon' WHERE name = 'test.hourly'");
    harness.run(&change).await;
    let unreadable = examined().await;
    assert_eq!(unreadable.verdict, Verdict::Warn);
    let says = unreadable.found.contains("test.hourly (") && unreadable.found.contains("on full moon");
    assert!(says, "{}", unreadable.found);
    assert!(unreadable.fix.is_some());
}

#[tokio::test]
async fn a_schedule_whose_jobs_cannot_be_written_holds_up_no_other() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    for name in ["test.a", "test.b", "test.c"] {
        sf.schedules().make(name).every("1h").job(&digest()).await.unwrap();
    }
    let bytes = if Db::IS_SQLITE { "x'ff'" } else { "'\\xff'" };
    let table = Db::table("schedules");
    harness
        .run(&format!("UPDATE {table} SET payload = {bytes} WHERE name = 'test.b'"))
        .await;
    clock.set_offset(HOUR);
    let error = sf.tick().await.unwrap_err();
    assert!(error.to_string().contains("test.b"), "{error}");
    assert_eq!(
        ticks(&harness, "test.a").await.len() + ticks(&harness, "test.c").await.len(),
        2
    );
    assert_eq!(ticks(&harness, "test.b").await.len(), 0);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn ticks_are_purged_when_nobody_can_make_up_for_them_any_more() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.schedules()
        .make("test.daily")
        .every("24h")
        .missed(Missed::All)
        .job(&digest())
        .await
        .unwrap();
    clock.set_offset(DAY * 100);
    assert_eq!(sf.tick().await.unwrap(), 100);
    let expired = sf.count_expired(|_| ()).await.unwrap();
    assert!((9..=10).contains(&expired.ticks), "{expired:?}");
    sf.purge().await.unwrap();
    assert_eq!(
        rows(&harness, "ticks").await,
        100 - i64::try_from(expired.ticks).unwrap()
    );
    assert_eq!(sf.tick().await.unwrap(), 0, "what is purged does not come back");
}
