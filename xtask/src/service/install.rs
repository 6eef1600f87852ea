//! Installing a package without letting it start or create anything.

use std::process::{Command, Stdio};

use super::{Service, log};
use crate::error::{Context, Error, Result};

/// The only package manager we know.
pub(crate) const APT_GET: &str = "/usr/bin/apt-get";

/// The installation, as a shell script rather than a guard in Rust: its trap also runs when ctrl-C
/// ends us, and when we are killed it carries on alone and tidies up.
///
/// `policy-rc.d` with exit code 101 forbids every service to start. Whatever was in its place is
/// moved aside and back; what a killed run has left aside is never overwritten. The configuration
/// file is only written where there was none, and the packaged one, which dpkg then puts beside
/// ours, takes its place at the end. `$root` is empty except in tests.
const SCRIPT: &str = r#"
    set -eu
    policy=$root/usr/sbin/policy-rc.d
    aside=$policy.steadfast
    config=$root$config
    wrote_config=
    exists() { [ -e "$1" ] || [ -L "$1" ]; }
    restore() {
        rm -f "$policy"
        if exists "$aside"; then mv "$aside" "$policy"; fi
        if [ -n "$wrote_config" ]; then
            rm -f "$config"
            if [ -e "$config.ucf-dist" ]; then mv "$config.ucf-dist" "$config"; fi
            rmdir "${config%/*}" 2>/dev/null || true
        fi
    }
    trap restore EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP

    if exists "$policy" && ! exists "$aside"; then mv "$policy" "$aside"; fi
    rm -f "$policy"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    if [ ! -e "$config" ]; then
        wrote_config=yes
        mkdir -p "${config%/*}"
        printf '%s\n' "$config_text" >"$config"
    fi

    export DEBIAN_FRONTEND=noninteractive
    bounds='-o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=300'
    apt-get $bounds update
    apt-get $bounds install -y --no-install-recommends "$package"
"#;

/// Installs the package of a service with apt, as root.
pub(crate) fn install(service: &Service) -> Result<()> {
    let package = service.package.name;
    let (log, log_file) = log::open("apt")?;
    eprintln!("installing {package} with apt-get; its log is {}", log.display());
    let status = script(service, "")
        .stdin(Stdio::null())
        .stdout(log_file.try_clone().context("the log could not be opened twice")?)
        .stderr(log_file)
        .status()
        .context("sh could not be started")?;
    if status.success() {
        return Ok(());
    }
    eprintln!("apt-get failed; {}", log::tail(&log));
    Err(Error::new(format!(
        "not installed because apt-get failed, see {}",
        log.display()
    )))
}

fn script(service: &Service, root: &str) -> Command {
    let package = &service.package;
    let mut sh = Command::new("sh");
    sh.args(["-c", SCRIPT]).env("root", root).env("package", package.name);
    sh.env("config", package.config).env("config_text", package.config_text);
    sh
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::service::SERVICES;

    /// A root directory of its own, with an `apt-get` that notes what it sees and ends as it is
    /// told.
    fn pretend_root(name: &str, apt_exit: u8) -> PathBuf {
        let root = std::env::temp_dir().join(format!("steadfast-apt-{name}-{}", std::process::id()));
        let apt = root.join("bin/apt-get");
        for dir in ["bin", "usr/sbin"] {
            fs::create_dir_all(root.join(dir)).expect("a temporary directory");
        }
        let look = r#"cat "$root/usr/sbin/policy-rc.d" "$root"/etc/*/* >"$root/seen""#;
        let text = format!("#!/bin/sh\n{look}\nexit {apt_exit}\n");
        fs::write(&apt, text).expect("a temporary file");
        fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).expect("a temporary file");
        root
    }

    fn run_in(root: &Path) -> bool {
        let path = format!(
            "{}:{}",
            root.join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let root = root.to_str().expect("a readable path");
        script(SERVICES[0], root)
            .env("PATH", path)
            .status()
            .expect("sh")
            .success()
    }

    #[test]
    fn an_installation_forbids_services_and_leaves_nothing() {
        let root = pretend_root("fresh", 0);
        assert!(run_in(&root));
        let seen = fs::read_to_string(root.join("seen")).expect("what apt-get saw");
        assert!(
            seen.contains("exit 101") && seen.contains("create_main_cluster = false"),
            "{seen}"
        );
        assert!(!root.join("usr/sbin/policy-rc.d").exists());
        assert!(!root.join("etc/postgresql-common").exists());
        fs::remove_dir_all(root).expect("a temporary directory");
    }

    #[test]
    fn a_failed_installation_restores_what_was_there() {
        let root = pretend_root("failed", 100);
        let policy = root.join("usr/sbin/policy-rc.d");
        fs::write(&policy, "the machine's own").expect("a temporary file");
        assert!(!run_in(&root));
        assert_eq!(fs::read_to_string(&policy).expect("the policy"), "the machine's own");
        assert!(!root.join("usr/sbin/policy-rc.d.steadfast").exists());
        fs::remove_dir_all(root).expect("a temporary directory");
    }
}
