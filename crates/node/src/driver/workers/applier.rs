//! Applies committed entries of all regions of a store: the whole queue in one transaction.

use std::sync::Arc;

use flotilla_region::{ApplyTask, Event};
use flotilla_store::Store;

use super::checkpointer::CheckpointSignal;
use super::work_queue::WorkQueue;
use crate::driver::shard_message::Mailboxes;
use crate::driver::tickets::{TicketAnswer, Tickets};
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// Bytes that a task counts for in the work queue.
pub(crate) fn weight(task: &ApplyTask) -> usize {
    task.entries.iter().map(|committed| 64 + committed.entry.data.len()).sum()
}

/// The applier's thread, before it runs.
pub(crate) struct Applier {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) queue: Arc<WorkQueue<ApplyTask>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) signal: Arc<CheckpointSignal>,
    pub(crate) failure: NodeFailure,
}

impl Applier {
    /// Runs until the queue is closed or applying fails.
    pub(crate) fn run(self) {
        let mut tasks: Vec<ApplyTask> = Vec::new();
        while let Some(bytes) = self.queue.take(&mut tasks) {
            // The queue grows meanwhile, and its bytes keep the shards from taking more.
            // Before the transaction: at the hard limit it has to wait until a checkpoint has
            // written pages.
            self.signal.throttle(self.store.dirty_limits(), || self.store.dirty_bytes());
            let applied = match self.store.apply(&tasks) {
                Ok(applied) => applied,
                Err(error) => {
                    self.failure.report(&format!("entries cannot be applied: {error}"));
                    return;
                }
            };
            for (ticket, outcome) in applied.outcomes {
                self.tickets.answer(ticket, TicketAnswer::Applied(outcome));
            }
            tasks.clear();
            // The bytes first: a shard that the completion wakes reads them.
            self.queue.finish(bytes);
            self.mailboxes.complete_all(applied.replicas.into_iter().map(|replica| {
                Event::Applied {
                    region: replica.region,
                    index: replica.index,
                    changes: replica.changes,
                    size: replica.size,
                }
            }));
            self.signal.changed(self.store.needs_maintenance());
        }
    }
}
