//! Places: how far a client has come in each of its streams, as one text that it hands back when it returns.
//!
//! It is the `id` of server-sent events, which browsers send as `Last-Event-ID`: `topic:orders=1794988800000000,user:7=17949…`.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::name::StreamName;

/// How long a text may be that is read.
const LENGTH_MAX: usize = 8 * 1024;

/// Where a client says that it is.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Returning {
    /// It comes for the first time.
    #[default]
    Never,
    /// It has seen what is up to these numbers.
    From(HashMap<StreamName, i64>),
    /// It says something that nobody here has said to it.
    Unreadable,
}

impl Returning {
    pub(super) fn read(text: &str) -> Self {
        if text.is_empty() {
            return Self::Never;
        }
        if text.len() > LENGTH_MAX {
            return Self::Unreadable;
        }
        let places: Option<_> = text.split(',').map(read_one).collect();
        places.map_or(Self::Unreadable, Self::From)
    }
}

fn read_one(text: &str) -> Option<(StreamName, i64)> {
    let (name, number) = text.split_once('=')?;
    let number = number.parse().ok().filter(|number| *number >= 0)?;
    Some((StreamName::parse(name).ok()?, number))
}

/// Places as a text.
pub(super) fn write<'p>(places: impl Iterator<Item = (&'p StreamName, i64)>) -> String {
    let mut text = String::new();
    for (name, number) in places {
        let comma = if text.is_empty() { "" } else { "," };
        // A string takes whatever is written.
        let _ = write!(text, "{comma}{name}={number}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let places = [(StreamName::topic("orders"), 17), (StreamName::user("Zoë, 7"), 0)];
        let text = write(places.iter().map(|(name, number)| (name, *number)));
        assert_eq!(text, "topic:orders=17,user:Zo%C3%AB%2C%207=0");
        assert_eq!(Returning::read(&text), Returning::From(places.into_iter().collect()));
        assert_eq!(Returning::read(""), Returning::Never);
    }

    #[test]
    fn what_nobody_wrote_is_not_guessed() {
        for text in [
            "17",
            "topic:orders",
            "topic:orders=",
            "topic:orders=x",
            "topic:orders=-1",
            "orders=1",
            "topic:a=1,",
            "topic:a=99999999999999999999",
        ] {
            assert_eq!(Returning::read(text), Returning::Unreadable, "{text}");
        }
        assert_eq!(Returning::read(&"topic:a=1,".repeat(1_000)), Returning::Unreadable);
    }
}
