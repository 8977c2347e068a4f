//! Writes the log of all regions of a store: the whole queue as one batch with one sync (group
//! commit).
//!
//! While a sync runs the shards push the next batch into the queue, so the batches grow with the
//! time that the disk takes. Under load a short delay between syncs lets them grow further (see
//! `commit_delay.rs`); a lone writer is synced at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flotilla_region::{Compaction, Event, LogWrite, PeerId, RegionId, ReplicaBirth};
use flotilla_store::Store;

use super::commit_delay::CommitDelay;
use super::work_queue::WorkQueue;
use crate::driver::latencies::Latencies;
use crate::driver::shard_message::Mailboxes;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// One record for the log.
pub(crate) enum LogTask {
    /// Entries and hard state of one replica.
    Write(LogWrite),
    /// The birth of a replica.
    Birth(ReplicaBirth),
    /// Entries that one replica no longer needs.
    Compact(Compaction),
    /// The log of a replica that has ended.
    Remove(PeerId),
}

impl LogTask {
    /// Bytes that the task counts for in the work queue.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Write(write) => {
                let data: usize = write.entries.iter().map(|entry| entry.data.len()).sum();
                128 + data + write.entries.len() * 32
            }
            Self::Birth(_) => 256,
            Self::Compact(_) | Self::Remove(_) => 64,
        }
    }
}

/// Bytes after which a batch is written although more waits: the engine refuses batches above its
/// own limit, and a single write is far below it.
const BATCH_BYTES: usize = 16 << 20;

/// The log writer's thread, before it runs.
pub(crate) struct LogWriterThread {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) queue: Arc<WorkQueue<LogTask>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) failure: NodeFailure,
}

impl LogWriterThread {
    /// Runs until the queue is closed or a write fails.
    pub(crate) fn run(self) {
        let mut tasks = Vec::new();
        let (mut writes, mut births, mut compactions) = (Vec::new(), Vec::new(), Vec::new());
        let mut removals = Vec::new();
        let mut commit_delay = CommitDelay::default();
        while self.queue.take(&mut tasks).is_some() {
            if let Some(until) = commit_delay.delay_until(Instant::now()) {
                self.queue.take_until(&mut tasks, until);
            }
            let began = Instant::now();
            let count = tasks.len();
            let mut waiting = tasks.drain(..).peekable();
            while waiting.peek().is_some() {
                let mut bytes = 0;
                while let Some(task) = waiting.next_if(|task| match task {
                    // A birth is in the batch of the writes of its step, or behind it a checkpoint
                    // could cover them first.
                    LogTask::Birth(_) => true,
                    // A batch has births behind writes: writes of a new replica are for the next.
                    LogTask::Write(_) => bytes < BATCH_BYTES && births.is_empty(),
                    LogTask::Compact(_) | LogTask::Remove(_) => bytes < BATCH_BYTES,
                }) {
                    bytes += task.weight();
                    match task {
                        LogTask::Write(write) => writes.push(write),
                        LogTask::Birth(birth) => births.push(birth),
                        LogTask::Compact(compaction) => compactions.push(compaction),
                        LogTask::Remove(peer) => removals.push(peer),
                    }
                }
                // The engine starts no threads: this one waits for the disk, for all regions
                // (decision 3, `docs/decisions/0003-who-flushes.md`).
                let write_began = Instant::now();
                let commit = self.store.write_log(&writes, &births, &compactions, &removals);
                if let Err(error) = commit.wait() {
                    self.failure.report(&format!("the log cannot be written: {error}"));
                    return;
                }
                self.latencies.log_write.observe(write_began.elapsed());
                // The bytes first: a shard that the completion wakes reads them.
                self.queue.finish(bytes);
                self.report(&writes);
                writes.clear();
                births.clear();
                compactions.clear();
                removals.clear();
            }
            commit_delay.note(began, Instant::now(), count);
        }
    }

    /// Reports to each region the last of its writes; that implies the earlier ones.
    fn report(&self, writes: &[LogWrite]) {
        let mut last: BTreeMap<RegionId, u64> = BTreeMap::new();
        for write in writes {
            // A later write of the same region replaces the earlier one: the log is written in
            // order.
            last.insert(write.region, write.number);
        }
        self.mailboxes.complete_all(
            last.into_iter().map(|(region, number)| Event::Persisted { region, number }),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use flotilla_region::{
        Descriptor, EntryKind, Epoch, HardState, Index, LogEntry, Peer, PeerId, Space, StoreId,
        Term,
    };
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::driver::shard_message::ShardMessage;
    use crate::test_store;
    use flotilla_dispatch::OpenLanes;
    use flotilla_region::RemovedPeers;

    fn region(id: u64) -> Descriptor {
        let (start, end) = match id {
            1 => ("", ""),
            2 => ("", "h"),
            3 => ("h", "p"),
            _ => ("p", ""),
        };
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(id),
            space: if id == 1 { Space::System } else { Space::Raw },
            start: start.into(),
            end: end.into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![Peer { id: PeerId(id * 100 + 1), store: StoreId(1) }.into()],
        }
    }

    /// One entry of a region's log.
    fn write(region: u64, number: u64, bytes: usize) -> LogWrite {
        let data = vec![7; bytes].into();
        let (index, term) = (Index(number), Term(1));
        LogWrite {
            region: RegionId(region),
            peer: PeerId(region * 100 + 1),
            number,
            hard_state: Some(HardState { term, vote: None, commit: Index(0) }),
            entries: vec![LogEntry { index, term, kind: EntryKind::Normal, data }],
            sync: true,
            reset: None,
        }
    }

    /// The queue may hold more than one batch, and each batch many regions of many shards.
    #[test]
    fn every_region_is_told_of_its_last_write_whatever_batch_it_was_in() {
        let regions: Vec<_> = (1..=4).map(region).collect();
        let store = test_store::open(&FaultFs::new(1), &regions);
        let large = BATCH_BYTES / 2 + 1;
        let (queue, mailboxes) = (Arc::new(WorkQueue::new()), Mailboxes::new(3, 1 << 20));
        let writer = LogWriterThread {
            store: crate::drop_notify::drop_notify(store).0,
            queue: Arc::clone(&queue),
            mailboxes: mailboxes.clone(),
            latencies: Arc::default(),
            failure: NodeFailure::new(|| ()),
        };
        let writes = [
            write(1, 1, 10),
            write(2, 1, large),
            write(2, 2, 10),
            write(3, 1, large),
            write(4, 1, large),
            write(2, 3, large),
            write(1, 2, 10),
            write(1, 3, 10),
        ];
        queue.push_all(writes.map(LogTask::Write).map(|task| {
            let bytes = task.weight();
            (task, bytes)
        }));
        queue.drain();
        writer.run();
        assert_eq!(queue.bytes(), 0, "all is done");
        let mut told: BTreeMap<RegionId, Vec<u64>> = BTreeMap::new();
        for place in 0..mailboxes.count() {
            let mut messages = VecDeque::new();
            let open = OpenLanes { appends: true, clients: true };
            mailboxes.at(place).take(&mut messages, open, Some(Instant::now()));
            for message in messages {
                let ShardMessage::Event(Event::Persisted { region, number }) = message else {
                    panic!("a writer tells of writes only");
                };
                assert_eq!(mailboxes.place(region), place, "told the wrong shard");
                told.entry(region).or_default().push(number);
            }
        }
        let last = |region| told.get(&RegionId(region)).and_then(|numbers| numbers.last().copied());
        assert_eq!([1, 2, 3, 4].map(last), [Some(3), Some(3), Some(1), Some(1)], "{told:?}");
        assert!(told.values().all(|numbers| numbers.is_sorted()), "{told:?}");
    }
}
