//! From an outbox over a bus to an inbox, as a model of its own, and every state that it can get into.
//!
//! Two services publish a message each, and both give theirs the same id. The bus loses what it has not confirmed, has messages twice,
//! and hands out again what nobody acknowledged. Two nodes of the consumer receive; each may die at any moment, or fail. What is kept
//! is worked on by the engine of leased rows, whose own model is beside this one: here it is one step.
//!
//! Each twin lacks one thing, and falls.

use stateright::{Checker, Model, Property};

/// How much may go wrong: crashes, failures, losses and duplicates, in any mixture and order.
const BLOWS: u8 = 4;

/// A message: those of both services have the same id.
type Message = usize;
type Node = usize;

const ONCE: &str = "a message acts once at the most";
const REST: &str = "what was published has acted when everything is at rest";
const NO_EARLY_ACK: &str = "what is acknowledged has acted, or is kept";
const ALL_ACT: &str = "both messages act";

/// What a twin of the inbox does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// It looks whether there is a record, and writes one with the effect, without a constraint that it is the only one.
    ChecksThenActs,
    /// It acknowledges what it receives, and handles it then.
    AcksFirst,
    /// Its records have the id of a message, and not its source.
    IdWithoutSource,
    /// It keeps what has failed without a record.
    KeepsWithoutRecord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outbox {
    Unpublished,
    /// In the commit of whatever it is about.
    Published,
    /// The bus has confirmed it.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Received,
    /// The transaction is open, and has the record.
    Claimed,
    /// It is durable that it was handled, or that it is kept; or it was handled before.
    Safe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    message: Message,
    stage: Stage,
    /// Whether it goes the way of what is kept: it came before, or it has failed.
    is_for_later: bool,
    is_acked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    outbox: [Outbox; 2],
    /// Copies that wait on the bus: new ones, and those that were handed out before.
    new: [u8; 2],
    again: [u8; 2],
    nodes: [Option<Held>; 2],
    records: [bool; 2],
    /// Rows of the queue.
    kept: [bool; 2],
    effects: [u8; 2],
    acked: [bool; 2],
    blows_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Publish(Message),
    /// The bus has it, and says so.
    Send(Message),
    /// The bus has it, and its word is lost.
    SendUnheard(Message),
    Duplicate(Message),
    Receive(Node, Message),
    ReceiveAgain(Node, Message),
    Claim(Node),
    Fail(Node),
    Commit(Node),
    Keep(Node),
    Ack(Node),
    Crash(Node),
    /// The engine works on what is kept.
    Work(Message),
}

#[derive(Clone, Copy, Debug)]
struct Way {
    flaw: Option<Flaw>,
    blows: u8,
}

impl Way {
    fn has(self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The record of a message.
    fn key(self, message: Message) -> usize {
        if self.has(Flaw::IdWithoutSource) { 0 } else { message }
    }

    /// Whether another node has the record of this message in a transaction that is open: whoever wants it waits.
    fn has_to_wait(self, world: &World, node: Node, message: Message) -> bool {
        let other = world.nodes[1 - node];
        let is_claimed =
            other.is_some_and(|held| held.stage == Stage::Claimed && self.key(held.message) == self.key(message));
        is_claimed && !self.has(Flaw::ChecksThenActs)
    }

    fn offer_node(self, world: &World, node: Node, actions: &mut Vec<Action>) {
        let Some(held) = world.nodes[node] else {
            for message in 0..2 {
                if world.new[message] > 0 {
                    actions.push(Action::Receive(node, message));
                }
                if world.again[message] > 0 {
                    actions.push(Action::ReceiveAgain(node, message));
                }
            }
            return;
        };
        if world.blows_left > 0 {
            actions.push(Action::Crash(node));
        }
        match held.stage {
            Stage::Received if self.has(Flaw::AcksFirst) && !held.is_acked => actions.push(Action::Ack(node)),
            Stage::Received if self.has_to_wait(world, node, held.message) => {}
            Stage::Received if held.is_for_later => actions.push(Action::Keep(node)),
            Stage::Received => actions.push(Action::Claim(node)),
            Stage::Claimed => {
                actions.push(Action::Commit(node));
                if world.blows_left > 0 {
                    actions.push(Action::Fail(node));
                }
            }
            Stage::Safe => actions.push(Action::Ack(node)),
        }
    }
}

impl Model for Way {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            outbox: [Outbox::Unpublished; 2],
            new: [0; 2],
            again: [0; 2],
            nodes: [None; 2],
            records: [false; 2],
            kept: [false; 2],
            effects: [0; 2],
            acked: [false; 2],
            blows_left: self.blows,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for message in 0..2 {
            match world.outbox[message] {
                Outbox::Unpublished => actions.push(Action::Publish(message)),
                Outbox::Published => {
                    actions.push(Action::Send(message));
                    if world.blows_left > 0 {
                        actions.push(Action::SendUnheard(message));
                    }
                }
                Outbox::Sent => {}
            }
            if world.new[message] > 0 && world.blows_left > 0 {
                actions.push(Action::Duplicate(message));
            }
            if world.kept[message] {
                actions.push(Action::Work(message));
            }
        }
        for node in 0..2 {
            self.offer_node(world, node, actions);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Publish(message) => world.outbox[message] = Outbox::Published,
            Action::Send(message) => {
                world.outbox[message] = Outbox::Sent;
                world.new[message] += 1;
            }
            Action::SendUnheard(message) | Action::Duplicate(message) => {
                world.new[message] += 1;
                world.blows_left -= 1;
            }
            Action::Receive(node, message) => {
                world.new[message] -= 1;
                world.nodes[node] = Some(received(message, false));
            }
            Action::ReceiveAgain(node, message) => {
                world.again[message] -= 1;
                world.nodes[node] = Some(received(message, true));
            }
            Action::Work(message) => {
                world.kept[message] = false;
                world.effects[message] += 1;
            }
            Action::Claim(node) | Action::Keep(node) | Action::Commit(node) | Action::Fail(node) => {
                self.handle(&mut world, node, action)?;
            }
            Action::Ack(node) => {
                let held = world.nodes[node].as_mut()?;
                world.acked[held.message] = true;
                match held.stage {
                    Stage::Received => held.is_acked = true,
                    _ => world.nodes[node] = None,
                }
            }
            Action::Crash(node) => {
                let held = world.nodes[node].take()?;
                world.again[held.message] += u8::from(!held.is_acked);
                world.blows_left -= 1;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, world: &World| {
                world.effects.iter().all(|effects| *effects <= 1)
            }),
            Property::always(REST, |way: &Way, world: &World| {
                let mut actions = Vec::new();
                way.actions(world, &mut actions);
                !actions.is_empty() || world.effects.iter().all(|effects| *effects == 1)
            }),
            Property::always(NO_EARLY_ACK, |_, world: &World| {
                (0..2).all(|message| !world.acked[message] || world.effects[message] > 0 || world.kept[message])
            }),
            Property::sometimes(ALL_ACT, |_, world: &World| world.effects == [1, 1]),
        ]
    }
}

fn received(message: Message, is_for_later: bool) -> Held {
    Held {
        message,
        stage: Stage::Received,
        is_for_later,
        is_acked: false,
    }
}

impl Way {
    fn handle(self, world: &mut World, node: Node, action: Action) -> Option<()> {
        let held = world.nodes[node]?;
        let key = self.key(held.message);
        let stage = match action {
            // A duplicate is safe: what it would do is done.
            Action::Claim(_) | Action::Keep(_) if world.records[key] => Stage::Safe,
            Action::Claim(_) => Stage::Claimed,
            Action::Keep(_) => {
                world.records[key] |= !self.has(Flaw::KeepsWithoutRecord);
                world.kept[held.message] = true;
                Stage::Safe
            }
            Action::Commit(_) => {
                world.records[key] = true;
                world.effects[held.message] += 1;
                Stage::Safe
            }
            _ => {
                world.blows_left -= 1;
                Stage::Received
            }
        };
        world.nodes[node] = Some(Held {
            stage,
            is_for_later: held.is_for_later || matches!(action, Action::Fail(_)),
            ..held
        });
        Some(())
    }
}

fn every_state_of(way: Way) -> impl Checker<Way> {
    let checker = way.checker().spawn_dfs().join();
    println!("{} states: {way:?}", checker.unique_state_count());
    checker
}

fn twin(flaw: Flaw) -> impl Checker<Way> {
    every_state_of(Way {
        flaw: Some(flaw),
        blows: BLOWS,
    })
}

#[test]
fn a_message_acts_once_whatever_the_bus_and_the_nodes_do() {
    every_state_of(Way {
        flaw: None,
        blows: BLOWS,
    })
    .assert_properties();
}

#[test]
fn an_inbox_that_checks_and_then_acts_acts_twice() {
    twin(Flaw::ChecksThenActs).assert_any_discovery(ONCE);
}

#[test]
fn an_inbox_that_acknowledges_before_its_commit_loses_messages() {
    let checker = twin(Flaw::AcksFirst);
    checker.assert_any_discovery(REST);
    checker.assert_any_discovery(NO_EARLY_ACK);
}

#[test]
fn an_inbox_that_knows_ids_without_their_source_loses_messages() {
    let checker = twin(Flaw::IdWithoutSource);
    checker.assert_any_discovery(REST);
    // Nothing has to go wrong for that.
    let lucky = every_state_of(Way {
        flaw: Some(Flaw::IdWithoutSource),
        blows: 0,
    });
    lucky.assert_any_discovery(REST);
}

#[test]
fn an_inbox_that_keeps_without_a_record_acts_twice() {
    twin(Flaw::KeepsWithoutRecord).assert_any_discovery(ONCE);
}
