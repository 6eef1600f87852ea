//! The breakers of one handle, by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::shared::{self, Share};
use super::{Breaker, BreakerOptions};
use crate::error::Result;
use crate::steadfast::Steadfast;
use crate::store::Database;

/// The breakers of one handle, and what wakes the task that shares some of them.
#[derive(Default)]
pub(crate) struct Breakers {
    by_name: Mutex<HashMap<Arc<str>, Breaker>>,
    wake: Arc<Notify>,
}

impl Breakers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Breaker>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) -> &Arc<Notify> {
        &self.wake
    }

    pub(super) fn shared(&self) -> Vec<Breaker> {
        let all = self.lock();
        all.values()
            .filter(|breaker| breaker.share().is_some())
            .cloned()
            .collect()
    }
}

impl<Db: Database> Steadfast<Db> {
    /// The breaker of this name in this process: made as described, or the one that is there already.
    ///
    /// ```
    /// use steadfast::breaker::Breaker;
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let payments = || Breaker::named("payments").consecutive_failures(5).open_for("30s").shared();
    /// let breaker = sf.breaker(payments())?;
    /// sf.breaker(payments())?.force_open(); // the same one
    /// assert!(breaker.permit().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// SF303 if a setting means nothing, if there is one of this name with other settings, or if a shared one is asked for
    /// outside of a tokio runtime.
    pub fn breaker(&self, options: BreakerOptions) -> Result<Breaker> {
        let options = options.on_clock(self.clock());
        let breakers = self.registry();
        let mut all = breakers.lock();
        if let Some(there) = all.get(options.name()) {
            let is_same = *there.settings() == options.settings()? && there.share().is_some() == options.is_shared();
            return if is_same {
                Ok(there.clone())
            } else {
                Err(options.taken())
            };
        }
        let runtime = match options.is_shared() {
            true => Some(Handle::try_current().map_err(|_| options.without_runtime())?),
            false => None,
        };
        let is_first = !all.values().any(|breaker| breaker.share().is_some());
        let share = runtime.as_ref().map(|_| Share::new(breakers.wake.clone()));
        let breaker = options.make(share)?;
        all.insert(breaker.0.name.clone(), breaker.clone());
        drop(all);
        match runtime {
            Some(runtime) if is_first => drop(runtime.spawn(shared::keep_sharing(self))),
            Some(_) => breakers.wake.notify_one(),
            None => {}
        }
        Ok(breaker)
    }

    /// The breaker of this name, whatever its settings: the one that is there already, or one as by default.
    pub(crate) fn breaker_named(&self, name: &str) -> Result<Breaker> {
        let there = || self.registry().lock().get(name).cloned();
        match there() {
            Some(breaker) => Ok(breaker),
            // Somebody may just be making one with other settings.
            None => self.breaker(Breaker::named(name)).or_else(|error| there().ok_or(error)),
        }
    }

    /// All breakers of this handle, in no order: for pages that show them, and to reset one.
    pub fn breakers(&self) -> Vec<Breaker> {
        self.registry().lock().values().cloned().collect()
    }
}
