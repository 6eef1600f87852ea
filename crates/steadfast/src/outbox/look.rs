//! Deliveries and messages, for those who look after them: what waits, what is worked on, what has died and why.
//!
//! The order is that of the messages' ids, which grow with time, and then of the targets. So a page costs what it shows, and
//! paging misses nothing and shows nothing twice, whatever is delivered meanwhile.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::count::Count;
use super::delivery::{DeliveryPlace, DeliveryState, ListedDelivery};
use super::message::MessageId;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::page;
use crate::steadfast::Steadfast;
use crate::store::letters::{Among, DeliveryFilter, DeliveryRow, GroupRow, Letters};
use crate::store::{Database, Store};

/// How far deliveries are counted: beyond this, how many there are exactly is not worth the time.
pub(super) const COUNT_MAX: u32 = 100_000;

/// How far ids and the database's time may be apart. Ids come from the clocks of those who publish.
const ID_SLACK: Duration = Duration::from_secs(60 * 60);

/// Some deliveries, and where to go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeliveryPage {
    /// The deliveries, oldest message first.
    pub deliveries: Vec<ListedDelivery>,
    /// The last one of this page, if there are more: pass it to [`DeliveryList::after`].
    pub next: Option<DeliveryPlace>,
    /// The database's time when they were read.
    pub now: SystemTime,
}

/// Dead letters that failed in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadGroup {
    /// What they have in common: pass it to [`DeliveryList::fingerprint`].
    pub fingerprint: String,
    /// The code of the failure.
    pub code: String,
    /// How many there are.
    pub count: u64,
    /// The oldest of them.
    pub example: MessageId,
    /// What its failure said.
    pub message: String,
    /// To which targets they were on their way.
    pub targets: Vec<String>,
    /// When the first of them failed for the last time.
    pub first_at: SystemTime,
    /// When the last of them did.
    pub last_at: SystemTime,
}

impl From<GroupRow> for DeadGroup {
    fn from(row: GroupRow) -> Self {
        let mut targets: Vec<_> = row.targets.split(',').map(str::to_owned).collect();
        targets.sort();
        Self {
            fingerprint: row.fingerprint,
            code: row.code,
            count: u64::try_from(row.count).unwrap_or_default(),
            example: MessageId::of(row.example),
            message: row.message.unwrap_or_default(),
            targets,
            first_at: Timestamp(row.first_at).into(),
            last_at: Timestamp(row.last_at).into(),
        }
    }
}

/// Which deliveries to list, to count or to change: [`Steadfast::deliveries`], [`Steadfast::dead_letters`].
#[must_use = "nothing is listed until `page`"]
pub struct DeliveryList<'c, Db: Database> {
    pub(super) steadfast: &'c Steadfast<Db>,
    pub(crate) filter: DeliveryFilter,
    after: Option<DeliveryPlace>,
    published_within: Option<Duration>,
    limit: u32,
}

impl<Db: Database> Steadfast<Db> {
    /// The deliveries that are still to do: pending, leased and dead. Those that have ended are found by their state.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let page = sf.deliveries().target("stock.reserve").limit(20).page().await?;
    /// for delivery in &page.deliveries {
    ///     println!("{} to {}: {}", delivery.id, delivery.target, delivery.state.as_str());
    /// }
    /// assert!(page.next.is_none(), "there are no more");
    /// assert_eq!(sf.deliveries().count().await?.to_string(), "0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn deliveries(&self) -> DeliveryList<'_, Db> {
        DeliveryList::new(self, Among::Queue)
    }

    /// The deliveries that were given up.
    pub fn dead_letters(&self) -> DeliveryList<'_, Db> {
        DeliveryList::new(self, Among::Dead)
    }
}

impl<'c, Db: Database> DeliveryList<'c, Db> {
    fn new(steadfast: &'c Steadfast<Db>, among: Among) -> Self {
        Self::fitting(steadfast, DeliveryFilter::of(among))
    }

    pub(crate) fn fitting(steadfast: &'c Steadfast<Db>, filter: DeliveryFilter) -> Self {
        Self {
            steadfast,
            filter,
            after: None,
            published_within: None,
            limit: page::LENGTH,
        }
    }

    /// Only those in this state.
    pub fn state(mut self, state: DeliveryState) -> Self {
        self.filter.among = state.among();
        self
    }

    /// Only those to this target, whatever the version of the event.
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.filter.target = Some(target.into());
        self
    }

    /// Only events of this type.
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.filter.event_type = Some(event_type.into());
        self
    }

    /// Only events of this ordering key.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.filter.ordering_key = Some(key.into());
        self
    }

    /// Only those whose last failure has this code.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.filter.code = Some(code.into());
        self
    }

    /// Only those whose last failure has this fingerprint: a [group](Self::groups).
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.filter.fingerprint = Some(fingerprint.into());
        self
    }

    /// Only messages that were published within this time, by the database's clock.
    pub fn published_within(mut self, age: Duration) -> Self {
        self.published_within = Some(age);
        self
    }

    /// Goes on after this place, the last one of the page before.
    pub fn after(mut self, last: DeliveryPlace) -> Self {
        self.after = Some(last);
        self
    }

    /// At most so many, 1 to 1,000; 50 by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = page::length(limit);
        self
    }

    /// Reads one page. Payloads are not read.
    ///
    /// Without a filter, and among the dead, it reads about as many rows as it shows. With another filter it reads on until the
    /// page is full: where few deliveries fit, that may be the whole table. Deliveries that have ended are read from the
    /// history, which has no order, so all of it is looked at.
    ///
    /// # Errors
    /// If the database does not answer. SF118 if a row was written by a newer version.
    pub async fn page(mut self) -> Result<DeliveryPage> {
        let now = self.settle_bounds().await?;
        let (rows, has_more) = self.rows().await?;
        let deliveries: Vec<_> = rows.into_iter().map(ListedDelivery::read).collect::<Result<_>>()?;
        Ok(DeliveryPage {
            next: deliveries.last().map(ListedDelivery::place).filter(|_| has_more),
            deliveries,
            now: now.into(),
        })
    }

    /// The rows of one page, once the bounds are settled, and whether there are more.
    pub(crate) async fn rows(&self) -> Result<(Vec<DeliveryRow>, bool)> {
        let store = self.steadfast.ask("list deliveries");
        let wanted = page::rows_wanted(self.limit);
        let mut rows = store.list_deliveries(&self.filter, wanted).await?;
        let has_more = page::cut(&mut rows, self.limit);
        Ok((rows, has_more))
    }

    /// Counts them, up to 100,000.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn count(mut self) -> Result<Count> {
        self.settle_bounds().await?;
        self.counted().await
    }

    /// How many fit, once the bounds are settled.
    pub(crate) async fn counted(&self) -> Result<Count> {
        let store = self.steadfast.ask("count deliveries");
        let counted = store.count_deliveries(&self.filter, COUNT_MAX).await?;
        Ok(Count::of(counted, COUNT_MAX))
    }

    /// Groups the dead ones among them by how they failed, the largest group first, at most 100 groups; 100,000 dead
    /// letters are looked at.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn groups(mut self) -> Result<Vec<DeadGroup>> {
        self.settle_bounds().await?;
        let store = self.steadfast.ask("group dead letters");
        let groups = store.group_dead(&self.filter, COUNT_MAX).await?;
        Ok(groups.into_iter().map(DeadGroup::from).collect())
    }

    /// Turns ages into moments and places, and says the time.
    pub(crate) async fn settle_bounds(&mut self) -> Result<Timestamp> {
        let database = self.steadfast.store().now().await?;
        let now = self.steadfast.clock().at(database);
        if let Some(age) = self.published_within {
            self.filter.since = Some(now.before(age));
            // Ids grow with time, so the index leads near the first one.
            self.filter.after = (first_id(database.before(age).before(ID_SLACK)), String::new());
        }
        if let Some(DeliveryPlace(item, kind)) = self.after.take()
            && (item, &*kind) > (self.filter.after.0, &*self.filter.after.1)
        {
            self.filter.after = (item, kind);
        }
        Ok(now)
    }
}

/// The lowest id that a message of this moment can have.
fn first_id(at: Timestamp) -> Uuid {
    let millis = u64::try_from(at.0 / 1_000).unwrap_or_default();
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_of_a_moment_is_not_after_any_that_is_made_then() {
        let made = Uuid::now_v7();
        let (seconds, nanos) = made.get_timestamp().expect("version 7").to_unix();
        let at = Timestamp(i64::try_from(seconds).expect("now") * 1_000_000 + i64::from(nanos / 1_000));
        assert!(first_id(at) < made && first_id(Timestamp(at.0 + 2_000)) > made);
    }
}
