//! The log as raft reads it, without IO (raft's `Storage`).
//!
//! Raft cannot wait for entries that it commits or scans before an election, and panics if they are
//! missing. It can wait for entries that it sends to followers. Hence the invariants:
//! - Every entry above the applied index is in `tail`, which ends with the last one.
//! - Entries below `tail` are applied, so they are on disk, never change and may be fetched.
//! - `runs` has the term of each entry from the first on; that of the one before is kept too.
//! - Nothing here returns an error that raft panics about.

use std::cell::RefCell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use crate::config::WindowConfig;
use crate::convert;
use crate::ids::{Index, PeerId, Term};
use crate::log_fetches::LogFetches;
use crate::log_marks::LogMarks;
use crate::recovered_replica::RecoveredReplica;
use crate::snapshot_sends::SnapshotSends;

/// The overhead of an entry beyond its data.
const ENTRY_HEAD_BYTES: u64 = 32;

pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    entry.data.len() as u64 + ENTRY_HEAD_BYTES
}

pub(crate) struct LogWindow {
    /// As found at start; raft asks once.
    start: RaftState,
    /// The entry before the first, and its term.
    truncated: (u64, u64),
    /// The first entry of each term: one pair for each term, not for each entry.
    runs: Vec<(u64, u64)>,
    tail: VecDeque<Entry>,
    tail_bytes: u64,
    /// Of the entries that were appended here, not of those that were found on disk and applied.
    marks: LogMarks,
    last: u64,
    limits: WindowConfig,
    fetches: RefCell<LogFetches>,
    /// The last entry that is applied, as far as the window was told.
    applied: u64,
    snapshots: SnapshotSends,
    /// Fetched entries of the log, while raft reads them.
    lent: Vec<Entry>,
}

impl LogWindow {
    /// The window of a replica that was checked to be sound.
    pub(crate) fn new(found: &RecoveredReplica, limits: WindowConfig) -> Self {
        let mut state = found.hard_state;
        // Raft ends the process if it is told of applied entries above its commit index; the hard
        // state's may lag behind, since alone it is not synced.
        state.commit = found.commit();
        let conf_state = convert::conf_state(&found.descriptor);
        let hard_state: HardState = convert::hard_state_to_raft(&state);
        let tail: VecDeque<Entry> =
            found.tail.iter().cloned().map(convert::entry_to_raft).collect();
        Self {
            start: RaftState { hard_state, conf_state },
            truncated: (found.truncated.0.0, found.truncated.1.0),
            runs: found.terms.iter().map(|(index, term)| (index.0, term.0)).collect(),
            tail_bytes: tail.iter().map(entry_bytes).sum(),
            marks: marks_of(&tail),
            tail,
            last: found.last.0,
            limits,
            fetches: RefCell::default(),
            applied: found.applied.0.0,
            snapshots: SnapshotSends::default(),
            lent: vec![],
        }
    }

    pub(crate) fn truncated(&self) -> Index {
        Index(self.truncated.0)
    }

    pub(crate) fn last(&self) -> Index {
        Index(self.last)
    }

    /// The term of an entry that the log holds, or of the one before its first.
    pub(crate) fn term_of(&self, index: Index) -> Option<Term> {
        if index.0 == self.truncated.0 {
            return Some(Term(self.truncated.1));
        }
        let inside = index.0 > self.truncated.0 && index.0 <= self.last;
        let runs = self.runs.partition_point(|(first, _)| *first <= index.0);
        runs.checked_sub(1).filter(|_| inside).map(|run| Term(self.runs[run].1))
    }

    /// Takes in what raft wants written, and forgets what it replaces.
    pub(crate) fn append(&mut self, entries: &[Entry], applied: Index) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        // An applied entry is committed: a leader that replaces it has another history, and the
        // rows here cannot be taken back.
        assert!(first > applied.0, "entry {first} replaces one that is applied ({applied})");
        assert!(first <= self.last + 1, "entry {first} leaves a gap behind {}", self.last);
        while self.tail.back().is_some_and(|entry| entry.index >= first) {
            let entry = self.tail.pop_back().expect("seen just now");
            self.tail_bytes -= entry_bytes(&entry);
            self.marks.take_back(Index(entry.index), entry_bytes(&entry));
        }
        while self.runs.last().is_some_and(|run| run.0 >= first) {
            self.runs.pop();
        }
        for entry in entries {
            if self.runs.last().is_none_or(|run| run.1 < entry.term) {
                self.runs.push((entry.index, entry.term));
            }
            self.tail_bytes += entry_bytes(entry);
            self.marks.add(Index(entry.index), entry_bytes(entry));
            self.last = entry.index;
            self.tail.push_back(entry.clone());
        }
    }

    /// Forgets applied entries until the limits are kept. A few stay for followers that are a
    /// little behind; those that are not applied must stay.
    pub(crate) fn release(&mut self, applied: Index) {
        self.applied = applied.0;
        let too_much = |window: &Self| {
            window.tail.len() > window.limits.tail_count_max
                || window.tail_bytes > window.limits.tail_bytes_max
        };
        while too_much(self) && self.tail.front().is_some_and(|first| first.index <= applied.0) {
            let entry = self.tail.pop_front().expect("seen just now");
            self.tail_bytes -= entry_bytes(&entry);
        }
    }

    /// Forgets all entries below `first`, but for the term of the entry before it, which is
    /// returned.
    pub(crate) fn compact(&mut self, first: Index) -> Term {
        let before = Index(first.0 - 1);
        let term = self.term_of(before).expect("only what the log holds is compacted");
        self.truncated = (before.0, term.0);
        let ended = self.runs.partition_point(|run| run.0 <= first.0).saturating_sub(1);
        self.runs.drain(..ended);
        self.marks.cut(before);
        if self.last == before.0 {
            self.runs.clear();
            self.marks.clear();
        } else {
            self.runs[0].0 = first.0;
        }
        while self.tail.front().is_some_and(|entry| entry.index < first.0) {
            let entry = self.tail.pop_front().expect("seen just now");
            self.tail_bytes -= entry_bytes(&entry);
        }
        term
    }

    /// Forgets all entries: a snapshot takes the place of the log up to `index`. It is not applied
    /// yet.
    pub(crate) fn reset(&mut self, index: Index, term: Term, members: ConfState) {
        // As much may be applied, if the rows are damaged.
        assert!(index.0 >= self.applied, "a snapshot of {index}, and {} is applied", self.applied);
        self.start.conf_state = members;
        self.truncated = (index.0, term.0);
        self.last = index.0;
        self.runs.clear();
        self.marks.clear();
        self.tail.clear();
        self.tail_bytes = 0;
    }

    /// The region has other members: a snapshot is of these.
    pub(crate) fn set_members(&mut self, members: ConfState) {
        self.start.conf_state = members;
    }

    /// About the bytes on disk of the entries above `low` up to `high`.
    pub(crate) fn log_bytes(&self, low: Index, high: Index) -> u64 {
        self.marks.between(low, high, Index(self.last))
    }

    /// The bytes of the entries from `low` up to `high`, itself included, all in the window.
    pub(crate) fn bytes_between(&self, low: Index, high: Index) -> u64 {
        self.held(low.0, high.0 + 1).map(entry_bytes).sum()
    }

    /// The bytes of the entries behind `index`; none if not all of them are in the window.
    pub(crate) fn bytes_behind(&self, index: Index) -> Option<u64> {
        let low = index.0 + 1;
        (low >= self.tail_start()).then(|| self.held(low, self.last + 1).map(entry_bytes).sum())
    }

    pub(crate) fn fetches(&mut self) -> &mut LogFetches {
        self.fetches.get_mut()
    }

    pub(crate) fn snapshots(&mut self) -> &mut SnapshotSends {
        &mut self.snapshots
    }

    /// Lets raft read fetched entries as if they were here. They were applied, so they never
    /// change.
    pub(crate) fn lend(&mut self, entries: Vec<Entry>) {
        for (place, entry) in entries.iter().enumerate() {
            let expected = entries[0].index + place as u64;
            assert_eq!(entry.index, expected, "fetched entries have a gap");
            let term = self.term_of(Index(entry.index));
            // Compaction may have passed it meanwhile.
            let known = term.is_none_or(|term| term.0 == entry.term);
            assert!(known, "fetched entry {expected} is of term {}, not {term:?}", entry.term);
        }
        self.lent = entries;
    }

    /// The entries of `[low, high)` that are in the tail.
    fn held(&self, low: u64, high: u64) -> impl Iterator<Item = &Entry> + use<'_> {
        let start = self.tail_start();
        let place = |index: u64| usize::try_from(index.saturating_sub(start)).unwrap_or(usize::MAX);
        let end = place(high).min(self.tail.len());
        self.tail.range(place(low).min(end)..end)
    }

    /// The first entry of the tail.
    fn tail_start(&self) -> u64 {
        self.last + 1 - self.tail.len() as u64
    }

    /// Checks the whole window against its invariants.
    pub(crate) fn check(&self, applied: Index) {
        assert!(
            self.tail_start() <= applied.0 + 1,
            "an entry above {applied} is not in the window"
        );
        assert!(self.truncated.0 < self.tail_start(), "the window holds what is compacted");
        for (index, entry) in (self.tail_start()..).zip(&self.tail) {
            assert_eq!(entry.index, index, "the window has a gap");
            let term = self.term_of(Index(index));
            assert_eq!(term, Some(Term(entry.term)), "the term of entry {index}");
        }
        let bytes: u64 = self.tail.iter().map(entry_bytes).sum();
        assert_eq!(bytes, self.tail_bytes, "bytes of the window");
        let grows = self.runs.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1);
        assert!(grows, "runs of terms out of order: {:?}", self.runs);
    }
}

fn marks_of(tail: &VecDeque<Entry>) -> LogMarks {
    let mut marks = LogMarks::default();
    tail.iter().for_each(|entry| marks.add(Index(entry.index), entry_bytes(entry)));
    marks
}

/// The first entries until `bytes_max` is passed, but at least one.
fn limited<'a>(entries: impl Iterator<Item = &'a Entry>, bytes_max: Option<u64>) -> Vec<Entry> {
    let mut left = bytes_max.unwrap_or(u64::MAX);
    let mut taken: Vec<Entry> = vec![];
    for entry in entries {
        let bytes = entry_bytes(entry);
        if bytes > left && !taken.is_empty() {
            break;
        }
        left = left.saturating_sub(bytes);
        taken.push(entry.clone());
    }
    taken
}

impl Storage for LogWindow {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.start.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        bytes_max: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let bytes_max = bytes_max.into();
        // Raft then wants a snapshot.
        if low <= self.truncated.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let start = self.tail_start();
        if low >= start {
            return Ok(limited(self.held(low, high), bytes_max));
        }
        if self.lent.first().is_some_and(|first| first.index <= low)
            && self.lent.last().is_some_and(|last| last.index >= low)
        {
            // Only what was lent: the rest is asked for next.
            let lent = self.lent.iter().filter(|entry| (low..high).contains(&entry.index));
            return Ok(limited(lent, bytes_max));
        }
        assert!(
            context.can_async(),
            "raft cannot wait for entry {low}, the window starts at {start}"
        );
        let bytes_max = bytes_max.unwrap_or(u64::MAX);
        // Entries from `start` on are in memory; raft asks for them next.
        self.fetches.borrow_mut().want(low, high.min(start), bytes_max, context);
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_of(Index(index)) {
            Some(term) => Ok(term.0),
            None if index < self.truncated.0 => Err(Error::Store(StorageError::Compacted)),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    /// A snapshot without data, at once: the driver sends the rows, and may send those of a later
    /// entry.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        // Raft ends the process at any other error, and at a snapshot of entry 0.
        let not_now = Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        if self.applied == 0
            || self.applied < request_index
            || self.snapshots.is_held_off(PeerId(to))
        {
            return not_now;
        }
        let index = Index(self.applied);
        let term = self.term_of(index).expect("the log begins at the applied entry or below");
        Ok(convert::snapshot_to_raft(index, term, self.start.conf_state.clone()))
    }
}

#[cfg(test)]
mod tests;
