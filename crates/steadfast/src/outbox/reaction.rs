//! Reactions: functions of this process that events are delivered to.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;

use super::TargetRow;
use super::cx::EventCx;
use super::event::Event;
use super::name;
use super::sink::Sending;
use crate::clock::ReadDuration;
use crate::command::AsyncReact;
use crate::command::attempt::{self, AttemptOptions, HandlerFuture, InTransaction, attempt_options};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureClass, FailureKind};
use crate::inbox;
use crate::queue::{Claimed, Ended, Row, Work, WorkId, WorkOptions, WorkPoint};
use crate::registry::{Declared, Registry};
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::tx::Tx;

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
    options: AttemptOptions,
    on_dead: OnDead,
    duplicates: Duplicates,
    location: &'static Location<'static>,
    event: PhantomData<fn(E)>,
}

impl<'r, Db: Database, E: Event> Reaction<'r, Db, E> {
    pub(crate) fn new(sf: &'r Steadfast<Db>, name: &str, location: &'static Location<'static>) -> Self {
        Self {
            sf,
            name: name.to_owned(),
            options: AttemptOptions::default(),
            on_dead: OnDead::Wait,
            duplicates: Duplicates::Drop,
            location,
            event: PhantomData,
        }
    }

    attempt_options!();

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
        let kinds = (1..=E::VERSION.max(1)).map(|version| kind(&name, version)).collect();
        self.sf.reactions().add(Reacting {
            name,
            kinds,
            wants: Wants::Type(E::TYPE),
            is_in_process: E::IN_PROCESS,
            options: WorkOptions {
                dead_make_room: self.on_dead == OnDead::Skip,
                ..self.options.work(self.sf, matches!(call, Call::InTx(_)))
            },
            time_limit: self.options.time_limit,
            duplicates: self.duplicates,
            call,
            location: self.location,
        });
    }
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
    Sink(Sending),
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
        match &self.call {
            Call::Outside(call) => {
                let calling = async { call(cx)?.await };
                attempt::outside(sf, self.time_limit, &self.id(cx), calling).await
            }
            Call::Sink(_) => unreachable!("a sink is sent batches"),
            Call::InTx(_) => {
                let delivering = Delivering {
                    reacting: self.clone(),
                    cx: cx.clone(),
                };
                let lease = claimed.map(|claimed| &claimed.lease);
                attempt::in_transaction(sf, self.time_limit, lease, delivering).await
            }
        }
    }
}

impl<Db: Database> Reacting<Db> {
    /// What is told of a row; or how it ends without an attempt.
    async fn begin(&self, sf: &Steadfast<Db>, row: &Row) -> Result<EventCx, Ended> {
        let claimed = &*row.claimed;
        if claimed.message.has_expired {
            return Err(Ended::Skipped("it expired before it was delivered"));
        }
        match inbox::recall(sf, &claimed.message).await {
            Ok(message) => Ok(EventCx::new(
                message,
                self.name.clone(),
                claimed.attempt,
                row.lost.clone(),
            )),
            Err(error) => Err(Ended::Failed(error.into())),
        }
    }

    /// Sends rows as one batch, and says of each how it ended.
    async fn send(&self, sf: &Steadfast<Db>, sending: &Sending, rows: &[Row]) -> Vec<Ended> {
        let (mut batch, mut ends) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for row in rows {
            match self.begin(sf, row).await {
                Ok(cx) => {
                    batch.push(cx);
                    ends.push(None);
                }
                Err(ended) => ends.push(Some(ended)),
            }
        }
        let passes = |point| batch.iter().for_each(|cx| sf.passes(point, &self.id(cx)));
        passes(WorkPoint::BeforeHandler);
        let verdicts = sending.send(&batch, self.time_limit).await;
        passes(WorkPoint::AfterHandler);
        let is_away = sending.rests_for().is_some();
        let mut sent = batch.iter().zip(verdicts);
        for ended in &mut ends {
            if ended.is_none()
                && let Some((cx, verdict)) = sent.next()
            {
                let sent = match verdict {
                    Ok(confirmation) => Ended::Done(confirmation.into_detail()),
                    // The engine asks for no more until it has rested, and what waits has been due all the time.
                    Err(failure) if is_away && failure.kind() == FailureKind::Snooze => Ended::GivenBack,
                    Err(failure) => Ended::Failed(failure),
                };
                *ended = Some(inbox::judge(cx, sent));
            }
        }
        ends.into_iter().flatten().collect()
    }

    /// Which attempt this is, for those who watch.
    fn id<'c>(&'c self, cx: &EventCx) -> WorkId<'c> {
        WorkId {
            item: cx.message().id,
            kind: &self.name,
            attempt: cx.attempt(),
        }
    }
}

impl<Db: Database> Work<Db> for Reacting<Db> {
    fn kinds(&self) -> &[Arc<str>] {
        &self.kinds
    }

    fn options(&self) -> &WorkOptions {
        &self.options
    }

    fn rests_for(&self) -> Option<Duration> {
        match &self.call {
            Call::Sink(sending) => sending.rests_for(),
            Call::InTx(_) | Call::Outside(_) => None,
        }
    }

    fn run(self: Arc<Self>, sf: Steadfast<Db>, rows: Arc<[Row]>) -> Pin<Box<dyn Future<Output = Vec<Ended>> + Send>> {
        Box::pin(async move {
            if let Call::Sink(sending) = &self.call {
                return self.send(&sf, sending, &rows).await;
            }
            let mut ends = Vec::with_capacity(rows.len());
            for row in &*rows {
                ends.push(match self.begin(&sf, row).await {
                    Ok(cx) => {
                        let ended = self.attempt(&sf, &cx, Some(&row.claimed)).await;
                        inbox::judge(&cx, ended)
                    }
                    Err(ended) => ended,
                });
            }
            ends
        })
    }
}

/// A delivery whose handler wants a transaction.
struct Delivering<Db: Database> {
    reacting: Arc<Reacting<Db>>,
    cx: EventCx,
}

impl<Db: Database> InTransaction<Db> for Delivering<Db> {
    fn id(&self) -> WorkId<'_> {
        self.reacting.id(&self.cx)
    }

    async fn handle(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        self.reacting.handle(tx, &self.cx).await
    }
}

impl<Db: Database> Declared for Reacting<Db> {
    const PLURAL: &'static str = "targets";

    fn name(&self) -> &str {
        &self.name
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

/// The reactions and sinks of this process.
pub(crate) struct Reactions<Db: Database>(Registry<Reacting<Db>>);

impl<Db: Database> Default for Reactions<Db> {
    fn default() -> Self {
        Self(Registry::default())
    }
}

impl<Db: Database> Reactions<Db> {
    pub(super) fn add(&self, reacting: Reacting<Db>) {
        self.0.add(reacting);
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
        self.0.all()
    }
}

impl<Db: Database> fmt::Debug for Reactions<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lock().iter().map(|reacting| reacting.name.clone()).collect();
        f.debug_tuple("Reactions").field(&names).finish()
    }
}
