//! What keeps a server from outliving the process that needed it.
//!
//! Between us and the server stands a small shell that waits for its standard input to end. We hold
//! the other end of that pipe and nobody else does, so it ends with us, however we end: done,
//! panicked, interrupted or killed with -9. The shell then stops the server and removes its home.
//! It has its own process group, so that ctrl-C in the terminal reaches us and not the one who
//! cleans up after us.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::account::Account;
use crate::error::{Context, Error, Result};
use crate::process;

/// How long a server may take to end, and its home to be removed. The script gives up asking after five seconds and kills it; a
/// home in which a thousand tests had a database each has some hundred thousand files, and on a busy disk they take longer.
pub(crate) const END_BOUND: Duration = Duration::from_secs(180);

/// The shell on the other end. It sees `$start`, `$stop` and `$remove`, and what [`Rope::set`]
/// adds.
///
/// A background command reads from /dev/null, so the pipe moves to descriptor 3, which only the
/// watcher keeps. The watcher asks more than once, because a server that is still starting may not
/// listen yet. The leash itself waits for the server: a server that ends on its own ends the leash,
/// and we can see it.
const SCRIPT: &str = r#"
    trap '' HUP INT
    exec 3<&0 </dev/null
    sh -c "$start" 3<&- &
    server=$!
    {
        read -r _ <&3
        for _ in 1 2 3 4 5; do eval "$stop" || break; sleep 1; done
        kill -KILL "$server"
    } 2>/dev/null &
    watcher=$!
    exec 3<&-
    wait "$server"
    ended=$?
    kill "$watcher"
    [ -z "$remove" ] || rm -rf -- "$remove"
    exit "$ended"
"#;

/// A leash in the making: what it starts and how.
pub(crate) struct Rope(Command);

impl Rope {
    /// `start` becomes the server, `stop` ends the process `$server`; both are shell.
    pub(crate) fn new(start: &str, stop: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT])
            .env("start", start)
            .env("stop", stop)
            .env("remove", "");
        command.current_dir("/").process_group(0);
        Self(command)
    }

    /// Adds a variable for the scripts.
    pub(crate) fn set(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// The directory to remove once the server has ended.
    pub(crate) fn removing(self, home: &Path) -> Self {
        self.set("remove", home)
    }

    /// Runs the server and the leash as another user.
    pub(crate) fn running_as(mut self, account: &Account) -> Self {
        account.dress(&mut self.0);
        self
    }

    /// Starts the server on a leash that ends with us.
    pub(crate) fn hold(self, log: &File) -> Result<Leash> {
        self.spawn(Stdio::piped(), log)
    }

    /// Starts the server on a leash that ends when a line is written to the fifo. Opened for
    /// reading and writing, a fifo never ends by itself, so this leash outlives us.
    pub(crate) fn tie(self, fifo: File, log: &File) -> Result<Leash> {
        self.spawn(Stdio::from(fifo), log)
    }

    fn spawn(mut self, stdin: Stdio, log: &File) -> Result<Leash> {
        let log_again = || log.try_clone().context("the log could not be opened twice");
        let command = self.0.stdin(stdin).stdout(log_again()?).stderr(log_again()?);
        Ok(Leash(command.spawn().context("sh could not be started")?))
    }
}

/// A server on its leash. Dropping it lets go, and the server ends soon; [`Leash::release`] also
/// waits.
pub(crate) struct Leash(Child);

impl Leash {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// How the server ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Lets go, and waits until the server is gone and its home is removed.
    pub(crate) fn release(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        if process::wait_until(END_BOUND, || self.ended().is_some()) {
            return Ok(());
        }
        let (pid, bound) = (self.pid(), END_BOUND.as_secs());
        Err(Error::new(format!(
            "a server has not ended within {bound} s; look at the process group {pid}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A server of a second's making: it stays until its process is ended.
    fn hold(name: &str, start: &str) -> (Leash, std::path::PathBuf) {
        let home = std::env::temp_dir().join(format!("steadfast-leash-{name}-{}", std::process::id()));
        fs::create_dir_all(&home).expect("a temporary directory");
        let log = File::create(home.join("log")).expect("a temporary file");
        let rope = Rope::new(start, "kill -TERM \"$server\"")
            .set("home", &home)
            .removing(&home);
        (rope.hold(&log).expect("a leash"), home)
    }

    #[test]
    fn a_released_server_is_gone_and_so_is_its_home() {
        let (leash, home) = hold("released", "exec sleep 600");
        leash.release().expect("the server ends");
        assert!(!home.exists());
    }

    #[test]
    fn a_server_that_ends_by_itself_is_seen() {
        let (mut leash, home) = hold("ended", "exit 3");
        assert!(process::wait_until(END_BOUND, || leash.ended().is_some()));
        assert_eq!(leash.ended().and_then(|status| status.code()), Some(3));
        assert!(!home.exists());
    }
}
