//! Time zones by name, from the data that is compiled in.
//!
//! Never from `/usr/share/zoneinfo`: machines have other versions of it, or none. Processes of one build agree on every tick, so
//! that a tick which several of them see is one.

use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::error::{Code, Error, Result};
use crate::words::did_you_mean;

/// Twice the longest name there is.
const NAME_LENGTH_MAX: usize = 64;

/// Asked for by name, since another crate of the same program may have told jiff to look at the machine first.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The time zone of this name.
pub(super) fn named(name: &str) -> Result<TimeZone> {
    if name.len() > NAME_LENGTH_MAX {
        return Err(invalid(format!(
            "the name of the time zone has {} bytes; write a name of the IANA database such as `Europe/Madrid` or `UTC`",
            name.len()
        )));
    }
    match ZONES.get(name) {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ => Err(invalid(format!(
            "{name:?} is no time zone; write a name of the IANA database such as `Europe/Madrid` or `UTC`{}",
            meant(name)
        ))),
    }
}

/// What was probably meant: the same city, or nearly the same name. Names such as `EST` are never guessed: another three letters
/// are another time.
fn meant(name: &str) -> String {
    let known: Vec<String> = ZONES.available().map(|zone| zone.to_string()).collect();
    let places: Vec<&str> = known
        .iter()
        .map(String::as_str)
        .filter(|name| name.contains('/'))
        .collect();
    let city = name.replace(' ', "_");
    let is_city = |place: &&&str| {
        place
            .rsplit('/')
            .next()
            .is_some_and(|last| last.eq_ignore_ascii_case(&city))
    };
    match places.iter().find(is_city) {
        Some(place) => format!("; did you mean `{place}`?"),
        None => did_you_mean(name, &places),
    }
}

fn invalid(message: String) -> Error {
    Error::new(Code::ConfigurationInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_its_name_however_it_was_written() {
        for (written, name) in [
            ("UTC", "UTC"),
            ("utc", "UTC"),
            ("europe/madrid", "Europe/Madrid"),
            ("America/Argentina/ComodRivadavia", "America/Argentina/ComodRivadavia"),
        ] {
            assert_eq!(named(written).expect(written).iana_name(), Some(name));
        }
    }

    #[test]
    fn a_zone_that_is_not_there_is_answered_by_what_was_probably_meant() {
        for (written, meant) in [
            ("Europe/Madird", "; did you mean `Europe/Madrid`?"),
            ("Madrid", "; did you mean `Europe/Madrid`?"),
            ("New York", "; did you mean `America/New_York`?"),
            ("America/New York", "; did you mean `America/New_York`?"),
            ("PST", "`UTC`"),
            ("", "`UTC`"),
            ("+02:00", "`UTC`"),
            ("../../etc/passwd", "`UTC`"),
            ("Etc/Unknown", "`UTC`"),
            ("\u{202e}", "`UTC`"),
        ] {
            let told = named(written).expect_err(written).to_string();
            assert!(told.ends_with(meant), "{told}");
        }
        let long = named(&"A/".repeat(50_000)).expect_err("too long").to_string();
        assert!(
            long.starts_with("the name of the time zone has 100000 bytes; "),
            "{long}"
        );
    }
}
