//! The whole cluster: what is planned happens, one thing after the other, and brings forth more.

use std::fmt::Arguments;
use std::sync::Arc;

use fastrand::Rng;
use flotilla_region::{Descriptor, MessageKind, RegionId, Ticket};

use crate::agenda::{Agenda, Moment};
use crate::clock::LocalClock;
use crate::faults::{Fault, Swarm};
use crate::layout;
use crate::machine::{Machine, Settings};
use crate::network::{Network, Weather};
use crate::oracle::{Oracle, Stamps};
use crate::packet::Packet;
use crate::request::Request;
use crate::task::{Outbox, Stop, Task};
use crate::trace::Trace;
use crate::truth::{Broken, Truth};
use crate::workload::Workload;

mod storm;
mod talk;

/// Between two beats of an oracle.
const BEAT_US: u64 = 100_000;
/// A store that was told to lose power inside its next operations loses it after this at the
/// latest.
const CUT_US_MAX: u64 = 200_000;

/// Something that is planned.
#[derive(Debug)]
enum Happening {
    Work {
        store: usize,
        life: u64,
        task: Task,
    },
    Packet(Box<Packet>),
    Think(usize),
    Arrive(Ticket),
    Patience {
        client: usize,
        ticket: Ticket,
    },
    Beat(usize),
    /// A checkpoint is due, if the store is still in this life.
    Save {
        store: usize,
        life: u64,
    },
    Strike(Fault),
    /// The store goes on after a pause, if it is still in this life.
    Resume {
        store: usize,
        life: u64,
    },
    HealLinks,
    /// Somebody looks whether the region has two leaders, and so many times more.
    Probe {
        region: RegionId,
        leader: usize,
        times: u32,
    },
    /// Nobody hears the store any more, and it hears nobody.
    Isolate(usize),
    /// The second half of a usurpation: the leader is cut off, a replica that heard it restarts.
    Betray {
        leader: usize,
        keeper: usize,
    },
    MendDisk(usize),
    /// The operator puts the newest disk of a store back.
    PutBack(usize),
    /// The operator finds out what he told a store wrong.
    RightFlags(usize),
    /// The store loses power, if it is still in this life.
    Expire {
        store: usize,
        life: u64,
    },
    Start(usize),
}

/// Whether a store stands still.
#[derive(Debug, Default)]
struct Pause {
    /// What it will find when it goes on.
    held: Option<Vec<Happening>>,
    /// It will stand still for so long as soon as it has sent something.
    after_sending_us: Option<u64>,
    /// It will stand still for so long as soon as it has asked to be confirmed as a leader, and be
    /// cut off when it goes on.
    after_asking_us: Option<u64>,
    /// Its machine is suspended since then.
    suspended_at: Option<Moment>,
}

/// What happened how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
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

pub(crate) struct World {
    agenda: Agenda<Happening>,
    machines: Vec<Machine>,
    oracles: Vec<Oracle>,
    network: Network,
    workload: Workload,
    truth: Truth,
    stamps: Stamps,
    trace: Trace,
    swarm: Swarm,
    settings: Arc<Settings>,
    /// Decides what has no generator of its own.
    rng: Rng,
    pauses: Vec<Pause>,
    counts: Counts,
    out: Outbox,
    /// Whether faults still happen.
    is_stormy: bool,
    /// Whether clients still ask.
    is_busy: bool,
}

impl World {
    pub(crate) fn new(swarm: Swarm, settings: Settings, mut rng: Rng, trace: Trace) -> Self {
        let stores = swarm.stores;
        let workload = Workload::new(
            &settings.regions,
            stores,
            swarm.clients,
            swarm.keys_per_region,
            swarm.weight,
            rng.fork(),
        );
        let settings = Arc::new(settings);
        let machine = |place: usize| {
            let clock = LocalClock::new(swarm.drift_ppm[place], rng.u64(..10_000_000));
            Machine::new(place, clock, Arc::clone(&settings), rng.fork())
        };
        let mut world = Self {
            agenda: Agenda::new(),
            machines: (0..stores).map(machine).collect(),
            oracles: (0..stores).map(Oracle::new).collect(),
            network: Network::new(stores, swarm.weather, rng.fork()),
            workload,
            truth: Truth::default(),
            stamps: Stamps::default(),
            trace,
            swarm,
            settings,
            rng,
            pauses: (0..stores).map(|_| Pause::default()).collect(),
            counts: Counts::default(),
            out: Outbox::default(),
            is_stormy: true,
            is_busy: true,
        };
        world.plan_beginning();
        world
    }

    fn plan_beginning(&mut self) {
        for store in 0..self.machines.len() {
            self.plan(1 + store as u64, Happening::Start(store));
            self.plan(BEAT_US, Happening::Beat(store));
        }
        for client in 0..self.swarm.clients {
            let delay_us = self.think_us();
            self.plan(delay_us, Happening::Think(client));
        }
        if let Some((store, flags, us)) = self.swarm.wrong_flags {
            self.machines[store].set_flags(flags);
            self.plan(us, Happening::RightFlags(store));
        }
        self.plan_strike();
        self.plan_strike_apart();
    }

    pub(crate) fn now(&self) -> Moment {
        self.agenda.now()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    pub(crate) fn regions(&self) -> &[Descriptor] {
        &self.settings.regions
    }

    pub(crate) fn workload(&self) -> &Workload {
        &self.workload
    }

    pub(crate) fn truth(&self) -> &Truth {
        &self.truth
    }

    pub(crate) fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// From now on nothing goes wrong, and what went wrong is mended.
    pub(crate) fn calm(&mut self) -> Result<(), Broken> {
        self.is_stormy = false;
        self.network.heal();
        self.network.set_weather(Weather::FAIR);
        self.say(format_args!("all faults end"));
        for store in 0..self.machines.len() {
            self.resume(store)?;
            self.put_back(store);
            self.right_flags(store);
            self.machines[store].set_slow(false);
            if self.machines[store].is_ill() {
                self.crash(store, true);
            }
            if !self.machines[store].is_up() {
                self.start(store)?;
            }
        }
        Ok(())
    }

    /// From now on clients ask nothing.
    pub(crate) fn hush(&mut self) {
        self.is_busy = false;
    }

    /// Sends a request to where it is addressed.
    pub(crate) fn send(&mut self, request: Request) -> Ticket {
        let ticket = self.workload.send(request);
        self.plan(1, Happening::Arrive(ticket));
        ticket
    }

    /// Lets the next planned thing happen.
    pub(crate) fn advance(&mut self) -> Result<(), Broken> {
        let happening = self.agenda.next().expect("timers never end");
        self.counts.events += 1;
        match self.whose(&happening) {
            // What a store that stands still should do waits until it goes on.
            Some(store) if self.pauses[store].held.is_some() => {
                self.pauses[store].held.get_or_insert_default().push(happening);
                Ok(())
            }
            _ => self.happen(happening),
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Broken> {
        match happening {
            Happening::Work { store, life, task } => self.work(store, life, task)?,
            Happening::Packet(packet) => self.deliver(*packet)?,
            Happening::Arrive(ticket) => self.arrive(ticket)?,
            Happening::Think(client) => self.think(client),
            Happening::Patience { client, ticket } => {
                if self.workload.give_up(client, ticket) {
                    self.plan(1, Happening::Think(client));
                }
            }
            Happening::Beat(store) => self.beat(store),
            Happening::Save { store, life } => {
                self.work(store, life, Task::Checkpoint)?;
                if self.machines[store].life() == life {
                    self.plan_save(store);
                }
            }
            Happening::Strike(fault) => self.strike(fault)?,
            Happening::Resume { store, life } => {
                if self.machines[store].life() == life {
                    self.resume(store)?;
                }
            }
            Happening::HealLinks => self.network.heal(),
            Happening::Probe { region, leader, times } => self.probe(region, leader, times),
            Happening::Isolate(store) => self.isolate(store),
            Happening::Betray { leader, keeper } => self.betray(leader, keeper),
            Happening::MendDisk(store) => self.machines[store].set_slow(false),
            Happening::PutBack(store) => self.put_back(store),
            Happening::RightFlags(store) => self.right_flags(store),
            Happening::Expire { store, life } => {
                if self.machines[store].life() == life {
                    self.crash(store, true);
                }
            }
            Happening::Start(store) => {
                if !self.machines[store].is_up() {
                    self.start(store)?;
                }
            }
        }
        Ok(())
    }

    /// The store without which this cannot happen.
    fn whose(&self, happening: &Happening) -> Option<usize> {
        match happening {
            Happening::Work { store, .. } | Happening::Beat(store) => Some(*store),
            Happening::Save { store, .. } => Some(*store),
            Happening::Packet(packet) => Some(packet.to),
            Happening::Arrive(ticket) => Some(self.workload.request(*ticket).store),
            _ => None,
        }
    }

    fn work(&mut self, store: usize, life: u64, task: Task) -> Result<(), Broken> {
        if self.machines[store].life() != life {
            return Ok(());
        }
        self.trace.add(&[self.agenda.now(), task.number(), store as u64]);
        self.say(format_args!("store {} {task:?}", layout::id(store)));
        let now = self.agenda.now();
        let done =
            self.machines[store].act(task, now, &mut self.truth, &self.workload, &mut self.out);
        self.settle(store, done)
    }

    /// Distributes what a store's work brought forth, and buries the store if it was its last.
    fn settle(&mut self, store: usize, done: Result<(), Stop>) -> Result<(), Broken> {
        let mut out = std::mem::take(&mut self.out);
        let life = self.machines[store].life();
        let has_sent = !out.packets.is_empty();
        let has_asked = out.packets.iter().any(|envelope| {
            let message = &envelope.message;
            message.kind == MessageKind::Heartbeat && !message.context.is_empty()
        });
        for (delay_us, task) in out.tasks.drain(..) {
            self.plan(delay_us, Happening::Work { store, life, task });
        }
        for envelope in out.packets.drain(..) {
            self.post(store, envelope);
        }
        for mut packet in out.letters.drain(..) {
            packet.is_sound = !self.machines[store].is_exchanged();
            self.send_packet(packet);
        }
        for role in out.roles.drain(..) {
            self.trace.add(&[role.region.0, role.term.0, u64::from(role.is_leader)]);
            self.say(format_args!("store {} {role:?}", layout::id(store)));
            if role.region == layout::SYSTEM {
                self.oracles[store].hear(&role);
            }
        }
        for (ticket, reply) in out.replies.drain(..) {
            self.reply(ticket, reply)?;
        }
        if let Some(us) = out.stall_us.take() {
            self.stand_still_inside(store, us);
        }
        self.out = out;
        match done {
            Ok(()) => {
                if has_sent && let Some(us) = self.pauses[store].after_sending_us.take() {
                    self.pause(store, us);
                }
                if has_asked && let Some(us) = self.pauses[store].after_asking_us.take() {
                    self.freeze(store, us);
                }
                Ok(())
            }
            Err(Stop::Died) => {
                self.machines[store].count_death();
                self.crash(store, true);
                Ok(())
            }
            Err(Stop::Refused(words)) => {
                self.say(format_args!("store {} is refused: {words}", layout::id(store)));
                if !self.machines[store].is_to_be_refused() {
                    return Err(format!("sound store {} is refused: {words}", layout::id(store)));
                }
                self.machines[store].count_refusal();
                self.crash(store, false);
                Ok(())
            }
            Err(Stop::Broken(what)) => Err(what),
        }
    }

    fn think_us(&mut self) -> u64 {
        self.rng.u64(1..=2 * self.swarm.think_us)
    }

    fn plan(&mut self, delay_us: u64, happening: Happening) {
        self.agenda.plan(delay_us, happening);
    }

    fn say(&self, words: Arguments<'_>) {
        self.trace.say(self.agenda.now(), words);
    }
}
