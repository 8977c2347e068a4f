//! The index of one group: the location and term of each entry, and the keys with their values.
//!
//! The index is rebuilt at start and never stored.
//!
//! Invariants:
//! - Entries follow one another without holes, from the first index on. While segments are replayed
//!   there may be holes, also one between the first index and the first entry; at the end none.
//! - If there is a newest compaction, it made the first index what it is.
//! - The segment usage counts exactly the records that the index names.

use crate::batch::frame::Append;
use crate::batch::frame::EntryRun;
use crate::error::Error;
use crate::index::extents::{EntryRuns, Extents};
use crate::index::key_map::KeyMap;
use crate::index::segment_usage::{LiveUsage, SegmentUsage};
use crate::index::summary::GroupChanges;
use bytes::Bytes;

/// The header bytes of a key or compaction in the log, about.
pub(crate) const RECORD_BYTES: u64 = 8;

/// One group, in memory.
#[derive(Debug, Default)]
pub(crate) struct GroupIndex {
    /// The first index there is or, if the log is empty, the next. Zero: the log has not begun.
    pub(super) first: u64,
    pub(super) compaction: NewestCompaction,
    pub(super) extents: Extents,
    pub(super) keys: KeyMap<StoredValue>,
}

/// The newest compaction, from which the group knows where its log begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewestCompaction {
    pub(super) term_before: u64,
    /// Zero if there was none.
    pub(super) segment: u64,
}

#[derive(Debug)]
pub(super) struct StoredValue {
    pub(super) bytes: Box<[u8]>,
    pub(super) segment: u64,
}

impl GroupIndex {
    pub(crate) fn has_begun(&self) -> bool {
        self.first > 0
    }

    /// Whether the log begins at a compaction.
    pub(crate) fn is_compacted(&self) -> bool {
        self.compaction.segment > 0
    }

    /// The first index there is; one more than the last if the log is empty.
    pub(crate) fn first(&self) -> u64 {
        self.first.max(1)
    }

    /// The index after the last entry.
    pub(crate) fn next(&self) -> u64 {
        self.extents.end().unwrap_or_else(|| self.first())
    }

    /// Whether nothing is left that a restart would bring back.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_begun() && self.keys.is_empty()
    }

    pub(crate) fn term(&self, index: u64) -> Result<u64, Error> {
        let (first, next) = (self.first(), self.next());
        if index >= next && index >= first {
            return Err(Error::Unavailable { last: next - 1 });
        }
        if index >= first {
            return Ok(self.extents.term(index));
        }
        match self.compaction {
            NewestCompaction { segment: 1.., term_before } if index + 1 == first => Ok(term_before),
            _ if index == 0 && first == 1 => Ok(0),
            _ => Err(Error::Compacted { first }),
        }
    }

    pub(crate) fn term_runs(&self) -> Vec<(u64, u64)> {
        self.extents.term_runs().to_vec()
    }

    /// The run that holds the entry, which must be there.
    pub(crate) fn run_at(&self, index: u64) -> EntryRun {
        assert!(self.first() <= index && index < self.next(), "entry {index} is not in the index");
        self.extents.runs_from(index).next().expect("each entry lies in a run")
    }

    /// The runs from the one that holds `index` on.
    pub(crate) fn runs_from(&self, index: u64) -> EntryRuns<'_> {
        self.extents.runs_from(index)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.keys.get(key).map(|value| Bytes::copy_from_slice(&value.bytes))
    }

    pub(crate) fn scan(&self) -> Vec<(Bytes, Bytes)> {
        let copy = Bytes::copy_from_slice;
        self.keys.iter().map(|(key, value)| (copy(key), copy(&value.bytes))).collect()
    }

    /// The live records of the group in a segment. Costs a look at each stretch of entries and each
    /// key.
    pub(crate) fn live_in(&self, segment: u64) -> LiveUsage {
        let mut held = LiveUsage::default();
        self.each_live(|of, live| {
            if of == segment {
                held.add(live);
            }
        });
        held
    }

    /// The live records of the group by segment; a segment may come more than once.
    pub(crate) fn each_live(&self, mut add: impl FnMut(u64, LiveUsage)) {
        self.extents.live().for_each(|(of, live)| add(of, live));
        self.keys.iter().for_each(|(key, value)| add(value.segment, value.holds(key)));
        if self.compaction.segment > 0 {
            add(self.compaction.segment, NewestCompaction::HOLDS);
        }
    }

    /// Bytes in the log of all items with live entries.
    pub(crate) fn entry_bytes(&self) -> u64 {
        self.extents.bytes()
    }

    /// Memory that the index takes for the group, itself included.
    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of::<GroupIndex>() as u64
            + self.extents.memory_bytes()
            + self.keys.memory_bytes(|value| value.bytes.len())
    }

    /// # Errors
    ///
    /// The append does not fit the log. Writes are checked at admission, so this is a fault of the
    /// bytes that are replayed.
    pub(crate) fn append(
        &mut self,
        append: &Append,
        segment: u64,
        frame_offset: u32,
        usage: &mut SegmentUsage,
    ) -> Result<(), &'static str> {
        let first = append.first;
        self.check(first)?;
        self.truncate(first, usage);
        if !self.has_begun() || first < self.first {
            // A new log; or a replay that began in the middle of one, and learns now that it had
            // begun earlier. This append replaces the entries that it had seen.
            self.first = first;
        }
        let run = append.run(segment, frame_offset);
        usage.hold(
            segment,
            LiveUsage { entries: append.count, keys: 0, bytes: run.item_bytes.into() },
        );
        self.extents.push(run, &append.terms);
        debug_assert_eq!(self.next(), first + append.count, "an append is the end of its log");
        Ok(())
    }

    /// Gives entries a new location, in the place of those with the same indexes.
    ///
    /// # Errors
    ///
    /// As [`GroupIndex::append`].
    pub(crate) fn relocate(
        &mut self,
        append: &Append,
        segment: u64,
        frame_offset: u32,
        usage: &mut SegmentUsage,
    ) -> Result<(), &'static str> {
        let mut moved = Extents::default();
        moved.push(append.run(segment, frame_offset), &append.terms);
        self.relocate_stretch(moved, usage)
    }

    fn relocate_stretch(
        &mut self,
        stretch: Extents,
        usage: &mut SegmentUsage,
    ) -> Result<(), &'static str> {
        let Some(first) = stretch.first() else { return Ok(()) };
        self.check(first)?;
        stretch.live().for_each(|(segment, live)| usage.hold(segment, live));
        self.extents.relocate(stretch, |segment, live| usage.release(segment, live))?;
        if !self.has_begun() || first < self.first {
            self.first = first;
        }
        Ok(())
    }

    fn check(&self, index: u64) -> Result<(), &'static str> {
        if self.is_compacted() && index < self.first {
            return Err("a change below the first index of its group");
        }
        Ok(())
    }

    /// Drops the entries from `from` on. If none is left, a log that was never compacted has not
    /// begun.
    pub(crate) fn truncate_from(&mut self, from: u64, usage: &mut SegmentUsage) {
        self.truncate(from, usage);
        debug_assert!(self.extents.end().is_none_or(|end| end <= from), "cut at {from}");
        if self.extents.is_empty() && !self.is_compacted() {
            self.first = 0;
        }
    }

    /// Drops the entries below `first`, all of them if `first` is beyond the end. It is never below
    /// the first index, but may be below the first that a replay has seen so far.
    pub(crate) fn compact(
        &mut self,
        first: u64,
        term_before: u64,
        segment: u64,
        usage: &mut SegmentUsage,
    ) {
        assert!(first > 0, "a log begins at 1 at least");
        self.extents.drop_prefix(first, |segment, live| usage.release(segment, live));
        self.first = first;
        debug_assert!(self.next() >= first, "entries to {} behind a cut at {first}", self.next());
        self.release_compaction(usage);
        usage.hold(segment, NewestCompaction::HOLDS);
        self.compaction = NewestCompaction { term_before, segment };
    }

    pub(crate) fn put(&mut self, key: &[u8], bytes: &[u8], segment: u64, usage: &mut SegmentUsage) {
        let value = StoredValue { bytes: bytes.into(), segment };
        usage.hold(segment, value.holds(key));
        if let Some(old) = self.keys.insert(key, value) {
            usage.release(old.segment, old.holds(key));
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8], usage: &mut SegmentUsage) {
        if let Some(old) = self.keys.remove(key) {
            usage.release(old.segment, old.holds(key));
        }
    }

    /// Drops everything.
    pub(crate) fn remove(&mut self, usage: &mut SegmentUsage) {
        self.truncate(0, usage);
        self.release_compaction(usage);
        for (key, value) in self.keys.iter() {
            usage.release(value.segment, value.holds(key));
        }
        *self = GroupIndex::default();
    }

    /// Applies the net change of the group in a segment.
    ///
    /// # Errors
    ///
    /// The changes do not fit those of the segments before.
    pub(crate) fn merge(
        &mut self,
        mut changes: GroupChanges,
        segment: u64,
        usage: &mut SegmentUsage,
    ) -> Result<(), &'static str> {
        if changes.is_removed {
            self.remove(usage);
        }
        if let Some(from) = changes.cut_from() {
            self.check(from)?;
            self.truncate_from(from, usage);
        }
        if let Some(compaction) = changes.compaction() {
            self.check(compaction.first)?;
            self.compact(compaction.first, compaction.term_before, segment, usage);
        }
        changes.extents.set_segment(segment);
        while !changes.extents.is_empty() {
            self.relocate_stretch(changes.extents.take_stretch(), usage)?;
        }
        for (key, value) in changes.keys.iter() {
            match value {
                Some(value) => self.put(key, value, segment, usage),
                None => self.delete(key, usage),
            }
        }
        Ok(())
    }

    /// Called when all segments are replayed. Holes that are left then have lost their entries: a
    /// purge removes only records that a later change hides, and that change has been replayed as
    /// well.
    ///
    /// # Errors
    ///
    /// Entries are missing.
    pub(crate) fn check_replayed(&self) -> Result<(), &'static str> {
        if self.extents.has_hole() {
            return Err("entries are missing in the middle of a group's log");
        }
        if self.extents.first().is_some_and(|first| first != self.first) {
            return Err("entries are missing behind a group's compaction");
        }
        Ok(())
    }

    /// Drops the entries from `from` on.
    fn truncate(&mut self, from: u64, usage: &mut SegmentUsage) {
        self.extents.truncate(from, |segment, live| usage.release(segment, live));
    }

    fn release_compaction(&mut self, usage: &mut SegmentUsage) {
        if self.compaction.segment > 0 {
            usage.release(self.compaction.segment, NewestCompaction::HOLDS);
        }
        self.compaction = NewestCompaction::default();
    }
}

impl NewestCompaction {
    const HOLDS: LiveUsage = LiveUsage { entries: 0, keys: 1, bytes: RECORD_BYTES };
}

impl StoredValue {
    fn holds(&self, key: &[u8]) -> LiveUsage {
        let bytes = RECORD_BYTES + key.len() as u64 + self.bytes.len() as u64;
        LiveUsage { entries: 0, keys: 1, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group and its segment usage; each append is an item of its own, ten bytes an entry.
    #[derive(Default)]
    struct Fixture {
        index: GroupIndex,
        usage: SegmentUsage,
    }

    impl Fixture {
        fn append(
            &mut self,
            segment: u64,
            first: u64,
            terms: &[(u64, u64)],
        ) -> Result<(), &'static str> {
            let count = terms.iter().map(|(count, _)| count).sum::<u64>();
            let (terms, item_bytes) = (terms.into(), count as u32 * 10);
            let append = Append { group: 1, first, count, terms, offset: 40, item_bytes };
            self.index.append(&append, segment, first as u32 * 100, &mut self.usage)
        }

        fn compact(&mut self, segment: u64, first: u64, term_before: u64) {
            self.index.compact(first, term_before, segment, &mut self.usage);
        }

        /// First and end of each run.
        fn runs(&self) -> Vec<(u64, u64)> {
            self.index.extents.runs_from(0).map(|run| (run.first, run.end)).collect()
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
        assert!(f.usage.is_dead(2) && !f.usage.is_dead(1));
        assert_eq!(f.usage.live_bytes(), 50, "an item of which some is live counts whole");
        f.append(3, 5, &[(1, 4)]).expect("it fits");
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 6)], vec![(5, 4)]));
        assert!(f.usage.is_dead(1));
        f.append(4, 7, &[(1, 4)]).expect("what is between may be moved here later");
        assert!(f.index.check_replayed().is_err(), "nothing was");
    }

    #[test]
    fn a_log_that_was_never_compacted_is_truncated_to_nothing() {
        let mut f = Fixture::default();
        f.append(1, 5, &[(4, 1)]).expect("it fits");
        f.index.truncate_from(7, &mut f.usage);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 7)], vec![(5, 1)]));
        f.index.truncate_from(5, &mut f.usage);
        assert!(f.index.is_empty() && f.usage.is_dead(1));
        f.append(2, 3, &[(4, 1)]).expect("it begins anew");
        f.compact(2, 5, 1);
        f.index.truncate_from(5, &mut f.usage);
        assert_eq!((f.index.first(), f.index.next(), f.index.is_empty()), (5, 5, false));
        assert_eq!(f.index.term(4).expect("the compaction knows"), 1);
    }

    #[test]
    fn a_move_takes_the_place_of_what_is_there_or_fills_a_hole() {
        let moved = |f: &mut Fixture, segment, first, terms: &[(u64, u64)]| {
            let count = terms.iter().map(|(count, _)| count).sum::<u64>();
            let (terms, item_bytes) = (terms.into(), count as u32 * 10);
            let append = Append { group: 1, first, count, terms, offset: 40, item_bytes };
            f.index.relocate(&append, segment, 7000, &mut f.usage).expect("it fits");
        };
        let mut f = Fixture::default();
        f.append(1, 5, &[(2, 1), (2, 2)]).expect("it fits");
        f.append(2, 9, &[(3, 2), (1, 3)]).expect("it fits");
        let terms = f.index.term_runs();
        moved(&mut f, 3, 5, &[(2, 1), (2, 2)]);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 9), (9, 13)], terms.clone()));
        assert!(f.usage.is_dead(1));
        f.index.truncate_from(12, &mut f.usage);
        moved(&mut f, 4, 9, &[(3, 2)]);
        assert_eq!((f.runs(), f.index.term_runs()), (vec![(5, 9), (9, 12)], terms[..2].to_vec()));
        assert!(f.usage.is_dead(2) && f.usage.live_bytes() == 70);
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
        assert_eq!(f.index.live_in(1), LiveUsage { entries: 3, keys: 0, bytes: 80 });
        f.compact(4, 9, 2);
        assert!(f.usage.is_dead(1) && f.usage.is_dead(3));
        assert_eq!(f.index.live_in(2), LiveUsage { entries: 2, keys: 0, bytes: 20 });
        assert_eq!(f.index.live_in(4), NewestCompaction::HOLDS);
        f.compact(5, 40, 3);
        assert_eq!((f.index.first(), f.index.next()), (40, 40));
        assert!(f.index.term_runs().is_empty() && f.usage.is_dead(2) && f.usage.is_dead(4));
        assert!(f.append(5, 39, &[(1, 4)]).is_err(), "below the first");
    }

    #[test]
    fn removal_lets_go_of_everything() {
        let mut f = Fixture::default();
        f.append(1, 1, &[(4, 1)]).expect("it fits");
        f.compact(2, 2, 1);
        f.index.put(b"k", b"one", 3, &mut f.usage);
        f.index.put(b"k", b"two", 4, &mut f.usage);
        assert!(f.usage.is_dead(3) && !f.usage.is_dead(4));
        f.index.remove(&mut f.usage);
        assert!(f.index.is_empty());
        assert_eq!(f.usage.live_bytes(), 0);
        assert!((1..5).all(|segment| f.usage.is_dead(segment)));
    }

    #[test]
    fn a_hole_in_a_replay_is_covered_in_the_end() {
        let mut f = Fixture::default();
        f.compact(4, 50, 1);
        f.append(4, 101, &[(10, 2)]).expect("entries up to 100 lay in segments that are gone");
        f.append(5, 90, &[(5, 3)]).expect("it replaces what was seen, and more");
        assert!(f.index.check_replayed().is_err(), "entries from 50 on");
        f.compact(5, 91, 3);
        f.index.check_replayed().expect("nothing is missing");
        assert_eq!((f.index.first(), f.runs()), (91, vec![(91, 95)]));
        assert_eq!(f.index.term(90).expect("the covering compaction knows"), 3);

        let mut f = Fixture::default();
        f.append(4, 101, &[(10, 2)]).expect("entries up to 100 lay in segments that are gone");
        f.compact(4, 90, 1);
        assert!(f.index.check_replayed().is_err(), "entries from 90 on");
        f.append(5, 90, &[(15, 3)]).expect("it replaces what was seen, and more");
        f.index.check_replayed().expect("nothing is missing");
        assert_eq!((f.index.first(), f.runs()), (90, vec![(90, 105)]));
        assert_eq!(f.index.term(89).expect("the compaction knows"), 1);

        let mut f = Fixture::default();
        f.append(4, 101, &[(10, 2)]).expect("a log may begin anywhere");
        f.append(4, 90, &[(5, 3)]).expect("it had begun earlier");
        f.index.check_replayed().expect("nothing is missing");
        assert_eq!((f.index.first(), f.runs()), (90, vec![(90, 95)]));
    }

    #[test]
    fn a_compaction_beyond_the_end_leaves_no_hole() {
        let mut f = Fixture::default();
        f.append(1, 1, &[(4, 1)]).expect("it fits");
        f.compact(2, 40, 2);
        f.index.check_replayed().expect("the log is empty");
        f.append(2, 40, &[(1, 3)]).expect("it fits");
        f.index.check_replayed().expect("nothing is missing");
    }
}
