//! The time of the database, which is the same for all nodes, plus an offset that only tests and labs set.
//!
//! Expiry is judged by it when a key is claimed, and retention counted from it when the outcome is stored. A worker's
//! wall clock is never asked about a row of PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::duration;

/// Microseconds since 1970, the resolution both databases keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(pub(crate) i64);

impl Timestamp {
    /// Long before anything.
    #[cfg(feature = "sqlite")]
    pub(crate) const MIN: Self = Self(i64::MIN);

    /// A moment, but not one before 1970.
    pub(crate) fn of(at: SystemTime) -> Self {
        Self(micros(at.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }

    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// Not before 1970, when nothing of ours can have happened: a database may refuse to go farther back.
    pub(crate) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)).max(0))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let distance = Duration::from_micros(at.0.unsigned_abs());
        let time = if at.0 < 0 {
            UNIX_EPOCH.checked_sub(distance)
        } else {
            UNIX_EPOCH.checked_add(distance)
        };
        time.unwrap_or(UNIX_EPOCH)
    }
}

/// How far a clock is ahead of the database's, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset(pub(crate) i64);

/// How far this process is ahead of the database's time. Zero, unless a test or a lab moves it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset_micros: Arc<AtomicI64>,
}

impl Clock {
    /// Moves the time of every `Steadfast` that shares this clock. For tests and labs.
    pub fn set_offset(&self, offset: Duration) {
        self.offset_micros.store(micros(offset), Ordering::Relaxed);
    }

    /// How far this clock is ahead.
    pub fn offset(&self) -> Duration {
        Duration::from_micros(self.offset_micros.load(Ordering::Relaxed).unsigned_abs())
    }

    /// The time of this clock, given what the database's says.
    pub(crate) fn at(&self, database: Timestamp) -> Timestamp {
        self.ahead().of(database)
    }

    /// How far this clock is ahead, for a statement that adds it to the database's time.
    pub(crate) fn ahead(&self) -> Offset {
        Offset(self.offset_micros.load(Ordering::Relaxed))
    }
}

impl Offset {
    pub(crate) fn of(self, database: Timestamp) -> Timestamp {
        Timestamp(database.0.saturating_add(self.0))
    }

    /// This clock's time by the machine's: the database's own where the database is a file beside us.
    #[cfg(feature = "sqlite")]
    pub(crate) fn now(self) -> Timestamp {
        self.of(machine())
    }
}

/// The machine's clock: the database's own where the database is a file beside us.
#[cfg(feature = "sqlite")]
pub(crate) fn machine() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(micros(now))
}

/// Between half and all of `duration`, so that those who failed together do not come back together.
pub(crate) fn jitter(duration: Duration) -> Duration {
    duration * (512 + (random() % 512) as u32) / 1024
}

/// 64 random bits, other ones each time.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Reads a duration as it is written in options: `500ms`, `30s`, `5m`, `24h`, `7d`.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(steadfast::parse_duration("24h")?, Duration::from_secs(24 * 60 * 60));
/// assert!(steadfast::parse_duration("soon").is_err());
/// # Ok::<(), steadfast::Error>(())
/// ```
///
/// # Errors
/// SF303 if the text is not a whole number followed by one of the units.
pub fn parse_duration(text: &str) -> crate::Result<Duration> {
    duration::read(text).ok_or_else(|| {
        crate::Error::new(
            crate::Code::ConfigurationInvalid,
            format!("{text:?} is not a duration; write a whole number and a unit: 500ms, 30s, 5m, 24h or 7d"),
        )
    })
}

/// A [`Duration`], or its text as [`parse_duration`] reads it.
pub trait ReadDuration {
    /// The duration.
    ///
    /// # Errors
    /// As [`parse_duration`].
    fn read_duration(self) -> crate::Result<Duration>;
}

impl ReadDuration for Duration {
    fn read_duration(self) -> crate::Result<Duration> {
        Ok(self)
    }
}

impl ReadDuration for &str {
    fn read_duration(self) -> crate::Result<Duration> {
        parse_duration(self)
    }
}

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A moment as RFC 3339 writes it, in UTC. It sorts as text.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
/// assert_eq!(steadfast::rfc3339(at), "2026-01-01T00:00:00.000Z");
/// ```
pub fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / DAY_SECONDS, since.as_secs() % DAY_SECONDS);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // Every message has a time: `format!` would take longer than the rest of its envelope.
    let mut digits = *b"0000-00-00T00:00:00.000Z";
    let mut write = |place: std::ops::Range<usize>, mut number: u64| {
        for digit in digits[place].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    write(0..4, year);
    write(5..7, month);
    write(8..10, day);
    write(11..13, hour);
    write(14..16, minute);
    write(17..19, second);
    write(20..23, u64::from(since.subsec_millis()));
    let mut text = String::with_capacity(digits.len());
    if year > 9_999 {
        text += &(year / 10_000).to_string();
    }
    text += &String::from_utf8_lossy(&digits);
    text
}

/// Reads a moment as RFC 3339 writes it, to the microsecond. `None` if it is none, or before 1970.
pub(crate) fn read_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = text.get(range)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let signs: Vec<u8> = [4, 7, 10, 13, 16]
        .iter()
        .filter_map(|place| text.as_bytes().get(*place).copied())
        .collect();
    let is_moment = matches!(*signs, [b'-', b'-', b'T' | b't' | b' ', b':', b':']);
    if !is_moment || !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = &text[19..];
    let fraction = rest.strip_prefix('.').unwrap_or_default();
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    let micros = format!("{:0<6}", &fraction[..digits.min(6)]).parse().ok()?;
    let zone = if digits > 0 { &fraction[digits..] } else { rest };
    let ahead_minutes = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let minutes = zone.get(1..3)?.parse::<i64>().ok()? * 60 + zone.get(4..6)?.parse::<i64>().ok()?;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = (days_until(year, month, day)? * DAY_SECONDS + hour * 3600 + minute * 60 + second).cast_signed();
    let seconds = u64::try_from(seconds - ahead_minutes * 60).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// How many days lie between 1970-01-01 and a date: the other way round than [`date`].
fn days_until(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = year - u64::from(month <= 2 && year > 0);
    let month_from_march = (month + 9) % 12;
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

/// The date so many days after 1970-01-01, counted in years that begin in March, so that the leap day comes last.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097; // 400 years
    let shifted = days + 719_468; // from 0000-03-01
    let (era, day_of_era) = (shifted / ERA_DAYS, shifted % ERA_DAYS);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, millis) in [
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_duration(text).expect(text), Duration::from_millis(millis));
        }
        for text in [
            "",
            "s",
            "5",
            "-5s",
            "5 s",
            "1.5h",
            "5w",
            "99999999999999999999s",
            "9999999999999999999d",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_000, "2024-02-29T23:59:59.000Z"),
            (1_767_225_600_000, "2026-01-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), text);
            assert_eq!(read_rfc3339(text), Some(UNIX_EPOCH + Duration::from_millis(millis)));
        }
    }

    #[test]
    fn a_year_may_have_more_than_four_digits() {
        let at = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
        assert_eq!(rfc3339(at), "10000-01-01T00:00:00.000Z");
    }

    #[test]
    fn times_of_others_are_read_in_their_zones() {
        let at = |text| read_rfc3339(text).map(rfc3339);
        let noon = Some("2026-01-01T12:00:00.250Z".to_owned());
        for text in [
            "2026-01-01T12:00:00.25Z",
            "2026-01-01t14:30:00.250000123+02:30",
            "2026-01-01 11:00:00.25-01:00",
        ] {
            assert_eq!(at(text), noon, "{text}");
        }
        let wrong = [
            "",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-01-01T25:00:00Z",
            "2026-01-01T12:00:00",
            "1960-01-01T00:00:00Z",
            "2026-01-01T12:00:00.Z",
            "tomorrow at half past nine",
            "2026-01-01T12:00:00+2",
            "２０２６-01-01T00:00:00Z",
        ];
        for text in wrong {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
