//! Applies committed entries of all regions of a store: the whole queue in one transaction, and
//! installs snapshots and ends replicas between entries, each in a transaction of its own.

use std::sync::Arc;
use std::time::Instant;

use flotilla_region::{ApplyTask, EndTask, Epoch, Event, InstallTask, PeerId, StageId};
use flotilla_store::{AppliedReplica, DamagedReplica, Ended, Error, Installed, Store};

use super::checkpointer::CheckpointSignal;
use super::work_queue::WorkQueue;
use crate::driver::comparisons::Comparisons;
use crate::driver::latencies::{Latencies, Milestone};
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::Mailboxes;
use crate::driver::tickets::{TicketAnswer, Tickets};
use crate::driver::workers::page_damage;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// Work that changes rows. Carried out in the order of the queue.
pub(crate) enum ApplyWork {
    /// Committed entries.
    Entries(ApplyTask),
    /// A snapshot that takes the place of a replica's rows.
    Install(Box<InstallTask>),
    /// A snapshot that is not installed.
    Discard(StageId),
    /// A replica that ends.
    End(EndTask),
}

impl ApplyWork {
    /// Bytes that the work counts for in the work queue.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Entries(task) => {
                task.entries.iter().map(|committed| 64 + committed.entry.data.len()).sum()
            }
            Self::Install(_) | Self::Discard(_) | Self::End(_) => 256,
        }
    }
}

/// The applier's thread, before it runs.
pub(crate) struct Applier {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) queue: Arc<WorkQueue<ApplyWork>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) routes: Arc<RoutingTable>,
    pub(crate) comparisons: Arc<Comparisons>,
    pub(crate) signal: Arc<CheckpointSignal>,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) failure: NodeFailure,
}

impl Applier {
    /// Runs until the queue is closed or applying fails.
    pub(crate) fn run(self) {
        let mut work: Vec<ApplyWork> = Vec::new();
        let mut entries: Vec<ApplyTask> = Vec::new();
        while let Some(bytes) = self.queue.take(&mut work) {
            // The queue grows meanwhile, and its bytes keep the shards from taking more.
            // Before the transaction: at the hard limit it has to wait until a checkpoint has
            // written pages.
            self.signal.throttle(self.store.dirty_limits(), || self.store.dirty_bytes());
            if let Err(error) = self.carry_out(work.drain(..), &mut entries, bytes) {
                self.failure.report(&format!("entries cannot be applied: {error}"));
                return;
            }
            self.signal.changed(self.store.needs_maintenance());
        }
    }

    /// Carries out all work of `bytes`.
    fn carry_out(
        &self,
        work: impl Iterator<Item = ApplyWork>,
        entries: &mut Vec<ApplyTask>,
        bytes: usize,
    ) -> Result<(), Error> {
        let mut done = Vec::new();
        for work in work {
            match work {
                ApplyWork::Entries(task) => entries.push(task),
                ApplyWork::Discard(stage) => self.store.discard_stage(stage),
                ApplyWork::Install(task) => {
                    // The replica's entries that were handed out before it come first.
                    self.apply(entries, &mut done)?;
                    self.install(&task, &mut done)?;
                }
                ApplyWork::End(task) => {
                    self.apply(entries, &mut done)?;
                    self.end(&task, &mut done)?;
                }
            }
        }
        self.apply(entries, &mut done)?;
        // The bytes first: a shard that the completion wakes reads them.
        self.queue.finish(bytes);
        self.mailboxes.complete_all(done);
        Ok(())
    }

    fn apply(&self, tasks: &mut Vec<ApplyTask>, done: &mut Vec<Event>) -> Result<(), Error> {
        if tasks.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let applied = self.store.apply(tasks)?;
        let now = Instant::now();
        self.latencies.apply.observe(now - began);
        tasks.clear();
        for (ticket, outcome) in applied.outcomes {
            self.tickets.pass(ticket, Milestone::Applying, began);
            self.tickets.answer(ticket, TicketAnswer::Applied(outcome), now);
        }
        self.comparisons.note_applied(&applied.replicas);
        self.tell_damaged(&applied.damaged, done);
        applied.undecided.into_iter().for_each(|ticket| self.tickets.leave_open(ticket));
        for replica in applied.replicas {
            let AppliedReplica { region, peer, index, changes, size, is_damaged, .. } = replica;
            // Before the splits: their parts are damaged, too.
            done.extend(is_damaged.then_some(Event::Damaged { region, peer }));
            done.push(Event::Applied { region, index, changes, size });
        }
        Ok(())
    }

    /// Damaged pages were met.
    fn tell_damaged(&self, damaged: &[DamagedReplica], done: &mut Vec<Event>) {
        if !damaged.is_empty() {
            page_damage::log(damaged);
            self.signal.demand();
            done.extend(damaged.iter().copied().map(page_damage::event));
        }
    }

    /// Ends a replica. Its slot has no successor until a durable root has that, so the next
    /// checkpoint comes at once.
    fn end(&self, task: &EndTask, done: &mut Vec<Event>) -> Result<(), Error> {
        let began = Instant::now();
        let ended = self.store.end(task)?;
        self.tell_damaged(&ended.damaged, done);
        // From now on reads find no rows: nor do requests find the region.
        if ended.region.is_some() {
            self.routes.end(task.region);
            self.comparisons.forget(task.region);
        }
        if !ended.replicas.is_empty() {
            let epoch = ended.region.as_ref().map(|region| region.epoch);
            let Epoch { version, conf_version } = epoch.unwrap_or_default();
            tracing::info!(
                region = %task.region, version, conf_version, peer = %task.peer,
                rows = ended.rows_removed, bytes = ended.bytes_removed,
                ms = began.elapsed().as_millis(), cause = end_cause(&ended, task.peer),
                "a replica ended"
            );
        }
        self.signal.demand();
        Ok(())
    }

    /// Puts a snapshot in the place of a replica's rows. The replica is silent until a durable root
    /// has them, so the next checkpoint comes at once.
    fn install(&self, task: &InstallTask, done: &mut Vec<Event>) -> Result<(), Error> {
        let began = Instant::now();
        let installed = self.store.install(task)?;
        self.tell_damaged(&installed.damaged, done);
        let (region, epoch) = (task.head.descriptor.id, task.head.descriptor.epoch);
        tracing::info!(
            %region, version = epoch.version, conf_version = epoch.conf_version,
            peer = %task.peer, index = %installed.index, rows = installed.rows,
            bytes = installed.bytes, rows_removed = installed.rows_removed,
            ms = began.elapsed().as_millis(), cause = install_cause(&installed),
            "a snapshot was installed"
        );
        self.signal.demand();
        Ok(())
    }
}

/// Why a replica has ended, by the region as that replica had it at its end.
fn end_cause(ended: &Ended, peer: PeerId) -> &'static str {
    match &ended.region {
        None => "it has no data, and another store says that it is gone",
        Some(region) if region.peer(peer).is_some() => "another store says that it is gone",
        Some(_) => "the region removed it",
    }
}

/// Why a snapshot came.
fn install_cause(installed: &Installed) -> &'static str {
    match installed.had_data {
        true => "the replica lacked entries that the leader's log has no more",
        false => "the replica is new",
    }
}
