//! Records as a list, for those who wonder whether a message was handled.
//!
//! The order is that of consumer, source and message id: the table has no other index, since every message would pay for it.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::outbox::MessageId;
use crate::page;
use crate::steadfast::Steadfast;
use crate::store::inbox::{Inbox, RecordFilter, RecordRow};
use crate::store::{Database, Store};

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

/// Where a record stands in the list of all, as one word: its consumer, source and message id with slashes between them, and with `%`
/// and two hexadecimal digits for each byte that could be taken for something else.
///
/// ```
/// # use steadfast::InboxPlace;
/// let place: InboxPlace = "stock.reserve/%2Fshop/17".parse()?;
/// assert_eq!(place.to_string(), "stock.reserve/%2Fshop/17");
/// # Ok::<_, steadfast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxPlace {
    consumer: String,
    source: String,
    message_id: String,
}

impl From<&InboxRecord> for InboxPlace {
    fn from(record: &InboxRecord) -> Self {
        Self {
            consumer: record.consumer.clone(),
            source: record.source.clone(),
            message_id: record.message_id.clone(),
        }
    }
}

impl fmt::Display for InboxPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&self.consumer, &self.source, &self.message_id];
        for (number, part) in parts.into_iter().enumerate() {
            if number > 0 {
                f.write_char('/')?;
            }
            for byte in part.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b':' | b'@' | b'+' => {
                        f.write_char(byte.into())?;
                    }
                    _ => write!(f, "%{byte:02X}")?,
                }
            }
        }
        Ok(())
    }
}

impl FromStr for InboxPlace {
    type Err = Error;

    /// # Errors
    /// SF102 if it is not what a place is written as.
    fn from_str(text: &str) -> Result<Self> {
        let parts: Option<Vec<_>> = text.split('/').map(decode).collect();
        match parts.map(<[String; 3]>::try_from) {
            Some(Ok([consumer, source, message_id])) => Ok(Self {
                consumer,
                source,
                message_id,
            }),
            _ => Err(Error::new(
                Code::InputInvalid,
                format!(
                    "{text:?} is not a place in the inbox; write CONSUMER/SOURCE/ID, as the end of a page shows it"
                ),
            )),
        }
    }
}

/// One part of a place, as it was.
fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Some of the records, and where the next ones begin.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InboxPage {
    /// In the order of consumer, source and message id.
    pub records: Vec<InboxRecord>,
    /// Whether there are more: [`InboxList::after`] the last of these.
    pub has_more: bool,
    /// When they were read, by the database's clock.
    pub now: SystemTime,
}

/// The records of the inbox that are wanted: [`Steadfast::inbox`].
#[must_use = "nothing is read before `page`"]
pub struct InboxList<'l, Db: Database> {
    steadfast: &'l Steadfast<Db>,
    filter: RecordFilter,
    received_within: Option<Duration>,
    received_before: Option<Duration>,
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
            received_within: None,
            received_before: None,
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

    /// Only those that were received within this time, by the database's clock.
    pub fn received_within(mut self, age: Duration) -> Self {
        self.received_within = Some(age);
        self
    }

    /// Only those that were received longer ago than this, by the database's clock.
    pub fn received_before(mut self, age: Duration) -> Self {
        self.received_before = Some(age);
        self
    }

    /// Only those behind this one, a record or its place: the next page.
    pub fn after(mut self, place: impl Into<InboxPlace>) -> Self {
        let InboxPlace {
            consumer,
            source,
            message_id,
        } = place.into();
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
    pub async fn page(mut self) -> Result<InboxPage> {
        let now = self.steadfast.clock().at(self.steadfast.store().now().await?);
        let ago = |age: Duration| now.before(age);
        // Of two bounds the narrower one counts.
        self.filter.since = self.filter.since.max(self.received_within.map(ago));
        let ends = [self.filter.until, self.received_before.map(ago)];
        self.filter.until = ends.into_iter().flatten().min();
        let store = self.steadfast.ask("list the inbox");
        let mut rows = store.list_records(&self.filter, page::rows_wanted(self.limit)).await?;
        let has_more = page::cut(&mut rows, self.limit);
        Ok(InboxPage {
            records: rows.into_iter().map(InboxRecord::from).collect(),
            has_more,
            now: now.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written_whatever_is_in_it() {
        for (consumer, source, message_id, text) in [
            ("stock.reserve", "/shop", "17", "stock.reserve/%2Fshop/17"),
            ("a", "", "50 % of \u{e4}", "a//50%20%25%20of%20%C3%A4"),
        ] {
            let place = InboxPlace {
                consumer: consumer.to_owned(),
                source: source.to_owned(),
                message_id: message_id.to_owned(),
            };
            assert_eq!(place.to_string(), text);
            assert_eq!(text.parse::<InboxPlace>().expect("a place"), place);
        }
        for wrong in ["", "a/b", "a/b/c/d", "a/b/%", "a/b/%4", "a/b/%zz", "a/b/%FF"] {
            assert_eq!(wrong.parse::<InboxPlace>().expect_err(wrong).code(), Code::InputInvalid);
        }
    }
}
