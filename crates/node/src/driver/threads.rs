//! The threads of a node: started together, ended in order.
//!
//! The order of the end: shards first, so that nothing new comes; then the log writer and the
//! applier, each after it has done what waits; last a checkpoint, so that the next start has
//! little to replay. After a failure or in a test that plays a crash, nobody finishes anything.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flotilla_region::Shard;
use flotilla_store::LogMaintenance;

use crate::driver::context::Commons;
use crate::driver::shard_thread::{Outbox, Outlets, ShardThread};
use crate::driver::workers::applier::Applier;
use crate::driver::workers::checkpointer::Checkpointer;
use crate::driver::workers::log_reader::Fetcher;
use crate::driver::workers::log_writer::LogWriter;
use crate::failure::Failure;

/// Bounds and times that the threads keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) backlog_bytes_max: usize,
    pub(crate) checkpoint_interval: Duration,
}

/// Running threads.
pub(crate) struct Threads {
    commons: Commons,
    shards: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
    /// Makes and seals the log's files behind the log writer's back.
    log_maintenance: Option<LogMaintenance>,
}

impl Threads {
    /// Starts one thread for each of `shards`, and the workers.
    ///
    /// # Errors
    ///
    /// What the system says if it has no more threads to give.
    pub(crate) fn start(
        commons: Commons,
        shards: Vec<Shard>,
        transport: impl Outbox,
        pace: Pace,
        failure: &Failure,
    ) -> io::Result<Self> {
        let mut threads = Self {
            commons,
            shards: Vec::new(),
            workers: Vec::new(),
            checkpointer: None,
            log_maintenance: None,
        };
        threads.start_workers(pace, failure)?;
        let Commons { store, tickets, routes, mailboxes, works, clock } = threads.commons.clone();
        let outlets = Arc::new(Outlets {
            transport,
            log: works.log,
            fetches: works.fetches,
            applies: works.applies,
            tickets,
            routes,
            backlog_bytes_max: pace.backlog_bytes_max,
        });
        for (place, shard) in shards.into_iter().enumerate() {
            let mailboxes = mailboxes.clone();
            let outlets = Arc::clone(&outlets);
            let (store, report) = (store.identity().store, failure.clone());
            let thread =
                ShardThread { shard, place, mailboxes, outlets, clock, store, failure: report };
            threads.shards.push(failure.guard(&format!("shard-{place}"), || thread.run())?);
        }
        Ok(threads)
    }

    fn start_workers(&mut self, pace: Pace, failure: &Failure) -> io::Result<()> {
        let Commons { store, tickets, mailboxes, works, .. } = self.commons.clone();
        self.log_maintenance = Some(store.maintain_log_in_background().map_err(io::Error::other)?);
        let log_writer = LogWriter {
            store: Arc::clone(&store),
            backlog: works.log,
            mailboxes: mailboxes.clone(),
            failure: failure.clone(),
        };
        let applier = Applier {
            store: Arc::clone(&store),
            backlog: works.applies,
            mailboxes: mailboxes.clone(),
            tickets,
            alarm: Arc::clone(&works.alarm),
            failure: failure.clone(),
        };
        let fetcher = Fetcher {
            store: Arc::clone(&store),
            backlog: works.fetches,
            mailboxes: mailboxes.clone(),
            failure: failure.clone(),
        };
        let checkpointer = Checkpointer {
            store,
            alarm: works.alarm,
            interval: pace.checkpoint_interval,
            mailboxes,
            failure: failure.clone(),
        };
        self.workers.push(failure.guard("log-writer", || log_writer.run())?);
        self.workers.push(failure.guard("applier", || applier.run())?);
        self.workers.push(failure.guard("log-reader", || fetcher.run())?);
        self.checkpointer = Some(failure.guard("checkpointer", || checkpointer.run())?);
        Ok(())
    }

    /// Does what waits, makes a checkpoint, ends. Blocks.
    ///
    /// # Errors
    ///
    /// Why the last checkpoint failed. Nothing is lost by that; the next start replays the log.
    pub(crate) fn finish(mut self) -> Result<(), flotilla_store::Error> {
        let commons = &self.commons;
        commons.mailboxes.close();
        join(self.shards.drain(..));
        commons.works.log.drain();
        commons.works.applies.drain();
        commons.works.fetches.halt();
        commons.works.alarm.stop();
        join(self.workers.drain(..));
        join(self.checkpointer.take());
        drop(self.log_maintenance.take());
        commons.tickets.close();
        commons.store.checkpoint().map(drop)
    }

    /// Ends where it stands. Blocks until the threads have put down what they have in their hands.
    pub(crate) fn abandon(mut self) {
        self.commons.halt();
        join(self.shards.drain(..));
        join(self.workers.drain(..));
        join(self.checkpointer.take());
        drop(self.log_maintenance.take());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Whoever forgets to end a node leaves no threads behind; ended ones do not mind.
        self.commons.halt();
    }
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        // A panic has been reported by the guard already.
        let _ = thread.join();
    }
}
