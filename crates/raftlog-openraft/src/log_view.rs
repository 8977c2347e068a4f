//! The view of a group's log as it will be when all queued batches are written.
//!
//! - `tail` holds the queued entries, in order, each with the number of its append. Below it the
//!   log on disk counts: queued batches replace nothing there.
//! - Appends are completed in their order, so the tail loses entries from its front only.

use flotilla_raftlog::Entry;
use openraft::{LogId, NodeId, Vote};
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct LogView<N: NodeId> {
    pub(crate) vote: Option<Vote<N>>,
    pub(crate) committed: Option<LogId<N>>,
    /// `committed` is to be written with the next batch.
    pub(crate) has_new_committed: bool,
    pub(crate) purged: Option<LogId<N>>,
    /// The last entry or, without entries, the last purged one.
    pub(crate) last: Option<LogId<N>>,
    /// The first entry or, without entries, the next.
    pub(crate) first: u64,
    tail: VecDeque<(u64, Entry)>,
    last_append: u64,
}

impl<N: NodeId> LogView<N> {
    pub(crate) fn new(first: u64) -> LogView<N> {
        LogView {
            vote: None,
            committed: None,
            has_new_committed: false,
            purged: None,
            last: None,
            first,
            tail: VecDeque::new(),
            last_append: 0,
        }
    }

    /// The index after the last entry.
    pub(crate) fn next(&self) -> u64 {
        self.last.as_ref().map_or(self.first, |last| last.index + 1)
    }

    /// Adds entries that end with `last`. Returns the number of the append.
    pub(crate) fn append(&mut self, entries: &[Entry], last: LogId<N>) -> u64 {
        if self.last.is_none() {
            self.first = last.index + 1 - entries.len() as u64;
        }
        self.last_append += 1;
        self.tail.extend(entries.iter().map(|entry| (self.last_append, entry.clone())));
        self.last = Some(last);
        self.last_append
    }

    /// An append is written, and so are all before it.
    pub(crate) fn release(&mut self, append: u64) {
        while self.tail.front().is_some_and(|(number, _)| *number <= append) {
            self.tail.pop_front();
        }
    }

    /// The entries from `index` on are gone; `last` is the one before.
    pub(crate) fn truncate(&mut self, index: u64, last: Option<LogId<N>>) {
        while self.tail.back().is_some_and(|(_, entry)| index_of(entry) >= index) {
            self.tail.pop_back();
        }
        self.last = last;
    }

    /// The entries up to `purged` are gone.
    pub(crate) fn purge(&mut self, purged: LogId<N>) {
        while self.tail.front().is_some_and(|(_, entry)| index_of(entry) <= purged.index) {
            self.tail.pop_front();
        }
        self.first = self.first.max(purged.index + 1);
        if self.last.as_ref().is_none_or(|last| last.index <= purged.index) {
            self.last = Some(purged.clone());
        }
        self.purged = Some(purged);
    }

    /// The range, cut to the log: the part that is on disk, and the entries that follow it.
    pub(crate) fn split(&self, range: Range<u64>) -> (Range<u64>, Vec<Entry>) {
        let (start, end) = (range.start.max(self.first), range.end.min(self.next()));
        let tail_first = self.tail.front().map_or(self.next(), |(_, entry)| index_of(entry));
        let place = |index: u64| index.saturating_sub(tail_first).min(self.tail.len() as u64);
        let (from, to) = (place(start) as usize, place(end) as usize);
        let entries = self.tail.range(from..to.max(from)).map(|(_, entry)| entry.clone()).collect();
        (start..end.min(tail_first), entries)
    }
}

/// openraft's number of an entry, which is one less than the log's.
fn index_of(entry: &Entry) -> u64 {
    entry.index - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;

    fn id(index: u64) -> LogId<u64> {
        LogId::new(CommittedLeaderId::new(1, 1), index)
    }

    fn append(view: &mut LogView<u64>, range: Range<u64>) -> u64 {
        let entry = |index| Entry { index: index + 1, term: 1, kind: 0, data: Vec::new().into() };
        let entries: Vec<_> = range.clone().map(entry).collect();
        view.append(&entries, id(range.end - 1))
    }

    /// The entries read from disk, and from memory.
    fn split(view: &LogView<u64>, range: Range<u64>) -> (Range<u64>, Vec<u64>) {
        let (below, tail) = view.split(range);
        (below, tail.iter().map(index_of).collect())
    }

    #[test]
    fn what_is_written_leaves_memory_and_nothing_else() {
        let mut view = LogView::new(0);
        let (one, two) = (append(&mut view, 5..8), append(&mut view, 8..10));
        assert_eq!((view.first, view.next()), (5, 10));
        assert_eq!(split(&view, 0..99), (5..5, vec![5, 6, 7, 8, 9]));
        view.release(one);
        assert_eq!(split(&view, 0..99), (5..8, vec![8, 9]));
        assert_eq!(split(&view, 6..9), (6..8, vec![8]));
        let backwards = Range { start: 9, end: 7 };
        assert!(split(&view, 9..9).1.is_empty() && split(&view, backwards).1.is_empty());
        view.truncate(7, Some(id(6)));
        assert_eq!(split(&view, 0..99), (5..7, vec![]));
        let three = append(&mut view, 7..9);
        // The one that was truncated is written before.
        view.release(two);
        assert_eq!(split(&view, 0..99), (5..7, vec![7, 8]));
        view.purge(id(7));
        assert_eq!(split(&view, 0..99), (8..8, vec![8]));
        view.release(three);
        assert_eq!(split(&view, 0..99), (8..9, vec![]));
        view.purge(id(20));
        assert_eq!((view.first, view.next(), view.last), (21, 21, Some(id(20))));
    }
}
