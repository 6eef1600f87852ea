//! The one connection that writes, and group commit on it.
//!
//! Commands take turns on the connection. A turn is a savepoint in a transaction that several turns share: the
//! *group*. One COMMIT, one sync of the disk, makes a whole group durable, and nobody of it is answered before.
//! Every call is a trip to the connection's thread, so whoever ends a turn sets the savepoint of the next one in the same call.
//! A turn that fails undoes its savepoint and harms none of the others. What cannot be undone alone (the COMMIT
//! fails, SQLite rolls back by itself) ends the group: everybody in it is told that nothing happened.
//!
//! Whoever ends its turn commits the group if nobody waits for a turn, if the group is large, or if its first
//! command has waited long enough; otherwise it leaves that to the next one.
//!
//! A handler keeps its turn for as long as it likes, and the leases of the engine cannot be renewed meanwhile. Nobody can take them
//! over either: the group has the lock of the file. So whoever renews them has the [first turn](Writer::take_first_turn) after it,
//! in the same group.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqlStr, Sqlite, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use super::gate::Gate;
use super::{CommitError, SqliteStore, Store};
use crate::clock::{self, Timestamp, jitter};
use crate::error::{Code, Error, Result};
use crate::store::{begin_transaction, commit_transaction, depth_beyond, rollback_savepoint, rollback_transaction};
use crate::telemetry;

/// The most commands that one COMMIT makes durable; beyond this a sync costs each of them little already.
const GROUP_MAX: usize = 32;

/// How long the first command of a group waits for company.
const GROUP_PATIENCE: Duration = Duration::from_millis(10);

/// How often a process that always has something to write steps aside, and for how long, so that another process on
/// the same file finds the lock free.
const STEP_ASIDE_EVERY: Duration = Duration::from_millis(20);
const STEP_ASIDE_FOR: Duration = Duration::from_millis(1);

/// How often a locked file is tried again. SQLite's own waiting gets as slow as ten times a second and would seldom hit
/// the moment when a busy neighbour steps aside.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// How long undoing a turn may take before its connection is given up, and its group with it.
const UNDO_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Writer {
    options: SqliteConnectOptions,
    /// How long a command waits for its turn, and a turn for another process.
    patience: Duration,
    /// Whether every command commits by itself.
    commits_alone: AtomicBool,
    group: Arc<Mutex<Group>>,
    /// How many commands are waiting for a turn.
    waiting: AtomicUsize,
    /// Who has the next turn, before all who wait.
    first: std::sync::Mutex<Option<oneshot::Sender<OwnedMutexGuard<Group>>>>,
    /// Since when the group that is open has had the lock of the file.
    alone_since: std::sync::Mutex<Option<Instant>>,
}

/// The shared transaction, in the hands of whoever has the turn.
struct Group {
    link: Option<Link>,
    is_begun: bool,
    begun_at: Instant,
    /// The one that is open.
    savepoint: Savepoint,
    /// Counts groups, so that a watchman knows the one he watches.
    number: u64,
    is_watched: bool,
    /// Those whose turn is over and who wait for the COMMIT.
    members: Vec<oneshot::Sender<Ended>>,
    /// When the first of them began to wait.
    first_waits_since: Instant,
    ended_at: Option<Instant>,
    stepped_aside_at: Instant,
}

/// The connection, and what watches it.
struct Link {
    conn: SqliteConnection,
    gate: Arc<Gate>,
}

type Ended = Result<(), CommitError>;

/// The savepoint of a turn, which is set before the turn is taken. The two names alternate: a turn that cannot tell whether it
/// has been released does not mistake the next one's for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Savepoint {
    Even,
    Odd,
}

impl Savepoint {
    fn next(self) -> Self {
        match self {
            Self::Even => Self::Odd,
            Self::Odd => Self::Even,
        }
    }
}

/// How long to try again while another process has the file locked. To switch a new file to the write-ahead log, which every first
/// connection does, is refused at once while another process does the same, whatever the busy timeout says.
pub(super) struct Patience {
    until: Instant,
}

impl Patience {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            until: Instant::now() + patience,
        }
    }

    /// Waits a moment.
    ///
    /// # Errors
    /// What was given, if it is something else, or there is no more time.
    pub(super) async fn bear(&self, error: Error) -> Result<()> {
        if error.code() != Code::Locked || Instant::now() >= self.until {
            return Err(error);
        }
        tokio::time::sleep(jitter(TRY_AGAIN)).await;
        Ok(())
    }
}

impl Writer {
    pub(super) fn new(options: SqliteConnectOptions, patience: Duration) -> Self {
        let group = Group {
            link: None,
            is_begun: false,
            begun_at: Instant::now(),
            savepoint: Savepoint::Even,
            number: 0,
            is_watched: false,
            members: Vec::new(),
            first_waits_since: Instant::now(),
            ended_at: None,
            stepped_aside_at: Instant::now(),
        };
        Self {
            options,
            patience,
            commits_alone: AtomicBool::new(false),
            group: Arc::new(Mutex::new(group)),
            waiting: AtomicUsize::new(0),
            first: std::sync::Mutex::default(),
            alone_since: std::sync::Mutex::default(),
        }
    }

    /// Since when nobody but this process can have written; `None`: others may.
    pub(super) fn alone_since(&self) -> Option<Instant> {
        *self.alone_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_alone_from(&self, since: Option<Instant>) {
        *self.alone_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Ends sharing: what one command defers to its COMMIT must not fail its neighbours'.
    pub(super) fn commit_alone(&self) {
        self.commits_alone.store(true, Ordering::Relaxed);
    }

    /// Waits for a turn and begins the group's transaction if it is the first of a group.
    pub(super) async fn take_turn(self: &Arc<Self>, is_alone: bool) -> Result<Turn> {
        let started = Instant::now();
        let waiting = Waiting::count(&self.waiting);
        let group = tokio::time::timeout(self.patience, self.group.clone().lock_owned())
            .await
            .map_err(|_| {
                Error::new(
                    Code::PoolExhausted,
                    "other commands of this process held the one connection that writes for too long",
                )
            })?;
        drop(waiting);
        let is_alone = is_alone || self.commits_alone.load(Ordering::Relaxed);
        self.begin_turn(group, is_alone, self.patience.saturating_sub(started.elapsed()))
            .await
    }

    /// Waits for the turn that is under way, and for no other, however long it takes: whoever has it has a time limit of his own. The
    /// group is committed when this turn ends.
    pub(super) async fn take_first_turn(self: &Arc<Self>) -> Result<Turn> {
        let (first, handed_over) = oneshot::channel();
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
        let waiting = Waiting::count(&self.waiting);
        let group = tokio::select! {
            biased;
            Ok(group) = handed_over => group,
            group = self.group.clone().lock_owned() => group,
        };
        drop(waiting);
        let is_alone = self.commits_alone.load(Ordering::Relaxed);
        let mut turn = self.begin_turn(group, is_alone, self.patience).await?;
        turn.end_group();
        Ok(turn)
    }

    /// Begins a turn, and the group's transaction if it is the first of a group.
    async fn begin_turn(
        self: &Arc<Self>,
        group: OwnedMutexGuard<Group>,
        is_alone: bool,
        patience: Duration,
    ) -> Result<Turn> {
        let mut turn = Turn {
            writer: self.clone(),
            group: Some(group),
            is_alone,
            ends_group: false,
            savepoint: Savepoint::Even,
            began: clock::machine(),
            seen: None,
            is_last: false,
        };
        // A group that lost its connection with its runtime has nobody left to end it.
        let has_to_end = |group: &mut OwnedMutexGuard<Group>| group.is_begun && (is_alone || group.link.is_none());
        if let Some(group) = turn.group.take_if(has_to_end) {
            turn.group = self.clone().end_whoever_waits(group).await;
        }
        let Some(group) = &mut turn.group else {
            return Err(lost("the process is shutting down"));
        };
        if !group.is_begun
            && let Err(error) = self.begin(group, patience).await
        {
            turn.group = None;
            return Err(error);
        }
        turn.savepoint = group.savepoint;
        Ok(turn)
    }

    /// Begins a group's transaction, waiting for other processes.
    async fn begin(&self, group: &mut Group, patience: Duration) -> Result<()> {
        let is_busy = group.ended_at.is_some_and(|ended| ended.elapsed() < STEP_ASIDE_FOR);
        if !is_busy {
            group.stepped_aside_at = Instant::now();
        } else if group.stepped_aside_at.elapsed() > STEP_ASIDE_EVERY {
            tokio::time::sleep(STEP_ASIDE_FOR).await;
            group.stepped_aside_at = Instant::now();
        }
        let patience = Patience::new(patience);
        while let Err(error) = self.try_to_begin(group).await {
            patience.bear(error).await?;
        }
        group.is_begun = true;
        group.begun_at = Instant::now();
        self.is_alone_from(Some(group.begun_at));
        group.savepoint = Savepoint::Even;
        group.is_watched = false;
        group.number += 1;
        Ok(())
    }

    async fn try_to_begin(&self, group: &mut Group) -> Result<()> {
        let link = match &mut group.link {
            Some(link) => link,
            link => link.insert(self.connect().await?),
        };
        let begin = SqlStr::from_static("BEGIN IMMEDIATE; SAVEPOINT sf_even");
        let begun = begin_transaction::<Sqlite>(&mut link.conn, begin).await;
        let begun = begun.map_err(|error| SqliteStore::error(error, "beginning a transaction"));
        match &begun {
            Ok(()) => link.gate.begin(),
            Err(error) if error.code() == Code::Locked => {}
            // Whatever is wrong with the connection, the next command should not find out again.
            Err(_) => group.link = None,
        }
        begun
    }

    async fn connect(&self) -> Result<Link> {
        let fail = |error| SqliteStore::error(error, "opening the connection that writes");
        let mut conn = self.options.connect().await.map_err(fail)?;
        // From here on waiting for a lock is ours: see `TRY_AGAIN`. What savepoints keep of the pages stays in memory: in a file,
        // every page that a turn changes would be written there first.
        sqlx::raw_sql("PRAGMA busy_timeout = 0; PRAGMA temp_store = MEMORY")
            .execute(&mut conn)
            .await
            .map_err(fail)?;
        let gate = Gate::install(&mut conn).await.map_err(fail)?;
        Ok(Link { conn, gate })
    }

    /// Ends the group in a task of its own: a COMMIT that was asked for must be heard, also by those who went away.
    async fn end_whoever_waits(self: Arc<Self>, mut group: OwnedMutexGuard<Group>) -> Option<OwnedMutexGuard<Group>> {
        let ending = tokio::spawn(async move {
            self.end(&mut group).await;
            group
        });
        ending.await.ok()
    }

    /// Ends the group: makes its members' work durable, and tells them.
    async fn end(&self, group: &mut Group) {
        let ended = match (&mut group.link, group.members.is_empty()) {
            (Some(link), false) => link.commit().await,
            (Some(link), true) => rollback_transaction::<Sqlite>(&mut link.conn)
                .await
                .map_err(|error| CommitError::Refused(SqliteStore::error(error, "rolling back"))),
            (None, _) => Err(CommitError::Refused(lost("its connection was closed"))),
        };
        group.is_begun = false;
        group.ended_at = Some(Instant::now());
        self.is_alone_from(None);
        if ended.is_err() {
            // It may still be inside the transaction; closing it rolls back.
            group.link = None;
        }
        if !group.members.is_empty() {
            telemetry::group_ended(ended.is_ok());
        }
        // A member that is gone has a task that the runtime has ended; nobody is left to tell.
        if group.members.len() == 1 {
            let _ = group.members.pop().map(|member| member.send(ended));
            return;
        }
        for member in group.members.drain(..) {
            let _ = member.send(ended.as_ref().copied().map_err(CommitError::among_others));
        }
    }

    /// Who has the next turn before all others, if anybody wants it.
    fn first(&self) -> Option<oneshot::Sender<OwnedMutexGuard<Group>>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Lets the group be ended if nobody comes to end it.
    fn have_watched(self: &Arc<Self>, group: &mut Group) {
        if !group.is_watched {
            group.is_watched = true;
            tokio::spawn(self.clone().watch(group.number));
        }
    }

    /// Ends a group that nobody came to end: those who waited for a turn may have given up.
    async fn watch(self: Arc<Self>, number: u64) {
        tokio::time::sleep(GROUP_PATIENCE).await;
        let mut group = self.group.clone().lock_owned().await;
        if group.is_begun && group.number == number {
            self.end(&mut group).await;
        }
    }
}

impl Link {
    async fn commit(&mut self) -> Ended {
        if let Err(error) = self.gate.check() {
            // Not by one of those who wait: it would have been told at the end of its turn.
            return Err(CommitError::Refused(lost(&error.to_string())));
        }
        let committed = {
            let _open = self.gate.open();
            commit_transaction::<Sqlite>(&mut self.conn).await
        };
        committed.map_err(|error| {
            let is_constraint = error
                .as_database_error()
                .is_some_and(|error| error.kind() != sqlx::error::ErrorKind::Other);
            match SqliteStore::classify(&error) {
                _ if is_constraint => CommitError::Refused(
                    Error::new(Code::CommitRefused, Code::CommitRefused.title()).with_source(error),
                ),
                Code::Locked | Code::ReadOnly => CommitError::Refused(SqliteStore::error(error, "committing")),
                // A failed write or sync may or may not have left the commit in the log: the key will tell.
                _ => CommitError::Unknown(SqliteStore::error(error, "committing")),
            }
        })
    }
}

impl CommitError {
    /// The same, told to one of several who committed together. They may well succeed one by one.
    fn among_others(&self) -> Self {
        match self {
            Self::Refused(error) => Self::Refused(lost(&error.to_string())),
            Self::Unknown(error) => Self::Unknown(
                Error::new(Code::ConnectionLost, "the commands that were committed together failed")
                    .with_source(error.to_string()),
            ),
        }
    }
}

fn lost(why: &str) -> Error {
    Error::new(
        Code::Conflict,
        "the commands that were committed together failed together; this one was rolled back and its key is free",
    )
    .with_source(why.to_owned())
}

/// Somebody who waits for a turn, or no longer.
struct Waiting<'w>(&'w AtomicUsize);

impl<'w> Waiting<'w> {
    fn count(waiting: &'w AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::AcqRel);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A turn: the connection, inside the group's transaction. It is handed on when it ends, and when it is dropped.
pub(crate) struct Turn {
    writer: Arc<Writer>,
    /// `None` once the turn has ended.
    group: Option<OwnedMutexGuard<Group>>,
    is_alone: bool,
    /// Whether it does not wait for others who would share its COMMIT.
    ends_group: bool,
    pub(super) savepoint: Savepoint,
    pub(super) began: Timestamp,
    /// Tells whether what this turn saw of others became durable.
    seen: Option<oneshot::Receiver<Ended>>,
    /// Whether the turn has been dropped before.
    is_last: bool,
}

impl Turn {
    /// Whether nobody but this process can have written since that moment: the group holds the lock of the file.
    pub(super) fn is_alone_since(&self, moment: Instant) -> bool {
        self.group.as_ref().is_some_and(|group| group.begun_at < moment)
    }

    /// Lets the group be committed when this turn ends. Who comes next may take as long as he likes, and whoever has this turn cannot
    /// wait for that.
    pub(super) fn end_group(&mut self) {
        self.ends_group = true;
    }

    /// Makes this turn's work part of the group's, and sets the savepoint of the next turn.
    pub(super) async fn seal(&mut self) -> Result<()> {
        self.check()?;
        let seal = match self.savepoint {
            Savepoint::Even => "RELEASE sf_even; SAVEPOINT sf_odd",
            Savepoint::Odd => "RELEASE sf_odd; SAVEPOINT sf_even",
        };
        sqlx::raw_sql(seal)
            .execute(&mut **self)
            .await
            .map_err(|error| SqliteStore::error(error, "ending a turn"))?;
        self.has_sealed();
        Ok(())
    }

    /// Notes that the turn was sealed, in a call that did more than that.
    pub(super) fn has_sealed(&mut self) {
        self.group_mut().savepoint = self.savepoint.next();
    }

    /// Waits for the COMMIT of the group, which makes this turn's work durable. The turn is sealed already.
    pub(super) async fn commit(&mut self) -> Ended {
        let (member, ended) = oneshot::channel();
        let group = self.group_mut();
        if group.members.is_empty() {
            group.first_waits_since = Instant::now();
        }
        group.members.push(member);
        self.hand_on().await;
        ended.await.unwrap_or_else(|_| {
            let error = Error::new(Code::ShuttingDown, "the process is shutting down");
            Err(CommitError::Unknown(error))
        })
    }

    /// Undoes what this turn did, and only that.
    pub(super) async fn undo(&mut self) -> Result<()> {
        let undone = self.roll_back_to_savepoint().await;
        let group = self.group_mut();
        if undone.is_err() {
            // The savepoint is gone, or the whole transaction: then the group cannot be told from this turn any more.
            group.link = None;
        } else if !group.members.is_empty() {
            // It has seen what others wrote and is not durable yet.
            let (member, seen) = oneshot::channel();
            group.members.push(member);
            self.seen = Some(seen);
        }
        self.hand_on().await;
        undone
    }

    /// Waits until what this turn saw of others is durable. Fails if it never will be: then a decision made on it is none.
    pub(super) async fn saw_the_truth(&mut self) -> Result<()> {
        let Some(seen) = self.seen.take() else {
            return Ok(());
        };
        match seen.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(CommitError::Refused(error) | CommitError::Unknown(error))) => Err(lost(&error.to_string())),
            Err(_) => Err(lost("the process is shutting down")),
        }
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<()> {
        let fail = |error| SqliteStore::error(error, "rolling back");
        self.check()?;
        let undo = match self.savepoint {
            Savepoint::Even => "ROLLBACK TO sf_even",
            Savepoint::Odd => "ROLLBACK TO sf_odd",
        };
        let conn: &mut SqliteConnection = self;
        while depth_beyond::<Sqlite>(conn, 1).await > 1 {
            rollback_savepoint::<Sqlite>(conn).await.map_err(fail)?;
        }
        sqlx::raw_sql(undo).execute(conn).await.map(drop).map_err(fail)
    }

    /// Ends the turn, and the group if it is time.
    async fn hand_on(&mut self) {
        let Some(mut group) = self.group.take() else {
            return;
        };
        let writer = &self.writer;
        let is_broken = group.link.as_ref().is_none_or(|link| link.gate.check().is_err());
        let is_shared = !is_broken && !self.is_alone;
        if is_shared && let Some(first) = writer.first() {
            writer.have_watched(&mut group);
            match first.send(group) {
                Ok(()) => return,
                // Who was first has gone away meanwhile.
                Err(still_ours) => group = still_ours,
            }
        }
        let is_due = !is_shared
            || self.ends_group
            || writer.waiting.load(Ordering::Acquire) == 0
            || group.members.len() >= GROUP_MAX
            || (!group.members.is_empty() && group.first_waits_since.elapsed() >= GROUP_PATIENCE);
        if !is_due {
            writer.have_watched(&mut group);
        } else if let Some(group) = writer.clone().end_whoever_waits(group).await
            && let Some(first) = writer.first()
        {
            let _ = first.send(group);
        }
    }

    /// Hands on a turn that was dropped in the middle, by a panic, a time limit or a caller that went away.
    pub(super) async fn abandon(mut self) {
        let Some(gate) = self.gate() else {
            return;
        };
        // What still runs on the connection is interrupted, so that the turn is free soon and not when it has ended.
        gate.abandon();
        let undone = tokio::time::timeout(UNDO_LIMIT, self.roll_back_to_savepoint()).await;
        if matches!(undone, Ok(Ok(()))) {
            gate.forgive();
        } else {
            self.group_mut().link = None;
        }
        self.hand_on().await;
    }

    /// Fails if SQLite has ended the transaction by itself.
    pub(super) fn check(&self) -> Result<()> {
        self.gate().map_or(Ok(()), |gate| gate.check())
    }

    fn gate(&self) -> Option<Arc<Gate>> {
        self.group.as_ref()?.link.as_ref().map(|link| link.gate.clone())
    }

    fn group_mut(&mut self) -> &mut Group {
        match &mut self.group {
            Some(group) => group,
            None => unreachable!("a turn that has ended is not used"),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut group) = self.group.take() else {
            return;
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !self.is_last => {
                let turn = Turn {
                    writer: self.writer.clone(),
                    group: Some(group),
                    is_alone: self.is_alone,
                    ends_group: self.ends_group,
                    savepoint: self.savepoint,
                    began: self.began,
                    seen: None,
                    is_last: true,
                };
                runtime.spawn(turn.abandon());
            }
            // The runtime is going away: no time for anything but to close the connection.
            _ => group.link = None,
        }
    }
}

impl Deref for Turn {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match self.group.as_ref().and_then(|group| group.link.as_ref()) {
            Some(link) => &link.conn,
            None => unreachable!("a turn has the connection until it ends"),
        }
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match self.group.as_mut().and_then(|group| group.link.as_mut()) {
            Some(link) => &mut link.conn,
            None => unreachable!("a turn has the connection until it ends"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(directory: &tempfile::TempDir) -> Arc<Writer> {
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("test.db"))
            .create_if_missing(true);
        Arc::new(Writer::new(options, Duration::from_secs(10)))
    }

    async fn count(turn: &mut Turn) -> i64 {
        let rows = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&mut **turn);
        rows.await.expect("counted")
    }

    #[tokio::test]
    async fn a_turn_that_is_dropped_after_it_was_sealed_takes_its_group_with_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = writer(&directory);
        let make = async |turn: &mut Turn, sql| sqlx::raw_sql(sql).execute(&mut **turn).await.expect("done");
        let mut turn = writer.take_turn(false).await.expect("a turn");
        make(&mut turn, "CREATE TABLE effects (tag TEXT)").await;
        turn.seal().await.expect("sealed");
        turn.commit().await.expect("committed");

        // Whoever dropped it says that nothing happened. The savepoint that is open now is not its own.
        let (mut turns_before, mut tries) = (0, 0);
        while turns_before < 3 {
            tries += 1;
            assert!(tries <= 200, "the neighbours of a turn that was dropped are committed");
            let mut waiting = Vec::new();
            let seems_to_wait = Waiting::count(&writer.waiting);
            for _ in 0..turns_before {
                let mut turn = writer.take_turn(false).await.expect("a turn");
                make(&mut turn, "INSERT INTO effects VALUES ('neighbour')").await;
                turn.seal().await.expect("sealed");
                waiting.push(tokio::spawn(async move { turn.commit().await }));
                tokio::task::yield_now().await;
            }
            let mut turn = writer.take_turn(false).await.expect("a turn");
            make(&mut turn, "INSERT INTO effects VALUES ('dropped')").await;
            turn.seal().await.expect("sealed");
            drop(turn);
            drop(seems_to_wait);
            let mut committed = 0;
            for neighbour in waiting {
                match neighbour.await.expect("no panic") {
                    Err(CommitError::Refused(_)) => {}
                    // This machine is so slow that its patience was over before.
                    Ok(()) => committed += 1,
                    told => panic!("{told:?}"),
                }
            }
            let mut turn = writer.take_turn(false).await.expect("a turn");
            assert_eq!(count(&mut turn).await, committed, "after {turns_before} turns");
            make(&mut turn, "DELETE FROM effects").await;
            turn.seal().await.expect("sealed");
            turn.commit().await.expect("committed");
            turns_before += u32::from(committed == 0);
        }
    }

    #[tokio::test]
    async fn a_turn_that_is_undone_leaves_its_savepoint_to_the_next() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = writer(&directory);
        let _seems_to_wait = Waiting::count(&writer.waiting);
        let mut turn = writer.take_turn(false).await.expect("a turn");
        sqlx::raw_sql("CREATE TABLE effects (tag TEXT)")
            .execute(&mut *turn)
            .await
            .expect("made");
        turn.seal().await.expect("sealed");
        let made = tokio::spawn(async move { turn.commit().await });
        tokio::task::yield_now().await;
        for _ in 0..3 {
            let mut turn = writer.take_turn(false).await.expect("a turn");
            sqlx::raw_sql("INSERT INTO effects VALUES ('undone')")
                .execute(&mut *turn)
                .await
                .expect("written");
            turn.undo().await.expect("undone");
            turn.saw_the_truth().await.expect("what it saw is durable");
        }
        made.await.expect("no panic").expect("committed");
        let mut turn = writer.take_turn(false).await.expect("a turn");
        assert_eq!(count(&mut turn).await, 0);
    }

    #[tokio::test]
    async fn a_group_whose_next_member_gave_up_is_ended_all_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = writer(&directory);
        // Somebody who seems to wait for a turn and never takes it.
        let _gave_up = Waiting::count(&writer.waiting);
        let mut turn = writer.take_turn(false).await.expect("a turn");
        tokio::time::timeout(Duration::from_secs(10), turn.commit())
            .await
            .expect("the watchman comes")
            .expect("committed");

        // A group without members holds the lock of the file for nothing.
        let mut turn = writer.take_turn(false).await.expect("a turn");
        turn.hand_on().await;
        tokio::time::timeout(Duration::from_secs(10), async {
            while writer.group.lock().await.is_begun {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the watchman comes");
    }

    #[tokio::test]
    async fn who_is_first_has_the_next_turn_in_the_same_group() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = writer(&directory);
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut turn = writer.take_turn(false).await.expect("a turn");
        let alone_since = writer.alone_since();
        assert!(alone_since.is_some(), "it has the lock of the file");
        let waits = |name: &'static str, is_first: bool| {
            let (writer, told) = (writer.clone(), told.clone());
            tokio::spawn(async move {
                let mut turn = match is_first {
                    true => writer.take_first_turn().await.expect("a turn"),
                    false => writer.take_turn(false).await.expect("a turn"),
                };
                told.send((name, writer.alone_since())).expect("somebody hears");
                turn.seal().await.expect("sealed");
                turn.commit().await.expect("committed");
            })
        };
        let waiting = [waits("another", false), waits("first", true)];
        while writer.waiting.load(Ordering::Acquire) < 2 {
            tokio::task::yield_now().await;
        }
        turn.seal().await.expect("sealed");
        turn.commit().await.expect("committed");
        assert_eq!(heard.recv().await, Some(("first", alone_since)));
        let (name, since) = heard.recv().await.expect("told");
        assert!(name == "another" && since > alone_since, "the first one ends its group");
        for waiting in waiting {
            waiting.await.expect("no panic");
        }
        assert_eq!(writer.alone_since(), None);
    }

    #[tokio::test]
    async fn who_was_first_and_went_away_leaves_the_turn_to_the_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = writer(&directory);
        let mut turn = writer.take_turn(false).await.expect("a turn");
        let first = tokio::time::timeout(Duration::from_millis(20), writer.take_first_turn()).await;
        assert!(first.is_err(), "somebody has the turn");
        turn.seal().await.expect("sealed");
        turn.commit().await.expect("committed");
        let next = tokio::time::timeout(Duration::from_secs(10), writer.take_turn(false)).await;
        next.expect("in time").expect("a turn").undo().await.expect("undone");
    }
}
