//! Writes the log of all regions of a store: everything that waits, one batch, one sync.
//!
//! While a sync runs the shards gather the next batch in the backlog, so the batches grow with the
//! time that the disk takes. Under load a short rest between syncs lets them grow further (see
//! `pace.rs`); a lone writer is synced at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flotilla_region::{Compaction, Event, LogWrite, RegionId};
use flotilla_store::Store;

use super::backlog::Backlog;
use super::pace::Pace;
use crate::failure::Failure;
use crate::letters::Mailboxes;
use crate::shared::Shared;

/// One thing to be written.
pub(crate) enum LogTask {
    /// Entries and hard state of one replica.
    Write(LogWrite),
    /// Entries that one replica no longer needs.
    Compact(Compaction),
}

impl LogTask {
    /// The bytes that the task counts for in the backlog.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Write(write) => {
                let data: usize = write.entries.iter().map(|entry| entry.data.len()).sum();
                128 + data + write.entries.len() * 32
            }
            Self::Compact(_) => 64,
        }
    }
}

/// Bytes after which a batch is written although more waits: the engine refuses batches above its
/// own limit, and a single write is far below it.
const BATCH_BYTES: usize = 16 << 20;

/// What the thread needs.
pub(crate) struct LogWriter {
    pub(crate) store: Arc<Shared<Store>>,
    pub(crate) backlog: Arc<Backlog<LogTask>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) failure: Failure,
}

impl LogWriter {
    /// Runs until the backlog is closed or a write fails.
    pub(crate) fn run(self) {
        let mut tasks = Vec::new();
        let (mut writes, mut compactions) = (Vec::new(), Vec::new());
        let mut pace = Pace::default();
        while self.backlog.take(&mut tasks).is_some() {
            if let Some(until) = pace.rest_until(Instant::now()) {
                self.backlog.gather(&mut tasks, until);
            }
            let began = Instant::now();
            let count = tasks.len();
            let mut waiting = tasks.drain(..).peekable();
            while waiting.peek().is_some() {
                let mut bytes = 0;
                while let Some(task) = waiting.next_if(|_| bytes < BATCH_BYTES) {
                    bytes += task.weight();
                    match task {
                        LogTask::Write(write) => writes.push(write),
                        LogTask::Compact(compaction) => compactions.push(compaction),
                    }
                }
                if let Err(error) = self.store.write_log(&writes, &compactions).wait() {
                    self.failure.report(&format!("the log cannot be written: {error}"));
                    return;
                }
                // First the bytes: a shard that the report wakes looks at them.
                self.backlog.finish(bytes);
                self.report(&writes);
                writes.clear();
                compactions.clear();
            }
            pace.note(began, Instant::now(), count);
        }
    }

    /// Tells each region the last of its writes; that implies the earlier ones.
    fn report(&self, writes: &[LogWrite]) {
        let mut last: BTreeMap<RegionId, u64> = BTreeMap::new();
        for write in writes {
            last.insert(write.region, write.number);
        }
        self.mailboxes.complete_all(
            last.into_iter().map(|(region, number)| Event::Persisted { region, number }),
        );
    }
}
