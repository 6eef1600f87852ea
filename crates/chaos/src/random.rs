//! Chance that can be repeated.

use std::time::Duration;

/// The same numbers for the same seed, on every machine (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    /// One of many streams of a seed: each client and each kind of accident has its own, so that none depends on how
    /// far the others are.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mixed = (seed ^ stream.rotate_left(32))
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = Self(mixed.max(1));
        // Neighbouring seeds begin alike.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// Another stream, for something that goes on at the same time.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next(), 0)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        // The lower half of these is the weaker one.
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// From zero up to, but not, one.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() % (1 << 32)) as f64 / (1_u64 << 32) as f64
    }

    /// Whether something of this probability happens.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.fraction() < probability
    }

    /// From zero up to, but not, `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }

    /// One of several; there must be one.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A time between two.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_repeats_itself_and_no_other() {
        let numbers = |seed, stream| {
            let mut random = Random::new(seed, stream);
            std::array::from_fn::<_, 8, _>(|_| random.next())
        };
        assert_eq!(numbers(7, 1), numbers(7, 1));
        assert_ne!(numbers(7, 1), numbers(7, 2));
        assert_ne!(numbers(7, 1), numbers(8, 1));
    }

    #[test]
    fn chances_are_about_as_large_as_asked() {
        let mut random = Random::new(1, 1);
        let hits = (0..10_000).filter(|_| random.chance(0.2)).count();
        assert!((1_800..2_200).contains(&hits), "{hits}");
    }
}
