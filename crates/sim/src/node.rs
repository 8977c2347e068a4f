//! One store and what drives it: carries effects out late, loses power, stands still, starts anew.
//!
//! The real node's threads become tasks on the agenda. Between asking for a thing and its being
//! done lies time, and between its being done and the core's hearing of it again; the power may go
//! at any of these moments, and inside the engines' work on the disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use flotilla_identity::StoreUuid;
use flotilla_region::{
    Config, Descriptor, Effects, Event, HardState, PeerId, RegionId, Shard, Status, UnbornReplica,
    UninitialisedReplica,
};
use flotilla_store::{Error, RecoveredReplicas, StartSeed, Store, StoreDirectory};
use flotilla_vfs::fault::{FaultFs, FaultStats, TemporaryFault};

use crate::clock::LocalClock;
use crate::coverage::Coverage;
use crate::event_queue::SimTime;
use crate::executor::{Executor, InstallArrow, TaskDelays};
use crate::layout;
use crate::reference_model::ReferenceModel;
use crate::task::{Outbox, StopReason, Task};
use crate::terms::SyncedTerms;

mod bootstrapping;
mod comparing;
mod damage;
mod disk;
mod full_disks;
mod handshakes;
mod leader_waits;
mod outgoing;
mod power_cuts;
mod receiving;
mod requests;
mod rotting;
mod running;
mod settings;
mod silence;
mod snapshot_streams;
mod snapshots;
mod spare_disks;
mod split_wishes;
mod stall;
mod swap_directory;
mod sweeping;
mod verifying;
mod working;

use bootstrapping::BootstrappingStore;
pub(crate) use bootstrapping::OperatorFlags;
pub(crate) use disk::DiskFill;
use disk::{DiskWatch, SimDisk};
use handshakes::HandshakeDriver;
use leader_waits::LeaderWaits;
use outgoing::OutgoingQueues;
use power_cuts::PowerCuts;
use running::{RunningCounts, RunningStore};
use silence::SilentReplicas;
use snapshot_streams::SnapshotStreams;
pub(crate) use spare_disks::DirectorySwap;
use spare_disks::SpareDisks;
use stall::Stall;

/// Where a store keeps its files.
const DIRECTORY: &str = "/data";
/// The number of lists of effects; the power may go between any two.
const LISTS: usize = 9;
/// From an event's coming in to the core's step.
const STEP_US_MAX: u64 = 200;
/// Between two looks of a store that is no member yet, and between two greetings of one that is.
const BOOTSTRAP_US: u64 = 20_000;
const GREET_US_MAX: u64 = 60_000;
/// Between two looks for rows that have expired.
const SWEEP_US: u64 = 25_000;
/// Between two looks for a region whose replicas should be compared.
const VERIFY_US: u64 = 30_000;
/// The factor by which a slow disk is slower.
const SLOWNESS: u64 = 50;
/// One of this many batches is followed by a comparison of the region with the reference model.
const COMPARED_OF: u32 = 16;

/// The settings that all nodes of a run share.
#[derive(Clone, Debug)]
pub(crate) struct RunSettings {
    pub(crate) stores: usize,
    pub(crate) regions: Vec<Descriptor>,
    pub(crate) region: Config,
    pub(crate) store: flotilla_store::Config,
    pub(crate) delays: TaskDelays,
    /// Bytes of a snapshot's chunks.
    pub(crate) chunk_bytes: usize,
    /// Bytes of messages that wait for one stream.
    pub(crate) queue_bytes_max: usize,
    /// Pieces of unfinished work above which clients are left waiting.
    pub(crate) backlog_max: usize,
    /// Memory that old snapshots need is spilled all the time.
    pub(crate) is_spilling: bool,
    /// Replicas are compared in their turns.
    pub(crate) is_comparing: bool,
}

pub(crate) struct SimNode {
    place: usize,
    fs: FaultFs,
    clock: LocalClock,
    rng: Rng,
    settings: Arc<RunSettings>,
    /// Counts starts; tasks of an earlier incarnation are void.
    incarnation: u64,
    running: Option<RunningStore>,
    /// The bootstrap, before the store is a member.
    bootstrapping: Option<BootstrappingStore>,
    /// The operator's flags for the next start.
    flags: OperatorFlags,
    /// Starts that the directory in use has seen.
    starts: u64,
    spare_disks: SpareDisks,
    /// Whether the directory was seen to be a member's.
    was_member: bool,
    /// Whether the directory may keep a plan of which others know that it does.
    had_plan: bool,
    /// The greatest count of starts of each other store that was accepted, and is remembered.
    accepted: Vec<u64>,
    disk: SimDisk,
    /// Of all earlier incarnations, and of starts.
    coverage: Coverage,
}

impl SimNode {
    pub(crate) fn new(
        place: usize,
        clock: LocalClock,
        settings: Arc<RunSettings>,
        mut rng: Rng,
    ) -> Self {
        let fs = FaultFs::new(rng.u64(..));
        let coverage = Coverage::default();
        let accepted = vec![0; settings.stores];
        Self {
            place,
            fs,
            clock,
            rng,
            settings,
            incarnation: 0,
            running: None,
            bootstrapping: None,
            flags: OperatorFlags::default(),
            starts: 0,
            spare_disks: SpareDisks::default(),
            was_member: false,
            had_plan: false,
            accepted,
            disk: SimDisk::default(),
            coverage,
        }
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether its process runs.
    pub(crate) fn is_up(&self) -> bool {
        self.is_running() || self.bootstrapping.is_some()
    }

    /// Whether it serves as a member.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether its directory is that of a member, or was.
    pub(crate) fn is_member(&self) -> bool {
        let has_become = self.bootstrapping.as_ref().is_some_and(BootstrappingStore::has_tried);
        self.was_member || self.is_running() || has_become
    }

    /// Whether its directory may keep a plan: an operator who empties it then loses a store.
    pub(crate) fn has_plan(&self) -> bool {
        self.had_plan || self.bootstrapping.as_ref().is_some_and(BootstrappingStore::has_plan)
    }

    /// The greatest count of starts of another store that this one remembers to have accepted.
    pub(crate) fn accepted(&self, store: usize) -> u64 {
        self.accepted[store]
    }

    /// The store ended in words, as it should.
    pub(crate) fn count_refusal(&mut self) {
        self.coverage.identity.refusals += 1;
    }

    /// Whether refusing to start is right: another disk or other flags are in use.
    pub(crate) fn is_to_be_refused(&self) -> bool {
        self.is_swapped() || self.flags != OperatorFlags::Right
    }

    /// Whether the operator gave it other flags than the others.
    pub(crate) fn has_wrong_flags(&self) -> bool {
        self.flags != OperatorFlags::Right
    }

    /// Sets the operator's flags from the next start on.
    pub(crate) fn set_flags(&mut self, flags: OperatorFlags) {
        self.flags = flags;
    }

    /// Whether an injected disk fault has not yet ended the store.
    pub(crate) fn has_disk_fault(&self) -> bool {
        self.disk.has_fault
    }

    pub(crate) fn disk(&self) -> FaultStats {
        self.fs.stats()
    }

    /// The coverage of the store so far.
    pub(crate) fn coverage(&self) -> Coverage {
        let mut coverage = self.coverage;
        coverage.bounds.suspended_us = self.clock.suspended_us();
        if let Some(running) = &self.running {
            let stats = running.shard.stats();
            coverage += running.executor.coverage();
            coverage.snapshots += running.streams.coverage;
            coverage.pages.spills.streams += running.streams.across_spills;
            coverage.membership += running.counts.membership;
            coverage.driver.wishes += running.counts.wishes;
            coverage.driver.queues += running.outgoing.coverage;
            coverage.driver.waits += running.waits.coverage;
            coverage.bounds += running.counts.bounds;
            coverage.driver.disks += running.disks.coverage;
            coverage.driver.disks.puts_refused += stats.puts_refused;
            coverage.driver.disks.transfers += stats.disk_full_transfers;
            coverage.driver.disks.entries_refused += stats.dropped.disk_full;
            coverage.reads.by_lease += stats.reads_by_lease;
            coverage.reads.by_index += stats.reads_by_index;
            coverage.votes_withheld += stats.dropped.votes_withheld;
            coverage.splits.applied += stats.splits;
            coverage.splits.held_votes += stats.held_votes;
            coverage.transfers.begun += stats.transfers_begun;
            coverage.transfers.done += stats.transfers_done;
            coverage.transfers.refused += stats.transfers_refused;
            coverage.bounds.late_steps += stats.late_steps;
            coverage.bounds.reads_turned_back += stats.reads_turned_back;
            coverage.bounds.wild_terms += stats.dropped.wild_terms;
            coverage.bounds.malformed += stats.dropped.malformed;
            coverage.bounds.strangers += stats.dropped.strangers;
            coverage.bounds.lagging += stats.dropped.lagging;
        }
        coverage
    }

    /// The store's clock.
    pub(crate) fn clock(&self) -> LocalClock {
        self.clock
    }

    pub(crate) fn status(&self, region: RegionId) -> Option<Status> {
        self.running.as_ref()?.shard.status(region)
    }

    /// The regions with data here.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Descriptor> {
        let shard = self.running.as_ref().map(|running| &running.shard);
        let here = |shard: &Shard| shard.regions().collect::<Vec<_>>();
        let ids = shard.map(here).unwrap_or_default();
        ids.into_iter().filter_map(move |id| shard?.descriptor(id))
    }

    /// Opens the directory, and the store if it is a member's.
    pub(crate) fn start(
        &mut self,
        now: SimTime,
        reference_model: &mut ReferenceModel,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        assert!(!self.is_up(), "store {} is up already", self.place);
        self.incarnation += 1;
        let uuid = StoreUuid(u128::from(self.rng.u64(..)));
        let seed = StartSeed { uuid, nonce: self.rng.u64(..) };
        let config = self.settings.store.clone();
        let fs = Arc::new(self.fs.clone());
        let directory = StoreDirectory::open(fs, Path::new(DIRECTORY), config, seed);
        let directory = directory.map_err(|error| match error {
            Error::WrongDirectory(words) => StopReason::Refused(words),
            error => self.stop(&error),
        })?;
        self.coverage.starts.stores += 1;
        self.starts = directory.identity().run.starts;
        if directory.identity().is_member() {
            // As the node compares what it is given with the directory's copy.
            if self.flags == OperatorFlags::OtherSetting {
                return Err(StopReason::Refused("a setting differs from the copy".to_owned()));
            }
            return self.run(directory, now, reference_model, out);
        }
        self.bootstrapping = Some(BootstrappingStore::new(
            self.place,
            self.incarnation,
            directory,
            (self.flags, self.settings.stores),
            &self.settings.regions,
            self.clock.read(now),
        ));
        out.tasks.push((self.rng.u64(1..=BOOTSTRAP_US), Task::Bootstrap));
        Ok(())
    }

    /// Opens the store of a member, and compares the recovered rows with the reference model.
    fn run(
        &mut self,
        directory: StoreDirectory,
        now: SimTime,
        reference_model: &mut ReferenceModel,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let settings = Arc::clone(&self.settings);
        let copies = directory.copies().map_err(|error| self.stop(&error))?;
        let (store, RecoveredReplicas { replicas: recovered, unborn, uninitialised }) =
            Store::start(directory).map_err(|error| self.stop(&error))?;
        let (place, incarnation) = (self.place, self.incarnation);
        let of_cluster = layout::region_settings(&copies.1, &settings.region);
        let handshakes = HandshakeDriver::new(place, incarnation, settings.stores, &store, copies)
            .map_err(|error| self.stop(&error))?;
        self.coverage.starts.torn_tails += u64::from(store.log_recovery().torn_bytes > 0);
        self.note_tombstones(&store, reference_model)?;
        // Another one at each start, as `Config::seed` demands of the driver.
        let seed = self.rng.u64(..);
        let mut config = Config { seed, ..settings.region.clone() };
        config.apply(of_cluster);
        let mut shard = Shard::new(config);
        self.draw_temporary_fault(seed);
        let time = self.clock.read(now);
        let (mut terms, mut applied) = (SyncedTerms::default(), BTreeMap::new());
        let (here, is_swapped) = (layout::id(place), self.is_swapped());
        let is_alive = |region, peer| {
            let alive = reference_model.check_alive(here, region, peer);
            // An older disk may have what the newest one has ended.
            if is_swapped { Ok(()) } else { alive.map_err(StopReason::CheckFailure) }
        };
        for region in recovered {
            let id = region.descriptor.id;
            is_alive(id, region.peer)?;
            terms.note(region.peer, region.hard_state.term);
            applied.insert(id, region.applied.0);
            self.coverage.starts.replayed_entries += region.tail.len() as u64;
            // At the first start leaders are spread; later the replica with the longest log wins.
            let first = id.0 as usize % settings.regions.len() == place
                && region.hard_state == HardState::default();
            shard.create(time, region, first).map_err(|error| {
                StopReason::CheckFailure(format!("store {here} cannot start: {error}"))
            })?;
        }
        self.keep_without_rows(unborn, uninitialised, (&mut shard, &mut terms), is_alive)?;
        self.running = Some(RunningStore {
            shard,
            executor: Executor::new(store, self.rng.fork(), settings.delays, (terms, applied)),
            handshakes,
            streams: SnapshotStreams::new(place, incarnation, settings.chunk_bytes),
            effects: Effects::default(),
            inbox: Vec::new(),
            is_step_scheduled: false,
            wake: None,
            outgoing: OutgoingQueues::new(
                settings.stores,
                settings.queue_bytes_max,
                self.rng.fork(),
            ),
            waits: LeaderWaits::default(),
            cuts: PowerCuts::default(),
            stall: Stall::default(),
            silent: SilentReplicas::default(),
            disks: DiskWatch::default(),
            counts: RunningCounts::default(),
        });
        self.look_at_disk();
        self.compare_all(reference_model)?;
        out.tasks.push((1, Task::Greet));
        out.tasks.push((SWEEP_US, Task::Sweep));
        if self.settings.is_comparing {
            out.tasks.push((VERIFY_US, Task::Verify));
        }
        self.schedule_step(out);
        Ok(())
    }

    /// Gives the shard the replicas that have no rows.
    fn keep_without_rows(
        &mut self,
        unborn: Vec<UnbornReplica>,
        uninitialised: Vec<UninitialisedReplica>,
        (shard, terms): (&mut Shard, &mut SyncedTerms),
        is_alive: impl Fn(RegionId, PeerId) -> Result<(), StopReason>,
    ) -> Result<(), StopReason> {
        for replica in unborn {
            is_alive(replica.region, replica.peer)?;
            self.coverage.splits.unborn += 1;
            terms.note(replica.peer, replica.hard_state.term);
            shard.keep_unborn(replica).map_err(|error| {
                StopReason::CheckFailure(format!("a replica that is not born: {error}"))
            })?;
        }
        for replica in uninitialised {
            is_alive(replica.region, replica.peer)?;
            self.coverage.snapshots.uninitialised_starts += 1;
            terms.note(replica.peer, replica.hard_state.term);
            shard.keep_uninitialised(replica).map_err(|error| {
                StopReason::CheckFailure(format!("a replica without data: {error}"))
            })?;
        }
        Ok(())
    }

    /// In one start of four the disk refuses something to the spill file, which no store dies of.
    fn draw_temporary_fault(&self, seed: u64) {
        // Drawn apart, so that old seeds draw the rest as ever.
        let mut rng = Rng::with_seed(!seed);
        let is_refused = self.settings.is_spilling && rng.u8(..4) == 0;
        let fault = rng.choice(TemporaryFault::ALL).filter(|_| is_refused);
        self.fs.fail_temporary(fault);
    }

    /// Goes on with the bootstrap; a store that has become a member runs.
    fn step_bootstrap(
        &mut self,
        now: SimTime,
        reference_model: &mut ReferenceModel,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let time = self.clock.read(now);
        let Some(mut bootstrapping) = self.bootstrapping.take() else { return Ok(()) };
        let stepped = bootstrapping.step(time, &mut self.rng, out);
        // Before the error is looked at: a disk that refused the write may have it all the same.
        self.was_member |= bootstrapping.has_tried();
        self.had_plan |= bootstrapping.has_plan();
        stepped.map_err(|error| self.stop(&error))?;
        if bootstrapping.is_member() {
            bootstrapping.announce(out);
            self.coverage.identity.bootstraps += 1;
            return self.run(bootstrapping.into_directory(), now, reference_model, out);
        }
        self.bootstrapping = Some(bootstrapping);
        out.tasks.push((self.rng.u64(1..=BOOTSTRAP_US), Task::Bootstrap));
        Ok(())
    }

    /// The store's disk failed under it.
    pub(crate) fn count_death(&mut self) {
        self.coverage.starts.deaths_inside += 1;
    }

    /// The store is gone. With `power`, so is what was not synced.
    pub(crate) fn crash(&mut self, power: bool) {
        self.incarnation += 1;
        // Before `running` is dropped: its counters go with it.
        self.coverage = self.coverage();
        self.was_member = self.is_member();
        self.had_plan = self.has_plan();
        self.running = None;
        self.bootstrapping = None;
        // An ordered fault ends with the process that had to meet it.
        self.fs.fail_syncs(false);
        self.fs.fail_writes(false);
        // A disk that was ordered to lose power does so, also if a process kill comes first.
        if power || self.disk.has_fault {
            self.fs.power_loss(self.rng.u64(..));
        }
        self.disk.has_fault = self.disk.fill.is_hard;
    }

    /// Cuts the power inside the work on the disk: at operation number `operations` from now, or in
    /// one of the next write to the log, or between two lists of effects.
    pub(crate) fn cut_inside(&mut self, operations: u64) {
        self.disk.has_fault = true;
        match &mut self.running {
            Some(running) if operations.is_multiple_of(4) => {
                running.cuts.lists_left = Some(operations as usize / 4 % LISTS);
            }
            Some(running) if operations.is_multiple_of(2) => {
                running.cuts.in_flush = Some(1 + operations / 2 % 2);
            }
            _ => self.fs.cut_power_after(operations),
        }
    }

    /// Cuts the power between two lists of the next effects with a birth, or not any more.
    pub(crate) fn cut_at_birth(&mut self, lists: Option<usize>) {
        if let Some(running) = &mut self.running {
            running.cuts.at_birth = lists.map(|lists| lists % LISTS);
        }
    }

    /// Cuts the power when an installation or an end passes an arrow, or not any more.
    pub(crate) fn cut_at_arrow(&mut self, arrow: Option<InstallArrow>) {
        if let Some(running) = &mut self.running {
            running.cuts.at_arrow = arrow;
        }
    }

    /// A notice of this store will come a second time, much later.
    pub(crate) fn count_late_notice(&mut self) {
        if let Some(running) = &mut self.running {
            running.counts.membership.late += 1;
        }
    }

    /// Cuts all streams of snapshots.
    pub(crate) fn cut_streams(&mut self, out: &mut Outbox) {
        if let Some(running) = &mut self.running {
            running.cut_streams(out);
        }
    }

    /// Lets the disk refuse syncs, or all writes.
    pub(crate) fn inject_disk_errors(&mut self, writes_too: bool) {
        self.disk.has_fault = true;
        self.fs.fail_syncs(true);
        self.fs.fail_writes(writes_too);
    }

    /// The store will stand still in its next step that grants a read under a lease.
    pub(crate) fn stall(&mut self, us: u64) {
        if let Some(running) = &mut self.running {
            running.stall.us = Some(us);
        }
    }

    /// The machine was suspended for so long.
    pub(crate) fn suspend(&mut self, us: u64) {
        self.clock.suspend(us);
    }

    pub(crate) fn set_slow(&mut self, slow: bool) {
        let mut delays = self.settings.delays;
        if slow {
            delays.sync_us_max *= SLOWNESS;
            delays.apply_us_max *= SLOWNESS;
        }
        if let Some(running) = &mut self.running {
            running.executor.set_delays(delays);
        }
    }

    /// Something happened; the core hears of it soon.
    pub(crate) fn post(&mut self, event: Event, out: &mut Outbox) {
        if let Some(running) = &mut self.running {
            running.inbox.push(event);
            self.schedule_step(out);
        }
    }

    fn schedule_step(&mut self, out: &mut Outbox) {
        let Some(running) = &mut self.running else { return };
        if !running.is_step_scheduled {
            running.is_step_scheduled = true;
            out.tasks.push((self.rng.u64(1..=STEP_US_MAX), Task::Step));
        }
    }

    /// An error ends the store; without an injected disk fault, it is a bug.
    fn stop(&self, error: &Error) -> StopReason {
        match error {
            Error::OnlyVoter(_) if self.disk.is_rotten => StopReason::Lost(error.to_string()),
            error => stop_of(self.place, self.disk.has_fault, error),
        }
    }
}

fn stop_of(place: usize, has_disk_fault: bool, error: &Error) -> StopReason {
    if has_disk_fault {
        return StopReason::Died;
    }
    StopReason::CheckFailure(format!("store {} failed on a good disk: {error}", layout::id(place)))
}
