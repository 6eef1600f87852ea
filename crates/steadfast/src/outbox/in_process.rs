//! Events that live in this process only: their reactions run after the commit, and a crash loses them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cx::EventCx;
use super::message::{Message, NewMessage};
use super::reaction::Reacting;
use crate::clock::random;
use crate::failure::Failure;
use crate::queue::Ended;
use crate::retry::Decision;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry::{self, Retry};

impl<Db: Database> Steadfast<Db> {
    /// Runs the reactions to an event that was committed, each in a task of its own.
    pub(crate) fn react_in_process(&self, message: NewMessage) {
        let reactions = self.reactions().in_process(&message.event_type);
        if reactions.is_empty() {
            return;
        }
        let sf = self.clone();
        self.tasks().spawn(async move {
            let Ok(now) = sf.store().now().await else {
                return telemetry::raised_in_vain(&message.event_type, &message.id);
            };
            let message = Arc::new(Message {
                id: message.id,
                event_type: message.event_type.into(),
                version: message.version,
                created_at: sf.clock().at(now),
                has_expired: false,
                ordering_key: None,
                origin: message.origin,
                payload: message.payload.into(),
                elsewhere: None,
            });
            for reacting in reactions {
                let (sf, message) = (sf.clone(), message.clone());
                sf.tasks()
                    .clone()
                    .spawn(async move { react(&sf, &reacting, message).await });
            }
        });
    }
}

/// Tries until it has succeeded, the policy gives up, or the process stops.
async fn react<Db: Database>(sf: &Steadfast<Db>, reacting: &Arc<Reacting<Db>>, message: Arc<Message>) {
    let began = Instant::now();
    let id: Uuid = message.id;
    let mut attempt = 1;
    loop {
        let cx = EventCx::new(
            message.clone(),
            reacting.name().clone(),
            attempt,
            CancellationToken::new(),
        );
        let failure = match AssertUnwindSafe(reacting.attempt(sf, &cx, None)).catch_unwind().await {
            Ok(Ended::Failed(failure)) => failure,
            Ok(_) => return,
            Err(panic) => {
                #[cfg(feature = "testing")]
                let panic = crate::testing::crash_on(panic);
                telemetry::panicked(panic.as_ref());
                Failure::panicked()
            }
        };
        match reacting.retry().decide(attempt, &failure, began.elapsed(), random) {
            Decision::Retry(after) if !sf.is_stopping() => {
                tell(reacting, &message, attempt, after, &failure);
                tokio::select! {
                    () = sf.stopped() => return telemetry::raised_in_vain(&message.event_type, &id),
                    () = tokio::time::sleep(after) => {}
                }
                attempt += u32::from(failure.kind() != crate::failure::FailureKind::Snooze);
            }
            _ => return telemetry::raised_in_vain(&message.event_type, &id),
        }
    }
}

fn tell<Db: Database>(
    reacting: &Reacting<Db>,
    message: &Message,
    attempt: u32,
    after: std::time::Duration,
    failure: &Failure,
) {
    telemetry::retrying(&Retry {
        operation: reacting.name(),
        attempt,
        after,
        correlation_id: message.origin.correlation_id.as_deref(),
        code: failure.code(),
    });
}
