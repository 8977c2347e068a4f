//! How faults strike the cluster, and how stores come back.

use flotilla_region::{Envelope, Event, Index, Message, MessageKind, RegionId, Role, Term};

use crate::faults::Fault;
use crate::layout;
use crate::machine::{Exchange, Flags, Machine};
use crate::network::Cut;
use crate::task::Task;
use crate::truth::Broken;

use super::{CUT_US_MAX, Happening, World};

/// One of so many directories of stores that went down is copied.
const COPIED_OF: u8 = 3;
/// How long a usurped leader hears nobody.
const BETRAYED_US: u64 = 1_000_000;
/// Between two looks at whether a region has two leaders, and how many there are.
const PROBE_US: u64 = 20_000;
const PROBES: u32 = 80;
/// By then most answers have come.
const ANSWERED_US: u64 = 60_000;

impl World {
    /// Plans the next fault.
    pub(super) fn plan_strike(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next(&mut self.rng) {
            self.plan(delay_us, Happening::Strike(fault));
        }
    }

    /// Plans the next of the faults that are drawn apart.
    pub(super) fn plan_strike_apart(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next_apart() {
            self.plan(delay_us, Happening::Strike(fault));
        }
    }

    /// Plans the next checkpoint of a store.
    pub(super) fn plan_save(&mut self, store: usize) {
        let life = self.machines[store].life();
        let delay_us = self.rng.u64(1..=2 * self.swarm.checkpoint_us);
        self.plan(delay_us, Happening::Save { store, life });
    }

    pub(super) fn strike(&mut self, fault: Fault) -> Result<(), Broken> {
        if !self.is_stormy {
            return Ok(());
        }
        if fault.is_apart() {
            self.plan_strike_apart();
        } else {
            self.plan_strike();
        }
        self.say(format_args!("{fault:?}"));
        self.counts.faults += 1;
        match fault {
            Fault::PowerLoss(store) => self.crash(store, true),
            Fault::Kill(store) => self.crash(store, false),
            Fault::Blackout => (0..self.machines.len()).for_each(|store| self.crash(store, true)),
            Fault::CutInside { store, operations } => {
                self.machines[store].cut_inside(operations);
                self.plan_end(store);
            }
            Fault::SickDisk { store, writes_too } => {
                self.machines[store].sicken(writes_too);
                self.plan_end(store);
            }
            Fault::Campaign { store, region } => {
                self.machines[store].post(Event::Campaign { region }, &mut self.out);
                self.settle(store, Ok(()))?;
            }
            Fault::Pause { store, us, is_after_sending: false } => self.pause(store, us),
            Fault::Pause { store, us, is_after_sending: true } => {
                self.pauses[store].after_sending_us = Some(us);
            }
            Fault::Freeze { region, us } => {
                if let Some(leader) = self.leader(region) {
                    self.pauses[leader].after_asking_us = Some(us);
                    self.plan_probes(region, leader);
                }
            }
            Fault::Usurp { region, us } => self.usurp(region, us),
            Fault::Cut { cut, us } => {
                self.network.cut(&cut);
                self.plan(us, Happening::HealLinks);
            }
            Fault::SlowDisk { store, us } => {
                self.machines[store].set_slow(true);
                self.plan(us, Happening::MendDisk(store));
            }
            Fault::Suspend { region, us } => self.suspend(region, us),
            Fault::Stall { region, us } => {
                if let Some(leader) = self.leader(region) {
                    self.machines[leader].stall(us);
                    self.plan_probes(region, leader);
                }
            }
            Fault::WildTerm { region, from, to, kind, term } => {
                self.send_wild_term(region, [from, to], kind, term);
            }
            Fault::Exchange { store, how, us } => self.exchange(store, how, us),
        }
        Ok(())
    }

    /// The machine of a leader is suspended, and cut off when it comes back.
    fn suspend(&mut self, region: RegionId, us: u64) {
        let Some(leader) = self.leader(region) else { return };
        if self.pauses[leader].held.is_none() {
            self.plan_probes(region, leader);
            self.freeze(leader, us);
            self.pauses[leader].suspended_at = Some(self.now());
        }
    }

    /// The time that a suspended machine has missed, if it was one.
    fn end_suspension(&mut self, store: usize) {
        if let Some(since) = self.pauses[store].suspended_at.take() {
            let us = self.now() - since;
            self.machines[store].suspend(us);
        }
    }

    /// A message with a term that cannot be, in the name of a member. A replica without a log would
    /// have to believe it.
    fn send_wild_term(&mut self, region: RegionId, ends: [usize; 2], kind: MessageKind, term: u64) {
        let Some(described) = self.settings.regions.iter().find(|other| other.id == region) else {
            return;
        };
        let [from, to] = ends.map(|end| described.peers[end % described.peers.len()]);
        let status = self.machines[layout::place(to.store)].status(region);
        if from == to || status.is_none_or(|status| status.last == Index(0)) {
            return;
        }
        let envelope = Envelope {
            region,
            from,
            to,
            epoch: described.epoch,
            gc_floor: Index(0),
            message: Message { kind, term: Term(term), ..Message::default() },
        };
        let forged = self.machines[layout::place(from.store)].frame(envelope, true);
        if let Some(packet) = forged {
            self.plan(1, Happening::Packet(Box::new(packet)));
        }
    }

    /// An operator puts something else in the place of a directory.
    fn exchange(&mut self, store: usize, how: Exchange, us: u64) {
        if !self.machines.iter().any(Machine::is_member) {
            self.crash(store, true);
            // A plan that is kept may have been counted: the answer may still be under way.
            if !self.machines[store].has_plan() {
                self.machines[store].wipe();
            }
            return;
        }
        // More than a minority of lost directories is more than a cluster survives.
        if self.machines.iter().any(Machine::is_exchanged) {
            return;
        }
        // What goes down may be copied.
        self.crash(store, true);
        // Only those that have heard more than a copy knows can tell that it is one.
        let heard = |starts: u64| {
            let mut others = (0..self.machines.len()).filter(|other| *other != store);
            others.all(|other| self.machines[other].accepted(store) > starts)
        };
        if how.needs_copy() && !self.machines[store].copied_starts().is_some_and(heard) {
            return;
        }
        if self.machines[store].exchange(how) {
            self.say(format_args!("store {}: {how:?}", layout::id(store)));
            self.plan(us, Happening::PutBack(store));
        }
    }

    /// The newest disk of a store comes back.
    pub(super) fn put_back(&mut self, store: usize) {
        if self.machines[store].is_exchanged() {
            self.crash(store, false);
            self.machines[store].put_back();
        }
    }

    /// A store is told the right thing, if it was not.
    pub(super) fn right_flags(&mut self, store: usize) {
        if self.machines[store].has_wrong_flags() {
            self.crash(store, false);
            self.machines[store].set_flags(Flags::Right);
        }
    }

    /// The store has read its clock, and hands out what its step has granted when it goes on.
    pub(super) fn stand_still_inside(&mut self, store: usize, us: u64) {
        let life = self.machines[store].life();
        self.pause(store, us);
        let held = self.pauses[store].held.get_or_insert_default();
        held.push(Happening::Work { store, life, task: Task::HandOut });
    }

    /// The store forgets everything that is not on its disk; without `power` even that lost what
    /// was not synced. It starts again some time later.
    pub(super) fn crash(&mut self, store: usize, power: bool) {
        let delay_us = self.rng.u64(1_000..=self.swarm.restart_us_max);
        self.crash_for(store, power, delay_us);
    }

    fn crash_for(&mut self, store: usize, power: bool, delay_us: u64) {
        if self.machines[store].is_up() {
            self.counts.crashes += 1;
        }
        self.say(format_args!("store {} is down", layout::id(store)));
        self.trace.add(&[self.now(), store as u64, u64::from(power)]);
        self.machines[store].crash(power);
        if self.rng.u8(..COPIED_OF) == 0 {
            self.machines[store].copy_directory();
        }
        self.oracles[store].reset();
        self.end_suspension(store);
        // What it would have found is void, but for what others sent: it may still arrive.
        for happening in std::mem::take(&mut self.pauses[store]).held.into_iter().flatten() {
            self.plan(1, happening);
        }
        for client in self.workload.lose(store) {
            self.go_on(Some(client));
        }
        self.plan(delay_us, Happening::Start(store));
    }

    pub(super) fn start(&mut self, store: usize) -> Result<(), Broken> {
        self.say(format_args!("store {} starts", layout::id(store)));
        let now = self.now();
        let done = self.machines[store].start(now, &self.truth, &mut self.out);
        self.settle(store, done)?;
        if self.machines[store].is_up() {
            self.plan_save(store);
        }
        Ok(())
    }

    /// The store goes on and finds all that came meanwhile, in order.
    pub(super) fn resume(&mut self, store: usize) -> Result<(), Broken> {
        self.end_suspension(store);
        let found = std::mem::take(&mut self.pauses[store]).held;
        for happening in found.into_iter().flatten() {
            match &mut self.pauses[store].held {
                // It stands still again; the rest comes behind what it has left undone.
                Some(held) => held.push(happening),
                None => self.happen(happening)?,
            }
        }
        Ok(())
    }

    pub(super) fn pause(&mut self, store: usize, us: u64) {
        if self.machines[store].is_up() && self.pauses[store].held.is_none() {
            self.say(format_args!("store {} stands still", layout::id(store)));
            self.pauses[store].held = Some(Vec::new());
            let life = self.machines[store].life();
            self.plan(us, Happening::Resume { store, life });
        }
    }

    /// Cuts a leader off from as many replicas as it can spare.
    fn usurp(&mut self, region: RegionId, us: u64) {
        let Some(leader) = self.leader(region) else { return };
        self.plan_probes(region, leader);
        let mut regions = self.settings.regions.iter();
        let peers = regions.find(|other| other.id == region).map(|region| region.peers.iter());
        let places = peers.into_iter().flatten().map(|peer| layout::place(peer.store));
        let mut places: Vec<_> = places.filter(|place| *place != leader).collect();
        self.rng.shuffle(&mut places);
        let keepers = places.len().div_ceil(2);
        for rebel in &places[keepers..] {
            self.network.cut(&Cut::Link { from: leader, to: *rebel });
            self.network.cut(&Cut::Link { from: *rebel, to: leader });
        }
        self.plan(us, Happening::Betray { leader, keeper: places[0] });
    }

    /// The store stands still; the answers to what it has asked get through, and nothing later.
    pub(super) fn freeze(&mut self, store: usize, us: u64) {
        self.pause(store, us);
        self.plan(ANSWERED_US.min(us), Happening::Isolate(store));
        self.plan(us + BETRAYED_US, Happening::HealLinks);
    }

    fn plan_probes(&mut self, region: RegionId, leader: usize) {
        self.plan(PROBE_US, Happening::Probe { region, leader, times: PROBES });
    }

    pub(super) fn probe(&mut self, region: RegionId, leader: usize, times: u32) {
        if self.is_stormy && times > 0 {
            for ticket in self.workload.probe(region, leader) {
                self.plan(1, Happening::Arrive(ticket));
            }
            let delay_us = self.rng.u64(1..2 * PROBE_US);
            self.plan(delay_us, Happening::Probe { region, leader, times: times - 1 });
        }
    }

    pub(super) fn isolate(&mut self, store: usize) {
        if self.is_stormy {
            let alone = (0..self.machines.len()).map(|place| place == store).collect();
            self.network.cut(&Cut::Apart(alone));
        }
    }

    fn leader(&self, region: RegionId) -> Option<usize> {
        let leads = |machine: &Machine| {
            machine.status(region).is_some_and(|status| status.role == Role::Leader)
        };
        self.machines.iter().position(leads)
    }

    pub(super) fn betray(&mut self, leader: usize, keeper: usize) {
        if !self.is_stormy {
            return;
        }
        self.isolate(leader);
        self.plan(BETRAYED_US, Happening::HealLinks);
        // Quick: what it has promised would be over otherwise.
        let delay_us = self.rng.u64(1_000..100_000);
        let power = self.rng.bool();
        self.crash_for(keeper, power, delay_us);
    }

    /// A store whose disk fails soon is dead at the latest then.
    fn plan_end(&mut self, store: usize) {
        let life = self.machines[store].life();
        let delay_us = self.rng.u64(1..=CUT_US_MAX);
        self.plan(delay_us, Happening::Expire { store, life });
    }
}
