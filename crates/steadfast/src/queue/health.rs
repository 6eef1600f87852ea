//! How the engine of this process is doing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Code, Error};
use crate::telemetry;

/// How long the engine may be without the database before the process says that it is not well: longer than a restart of
/// the database takes.
#[cfg_attr(not(feature = "axum"), allow(dead_code, reason = "only /readyz asks"))]
const TROUBLE_MAX: Duration = Duration::from_secs(15);

/// How the engine of this process is doing.
#[derive(Default)]
pub(crate) struct Health(Mutex<Option<Trouble>>);

#[cfg_attr(not(feature = "axum"), allow(dead_code, reason = "only /readyz asks"))]
struct Trouble {
    since: Instant,
    code: Code,
}

impl Health {
    /// A round has gone well.
    pub(crate) fn works(&self) {
        if let Some(trouble) = self.lock().take() {
            telemetry::engine_recovered(trouble.since.elapsed());
        }
    }

    /// A round has failed. Only the first one in a row is worth a line.
    pub(crate) fn fails(&self, error: &Error) {
        let mut trouble = self.lock();
        if trouble.is_none() {
            telemetry::engine_failed(error);
        }
        let since = trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        *trouble = Some(Trouble {
            since,
            code: error.code(),
        });
    }

    /// What has been wrong for too long.
    #[cfg_attr(not(feature = "axum"), allow(dead_code, reason = "only /readyz asks"))]
    pub(crate) fn trouble(&self) -> Option<(Code, Duration)> {
        let trouble = self.lock();
        let trouble = trouble.as_ref()?;
        let lasts = trouble.since.elapsed();
        (lasts >= TROUBLE_MAX).then_some((trouble.code, lasts))
    }

    /// Lets the present trouble have begun earlier.
    #[cfg(all(test, feature = "sqlite", feature = "axum"))]
    pub(crate) fn has_failed_for(&self, lasts: Duration) {
        if let Some(trouble) = self.lock().as_mut() {
            trouble.since = Instant::now().checked_sub(lasts).expect("the machine runs that long");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
