//! The keys of the callers: a new one for each command, old ones to replay.

use std::sync::atomic::{AtomicUsize, Ordering};

use uuid::Uuid;

use crate::error::Result;
use crate::measure::CALLERS;

/// How many keys there are to replay: several for each caller, so that no two ask for the same one at a time.
const OLD_KEYS: usize = 8 * CALLERS;

/// A key as browsers make them: at a random place in every index.
pub(crate) fn new_key() -> String {
    Uuid::new_v4().to_string()
}

/// Keys of commands that have been committed, one after the other and around again.
pub(super) struct OldKeys {
    keys: Vec<String>,
    next: AtomicUsize,
}

impl OldKeys {
    /// Commits them first, with what runs a command.
    pub(super) async fn commit(run_command: impl AsyncFn(&str) -> Result<bool>) -> Result<Self> {
        let keys: Vec<_> = std::iter::repeat_with(new_key).take(OLD_KEYS).collect();
        for key in &keys {
            run_command(key).await?;
        }
        Ok(Self {
            keys,
            next: AtomicUsize::new(0),
        })
    }

    pub(super) fn next(&self) -> &str {
        &self.keys[self.next.fetch_add(1, Ordering::Relaxed) % self.keys.len()]
    }
}

/// A replay that was none would be measured as something else.
pub(super) fn expect_replay(replayed: bool) -> Result<()> {
    match replayed {
        true => Ok(()),
        false => Err("a stored key was executed again".into()),
    }
}
