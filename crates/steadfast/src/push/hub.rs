//! The streams that somebody follows in this process, and the one reader for all of them.
//!
//! A stream becomes known when the first client follows it and is forgotten with the last one. Whoever hears of new entries, by
//! having appended them, by a notice of another process or by the clock, *marks* streams; the reader reads what is behind the
//! newest entry it knows of each, puts it into the [`Ring`], and wakes those who follow.
//!
//! Notices come by the database, and the reader hears them itself; or they come by a broker ([`Across`]), and another task does.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use super::across::Across;
use super::entry::Entry;
use super::name::StreamName;
use super::notice::{self, Notice};
use super::ring::Ring;
use crate::error::Result;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::streams::{Place, Streams};
use crate::telemetry;

/// How many entries of a stream are read at once, and of how many streams.
const ENTRIES_AT_ONCE: i64 = 200;
const STREAMS_AT_ONCE: usize = 1_000;

/// How often streams are looked at by the clock: as long as nothing was ever heard, and once something was.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_SELDOM: Duration = Duration::from_secs(30);

/// How long the reader stays when nobody follows anything.
const LINGER: Duration = Duration::from_secs(10);

/// How long it waits when the database does not answer.
const AWAY: Duration = Duration::from_secs(1);

/// How many clients at once read from the database what they have missed.
const CATCHING_UP_MAX: usize = 4;

pub(super) struct Hub {
    state: Mutex<State>,
    /// For the reader: something is marked.
    wake: Notify,
    subscribers: AtomicUsize,
    pub(super) catching_up: Semaphore,
    /// How other processes are told and heard, if not by the database.
    pub(super) across: Option<Arc<Across>>,
}

#[derive(Default)]
struct State {
    streams: HashMap<StreamName, Arc<LiveStream>>,
    marked: HashSet<StreamName>,
    has_reader: bool,
}

/// A stream that somebody follows.
pub(super) struct LiveStream {
    pub(super) name: StreamName,
    /// `None`: nobody has looked yet where the stream is.
    ring: Mutex<Option<Ring>>,
    followers: Mutex<Vec<Arc<Notify>>>,
}

impl Hub {
    pub(super) fn new(across: Option<Across>) -> Self {
        Self {
            state: Mutex::default(),
            wake: Notify::default(),
            subscribers: AtomicUsize::new(0),
            catching_up: Semaphore::new(CATCHING_UP_MAX),
            across: across.map(Arc::new),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a client in, unless there are as many as may be.
    pub(super) fn enter(self: &Arc<Self>, subscribers_max: usize) -> Option<Seat> {
        let next = |count| Some(count + 1).filter(|count| *count <= subscribers_max);
        let before = self
            .subscribers
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .ok()?;
        telemetry::subscribers_are(before + 1);
        Some(Seat(self.clone()))
    }

    /// Follows a stream: its new entries wake this signal.
    pub(super) fn follow(&self, name: &StreamName, signal: &Arc<Notify>) -> Arc<LiveStream> {
        let mut state = self.state();
        let stream = state.streams.entry(name.clone()).or_insert_with(|| {
            Arc::new(LiveStream {
                name: name.clone(),
                ring: Mutex::default(),
                followers: Mutex::default(),
            })
        });
        stream.followers().push(signal.clone());
        stream.clone()
    }

    /// Follows it no more.
    pub(super) fn leave(&self, stream: &LiveStream, signal: &Arc<Notify>) {
        let mut state = self.state();
        let mut followers = stream.followers();
        if let Some(place) = followers.iter().position(|follower| Arc::ptr_eq(follower, signal)) {
            followers.swap_remove(place);
        }
        if followers.is_empty() {
            state.streams.remove(&stream.name);
        }
    }

    /// Says that these streams may have new entries.
    pub(super) fn mark<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let mut state = self.state();
        for name in names {
            if let Some(stream) = state.streams.get(name) {
                let name = stream.name.clone();
                state.marked.insert(name);
            }
        }
        if !state.marked.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Says that any of them may.
    fn mark_all(&self) {
        let mut state = self.state();
        state.marked = state.streams.keys().cloned().collect();
    }

    /// Says so to the reader.
    pub(super) fn look_at_all(&self) {
        self.mark_all();
        self.wake.notify_one();
    }

    /// What is marked, which it is no longer.
    fn take_marked(&self) -> Vec<Arc<LiveStream>> {
        let mut state = self.state();
        let marked = mem::take(&mut state.marked);
        marked
            .iter()
            .filter_map(|name| state.streams.get(name).cloned())
            .collect()
    }

    /// Sees to it that somebody reads.
    pub(super) fn read_for<Db: Database>(self: &Arc<Self>, sf: &Steadfast<Db>) {
        if !mem::replace(&mut self.state().has_reader, true) {
            let reader = Reader {
                hub: self.clone(),
                sf: sf.clone(),
                ear: None,
                has_heard: false,
            };
            tokio::spawn(reader.run());
        }
    }

    fn is_empty(&self) -> bool {
        self.state().streams.is_empty()
    }

    /// Whether the reader may go: nobody follows anything. Whoever does from now on calls another one.
    fn lets_the_reader_go(&self) -> bool {
        let mut state = self.state();
        state.has_reader = !state.streams.is_empty();
        !state.has_reader
    }
}

/// A client's place among those that are served.
pub(super) struct Seat(Arc<Hub>);

impl Drop for Seat {
    fn drop(&mut self) {
        let before = self.0.subscribers.fetch_sub(1, Ordering::AcqRel);
        telemetry::subscribers_are(before - 1);
    }
}

impl LiveStream {
    fn followers(&self) -> MutexGuard<'_, Vec<Arc<Notify>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of it; `None` if nobody has looked yet where it is.
    pub(super) fn ring(&self) -> MutexGuard<'_, Option<Ring>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins here, unless it has begun. True: it was not yet.
    pub(super) fn open(&self, position: i64) -> bool {
        let mut ring = self.ring();
        let is_first = ring.is_none();
        ring.get_or_insert_with(|| Ring::new(position));
        is_first
    }

    fn position(&self) -> Option<i64> {
        self.ring().as_ref().map(Ring::position)
    }

    fn add(&self, entry: Entry) {
        if let Some(ring) = &mut *self.ring() {
            ring.add(entry);
        }
    }

    fn wake_followers(&self) {
        for follower in &*self.followers() {
            follower.notify_one();
        }
    }
}

/// A reader that has not gone yet.
struct Going(Arc<Hub>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.state().has_reader = false;
    }
}

/// Reads new entries while somebody follows streams.
struct Reader<Db: Database> {
    hub: Arc<Hub>,
    sf: Steadfast<Db>,
    ear: Option<<Db::Store as Streams<Db>>::Ear>,
    /// Whether notices of the database get here at all: behind some poolers none does.
    has_heard: bool,
}

impl<Db: Database> Reader<Db> {
    async fn run(mut self) {
        // However it ends, the next client calls another one.
        let _going = Going(self.hub.clone());
        let across = self.hub.across.clone();
        let _listening = across.as_ref().map(|across| across.listen(&self.hub, &self.sf));
        let stopping = self.sf.stopping();
        while !stopping.is_cancelled() {
            if self.ear.is_none() && across.is_none() {
                self.open_ear().await;
                // Whatever was said meanwhile was not heard.
                self.hub.mark_all();
            }
            if let Err(error) = self.read_marked().await {
                telemetry::streams_not_read(&error);
                tokio::time::sleep(AWAY).await;
                self.hub.mark_all();
                continue;
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.wait() => {}
            }
            if self.hub.is_empty() && self.hub.lets_the_reader_go() {
                return;
            }
        }
    }

    async fn open_ear(&mut self) {
        match self.sf.store().open_ear().await {
            Ok(ear) => self.ear = Some(ear),
            Err(error) => telemetry::streams_not_heard(&error),
        }
    }

    /// Whether notices get here.
    fn hears(&self) -> bool {
        match &self.hub.across {
            Some(across) => across.hears(),
            None => self.has_heard && self.ear.is_some(),
        }
    }

    /// Waits until there may be something to read.
    async fn wait(&mut self) {
        let patience = match (self.hub.is_empty(), self.hears()) {
            (true, _) => LINGER,
            (_, true) => LOOK_SELDOM,
            (_, false) => LOOK_EVERY,
        };
        tokio::select! {
            () = self.hub.wake.notified() => {}
            heard = hear(&self.sf, &mut self.ear) => self.understand(heard),
            () = tokio::time::sleep(patience) => self.hub.mark_all(),
        }
    }

    fn understand(&mut self, heard: Result<Option<String>>) {
        match heard {
            Ok(None) => self.hub.mark_all(),
            Ok(Some(text)) => {
                self.has_heard = true;
                match notice::read(self.sf.id(), &text) {
                    // It has marked them itself.
                    Notice::Own => {}
                    Notice::Streams(names) => self.hub.mark(names.into_iter()),
                    Notice::All => self.hub.mark_all(),
                }
            }
            Err(error) => {
                telemetry::streams_not_heard(&error);
                self.ear = None;
            }
        }
    }

    /// Reads what is behind the newest known entry of each marked stream, until nothing is marked.
    async fn read_marked(&mut self) -> Result<()> {
        loop {
            let marked = self.hub.take_marked();
            if marked.is_empty() {
                return Ok(());
            }
            for some in marked.chunks(STREAMS_AT_ONCE) {
                read(&self.hub, &self.sf, some).await?;
            }
        }
    }
}

/// Reads what is behind the newest known entry of these streams, a page of each.
async fn read<Db: Database>(hub: &Hub, sf: &Steadfast<Db>, streams: &[Arc<LiveStream>]) -> Result<()> {
    let places: Vec<_> = streams
        .iter()
        .filter_map(|stream| {
            Some(Place {
                stream: stream.name.as_str(),
                // Whoever opens one marks it again.
                number: stream.position()?,
            })
        })
        .collect();
    if places.is_empty() {
        return Ok(());
    }
    let store = sf.ask("read new entries");
    let rows = store.entries_after(&places, ENTRIES_AT_ONCE).await?;
    let by_name: HashMap<_, _> = streams.iter().map(|stream| (stream.name.as_str(), stream)).collect();
    let mut counts: HashMap<&str, i64> = HashMap::new();
    for row in &rows {
        if let Some(stream) = by_name.get(&*row.stream) {
            stream.add(Entry::new(row));
            *counts.entry(&row.stream).or_default() += 1;
        }
    }
    for name in counts.keys() {
        by_name[name].wake_followers();
    }
    // Of these there may be more.
    let full = counts.iter().filter(|(_, count)| **count == ENTRIES_AT_ONCE);
    hub.mark(full.map(|(name, _)| *name));
    Ok(())
}

/// Hears a notice; without an ear, none ever.
async fn hear<Db: Database>(
    sf: &Steadfast<Db>,
    ear: &mut Option<<Db::Store as Streams<Db>>::Ear>,
) -> Result<Option<String>> {
    match ear {
        Some(ear) => sf.store().hear(ear).await,
        None => std::future::pending().await,
    }
}
