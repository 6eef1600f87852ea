//! The last part of the corridor: settle, commit, and find out what became of a commit nobody answered.

use std::time::Duration;

use super::execute::{Look, Verdict, find, in_flight, read_look_up};
use super::in_flight::Entered;
use super::point::Point;
use super::{Claimant, Outcome};
use crate::clock::jitter;
use crate::error::{Code, Error, Result};
use crate::steadfast::Steadfast;
use crate::store::{self, CommitError, Database, Settlement, Store};
use crate::telemetry;
use crate::tx::Tx;

/// How long it may take to write what ends a transaction. It is a few rows, unless something that the handler gave up on still runs, or
/// the order of a key is held by a transaction that somebody has left open.
pub(super) const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// How long the database is asked about a commit whose reply was lost, before the client is told to come back.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// What ends a command, and is not cancelled by anybody.
pub(super) struct Finish<Db: Database> {
    pub(super) sf: Steadfast<Db>,
    pub(super) claimant: Claimant,
    /// Held until the transaction has ended, so that a duplicate in this process waits for the real end.
    pub(super) entered: Entered,
}

pub(super) enum Finished {
    /// Everything is durable.
    Committed,
    /// Nothing the handler wrote is there; its failure may be.
    Failed,
    /// Somebody else had ended the same command first, or we had and did not know: this is its outcome.
    Found(Outcome),
}

impl<Db: Database> Finish<Db> {
    /// Ends the transaction as the verdict says.
    pub(super) async fn run(self, mut tx: Tx<Db>, verdict: Verdict) -> Result<Finished> {
        if let Verdict::Discard = verdict {
            tx.rollback().await?;
            // A duplicate may have committed after we looked and before we had the lock, and the handler failed for what
            // that one did. Its success is then the truth, not this failure.
            let duplicate = match tx.missed_duplicate(&self.claimant.key).await {
                Some(look_up) => read_look_up(&self.sf, &self.claimant, look_up)
                    .ok()
                    .and_then(Look::ended),
                None => None,
            };
            return Ok(duplicate.map_or(Finished::Failed, Finished::Found));
        }
        let settled = tokio::time::timeout(SETTLE_LIMIT, self.settle(&mut tx, verdict)).await;
        let finished = match settled {
            Ok(Ok(Some(settled))) => settled,
            Ok(Ok(None)) => {
                // The unique constraint has judged: a duplicate committed after we looked.
                tx.rollback().await?;
                drop(tx);
                let found = tokio::time::timeout(RESOLVE_LIMIT, find(&self.sf, &self.claimant)).await;
                return found
                    .map_err(|_| in_flight())??
                    .map(Finished::Found)
                    .ok_or_else(in_flight);
            }
            Ok(Err(error)) => {
                // Who is told to try again may do so at once, and finds the key free.
                tx.rollback().await?;
                return Err(error);
            }
            Err(_) => return Err(not_settled()),
        };
        self.sf.observe(Point::BeforeCommit, &self.claimant.key);
        match tx.commit().await {
            Ok(()) => {
                self.entered.has_ended();
                self.sf.observe(Point::AfterCommit, &self.claimant.key);
                Ok(finished)
            }
            Err(CommitError::Refused(error)) => Err(error),
            Err(CommitError::Unknown(error)) => {
                drop(tx);
                self.resolve(error).await
            }
        }
    }

    /// Stores the outcome with its key. `None`: a live record of the same key is there already.
    async fn settle(&self, tx: &mut Tx<Db>, verdict: Verdict) -> Result<Option<Finished>> {
        let has_savepoint = self.claimant.options.store_failures.keeps_any();
        let (outcome, finished) = match verdict {
            Verdict::Commit(outcome) => {
                tx.check_depth(if has_savepoint { 2 } else { 1 }).await?;
                if has_savepoint {
                    savepoint::<Db>(store::release_savepoint::<Db>(tx.ask("release the savepoint")).await)?;
                }
                (outcome, Finished::Committed)
            }
            Verdict::Keep(outcome) => {
                tx.check_depth(2).await?;
                savepoint::<Db>(store::rollback_savepoint::<Db>(tx.ask("roll back to the savepoint")).await)?;
                tx.unpublish();
                (outcome, Finished::Failed)
            }
            Verdict::Discard => unreachable!("a discarded transaction has nothing to settle"),
        };
        let Claimant { key, input, options } = &self.claimant;
        let settlement = Settlement {
            key,
            fingerprint: input.fingerprint(),
            stored: &outcome.store(&self.sf.place(key, input.fingerprint()))?,
            offset: self.sf.clock().ahead(),
            retention: options.retention,
            messages: &[],
        };
        tx.charge(&settlement).await?;
        let is_settled = tx.settle(&settlement).await?;
        Ok(is_settled.then_some(finished))
    }

    /// Finds out on a fresh connection whether a COMMIT without a reply was one. The key record decides.
    async fn resolve(&self, lost: Error) -> Result<Finished> {
        match tokio::time::timeout(RESOLVE_LIMIT, self.look_for()).await {
            Ok(Some(outcome)) => {
                telemetry::resolved("committed");
                self.sf.rows_were_committed();
                Ok(Finished::Found(outcome))
            }
            Ok(None) => {
                telemetry::resolved("aborted");
                Err(match lost.code() {
                    Code::ConnectionLost => Error::new(
                        Code::ConnectionLost,
                        "the connection was lost before the command committed; it was rolled back",
                    )
                    .with_source(lost),
                    // The database said what was wrong, only not whether it was all.
                    _ => lost,
                })
            }
            Err(_) => {
                telemetry::resolved("unknown");
                Err(Error::new(
                    Code::CommitUnknown,
                    "the connection was lost while committing and the database cannot be asked; send the same request again",
                )
                .with_source(lost))
            }
        }
    }

    /// Asks until there is an answer: the outcome, or that there is and will be none.
    async fn look_for(&self) -> Option<Outcome> {
        loop {
            // Asked first: a transaction that ends between the two questions is then found by the second.
            let is_running = self.sf.ask("is it running").is_running(&self.claimant.key).await;
            match (is_running, find(&self.sf, &self.claimant).await) {
                (_, Ok(Some(outcome))) => return Some(outcome),
                (Ok(false), Ok(None)) => return None,
                // The key stands for another request by now: ours was not the one that committed.
                (Ok(false), Err(error)) if error.code() == Code::Mismatch => return None,
                _ => tokio::time::sleep(jitter(Duration::from_millis(100))).await,
            }
        }
    }
}

fn not_settled() -> Error {
    Error::new(
        Code::TimeLimit,
        format!(
            "the outcome could not be stored within {SETTLE_LIMIT:?}, perhaps because a statement that the handler gave up on \
             still runs; it is rolled back, and then the key is free"
        ),
    )
}

fn savepoint<Db: Database>(ended: sqlx::Result<()>) -> Result<()> {
    ended.map_err(|error| match Db::Store::error(error, "ending the handler's part") {
        error if error.code() == Code::Database => Error::new(
            Code::TransactionBroken,
            "the handler left its transaction broken: a statement failed and it went on, or it ended the transaction itself",
        )
        .with_source(error),
        error => error,
    })
}
