//! The directory an instance lives in. It is named after the process that started it, so that the
//! next run can tell what a crash has left behind.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Service;
use super::account::Account;
use crate::error::{Context, Error, Result};
use crate::{process, workspace};

/// Makes an empty home that the server's user can reach, write and remove.
///
/// It is `target/services/<service>/<name>`. A checkout below a closed directory such as `/root`
/// cannot be reached by the user that root drops to; then it is a fresh directory beside the other
/// temporary ones.
pub(crate) fn furnish(service: &Service, name: &str, account: Option<&Account>) -> Result<PathBuf> {
    let parent = workspace::services_dir().join(service.name);
    if let Ok(home) = furnish_inside(&parent, name, account) {
        return Ok(home);
    }
    let home = env::temp_dir().join(temporary_name(service, name));
    furnish_at(&home, account)?;
    Ok(home)
}

/// Removes the home of this name, if there is one.
pub(crate) fn clear(service: &Service, name: &str) {
    let own = workspace::services_dir().join(service.name).join(name);
    for home in [own, env::temp_dir().join(temporary_name(service, name))] {
        // Nothing there is the usual case, and what cannot be removed shows when a home is made.
        let _ = fs::remove_dir_all(home);
    }
}

/// Removes the homes whose process has died without removing them.
pub(crate) fn remove_stale(service: &Service) {
    let own = fs::read_dir(workspace::services_dir().join(service.name));
    let temporary = fs::read_dir(env::temp_dir());
    let prefix = temporary_name(service, "");
    for entry in [own, temporary].into_iter().flatten().flatten().flatten() {
        let file_name = entry.file_name();
        let Some(name) = file_name.to_str() else {
            continue;
        };
        let in_temporary = entry.path().parent() == Some(&env::temp_dir());
        let Some(owner) = owner(name, in_temporary.then_some(&prefix)) else {
            continue;
        };
        if !process::is_alive(owner) {
            eprintln!("removing {}, left by process {owner}", entry.path().display());
            // Another user's leftovers stay theirs.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process in a home's name. A home without a number belongs to `--keep` or `services up` and
/// stays.
fn owner(name: &str, prefix: Option<&String>) -> Option<u32> {
    prefix
        .map_or(Some(name), |prefix| name.strip_prefix(prefix.as_str()))?
        .parse()
        .ok()
}

fn temporary_name(service: &Service, name: &str) -> String {
    format!("steadfast-{}-{name}", service.name)
}

/// The parent goes to the server's user as well: only then can the leash, which runs as that user,
/// remove the home when we are gone.
fn furnish_inside(parent: &Path, name: &str, account: Option<&Account>) -> Result<PathBuf> {
    fs::create_dir_all(parent).context(parent.display())?;
    give(parent, account)?;
    let home = parent.join(name);
    furnish_at(&home, account)?;
    Ok(home)
}

/// `create_dir` insists on a fresh directory: in `/tmp`, somebody else's would be a trap for root.
fn furnish_at(home: &Path, account: Option<&Account>) -> Result<()> {
    fs::create_dir(home).context(format!("{} could not be created", home.display()))?;
    let reachable = fs::set_permissions(home, Permissions::from_mode(0o700))
        .context(home.display())
        .and_then(|()| give(home, account))
        .and_then(|()| check_reachable(home, account));
    if reachable.is_err() {
        // The error that matters is the one we return.
        let _ = fs::remove_dir(home);
    }
    reachable
}

fn give(dir: &Path, account: Option<&Account>) -> Result<()> {
    let Some(account) = account else {
        return Ok(());
    };
    let doing = format!("{} could not be given to user {}", dir.display(), account.name);
    chown(dir, Some(account.uid), Some(account.gid)).context(doing)
}

/// Asks as the other user instead of computing with modes: access lists and mounts have a say, too.
fn check_reachable(home: &Path, account: Option<&Account>) -> Result<()> {
    let Some(account) = account else {
        return Ok(());
    };
    let mut probe = Command::new("test");
    probe.arg("-w").arg(home).current_dir("/");
    account.dress(&mut probe);
    if process::succeeds_within(&mut probe, Duration::from_secs(5)) {
        return Ok(());
    }
    Err(Error::new(format!(
        "{} cannot be reached by user {}",
        home.display(),
        account.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_names_an_owner() {
        let prefix = "steadfast-postgres-".to_owned();
        assert_eq!(owner("4711", None), Some(4711));
        assert_eq!(owner("kept-4711", None), None);
        assert_eq!(owner("up", None), None);
        assert_eq!(owner("steadfast-postgres-12", Some(&prefix)), Some(12));
        assert_eq!(owner("12", Some(&prefix)), None);
    }

    #[test]
    fn a_home_is_fresh_or_refused() {
        let parent = env::temp_dir().join(format!("steadfast-home-{}", std::process::id()));
        let home = furnish_inside(&parent, "1", None).expect("a fresh home");
        assert!(furnish_inside(&parent, "1", None).is_err());
        assert!(home.is_dir());
        fs::remove_dir_all(&parent).expect("a temporary directory");
    }
}
