//! Where each entry of one group lies, its terms, and the group's keys with their values.
//!
//! The index is rebuilt at start and never stored. Entries that were appended together are one run;
//! a run names the item on disk that holds them, of which some may no longer be live.
//!
//! Invariants:
//! - Runs follow one another without holes.
//! - The ledger counts exactly what the index names.
//! - While segments are replayed there may be holes: entries that were compacted later and whose
//!   segments are gone, and such as were moved and come later. At the end there is none.

use crate::batch::Append;
use crate::error::Error;
use crate::ledger::{Ledger, Live};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// What one key or mark takes in the log beside its own bytes, about.
const RECORD_BYTES: u64 = 8;

/// One group, in memory.
#[derive(Debug, Default)]
pub(crate) struct GroupIndex {
    /// The first index there is or, if the log is empty, the next. Zero: the log has not begun.
    first: u64,
    mark: Option<Mark>,
    runs: VecDeque<Run>,
    /// First index and term of each run of entries with one term.
    terms: VecDeque<(u64, u64)>,
    keys: BTreeMap<Bytes, Value>,
}

/// The newest compaction, from which the group knows where its log begins.
#[derive(Clone, Copy, Debug)]
struct Mark {
    first: u64,
    term_before: u64,
    segment: u64,
}

#[derive(Debug)]
struct Value {
    bytes: Bytes,
    segment: u64,
}

/// Entries that lie together: `first .. first + live`, part of an item of `total` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) segment: u64,
    pub(crate) offset: u32,
    pub(crate) item_bytes: u32,
    live: u32,
    total: u32,
}

impl Run {
    fn of(append: &Append, segment: u64, frame_offset: u32) -> Run {
        let count = u32::try_from(append.count).expect("a batch has less than 2^32 entries");
        Run {
            first: append.first,
            segment,
            offset: frame_offset + append.offset,
            item_bytes: append.item_bytes,
            live: count,
            total: count,
        }
    }

    /// The index after its last entry.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.live)
    }

    /// Whether both are parts of the same append.
    pub(crate) fn is_same_item(&self, other: &Run) -> bool {
        (self.segment, self.offset) == (other.segment, other.offset)
    }

    fn holds(&self) -> Live {
        let bytes = u64::from(self.item_bytes) * u64::from(self.live) / u64::from(self.total);
        Live { entries: u64::from(self.live), keys: 0, bytes }
    }

    /// Lets go of entries so that `live` are left, counted from `first`.
    fn shrink(&mut self, first: u64, live: u32, ledger: &mut Ledger) {
        ledger.release(self.segment, self.holds());
        *self = Run { first, live, ..*self };
        if live > 0 {
            ledger.hold(self.segment, self.holds());
        }
    }
}

impl GroupIndex {
    pub(crate) fn has_begun(&self) -> bool {
        self.first > 0
    }

    /// Whether a compaction says where the log begins.
    pub(crate) fn is_compacted(&self) -> bool {
        self.mark.is_some()
    }

    /// The first index there is; one more than the last if the log is empty.
    pub(crate) fn first(&self) -> u64 {
        self.first.max(1)
    }

    /// The index after the last entry.
    pub(crate) fn next(&self) -> u64 {
        self.runs.back().map_or(self.first(), Run::end)
    }

    /// Nothing is left that a restart would bring back.
    pub(crate) fn is_forgotten(&self) -> bool {
        !self.has_begun() && self.keys.is_empty()
    }

    pub(crate) fn term(&self, index: u64) -> Result<u64, Error> {
        let (first, next) = (self.first(), self.next());
        if index >= next && index >= first {
            return Err(Error::Unavailable { last: next - 1 });
        }
        if index >= first {
            let after = self.terms.partition_point(|(from, _)| *from <= index);
            return Ok(self.terms[after - 1].1);
        }
        match self.mark {
            Some(mark) if index + 1 == first && mark.first == first => Ok(mark.term_before),
            _ if index == 0 && first == 1 => Ok(0),
            _ => Err(Error::Compacted { first }),
        }
    }

    pub(crate) fn term_runs(&self) -> Vec<(u64, u64)> {
        self.terms.iter().copied().collect()
    }

    /// The run that holds the entry, which must be there.
    pub(crate) fn run_at(&self, index: u64) -> Run {
        assert!(self.first() <= index && index < self.next(), "entry {index} is not in the index");
        self.runs[self.runs.partition_point(|run| run.end() <= index)]
    }

    /// Up to `count_max` runs, from the one that holds `index` on.
    pub(crate) fn runs_from(&self, index: u64, count_max: usize) -> Vec<Run> {
        let from = self.runs.partition_point(|run| run.end() <= index);
        self.runs.range(from..).take(count_max).copied().collect()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.keys.get(key).map(|value| value.bytes.clone())
    }

    pub(crate) fn scan(&self) -> Vec<(Bytes, Bytes)> {
        self.keys.iter().map(|(key, value)| (key.clone(), value.bytes.clone())).collect()
    }

    /// Whether entries, and whether keys or the mark, hold a segment up to `segment`.
    pub(crate) fn holds(&self, segment: u64) -> (bool, bool) {
        let entries = self.runs.iter().any(|run| run.segment <= segment);
        let keys = self.mark.is_some_and(|mark| mark.segment <= segment)
            || self.keys.values().any(|value| value.segment <= segment);
        (entries, keys)
    }

    /// Memory that the index takes for the group, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let keys = self.keys.iter().map(|(k, v)| k.len() + v.bytes.len() + 96).sum::<usize>();
        (size_of::<GroupIndex>()
            + self.runs.capacity() * size_of::<Run>()
            + self.terms.capacity() * size_of::<(u64, u64)>()
            + keys) as u64
    }

    /// # Errors
    ///
    /// The append does not fit the log. A write was checked before, so this is a fault of the
    /// bytes that are replayed.
    pub(crate) fn append(
        &mut self,
        append: &Append,
        segment: u64,
        frame_offset: u32,
        ledger: &mut Ledger,
    ) -> Result<(), &'static str> {
        let first = append.first;
        if self.mark.is_some_and(|mark| first < mark.first) {
            return Err("an append below the first index");
        }
        if first > self.next() && self.has_begun() && !self.runs.is_empty() {
            return Err("an append that leaves a hole");
        }
        if !self.has_begun() || (first < self.first && self.mark.is_none()) {
            // A new log; or a replay that began in the middle of one, and learns now that it had
            // begun earlier. What it had seen is replaced by this append.
            self.truncate(first, ledger);
            self.first = first;
        }
        self.truncate(first, ledger);
        let run = Run::of(append, segment, frame_offset);
        ledger.hold(segment, run.holds());
        self.runs.push_back(run);
        let mut from = first;
        for (count, term) in &append.terms {
            self.push_term(from, *term);
            from += count;
        }
        Ok(())
    }

    /// Puts entries where they lie now. They take the place of those with their indexes.
    ///
    /// # Errors
    ///
    /// As [`GroupIndex::append`].
    pub(crate) fn place(
        &mut self,
        append: &Append,
        segment: u64,
        frame_offset: u32,
        ledger: &mut Ledger,
    ) -> Result<(), &'static str> {
        if self.mark.is_some_and(|mark| append.first < mark.first) {
            return Err("entries below the first index are moved");
        }
        let moved = Run::of(append, segment, frame_offset);
        let mut runs = VecDeque::with_capacity(self.runs.len() + 1);
        for run in std::mem::take(&mut self.runs) {
            ledger.release(run.segment, run.holds());
            let before =
                Run { live: run.end().min(moved.first).saturating_sub(run.first) as u32, ..run };
            let first = run.first.max(moved.end());
            let behind = Run { first, live: run.end().saturating_sub(first) as u32, ..run };
            runs.extend([before, behind].into_iter().filter(|run| run.live > 0));
        }
        let at = runs.partition_point(|run| run.first < moved.first);
        runs.insert(at, moved);
        for run in &runs {
            ledger.hold(run.segment, run.holds());
        }
        self.runs = runs;
        self.place_terms(append);
        if !self.has_begun() || append.first < self.first {
            self.first = append.first;
        }
        Ok(())
    }

    fn place_terms(&mut self, append: &Append) {
        let end = append.first + append.count;
        let before = self.terms.partition_point(|(first, _)| *first < append.first);
        let behind = self.terms.partition_point(|(first, _)| *first <= end);
        let last = behind.checked_sub(1).map(|at| (end, self.terms[at].1));
        let behind: Vec<_> = last.into_iter().chain(self.terms.range(behind..).copied()).collect();
        self.terms.truncate(before);
        let mut from = append.first;
        for (count, term) in &append.terms {
            self.push_term(from, *term);
            from += count;
        }
        if self.next() > end {
            behind.into_iter().for_each(|(first, term)| self.push_term(first, term));
        }
    }

    fn push_term(&mut self, first: u64, term: u64) {
        if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((first, term));
        }
    }

    /// Drops the entries from `from` on. Nothing being left, a log that was never compacted has not
    /// begun.
    pub(crate) fn truncate_from(&mut self, from: u64, ledger: &mut Ledger) {
        self.truncate(from, ledger);
        if self.runs.is_empty() && self.mark.is_none() {
            self.first = 0;
        }
    }

    /// Drops the entries below `first`; all of them and the order, if `first` is beyond the end.
    /// It is never below the first index, but may be below the first that a replay has seen so far.
    pub(crate) fn compact(
        &mut self,
        first: u64,
        term_before: u64,
        segment: u64,
        ledger: &mut Ledger,
    ) {
        self.drop_prefix(first, ledger);
        self.first = first;
        self.release_mark(ledger);
        ledger.hold(segment, Mark::HOLDS);
        self.mark = Some(Mark { first, term_before, segment });
    }

    pub(crate) fn put(&mut self, key: &Bytes, value: &Bytes, segment: u64, ledger: &mut Ledger) {
        self.delete(key, ledger);
        let value = Value { bytes: value.clone(), segment };
        ledger.hold(segment, value.holds(key));
        self.keys.insert(key.clone(), value);
    }

    pub(crate) fn delete(&mut self, key: &Bytes, ledger: &mut Ledger) {
        if let Some(old) = self.keys.remove(key) {
            ledger.release(old.segment, old.holds(key));
        }
    }

    /// Forgets everything.
    pub(crate) fn remove(&mut self, ledger: &mut Ledger) {
        self.truncate(0, ledger);
        self.release_mark(ledger);
        for (key, value) in std::mem::take(&mut self.keys) {
            ledger.release(value.segment, value.holds(&key));
        }
        *self = GroupIndex::default();
    }

    /// Called when all segments are replayed. A hole behind the mark that no later compaction has
    /// covered never held anything: the mark is of a compaction below the log's first index, which
    /// changed nothing, and the append that it came after is purged. The log begins with its run.
    pub(crate) fn settle_replayed(&mut self, ledger: &mut Ledger) {
        if let Some(run) = self.runs.front().filter(|run| run.first > self.first) {
            self.first = run.first;
            self.release_mark(ledger);
        }
    }

    /// Drops the entries from `from` on.
    fn truncate(&mut self, from: u64, ledger: &mut Ledger) {
        while let Some(run) = self.runs.back_mut().filter(|run| run.end() > from) {
            let live = from.saturating_sub(run.first) as u32;
            run.shrink(run.first, live, ledger);
            if live > 0 {
                break;
            }
            self.runs.pop_back();
        }
        while self.terms.back().is_some_and(|(first, _)| *first >= from) {
            self.terms.pop_back();
        }
    }

    /// Drops the entries below `first`.
    fn drop_prefix(&mut self, first: u64, ledger: &mut Ledger) {
        while let Some(run) = self.runs.front_mut().filter(|run| run.first < first) {
            let live = run.end().saturating_sub(first) as u32;
            run.shrink(first, live, ledger);
            if live > 0 {
                break;
            }
            self.runs.pop_front();
        }
        if self.runs.is_empty() {
            self.terms.clear();
        }
        while self.terms.get(1).is_some_and(|(second, _)| *second <= first) {
            self.terms.pop_front();
        }
        if let Some(front) = self.terms.front_mut() {
            front.0 = front.0.max(first);
        }
    }

    fn release_mark(&mut self, ledger: &mut Ledger) {
        if let Some(old) = self.mark.take() {
            ledger.release(old.segment, Mark::HOLDS);
        }
    }
}

impl Mark {
    const HOLDS: Live = Live { entries: 0, keys: 1, bytes: RECORD_BYTES };
}

impl Value {
    fn holds(&self, key: &Bytes) -> Live {
        let bytes = RECORD_BYTES + key.len() as u64 + self.bytes.len() as u64;
        Live { entries: 0, keys: 1, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group and its ledger; each append is an item of its own, ten bytes an entry.
    #[derive(Default)]
    struct Fixture {
        index: GroupIndex,
        ledger: Ledger,
    }

    impl Fixture {
        fn append(
            &mut self,
            segment: u64,
            first: u64,
            terms: &[(u64, u64)],
        ) -> Result<(), &'static str> {
            let count = terms.iter().map(|(count, _)| count).sum::<u64>();
            let (terms, item_bytes) = (terms.to_vec(), count as u32 * 10);
            let append = Append { group: 1, first, count, terms, offset: 40, item_bytes };
            self.index.append(&append, segment, first as u32 * 100, &mut self.ledger)
        }

        fn compact(&mut self, segment: u64, first: u64, term_before: u64) {
            self.index.compact(first, term_before, segment, &mut self.ledger);
        }

        /// First and end of each run.
        fn runs(&self) -> Vec<(u64, u64)> {
            self.index.runs.iter().map(|run| (run.first, run.end())).collect()
        }
    }

    #[test]
    fn an_append_replaces_the_suffix() {
        let mut f = Fixture::default();
        f.append(1, 5, &[(2, 1), (2, 2)]).expect("it fits");
        f.append(2, 9, &[(3, 2)]).expect("it fits");
        assert_eq!(f.index.term_runs(), [(5, 1), (7, 2)]);
        f.append(3, 8, &[(1, 3)]).expect("it fits");
        assert_eq!(f.runs(), [(5, 8), (8, 9)]);
        assert_eq!(f.index.term_runs(), [(5, 1), (7, 2), (8, 3)]);
        assert!(f.ledger.is_dead(2) && !f.ledger.is_dead(1));
        assert_eq!(f.ledger.live_bytes(), 40);
        f.append(3, 5, &[(1, 4)]).expect("it fits");
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 6)], vec![(5, 4)]));
        assert!(f.ledger.is_dead(1));
        assert!(f.append(4, 7, &[(1, 4)]).is_err(), "a hole");
    }

    #[test]
    fn a_log_that_was_never_compacted_is_truncated_to_nothing() {
        let mut f = Fixture::default();
        f.append(1, 5, &[(4, 1)]).expect("it fits");
        f.index.truncate_from(7, &mut f.ledger);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 7)], vec![(5, 1)]));
        f.index.truncate_from(5, &mut f.ledger);
        assert!(f.index.is_forgotten() && f.ledger.is_dead(1));
        f.append(2, 3, &[(4, 1)]).expect("it begins anew");
        f.compact(2, 5, 1);
        f.index.truncate_from(5, &mut f.ledger);
        assert_eq!((f.index.first(), f.index.next(), f.index.is_forgotten()), (5, 5, false));
        assert_eq!(f.index.term(4).expect("the compaction knows"), 1);
    }

    #[test]
    fn a_move_takes_the_place_of_what_is_there_or_fills_a_hole() {
        let moved = |f: &mut Fixture, segment, first, terms: &[(u64, u64)]| {
            let count = terms.iter().map(|(count, _)| count).sum::<u64>();
            let (terms, item_bytes) = (terms.to_vec(), count as u32 * 10);
            let append = Append { group: 1, first, count, terms, offset: 40, item_bytes };
            f.index.place(&append, segment, 7000, &mut f.ledger).expect("it fits");
        };
        let mut f = Fixture::default();
        f.append(1, 5, &[(2, 1), (2, 2)]).expect("it fits");
        f.append(2, 9, &[(3, 2), (1, 3)]).expect("it fits");
        let terms = f.index.term_runs();
        moved(&mut f, 3, 5, &[(2, 1), (2, 2)]);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 9), (9, 13)], terms.clone()));
        assert!(f.ledger.is_dead(1));
        moved(&mut f, 4, 10, &[(2, 2)]);
        assert_eq!(f.runs(), [(5, 9), (9, 10), (10, 12), (12, 13)]);
        assert_eq!(f.index.term_runs(), terms);
        assert_eq!(
            (f.index.holds(2).0, f.index.holds(1).0, f.ledger.live_bytes()),
            (true, false, 80)
        );
        moved(&mut f, 5, 9, &[(3, 2), (1, 3)]);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 9), (9, 13)], terms.clone()));
        // As a restart sees it once the first two segments are gone.
        let mut f = Fixture::default();
        moved(&mut f, 5, 9, &[(3, 2), (1, 3)]);
        moved(&mut f, 6, 5, &[(2, 1), (2, 2)]);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 9), (9, 13)], terms));
        assert_eq!((f.index.first(), f.index.next()), (5, 13));
    }

    #[test]
    fn compaction_cuts_runs_and_terms() {
        let mut f = Fixture::default();
        f.append(1, 1, &[(4, 1), (4, 2)]).expect("it fits");
        f.append(2, 9, &[(2, 3)]).expect("it fits");
        f.compact(3, 3, 1);
        assert_eq!((f.index.first(), f.runs()), (3, vec![(3, 9), (9, 11)]));
        assert_eq!(f.index.term_runs(), [(3, 1), (5, 2), (9, 3)]);
        assert_eq!(f.index.term(2).expect("kept"), 1);
        f.compact(3, 6, 2);
        assert_eq!(f.index.term_runs(), [(6, 2), (9, 3)]);
        assert_eq!((f.index.first(), f.index.term(5).expect("kept")), (6, 2));
        assert_eq!(f.index.holds(1), (true, false));
        f.compact(4, 9, 2);
        assert!(f.ledger.is_dead(1) && f.ledger.is_dead(3));
        assert_eq!(f.index.holds(3), (true, false));
        assert_eq!(f.index.holds(4), (true, true));
        f.compact(5, 40, 3);
        assert_eq!((f.index.first(), f.index.next()), (40, 40));
        assert!(f.index.term_runs().is_empty() && f.ledger.is_dead(2) && f.ledger.is_dead(4));
        assert!(f.append(5, 39, &[(1, 4)]).is_err(), "below the first");
    }

    #[test]
    fn removal_lets_go_of_everything() {
        let mut f = Fixture::default();
        f.append(1, 1, &[(4, 1)]).expect("it fits");
        f.compact(2, 2, 1);
        f.index.put(&"k".into(), &"one".into(), 3, &mut f.ledger);
        f.index.put(&"k".into(), &"two".into(), 4, &mut f.ledger);
        assert!(f.ledger.is_dead(3) && !f.ledger.is_dead(4));
        f.index.remove(&mut f.ledger);
        assert!(f.index.is_forgotten());
        assert_eq!(f.ledger.live_bytes(), 0);
        assert!((1..5).all(|segment| f.ledger.is_dead(segment)));
    }

    #[test]
    fn a_hole_in_a_replay_is_covered_or_never_held_anything() {
        let mut f = Fixture::default();
        f.compact(4, 50, 1);
        f.append(4, 101, &[(10, 2)]).expect("entries up to 100 lay in segments that are gone");
        f.append(5, 90, &[(5, 3)]).expect("it replaces what was seen, and more");
        f.compact(5, 91, 3);
        f.index.settle_replayed(&mut f.ledger);
        assert_eq!((f.index.first(), f.runs()), (91, vec![(91, 95)]));
        assert_eq!(f.index.term(90).expect("the covering compaction knows"), 3);

        let mut f = Fixture::default();
        f.compact(4, 50, 1);
        f.append(4, 101, &[(10, 2)]).expect("the compaction was below the log's beginning");
        f.index.settle_replayed(&mut f.ledger);
        assert_eq!((f.index.first(), f.runs()), (101, vec![(101, 111)]));
        assert!(f.index.term(100).is_err() && f.index.term(49).is_err());

        let mut f = Fixture::default();
        f.append(4, 101, &[(10, 2)]).expect("entries up to 100 lay in segments that are gone");
        f.compact(4, 90, 1);
        f.append(5, 90, &[(15, 3)]).expect("it replaces what was seen, and more");
        f.index.settle_replayed(&mut f.ledger);
        assert_eq!((f.index.first(), f.runs()), (90, vec![(90, 105)]));
        assert_eq!(f.index.term(89).expect("the compaction knows"), 1);

        let mut f = Fixture::default();
        f.append(4, 101, &[(10, 2)]).expect("a log may begin anywhere");
        f.append(4, 90, &[(5, 3)]).expect("it had begun earlier");
        f.index.settle_replayed(&mut f.ledger);
        assert_eq!((f.index.first(), f.runs()), (90, vec![(90, 95)]));
    }
}
