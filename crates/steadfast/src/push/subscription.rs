//! What one client follows, and how far it has come.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Push;
use super::entry::Entry;
use super::hub::{LiveStream, Seat};
use super::name::StreamName;
use super::place::{self, Returning};
use super::ring::Ring;
use crate::clock::{jitter, micros};
use crate::error::{Code, Error, Result};
use crate::purge::STREAM_RETENTION;
use crate::store::Database;
use crate::store::streams::{Ahead, Place, Streams};
use crate::telemetry;

/// How many streams one client may follow.
const STREAMS_MAX: usize = 16;

/// How many entries a client may be behind and still be told each of them.
const REPLAY_MAX: i64 = 1_000;

/// How many entries a client is handed at once.
const ENTRIES_AT_ONCE: usize = 64;

/// How far before now a stream counts as begun that has no row: somewhere within the time for which entries are kept, and early
/// enough for a clock that is set back.
const BEGUN_BEFORE: Duration = Duration::from_secs(60 * 60);

/// What a client is told.
#[derive(Clone, Debug)]
pub(super) enum Tale {
    /// From here on it hears everything: now is the time to fetch what there is.
    Ready,
    Entry(Arc<Entry>),
    /// Something was missed that nobody can tell any more: it has to fetch everything anew.
    Resync,
}

/// Something to tell, and where the client is once it has heard it.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) tale: Tale,
    pub(super) place: String,
}

/// Why a client has to fetch everything anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missed {
    /// It was away for longer than entries are kept, or too many have come since.
    Away,
    /// It says that it is where nobody can be.
    Unknown,
    /// It takes less than comes.
    Slow,
}

struct Followed {
    stream: Arc<LiveStream>,
    /// The newest entry that the client was told.
    number: i64,
}

impl Followed {
    /// Whether memory has no more what the client has not been told.
    fn is_behind(&self) -> bool {
        self.stream
            .ring()
            .as_ref()
            .is_some_and(|ring| self.number < ring.floor())
    }
}

pub(super) struct Subscription<Db: Database> {
    push: Push<Db>,
    followed: Vec<Followed>,
    signal: Arc<Notify>,
    stopping: CancellationToken,
    ends_at: Instant,
    /// What it is told first.
    first: Vec<Tale>,
    has_ended: bool,
    _seat: Seat,
}

impl<Db: Database> Drop for Subscription<Db> {
    fn drop(&mut self) {
        for followed in &self.followed {
            self.push.hub.leave(&followed.stream, &self.signal);
        }
    }
}

impl<Db: Database> Push<Db> {
    /// Follows streams from where the client has been.
    pub(super) async fn subscribe(&self, names: &[StreamName], returning: &Returning) -> Result<Subscription<Db>> {
        // Whoever asks for a stream twice hears it once.
        let names: Vec<_> = BTreeSet::from_iter(names).into_iter().collect();
        check(&names)?;
        if self.sf.is_stopping() {
            return Err(Error::new(Code::ShuttingDown, "this process is ending; connect again"));
        }
        let Some(seat) = self.hub.enter(self.options.subscribers_max) else {
            let message = format!(
                "this process serves {} live clients already; connect again later",
                self.options.subscribers_max
            );
            return Err(Error::new(Code::PoolExhausted, message));
        };
        let signal = Arc::new(Notify::new());
        let follow = |name| Followed {
            stream: self.hub.follow(name, &signal),
            number: 0,
        };
        let mut subscription = Subscription {
            push: self.clone(),
            followed: names.into_iter().map(follow).collect(),
            signal,
            stopping: self.sf.stopping(),
            ends_at: Instant::now() + jitter(self.options.subscription_max),
            first: vec![Tale::Ready],
            has_ended: false,
            _seat: seat,
        };
        let missed = subscription.begin(returning).await?;
        if let Some(missed) = missed {
            telemetry::resynced(missed.as_str());
            subscription.first.push(Tale::Resync);
        }
        self.hub.read_for(&self.sf);
        Ok(subscription)
    }
}

/// What may be followed.
fn check(names: &[&StreamName]) -> Result<()> {
    let what = match names.len() {
        0 => "a live client follows nothing; name at least one stream".to_owned(),
        count if count > STREAMS_MAX => format!("a live client follows {count} streams; {STREAMS_MAX} are the most"),
        _ => return Ok(()),
    };
    Err(Error::new(Code::InputInvalid, what))
}

impl<Db: Database> Subscription<Db> {
    /// Finds the place in each stream from where on it is told. The database is asked only where memory does not know.
    async fn begin(&mut self, returning: &Returning) -> Result<Option<Missed>> {
        let wanted = |name: &StreamName| match returning {
            Returning::From(places) => places.get(name).copied(),
            Returning::Never | Returning::Unreadable => None,
        };
        let mut missed = (*returning == Returning::Unreadable).then_some(Missed::Unknown);
        let mut unsure = Vec::new();
        for (place, followed) in self.followed.iter_mut().enumerate() {
            match (&*followed.stream.ring(), wanted(&followed.stream.name)) {
                (Some(ring), None) => followed.number = ring.position(),
                (Some(ring), Some(number)) if ring.knows(number) => followed.number = number,
                _ => unsure.push(place),
            }
        }
        if unsure.is_empty() {
            return Ok(missed);
        }
        let asked: Vec<_> = unsure.iter().map(|place| &self.followed[*place].stream.name).collect();
        let places: Vec<_> = asked
            .iter()
            .map(|name| Place {
                stream: name.as_str(),
                number: wanted(name).unwrap_or(i64::MAX),
            })
            .collect();
        let sf = &self.push.sf;
        let aheads = sf
            .ask("look at streams")
            .look_ahead(&places, REPLAY_MAX, sf.clock().ahead());
        let aheads = aheads.await?;
        for (place, ahead) in unsure.into_iter().zip(aheads) {
            let followed = &mut self.followed[place];
            let begun = ahead.last.unwrap_or_else(|| ahead.now.before(BEGUN_BEFORE).0);
            if followed.stream.open(begun) {
                // Something may have come since the look.
                self.push.hub.mark(std::iter::once(followed.stream.name.as_str()));
            }
            match wanted(&followed.stream.name).map(|number| (number, judge(number, &ahead))) {
                Some((number, None)) => followed.number = number,
                Some((_, Some(why))) => {
                    followed.number = begun;
                    missed = missed.or(Some(why));
                }
                None => followed.number = begun,
            }
        }
        Ok(missed)
    }

    /// Where the client is in all of its streams.
    fn place(&self) -> String {
        place::write(
            self.followed
                .iter()
                .map(|followed| (&followed.stream.name, followed.number)),
        )
    }

    /// What the client is told next. `None`: nothing any more; it has to come back. It may be dropped while it waits.
    pub(super) async fn next(&mut self) -> Option<Vec<Told>> {
        loop {
            if self.has_ended || self.stopping.is_cancelled() {
                return None;
            }
            if !self.first.is_empty() {
                let place = self.place();
                let tell = |tale| Told {
                    tale,
                    place: place.clone(),
                };
                return Some(std::mem::take(&mut self.first).into_iter().map(tell).collect());
            }
            match self.look().await {
                Ok(told) if told.is_empty() => {}
                Ok(told) => return Some(told),
                Err(error) => {
                    telemetry::subscription_failed(&error);
                    return None;
                }
            }
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                () = self.signal.notified() => {}
                () = tokio::time::sleep_until(self.ends_at) => return None,
            }
        }
    }

    /// What there is to tell now. It waits for the database before it takes anything out: a wait may be cut short, and what was
    /// taken out would never be told.
    async fn look(&mut self) -> Result<Vec<Told>> {
        let mut told = Vec::new();
        if let Some(place) = self.followed.iter().position(Followed::is_behind) {
            match self.catch_up(place).await? {
                Some(entries) => self.tell(place, entries, &mut told),
                None => return Ok(vec![self.give_up()]),
            }
        }
        for place in 0..self.followed.len() {
            let followed = &self.followed[place];
            let entries = match &*followed.stream.ring() {
                // One that is behind has its turn next time.
                Some(ring) => ring.after(followed.number, ENTRIES_AT_ONCE).unwrap_or_default(),
                None => Vec::new(),
            };
            self.tell(place, entries, &mut told);
        }
        Ok(told)
    }

    fn tell(&mut self, place: usize, entries: Vec<Arc<Entry>>, told: &mut Vec<Told>) {
        // More may be there than it is handed at once.
        if entries.len() >= ENTRIES_AT_ONCE {
            self.signal.notify_one();
        }
        for entry in entries {
            self.followed[place].number = entry.number;
            told.push(Told {
                tale: Tale::Entry(entry),
                place: self.place(),
            });
        }
    }

    /// Reads from the database what memory has no more. `None`: it is too far behind.
    async fn catch_up(&mut self, place: usize) -> Result<Option<Vec<Arc<Entry>>>> {
        // Those who come back in crowds wait for each other, and not the database for them.
        let _turn = self.push.hub.catching_up.acquire().await;
        let sf = &self.push.sf;
        let followed = &mut self.followed[place];
        let floor = followed.stream.ring().as_ref().map_or(followed.number, Ring::floor);
        let places = [Place {
            stream: followed.stream.name.as_str(),
            number: followed.number,
        }];
        let ahead = sf
            .ask("look at streams")
            .look_ahead(&places, REPLAY_MAX, sf.clock().ahead());
        if ahead.await?.iter().any(|ahead| judge(followed.number, ahead).is_some()) {
            return Ok(None);
        }
        let limit = i64::try_from(ENTRIES_AT_ONCE).unwrap_or(i64::MAX);
        let rows = sf.ask("read missed entries").entries_after(&places, limit).await?;
        if rows.is_empty() {
            // Nothing was missed: it goes on with what memory has.
            followed.number = floor;
        }
        self.signal.notify_one();
        Ok(Some(rows.iter().map(|row| Arc::new(Entry::new(row))).collect()))
    }

    /// Ends with a client that takes less than comes: from where the streams are now it may begin anew.
    fn give_up(&mut self) -> Told {
        telemetry::resynced(Missed::Slow.as_str());
        self.has_ended = true;
        for followed in &mut self.followed {
            let position = followed.stream.ring().as_ref().map(Ring::position);
            followed.number = position.unwrap_or(followed.number).max(followed.number);
        }
        Told {
            tale: Tale::Resync,
            place: self.place(),
        }
    }
}

/// Whether a client that has come to this number can be told everything since, and if not, why.
fn judge(number: i64, ahead: &Ahead) -> Option<Missed> {
    let kept_since = ahead.now.before(STREAM_RETENTION).0;
    match ahead.last {
        Some(last) if number == last => None,
        Some(last) if number > last => Some(Missed::Unknown),
        Some(_) => (ahead.is_far || number < kept_since).then_some(Missed::Away),
        // Nothing has come for as long as entries are kept.
        None if number < kept_since => Some(Missed::Away),
        None => (number > ahead.now.0.saturating_add(micros(BEGUN_BEFORE))).then_some(Missed::Unknown),
    }
}

impl Missed {
    fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Unknown => "unknown",
            Self::Slow => "slow",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_wait_for_the_database_that_is_cut_short_loses_nothing() -> crate::Result<()> {
        use crate::{Event, Steadfast};

        #[derive(serde::Serialize, serde::Deserialize)]
        struct Said {
            topic: String,
        }

        impl Event for Said {
            const TYPE: &'static str = "test.said";
        }

        const MANY: usize = 600;
        let sf = Steadfast::<sqlx::Sqlite>::open("sqlite::memory:").await?;
        let push = sf
            .push("test.live")
            .event(|said: &Said, to| to.push(StreamName::topic(&said.topic), &()));
        let push = push.start();
        sf.declare().await?;
        let streams = [StreamName::topic("few"), StreamName::topic("many")];
        let mut subscription = push.subscribe(&streams, &Returning::Never).await?;
        subscription.next().await.expect("it is ready");
        let publishing = sf.transact(async |tx| {
            for topic in std::iter::once("few").chain(std::iter::repeat_n("many", MANY)) {
                tx.publish(&Said {
                    topic: topic.to_owned(),
                })?;
            }
            Ok(())
        });
        publishing.await?;
        sf.drain().await?;
        let hearing = async {
            // The process has read more than it keeps.
            while !subscription.followed[1].is_behind() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let others = push.hub.catching_up.acquire_many(4).await.expect("it stays open");
            assert!(futures_util::FutureExt::now_or_never(subscription.next()).is_none());
            drop(others);
            let mut count = 0;
            while count < MANY + 1 {
                count += subscription.next().await.expect("there is more").len();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), hearing)
            .await
            .expect("it hears everything");
        Ok(())
    }

    #[test]
    fn a_client_is_told_all_it_has_missed_or_that_nobody_can() {
        let day = micros(STREAM_RETENTION);
        let now = 10 * day;
        let verdict = |number, last, is_far| {
            judge(
                number,
                &Ahead {
                    last,
                    is_far,
                    now: Timestamp(now),
                },
            )
        };
        let (recent, old) = (now - day + 1, now - day - 1);
        assert_eq!(
            verdict(old, Some(old), false),
            None,
            "it has seen the newest, however old that is"
        );
        assert_eq!(verdict(recent, Some(now), false), None);
        assert_eq!(
            verdict(recent, Some(now), true),
            Some(Missed::Away),
            "too many have come"
        );
        assert_eq!(verdict(old, Some(now), false), Some(Missed::Away), "some may be purged");
        assert_eq!(
            verdict(now, Some(recent), false),
            Some(Missed::Unknown),
            "the database went back"
        );
        assert_eq!(verdict(recent, None, false), None, "nothing has come");
        assert_eq!(
            verdict(old, None, false),
            Some(Missed::Away),
            "it may have come and gone"
        );
        assert_eq!(verdict(now + day, None, false), Some(Missed::Unknown));
    }
}
