//! Other processes: this program once more, whose memory is then that of what it does and nothing else, and those of other projects.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdout, Command, Stdio};
use std::{env, fs, process, thread};

use crate::error::{Context, Result};

/// A process that was started by us, and ends with us.
pub(crate) struct Child {
    process: process::Child,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts this program, with a variable that says what it has to do.
    pub(crate) async fn start(variable: &'static str, value: String) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.env(variable, value);
        Self::run(command).await
    }

    /// Starts a program.
    pub(crate) async fn run(mut command: Command) -> Result<Self> {
        let starting = tokio::task::spawn_blocking(move || {
            let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let output = process.stdout.take().ok_or("it has no output")?;
            Ok(Self {
                process,
                output: BufReader::new(output),
            })
        });
        let started: Result<Self> = starting.await?;
        started.context("starting a process")
    }

    /// The next line that it says.
    pub(crate) async fn says(mut self) -> Result<(Self, String)> {
        let listening = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            let read = self.output.read_line(&mut line);
            (self, read.map(|_| line))
        });
        let (child, line) = listening.await?;
        Ok((child, line.context("listening to a process")?))
    }

    /// An empty line, for one who waits for it.
    pub(crate) fn nudge(&mut self) -> Result<()> {
        let input = self.process.stdin.as_mut().ok_or("it has no input")?;
        writeln!(input).context("nudging a process")?;
        input.flush().context("nudging a process")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The memory it has, in bytes; `None` where nobody says.
    pub(crate) fn memory(&self) -> Option<f64> {
        self.status("VmRSS:")
    }

    /// The most it has had.
    pub(crate) fn memory_peak(&self) -> Option<f64> {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024.0)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has nothing to lose, and may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ends this process when its input ends: with whoever started it, however that came about.
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        process::exit(0);
    });
}
