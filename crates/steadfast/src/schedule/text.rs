//! A cron expression as people write it: its fields, what may stand in them, and what is refused.
//!
//! croner reads more than anybody means: `JAN` as a minute, `15W3` as `15W`, `1,,2`, a step of 90 minutes. What the guide does not
//! show is refused here, by name and with what to write instead, and croner gets numbers.

use crate::words::{did_you_mean, list};

/// Every minute and every hour, named one by one, fit.
const LENGTH_MAX: usize = 255;

const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// An expression that may be written.
#[derive(Debug)]
pub(super) struct Text {
    /// As it was written, with one space between fields.
    pub(super) written: String,
    /// Second, minute, hour, day of month, month, day of week; with numbers for names.
    pub(super) fields: [String; 6],
}

impl Text {
    /// Reads an expression. What is wrong is said with what to write instead.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.len() > LENGTH_MAX {
            return Err(format!(
                "the cron expression has {} bytes; write at most {LENGTH_MAX}",
                text.len()
            ));
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let written = words.join(" ");
        let fields = match words[..] {
            [] => Err("nothing is there; write five fields such as `0 9 * * MON-FRI`".to_owned()),
            [nickname] if nickname.starts_with('@') => expand(nickname),
            _ => read_fields(&words),
        };
        match fields {
            Ok(fields) => Ok(Self { written, fields }),
            Err(mistake) => Err(format!("in the cron expression {written:?}, {mistake}")),
        }
    }
}

fn expand(nickname: &str) -> Result<[String; 6], String> {
    let lower = nickname.to_ascii_lowercase();
    match NICKNAMES.iter().find(|(name, _)| *name == lower) {
        Some((_, fields)) => read_fields(&fields.split(' ').collect::<Vec<_>>()),
        None => {
            let known = NICKNAMES.map(|(name, _)| name);
            Err(format!(
                "{nickname:?} is not known; write {}{}",
                list(&known),
                did_you_mean(&lower, &known)
            ))
        }
    }
}

fn read_fields(words: &[&str]) -> Result<[String; 6], String> {
    let (second, rest) = match *words {
        [second, ref rest @ ..] if rest.len() == 5 => (second, rest),
        _ => ("0", words),
    };
    let [minute, hour, day, month, weekday] = *rest else {
        let fields = if words.len() == 1 { "field" } else { "fields" };
        return Err(format!(
            "there are {} {fields}; write five: minute, hour, day of month, month and day of week, or six with the second first",
            words.len()
        ));
    };
    Ok([
        SECOND.read(second)?,
        MINUTE.read(minute)?,
        HOUR.read(hour)?,
        DAY.read(day)?,
        MONTH.read(month)?,
        WEEKDAY.read(weekday)?,
    ])
}

/// What may stand in a field.
struct Field {
    name: &'static str,
    low: u16,
    high: u16,
    /// How many values are different: the weekdays 0 and 7 are not.
    span: u16,
    /// What its values are called, from the lowest on.
    names: &'static [&'static str],
}

const SECOND: Field = Field::new("second", 0, 59, &[]);
const MINUTE: Field = Field::new("minute", 0, 59, &[]);
const HOUR: Field = Field::new("hour", 0, 23, &[]);
const DAY: Field = Field::new("day of month", 1, 31, &[]);
const MONTH: Field = Field::new("month", 1, 12, &MONTHS);
const WEEKDAY: Field = Field {
    span: 7,
    ..Field::new("day of week", 0, 7, &WEEKDAYS)
};

impl Field {
    const fn new(name: &'static str, low: u16, high: u16, names: &'static [&'static str]) -> Self {
        Self {
            name,
            low,
            high,
            span: high - low + 1,
            names,
        }
    }

    fn is_day(&self) -> bool {
        self.name == DAY.name
    }

    fn is_weekday(&self) -> bool {
        self.name == WEEKDAY.name
    }

    fn read(&self, text: &str) -> Result<String, String> {
        let upper = text.to_ascii_uppercase();
        if upper == "*" || upper == "?" && (self.is_day() || self.is_weekday()) {
            return Ok("*".to_owned());
        }
        let (both, items) = match upper.strip_prefix('+') {
            Some(items) if self.is_weekday() => ("+", items),
            _ => ("", upper.as_str()),
        };
        let items: Vec<&str> = items.split(',').collect();
        if items.contains(&"L") && items.contains(&"LW") {
            return Err("`L` and `LW` are in one list; write one of them".to_owned());
        }
        let read: Vec<String> = items.iter().map(|item| self.item(item)).collect::<Result<_, _>>()?;
        Ok(format!("{both}{}", read.join(",")))
    }

    /// One item of a list, with numbers for names.
    fn item(&self, item: &str) -> Result<String, String> {
        if let Some((range, step)) = item.split_once('/') {
            let step = self.step(item, step)?;
            return match (range, range.split_once('-')) {
                ("*", _) => Ok(format!("*/{step}")),
                (_, Some((from, to))) => Ok(format!("{}/{step}", self.range(item, from, to)?)),
                _ => {
                    let from = self.value(range).ok_or_else(|| self.unknown(range))?;
                    Err(format!(
                        "the step of {item:?} has no end; write `{from}-{}/{step}`",
                        self.low + self.span - 1
                    ))
                }
            };
        }
        if let Some((from, to)) = item.split_once('-') {
            return self.range(item, from, to);
        }
        if let Some(special) = self.special(item)? {
            return Ok(special);
        }
        match item {
            "" => Err(format!(
                "a {} is missing beside a comma; write numbers with one comma between them",
                self.name
            )),
            "*" => Err(format!("`*` stands in a list of the {}; write it alone", self.name)),
            _ => {
                let value = self.value(item).ok_or_else(|| self.unknown(item))?;
                Ok(value.to_string())
            }
        }
    }

    fn step(&self, item: &str, step: &str) -> Result<u16, String> {
        match number(step) {
            Some(step) if (1..=self.span).contains(&step) => Ok(step),
            _ => Err(format!(
                "the step of {item:?} is not one of the field {}; write 1 to {}",
                self.name, self.span
            )),
        }
    }

    fn range(&self, item: &str, from: &str, to: &str) -> Result<String, String> {
        let low = self.value(from).ok_or_else(|| self.unknown(from))?;
        let high = match to {
            // The week may begin with Sunday, and end with it.
            "SUN" if self.is_weekday() => 7,
            _ => self.value(to).ok_or_else(|| self.unknown(to))?,
        };
        if low > high {
            let last = self.low + self.span - 1;
            return Err(format!(
                "{item:?} runs backwards; write `{low}-{last},{}-{high}` if it goes over the end",
                self.low
            ));
        }
        Ok(format!("{low}-{high}"))
    }

    /// What only days have: `L`, `LW` and `15W`, `5L` and `MON#2`.
    fn special(&self, item: &str) -> Result<Option<String>, String> {
        if self.is_day() {
            if item == "L" || item == "LW" {
                return Ok(Some(item.to_owned()));
            }
            if let Some(day) = item.strip_suffix('W') {
                let day = self.value(day).ok_or_else(|| self.unknown(item))?;
                return Ok(Some(format!("{day}W")));
            }
        }
        if self.is_weekday() {
            let value = |day: &str| self.value(day).map(|day| day % 7).ok_or_else(|| self.unknown(item));
            if let Some(day) = item.strip_suffix('L').filter(|day| !day.is_empty()) {
                return Ok(Some(format!("{}L", value(day)?)));
            }
            if let Some((day, nth)) = item.split_once('#') {
                let day = value(day)?;
                return match number(nth) {
                    Some(nth) if (1..=5).contains(&nth) => Ok(Some(format!("{day}#{nth}"))),
                    _ => Err(format!(
                        "{item:?} is no weekday of a month; write `#1` to `#5`, or `L` for the last"
                    )),
                };
            }
        }
        Ok(None)
    }

    fn value(&self, word: &str) -> Option<u16> {
        let named = self.names.iter().position(|name| *name == word);
        let value = match named {
            Some(place) => self.low + place as u16,
            None => number(word)?,
        };
        (self.low..=self.high).contains(&value).then_some(value)
    }

    fn unknown(&self, word: &str) -> String {
        let Self { name, low, high, .. } = self;
        let names = match self.names {
            [first, .., last] => format!(", or `{first}` to `{last}`"),
            _ => String::new(),
        };
        let is_name = word.bytes().all(|byte| byte.is_ascii_alphabetic()) && !word.is_empty();
        let meant = if is_name {
            did_you_mean(word, self.names)
        } else {
            String::new()
        };
        format!("{word:?} is no {name}; write {low} to {high}{names}{meant}")
    }
}

/// Digits and nothing else: `parse` alone would take a sign.
fn number(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> String {
        Text::read(text).expect(text).fields.join(" ")
    }

    fn mistake(text: &str) -> String {
        Text::read(text).expect_err(text)
    }

    #[test]
    fn what_may_be_written_becomes_six_fields_of_numbers() {
        for (text, expected) in [
            ("0 9 * * MON-FRI", "0 0 9 * * 1-5"),
            ("*/15 * * * *", "0 */15 * * * *"),
            ("30 0 9 * jan,Dec fri-sun", "30 0 9 * 1,12 5-7"),
            ("0 0 L * ?", "0 0 0 L * *"),
            ("0 0 LW,15W * *", "0 0 0 LW,15W * *"),
            ("0 0 * * 7L,FRI#2", "0 0 0 * * 0L,5#2"),
            ("0 0 13 * +FRI", "0 0 0 13 * +5"),
            (" 0\t0 1-31/2 * sun ", "0 0 0 1-31/2 * 0"),
            ("@Midnight", "0 0 0 * * *"),
            ("@yearly", "0 0 0 1 1 *"),
        ] {
            assert_eq!(fields(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_refused_is_named_with_its_rule_and_what_to_write() {
        for (text, expected) in [
            ("", "nothing is there; write five fields"),
            ("* * * *", "there are 4 fields; write five"),
            ("0 0 9 1 1 * 2030", "there are 7 fields; write five"),
            ("61 * * * *", "\"61\" is no minute; write 0 to 59"),
            ("JAN * * * *", "\"JAN\" is no minute; write 0 to 59"),
            ("0 24 * * *", "\"24\" is no hour; write 0 to 23"),
            ("0 0 0 * *", "\"0\" is no day of month; write 1 to 31"),
            (
                "0 0 * * MOO",
                "\"MOO\" is no day of week; write 0 to 7, or `SUN` to `SAT`; did you mean `MON`?",
            ),
            (
                "0 0 * JUNE *",
                "\"JUNE\" is no month; write 1 to 12, or `JAN` to `DEC`; did you mean `JUN`?",
            ),
            ("0 0 * * MONTUE", "\"MONTUE\" is no day of week"),
            ("0 0 15W3 * *", "\"15W3\" is no day of month"),
            ("0 0 * * L", "\"L\" is no day of week"),
            ("0 0 L,LW * *", "`L` and `LW` are in one list"),
            (
                "0 0 * * MON#6",
                "\"MON#6\" is no weekday of a month; write `#1` to `#5`",
            ),
            ("0 0 * * MON-FRI#2", "\"FRI#2\" is no day of week"),
            (
                "*/0 * * * *",
                "the step of \"*/0\" is not one of the field minute; write 1 to 60",
            ),
            (
                "*/90 * * * *",
                "the step of \"*/90\" is not one of the field minute; write 1 to 60",
            ),
            ("5/10 * * * *", "the step of \"5/10\" has no end; write `5-59/10`"),
            ("0 22-2 * * *", "\"22-2\" runs backwards; write `22-23,0-2`"),
            ("1,,2 * * * *", "a minute is missing beside a comma"),
            (", * * * *", "a minute is missing beside a comma"),
            ("*,5 * * * *", "`*` stands in a list of the minute; write it alone"),
            ("? * * * *", "\"?\" is no minute"),
            ("-5 * * * *", "\"\" is no minute"),
            ("+5 * * * *", "\"+5\" is no minute"),
            ("５ * * * *", "\"５\" is no minute"),
            ("@dayly", "did you mean `@daily`?"),
            ("@reboot", "\"@reboot\" is not known; write `@yearly`"),
        ] {
            let told = mistake(text);
            assert!(told.contains(expected), "{text}: {told}");
        }
        assert_eq!(
            mistake(&"1".repeat(100_000)),
            "the cron expression has 100000 bytes; write at most 255"
        );
    }

    #[test]
    fn the_longest_list_that_makes_sense_fits() {
        let all = |high: u16| (0..=high).map(|value| value.to_string()).collect::<Vec<_>>().join(",");
        fields(&format!("{} {} * * *", all(59), all(23)));
    }
}
