//! How a call can end, and how trouble is told: `error[SF301]: what happened to which thing`, its causes, and
//! `help: what to do`.

use std::error::Error as _;
use std::process::ExitCode;

use steadfast::Code;

pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// What the shell is told. The numbers are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Conflict = 4,
    Unhealthy = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a call did not do what was asked.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) exit: Exit,
    code: Option<Code>,
    what: String,
    causes: Vec<String>,
    help: String,
}

impl CliError {
    /// Trouble of the command line's own.
    pub(crate) fn new(exit: Exit, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            exit,
            code: None,
            what: what.into(),
            causes: Vec::new(),
            help: help.into(),
        }
    }

    pub(crate) fn because(mut self, cause: &dyn std::fmt::Display) -> Self {
        self.causes.push(cause.to_string());
        self
    }

    pub(crate) fn code(&self) -> Option<Code> {
        self.code
    }

    /// What happened to which thing.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it.
    pub(crate) fn help(&self) -> &str {
        &self.help
    }

    pub(crate) fn print(&self) {
        let code = self.code.map_or_else(String::new, |code| format!("[{code}]"));
        eprintln!("error{code}: {}", self.what);
        for cause in &self.causes {
            eprintln!("  caused by: {cause}");
        }
        eprintln!("help: {}", self.help);
    }
}

impl From<steadfast::Error> for CliError {
    fn from(error: steadfast::Error) -> Self {
        let mut causes = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        Self {
            exit: exit_of(error.code()),
            code: Some(error.code()),
            what: error.what().to_owned(),
            causes,
            help: help_for(&error),
        }
    }
}

fn exit_of(code: Code) -> Exit {
    match code {
        Code::ConfigurationInvalid | Code::NameInvalid | Code::BodyRefused => Exit::Usage,
        Code::InFlight | Code::Conflict | Code::Locked => Exit::Conflict,
        _ => Exit::Failed,
    }
}

/// The library's advice, but where it speaks to the sender of a request and not to the person at a terminal.
fn help_for(error: &steadfast::Error) -> String {
    match error.code() {
        Code::Unreachable | Code::ConnectionLost | Code::PoolExhausted => {
            "look whether the server runs, and whether the database URL is right: `steadfast config` shows where it came from"
        }
        Code::Locked => "another process is writing; try again",
        Code::ReadOnly => "use the primary, or a file you may write",
        Code::NotPermitted => {
            "use a role that may do this; `steadfast doctor` names the rights it lacks, and docs/guide/tables.md has the grants"
        }
        Code::Database => "the cause is the database's own word; `steadfast doctor` looks closer",
        Code::AnswerLocked => "the answer is encrypted, and only a service that has the key can read it",
        _ => error.help(),
    }
    .to_owned()
}
