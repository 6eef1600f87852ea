//! A client: it asks until it has a final answer, as every good client does, and at times behaves badly on purpose.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::history::{Answer, Attempt, Command, Ended, Made, Mark, Operation, Purpose, USERS};
use crate::http::{Post, Response};
use crate::random::Random;
use crate::scene::{SHOPS, Scene};

/// How often a command is sent twice at once, one that has its answer is sent again, and one is sent with another body.
const DOUBLES: f64 = 0.05;
const REPEATS: f64 = 0.25;
const MUTATIONS: f64 = 0.05;
/// How often a key that somebody else has used is used, by another user or for the other operation.
const SHARED_KEYS: f64 = 0.1;
/// How often a request asks the lab for a failure, and how often a double asks to be held so long that it is met.
const FAULTS: f64 = 0.01;
const HELD_DOUBLES: f64 = 0.5;
/// How often a client hangs up before it can have heard anything.
const HANG_UPS: f64 = 0.01;

/// Failures of a handler after its write.
const HANDLER_FAULTS: [&str; 3] = ["panic", "fail=transient", "fail=definitive"];
const HOLD: &str = "hold=30ms";

/// How long a client waits for an answer, and after how long it hangs up in a hurry.
const PATIENCE: Duration = Duration::from_secs(2);
const HURRY: Duration = Duration::from_millis(15);

/// How long it waits before it asks again, the first time and at most.
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_MOST: Duration = Duration::from_millis(400);

/// How many of its commands a client remembers, to send them again: those of the last seconds.
const RECENT_MAX: usize = 48;

/// What is done when everything works again, to see that it does.
const LAST_TURNS: usize = 5;

pub(crate) struct Client {
    scene: Arc<Scene>,
    user: &'static str,
    random: Random,
    recent: VecDeque<Command>,
}

impl Client {
    pub(crate) fn new(scene: Arc<Scene>, number: u16) -> Self {
        let (user, _) = USERS[usize::from(number) % USERS.len()];
        let random = Random::new(scene.seed, 1_000 + u64::from(number));
        Self {
            scene,
            user,
            random,
            recent: VecDeque::new(),
        }
    }

    /// Sends commands until there are no more accidents, and then a few to see that all is well.
    pub(crate) async fn run(mut self) {
        while !self.scene.is_calm() {
            self.take_turn().await;
        }
        for _ in 0..LAST_TURNS {
            self.take_turn().await;
        }
    }

    async fn take_turn(&mut self) {
        let command = self.next_command();
        if self.random.chance(DOUBLES) {
            let (one, other) = (self.random.fork(), self.random.fork());
            tokio::join!(
                self.settle(&command, Purpose::Double, one),
                self.settle(&command, Purpose::Double, other)
            );
        } else {
            let random = self.random.fork();
            self.settle(&command, Purpose::Ask, random).await;
        }
        self.scene.finish_command();
        self.recent.push_back(command);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }

        let random = self.random.fork();
        let again = &self.recent[self.random.below(self.recent.len())];
        if self.random.chance(REPEATS) {
            self.settle(again, Purpose::Repeat, random).await;
        } else if self.random.chance(MUTATIONS) && again.operation == Operation::Order {
            // Not for payments: when the first is forgotten, the second is a command in its own right.
            self.settle(again, Purpose::Mutate, random).await;
        }
    }

    /// A wish that nobody had before, sometimes under a key that somebody has.
    fn next_command(&mut self) -> Command {
        let operation = self
            .random
            .pick(&[Operation::Order, Operation::Order, Operation::Payment]);
        let recorder = &self.scene.recorder;
        // The last one only, and only one that has a key of its own: so each key is shared once at most.
        let last = self.recent.back().filter(|last| last.has_own_key()).cloned();
        let Some(last) = last.filter(|_| self.random.chance(SHARED_KEYS)) else {
            return recorder.command(self.user, operation, None);
        };
        if self.random.chance(0.5) {
            let others: Vec<_> = USERS
                .iter()
                .map(|(user, _)| *user)
                .filter(|user| *user != last.user)
                .collect();
            return recorder.command(self.random.pick(&others), last.operation, Some(&last));
        }
        let other = match last.operation {
            Operation::Order => Operation::Payment,
            Operation::Payment => Operation::Order,
        };
        recorder.command(last.user, other, Some(&last))
    }

    /// Sends a command until there is a final answer.
    async fn settle(&self, command: &Command, purpose: Purpose, mut random: Random) {
        let scene = &self.scene;
        let episode = scene.recorder.episode();
        let mut backoff = BACKOFF_FIRST;
        loop {
            let shop = random.below(SHOPS);
            let fault = self.next_fault(purpose, &mut random);
            let patience = if !scene.is_calm() && random.chance(HANG_UPS) {
                random.between(Duration::ZERO, HURRY)
            } else {
                PATIENCE
            };
            let from = scene.recorder.now();
            let ended = self.send(command, purpose, shop, fault, patience).await;
            let attempt = Attempt {
                command: command.number,
                episode,
                purpose,
                shop,
                fault,
                from,
                to: scene.recorder.now(),
                ended,
            };
            let is_final = attempt.is_final();
            scene.recorder.attempt(attempt);
            if is_final || scene.is_hopeless() {
                return;
            }
            sleep(random.between(Duration::ZERO, backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MOST);
        }
    }

    /// What the lab shall let happen: only to what will be executed, for a replay reaches no handler.
    fn next_fault(&self, purpose: Purpose, random: &mut Random) -> Option<&'static str> {
        if self.scene.is_calm() || !matches!(purpose, Purpose::Ask | Purpose::Double) {
            return None;
        }
        let doom = self.scene.take_doom();
        let hold = (purpose == Purpose::Double && random.chance(HELD_DOUBLES)).then_some(HOLD);
        let failure = random.chance(FAULTS).then(|| random.pick(&HANDLER_FAULTS));
        doom.or(failure).or(hold)
    }

    async fn send(
        &self,
        command: &Command,
        purpose: Purpose,
        shop: usize,
        fault: Option<&'static str>,
        patience: Duration,
    ) -> Ended {
        let Some(address) = self.scene.shops[shop].address() else {
            return Ended::Lost("the shop has never opened".to_owned());
        };
        let token = format!("Bearer {}", command.user);
        let mut headers = vec![("Authorization", token.as_str()), ("Idempotency-Key", &command.key)];
        headers.extend(fault.map(|fault| ("Shop-Fault", fault)));
        let post = Post {
            path: command.operation.path(),
            headers: &headers,
            body: &body(command, purpose),
        };
        match post.send(address, patience).await {
            Ok(response) => Ended::Answered(read(&response)),
            Err(error) => Ended::Lost(error.to_string()),
        }
    }
}

fn body(command: &Command, purpose: Purpose) -> String {
    let mark = match purpose {
        Purpose::Mutate => Mark::OfMutated(command.number),
        _ => command.mark,
    };
    let body = match command.operation {
        Operation::Order => json!({ "sku": mark.write(), "quantity": 1 }),
        Operation::Payment => json!({ "amount": 100, "currency": "EUR", "description": mark.write() }),
    };
    body.to_string()
}

fn read(response: &Response) -> Answer {
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let text = |name: &str| body[name].as_str().map(str::to_owned);
    let mut hasher = DefaultHasher::new();
    let stored = ["content-type", "location"].map(|name| response.header(name));
    (response.status, stored, &response.body).hash(&mut hasher);
    Answer {
        status: response.status,
        is_replayed: response.header("idempotent-replayed") == Some("true"),
        hash: hasher.finish(),
        code: text("code"),
        made: text("id").zip(text("owner")).map(|(id, user)| Made {
            id,
            user,
            mark: text("sku").or_else(|| text("description")).unwrap_or_default(),
        }),
    }
}
