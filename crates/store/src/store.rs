//! The store: opens both engines and offers their operations. `views` has those that only look,
//! `damaged` those around damaged pages, `sole_voters` those of a recovery without a majority.

mod damaged;
mod sole_voters;
mod views;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use flotilla_identity::{
    ClusterSettings, MemberId, PeerWrite, RunHistory, StoreIdentity, StoreRegistry,
};
use flotilla_pagestore::{DirtyLimits, MaintenanceAction, Options as PageOptions, PageStore};
use flotilla_raftlog::{Commit, Error as LogError, LogMaintenance, PurgeReport, RecoveryReport};
use flotilla_region::{
    ApplyTask, Compaction, Descriptor, EndTask, Envelope, InstallTask, LogEntry, LogFetch,
    LogWrite, NotAdmitted, PeerId, RegionChange, RegionId, RegionSize, ReplicaBirth, SnapshotHead,
    StageId,
};

use crate::apply::{self, Applied, AppliedReplica, DigestCut, RowReadAhead};
use crate::checkpoint::{CheckpointReport, CheckpointState};
use crate::config::Config;
use crate::damage::DamagedReplicas;
use crate::digest_job::{DigestJobs, DigestRequest, DigestStep};
use crate::directory::StoreDirectory;
use crate::end::Ended;
use crate::error::{Error, ReadError, read_failed};
use crate::inconsistent_regions::InconsistentRegions;
use crate::log_scrub::LogScrub;
use crate::maintenance::StoreMaintenance;
use crate::range_map::{self, RangeMap};
use crate::recovery::{RecoveredReplicas, Recovery};
use crate::region_size::SizeChecks;
use crate::snapshot::{
    self, Installed, SnapshotEnd, SnapshotReader, SnapshotStages, StageError, StageOffer,
};
use crate::snapshot_read::StoreSnapshot;
use crate::stats::StoreCounters;
use crate::store_log::StoreLog;
use crate::{cluster_copies, log_purge, log_reader, recovery, store_group};

/// The replicas of one data directory: their logs and their rows.
///
/// Starts no thread and reads no clock; every call does its work on the calling thread. Log
/// writes, applying, reads, checkpoints and purges may go on at the same time.
pub struct Store {
    identity: StoreIdentity,
    history: RunHistory,
    config: Config,
    pages: PageStore,
    log: StoreLog,
    log_recovery: RecoveryReport,
    checkpoints: CheckpointState,
    ranges: RangeMap,
    stages: SnapshotStages,
    sizes: SizeChecks,
    digests: DigestJobs,
    inconsistent: InconsistentRegions,
    damaged: DamagedReplicas,
    log_scrub: LogScrub,
    row_read_ahead: RowReadAhead,
    counters: StoreCounters,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.member_id())
    }
}

impl Store {
    /// The store of a member's directory, and what each replica in it starts from.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the two engines do not fit together; else an engine failed.
    ///
    /// # Panics
    ///
    /// If the directory is not a member's.
    pub fn start(directory: StoreDirectory) -> Result<(Self, RecoveredReplicas), Error> {
        let state = directory.identity();
        assert!(state.is_member(), "only members start: {state:?}");
        let StoreDirectory { config, pages, log, log_recovery, identity, history } = directory;
        let log = StoreLog::new(log, pages.durable().txid)?;
        let Recovery { replicas: recovered, superseded } =
            recovery::recover(&pages, &log, identity.store)?;
        let checkpoints = CheckpointState::default();
        let ending = superseded.iter().map(|(found, _)| found);
        let with_rows = recovered.replicas.iter().chain(ending);
        let ranges = RangeMap::new(with_rows.map(|found| &found.descriptor));
        let digests = DigestJobs::new(config.pages.old_version_disk_bytes);
        let inconsistent = StoreSnapshot::new(pages.read()).inconsistent()?;
        let inconsistent = InconsistentRegions::new(inconsistent);
        let damaged = recovered.replicas.iter().filter(|found| found.is_damaged);
        let damaged = DamagedReplicas::new(damaged.map(|found| found.descriptor.id).collect());
        let store = Self {
            identity,
            history,
            config,
            pages,
            log,
            log_recovery,
            checkpoints,
            ranges,
            stages: SnapshotStages::default(),
            sizes: SizeChecks::default(),
            digests,
            inconsistent,
            damaged,
            log_scrub: LogScrub::default(),
            row_read_ahead: RowReadAhead::default(),
            counters: StoreCounters::default(),
        };
        let ending = superseded.into_iter().map(|(_, task)| task);
        store.end_superseded(&ending.collect::<Vec<_>>())?;
        Ok((store, recovered))
    }

    /// Ends replicas before the first message, so that each slot has one.
    fn end_superseded(&self, tasks: &[EndTask]) -> Result<(), Error> {
        if tasks.is_empty() {
            return Ok(());
        }
        for task in tasks {
            self.end(task)?;
        }
        let CheckpointReport { ended, .. } = self.checkpoint()?;
        let removals: Vec<_> = ended.iter().map(|task| task.peer).collect();
        self.write_log(&[], &[], &[], &removals).wait()?;
        Ok(())
    }

    /// The identity of the data directory.
    #[must_use]
    pub fn identity(&self) -> &StoreIdentity {
        &self.identity
    }

    /// The id of the cluster and of the store.
    #[must_use]
    pub fn member_id(&self) -> MemberId {
        self.identity.member_id()
    }

    /// The starts that the directory remembers of itself, this one included.
    #[must_use]
    pub fn history(&self) -> &RunHistory {
        &self.history
    }

    /// How far the log is synced: a position that only grows, over all starts. Acknowledged writes
    /// lie below.
    #[must_use]
    pub fn log_end(&self) -> u64 {
        self.log.engine().durable_lsn()
    }

    /// The last start of each other store that this one took messages of.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`].
    pub fn peer_runs(&self) -> Result<Vec<PeerWrite>, Error> {
        store_group::peer_runs(self.log.engine())
    }

    /// Remembers a start of another store. Durable when this returns.
    ///
    /// # Errors
    ///
    /// The log engine failed.
    pub fn remember_peer(&self, write: &PeerWrite) -> Result<(), Error> {
        self.log.remember_peer(write)
    }

    /// Replaces the own copy of the registry. Durable with the next checkpoint: until then an older
    /// copy does, for the others say what is newer.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn keep_registry(&self, registry: &StoreRegistry) -> Result<(), Error> {
        let mut txn = self.pages.write()?;
        cluster_copies::put(&mut txn, registry, None)?;
        txn.publish()?;
        Ok(())
    }

    /// Replaces the own copy of the cluster's settings. Durable when this returns: what rests on
    /// the store's word that it has them must not meet it with earlier ones after a restart
    /// (`docs/decisions/0058-settings-change-online.md`).
    ///
    /// # Errors
    ///
    /// The log engine failed.
    pub fn keep_settings(&self, settings: &ClusterSettings) -> Result<(), Error> {
        self.log.keep_settings(settings)
    }

    /// The report of the log engine's recovery.
    #[must_use]
    pub fn log_recovery(&self) -> &RecoveryReport {
        &self.log_recovery
    }

    /// Queues all writes, births, compactions and removals of ended replicas' logs as one batch, in
    /// this order, which is all there after a crash or not at all. Does not wait for the disk: wait
    /// for the commit, or call [`Store::flush_log`].
    ///
    /// Durable once the commit is, if any of the writes asks for it or a birth is by a message.
    ///
    /// # Panics
    ///
    /// If entries come without a hard state; if a compaction would take entries that the last
    /// durable checkpoint has not applied, or a reset comes before the checkpoint that has the
    /// snapshot; if anything else is written between a snapshot and the reset; if a log is removed
    /// before the checkpoint that has the end of its replica, or written behind the end.
    pub fn write_log(
        &self,
        writes: &[LogWrite],
        births: &[ReplicaBirth],
        compactions: &[Compaction],
        removals: &[PeerId],
    ) -> Commit {
        self.log.write(writes, births, compactions, removals)
    }

    /// Writes and syncs on this thread what was queued for the log. False if nothing was.
    pub fn flush_log(&self) -> bool {
        self.log.engine().flush()
    }

    /// Reads entries from the log: at least one, and not many more bytes than are wanted.
    ///
    /// # Errors
    ///
    /// [`Error::Log`], if they were compacted or replaced, as [`Error::is_gone`] tells, or cannot
    /// be read; [`Error::Corrupt`]. All errors but the former are counted, see
    /// [`Stats::log_reads_failed`](crate::Stats::log_reads_failed).
    pub fn fetch(&self, fetch: &LogFetch) -> Result<Vec<LogEntry>, Error> {
        let fetched = log_reader::fetch(self.log.engine(), fetch);
        // A log that was compacted meanwhile is no fault of the disk.
        if fetched.as_ref().is_err_and(|error| !error.is_gone()) {
            self.counters.log_reads_failed.add(1);
        }
        fetched
    }

    /// Carries out committed entries, of any number of regions, in one transaction, and publishes
    /// it: reads see all of it from now on. Entries that are applied already are left out. Not
    /// durable by itself: after a crash the entries are applied again, from the log.
    ///
    /// Behind an entry that asks for a digest a transaction ends: [`Store::compute_digest`] goes on
    /// with a view of the region as it is there.
    ///
    /// The entries must be durable in the log. One thread at a time applies.
    ///
    /// # Errors
    ///
    /// Any error stops the store; nothing of the tasks may be answered then.
    ///
    /// # Panics
    ///
    /// If an entry of a region is left out.
    pub fn apply(&self, tasks: &[ApplyTask]) -> Result<Applied, Error> {
        let Some(cut) = apply::cut(tasks) else { return self.apply_at_once(tasks) };
        let DigestCut { region, index, version, until, behind } = cut;
        let mut applied = self.apply_at_once(&until)?;
        let due = RegionChange::DigestDue { index };
        let is_due = |it: &&AppliedReplica| it.region == region && it.changes.contains(&due);
        // One that was applied before a restart was not applied again.
        if let Some(replica) = applied.replicas.iter().find(is_due) {
            let request = DigestRequest { region, peer: replica.peer, index, version };
            let begun = self.digests.begin(&self.pages, request);
            begun.map_err(|error| read_failed(region, error))?;
        }
        if !behind.is_empty() {
            applied.extend(self.apply(&behind)?);
        }
        Ok(applied)
    }

    fn apply_at_once(&self, tasks: &[ApplyTask]) -> Result<Applied, Error> {
        let mut applied = self.apply_undamaged(tasks)?;
        self.sizes
            .note_applied(&mut applied.replicas, self.config.size_check_bytes, || self.read())?;
        self.checkpoints.note_applied(self.identity.store, &applied.replicas);
        for (region, verdict) in apply::verdicts(&applied.replicas) {
            self.inconsistent.note(region, verdict);
            self.counters.comparisons.note(verdict);
        }
        self.counters.applies.add(1);
        self.counters.entries_applied.add(applied.entries);
        Ok(applied)
    }

    /// Everything as it is now. Never waits.
    #[must_use]
    pub fn read(&self) -> StoreSnapshot {
        let view = self.pages.read();
        // Behind the view: a mark that it has was told of before.
        StoreSnapshot::with_damage(view, self.damaged.were_some())
    }

    /// Whether a replica may be made for a message of a region that is not here: it has not ended
    /// here, and no later one of its region has; no region here holds a part of its range, and none
    /// was promised one to a snapshot.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn admit(&self, envelope: &Envelope) -> Result<Result<(), NotAdmitted>, Error> {
        if envelope.to.id <= self.read().tombstone(envelope.region)? {
            return Ok(Err(NotAdmitted::Gone));
        }
        // Without a range, no answer but this one is safe.
        let range = envelope.range.as_ref().filter(|range| !range_map::is_empty(range));
        let Some(range) = range else { return Ok(Err(NotAdmitted::Held)) };
        // The region itself counts as well: a split may have made it, and its shard hears of it
        // next.
        let holder = self.ranges.holder(range, None);
        Ok(if holder.is_some() { Err(NotAdmitted::Held) } else { Ok(()) })
    }

    /// Reads a region, to be sent to a replica that lacks entries.
    ///
    /// # Errors
    ///
    /// [`ReadError::RegionNotFound`], [`ReadError::NothingApplied`], or the page store failed.
    pub fn open_snapshot(&self, region: RegionId) -> Result<SnapshotReader, ReadError> {
        SnapshotReader::open(&self.read(), region)
    }

    /// Begins to receive a snapshot for replica `to`, in pages beside the rows: of the region in
    /// `head`, with `total.keys` rows at most. Its range is promised to it as long as the stage is
    /// there. A stage is in memory only: a crash drops it.
    ///
    /// # Errors
    ///
    /// [`StageError::InvalidHead`].
    pub fn begin_stage(
        &self,
        to: PeerId,
        head: &SnapshotHead,
        total: RegionSize,
    ) -> Result<StageOffer, StageError> {
        let store = self.identity.store;
        // Its shard would drop it when it has come whole, and others would wait for the range.
        if to <= self.read().tombstone(head.descriptor.id)? {
            return Err(StageError::InvalidHead("its replica has ended here"));
        }
        self.stages.begin(&self.pages, &self.ranges, store, (to, head), total)
    }

    /// Takes the bytes of the next [`SnapshotChunk`](crate::SnapshotChunk).
    ///
    /// # Errors
    ///
    /// The chunk is not the next one, or cannot be taken: the stage is dropped then.
    pub fn stage_chunk(&self, stage: StageId, chunk: Bytes) -> Result<(), StageError> {
        self.stages.push(&self.ranges, stage, chunk)
    }

    /// Ends a stage, which can be installed from then on.
    ///
    /// # Errors
    ///
    /// The sender has counted otherwise, or the rest cannot be written: the stage is dropped then.
    pub fn finish_stage(&self, stage: StageId, end: SnapshotEnd) -> Result<(), StageError> {
        self.stages.finish(&self.ranges, stage, end)
    }

    /// Drops a stage, if it is there: its pages are free again.
    pub fn discard_stage(&self, stage: StageId) {
        self.stages.discard(&self.ranges, stage);
    }

    /// Puts a staged snapshot in place of the replica's rows, in one transaction, and publishes it.
    /// Durable with the next checkpoint, which reports the stage. Then the log is reset, and until
    /// then the replica writes nothing else.
    ///
    /// # Errors
    ///
    /// Any error stops the store: raft has taken the snapshot.
    ///
    /// # Panics
    ///
    /// If the stage is not whole, or not that of the task; if entries at or above the snapshot are
    /// applied, or a vote would be taken back.
    pub fn install(&self, task: &InstallTask) -> Result<Installed, Error> {
        let staged = self.stages.take(task.stage);
        let staged = staged.unwrap_or_else(|| panic!("no stage is whole for {task:?}"));
        let (cleared, damaged) = self.clear_undamaged(&staged, task)?;
        let filled = snapshot::fill(cleared, &self.log, &self.ranges, staged, task)?;
        let installed = Installed { damaged, ..filled };
        self.checkpoints.note_installed(&installed, task.stage);
        self.sizes.forget(installed.region);
        self.damaged.forget(installed.region);
        self.counters.snapshots_installed.add(1);
        Ok(installed)
    }

    /// Ends a replica: its rows go in one transaction with what keeps it from being made again, and
    /// that is published. A stage for it is dropped. Nothing changes if it has ended before.
    ///
    /// Durable with the next checkpoint, which reports the task, also if nothing has changed. Only
    /// then its log may be removed, its slot may have a successor, and other stores may hear of it.
    ///
    /// # Errors
    ///
    /// Any error stops the store.
    ///
    /// # Panics
    ///
    /// If the replica installs a snapshot whose log is not reset, or has children whose splits are
    /// to be applied again.
    pub fn end(&self, task: &EndTask) -> Result<Ended, Error> {
        let ended = self.end_undamaged(task)?;
        self.checkpoints.note_ended(task, ended.region.is_some());
        if ended.region.is_some() {
            self.sizes.forget(task.region);
            self.inconsistent.forget(task.region);
            self.damaged.forget(task.region);
        }
        self.counters.replicas_ended.add(ended.replicas.len() as u64);
        Ok(ended)
    }

    /// Has log writes that find no room wait for it, or be refused, those that wait included. See
    /// [`LogEngine::wait_for_room`](flotilla_raftlog::LogEngine::wait_for_room).
    pub fn wait_for_room(&self, is_on: bool) {
        self.log.engine().wait_for_room(is_on);
    }

    /// Whether a log write waits for room.
    #[must_use]
    pub fn is_log_waiting_for_room(&self) -> bool {
        self.log.engine().is_waiting_for_room()
    }

    /// Bytes that the files of the log take.
    #[must_use]
    pub fn log_disk_bytes(&self) -> u64 {
        self.log.engine().disk_bytes()
    }

    /// Makes all that is applied durable, and with it what the log may forget. Reports the replicas
    /// of which the durable root has more than the last one, entries or a snapshot, and those whose
    /// ends it has.
    ///
    /// # Errors
    ///
    /// An engine failed. If the disk is full, the last checkpoint is still good and another may be
    /// tried when there is room.
    pub fn checkpoint(&self) -> Result<CheckpointReport, Error> {
        let (report, made) = self.checkpoints.make(&self.pages, &self.log, self.identity.store)?;
        self.counters.checkpoints.add(u64::from(made));
        Ok(report)
    }

    /// Whether [`Store::maintain`] should be called now and not at its time: many bytes are not
    /// durable in the pages yet, or memory for changed pages is short.
    #[must_use]
    pub fn needs_maintenance(&self) -> bool {
        self.pages.needs_maintenance() || self.is_log_long()
    }

    fn is_log_long(&self) -> bool {
        self.log.bytes_ahead() >= self.config.checkpoint_log_bytes
    }

    /// Bytes of pages that are in memory only. They become fewer as a checkpoint writes them.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.pages.dirty_bytes()
    }

    /// The range of [`Store::dirty_bytes`] in which applying should be throttled, as a [`Pacer`]
    /// says, so that it adds no more than checkpoints take away.
    ///
    /// [`Pacer`]: crate::Pacer
    #[must_use]
    pub fn dirty_limits(&self) -> DirtyLimits {
        let PageOptions { dirty_soft_bytes: soft_bytes, dirty_hard_bytes, .. } = self.config.pages;
        DirtyLimits { soft_bytes, hard_bytes: dirty_hard_bytes.max(soft_bytes) }
    }

    /// Does the next action of maintenance at `now`, the time since any moment that stays the same:
    /// a checkpoint if one is due; or frees pages of subtrees that deletions of ranges have
    /// dropped, or defragments the end of a file that is mostly free, in a transaction that
    /// appliers wait for as for any other; or punches holes or truncates the file, or reads a part
    /// of it again to find bit rot, for which none of them waits. Where the pages rest, a piece of
    /// the log is read again.
    ///
    /// Call it until it says that it rests. But for a checkpoint it is not durable by itself; a
    /// crash undoes the actions after the last one.
    ///
    /// # Errors
    ///
    /// An engine failed, or a page is corrupt. If the disk is full, nothing has happened, and it
    /// can be called again.
    pub fn maintain(&self, now: Duration) -> Result<StoreMaintenance, Error> {
        match self.pages.next_maintenance(now, self.is_log_long())? {
            // Not the page store's own: the log has to be durable before the root that relies on
            // it.
            MaintenanceAction::Checkpoint => Ok(StoreMaintenance::Checkpointed(self.checkpoint()?)),
            MaintenanceAction::Rest { until } => self.scrub_log(now, until),
            action => self.counters.maintenance.run(&self.pages, now, action),
        }
    }

    /// Reads a piece of the log again, if one is due, while the pages rest until `until`.
    fn scrub_log(&self, now: Duration, until: Option<Duration>) -> Result<StoreMaintenance, Error> {
        let Some(interval) = self.config.log_scrub_interval else {
            return Ok(StoreMaintenance::Rest { until });
        };
        let due = match self.log_scrub.step(self.log.engine(), interval, now) {
            Err((group, Error::Log(error @ (LogError::Corrupt { .. } | LogError::Io(_))))) => {
                self.counters.log_reads_failed.add(1);
                let is_damage = matches!(error, LogError::Corrupt { .. });
                let replica = if is_damage { self.give_up_log(PeerId(group))? } else { None };
                return Ok(StoreMaintenance::LogUnreadable { error, replica });
            }
            Err((_, error)) => return Err(error),
            Ok(due) => due,
        };
        Ok(StoreMaintenance::Rest { until: Some(until.map_or(due, |until| until.min(due))) })
    }

    /// Removes segments of the log that nothing needs any more, oldest first, and reports the
    /// groups that hold the oldest segment that is left.
    ///
    /// # Errors
    ///
    /// The log engine failed.
    pub fn purge_log(&self) -> Result<PurgeReport, Error> {
        log_purge::purge(&self.log)
    }

    /// Does one step of the log's background work: preallocates a segment or seals a full one. True
    /// if there may be more. Writes of the log do the work themselves where it was not done ahead.
    ///
    /// # Errors
    ///
    /// The log engine failed.
    pub fn maintain_log(&self) -> Result<bool, Error> {
        Ok(self.log.engine().maintain()?)
    }

    /// Has the log engine start a thread that calls [`Store::maintain_log`] when there is something
    /// to do, until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub fn maintain_log_in_background(&self) -> Result<LogMaintenance, Error> {
        Ok(self.log.engine().maintain_in_background()?)
    }

    /// All regions with a replica here, in the order of their ids.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn descriptors(&self) -> Result<Vec<Descriptor>, Error> {
        self.read().descriptors()
    }

    /// Computes the next part of the digest that an entry has asked for, of about so many bytes of
    /// rows. Call it until it is idle, as slowly as the disk is to be spared: its view keeps pages
    /// from being used again, and entries that ask meanwhile get no digest.
    ///
    /// # Errors
    ///
    /// The page store failed, or a row of this region cannot be read. The digest is given up then.
    pub fn compute_digest(&self, bytes_max: u64) -> Result<DigestStep, (RegionId, ReadError)> {
        let step = self.digests.step(bytes_max)?;
        if let DigestStep::More { bytes } | DigestStep::Done { bytes, .. } = step {
            self.counters.comparisons.bytes.add(bytes);
        }
        Ok(step)
    }

    /// The region whose digest is being computed.
    #[must_use]
    pub fn digesting(&self) -> Option<RegionId> {
        self.digests.running()
    }

    /// Gives up the digest that is being computed, and its view with it.
    pub fn give_up_digest(&self) {
        self.digests.give_up();
    }
}
