//! A breaker that all processes on a database share.
//!
//! What calls see is always the state in memory. A task of the handle carries changes of it to the table and reads the
//! table every half second, so no call ever waits for the database, and without a database every process goes on by
//! what it sees itself. The protocol, its races and crash points are in `docs/decisions/0015-circuit-breaker.md`.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::state::{BreakerState, Machine, Posture};
use super::{Breaker, Origin};
use crate::error::Result;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// How often the table is read: a change elsewhere is seen within half of the second that is promised.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A breaker as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BreakerRow {
    pub(crate) name: String,
    pub(crate) state: String,
    /// How long it stays open, counted from when it was read.
    pub(crate) remaining: Duration,
    pub(crate) openings: u32,
    pub(crate) epoch: i64,
}

/// What is written about a breaker.
pub(crate) struct BreakerWrite<'a> {
    pub(crate) name: &'a str,
    pub(crate) state: &'static str,
    pub(crate) remaining: Duration,
    pub(crate) openings: u32,
    /// Only if the row still has this epoch, or is not there; `None`: whatever it has.
    pub(crate) expected: Option<i64>,
}

/// What a breaker keeps in order to be shared.
pub(super) struct Share {
    news: AtomicU8,
    /// The epoch of the row that was read or written last.
    epoch: AtomicI64,
    wake: Arc<Notify>,
}

/// What is known of the row before it was read: nothing, or that there was none a moment ago. No row has these epochs.
const NEVER_LOOKED: i64 = 0;
const LOOKED: i64 = -1;
/// The first epoch of a row.
const APPEARED: i64 = 1;

/// Whether there is something to write: what calls found out gives way to a row that is newer, a person's word does not.
const NOTHING: u8 = 0;
const JUDGED: u8 = 1;
const ORDERED: u8 = 2;

impl Share {
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self {
            news: AtomicU8::new(NOTHING),
            epoch: AtomicI64::new(NEVER_LOOKED),
            wake,
        }
    }

    /// Calls have changed the state.
    pub(super) fn judged(&self) {
        self.note(JUDGED);
    }

    /// A person has set the state.
    pub(super) fn ordered(&self) {
        self.note(ORDERED);
    }

    fn note(&self, news: u8) {
        self.news.fetch_max(news, Ordering::AcqRel);
        self.wake.notify_one();
    }
}

/// The task that shares the breakers of a handle, until that is stopped or dropped. It holds no handle while it sleeps.
pub(super) fn keep_sharing<Db: Database>(sf: &Steadfast<Db>) -> impl Future<Output = ()> + Send + use<Db> {
    let (weak, wake, stopping) = (sf.downgrade(), sf.registry().wake().clone(), sf.stopping());
    async move {
        let mut is_well = true;
        loop {
            let Some(sf) = weak.upgrade() else { return };
            let shared = share(&sf).await;
            drop(sf);
            if shared.is_ok() != is_well {
                is_well = shared.is_ok();
                telemetry::breakers_shared(&shared);
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = wake.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// Reads what others have found, then writes what was found here.
async fn share<Db: Database>(sf: &Steadfast<Db>) -> Result<()> {
    let breakers = sf.registry().shared();
    let names: Vec<_> = breakers.iter().map(Breaker::name).collect();
    let rows = sf
        .ask("read the breakers")
        .read_breakers(Some(&names), sf.clock().ahead())
        .await?;
    let rows: HashMap<_, _> = rows.iter().map(|row| (&*row.name, row)).collect();
    for breaker in &breakers {
        match (breaker.share(), rows.get(breaker.name())) {
            (Some(share), Some(row)) => take_over(breaker, share, row),
            (Some(share), None) if share.epoch.load(Ordering::Acquire) == NEVER_LOOKED => {
                appear(sf, breaker, share).await?
            }
            _ => {}
        }
    }
    for breaker in &breakers {
        if let Some(share) = breaker.share() {
            pass_on(sf, breaker, share).await?;
        }
    }
    Ok(())
}

/// Writes that there is this breaker, before anything is known of it, so that people find it in the table.
async fn appear<Db: Database>(sf: &Steadfast<Db>, breaker: &Breaker, share: &Share) -> Result<()> {
    let write = BreakerWrite {
        name: breaker.name(),
        state: BreakerState::Closed.as_str(),
        remaining: Duration::ZERO,
        openings: 0,
        // If somebody else was quicker, his row is read in the next round.
        expected: Some(NEVER_LOOKED),
    };
    let written = sf
        .ask("write a breaker")
        .write_breaker(&write, sf.clock().ahead())
        .await?;
    share.epoch.store(written.unwrap_or(LOOKED), Ordering::Release);
    Ok(())
}

/// Does as a row says that was not seen before, unless a person has said otherwise here.
fn take_over(breaker: &Breaker, share: &Share, row: &BreakerRow) {
    let seen = share.epoch.swap(row.epoch, Ordering::AcqRel);
    // A newer version may know more states; this one goes on by what it sees itself.
    let Some(state) = BreakerState::read(&row.state) else {
        return;
    };
    // To a process that has just started, a breaker that closed some time ago is no news: what it has found itself is. Nor is it that
    // another process has the breaker, too.
    let is_before_our_time = (seen == NEVER_LOOKED || row.epoch == APPEARED) && state == BreakerState::Closed;
    if seen == row.epoch || is_before_our_time {
        return;
    }
    let posture = Posture {
        state,
        remaining: row.remaining,
        openings: row.openings,
    };
    let now = breaker.now();
    // News is made under the same lock, so none is made between the look and the change.
    let adopt = |machine: &mut Machine| {
        if share.news.load(Ordering::Acquire) != ORDERED {
            share.news.store(NOTHING, Ordering::Release);
            machine.adopt(posture, now);
        }
    };
    breaker.watched(Origin::Elsewhere, |gate, changed| gate.act(adopt, changed));
}

/// Writes what was found here. If somebody else was quicker, their row is read in the next round.
async fn pass_on<Db: Database>(sf: &Steadfast<Db>, breaker: &Breaker, share: &Share) -> Result<()> {
    if share.news.load(Ordering::Acquire) == NOTHING {
        return Ok(());
    }
    let now = breaker.now();
    let (news, posture) = breaker
        .0
        .gate
        .look(|machine| (share.news.swap(NOTHING, Ordering::AcqRel), machine.posture(now)));
    let write = BreakerWrite {
        name: breaker.name(),
        state: posture.state.as_str(),
        remaining: posture.remaining,
        openings: posture.openings,
        expected: (news == JUDGED).then(|| share.epoch.load(Ordering::Acquire)),
    };
    match sf
        .ask("write a breaker")
        .write_breaker(&write, sf.clock().ahead())
        .await
    {
        Ok(Some(epoch)) => share.epoch.store(epoch, Ordering::Release),
        Ok(None) => share.note(JUDGED),
        Err(error) => {
            share.news.fetch_max(news, Ordering::AcqRel);
            return Err(error);
        }
    }
    Ok(())
}
