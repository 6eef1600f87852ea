//! What kind of failure an error is: one table, from which the documentation and the guide are made as well.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::time::Duration;

use http::StatusCode;

use super::{Failure, FailureClass, FailureKind};
use crate::breaker::Open;
use crate::error::{BoxError, Code, Error};
use crate::store;

/// One line of [`CLASSIFICATION`].
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Rule {
    /// What is found.
    pub what: &'static str,
    /// What it is then.
    pub kind: FailureKind,
    /// Why.
    pub why: &'static str,
    applies: fn(Cause) -> bool,
}

/// Something that may say why: an error of the chain of sources, or the status of an answer.
#[derive(Clone, Copy)]
enum Cause<'e> {
    Error(&'e (dyn StdError + 'static)),
    Status(StatusCode),
}

macro_rules! rules {
    ($($what:literal => $kind:ident $(($class:ident))?, $why:literal, $applies:expr;)*) => {
        /// How `?` finds the kind of a failure: each error of the chain of sources is held against these rules from
        /// top to bottom, beginning with the outermost, and the first rule that fits decides.
        ///
        /// | found | kind | because |
        /// |---|---|---|
        $(#[doc = concat!("| ", $what, " | ", stringify!($kind) $(, " (", stringify!($class), ")")?, " | ", $why, " |")])*
        pub const CLASSIFICATION: &[Rule] = &[$(
            Rule { what: $what, kind: FailureKind::$kind $((FailureClass::$class))?, why: $why, applies: $applies },
        )*];
    };
}

rules! {
    "sqlx: no row" => Definitive(NotFound), "asking again finds no row either",
        |cause| cause.sql().is_some_and(store::is_missing_row);
    "sqlx: unique, foreign key, check, not null or exclusion constraint" => Definitive(BusinessRule),
        "the same rows violate it again; where the value was chosen by looking, say `.transient()`",
        |cause| cause.sql().is_some_and(store::is_constraint);
    "sqlx: deadlock, serialization failure, lock, full pool, lost connection, anything else" => Transient,
        "the transaction is rolled back; nothing happened",
        |cause| cause.sql().is_some();
    "`steadfast::Error`: SF116" => Unknown, "COMMIT was sent, and its reply was lost",
        |cause| cause.ours() == Some(Code::CommitUnknown);
    "`steadfast::Error`: SF100 to SF102, SF104 to SF106, SF124" => Definitive(Validation), "the call itself is wrong",
        |cause| cause.ours().is_some_and(is_callers);
    "`steadfast::Error`: any other" => Transient, "nothing was committed, and the way may be free later",
        |cause| cause.ours().is_some();
    "an open breaker" => Snooze, "the call was not made, and no attempt is spent",
        |cause| cause.breaker().is_some();
    "HTTP 408, 423, 425, 429, 502, 503, 504" => Transient, "the other side asks to be asked again",
        |cause| cause.has_status(|status| matches!(status, 408 | 423 | 425 | 429 | 502 | 503 | 504));
    "HTTP 400, 413, 415, 422" => Definitive(Validation), "the same request is refused again",
        |cause| cause.has_status(|status| matches!(status, 400 | 413 | 415 | 422));
    "HTTP 401, 403" => Definitive(Forbidden), "the same caller is refused again",
        |cause| cause.has_status(|status| matches!(status, 401 | 403));
    "HTTP 404, 410" => Definitive(NotFound), "it is not there; a consumer that expects it soon says `.transient()`",
        |cause| cause.has_status(|status| matches!(status, 404 | 410));
    "HTTP 409 and any other 4xx" => Definitive(BusinessRule), "the other side has understood and will not",
        |cause| cause.has_status(|status| (400..500).contains(&status));
    "HTTP 500 and any other 5xx" => Unknown, "it broke in the middle, and may have done it before",
        |cause| cause.has_status(|status| status >= 500);
    "reqwest: the request cannot be built, or is redirected for ever" => Definitive(Validation),
        "nothing in it will be different", |cause| cause.is_impossible();
    "reqwest: no connection" => Transient, "nothing was sent", |cause| cause.was_not_sent();
    "reqwest: anything else, a time limit too" => Unknown, "it was sent, and the reply is lost or makes no sense",
        |cause| cause.has_lost_its_reply();
    "tokio: a time limit has passed" => Unknown, "what was given up may have been done",
        |cause| cause.error().is_some_and(|error| error.is::<tokio::time::error::Elapsed>());
    "io: reset, aborted, broken pipe, unexpected end, timed out" => Unknown, "it may be the reply that was lost",
        |cause| cause.io().is_some_and(is_lost);
    "io: any other (refused, unreachable, not found, ..)" => Transient, "nothing was sent",
        |cause| cause.io().is_some();
    "anything else" => Transient, "to try once too often does less harm than to give up too early", |_| false;
}

/// The failure that an error is, which becomes its source.
pub(super) fn classify(error: BoxError) -> Failure {
    let kind = chain(&*error).find_map(|error| kind_of(Cause::Error(error)));
    let open = chain(&*error).find_map(|error| Cause::Error(error).breaker());
    let mut failure = Failure::of(kind.unwrap_or(FailureKind::Transient));
    if let (Some(FailureKind::Snooze), Some(open)) = (kind, open) {
        failure = failure.saying("breaker_open", open.to_string());
    }
    failure.retry_after = chain(&*error).find_map(retry_after);
    failure.with_source(error)
}

/// When an error of ours says to come back.
fn retry_after(error: &(dyn StdError + 'static)) -> Option<Duration> {
    match error.downcast_ref::<Error>() {
        Some(error) => error.retry_after(),
        None => Cause::Error(error).breaker()?.retry_in(),
    }
}

/// The error and its sources, from the outermost.
fn chain<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// What an answer with this status is; `None` below 400.
pub(crate) fn kind_of_status(status: StatusCode) -> Option<FailureKind> {
    kind_of(Cause::Status(status))
}

fn kind_of(cause: Cause) -> Option<FailureKind> {
    let rule = CLASSIFICATION.iter().find(|rule| (rule.applies)(cause))?;
    Some(rule.kind)
}

/// Codes that say that the caller has to call differently.
fn is_callers(code: Code) -> bool {
    matches!(
        code,
        Code::KeyMissing
            | Code::KeyInvalid
            | Code::InputInvalid
            | Code::Mismatch
            | Code::BodyTooLarge
            | Code::BodyRefused
            | Code::MediaTypeRefused
    )
}

fn is_lost(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::TimedOut
    )
}

impl<'e> Cause<'e> {
    fn error(self) -> Option<&'e (dyn StdError + 'static)> {
        match self {
            Self::Error(error) => Some(error),
            Self::Status(_) => None,
        }
    }

    fn sql(self) -> Option<&'e sqlx::Error> {
        self.error()?.downcast_ref()
    }

    fn ours(self) -> Option<Code> {
        self.error()?.downcast_ref().map(Error::code)
    }

    fn breaker(self) -> Option<&'e Open> {
        self.error()?.downcast_ref()
    }

    fn io(self) -> Option<ErrorKind> {
        self.error()?.downcast_ref().map(std::io::Error::kind)
    }

    fn has_status(self, is: fn(u16) -> bool) -> bool {
        self.status().is_some_and(|status| is(status.as_u16()))
    }
}

#[cfg(feature = "reqwest")]
impl<'e> Cause<'e> {
    fn status(self) -> Option<StatusCode> {
        match self {
            Self::Status(status) => Some(status),
            Self::Error(_) => self.reqwest()?.status(),
        }
    }

    fn reqwest(self) -> Option<&'e reqwest::Error> {
        self.error()?.downcast_ref()
    }

    fn is_impossible(self) -> bool {
        self.reqwest()
            .is_some_and(|error| error.is_builder() || error.is_redirect())
    }

    fn was_not_sent(self) -> bool {
        self.reqwest().is_some_and(reqwest::Error::is_connect)
    }

    fn has_lost_its_reply(self) -> bool {
        self.reqwest().is_some()
    }
}

#[cfg(not(feature = "reqwest"))]
impl Cause<'_> {
    fn status(self) -> Option<StatusCode> {
        match self {
            Self::Status(status) => Some(status),
            Self::Error(_) => None,
        }
    }

    fn is_impossible(self) -> bool {
        false
    }

    fn was_not_sent(self) -> bool {
        false
    }

    fn has_lost_its_reply(self) -> bool {
        false
    }
}

#[cfg(all(test, feature = "sqlite", feature = "reqwest"))]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt;
    use std::io;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::FailureClass::{BusinessRule, Forbidden, NotFound, Validation};
    use super::FailureKind::{Definitive, Transient, Unknown};
    use super::*;

    /// An error of somebody else's, with another one behind it.
    #[derive(Debug)]
    struct Theirs(Option<BoxError>);

    impl fmt::Display for Theirs {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("something of theirs")
        }
    }

    impl StdError for Theirs {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&**self.0.as_ref()?)
        }
    }

    /// The errors of a statement that violates each kind of constraint.
    async fn constraints() -> Vec<sqlx::Error> {
        let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
        let pool = pool.connect("sqlite::memory:").await.expect("a database in memory");
        let tables = "CREATE TABLE parents (id INTEGER PRIMARY KEY);
            CREATE TABLE children (id INTEGER NOT NULL UNIQUE CHECK (id > 0), parent INTEGER REFERENCES parents (id));
            INSERT INTO children VALUES (1, NULL)";
        sqlx::raw_sql(tables).execute(&pool).await.expect("tables");
        let mut errors = Vec::new();
        for row in ["(1, NULL)", "(NULL, NULL)", "(-1, NULL)", "(2, 42)"] {
            let insert = sqlx::AssertSqlSafe(format!("INSERT INTO children VALUES {row}"));
            let inserted = sqlx::raw_sql(insert).execute(&pool).await;
            errors.push(inserted.expect_err("a constraint is violated"));
        }
        errors
    }

    /// What a client sees of a server that reads the request, answers with this, and hangs up.
    async fn answered(answer: &'static str) -> reqwest::Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a client");
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        });
        let ended = reqwest::get(url).await.and_then(reqwest::Response::error_for_status);
        ended.expect_err("no success")
    }

    async fn refused() -> reqwest::Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        drop(listener);
        reqwest::get(url).await.expect_err("nobody listens")
    }

    fn open_breaker() -> Open {
        let breaker = crate::breaker::Breaker::named("mail").build().expect("a breaker");
        breaker.force_open();
        breaker.permit().map(|_| ()).expect_err("it is open")
    }

    async fn elapsed() -> tokio::time::error::Elapsed {
        let never = std::future::pending::<()>();
        tokio::time::timeout(Duration::ZERO, never).await.expect_err("in time")
    }

    async fn examples() -> Vec<(BoxError, FailureKind)> {
        let mut examples: Vec<(BoxError, FailureKind)> = vec![
            (sqlx::Error::RowNotFound.into(), Definitive(NotFound)),
            (sqlx::Error::PoolTimedOut.into(), Transient),
            (sqlx::Error::Io(io::ErrorKind::ConnectionReset.into()).into(), Transient),
            (sqlx::Error::Protocol("?".into()).into(), Transient),
            (sqlx::Error::ColumnNotFound("?".into()).into(), Transient),
            (Error::new(Code::CommitUnknown, "?").into(), Unknown),
            (Error::new(Code::Conflict, "?").into(), Transient),
            (Error::new(Code::TablesMissing, "?").into(), Transient),
            (
                answered("HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n").await.into(),
                Transient,
            ),
            (
                answered("HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n").await.into(),
                Definitive(NotFound),
            ),
            (
                answered("HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n").await.into(),
                Unknown,
            ),
            (answered("").await.into(), Unknown),
            (answered("HTTP/1.1 200 ").await.into(), Unknown),
            (refused().await.into(), Transient),
            (
                reqwest::get("no address").await.expect_err("no address").into(),
                Definitive(Validation),
            ),
            (elapsed().await.into(), Unknown),
            (io::Error::from(io::ErrorKind::ConnectionRefused).into(), Transient),
            (io::Error::from(io::ErrorKind::NotFound).into(), Transient),
            (open_breaker().into(), FailureKind::Snooze),
            (Theirs(None).into(), Transient),
        ];
        for code in [
            Code::KeyMissing,
            Code::KeyInvalid,
            Code::InputInvalid,
            Code::Mismatch,
            Code::BodyTooLarge,
            Code::BodyRefused,
            Code::MediaTypeRefused,
        ] {
            examples.push((Error::new(code, "?").into(), Definitive(Validation)));
        }
        for lost in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::TimedOut,
        ] {
            examples.push((io::Error::from(lost).into(), Unknown));
        }
        for constraint in constraints().await {
            examples.push((constraint.into(), Definitive(BusinessRule)));
        }
        examples
    }

    #[tokio::test]
    async fn every_error_the_table_knows_is_found_wherever_it_is_in_the_chain() {
        for (error, kind) in examples().await {
            let text = format!("{error:?}");
            let wrapped = Theirs(Some(Theirs(Some(error)).into()));
            assert_eq!(Failure::from(wrapped).kind(), kind, "{text}");
        }
        for (error, kind) in examples().await {
            assert_eq!(classify(error).kind(), kind);
        }
    }

    #[test]
    fn every_status_has_the_kind_that_the_design_gives_it() {
        for (kind, statuses) in [
            (Transient, &[408, 423, 425, 429, 502, 503, 504][..]),
            (Definitive(Validation), &[400, 413, 415, 422]),
            (Definitive(Forbidden), &[401, 403]),
            (Definitive(NotFound), &[404, 410]),
            (Definitive(BusinessRule), &[402, 405, 409, 412, 418, 451]),
            (Unknown, &[500, 501, 505, 507, 520, 599]),
        ] {
            for &status in statuses {
                let status = StatusCode::from_u16(status).expect("a status");
                assert_eq!(kind_of_status(status), Some(kind), "{status}");
            }
        }
        for status in [200, 201, 204, 301, 304] {
            assert_eq!(kind_of_status(StatusCode::from_u16(status).expect("a status")), None);
        }
    }

    /// Every rule but the last, which is for what no rule knows.
    #[tokio::test]
    async fn every_rule_decides_something() {
        let rule_of = |cause| CLASSIFICATION.iter().position(|rule| (rule.applies)(cause));
        let examples = examples().await;
        let errors = examples.iter().filter_map(|(error, _)| rule_of(Cause::Error(&**error)));
        let statuses = (100..600).filter_map(|status| StatusCode::from_u16(status).ok());
        let statuses = statuses.filter_map(|status| rule_of(Cause::Status(status)));
        let used: BTreeSet<_> = errors.chain(statuses).collect();
        assert_eq!(used, (0..CLASSIFICATION.len() - 1).collect());
    }
}
