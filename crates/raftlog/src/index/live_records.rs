//! The live records of one group in one segment, for the rewriter.

use crate::batch::frame::EntryRun;
use crate::format::item::TermRuns;
use crate::index::group_index::{GroupIndex, RECORD_BYTES};

/// A live record of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LiveRecord {
    /// The compaction at which the log begins.
    Compaction { first: u64, term_before: u64 },
    /// A key and its value.
    Key { key: Box<[u8]>, value: Box<[u8]> },
    /// The live entries of one append, and their terms.
    Entries { run: EntryRun, terms: TermRuns },
}

impl LiveRecord {
    /// Its bytes in the log, about.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            LiveRecord::Compaction { .. } => RECORD_BYTES,
            LiveRecord::Key { key, value } => RECORD_BYTES + (key.len() + value.len()) as u64,
            LiveRecord::Entries { run, .. } => run.item_bytes.into(),
        }
    }
}

impl GroupIndex {
    /// The first live records of the group in `segment`: up to `count_max`, and no further one once
    /// they have `bytes_max` together.
    pub(crate) fn records_in(
        &self,
        segment: u64,
        count_max: usize,
        bytes_max: u64,
    ) -> Vec<LiveRecord> {
        let mut bytes = 0;
        let has_room = |record: &LiveRecord| {
            let has_room = bytes < bytes_max;
            bytes += record.bytes();
            has_room
        };
        let compaction =
            LiveRecord::Compaction { first: self.first, term_before: self.compaction.term_before };
        let compaction = Some(compaction).filter(|_| self.compaction.segment == segment);
        let keys = self.keys.iter().filter(|(_, value)| value.segment == segment);
        let keys = keys
            .map(|(key, value)| LiveRecord::Key { key: key.into(), value: value.bytes.clone() });
        let runs = self.extents.runs_in(segment);
        let entries = runs.map(|run| self.entries_of(run));
        compaction
            .into_iter()
            .chain(keys)
            .chain(entries)
            .take(count_max)
            .take_while(has_room)
            .collect()
    }

    /// The part of a record in `segment` that is still live there. A full segment never gains a
    /// record, so the part only shrinks.
    pub(crate) fn left_of(&self, record: &LiveRecord, segment: u64) -> Option<LiveRecord> {
        match record {
            LiveRecord::Compaction { .. } => {
                (self.compaction.segment == segment).then(|| record.clone())
            }
            LiveRecord::Key { key, .. } => {
                let value = self.keys.get(key).filter(|value| value.segment == segment);
                value.map(|_| record.clone())
            }
            LiveRecord::Entries { run, .. } => {
                // Entries are dropped from the front by compaction, and from the end by truncation.
                let first = run.first.max(self.first());
                let run_now = (first < run.end.min(self.next())).then(|| self.run_at(first));
                run_now.filter(|now| now.is_same_item(run)).map(|now| self.entries_of(now))
            }
        }
    }

    fn entries_of(&self, run: EntryRun) -> LiveRecord {
        LiveRecord::Entries { run, terms: self.extents.terms_of(run.first, run.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::frame::Append;
    use crate::index::segment_usage::SegmentUsage;

    fn group(usage: &mut SegmentUsage) -> GroupIndex {
        let mut index = GroupIndex::default();
        for (segment, first, count, offset) in [(1, 5, 4, 100), (1, 9, 1, 200), (2, 10, 5, 100)] {
            let terms = [(1, first), (count - 1, first + 1)];
            let terms = terms.into_iter().filter(|(count, _)| *count > 0).collect();
            let append = Append { group: 1, first, count, terms, offset, item_bytes: 50 };
            index.append(&append, segment, 0, usage).expect("it fits");
        }
        index.put(b"a", b"1", 1, usage);
        index.put(b"b", b"2", 2, usage);
        index
    }

    /// First and end of the entries, and their terms.
    fn bounds(record: &LiveRecord) -> (u64, u64, Vec<(u64, u64)>) {
        match record {
            LiveRecord::Entries { run, terms } => (run.first, run.end, terms.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_group_names_what_it_holds_in_a_segment() {
        let mut usage = SegmentUsage::default();
        let mut index = group(&mut usage);
        let records = index.records_in(1, 100, u64::MAX);
        assert_eq!(records[0], LiveRecord::Key { key: (*b"a").into(), value: (*b"1").into() });
        assert_eq!(bounds(&records[1]), (5, 9, vec![(1, 5), (3, 6)]));
        assert_eq!(bounds(&records[2]), (9, 10, vec![(1, 9)]));
        assert_eq!(records.len(), 3);
        assert_eq!(index.records_in(1, 2, u64::MAX), records[..2]);
        assert_eq!(index.records_in(1, 100, 11), records[..2], "the first that fills it is in");
        assert_eq!(records.iter().map(LiveRecord::bytes).sum::<u64>(), usage.live(1).bytes);
        index.compact(6, 5, 3, &mut usage);
        let compactions = index.records_in(3, 100, u64::MAX);
        assert_eq!(compactions, [LiveRecord::Compaction { first: 6, term_before: 5 }]);
        assert!(index.records_in(4, 100, u64::MAX).is_empty());
    }

    #[test]
    fn of_a_record_just_that_is_left_which_nothing_has_replaced() {
        let mut usage = SegmentUsage::default();
        let mut index = group(&mut usage);
        index.compact(6, 5, 1, &mut usage);
        let records = index.records_in(1, 100, u64::MAX);
        let left = |index: &GroupIndex| -> Vec<Option<LiveRecord>> {
            records.iter().map(|record| index.left_of(record, 1)).collect()
        };
        assert!(left(&index).iter().flatten().eq(&records), "all, while nothing has changed");
        index.compact(7, 6, 3, &mut usage);
        index.put(b"a", b"1", 3, &mut usage);
        let now = left(&index);
        assert_eq!((&now[0], &now[1]), (&None, &None), "the mark and the key are elsewhere");
        assert_eq!(now[2].as_ref().map(bounds), Some((7, 9, vec![(2, 6)])));
        index.truncate_from(8, &mut usage);
        let now = left(&index);
        assert_eq!(now[2].as_ref().map(bounds), Some((7, 8, vec![(1, 6)])));
        assert_eq!(now[3], None);
        let append = Append {
            group: 1,
            first: 7,
            count: 3,
            terms: [(3, 9)].into_iter().collect(),
            offset: 0,
            item_bytes: 9,
        };
        index.append(&append, 3, 0, &mut usage).expect("it fits");
        assert_eq!(left(&index)[2], None, "others have its indexes");
        index.remove(&mut usage);
        assert!(left(&index).iter().all(Option::is_none));
    }
}
