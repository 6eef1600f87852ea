//! The sink behind a push: events become entries of streams.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::hub::Hub;
use super::name::StreamName;
use super::notice;
use crate::broker::{Confirmation, Sink};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureClass};
use crate::outbox::reaction::decode;
use crate::outbox::{Event, EventCx};
use crate::steadfast::WeakSteadfast;
use crate::store::Database;
use crate::store::streams::{NewEntry, Streams};
use crate::telemetry;

/// How long the data of a push may be. It is a reason to look again, and kept in memory for everybody.
const DATA_LENGTH_MAX: usize = 16 * 1024;

/// Into how many streams one event may go.
const STREAMS_MAX: usize = 100;

/// Says into which streams an event goes.
pub(super) type Route = Box<dyn Fn(&EventCx) -> Result<Pushes, Failure> + Send + Sync>;

/// Who is told of an event, and what: filled by the function of [`PushTarget::event`](super::PushTarget::event).
#[derive(Debug, Default)]
pub struct Pushes {
    entries: Vec<(StreamName, String)>,
    refused: Option<String>,
}

impl Pushes {
    /// Tells those who follow this stream. They get the data as JSON, with the id, the type and the time of the event.
    ///
    /// A delivery fails definitively if its data is longer than 16 KiB or cannot be written, if one stream is named twice, or if
    /// there are more than a hundred.
    pub fn push(&mut self, stream: StreamName, data: &(impl Serialize + ?Sized)) {
        if let Err(why) = self.add(stream, data) {
            self.refused.get_or_insert(why);
        }
    }

    fn add(&mut self, stream: StreamName, data: &(impl Serialize + ?Sized)) -> Result<(), String> {
        let json = serde_json::to_string(data).map_err(|error| format!("what {stream} is told is no JSON: {error}"))?;
        if json.len() > DATA_LENGTH_MAX {
            let length = json.len();
            return Err(format!(
                "what {stream} is told has {length} bytes, more than {DATA_LENGTH_MAX}; push an id and let clients fetch the rest"
            ));
        }
        if self.entries.iter().any(|(named, _)| *named == stream) {
            return Err(format!("{stream} is named twice; an event goes into a stream once"));
        }
        if self.entries.len() == STREAMS_MAX {
            return Err(format!(
                "it goes into more than {STREAMS_MAX} streams; push it into one of a topic or a tenant"
            ));
        }
        self.entries.push((stream, json));
        Ok(())
    }
}

/// A route that knows the type of its event.
pub(super) fn route<E: Event>(fill: impl Fn(&E, &mut Pushes) + Send + Sync + 'static) -> Route {
    Box::new(move |cx| {
        if cx.version() > E::VERSION.max(1) {
            // Somebody else knows it: two versions of a program run side by side while one takes the place of the other.
            let message = format!("this program knows {} up to version {}", E::TYPE, E::VERSION.max(1));
            return Err(Failure::transient("version_unknown", message));
        }
        let event = decode::<E>(cx.payload())?;
        let mut pushes = Pushes::default();
        fill(&event, &mut pushes);
        match pushes.refused.take() {
            Some(why) => Err(Failure::definitive(FailureClass::Validation, "not_pushed", why)),
            None => Ok(pushes),
        }
    })
}

pub(super) struct Append<Db: Database> {
    /// The handle holds the sink.
    pub(super) sf: WeakSteadfast<Db>,
    pub(super) hub: Arc<Hub>,
    pub(super) routes: HashMap<&'static str, Route>,
}

impl<Db: Database> Append<Db> {
    /// What an event comes to. One whose function panics harms no other.
    fn entries_of(&self, cx: &EventCx) -> Result<Vec<NewEntry>, Failure> {
        let Some(route) = self.routes.get(cx.event_type()) else {
            // A target that was declared by another version of the program.
            let message = format!("this program pushes nothing for {}", cx.event_type());
            return Err(Failure::transient("type_unknown", message));
        };
        let pushes = catch_unwind(AssertUnwindSafe(|| route(cx))).unwrap_or_else(|panic| {
            telemetry::panicked(panic.as_ref());
            Err(Failure::panicked())
        })?;
        let message = cx.message();
        let entry = |(stream, data): (StreamName, String)| NewEntry {
            stream: stream.as_str().to_owned(),
            item: message.id,
            event_type: message.event_type.clone(),
            created_at: message.created_at,
            data,
        };
        Ok(pushes.entries.into_iter().map(entry).collect())
    }

    /// Appends everything in one transaction. What is there already is left as it is, so it may be repeated.
    async fn append(&self, entries: &[NewEntry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let Some(sf) = self.sf.upgrade() else {
            return Err(Error::new(Code::ShuttingDown, "the process is ending"));
        };
        let streams = || entries.iter().map(|entry| &*entry.stream);
        // By the database, and so with the commit; or by a broker, and so after it.
        let across = self.hub.across.as_ref();
        let notice = across.is_none().then(|| notice::write(sf.id(), streams()));
        let (sf, notice) = (&sf, notice.as_deref());
        let appended = sf.transact(async |tx| {
            let store = sf.ask("append to streams");
            Ok(store.append(tx.db(), entries, notice, sf.clock().ahead()).await?)
        });
        appended.await?;
        self.hub.mark(streams());
        if let Some(across) = across {
            across.tell(sf, streams());
        }
        Ok(())
    }
}

impl<Db: Database> Sink for Append<Db> {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        let mut verdicts = Vec::with_capacity(batch.len());
        let mut entries = Vec::new();
        for cx in batch {
            verdicts.push(self.entries_of(cx).map(|mut pushed| {
                let streams: Vec<_> = pushed.iter().map(|entry| &*entry.stream).collect();
                let confirmation = Confirmation::new(streams.join(" "));
                entries.append(&mut pushed);
                confirmation
            }));
        }
        match self.append(&entries).await {
            Ok(()) => verdicts,
            Err(error) => verdicts
                .into_iter()
                .map(|verdict| verdict.and_then(|_| Err(not_appended(&error))))
                .collect(),
        }
    }
}

/// Whether or not it happened, it is done again.
fn not_appended(error: &Error) -> Failure {
    let after = error.retry_after().unwrap_or(Duration::from_secs(1));
    match error.code() {
        Code::CommitUnknown => Failure::unknown("not_appended", error.to_string()),
        _ => Failure::transient("not_appended", error.to_string()).with_retry_after(after),
    }
}
