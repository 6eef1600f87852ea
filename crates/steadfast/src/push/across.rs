//! How processes tell each other of new entries over a broker, where the database does not: [`PushTarget::across`].
//!
//! What was appended and committed is *untold* until the broker has taken a notice of it. One task tells, all that there is at a
//! time; another one listens while somebody follows streams, and marks what it hears of in the [`Hub`]. Neither keeps anybody
//! waiting, and nothing depends on them: what is not heard of is found by the clock.
//!
//! [`PushTarget::across`]: super::PushTarget::across

use std::collections::BTreeSet;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::hub::Hub;
use super::notice::{self, Notice};
use crate::broker::away::Away;
use crate::broker::{Ear, Messenger};
use crate::failure::Failure;
use crate::steadfast::{Steadfast, WeakSteadfast};
use crate::store::Database;
use crate::store::streams::Streams;

/// How long a broker may take to take a notice, and to let somebody listen.
const LIMIT: Duration = Duration::from_secs(10);

/// After how long an ear that was not lost counts as one that works, if nothing was said.
const STEADY: Duration = Duration::from_secs(5);

/// How processes tell each other.
pub(super) struct Across {
    messenger: Box<dyn AnyMessenger>,
    /// What the streams of this instance are called there.
    channel: OnceCell<String>,
    untold: Mutex<Untold>,
    /// Whether something was heard, by the ear that listens now.
    hears: AtomicBool,
    telling: Away,
    hearing: Away,
}

/// What was appended, and others were not told of.
#[derive(Default)]
struct Untold {
    streams: BTreeSet<String>,
    has_teller: bool,
}

impl Untold {
    /// Their number is bounded: from so many on they are all of them.
    fn add<'n>(&mut self, streams: impl Iterator<Item = &'n str>) {
        if self.streams.contains(notice::ALL) {
            return;
        }
        self.streams.extend(streams.map(str::to_owned));
        if self.streams.iter().map(String::len).sum::<usize>() > notice::LENGTH_MAX {
            self.streams = BTreeSet::from([notice::ALL.to_owned()]);
        }
    }
}

impl Across {
    pub(super) fn new(messenger: impl Messenger) -> Self {
        Self {
            messenger: Box::new(messenger),
            channel: OnceCell::new(),
            untold: Mutex::default(),
            hears: AtomicBool::new(false),
            telling: Away::of_telling(),
            hearing: Away::of_hearing(),
        }
    }

    /// Whether notices get here.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn channel<Db: Database>(&self, sf: &Steadfast<Db>) -> Result<&str, String> {
        let asking = self.channel.get_or_try_init(|| sf.store().channel());
        asking.await.map(String::as_str).map_err(|error| error.to_string())
    }

    /// Tells other processes that these streams have new entries, which are committed. It waits for nothing.
    pub(super) fn tell<'n, Db: Database>(self: &Arc<Self>, sf: &Steadfast<Db>, streams: impl Iterator<Item = &'n str>) {
        let mut untold = self.untold();
        untold.add(streams);
        if !mem::replace(&mut untold.has_teller, true) {
            let (across, weak) = (self.clone(), sf.downgrade());
            let stopping = sf.stopping();
            sf.tasks().spawn(async move { across.tell_all(&weak, &stopping).await });
        }
    }

    /// Tells what is untold until nothing is, or the process ends. A broker that is away keeps no handle alive.
    async fn tell_all<Db: Database>(&self, weak: &WeakSteadfast<Db>, stopping: &CancellationToken) {
        // However it ends, whoever appends next calls another one. Two at once do no harm.
        let _leaving = Leaving(self);
        while let Some(streams) = self.take_untold() {
            let Some(sf) = weak.upgrade() else {
                return;
            };
            let streams = || streams.iter().map(String::as_str);
            let notice = notice::write(sf.id(), streams());
            let Err(why) = self.tell_once(&sf, &notice).await else {
                self.telling.is_back(&self.messenger.address());
                continue;
            };
            drop(sf);
            self.untold().add(streams());
            let pause = self.telling.has_missed(&self.messenger.address(), &why);
            tokio::select! {
                () = stopping.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// What is untold, which it is no longer. `None`: nothing is, and there is no teller any more.
    fn take_untold(&self) -> Option<BTreeSet<String>> {
        let mut untold = self.untold();
        let streams = mem::take(&mut untold.streams);
        untold.has_teller = !streams.is_empty();
        untold.has_teller.then_some(streams)
    }

    async fn tell_once<Db: Database>(&self, sf: &Steadfast<Db>, notice: &str) -> Result<(), String> {
        let channel = self.channel(sf).await?;
        let telling = timeout(LIMIT, self.messenger.tell(channel, notice)).await;
        telling.map_err(|_| silent())?.map_err(|failure| failure.to_string())
    }

    /// Listens for as long as the handle is kept.
    pub(super) fn listen<Db: Database>(self: &Arc<Self>, hub: &Arc<Hub>, sf: &Steadfast<Db>) -> AbortOnDropHandle<()> {
        let listener = Listener {
            across: self.clone(),
            hub: hub.clone(),
            sf: sf.clone(),
        };
        AbortOnDropHandle::new(tokio::spawn(listener.run()))
    }
}

fn silent() -> String {
    format!("it did not answer within {LIMIT:?}")
}

/// A teller that has not gone yet.
struct Leaving<'a>(&'a Across);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.untold().has_teller = false;
    }
}

/// Hears what others tell, while somebody follows streams.
struct Listener<Db: Database> {
    across: Arc<Across>,
    hub: Arc<Hub>,
    sf: Steadfast<Db>,
}

impl<Db: Database> Listener<Db> {
    async fn run(self) {
        // However it ends, nothing is heard from then on.
        let _deaf = Deaf(&self.across);
        loop {
            let Err(why) = self.hear().await;
            self.across.hears.store(false, Ordering::Relaxed);
            // Whatever is said from now on is not heard, and what was said last may not have been.
            self.hub.look_at_all();
            let address = self.across.messenger.address();
            sleep(self.across.hearing.has_missed(&address, &why)).await;
        }
    }

    /// Hears until nothing can be heard any more, and says why.
    async fn hear(&self) -> Result<std::convert::Infallible, String> {
        let Across { messenger, hearing, .. } = &*self.across;
        let channel = self.across.channel(&self.sf).await?;
        let listening = timeout(LIMIT, messenger.listen(channel)).await;
        let mut ear = listening
            .map_err(|_| silent())?
            .map_err(|failure| failure.to_string())?;
        // Whatever was said before was not heard.
        self.hub.look_at_all();
        let mut is_steady = false;
        loop {
            let heard = tokio::select! {
                heard = ear.hear() => Some(heard.map_err(|failure| failure.to_string())?),
                () = sleep(STEADY), if !is_steady => None,
            };
            if !mem::replace(&mut is_steady, true) {
                hearing.is_back(&messenger.address());
            }
            if let Some(notice) = heard {
                self.understand(&notice);
            }
        }
    }

    fn understand(&self, heard: &str) {
        // A broker may let somebody listen a little later than it says. What was said before the first notice that gets through is
        // committed by now.
        if !self.across.hears.swap(true, Ordering::Relaxed) {
            self.hub.look_at_all();
        }
        match notice::read(self.sf.id(), heard) {
            // It has marked them itself.
            Notice::Own => {}
            Notice::Streams(names) => self.hub.mark(names.into_iter()),
            Notice::All => self.hub.look_at_all(),
        }
    }
}

/// A listener that has not gone yet.
struct Deaf<'a>(&'a Across);

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        self.0.hears.store(false, Ordering::Relaxed);
    }
}

type Boxed<'m, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'm>>;

/// A messenger whose type is forgotten.
trait AnyMessenger: Send + Sync {
    fn tell<'m>(&'m self, channel: &'m str, notice: &'m str) -> Boxed<'m, ()>;
    fn listen<'m>(&'m self, channel: &'m str) -> Boxed<'m, Box<dyn AnyEar>>;
    fn address(&self) -> String;
}

impl<M: Messenger> AnyMessenger for M {
    fn tell<'m>(&'m self, channel: &'m str, notice: &'m str) -> Boxed<'m, ()> {
        Box::pin(Messenger::tell(self, channel, notice))
    }

    fn listen<'m>(&'m self, channel: &'m str) -> Boxed<'m, Box<dyn AnyEar>> {
        Box::pin(async move {
            let ear = Messenger::listen(self, channel).await?;
            Ok(Box::new(ear) as Box<dyn AnyEar>)
        })
    }

    fn address(&self) -> String {
        Messenger::address(self)
    }
}

trait AnyEar: Send {
    fn hear(&mut self) -> Boxed<'_, String>;
}

impl<E: Ear> AnyEar for E {
    fn hear(&mut self) -> Boxed<'_, String> {
        Box::pin(Ear::hear(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_untold_is_bounded_and_then_stands_for_everything() {
        let mut untold = Untold::default();
        untold.add(["topic:a", "user:7", "topic:a"].into_iter());
        assert_eq!(untold.streams.len(), 2, "once each");
        let long = "x".repeat(150);
        let names: Vec<_> = (0..100).map(|number| format!("user:{number}{long}")).collect();
        untold.add(names.iter().map(String::as_str));
        assert_eq!(untold.streams, BTreeSet::from(["*".to_owned()]));
        untold.add(["topic:b"].into_iter());
        assert_eq!(untold.streams.len(), 1);
    }
}
