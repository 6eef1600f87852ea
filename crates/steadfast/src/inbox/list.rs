//! Records as a list, for those who wonder whether a message was handled.
//!
//! The order is that of consumer, source and message id: the table has no other index, since every message would pay for it.

use std::time::SystemTime;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::outbox::MessageId;
use crate::page;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::inbox::{Inbox, RecordFilter, RecordRow};

/// Proof that a consumer has handled a message of a source, or keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxRecord {
    /// The name of the reaction.
    pub consumer: String,
    /// Who says it.
    pub source: String,
    /// The id that its producer gave it.
    pub message_id: String,
    /// When it was received.
    pub received_at: SystemTime,
    /// The message, if it was kept to be worked on later: [`Steadfast::message`] shows where it stands. What was handled at once is
    /// not kept.
    pub kept: Option<MessageId>,
}

impl From<RecordRow> for InboxRecord {
    fn from(row: RecordRow) -> Self {
        Self {
            consumer: row.consumer,
            source: row.source,
            message_id: row.message_id,
            received_at: Timestamp(row.received_at).into(),
            kept: row.item.map(MessageId::of),
        }
    }
}

/// Some of the records, and where the next ones begin.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InboxPage {
    /// In the order of consumer, source and message id.
    pub records: Vec<InboxRecord>,
    /// Whether there are more: [`InboxList::after`] the last of these.
    pub has_more: bool,
}

/// The records of the inbox that are wanted: [`Steadfast::inbox`].
#[must_use = "nothing is read before `page`"]
pub struct InboxList<'l, Db: Database> {
    steadfast: &'l Steadfast<Db>,
    filter: RecordFilter,
    limit: u32,
}

impl<Db: Database> Steadfast<Db> {
    /// Which messages from elsewhere were handled, or are kept.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let page = sf.inbox().consumer("stock.reserve").message_id("17").page().await?;
    /// assert!(page.records.is_empty(), "nobody has handled it");
    /// # Ok(())
    /// # }
    /// ```
    pub fn inbox(&self) -> InboxList<'_, Db> {
        InboxList {
            steadfast: self,
            filter: RecordFilter::default(),
            limit: page::LENGTH,
        }
    }
}

impl<Db: Database> InboxList<'_, Db> {
    /// Only those of this reaction.
    pub fn consumer(mut self, consumer: &str) -> Self {
        self.filter.consumer = Some(consumer.to_owned());
        self
    }

    /// Only those that this source said.
    pub fn source(mut self, source: &str) -> Self {
        self.filter.source = Some(source.to_owned());
        self
    }

    /// Only those of the message with this id, which more than one source may have used.
    pub fn message_id(mut self, message_id: &str) -> Self {
        self.filter.message_id = Some(message_id.to_owned());
        self
    }

    /// Only those that were received at this moment or later.
    pub fn since(mut self, at: SystemTime) -> Self {
        self.filter.since = Some(Timestamp::of(at));
        self
    }

    /// Only those that were received at this moment or earlier.
    pub fn until(mut self, at: SystemTime) -> Self {
        self.filter.until = Some(Timestamp::of(at));
        self
    }

    /// Only those behind this one: the next page.
    pub fn after(mut self, record: &InboxRecord) -> Self {
        let InboxRecord {
            consumer,
            source,
            message_id,
            ..
        } = record.clone();
        self.filter.after = Some((consumer, source, message_id));
        self
    }

    /// How many there are on a page; 50 by default, and 1000 at the most.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = page::length(limit);
        self
    }

    /// Reads them.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn page(self) -> Result<InboxPage> {
        let store = self.steadfast.ask("list the inbox");
        let mut rows = store.list_records(&self.filter, page::rows_wanted(self.limit)).await?;
        let has_more = page::cut(&mut rows, self.limit);
        Ok(InboxPage {
            records: rows.into_iter().map(InboxRecord::from).collect(),
            has_more,
        })
    }
}
