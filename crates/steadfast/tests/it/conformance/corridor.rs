//! What a command promises, whatever door it came through. Written against plain Rust calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use steadfast::{
    Code, Error, Failure, FailureClass, FailureKind, FingerprintPolicy, Owner, Reply, Scope, Steadfast, StoreFailures,
    Tx,
};

use super::Db;
use crate::harness::{Harness, TestDatabase, eventually, fresh};

/// Leaves one effect behind and answers with a nonce that no other execution has.
async fn act(tx: &mut Tx<Db>, tag: &str) -> Result<String, Failure> {
    let nonce = uuid::Uuid::now_v7().to_string();
    sqlx::query("INSERT INTO effects (tag, nonce) VALUES ($1, $2)")
        .bind(tag)
        .bind(&nonce)
        .execute(tx.db())
        .await?;
    Ok(nonce)
}

async fn run(sf: &Steadfast<Db>, owner: &Owner, key: &str) -> Result<Reply<String>, Error> {
    sf.command("effects.make", key)
        .owner(owner)
        .input(&key)
        .run(async |tx| act(tx, key).await)
        .await
}

fn out_of_stock() -> Failure {
    Failure::definitive(FailureClass::BusinessRule, "out_of_stock", "nothing is left")
}

#[tokio::test]
async fn one_key_has_one_effect_however_often_it_is_asked_for() {
    let Harness { sf, owner, .. } = &fresh::<Db>().await;
    let first = run(sf, owner, "k").await.unwrap();
    assert!(!first.replayed);
    for _ in 0..10 {
        let again = run(sf, owner, "k").await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.value, first.value);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_duplicates_have_one_effect_and_one_answer() {
    let harness = Arc::new(fresh::<Db>().await);
    let others = [harness.sf.clone(), harness.another().await];
    let calls: Vec<_> = (0..60)
        .map(|i| {
            let (harness, sf) = (harness.clone(), others[i % 2].clone());
            tokio::spawn(async move { run(&sf, &harness.owner, "k").await })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Ok(reply) => answers.push(reply.value),
            Err(error) => assert_eq!(error.code(), Code::InFlight, "{error:?}"),
        }
    }
    answers.push(run(&harness.sf, &harness.owner, "k").await.unwrap().value);
    answers.dedup();
    assert_eq!(answers.len(), 1);
    assert_eq!(harness.effects().await, 1);
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn an_acknowledged_command_is_there_for_everybody_else() {
    let harness = fresh::<Db>().await;
    let value = run(&harness.sf, &harness.owner, "k").await.unwrap().value;
    harness.sf.pool().close().await;
    let reply = run(&harness.another().await, &harness.owner, "k").await.unwrap();
    assert!(reply.replayed);
    assert_eq!(reply.value, value);
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn an_effect_exists_exactly_where_its_key_does() {
    let harness = fresh::<Db>().await;
    for i in 0..30 {
        let key = format!("k{i}");
        let _ = harness
            .sf
            .command("effects.make", &key)
            .owner(&harness.owner)
            .run(async |tx| {
                let value = act(tx, &key).await?;
                match i % 3 {
                    0 => Ok(value),
                    1 => Err(out_of_stock()),
                    _ => Err(Failure::transient("later", "not now")),
                }
            })
            .await;
    }
    assert_eq!(harness.effects().await, 10);
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn a_key_reused_for_another_input_neither_runs_nor_replays() {
    let harness = fresh::<Db>().await;
    let ask = async |input: u32| {
        let command = harness
            .sf
            .command("effects.make", "k")
            .owner(&harness.owner)
            .input(&input);
        command.run(async |tx| act(tx, "k").await).await
    };
    ask(1).await.unwrap();
    let error = ask(2).await.unwrap_err();
    assert_eq!(error.code(), Code::Mismatch);
    assert!(!error.is_transient());
    assert_eq!(harness.effects().await, 1);
    assert!(ask(1).await.unwrap().replayed, "the first wish is still answered");
}

#[tokio::test]
async fn nobody_gets_an_answer_made_for_another() {
    let harness = fresh::<Db>().await;
    let mut answers = std::collections::HashMap::new();
    for round in 0..2 {
        for tenant in ["t1", "t2", "t3"] {
            for user in ["a", "b"] {
                for operation in ["one", "two"] {
                    for key in ["k1", "k2"] {
                        let owner = Owner::new(tenant, user);
                        let command = harness.sf.command(operation, key).owner(&owner);
                        let reply = command.run(async |tx| act(tx, "shared").await).await.unwrap();
                        assert_eq!(reply.replayed, round == 1);
                        let first = answers
                            .entry((tenant, user, operation, key))
                            .or_insert_with(|| reply.value.clone());
                        assert_eq!(*first, reply.value);
                    }
                }
            }
        }
    }
    let mut nonces: Vec<_> = answers.values().collect();
    nonces.sort();
    nonces.dedup();
    assert_eq!(nonces.len(), 24, "each owner and operation has an answer of its own");
}

#[tokio::test]
async fn tenant_and_global_scope_are_shared_on_purpose_only() {
    let harness = fresh::<Db>().await;
    let (a, b, c) = (Owner::new("t1", "a"), Owner::new("t1", "b"), Owner::new("t2", "c"));
    let ask = async |scope, owner: &Owner, key: &str| {
        let command = harness.sf.command("effects.make", key).scope(scope).owner(owner);
        command.run(async |tx| act(tx, "k").await).await.unwrap().replayed
    };
    assert!(!ask(Scope::Tenant, &a, "k").await);
    assert!(ask(Scope::Tenant, &b, "k").await, "one tenant, one key");
    assert!(!ask(Scope::Tenant, &c, "k").await, "another tenant, another key");
    assert!(!ask(Scope::Global, &a, "k").await);
    assert!(ask(Scope::Global, &c, "k").await, "one bucket for all");
}

#[tokio::test]
async fn a_failed_attempt_leaves_nothing_and_its_key_is_free() {
    let harness = fresh::<Db>().await;
    for failure in [Failure::transient("later", "not now"), out_of_stock()] {
        let expected = failure.kind();
        let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
        let error = command
            .run_once(async |tx| {
                act(tx, "k").await?;
                Err::<String, _>(failure)
            })
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::HandlerFailed);
        assert_eq!(error.failure().unwrap().kind(), expected);
        assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    }
    assert!(!run(&harness.sf, &harness.owner, "k").await.unwrap().replayed);
}

#[tokio::test]
async fn a_stored_failure_keeps_its_key_and_nothing_else() {
    let harness = fresh::<Db>().await;
    let runs = AtomicU32::new(0);
    let ask = async || {
        let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
        command
            .store_failures(StoreFailures::Definitive)
            .run(async |tx| {
                runs.fetch_add(1, Ordering::Relaxed);
                act(tx, "k").await?;
                Err::<String, _>(out_of_stock())
            })
            .await
            .unwrap_err()
    };
    let (first, again) = (ask().await, ask().await);
    assert!(!first.is_replayed() && again.is_replayed());
    for error in [first, again] {
        let failure = error.failure().unwrap();
        assert_eq!(failure.kind(), FailureKind::Definitive(FailureClass::BusinessRule));
        assert_eq!((failure.code(), failure.message()), ("out_of_stock", "nothing is left"));
    }
    assert_eq!(runs.into_inner(), 1);
    assert_eq!((harness.effects().await, harness.keys().await), (0, 1));
}

#[tokio::test]
async fn only_the_chosen_classes_of_failures_are_stored_and_transient_ones_never() {
    let harness = fresh::<Db>().await;
    let ask = async |key: &str, fail: fn() -> Failure| {
        let command = harness.sf.command("effects.make", key).owner(&harness.owner);
        let classes = StoreFailures::Classes(vec![FailureClass::BusinessRule]);
        let ended = command
            .store_failures(classes)
            .run(async |_| Err::<String, _>(fail()))
            .await;
        ended.unwrap_err();
        harness.keys().await
    };
    assert_eq!(ask("a", || Failure::transient("later", "not now")).await, 0);
    assert_eq!(
        ask("b", || Failure::definitive(FailureClass::NotFound, "gone", "gone")).await,
        0
    );
    assert_eq!(ask("c", out_of_stock).await, 1);
}

#[tokio::test]
async fn a_success_beside_stored_failures_commits_its_writes() {
    let harness = fresh::<Db>().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let command = command.store_failures(StoreFailures::Definitive);
    command.run(async |tx| act(tx, "k").await).await.unwrap();
    assert_eq!((harness.effects().await, harness.keys().await), (1, 1));
}

#[tokio::test]
async fn an_expired_key_counts_as_absent_before_any_purge() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    let ask = async || {
        let command = sf
            .command("effects.make", "k")
            .owner(&harness.owner)
            .retention(Duration::from_secs(60));
        command.run(async |tx| act(tx, "k").await).await.unwrap()
    };
    let first = ask().await;
    clock.set_offset(Duration::from_secs(50));
    assert_eq!(ask().await.value, first.value, "it lives");
    clock.set_offset(Duration::from_secs(61));
    let second = ask().await;
    assert!(!second.replayed);
    assert_eq!(
        (harness.effects().await, harness.keys().await),
        (2, 1),
        "the expired record made room"
    );
    assert_eq!(ask().await.value, second.value, "and the new one lives");
}

#[tokio::test]
async fn an_expired_key_may_stand_for_another_input() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    let ask = async |input: u32| {
        let command = sf.command("effects.make", "k").owner(&harness.owner).input(&input);
        command
            .store_failures(StoreFailures::Definitive)
            .run(async |tx| act(tx, "k").await)
            .await
    };
    ask(1).await.unwrap();
    clock.set_offset(Duration::from_secs(24 * 60 * 60 + 1));
    assert!(!ask(2).await.unwrap().replayed);
    assert_eq!(ask(1).await.unwrap_err().code(), Code::Mismatch);
}

#[tokio::test]
async fn dropping_the_call_at_any_await_never_half_does_it() {
    let harness = fresh::<Db>().await;
    // Each round gives up after one poll more than the last, until a call gets through without being dropped.
    for polls in 1..200 {
        let key = format!("k{polls}");
        let mut call = Box::pin(run(&harness.sf, &harness.owner, &key));
        let mut left = polls;
        let ended = std::future::poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            call.as_mut().poll(cx).map(Some)
        })
        .await;
        drop(call);
        // Whatever happened, asking again gives one effect and its answer; a command that outlived us is met as in flight.
        let value = loop {
            match run(&harness.sf, &harness.owner, &key).await {
                Ok(reply) => break reply.value,
                Err(error) if error.code() == Code::InFlight => tokio::task::yield_now().await,
                Err(error) => panic!("after {polls} polls: {error:?}"),
            }
        };
        if let Some(reply) = ended {
            assert_eq!(reply.unwrap().value, value);
            break;
        }
    }
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn a_command_whose_handler_has_answered_ends_even_if_nobody_waits() {
    let harness = fresh::<Db>().await;
    for calls in 1..=100 {
        let key = format!("k-{calls}");
        let has_answered = AtomicBool::new(false);
        let mut call = Box::pin(
            harness
                .sf
                .command("effects.make", &key)
                .owner(&harness.owner)
                .run(async |tx| {
                    let value = act(tx, &key).await;
                    has_answered.store(true, Ordering::Relaxed);
                    value
                }),
        );
        // The caller goes away when the handler has answered.
        let ended = std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Pending if !has_answered.load(Ordering::Relaxed) => Poll::Pending,
            polled => Poll::Ready(polled.is_ready()),
        })
        .await;
        drop(call);
        eventually("the command ends all the same", async || {
            harness.effects().await == calls
        })
        .await;
        harness.assert_effects_match_keys().await;
        if !ended {
            return;
        }
        // On a busy machine all answers may be there already, and the command has ended in that last poll: another one.
    }
    panic!("no caller could go away between the handler's answer and the end of the command");
}

#[tokio::test]
async fn a_panic_rolls_back_and_the_key_is_free() {
    let harness = fresh::<Db>().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let error = command
        .run(async |tx| {
            act(tx, "k").await?;
            if harness.owner.user() == "user-a" {
                panic!("card 4242 refused");
            }
            Ok(())
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::HandlerPanicked);
    assert!(
        !format!("{error:?}").contains("4242"),
        "the panic's words stay on the server"
    );
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    assert!(!run(&harness.sf, &harness.owner, "k").await.unwrap().replayed);
}

#[tokio::test]
async fn a_handler_beyond_its_time_limit_is_rolled_back_and_the_key_is_free() {
    let harness = fresh::<Db>().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let error = command
        .time_limit(Duration::from_millis(50))
        .run(async |tx| {
            act(tx, "k").await?;
            std::future::pending::<Result<(), Failure>>().await
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::TimeLimit);
    assert!(error.retry_after().is_some());
    assert!(!run_until_free(&harness, "k").await.replayed);
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_statement_that_outlives_the_time_limit_does_not_keep_the_key() {
    let harness = fresh::<Db>().await;
    let endless = if Db::IS_SQLITE {
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    } else {
        "SELECT count(*) FROM pg_sleep(600)"
    };
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let error = command
        .time_limit(Duration::from_millis(100))
        .run(async |tx| {
            act(tx, "k").await?;
            Ok(sqlx::query_scalar::<_, i64>(endless).fetch_one(tx.db()).await?)
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::TimeLimit);
    let started = Instant::now();
    assert!(!run_until_free(&harness, "k").await.replayed);
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "the database noticed by itself"
    );
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_handler_that_gives_up_on_a_statement_does_not_hold_the_others() {
    let harness = fresh::<Db>().await;
    let endless = if Db::IS_SQLITE {
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    } else {
        "SELECT count(*) FROM pg_sleep(600)"
    };
    for succeed in [false, true] {
        let started = Instant::now();
        let key = format!("k-{succeed}");
        let command = harness.sf.command("effects.make", &key).owner(&harness.owner);
        let ended = command
            .run_once(async |tx| {
                let statement = sqlx::query_scalar::<_, i64>(endless).fetch_one(tx.db());
                let _ = tokio::time::timeout(Duration::from_millis(50), statement).await;
                if succeed { Ok(()) } else { Err(out_of_stock()) }
            })
            .await;
        let expected = if succeed { Code::TimeLimit } else { Code::HandlerFailed };
        assert_eq!(ended.unwrap_err().code(), expected);
        run_until_free(&harness, &format!("next-{succeed}")).await;
        assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    }
    assert_eq!(harness.effects().await, 2);
}

/// Asks again until the server has noticed that the last attempt is gone.
async fn run_until_free(harness: &Harness<Db>, key: &str) -> Reply<String> {
    loop {
        match run(&harness.sf, &harness.owner, key).await {
            Ok(reply) => return reply,
            Err(error) => assert_eq!(error.code(), Code::InFlight, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_savepoint_undoes_its_part_and_only_its_part() {
    let harness = fresh::<Db>().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    command
        .run(async |tx| {
            act(tx, "k").await?;
            let part = tx
                .savepoint(async |tx| {
                    act(tx, "undone").await?;
                    Err::<(), _>(out_of_stock())
                })
                .await;
            assert!(part.is_err());
            tx.savepoint(async |tx| act(tx, "kept").await).await?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn a_nested_transaction_left_open_is_never_acknowledged() {
    let harness = fresh::<Db>().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let error = command
        .run_once(async |tx| {
            let nested = sqlx::Connection::begin(tx.db()).await?;
            std::mem::forget(nested);
            act(tx, "k").await
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::TransactionBroken);
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
}

#[tokio::test]
async fn a_nested_transaction_that_is_dropped_is_undone_and_breaks_nothing() {
    let harness = fresh::<Db>().await;
    // sqlx undoes it in the background, so how far that is when we look differs from time to time.
    for n in 0..30 {
        let key = format!("k{n}");
        let command = harness.sf.command("effects.make", &key).owner(&harness.owner);
        let told = command
            .store_failures(StoreFailures::Definitive)
            .run_once(async |tx| {
                let answer = act(tx, &key).await?;
                let mut nested = sqlx::Connection::begin(tx.db()).await?;
                sqlx::query("INSERT INTO effects (tag) VALUES ('undone')")
                    .execute(&mut *nested)
                    .await?;
                drop(nested);
                if n % 2 == 0 { Ok(answer) } else { Err(out_of_stock()) }
            })
            .await;
        match told {
            Ok(_) => assert_eq!(n % 2, 0),
            Err(error) => assert_eq!((error.code(), n % 2), (Code::HandlerFailed, 1), "{error:?}"),
        }
    }
    let undone = Db::count(&harness.admin, "SELECT count(*) FROM effects WHERE tag = 'undone'").await;
    assert_eq!((undone, harness.effects().await, harness.keys().await), (0, 15, 30));
}

#[test]
fn a_command_dropped_outside_of_its_runtime_ends_there_or_is_rolled_back() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let harness = runtime.block_on(fresh::<Db>());
    for n in 0..10 {
        let (has_acted, is_answered) = (AtomicBool::new(false), n % 2 == 0);
        let key = format!("k{n}");
        let command = harness.sf.command("effects.make", &key).owner(&harness.owner);
        let mut doomed = Box::pin(command.run_once(async |tx| {
            let answer = act(tx, &key).await?;
            has_acted.store(true, Ordering::SeqCst);
            if !is_answered {
                std::future::pending::<()>().await;
            }
            Ok(answer)
        }));
        // The poll in which the handler answers may be the last one, too.
        runtime.block_on(async {
            while !has_acted.load(Ordering::SeqCst) && futures_util::poll!(&mut doomed).is_pending() {
                tokio::task::yield_now().await;
            }
        });
        drop(doomed);
        let expected = if is_answered { 1 } else { 0 };
        runtime.block_on(eventually("it has ended", async || {
            let effects = format!("SELECT count(*) FROM effects WHERE tag = '{key}'");
            let again = harness.sf.command("effects.make", &key).owner(&harness.owner);
            let is_free = again.run_once(async |_| Err::<String, _>(out_of_stock())).await;
            Db::count(&harness.admin, &effects).await == expected
                && is_free.is_ok_and(|reply| reply.replayed) == is_answered
        }));
    }
}

#[tokio::test]
async fn a_transaction_without_a_key_commits_or_leaves_nothing() {
    let harness = fresh::<Db>().await;
    let value = harness.sf.transact(async |tx| act(tx, "a").await).await.unwrap();
    assert!(!value.is_empty());
    let error = harness
        .sf
        .transact(async |tx| {
            act(tx, "b").await?;
            Err::<(), _>(out_of_stock())
        })
        .await
        .unwrap_err();
    assert_eq!(error.failure().unwrap().code(), "out_of_stock");
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn an_answer_whose_type_has_changed_is_a_clear_error_and_stays_stored() {
    let harness = fresh::<Db>().await;
    run(&harness.sf, &harness.owner, "k").await.unwrap();
    let command = harness
        .sf
        .command("effects.make", "k")
        .owner(&harness.owner)
        .input(&"k");
    let error = command.run(async |_| Ok(1_u32)).await.unwrap_err();
    assert_eq!(error.code(), Code::AnswerChanged);
    assert!(run(&harness.sf, &harness.owner, "k").await.unwrap().replayed);
}

#[tokio::test]
async fn a_record_of_an_unknown_algorithm_or_format_is_left_alone_and_never_a_mismatch() {
    let harness = fresh::<Db>().await;
    for (key, change) in [("a", "fingerprint = fingerprint_of_tomorrow"), ("b", "format = 3")] {
        run(&harness.sf, &harness.owner, key).await.unwrap();
        let tomorrow = if Db::IS_SQLITE {
            "x'63' || substr(fingerprint, 2)"
        } else {
            "set_byte(fingerprint, 0, 99)"
        };
        let change = change.replace("fingerprint_of_tomorrow", tomorrow);
        let keys = Db::table("keys");
        harness
            .run(&format!("UPDATE {keys} SET {change} WHERE value = '{key}'"))
            .await;
        let error = run(&harness.sf, &harness.owner, key).await.unwrap_err();
        assert_eq!(error.code(), Code::RecordTooNew);
        assert!(error.is_transient(), "a node of the newer version will answer");
    }
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn switching_to_a_keyed_fingerprint_keeps_earlier_keys_replayable() {
    let harness = fresh::<Db>().await;
    let ask = async |policy: FingerprintPolicy, input: u32| {
        let command = harness
            .sf
            .command("effects.make", "k")
            .owner(&harness.owner)
            .input(&input);
        command.fingerprint(policy).run(async |tx| act(tx, "k").await).await
    };
    ask(FingerprintPolicy::Whole, 1).await.unwrap();
    let keyed = FingerprintPolicy::keyed(*b"0123456789abcdef0123456789abcdef");
    assert!(ask(keyed.clone(), 1).await.unwrap().replayed);
    assert_eq!(ask(keyed, 2).await.unwrap_err().code(), Code::Mismatch);
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_refused_and_nothing_changed() {
    let harness = fresh::<Db>().await;
    let command = harness
        .sf
        .command("effects.make", "k")
        .owner(&harness.owner)
        .answer_limit(100);
    let error = command
        .run(async |tx| {
            act(tx, "k").await?;
            Ok("x".repeat(100))
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::AnswerTooLarge);
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
}

#[tokio::test]
async fn settings_that_mean_nothing_are_refused() {
    let harness = fresh::<Db>().await;
    let command = || harness.sf.command("effects.make", "k").owner(&harness.owner);
    let retention = command().retention(Duration::ZERO).run(async |_| Ok(())).await;
    let limit = command().time_limit(Duration::ZERO).run(async |_| Ok(())).await;
    let eternity = command().retention(Duration::MAX).run(async |_| Ok(())).await;
    let guessable = command()
        .fingerprint(FingerprintPolicy::keyed(*b"1234"))
        .run(async |_| Ok(()))
        .await;
    for error in [retention, limit, eternity, guessable].map(Result::unwrap_err) {
        assert_eq!(error.code(), Code::ConfigurationInvalid);
    }
}

#[tokio::test]
async fn keys_in_opposite_order_never_deadlock_since_each_has_its_own_transaction() {
    let harness = Arc::new(fresh::<Db>().await);
    let in_order = |keys: [&'static str; 2]| {
        let harness = harness.clone();
        tokio::spawn(async move {
            for key in keys {
                run_until_free(&harness, key).await;
            }
        })
    };
    for rounds in 0..5 {
        let (a, b) = (
            [["a0", "b0"], ["a1", "b1"], ["a2", "b2"], ["a3", "b3"], ["a4", "b4"]][rounds],
            rounds,
        );
        let (left, right) = (in_order(a), in_order([a[1], a[0]]));
        left.await.unwrap();
        right.await.unwrap();
        assert_eq!(harness.effects().await, 2 * (b as i64 + 1));
    }
}

#[tokio::test]
async fn an_audit_entry_commits_with_its_transaction() {
    let harness = fresh::<Db>().await;
    let entry = steadfast::AuditEntry::new("ops", "key.evict", "k").because("asked");
    let write = async |succeed: bool| {
        harness
            .sf
            .transact(async |tx| {
                tx.audit(&entry).await?;
                if succeed { Ok(()) } else { Err(out_of_stock()) }
            })
            .await
    };
    write(false).await.unwrap_err();
    write(true).await.unwrap();
    let audit = Db::table("audit");
    let count = format!("SELECT count(*) FROM {audit} WHERE actor = 'ops' AND reason = 'asked'");
    assert_eq!(Db::count(&harness.admin, &count).await, 1);
}

#[tokio::test]
async fn the_view_shows_the_columns_of_the_convention() {
    let harness = fresh::<Db>().await;
    run(&harness.sf, &harness.owner, "k").await.unwrap();
    let view = Db::table("idempotency_records");
    let count = format!(
        "SELECT count(*) FROM (SELECT key, tenant_id, user_id, request_hash, status, response_status_code, response_body, \
         created_at_utc, expires_at_utc FROM {view}) AS records WHERE key = 'k' AND user_id = 'user-a' AND status = 'completed'"
    );
    assert_eq!(Db::count(&harness.admin, &count).await, 1);
}
