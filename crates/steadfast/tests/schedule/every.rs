//! Fixed intervals.

use std::time::{Duration, SystemTime};

use steadfast::{Code, Every};

use super::{Random, at};

#[test]
fn an_interval_is_counted_from_1970_wherever_one_begins() {
    let mut random = Random(1);
    for text in ["1s", "7s", "15m", "1h", "24h", "7d", "1500ms", "365d"] {
        let every = Every::new(text).unwrap();
        assert_eq!(every.to_string(), text.replace("24h", "1d"));
        let period = steadfast::parse_duration(text).unwrap();
        for _ in 0..1_000 {
            let after = at(random.below(4_000_000_000)) + Duration::from_micros(random.below(1_000_000));
            let next = every.next_after(after).unwrap();
            let since = next.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(since.as_micros() % period.as_micros(), 0);
            assert!(after < next && next.duration_since(after).unwrap() <= period);
            assert_eq!(every.next_after(next - Duration::from_micros(1)), Some(next));
            assert_eq!(every.next_after(next), Some(next + period));
        }
        let ticks = every.between(at(1_000_000_000), at(2_000_000_000), 10);
        assert!(
            ticks
                .windows(2)
                .all(|pair| pair[1].duration_since(pair[0]).unwrap() == period)
        );
        assert_eq!(ticks.len(), 10);
    }
    let every = Every::new("1h").unwrap();
    assert_eq!(every.between(at(0), at(7_200), 10), [at(3_600), at(7_200)]);
    assert_eq!(every.between(at(0), at(7_199), 10), [at(3_600)]);
    assert_eq!(
        every.next_after(SystemTime::UNIX_EPOCH - Duration::from_secs(5)),
        Some(at(3_600))
    );
}

#[test]
fn an_interval_that_is_no_schedule_is_refused() {
    for interval in ["0s", "999ms", "366d", "soon", "", "99999999999999999d"] {
        let error = Every::new(interval).unwrap_err();
        assert_eq!(error.code(), Code::ConfigurationInvalid);
        assert!(error.to_string().contains("; write "), "{error}");
    }
    assert!(Every::new(Duration::from_nanos(1_500_000_001)).is_err());
}
