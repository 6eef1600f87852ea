//! Finishing: what ended is said to the database, all at once, and only to rows that are still ours.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::task::JoinError;
use uuid::Uuid;

use super::engine::{BUSY_PAUSE, Engine, Held};
use super::line::{Line, statement_limit};
use super::renew::letting_go;
use super::{Back, Claimed, Done, Ended, FailureRow, JOBS, PutBack, Untouched, done_word, is_key};
use crate::clock::{Offset, random};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::lease::Lease;
use crate::retry::Decision;
use crate::store::{Database, Store};
use crate::telemetry::{self, Retry};

/// How long a row may be put off at the most. `Retry-After` and a snooze are other people's numbers: what is farther away is a
/// mistake, and databases have an end of time.
pub(crate) const BACK_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long the second connection is done without after something went wrong on it: there may be no room for it at the server.
const WITHOUT_SECOND_LINE: Duration = Duration::from_secs(60);

/// How much of an error is kept.
const MESSAGE_LENGTH_MAX: usize = 8 * 1024;

/// Work that has ended, and is not said yet.
pub(super) struct Finished {
    held: Held,
    ended: Ended,
    ended_at: Instant,
    /// Whether somebody else was just writing the row when this was said.
    was_busy: bool,
}

impl Finished {
    pub(super) fn new(held: Held, ended: Ended) -> Self {
        Self {
            held,
            ended,
            ended_at: Instant::now(),
            was_busy: false,
        }
    }

    /// Whether another row may have waited for this one: the next of its chain, or the next suspect.
    pub(super) fn makes_way(&self) -> bool {
        self.held.claimed.chain.is_some() || self.held.claimed.is_suspect
    }
}

/// Rows as the database is told of them, sorted by what becomes of them.
#[derive(Default)]
struct Ends<'f> {
    done: Vec<Done<'f>>,
    back: Vec<Back<'f>>,
    told: Vec<Told<'f>>,
}

/// What is told of a row that goes back, once the database knows.
struct Told<'f> {
    claimed: &'f Claimed,
    after: Option<Duration>,
    is_put_off: bool,
    code: &'f str,
}

impl Told<'_> {
    fn result(&self) -> &'static str {
        if self.after.is_some() { "retried" } else { "dead" }
    }

    fn tell(&self) {
        let lease = &self.claimed.lease;
        match self.after {
            Some(after) if self.is_put_off => telemetry::put_off(&lease.kind, after),
            Some(after) => telemetry::retrying(&Retry {
                operation: &lease.kind,
                attempt: self.claimed.attempt,
                after,
                correlation_id: self.claimed.message.origin.correlation_id.as_deref(),
                code: self.code,
            }),
            None => telemetry::row_died(&lease.kind, &lease.item, self.code),
        }
    }
}

/// Rows by what they are called.
struct Named<'l>(HashSet<(Uuid, &'l str)>);

impl<'l> Named<'l> {
    fn of(rows: &'l [(Uuid, String)]) -> Self {
        Self(rows.iter().map(|(item, kind)| (*item, &**kind)).collect())
    }

    fn has(&self, lease: &Lease) -> bool {
        !self.0.is_empty() && self.0.contains(&(lease.item, &*lease.kind))
    }
}

/// How many attempts ended how, by kind.
#[derive(Default)]
struct Tally<'f> {
    counts: HashMap<(&'f str, &'static str), u64>,
    late: u64,
}

impl<'f> Tally<'f> {
    /// Counts what was said of rows, but for those of which it could not be.
    fn add(&mut self, said: impl Iterator<Item = (&'f Lease, &'static str)>, untouched: &Untouched) {
        let (late, busy) = (Named::of(&untouched.lost), Named::of(&untouched.busy));
        for (lease, result) in said.filter(|(lease, _)| !busy.has(lease)) {
            let is_late = late.has(lease);
            let result = if is_late { "lost" } else { result };
            self.late += u64::from(is_late);
            *self.counts.entry((&lease.kind, result)).or_default() += 1;
        }
    }

    /// Counts those that needed no word too, and tells.
    fn tell(mut self, finished: &'f [Finished]) {
        for finished in finished {
            let result = match &finished.ended {
                Ended::Settled => done_word(&finished.held.claimed.lease.kind),
                Ended::Lost => "lost",
                _ => continue,
            };
            let kind = &*finished.held.claimed.lease.kind;
            *self.counts.entry((kind, result)).or_default() += 1;
        }
        for ((kind, result), count) in self.counts {
            telemetry::deliveries_ended(kind, result, count);
        }
        if self.late > 0 {
            telemetry::rows_were_late(self.late);
        }
    }
}

/// What has ended, sorted by what is said of it. Each is a statement by itself: what one of them has said is not said again when
/// another fails.
#[derive(Default)]
pub(super) struct Sorted {
    ended: Vec<Finished>,
    failed: Vec<Finished>,
    given_back: Vec<Finished>,
}

/// What came of saying it.
pub(super) type Said = Result<Answer>;

#[derive(Default)]
pub(super) struct Answer {
    /// When the earliest of the rows that went back is due again, if any has gone back.
    back_at: Option<Instant>,
    /// Rows of which it could not be said, because somebody else was just writing them.
    busy: Vec<(Uuid, String)>,
}

impl Sorted {
    fn parts(&self) -> [&Vec<Finished>; 3] {
        [&self.ended, &self.failed, &self.given_back]
    }

    pub(super) async fn say<Db: Database>(&self, line: &mut Line<Db>, offset: Offset, limit: Duration) -> [Said; 3] {
        let mut said = [(); 3].map(|()| Ok(Answer::default()));
        for (said, part) in said.iter_mut().zip(self.parts()) {
            *said = say(part, line, offset, limit).await;
        }
        said
    }
}

/// What was said over the second connection.
pub(super) struct Aside<Db: Database> {
    line: Line<Db>,
    finished: Sorted,
    said: [Said; 3],
}

impl<Db: Database> Engine<Db> {
    /// Says what has ended. What cannot be said now is said later; if it is too late then, the rows are done again.
    pub(super) async fn finish(&mut self) -> Result<()> {
        let finished = self.sort_finished();
        let limit = statement_limit(&self.held, self.pace.lease);
        let saying = finished.say(&mut self.line, self.sf.clock().ahead(), limit);
        let said = letting_go(&self.sf, &self.held, saying).await;
        self.has_said(finished, said)
    }

    /// Says what could not be said before, if it is time.
    pub(super) fn take_up_busy(&mut self) {
        if self.busy_until.is_some_and(|until| until <= Instant::now()) {
            self.busy_until = None;
            self.finished.append(&mut self.busy);
        }
    }

    /// Says what has ended over the second connection, beside whatever else is to be done.
    pub(super) fn finish_aside(&mut self) {
        let Some(mut line) = self.second_line.take() else {
            return;
        };
        let finished = self.sort_finished();
        let limit = statement_limit(&self.held, self.pace.lease);
        let offset = self.sf.clock().ahead();
        self.aside = Some(self.sf.tasks().spawn(async move {
            let said = finished.say(&mut line, offset, limit).await;
            Aside { line, finished, said }
        }));
    }

    /// Takes note of what was said there.
    pub(super) fn note_aside(&mut self, aside: Result<Aside<Db>, JoinError>) -> Result<()> {
        self.aside = None;
        let said = match aside {
            Ok(Aside { line, finished, said }) => {
                self.second_line = Some(line);
                self.has_said(finished, said)
            }
            // What it was to say is done again when the leases have expired.
            Err(error) => {
                self.second_line = Some(Line::deaf(&self.sf));
                Err(Error::new(Code::Database, "finishing rows broke down").with_source(error))
            }
        };
        if said.is_err() {
            self.one_line_until = Some(Instant::now() + WITHOUT_SECOND_LINE);
        }
        said
    }

    fn sort_finished(&mut self) -> Sorted {
        let mut sorted = Sorted::default();
        for finished in std::mem::take(&mut self.finished) {
            let part = match finished.ended {
                Ended::Failed(_) | Ended::Unsettled => &mut sorted.failed,
                Ended::GivenBack => &mut sorted.given_back,
                _ => &mut sorted.ended,
            };
            part.push(finished);
        }
        sorted
    }

    /// Takes note of what could be said, and keeps the rest.
    fn has_said(&mut self, finished: Sorted, said: [Said; 3]) -> Result<()> {
        let parts = [finished.ended, finished.failed, finished.given_back];
        let mut result = Ok(());
        for (finished, said) in parts.into_iter().zip(said) {
            match said {
                Ok(Answer { back_at, busy }) => {
                    self.back_at = [self.back_at, back_at].into_iter().flatten().min();
                    let busy = Named::of(&busy);
                    let is_waited_for = |finished: &Finished| {
                        let queue = finished.held.lane.queue.as_ref();
                        queue.is_some_and(|queue| self.held_up.contains(queue))
                    };
                    if finished.iter().any(is_waited_for) {
                        self.sf.rows_were_committed();
                    }
                    for mut finished in finished {
                        if busy.has(&finished.held.claimed.lease) {
                            finished.was_busy = true;
                            self.busy.push(finished);
                            self.busy_until.get_or_insert_with(|| Instant::now() + BUSY_PAUSE);
                        } else if !matches!(finished.ended, Ended::GivenBack) {
                            self.freed.extend(finished.held.claimed.chain.clone());
                        }
                    }
                }
                Err(error) => {
                    // If the database is away it is so for everybody, and what was done is worth saying for as long as that lasts. What
                    // it refuses is not said for ever: others have the rows by then.
                    let now = Instant::now();
                    let is_kept = |finished: &Finished| error.is_transient() || finished.held.lost_at > now;
                    self.finished.extend(finished.into_iter().filter(is_kept));
                    result = Err(error);
                }
            }
        }
        result
    }
}

async fn say<Db: Database>(finished: &[Finished], line: &mut Line<Db>, offset: Offset, limit: Duration) -> Said {
    let mut ends = Ends::default();
    for finished in finished {
        judge(finished, &mut ends);
    }
    let mut tally = Tally::default();
    let mut answer = Answer::default();
    if !ends.done.is_empty() {
        let asking = async |store: &Db::Store, link: &mut _| store.finish(link, &ends.done, offset).await;
        let untouched = line.ask("finish rows", limit, asking).await?;
        tally.add(ends.done.iter().map(|done| (done.lease, done.state)), &untouched);
        answer.busy = untouched.busy;
    }
    if !ends.back.is_empty() {
        let asking = async |store: &Db::Store, link: &mut _| store.put_back(link, &ends.back, offset).await;
        let PutBack { untouched, cancelled } = line.ask("put rows back", limit, asking).await?;
        let cancelled = Named::of(&cancelled);
        let ended = ends.back.iter().map(|back| back.lease);
        for lease in ended.filter(|lease| cancelled.has(lease)) {
            telemetry::row_was_cancelled(&lease.kind, &lease.item);
            tally.add(std::iter::once((lease, "cancelled")), &untouched);
        }
        ends.told.retain(|told| !cancelled.has(&told.claimed.lease));
        // What has died may have left a letter, which is due.
        let back_in = ends.back.iter().map(|back| back.after.unwrap_or_default()).min();
        answer.back_at = back_in.map(|back_in| Instant::now() + back_in);
        tally.add(
            ends.told.iter().map(|told| (&told.claimed.lease, told.result())),
            &untouched,
        );
        let (late, busy) = (Named::of(&untouched.lost), Named::of(&untouched.busy));
        let is_said = |lease| !late.has(lease) && !busy.has(lease);
        let told = ends.told.iter().filter(|told| is_said(&told.claimed.lease));
        told.for_each(Told::tell);
        answer.busy.extend(untouched.busy);
    }
    tally.tell(finished);
    Ok(answer)
}

/// What becomes of a row whose work ended like this.
fn judge<'f>(finished: &'f Finished, ends: &mut Ends<'f>) {
    let lease = &finished.held.claimed.lease;
    match &finished.ended {
        Ended::Settled | Ended::Lost => {}
        Ended::Done(detail) => ends.done.push(Done {
            lease,
            state: done_word(&lease.kind),
            detail: detail.as_deref(),
            was_busy: finished.was_busy,
            yields: false,
        }),
        Ended::Skipped(why) => ends.done.push(Done {
            lease,
            state: "skipped",
            detail: Some(why),
            was_busy: finished.was_busy,
            yields: false,
        }),
        Ended::Failed(failure) => {
            let back = back(finished, failure);
            ends.told.push(Told {
                claimed: &finished.held.claimed,
                after: back.after,
                is_put_off: back.gives_attempt_back,
                code: failure.code(),
            });
            ends.back.push(back);
        }
        Ended::GivenBack => ends.back.push(at_once(&finished.held.claimed, true)),
        // Which of the two it is, the database says. It may be put back only if neither is.
        Ended::Unsettled => {
            ends.told.push(Told {
                claimed: &finished.held.claimed,
                after: Some(Duration::ZERO),
                is_put_off: true,
                code: "unsettled",
            });
            ends.back.push(at_once(&finished.held.claimed, false));
        }
    }
}

/// A row that is due as before.
fn at_once(claimed: &Claimed, gives_attempt_back: bool) -> Back<'_> {
    Back {
        lease: &claimed.lease,
        after: Some(Duration::ZERO),
        gives_attempt_back,
        leaves_chain: None,
        key: key_of(claimed),
        failure: None,
        cancelled: None,
    }
}

fn back<'f>(finished: &'f Finished, failure: &'f Failure) -> Back<'f> {
    let claimed = &finished.held.claimed;
    let (lease, attempt) = (&claimed.lease, claimed.attempt);
    if failure.kind() == FailureKind::Cancelled && lease.kind.starts_with(JOBS) {
        return Back {
            cancelled: Some(failure.message()),
            ..at_once(claimed, false)
        };
    }
    let options = &finished.held.options;
    let elapsed = claimed.elapsed + finished.ended_at.duration_since(finished.held.claimed_at);
    let decision = match failure.kind() {
        // It counts neither as an attempt nor as time: who is away for a day kills nothing.
        FailureKind::Snooze => {
            let after = failure.retry_after();
            Decision::Retry(after.unwrap_or_else(|| options.retry.delay(1, random)))
        }
        _ => options.retry.decide(attempt, failure, elapsed, random),
    };
    let after = match decision {
        // It was due while it was worked on; the delay counts from its end.
        Decision::Retry(after) => Some(after.saturating_sub(finished.ended_at.elapsed()).min(BACK_MAX)),
        Decision::GiveUp(_) => None,
    };
    let is_snooze = failure.kind() == FailureKind::Snooze && after.is_some();
    Back {
        lease,
        after,
        gives_attempt_back: is_snooze,
        leaves_chain: claimed
            .chain
            .as_deref()
            .filter(|chain| after.is_none() && options.dead_make_room && !is_key(chain)),
        key: key_of(claimed),
        failure: (!is_snooze).then(|| failure_row(attempt, failure)),
        cancelled: None,
    }
}

/// The key whose limit a row counts against.
fn key_of(claimed: &Claimed) -> Option<&str> {
    claimed.chain.as_deref().filter(|chain| is_key(chain))
}

pub(crate) fn failure_row(attempt: u32, failure: &Failure) -> FailureRow {
    let message = match failure.source() {
        Some(source) => format!("{failure} ({source})"),
        None => failure.to_string(),
    };
    FailureRow {
        attempt: i32::try_from(attempt).unwrap_or(i32::MAX),
        failure: failure.kind().to_string(),
        code: shorten(failure.code().to_owned()),
        fingerprint: fingerprint(failure.code(), &message),
        message: shorten(message),
    }
}

/// The same for failures that differ only in numbers and ids, so that a thousand of them are one thing to look at.
pub(crate) fn fingerprint(code: &str, message: &str) -> String {
    let mut shape = String::with_capacity(message.len());
    for word in message.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let letters = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if letters.chars().any(|c| c.is_ascii_digit()) {
            shape.push('#');
        } else {
            shape.push_str(letters);
        }
        shape.push_str(&word[letters.len()..]);
    }
    let hash = Sha256::new()
        .chain_update(code)
        .chain_update([0])
        .chain_update(shape)
        .finalize();
    hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn shorten(mut message: String) -> String {
    // PostgreSQL has no NUL in a text.
    message.retain(|c| c != '\0');
    if message.len() > MESSAGE_LENGTH_MAX {
        let end = (0..=MESSAGE_LENGTH_MAX)
            .rev()
            .find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_differ_in_numbers_are_one() {
        let of = |message| fingerprint("timeout", message);
        assert_eq!(of("order 17 took 3s"), of("order 4711 took 12s"));
        assert_eq!(of("order 0192a-bc1 failed"), of("order 0193f-dd2 failed"));
        assert_ne!(of("order 17 took 3s"), of("payment 17 took 3s"));
        assert_ne!(of("x"), fingerprint("refused", "x"));
    }

    #[test]
    fn a_long_error_is_cut_between_characters() {
        let short = shorten("é".repeat(10_000));
        assert!(short.len() <= MESSAGE_LENGTH_MAX + '…'.len_utf8() && short.ends_with("é…"));
        assert_eq!(shorten("a\0b".to_owned()), "ab");
    }
}
