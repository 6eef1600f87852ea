//! Sources as they are declared: where messages come from, and which of them somebody here wants.

use std::fmt;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::broker::away::Away;
use crate::broker::{Feed, Incoming, Source};
use crate::error::{Code, Error};
use crate::failure::Failure;
use crate::inbox::envelope::{Envelope, is_from_elsewhere, unreadable};
use crate::inbox::keep::UNREADABLE;
use crate::outbox::{check_pattern, fits, name};
use crate::queue::WorkOptions;
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::letters::letters_end;
use crate::telemetry;

/// How many messages are handled in one transaction at the most, unless the source says otherwise. The cost of a commit is shared by
/// as many; more of them would hardly be noticed, and hold locks for longer.
const BATCH: usize = 100;

/// The most that makes sense: they are one statement, and held in memory.
const BATCH_MAX: usize = 1_000;

/// How large a message may be that is handed to a reaction, unless the source says otherwise: brokers take a megabyte or less.
const LENGTH_MAX: usize = 1024 * 1024;

/// What the names of rows end with that carry dead letters to a broker.
const LETTERS: &str = letters_end!();

type Read = dyn Fn(&Incoming) -> Result<Envelope, Failure> + Send + Sync;

/// A source that is being declared: [`Steadfast::source`].
#[must_use = "nothing is received before `consume_from`"]
pub struct Intake<'s, Db: Database> {
    sf: &'s Steadfast<Db>,
    name: String,
    patterns: Vec<String>,
    batch: usize,
    prefetch: Option<usize>,
    concurrency: usize,
    length_max: usize,
    read: Option<Box<Read>>,
    location: &'static Location<'static>,
}

impl<Db: Database> Steadfast<Db> {
    /// Declares where events come from that are published elsewhere, under a name that is stored: choose it once. The
    /// [reactions](Self::reaction) to these events then handle each message once, whatever comes twice: what they write, what they
    /// publish and the record that the message was handled commit as one, and only then the source is told.
    ///
    /// ```
    /// use steadfast::sqlx::{self, Sqlite};
    /// use steadfast::{Event, Failure, Feed, Incoming, Source, Steadfast, Tx};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct OrderPlaced { sku: String }
    ///
    /// impl Event for OrderPlaced {
    ///     const TYPE: &'static str = "order.placed";
    /// }
    ///
    /// /// A source that says everything twice. Usually it is `RabbitMq`, `Nats` or `RedisStreams`.
    /// struct Stutter;
    /// struct StutterFeed(Option<Vec<Incoming>>);
    ///
    /// impl Source for Stutter {
    ///     type Feed = StutterFeed;
    ///
    ///     async fn open(&self, _prefetch: usize) -> Result<StutterFeed, Failure> {
    ///         let message = Incoming::new(r#"{"sku":"tea"}"#).with_message_id("17").with_event_type("order.placed");
    ///         Ok(StutterFeed(Some(vec![message.clone(), message])))
    ///     }
    /// }
    ///
    /// impl Feed for StutterFeed {
    ///     async fn receive(&mut self, _max: usize) -> Result<Vec<Incoming>, Failure> {
    ///         match self.0.take() {
    ///             Some(messages) => Ok(messages),
    ///             None => std::future::pending().await,
    ///         }
    ///     }
    ///
    ///     async fn ack(&mut self, _receipts: &[u64]) -> Result<(), Failure> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// async fn reserve(tx: &mut Tx<Sqlite>, event: OrderPlaced) -> Result<(), Failure> {
    ///     sqlx::query("UPDATE stock SET reserved = reserved + 1 WHERE sku = $1").bind(&event.sku).execute(tx.db()).await?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// # sf.transact(async |tx| {
    /// #     sqlx::query("CREATE TABLE stock (sku TEXT, reserved INTEGER)").execute(tx.db()).await?;
    /// #     sqlx::query("INSERT INTO stock VALUES ('tea', 0)").execute(tx.db()).await?;
    /// #     Ok(())
    /// # }).await?;
    /// sf.reaction::<OrderPlaced>("stock.reserve").run(reserve);
    /// sf.source("orders.stutter").events("order.*").consume_from(Stutter);
    ///
    /// let service = sf.clone();
    /// let running = tokio::spawn(async move { service.dispatch().await }); // `serve` does it by itself
    /// while sf.inbox().page().await?.records.is_empty() {
    ///     tokio::task::yield_now().await;
    /// }
    /// let reserved: i64 = sqlx::query_scalar("SELECT reserved FROM stock").fetch_one(sf.pool()).await?;
    /// assert_eq!(reserved, 1);
    /// sf.stop();
    /// running.await??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What is published here goes to other reactions as before, and not to those whose events come from a source.
    #[track_caller]
    pub fn source(&self, name: &str) -> Intake<'_, Db> {
        Intake {
            sf: self,
            name: name.to_owned(),
            patterns: Vec::new(),
            batch: BATCH,
            prefetch: None,
            concurrency: 1,
            length_max: LENGTH_MAX,
            read: None,
            location: Location::caller(),
        }
    }
}

impl<Db: Database> Intake<'_, Db> {
    /// Which events are wanted: a type, or the beginning of types and a star, as in `"order.*"`. It has to be said, and may be said
    /// more than once: reactions to these types hear of what comes from here, and no longer of what is published here.
    ///
    /// What comes and is not wanted is acknowledged and forgotten. What is wanted, and no reaction of this process is there for it,
    /// is dead under the name of the source: a newer version of the program may have one.
    pub fn events(mut self, pattern: &str) -> Self {
        self.patterns.push(pattern.to_owned());
        self
    }

    /// How many messages are handled in one transaction at the most; 100 by default. They are fewer where handlers are slow.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.clamp(1, BATCH_MAX);
        self
    }

    /// How many messages may be here and not acknowledged, for each lane; twice a [batch](Self::batch) by default.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = Some(prefetch.max(1));
        self
    }

    /// How many lanes there are in one process, each with its own transaction; one by default. Messages of one lane are handled in
    /// the order in which they come, unless one of them fails; those of several are not.
    pub fn concurrency(mut self, lanes: usize) -> Self {
        self.concurrency = lanes.max(1);
        self
    }

    /// How many bytes a message may have; a mebibyte by default. A larger one is dead.
    pub fn max_length(mut self, bytes: usize) -> Self {
        self.length_max = bytes;
        self
    }

    /// Reads messages of producers that know nothing of CloudEvents and set no id: it says of each message which one it is, and what
    /// it is about. It should say the same whenever the message comes. What it refuses is dead.
    pub fn read_with(mut self, read: impl Fn(&Incoming) -> Result<Envelope, Failure> + Send + Sync + 'static) -> Self {
        self.read = Some(Box::new(read));
        self
    }

    /// Consumes from there.
    ///
    /// # Panics
    /// With SF305 if a target has the name, or another source. With SF303 if the name or a pattern is not usable, or no
    /// [events](Self::events) were named.
    pub fn consume_from(self, source: impl Source) {
        let patterns = self.patterns;
        if patterns.is_empty() {
            let message = format!(
                "the source {:?} does not say which events come from it; reactions to them hear of nothing else, so say \
                 .events(\"order.*\"), or .events(\"*\") for all",
                self.name
            );
            panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
        }
        let wrong = patterns.iter().find_map(|pattern| check_pattern(pattern).err());
        let is_ours =
            || (self.name == "job").then(|| "\"job\", which stands before the names of jobs; write another".to_owned());
        if let Some(rule) = wrong.or_else(|| name::check(&self.name).err()).or_else(is_ours) {
            let message = format!("a source cannot be called, or want events of the type, {rule}");
            panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
        }
        if let Some(other) = self.sf.reactions().declared_at(&self.name) {
            taken(&self.name, self.location, other);
        }
        let name: Arc<str> = self.name.into();
        self.sf.sources().add(Sourced {
            letters: source.has_dead_letters().then(|| letters_of(&name)),
            kinds: [name.clone()],
            name,
            patterns,
            batch: self.batch,
            prefetch: self.prefetch.unwrap_or(self.batch * 2),
            concurrency: self.concurrency,
            length_max: self.length_max,
            read: self.read,
            source: Box::new(source),
            options: WorkOptions {
                retry: RetryPolicy::default().with_key(),
                lease: None,
                concurrency: 1,
                batch: 1,
                dead_make_room: false,
            },
            in_flight: AtomicUsize::new(0),
            away: Away::of_source(),
            letters_away: Away::of_dead_letters(),
            trouble: Mutex::default(),
            location: self.location,
        });
    }
}

/// What rows are called that carry dead letters to the broker of a source. No target has such a name.
fn letters_of(source: &str) -> Arc<str> {
    format!("{source}{LETTERS}").into()
}

/// Whether rows of this kind carry dead letters to a broker: nobody handles them.
pub(crate) fn are_letters(kind: &str) -> bool {
    kind.ends_with(LETTERS)
}

/// Whether a delivery is of a message as it came, and not of an event: a copy for a broker, or what nobody could read. With another
/// payload there would be nothing left to be read, or to be copied.
pub(crate) fn is_as_it_came(item: &Uuid, kind: &str, event_type: Option<&str>) -> bool {
    are_letters(kind) || is_from_elsewhere(item) && event_type == Some(UNREADABLE)
}

/// A source of this process.
pub(crate) struct Sourced {
    pub(super) name: Arc<str>,
    /// Rows of messages that nobody could read are stored under its name.
    pub(super) kinds: [Arc<str>; 1],
    /// The kind of rows that carry what is given up to the dead letters of the broker, if it has any.
    pub(super) letters: Option<Arc<str>>,
    pub(super) patterns: Vec<String>,
    pub(super) batch: usize,
    pub(super) prefetch: usize,
    pub(super) concurrency: usize,
    length_max: usize,
    read: Option<Box<Read>>,
    pub(super) source: Box<dyn AnySource>,
    pub(super) options: WorkOptions,
    in_flight: AtomicUsize,
    pub(super) away: Away,
    pub(super) letters_away: Away,
    /// The code of what keeps it from receiving.
    trouble: Mutex<Option<String>>,
    location: &'static Location<'static>,
}

impl Sourced {
    /// Whether events of this type are wanted from it.
    pub(super) fn wants(&self, event_type: &str) -> bool {
        self.patterns.iter().any(|pattern| fits(pattern, event_type))
    }

    /// What a message says about itself.
    pub(super) fn read(&self, message: &Incoming) -> Result<Envelope, Failure> {
        if message.body().len() > self.length_max {
            let words = format!(
                "it has {} bytes, and at most {} are taken",
                message.body().len(),
                self.length_max
            );
            return Err(unreadable("too_large", words));
        }
        let envelope = match &self.read {
            Some(read) => read(message)?,
            None => Envelope::read(message, self.source.attributes(message))?,
        };
        envelope.check()?;
        Ok(envelope)
    }

    /// It was opened, or this keeps it from receiving.
    pub(super) fn is_in_trouble(&self, code: Option<&str>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = code.map(str::to_owned);
    }

    pub(super) fn took(&self, count: usize) {
        let before = self.in_flight.fetch_add(count, Ordering::Relaxed);
        telemetry::messages_in_flight(&self.name, before.saturating_add(count));
    }

    pub(super) fn let_go(&self, count: usize) {
        let before = self.in_flight.fetch_sub(count, Ordering::Relaxed);
        telemetry::messages_in_flight(&self.name, before.saturating_sub(count));
    }
}

/// The sources of this process.
#[derive(Default)]
pub(crate) struct Sources(Mutex<Vec<Arc<Sourced>>>);

impl Sources {
    /// Adds one, or puts it in the place of the one that was declared at the same place of the program.
    fn add(&self, sourced: Sourced) {
        let mut all = self.lock();
        match all.iter().position(|other| other.name == sourced.name) {
            None => all.push(Arc::new(sourced)),
            Some(place) if all[place].location == sourced.location => all[place] = Arc::new(sourced),
            Some(place) => {
                let other = all[place].location;
                drop(all);
                taken(&sourced.name, sourced.location, other);
            }
        }
    }

    /// # Panics
    /// With SF305 if a source has this name.
    pub(crate) fn refuse(&self, name: &str, location: &'static Location<'static>) {
        if let Some(source) = self.named(name) {
            taken(name, location, source.location);
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<Arc<Sourced>> {
        self.lock().iter().find(|source| &*source.name == name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Sourced>> {
        self.lock().clone()
    }

    /// Those that receive nothing, and why: for people, by the code of the failure.
    #[cfg_attr(not(feature = "axum"), allow(dead_code, reason = "only /readyz asks"))]
    pub(crate) fn in_trouble(&self) -> Vec<(Arc<str>, String)> {
        let trouble = |source: &Arc<Sourced>| {
            let code = source.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Some((source.name.clone(), code?))
        };
        self.lock().iter().filter_map(trouble).collect()
    }

    /// Whether events of this type come from one of them.
    pub(crate) fn feed(&self, event_type: &str) -> bool {
        self.lock().iter().any(|source| source.wants(event_type))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Sourced>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn taken(name: &str, one: &Location<'_>, other: &Location<'_>) -> ! {
    let message = format!("the targets at {one} and {other} are both called {name:?}; give one of them another name");
    panic!("{:?}", Error::new(Code::TargetTaken, message));
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lock().iter().map(|source| source.name.clone()).collect();
        f.debug_tuple("Sources").field(&names).finish()
    }
}

type Promise<'p, T> = Pin<Box<dyn Future<Output = T> + Send + 'p>>;

/// A source whose type is forgotten.
pub(super) trait AnySource: Send + Sync {
    fn open(&self, prefetch: usize) -> Promise<'_, Result<Box<dyn AnyFeed>, Failure>>;
    fn attributes(&self, message: &Incoming) -> Vec<(String, String)>;
    fn bury<'s>(&'s self, message: &'s Incoming, why: &'s str) -> Promise<'s, Result<(), Failure>>;
    fn address(&self) -> String;
}

impl<S: Source> AnySource for S {
    fn open(&self, prefetch: usize) -> Promise<'_, Result<Box<dyn AnyFeed>, Failure>> {
        Box::pin(async move {
            let feed = Source::open(self, prefetch).await?;
            Ok(Box::new(feed) as Box<dyn AnyFeed>)
        })
    }

    fn attributes(&self, message: &Incoming) -> Vec<(String, String)> {
        Source::attributes(self, message)
    }

    fn bury<'s>(&'s self, message: &'s Incoming, why: &'s str) -> Promise<'s, Result<(), Failure>> {
        Box::pin(Source::bury(self, message, why))
    }

    fn address(&self) -> String {
        Source::address(self)
    }
}

/// A feed whose type is forgotten.
pub(super) trait AnyFeed: Send {
    fn receive(&mut self, max: usize) -> Promise<'_, Result<Vec<Incoming>, Failure>>;
    fn receive_ahead(&mut self, max: usize) -> Promise<'_, Result<Vec<Incoming>, Failure>>;
    fn ack<'f>(&'f mut self, receipts: &'f [u64]) -> Promise<'f, Result<(), Failure>>;
    fn close(self: Box<Self>) -> Promise<'static, ()>;
}

impl<F: Feed> AnyFeed for F {
    fn receive(&mut self, max: usize) -> Promise<'_, Result<Vec<Incoming>, Failure>> {
        Box::pin(Feed::receive(self, max))
    }

    fn receive_ahead(&mut self, max: usize) -> Promise<'_, Result<Vec<Incoming>, Failure>> {
        Box::pin(Feed::receive_ahead(self, max))
    }

    fn ack<'f>(&'f mut self, receipts: &'f [u64]) -> Promise<'f, Result<(), Failure>> {
        Box::pin(Feed::ack(self, receipts))
    }

    fn close(self: Box<Self>) -> Promise<'static, ()> {
        Box::pin(async move { Feed::close(*self).await })
    }
}
