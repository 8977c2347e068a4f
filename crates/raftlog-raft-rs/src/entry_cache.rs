//! The entry cache: the newest entries of a group, those that are not yet written and some that
//! are.

use raft::eraftpb::Entry;
use std::collections::VecDeque;
use std::ops::Range;

/// The memory of an entry besides its data and context.
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// Entries that follow one another, up to the log's last one. It may be empty.
#[derive(Debug, Default)]
pub(crate) struct EntryCache {
    entries: VecDeque<Entry>,
    bytes: u64,
}

impl EntryCache {
    /// The index of its first entry.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.index)
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.index)
    }

    pub(crate) fn term(&self, index: u64) -> Option<u64> {
        self.range(index..index.saturating_add(1)).next().map(|entry| entry.term)
    }

    /// The entries of the range that are here.
    pub(crate) fn range(&self, range: Range<u64>) -> impl Iterator<Item = &Entry> + use<'_> {
        let first = self.first().unwrap_or(0);
        let place =
            |index: u64| index.saturating_sub(first).min(self.entries.len() as u64) as usize;
        self.entries.range(place(range.start)..place(range.end).max(place(range.start)))
    }

    /// Adds entries, which replace everything from the first of them on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        while self.last().is_some_and(|last| last >= first) {
            let entry = self.entries.pop_back().expect("it has a last entry");
            self.bytes -= entry_bytes(&entry);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Evicts the oldest entries, as long as there is more than `bytes_max` and they are written
    /// (those up to `written`), or as they are below `first`.
    pub(crate) fn release(&mut self, first: u64, written: u64, bytes_max: u64) {
        let can_go = |cache: &EntryCache| {
            let front = cache.first()?;
            Some(front < first || (front <= written && cache.bytes > bytes_max))
        };
        while can_go(self) == Some(true) {
            let entry = self.entries.pop_front().expect("it has a first entry");
            self.bytes -= entry_bytes(&entry);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = EntryCache::default();
    }
}

fn entry_bytes(entry: &Entry) -> u64 {
    ENTRY_BYTES + (entry.data.len() + entry.context.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(range: Range<u64>, term: u64) -> Vec<Entry> {
        range.map(|index| Entry { index, term, ..Entry::default() }).collect()
    }

    #[test]
    fn appends_replace_and_release_keeps_what_is_not_written() {
        let mut cache = EntryCache::default();
        assert_eq!((cache.first(), cache.term(0), cache.range(0..9).count()), (None, None, 0));
        cache.append(&entries(5..9, 1));
        cache.append(&entries(7..8, 2));
        assert_eq!((cache.first(), cache.last(), cache.bytes), (Some(5), Some(7), 3 * ENTRY_BYTES));
        assert_eq!([4, 5, 7, 8].map(|index| cache.term(index)), [None, Some(1), Some(2), None]);
        assert_eq!((cache.range(0..6).count(), cache.range(6..99).count()), (1, 2));
        assert_eq!(cache.range(Range { start: 9, end: 2 }).count(), 0);
        cache.release(5, 5, 0);
        assert_eq!((cache.first(), cache.bytes), (Some(6), 2 * ENTRY_BYTES));
        cache.release(7, 5, u64::MAX);
        assert_eq!(cache.first(), Some(7));
        cache.append(&entries(3..5, 3));
        assert_eq!((cache.first(), cache.last()), (Some(3), Some(4)));
        cache.release(0, 9, 0);
        assert_eq!((cache.first(), cache.bytes), (None, 0));
    }
}
