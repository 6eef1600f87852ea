//! A server of ours: started from installed programs or in a container, on a leash, on a port of
//! its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::account::Account;
use super::leash::{Leash, Rope};
use super::plan::Source;
use super::{Ready, Service, address, home, log};
use crate::error::{Error, Result};
use crate::process;

/// How long a server may take to serve. RabbitMQ needs five seconds, PostgreSQL two; a machine busy
/// with a build needs many times that.
const READY_BOUND: Duration = Duration::from_secs(60);

/// The same for a container, whose image may have to come over the network first.
const READY_BOUND_CONTAINER: Duration = Duration::from_secs(600);

/// After how much silence a wait says again what it waits for.
const REMIND_AFTER: Duration = Duration::from_secs(5);

/// Where the number of the process of a server that comes back is, in its home.
pub(crate) const PID_FILE: &str = "server.pid";

/// Starts a server again whenever it ends, until it is told to stop. It sees `$serve`, which becomes the server, and `$end`,
/// which asks the process `$server` to end.
const COME_BACK: &str = r#"
    stopped=
    trap 'stopped=1; eval "$end"' TERM
    while [ -z "$stopped" ]; do
        sh -c "$serve" &
        server=$!
        echo "$server" >"$home/$pid_file.new" && mv "$home/$pid_file.new" "$home/$pid_file"
        wait "$server"
    done
    wait "$server"
"#;

/// How long the server stays, and under which name.
pub(crate) struct Stay {
    /// Names its home or its container; a number says which process it ends with.
    pub(crate) name: String,
    /// Names its log file.
    pub(crate) log: String,
    /// The fifo to tie it to, if it is to outlive us.
    pub(crate) fifo: Option<File>,
    /// Whether its home is kept when it ends.
    pub(crate) keep: bool,
}

/// A server that is running, or was when we last looked.
pub(crate) struct Instance {
    pub(crate) service: &'static Service,
    pub(crate) port: u16,
    pub(crate) log: PathBuf,
    /// Where its data is; in a container it is the container's.
    pub(crate) home: Option<PathBuf>,
    leash: Leash,
    probe: Option<Vec<String>>,
    ready_bound: Duration,
}

impl Instance {
    /// Starts a server. It may not serve yet: see [`Instance::wait_until_ready`].
    pub(crate) fn start(service: &'static Service, source: &Source, stay: Stay) -> Result<Self> {
        let port = address::free_port()?;
        let (log, log_file) = log::open(&stay.log)?;
        let (rope, home, probe, ready_bound) = match source {
            Source::Programs(bin) => {
                let (rope, home) = rope_for_programs(service, bin, &stay)?;
                let probe = probe_beside(service, bin, port);
                (rope, Some(home), probe, READY_BOUND)
            }
            Source::Engine(engine) => {
                let name = container_name(service, &stay);
                let rope = rope_for_container(service, engine, &name, port);
                let probe = probe_inside(service, engine, &name);
                (rope, None, probe, READY_BOUND_CONTAINER)
            }
        };
        let rope = rope
            .set("port", port.to_string())
            .set("spare_port", address::free_port()?.to_string());
        eprintln!("starting {} on 127.0.0.1:{port}", service.name);
        let leash = match stay.fifo {
            Some(fifo) => rope.tie(fifo, &log_file)?,
            None => rope.hold(&log_file)?,
        };
        Ok(Self {
            service,
            port,
            log,
            home,
            leash,
            probe,
            ready_bound,
        })
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        self.service.url_at(self.port)
    }

    /// The process to look at; it is the leash, and the server is its child.
    pub(crate) fn pid(&self) -> u32 {
        self.leash.pid()
    }

    /// Waits until the server serves, saying what for. Its end or the end of our patience is an
    /// error.
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        let (name, address, start) = (self.service.name, self.address(), Instant::now());
        let mut reminded = start;
        loop {
            if let Some(status) = self.ended() {
                let tail = log::tail(&self.log);
                return Err(Error::new(format!(
                    "{name} ended with {status} before it was ready; {tail}"
                )));
            }
            if self.serves() {
                return Ok(());
            }
            if start.elapsed() > self.ready_bound {
                let (bound, tail) = (self.ready_bound.as_secs(), log::tail(&self.log));
                return Err(Error::new(format!("{name} was not ready within {bound} s; {tail}")));
            }
            if reminded.elapsed() > REMIND_AFTER {
                reminded = Instant::now();
                eprintln!("waiting for {name} on {address}; its log is {}", self.log.display());
            }
            sleep(process::LOOK_AGAIN);
        }
    }

    /// How the server ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.leash.ended()
    }

    /// Stops the server, and waits until it is gone.
    pub(crate) fn stop(self) -> Result<()> {
        self.leash.release()
    }

    fn serves(&self) -> bool {
        match self.service.ready {
            Ready::Command(_) => address::answers(&self.address()) && self.probe_succeeds(),
            Ready::Greeting { say, hear } => address::greets(&self.address(), say, hear),
        }
    }

    fn probe_succeeds(&self) -> bool {
        let Some([program, arguments @ ..]) = self.probe.as_deref() else {
            return true;
        };
        process::succeeds_within(Command::new(program).args(arguments), REMIND_AFTER)
    }
}

fn rope_for_programs(service: &Service, bin: &Path, stay: &Stay) -> Result<(Rope, PathBuf)> {
    let account = Account::for_service(service)?;
    let home = home::furnish(service, &stay.name, account.as_ref())?;
    let mut rope = match service.comes_back {
        true => Rope::new(COME_BACK, r#"kill -TERM "$server""#)
            .set("serve", service.start)
            .set("end", service.stop)
            .set("pid_file", PID_FILE),
        false => Rope::new(service.start, service.stop),
    };
    rope = rope
        .set("bin", bin)
        .set("home", &home)
        .set("arguments", service.arguments.join(" "));
    if !stay.keep {
        rope = rope.removing(&home);
    }
    if let Some(account) = &account {
        rope = rope.running_as(account);
    }
    Ok((rope, home))
}

/// The engine's client runs in the foreground, so that the leash holds it like any other server and
/// the log is the server's. Killing the client would leave the container, so `stop` removes that by
/// name.
fn rope_for_container(service: &Service, engine: &str, name: &str, port: u16) -> Rope {
    let image = &service.image;
    let mut words = vec![format!("exec {engine} run --rm --name {name}")];
    words.push(format!("-p 127.0.0.1:{port}:{}", service.default_port));
    words.extend(image.environment.iter().map(|variable| format!("-e {variable}")));
    words.push(image.name.to_owned());
    words.extend(service.arguments.iter().map(|&word| word.to_owned()));
    let remove = format!("{engine} rm --force {name} >/dev/null 2>&1");
    Rope::new(&format!("{remove}; {}", words.join(" ")), &remove)
}

fn container_name(service: &Service, stay: &Stay) -> String {
    format!("steadfast-{}-{}", service.name, stay.name)
}

/// The probe that came with the programs. Some packages split it off; then a connection has to do.
fn probe_beside(service: &Service, bin: &Path, port: u16) -> Option<Vec<String>> {
    let mut probe = probe(service, port);
    let program = bin.join(probe.first()?);
    probe[0] = program.is_file().then(|| program.to_string_lossy().into_owned())?;
    Some(probe)
}

/// The probe inside of the container.
fn probe_inside(service: &Service, engine: &str, name: &str) -> Option<Vec<String>> {
    let probe = probe(service, service.default_port);
    let exec = [engine, "exec", name].map(str::to_owned);
    (!probe.is_empty()).then(|| exec.into_iter().chain(probe).collect())
}

fn probe(service: &Service, port: u16) -> Vec<String> {
    let Ready::Command(words) = service.ready else {
        return Vec::new();
    };
    words
        .iter()
        .map(|word| word.replace("{port}", &port.to_string()))
        .collect()
}
