//! A cron expression in a time zone, and its ticks.
//!
//! croner reads the expression and knows which days fit; the walk along the time is ours. croner's own takes `30 2,14 * * *` for an
//! interval, which is skipped on one day of spring and runs twice on one of autumn, fails where a zone left out more than two
//! hours, and looks for a 30 February until the year 5000.
//!
//! The walk goes from one setting of the clock to the next. Between two of them the clock on the wall and time itself go side by
//! side, and the first time on the wall that fits is the tick, if it comes before the clock is set.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use jiff::tz::TimeZone;

use super::fields::{Fields, HORIZON_YEARS, Kind};
use super::text::Text;
use super::{ticks, zone};
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};

const SECOND_MICROS: i64 = 1_000_000;

/// No zone has ever set its clock back by more than a day.
const SET_BACK_MAX: SignedDuration = SignedDuration::from_hours(24);

/// A cron expression in a time zone.
///
/// ```
/// use steadfast::Cron;
///
/// let cron = Cron::parse("30 2 * * *", "Europe/Madrid")?;
/// let noon = cron.moment("2026-03-28 12:00")?;
/// let next = cron.next_after(noon).unwrap();
/// // There is no half past two on that Sunday: the clock goes from two to three.
/// assert_eq!(cron.local(next), "2026-03-29T03:00:00+02:00");
/// assert_eq!(cron.local(cron.next_after(next).unwrap()), "2026-03-30T02:30:00+02:00");
/// # Ok::<(), steadfast::Error>(())
/// ```
///
/// # Expressions
///
/// Five fields: minute, hour, day of month, month, day of week. Six if the second comes first.
///
/// | field | values | also |
/// |---|---|---|
/// | second, minute | 0 to 59 | |
/// | hour | 0 to 23 | |
/// | day of month | 1 to 31 | `L` the last day, `15W` the weekday nearest to the 15th, `LW` the last weekday |
/// | month | 1 to 12, `JAN` to `DEC` | |
/// | day of week | 0 to 7, `SUN` to `SAT`; 0 and 7 are Sunday | `FRI#2` the second Friday, `FRIL` the last one |
///
/// In each: `*`, lists `1,15`, ranges `MON-FRI`, steps `*/15` and `8-18/2`. Instead of fields: `@hourly`, `@daily` or `@midnight`,
/// `@weekly`, `@monthly`, `@yearly` or `@annually`.
///
/// If both the day of month and the day of week say something, a day needs to fit only one of them, as cron has always had it;
/// `0 0 13 * +FRI`, with a plus, asks for both.
///
/// # When the clock is set
///
/// | expression | a time that is skipped | a time that comes twice |
/// |---|---|---|
/// | **times of day**: the hour is not every hour, and minutes and seconds have no `*`: `30 2 * * *`, `0 2,14 * * *`, `0 */6 * * *` | the first moment after the gap; several are one tick | the first of the two |
/// | **rhythm**: every hour, or a `*` in the minutes or seconds: `0 * * * *`, `*/15 * * * *`, `*/5 0-5 * * *` | no tick | both |
///
/// So a time of day has exactly one tick on each date, and a rhythm goes on as if nothing had happened. A date that a zone left out
/// altogether counts as skipped, too: Samoa had no 30 December 2011, and its ticks are one, at 00:00 of the 31st.
#[derive(Clone, Debug)]
pub struct Cron {
    written: String,
    fields: Arc<Fields>,
    zone: TimeZone,
}

impl Cron {
    /// Reads an expression and the name of a time zone in the IANA database, such as `Europe/Madrid` or `UTC`. The rules of the
    /// zones are compiled in.
    ///
    /// # Errors
    /// [`Code::ConfigurationInvalid`] with the part that is wrong, the rule and what to write instead; also for a date that never
    /// comes, such as 30 February, and for more than 255 bytes.
    pub fn parse(expression: &str, time_zone: &str) -> Result<Self> {
        let text = Text::read(expression).map_err(invalid)?;
        let written = &text.written;
        let fields = Fields::of(&text).ok_or_else(|| {
            invalid(format!(
                "the cron expression {written:?} cannot be read; write fields such as `0 9 * * MON-FRI`"
            ))
        })?;
        // Whatever comes at all comes within the horizon of any day.
        if fields.first(date(2000, 1, 1).at(0, 0, 0, 0)).is_none() {
            return Err(invalid(format!(
                "the cron expression {written:?} is about a day that never comes; write a day that one of its months has"
            )));
        }
        Ok(Self {
            zone: zone::named(time_zone)?,
            written: text.written,
            fields: Arc::new(fields),
        })
    }

    /// The first tick after this moment. Ticks begin with 1970.
    ///
    /// `None` if there is none for 41 years: at the end of the calendar, in the year 9999, or where the clocks skip all that the
    /// expression is about, as those of Madrid do with `*/30 2 * 3 SUNL`.
    pub fn next_after(&self, after: SystemTime) -> Option<SystemTime> {
        self.tick_after(Timestamp::of(after)).map(Into::into)
    }

    /// The ticks after one moment and up to another, from the first one on, at most `max` of them.
    pub fn between(&self, after: SystemTime, until: SystemTime, max: usize) -> Vec<SystemTime> {
        let (after, until) = (Timestamp::of(after), Timestamp::of(until));
        let ticks = ticks(|after| self.tick_after(after), after, until, max);
        ticks.into_iter().map(Into::into).collect()
    }

    /// The name of the time zone.
    pub fn time_zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// A moment as the clocks of the time zone show it, as RFC 3339 writes it: `2026-03-29T03:00:00+02:00`.
    pub fn local(&self, at: SystemTime) -> String {
        match jiff::Timestamp::from_microsecond(Timestamp::of(at).0) {
            Ok(moment) => {
                let zoned = moment.to_zoned(self.zone.clone());
                zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
            }
            Err(_) => rfc3339(at),
        }
    }

    /// Reads a moment: `2026-03-29 02:30` or `2026-03-29` of the time zone, or one that says its own, as RFC 3339 has it:
    /// `2026-03-29T00:30:00Z`.
    ///
    /// A time that the clocks skip is as much later as they do, and of one that they show twice the first is meant.
    ///
    /// # Errors
    /// [`Code::ConfigurationInvalid`] if it is none, or before 1970.
    pub fn moment(&self, text: &str) -> Result<SystemTime> {
        let moment = text.parse::<jiff::Timestamp>().or_else(|_| {
            let local = text.parse::<DateTime>()?;
            self.zone.to_ambiguous_timestamp(local).compatible()
        });
        match moment {
            Ok(moment) if moment.as_microsecond() >= 0 => Ok(Timestamp(moment.as_microsecond()).into()),
            _ => {
                let text: String = text.chars().take(64).collect();
                Err(invalid(format!(
                    "{text:?} is no moment since 1970; write one such as 2026-03-29, 2026-03-29 02:30 or 2026-03-29T00:30:00Z"
                )))
            }
        }
    }

    /// The first tick after this moment.
    pub(crate) fn tick_after(&self, after: Timestamp) -> Option<Timestamp> {
        let second = after.0.div_euclid(SECOND_MICROS).saturating_add(1).max(0);
        let from = jiff::Timestamp::from_second(second).ok()?;
        self.tick_from(from).map(|tick| Timestamp(tick.as_microsecond()))
    }

    /// The walk. It is over when no time on the wall fits within the horizon, or each of them was skipped.
    fn tick_from(&self, from: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut now = from;
        // How far the clock on the wall has come: each time of day counts when it is first reached, or jumped over.
        let mut shown = self.shown_before(now);
        let mut search = Search::new(&self.fields);
        let last_year = shown.year().saturating_add(HORIZON_YEARS);
        while shown.year() <= last_year {
            let offset = self.zone.to_offset(now);
            let local = offset.to_datetime(now);
            if self.fields.kind == Kind::Rhythm {
                shown = local;
            }
            if shown < local && search.first(shown)? < local {
                return Some(now);
            }
            let found = search.first(shown.max(local))?;
            let tick = offset.to_timestamp(found).ok()?;
            match self.zone.following(now).next() {
                Some(set) if set.timestamp() <= tick => {
                    now = set.timestamp();
                    shown = shown.max(offset.to_datetime(now));
                }
                _ => return Some(tick),
            }
        }
        None
    }

    /// How far the clock on the wall has come before this moment: ahead of what it shows, if it was set back lately.
    fn shown_before(&self, now: jiff::Timestamp) -> DateTime {
        let before = |at: jiff::Timestamp| {
            let moment_before = at.checked_sub(SignedDuration::from_secs(1)).unwrap_or(at);
            self.zone.to_offset(moment_before).to_datetime(at)
        };
        let settings = self.zone.preceding(now).map(|set| set.timestamp());
        let lately = settings.take_while(|set| now.duration_since(*set) <= SET_BACK_MAX);
        lately.map(before).fold(before(now), DateTime::max)
    }
}

/// The expression as it was written, with one space between fields.
impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// Looks for the first time on the wall that fits, and for a rare one not again at each setting of the clock on the way to it.
struct Search<'f> {
    fields: &'f Fields,
    /// From the one on, the other is the first.
    found: Option<(DateTime, DateTime)>,
}

impl<'f> Search<'f> {
    fn new(fields: &'f Fields) -> Self {
        Self { fields, found: None }
    }

    fn first(&mut self, from: DateTime) -> Option<DateTime> {
        match self.found {
            Some((since, found)) if since <= from && from <= found => Some(found),
            _ => {
                let found = self.fields.first(from)?;
                self.found = Some((from, found));
                Some(found)
            }
        }
    }
}

fn invalid(message: String) -> Error {
    Error::new(Code::ConfigurationInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that sets its clock back by an hour at two, and forward again half an hour later: 01:00 to 02:00 comes, 01:00 to 01:30
    /// comes again, and then it is half past two.
    #[test]
    fn a_clock_that_is_set_twice_in_one_night_doubles_no_time_of_day() {
        let written = "15,45 1 * * *".to_owned();
        let text = Text::read(&written).expect("an expression");
        let cron = Cron {
            fields: Arc::new(Fields::of(&text).expect("fields")),
            zone: TimeZone::posix("AAA0BBB1,J100/2,J100/1:30").expect("a zone"),
            written,
        };
        let after = cron.moment("2026-04-09 12:00").expect("a moment");
        let ticks = cron.between(after, after + std::time::Duration::from_secs(36 * 60 * 60), 10);
        let ticks: Vec<_> = ticks.into_iter().map(|tick| cron.local(tick)).collect();
        let expected = ["2026-04-10T01:15:00+00:00", "2026-04-10T01:45:00+00:00"];
        assert_eq!(ticks, expected);
        for after in ["2026-04-10T01:45:00Z", "2026-04-10T02:05:00Z", "2026-04-10T02:30:00Z"] {
            let next = cron.next_after(cron.moment(after).expect(after));
            assert_eq!(
                next.map(|next| cron.local(next)).as_deref(),
                Some("2026-04-11T01:15:00+00:00"),
                "{after}"
            );
        }
    }
}
