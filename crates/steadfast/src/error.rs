//! What the toolkit reports: one opaque error with a stable code.
//!
//! A message says what happened to which thing, the rule, and what to do. Errors of the database become one
//! of our codes inside `store/`, nowhere else; their text is kept as the source for logs and never
//! shown to a caller. What user code returns is a [`Failure`].

use std::fmt;
use std::time::Duration;

use crate::failure::Failure;

/// The result of everything the toolkit does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the toolkit could not do what was asked.
///
/// ```
/// # use steadfast::{Code, Error};
/// fn tell(error: &Error) {
///     match error.code() {
///         Code::InFlight => println!("the same command is still running"),
///         code if error.is_transient() => println!("{code}: try again in {:?}", error.retry_after()),
///         code => println!("{code}: {error}"),
///     }
/// }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    code: Code,
    message: String,
    source: Option<BoxError>,
    remedy: Option<&'static str>,
    failure: Option<Failure>,
    replayed: bool,
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            source: None,
            remedy: None,
            failure: None,
            replayed: false,
        }))
    }

    pub(crate) fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    pub(crate) fn with_remedy(mut self, remedy: Option<&'static str>) -> Self {
        self.0.remedy = remedy;
        self
    }

    /// The handler said no: the caller gets its failure back, and whether it is a stored one.
    pub(crate) fn failed(failure: Failure, replayed: bool) -> Self {
        let mut error = Self::new(Code::HandlerFailed, failure.to_string());
        error.0.failure = Some(failure);
        error.0.replayed = replayed;
        error
    }

    /// The handler's failure, if that is what it is.
    pub(crate) fn into_failure(self) -> Result<Failure, Self> {
        let Self(mut inner) = self;
        inner.failure.take().ok_or(Self(inner))
    }

    /// What went wrong in a transaction of our own, which wraps it as it wraps what handlers return.
    pub(crate) fn unwrapped(mut self) -> Self {
        let inner = self
            .0
            .failure
            .take_if(|failure| failure.source().is_some_and(|source| source.is::<Self>()));
        inner.and_then(Failure::into_error).unwrap_or(self)
    }

    /// The stable code, for programs and for `/problems/<code>`.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What happened to which thing: a message says it first, and then, after a `;`, what to do.
    pub fn what(&self) -> &str {
        self.0
            .message
            .split_once("; ")
            .map_or(&self.0.message, |(what, _)| what)
    }

    /// What to do about it: what the message says, or else what the code says.
    pub fn help(&self) -> &str {
        let said = self.0.message.split_once("; ").map(|(_, help)| help);
        said.unwrap_or(self.0.code.explanation())
    }

    /// What whoever looks after the database can do about it; [`help`](Self::help) speaks to whoever sent the command.
    pub fn remedy(&self) -> &str {
        self.0.remedy.or(remedy_of(self.0.code)).unwrap_or(self.help())
    }

    /// The innermost cause in the words of the database or the system: for operators and logs, never for callers.
    pub fn cause(&self) -> Option<String> {
        let mut cause = std::error::Error::source(self)?;
        loop {
            // The driver puts its own words around those of the database.
            if let Some(sqlx::Error::Database(error)) = cause.downcast_ref() {
                return Some(error.message().to_owned());
            }
            match cause.source() {
                Some(source) => cause = source,
                None => return Some(cause.to_string()),
            }
        }
    }

    /// What the handler returned, when the code is [`Code::HandlerFailed`].
    pub fn failure(&self) -> Option<&Failure> {
        self.0.failure.as_ref()
    }

    /// Whether this is the stored end of an earlier execution.
    pub fn is_replayed(&self) -> bool {
        self.0.replayed
    }

    /// Whether the same call may succeed later, unchanged.
    pub fn is_transient(&self) -> bool {
        match &self.0.failure {
            Some(failure) => failure.is_transient(),
            None => self.retry_after().is_some(),
        }
    }

    /// When to try again, for what may succeed later.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.0.code {
            Code::HandlerFailed => self.failure()?.retry_after(),
            Code::InFlight
            | Code::Unreachable
            | Code::ConnectionLost
            | Code::PoolExhausted
            | Code::Locked
            | Code::Conflict => Some(Duration::from_secs(1)),
            Code::CommitUnknown | Code::TimeLimit | Code::ShuttingDown => Some(Duration::from_secs(2)),
            Code::ReadOnly | Code::Full | Code::RecordTooNew | Code::AnswerLocked | Code::QuotaExceeded => {
                Some(Duration::from_secs(10))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    /// As `main` prints it: `error[SF301]: …`, then the chain of causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.0.code, self.0.message)?;
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            write!(f, "\n  caused by: {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.failure {
            Some(failure) => failure.source().map(|source| source as _),
            None => self.0.source.as_ref().map(|source| &**source as _),
        }
    }
}

/// What an operator can do, where the explanation of the code speaks to the sender of a request.
fn remedy_of(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::Unreachable | Code::ConnectionLost => {
            "look whether the server runs, and whether the database URL is right: `steadfast config` shows where it came from"
        }
        Code::PoolExhausted => "look who holds the connections of the server, or allow it more of them",
        Code::Locked => "another process is writing; try again",
        Code::ReadOnly => "use the primary, or a role whose default_transaction_read_only is off",
        Code::NotPermitted => {
            "use a role that may do this; `steadfast doctor` names the rights it lacks, and docs/guide/tables.md has the grants"
        }
        Code::Database => "the cause is the database's own word; its log may say more",
        Code::AnswerLocked => "the answer is encrypted, and only a service that has the key can read it",
        _ => return None,
    })
}

macro_rules! codes {
    ($($name:ident $code:literal $title:literal, $doc:literal;)*) => {
        /// A stable code for each way things can go wrong; never reused, never renumbered.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = concat!("`", $code, "`: ", $doc)] $name,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// The code as it is written in problems, logs and documents.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code),* }
            }

            /// One line that is the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title),* }
            }

            /// What the rule is and what to do about it.
            pub fn explanation(self) -> &'static str {
                match self { $(Code::$name => $doc),* }
            }
        }
    };
}

codes! {
    NoTransaction "SF020" "the handler runs outside the idempotent layer",
        "`CmdTx` only exists under `sf.idempotent()`. Put `.route_layer(sf.idempotent())` on the route.";
    TransactionTaken "SF021" "the transaction was asked for twice",
        "One request has one transaction, and one `CmdTx`. Pass `&mut tx` on instead of extracting it again.";
    TransactionEscaped "SF022" "the handler did not give its transaction back",
        "`CmdTx` must be dropped when the handler returns. Do not move it into a spawned task or a response body; nothing was committed.";
    OwnerMissing "SF023" "the call carries no owner",
        "Keys are kept per user or tenant. Insert an `Owner` as a request extension in your authentication, before the idempotent layer, or choose `Scope::Global`.";
    NotInTransaction "SF024" "the connection is not in a transaction",
        "`sf.on(..)` writes rows that must commit with yours. Pass a connection with an open sqlx transaction; if you opened it by a raw BEGIN, add `.assume_transaction()`.";
    OperationUnnamed "SF025" "the operation has no name",
        "Keys belong to an operation with a stable name. Mount the layer on a route of an axum `Router`, or give it one by `.operation(\"orders.place\")`.";
    TransactionBroken "SF026" "the handler left its transaction broken",
        "A statement failed and the handler went on, or it ended the transaction itself. Return the error of a failed statement, or try it inside `tx.savepoint(..)`; nothing was committed and the key is free.";
    AnswerNotReplayable "SF027" "the answer cannot be stored",
        "A streamed or upgraded response cannot be replayed byte for byte. Return a complete body, and put compression outside the idempotent layer; nothing was committed.";
    AnswerTooLarge "SF028" "the answer is too large to be stored",
        "Answers up to 1 MiB are stored. Return a reference to the thing instead of the thing, or raise `.answer_limit(..)`; nothing was committed.";
    HandlerPanicked "SF029" "the handler panicked",
        "Everything was rolled back and the key is free. The panic message is in the server's log.";
    CommitRefused "SF030" "the database refused to commit",
        "A deferred constraint was violated at COMMIT. Everything was rolled back and the key is free.";
    NameInvalid "SF031" "a name is not usable",
        "Operations, tenants and users have 1 to 255 bytes and no control characters.";
    EventInvalid "SF032" "the event cannot be published",
        "An event has a type of lower-case words between dots, at most 256 KiB as JSON and an ordering key of at most 255 bytes. The message says which rule it breaks; nothing was committed.";
    LeaseLost "SF033" "the lease was lost",
        "The work took longer than its lease was renewed for, and another process has taken it over. What this one did in its transaction was rolled back.";
    HandlerFailed "SF040" "the handler refused the command",
        "The handler returned a failure; its code and message say why.";
    KeyMissing "SF100" "the idempotency key is missing",
        "Send an `Idempotency-Key` header, one fresh value for each logical operation, and the same value with every retry of it.";
    KeyInvalid "SF101" "the idempotency key is malformed",
        "Send exactly one `Idempotency-Key` header with 1 to 255 visible ASCII characters, bare or as a quoted string, without parameters.";
    InputInvalid "SF102" "the input does not fit the operation",
        "A part of the path, the query string or the body does not have the type that the operation takes. The message names it and says why; send it as the operation describes it.";
    InFlight "SF103" "a request with this key is still running",
        "Wait as long as `Retry-After` says and send the same request again: it will be answered with the stored answer.";
    Mismatch "SF104" "the key was used for a different request",
        "A key stands for one request. Send the request that was sent first, or choose a new key.";
    BodyTooLarge "SF105" "the request body is too large",
        "The body is read completely before the command starts. Send less, or raise `.body_limit(..)`.";
    BodyRefused "SF106" "the request body is not acceptable JSON",
        "The body says it is JSON: it must be UTF-8, complete, with each member once per object, and nested at most 128 deep.";
    AnswerChanged "SF107" "the stored answer no longer has this type",
        "The stored bytes do not decode into the type this version of the program asks for. Read them with the older type, or use a new operation name for the new answer.";
    QuotaExceeded "SF108" "the owner keeps too many keys",
        "Each owner may keep a limited number of keys and bytes of answers. Send fewer commands; keys make room when their retention is over.";
    Unreachable "SF110" "the database cannot be reached",
        "Nothing was executed. Send the same request again later.";
    ConnectionLost "SF109" "the connection to the database was lost",
        "Nothing was committed. A handler that can be run again was, a few times; send the same request again.";
    PoolExhausted "SF111" "all database connections are busy",
        "Nothing was executed. Send the same request again later.";
    Locked "SF112" "another process holds the write lock of the database",
        "Nothing was executed. Send the same request again later.";
    ReadOnly "SF113" "the database is read-only",
        "The node is a standby, or the file is not writable. Nothing was changed; send the same request again later.";
    Full "SF114" "the database has no space left",
        "Nothing was changed. Free space; no restart is needed.";
    TimeLimit "SF115" "the handler took too long",
        "It was rolled back when its time limit passed, and the key is free.";
    CommitUnknown "SF116" "the outcome of the commit is not known yet",
        "The connection was lost while committing and the database cannot be asked. Send the same request again: it will be executed or replayed, never both.";
    Conflict "SF117" "the command lost against concurrent ones",
        "The database ended it to resolve a deadlock or a conflict, too often in a row, or commands that were committed together with it failed. Everything was rolled back and the key is free.";
    RecordTooNew "SF118" "the stored answer was written by a newer version",
        "This process cannot compare or read it. It is safe; a node of the newer version will replay it.";
    ShuttingDown "SF119" "the process is shutting down",
        "Send the same request again: another node, or this one after its restart, executes or replays it.";
    Database "SF120" "the database reported an error",
        "A statement of the toolkit failed for a reason of its own; the source says which. Everything was rolled back.";
    AnswerLocked "SF121" "the stored answer is encrypted with a key this process does not have",
        "The command has ended before and is not run again. Give this process the key as well, by `Builder::encryption` or `.rotated_from(..)` of the feature `encryption`; the log names its id. A node that has it answers.";
    AnswerTampered "SF122" "the stored answer was changed after it was encrypted",
        "It does not belong to this key, status and request, or its bytes are not those that were stored. It is not handed out, and the command is not run again; restore the row, or look at what happened and evict the key.";
    NotPermitted "SF123" "the database role may not do this",
        "The role of the connection lacks a right on our tables, or the right to create them. Give it what `docs/guide/grants.sql` lists, or use a role that has it; nothing was changed.";
    MediaTypeRefused "SF124" "the body is of a type that the operation does not take",
        "The `Content-Type` says what the body is, and the operation does not take that, or it is missing. The message names what it takes.";
    TablesMissing "SF301" "the tables are missing or of another version",
        "Run the migrations, or the version of the program that belongs to the tables.";
    OperationTaken "SF302" "two services have an operation of the same name",
        "Keys belong to an operation by its name, so one name means one thing on one database. Rename one of the two; the message says which.";
    ConfigurationInvalid "SF303" "the configuration is not usable",
        "The message names the setting, the rule and what to write instead.";
    TargetTaken "SF305" "two targets have the same name",
        "Reactions and sinks are targets of deliveries, which are stored under their name, so one name means one target. Rename one of the two; the message says which.";
    RetryInvalid "SF304" "the retry policy is not usable",
        "A policy is written `retries = 5, backoff = exponential(\"200ms\"), cap = \"10s\", jitter = full, max_age = \"1h\"`; each part may be left out. At most 1000 retries; delays are more than nothing and at most 365 days, and the cap is not below the first of them. The message says what to write instead.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_codes_share_a_number() {
        let mut codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Code::ALL.len());
    }

    #[test]
    fn a_message_says_what_happened_and_then_what_to_do() {
        let error = Error::new(Code::TablesMissing, "the tables are missing; run the migrations");
        assert_eq!(
            (error.what(), error.help()),
            ("the tables are missing", "run the migrations")
        );
        let error = Error::new(Code::Full, "storing a key: no space");
        assert_eq!(
            (error.what(), error.help()),
            ("storing a key: no space", Code::Full.explanation())
        );
    }

    #[test]
    fn an_error_of_ours_that_a_handler_passed_on_can_be_had_back() {
        let ours = || Error::new(Code::NotPermitted, "removing a key");
        assert_eq!(
            Error::failed(ours().into(), false).unwrapped().code(),
            Code::NotPermitted
        );
        assert_eq!(ours().unwrapped().code(), Code::NotPermitted);
        let theirs = Error::failed(Failure::transient("busy", "not now"), false).unwrapped();
        assert_eq!((theirs.code(), theirs.failure().is_some()), (Code::HandlerFailed, true));
    }

    #[test]
    fn the_sender_and_the_operator_are_told_different_things() {
        let error = Error::new(Code::Unreachable, "PostgreSQL does not accept connections");
        assert!(error.help().contains("Send the same request again"));
        assert!(error.remedy().contains("whether the server runs"));
        assert_eq!(error.with_remedy(Some("look at the file")).remedy(), "look at the file");
        let error = Error::new(Code::TablesMissing, "no tables; run the migrations");
        assert_eq!(error.remedy(), "run the migrations");
    }

    #[test]
    fn the_cause_is_told_once_and_without_the_words_around_it() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let lost = Error::new(Code::ConnectionLost, "asking").with_source(sqlx::Error::Io(refused()));
        let error = Error::new(Code::Unreachable, "no connections").with_source(lost);
        assert_eq!(error.cause(), Some(refused().to_string()));
        assert_eq!(Error::new(Code::Full, "full").cause(), None);
    }

    #[test]
    fn the_debug_form_is_fit_for_main() {
        let error = Error::new(Code::TablesMissing, "no tables").with_source("relation does not exist");
        assert_eq!(
            format!("{error:?}"),
            "error[SF301]: no tables\n  caused by: relation does not exist"
        );
    }
}
