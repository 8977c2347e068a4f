//! raft-rs' storage over one group of the log.
//!
//! Raft sees the log as it will be when all batches are written. Hence:
//! - Entries that are not yet written are in `cache`, which ends with the last one.
//! - Below the cache raft sees the log on disk: queued batches replace nothing there.
//!   `state.generation` counts the writes that replace entries, and is written with them, so a look
//!   at the log tells whether all of those are done; until then the cache keeps all.
//! - `pending_snapshot` is a snapshot that is still to be written; nothing on disk counts until it
//!   is.

use crate::codec::{self, PersistedState};
use crate::entry_cache::EntryCache;
use crate::fetch::{self, Fetch, Fetched, PendingFetches};
use flotilla_raftlog::{Error, Group, LogBatch, LogEngine};
use raft::eraftpb::{ConfState, Entry, Snapshot};
use raft::util::limit_size;
use raft::{
    GetEntriesContext, LightReady, NO_LIMIT, RaftState, RawNode, Ready, Storage, StorageError,
};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// The key of the state.
const STATE_KEY: &[u8] = b"raft/state";
/// The key of the voters and learners.
const CONF_KEY: &[u8] = b"raft/conf";

/// The configuration of a storage.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most bytes of entries kept in memory once they are written. Default 1 MiB. Raft reads an
    /// entry again to send it to each follower that does not keep up, and once to apply it.
    pub entry_cache_bytes_max: u64,
    /// Whether entries for a follower that are not in memory are fetched by the embedder, which
    /// then calls [`GroupStorage::take_fetches`] after every step, tick and `Ready`. Default no:
    /// they are read where raft asks, and the node waits for the disk.
    pub async_fetches: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { entry_cache_bytes_max: 1 << 20, async_fetches: false }
    }
}

/// A source of snapshots: takes the least index that will do, and the peer that asks.
///
/// [`StorageError::SnapshotTemporarilyUnavailable`] makes raft ask again later; any other error
/// makes it panic.
pub type SnapshotSource = Box<dyn Fn(u64, u64) -> raft::Result<Snapshot> + Send>;

/// raft-rs' `Storage` over one group of a log.
///
/// Only one may be open for a group, and no other code may change the group's entries, nor its keys
/// that begin with `raft/`. Other keys are the embedder's.
pub struct GroupStorage {
    log: LogEngine,
    group: u64,
    config: Config,
    state: PersistedState,
    conf_state: ConfState,
    cache: EntryCache,
    pending_snapshot: Option<PendingSnapshot>,
    fetches: RefCell<PendingFetches>,
    snapshots: Option<SnapshotSource>,
}

/// The index and term of a snapshot that replaces the log.
#[derive(Clone, Copy, Debug)]
struct PendingSnapshot {
    index: u64,
    term: u64,
    /// The number of the `Ready` that it came with.
    ready: u64,
    /// The log goes beyond the snapshot, with other entries.
    truncates: bool,
}

impl GroupStorage {
    /// The storage of a group as the log holds it; of a new raft group if it holds nothing. All
    /// batches with something for the group must be written.
    ///
    /// # Errors
    ///
    /// The group's keys are not what this crate writes.
    pub fn open(log: LogEngine, group: u64, config: Config) -> raft::Result<GroupStorage> {
        let on_disk = log.group(group);
        let key = |key| on_disk.as_ref().and_then(|group| group.get(key));
        let state = key(STATE_KEY).map(|bytes| PersistedState::decode(&bytes)).transpose();
        let conf_state = key(CONF_KEY).map(|bytes| codec::decode_conf_state(&bytes)).transpose();
        Ok(GroupStorage {
            state: state.map_err(other)?.unwrap_or_default(),
            conf_state: conf_state.map_err(other)?.unwrap_or_default(),
            log,
            group,
            config,
            cache: EntryCache::default(),
            pending_snapshot: None,
            fetches: RefCell::default(),
            snapshots: None,
        })
    }

    /// Sets the source of snapshots. Without one, raft learns that there is none yet.
    #[must_use]
    pub fn with_snapshots(mut self, snapshots: SnapshotSource) -> GroupStorage {
        self.snapshots = Some(snapshots);
        self
    }

    /// The group's number in the log.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.group
    }

    /// Puts the snapshot, the entries and the hard state of a `Ready` into a batch. Of a snapshot
    /// that is its index, its term and its peers; its data are the embedder's to keep, before the
    /// batch is written. Raft may read all of it at once. The same `Ready` may be put into a second
    /// batch if nothing of the first was written.
    ///
    /// # Errors
    ///
    /// [`StorageError::SnapshotOutOfDate`] if the log begins behind the snapshot;
    /// [`StorageError::Compacted`] or [`StorageError::Unavailable`] if the entries do not meet the
    /// log. Nothing has changed, and nothing was put into the batch.
    pub fn persist_ready(&mut self, batch: &mut LogBatch, ready: &Ready) -> raft::Result<()> {
        let snapshot = Some(ready.snapshot().get_metadata()).filter(|meta| meta.index > 0);
        let log = match snapshot {
            Some(meta) if meta.index + 1 < self.first() => {
                return Err(StorageError::SnapshotOutOfDate.into());
            }
            Some(meta) => meta.index + 1..meta.index + 1,
            None => self.first()..self.last() + 1,
        };
        meets(log, ready.entries())?;
        let generation = self.state.generation;
        if let Some(meta) = snapshot {
            self.persist_reset(batch, meta.index, meta.term, ready.number());
            self.persist_conf_state(batch, meta.get_conf_state());
        }
        self.append(batch, ready.entries());
        if let Some(hard) = ready.hs() {
            let PersistedState { generation, .. } = self.state;
            self.state = PersistedState {
                term: hard.term,
                vote: hard.vote,
                commit: hard.commit,
                generation,
            };
        }
        if ready.hs().is_some() || self.state.generation > generation {
            self.persist_state(batch);
        }
        self.release();
        Ok(())
    }

    /// Puts entries into a batch that did not come with a `Ready`, as when a log is restored or
    /// brought over from another storage. They replace everything from the first of them on.
    ///
    /// # Errors
    ///
    /// As [`GroupStorage::persist_ready`].
    pub fn persist_entries(&mut self, batch: &mut LogBatch, entries: &[Entry]) -> raft::Result<()> {
        meets(self.first()..self.last() + 1, entries)?;
        let generation = self.state.generation;
        self.append(batch, entries);
        if self.state.generation > generation {
            self.persist_state(batch);
        }
        self.release();
        Ok(())
    }

    /// Puts the commit index of a `LightReady` into a batch, if it has one. Raft does not need it:
    /// a node that starts again with a lower one learns it from its leader.
    pub fn persist_commit(&mut self, batch: &mut LogBatch, ready: &LightReady) {
        if let Some(commit) = ready.commit_index() {
            self.state.commit = commit;
            self.persist_state(batch);
        }
    }

    /// Puts voters and learners into a batch: the first ones before the node is made, and what
    /// `apply_conf_change` returns.
    pub fn persist_conf_state(&mut self, batch: &mut LogBatch, conf_state: &ConfState) {
        self.conf_state = conf_state.clone();
        batch.put(self.group, CONF_KEY, &codec::encode_conf_state(conf_state));
    }

    /// Puts into a batch that entries below `first` are not needed any more. They must be applied,
    /// durably. Nothing is put there if the log begins at `first` or later.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`] if the entry before `first` does not exist.
    pub fn compact_to(&mut self, batch: &mut LogBatch, first: u64) -> raft::Result<()> {
        if first > self.first() {
            let term_before = self.term(first - 1)?;
            batch.compact_to(self.group, first, term_before);
        }
        self.release();
        Ok(())
    }

    /// The reads that raft waits for since the last call. Each is to be carried out with
    /// [`Fetch::read`], by any thread, and then given back with [`Fetched::deliver_to`].
    #[must_use]
    pub fn take_fetches(&self) -> Vec<Fetch> {
        self.fetches.borrow_mut().take_new()
    }

    fn persist_state(&self, batch: &mut LogBatch) {
        batch.put(self.group, STATE_KEY, &self.state.encode());
    }

    /// The log becomes empty, whatever it holds, and goes on behind the snapshot.
    fn persist_reset(&mut self, batch: &mut LogBatch, index: u64, term: u64, ready: u64) {
        // The second time, the entries beyond the snapshot came with it.
        let first_time = self.pending_snapshot.filter(|snapshot| snapshot.ready == ready);
        let truncates = first_time.map_or(self.last() > index, |snapshot| snapshot.truncates);
        if truncates {
            batch.truncate_from(self.group, index + 1);
        }
        batch.compact_to(self.group, index + 1, term);
        self.cache.clear();
        self.pending_snapshot = Some(PendingSnapshot { index, term, ready, truncates });
        self.state.generation += 1;
    }

    fn append(&mut self, batch: &mut LogBatch, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        if first.index <= self.last() {
            self.state.generation += 1;
        }
        let to_log: Vec<_> = entries.iter().map(codec::entry_to_log).collect();
        batch.append(self.group, &to_log);
        self.cache.append(entries);
    }

    /// Evicts entries that need not be in memory.
    fn release(&mut self) {
        if self.is_settled() {
            self.pending_snapshot = None;
            let (first, last) =
                (self.first(), self.on_disk().map_or(0, |group| group.last_index()));
            self.cache.release(first, last, self.config.entry_cache_bytes_max);
        }
    }

    /// Whether all writes that replace anything are done.
    fn is_settled(&self) -> bool {
        let written = self.on_disk().and_then(|group| group.get(STATE_KEY));
        let written =
            written.and_then(|bytes| PersistedState::decode(&bytes).ok()).unwrap_or_default();
        written.generation == self.state.generation
    }

    fn on_disk(&self) -> Option<Group> {
        self.log.group(self.group)
    }

    fn unwritten_snapshot(&self) -> Option<PendingSnapshot> {
        self.pending_snapshot.filter(|_| !self.is_settled())
    }

    fn first(&self) -> u64 {
        match self.unwritten_snapshot() {
            Some(snapshot) => snapshot.index + 1,
            None => self.on_disk().map_or(1, |group| group.first_index()),
        }
    }

    fn last(&self) -> u64 {
        let below_cache = || match self.unwritten_snapshot() {
            Some(snapshot) => snapshot.index,
            None => self.on_disk().map_or(0, |group| group.last_index()),
        };
        self.cache.last().unwrap_or_else(below_cache)
    }

    /// The fetched entries of the range, as far as the log still has them.
    fn fetched_entries(&self, range: &Range<u64>) -> Vec<Entry> {
        let fetches = self.fetches.borrow();
        let fetched = fetches.fetched.iter().skip_while(|entry| entry.index < range.start);
        let is_so = |(entry, index): &(&Entry, u64)| {
            entry.index == *index && self.term(*index).is_ok_and(|term| term == entry.term)
        };
        fetched.zip(range.clone()).take_while(is_so).map(|(entry, _)| entry.clone()).collect()
    }

    /// Entries below the cache.
    fn old_entries(
        &self,
        range: Range<u64>,
        bytes_max: u64,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let fetched = self.fetched_entries(&range);
        if !fetched.is_empty() {
            return Ok(fetched);
        }
        if self.config.async_fetches && context.can_async() {
            let mut fetches = self.fetches.borrow_mut();
            fetches.want(&self.log, self.group, range, bytes_max, context);
            return Err(StorageError::LogTemporarilyUnavailable.into());
        }
        fetch::read(&self.log, self.group, range, bytes_max).map_err(storage_error)
    }
}

impl Storage for GroupStorage {
    /// The commit index is never below what is compacted, even if it was not persisted again.
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard_state = self.state.hard_state();
        hard_state.commit = hard_state.commit.max(self.first() - 1);
        Ok(RaftState { hard_state, conf_state: self.conf_state.clone() })
    }

    /// A range that ends behind the last entry is an error, not a panic. If the disk fails or is
    /// corrupt, raft-rs panics about the error, unless the read was an asynchronous fetch.
    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let bytes_max = max_size.into().unwrap_or(NO_LIMIT);
        let end = self.last() + 1;
        if low < self.first() {
            return Err(StorageError::Compacted.into());
        }
        if high > end {
            return Err(StorageError::Unavailable.into());
        }
        let cache_first = self.cache.first().unwrap_or(end);
        let mut entries = match low..high.min(cache_first) {
            below if below.is_empty() => Vec::new(),
            below => self.old_entries(below, bytes_max, context)?,
        };
        let next = low + entries.len() as u64;
        if next >= cache_first {
            let mut room = bytes_max;
            let fits = |entry: &&Entry| {
                let fits = room > 0;
                room = room.saturating_sub(entry.data.len() as u64);
                fits
            };
            // Always one, and about as many as fit; the exact limit is kept below.
            let count = self.cache.range(next..high).take_while(fits).count().max(1);
            entries.extend(self.cache.range(next..high).take(count).cloned());
        }
        limit_size(&mut entries, Some(bytes_max));
        Ok(entries)
    }

    /// From memory.
    fn term(&self, index: u64) -> raft::Result<u64> {
        let (first, last) = (self.first(), self.last());
        if index + 1 < first {
            return Err(StorageError::Compacted.into());
        }
        if index > last {
            return Err(StorageError::Unavailable.into());
        }
        if let Some(term) = self.cache.term(index).filter(|_| index >= first) {
            return Ok(term);
        }
        match (self.unwritten_snapshot(), self.on_disk()) {
            (Some(snapshot), _) if snapshot.index == index => Ok(snapshot.term),
            (None, Some(group)) => group.term(index).map_err(storage_error),
            (None, None) if index == 0 => Ok(0),
            // Nothing else lies between the first entry and the last.
            _ => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// From the source. A snapshot that is older than the request or than the log's beginning is of
    /// no use, and counts as none.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let none = || StorageError::SnapshotTemporarilyUnavailable.into();
        let snapshot = self.snapshots.as_ref().ok_or_else(none)?(request_index, to)?;
        let index_min = request_index.max(self.first() - 1).max(1);
        if snapshot.get_metadata().index < index_min { Err(none()) } else { Ok(snapshot) }
    }
}

impl Fetched {
    /// Lets the node go on: it makes messages for the followers that lack the entries, which leave
    /// with its next `Ready`. `node` must be the one whose storage asked.
    ///
    /// # Errors
    ///
    /// The error of the read. Raft asks again later; [`Error::Corrupt`] will not pass by itself.
    /// Entries that were compacted meanwhile are no error: raft sends a snapshot.
    pub fn deliver_to(self, node: &mut RawNode<GroupStorage>) -> Result<(), Error> {
        let askers = node.store().fetches.borrow_mut().end(self.low);
        let entries = match self.result {
            Ok(entries) => entries,
            Err(Error::Compacted { .. } | Error::Unavailable { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        node.store().fetches.borrow_mut().fetched = entries;
        for asker in askers {
            node.on_entries_fetched(asker);
        }
        node.store().fetches.borrow_mut().fetched = Vec::new();
        Ok(())
    }
}

impl fmt::Debug for GroupStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupStorage { group, state, cache, .. } = self;
        let mut out = f.debug_struct("GroupStorage");
        out.field("group", group)
            .field("state", state)
            .field("cache", cache)
            .finish_non_exhaustive()
    }
}

/// Whether the entries may be appended to a log with the entries of the range.
fn meets(log: Range<u64>, entries: &[Entry]) -> raft::Result<()> {
    match entries.first() {
        Some(entry) if entry.index < log.start => Err(StorageError::Compacted.into()),
        Some(entry) if entry.index > log.end => Err(StorageError::Unavailable.into()),
        Some(entry) if entries.iter().zip(entry.index..).any(|(entry, i)| entry.index != i) => {
            Err(other("the entries do not follow one another"))
        }
        _ => Ok(()),
    }
}

fn storage_error(error: Error) -> raft::Error {
    match error {
        Error::Compacted { .. } => StorageError::Compacted.into(),
        Error::Unavailable { .. } => StorageError::Unavailable.into(),
        error => raft::Error::Store(StorageError::Other(Box::new(error))),
    }
}

fn other(what: &'static str) -> raft::Error {
    raft::Error::Store(StorageError::Other(what.into()))
}
