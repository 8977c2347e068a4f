//! The executor carries out a core's effects on the disk: later, in order, and reports them only
//! when they are done.
//!
//! In the node these are threads: one writes the log, one applies, tasks read. Here each keeps a
//! queue and a place on the agenda.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;
use flotilla_dispatch::{ComparisonSchedule, ExpirySweep};
use flotilla_region::{
    BirthOrigin, Descriptor, EndTask, Event, Index, LogEffects, PeerId, ReadGrant, RegionId,
    Reject, Term,
};
use flotilla_store::{
    AppliedReplica, ApplyOutcome, CheckpointReport, CheckpointedReplica, Commit, Error, Pacer,
    ReadError, Store, StoreMaintenance,
};

use crate::coverage::{
    ComparisonCoverage, Coverage, DriverCoverage, LogCoverage, PagesCoverage, SpillCoverage,
};
use crate::event_queue::SimTime;
use crate::expiry;
use crate::request::{ClientReply, ClientRequest, RequestBody};
use crate::task::{Outbox, Task};
use crate::terms::{self, SyncedTerms};

mod damage;
mod damaged_reads;
mod digests;
mod fetching;
mod held_views;
mod installs;
mod long_scans;
mod reads;
mod scanning;

pub(crate) use damaged_reads::is_damage;
use damaged_reads::refuse_if_damaged;
use held_views::HeldViews;
pub(crate) use installs::{InstallArrow, RowWork};
use long_scans::LongScans;
pub(crate) use reads::rows;

/// From one comparison of a region to the next, by the time of comparisons.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long things take at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskDelays {
    pub(crate) sync_us_max: u64,
    /// How long applying takes at least.
    pub(crate) apply_us_min: u64,
    pub(crate) apply_us_max: u64,
    /// From the completion of a task to the core's notification.
    pub(crate) notify_us_max: u64,
    /// Between two parts of a scan; zero for scans that are read at once.
    pub(crate) scan_us_max: u64,
}

impl TaskDelays {
    fn apply_us(&self, rng: &mut Rng) -> u64 {
        rng.u64(self.apply_us_min..=self.apply_us_max)
    }
}

/// From a checkpoint to the purge of the log.
const PURGE_US_MAX: u64 = 100_000;
/// Steps of the log's upkeep behind a purge are fewer than this.
const LOG_STEPS_END: u64 = 6;
/// Actions of maintenance at a time are no more than this.
const MAINTENANCE_STEPS_END: u64 = 4;
/// The speed-up of maintenance's clock where scans are long: a snapshot is ended when it is
/// 10 s old, and no store of most runs is up for so long.
const MAINTENANCE_HASTE: u64 = 10;
/// A stalled apply looks at least this often whether enough dirty bytes are written.
const LOOK_US_MAX: u64 = 5_000;
/// From asking for a checkpoint to its beginning.
const ASK_US_MAX: u64 = 10_000;
/// From a wish for a split to its turn: one comes after the other.
const SPLIT_US_MAX: u64 = 200_000;

#[derive(Debug)]
pub(crate) struct Executor {
    store: Store,
    rng: Rng,
    delays: TaskDelays,
    log: TaskQueue<QueuedLogBatch>,
    /// The terms that are on disk.
    terms: SyncedTerms,
    apply: TaskQueue<RowWork>,
    /// Says how long applying waits.
    pacer: Pacer,
    /// How far checkpoints have reported regions as applied, or the start has found them.
    reported: BTreeMap<RegionId, Index>,
    /// Maintenance was asked for before its time.
    is_asked: bool,
    /// Maintenance has looked at the store since the first change after the last checkpoint.
    is_change_known: bool,
    coverage: Coverage,
    long_scans: LongScans,
    held_views: HeldViews,
    pub(crate) sweep: ExpirySweep,
    pub(crate) comparisons: ComparisonSchedule,
    /// The last arrow that an installation has passed.
    arrow: Option<InstallArrow>,
}

/// From one look through the rows that expire to the next, by the sweep's own time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Replicas whose rows have changed.
#[derive(Debug, Default)]
pub(crate) struct ChangedRows {
    pub(crate) applied: Vec<AppliedReplica>,
    pub(crate) has_installed: bool,
    /// Replicas that have ended, with the last of theirs in each region.
    pub(crate) ended: Vec<EndTask>,
}

/// One batch of the log.
#[derive(Debug)]
struct QueuedLogBatch {
    commit: Commit,
    /// The numbers of the writes, to be reported.
    numbers: Vec<(RegionId, u64)>,
    /// The terms that are on disk then.
    terms: Vec<(PeerId, Term)>,
    /// Whether it empties a log behind a snapshot.
    has_reset: bool,
    /// Whether it removes the log of a replica that has ended.
    has_removal: bool,
}

/// Work that is done one piece after the other.
#[derive(Debug)]
struct TaskQueue<T> {
    waiting: VecDeque<T>,
    is_scheduled: bool,
    /// The time at which the core is notified of the last task: later tasks are reported later.
    notified_at: SimTime,
}

impl<T> Default for TaskQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), is_scheduled: false, notified_at: 0 }
    }
}

impl Executor {
    /// For a store with regions that the start has found applied so far.
    pub(crate) fn new(
        store: Store,
        rng: Rng,
        delays: TaskDelays,
        (terms, reported): (SyncedTerms, BTreeMap<RegionId, Index>),
    ) -> Self {
        let coverage = Coverage::default();
        let (log, apply) = (TaskQueue::default(), TaskQueue::default());
        let pacer = Pacer::default();
        let seed = store.identity().store.0;
        Self {
            store,
            rng,
            delays,
            log,
            terms,
            apply,
            pacer,
            reported,
            is_asked: false,
            is_change_known: false,
            coverage,
            long_scans: LongScans::default(),
            held_views: HeldViews::default(),
            sweep: ExpirySweep::new(Duration::ZERO, SWEEP_INTERVAL),
            comparisons: ComparisonSchedule::new(COMPARISON_INTERVAL, seed),
            arrow: None,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn coverage(&self) -> Coverage {
        let stats = self.store.stats();
        Coverage {
            checkpoints: stats.checkpoints,
            pages: PagesCoverage {
                moved_bytes: stats.pages_moved_bytes,
                trimmed_bytes: stats.pages.trim_punch.trimmed_bytes,
                punched_bytes: stats.pages.trim_punch.punched_bytes,
                reclaimed_bytes: stats.pages_reclaimed_bytes,
                scrubbed_bytes: stats.pages.reads.scrubbed_bytes,
                spills: SpillCoverage {
                    written_bytes: stats.pages.spill.written_bytes,
                    refused: stats.pages.spill.error_count,
                    ended: stats.pages.spill.ended_snapshots,
                    ..self.coverage.pages.spills
                },
            },
            log: LogCoverage { scrubbed_bytes: stats.log_scrubbed_bytes, ..self.coverage.log },
            driver: DriverCoverage {
                comparisons: ComparisonCoverage {
                    complete: stats.comparisons,
                    incomplete: stats.comparisons_incomplete,
                    ..self.coverage.driver.comparisons
                },
                ..self.coverage.driver
            },
            ..self.coverage
        }
    }

    pub(crate) fn set_delays(&mut self, delays: TaskDelays) {
        self.delays = delays;
    }

    /// Pieces of work that wait: the longer of the two queues counts, as in the node.
    pub(crate) fn backlog(&self) -> usize {
        self.log.waiting.len().max(self.apply.waiting.len())
    }

    /// The terms that the log has on disk.
    pub(crate) fn terms(&self) -> &SyncedTerms {
        &self.terms
    }

    /// Hands writes to the log, all as one batch.
    pub(crate) fn write(&mut self, log: &LogEffects, out: &mut Outbox) {
        let LogEffects { writes, births, compact: compactions, removals } = log;
        self.coverage.log.compactions += compactions.len() as u64;
        let by_message = births.iter().filter(|birth| birth.origin == BirthOrigin::Message);
        self.coverage.snapshots.uninitialised += by_message.count() as u64;
        let has_reset = writes.iter().any(|write| write.reset.is_some());
        if has_reset {
            self.arrow = Some(InstallArrow::ResetQueued);
        }
        let has_removal = !removals.is_empty();
        self.coverage.ends.logs_removed += removals.len() as u64;
        if has_removal {
            self.arrow = Some(InstallArrow::RemovalQueued);
        }
        // At once, as the order of batches is the order of steps; only their way to the disk takes
        // time.
        let commit = self.store.write_log(writes, births, compactions, removals);
        let numbers = writes.iter().map(|write| (write.region, write.number)).collect();
        self.log.waiting.push_back(QueuedLogBatch {
            commit,
            numbers,
            terms: terms::of(writes, births),
            has_reset,
            has_removal,
        });
        // One flush takes along all that was written meanwhile, as the node's log writer does.
        if !self.log.is_scheduled {
            self.log.is_scheduled = true;
            out.tasks.push((self.rng.u64(1..=self.delays.sync_us_max), Task::Flush));
        }
    }

    /// Writes and syncs what waits for the log; the core hears of it later.
    pub(crate) fn flush(&mut self, now: SimTime, out: &mut Outbox) -> Result<(), Error> {
        self.log.is_scheduled = false;
        self.store.flush_log();
        let mut done = Vec::new();
        while let Some(mut batch) = self.log.waiting.pop_front() {
            match batch.commit.try_take() {
                Some(result) => {
                    result?;
                    if batch.has_reset {
                        self.arrow = Some(InstallArrow::ResetSynced);
                    }
                    if batch.has_removal {
                        self.arrow = Some(InstallArrow::RemovalWritten);
                    }
                    let event = |(region, number)| Event::Persisted { region, number };
                    done.extend(batch.numbers.into_iter().map(event));
                    batch.terms.into_iter().for_each(|(peer, term)| self.terms.note(peer, term));
                }
                None => {
                    self.log.waiting.push_front(batch);
                    break;
                }
            }
        }
        notify_core(&mut self.log, &mut self.rng, self.delays, now, done, out);
        if !self.log.waiting.is_empty() {
            self.log.is_scheduled = true;
            out.tasks.push((self.rng.u64(1..=self.delays.sync_us_max), Task::Flush));
        }
        Ok(())
    }

    /// Queues committed entries, and snapshots and ends behind them.
    pub(crate) fn queue(&mut self, work: impl Iterator<Item = RowWork>, out: &mut Outbox) {
        let waited = self.apply.waiting.len();
        self.apply.waiting.extend(work);
        let mut new = self.apply.waiting.range(waited..);
        if new.any(|work| matches!(work, RowWork::Install(_))) {
            self.arrow = Some(InstallArrow::HandedOut);
        }
        let mut new = self.apply.waiting.range(waited..);
        if new.any(|work| matches!(work, RowWork::End(_))) {
            self.arrow = Some(InstallArrow::EndHandedOut);
        }
        if !self.apply.is_scheduled && !self.apply.waiting.is_empty() {
            self.apply.is_scheduled = true;
            out.tasks.push((self.delays.apply_us(&mut self.rng), Task::Apply));
        }
    }

    /// Applies some or all waiting entries, up to the next snapshot, replies to their clients, and
    /// notifies the core later; or installs that snapshot. Returns how far regions are applied.
    pub(crate) fn apply(&mut self, now: SimTime, out: &mut Outbox) -> Result<ChangedRows, Error> {
        if let Some(later_us) = self.stall_us(now, out) {
            out.tasks.push((later_us, Task::Apply));
            return Ok(ChangedRows::default());
        }
        self.apply.is_scheduled = false;
        let changed = match self.apply.waiting.front() {
            None | Some(RowWork::Entries(_)) => self.apply_entries(now, out)?,
            Some(_) => self.change_rows(out)?,
        };
        // The rest needs a task of its own.
        self.queue(std::iter::empty(), out);
        Ok(changed)
    }

    /// The next work, which has no entries.
    fn change_rows(&mut self, out: &mut Outbox) -> Result<ChangedRows, Error> {
        let mut changed = ChangedRows::default();
        match self.apply.waiting.pop_front() {
            Some(RowWork::Install(task)) => {
                self.install(&task, out)?;
                changed.has_installed = true;
            }
            Some(RowWork::Discard(stage)) => self.discard(stage),
            Some(RowWork::End(task)) => changed.ended.extend(self.end(task, out)?),
            Some(RowWork::Entries(_)) | None => unreachable!("it was looked at"),
        }
        Ok(changed)
    }

    fn apply_entries(&mut self, now: SimTime, out: &mut Outbox) -> Result<ChangedRows, Error> {
        // Some of them, so that a checkpoint or a crash may come between two tasks of one step.
        let count = self.rng.usize(1..=self.apply.waiting.len());
        let mut tasks = Vec::new();
        while tasks.len() < count
            && let Some(RowWork::Entries(task)) =
                self.apply.waiting.pop_front_if(|work| matches!(work, RowWork::Entries(_)))
        {
            tasks.push(task);
        }
        let applied = self.store.apply(&tasks)?;
        let splits: usize = applied.replicas.iter().map(|replica| replica.changes.len()).sum();
        self.coverage.splits.several_at_once += u64::from(splits > 1);
        let is_rejected = |outcome: &ApplyOutcome| matches!(outcome, ApplyOutcome::Rejected(_));
        let rejected = applied.outcomes.iter().filter(|(_, outcome)| is_rejected(outcome));
        self.coverage.splits.rejected += rejected.count() as u64;
        let reply = |(ticket, outcome)| (ticket, ClientReply::Wrote(outcome));
        out.replies.extend(applied.outcomes.into_iter().map(reply));
        let events = |replica: &AppliedReplica| {
            let AppliedReplica { region, peer, index, ref changes, size, is_damaged, .. } =
                *replica;
            let damaged = is_damaged.then_some(Event::Damaged { region, peer });
            damaged.into_iter().chain([Event::Applied {
                region,
                index,
                changes: changes.clone(),
                size,
            }])
        };
        self.note_comparisons(&applied.replicas, now, out);
        out.undecided.extend(applied.undecided);
        let mut done: Vec<_> = applied.damaged.into_iter().map(damaged_reads::found).collect();
        done.extend(applied.replicas.iter().flat_map(events));
        notify_core(&mut self.apply, &mut self.rng, self.delays, now, done, out);
        Ok(ChangedRows { applied: applied.replicas, ..ChangedRows::default() })
    }

    /// How long applying has to wait because of dirty pages, if it has to (write stall). Asks for a
    /// checkpoint once there are enough of them, as the node's threads do.
    fn stall_us(&mut self, now: SimTime, out: &mut Outbox) -> Option<u64> {
        let (limits, dirty) = (self.store.dirty_limits(), self.store.dirty_bytes());
        // The first change after a checkpoint counts too: the policy's interval begins when it is
        // seen (docs/decisions/0021-one-maintenance-policy.md).
        let is_wanted = self.store.needs_maintenance() || !self.is_change_known;
        if is_wanted && !self.is_asked {
            (self.is_asked, self.is_change_known) = (true, true);
            out.tasks.push((self.rng.u64(1..=ASK_US_MAX), Task::Maintain));
        }
        let clock = Duration::from_micros(now);
        let left = self.pacer.left(limits, dirty, clock);
        if left == Some(Duration::ZERO) {
            self.pacer.begin(dirty, clock);
            return None;
        }
        self.coverage.apply_stalls += 1;
        let left_us = left.map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX));
        Some(left_us.unwrap_or(LOOK_US_MAX).clamp(1, LOOK_US_MAX))
    }

    /// Takes a snapshot for a granted read and answers it.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub(crate) fn read(
        &mut self,
        grant: ReadGrant,
        request: &ClientRequest,
        wall_ms: u64,
        out: &mut Outbox,
    ) -> Result<(), ReadError> {
        let ticket = grant.ticket;
        let read = self.try_read(grant, request, wall_ms, out);
        refuse_if_damaged(ticket, read, out)
    }

    fn try_read(
        &mut self,
        grant: ReadGrant,
        request: &ClientRequest,
        wall_ms: u64,
        out: &mut Outbox,
    ) -> Result<(), ReadError> {
        let view = self.store.read();
        // Its replica has ended since.
        if matches!(view.region(grant.region, None), Err(ReadError::RegionNotFound)) {
            self.coverage.ends.reads_turned_back += 1;
            out.replies
                .push((grant.ticket, ClientReply::Refused(Reject::RegionNotFound(grant.region))));
            return Ok(());
        }
        let applied = view.applied(grant.region);
        assert!(
            applied.as_ref().is_ok_and(|applied| *applied >= grant.index),
            "{grant:?} is served from a snapshot at {applied:?}"
        );
        // The version that was checked when the read was admitted: the region may have been split
        // since.
        let region = view.region(grant.region, Some(request.route.epoch.version));
        let reply = match region.map(|region| region.at(wall_ms)) {
            Ok(region) => {
                let region = region.in_family(request.family)?;
                let reply = match &request.body {
                    RequestBody::Get(key) => {
                        ClientReply::Got(reads::get(&region, key, grant.ticket)?)
                    }
                    RequestBody::Scan if self.delays.scan_us_max > 0 => {
                        self.long_scans.begin(grant.ticket, region, self.spill_written_bytes());
                        self.plan_scan(grant.ticket, out);
                        return Ok(());
                    }
                    _ => ClientReply::Scanned(reads::scan(&region, grant.ticket)?),
                };
                expiry::reply(grant.ticket, reply, &region, out);
                return Ok(());
            }
            Err(ReadError::EpochNotMatch(region)) => {
                self.coverage.splits.reads_turned_back += 1;
                ClientReply::Refused(Reject::EpochNotMatch { current: vec![*region] })
            }
            Err(error) => return Err(error),
        };
        out.replies.push((grant.ticket, reply));
        Ok(())
    }

    /// Bytes that the store has written to its spill file so far.
    pub(crate) fn spill_written_bytes(&self) -> u64 {
        self.store.stats().pages.spill.written_bytes
    }

    /// Tells the core of a checkpoint. The log is purged later: more was written then.
    fn report_checkpoint(
        &mut self,
        report: CheckpointReport,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let CheckpointReport { replicas: durable, ended } = report;
        // Nothing is applied meanwhile here, so the root holds all that the rows do.
        self.reported.extend(durable.iter().map(|replica| (replica.region, replica.applied)));
        if durable.iter().any(|replica| replica.installed.is_some()) {
            self.arrow = Some(InstallArrow::Rooted);
        }
        let rows = applied(&self.store)?;
        if !ended.is_empty() {
            self.arrow = Some(InstallArrow::EndRooted);
        }
        // A later replica of the region may be here, without data or with it.
        let is_gone = |region: &RegionId| {
            ended.iter().any(|task| task.region == *region) && !rows.contains_key(region)
        };
        self.reported.retain(|region, _| !is_gone(region));
        assert_eq!(self.reported, rows, "a checkpoint does not report all that is applied");
        let event = |replica| {
            let CheckpointedReplica { region, applied, installed } = replica;
            Event::Checkpointed { region, applied, installed }
        };
        let ended = ended.iter().map(|&EndTask { region, peer }| Event::Ended { region, peer });
        let events = durable.into_iter().map(event).chain(ended).collect();
        out.tasks.push((self.notify_delay_us(), Task::Post(events)));
        out.tasks.push((self.rng.u64(1..=PURGE_US_MAX), Task::Purge));
        Ok(())
    }

    /// Follows the store's maintenance policy for some actions: not always to its end, so that
    /// writes meet work that is left.
    pub(crate) fn maintain(&mut self, now: SimTime, out: &mut Outbox) -> Result<(), Error> {
        self.is_asked = false;
        let Self { store, rng, delays, coverage, .. } = self;
        let spills = &mut coverage.pages.spills;
        self.held_views.step(store, now, delays.scan_us_max, rng, spills)?;
        let haste = if self.delays.scan_us_max > 0 { MAINTENANCE_HASTE } else { 1 };
        let clock = Duration::from_micros(haste * now);
        // Not drawn, so that old seeds draw the rest as ever.
        for _ in 0..=self.store.stats().checkpoints % MAINTENANCE_STEPS_END {
            let maintained = self.store.maintain(clock);
            if maintained.as_ref().is_err_and(Error::is_no_space) {
                // As the node does: nothing was written, and it is tried again.
                self.coverage.driver.disks.checkpoints_refused += 1;
                break;
            }
            match maintained? {
                StoreMaintenance::Checkpointed(durable) => {
                    self.is_change_known = false;
                    self.report_checkpoint(durable, out)?;
                }
                StoreMaintenance::Rest { .. } => break,
                StoreMaintenance::LogUnreadable { replica, .. } => {
                    let events = replica.into_iter().map(damaged_reads::found).collect();
                    out.tasks.push((self.notify_delay_us(), Task::Post(events)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes log segments that are not needed, and does some of the log's background work: not
    /// always all of it, so that writes find it done or have to do it.
    pub(crate) fn purge(&mut self, now: SimTime, out: &mut Outbox) -> Result<(), Error> {
        let purged = self.store.purge_log()?;
        self.coverage.log.segments_purged += purged.segments;
        self.coverage.log.moved_bytes += purged.rewritten_bytes;
        for _ in 0..self.rng.u64(..LOG_STEPS_END) {
            self.store.maintain_log()?;
        }
        self.maintain(now, out)
    }

    /// When the turn of a wish for a split comes.
    pub(crate) fn split_delay_us(&mut self) -> u64 {
        self.rng.u64(1..=SPLIT_US_MAX)
    }

    /// When a granted read takes its snapshot.
    pub(crate) fn notify_delay_us(&mut self) -> u64 {
        self.rng.u64(1..=self.delays.notify_us_max)
    }
}

/// How far all regions of the rows are applied.
fn applied(store: &Store) -> Result<BTreeMap<RegionId, Index>, Error> {
    let view = store.read();
    let applied = |region: Descriptor| Ok((region.id, view.applied(region.id)?));
    store.descriptors()?.into_iter().map(applied).collect()
}

fn notify_core<T>(
    queue: &mut TaskQueue<T>,
    rng: &mut Rng,
    delays: TaskDelays,
    now: SimTime,
    done: Vec<Event>,
    out: &mut Outbox,
) {
    if !done.is_empty() {
        // Never before the one that was done earlier: the core takes completions of a region for
        // ordered.
        queue.notified_at = queue.notified_at.max(now + rng.u64(1..=delays.notify_us_max));
        out.tasks.push((queue.notified_at - now, Task::Post(done)));
    }
}
