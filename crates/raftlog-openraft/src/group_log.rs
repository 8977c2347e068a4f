//! openraft's log storage over one group of the log.

#![expect(clippy::result_large_err, reason = "the error is openraft's, which its traits ask for")]

use crate::flusher::{FlushNotify, Flusher};
use crate::log_view::LogView;
use flotilla_raftlog::{Commit, Durability, Entry, Error, LogBatch};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    LogId, LogState, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig, StorageError,
    StorageIOError, Vote,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::{self, Debug};
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard};

const VOTE_KEY: &[u8] = b"openraft/vote";
const COMMITTED_KEY: &[u8] = b"openraft/committed";
const PURGED_KEY: &[u8] = b"openraft/purged";

/// Bytes of entries after which `limited_get_log_entries` ends: the memory that one slow follower
/// may cost.
const LIMITED_READ_BYTES: u64 = 4 << 20;

/// How often a read begins again because the log has changed under it.
const READ_TRIES: usize = 16;

/// The encoding of openraft's types.
pub trait Format: Send + Sync + 'static {
    /// The bytes of a value.
    ///
    /// # Errors
    ///
    /// The value cannot be encoded. The call that needs it fails, and openraft stops the node.
    fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>>;

    /// The value of encoded bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not those of such a value.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T>;
}

/// One group's log. A clone is another handle, to read with.
///
/// Only one may be open for a group, and no other code may change the group's entries, nor its keys
/// that begin with `openraft/`. Other keys are the embedder's.
pub struct GroupLog<C: RaftTypeConfig, F> {
    group: u64,
    notify: Arc<FlushNotify>,
    view: Arc<Mutex<LogView<C::NodeId>>>,
    format: PhantomData<fn() -> F>,
}

type Failure<C> = StorageError<<C as RaftTypeConfig>::NodeId>;

impl<C: RaftTypeConfig, F: Format> GroupLog<C, F> {
    /// The log of a group as the engine holds it; empty if that holds nothing. Reads one entry.
    ///
    /// # Errors
    ///
    /// The group's keys or its last entry are not what this crate writes; or cannot be read.
    pub fn open(flusher: &Flusher, group: u64) -> Result<Self, Failure<C>> {
        let notify = flusher.notify();
        let mut view = LogView::new(0);
        if let Some(on_disk) = notify.log.group(group) {
            view.first = on_disk.first_index() - 1;
            view.vote = key::<F, _>(on_disk.get(VOTE_KEY)).map_err(StorageIOError::read)?;
            view.committed =
                key::<F, _>(on_disk.get(COMMITTED_KEY)).map_err(StorageIOError::read)?;
            view.purged = key::<F, _>(on_disk.get(PURGED_KEY)).map_err(StorageIOError::read)?;
            let last = on_disk.last_index();
            let entries = on_disk.entries(on_disk.first_index().max(last)..last + 1, u64::MAX);
            let entries = entries.map_err(|error| StorageIOError::read_logs(&error))?;
            view.last = view.purged.clone();
            for entry in decode::<C, F>(entries)? {
                view.last = Some(entry.get_log_id().clone());
            }
        }
        let view = Arc::new(Mutex::new(view));
        Ok(GroupLog { group, notify, view, format: PhantomData })
    }

    /// The group's number in the log.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.group
    }

    fn view(&self) -> MutexGuard<'_, LogView<C::NodeId>> {
        self.view.lock().expect("nothing panics with the lock")
    }

    /// Queues a batch, once there is room, and notifies the flusher. This is where openraft feels
    /// backpressure.
    async fn queue(
        &self,
        build: impl Fn(&mut LogBatch) + Send + Sync,
    ) -> Result<Commit, io::Error> {
        let committed = {
            let mut view = self.view();
            let is_new = std::mem::take(&mut view.has_new_committed);
            view.committed.clone().filter(|_| is_new)
        };
        let committed = committed.map(|log_id| F::encode(&log_id)).transpose()?;
        loop {
            let mut batch = LogBatch::new();
            build(&mut batch);
            if let Some(bytes) = &committed {
                batch.put(self.group, COMMITTED_KEY, bytes);
            }
            let mut commit = self.notify.log.write(batch, Durability::Synced);
            if !matches!(commit.try_take(), Some(Err(Error::Busy { .. }))) {
                self.notify.notify_flush();
                return Ok(commit);
            }
            // When this sync is done, the batches that take the room are written.
            let queue = self.notify.log.sync();
            self.notify.notify_flush();
            queue.await.map_err(io::Error::other)?;
        }
    }

    /// Queues a batch, and waits until it is synced.
    async fn write(&self, build: impl Fn(&mut LogBatch) + Send + Sync) -> Result<(), io::Error> {
        self.queue(build).await?.await.map(drop).map_err(io::Error::other)
    }

    /// The entries of the range that exist; only the first of them, if they have more than
    /// `bytes_max`.
    fn read(&self, range: Range<u64>, bytes_max: u64) -> Result<Vec<C::Entry>, Failure<C>> {
        let mut tries = 0;
        loop {
            let (below, tail) = self.view().split(range.clone());
            let count = below.end.saturating_sub(below.start);
            match self.read_disk(below, bytes_max) {
                Ok(mut entries) => {
                    if entries.len() as u64 == count {
                        extend(&mut entries, tail, bytes_max);
                    }
                    return decode::<C, F>(entries);
                }
                // Entries were purged or truncated between the two looks.
                Err(Error::Compacted { .. } | Error::Unavailable { .. }) if tries < READ_TRIES => {
                    tries += 1;
                }
                Err(error) => return Err(StorageIOError::read_logs(&error).into()),
            }
        }
    }

    /// Entries on disk.
    fn read_disk(&self, range: Range<u64>, bytes_max: u64) -> Result<Vec<Entry>, Error> {
        match self.notify.log.group(self.group) {
            Some(group) if !range.is_empty() => {
                group.entries(range.start + 1..range.end + 1, bytes_max)
            }
            _ => Ok(Vec::new()),
        }
    }
}

impl<C: RaftTypeConfig, F: Format> RaftLogReader<C> for GroupLog<C, F> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<C::Entry>, Failure<C>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start..end, u64::MAX)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, Failure<C>> {
        self.read(start..end, LIMITED_READ_BYTES)
    }
}

impl<C: RaftTypeConfig, F: Format> RaftLogStorage<C> for GroupLog<C, F> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<C>, Failure<C>> {
        let view = self.view();
        let (last_purged_log_id, last_log_id) = (view.purged.clone(), view.last.clone());
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), Failure<C>> {
        let bytes = F::encode(vote).map_err(|error| StorageIOError::write_vote(&error))?;
        let written = self.write(|batch| batch.put(self.group, VOTE_KEY, &bytes)).await;
        written.map_err(|error| StorageIOError::write_vote(&error))?;
        self.view().vote = Some(vote.clone());
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, Failure<C>> {
        Ok(self.view().vote.clone())
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> Result<(), Failure<C>> {
        let mut view = self.view();
        (view.committed, view.has_new_committed) = (committed, true);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<C::NodeId>>, Failure<C>> {
        Ok(self.view().committed.clone())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Result<(), Failure<C>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let purged = self.view().purged.as_ref().map(|purged| purged.index);
        // Purged entries are never read, so they need not be written either.
        let entries = entries.into_iter().filter(|e| Some(e.get_log_id().index) > purged);
        let entries: Vec<_> = entries.collect();
        let Some(last) = entries.last().map(|last| last.get_log_id().clone()) else {
            callback.log_io_completed(Ok(()));
            return Ok(());
        };
        let encoded: io::Result<Vec<_>> = entries.iter().map(encode::<C, F>).collect();
        let entries = encoded.map_err(|error| StorageIOError::write_logs(&error))?;
        let number = {
            let mut view = self.view();
            let next = view.next();
            if view.last.is_some() && entries[0].index != next + 1 {
                let what = format!("entry {} is appended, {next} is next", entries[0].index - 1);
                return Err(StorageIOError::write_logs(&io::Error::other(what)).into());
            }
            view.append(&entries, last)
        };
        let commit = self.queue(|batch| batch.append(self.group, &entries)).await;
        let commit = commit.map_err(|error| StorageIOError::write_logs(&error))?;
        let view = self.view.clone();
        commit.on_done(move |outcome| {
            // Unwritten entries stay in memory: openraft stops the node.
            if outcome.is_ok() {
                view.lock().expect("nothing panics with the lock").release(number);
            }
            callback.log_io_completed(outcome.map(drop).map_err(io::Error::other));
        });
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> Result<(), Failure<C>> {
        let (index, purged) = {
            let view = self.view();
            (log_id.index.max(view.first), view.purged.clone())
        };
        if index >= self.view().next() {
            return Ok(());
        }
        let before = self.read(index.saturating_sub(1)..index, u64::MAX)?;
        let before = before.first().map(|entry| entry.get_log_id().clone());
        self.view().truncate(index, before.or(purged));
        let written = self.write(|batch| batch.truncate_from(self.group, index + 1)).await;
        written.map_err(|error| StorageIOError::write_logs(&error).into())
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> Result<(), Failure<C>> {
        if self.view().purged.as_ref().is_some_and(|purged| purged.index >= log_id.index) {
            return Ok(());
        }
        let bytes = F::encode(&log_id).map_err(|error| StorageIOError::write_logs(&error))?;
        let (first, term) = (log_id.index + 2, log_id.leader_id.term);
        self.view().purge(log_id);
        let written = self.write(|batch| {
            batch.compact_to(self.group, first, term);
            batch.put(self.group, PURGED_KEY, &bytes);
        });
        written.await.map_err(|error| StorageIOError::write_logs(&error).into())
    }
}

impl<C: RaftTypeConfig, F> Clone for GroupLog<C, F> {
    fn clone(&self) -> Self {
        let (notify, view) = (self.notify.clone(), self.view.clone());
        GroupLog { group: self.group, notify, view, format: PhantomData }
    }
}

impl<C: RaftTypeConfig, F> Debug for GroupLog<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupLog").field("group", &self.group).finish_non_exhaustive()
    }
}

/// Adds entries as long as there are no more than `bytes_max` bytes, or no others.
fn extend(entries: &mut Vec<Entry>, more: Vec<Entry>, bytes_max: u64) {
    let mut bytes: u64 = entries.iter().map(|entry| entry.data.len() as u64).sum();
    for entry in more {
        bytes += entry.data.len() as u64;
        if bytes > bytes_max && !entries.is_empty() {
            break;
        }
        entries.push(entry);
    }
}

fn key<F: Format, T: DeserializeOwned>(
    bytes: Option<impl AsRef<[u8]>>,
) -> Result<Option<T>, openraft::AnyError> {
    bytes.map(|bytes| F::decode(bytes.as_ref())).transpose().map_err(|error| (&error).into())
}

fn encode<C: RaftTypeConfig, F: Format>(entry: &C::Entry) -> io::Result<Entry> {
    let log_id = entry.get_log_id();
    let (index, term) = (log_id.index.saturating_add(1), log_id.leader_id.term);
    Ok(Entry { index, term, kind: 0, data: F::encode(entry)?.into() })
}

fn decode<C: RaftTypeConfig, F: Format>(entries: Vec<Entry>) -> Result<Vec<C::Entry>, Failure<C>> {
    let decode = |entry: Entry| {
        let decoded: io::Result<C::Entry> = F::decode(&entry.data);
        decoded.map_err(|error| StorageIOError::read_log_at_index(entry.index - 1, &error).into())
    };
    entries.into_iter().map(decode).collect()
}
