//! What a process has declared, each under a name of its own.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Code, Error};

/// What can be declared.
pub(crate) trait Declared {
    /// What several of them are called.
    const PLURAL: &'static str;

    fn name(&self) -> &str;

    /// Where in the program it was declared.
    fn location(&self) -> &'static Location<'static>;
}

/// Everything of one sort that was declared.
pub(crate) struct Registry<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Declared> Registry<T> {
    /// Adds one, or puts it in the place of the one that was declared at the same place of the program.
    ///
    /// # Panics
    /// With SF305 if another one has the name.
    pub(crate) fn add(&self, new: T) {
        let mut all = self.all();
        match all.iter().position(|other| other.name() == new.name()) {
            None => all.push(Arc::new(new)),
            Some(place) if all[place].location() == new.location() => all[place] = Arc::new(new),
            Some(place) => {
                let message = format!(
                    "the {} at {} and {} are both called {:?}; remove one of them, or give it another name",
                    T::PLURAL,
                    new.location(),
                    all[place].location(),
                    new.name()
                );
                drop(all);
                panic!("{:?}", Error::new(Code::TargetTaken, message));
            }
        }
    }

    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
