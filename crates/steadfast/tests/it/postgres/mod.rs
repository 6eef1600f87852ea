//! The conformance suite on PostgreSQL, and what only it can do.

pub(crate) type Db = sqlx::Postgres;

#[path = "../conformance/batches.rs"]
mod batches;
#[path = "../conformance/breakers.rs"]
mod breakers;
#[path = "../conformance/bulk.rs"]
pub(crate) mod bulk;
#[path = "../conformance/cancel.rs"]
mod cancel;
#[path = "../conformance/corridor.rs"]
mod corridor;
#[path = "../conformance/doors.rs"]
mod doors;
#[path = "../conformance/encryption.rs"]
mod encryption;
#[path = "../conformance/engine.rs"]
mod engine;
#[path = "../conformance/failures.rs"]
mod failures;
#[path = "../conformance/http.rs"]
mod http;
#[path = "../conformance/in_flight.rs"]
mod in_flight;
#[path = "../conformance/inbox_letters.rs"]
mod inbox_letters;
#[path = "../conformance/inbox_life.rs"]
mod inbox_life;
#[path = "../conformance/inbox.rs"]
mod inbox;
#[path = "../conformance/order.rs"]
mod order;
#[path = "../conformance/outbox.rs"]
mod outbox;
#[path = "../conformance/outbox_life.rs"]
mod outbox_life;
#[path = "../conformance/outbox_stats.rs"]
mod outbox_stats;
#[path = "../conformance/lane.rs"]
mod lane;
#[path = "../conformance/outbox_cost.rs"]
mod outbox_cost;
#[path = "../conformance/own_transaction.rs"]
mod own_transaction;
#[path = "../conformance/letters.rs"]
mod letters;
#[path = "../conformance/look.rs"]
mod look;
#[path = "../conformance/purge.rs"]
mod purge;
#[path = "../conformance/reports.rs"]
mod reports;
#[path = "../conformance/push.rs"]
mod push;
#[path = "../conformance/queue.rs"]
mod queue;
#[path = "../conformance/job_batches.rs"]
mod job_batches;
#[path = "../conformance/jobs.rs"]
mod jobs;
#[path = "../conformance/operate_jobs.rs"]
mod operate_jobs;
#[path = "../conformance/queues.rs"]
mod queues;
#[path = "../conformance/unique_jobs.rs"]
mod unique_jobs;
#[path = "../conformance/schedules.rs"]
mod schedules;
#[path = "../conformance/schedules_operate.rs"]
mod schedules_operate;
#[path = "../conformance/sinks.rs"]
mod sinks;
#[path = "../conformance/trouble.rs"]
mod trouble;

mod ambiguous;
mod breakers_alone;
mod cost;
mod event_cost;
mod inbox_claims;
mod leases;
mod proxy;
mod server;
