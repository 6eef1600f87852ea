//! Copies of dead letters for the broker: what is given up here is put where it keeps its own, if somebody asked for that.
//!
//! The dead letter of the database is the truth, and is there first. In the commit in which it dies, whoever buries it, a row of a
//! kind of its own is put in line, and this is its [`Work`]: it hands the message to the broker and waits until that has it. A
//! broker that is away delays the copy and nothing else; one that refuses it for good leaves a dead row that says why, and can be
//! requeued like any other.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::intake::{Sourced, are_letters};
use super::keep::recall;
use crate::broker::Incoming;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::outbox::Message;
use crate::queue::{Ended, Row, Work, WorkOptions};
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::letters::Letters;

/// How many letters a broker is handed at once.
const CONCURRENCY: u32 = 8;

/// How long the broker may take for one of them, whatever its source says itself.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How many failed attempts at a message are looked at for why it was given up: as many as a policy allows.
const ATTEMPTS_MAX: u32 = 1_000;

/// Carries dead letters to the broker of a source.
pub(crate) struct Burying {
    source: Arc<Sourced>,
    kinds: [Arc<str>; 1],
    options: WorkOptions,
}

impl Burying {
    /// `None`: the broker has no dead letters of its own.
    pub(crate) fn of(source: &Arc<Sourced>) -> Option<Self> {
        Some(Self {
            kinds: [source.letters.clone()?],
            source: source.clone(),
            options: WorkOptions {
                retry: RetryPolicy::default().with_key(),
                lease: None,
                concurrency: CONCURRENCY,
                batch: 1,
                dead_make_room: false,
            },
        })
    }

    async fn carry<Db: Database>(&self, sf: &Steadfast<Db>, message: &Arc<Message>) -> Ended {
        let message = match recall(sf, message).await {
            Ok(message) => message,
            Err(error) => return unasked(error),
        };
        let why = match why(sf, &message).await {
            Ok(why) => why,
            Err(error) => return unasked(error),
        };
        match &message.elsewhere {
            Some(elsewhere) => self.bury(&elsewhere.incoming, &why).await,
            None => Ended::Skipped("it is no message of its source"),
        }
    }

    async fn bury(&self, message: &Incoming, why: &str) -> Ended {
        let address = self.source.source.address();
        let burying = tokio::time::timeout(TIME_LIMIT, self.source.source.bury(message, why));
        let buried = burying.await;
        match buried.unwrap_or_else(|_| Err(Failure::unknown("unanswered", "it does not answer"))) {
            Ok(()) => {
                self.source.letters_away.is_back(&address);
                Ended::Done(None)
            }
            Err(failure) if matches!(failure.kind(), FailureKind::Definitive(_)) => Ended::Failed(failure),
            // Nobody would look at it sooner if it were dead: it waits for as long as it takes.
            Err(failure) => {
                let away_for = self.source.letters_away.has_missed(&address, failure.message());
                Ended::Failed(Failure::snooze(away_for))
            }
        }
    }
}

impl<Db: Database> Work<Db> for Burying {
    fn kinds(&self) -> &[Arc<str>] {
        &self.kinds
    }

    fn options(&self) -> &WorkOptions {
        &self.options
    }

    fn run(self: Arc<Self>, sf: Steadfast<Db>, rows: Arc<[Row]>) -> Pin<Box<dyn Future<Output = Vec<Ended>> + Send>> {
        Box::pin(async move {
            let mut ends = Vec::with_capacity(rows.len());
            for row in &*rows {
                ends.push(self.carry(&sf, &row.claimed.message).await);
            }
            ends
        })
    }
}

/// The database could not be asked. If that may pass, it costs the letter no attempt: nobody has tried to hand it over.
fn unasked(error: Error) -> Ended {
    Ended::Failed(match error.retry_after() {
        Some(after) => Failure::snooze(after),
        None => error.into(),
    })
}

/// Why a message was given up: the code of the last attempt at it.
async fn why<Db: Database>(sf: &Steadfast<Db>, message: &Message) -> Result<String> {
    let attempts = sf
        .ask("read attempts")
        .read_attempts(&[message.id], ATTEMPTS_MAX)
        .await?;
    let handled = attempts.into_iter().filter(|attempt| !are_letters(&attempt.kind));
    let last = handled.max_by_key(|attempt| attempt.at);
    Ok(last.map_or_else(|| "given_up".to_owned(), |last| last.code))
}
