//! The binary, run once, and what it said.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// What a call came to.
pub(crate) struct Said {
    pub(crate) exit: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Fails unless the call ended well, and hands out what it printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.exit, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// Fails unless the call ended so, with this cause and this help.
    #[track_caller]
    pub(crate) fn refused(&self, exit: i32, cause: &str, help: &str) {
        let (error, rest) = self.err.split_once("help: ").unwrap_or((&self.err, ""));
        assert_eq!(self.exit, exit, "{}{}", self.out, self.err);
        assert!(error.contains(cause), "{cause:?} is not in {error:?}");
        assert!(rest.contains(help), "{help:?} is not in {rest:?}");
    }
}

/// A call of `steadfast`, with an environment of its own.
pub(crate) struct Call {
    command: Command,
    input: String,
}

impl Call {
    pub(crate) fn new(line: &str) -> Self {
        Self::of(line.split_whitespace())
    }

    pub(crate) fn of<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command
            .args(arguments)
            .env_clear()
            .env("USER", "ops")
            // Nobody has a steadfast.toml here.
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self {
            command,
            input: String::new(),
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    pub(crate) fn input(mut self, input: &str) -> Self {
        self.input = input.to_owned();
        self
    }

    /// The same call with a terminal on all three sides; what it says is `out`.
    pub(crate) fn on_a_terminal(self) -> Self {
        let call = self.command.as_std();
        let words: Vec<_> = [call.get_program()].into_iter().chain(call.get_args()).collect();
        let line = words
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect::<Vec<_>>()
            .join(" ");
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_clear();
        for (name, value) in call.get_envs() {
            command.env(name, value.unwrap());
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self {
            command,
            input: self.input,
        }
    }

    /// Runs until what it has printed is enough, and hands that out. The call ends with it.
    pub(crate) async fn until(mut self, is_enough: impl Fn(&str) -> bool) -> String {
        let mut child = self.command.spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut said = Vec::new();
        while !is_enough(&String::from_utf8_lossy(&said)) {
            assert_ne!(out.read_buf(&mut said).await.unwrap(), 0, "it ended too soon");
        }
        String::from_utf8(said).unwrap()
    }

    pub(crate) async fn run(mut self) -> Said {
        let mut child = self.command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Who does not want it may have closed it.
        let _ = stdin.write_all(self.input.as_bytes()).await;
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        Said {
            exit: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
