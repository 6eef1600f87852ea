//! Schedules, for those who look after them: declared, made, changed, paused, triggered, made up for and removed.

use std::time::{Duration, SystemTime};

use steadfast::{Clock, Code, Missed, Overlap, ScheduleSource, Steadfast, Tx};

use super::Db;
use super::queue::rows;
use super::schedules::{Digest, assert_one_job_each, digest, micros, process, ticks};
use crate::harness::{TestDatabase, fresh};

const HOUR: Duration = Duration::from_secs(60 * 60);

async fn look(sf: &Steadfast<Db>, name: &str) -> steadfast::ListedSchedule {
    let looked = sf.schedules().look(name).await.unwrap();
    looked.expect("it is there").schedule
}

/// Who did what to what.
async fn audited(harness: &crate::harness::Harness<Db>, action: &str) -> i64 {
    let table = Db::table("audit");
    let query =
        format!("SELECT count(*) FROM {table} WHERE action = '{action}' AND actor = 'ann' AND reason = 'why not'");
    Db::count(&harness.admin, &query).await
}

#[tokio::test]
async fn declaring_again_changes_what_the_program_says_and_nothing_else() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.schedule("test.a").every("1h").job(&digest());
    sf.declare().await.unwrap();
    clock.set_offset(HOUR);
    assert_eq!(sf.tick().await.unwrap(), 1);
    sf.schedules().pause("test.a", "ann", "why not").await.unwrap();
    let first = look(&sf, "test.a").await;
    assert_eq!(first.source, ScheduleSource::Declared);
    assert_eq!(
        (first.missed, first.overlap),
        (Some(Missed::Last), Some(Overlap::Allow))
    );

    // The same again, as after a restart.
    clock.set_offset(HOUR * 2);
    let sf = process(&harness, &clock).await;
    sf.schedule("test.a").every("1h").job(&digest());
    sf.declare().await.unwrap();
    let second = look(&sf, "test.a").await;
    assert_eq!((second.handled, second.changed_at), (first.handled, first.changed_at));
    assert_eq!((second.paused, second.last_job), (first.paused, first.last_job));

    // Another policy and another job: how far it has come stays.
    let sf = process(&harness, &clock).await;
    let other = Digest { of: "payments".into() };
    sf.schedule("test.a")
        .every("1h")
        .missed(Missed::All)
        .overlap(Overlap::Skip)
        .job(&other);
    sf.declare().await.unwrap();
    let third = look(&sf, "test.a").await;
    assert_eq!((third.missed, third.overlap), (Some(Missed::All), Some(Overlap::Skip)));
    assert_eq!((third.handled, third.created_at), (first.handled, first.created_at));
    assert!(third.changed_at > first.changed_at && third.paused.is_some());

    // Another timing takes effect from now on: what it would have been due for before is not made.
    let sf = process(&harness, &clock).await;
    sf.schedule("test.a").every("1m").missed(Missed::All).job(&other);
    sf.declare().await.unwrap();
    let fourth = look(&sf, "test.a").await;
    assert!(fourth.handled > first.handled && fourth.paused.is_some());
    sf.schedules().resume("test.a", "ann", "why not").await.unwrap();
    assert!(
        sf.tick().await.unwrap() <= 1,
        "the clock may have passed a minute meanwhile"
    );
    assert_eq!(audited(&harness, "schedule.pause").await, 1);
    assert_eq!(audited(&harness, "schedule.resume").await, 1);
}

#[tokio::test]
async fn two_schedules_of_one_name_and_what_cannot_be_read_are_mistakes_of_the_program() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    let refused = |declare: &dyn Fn()| {
        let declare = std::panic::AssertUnwindSafe(declare);
        let panic = std::panic::catch_unwind(declare).expect_err("it is refused");
        panic.downcast_ref::<String>().expect("a message").clone()
    };
    sf.schedule("test.a").every("1h").job(&digest());
    for (declare, says) in [
        (
            &(|| sf.schedule("test.a").every("1h").job(&digest())) as &dyn Fn(),
            "SF305",
        ),
        (&|| sf.schedule("test.b").job(&digest()), "does not say when it is due"),
        (
            &|| sf.schedule("test.b").every("soon").job(&digest()),
            "\"soon\" is not a duration",
        ),
        (&|| sf.schedule("test.b").cron("61 * * * *", "UTC").job(&digest()), "61"),
        (
            &|| sf.schedule("test.b").cron("0 9 * * *", "Madrid").job(&digest()),
            "Europe/Madrid",
        ),
        (
            &|| sf.schedule("Test B").every("1h").job(&digest()),
            "a schedule cannot be called",
        ),
    ] {
        let told = refused(declare);
        assert!(told.contains(says), "{told}");
    }
    let made = sf
        .schedules()
        .make("test.c")
        .cron("0 9 30 2 *", "UTC")
        .job(&digest())
        .await;
    assert_eq!(made.unwrap_err().code(), Code::ConfigurationInvalid);
    assert_eq!(rows(&harness, "schedules").await, 0);
}

#[tokio::test]
async fn a_schedule_that_was_made_outlives_its_process_and_is_changed_and_removed_at_run_time() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.schedules()
        .make("tenant-42.report")
        .every("1h")
        .job(&digest())
        .await
        .unwrap();
    clock.set_offset(HOUR);

    let other = process(&harness, &clock).await;
    assert_eq!(other.tick().await.unwrap(), 1, "whoever looks makes it");
    assert_eq!(look(&other, "tenant-42.report").await.source, ScheduleSource::Made);
    other
        .schedules()
        .make("tenant-42.report")
        .every("2h")
        .job(&digest())
        .await
        .unwrap();
    assert_eq!(look(&sf, "tenant-42.report").await.written, "every 2h");

    // A program that declares it takes it over; from then on it is the program's.
    other.schedule("tenant-42.report").every("3h").job(&digest());
    other.declare().await.unwrap();
    let made = sf.schedules().make("tenant-42.report").every("1h").job(&digest()).await;
    assert_eq!(made.unwrap_err().code(), Code::Conflict);

    sf.schedules()
        .remove("tenant-42.report", "ann", "why not")
        .await
        .unwrap();
    assert!(sf.schedules().look("tenant-42.report").await.unwrap().is_none());
    assert_eq!(audited(&harness, "schedule.remove").await, 1);
    let again = sf.schedules().remove("tenant-42.report", "ann", "why not").await;
    assert_eq!(again.unwrap_err().code(), Code::InputInvalid);

    // Made anew at the same moment, it does not make again what was made.
    sf.schedules()
        .make("tenant-42.report")
        .every("1h")
        .job(&digest())
        .await
        .unwrap();
    sf.tick().await.unwrap();
    assert_eq!(ticks(&harness, "tenant-42.report").await.len(), 1);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn a_paused_schedule_makes_nothing_and_then_what_its_policy_says() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    for missed in Missed::ALL {
        let name = format!("test.{}", missed.as_str());
        sf.schedules()
            .make(&name)
            .every("1h")
            .missed(missed)
            .job(&digest())
            .await
            .unwrap();
        sf.schedules().pause(&name, "ann", "why not").await.unwrap();
    }
    let paused = look(&sf, "test.all").await;
    let since = paused.paused.expect("it is");
    assert_eq!((&*since.by, &*since.reason), ("ann", "why not"));
    let into_the_hour = u64::try_from(micros(paused.now) % 3_600_000_000).unwrap();
    clock.set_offset(HOUR * 6 + HOUR / 2 - Duration::from_micros(into_the_hour));
    assert_eq!(sf.tick().await.unwrap(), 0);
    for missed in Missed::ALL {
        let name = format!("test.{}", missed.as_str());
        sf.schedules().resume(&name, "ann", "why not").await.unwrap();
    }
    assert_eq!(sf.tick().await.unwrap(), 1 + 6);
    assert_eq!(ticks(&harness, "test.skip").await.len(), 0);
    assert_eq!(ticks(&harness, "test.last").await.len(), 1);
    let unknown = sf.schedules().pause("test.lost", "ann", "why not").await.unwrap_err();
    assert!(unknown.to_string().contains("did you mean `test.last`?"), "{unknown}");
}

#[tokio::test]
async fn a_triggered_job_stands_beside_the_ticks() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    let schedule = sf.schedules().make("test.a").every("1h").overlap(Overlap::Skip);
    schedule.job(&digest()).await.unwrap();
    sf.schedules().pause("test.a", "ann", "why not").await.unwrap();
    let before = look(&sf, "test.a").await;
    let id = sf.schedules().trigger("test.a", "ann", "why not").await.unwrap();
    let job = sf.job(id).look().await.unwrap().expect("it was made");
    assert_eq!(job.causation_id.as_deref(), Some("schedule:test.a"));
    let after = look(&sf, "test.a").await;
    assert_eq!((after.handled, after.last_job), (before.handled, None));
    sf.schedules().resume("test.a", "ann", "why not").await.unwrap();
    clock.set_offset(HOUR);
    assert_eq!(sf.tick().await.unwrap(), 1, "no tick waits for it");
    assert_eq!(
        (rows(&harness, "ticks").await, rows(&harness, "messages").await),
        (1, 2)
    );
    assert_eq!(audited(&harness, "schedule.trigger").await, 1);
    let unknown = sf.schedules().trigger("test.b", "ann", "why not").await;
    assert_eq!(unknown.unwrap_err().code(), Code::InputInvalid);
}

#[tokio::test]
async fn what_was_missed_is_made_up_for_by_hand_and_nothing_twice() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    let schedule = sf.schedules().make("test.a").every("1h").missed(Missed::Last);
    schedule.job(&digest()).await.unwrap();
    let begin = look(&sf, "test.a").await.handled;
    let into_the_hour = u64::try_from(micros(begin) % 3_600_000_000).unwrap();
    clock.set_offset(HOUR * 10 + HOUR / 2 - Duration::from_micros(into_the_hour));
    assert_eq!(sf.tick().await.unwrap(), 1, "the last one, for all ten");

    let now = look(&sf, "test.a").await.now;
    let backfill = sf.schedules().backfill("test.a", begin, now);
    let preview = backfill.preview().await.unwrap();
    assert_eq!(preview.len(), 10);
    assert_eq!(preview.iter().filter(|tick| tick.job.is_some()).count(), 1);
    assert!(preview[9].job.is_some(), "that of the last tick");
    assert_eq!(rows(&harness, "messages").await, 1, "nothing was made");

    let made = backfill.run("ann", "why not").await.unwrap();
    assert_eq!(made.len(), 9);
    assert_eq!(backfill.run("ann", "why not").await.unwrap(), [], "nothing is left");
    assert!(backfill.preview().await.unwrap().iter().all(|tick| tick.job.is_some()));
    assert_eq!(audited(&harness, "schedule.backfill").await, 2);
    assert_eq!(ticks(&harness, "test.a").await.len(), 10);
    assert_one_job_each(&harness).await;

    // What was made up for by hand before its time was dealt with has no second job.
    sf.schedules().pause("test.a", "ann", "why not").await.unwrap();
    clock.set_offset(clock.offset() + HOUR * 2);
    let now = look(&sf, "test.a").await.now;
    let backfill = sf.schedules().backfill("test.a", now - HOUR * 2, now);
    assert_eq!(backfill.run("ann", "why not").await.unwrap().len(), 2);
    sf.schedules().resume("test.a", "ann", "why not").await.unwrap();
    assert_eq!(sf.tick().await.unwrap(), 0);
    assert_eq!(ticks(&harness, "test.a").await.len(), 12);
    assert_one_job_each(&harness).await;
}

#[tokio::test]
async fn a_stretch_that_cannot_be_made_up_for_is_refused_with_what_can() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    sf.schedules().make("test.a").every("1m").job(&digest()).await.unwrap();
    let now = SystemTime::now();
    let day = HOUR * 24;
    for (name, from, until, says) in [
        ("test.a", now, now - HOUR, "ends before it begins"),
        ("test.a", now, now + HOUR, "ends in the future"),
        ("test.a", now - day * 91, now - day * 90, "had a job"),
        ("test.a", now - day, now, "more than 1000 ticks"),
        ("test.b", now - HOUR, now, "did you mean `test.a`?"),
    ] {
        let backfill = sf.schedules().backfill(name, from, until);
        for error in [
            backfill.preview().await.unwrap_err(),
            backfill.run("ann", "why not").await.unwrap_err(),
        ] {
            assert_eq!(error.code(), Code::InputInvalid);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    assert_eq!(rows(&harness, "messages").await, 0);
}

#[tokio::test]
async fn a_tick_that_somebody_made_up_for_keeps_no_later_one_from_its_job() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock).await;
    sf.handler::<Digest>().run(async |_: &mut Tx<Db>, _: Digest| Ok(()));
    let schedule = sf.schedules().make("test.a").every("1h").missed(Missed::All);
    schedule.overlap(Overlap::Skip).job(&digest()).await.unwrap();
    let begin = look(&sf, "test.a").await.handled;
    sf.schedules().pause("test.a", "ann", "why not").await.unwrap();
    clock.set_offset(HOUR * 4);
    let now = look(&sf, "test.a").await.now;
    let made = sf
        .schedules()
        .backfill("test.a", begin, now)
        .run("ann", "why not")
        .await
        .unwrap();
    assert!(made.len() >= 3, "{made:?}");
    sf.drain().await.unwrap();
    sf.schedules().resume("test.a", "ann", "why not").await.unwrap();

    clock.set_offset(HOUR * 5);
    assert_eq!(
        sf.tick().await.unwrap(),
        1,
        "the one that had none, though it is the last of many"
    );
    assert_eq!(ticks(&harness, "test.a").await.len(), made.len() + 1);
    assert_one_job_each(&harness).await;
}
