//! Dead letters and what people do about them: looking, requeuing, editing, skipping, discarding, and asking why.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{
    BulkVerb, Clock, Code, DeliveryState, Dispatcher, Event, EventCx, Failure, FailureClass, LookedMessage, MessageId,
    OnDead, Steadfast, WhyWord,
};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Tagged, process, rows, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

pub(super) fn ordered(key: &str, tag: &str) -> Tagged {
    Tagged {
        tag: tag.to_owned(),
        key: Some(key.to_owned()),
    }
}

/// Targets that refuse what they are told to, and remember what they took.
#[derive(Clone, Default)]
pub(super) struct World {
    refused: Arc<Mutex<HashSet<String>>>,
    taken: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub(super) fn refuses(tags: &[&str]) -> Self {
        let world = Self::default();
        let tags = tags.iter().map(|tag| (*tag).to_owned());
        world.refused.lock().unwrap().extend(tags);
        world
    }

    pub(super) fn heals(&self) {
        self.refused.lock().unwrap().clear();
    }

    /// What was taken, as `target:tag`, in order.
    pub(super) fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().clone()
    }

    /// A reaction of this name.
    pub(super) fn reacts(&self, sf: &Steadfast<Db>, name: &'static str) {
        self.reacts_with(sf, name, OnDead::Wait);
    }

    fn reacts_with(&self, sf: &Steadfast<Db>, name: &'static str, on_dead: OnDead) {
        let world = self.clone();
        let react = move |_: &EventCx, event: Tagged| {
            let is_refused = world.refused.lock().unwrap().contains(&event.tag);
            if !is_refused {
                world.taken.lock().unwrap().push(format!("{name}:{}", event.tag));
            }
            async move {
                match is_refused {
                    true => {
                        let (class, what) = (FailureClass::BusinessRule, format!("order 17 of {name} is no good"));
                        Err(Failure::definitive(class, "refused", what))
                    }
                    false => Ok(()),
                }
            }
        };
        sf.reaction::<Tagged>(name).on_dead(on_dead).run_outside(react);
    }
}

pub(super) async fn say(sf: &Steadfast<Db>, event: &Tagged) -> MessageId {
    sf.transact(async |tx| Ok(tx.publish(event)?)).await.unwrap()
}

/// A harness whose target `test.hear` refuses some tags, with messages of one ordering key that were tried once.
async fn tried(refused: &[&str], tags: &[&str]) -> (Harness<Db>, World, Vec<MessageId>) {
    let harness = fresh::<Db>().await;
    let world = World::refuses(refused);
    world.reacts(&harness.sf, "test.hear");
    harness.sf.declare().await.unwrap();
    let mut ids = Vec::new();
    for tag in tags {
        ids.push(say(&harness.sf, &ordered("k", tag)).await);
    }
    harness.sf.drain().await.unwrap();
    (harness, world, ids)
}

async fn look(sf: &Steadfast<Db>, id: MessageId) -> LookedMessage {
    sf.message(id).look().await.unwrap().unwrap()
}

/// The actions in the audit, oldest first, with their reasons.
async fn audited(harness: &Harness<Db>) -> Vec<(String, String)> {
    let sf = Steadfast::new(harness.admin.clone()).await.unwrap();
    let page = sf.audit_entries().page().await.unwrap();
    let entries = page.entries.into_iter().rev();
    entries.map(|entry| (entry.action, entry.reason)).collect()
}

#[tokio::test]
async fn the_order_continues_when_a_dead_head_is_requeued() {
    let (harness, world, ids) = tried(&["1"], &["1", "2", "3"]).await;
    let sf = &harness.sf;
    assert!(world.taken().is_empty(), "a dead head keeps its tail");
    assert_eq!(look(sf, ids[0]).await.deliveries[0].state, DeliveryState::Dead);
    world.heals();
    sf.delivery(ids[0], "test.hear")
        .requeue("ann", "it is well again")
        .await
        .unwrap();
    let queue = Db::table("queue");
    let fresh = format!(
        "SELECT count(*) FROM {queue} WHERE attempts = 0 AND epoch = 1 AND state = 'pending' AND number IS NOT NULL AND began_at IS NULL"
    );
    assert_eq!(
        Db::count(&harness.admin, &fresh).await,
        1,
        "all attempts, and the epoch of before"
    );
    sf.drain().await.unwrap();
    assert_eq!(world.taken(), ["test.hear:1", "test.hear:2", "test.hear:3"]);
    assert_eq!(
        audited(&harness).await,
        [("delivery.requeue".to_owned(), "it is well again".to_owned())]
    );
}

#[tokio::test]
async fn the_order_continues_at_once_when_a_dead_head_is_skipped_or_discarded() {
    for state in [DeliveryState::Skipped, DeliveryState::Discarded] {
        let (harness, world, ids) = tried(&["1"], &["1", "2", "3"]).await;
        let sf = &harness.sf;
        let delivery = sf.delivery(ids[0], "test.hear");
        match state {
            DeliveryState::Skipped => delivery.skip("ann", "nobody needs it").await.unwrap(),
            _ => delivery.discard("ann", "nobody needs it").await.unwrap(),
        }
        // Without waiting: what was put off behind the head is looked at again.
        sf.drain().await.unwrap();
        assert_eq!(world.taken(), ["test.hear:2", "test.hear:3"], "{state:?}");
        let ended = &look(sf, ids[0]).await.deliveries[0];
        assert_eq!((ended.state, ended.detail.as_deref()), (state, Some("nobody needs it")));
        let page = sf.deliveries().state(state).page().await.unwrap();
        assert_eq!(page.deliveries.len(), 1);
        assert_eq!(audited(&harness).await.len(), 1);
    }
}

#[tokio::test]
async fn a_dispatcher_elsewhere_hears_that_the_order_continues() {
    let (harness, world, ids) = tried(&["1"], &["1", "2"]).await;
    let worker = harness.another().await;
    world.reacts(&worker, "test.hear");
    let running = worker.clone();
    let dispatching = tokio::spawn(async move { running.dispatch().await });
    harness
        .sf
        .delivery(ids[0], "test.hear")
        .skip("ann", "no")
        .await
        .unwrap();
    eventually("the next one is taken", || async { world.taken() == ["test.hear:2"] }).await;
    worker.stop();
    dispatching.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_pending_delivery_in_the_middle_of_its_order_is_skipped() {
    let (harness, world, ids) = tried(&["1"], &["1", "2", "3"]).await;
    harness
        .sf
        .delivery(ids[1], "test.hear")
        .skip("ann", "no")
        .await
        .unwrap();
    world.heals();
    harness
        .sf
        .delivery(ids[0], "test.hear")
        .requeue("ann", "yes")
        .await
        .unwrap();
    harness.sf.drain().await.unwrap();
    assert_eq!(world.taken(), ["test.hear:1", "test.hear:3"]);
}

#[tokio::test]
async fn an_edited_payload_reaches_its_target_alone_and_in_its_place() {
    let harness = fresh::<Db>().await;
    let world = World::refuses(&["1"]);
    world.reacts(&harness.sf, "test.hear");
    world.reacts(&harness.sf, "test.listen");
    harness.sf.declare().await.unwrap();
    let sf = &harness.sf;
    let first = say(sf, &ordered("k", "1")).await;
    say(sf, &ordered("k", "2")).await;
    sf.drain().await.unwrap();
    let delivery = || sf.delivery(first, "test.hear");
    for wrong in ["", "{\"tag\":", &format!("\"{}\"", "x".repeat(256 * 1024))] {
        let refused = delivery().requeue_edited("ann", "typo", wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid, "{refused}");
    }
    let edited = r#"{"tag":"one","key":"k"}"#;
    let new = delivery().requeue_edited("ann", "typo", edited).await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!(
        world.taken(),
        ["test.hear:one", "test.hear:2"],
        "the other target still waits"
    );

    let old = look(sf, first).await;
    assert_eq!(old.payload, r#"{"tag":"1","key":"k"}"#, "as it was published");
    let states: Vec<_> = old
        .deliveries
        .iter()
        .map(|delivery| (&*delivery.target, delivery.state))
        .collect();
    assert_eq!(
        states,
        [
            ("test.hear", DeliveryState::Skipped),
            ("test.listen", DeliveryState::Dead)
        ]
    );
    assert_eq!(
        old.deliveries[0].detail.as_deref(),
        Some(&*format!("replaced by {new}: typo"))
    );
    let new = look(sf, new).await;
    assert_eq!((&*new.payload, new.replaces), (edited, Some(first)));
    assert_eq!(new.correlation_id, old.correlation_id);
    assert_eq!(new.deliveries.len(), 1);

    world.heals();
    sf.delivery(first, "test.listen")
        .requeue("ann", "as it was")
        .await
        .unwrap();
    sf.drain().await.unwrap();
    assert_eq!(world.taken()[2..], ["test.listen:1", "test.listen:2"]);
}

#[tokio::test]
async fn an_edited_message_that_dies_again_still_keeps_its_tail_waiting() {
    let (harness, world, ids) = tried(&["1", "one"], &["1", "2"]).await;
    let sf = &harness.sf;
    let edit = async |id, payload| {
        sf.delivery(id, "test.hear")
            .requeue_edited("ann", "typo", payload)
            .await
    };
    let again = edit(ids[0], r#"{"tag":"one","key":"k"}"#).await.unwrap();
    sf.drain().await.unwrap();
    assert!(world.taken().is_empty(), "{:?}", world.taken());
    edit(again, r#"{"tag":"uno","key":"k"}"#).await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!(world.taken(), ["test.hear:uno", "test.hear:2"]);
}

#[tokio::test]
async fn what_somebody_works_on_is_left_alone() {
    let harness = fresh::<Db>().await;
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (told, wait) = (begun.clone(), go_on.clone());
    let react = move |_: &EventCx, _: Tagged| {
        let (told, wait) = (told.clone(), wait.clone());
        async move {
            told.add_permits(1);
            wait.acquire().await.unwrap().forget();
            Ok(())
        }
    };
    harness.sf.reaction::<Tagged>("test.hear").run_outside(react);
    harness.sf.declare().await.unwrap();
    let id = say(&harness.sf, &tagged("a")).await;
    let running = harness.sf.clone();
    let dispatching = tokio::spawn(async move { running.dispatch().await });
    begun.acquire().await.unwrap().forget();

    let sf = harness.another().await;
    let holder = look(&sf, id).await.deliveries[0].holder.clone().unwrap();
    let delivery = || sf.delivery(id, "test.hear");
    for refused in [
        delivery().requeue("ann", "now").await,
        delivery().skip("ann", "now").await,
        delivery().discard("ann", "now").await,
        delivery().requeue_edited("ann", "now", "{}").await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Conflict);
        assert!(
            refused.what().contains(&format!("leased by {holder} until 20")),
            "{refused}"
        );
    }
    let why = sf.why(id).await.unwrap().unwrap();
    assert_eq!(why.deliveries[0].reasons[0].word, WhyWord::Leased);
    assert!(audited(&harness).await.is_empty());
    go_on.add_permits(1);
    eventually("it is delivered", || async { rows(&harness, "history").await == 1 }).await;
    harness.sf.stop();
    dispatching.await.unwrap().unwrap();

    for refused in [
        delivery().requeue("ann", "again").await,
        delivery().skip("ann", "now").await,
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid);
        assert!(refused.what().contains("no delivery of"), "{refused}");
    }
    let why = sf.why(id).await.unwrap().unwrap();
    assert_eq!(why.deliveries[0].reasons[0].word, WhyWord::Delivered);
}

#[tokio::test]
async fn only_a_dead_delivery_is_discarded_and_a_refusal_changes_nothing() {
    let (harness, _, ids) = tried(&["1"], &["1", "2"]).await;
    let refused = harness
        .sf
        .delivery(ids[1], "test.hear")
        .discard("ann", "no")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InputInvalid);
    assert!(
        refused.what().contains("is pending") && refused.help().contains("skip it"),
        "{refused}"
    );
    let nobody: MessageId = "01890000-0000-7000-8000-000000000000".parse().unwrap();
    for (id, target) in [(nobody, "test.hear"), (ids[0], "test.nobody")] {
        let refused = harness.sf.delivery(id, target).skip("ann", "no").await.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid);
    }
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (2, 0));
    assert!(audited(&harness).await.is_empty());
}

/// An event with a secret.
#[derive(Serialize, Deserialize)]
struct Signed {
    order: u32,
    email: String,
}

impl Event for Signed {
    const TYPE: &'static str = "test.signed";
    const REDACTED: &'static [&'static str] = &["email"];
}

/// A dead letter with a secret in it.
async fn with_a_secret_that_died() -> (Harness<Db>, MessageId) {
    let harness = fresh::<Db>().await;
    let refuse = |_: &EventCx, _: Signed| async { Err(Failure::definitive(FailureClass::BusinessRule, "no", "no")) };
    harness.sf.reaction::<Signed>("test.sign").run_outside(refuse);
    harness.sf.declare().await.unwrap();
    let event = Signed {
        order: 7,
        email: "ann@example.org".to_owned(),
    };
    let id = harness.sf.transact(async |tx| Ok(tx.publish(&event)?)).await.unwrap();
    harness.sf.drain().await.unwrap();
    (harness, id)
}

#[tokio::test]
async fn redacted_members_are_shown_to_those_who_ask_for_them_only() {
    let (harness, id) = with_a_secret_that_died().await;
    let masked = look(&harness.sf, id).await;
    assert_eq!(masked.payload, r#"{"email":"[redacted]","order":7}"#);
    assert_eq!(masked.redacted, ["email"]);
    let revealed = harness.sf.message(id).revealed().look().await.unwrap().unwrap();
    assert_eq!(revealed.payload, r#"{"order":7,"email":"ann@example.org"}"#);
    for (is_revealed, shows) in [(false, false), (true, true)] {
        let mut lines = Vec::new();
        let each = |letter: serde_json::Value| {
            lines.push(letter.to_string());
            Ok(())
        };
        assert_eq!(harness.sf.dead_letters().export(is_revealed, each).await.unwrap(), 1);
        assert_eq!(lines[0].contains("ann@example.org"), shows, "{lines:?}");
        assert!(lines[0].contains(r#""failures":[{"at":"#), "{lines:?}");
    }
}

#[tokio::test]
async fn an_edited_payload_with_the_mask_of_a_secret_is_refused() {
    let (harness, id) = with_a_secret_that_died().await;
    let delivery = || harness.sf.delivery(id, "test.sign");
    let shown = look(&harness.sf, id).await.payload;
    let refused = delivery().requeue_edited("ann", "shorter", &shown).await.unwrap_err();
    assert_eq!(refused.code(), Code::InputInvalid);
    let words = refused.to_string();
    assert!(words.contains(r#""email""#) && words.contains("--reveal"), "{words}");
    let revealed = harness.sf.message(id).revealed().look().await.unwrap().unwrap();
    delivery()
        .requeue_edited("ann", "shorter", &revealed.payload)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_delivery_whose_message_is_gone_is_not_edited() {
    let (harness, _, ids) = tried(&["bad"], &["bad", "b"]).await;
    harness.run(&format!("DELETE FROM {}", Db::table("messages"))).await;
    let editing = harness.sf.delivery(ids[0], "test.hear");
    let refused = editing.requeue_edited("ann", "mended", "{}").await.unwrap_err();
    assert!(refused.to_string().contains("is gone"), "{refused}");
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (2, 0));
}

/// Nobody wants to hear of it after a minute.
#[derive(Serialize, Deserialize)]
struct Fleeting {
    is_good: bool,
}

impl Event for Fleeting {
    const TYPE: &'static str = "test.fleeting";
    const EXPIRES_AFTER: Option<Duration> = Some(Duration::from_secs(60));
}

#[tokio::test]
async fn a_dead_letter_that_has_expired_is_requeued_with_a_payload_of_its_own_only() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let hear = |_: &EventCx, event: Fleeting| async move {
        match event.is_good {
            true => Ok(()),
            false => Err(Failure::definitive(FailureClass::BusinessRule, "no", "no")),
        }
    };
    sf.reaction::<Fleeting>("test.hear").run_outside(hear);
    sf.declare().await.unwrap();
    let event = Fleeting { is_good: false };
    let id = sf.transact(async |tx| Ok(tx.publish(&event)?)).await.unwrap();
    sf.drain().await.unwrap();
    clock.set_offset(Duration::from_secs(70));
    let delivery = || sf.delivery(id, "test.hear");
    let refused = delivery().requeue("ann", "try it").await.unwrap_err();
    assert_eq!(refused.code(), Code::InputInvalid);
    assert!(refused.to_string().contains("has expired at"), "{refused}");
    let bulk = || sf.dead_letters().code("no");
    assert_eq!(bulk().count_for(BulkVerb::Requeue).await.unwrap().number, 0);
    let operation = bulk().start(BulkVerb::Requeue, "ann", "try them").await.unwrap();
    let working = sf
        .bulk_operation(operation.id)
        .resume(|_| std::ops::ControlFlow::Continue(()));
    assert_eq!(working.await.unwrap().done, 0);
    assert_eq!(
        bulk().count_for(BulkVerb::Discard).await.unwrap().number,
        1,
        "it stays dead"
    );
    let elsewhere = sf
        .delivery(id, "test.nowhere")
        .requeue("ann", "try it")
        .await
        .unwrap_err();
    assert!(elsewhere.to_string().contains("there is no delivery"), "{elsewhere}");

    let edited = delivery().requeue_edited("ann", "mended", r#"{"is_good":true}"#);
    let edited = edited.await.unwrap();
    sf.drain().await.unwrap();
    let delivered = look(&sf, edited).await;
    assert_eq!(delivered.deliveries[0].state, DeliveryState::Delivered);
}

#[tokio::test]
async fn deliveries_are_listed_by_state_target_type_key_code_and_age_page_by_page() {
    let harness = fresh::<Db>().await;
    let world = World::refuses(&["bad"]);
    world.reacts(&harness.sf, "test.hear");
    world.reacts(&harness.sf, "test.listen");
    harness.sf.declare().await.unwrap();
    let sf = &harness.sf;
    say(sf, &tagged("good")).await;
    say(sf, &tagged("bad")).await;
    say(sf, &ordered("k", "bad")).await;
    sf.drain().await.unwrap();
    say(sf, &tagged("good")).await;
    let count = async |list: steadfast::DeliveryList<'_, Db>| list.count().await.unwrap().to_string();
    assert_eq!(count(sf.deliveries()).await, "6");
    assert_eq!(count(sf.deliveries().state(DeliveryState::Pending)).await, "2");
    assert_eq!(count(sf.deliveries().state(DeliveryState::Delivered)).await, "2");
    assert_eq!(count(sf.deliveries().state(DeliveryState::Leased)).await, "0");
    assert_eq!(count(sf.dead_letters()).await, "4");
    assert_eq!(count(sf.dead_letters().target("test.hear")).await, "2");
    assert_eq!(count(sf.dead_letters().target("test.hea")).await, "0");
    assert_eq!(count(sf.dead_letters().event_type("test.tagged")).await, "4");
    assert_eq!(count(sf.dead_letters().event_type("test.other")).await, "0");
    assert_eq!(count(sf.dead_letters().ordering_key("k")).await, "2");
    assert_eq!(count(sf.dead_letters().code("refused")).await, "4");
    assert_eq!(count(sf.dead_letters().code("timeout")).await, "0");
    assert_eq!(
        count(sf.deliveries().published_within(Duration::from_secs(60))).await,
        "6"
    );
    let (later, clock) = harness.another_with_clock().await;
    clock.set_offset(Duration::from_secs(7200));
    assert_eq!(
        count(later.deliveries().published_within(Duration::from_secs(3600))).await,
        "0"
    );
    assert_eq!(
        count(later.deliveries().published_within(Duration::from_secs(10_000))).await,
        "6"
    );

    let mut places = HashSet::new();
    let mut next = None;
    loop {
        let mut list = sf.deliveries().limit(2);
        if let Some(last) = next {
            list = list.after(last);
        }
        let page = list.page().await.unwrap();
        assert!(
            page.deliveries
                .iter()
                .all(|delivery| places.insert(delivery.place().to_string()))
        );
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(places.len(), 6);
    let failure = sf.dead_letters().page().await.unwrap().deliveries[0]
        .last_failure
        .clone()
        .unwrap();
    assert_eq!(
        (&*failure.code, &*failure.message),
        ("refused", "order 17 of test.hear is no good")
    );
}

#[tokio::test]
async fn dead_letters_are_grouped_by_how_they_failed() {
    let harness = fresh::<Db>().await;
    let world = World::refuses(&["bad"]);
    world.reacts(&harness.sf, "test.hear");
    world.reacts(&harness.sf, "test.listen");
    harness.sf.declare().await.unwrap();
    let sf = &harness.sf;
    let first = say(sf, &tagged("bad")).await;
    say(sf, &tagged("bad")).await;
    sf.drain().await.unwrap();
    sf.delivery(first, "test.listen").discard("ann", "no").await.unwrap();
    let groups = sf.dead_letters().groups().await.unwrap();
    assert_eq!(groups.len(), 2);
    assert_eq!((groups[0].count, &*groups[0].code), (2, "refused"));
    assert_eq!(groups[0].targets, ["test.hear"]);
    assert_eq!(groups[0].example, first);
    assert_eq!(groups[0].message, "order 17 of test.hear is no good");
    assert!(groups[0].first_at <= groups[0].last_at);
    assert_eq!(groups[1].targets, ["test.listen"]);
    let one = sf
        .dead_letters()
        .fingerprint(&groups[1].fingerprint)
        .page()
        .await
        .unwrap();
    assert_eq!(one.deliveries.len(), 1);
    let filtered = sf.dead_letters().target("test.listen").groups().await.unwrap();
    assert_eq!(filtered.len(), 1);
}

#[tokio::test]
async fn a_message_is_found_by_the_beginning_of_its_id() {
    let harness = fresh::<Db>().await;
    let id = say(&harness.sf, &tagged("a")).await;
    let text = id.to_string();
    for prefix in [&text[..18], &text, &text.replace('-', "")] {
        assert_eq!(harness.sf.messages_beginning(prefix).await.unwrap(), [id], "{prefix}");
    }
    assert!(harness.sf.messages_beginning("ffff").await.unwrap().is_empty());
    assert_eq!(
        harness.sf.messages_beginning("xyz").await.unwrap_err().code(),
        Code::InputInvalid
    );
}

#[tokio::test]
async fn a_paused_target_gets_nothing_until_it_is_resumed() {
    let harness = fresh::<Db>().await;
    let world = World::default();
    world.reacts(&harness.sf, "test.hear");
    harness.sf.declare().await.unwrap();
    let sf = &harness.sf;
    sf.pause_target("test.hear", "ann", "the other side is down")
        .await
        .unwrap();
    let id = say(sf, &tagged("a")).await;
    assert_eq!(sf.drain().await.unwrap(), 0);
    let why = sf.why(id).await.unwrap().unwrap();
    let reason = &why.deliveries[0].reasons[0];
    assert_eq!(reason.word, WhyWord::Paused);
    assert!(
        reason.what.contains("paused by ann") && reason.what.ends_with("the other side is down"),
        "{}",
        reason.what
    );
    let listed = sf.targets().await.unwrap();
    assert_eq!(listed[0].paused.as_ref().unwrap().by, "ann");
    assert_eq!((&*listed[0].patterns[0], listed[0].is_known), ("test.tagged", true));
    assert_eq!(listed[0].waiting.to_string(), "1");
    sf.resume_target("test.hear", "ann", "it is back").await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 1);
    let actions: Vec<_> = audited(&harness).await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["target.pause", "target.resume"]);
    let refused = sf.pause_target("test.heer", "ann", "x").await.unwrap_err();
    assert_eq!(refused.code(), Code::InputInvalid);
    assert!(refused.to_string().contains("did you mean `test.hear`?"), "{refused}");
}

/// The second version of an event.
#[derive(Serialize, Deserialize)]
struct Renewed {
    tag: String,
}

impl Event for Renewed {
    const TYPE: &'static str = "test.renewed";
    const VERSION: u32 = 2;
}

#[tokio::test]
async fn every_version_of_an_event_goes_by_the_name_of_its_target() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    let refuse = |_: &EventCx, _: Renewed| async { Err(Failure::definitive(FailureClass::BusinessRule, "no", "no")) };
    sf.reaction::<Renewed>("test.renew").run_outside(refuse);
    sf.declare().await.unwrap();
    sf.pause_target("test.renew", "ann", "wait").await.unwrap();
    let event = Renewed { tag: "a".to_owned() };
    let id = sf.transact(async |tx| Ok(tx.publish(&event)?)).await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 0);
    assert_eq!(words(sf, id).await, [WhyWord::Paused]);
    sf.resume_target("test.renew", "ann", "go").await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 1);
    let dead = sf.dead_letters().target("test.renew").page().await.unwrap();
    assert_eq!(
        (&*dead.deliveries[0].target, &*dead.deliveries[0].kind),
        ("test.renew", "test.renew@2")
    );
    assert_eq!(sf.targets().await.unwrap()[0].dead.to_string(), "1");
    sf.delivery(id, "test.renew").requeue("ann", "again").await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 1);
    sf.delivery(id, "test.renew").discard("ann", "enough").await.unwrap();
    assert_eq!(words(sf, id).await, [WhyWord::Discarded]);
}

/// What it was before.
#[derive(Serialize, Deserialize)]
struct Old {
    tag: String,
}

impl Event for Old {
    const TYPE: &'static str = "test.renewed";
}

#[tokio::test]
async fn a_version_that_is_deployed_while_its_target_is_paused_is_paused_too() {
    let harness = fresh::<Db>().await;
    let before = harness.another().await;
    before
        .reaction::<Old>("test.renew")
        .run_outside(|_: &EventCx, _: Old| async { Ok(()) });
    before.declare().await.unwrap();
    before.pause_target("test.renew", "ann", "wait").await.unwrap();
    let sf = &harness.sf;
    sf.reaction::<Renewed>("test.renew")
        .run_outside(|_: &EventCx, _: Renewed| async { Ok(()) });
    sf.declare().await.unwrap();
    let event = Renewed { tag: "a".to_owned() };
    let id = sf.transact(async |tx| Ok(tx.publish(&event)?)).await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 0);
    assert_eq!(words(sf, id).await, [WhyWord::Paused]);
    sf.resume_target("test.renew", "ann", "go").await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 1);
}

#[tokio::test]
async fn a_target_is_removed_when_nobody_knows_it_and_nothing_waits_for_it() {
    let harness = fresh::<Db>().await;
    let world = World::default();
    let (sf, clock) = harness.another_with_clock().await;
    world.reacts(&sf, "test.hear");
    sf.declare().await.unwrap();
    let id = say(&sf, &tagged("a")).await;
    let refused = sf.remove_target("test.hear", "ann", "gone").await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
    assert!(refused.what().contains("would declare it again"), "{refused}");
    clock.set_offset(Duration::from_secs(121));
    let refused = sf.remove_target("test.hear", "ann", "gone").await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
    assert!(refused.help().contains("outbox skip --target test.hear"), "{refused}");
    sf.delivery(id, "test.hear").skip("ann", "gone").await.unwrap();
    sf.remove_target("test.hear", "ann", "gone").await.unwrap();
    let id = say(&sf, &tagged("b")).await;
    assert_eq!(rows(&harness, "queue").await, 0, "no new deliveries are written for it");
    let why = sf.why(id).await.unwrap().unwrap();
    assert_eq!(why.no_target.unwrap().word, WhyWord::NoTarget);
    assert!(sf.targets().await.unwrap().is_empty());
    assert_eq!(audited(&harness).await.last().unwrap().0, "target.remove");
    let unknown = sf.remove_target("test.hear", "ann", "gone").await.unwrap_err();
    assert_eq!(unknown.code(), Code::InputInvalid);
}

/// The words of the reasons of a message's first delivery.
async fn words(sf: &Steadfast<Db>, id: MessageId) -> Vec<WhyWord> {
    let why = sf.why(id).await.unwrap().unwrap();
    why.deliveries[0].reasons.iter().map(|reason| reason.word).collect()
}

#[tokio::test]
async fn why_names_everything_that_keeps_a_delivery() {
    let (harness, world, ids) = tried(&["1", "late"], &["1", "2"]).await;
    let sf = &harness.sf;
    assert_eq!(words(sf, ids[0]).await, [WhyWord::Dead]);
    let why = sf.why(ids[0]).await.unwrap().unwrap();
    let dead = &why.deliveries[0].reasons[0];
    assert!(
        dead.what.contains("after 1 attempt: refused: order 17 of test.hear"),
        "{}",
        dead.what
    );
    assert!(
        dead.remedy.contains(&format!("dead requeue {}", ids[0])),
        "{}",
        dead.remedy
    );
    assert_eq!(words(sf, ids[1]).await, [WhyWord::Behind]);
    let why = sf.why(ids[1]).await.unwrap().unwrap();
    let behind = &why.deliveries[0].reasons[0];
    assert_eq!(
        behind.what,
        format!("it is behind message {} in the order of the key \"k\"", ids[0])
    );

    let ready = say(sf, &tagged("3")).await;
    assert_eq!(words(sf, ready).await, [WhyWord::Ready]);
    let (breakers, queue, kinds) = (Db::table("breakers"), Db::table("queue"), Db::table("kinds"));
    let (soon, later) = if Db::IS_SQLITE {
        ("unixepoch() * 1000000 + 60000000", "unixepoch() * 1000000 + 3600000000")
    } else {
        ("now() + interval '1 minute'", "now() + interval '1 hour'")
    };
    harness
        .run(&format!(
            "INSERT INTO {breakers} (name, state, until, openings, epoch) VALUES ('test.hear', 'open', {soon}, 1, 1)"
        ))
        .await;
    assert_eq!(words(sf, ready).await, [WhyWord::BreakerOpen]);
    harness.run(&format!("UPDATE {breakers} SET state = 'closed'")).await;
    harness
        .run(&format!(
            "UPDATE {queue} SET due_at = {later}, visible_at = {later} WHERE item = '{ready}'"
        ))
        .await;
    assert_eq!(words(sf, ready).await, [WhyWord::NotDue]);

    let (old, clock) = harness.another_with_clock().await;
    clock.set_offset(Duration::from_secs(180));
    assert_eq!(words(&old, ready).await, [WhyWord::UnknownKind, WhyWord::NotDue]);
    harness.run(&format!("DELETE FROM {kinds}")).await;
    let why = sf.why(ready).await.unwrap().unwrap();
    assert_eq!(why.deliveries[0].reasons[0].what, "no node has ever known test.hear");
    sf.declare().await.unwrap();
    sf.delivery(ready, "test.hear").skip("ann", "not needed").await.unwrap();
    let why = sf.why(ready).await.unwrap().unwrap();
    let skipped = &why.deliveries[0].reasons[0];
    assert!(skipped.what.ends_with(": not needed"), "{}", skipped.what);
    world.heals();
    sf.delivery(ids[0], "test.hear").discard("ann", "no").await.unwrap();
    assert_eq!(words(sf, ids[0]).await, [WhyWord::Discarded]);
    sf.drain().await.unwrap();
    assert_eq!(words(sf, ids[1]).await, [WhyWord::Delivered]);
    let nobody: MessageId = "01890000-0000-7000-8000-000000000000".parse().unwrap();
    assert!(sf.why(nobody).await.unwrap().is_none());
}

#[tokio::test]
async fn why_tells_a_lease_that_has_expired_and_a_message_that_has() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let builder = builder.clock(clock.clone()).dispatcher(Dispatcher::default());
    let sf = builder.build().await.unwrap();
    World::default().reacts(&sf, "test.hear");
    sf.declare().await.unwrap();
    let id = say(&sf, &tagged("a")).await;
    let (queue, messages) = (Db::table("queue"), Db::table("messages"));
    let past = if Db::IS_SQLITE { "1000" } else { "'1970-01-02'" };
    harness.run(&format!("UPDATE {messages} SET expires_at = {past}")).await;
    assert_eq!(words(&sf, id).await, [WhyWord::Expired]);
    harness
        .run(&format!(
            "UPDATE {queue} SET state = 'leased', token = 1, holder = 'node-1', leased_until = {past}"
        ))
        .await;
    assert_eq!(words(&sf, id).await, [WhyWord::LeaseExpired]);
}

#[tokio::test]
async fn a_dead_delivery_that_made_room_is_requeued_out_of_order() {
    let harness = fresh::<Db>().await;
    let world = World::refuses(&["1"]);
    world.reacts_with(&harness.sf, "test.hear", OnDead::Skip);
    harness.sf.declare().await.unwrap();
    let first = say(&harness.sf, &ordered("k", "1")).await;
    say(&harness.sf, &ordered("k", "2")).await;
    harness.sf.drain().await.unwrap();
    world.heals();
    harness
        .sf
        .delivery(first, "test.hear")
        .requeue("ann", "late")
        .await
        .unwrap();
    harness.sf.drain().await.unwrap();
    assert_eq!(world.taken(), ["test.hear:2", "test.hear:1"]);
}
