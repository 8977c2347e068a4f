//! Applies committed entries of all regions of a store: everything that waits, one transaction.

use std::sync::Arc;

use flotilla_region::{ApplyTask, Event};
use flotilla_store::Store;

use super::checkpointer::Alarm;
use super::work_queue::Backlog;
use crate::driver::shard_message::Mailboxes;
use crate::driver::tickets::{Answer, Tickets};
use crate::drop_notify::Shared;
use crate::failure::Failure;

/// The bytes that a task counts for in the backlog.
pub(crate) fn weight(task: &ApplyTask) -> usize {
    task.entries.iter().map(|committed| 64 + committed.entry.data.len()).sum()
}

/// What the thread needs.
pub(crate) struct Applier {
    pub(crate) store: Arc<Shared<Store>>,
    pub(crate) backlog: Arc<Backlog<ApplyTask>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) failure: Failure,
}

impl Applier {
    /// Runs until the backlog is closed or applying fails.
    pub(crate) fn run(self) {
        let mut tasks: Vec<ApplyTask> = Vec::new();
        while let Some(bytes) = self.backlog.take(&mut tasks) {
            // What waits meanwhile keeps the shards from taking more.
            self.alarm.hold(self.store.dirty_limits(), || self.store.dirty_bytes());
            let applied = match self.store.apply(&tasks) {
                Ok(applied) => applied,
                Err(error) => {
                    self.failure.report(&format!("entries cannot be applied: {error}"));
                    return;
                }
            };
            for (ticket, outcome) in applied.outcomes {
                self.tickets.answer(ticket, Answer::Applied(outcome));
            }
            tasks.clear();
            // First the bytes: a shard that the report wakes looks at them.
            self.backlog.finish(bytes);
            self.mailboxes.complete_all(
                applied.regions.into_iter().map(|(region, index)| Event::Applied { region, index }),
            );
            self.alarm.changed(self.store.wants_checkpoint());
            if self.store.wants_slabs() {
                self.alarm.want_slabs();
            }
        }
    }
}
