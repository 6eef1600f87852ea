//! Plain text stays on this machine, unless somebody says otherwise.

use crate::doctor::Check;
use crate::error::{Code, Error, Result};

/// Whether nobody can listen on the way to this host.
pub(crate) fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Refuses a host elsewhere, and says what to write instead.
pub(crate) fn check(host: &str, instead: &str) -> Result<()> {
    if is_this_machine(host) {
        return Ok(());
    }
    let message = format!("events and passwords would go to {host} as plain text; {instead}");
    Err(Error::new(Code::ConfigurationInvalid, message))
}

/// The doctor's line about who can listen; `instead` is what to write.
pub(crate) fn encryption(is_encrypted: bool, host: &str, instead: &str) -> Check {
    match is_encrypted {
        true => Check::ok("encryption", "the connection is encrypted"),
        false if is_this_machine(host) => Check::ok("encryption", "it is plain text that stays on this machine"),
        false => Check::warn(
            "encryption",
            format!("events and passwords go to {host} as plain text"),
            instead,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn plain_text_that_leaves_this_machine_is_a_warning() {
        let verdict = |is_encrypted, host| encryption(is_encrypted, host, "write tls://").verdict;
        assert_eq!(verdict(false, "10.0.0.1"), Verdict::Warn);
        assert_eq!(verdict(false, "127.0.0.1"), Verdict::Ok);
        assert_eq!(verdict(true, "10.0.0.1"), Verdict::Ok);
    }

    #[test]
    fn plain_text_stays_on_this_machine() {
        for here in ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"] {
            assert!(is_this_machine(here), "{here}");
        }
        for there in ["nats.example.org", "10.0.0.1", "localhost.example.org", "[fe80::1]"] {
            assert!(!is_this_machine(there), "{there}");
        }
    }
}
