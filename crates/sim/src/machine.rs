//! One store and what drives it: carries effects out late, loses power, stands still, starts anew.
//!
//! The real node's threads become tasks on the agenda. Between asking for a thing and its being
//! done lies time, and between its being done and the core's hearing of it again; the power may go
//! at any of these moments, and inside the engines' work on the disk.

use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use flotilla_identity::StoreUuid;
use flotilla_region::{
    Config, Descriptor, Effects, Event, HardState, Index, RegionId, Shard, Status,
};
use flotilla_store::{Error, StartSeed, Store, StoreDirectory};
use flotilla_vfs::fault::{FaultFs, FaultStats};

use crate::agenda::Moment;
use crate::clock::LocalClock;
use crate::hands::{self, Hands, Pace};
use crate::layout;
use crate::reach::Reach;
use crate::task::{Outbox, Stop, Task};
use crate::terms::SyncedTerms;
use crate::truth::{Broken, Truth};
use crate::workload::Workload;

mod exchange;
mod founding;
mod greeting;
mod receiving;
mod running;
mod shelf;
mod standstill;

pub(crate) use founding::Flags;
use founding::FoundingStore;
use greeting::Greeter;
use running::Running;
pub(crate) use shelf::Exchange;
use shelf::Shelf;
use standstill::Stall;

/// Where a store keeps its files.
const DIRECTORY: &str = "/data";
/// Effects come in so many lists; the power may go between any two.
const LISTS: usize = 7;
/// From an event's coming in to the core's step.
const STEP_US_MAX: u64 = 200;
/// Between two looks of a store that is no member yet, and between two greetings of one that is.
const FOUND_US: u64 = 20_000;
const GREET_US_MAX: u64 = 60_000;
/// A slow disk takes so many times as long.
const SLOWNESS: u64 = 50;
/// One of so many batches is followed by a comparison of the region with the truth.
const COMPARED_OF: u32 = 16;

/// What all machines of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) stores: usize,
    pub(crate) regions: Vec<Descriptor>,
    pub(crate) region: Config,
    pub(crate) store: flotilla_store::Config,
    pub(crate) pace: Pace,
}

pub(crate) struct Machine {
    place: usize,
    fs: FaultFs,
    clock: LocalClock,
    rng: Rng,
    settings: Arc<Settings>,
    /// Counts starts; tasks of an earlier life are void.
    life: u64,
    running: Option<Running>,
    /// What there is instead of that before the store is a member.
    founding: Option<FoundingStore>,
    /// What the operator says at the next start.
    flags: Flags,
    /// Starts that the directory in use has seen.
    starts: u64,
    shelf: Shelf,
    /// Whether the directory was seen to be a member's.
    was_member: bool,
    /// Whether the directory may keep a plan of which others know that it does.
    had_plan: bool,
    /// The greatest count of starts of each other store that was accepted, and is remembered.
    accepted: Vec<u64>,
    /// Whether the disk was told to fail: an error is then the death of the store, not a fault.
    is_ill: bool,
    /// Of all lives that are over, and of starts.
    reach: Reach,
}

impl Machine {
    pub(crate) fn new(
        place: usize,
        clock: LocalClock,
        settings: Arc<Settings>,
        mut rng: Rng,
    ) -> Self {
        let fs = FaultFs::new(rng.u64(..));
        let reach = Reach::default();
        let accepted = vec![0; settings.stores];
        Self {
            place,
            fs,
            clock,
            rng,
            settings,
            life: 0,
            running: None,
            founding: None,
            flags: Flags::default(),
            starts: 0,
            shelf: Shelf::default(),
            was_member: false,
            had_plan: false,
            accepted,
            is_ill: false,
            reach,
        }
    }

    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Whether its process runs.
    pub(crate) fn is_up(&self) -> bool {
        self.is_running() || self.founding.is_some()
    }

    /// Whether it serves as a member.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether its directory is that of a member, or was.
    pub(crate) fn is_member(&self) -> bool {
        let has_become = self.founding.as_ref().is_some_and(FoundingStore::has_tried);
        self.was_member || self.is_running() || has_become
    }

    /// Whether its directory may keep a plan: who empties it then loses a store.
    pub(crate) fn has_plan(&self) -> bool {
        self.had_plan || self.founding.as_ref().is_some_and(FoundingStore::has_plan)
    }

    /// The greatest count of starts of another store that this one remembers to have accepted.
    pub(crate) fn accepted(&self, store: usize) -> u64 {
        self.accepted[store]
    }

    /// The store ended in words, as it should.
    pub(crate) fn count_refusal(&mut self) {
        self.reach.identity.refusals += 1;
    }

    /// Whether refusing to start is right: another disk or other flags are in use.
    pub(crate) fn is_to_be_refused(&self) -> bool {
        self.is_exchanged() || self.flags != Flags::Right
    }

    /// Whether the operator told it something else than the others.
    pub(crate) fn has_wrong_flags(&self) -> bool {
        self.flags != Flags::Right
    }

    /// What the operator says from the next start on.
    pub(crate) fn set_flags(&mut self, flags: Flags) {
        self.flags = flags;
    }

    /// Whether the disk was told to fail and has not yet done its worst.
    pub(crate) fn is_ill(&self) -> bool {
        self.is_ill
    }

    pub(crate) fn disk(&self) -> FaultStats {
        self.fs.stats()
    }

    /// What the store has been through.
    pub(crate) fn reach(&self) -> Reach {
        let mut reach = self.reach;
        reach.bounds.suspended_us = self.clock.suspended_us();
        if let Some(running) = &self.running {
            let stats = running.shard.stats();
            reach += running.hands.reach();
            reach.reads_by_lease += stats.reads_by_lease;
            reach.reads_by_index += stats.reads_by_index;
            reach.votes_withheld += stats.dropped.votes_withheld;
            reach.bounds.late_steps += stats.late_steps;
            reach.bounds.reads_turned_back += stats.reads_turned_back;
            reach.bounds.wild_terms += stats.dropped.wild_terms;
        }
        reach
    }

    /// The store's clock.
    pub(crate) fn clock(&self) -> LocalClock {
        self.clock
    }

    pub(crate) fn status(&self, region: RegionId) -> Option<Status> {
        self.running.as_ref()?.shard.status(region)
    }

    /// A replica's applied index and the hash of its rows.
    pub(crate) fn digest(&self, region: RegionId) -> Result<(Index, u64), Broken> {
        let running = self.running.as_ref().ok_or("the store is down")?;
        running.hands.store().region_digest(region).map_err(|error| error.to_string())
    }

    /// Opens the directory, and the store if it is a member's.
    pub(crate) fn start(
        &mut self,
        now: Moment,
        truth: &Truth,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        assert!(!self.is_up(), "store {} is up already", self.place);
        self.life += 1;
        let uuid = StoreUuid(u128::from(self.rng.u64(..)));
        let seed = StartSeed { uuid, nonce: self.rng.u64(..) };
        let config = self.settings.store.clone();
        let fs = Arc::new(self.fs.clone());
        let directory = StoreDirectory::open(fs, Path::new(DIRECTORY), config, seed);
        let directory = directory.map_err(|error| match error {
            Error::WrongDirectory(words) => Stop::Refused(words),
            error => self.stop(&error),
        })?;
        self.reach.starts += 1;
        self.starts = directory.identity().run.starts;
        if directory.identity().is_member() {
            // As the node compares what it is given with the directory's copy.
            if self.flags == Flags::OtherSetting {
                return Err(Stop::Refused("a setting differs from the copy".to_owned()));
            }
            return self.run(directory, now, truth, out);
        }
        self.founding = Some(FoundingStore::new(
            self.place,
            self.life,
            directory,
            (self.flags, self.settings.stores),
            &self.settings.regions,
            self.clock.read(now),
        ));
        out.tasks.push((self.rng.u64(1..=FOUND_US), Task::Found));
        Ok(())
    }

    /// Opens the store of a member, and compares what it found with the truth.
    fn run(
        &mut self,
        directory: StoreDirectory,
        now: Moment,
        truth: &Truth,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        let settings = Arc::clone(&self.settings);
        let copies = directory.copies().map_err(|error| self.stop(&error))?;
        let (store, recovered) = Store::start(directory).map_err(|error| self.stop(&error))?;
        let greeter = Greeter::new(self.place, self.life, settings.stores, &store, copies);
        let greeter = greeter.map_err(|error| self.stop(&error))?;
        self.reach.torn_tails += u64::from(store.log_recovery().torn_bytes > 0);
        let seed = self.rng.u64(..);
        let mut shard = Shard::new(Config { seed, ..settings.region.clone() });
        let time = self.clock.read(now);
        let mut terms = SyncedTerms::default();
        for region in recovered {
            let id = region.descriptor.id;
            terms.note(id, region.hard_state.term);
            self.reach.replayed_entries += region.tail.len() as u64;
            // At the first start leaders are spread; later whoever has the longest log wins.
            let is_fresh = region.hard_state == HardState::default();
            let first = id.0 as usize % settings.regions.len() == self.place && is_fresh;
            shard.create(time, region, first).map_err(|error| {
                Stop::Broken(format!("store {} cannot start: {error}", layout::id(self.place)))
            })?;
        }
        let hands = Hands::new(store, self.rng.fork(), settings.pace, terms);
        self.running = Some(Running {
            shard,
            hands,
            greeter,
            effects: Effects::default(),
            inbox: Vec::new(),
            is_step_planned: false,
            wake: None,
            lists_left: None,
            cut_in_flush: None,
            stall: Stall::default(),
        });
        for region in &settings.regions {
            if region.peer_on(layout::id(self.place)).is_some() {
                self.compare(region.id, truth)?;
            }
        }
        out.tasks.push((1, Task::Greet));
        self.plan_step(out);
        Ok(())
    }

    /// Goes on with the bootstrap; a store that has become a member runs.
    fn found(&mut self, now: Moment, truth: &Truth, out: &mut Outbox) -> Result<(), Stop> {
        let time = self.clock.read(now);
        let Some(mut founding) = self.founding.take() else { return Ok(()) };
        let stepped = founding.step(time, &mut self.rng, out);
        self.was_member |= founding.has_tried();
        self.had_plan |= founding.has_plan();
        stepped.map_err(|error| self.stop(&error))?;
        if founding.is_member() {
            founding.announce(out);
            self.reach.identity.bootstraps += 1;
            return self.run(founding.into_directory(), now, truth, out);
        }
        self.founding = Some(founding);
        out.tasks.push((self.rng.u64(1..=FOUND_US), Task::Found));
        Ok(())
    }

    /// The store's disk failed under it.
    pub(crate) fn count_death(&mut self) {
        self.reach.deaths_inside += 1;
    }

    /// The store is gone. With `power`, so is what was not synced.
    pub(crate) fn crash(&mut self, power: bool) {
        self.life += 1;
        self.reach = self.reach();
        self.was_member = self.is_member();
        self.had_plan = self.has_plan();
        self.running = None;
        self.founding = None;
        self.fs.fail_syncs(false);
        self.fs.fail_writes(false);
        // A disk that was told to lose power does so, whoever else comes first.
        if power || self.is_ill {
            self.fs.power_loss(self.rng.u64(..));
        }
        self.is_ill = false;
    }

    /// Lets the power go inside the work on the disk: in the operation so many from now, or in one
    /// of the next write to the log, or between two lists of effects.
    pub(crate) fn cut_inside(&mut self, operations: u64) {
        self.is_ill = true;
        match &mut self.running {
            Some(running) if operations.is_multiple_of(4) => {
                running.lists_left = Some(operations as usize / 4 % LISTS);
            }
            Some(running) if operations.is_multiple_of(2) => {
                running.cut_in_flush = Some(1 + operations / 2 % 2);
            }
            _ => self.fs.cut_power_after(operations),
        }
    }

    /// Lets the disk refuse syncs, or all writes.
    pub(crate) fn sicken(&mut self, writes_too: bool) {
        self.is_ill = true;
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
        let mut pace = self.settings.pace;
        if slow {
            pace.sync_us_max *= SLOWNESS;
            pace.apply_us_max *= SLOWNESS;
        }
        if let Some(running) = &mut self.running {
            running.hands.set_pace(pace);
        }
    }

    /// Something happened; the core hears of it soon.
    pub(crate) fn post(&mut self, event: Event, out: &mut Outbox) {
        if let Some(running) = &mut self.running {
            running.inbox.push(event);
            self.plan_step(out);
        }
    }

    /// Does one piece of work.
    pub(crate) fn act(
        &mut self,
        task: Task,
        now: Moment,
        truth: &mut Truth,
        workload: &Workload,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        if matches!(task, Task::Found) {
            return self.found(now, truth, out);
        }
        let Some(running) = &mut self.running else { return Ok(()) };
        match task {
            Task::Found => {}
            Task::Greet => {
                running.greeter.greet(out);
                out.tasks.push((self.rng.u64(1..=GREET_US_MAX), Task::Greet));
            }
            Task::Step => return self.step(now, truth, workload, out),
            Task::Wake(moment) => {
                if running.wake != Some(moment) {
                    return Ok(());
                }
                running.wake = None;
                return self.step(now, truth, workload, out);
            }
            Task::Post(events) => {
                running.inbox.extend(events);
                self.plan_step(out);
            }
            Task::Flush => {
                if let Some(operations) = running.cut_in_flush.take() {
                    self.fs.cut_power_after(operations);
                }
                running.hands.flush(now, out).map_err(|error| self.stop(&error))?;
            }
            Task::Fetch(fetch) => {
                running.hands.fetch(&fetch, out).map_err(|error| self.stop(&error))?;
            }
            Task::Apply => {
                let applied = running.hands.apply(now, out).map_err(|error| self.stop(&error))?;
                for (region, _) in applied {
                    if self.rng.u32(..COMPARED_OF) == 0 {
                        self.compare(region, truth)?;
                    }
                }
            }
            Task::Read(grant) => {
                let request = workload.request(grant.ticket);
                let read = running.hands.read(grant, request, out);
                read.map_err(|error| Stop::Broken(format!("a granted read failed: {error}")))?;
            }
            Task::Checkpoint => {
                running.hands.checkpoint(out).map_err(|error| self.stop(&error))?;
            }
            Task::Purge => running.hands.purge().map_err(|error| self.stop(&error))?,
            Task::HandOut => {
                running.hand_out(self.clock, now, layout::id(self.place), truth, out)?;
            }
        }
        Ok(())
    }

    /// Proves the page store whole.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let Some(running) = &self.running else { return Ok(()) };
        let store = layout::id(self.place);
        running.hands.store().check().map(|_| ()).map_err(|error| format!("store {store}: {error}"))
    }

    /// Compares a region's rows with what its log makes of them.
    pub(crate) fn compare(&self, region: RegionId, truth: &Truth) -> Result<(), Stop> {
        let Some(running) = &self.running else { return Ok(()) };
        let broken = |what: String| {
            let store = layout::id(self.place);
            Stop::Broken(format!("store {store}, region {region}: {what}"))
        };
        let store = running.hands.store();
        let view = store.read();
        let found = view
            .region(region, None)
            .and_then(|region| hands::rows(&region))
            .map_err(|error| broken(error.to_string()))?;
        let (index, _) = self.digest(region).map_err(broken)?;
        let mut expected = truth.rows(region, index);
        let same = found.iter().all(|(key, value)| expected.next() == Some((key, value)));
        if same && expected.next().is_none() {
            return Ok(());
        }
        let expected: Vec<_> = truth.rows(region, index).collect();
        Err(broken(format!("at index {index} it holds {found:?} and not {expected:?}")))
    }

    fn step(
        &mut self,
        now: Moment,
        truth: &mut Truth,
        workload: &Workload,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        let Some(running) = &mut self.running else { return Ok(()) };
        running.is_step_planned = false;
        running.effects.clear();
        running.stall.note_terms(&running.shard);
        running.shard.step(self.clock.read(now), running.inbox.drain(..), &mut running.effects);
        running.shard.check_invariants();
        let store = layout::id(self.place);
        for role in &running.effects.roles {
            if role.is_leader {
                self.reach.leaderships += 1;
                truth.lead(role.region, role.term, store).map_err(Stop::Broken)?;
            }
        }
        for task in &running.effects.apply {
            truth.agree(store, task, |ticket| workload.command(ticket)).map_err(Stop::Broken)?;
        }
        if running.stall.begins(&running.effects, out) {
            return Ok(());
        }
        running.hand_out(self.clock, now, store, truth, out)
    }

    fn plan_step(&mut self, out: &mut Outbox) {
        let Some(running) = &mut self.running else { return };
        if !running.is_step_planned {
            running.is_step_planned = true;
            out.tasks.push((self.rng.u64(1..=STEP_US_MAX), Task::Step));
        }
    }

    /// An error of the store is its end; if the disk was not told to fail, it is a fault.
    fn stop(&self, error: &Error) -> Stop {
        stop_of(self.place, self.is_ill, error)
    }
}

fn stop_of(place: usize, is_ill: bool, error: &Error) -> Stop {
    if is_ill {
        return Stop::Died;
    }
    Stop::Broken(format!("store {} failed on a good disk: {error}", layout::id(place)))
}
