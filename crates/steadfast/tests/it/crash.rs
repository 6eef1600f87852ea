//! Crashes everywhere: whatever a process was doing when it died, the client retries, and there is one effect with its
//! key and one answer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use http_body_util::BodyExt;
use steadfast::testing::{CrashFailures, Harness, TestDatabase};
use steadfast::{CmdTx, Code, Error, Failure, FailureClass, Steadfast, StoreFailures, sqlx};
use tower::ServiceExt;

/// How many points a scenario has. The corridor decides: when it sends other statements, these change with it.
struct Points {
    sqlite: usize,
    postgres: usize,
}

const TWO_STATEMENTS: Points = points(8, 7);
const KEPT_FAILURE: Points = points(9, 8);
const REPLAY: Points = points(1, 1);
const TRANSACT: Points = points(7, 7);
const ONE_STATEMENT: Points = points(7, 6);
const TWO_COMMANDS: Points = points(14, 12);

const fn points(sqlite: usize, postgres: usize) -> Points {
    Points { sqlite, postgres }
}

impl Points {
    fn of<Db: TestDatabase>(self) -> usize {
        match Db::NAME {
            "SQLite" => self.sqlite,
            _ => self.postgres,
        }
    }
}

/// One row for each effect; `nonce` tells executions apart. `outcomes` is for the corridors that are broken on purpose.
const TABLES: &str = "
    CREATE TABLE effects (tag TEXT NOT NULL, nonce TEXT NOT NULL);
    CREATE TABLE outcomes (tag TEXT NOT NULL PRIMARY KEY, nonce TEXT)";

fn nonce() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Leaves one effect behind and answers with its nonce.
macro_rules! act {
    ($tx:expr, $tag:expr) => {{
        let nonce = nonce();
        sqlx::query("INSERT INTO effects (tag, nonce) VALUES ($1, $2)")
            .bind($tag)
            .bind(&nonce)
            .execute($tx.db())
            .await?;
        Ok::<_, Failure>(nonce)
    }};
}

/// The command that the tests below run.
macro_rules! make {
    ($t:expr, $key:expr) => {
        $t.sf()
            .command("effects.make", $key)
            .owner($t.owner())
            .run(async |tx| act!(tx, $key))
    };
}

/// One effect, and its nonce is the answer.
async fn assert_one_effect<Db: TestDatabase>(t: &Harness<Db>, tag: &str, answer: &str) {
    t.assert_count(&format!("SELECT count(*) FROM effects WHERE tag = '{tag}'"), 1)
        .await;
    let query = format!("SELECT count(*) FROM effects WHERE tag = '{tag}' AND nonce = '{answer}'");
    t.assert_count(&query, 1).await;
    t.assert_completed("effects.make", tag).await;
}

#[steadfast::test(sqlite, postgres)]
async fn a_command_that_crashes_anywhere_has_one_effect_and_one_answer_after_the_retry(t: Harness<Db>) {
    async fn make(t: &Harness<Db>) -> Result<String, Error> {
        let command = t.sf().command("effects.make", "k").owner(t.owner());
        // Not repeated, so that a lost reply must be resolved where it is lost.
        let made = command.run_once(async |tx| {
            // Two statements, so that there is a point between them.
            sqlx::query("INSERT INTO outcomes (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            act!(tx, "k")
        });
        Ok(made.await?.value)
    }
    t.prepare(TABLES).await;
    let answers = AtomicUsize::new(0);
    let report = t
        .crash_everywhere(
            async |t| make(t).await,
            async |t, told| {
                answers.fetch_add(told.iter().len(), Ordering::Relaxed);
                let answer = make(t).await.unwrap();
                assert!(told.is_none_or(|told| told == answer), "one answer");
                assert_one_effect(t, "k", &answer).await;
                t.assert_count("outcomes", 1).await;
                t.assert_keys(1).await;
            },
        )
        .await;
    assert_eq!(report.points(), TWO_STATEMENTS.of::<Db>(), "{report}");
    assert_eq!(
        answers.into_inner(),
        2,
        "told without a crash, and after the lost reply"
    );
    let names = report.names();
    assert_eq!(names.iter().filter(|name| *name == "before `tx.db()`").count(), 2);
    assert!(names.ends_with(&[
        "before `settle the key`".to_owned(),
        "before `commit`".to_owned(),
        "COMMIT applied, its reply lost".to_owned(),
        "after COMMIT".to_owned(),
    ]));
}

#[steadfast::test(sqlite, postgres)]
async fn a_kept_failure_that_crashes_anywhere_is_kept_once_and_leaves_nothing_else(t: Harness<Db>) {
    async fn refuse(t: &Harness<Db>) -> Result<String, Error> {
        let command = t.sf().command("effects.refuse", "k").owner(t.owner());
        let command = command.store_failures(StoreFailures::Definitive);
        let refused = command.run(async |tx| {
            let nonce = act!(tx, "k")?;
            let failure = Failure::definitive(FailureClass::BusinessRule, "out_of_stock", nonce);
            Err::<(), _>(failure)
        });
        let error = refused.await.expect_err("it is refused");
        let failure = error.failure().map(|failure| failure.message().to_owned());
        failure.ok_or(error)
    }
    t.prepare(TABLES).await;
    let report = t
        .crash_everywhere(
            async |t| refuse(t).await,
            async |t, told| {
                let answer = refuse(t).await.unwrap();
                assert!(told.is_none_or(|told| told == answer), "one answer");
                assert_eq!(refuse(t).await.unwrap(), answer, "it is kept");
                t.assert_count("effects", 0).await;
                t.assert_keys(1).await;
            },
        )
        .await;
    assert_eq!(report.points(), KEPT_FAILURE.of::<Db>(), "{report}");
}

#[steadfast::test(sqlite, postgres)]
async fn a_replay_that_crashes_anywhere_leaves_everything_as_it_was(t: Harness<Db>) {
    t.prepare(TABLES).await;
    let first = Mutex::new(String::new());
    let report = t
        .given(async |t| *first.lock().unwrap() = make!(t, "k").await.unwrap().value)
        .crash_everywhere(
            async |t| make!(t, "k").await,
            async |t, told| {
                let first = first.lock().unwrap().clone();
                let retried = make!(t, "k").await.unwrap();
                assert!(retried.replayed && told.is_none_or(|told| told.replayed && told.value == first));
                assert_eq!(retried.value, first);
                assert_one_effect(t, "k", &first).await;
            },
        )
        .await;
    assert_eq!(report.points(), REPLAY.of::<Db>(), "{report}");
}

#[steadfast::test(sqlite, postgres)]
async fn a_transaction_without_a_key_that_crashes_anywhere_is_whole_or_not_there(t: Harness<Db>) {
    t.prepare(TABLES).await;
    let report = t
        .crash_everywhere(
            async |t| {
                let made = t.sf().transact(async |tx| {
                    act!(tx, "k")?;
                    act!(tx, "k")
                });
                let made = made.await;
                if let Err(error) = &made {
                    assert_eq!(error.code(), Code::CommitUnknown, "nobody can know");
                }
                made
            },
            async |t, told| {
                let effects = t.count("effects").await;
                assert!(effects == 2 || (effects == 0 && told.is_none()), "{effects} effects");
                t.assert_keys(0).await;
            },
        )
        .await;
    assert_eq!(report.points(), TRANSACT.of::<Db>(), "{report}");
}

#[steadfast::test(sqlite, postgres)]
async fn a_request_that_crashes_anywhere_has_one_effect_and_one_answer_after_the_retry(t: Harness<Db>) {
    async fn handler(mut tx: CmdTx<Db>) -> Result<(StatusCode, String), Failure> {
        Ok((StatusCode::CREATED, act!(tx, "k")?))
    }
    async fn request(t: &Harness<Db>) -> Result<(StatusCode, String), StatusCode> {
        let handler = post(handler).route_layer(t.sf().idempotent().operation("effects.make"));
        let app = Router::new()
            .route("/effects", handler)
            .layer(Extension(t.owner().clone()));
        let request = Request::post("/effects").header("Idempotency-Key", "k");
        let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        match status.is_success() {
            true => Ok((status, String::from_utf8(body.to_vec()).unwrap())),
            false => Err(status),
        }
    }
    t.prepare(TABLES).await;
    let report = t
        .crash_everywhere(
            async |t| request(t).await,
            async |t, told| {
                let answer = request(t).await.unwrap();
                assert_eq!(answer.0, StatusCode::CREATED);
                assert!(told.is_none_or(|told| told == answer), "one answer");
                assert_one_effect(t, "k", &answer.1).await;
            },
        )
        .await;
    assert_eq!(report.points(), ONE_STATEMENT.of::<Db>(), "{report}");
}

#[steadfast::test(sqlite, postgres)]
async fn two_commands_that_crash_anywhere_have_one_effect_each_after_the_retry(t: Harness<Db>) {
    t.prepare(TABLES).await;
    // What the client was told before the crash, since the second command may take the first one's answer with it.
    let told = Mutex::new(Vec::new());
    let both = async |t: &Harness<Db>| -> Result<(), Error> {
        for key in ["k1", "k2"] {
            let reply = make!(t, key).await?;
            told.lock().unwrap().push((key, reply.value));
        }
        Ok(())
    };
    let report = t
        .given(async |_| told.lock().unwrap().clear())
        .crash_everywhere(
            async |t| both(t).await,
            async |t, _| {
                both(t).await.unwrap();
                let told = told.lock().unwrap().clone();
                for (key, answer) in told {
                    assert_one_effect(t, key, &answer).await;
                }
                t.assert_count("effects", 2).await;
                t.assert_keys(2).await;
            },
        )
        .await;
    assert_eq!(report.points(), TWO_COMMANDS.of::<Db>(), "{report}");
}

// Corridors that are broken on purpose: crash_everywhere has to find each of them, and where.

const REPLY_LOST: &str = "COMMIT applied, its reply lost";

/// Fails unless something was wrong after each point from the first of one name to the last of another, and after no
/// other; and unless each failure names its point and says `what` was wrong.
fn assert_caught(caught: &CrashFailures, from: &str, to: &str, what: &str) {
    let names = caught.report().names();
    let first = names.iter().position(|name| name == from).expect(from);
    let last = names.iter().rposition(|name| name == to).expect(to);
    let wrong = caught
        .failures()
        .iter()
        .map(|failure| failure.point().unwrap().number());
    let expected: Vec<_> = (first + 1..=last + 1).collect();
    assert_eq!(wrong.collect::<Vec<_>>(), expected, "{caught}");
    for (failure, number) in caught.failures().iter().zip(expected) {
        let name = match names[number - 1].as_str() {
            REPLY_LOST => "the reply to an applied COMMIT lost".to_owned(),
            name => format!("crashed {name}"),
        };
        let message = format!("{name} (point {number} of {}): {what}", names.len());
        assert!(failure.to_string().starts_with(&message), "{failure}");
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_claim_that_is_committed_alone_is_caught(t: Harness<Db>) {
    /// Claims first, so that a duplicate is kept out while the handler runs; the claim of a dead process stays.
    async fn make(sf: &Steadfast<Db>) -> Result<String, Error> {
        let claimed = sf.transact(async |tx| {
            let insert = sqlx::query("INSERT INTO outcomes (tag) VALUES ('k') ON CONFLICT DO NOTHING");
            Ok(insert.execute(tx.db()).await?.rows_affected() == 1)
        });
        let is_mine = claimed.await?;
        sf.transact(async |tx| {
            if !is_mine {
                let stored = sqlx::query_scalar::<_, Option<String>>("SELECT nonce FROM outcomes WHERE tag = 'k'");
                let in_flight = || Failure::transient("in_flight", "somebody else does it");
                return stored.fetch_one(tx.db()).await?.ok_or_else(in_flight);
            }
            let nonce = act!(tx, "k")?;
            let store = sqlx::query("UPDATE outcomes SET nonce = $1 WHERE tag = 'k'").bind(&nonce);
            store.execute(tx.db()).await?;
            Ok(nonce)
        })
        .await
    }
    t.prepare(TABLES).await;
    let caught = t
        .try_crash_everywhere(
            async |t| make(t.sf()).await,
            async |t, _| {
                make(t.sf()).await.expect("the retry gets an answer");
                t.assert_count("effects", 1).await;
            },
        )
        .await
        .expect_err("it is caught");
    // From the moment the claim is durable until the effect is.
    assert_caught(&caught, REPLY_LOST, "before `commit`", "the retry gets an answer");
}

#[steadfast::test(sqlite, postgres)]
async fn an_outcome_that_is_stored_after_the_commit_is_caught(t: Harness<Db>) {
    async fn make(sf: &Steadfast<Db>) -> Result<String, Error> {
        let stored = sqlx::query_scalar("SELECT nonce FROM outcomes WHERE tag = 'k'").fetch_optional(sf.pool());
        if let Some(stored) = stored.await.expect("a look at the outcomes") {
            return Ok(stored);
        }
        let nonce = sf.transact(async |tx| act!(tx, "k")).await?;
        let store = sf.transact(async |tx| {
            sqlx::query("INSERT INTO outcomes (tag, nonce) VALUES ('k', $1)")
                .bind(&nonce)
                .execute(tx.db())
                .await?;
            Ok(())
        });
        store.await?;
        Ok(nonce)
    }
    t.prepare(TABLES).await;
    let caught = t
        .try_crash_everywhere(
            async |t| make(t.sf()).await,
            async |t, _| {
                make(t.sf()).await.unwrap();
                t.assert_count("effects", 1).await;
            },
        )
        .await
        .expect_err("it is caught");
    assert_caught(&caught, REPLY_LOST, "before `commit`", "effects: expected 1, found 2");
}

#[steadfast::test(sqlite, postgres)]
async fn a_lost_reply_that_is_taken_for_an_abort_is_caught(t: Harness<Db>) {
    /// Effect and outcome are one commit; but where that may have happened, it is simply done again.
    async fn make(sf: &Steadfast<Db>) -> Result<String, Error> {
        let stored = sqlx::query_scalar("SELECT nonce FROM outcomes WHERE tag = 'k'").fetch_optional(sf.pool());
        if let Some(stored) = stored.await.expect("a look at the outcomes") {
            return Ok(stored);
        }
        loop {
            let made = sf.transact(async |tx| {
                let nonce = act!(tx, "k")?;
                let store =
                    "INSERT INTO outcomes (tag, nonce) VALUES ('k', $1) ON CONFLICT (tag) DO UPDATE SET nonce = $1";
                sqlx::query(store).bind(&nonce).execute(tx.db()).await?;
                Ok(nonce)
            });
            match made.await {
                Err(error) if error.code() == Code::CommitUnknown => {}
                ended => return ended,
            }
        }
    }
    t.prepare(TABLES).await;
    let caught = t
        .try_crash_everywhere(
            async |t| make(t.sf()).await,
            async |t, told| {
                let answer = make(t.sf()).await.unwrap();
                assert!(told.is_none_or(|told| told == answer), "one answer");
                t.assert_count("effects", 1).await;
            },
        )
        .await
        .expect_err("it is caught");
    assert_caught(&caught, REPLY_LOST, REPLY_LOST, "effects: expected 1, found 2");
}

// And what the explorer itself says when a scenario is not one.

#[steadfast::test(sqlite, postgres)]
async fn a_scenario_that_fails_without_a_crash_is_told_so(t: Harness<Db>) {
    let then = async |_: &Harness<Db>, _: Option<()>| {};
    let failing = async |_: &Harness<Db>| Err("no stock");
    let failed = t.try_crash_everywhere(failing, then).await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "without a crash: the scenario failed: \"no stock\"\n0 points:\n"
    );
    let panicking = async |_: &Harness<Db>| -> Result<(), ()> { panic!("no stock") };
    let failed = t.try_crash_everywhere(panicking, then).await.unwrap_err();
    assert_eq!(failed.failures()[0].message(), "the scenario panicked: no stock");
    assert_eq!(failed.failures()[0].point(), None);
}

#[steadfast::test(sqlite, postgres)]
async fn a_scenario_that_is_not_the_same_in_every_run_is_told_so(t: Harness<Db>) {
    t.prepare(TABLES).await;
    let runs = Mutex::new(0);
    let failed = t
        .try_crash_everywhere(
            async |t| {
                let is_first = {
                    let mut runs = runs.lock().unwrap();
                    *runs += 1;
                    *runs == 1
                };
                t.sf()
                    .transact(async |tx| {
                        if is_first {
                            act!(tx, "k")?;
                        }
                        Ok(())
                    })
                    .await
            },
            async |_, _| {},
        )
        .await
        .unwrap_err();
    let first = failed.failures()[0].to_string();
    assert_eq!(
        first,
        "crashed before `tx.db()` (point 2 of 6): this point of the first run was not reached again: it came to `seal` \
         instead; a scenario must do the same in every run"
    );
}

#[steadfast::test(sqlite, postgres)]
async fn a_connection_that_outlives_the_crash_is_noticed(t: Harness<Db>) {
    let kept = Mutex::new(Vec::new());
    let failed = t
        .try_crash_everywhere(
            async |t| {
                let conn = t.pool().acquire().await?;
                kept.lock().unwrap().push(conn);
                Ok::<_, sqlx::Error>(())
            },
            async |_, _| {},
        )
        .await
        .unwrap_err();
    let message = failed.failures()[0].message();
    assert!(message.contains("has outlived the crash"), "{message}");
}

#[steadfast::test(sqlite, postgres)]
async fn nothing_of_a_process_runs_after_its_crash(t: Harness<Db>) {
    t.prepare(TABLES).await;
    let report = t
        .crash_everywhere(
            async |t| {
                let ended = std::panic::AssertUnwindSafe(make!(t, "k"));
                let ended = futures_util::FutureExt::catch_unwind(ended).await;
                if ended.is_err() {
                    // A client that survives the death of its own process, and would like to tell.
                    t.run("INSERT INTO outcomes (tag) VALUES ('undead')").await;
                }
                Ok::<_, Error>(())
            },
            async |t, _| {
                t.assert_count("SELECT count(*) FROM outcomes WHERE tag = 'undead'", 0)
                    .await;
            },
        )
        .await;
    assert_eq!(report.points(), ONE_STATEMENT.of::<Db>(), "{report}");
}
