//! A Python with what the foreign consumers are written with: a virtual environment below the target directory, which is made once
//! and again when the requirements change.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::service::{Package, install, log};
use crate::{process, workspace};

/// What people and `--require` call it.
pub(crate) const NAME: &str = "python";

/// The variable that carries the interpreter to the tests, or from the person who has one with everything in it.
pub(crate) const VARIABLE: &str = "TEST_PYTHON";

/// The part of a test's path that says that it needs it.
pub(crate) const TEST_PATH: &str = "foreign::";

/// The packages, each with its version and its hash.
const REQUIREMENTS: &str = "crates/shop/tests/foreign/requirements.txt";

/// What a Python can that was given.
const IMPORTS: &str = "import cloudevents, nats, pika, redis, standardwebhooks";

/// What a Python can that makes environments. Debian's without its package has `venv`, and no pip to put into what it makes.
const MAKES_ENVIRONMENTS: &str = "import venv, ensurepip";

/// Where Debian's Python is, should another one without `venv` come first in `PATH`.
const INTERPRETERS: [&str; 2] = ["python3", "/usr/bin/python3"];

/// What makes Debian's Python able to make environments.
const VENV: Package = Package {
    name: "python3-venv",
    config: "",
    config_text: "",
    units: &[],
};

/// How long an interpreter may take to say what it can: a cold one takes a second or two.
const ASK_BOUND: Duration = Duration::from_secs(30);

/// How it went.
pub(crate) enum Python {
    There { how: String, path: PathBuf },
    NotRun { why: String },
}

impl Python {
    /// Finds the environment, or makes it.
    pub(crate) fn settle(may_install: bool) -> Self {
        let given = env::var_os(VARIABLE).filter(|given| !given.is_empty());
        if let Some(path) = given.map(PathBuf::from) {
            return Self::check_given(path);
        }
        let environment = Environment {
            directory: workspace::target_dir().join("python"),
            requirements: workspace::root().join(REQUIREMENTS),
        };
        let path = environment.interpreter();
        if environment.is_made() {
            let how = "made before".to_owned();
            return Self::There { how, path };
        }
        let made = find_interpreter(may_install)
            .and_then(|python| environment.make(python).map_err(|error| error.to_string()));
        match made {
            Ok(()) => Self::There {
                how: "made with pip".to_owned(),
                path,
            },
            Err(why) => Self::NotRun { why },
        }
    }

    fn check_given(path: PathBuf) -> Self {
        if can(&path, IMPORTS) {
            let how = format!("given by {VARIABLE}");
            return Self::There { how, path };
        }
        let why = format!("{VARIABLE} names {}, which cannot {IMPORTS}", path.display());
        Self::NotRun { why }
    }

    /// The interpreter, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::There { path, .. } => Some(path),
            Self::NotRun { .. } => None,
        }
    }

    /// Its row in the table of services.
    pub(crate) fn describe(&self) -> Vec<String> {
        let (how, place) = match self {
            Self::There { how, path } => (how.clone(), path.display().to_string()),
            Self::NotRun { why } => ("NOT RUN".to_owned(), why.clone()),
        };
        vec![NAME.to_owned(), how, place]
    }
}

/// An interpreter that can make an environment; as root on Debian, one that could not is helped.
fn find_interpreter(may_install: bool) -> std::result::Result<&'static str, String> {
    let find = || INTERPRETERS.into_iter().find(|python| can(python, MAKES_ENVIRONMENTS));
    if let Some(python) = find() {
        return Ok(python);
    }
    install::install_if(may_install, &VENV).map_err(|why| format!("no python3 with venv; {why}"))?;
    find().ok_or_else(|| format!("{} is installed, but no python3 has venv", VENV.name))
}

fn can(python: impl AsRef<Path>, statement: &str) -> bool {
    let mut python = Command::new(python.as_ref());
    process::succeeds_within(python.args(["-c", statement]), ASK_BOUND)
}

/// A virtual environment, and what is to be in it.
struct Environment {
    directory: PathBuf,
    requirements: PathBuf,
}

impl Environment {
    fn interpreter(&self) -> PathBuf {
        self.directory.join("bin/python")
    }

    /// What was installed, written when all of it was.
    fn installed(&self) -> PathBuf {
        self.directory.join("installed.txt")
    }

    /// Whether it is complete. Its interpreter is a link, which leads nowhere when the machine's Python was replaced.
    fn is_made(&self) -> bool {
        let wanted = fs::read(&self.requirements).ok();
        wanted.is_some() && wanted == fs::read(self.installed()).ok() && self.interpreter().exists()
    }

    /// Only wheels with the hash that is written down are installed: nothing of them runs before a test does.
    fn make(&self, python: &str) -> Result<()> {
        let (log, _) = log::open(NAME)?;
        eprintln!("making an environment of Python; its log is {}", log.display());
        let mut venv = Command::new(python);
        venv.args(["-m", "venv", "--clear"]).arg(&self.directory);
        run_logged(&mut venv, &log)?;
        let mut pip = Command::new(self.interpreter());
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
            .args(["--require-hashes", "--only-binary", ":all:", "--requirement"])
            .arg(&self.requirements);
        run_logged(&mut pip, &log)?;
        let copied = fs::copy(&self.requirements, self.installed());
        copied.context("what was installed could not be noted").map(drop)
    }
}

fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let open = || {
        let file = fs::File::options().append(true).open(log);
        file.context(format!("{} could not be opened", log.display()))
    };
    let logged = command.stdin(Stdio::null()).stdout(open()?).stderr(open()?);
    process::run(logged).map_err(|error| {
        eprintln!("{error}; {}", log::tail(log));
        Error::new(format!("{error}, see {}", log.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_made_again_when_the_requirements_change_or_its_python_is_gone() {
        let directory = env::temp_dir().join(format!("steadfast-python-{}", std::process::id()));
        fs::create_dir_all(directory.join("bin")).expect("a temporary directory");
        let environment = Environment {
            requirements: directory.join("requirements.txt"),
            directory: directory.clone(),
        };
        let write = |file: &Path, text: &str| fs::write(file, text).expect("a temporary file");
        assert!(
            !environment.is_made(),
            "there are no requirements, and there is nothing"
        );
        write(&environment.requirements, "pika==1\n");
        write(&environment.interpreter(), "");
        assert!(!environment.is_made(), "it did not come to its end");
        write(&environment.installed(), "pika==1\n");
        assert!(environment.is_made());
        write(&environment.requirements, "pika==2\n");
        assert!(!environment.is_made());
        write(&environment.installed(), "pika==2\n");
        fs::remove_file(environment.interpreter()).expect("a temporary file");
        assert!(!environment.is_made());
        fs::remove_dir_all(directory).expect("a temporary directory");
    }

    #[test]
    fn every_requirement_has_a_version_and_a_hash() {
        let text = fs::read_to_string(workspace::root().join(REQUIREMENTS)).expect("the requirements");
        let packages = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in packages {
            assert!(line.contains("==") && line.contains("--hash=sha256:"), "{line}");
        }
    }
}
