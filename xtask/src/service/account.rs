//! The user a server runs as. In containers we often are root; PostgreSQL refuses that, and the others
//! need not be trusted with it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::Service;
use crate::error::{Context, Error, Result};
use crate::process;

/// A user of this machine, as `/etc/passwd` tells.
#[derive(Debug, PartialEq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    /// The user to drop to, or `None` if we are not root.
    pub(crate) fn for_service(service: &Service) -> Result<Option<Self>> {
        if !process::is_root() {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd could not be read")?;
        let account = service.users.iter().find_map(|name| find(&passwd, name));
        account.map(Some).ok_or_else(|| {
            let (name, users) = (service.name, service.users.join(" or "));
            Error::new(format!(
                "{name} is not run as root and there is no user {users}; run xtask as another user"
            ))
        })
    }

    /// Makes a command run as this user. The standard library drops the supplementary groups as
    /// well.
    pub(crate) fn dress(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

fn find(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Account {
            name: name.to_owned(),
            uid,
            gid,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
# broken
nobody:x:65534:65533:nobody:/nonexistent:/bin/false
";

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let nobody = Account {
            name: "nobody".to_owned(),
            uid: 65534,
            gid: 65533,
        };
        assert_eq!(find(PASSWD, "nobody"), Some(nobody));
        assert_eq!(find(PASSWD, "no"), None);
    }
}
