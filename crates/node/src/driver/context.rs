//! The handles that all threads and tasks of a node share, and how they are halted.

use std::collections::BTreeSet;
use std::sync::Arc;

use flotilla_store::Store;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::driver::comparisons::Comparisons;
use crate::driver::disk_view::DiskView;
use crate::driver::joint_changes::JointChanges;
use crate::driver::latencies::Latencies;
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::Mailboxes;
use crate::driver::split_wishes::SplitWishes;
use crate::driver::tickets::Tickets;
use crate::driver::workers::applier::ApplyWork;
use crate::driver::workers::checkpointer::CheckpointSignal;
use crate::driver::workers::log_reader::LookupTask;
use crate::driver::workers::log_writer::LogTask;
use crate::driver::workers::page_damage::PageDamage;
use crate::driver::workers::work_queue::WorkQueue;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// Handles on everything that is shared. Cheap to clone.
#[derive(Clone)]
pub(crate) struct NodeContext {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) routes: Arc<RoutingTable>,
    pub(crate) joint_changes: Arc<JointChanges>,
    pub(crate) comparisons: Arc<Comparisons>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) queues: WorkQueues,
    pub(crate) clock: Clock,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) disks: Arc<DiskView>,
    /// The damaged pages that are being taken out.
    pub(crate) damaged_pages: Arc<Mutex<BTreeSet<u64>>>,
}

/// The work queue of each worker.
#[derive(Clone)]
pub(crate) struct WorkQueues {
    pub(crate) log: Arc<WorkQueue<LogTask>>,
    pub(crate) applies: Arc<WorkQueue<ApplyWork>>,
    pub(crate) lookups: Arc<WorkQueue<LookupTask>>,
    pub(crate) checkpoint_signal: Arc<CheckpointSignal>,
    /// Not a thread's: tasks carry splits out.
    pub(crate) split_wishes: Arc<SplitWishes>,
}

impl WorkQueues {
    /// Nothing waits.
    pub(crate) fn new() -> Self {
        Self {
            log: Arc::new(WorkQueue::new()),
            applies: Arc::new(WorkQueue::new()),
            lookups: Arc::new(WorkQueue::new()),
            checkpoint_signal: Arc::new(CheckpointSignal::new()),
            split_wishes: Arc::default(),
        }
    }
}

impl NodeContext {
    /// The way to have damaged pages taken out.
    pub(crate) fn page_damage(&self, failure: &NodeFailure) -> PageDamage {
        let signal = Arc::clone(&self.queues.checkpoint_signal);
        PageDamage {
            store: Arc::clone(&self.store),
            mailboxes: self.mailboxes.clone(),
            demand: Arc::new(move || signal.demand()),
            failure: failure.clone(),
            under_way: Arc::clone(&self.damaged_pages),
        }
    }

    /// Counts the requests of clients to this store, and the entries that it has applied for them:
    /// followers serve as well.
    pub(crate) fn served_count(&self) -> Arc<dyn Fn() -> u64 + Send + Sync> {
        let (tickets, store) = (Arc::clone(&self.tickets), Arc::clone(&self.store));
        Arc::new(move || tickets.opened() + store.entries_applied())
    }

    /// Ends everything at once. After it has returned, no request is answered any more, and a
    /// worker only finishes the write or the transaction that it has begun.
    pub(crate) fn halt(&self) {
        // Tickets first: a write that still completes must not be acknowledged any more.
        self.tickets.close();
        self.mailboxes.close();
        self.queues.log.halt();
        self.queues.applies.halt();
        self.queues.lookups.halt();
        self.queues.checkpoint_signal.stop();
        self.disks.stop();
        // A write that waits for room ends.
        self.store.wait_for_room(false);
    }
}
