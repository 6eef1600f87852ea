//! How a call can end, and how trouble is told: `error[SF301]: what happened to which thing`, its causes, and
//! `help: what to do`.

use std::process::ExitCode;

use steadfast::Code;

use crate::secret::mask;
use crate::words::with_flags;

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

    /// The same, with flags where the library speaks of methods.
    pub(crate) fn with_flags(mut self) -> Self {
        self.what = with_flags(&self.what);
        self.help = with_flags(&self.help);
        self
    }

    pub(crate) fn code(&self) -> Option<Code> {
        self.code
    }

    /// What happened to which thing.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// The same in one line, with its code and its causes.
    pub(crate) fn line(&self) -> String {
        let code = self.code.map(|code| code.to_string());
        let words = code.iter().chain([&self.what]).chain(&self.causes);
        mask(&words.map(String::as_str).collect::<Vec<_>>().join(": "))
    }

    /// What to do about it.
    pub(crate) fn help(&self) -> &str {
        &self.help
    }

    pub(crate) fn print(&self) {
        let code = self.code.map_or_else(String::new, |code| format!("[{code}]"));
        let mut told = format!("error{code}: {}\n", self.what);
        for cause in &self.causes {
            told += &format!("  caused by: {cause}\n");
        }
        eprintln!("{}help: {}", mask(&told), self.help);
    }
}

impl From<steadfast::Error> for CliError {
    fn from(error: steadfast::Error) -> Self {
        Self {
            exit: exit_of(error.code()),
            code: Some(error.code()),
            what: error.what().to_owned(),
            causes: error.cause().into_iter().collect(),
            help: error.remedy().to_owned(),
        }
    }
}

fn exit_of(code: Code) -> Exit {
    match code {
        Code::ConfigurationInvalid | Code::NameInvalid | Code::BodyRefused | Code::InputInvalid => Exit::Usage,
        Code::InFlight | Code::Conflict | Code::Locked => Exit::Conflict,
        _ => Exit::Failed,
    }
}
