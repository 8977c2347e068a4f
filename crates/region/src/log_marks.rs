//! The bytes of a log up to some of its entries: sparse marks, from which the bytes between two
//! entries follow up to the distance of two marks.
//!
//! A log that holds no entry has no mark, so a region at rest costs nothing here.

use std::collections::VecDeque;

use crate::ids::Index;

/// The first distance of two marks, in bytes.
const STEP_BYTES: u64 = 64 << 10;
/// Marks in all. Beyond it every second one goes, and the distance doubles.
const MARKS_MAX: usize = 1024;

pub(crate) struct LogMarks {
    /// Entries, and the bytes of the log up to them, themselves included.
    marks: VecDeque<(Index, u64)>,
    /// The bytes up to the last entry.
    total: u64,
    /// The bytes up to the entry before the first.
    base: u64,
    step: u64,
}

impl Default for LogMarks {
    fn default() -> Self {
        Self { marks: VecDeque::new(), total: 0, base: 0, step: STEP_BYTES }
    }
}

impl LogMarks {
    /// The next entry of the log.
    pub(crate) fn add(&mut self, index: Index, bytes: u64) {
        self.total += bytes;
        let last = self.marks.back().map_or(self.base, |mark| mark.1);
        assert!(self.total >= last, "entry {index} ends at {}, below {last}", self.total);
        if self.total - last < self.step {
            return;
        }
        self.marks.push_back((index, self.total));
        if self.marks.len() > MARKS_MAX {
            let mut place = 0;
            self.marks.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            self.step *= 2;
        }
    }

    /// The last entry is taken back.
    pub(crate) fn take_back(&mut self, index: Index, bytes: u64) {
        assert!(self.total >= bytes, "entry {index} has {bytes} bytes of {}", self.total);
        self.total -= bytes;
        while self.marks.back().is_some_and(|mark| mark.0 >= index) {
            self.marks.pop_back();
        }
    }

    /// All entries up to `before` are gone.
    pub(crate) fn cut(&mut self, before: Index) {
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.0 <= before) {
            self.base = mark.1;
        }
    }

    /// The log holds no entry.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// About the bytes of the entries above `low` up to `high`.
    pub(crate) fn between(&self, low: Index, high: Index, last: Index) -> u64 {
        let high = if high >= last { self.total } else { self.up_to(high) };
        high.saturating_sub(self.up_to(low))
    }

    fn up_to(&self, index: Index) -> u64 {
        let marks = self.marks.partition_point(|mark| mark.0 <= index);
        marks.checked_sub(1).map_or(self.base, |at| self.marks[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn log(entries: u64, bytes: u64) -> LogMarks {
        let mut marks = LogMarks::default();
        (1..=entries).for_each(|index| marks.add(Index(index), bytes));
        marks
    }

    #[test]
    fn the_bytes_between_entries_are_known_about() {
        let mut marks = log(1000, KIB);
        let between =
            |marks: &LogMarks, low, high| marks.between(Index(low), Index(high), Index(1000));
        assert_eq!(between(&marks, 0, 1000), 1000 * KIB);
        assert!(between(&marks, 500, 1000).abs_diff(500 * KIB) <= 64 * KIB);
        assert!(between(&marks, 200, 700).abs_diff(500 * KIB) <= 64 * KIB);
        assert_eq!(between(&marks, 700, 200), 0);
        marks.cut(Index(600));
        assert!(between(&marks, 600, 1000).abs_diff(400 * KIB) <= 64 * KIB);
        for index in (901..=1000).rev() {
            marks.take_back(Index(index), KIB);
        }
        assert!(marks.between(Index(600), Index(900), Index(900)).abs_diff(300 * KIB) <= 64 * KIB);
        marks.clear();
        assert_eq!(marks.between(Index(900), Index(900), Index(900)), 0);
    }

    #[test]
    fn marks_are_bounded_and_large_logs_get_coarser_ones() {
        let entries = 10_000;
        let marks = log(entries, 100 * KIB);
        assert!(marks.marks.len() <= MARKS_MAX);
        let half = marks.between(Index(entries / 2), Index(entries), Index(entries));
        assert!(half.abs_diff(entries / 2 * 100 * KIB) <= marks.step + 100 * KIB);
        assert_eq!(log(1000, 10).marks.len(), 0, "little needs no marks");
    }
}
