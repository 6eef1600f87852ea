//! Which service has which operation, in this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

/// The names that were taken, each with the service that has it.
#[derive(Default)]
pub(crate) struct Operations(Mutex<HashMap<&'static str, &'static str>>);

impl Operations {
    /// Takes a name for a service. If another one has it, says which.
    pub(crate) fn take(&self, operation: &'static str, service: &'static str) -> Option<&'static str> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(operation) {
            Entry::Occupied(taken) => Some(*taken.get()).filter(|other| *other != service),
            Entry::Vacant(free) => {
                free.insert(service);
                None
            }
        }
    }
}
