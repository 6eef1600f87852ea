//! What an expression says about the clock and the calendar on the wall, without a time zone. croner knows which days fit.

use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};
use jiff::civil::{Date, DateTime, Time};

use super::text::Text;

/// How many years a search goes on. The rarest day there is, a 29 February that is a certain weekday, comes again within 40 of
/// them: around a year such as 2100, which has none.
pub(super) const HORIZON_YEARS: i16 = 41;

/// What follows when the clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The expression is about every hour, or about every so many minutes or seconds: it goes with the clock on the wall, which
    /// skips some times and shows others twice.
    Rhythm,
    /// It names times of the day, and each of them is meant once a day.
    TimesOfDay,
}

/// The values of each field, in order.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    seconds: Vec<i8>,
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: CronPattern,
    pub(super) kind: Kind,
}

impl Fields {
    /// `None` if croner cannot read it, which [`Text`] leaves no room for.
    pub(super) fn of(text: &Text) -> Option<Self> {
        let parser = CronParser::builder()
            .seconds(Seconds::Required)
            .year(Year::Disallowed)
            .build();
        let days = parser.parse(&text.fields.join(" ")).ok()?.pattern;
        let values = |field: &croner::CronComponent| field.values().into_iter().map(|value| value as i8).collect();
        let (seconds, minutes, hours): (Vec<_>, Vec<_>, Vec<_>) =
            (values(&days.seconds), values(&days.minutes), values(&days.hours));
        let [second, minute, ..] = &text.fields;
        let repeats = |field: &str, values: &[i8]| field.contains('*') && values.len() > 1;
        let is_rhythm = hours.len() == 24 || repeats(minute, &minutes) || repeats(second, &seconds);
        Some(Self {
            kind: if is_rhythm { Kind::Rhythm } else { Kind::TimesOfDay },
            seconds,
            minutes,
            hours,
            days,
        })
    }

    /// The first time from this one on that fits, of the clock and the calendar on the wall; `None` if none comes within the
    /// horizon.
    pub(super) fn first(&self, from: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        if self.has(date)
            && let Some(time) = self.time(from.time())
        {
            return Some(date.to_datetime(time));
        }
        let last = date.year().saturating_add(HORIZON_YEARS);
        let time = self.time(Time::midnight())?;
        while date.year() <= last {
            let before = if self.has_month(date) {
                date
            } else {
                date.last_of_month()
            };
            date = before.tomorrow().ok()?;
            if self.has(date) {
                return Some(date.to_datetime(time));
            }
        }
        None
    }

    fn has_month(&self, date: Date) -> bool {
        self.days.month_match(date.month() as u32).unwrap_or(false)
    }

    fn has(&self, date: Date) -> bool {
        let weekday = Weekday::from_days_from_sunday(date.weekday().to_sunday_zero_offset() as u32);
        let (year, month, day) = (i32::from(date.year()), date.month() as u32, date.day() as u32);
        self.has_month(date) && self.days.day_match(year, month, day, weekday).unwrap_or(false)
    }

    /// The first time of a day from this one on.
    fn time(&self, from: Time) -> Option<Time> {
        let (first_minute, first_second) = (*self.minutes.first()?, *self.seconds.first()?);
        let at = |hour, minute, second| Time::new(hour, minute, second, 0).ok();
        if self.hours.contains(&from.hour()) {
            if self.minutes.contains(&from.minute())
                && let Some(second) = next(&self.seconds, from.second())
            {
                return at(from.hour(), from.minute(), second);
            }
            if let Some(minute) = next(&self.minutes, from.minute() + 1) {
                return at(from.hour(), minute, first_second);
            }
        }
        at(next(&self.hours, from.hour() + 1)?, first_minute, first_second)
    }
}

/// The first of these values that is not below this one.
fn next(values: &[i8], from: i8) -> Option<i8> {
    values.iter().copied().find(|value| *value >= from)
}
