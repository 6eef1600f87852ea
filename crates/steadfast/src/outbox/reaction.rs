//! Reactions: functions of this process that events are delivered to.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::TargetRow;
use super::cx::EventCx;
use super::event::Event;
use super::name;
use super::sink::Batcher;
use crate::clock::ReadDuration;
use crate::command::execute::{self, Handled, Handler, Verdict};
use crate::command::{AsyncReact, CommandOptions, Outcome};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureClass};
use crate::inbox;
use crate::queue::{Claimed, Ended, Work, WorkId, WorkOptions, WorkPoint};
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::tx::Tx;

/// How many deliveries are handed to a reaction at once that calls the outside, unless it says otherwise.
const OUTSIDE_CONCURRENCY: u32 = 64;

/// How many are on SQLite to one with a transaction. They take turns, and one COMMIT is for as many.
const TURNS: u32 = 32;

/// The future of a handler whose type is forgotten.
pub(crate) type HandlerFuture<'t> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 't>>;

/// What becomes of the events behind one that is dead, where they have an ordering key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// They wait until somebody requeues, skips or discards it.
    #[default]
    Wait,
    /// They go on without it. If it is requeued, it comes out of order.
    Skip,
}

/// What becomes of a message from elsewhere that comes once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// It is known by its record in the inbox, and dropped.
    #[default]
    Drop,
    /// It is handled once more, and there is no record: for what may happen any number of times.
    Allow,
}

/// A reaction that is being declared: [`Steadfast::reaction`].
#[must_use = "a reaction is there when it has a handler"]
pub struct Reaction<'r, Db: Database, E: Event> {
    sf: &'r Steadfast<Db>,
    name: String,
    retry: RetryPolicy,
    lease: Option<Duration>,
    concurrency: Option<u32>,
    on_dead: OnDead,
    duplicates: Duplicates,
    time_limit: Duration,
    location: &'static Location<'static>,
    event: PhantomData<fn(E)>,
}

impl<'r, Db: Database, E: Event> Reaction<'r, Db, E> {
    pub(crate) fn new(sf: &'r Steadfast<Db>, name: &str, location: &'static Location<'static>) -> Self {
        Self {
            sf,
            name: name.to_owned(),
            retry: RetryPolicy::default(),
            lease: None,
            concurrency: None,
            on_dead: OnDead::Wait,
            duplicates: Duplicates::Drop,
            time_limit: CommandOptions::default().time_limit,
            location,
            event: PhantomData,
        }
    }

    /// When it is tried again, and how often, before it is dead. A reaction has a key, so what ended unknown is tried again
    /// too.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// How long a delivery belongs to a process that says nothing any more; 30 seconds by default. It is renewed while the
    /// process lives, so it need not be longer than the handler takes.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn lease(mut self, lease: impl ReadDuration) -> Self {
        self.lease = Some(read(lease));
        self
    }

    /// How many deliveries are worked on at once in one process.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = Some(concurrency.max(1));
        self
    }

    /// What becomes of the events behind one that is dead.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// What becomes of a message that comes once more, if the events come from a [source](Steadfast::source); by default it is
    /// dropped.
    pub fn duplicates(mut self, duplicates: Duplicates) -> Self {
        self.duplicates = duplicates;
        self
    }

    /// How long one attempt may take; 30 seconds by default.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn time_limit(mut self, time_limit: impl ReadDuration) -> Self {
        self.time_limit = read(time_limit);
        self
    }

    /// Reacts in a transaction: what the handler writes, what it publishes and that the event was delivered commit as one.
    ///
    /// # Panics
    /// With SF305 if another reaction has the name.
    pub fn run<F>(self, handler: F)
    where
        for<'t> F: AsyncFn(&'t mut Tx<Db>, E) -> Result<(), Failure>
            + AsyncReact<&'t mut Tx<Db>, E, Result<(), Failure>, Fut: Send>
            + Send
            + Sync
            + 'static,
    {
        let call: InTx<Db> = Box::new(move |tx, payload| Ok(Box::pin(handler(tx, decode::<E>(payload)?))));
        self.register(Call::InTx(call));
    }

    /// Reacts without a transaction, to call the outside: hand [`EventCx::key`] on, for it may be called again.
    ///
    /// # Panics
    /// With SF305 if another reaction has the name.
    pub fn run_outside<F>(self, handler: F)
    where
        for<'t> F: AsyncFn(&'t EventCx, E) -> Result<(), Failure>
            + AsyncReact<&'t EventCx, E, Result<(), Failure>, Fut: Send>
            + Send
            + Sync
            + 'static,
    {
        let call: Outside = Box::new(move |cx| Ok(Box::pin(handler(cx, decode::<E>(&cx.message().payload)?))));
        self.register(Call::Outside(call));
    }

    /// [`run`](Self::run) with a handler that boxes its future by itself: what [`#[on]`](macro@crate::service) writes.
    #[doc(hidden)]
    pub fn run_boxed(self, handler: impl for<'t> Fn(&'t mut Tx<Db>, E) -> HandlerFuture<'t> + Send + Sync + 'static) {
        let call: InTx<Db> = Box::new(move |tx, payload| Ok(handler(tx, decode::<E>(payload)?)));
        self.register(Call::InTx(call));
    }

    /// [`run_outside`](Self::run_outside) with a handler that boxes its future by itself.
    #[doc(hidden)]
    pub fn run_outside_boxed(
        self,
        handler: impl for<'t> Fn(&'t EventCx, E) -> HandlerFuture<'t> + Send + Sync + 'static,
    ) {
        let call: Outside = Box::new(move |cx| Ok(handler(cx, decode::<E>(&cx.message().payload)?)));
        self.register(Call::Outside(call));
    }

    fn register(self, call: Call<Db>) {
        for (what, name) in [("an event", E::TYPE), ("a reaction", &self.name)] {
            if let Err(rule) = name::check(name) {
                let message = format!("{what} cannot be called {rule}");
                panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
            }
        }
        self.sf.sources().refuse(&self.name, self.location);
        let name: Arc<str> = self.name.into();
        let concurrency = self.concurrency.unwrap_or_else(|| match &call {
            Call::Outside(_) | Call::Sink(_) => OUTSIDE_CONCURRENCY,
            // Half of the pool is left to everybody else.
            Call::InTx(_) if Db::Store::NEEDS_ANNOUNCEMENTS => {
                (self.sf.pool().options().get_max_connections() / 2).clamp(1, TURNS)
            }
            Call::InTx(_) => TURNS,
        });
        let kinds = (1..=E::VERSION.max(1)).map(|version| kind(&name, version)).collect();
        self.sf.reactions().add(Reacting {
            name,
            kinds,
            wants: Wants::Type(E::TYPE),
            is_in_process: E::IN_PROCESS,
            options: WorkOptions {
                retry: self.retry.with_key(),
                lease: self.lease,
                concurrency,
                dead_make_room: self.on_dead == OnDead::Skip,
            },
            time_limit: self.time_limit,
            duplicates: self.duplicates,
            call,
            location: self.location,
        });
    }
}

pub(super) fn read(duration: impl ReadDuration) -> Duration {
    duration.read_duration().unwrap_or_else(|error| panic!("{error:?}"))
}

/// What a node must know to deliver an event of this version to the target.
pub(crate) fn kind(target: &str, version: u32) -> Arc<str> {
    match version {
        1 => target.into(),
        version => format!("{target}@{version}").into(),
    }
}

pub(crate) fn decode<E: Event>(payload: &[u8]) -> Result<E, Failure> {
    serde_json::from_slice(payload).map_err(|error| {
        let message = format!("the payload is no {} as this program knows it", E::TYPE);
        Failure::definitive(FailureClass::Validation, "undecodable", message).with_source(error)
    })
}

type InTx<Db> = Box<dyn for<'t> Fn(&'t mut Tx<Db>, &Bytes) -> Result<HandlerFuture<'t>, Failure> + Send + Sync>;
type Outside = Box<dyn for<'t> Fn(&'t EventCx) -> Result<HandlerFuture<'t>, Failure> + Send + Sync>;

pub(super) enum Call<Db: Database> {
    InTx(InTx<Db>),
    Outside(Outside),
    Sink(Arc<Batcher>),
}

/// Which events a target wants.
pub(super) enum Wants {
    /// Those of one type, whose versions it has to know.
    Type(&'static str),
    /// Those whose type fits, whatever they are.
    Patterns(Vec<String>),
}

/// A target of this process that is there: a reaction, or a sink.
pub(crate) struct Reacting<Db: Database> {
    pub(super) name: Arc<str>,
    pub(super) kinds: Vec<Arc<str>>,
    pub(super) wants: Wants,
    pub(super) is_in_process: bool,
    pub(super) options: WorkOptions,
    pub(super) time_limit: Duration,
    pub(super) duplicates: Duplicates,
    pub(super) call: Call<Db>,
    pub(super) location: &'static Location<'static>,
}

impl<Db: Database> Reacting<Db> {
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn retry(&self) -> &RetryPolicy {
        &self.options.retry
    }

    pub(crate) fn time_limit(&self) -> Duration {
        self.time_limit
    }

    /// Whether a message from elsewhere that comes once more is dropped.
    pub(crate) fn drops_duplicates(&self) -> bool {
        self.duplicates == Duplicates::Drop
    }

    /// Whether it can handle an event of this version in a transaction.
    pub(crate) fn can_handle(&self, version: u32) -> bool {
        matches!(self.call, Call::InTx(_)) && self.kinds.iter().any(|known| *known == kind(&self.name, version))
    }

    /// Calls the handler in a transaction.
    pub(crate) async fn handle(&self, tx: &mut Tx<Db>, cx: &EventCx) -> Result<(), Failure> {
        let Call::InTx(call) = &self.call else {
            unreachable!("only what reacts in a transaction is called in one")
        };
        tx.belongs_to(cx);
        call(tx, &cx.message().payload)?.await
    }

    /// One attempt. With a lease, its row leaves the queue in the transaction of the handler, if it has one.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        sf: &Steadfast<Db>,
        cx: &EventCx,
        claimed: Option<&Claimed>,
    ) -> Ended {
        if let Wants::Type(event_type) = self.wants
            && cx.event_type() != event_type
        {
            let message = format!("{} reacts to {event_type}, not to {}", self.name, cx.event_type());
            return Ended::Failed(Failure::definitive(FailureClass::Validation, "wrong_type", message));
        }
        let id = WorkId {
            item: cx.message().id,
            kind: &self.name,
            attempt: cx.attempt(),
        };
        sf.passes(WorkPoint::BeforeHandler, &id);
        match &self.call {
            Call::Outside(call) => {
                let working = async { call(cx)?.await };
                let ended = tokio::time::timeout(self.time_limit, working).await;
                sf.passes(WorkPoint::AfterHandler, &id);
                match ended.unwrap_or_else(|_| Err(out_of_time(self.time_limit))) {
                    Ok(()) => Ended::Done(None),
                    Err(failure) => Ended::Failed(failure),
                }
            }
            Call::Sink(batcher) => {
                let verdict = batcher.send(sf.tasks(), cx.clone()).await;
                sf.passes(WorkPoint::AfterHandler, &id);
                match verdict {
                    Ok(confirmation) => Ended::Done(confirmation.into_detail()),
                    Err(failure) => Ended::Failed(failure),
                }
            }
            Call::InTx(_) => {
                let options = CommandOptions {
                    time_limit: self.time_limit,
                    ..CommandOptions::default()
                };
                let handler = InTransaction {
                    reacting: self.clone(),
                    cx: cx.clone(),
                    sf: sf.clone(),
                };
                let lease = claimed.map(|claimed| &claimed.lease);
                // In a box of its own: who needs no transaction does not carry the room for one along.
                match Box::pin(execute::transact(sf, &options, lease, handler)).await {
                    Ok(Ok(())) => Ended::Settled,
                    Ok(Err(failure)) => Ended::Failed(failure),
                    Err(error) if error.code() == Code::LeaseLost => Ended::Lost,
                    Err(error) => Ended::Failed(rolled_back(error)),
                }
            }
        }
    }
}

/// What a handler with a transaction ended with, by the words that one without has. Nothing that it did is there.
pub(crate) fn rolled_back(error: Error) -> Failure {
    match error.code() {
        Code::HandlerPanicked => Failure::panicked(),
        Code::TimeLimit => Failure::transient("time_limit", error.to_string()),
        _ => error.into(),
    }
}

fn out_of_time(time_limit: Duration) -> Failure {
    Failure::unknown("time_limit", format!("the handler did not end within {time_limit:?}"))
}

impl<Db: Database> Work<Db> for Reacting<Db> {
    fn kinds(&self) -> &[Arc<str>] {
        &self.kinds
    }

    fn options(&self) -> &WorkOptions {
        &self.options
    }

    fn run(
        self: Arc<Self>,
        sf: Steadfast<Db>,
        claimed: Arc<Claimed>,
        lost: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = Ended> + Send>> {
        Box::pin(async move {
            if claimed.message.has_expired {
                return Ended::Skipped("it expired before it was delivered");
            }
            let message = match inbox::recall(&sf, &claimed.message).await {
                Ok(message) => message,
                Err(error) => return Ended::Failed(error.into()),
            };
            let cx = EventCx::new(message, self.name.clone(), claimed.attempt, lost);
            let ended = self.attempt(&sf, &cx, Some(&claimed)).await;
            inbox::judge(&sf, &cx, &self.options.retry, &claimed, ended).await
        })
    }
}

/// A handler, as the corridor calls it.
struct InTransaction<Db: Database> {
    reacting: Arc<Reacting<Db>>,
    cx: EventCx,
    sf: Steadfast<Db>,
}

impl<Db: Database> Handler<Db> for InTransaction<Db> {
    type Answer = Result<(), Failure>;

    fn can_run(&self) -> bool {
        true
    }

    async fn run(&mut self, mut tx: Tx<Db>, _: &CommandOptions) -> Handled<Db, Self::Answer> {
        let ended = self.reacting.handle(&mut tx, &self.cx).await;
        let id = WorkId {
            item: self.cx.message().id,
            kind: &self.reacting.name,
            attempt: self.cx.attempt(),
        };
        self.sf.passes(WorkPoint::AfterHandler, &id);
        let verdict = match &ended {
            Ok(()) => Verdict::Commit(Outcome::empty()),
            Err(_) => Verdict::Discard,
        };
        Handled {
            tx: Some(tx),
            ended: Ok((verdict, ended)),
        }
    }
}

/// The reactions and sinks of this process.
pub(crate) struct Reactions<Db: Database>(Mutex<Vec<Arc<Reacting<Db>>>>);

impl<Db: Database> Default for Reactions<Db> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Db: Database> Reactions<Db> {
    /// Adds one, or puts it in the place of the one that was declared at the same place of the program.
    pub(super) fn add(&self, reacting: Reacting<Db>) {
        let mut all = self.lock();
        match all.iter().position(|other| other.name == reacting.name) {
            None => all.push(Arc::new(reacting)),
            Some(place) if all[place].location == reacting.location => all[place] = Arc::new(reacting),
            Some(place) => {
                let (other, name) = (all[place].location, &reacting.name);
                let message = format!(
                    "the targets at {} and {other} are both called {name:?}; give one of them another name",
                    reacting.location
                );
                drop(all);
                panic!("{:?}", Error::new(Code::TargetTaken, message));
            }
        }
    }

    /// Those that rows are delivered to.
    pub(super) fn durable(&self) -> Vec<Arc<Reacting<Db>>> {
        let all = self.lock();
        all.iter().filter(|reacting| !reacting.is_in_process).cloned().collect()
    }

    /// Those to events of this type that rows can be delivered to.
    pub(crate) fn to(&self, event_type: &str) -> Vec<Arc<Reacting<Db>>> {
        let all = self.lock();
        let of_type = |reacting: &&Arc<Reacting<Db>>| {
            !reacting.is_in_process && matches!(reacting.wants, Wants::Type(wanted) if wanted == event_type)
        };
        all.iter().filter(of_type).cloned().collect()
    }

    /// Where the target of this name was declared, if there is one.
    pub(crate) fn declared_at(&self, name: &str) -> Option<&'static Location<'static>> {
        let all = self.lock();
        all.iter()
            .find(|reacting| &*reacting.name == name)
            .map(|reacting| reacting.location)
    }

    /// The names of those whose events come from elsewhere.
    pub(super) fn fed(&self, is_fed: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let durable = self.durable().into_iter();
        let fed = durable.filter(|reacting| matches!(reacting.wants, Wants::Type(wanted) if is_fed(wanted)));
        fed.map(|reacting| reacting.name.clone()).collect()
    }

    /// Those that run in this process, without a row.
    pub(super) fn in_process(&self, event_type: &str) -> Vec<Arc<Reacting<Db>>> {
        let all = self.lock();
        let of_type = |reacting: &&Arc<Reacting<Db>>| {
            reacting.is_in_process && matches!(reacting.wants, Wants::Type(wanted) if wanted == event_type)
        };
        all.iter().filter(of_type).cloned().collect()
    }

    /// Where messages go that are published here: not to those whose events come from elsewhere.
    pub(super) fn targets(&self, is_fed: impl Fn(&str) -> bool) -> Vec<TargetRow> {
        let targets = |reacting: Arc<Reacting<Db>>| {
            let (patterns, is_versioned) = match &reacting.wants {
                Wants::Type(event_type) => (vec![(*event_type).to_owned()], true),
                Wants::Patterns(patterns) => (patterns.clone(), false),
            };
            let name = reacting.name.clone();
            patterns.into_iter().map(move |pattern| TargetRow {
                name: name.clone(),
                pattern,
                is_versioned,
            })
        };
        let is_target = |reacting: &Arc<Reacting<Db>>| match reacting.wants {
            Wants::Type(event_type) => !is_fed(event_type),
            Wants::Patterns(_) => true,
        };
        self.durable().into_iter().filter(is_target).flat_map(targets).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Reacting<Db>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Db: Database> fmt::Debug for Reactions<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lock().iter().map(|reacting| reacting.name.clone()).collect();
        f.debug_tuple("Reactions").field(&names).finish()
    }
}
