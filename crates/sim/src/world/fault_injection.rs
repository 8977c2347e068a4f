//! Fault injection into the cluster, and the return of stores.

use flotilla_region::{
    Envelope, Event, Index, LogEntry, Message, MessageKind, PeerRole, RegionId, Role, Term,
};

use crate::fault::{Fault, FaultSource, MessageLie};
use crate::faults::NUMBER_MAX;
use crate::layout;
use crate::network::Partition;
use crate::node::{DirectorySwap, DiskFill, OperatorFlags, SimNode};
use crate::reference_model::CheckFailure;
use crate::task::Task;

use super::{CUT_US_MAX, SimEvent, SimWorld};

/// One of this many directories of stores that went down is copied.
const COPIED_OF: u8 = 3;
/// How long a leader is isolated.
const ISOLATED_US: u64 = 1_000_000;
/// Between two looks at whether a region has two leaders.
const PROBE_US: u64 = 20_000;
/// By then most answers have come.
const ANSWERED_US: u64 = 60_000;

impl SimWorld {
    /// Plans the next fault.
    pub(super) fn schedule_fault(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next(&mut self.rng) {
            self.schedule(delay_us, SimEvent::InjectFault(fault));
        }
    }

    /// Plans the next of the faults that are drawn apart.
    pub(super) fn schedule_extra_fault(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next_extra() {
            self.schedule(delay_us, SimEvent::InjectFault(fault));
        }
    }

    /// Plans the next of those that are about snapshots.
    pub(super) fn schedule_snapshot_fault(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next_snapshot_fault() {
            self.schedule(delay_us, SimEvent::InjectFault(fault));
        }
    }

    /// Plans the next full disk.
    pub(super) fn schedule_disk_fault(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next_disk_fault() {
            self.schedule(delay_us, SimEvent::InjectFault(fault));
        }
    }

    /// Plans the next bit that flips.
    pub(super) fn schedule_bit_rot(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next_bit_rot() {
            self.schedule(delay_us, SimEvent::InjectFault(fault));
        }
    }

    /// Plans the next maintenance of a store.
    pub(super) fn schedule_maintenance(&mut self, store: usize) {
        let incarnation = self.nodes[store].incarnation();
        let delay_us = self.rng.u64(1..=2 * self.swarm.checkpoint_us);
        self.schedule(delay_us, SimEvent::Maintain { store, incarnation });
    }

    pub(super) fn inject(&mut self, fault: Fault) -> Result<(), CheckFailure> {
        // Planned before the faults ended; nothing may go wrong in the audit.
        if !self.has_faults {
            return Ok(());
        }
        match fault.source() {
            FaultSource::First => self.schedule_fault(),
            FaultSource::Bounds => self.schedule_extra_fault(),
            FaultSource::Snapshots => self.schedule_snapshot_fault(),
            FaultSource::Disks => self.schedule_disk_fault(),
            FaultSource::Rot => self.schedule_bit_rot(),
        }
        let fault = self.aim(fault);
        self.say(format_args!("{fault:?}"));
        self.counts.faults += 1;
        match fault {
            Fault::PowerLoss(store) => self.crash(store, true),
            Fault::Kill(store) => self.crash(store, false),
            Fault::Blackout => (0..self.nodes.len()).for_each(|store| self.crash(store, true)),
            Fault::CutInside { store, operations } => {
                self.nodes[store].cut_inside(operations);
                self.schedule_power_loss(store);
            }
            Fault::DiskErrors { store, writes_too } => {
                self.nodes[store].inject_disk_errors(writes_too);
                self.schedule_power_loss(store);
            }
            Fault::Campaign { store, region } => self.campaign(store, region)?,
            Fault::Pause { store, us, is_after_sending: false } => self.pause(store, us),
            Fault::Pause { store, us, is_after_sending: true } => {
                self.pauses[store].after_sending_us = Some(us);
            }
            Fault::Freeze { region, us } => {
                if let Some(leader) = self.leader(region) {
                    self.pauses[leader].after_asking = Some((region, us));
                    self.schedule_probes(region, leader, 0, us);
                }
            }
            Fault::SecondLeader { region, us } => self.force_second_leader(region, us),
            Fault::Partition { cut, us } => {
                self.network.cut(&cut, self.event_queue.now() + us);
            }
            Fault::SlowDisk { store, us } => {
                self.nodes[store].set_slow(true);
                self.schedule(us, SimEvent::RestoreDiskSpeed(store));
            }
            Fault::Suspend { region, us } => self.suspend(region, us),
            Fault::Stall { region, us } => {
                if let Some(leader) = self.leader(region) {
                    self.nodes[leader].stall(us);
                    self.schedule_probes(region, leader, 0, us);
                }
            }
            Fault::Forged { region, from, to, kind, lie } => {
                self.send_forged(region, [from, to], kind, lie);
            }
            Fault::Away { store, us, is_down } => self.send_away(store, us, is_down),
            Fault::CutStreams(store) => {
                self.nodes[store].cut_streams(&mut self.out);
                self.dispatch(store, Ok(()))?;
            }
            Fault::CutAtArrow { store, arrow } => self.nodes[store].cut_at_arrow(Some(arrow)),
            Fault::DirectorySwap { store, how, us } => self.swap_directory(store, how, us),
            Fault::FullDisk { store, fill, us } => self.fill_disks(store, fill, us),
            Fault::BitRot { store, choice } => self.rot_some(store, choice),
        }
        Ok(())
    }

    /// A replica wants to lead, if it is there.
    pub(crate) fn campaign(&mut self, store: usize, region: RegionId) -> Result<(), CheckFailure> {
        self.nodes[store].post(Event::Campaign { region }, &mut self.out);
        self.dispatch(store, Ok(()))
    }

    /// A store is down for a while, or hears of nothing.
    fn send_away(&mut self, store: usize, us: u64, is_down: bool) {
        if is_down {
            self.crash_for(store, true, us);
        } else {
            self.isolate(store, us);
        }
    }

    /// A disk is full for a while, or all are.
    fn fill_disks(&mut self, store: Option<usize>, fill: DiskFill, us: u64) {
        let all = 0..self.nodes.len();
        for store in store.map_or(all, |store| store..store + 1) {
            self.nodes[store].fill_disk(fill);
            self.schedule(us, SimEvent::FreeDisk(store));
        }
    }

    /// A disk has room again. Where its engines had none, one may have failed in the middle of a
    /// write, and tell of it later: that store ends.
    pub(super) fn free_disk(&mut self, store: usize) {
        let was_hard = self.nodes[store].has_hard_disk();
        self.nodes[store].fill_disk(DiskFill::NONE);
        if was_hard {
            self.schedule_power_loss(store);
        }
    }

    /// Turns a fault of one of the first regions into one of a region that has come of it. One that
    /// needs a leader goes to another region if these have none.
    fn aim(&mut self, mut fault: Fault) -> Fault {
        let needs_leader = fault.needs_leader();
        if let Some(region) = fault.region_mut() {
            let mut all: Vec<_> = self.reference_model.descendants(*region).collect();
            if needs_leader {
                let is_led = |region: &RegionId| self.leader(*region).is_some();
                all.retain(is_led);
                if all.is_empty() {
                    let others = self.reference_model.descriptors().map(|region| region.id);
                    all = others.filter(is_led).collect();
                }
            }
            if !all.is_empty() {
                *region = self.splits.choose(&all);
            }
        }
        fault
    }

    /// The machine of a leader is suspended, and cut off when it comes back.
    fn suspend(&mut self, region: RegionId, us: u64) {
        let Some(leader) = self.leader(region) else { return };
        // It may stand still for another reason, and goes on when that ends.
        if self.pauses[leader].held.is_none() {
            self.schedule_probes(region, leader, 0, us);
            self.freeze(leader, us);
            self.pauses[leader].suspended_at = Some(self.now());
        }
    }

    /// The time that a suspended machine has missed, if it was one.
    fn end_suspension(&mut self, store: usize) {
        if let Some(since) = self.pauses[store].suspended_at.take() {
            let us = self.now() - since;
            self.nodes[store].suspend(us);
        }
    }

    /// A message that no sound replica sends, in the name of a member. A replica without a log
    /// would have to believe a wild term.
    fn send_forged(
        &mut self,
        region: RegionId,
        ends: [usize; 2],
        kind: MessageKind,
        lie: MessageLie,
    ) {
        let Some(described) = self.reference_model.descriptor(region) else { return };
        let [mut from, to] = ends.map(|end| described.peers[end % described.peers.len()].address());
        let Some(status) = self.nodes[layout::place(to.store)].status(region) else { return };
        if from == to || status.last == Index(0) {
            return;
        }
        let mut message = Message { kind, term: status.term, ..Message::default() };
        match lie {
            MessageLie::WildTerm(term) => message.term = Term(term),
            MessageLie::WildIndex => message.index = Index(NUMBER_MAX),
            MessageLie::Gap => {
                let index = Index(status.last.0 + 2);
                message.kind = MessageKind::Append;
                (message.index, message.log_term) = (status.last, status.term);
                message.entries =
                    vec![LogEntry { index, term: status.term, ..LogEntry::default() }];
            }
            MessageLie::OtherStore => {
                let mut others = described.peers.iter().filter(|peer| peer.id != from.id);
                from.id = others.next_back().expect("there are two at least").id;
            }
        }
        let envelope = Envelope {
            region,
            from,
            to,
            epoch: described.epoch,
            gc_floor: Index(0),
            range: None,
            message,
        };
        let forged = self.nodes[layout::place(from.store)].frame(envelope, true);
        if let Some(packet) = forged {
            self.schedule(1, SimEvent::Packet(Box::new(packet)));
        }
    }

    /// An operator puts something else in the place of a directory.
    fn swap_directory(&mut self, store: usize, how: DirectorySwap, us: u64) {
        if !self.nodes.iter().any(SimNode::is_member) {
            self.crash(store, true);
            // A plan that is kept may have been counted: the answer may still be under way.
            if !self.nodes[store].has_plan() {
                self.nodes[store].wipe();
            }
            return;
        }
        // A region with one voter asks no other store: with an older copy its writes would be lost,
        // and no greeting comes in time to prevent it.
        let alone = || self.reference_model.had_lone_voter(layout::id(store));
        // More than a minority of lost directories is more than a cluster survives.
        let lost = |node: &SimNode| node.is_swapped() || node.is_rotten();
        if self.nodes.iter().any(lost) || (how.needs_copy() && alone()) {
            return;
        }
        // A directory that goes down may be copied.
        self.crash(store, true);
        // Only those that have heard more than a copy knows can tell that it is one.
        let heard = |starts: u64| {
            let mut others = (0..self.nodes.len()).filter(|other| *other != store);
            others.all(|other| self.nodes[other].accepted(store) > starts)
        };
        if how.needs_copy() && !self.nodes[store].copied_starts().is_some_and(heard) {
            return;
        }
        if self.nodes[store].swap_directory(how) {
            self.say(format_args!("store {}: {how:?}", layout::id(store)));
            self.schedule(us, SimEvent::RestoreDirectory(store));
        }
    }

    /// A bit flips in a leaf of a store. Rows that only this store has would be lost, so that none
    /// has lost any meanwhile, and none does later.
    fn rot_some(&mut self, store: usize, choice: u64) {
        let lost = |node: &SimNode| node.is_swapped() || node.is_rotten();
        let mut others = (0..self.nodes.len()).filter(|other| *other != store);
        let is_lost = others.any(|other| lost(&self.nodes[other]));
        if is_lost || self.reference_model.had_lone_voter(layout::id(store)) {
            return;
        }
        self.crash(store, true);
        let keys = self.workload.keys().cloned().collect();
        if let Some(key) = self.nodes[store].rot_some(choice, &keys) {
            let key = key.escape_ascii();
            self.say(format_args!("store {}: the leaf of {key} rots", layout::id(store)));
        }
    }

    /// The newest disk of a store comes back.
    pub(super) fn restore_directory(&mut self, store: usize) {
        if self.nodes[store].is_swapped() {
            self.crash(store, false);
            self.nodes[store].restore_directory();
        }
    }

    /// Corrects the flags of a store, if they were wrong.
    pub(super) fn correct_flags(&mut self, store: usize) {
        if self.nodes[store].has_wrong_flags() {
            self.crash(store, false);
            self.nodes[store].set_flags(OperatorFlags::Right);
        }
    }

    /// The store has read its clock, and hands out what its step has granted when it goes on.
    pub(super) fn stall_in_step(&mut self, store: usize, us: u64) {
        let incarnation = self.nodes[store].incarnation();
        self.pause(store, us);
        let held = self.pauses[store].held.get_or_insert_default();
        held.push(SimEvent::Work { store, incarnation, task: Task::DispatchEffects });
    }

    /// The store forgets everything that is not on its disk; without `power` even that lost what
    /// was not synced. It starts again some time later.
    pub(super) fn crash(&mut self, store: usize, power: bool) {
        let delay_us = self.rng.u64(1_000..=self.swarm.restart_us_max);
        self.crash_for(store, power, delay_us);
    }

    pub(super) fn crash_for(&mut self, store: usize, power: bool, delay_us: u64) {
        if self.nodes[store].is_up() {
            self.counts.crashes += 1;
        }
        self.say(format_args!("store {} is down", layout::id(store)));
        self.trace.add(&[self.now(), store as u64, u64::from(power)]);
        let waiting = self.nodes[store].waiting_requests();
        self.nodes[store].crash(power);
        if self.rng.u8(..COPIED_OF) == 0 {
            self.nodes[store].copy_directory();
        }
        self.oracles[store].reset();
        self.placement.watch.restart(store);
        self.end_suspension(store);
        // Its own events are void, but those from other stores may still arrive.
        for event in std::mem::take(&mut self.pauses[store]).held.into_iter().flatten() {
            self.schedule(1, event);
        }
        for client in self.workload.lose_store(store, &waiting) {
            self.resume_client(Some(client));
        }
        self.schedule(delay_us, SimEvent::Start(store));
    }

    pub(super) fn start(&mut self, store: usize) -> Result<(), CheckFailure> {
        self.say(format_args!("store {} starts", layout::id(store)));
        let now = self.now();
        let done = self.nodes[store].start(now, &mut self.reference_model, &mut self.out);
        self.dispatch(store, done)?;
        if self.nodes[store].is_up() {
            self.schedule_maintenance(store);
        }
        Ok(())
    }

    /// The store goes on and finds all that came meanwhile, in order.
    pub(super) fn resume(&mut self, store: usize) -> Result<(), CheckFailure> {
        self.end_suspension(store);
        let found = std::mem::take(&mut self.pauses[store]).held;
        for event in found.into_iter().flatten() {
            match &mut self.pauses[store].held {
                // It stands still again; the rest comes behind what it has left undone.
                Some(held) => held.push(event),
                None => self.handle(event)?,
            }
        }
        Ok(())
    }

    pub(super) fn pause(&mut self, store: usize, us: u64) {
        if self.nodes[store].is_up() && self.pauses[store].held.is_none() {
            self.say(format_args!("store {} stands still", layout::id(store)));
            self.pauses[store].held = Some(Vec::new());
            let incarnation = self.nodes[store].incarnation();
            self.schedule(us, SimEvent::Resume { store, incarnation });
        }
    }

    /// Cuts a leader off from as many replicas as it can spare.
    fn force_second_leader(&mut self, region: RegionId, us: u64) {
        let Some(leader) = self.leader(region) else { return };
        // No writes at first: those that are cut off would lack them, and get no vote.
        self.schedule_probes(region, leader, us, 0);
        let peers = self.reference_model.descriptor(region).map(|region| region.peers.iter());
        let voters = peers.into_iter().flatten().filter(|peer| peer.role == PeerRole::Voter);
        let places = voters.map(|peer| layout::place(peer.store));
        let mut places: Vec<_> = places.filter(|place| *place != leader).collect();
        // The only voter.
        if places.is_empty() {
            return;
        }
        self.rng.shuffle(&mut places);
        // As many as still make a majority with it, so that it goes on leading.
        let keepers = places.len().div_ceil(2);
        let until = self.event_queue.now() + us + ISOLATED_US;
        for rebel in &places[keepers..] {
            self.network.cut(&Partition::Link { from: leader, to: *rebel }, until);
            self.network.cut(&Partition::Link { from: *rebel, to: leader }, until);
        }
        self.schedule(us, SimEvent::RestartVoter { region, leader, voter: places[0] });
    }

    /// The store stands still; the answers to what it has asked get through, and nothing later.
    pub(super) fn freeze(&mut self, store: usize, us: u64) {
        self.pause(store, us);
        let answered_us = ANSWERED_US.min(us);
        let alone_us = us - answered_us + ISOLATED_US;
        self.schedule(answered_us, SimEvent::Isolate { store, us: alone_us });
    }

    /// Looks whether the region has two leaders: reads from the one for as long as `quiet_us`, and
    /// then writes to the others as well while a fault of `us` lasts, and for as long behind it as
    /// the leader is isolated.
    pub(super) fn schedule_probes(
        &mut self,
        region: RegionId,
        leader: usize,
        quiet_us: u64,
        us: u64,
    ) {
        let quiet = quiet_us / PROBE_US;
        let times = quiet + (us + ISOLATED_US) / PROBE_US;
        self.schedule(PROBE_US, SimEvent::Probe { region, leader, quiet, times });
    }

    pub(super) fn probe(&mut self, region: RegionId, leader: usize, quiet: u64, times: u64) {
        if self.has_faults && times > 0 {
            let described = self.reference_model.descriptor(region);
            let sent = described.map(|region| self.workload.probe(region, leader, quiet == 0));
            for ticket in sent.into_iter().flatten() {
                self.schedule(1, SimEvent::Arrive(ticket));
            }
            let delay_us = self.rng.u64(1..2 * PROBE_US);
            let (quiet, times) = (quiet.saturating_sub(1), times - 1);
            self.schedule(delay_us, SimEvent::Probe { region, leader, quiet, times });
        }
    }

    pub(super) fn isolate(&mut self, store: usize, us: u64) {
        if self.has_faults {
            let alone = (0..self.nodes.len()).map(|place| place == store).collect();
            self.network.cut(&Partition::Split(alone), self.event_queue.now() + us);
        }
    }

    pub(super) fn leader(&self, region: RegionId) -> Option<usize> {
        let leads =
            |node: &SimNode| node.status(region).is_some_and(|status| status.role == Role::Leader);
        self.nodes.iter().position(leads)
    }

    pub(super) fn restart_voter(&mut self, region: RegionId, leader: usize, voter: usize) {
        if !self.has_faults {
            return;
        }
        // It must not hear of its successor, or it would step down.
        self.isolate(leader, ISOLATED_US);
        // Quick: what it has promised would be over otherwise.
        let delay_us = self.rng.u64(1_000..100_000);
        let power = self.rng.bool();
        self.crash_for(voter, power, delay_us);
        // It may want to lead at once, as well as vote for one that does.
        if self.rng.bool() {
            let soon_us = self.rng.u64(..100_000);
            self.schedule(delay_us + soon_us, SimEvent::Campaign { store: voter, region });
        }
    }

    /// A store whose disk fails soon is dead at the latest then.
    pub(super) fn schedule_power_loss(&mut self, store: usize) {
        let incarnation = self.nodes[store].incarnation();
        let delay_us = self.rng.u64(1..=CUT_US_MAX);
        self.schedule(delay_us, SimEvent::DelayedPowerLoss { store, incarnation });
    }
}
