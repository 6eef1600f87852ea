//! Events, from the transaction that publishes them to the rows that wait for their targets.

use serde::{Deserialize, Serialize};
use steadfast::{Aggregate, Code, Event, Failure, Raised, Steadfast, Tx};

use super::Db;
use super::queue::{Tagged, at_once, keep, publish, rows, tagged};
use crate::harness::{TestDatabase, eventually, fresh};

#[tokio::test]
async fn an_event_is_delivered_once_and_with_the_effect() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    assert_eq!(
        (rows(&harness, "messages").await, rows(&harness, "queue").await),
        (1, 1)
    );
    assert_eq!(harness.sf.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 1);
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 1));
    assert_eq!(harness.sf.drain().await.unwrap(), 0);
}

#[tokio::test]
async fn an_event_of_a_transaction_that_fails_is_never_seen() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    let failed = harness.sf.transact(async |tx| {
        tx.publish(&tagged("lost"))?;
        Err::<(), _>(Failure::transient("no", "not today"))
    });
    failed.await.unwrap_err();
    let part = harness.sf.transact(async |tx| {
        tx.publish(&tagged("before"))?;
        let part = tx.savepoint(async |tx| {
            tx.publish(&tagged("lost"))?;
            Err::<(), _>(Failure::transient("no", "not today"))
        });
        part.await.unwrap_err();
        tx.publish(&tagged("after"))?;
        Ok(())
    });
    part.await.unwrap();
    assert_eq!(rows(&harness, "messages").await, 2);
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 2);
    let lost = Db::count(&harness.admin, "SELECT count(*) FROM effects WHERE tag = 'lost'").await;
    assert_eq!(lost, 0);
}

#[tokio::test]
async fn a_failure_that_is_kept_publishes_nothing() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let command = command.store_failures(steadfast::StoreFailures::Definitive);
    let refused = command.run(async |tx| {
        tx.publish(&tagged("lost"))?;
        let class = steadfast::FailureClass::BusinessRule;
        Err::<(), _>(Failure::definitive(class, "no", "never"))
    });
    assert_eq!(refused.await.unwrap_err().code(), Code::HandlerFailed);
    assert_eq!((harness.keys().await, rows(&harness, "messages").await), (1, 0));
}

#[tokio::test]
async fn a_command_publishes_with_its_key_and_a_replay_does_not_publish_again() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    for _ in 0..2 {
        let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
        let reply = command.run(async |tx| {
            tx.publish(&tagged("a"))?;
            tx.publish(&tagged("b"))?;
            Ok(1)
        });
        assert_eq!(reply.await.unwrap().value, 1);
    }
    assert_eq!((harness.keys().await, rows(&harness, "messages").await), (1, 2));
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn the_callers_commit_publishes() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    let pool = harness.sf.pool();

    let mut tx = pool.begin().await.unwrap();
    harness.sf.on(&mut tx).publish(&tagged("lost")).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let published = harness.sf.on(&mut tx).publish(&tagged("a")).await.unwrap();
    tx.commit().await.unwrap();
    published.wake();
    assert_eq!(rows(&harness, "messages").await, 1);
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 1);

    let mut conn = pool.acquire().await.unwrap();
    let refused = harness.sf.on(&mut conn).publish(&tagged("b")).await;
    assert_eq!(refused.unwrap_err().code(), Code::NotInTransaction);
}

#[tokio::test]
async fn a_publisher_without_the_target_that_another_process_declared_loses_nothing() {
    let harness = fresh::<Db>().await;
    let reacting = harness.another().await;
    reacting.reaction::<Tagged>("test.keep").run(keep);
    reacting.declare().await.unwrap();

    publish(&harness.sf, &tagged("a")).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 0, "it knows no such target");
    assert_eq!(reacting.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn targets_complete_independently() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    async fn refuse(_: &mut Tx<Db>, _: Tagged) -> Result<(), Failure> {
        Err(Failure::definitive(
            steadfast::FailureClass::BusinessRule,
            "no",
            "never",
        ))
    }
    harness.sf.reaction::<Tagged>("test.refuse").run(refuse);
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 2);
    assert_eq!(harness.effects().await, 1);
    let of = |state: &str| format!("SELECT count(*) FROM {} WHERE state = '{state}'", Db::table("queue"));
    assert_eq!(Db::count(&harness.admin, &of("dead")).await, 1);
    assert_eq!(rows(&harness, "history").await, 1);
}

#[tokio::test]
async fn patterns_are_a_type_or_a_beginning_or_everything() {
    let harness = fresh::<Db>().await;
    let targets = Db::table("targets");
    for (name, pattern) in [
        ("exact", "test.tagged"),
        ("part", "test.*"),
        ("all", "*"),
        ("part", "*"),
        ("other", "test.tag"),
        ("wild", "test_tagged"),
        ("longer", "test.tagged.more"),
        ("underscore", "t__t.*"),
    ] {
        let is_versioned = if Db::IS_SQLITE { "0" } else { "false" };
        let since = if Db::IS_SQLITE { "0" } else { "now()" };
        let sql = format!(
            "INSERT INTO {targets} (name, pattern, is_versioned, since) VALUES ('{name}', '{pattern}', {is_versioned}, {since})"
        );
        harness.run(&sql).await;
    }
    publish(&harness.sf, &tagged("a")).await;
    let wanted = format!(
        "SELECT count(*) FROM {} WHERE kind IN ('exact', 'part', 'all')",
        Db::table("queue")
    );
    assert_eq!(Db::count(&harness.admin, &wanted).await, 3);
    assert_eq!(rows(&harness, "queue").await, 3);
}

/// A newer shape of the same event.
#[derive(Serialize, Deserialize)]
struct TaggedV2 {
    tag: String,
    note: String,
}

impl Event for TaggedV2 {
    const TYPE: &'static str = "test.tagged";
    const VERSION: u32 = 2;
}

#[tokio::test]
async fn a_node_leaves_newer_versions_to_those_who_know_them() {
    async fn keep_new(tx: &mut Tx<Db>, event: TaggedV2) -> Result<(), Failure> {
        keep(tx, tagged(event.tag + &event.note)).await
    }
    let (old, new) = (fresh::<Db>().await, ());
    let () = new;
    let newer = old.another().await;
    old.sf.reaction::<Tagged>("test.keep").run(keep);
    newer.reaction::<TaggedV2>("test.keep").run(keep_new);
    old.sf.declare().await.unwrap();
    let event = TaggedV2 {
        tag: "a".into(),
        note: "!".into(),
    };
    newer
        .transact(async |tx| {
            tx.publish(&event)?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(old.sf.drain().await.unwrap(), 0, "an old node leaves it alone");
    assert_eq!(newer.drain().await.unwrap(), 1);
    let kept = Db::count(&old.admin, "SELECT count(*) FROM effects WHERE tag = 'a!'").await;
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn an_event_that_cannot_be_published_is_refused_and_nothing_is_committed() {
    let harness = fresh::<Db>().await;
    let publish = async |event: Tagged| {
        let publishing = harness.sf.transact(async |tx| {
            keep(tx, tagged("x")).await?;
            tx.publish(&event)?;
            Ok(())
        });
        publishing.await.map_err(|error| format!("{error:?}"))
    };
    for (why, event) in [
        ("has 300021 bytes as JSON", tagged("x".repeat(300_000))),
        (
            "ordering key of the event test.tagged has 256 bytes",
            Tagged {
                tag: "x".into(),
                key: Some("k".repeat(256)),
            },
        ),
        (
            "ordering key of the event test.tagged has 0 bytes",
            Tagged {
                tag: "x".into(),
                key: Some(String::new()),
            },
        ),
    ] {
        let said = publish(event).await.unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    let flood = harness.sf.transact(async |tx| {
        for _ in 0..1_001 {
            tx.publish(&tagged("x"))?;
        }
        Ok(())
    });
    flood.await.unwrap_err();
    assert_eq!((harness.effects().await, rows(&harness, "messages").await), (0, 0));
    let most = harness.sf.transact(async |tx| {
        for number in 0..1_000 {
            tx.publish(&tagged(number))?;
        }
        Ok(())
    });
    most.await.unwrap();
    assert_eq!(rows(&harness, "messages").await, 1_000);
}

/// An order that remembers what has happened to it.
#[derive(Default)]
struct Thing {
    raised: Vec<Raised>,
}

impl Aggregate for Thing {
    fn raised(&mut self) -> &mut Vec<Raised> {
        &mut self.raised
    }
}

#[tokio::test]
async fn what_an_aggregate_raised_is_published_when_it_is_saved_and_kept_when_it_is_not() {
    let harness = fresh::<Db>().await;
    let mut thing = Thing::default();
    thing
        .raised
        .extend([Raised::new(tagged("a")), Raised::new(tagged("b"))]);
    let failed = harness.sf.transact(async |tx| {
        tx.save(&mut thing, async |_, _| Err(Failure::transient("no", "not now")))
            .await
    });
    failed.await.unwrap_err();
    assert_eq!((thing.raised.len(), rows(&harness, "messages").await), (2, 0));
    let saved = harness
        .sf
        .transact(async |tx| tx.save(&mut thing, async |_, _| Ok(())).await);
    saved.await.unwrap();
    assert_eq!((thing.raised.len(), rows(&harness, "messages").await), (0, 2));
}

/// Tells this process only.
#[derive(Serialize, Deserialize)]
struct Whispered {
    tag: String,
}

impl Event for Whispered {
    const TYPE: &'static str = "test.whispered";
    const IN_PROCESS: bool = true;
}

async fn whisper(sf: &Steadfast<Db>, tag: &str, ends: Result<(), Failure>) {
    let tag = tag.to_owned();
    let whispering = sf.transact(async |tx| {
        tx.publish(&Whispered { tag })?;
        ends
    });
    let _ = whispering.await;
}

#[tokio::test]
async fn an_event_in_process_leaves_no_row_and_runs_after_the_commit() {
    async fn hear(tx: &mut Tx<Db>, event: Whispered) -> Result<(), Failure> {
        let id = tx.event().map(|cx| cx.target().to_owned());
        assert_eq!(id.as_deref(), Some("test.hear"));
        keep(tx, tagged(event.tag)).await
    }
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Whispered>("test.hear").run(hear);
    whisper(&harness.sf, "lost", Err(Failure::transient("no", "not now"))).await;
    whisper(&harness.sf, "heard", Ok(())).await;
    eventually("it is heard", || async { harness.effects().await == 1 }).await;
    let lost = Db::count(&harness.admin, "SELECT count(*) FROM effects WHERE tag = 'lost'").await;
    assert_eq!((lost, rows(&harness, "messages").await), (0, 0));
}

#[tokio::test]
async fn a_reaction_in_process_that_panics_is_tried_again() {
    async fn stumble(tx: &mut Tx<Db>, event: Whispered) -> Result<(), Failure> {
        let attempt = tx.event().map_or(0, |cx| cx.attempt());
        assert!(attempt > 1, "it stumbles");
        keep(tx, tagged(event.tag)).await
    }
    let harness = fresh::<Db>().await;
    harness
        .sf
        .reaction::<Whispered>("test.stumble")
        .retry(at_once(1))
        .run(stumble);
    whisper(&harness.sf, "heard", Ok(())).await;
    eventually("it is heard", || async { harness.effects().await == 1 }).await;
}

#[tokio::test]
async fn a_reaction_passes_on_what_its_events_belong_to() {
    async fn answer(tx: &mut Tx<Db>, event: Tagged) -> Result<(), Failure> {
        if event.tag == "question" {
            tx.publish(&tagged("answer"))?;
        }
        Ok(())
    }
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.answer").run(answer);
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("question")).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 2);
    let messages = Db::table("messages");
    let id = if Db::IS_SQLITE { "q.id" } else { "q.id::text" };
    let sql = format!(
        "SELECT count(*) FROM {messages} AS q JOIN {messages} AS a ON a.causation_id = {id}
         WHERE a.correlation_id = q.correlation_id AND q.correlation_id = {id} AND q.causation_id IS NULL"
    );
    assert_eq!(Db::count(&harness.admin, &sql).await, 1);
}

#[tokio::test]
async fn two_reactions_of_one_name_are_refused() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    let sf = harness.sf.clone();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sf.reaction::<Tagged>("test.keep").run(keep);
    }));
    let panic = panic.unwrap_err();
    let words = panic.downcast_ref::<String>().unwrap();
    assert!(words.contains("SF305") && words.contains("outbox.rs"), "{words}");
}

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Tells the envelopes of what is delivered.
fn tell_envelopes(sf: &Steadfast<Db>) -> tokio::sync::mpsc::UnboundedReceiver<serde_json::Value> {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let reaction = sf.reaction::<Tagged>("test.envelope");
    reaction.run_outside(move |cx: &steadfast::EventCx, _| {
        tell.send(cx.cloud_event()).unwrap();
        async { Ok(()) }
    });
    told
}

#[tokio::test]
async fn an_event_travels_in_the_envelope_of_cloudevents() {
    let harness = fresh::<Db>().await;
    let sf = Steadfast::builder(harness.sf.pool().clone())
        .source("/shop")
        .unwrap()
        .build()
        .await
        .unwrap();
    let mut told = tell_envelopes(&sf);
    sf.declare().await.unwrap();
    let event = Tagged {
        tag: "a".into(),
        key: Some("order-7".into()),
    };
    let command = sf.command("effects.make", "k").owner(&harness.owner);
    let publish = command.run(async |tx| {
        tx.set_correlation_id("request-1")?;
        tx.set_traceparent(TRACEPARENT)?;
        Ok(tx.publish(&event)?.to_string())
    });
    let id = publish.await.unwrap().value;
    sf.drain().await.unwrap();
    let mut envelope = told.recv().await.unwrap();
    let time = envelope["time"].take();
    assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
    let key = sf.keys().page().await.unwrap().keys[0].id.to_string();
    assert_eq!(
        envelope,
        serde_json::json!({
            "specversion": "1.0",
            "id": id,
            "source": "/shop",
            "type": "test.tagged",
            "time": null,
            "datacontenttype": "application/json",
            "dataversion": 1,
            "data": { "tag": "a", "key": "order-7" },
            "correlationid": "request-1",
            "causationid": key[..12],
            "traceparent": TRACEPARENT,
            "partitionkey": "order-7",
        })
    );
}

#[tokio::test]
async fn a_request_brings_along_what_its_events_belong_to() {
    use axum::routing::post;
    use tower::ServiceExt;

    let harness = fresh::<Db>().await;
    let mut told = tell_envelopes(&harness.sf);
    harness.sf.declare().await.unwrap();
    let place = async |mut tx: steadfast::CmdTx<Db>| {
        tx.publish(&tagged("a")).unwrap();
    };
    let app = axum::Router::new()
        .route("/orders", post(place).route_layer(harness.sf.idempotent()))
        .layer(axum::Extension(harness.owner.clone()));
    for (number, (header, value, correlation, trace)) in [
        ("x-correlation-id", "mine", Some("mine"), None),
        ("x-request-id", "theirs", Some("theirs"), None),
        ("x-request-id", "not one word", None, None),
        ("traceparent", TRACEPARENT, None, Some(TRACEPARENT)),
        ("traceparent", "nonsense", None, None),
    ]
    .into_iter()
    .enumerate()
    {
        let request = axum::http::Request::post("/orders")
            .header("idempotency-key", format!("k{number}"))
            .header(header, value)
            .body(axum::body::Body::empty())
            .unwrap();
        assert!(app.clone().oneshot(request).await.unwrap().status().is_success());
        harness.sf.drain().await.unwrap();
        let envelope = told.recv().await.unwrap();
        let correlation = correlation.unwrap_or_else(|| envelope["id"].as_str().unwrap());
        assert_eq!(envelope["correlationid"], correlation, "{header}: {value}");
        assert_eq!(envelope["traceparent"].as_str(), trace, "{header}: {value}");
    }
}

#[tokio::test]
async fn the_caller_says_what_its_event_belongs_to() {
    let harness = fresh::<Db>().await;
    let mut told = tell_envelopes(&harness.sf);
    harness.sf.declare().await.unwrap();
    let mut tx = harness.sf.pool().begin().await.unwrap();
    let caller = harness.sf.on(&mut tx).correlation_id("mine").traceparent(TRACEPARENT);
    caller.publish(&tagged("a")).await.unwrap();
    let wrong = harness.sf.on(&mut tx).traceparent("nonsense");
    assert_eq!(
        wrong.publish(&tagged("b")).await.unwrap_err().code(),
        Code::EventInvalid
    );
    tx.commit().await.unwrap();
    harness.sf.drain().await.unwrap();
    let envelope = told.recv().await.unwrap();
    assert_eq!(
        (&envelope["correlationid"], &envelope["traceparent"]),
        (&"mine".into(), &TRACEPARENT.into())
    );
    assert!(Steadfast::builder(harness.sf.pool().clone()).source("my shop").is_err());
}
