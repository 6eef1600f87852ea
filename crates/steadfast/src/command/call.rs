//! The door for plain Rust: a command called from plain Rust, with a typed input and a typed answer.

use std::borrow::Cow;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::execute::{Executed, Handled, Handler, Verdict, execute, trouble_of};
use super::{
    AsyncOnce, AsyncRerun, Claimant, CommandOptions, Key, KeyState, Meaning, Outcome, Owner, keeping_options,
    running_options,
};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureKind, StoredFailure};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::tx::Tx;

/// An idempotent command called from plain Rust: [`Steadfast::command`].
#[must_use = "a command does nothing until it is run"]
pub struct Command<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    wish: Wish<'c>,
    options: CommandOptions,
}

/// What the caller of a plain Rust command brings.
#[derive(Default)]
pub(crate) struct Wish<'c> {
    pub(crate) operation: &'c str,
    pub(crate) value: Cow<'c, str>,
    pub(crate) owner: Option<&'c Owner>,
    /// The input as JSON, or why it could not be written as such.
    pub(crate) input: Option<serde_json::Result<Vec<u8>>>,
}

impl Wish<'_> {
    pub(crate) fn claim(self, options: CommandOptions) -> Result<Claimant> {
        let key = Key::new(options.scope, self.owner, self.operation, &self.value)?;
        let body = self.input.transpose().map_err(|error| {
            Error::new(
                Code::BodyRefused,
                format!("the input of {} cannot be written as JSON", key.operation),
            )
            .with_source(error)
        })?;
        let meaning = Meaning::Call {
            operation: &key.operation,
            input: body.as_deref().unwrap_or(b"null"),
        };
        let input = meaning.input(&options.fingerprint)?;
        Claimant::new(key, input, options)
    }
}

/// What a command ended with, and whether it was this call that executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<T> {
    /// The handler's value, from this execution or from the first one.
    pub value: T,
    /// Whether the value is the stored one of an earlier execution.
    pub replayed: bool,
}

impl<'c, Db: Database> Command<'c, Db> {
    pub(crate) fn new(steadfast: &'c Steadfast<Db>, operation: &'c str, value: impl Into<Cow<'c, str>>) -> Self {
        Self {
            steadfast,
            wish: Wish {
                operation,
                value: value.into(),
                ..Wish::default()
            },
            options: CommandOptions::default(),
        }
    }

    /// Who asks. Needed unless the scope is global.
    pub fn owner(mut self, owner: &'c Owner) -> Self {
        self.wish.owner = Some(owner);
        self
    }

    /// What is asked for: the same key with another input is refused.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.wish.input = Some(serde_json::to_vec(input));
        self
    }

    keeping_options!();
    running_options!();

    /// Runs the command, or answers with what its first execution returned.
    ///
    /// The handler is called again when the database ended the transaction to resolve a deadlock, or was lost
    /// before COMMIT: borrow what it needs, do not move it in, and call nothing outside the database.
    ///
    /// Dropping the returned future is safe at any point: until the handler returned nothing happens, afterwards
    /// the command is carried to its end in a task of its own. Keeping it without polling it keeps its transaction open.
    ///
    /// # Errors
    /// [`Code::HandlerFailed`] with the handler's [`Failure`]; [`Code::InFlight`] and [`Code::Mismatch`] as the guide's
    /// table says; a transient code if the database could not do it now. After any error nothing was changed,
    /// except after [`Code::CommitUnknown`], which says so.
    pub fn run<T, F>(self, handler: F) -> impl Future<Output = Result<Reply<T>>> + Send
    where
        T: Serialize + DeserializeOwned + Send,
        for<'t> F: AsyncFn(&'t mut Tx<Db>) -> Result<T, Failure>
            + AsyncRerun<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
            + Send
            + Sync,
    {
        self.execute(Rerunnable(handler))
    }

    /// As [`run`](Self::run), for a handler that cannot be called twice: a conflict is reported instead of retried.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Code::Conflict`].
    pub fn run_once<T, F>(self, handler: F) -> impl Future<Output = Result<Reply<T>>> + Send
    where
        T: Serialize + DeserializeOwned + Send,
        for<'t> F: AsyncFnOnce(&'t mut Tx<Db>) -> Result<T, Failure>
            + AsyncOnce<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
            + Send,
    {
        self.execute(Once(Some(handler)))
    }

    async fn execute<T, H>(self, handler: H) -> Result<Reply<T>>
    where
        T: DeserializeOwned + Send,
        H: Handler<Db, Answer = Result<T, Failure>> + Send,
    {
        let claimant = self.wish.claim(self.options)?;
        let ended = execute(self.steadfast, &claimant, handler).await?;
        reply(ended)
    }
}

/// A handler that can be run again.
struct Rerunnable<F>(F);

impl<Db, T, F> Handler<Db> for Rerunnable<F>
where
    Db: Database,
    T: Serialize + Send,
    for<'t> F: AsyncFn(&'t mut Tx<Db>) -> Result<T, Failure>
        + AsyncRerun<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
        + Send
        + Sync,
{
    type Answer = Result<T, Failure>;

    fn can_run(&self) -> bool {
        true
    }

    async fn run(&mut self, mut tx: Tx<Db>, options: &CommandOptions) -> Handled<Db, Self::Answer> {
        let ended = (self.0)(&mut tx).await;
        Handled {
            tx: Some(tx),
            ended: judge::<Db, T>(ended, options),
        }
    }
}

/// A handler that is there until it has run.
struct Once<F>(Option<F>);

impl<Db, T, F> Handler<Db> for Once<F>
where
    Db: Database,
    T: Serialize + Send,
    for<'t> F: AsyncFnOnce(&'t mut Tx<Db>) -> Result<T, Failure>
        + AsyncOnce<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
        + Send,
{
    type Answer = Result<T, Failure>;

    fn can_run(&self) -> bool {
        self.0.is_some()
    }

    async fn run(&mut self, mut tx: Tx<Db>, options: &CommandOptions) -> Handled<Db, Self::Answer> {
        let Some(handler) = self.0.take() else {
            unreachable!("the corridor asks can_run before it runs a handler again")
        };
        let ended = handler(&mut tx).await;
        Handled {
            tx: Some(tx),
            ended: judge::<Db, T>(ended, options),
        }
    }
}

/// A handler without a key: committed on `Ok`, rolled back on `Err`, nothing stored.
pub(crate) struct Unkeyed<F>(pub(crate) Option<F>);

impl<Db, T, F> Handler<Db> for Unkeyed<F>
where
    Db: Database,
    T: Send,
    for<'t> F: AsyncFnOnce(&'t mut Tx<Db>) -> Result<T, Failure>
        + AsyncOnce<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
        + Send,
{
    type Answer = Result<T, Failure>;

    fn can_run(&self) -> bool {
        self.0.is_some()
    }

    async fn run(&mut self, mut tx: Tx<Db>, _: &CommandOptions) -> Handled<Db, Self::Answer> {
        let Some(handler) = self.0.take() else {
            unreachable!("a transaction without a key is run once")
        };
        let ended = handler(&mut tx).await;
        let verdict = if ended.is_ok() {
            Verdict::Commit(Outcome::empty())
        } else {
            Verdict::Discard
        };
        Handled {
            tx: Some(tx),
            ended: Ok((verdict, ended)),
        }
    }
}

/// Decides what becomes of a typed answer.
fn judge<Db: Database, T: Serialize>(
    ended: Result<T, Failure>,
    options: &CommandOptions,
) -> Result<(Verdict, Result<T, Failure>)> {
    let verdict = match &ended {
        Ok(value) => Verdict::Commit(value_outcome(value, options.answer_limit)?),
        Err(failure) => match failure.kind() {
            FailureKind::Definitive(class) if options.store_failures.keeps(class) => {
                let stored = StoredFailure::new(class, failure);
                Verdict::Keep(json_outcome(KeyState::Failed, 422, &stored, options.answer_limit)?)
            }
            FailureKind::Transient => match trouble_of::<Db>(failure) {
                Some(error) => return Err(error),
                None => Verdict::Discard,
            },
            FailureKind::Definitive(_) | FailureKind::Snooze | FailureKind::Cancelled | FailureKind::Unknown => {
                Verdict::Discard
            }
        },
    };
    Ok((verdict, ended))
}

pub(crate) fn value_outcome<T: Serialize>(value: &T, answer_limit: usize) -> Result<Outcome> {
    json_outcome(KeyState::Completed, 200, value, answer_limit)
}

fn json_outcome(state: KeyState, status: u16, answer: &impl Serialize, answer_limit: usize) -> Result<Outcome> {
    let body = serde_json::to_vec(answer).map_err(|error| {
        Error::new(Code::AnswerNotReplayable, "the answer cannot be written as JSON").with_source(error)
    })?;
    if body.len() > answer_limit {
        return Err(Error::new(
            Code::AnswerTooLarge,
            format!("the answer has {} bytes; at most {answer_limit} are stored", body.len()),
        ));
    }
    Ok(Outcome {
        state,
        status,
        headers: Vec::new(),
        body: body.into(),
    })
}

fn reply<T: DeserializeOwned>(executed: Executed<Result<T, Failure>>) -> Result<Reply<T>> {
    match executed {
        Executed::Committed(ended) | Executed::Failed(ended) => match ended {
            Ok(value) => Ok(Reply { value, replayed: false }),
            Err(failure) => Err(Error::failed(failure, false)),
        },
        Executed::Replayed(outcome) => read_outcome(&outcome).map(|value| Reply { value, replayed: true }),
    }
}

/// Turns stored bytes back into the caller's type, which may have changed since.
pub(crate) fn read_outcome<T: DeserializeOwned>(outcome: &Outcome) -> Result<T> {
    let changed = |error| {
        Error::new(
            Code::AnswerChanged,
            "the stored answer does not decode into the type that is asked for",
        )
        .with_source(error)
    };
    match outcome.state {
        KeyState::Completed => serde_json::from_slice(&outcome.body).map_err(changed),
        KeyState::Failed => {
            let stored: StoredFailure = serde_json::from_slice(&outcome.body).map_err(changed)?;
            Err(Error::failed(stored.into_failure(), true))
        }
    }
}
