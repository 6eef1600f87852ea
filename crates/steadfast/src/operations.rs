//! Which service has which operation, in this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// A service, and where it is declared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) service: &'static str,
    pub(crate) location: &'static Location<'static>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}:{})",
            self.service,
            self.location.file(),
            self.location.line()
        )
    }
}

/// The names that were taken, each with the service that has it.
#[derive(Default)]
pub(crate) struct Operations(Mutex<HashMap<&'static str, Place>>);

impl Operations {
    /// Takes a name for a service. If another one has it, says which and where.
    pub(crate) fn take(&self, operation: &'static str, place: Place) -> Option<Place> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(operation) {
            Entry::Occupied(taken) => Some(*taken.get()).filter(|other| other.service != place.service),
            Entry::Vacant(free) => {
                free.insert(place);
                None
            }
        }
    }
}
