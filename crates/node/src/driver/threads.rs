//! The threads of a node: started together, ended in order.
//!
//! The order of the end: shards first, so that nothing new comes; then the log writer and the
//! applier, each after it has drained its queue; last a checkpoint, so that the next start has
//! little to replay. After a failure, or in a test that plays a crash, no queue is drained.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use flotilla_region::Shard;
use flotilla_store::LogMaintenance;

use crate::disk_reserve::DiskReserve;
use crate::driver::context::NodeContext;
use crate::driver::shard_thread::{EffectSinks, MessageSink, ShardThread};
use crate::driver::workers::applier::Applier;
use crate::driver::workers::checkpointer::Checkpointer;
use crate::driver::workers::disk_watcher::DiskWatcher;
use crate::driver::workers::log_reader::LogReader;
use crate::driver::workers::log_writer::LogWriterThread;
use crate::failure::NodeFailure;

/// The disk that a thread watches.
pub(crate) struct WatchedDisk {
    pub(crate) reserve: DiskReserve,
    pub(crate) data_dir: PathBuf,
    /// Whether all stores know of transfers of leaders.
    pub(crate) may_transfer: Box<dyn Fn() -> bool + Send>,
}

/// Running threads.
pub(crate) struct NodeThreads {
    context: NodeContext,
    shards: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
    disk_watcher: Option<JoinHandle<()>>,
    /// Preallocates and seals the log's segments in the background.
    log_maintenance: Option<LogMaintenance>,
}

impl NodeThreads {
    /// Starts one thread for each of `shards`, and the workers.
    ///
    /// # Errors
    ///
    /// The kernel has no more threads to give.
    pub(crate) fn start(
        context: NodeContext,
        shards: Vec<Shard>,
        transport: impl MessageSink,
        backlog_bytes_max: usize,
        watched: WatchedDisk,
        failure: &NodeFailure,
    ) -> io::Result<Self> {
        assert_eq!(shards.len(), context.mailboxes.count(), "each shard has a mailbox");
        let mut threads = Self {
            context,
            shards: Vec::new(),
            workers: Vec::new(),
            checkpointer: None,
            disk_watcher: None,
            log_maintenance: None,
        };
        threads.start_workers(failure)?;
        threads.watch_disk(watched, failure)?;
        let NodeContext { store, tickets, routes, joint_changes, mailboxes, queues, clock, .. } =
            threads.context.clone();
        let store = store.identity().store;
        let sinks = Arc::new(EffectSinks {
            transport,
            log: queues.log,
            lookups: queues.lookups,
            applies: queues.applies,
            split_wishes: queues.split_wishes,
            tickets,
            routes,
            joint_changes,
            store,
            backlog_bytes_max,
        });
        for (place, shard) in shards.into_iter().enumerate() {
            let mailboxes = mailboxes.clone();
            let sinks = Arc::clone(&sinks);
            let report = failure.clone();
            let thread = ShardThread { shard, place, mailboxes, sinks, clock, failure: report };
            threads.shards.push(failure.guard(&format!("shard-{place}"), || thread.run())?);
        }
        Ok(threads)
    }

    fn start_workers(&mut self, failure: &NodeFailure) -> io::Result<()> {
        let NodeContext {
            store, tickets, routes, comparisons, mailboxes, queues, latencies, ..
        } = self.context.clone();
        self.log_maintenance = Some(store.maintain_log_in_background().map_err(io::Error::other)?);
        let log_writer = LogWriterThread {
            store: Arc::clone(&store),
            queue: queues.log,
            mailboxes: mailboxes.clone(),
            latencies: Arc::clone(&latencies),
            failure: failure.clone(),
        };
        let applier = Applier {
            store: Arc::clone(&store),
            queue: queues.applies,
            mailboxes: mailboxes.clone(),
            tickets,
            routes,
            comparisons,
            signal: Arc::clone(&queues.checkpoint_signal),
            latencies: Arc::clone(&latencies),
            failure: failure.clone(),
        };
        let log_reader = LogReader {
            store: Arc::clone(&store),
            queue: queues.lookups,
            mailboxes: mailboxes.clone(),
            failure: failure.clone(),
        };
        let damage = self.context.page_damage(failure);
        let checkpointer = Checkpointer {
            store,
            damage,
            signal: queues.checkpoint_signal,
            mailboxes,
            latencies,
            failure: failure.clone(),
        };
        self.workers.push(failure.guard("log-writer", || log_writer.run())?);
        self.workers.push(failure.guard("applier", || applier.run())?);
        self.workers.push(failure.guard("log-reader", || log_reader.run())?);
        self.checkpointer = Some(failure.guard("checkpointer", || checkpointer.run())?);
        Ok(())
    }

    /// From now on writes that find no room wait for it, and the watcher makes some.
    fn watch_disk(&mut self, watched: WatchedDisk, failure: &NodeFailure) -> io::Result<()> {
        let NodeContext { store, queues, disks, .. } = self.context.clone();
        let WatchedDisk { reserve, data_dir, may_transfer } = watched;
        store.wait_for_room(true);
        let (view, signal) = (disks, queues.checkpoint_signal);
        let watcher = DiskWatcher { store, view, signal, reserve, data_dir, may_transfer };
        self.disk_watcher = Some(failure.guard("disk-watcher", || watcher.run())?);
        Ok(())
    }

    /// Drains the work queues, makes a checkpoint, ends. Blocks.
    ///
    /// # Errors
    ///
    /// Why the last checkpoint failed. Nothing is lost by that; the next start replays the log.
    pub(crate) fn finish(mut self) -> Result<(), flotilla_store::Error> {
        let context = &self.context;
        context.mailboxes.close();
        // Joined before the workers are drained: a shard could still push work.
        join(self.shards.drain(..));
        // A store that stops waits for no room: what is queued was not acknowledged.
        context.store.wait_for_room(false);
        context.disks.stop();
        context.queues.log.drain();
        context.queues.applies.drain();
        context.queues.lookups.halt();
        context.queues.checkpoint_signal.stop();
        join(self.workers.drain(..));
        join(self.checkpointer.take());
        join(self.disk_watcher.take());
        drop(self.log_maintenance.take());
        context.tickets.close();
        context.store.checkpoint().map(drop)
    }

    /// Ends at once. Blocks until each thread has finished the step, write or transaction that it
    /// is in.
    pub(crate) fn abandon(mut self) {
        self.context.halt();
        join(self.shards.drain(..));
        join(self.workers.drain(..));
        join(self.checkpointer.take());
        join(self.disk_watcher.take());
        drop(self.log_maintenance.take());
    }
}

impl Drop for NodeThreads {
    fn drop(&mut self) {
        // A node that is dropped without an end leaves no threads behind. A second halt has no
        // effect.
        self.context.halt();
    }
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        // A panic has been reported by the guard already.
        let _ = thread.join();
    }
}
