//! The simulated cluster: events happen one after the other, and schedule more.

use std::fmt::Arguments;
use std::sync::Arc;

use fastrand::Rng;
use flotilla_region::{MessageKind, RegionId, RoleChange, Ticket};

use crate::clock::LocalClock;
use crate::event_queue::{EventQueue, SimTime};
use crate::fault::Fault;
use crate::faults::Swarm;
use crate::layout;
use crate::network::{Network, NetworkConditions};
use crate::node::{DiskFill, RunSettings, SimNode};
use crate::packet::Packet;
use crate::placement_watch::PlacementWatch;
use crate::reference_model::{CheckFailure, ReferenceModel};
use crate::request::ClientRequest;
use crate::split_planner::SplitPlanner;
use crate::task::{Outbox, StopReason, Task};
use crate::trace::Trace;
use crate::tso_oracle::{GrantedTimestamps, TsoOracle};
use crate::workload::ClientWorkload;

mod expiring;
mod fault_injection;
mod losing;
mod membership;
mod messaging;
#[cfg(test)]
mod scripting;
mod settings;
mod splitting;
mod transferring;

/// Between two beats of an oracle.
const TICK_US: u64 = 100_000;
/// A store that was ordered to lose power inside its next operations loses it after this at the
/// latest.
const CUT_US_MAX: u64 = 200_000;

/// Something that is planned.
#[derive(Debug)]
enum SimEvent {
    Work {
        store: usize,
        incarnation: u64,
        task: Task,
    },
    Packet(Box<Packet>),
    NextRequest(usize),
    Arrive(Ticket),
    ClientTimeout {
        client: usize,
        ticket: Ticket,
    },
    OracleTick(usize),
    /// Time for maintenance, if the store is still in this incarnation.
    Maintain {
        store: usize,
        incarnation: u64,
    },
    /// The cluster is there, or is not yet.
    BeginFaults,
    InjectFault(Fault),
    /// The store goes on after a pause, if it is still in this incarnation.
    Resume {
        store: usize,
        incarnation: u64,
    },
    /// Probes whether the region has two leaders, `times` more times, the next `quiet` ones only by
    /// reads.
    Probe {
        region: RegionId,
        leader: usize,
        quiet: u64,
        times: u64,
    },
    /// The store is cut off from all others for so long.
    Isolate {
        store: usize,
        us: u64,
    },
    /// The second half of a usurpation: the leader is cut off, a replica that heard it restarts.
    RestartVoter {
        region: RegionId,
        leader: usize,
        voter: usize,
    },
    Campaign {
        store: usize,
        region: RegionId,
    },
    RestoreDiskSpeed(usize),
    FreeDisk(usize),
    /// The operator puts the newest disk of a store back.
    RestoreDirectory(usize),
    /// The operator corrects the flags of a store.
    CorrectFlags(usize),
    /// The store loses power, if it is still in this incarnation.
    DelayedPowerLoss {
        store: usize,
        incarnation: u64,
    },
    Start(usize),
    /// An operator splits a region.
    Split,
    /// An operator has a region led elsewhere.
    Transfer,
    /// An operator changes the members of a region.
    ChangeMembership,
    ChangeSetting,
    /// A look of the leader of placement at the settings that are to be rolled out.
    RollOut,
    /// The operator asks for a change a second time.
    AskAgain(Box<ClientRequest>),
    /// The streams of a store are cut.
    CutStreams(usize),
    /// A store that was to lose power inside an end has met none, if it is still in this
    /// incarnation.
    SpareEnd {
        store: usize,
        incarnation: u64,
    },
    /// A request has waited for a leader as long as it may, if the store is still in this
    /// incarnation.
    EndWait {
        store: usize,
        incarnation: u64,
        ticket: Ticket,
    },
    /// The repair at the end looks for regions without the members that they should have.
    RepairMembers,
}

/// Whether a store stands still.
#[derive(Debug, Default)]
struct PauseState {
    /// The events that it will find when it goes on.
    held: Option<Vec<SimEvent>>,
    /// It will stand still for so long as soon as it has sent something.
    after_sending_us: Option<u64>,
    /// It will stand still for so long as soon as it has asked to be confirmed as the leader of the
    /// region, and be cut off when it goes on.
    after_asking: Option<(RegionId, u64)>,
    /// Its machine is suspended since then.
    suspended_at: Option<SimTime>,
}

/// Events by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Things that happened, of any kind.
    pub events: u64,
    /// Stores that crashed.
    pub crashes: u64,
    /// Faults of any other kind.
    pub faults: u64,
    /// Messages that arrived.
    pub messages: u64,
    /// Messages that did not.
    pub lost: u64,
}

/// The timestamps that placement has given away, and the cluster as it was told.
struct PlacementRecord {
    stamps: GrantedTimestamps,
    watch: PlacementWatch,
}

pub(crate) struct SimWorld {
    event_queue: EventQueue<SimEvent>,
    nodes: Vec<SimNode>,
    oracles: Vec<TsoOracle>,
    network: Network,
    workload: ClientWorkload,
    reference_model: ReferenceModel,
    placement: PlacementRecord,
    trace: Trace,
    swarm: Swarm,
    splits: SplitPlanner,
    /// Decides what has no generator of its own.
    rng: Rng,
    pauses: Vec<PauseState>,
    counts: EventCounts,
    out: Outbox,
    /// Whether faults still happen.
    has_faults: bool,
    /// Whether clients still ask.
    clients_active: bool,
}

impl SimWorld {
    pub(crate) fn new(
        swarm: Swarm,
        splits: SplitPlanner,
        settings: RunSettings,
        mut rng: Rng,
        trace: Trace,
    ) -> Self {
        let stores = swarm.stores;
        let workload = ClientWorkload::new(
            &settings.regions,
            stores,
            swarm.clients,
            swarm.keys_per_region,
            swarm.weight,
            rng.fork(),
        );
        let reference_model = ReferenceModel::new(&settings.regions);
        let system = &settings.regions[0];
        let oracles = (0..stores).map(|place| TsoOracle::new(place, system.clone())).collect();
        let settings = Arc::new(settings);
        let node = |place: usize| {
            let clock = LocalClock::new(swarm.drift_ppm[place], rng.u64(..10_000_000));
            SimNode::new(place, clock, Arc::clone(&settings), rng.fork())
        };
        let mut world = Self {
            event_queue: EventQueue::new(),
            nodes: (0..stores).map(node).collect(),
            oracles,
            network: Network::new(stores, swarm.conditions, rng.fork()),
            workload,
            reference_model,
            placement: PlacementRecord {
                stamps: GrantedTimestamps::default(),
                watch: PlacementWatch::new(stores),
            },
            trace,
            swarm,
            splits,
            rng,
            pauses: (0..stores).map(|_| PauseState::default()).collect(),
            counts: EventCounts::default(),
            out: Outbox::default(),
            has_faults: true,
            clients_active: true,
        };
        world.schedule_start();
        world
    }

    fn schedule_start(&mut self) {
        for store in 0..self.nodes.len() {
            self.schedule(1 + store as u64, SimEvent::Start(store));
            self.schedule(TICK_US, SimEvent::OracleTick(store));
        }
        for client in 0..self.swarm.clients {
            let delay_us = self.think_us();
            self.schedule(delay_us, SimEvent::NextRequest(client));
        }
        if let Some((store, flags, us)) = self.swarm.wrong_flags {
            self.nodes[store].set_flags(flags);
            self.schedule(us, SimEvent::CorrectFlags(store));
        }
        if self.swarm.has_calm_start() {
            self.network.set_conditions(NetworkConditions::FAIR);
            self.schedule(TICK_US, SimEvent::BeginFaults);
        } else {
            self.begin_faults();
        }
    }

    /// Begins the faults if all stores are members, and looks again later if not.
    fn begin_faults_behind_the_bootstrap(&mut self) {
        if !self.has_faults {
            return;
        }
        if self.nodes.iter().all(SimNode::is_member) {
            self.network.set_conditions(self.swarm.conditions);
            self.begin_faults();
        } else {
            self.schedule(TICK_US, SimEvent::BeginFaults);
        }
    }

    fn begin_faults(&mut self) {
        self.schedule_fault();
        self.schedule_extra_fault();
        self.schedule_snapshot_fault();
        self.schedule_disk_fault();
        self.schedule_bit_rot();
        self.schedule_split();
        self.schedule_transfer();
        self.schedule_membership();
        self.schedule_settings();
    }

    pub(crate) fn now(&self) -> SimTime {
        self.event_queue.now()
    }

    pub(crate) fn counts(&self) -> EventCounts {
        self.counts
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn nodes(&self) -> &[SimNode] {
        &self.nodes
    }

    pub(crate) fn workload(&self) -> &ClientWorkload {
        &self.workload
    }

    pub(crate) fn reference_model(&self) -> &ReferenceModel {
        &self.reference_model
    }

    /// Whether placement finds each region where it is led.
    pub(crate) fn check_placement(&self) -> Result<(), CheckFailure> {
        let mut regions = self.reference_model.descriptors();
        regions.try_for_each(|region| {
            self.placement.watch.check(self.now(), region, self.leader(region.id))
        })
    }

    pub(crate) fn stamps(&self) -> &GrantedTimestamps {
        &self.placement.stamps
    }

    /// From now on nothing goes wrong, and what went wrong is mended.
    pub(crate) fn end_faults(&mut self) -> Result<(), CheckFailure> {
        self.has_faults = false;
        self.network.heal();
        self.network.set_conditions(NetworkConditions::FAIR);
        self.say(format_args!("all faults end"));
        for store in 0..self.nodes.len() {
            self.resume(store)?;
            self.restore_directory(store);
            self.correct_flags(store);
            self.nodes[store].set_slow(false);
            self.nodes[store].fill_disk(DiskFill::NONE);
            self.nodes[store].cut_at_birth(None);
            self.nodes[store].cut_at_arrow(None);
            // An ordered fault that has not come yet would else come after the faults have ended.
            if self.nodes[store].has_disk_fault() {
                self.crash(store, true);
            }
            if !self.nodes[store].is_up() {
                self.start(store)?;
            }
        }
        self.repair_members();
        Ok(())
    }

    /// From now on clients ask nothing.
    pub(crate) fn stop_clients(&mut self) {
        self.clients_active = false;
    }

    /// Sends a request to where it is addressed.
    pub(crate) fn send(&mut self, request: ClientRequest) -> Ticket {
        let ticket = self.workload.send(request);
        self.schedule(1, SimEvent::Arrive(ticket));
        ticket
    }

    /// Lets the next planned thing happen.
    pub(crate) fn advance(&mut self) -> Result<(), CheckFailure> {
        let event = self.event_queue.next().expect("timers never end");
        self.counts.events += 1;
        match self.target_store(&event) {
            // Events of a store that stands still wait until it goes on.
            Some(store) if self.pauses[store].held.is_some() => {
                self.pauses[store].held.get_or_insert_default().push(event);
                Ok(())
            }
            _ => self.handle(event),
        }
    }

    fn handle(&mut self, event: SimEvent) -> Result<(), CheckFailure> {
        match event {
            SimEvent::Work { store, incarnation, task } => self.work(store, incarnation, task)?,
            SimEvent::Packet(packet) => self.deliver(*packet)?,
            SimEvent::Arrive(ticket) => self.arrive(ticket)?,
            SimEvent::NextRequest(client) => self.issue_request(client),
            SimEvent::ClientTimeout { client, ticket } => {
                if self.workload.give_up(client, ticket) {
                    self.schedule(1, SimEvent::NextRequest(client));
                }
            }
            SimEvent::OracleTick(store) => self.tick(store),
            SimEvent::Maintain { store, incarnation } => {
                self.work(store, incarnation, Task::Maintain)?;
                if self.nodes[store].incarnation() == incarnation {
                    self.schedule_maintenance(store);
                }
            }
            SimEvent::BeginFaults => self.begin_faults_behind_the_bootstrap(),
            SimEvent::InjectFault(fault) => self.inject(fault)?,
            SimEvent::Split => self.split_by_hand()?,
            SimEvent::Transfer => self.transfer_by_hand(),
            SimEvent::ChangeMembership => self.change_members_by_hand()?,
            SimEvent::ChangeSetting => self.change_setting_by_hand(),
            SimEvent::RollOut => self.roll_out()?,
            SimEvent::AskAgain(request) => self.ask_again(*request),
            SimEvent::CutStreams(store) => self.cut_streams_of(store)?,
            SimEvent::SpareEnd { store, incarnation } => {
                if self.nodes[store].incarnation() == incarnation {
                    self.nodes[store].cut_at_arrow(None);
                }
            }
            SimEvent::RepairMembers => self.repair_members(),
            SimEvent::EndWait { store, incarnation, ticket } => {
                self.end_wait(store, incarnation, ticket)?;
            }
            SimEvent::Resume { store, incarnation } => {
                if self.nodes[store].incarnation() == incarnation {
                    self.resume(store)?;
                }
            }
            SimEvent::Probe { region, leader, quiet, times } => {
                self.probe(region, leader, quiet, times);
            }
            SimEvent::Campaign { store, region } => self.campaign(store, region)?,
            SimEvent::Isolate { store, us } => self.isolate(store, us),
            SimEvent::RestartVoter { region, leader, voter } => {
                self.restart_voter(region, leader, voter);
            }
            SimEvent::RestoreDiskSpeed(store) => self.nodes[store].set_slow(false),
            SimEvent::FreeDisk(store) => self.free_disk(store),
            SimEvent::RestoreDirectory(store) => self.restore_directory(store),
            SimEvent::CorrectFlags(store) => self.correct_flags(store),
            SimEvent::DelayedPowerLoss { store, incarnation } => {
                if self.has_faults && self.nodes[store].incarnation() == incarnation {
                    self.crash(store, true);
                }
            }
            SimEvent::Start(store) => {
                if !self.nodes[store].is_up() {
                    self.start(store)?;
                }
            }
        }
        Ok(())
    }

    /// The store without which this cannot happen.
    fn target_store(&self, event: &SimEvent) -> Option<usize> {
        match event {
            SimEvent::Work { store, .. } | SimEvent::OracleTick(store) => Some(*store),
            SimEvent::Maintain { store, .. } | SimEvent::EndWait { store, .. } => Some(*store),
            SimEvent::Packet(packet) => Some(packet.to),
            SimEvent::Arrive(ticket) => Some(self.workload.request(*ticket).store),
            _ => None,
        }
    }

    fn work(&mut self, store: usize, incarnation: u64, task: Task) -> Result<(), CheckFailure> {
        // The work of a dead process is void: it is neither done nor reported.
        if self.nodes[store].incarnation() != incarnation {
            return Ok(());
        }
        self.trace.add(&[self.event_queue.now(), task.number(), store as u64]);
        self.say(format_args!("store {} {task:?}", layout::id(store)));
        let now = self.event_queue.now();
        let done = self.nodes[store].act(
            task,
            now,
            &mut self.reference_model,
            &self.workload,
            &mut self.out,
        );
        self.dispatch(store, done)
    }

    /// Distributes what a store's work brought forth, and buries the store if it was its last.
    fn dispatch(&mut self, store: usize, done: Result<(), StopReason>) -> Result<(), CheckFailure> {
        let mut out = std::mem::take(&mut self.out);
        let incarnation = self.nodes[store].incarnation();
        let has_sent = !out.envelopes.is_empty();
        let freezes = self.pauses[store].after_asking.take_if(|(region, _)| {
            out.envelopes.iter().any(|envelope| {
                let message = &envelope.message;
                let has_asked =
                    message.kind == MessageKind::Heartbeat && !message.context.is_empty();
                has_asked && envelope.region == *region
            })
        });
        for (delay_us, task) in out.tasks.drain(..) {
            self.schedule(delay_us, SimEvent::Work { store, incarnation, task });
        }
        for envelope in out.envelopes.drain(..) {
            self.post(store, envelope);
        }
        for notice in out.notices.drain(..) {
            self.post_notice(store, notice)?;
        }
        for mut packet in out.packets.drain(..) {
            // Noted by the world: a store with an older disk does not know it.
            packet.is_sound = !self.nodes[store].is_swapped();
            self.send_packet(packet);
        }
        out.ended.drain(..).for_each(|region| self.placement.watch.note_end(store, region));
        for step in out.ranges.drain(..) {
            self.placement.watch.note_ranges(self.event_queue.now(), store, &step)?;
        }
        out.roles.drain(..).for_each(|role| self.note_role(store, &role));
        for wish in out.wishes.drain(..) {
            self.split_as_wished(store, wish);
        }
        for (ticket, reply) in out.replies.drain(..) {
            self.answer(store, ticket, reply)?;
        }
        out.held_reads.drain(..).for_each(|held| self.log_time(store, held));
        out.expired.drain(..).for_each(|expired| self.remove_expired(store, expired));
        out.comparisons.drain(..).for_each(|region| self.compare_replicas(store, &region));
        for ticket in out.undecided.drain(..) {
            self.nodes[store].forget_wait(ticket);
            let freed = self.workload.leave_open(ticket)?;
            self.resume_client(freed);
            self.end_undecided(ticket)?;
        }
        if let Some(us) = out.stall_us.take() {
            self.stall_in_step(store, us);
        }
        self.out = out;
        match done {
            Ok(()) => {
                // After the messages are under way, so that their answers come while it stands
                // still.
                if has_sent && let Some(us) = self.pauses[store].after_sending_us.take() {
                    self.pause(store, us);
                }
                if let Some((_, us)) = freezes {
                    self.freeze(store, us);
                }
                Ok(())
            }
            Err(why) => self.stop(store, why),
        }
    }

    /// A store does not go on.
    fn stop(&mut self, store: usize, why: StopReason) -> Result<(), CheckFailure> {
        match why {
            StopReason::Died => {
                self.nodes[store].count_death();
                self.crash(store, true);
                Ok(())
            }
            StopReason::Refused(words) => {
                self.say(format_args!("store {} is refused: {words}", layout::id(store)));
                if !self.nodes[store].is_to_be_refused() {
                    return Err(format!("sound store {} is refused: {words}", layout::id(store)));
                }
                self.nodes[store].count_refusal();
                // Not a power loss: the process has ended in order, and what it wrote stays.
                self.crash(store, false);
                Ok(())
            }
            StopReason::Lost(words) => {
                self.nodes[store].note_loss();
                Err(words)
            }
            StopReason::CheckFailure(what) => Err(what),
        }
    }

    fn note_role(&mut self, store: usize, role: &RoleChange) {
        self.trace.add(&[role.region.0, role.term.0, u64::from(role.is_leader)]);
        self.say(format_args!("store {} {role:?}", layout::id(store)));
        if role.region == layout::SYSTEM {
            self.oracles[store].on_role_change(role);
        }
        let now = self.now();
        let region = self.nodes[store].regions().find(|region| region.id == role.region);
        self.placement.watch.note_role(now, store, role, region);
        for ticket in self.nodes[store].note_leadership(now, role) {
            self.try_again(store, ticket);
        }
    }

    fn think_us(&mut self) -> u64 {
        self.rng.u64(1..=2 * self.swarm.think_us)
    }

    fn schedule(&mut self, delay_us: u64, event: SimEvent) {
        self.event_queue.schedule(delay_us, event);
    }

    fn say(&self, words: Arguments<'_>) {
        self.trace.say(self.event_queue.now(), words);
    }
}
