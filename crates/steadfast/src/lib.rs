#![doc = include_str!("../README.md")]
//!
//! # The way of a command
//!
//! Read the modules in this order and you follow one command from the socket to the stored answer:
//!
//! 1. `transport::axum`: a header becomes a key, a body an input.
//! 2. `command::execute`: begin, claim, handler, settle, commit. The one place where transactions begin and end.
//! 3. [`Tx`]: what a handler writes with.
//! 4. `store`: the two databases, statement by statement.
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `sqlite` | `Steadfast<Sqlite>`, with SQLite compiled in |
//! | `postgres` | `Steadfast<Postgres>`, with rustls and ring |
//! | `tower` | [`breaker::BreakerLayer`]: a circuit breaker around a client or a service |
//! | `axum` | [`Steadfast::idempotent`], [`CmdTx`], [`Steadfast::routes`], [`Steadfast::serve`]; brings `tower` |
//! | `service` | [`#[steadfast::service]`](macro@service): commands, queries and reactions declared in an `impl` block; [`#[derive(Event)]`](derive@Event) |
//! | `retry` | [`retry!`](macro@retry): a [`RetryPolicy`] that is checked by the compiler |
//! | `encryption` | [`Encryption`] of stored answers, by ring |
//! | `reqwest` | [`CLASSIFICATION`] of the errors of reqwest 0.13 |
//! | `nats` | [`Nats`]: a sink to NATS JetStream, and a source; with `push`, [`NatsPubSub`] |
//! | `webhook` | [`Webhook`]: events posted to somebody's HTTP endpoint, signed, by rustls and ring |
//! | `rabbitmq` | [`RabbitMq`]: a sink to RabbitMQ, and a source |
//! | `redis` | [`RedisStreams`]: a sink to streams of Redis, and a source; with `push`, [`RedisPubSub`] |
//! | `push` | [`Steadfast::push`]: events to live clients, as server-sent events and over WebSocket; brings `axum` |
//! | `prometheus` | the recorder behind `/metrics` |
//! | `schedule` | [`Steadfast::schedule`]: jobs that are made by the clock; [`Cron`] and [`Every`]: when something is due again, in a time zone; the zones are compiled in |
//! | `testing` | the test kit: [`#[steadfast::test]`](macro@test), [`testing::Harness`], crashes everywhere |
#![cfg_attr(
    not(all(
        feature = "sqlite",
        feature = "postgres",
        feature = "axum",
        feature = "tower",
        feature = "encryption",
        feature = "nats",
        feature = "webhook",
        feature = "rabbitmq",
        feature = "redis",
        feature = "push",
        feature = "schedule",
        feature = "testing"
    )),
    allow(
        dead_code,
        unreachable_pub,
        rustdoc::broken_intra_doc_links,
        reason = "the common ground is written for all of them, and described with all of them"
    )
)]

mod command;
mod tx;
mod lease;
mod queue;
mod outbox;
mod inbox;
mod job;
mod to_the_end;
mod caller;
mod registry;
mod page;
mod audit;
mod failure;
mod retry;
#[cfg(feature = "schedule")]
mod schedule;
#[cfg(feature = "schedule")]
mod ticker;
pub mod breaker;
mod broker;
mod error;
mod duration;
mod words;
mod clock;
mod purge;
#[cfg(feature = "push")]
mod push;
mod doctor;
mod store;
#[cfg(feature = "axum")]
mod transport;
#[cfg(feature = "service")]
mod operations;
mod steadfast;
#[cfg(feature = "service")]
pub mod service;
mod diagnostic;
#[cfg(feature = "axum")]
mod runtime;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use audit::{AuditEntry, AuditList, AuditPage, AuditRecord};
pub use breaker::Breaker;
#[cfg(feature = "nats")]
pub use broker::nats::{Nats, NatsFeed};
#[cfg(all(feature = "nats", feature = "push"))]
pub use broker::nats::{NatsEar, NatsPubSub};
#[cfg(feature = "rabbitmq")]
pub use broker::rabbitmq::{RabbitMq, RabbitMqFeed};
#[cfg(all(feature = "redis", feature = "push"))]
pub use broker::redis::{RedisEar, RedisPubSub};
#[cfg(feature = "redis")]
pub use broker::redis::{RedisFeed, RedisStreams};
#[cfg(feature = "webhook")]
pub use broker::webhook::{Webhook, WebhookOptions, WebhookSecret, WebhookTrial};
pub use broker::{Confirmation, Feed, Incoming, Sink, Source};
#[cfg(feature = "push")]
pub use broker::{Ear, Messenger};
pub use caller::{Caller, CallerCommand};
pub use clock::{Clock, ReadDuration, parse_duration, rfc3339};
#[cfg(feature = "encryption")]
pub use command::Encryption;
pub use command::{
    ANSWER_LENGTH_MAX, AsyncOnce, AsyncReact, AsyncRerun, AsyncSave, Command, Conflict, FingerprintPolicy,
    KEY_LENGTH_MAX, Key, KeyAnswer, KeyId, KeyList, KeyLookUp, KeyPage, KeyState, ListedKey, Meaning, Owner, Quota,
    Reply, Scope, Secret, StoreFailures,
};
pub use diagnostic::Diagnostic;
pub use doctor::{Check, Verdict};
pub use error::{Code, Error, Result};
pub use failure::rules::{CLASSIFICATION, Rule};
pub use failure::say::{Classify, FailureExt};
pub use failure::{Failure, FailureClass, FailureKind};
pub use inbox::{ConsumerStats, Envelope, InboxList, InboxPage, InboxPlace, InboxRecord, InboxStats, Intake};
pub use job::{
    BatchCounts, BatchId, BatchLookUp, CallerEnqueue, CallerEnqueueUnique, CancelOutcome, CancelRequest, Cancellation,
    Enqueue, EnqueueUnique, Enqueued, Job, JobCx, JobHandler, JobId, JobList, JobLookUp, JobPage, JobState,
    LOG_LINE_LENGTH_MAX, LOG_LINES_MAX, ListedJob, ListedQueue, LogLine, LookedJob, OUTPUT_LENGTH_MAX, Priority,
    Progress, QueueOptions, UniqueConflict, UniqueJob, UniqueOutcome, UniqueWhile,
};
pub use outbox::{
    Aggregate, Dispatcher, Duplicates, EVENT_LENGTH_MAX, Event, EventCx, MessageId, ORDERING_KEY_LENGTH_MAX, OnDead,
    Published, Raised, Reaction, SinkTarget,
};
pub use outbox::{
    BULK_BATCH, BulkOperation, BulkState, BulkVerb, BulkWork, DeadGroup, Delivery, DeliveryList, DeliveryPage,
    DeliveryPlace, DeliveryState, FailedAttempt, LastFailure, ListedDelivery, ListedTarget, LookedMessage,
    MessageLookUp, OperationId, Paused, Reason, Why, WhyDelivery, WhyWord,
};
pub use outbox::{Backlog, Count, Flow, Forecast, KindStats, OutboxStats, TableSize};
pub use purge::{Expired, Purged, Walked};
#[cfg(feature = "push")]
pub use push::{Push, PushTarget, Pushes, StreamName};
pub use retry::{Backoff, Decision, GiveUp, Jitter, RetryBuilder, RetryPolicy, Retrying};
#[cfg(feature = "schedule")]
pub use schedule::{Cron, Due, Every, Missed, Timing};
pub use steadfast::{Builder, Steadfast};
pub use store::{Database, MigrationStatus};
#[cfg(feature = "schedule")]
pub use ticker::{
    BACKFILL_MAX, Backfill, BackfillTick, ListedSchedule, LookedSchedule, MadeTick, MakeSchedule, Overlap, Schedule,
    ScheduleSource, Schedules,
};
#[cfg(feature = "axum")]
pub use transport::axum::{Idempotent, IdempotentService, KeyRequirement};
#[cfg(feature = "axum")]
pub use transport::cmd_tx::CmdTx;
pub use tx::Tx;

pub use sqlx;

/// Makes one async function a test on each of the databases it names: `sqlite`, `postgres` or both.
///
/// ```
/// use steadfast::testing::Harness;
///
/// #[steadfast::test(sqlite, postgres)]
/// async fn an_order_is_placed_once(t: Harness<Db>) {
///     t.assert_keys(0).await;
/// }
/// # fn main() {}
/// ```
///
/// becomes the tests `an_order_is_placed_once::sqlite` and `an_order_is_placed_once::postgres`. `Db` is
/// `steadfast::sqlx::Sqlite` in one and `steadfast::sqlx::Postgres` in the other, in the signature and in the body.
/// The test takes the [`Harness`](testing::Harness) of a fresh database, by any name, and returns nothing or a
/// `Result`. It needs no other attribute, not even a runtime's: [`testing::run`] brings one. `#[ignore]`,
/// `#[should_panic]` and other attributes are kept. The body stands in a module of the test's name, which uses
/// everything of the one around it.
///
/// Tests on PostgreSQL need a server: `TEST_DATABASE_URL=postgres://postgres@127.0.0.1:5432/postgres`. They make
/// databases of their own there, and drop them. Without one, skip them: `cargo test -- --skip ::postgres`.
///
/// What cannot be a test is refused, with what to write instead:
///
/// ```compile_fail
/// # use steadfast::testing::Harness;
/// #[steadfast::test(mysql)] // `mysql` is no database; write `sqlite`, `postgres` or both
/// async fn an_order_is_placed_once(t: Harness<Db>) {}
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// # use steadfast::testing::Harness;
/// #[steadfast::test(sqlite)]
/// fn an_order_is_placed_once(t: Harness<Db>) {} // a test of the kit is async: write `async fn`
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// # use steadfast::testing::Harness;
/// #[steadfast::test(sqlite)]
/// async fn an_order_is_placed_once() {} // a test takes the harness: write `(t: Harness<Db>)`
/// # fn main() {}
/// ```
#[cfg(feature = "testing")]
pub use steadfast_macros::test;

/// Declares commands, queries, reactions and jobs in an `impl` block: callable from Rust, mounted over HTTP, registered for events and
/// for what was enqueued.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::sqlx::{self, Pool, Sqlite};
/// use steadfast::{Failure, Owner, Steadfast, Tx};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// pub struct PlaceOrder { sku: String }
///
/// #[derive(Serialize, Deserialize)]
/// pub struct Order { id: i64, sku: String }
///
/// pub struct Orders; // fields are dependencies; tests pass fakes
///
/// #[steadfast::service(db = [Sqlite, Postgres])] // or: db = Sqlite
/// impl Orders {
///     /// Places an order.
///     #[command("orders.place", route = "POST /orders", status = 201, location = "/orders/{id}", retention = "48h")]
///     pub async fn place(&self, tx: &mut Tx<Db>, order: PlaceOrder) -> Result<Order, Failure> {
///         let id = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ($1) RETURNING id")
///             .bind(&order.sku)
///             .fetch_one(tx.db())
///             .await?;
///         Ok(Order { id, sku: order.sku })
///     }
///
///     /// Shows an order.
///     #[query("orders.show", route = "GET /orders/{id}", max_age = "60s")]
///     pub async fn show(&self, db: &Pool<Db>, id: i64) -> Result<Order, Failure> {
///         let sku = sqlx::query_scalar("SELECT sku FROM orders WHERE id = $1").bind(id).fetch_one(db).await?;
///         Ok(Order { id, sku })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
/// # sf.transact(async |tx| {
/// #     sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT)").execute(tx.db()).await?;
/// #     Ok(())
/// # }).await?;
/// let orders = Orders.on(&sf); // OrdersService<Sqlite>
/// let owner = Owner::new("tenant-1", "user-a");
/// let reply = orders.place(&owner, "key-1", PlaceOrder { sku: "tea".into() }).await?;
/// let again = orders.place(&owner, "key-1", PlaceOrder { sku: "tea".into() }).await?;
/// assert!(again.replayed && again.value.id == reply.value.id);
///
/// let app: axum::Router = orders.routes(); // POST /orders with a key, GET /orders/{id} without
/// # Ok(())
/// # }
/// ```
///
/// **What it writes** is what you would: `OrdersService<Db>` with a method for each handler, which is
/// [`sf.command(..)`](Steadfast::command) with the options, and `routes()`, which is [`sf.idempotent()`](Steadfast::idempotent)
/// around [`service::command`]. It can be seen by whoever may see the widest of its methods. The guide
/// [services](https://github.com/steadfast-rs/steadfast/blob/main/docs/guide/services.md) shows the same by hand, and the options.
///
/// **A handler** is async and takes `&self`, then `tx: &mut Tx<Db>` if it is a command and `db: &Pool<Db>` if it is a query.
/// Then, in any order: `owner: &Owner` if it wants to know; an argument for each `{name}` of the route, by that name, of any
/// type with [`FromStr`](std::str::FromStr); and at most one more, the input, which is the JSON body of a command and the query
/// string of a query. It returns `Result<T, E>`: `T` is [`Serialize`](serde::Serialize) (and
/// [`DeserializeOwned`](serde::de::DeserializeOwned), for replays in Rust), `E` is `Into<`[`Failure`]`>`. A command's
/// arguments are [`Clone`] or taken by reference, since the database may ask for a repetition.
///
/// **`Db`** is the database of `db = ..`; with two, the block is compiled once for each. Without `db`, it is the `Db` in scope.
///
/// # Reactions
///
/// A method with `#[on(..)]` reacts to an [`Event`]. `on(&sf)` registers it; who calls the method themselves may do so as before.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::sqlx::{self, Sqlite};
/// use steadfast::{Event, EventCx, Failure, Steadfast, Tx};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event("order.placed", ordering_key = order_id)]
/// pub struct OrderPlaced { order_id: i64, sku: String }
///
/// pub struct Stock;
/// # async fn send_mail(_key: &str, _event: &OrderPlaced) -> Result<(), Failure> { Ok(()) }
///
/// #[steadfast::service(db = [Sqlite, Postgres])]
/// impl Stock {
///     /// What it writes and the delivery commit together: once.
///     #[on(OrderPlaced, retry(retries = 5, backoff = exponential("1s"), cap = "5m"))]
///     pub async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
///         let take = "UPDATE stock SET free = free - 1 WHERE sku = $1";
///         sqlx::query(take).bind(&event.sku).execute(tx.db()).await?;
///         Ok(())
///     }
///
///     /// A call to others, outside a transaction, at least once: with the key that stays the same.
///     #[on(OrderPlaced, name = "stock.mail", concurrency = 8, on_dead = skip, time_limit = "30s")]
///     async fn tell_the_warehouse(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
///         send_mail(cx.key(), event).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
/// # sf.transact(async |tx| {
/// #     sqlx::query("CREATE TABLE stock (sku TEXT PRIMARY KEY, free INTEGER NOT NULL)").execute(tx.db()).await?;
/// #     Ok(())
/// # }).await?;
/// Stock.on(&sf); // the targets `stock.reserve` and `stock.mail`
/// # sf.declare().await?;
/// sf.transact(async |tx| {
///     tx.publish(&OrderPlaced { order_id: 1, sku: "tea".into() })?;
///     Ok(())
/// }).await?;
/// let attempts = sf.drain().await?; // in a test; a service calls `sf.serve(..)` or `sf.dispatch()`
/// assert_eq!(attempts, 2);
/// # Ok(())
/// # }
/// ```
///
/// It is async, takes `&self`, then `tx: &mut Tx<Db>` or `cx: &`[`EventCx`], then the event or a reference to it, and returns
/// `Result<(), E>` with an `E` that is `Into<`[`Failure`]`>`. Behind the event's type come options, in any order:
///
/// | option | is | without it |
/// |---|---|---|
/// | `name = "stock.reserve"` | the target: the name that deliveries are stored under | the service's name in snake case, a dot, the method's |
/// | `retry(..)` | the options of [`retry!`](macro@retry), checked in the same way; or `retry = POLICY` | the default policy |
/// | `lease = "5m"` | how long a node may be silent before another one takes over | the dispatcher's, 30 s |
/// | `concurrency = 8` | how many run at once in this process | 64; with a `Tx`, half of the pool and 32 at the most |
/// | `on_dead = skip` | whether events of the same ordering key `wait` behind one that was given up, or `skip` it | `wait` |
/// | `duplicates = allow` | whether a message from a [source](Steadfast::source) that comes once more is handled once more, or `drop`ped by its record in the inbox | `drop` |
/// | `time_limit = "2m"` | how long one attempt may take | 30 s |
///
/// **The name is stored.** Deliveries that wait belong to it. Who renames a method without a `name`, or its service, makes another
/// target, and what waits for the old one waits until a node has it again: write `name = ".."` with the old name first.
///
/// A value that is only known at run time is an expression, in which `self` is the service: `concurrency = self.workers`.
///
/// # Jobs
///
/// A method with `#[job(..)]` runs a [`Job`]. `on(&sf)` registers it, too.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::sqlx::{self, Sqlite};
/// use steadfast::{Failure, Job, JobCx, Steadfast, Tx};
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job("receipt.send")]
/// pub struct SendReceipt { order_id: i64 }
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job("books.close_month")]
/// pub struct CloseMonth { month: u32 }
///
/// pub struct Office;
/// # async fn send_mail(_key: &str, _order: i64) -> Result<(), Failure> { Ok(()) }
///
/// #[steadfast::service(db = [Sqlite, Postgres])]
/// impl Office {
///     /// What it writes and the end of the job commit together: once.
///     #[job(CloseMonth, retry(retries = 10, backoff = exponential("1s"), cap = "1h"))]
///     async fn close(&self, tx: &mut Tx<Db>, job: CloseMonth) -> Result<(), Failure> {
///         sqlx::query("INSERT INTO closed (month) VALUES ($1)").bind(i64::from(job.month)).execute(tx.db()).await?;
///         Ok(())
///     }
///
///     /// A call to others, outside a transaction, at least once: with the key that stays the same.
///     #[job(SendReceipt, concurrency = 8, time_limit = "30s")]
///     async fn send(&self, cx: &JobCx<Db>, job: &SendReceipt) -> Result<(), Failure> {
///         send_mail(cx.key(), job.order_id).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
/// # sf.transact(async |tx| {
/// #     sqlx::query("CREATE TABLE closed (month INTEGER NOT NULL)").execute(tx.db()).await?;
/// #     Ok(())
/// # }).await?;
/// Office.on(&sf);
/// sf.transact(async |tx| {
///     tx.enqueue(&CloseMonth { month: 11 }).await?;
///     tx.enqueue(&SendReceipt { order_id: 1 }).await?;
///     Ok(())
/// }).await?;
/// assert_eq!(sf.drain().await?, 2); // in a test; a service calls `sf.serve(..)` or `sf.dispatch()`
/// # Ok(())
/// # }
/// ```
///
/// It has the shape of a reaction, with `cx: &`[`JobCx`]`<Db>` for calls to others. Its options are `retry(..)`, `lease`, `concurrency`
/// and `time_limit`, as above. The name that is stored is the job's own, so methods may be renamed.
///
/// # Schedules
///
/// A method with `#[cron(..)]` or `#[every(..)]` (feature `schedule`) is called for each tick of a [schedule](Steadfast::schedule): a job is made
/// of it, once over all processes. It takes `tx: &mut Tx<Db>` or `cx: &`[`JobCx`]`<Db>` and nothing else; or it has a `#[job(..)]` below, whose
/// job is [`Default`].
///
/// ```
/// # #[cfg(feature = "schedule")] mod scheduled {
/// # use steadfast::{Failure, JobCx, Tx};
/// # pub struct Shop;
/// #[steadfast::service(db = [Sqlite, Postgres])]
/// impl Shop {
///     #[cron("0 9 * * MON-FRI", tz = "Europe/Madrid", missed = "last", overlap = "skip")]
///     async fn digest(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
///         println!("what was sold until {:?}", cx.tick());
///         Ok(())
///     }
///
///     #[every("15m", name = "shop.tidy", time_limit = "5m")]
///     async fn tidy_up(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
///         let _ = tx.db();
///         Ok(())
///     }
/// }
/// # }
/// ```
///
/// | option | is | without it |
/// |---|---|---|
/// | `tz = "Europe/Madrid"` | the time zone of a cron expression | `UTC` |
/// | `missed = "all"` | what becomes of ticks that nobody was there for: `skip`, `last` or `all` | `last` |
/// | `overlap = "skip"` | whether a tick has its job while that of the one before is still to do: `allow` or `skip` | `allow` |
/// | `name = "shop.digest"` | the name that it is stored under, and its job too if there is no `#[job(..)]` | the service's name in snake case, a dot, the method's |
/// | `retry(..)`, `lease`, `concurrency`, `time_limit` | those of jobs, if there is no `#[job(..)]` to have them | as for jobs |
///
/// # Mistakes
///
/// They are said by the compiler, at their place, with a code that is listed in [`Diagnostic::ALL`]:
///
/// ```compile_fail
/// # struct Orders;
/// #[steadfast::service(db = Sqlite)]
/// impl Orders {
///     #[command("orders.place", retention = "2 days")] // SF003: "2 days" is not a duration; write ..
///     async fn place(&self, tx: &mut steadfast::Tx<Db>) -> Result<(), steadfast::Failure> { Ok(()) }
/// }
/// ```
#[cfg(feature = "service")]
pub use steadfast_macros::service;

/// Makes a struct or an enum an [`Event`](trait@Event): a fact with a stored name.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::Event;
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event("order.placed", version = 2, ordering_key = order_id, expires_after = "7d", delay = "10m")]
/// #[serde(rename_all = "camelCase")]
/// struct OrderPlaced {
///     order_id: u64,
///     #[redact]
///     email_address: String,
/// }
///
/// let event = OrderPlaced { order_id: 7, email_address: "a@example.org".into() };
/// assert_eq!(OrderPlaced::TYPE, "order.placed");
/// assert_eq!(event.ordering_key().as_deref(), Some("7"));
/// assert_eq!(OrderPlaced::REDACTED, ["emailAddress"]); // as it stands in the JSON
/// ```
///
/// The name comes first, and is all that is needed: 1 to 100 lower-case letters, digits, `_` and `-`, in parts with a dot between
/// them. It is stored with each event, so it stays when the type is renamed. Then, in any order:
///
/// | option | is | without it |
/// |---|---|---|
/// | `version = 2` | [`VERSION`](Event::VERSION): raise it when the payload means something else | `1` |
/// | `ordering_key = order_id` | [`ordering_key`](Event::ordering_key), as text: a field, or an expression of `self` (`self.order.id`, `self.key()`) | in any order |
/// | `delay = "10m"` | [`DELAY`](Event::DELAY) | at once |
/// | `expires_after = "7d"` | [`EXPIRES_AFTER`](Event::EXPIRES_AFTER) | never |
/// | `in_process` | [`IN_PROCESS`](Event::IN_PROCESS): never stored, so the three above do not go with it | stored |
/// | `crate = reliable` | the path of steadfast, where it has another name | `::steadfast` |
///
/// `#[redact]` on a field puts its member in JSON on the list of [`REDACTED`](Event::REDACTED), by the name that serde gives it.
/// Handlers get it as it is.
///
/// What cannot be an event is refused at its place, with a code and what to write instead:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, steadfast::Event)]
/// #[event("OrderPlaced")] // SF015: "OrderPlaced" has 'O' in it; write ..
/// struct OrderPlaced;
/// ```
#[cfg(feature = "service")]
pub use steadfast_macros::Event;

/// Makes a struct or an enum a [`Job`](trait@Job): work that is to be done later, under a stored name.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::Job;
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job("receipt.send", version = 2)]
/// struct SendReceipt {
///     order_id: u64,
///     #[redact]
///     email: String,
/// }
///
/// assert_eq!((SendReceipt::NAME, SendReceipt::VERSION), ("receipt.send", 2));
/// assert_eq!(SendReceipt::REDACTED, ["email"]);
/// ```
///
/// The name comes first, and is all that is needed: 1 to 100 lower-case letters, digits, `_` and `-`, in parts with a dot between
/// them. It is stored with each job, so it stays when the type is renamed. Then, in any order:
///
/// | option | is | without it |
/// |---|---|---|
/// | `version = 2` | [`VERSION`](Job::VERSION): raise it when the JSON means something else | `1` |
/// | `queue = "mail"` | [`QUEUE`](Job::QUEUE): the queue whose hands and limits it shares | none: hands of its own |
/// | `crate = reliable` | the path of steadfast, where it has another name | `::steadfast` |
///
/// `#[redact]` on a field puts its member in JSON on the list of [`REDACTED`](Job::REDACTED), by the name that serde gives it.
///
/// What cannot be a job is refused at its place, with a code and what to write instead:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, steadfast::Job)]
/// #[job("SendReceipt")] // SF017: "SendReceipt" has 'S' in it; write ..
/// struct SendReceipt;
/// ```
#[cfg(feature = "service")]
pub use steadfast_macros::Job;

/// A [`RetryPolicy`] as people write it, checked by the compiler. A constant expression.
///
/// ```
/// use steadfast::{RetryPolicy, retry};
///
/// const POLICY: RetryPolicy = retry!(retries = 5, backoff = exponential("200ms"), cap = "10s", jitter = full, max_age = "1h");
/// assert_eq!(POLICY.attempts(), 6);
/// ```
///
/// | option | is | without it |
/// |---|---|---|
/// | `retries` | how often it is tried after the first attempt: 0 to 1000 | `5` |
/// | `backoff` | `immediate`, `constant("1s")`, `linear("1s")` (base·n), `exponential("1s")` (base·2^(n−1)) | `exponential("200ms")` |
/// | `cap` | the longest delay | `"1h"` |
/// | `jitter` | `none`, `full`, `equal`, `decorrelated` | `full` |
/// | `max_age` | no attempt begins later than this after the first one | no limit |
///
/// What cannot be a policy is refused at its place, with what to write instead:
///
/// ```compile_fail
/// let _ = steadfast::retry!(backoff = exponential("30s"), cap = "10s"); // SF014: `cap` is 10s and the first delay 30s
/// ```
///
/// The same text is read at run time by [`RetryPolicy`]'s [`FromStr`](std::str::FromStr).
#[cfg(feature = "retry")]
pub use steadfast_macros::retry;

/// A transaction on PostgreSQL.
#[cfg(feature = "postgres")]
pub type PgTx = Tx<sqlx::Postgres>;
/// A transaction on SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteTx = Tx<sqlx::Sqlite>;
