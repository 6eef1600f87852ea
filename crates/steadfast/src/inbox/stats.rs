//! How the inbox is doing: how many records each consumer has, and since when.

use std::time::{Duration, SystemTime};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::outbox::Count;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::inbox::Inbox;

/// How many records are looked at: counting all of a large table is slow, and beyond this the number says nothing.
const COUNTED_MAX: u32 = 100_000;

/// What the inbox holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InboxStats {
    /// How many records there are.
    pub records: Count,
    /// How long they are kept: what comes again later than that is taken for new.
    pub retention: Duration,
    /// Whose they are. If there are more than were counted, these are of some of them.
    pub consumers: Vec<ConsumerStats>,
}

/// What the inbox holds of one source for one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// The name of the reaction.
    pub consumer: String,
    /// Who says it.
    pub source: String,
    /// How many records were counted.
    pub records: u64,
    /// When the oldest of them was received.
    pub oldest: SystemTime,
    /// When the newest of them was received.
    pub newest: SystemTime,
}

impl<Db: Database> Steadfast<Db> {
    /// How many messages from elsewhere the inbox remembers. How many came again, and how late they come, is in the metrics
    /// `steadfast_inbox_messages_total` and `steadfast_inbox_lag_seconds`.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn inbox_stats(&self) -> Result<InboxStats> {
        let rows = self.ask("count the inbox").count_records(COUNTED_MAX).await?;
        let consumers: Vec<_> = rows
            .into_iter()
            .map(|row| ConsumerStats {
                consumer: row.consumer,
                source: row.source,
                records: row.count.unsigned_abs(),
                oldest: Timestamp(row.oldest).into(),
                newest: Timestamp(row.newest).into(),
            })
            .collect();
        let counted: u64 = consumers.iter().map(|consumer| consumer.records).sum();
        Ok(InboxStats {
            records: Count {
                number: counted,
                is_capped: counted >= u64::from(COUNTED_MAX),
            },
            retention: self.inbox_retention(),
            consumers,
        })
    }
}
