//! Tables and times for people.

use std::time::Duration;

pub(crate) use steadfast_terminal::table as render;

/// A duration as a person reads it: `0.3 s`, `12 s`, `3 min 05 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f32()),
        10..60 => format!("{seconds} s"),
        _ => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_for_reading() {
        assert_eq!(seconds(Duration::from_millis(250)), "0.2 s");
        assert_eq!(seconds(Duration::from_secs(42)), "42 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 05 s");
    }
}
