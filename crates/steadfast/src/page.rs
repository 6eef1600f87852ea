//! How long a page of a list is, and how it is known that there are more.

/// How many rows a page has unless told otherwise.
pub(crate) const LENGTH: u32 = 50;

/// How many it has at the most: it is held in memory.
const LENGTH_MAX: u32 = 1_000;

/// A length that a page can have.
pub(crate) fn length(wanted: u32) -> u32 {
    wanted.clamp(1, LENGTH_MAX)
}

/// How many rows to ask for: one more than a page has says whether there are more.
pub(crate) fn rows_wanted(length: u32) -> u32 {
    length + 1
}

/// Cuts what was read to a page, and says whether there are more.
pub(crate) fn cut<T>(rows: &mut Vec<T>, length: u32) -> bool {
    let has_more = rows.len() > length as usize;
    rows.truncate(length as usize);
    has_more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_too_many_says_that_there_are_more() {
        let cut_to = |read: u32, length| {
            let mut rows: Vec<_> = (0..read).collect();
            let has_more = cut(&mut rows, length);
            (rows.len(), has_more)
        };
        assert_eq!(
            [cut_to(2, 3), cut_to(3, 3), cut_to(4, 3)],
            [(2, false), (3, false), (3, true)]
        );
        assert_eq!([length(0), length(7), length(u32::MAX)], [1, 7, LENGTH_MAX]);
    }
}
