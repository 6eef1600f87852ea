//! Histories that are good, and each with one thing wrong: the checker must see that, and nothing else.

use super::*;
use crate::history::{Answer, Ended, Made, Operation, Purpose};

/// A history under construction, with its database.
struct World {
    history: History,
    snapshot: Snapshot,
}

impl World {
    fn new() -> Self {
        let history = History {
            calm: Some(1_000_000),
            ..History::default()
        };
        Self {
            history,
            snapshot: Snapshot::default(),
        }
    }

    fn command(&mut self, user: &'static str, operation: Operation, key: &str) -> usize {
        let number = self.history.commands.len();
        self.history.commands.push(Command {
            number,
            user,
            operation,
            key: key.into(),
            mark: Mark::Of(number),
        });
        number
    }

    /// An order of user-a that was executed and answered, with its rows.
    fn order(&mut self) -> usize {
        let number = self.command("user-a", Operation::Order, "key");
        self.effect(number, "id-1", 0);
        self.key(number, "id-1");
        self.attempt(number, made(number, "id-1"));
        number
    }

    fn effect(&mut self, number: usize, id: &str, at_ms: i64) {
        let command = &self.history.commands[number];
        if command.operation.name() == ORDERS {
            self.snapshot.reserved.push(id.into());
        }
        self.snapshot.effects.push(Effect {
            operation: command.operation.name().into(),
            id: id.into(),
            tenant: tenant_of(command.user).into(),
            owner: command.user.into(),
            mark: command.mark.write(),
            at_ms,
        });
    }

    fn key(&mut self, number: usize, id: &str) {
        let command = &self.history.commands[number];
        self.snapshot.keys.push(Key {
            operation: command.operation.name().into(),
            tenant: tenant_of(command.user).into(),
            owner: command.user.into(),
            value: command.key.clone(),
            id: Some(id.into()),
            is_live: true,
        });
    }

    /// Each attempt takes ten microseconds and is an episode of its own.
    fn attempt(&mut self, command: usize, answer: Answer) -> &mut Attempt {
        let number = self.history.attempts.len() as u64;
        self.history.attempts.push(Attempt {
            command,
            episode: number,
            purpose: Purpose::Ask,
            shop: 0,
            fault: None,
            from: number * 20,
            to: number * 20 + 10,
            ended: Ended::Answered(answer),
        });
        self.history.attempts.last_mut().expect("just pushed")
    }

    fn broken(&self) -> Vec<&'static str> {
        let commands = judge(&self.history, &self.snapshot);
        (commands.iter().chain(&judge_deliveries(&self.snapshot)))
            .map(|violation| violation.rule)
            .collect()
    }
}

/// A success of user-a.
fn made(number: usize, id: &str) -> Answer {
    Answer {
        status: 201,
        is_replayed: false,
        hash: 1,
        code: None,
        made: Some(Made {
            id: id.into(),
            user: "user-a".into(),
            mark: Mark::Of(number).write(),
        }),
    }
}

fn replayed(number: usize, id: &str) -> Answer {
    Answer {
        is_replayed: true,
        ..made(number, id)
    }
}

fn refused(status: u16, code: &str) -> Answer {
    Answer {
        status,
        is_replayed: false,
        hash: 2,
        code: Some(code.into()),
        made: None,
    }
}

#[test]
fn a_good_history_is_good() {
    let mut world = World::new();
    let order = world.order();
    world.attempt(order, refused(409, "SF103")).episode = 0;
    world.attempt(order, replayed(order, "id-1"));
    world.attempt(order, refused(422, "SF104")).purpose = Purpose::Mutate;
    // The same key value is free to other users and operations, even for the same bytes.
    let other = world.command("user-b", Operation::Order, "key");
    world.history.commands[other].mark = Mark::Of(order);
    world.effect(other, "id-2", 0);
    world.key(other, "id-2");
    let lost = Ended::Lost("timed out".into());
    let attempt = world.attempt(other, made(order, "id-2"));
    (attempt.ended, attempt.episode) = (lost, 7);
    let attempt = world.attempt(other, replayed(order, "id-2"));
    attempt.episode = 7;
    if let Ended::Answered(Answer { made: Some(made), .. }) = &mut attempt.ended {
        made.user = "user-b".into();
    }
    // A panic that was asked for, and then an execution.
    let third = world.command("user-a", Operation::Order, "third");
    world.effect(third, "id-3", 5);
    world.key(third, "id-3");
    let attempt = world.attempt(third, refused(500, "SF029"));
    (attempt.fault, attempt.episode) = (Some("panic"), 9);
    world.attempt(third, made(third, "id-3")).episode = 9;
    assert_eq!(world.broken(), [""; 0]);
}

#[test]
fn a_doubled_effect_is_seen() {
    let mut world = World::new();
    let order = world.order();
    world.effect(order, "id-2", 3_000);
    let broken = world.broken();
    assert!(broken.contains(&"IDEM-1") && broken.contains(&"IDEM-4"), "{broken:?}");
}

#[test]
fn a_lost_effect_that_was_acknowledged_is_seen() {
    let mut world = World::new();
    world.order();
    world.snapshot.effects.clear();
    world.snapshot.keys.clear();
    world.snapshot.reserved.clear();
    assert_eq!(world.broken(), ["IDEM-3"]);
}

#[test]
fn an_order_whose_event_is_lost_doubled_or_made_up_is_seen() {
    let mut world = World::new();
    world.order();
    world.snapshot.dead.push("id-1".into());
    assert_eq!(world.broken(), ["OUT-4"]);
    world.snapshot.reserved.clear();
    assert_eq!(world.broken(), [""; 0], "a dead letter is not lost");
    world.snapshot.dead.clear();
    assert_eq!(world.broken(), ["OUT-2"]);
    world.snapshot.reserved = vec!["id-1".into(), "id-1".into()];
    assert_eq!(world.broken(), ["OUT-4"]);
    world.snapshot.reserved = vec!["id-1".into(), "id-7".into()];
    assert_eq!(world.broken(), ["OUT-3"]);
}

#[test]
fn answers_that_differ_are_seen() {
    let mut world = World::new();
    let order = world.order();
    let other = Answer {
        hash: 3,
        ..replayed(order, "id-1")
    };
    world.attempt(order, other);
    assert_eq!(world.broken(), ["IDEM-2"]);
}

#[test]
fn a_repetition_that_says_it_is_the_first_is_seen() {
    let mut world = World::new();
    let order = world.order();
    world.attempt(order, made(order, "id-1"));
    assert_eq!(world.broken(), ["IDEM-2"]);
    // Even if the first answer was found by its own retry.
    world.history.attempts[0].ended = Ended::Answered(replayed(order, "id-1"));
    assert_eq!(world.broken(), ["IDEM-2"]);
}

#[test]
fn an_answer_leaked_to_another_user_is_seen() {
    let mut world = World::new();
    let order = world.order();
    let other = world.command("user-b", Operation::Order, "key");
    world.history.commands[other].mark = Mark::Of(order);
    world.attempt(other, replayed(order, "id-1"));
    let broken = world.broken();
    assert!(broken.contains(&"IDEM-6") && broken.contains(&"IDEM-3"), "{broken:?}");
}

#[test]
fn an_effect_made_for_another_user_is_seen() {
    let mut world = World::new();
    world.order();
    world.snapshot.effects[0].owner = "user-b".into();
    assert_eq!(world.broken(), ["IDEM-1", "IDEM-3", "IDEM-4"]);
}

#[test]
fn an_effect_or_an_answer_of_another_body_is_seen() {
    let mut world = World::new();
    let order = world.order();
    world.effect(order, "id-2", 0);
    world.snapshot.effects[1].mark = Mark::OfMutated(order).write();
    assert_eq!(world.broken(), ["IDEM-5"]);
    world.snapshot.effects.pop();
    world.snapshot.reserved.pop();
    world.attempt(order, replayed(order, "id-1")).purpose = Purpose::Mutate;
    assert_eq!(world.broken(), ["IDEM-5"]);
}

#[test]
fn a_key_that_is_stuck_is_seen() {
    let mut world = World::new();
    let order = world.order();
    let attempt = world.attempt(order, refused(409, "SF103"));
    (attempt.from, attempt.to) = (900_000, 900_010);
    assert_eq!(world.broken(), ["IDEM-9"]);
    let attempt = world.attempt(order, replayed(order, "id-1"));
    (attempt.episode, attempt.to) = (1, 5_900_000);
    assert_eq!(world.broken(), [""; 0], "an answer 4.9 s after the calm is in time");
    world.history.attempts[2].to = 6_100_000;
    assert_eq!(world.broken(), ["IDEM-9"]);
}

#[test]
fn an_effect_without_its_key_and_a_key_without_its_effect_are_seen() {
    let mut world = World::new();
    world.order();
    let key = world.snapshot.keys.pop().expect("a key");
    assert_eq!(world.broken(), ["IDEM-4"]);
    world.snapshot.keys.push(Key {
        is_live: false,
        ..key.clone()
    });
    assert_eq!(world.broken(), ["IDEM-4"], "nor may it expire early");
    world.snapshot.keys[0] = key;
    world.history.attempts.clear();
    world.snapshot.effects.clear();
    world.snapshot.reserved.clear();
    assert_eq!(world.broken(), ["IDEM-4"]);
}

#[test]
fn rows_that_nobody_asked_for_are_seen() {
    let mut world = World::new();
    let order = world.order();
    world.effect(order, "id-2", 0);
    world.snapshot.effects[1].mark = "tea".into();
    assert_eq!(world.broken(), ["IDEM-1"]);
    world.snapshot.effects.pop();
    world.snapshot.reserved.pop();
    world.key(order, "id-1");
    world.snapshot.keys[1].owner = "user-c".into();
    assert_eq!(world.broken(), ["IDEM-4"]);
}

#[test]
fn a_refusal_or_a_failure_that_nobody_asked_for_is_seen() {
    for (status, code) in [(500, "SF120"), (422, "SF104"), (404, "not_found")] {
        let mut world = World::new();
        let order = world.order();
        world.attempt(order, refused(status, code)).episode = 0;
        assert_eq!(world.broken(), ["answers"], "{status}");
    }
}

#[test]
fn a_payment_may_be_made_again_when_its_retention_is_over_and_not_before() {
    let mut world = World::new();
    let payment = world.command("user-a", Operation::Payment, "key");
    world.effect(payment, "id-1", 0);
    world.effect(payment, "id-2", 1_000);
    world.attempt(payment, made(payment, "id-1"));
    world.attempt(payment, replayed(payment, "id-1"));
    let again = Answer {
        hash: 5,
        ..made(payment, "id-2")
    };
    world.attempt(payment, again);
    assert_eq!(world.broken(), [""; 0], "the purge has taken the keys");
    world.snapshot.effects[1].at_ms = 500;
    assert_eq!(world.broken(), ["IDEM-1"]);
}
