//! What all threads and tasks of a node share, and how it is brought to a halt.

use std::sync::Arc;

use flotilla_region::{ApplyTask, LogFetch};
use flotilla_store::Store;

use crate::clock::Clock;
use crate::driver::routes::Routes;
use crate::driver::shard_message::Mailboxes;
use crate::driver::tickets::Tickets;
use crate::driver::workers::checkpointer::Alarm;
use crate::driver::workers::log_writer::LogTask;
use crate::driver::workers::work_queue::Backlog;
use crate::drop_notify::Shared;

/// Handles on everything that is shared. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Commons {
    pub(crate) store: Arc<Shared<Store>>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) works: Works,
    pub(crate) clock: Clock,
}

/// The work that waits for each worker.
#[derive(Clone)]
pub(crate) struct Works {
    pub(crate) log: Arc<Backlog<LogTask>>,
    pub(crate) applies: Arc<Backlog<ApplyTask>>,
    pub(crate) fetches: Arc<Backlog<LogFetch>>,
    pub(crate) alarm: Arc<Alarm>,
}

impl Works {
    /// Nothing waits.
    pub(crate) fn new() -> Self {
        Self {
            log: Arc::new(Backlog::new()),
            applies: Arc::new(Backlog::new()),
            fetches: Arc::new(Backlog::new()),
            alarm: Arc::new(Alarm::new()),
        }
    }
}

impl Commons {
    /// Ends everything where it stands: once this has returned nothing is answered any more, and
    /// nothing is written or applied but what a worker has in its hands.
    pub(crate) fn halt(&self) {
        self.tickets.close();
        self.mailboxes.close();
        self.works.log.halt();
        self.works.applies.halt();
        self.works.fetches.halt();
        self.works.alarm.stop();
    }
}
