//! The newest entries of a stream, in memory: what most clients want, read once for all of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::entry::Entry;

/// How many entries are kept, and how many bytes of them.
const ENTRIES_MAX: usize = 512;
const BYTES_MAX: usize = 2 * 1024 * 1024;

/// The entries behind `floor`, up to `position`, without a gap.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    floor: i64,
    position: i64,
}

impl Ring {
    /// Nothing yet of what is behind this position.
    pub(super) fn new(position: i64) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            floor: position,
            position,
        }
    }

    /// The number of the newest entry.
    pub(super) fn position(&self) -> i64 {
        self.position
    }

    /// What is behind this number is here.
    pub(super) fn floor(&self) -> i64 {
        self.floor
    }

    /// Whether who is at this number can be told everything behind it from here.
    pub(super) fn knows(&self, number: i64) -> bool {
        (self.floor..=self.position).contains(&number)
    }

    /// Takes the next entry in. One that is there already is passed by.
    pub(super) fn add(&mut self, entry: Entry) {
        if entry.number <= self.position {
            return;
        }
        self.position = entry.number;
        self.bytes += entry.json.len();
        self.entries.push_back(Arc::new(entry));
        while self.entries.len() > ENTRIES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.json.len();
            self.floor = oldest.number;
        }
    }

    /// The entries behind this number, at most so many. `None`: some of them are not here any more.
    pub(super) fn after(&self, number: i64, limit: usize) -> Option<Vec<Arc<Entry>>> {
        if number < self.floor {
            return None;
        }
        let first = self.entries.partition_point(|entry| entry.number <= number);
        Some(self.entries.range(first..).take(limit).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: i64, length: usize) -> Entry {
        Entry {
            number,
            json: "x".repeat(length).into(),
        }
    }

    fn numbers(ring: &Ring, after: i64) -> Option<Vec<i64>> {
        let entries = ring.after(after, 1_000)?;
        Some(entries.iter().map(|entry| entry.number).collect())
    }

    #[test]
    fn a_ring_has_what_is_behind_its_floor_and_no_more_than_it_may() {
        let mut ring = Ring::new(10);
        assert_eq!(numbers(&ring, 10), Some(vec![]));
        assert_eq!(numbers(&ring, 9), None, "it does not know");
        for number in [12, 15, 15, 14] {
            ring.add(entry(number, 1));
        }
        assert_eq!(
            numbers(&ring, 10),
            Some(vec![12, 15]),
            "what is there already is passed by"
        );
        assert_eq!(numbers(&ring, 13), Some(vec![15]));
        assert_eq!(numbers(&ring, 99), Some(vec![]), "others may be ahead");
        assert!(ring.knows(10) && ring.knows(15) && !ring.knows(9) && !ring.knows(16));

        for number in 16..16 + ENTRIES_MAX as i64 {
            ring.add(entry(number, 1));
        }
        assert_eq!(numbers(&ring, 14), None);
        assert_eq!(numbers(&ring, 15).map(|numbers| numbers.len()), Some(ENTRIES_MAX));
        ring.add(entry(9_000, BYTES_MAX));
        assert_eq!(
            numbers(&ring, 8_999),
            Some(vec![9_000]),
            "it takes the room of all others"
        );
        ring.add(entry(9_001, 1));
        assert_eq!(numbers(&ring, 9_000), Some(vec![9_001]));
        assert_eq!((ring.entries.len(), ring.bytes), (1, 1));
    }
}
