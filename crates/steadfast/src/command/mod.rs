//! A command: a typed wish to change state, handled once.
//!
//! [`Key`] says which wishes are the same, the fingerprint whether a retry still means the same, [`execute`]
//! carries one through its transaction, and the outcome is what every retry gets.

pub(crate) mod attempt;
mod key;
mod fingerprint;
mod json;
pub(crate) mod execute;
mod finish;
mod outcome;
#[cfg(feature = "encryption")]
mod encryption;
#[cfg(not(feature = "encryption"))]
#[path = "no_encryption.rs"]
mod encryption;
mod in_flight;
mod point;
mod closure;
mod quota;
mod look_up;
mod list;
mod call;

use std::time::Duration;

pub use call::{Command, Reply};
pub use closure::{AsyncOnce, AsyncReact, AsyncRerun, AsyncSave};
pub use encryption::Encryption;
pub use fingerprint::{FingerprintPolicy, Meaning, Secret};
pub use key::{KEY_LENGTH_MAX, Key, Owner, Scope};
pub use list::{KeyId, KeyList, KeyPage, ListedKey};
pub use look_up::{KeyAnswer, KeyLookUp};
pub use outcome::{ANSWER_LENGTH_MAX, KeyState};
pub use point::Point;
pub use quota::Quota;

pub(crate) use call::{Unkeyed, Wish, read_outcome, value_outcome};
pub(crate) use fingerprint::{Comparison, Fingerprint, Input};
#[cfg(all(feature = "axum", feature = "service"))]
pub(crate) use fingerprint::{is_form_type, is_json_type};
pub(crate) use in_flight::InFlight;
pub(crate) use list::{KeyColumns, KeyFilter};
pub(crate) use outcome::{Outcome, Place, Record, Stored};

use crate::error::{Code, Error, Result};
use crate::failure::FailureClass;

/// The longest retention; what is kept longer is an archive, and belongs into a table of yours.
const RETENTION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How a command behaves where it is not obvious. The defaults are those of the guide's table.
#[derive(Clone, Debug)]
pub(crate) struct CommandOptions {
    pub(crate) scope: Scope,
    pub(crate) retention: Duration,
    pub(crate) conflict: Conflict,
    pub(crate) store_failures: StoreFailures,
    pub(crate) time_limit: Duration,
    pub(crate) answer_limit: usize,
    pub(crate) fingerprint: FingerprintPolicy,
}

impl Default for CommandOptions {
    fn default() -> Self {
        Self {
            scope: Scope::User,
            retention: Duration::from_secs(24 * 60 * 60),
            conflict: Conflict::Fail,
            store_failures: StoreFailures::None,
            time_limit: Duration::from_secs(30),
            answer_limit: ANSWER_LENGTH_MAX,
            fingerprint: FingerprintPolicy::Whole,
        }
    }
}

impl CommandOptions {
    /// Refuses settings that mean nothing.
    fn check(&self, operation: &str) -> Result<()> {
        let complaint = if self.retention.is_zero() || self.retention > RETENTION_MAX {
            "a retention that is zero or longer than ten years"
        } else if self.time_limit.is_zero() {
            "a time limit of zero"
        } else if !self.fingerprint.is_sound() {
            "a keyed fingerprint without a secret, or with one of less than 16 bytes"
        } else {
            return Ok(());
        };
        Err(Error::new(
            Code::ConfigurationInvalid,
            format!("{operation} has {complaint}; write something that can be meant"),
        ))
    }
}

/// What a duplicate does while the first one still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflict {
    /// It is told at once that the first one is in flight. The default.
    #[default]
    Fail,
    /// It waits up to ten seconds for the first one to end, then gets its answer.
    Wait,
}

/// Which failures keep their key, so that a retry gets the same failure again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreFailures {
    /// None: a failed command leaves nothing behind and its key is free. The default.
    #[default]
    None,
    /// All definitive ones. Transient ones stay retryable.
    Definitive,
    /// Definitive ones of these classes.
    Classes(Vec<FailureClass>),
}

impl StoreFailures {
    pub(crate) fn keeps_any(&self) -> bool {
        *self != StoreFailures::None
    }

    pub(crate) fn keeps(&self, class: FailureClass) -> bool {
        match self {
            StoreFailures::None => false,
            StoreFailures::Definitive => true,
            StoreFailures::Classes(classes) => classes.contains(&class),
        }
    }
}

/// What a key means and how long its answer is kept: the options every builder has.
macro_rules! keeping_options {
    () => {
        /// Within which circle the key must be unique; one user by default.
        pub fn scope(mut self, scope: $crate::Scope) -> Self {
            self.options.scope = scope;
            self
        }

        /// How long the answer is kept and replayed; 24 hours by default.
        pub fn retention(mut self, retention: std::time::Duration) -> Self {
            self.options.retention = retention;
            self
        }

        /// The largest answer that is stored; 1 MiB by default.
        pub fn answer_limit(mut self, bytes: usize) -> Self {
            self.options.answer_limit = bytes;
            self
        }

        /// How the meaning of the input is compared between retries.
        pub fn fingerprint(mut self, policy: $crate::FingerprintPolicy) -> Self {
            self.options.fingerprint = policy;
            self
        }
    };
}

/// How a handler runs: the options of builders that own its transaction.
macro_rules! running_options {
    () => {
        /// What a duplicate does while the first one still runs; it fails by default.
        pub fn conflict(mut self, conflict: $crate::Conflict) -> Self {
            self.options.conflict = conflict;
            self
        }

        /// Which failures are stored and replayed; none by default.
        pub fn store_failures(mut self, store_failures: $crate::StoreFailures) -> Self {
            self.options.store_failures = store_failures;
            self
        }

        /// How long the handler may hold the transaction; 30 seconds by default, then it is rolled back.
        pub fn time_limit(mut self, time_limit: std::time::Duration) -> Self {
            self.options.time_limit = time_limit;
            self
        }
    };
}
pub(crate) use keeping_options;
pub(crate) use running_options;

/// Who comes to the corridor: a key, what is meant by it, and how to behave.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    pub(crate) key: Key,
    pub(crate) input: Input,
    pub(crate) options: CommandOptions,
}

impl Claimant {
    pub(crate) fn new(key: Key, input: Input, options: CommandOptions) -> Result<Self> {
        options.check(&key.operation)?;
        Ok(Self { key, input, options })
    }
}
