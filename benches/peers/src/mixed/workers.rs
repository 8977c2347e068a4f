//! The threads that carry out a shard's effects, as the node's workers do
//! (`crates/node/src/driver/workers`).

use super::cluster::{Answer, Cluster, StoreContext};
use super::commit_delay::CommitDelay;
use crate::log::Result;
use flotilla_region::{ApplyTask, Compaction, Event, LogWrite, RegionId};
use flotilla_store::{AppliedReplica, ApplyOutcome, CheckpointedReplica, StoreMaintenance};
use std::collections::BTreeMap;
use std::time::Instant;

/// One record for the log.
pub enum LogTask {
    /// Entries and hard state of one replica.
    Write(LogWrite),
    /// Entries that one replica no longer needs.
    Compact(Compaction),
}

impl LogTask {
    /// Bytes that it counts for.
    pub fn weight(&self) -> usize {
        match self {
            LogTask::Write(write) => {
                let data: usize = write.entries.iter().map(|entry| entry.data.len()).sum();
                128 + data + write.entries.len() * 32
            }
            LogTask::Compact(_) => 64,
        }
    }
}

/// Bytes that an apply task counts for.
pub fn weight(task: &ApplyTask) -> usize {
    task.entries.iter().map(|committed| 64 + committed.entry.data.len()).sum()
}

/// Bytes after which a batch is written although more waits.
const BATCH_BYTES: usize = 16 << 20;

/// Writes the whole queue as one batch with one sync, again and again.
pub fn write_log(context: &StoreContext) -> Result<()> {
    let mut tasks = Vec::new();
    let (mut writes, mut compactions) = (Vec::new(), Vec::new());
    let mut commit_delay = CommitDelay::default();
    while context.writes.take(&mut tasks).is_some() {
        if let Some(until) = commit_delay.delay_until(Instant::now()) {
            context.writes.take_until(&mut tasks, until);
        }
        let (began, count) = (Instant::now(), tasks.len());
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
            context.log.write(&writes, &compactions)?;
            context.writes.finish(bytes);
            let mut last: BTreeMap<RegionId, u64> = BTreeMap::new();
            for write in &writes {
                last.insert(write.region, write.number);
            }
            let persisted = |(region, number)| Event::Persisted { region, number };
            context.mailbox.complete_all(last.into_iter().map(persisted));
            writes.clear();
            compactions.clear();
        }
        commit_delay.note(began, Instant::now(), count);
    }
    Ok(())
}

/// Reads old entries for followers that are behind.
pub fn read_log(context: &StoreContext) -> Result<()> {
    let mut fetches = Vec::new();
    while let Some(bytes) = context.fetches.take(&mut fetches) {
        for fetch in fetches.drain(..) {
            let (region, peer, of_fetch) = (fetch.region, fetch.peer, fetch.context);
            let event = match context.log.fetch(&fetch)? {
                Some(entries) => Event::Fetched { region, peer, context: of_fetch, entries },
                None => Event::FetchFailed { region, peer, context: of_fetch },
            };
            context.mailbox.complete_all([event]);
        }
        context.fetches.finish(bytes);
    }
    Ok(())
}

/// Applies the whole queue in one transaction, again and again, and answers the clients.
pub fn apply(cluster: &Cluster, context: &StoreContext) -> Result<()> {
    let mut tasks = Vec::new();
    let store = &context.store;
    while let Some(bytes) = context.applies.take(&mut tasks) {
        context.signal.throttle(store.dirty_limits(), || store.dirty_bytes());
        let applied = store.apply(&tasks)?;
        if let Some((_, outcome)) = applied.outcomes.iter().find(|(_, o)| *o != ApplyOutcome::Done)
        {
            return Err(format!("a write came to {outcome:?}").into());
        }
        if !applied.outcomes.is_empty() {
            cluster.answer(applied.outcomes.into_iter().map(|(ticket, _)| Answer::Applied(ticket)));
        }
        tasks.clear();
        context.applies.finish(bytes);
        let event = |AppliedReplica { region, index, changes, size, .. }| Event::Applied {
            region,
            index,
            changes,
            size,
        };
        context.mailbox.complete_all(applied.replicas.into_iter().map(event));
        context.signal.changed(store.needs_maintenance());
    }
    Ok(())
}

/// Follows the store's maintenance policy; purges the log after each checkpoint.
pub fn checkpoint(context: &StoreContext) -> Result<()> {
    while !context.signal.is_stopped() {
        let (dirty_bytes, began) = (context.store.dirty_bytes(), Instant::now());
        match context.store.maintain(context.signal.elapsed())? {
            StoreMaintenance::Checkpointed(applied) => {
                context.signal.checkpointed(dirty_bytes, began.elapsed());
                let event = |CheckpointedReplica { region, applied, installed }| {
                    Event::Checkpointed { region, applied, installed }
                };
                context.mailbox.complete_all(applied.replicas.into_iter().map(event));
                context.log.purge()?;
            }
            StoreMaintenance::SpaceReturned => context.signal.rest(began.elapsed()),
            StoreMaintenance::Rest { until } => context.signal.wait(until),
            StoreMaintenance::Progress => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}
