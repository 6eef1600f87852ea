//! `cargo xtask services`: servers that stay while a person works, for an editor or a single test.
//!
//! A state file says what is running. Each server hangs on a fifo instead of on us; a line in the
//! fifo tells its leash to stop it and to remove its data, so nothing is ever killed by a number
//! that may be stale.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::error::{Context, Error, Result};
use crate::python::{self, Python};
use crate::service::instance::{Instance, Stay};
use crate::service::leash::END_BOUND;
use crate::service::machine::Machine;
use crate::service::plan::{Plan, Source, decide};
use crate::service::{SERVICES, Service, address, home};
use crate::{process, table, workspace};

/// The name of a home that stays: no number, so no run takes it for a leftover of a process.
const HOME: &str = "up";

/// Servers that stay while you work
#[derive(clap::Subcommand)]
pub(crate) enum ServicesCommand {
    /// Start them and print their variables: eval "$(cargo xtask services up)"
    Up {
        /// Never install a package, even as root
        #[arg(long)]
        no_install: bool,
    },
    /// Stop them and remove their data
    Down,
    /// Say which are running, and where
    Status,
}

pub(crate) fn run(command: &ServicesCommand) -> Result<()> {
    match command {
        ServicesCommand::Up { no_install } => up(!no_install),
        ServicesCommand::Down => down(),
        ServicesCommand::Status => status(),
    }
}

/// Only the `export` lines go to standard output, so that a shell can evaluate them. The servers start
/// side by side, and one that cannot be had does not keep the others from running.
fn up(may_install: bool) -> Result<()> {
    let started: Vec<_> = SERVICES
        .iter()
        .map(|service| (*service, bring_up(service, may_install)))
        .collect();
    let mut missing = Vec::new();
    for (service, started) in started {
        match started.and_then(|started| started.wait_until_ready(service)) {
            Ok(record) => {
                eprintln!("{} is running on {}", service.name, record.address());
                println!("export {}={}", service.variable, service.url_at(record.port));
                if let (true, Some(home)) = (service.comes_back, &record.home) {
                    println!("export {}={}", service.home_variable(), home.display());
                }
            }
            Err(error) => {
                eprintln!("{error}");
                missing.push(service.name);
            }
        }
    }
    match Python::settle(may_install) {
        Python::There { path, .. } => println!("export {}={}", python::VARIABLE, path.display()),
        Python::NotRun { why } => {
            eprintln!("{} cannot be had: {why}", python::NAME);
            missing.push(python::NAME);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!(
        "not running: {}; the lines above say why",
        missing.join(", ")
    )))
}

/// A server that is up, or will be soon.
struct Started {
    record: Record,
    /// What to wait for; none if it was up already.
    instance: Option<Instance>,
}

impl Started {
    fn wait_until_ready(self, service: &'static Service) -> Result<Record> {
        match self.instance.map(|mut instance| instance.wait_until_ready()) {
            Some(Err(error)) => take_down(service).and(Err(error)),
            _ => Ok(self.record),
        }
    }
}

/// A URL in the environment does not count here: it may be the one of a server we have stopped
/// since.
fn bring_up(service: &'static Service, may_install: bool) -> Result<Started> {
    if let Some(record) = Record::read(service)?.filter(Record::answers) {
        return Ok(Started { record, instance: None });
    }
    take_down(service)?;
    let machine = Machine {
        service,
        given: None,
        may_install,
    };
    match decide(service, &machine) {
        Plan::Start(source) => start(service, &source),
        Plan::NotRun { why } => Err(Error::new(format!("{} cannot be started: {why}", service.name))),
        Plan::Given { url } => Err(Error::new(format!("{} is given as {url}", service.name))),
    }
}

/// The record is written before the server is ready: should we be killed while waiting, `down`
/// finds it.
fn start(service: &'static Service, source: &Source) -> Result<Started> {
    // Left by an `up` that was killed before it wrote its record; a server still in there ends
    // itself when it misses its files.
    home::clear(service, HOME);
    let fifo = make_fifo(service)?;
    let log = format!("{}-up", service.name);
    let stay = Stay {
        name: HOME.to_owned(),
        log,
        fifo: Some(fifo),
        keep: false,
    };
    let instance = Instance::start(service, source, stay)?;
    let record = Record {
        pid: instance.pid(),
        port: instance.port,
        home: instance.home.clone(),
    };
    record.write(service)?;
    Ok(Started {
        record,
        instance: Some(instance),
    })
}

fn down() -> Result<()> {
    for service in SERVICES {
        let was_running = take_down(service)?;
        let state = if was_running { "is stopped" } else { "was not running" };
        eprintln!("{} {state}", service.name);
    }
    Ok(())
}

fn take_down(service: &Service) -> Result<bool> {
    let Some(record) = Record::read(service)? else {
        return Ok(false);
    };
    if process::is_alive(record.pid) {
        eprintln!("stopping {} on {}", service.name, record.address());
        // Should the fifo be gone, the wait below is in vain and the error after it tells what to
        // do.
        let _ = open_fifo(&fifo_path(service)).and_then(|mut fifo| fifo.write_all(b"stop\n"));
        process::wait_until(END_BOUND, || record.is_gone());
    }
    if record.answers() {
        let (name, address, pid) = (service.name, record.address(), record.pid);
        return Err(Error::new(format!(
            "{name} still answers on {address}; stop the process group {pid} by hand"
        )));
    }
    // The leash has done this, unless it was killed.
    if let Some(home) = record.home.filter(|home| home.exists()) {
        fs::remove_dir_all(&home).context(format!("{} could not be removed", home.display()))?;
    }
    let _ = fs::remove_file(fifo_path(service));
    Record::forget(service)?;
    Ok(true)
}

fn status() -> Result<()> {
    let mut rows = Vec::new();
    for service in SERVICES {
        let (state, place) = match Record::read(service)? {
            None => ("down", "start it with cargo xtask services up".to_owned()),
            Some(record) if record.answers() => ("up", format!("{}={}", service.variable, service.url_at(record.port))),
            Some(record) => (
                "gone",
                format!("nobody answers on {}; run cargo xtask services up", record.address()),
            ),
        };
        rows.push(vec![service.name.to_owned(), state.to_owned(), place]);
    }
    print!("{}", table::render(&["service", "state", "where"], &rows));
    Ok(())
}

fn fifo_path(service: &Service) -> PathBuf {
    workspace::services_dir().join(format!("{}.fifo", service.name))
}

fn make_fifo(service: &Service) -> Result<File> {
    let path = fifo_path(service);
    let dir = workspace::services_dir();
    fs::create_dir_all(&dir).context(format!("{} could not be created", dir.display()))?;
    let _ = fs::remove_file(&path);
    process::run(Command::new("mkfifo").args(["-m", "600"]).arg(&path))?;
    open_fifo(&path).context(path.display())
}

/// Opened both ways, a fifo neither blocks when nobody is on the other end nor ends when somebody
/// leaves.
fn open_fifo(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// What the state file knows about one server.
#[derive(Debug, PartialEq)]
struct Record {
    pid: u32,
    port: u16,
    home: Option<PathBuf>,
}

impl Record {
    fn read(service: &Service) -> Result<Option<Self>> {
        Ok(read_state()?.get(service.name).and_then(Self::from_json))
    }

    fn write(&self, service: &Service) -> Result<()> {
        let mut state = read_state()?;
        state.insert(service.name.to_owned(), self.to_json());
        write_state(state)
    }

    fn forget(service: &Service) -> Result<()> {
        let mut state = read_state()?;
        state.remove(service.name);
        write_state(state)
    }

    fn from_json(value: &Value) -> Option<Self> {
        let pid = value["pid"].as_u64()?.try_into().ok()?;
        let port = value["port"].as_u64()?.try_into().ok()?;
        Some(Self {
            pid,
            port,
            home: value["home"].as_str().map(PathBuf::from),
        })
    }

    fn to_json(&self) -> Value {
        json!({ "pid": self.pid, "port": self.port, "home": self.home })
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn answers(&self) -> bool {
        address::answers(&self.address())
    }

    /// Asked of the home and the port rather than of the process: where nobody collects the dead,
    /// as in many containers, a process number stays taken.
    fn is_gone(&self) -> bool {
        !self.home.as_ref().is_some_and(|home| home.exists()) && !self.answers()
    }
}

fn state_path() -> PathBuf {
    workspace::services_dir().join("state.json")
}

fn read_state() -> Result<Map<String, Value>> {
    let path = state_path();
    let Ok(text) = fs::read(&path) else {
        return Ok(Map::new());
    };
    serde_json::from_slice(&text).context(format!("{} is not ours any more, remove it", path.display()))
}

fn write_state(state: Map<String, Value>) -> Result<()> {
    let path = state_path();
    fs::write(&path, format!("{:#}\n", Value::Object(state)))
        .context(format!("{} could not be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_state_file() {
        for home in [None, Some(PathBuf::from("/tmp/home"))] {
            let record = Record {
                pid: 7,
                port: 5433,
                home,
            };
            assert_eq!(Record::from_json(&record.to_json()), Some(record));
        }
    }

    #[test]
    fn a_record_of_something_else_is_none() {
        assert_eq!(Record::from_json(&json!({ "pid": -1, "port": 70_000 })), None);
    }
}
