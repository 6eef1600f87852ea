//! Middles and spreads.

/// Where a few numbers lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) quartile_1: f64,
    pub(crate) median: f64,
    pub(crate) quartile_3: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there are no numbers.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<_> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            min: *sorted.first()?,
            quartile_1: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            quartile_3: quantile(&sorted, 0.75),
            max: *sorted.last()?,
        })
    }
}

/// The middle of a few numbers; `None` if there are none.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(numbers).map(|spread| spread.median)
}

/// The number below which this part of the sorted numbers lies, interpolated between its neighbours.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// The smallest of the sorted latencies that this part of them does not exceed; 0 if there are none.
pub(crate) fn percentile(sorted: &[u32], part: f64) -> u32 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([7.0]), Some(7.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn quartiles_lie_between_their_neighbours() {
        let spread = Spread::of([5.0, 1.0, 2.0, 4.0, 3.0]);
        let expected = Spread {
            min: 1.0,
            quartile_1: 2.0,
            median: 3.0,
            quartile_3: 4.0,
            max: 5.0,
        };
        assert_eq!(spread, Some(expected));
        let between = Spread::of([1.0, 2.0, 3.0, 4.0]).map(|spread| (spread.quartile_1, spread.quartile_3));
        assert_eq!(between, Some((1.75, 3.25)));
    }

    #[test]
    fn a_percentile_is_a_latency_that_was_measured() {
        let latencies: Vec<u32> = (1..=200).collect();
        assert_eq!(percentile(&latencies, 0.5), 100);
        assert_eq!(percentile(&latencies, 0.99), 198);
        assert_eq!(percentile(&latencies, 1.0), 200);
        assert_eq!(percentile(&[], 0.5), 0);
    }
}
