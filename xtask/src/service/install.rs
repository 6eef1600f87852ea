//! Installing a package without letting it start or create anything.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Package, log};
use crate::error::{Context, Error, Result};
use crate::process;

/// The only package manager we know.
const APT_GET: &str = "/usr/bin/apt-get";

/// The installation, as a shell script rather than a guard in Rust: its trap also runs when ctrl-C
/// ends us, and when we are killed it carries on alone and tidies up.
///
/// `policy-rc.d` with exit code 101 forbids every service to start. Whatever was in its place is
/// moved aside and back; what a killed run has left aside is never overwritten. The configuration
/// file is only written where there was none, and the packaged one, which dpkg then puts beside
/// ours, takes its place at the end. Units that came with the package are disabled, so that they do not
/// start with the machine either; one that was there before is somebody's. `$root` is empty except in
/// tests.
const SCRIPT: &str = r#"
    set -eu
    policy=$root/usr/sbin/policy-rc.d
    aside=$policy.steadfast
    wrote_config=
    new_units=
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
    if [ -n "$config" ] && [ ! -e "$root$config" ]; then
        config=$root$config
        wrote_config=yes
        mkdir -p "${config%/*}"
        printf '%s\n' "$config_text" >"$config"
    fi

    for unit in $units; do
        if [ ! -e "$root/lib/systemd/system/$unit" ]; then new_units="$new_units $unit"; fi
    done

    export DEBIAN_FRONTEND=noninteractive
    bounds='-o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=300'
    apt-get $bounds update
    apt-get $bounds install -y --no-install-recommends "$package"
    if [ -n "$new_units" ] && command -v systemctl >/dev/null; then systemctl disable $new_units; fi
"#;

/// Installs a package with apt, if that is allowed and can be; says why not.
pub(crate) fn install_if(may_install: bool, package: &Package) -> std::result::Result<(), String> {
    if !may_install {
        return Err("not installed because of --no-install".to_owned());
    }
    if !process::is_root() {
        return Err("not installed because we are not root".to_owned());
    }
    if !Path::new(APT_GET).exists() {
        return Err("not installed because there is no apt-get".to_owned());
    }
    install(package).map_err(|error| error.to_string())
}

fn install(package: &Package) -> Result<()> {
    let name = package.name;
    let (log, log_file) = log::open(&format!("apt-{name}"))?;
    eprintln!("installing {name} with apt-get; its log is {}", log.display());
    let status = script(package, "")
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

fn script(package: &Package, root: &str) -> Command {
    let mut sh = Command::new("sh");
    sh.args(["-c", SCRIPT]).env("root", root).env("package", package.name);
    sh.env("config", package.config).env("config_text", package.config_text);
    sh.env("units", package.units.join(" "));
    sh
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;
    use crate::service::Service;
    use crate::service::postgres::POSTGRES;
    use crate::service::rabbitmq::RABBITMQ;

    /// A root directory of its own, with an `apt-get` that notes what it sees and ends as it is
    /// told, and a `systemctl` that notes what it is told.
    fn pretend_root(name: &str, apt_exit: u8) -> PathBuf {
        let root = std::env::temp_dir().join(format!("steadfast-apt-{name}-{}", std::process::id()));
        for dir in ["bin", "usr/sbin", "lib/systemd/system"] {
            fs::create_dir_all(root.join(dir)).expect("a temporary directory");
        }
        let look = r#"cat "$root/usr/sbin/policy-rc.d" "$root"/etc/*/* >"$root/seen" 2>&1"#;
        let apt = format!("#!/bin/sh\n{look}\nexit {apt_exit}\n");
        let systemctl = "#!/bin/sh\necho \"$*\" >\"$root/told\"\n".to_owned();
        for (program, text) in [("bin/apt-get", apt), ("bin/systemctl", systemctl)] {
            let program = root.join(program);
            fs::write(&program, text).expect("a temporary file");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a temporary file");
        }
        root
    }

    fn run_in(root: &Path, service: &Service) -> bool {
        let path = format!(
            "{}:{}",
            root.join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let root = root.to_str().expect("a readable path");
        script(&service.package, root)
            .env("PATH", path)
            .status()
            .expect("sh")
            .success()
    }

    #[test]
    fn an_installation_forbids_services_and_leaves_nothing() {
        let root = pretend_root("fresh", 0);
        assert!(run_in(&root, &POSTGRES));
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
    fn an_installed_server_does_not_start_with_the_machine() {
        let root = pretend_root("units", 0);
        fs::write(root.join("lib/systemd/system/epmd.service"), "somebody's").expect("a temporary file");
        assert!(run_in(&root, &RABBITMQ));
        let told = fs::read_to_string(root.join("told")).expect("what systemctl was told");
        assert_eq!(told, "disable rabbitmq-server.service epmd.socket\n");
        assert!(!root.join("etc").exists());
        fs::remove_dir_all(root).expect("a temporary directory");
    }

    #[test]
    fn a_failed_installation_restores_what_was_there() {
        let root = pretend_root("failed", 100);
        let policy = root.join("usr/sbin/policy-rc.d");
        fs::write(&policy, "the machine's own").expect("a temporary file");
        assert!(!run_in(&root, &POSTGRES));
        assert_eq!(fs::read_to_string(&policy).expect("the policy"), "the machine's own");
        assert!(!root.join("usr/sbin/policy-rc.d.steadfast").exists());
        fs::remove_dir_all(root).expect("a temporary directory");
    }
}
