//! Other programs: run one, ask one within a bound, see whether one still lives.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};

/// How often a wait looks again. Short enough that nobody notices, long enough to cost nothing.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Runs a command on our terminal and turns a bad exit into an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = short_name(command);
    let status = command.status().context(format!("{name} could not be started"))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(format!("{name} ended with {status}")))
}

/// Runs a command that has said itself what is wrong, if something is.
pub(crate) fn run_to_its_end(command: &mut Command) -> Result<ExitCode> {
    let name = short_name(command);
    let status = command.status().context(format!("{name} could not be started"))?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the person has written after a word of our command line.
pub(crate) fn words_after(word: &str) -> impl Iterator<Item = OsString> {
    env::args_os().skip_while(move |other| other != word).skip(1)
}

/// What a person calls a command: `cargo clippy` rather than the path of cargo and all its flags.
fn short_name(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let words = [program].into_iter().chain(command.get_args().take(1));
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether a command succeeds within the bound. It runs silently, and is killed when the bound is
/// over: a Docker client without its daemon may otherwise wait for minutes.
pub(crate) fn succeeds_within(command: &mut Command, bound: Duration) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = silent.spawn() else {
        return false;
    };
    let ended = wait_until(bound, || !matches!(child.try_wait(), Ok(None)));
    if !ended {
        // A child that ended in this very moment cannot be killed, and need not be.
        let _ = child.kill();
    }
    child.wait().is_ok_and(|status| ended && status.success())
}

/// Whether a process with this id exists and is ours to see.
pub(crate) fn is_alive(pid: u32) -> bool {
    let mut probe = Command::new("sh");
    probe.args(["-c", "kill -0 \"$1\"", "sh"]).arg(pid.to_string());
    succeeds_within(&mut probe, Duration::from_secs(5))
}

/// Whether the user behind this process is root. The standard library has no `geteuid`; `id` is
/// POSIX.
pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Looks until the fact is there or the bound is over; says which.
pub(crate) fn wait_until(bound: Duration, mut fact: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if fact() {
            return true;
        }
        if start.elapsed() >= bound {
            return false;
        }
        sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended_at_its_bound() {
        let start = Instant::now();
        assert!(!succeeds_within(
            Command::new("sleep").arg("60"),
            Duration::from_millis(100)
        ));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_command_is_called_by_its_first_words() {
        let mut cargo = Command::new("/opt/rust/bin/cargo");
        assert_eq!(short_name(cargo.args(["clippy", "--quiet"])), "cargo clippy");
    }

    #[test]
    fn our_own_process_is_alive() {
        assert!(is_alive(std::process::id()));
    }
}
