//! What stores tell each other, and what clients and stores do.

use flotilla_region::{Envelope, Event, PeerId, RegionId, Ticket};

use super::{BEAT_US, Happening, World};
use crate::agenda::Moment;
use crate::layout;
use crate::packet::{Content, Packet};
use crate::request::{Owner, Reply};
use crate::task::Task;
use crate::truth::Broken;

/// A client waits so long for an answer before it turns to something else.
const PATIENCE_US: u64 = 3_000_000;
/// A request takes up to this long to a store, and an answer back.
const REACH_US_MAX: u64 = 500;
/// One of so many messages that do not get through is reported to the sender.
const REPORTED_OF: u32 = 8;

impl World {
    /// Gives a message to the network.
    pub(super) fn post(&mut self, from: usize, envelope: Envelope) {
        let to = layout::place(envelope.to.store);
        let [first, second] = self.network.arrivals(self.agenda.now(), from, to);
        let (message, region, peer) = (&envelope.message, envelope.region, envelope.to.id);
        self.trace.add(&[
            u64::from(message.kind.number()),
            envelope.region.0,
            message.term.0,
            message.index.0,
            message.entries.len() as u64,
            first.unwrap_or(0),
        ]);
        // Without a link nothing leaves.
        let packet = first.and_then(|_| self.machines[from].frame(envelope, false));
        match (first, packet) {
            (Some(first), Some(packet)) => self.plan_arrivals(packet, first, second),
            _ => {
                self.counts.lost += 1;
                self.report_unreachable(from, region, peer);
            }
        }
    }

    /// Gives a greeting or a question to the network.
    pub(super) fn send_packet(&mut self, packet: Packet) {
        let [first, second] = self.network.arrivals(self.now(), packet.from, packet.to);
        self.trace.add(&[packet.from as u64, packet.to as u64, first.unwrap_or(0)]);
        if let Some(first) = first {
            self.plan_arrivals(packet, first, second);
        }
    }

    fn plan_arrivals(&mut self, packet: Packet, first: Moment, second: Option<Moment>) {
        if let Some(second) = second {
            self.plan(second - self.now(), Happening::Packet(Box::new(packet.clone())));
        }
        self.plan(first - self.now(), Happening::Packet(Box::new(packet)));
    }

    fn report_unreachable(&mut self, from: usize, region: RegionId, peer: PeerId) {
        if self.rng.u32(..REPORTED_OF) == 0 {
            let life = self.machines[from].life();
            let task = Task::Post(vec![Event::Unreachable { region, peer }]);
            self.plan(REACH_US_MAX, Happening::Work { store: from, life, task });
        }
    }

    pub(super) fn deliver(&mut self, packet: Packet) -> Result<(), Broken> {
        let to = packet.to;
        if !self.machines[to].is_up() {
            self.counts.lost += 1;
            if let Content::Frame { envelope, .. } = &packet.content {
                self.report_unreachable(packet.from, envelope.region, envelope.to.id);
            }
            return Ok(());
        }
        self.counts.messages += 1;
        let received = self.machines[to].receive(packet, &mut self.out);
        self.settle(to, received)
    }

    pub(super) fn think(&mut self, client: usize) {
        if self.is_busy {
            let ticket = self.workload.ask(client);
            self.plan(PATIENCE_US, Happening::Patience { client, ticket });
            let delay_us = self.rng.u64(1..=REACH_US_MAX);
            self.plan(delay_us, Happening::Arrive(ticket));
        }
    }

    pub(super) fn arrive(&mut self, ticket: Ticket) -> Result<(), Broken> {
        let store = self.workload.request(ticket).store;
        if !self.machines[store].is_running() {
            let freed = self.workload.bounce(ticket);
            self.go_on(freed);
            return Ok(());
        }
        let event = self.workload.arrive(ticket);
        self.say(format_args!("ticket {ticket}: {:?}", self.workload.request(ticket).ask));
        self.machines[store].post(event, &mut self.out);
        self.settle(store, Ok(()))
    }

    pub(super) fn reply(&mut self, ticket: Ticket, reply: Reply) -> Result<(), Broken> {
        self.trace.add(&[ticket.0, reply.print()]);
        self.say(format_args!("ticket {ticket} is told {reply:?}"));
        let freed = self.workload.answer(ticket, &reply, &self.truth)?;
        if let Owner::Oracle(store) = self.workload.request(ticket).owner {
            self.oracles[store].answer(ticket, reply, &mut self.stamps)?;
        }
        self.go_on(freed);
        Ok(())
    }

    /// A client that got what it waited for, or never will, thinks of something else.
    pub(super) fn go_on(&mut self, freed: Option<usize>) {
        if let Some(client) = freed {
            let delay_us = self.think_us();
            self.plan(delay_us, Happening::Think(client));
        }
    }

    pub(super) fn beat(&mut self, store: usize) {
        self.plan(BEAT_US, Happening::Beat(store));
        if !self.machines[store].is_running() || !self.is_busy {
            return;
        }
        let now_ms = self.machines[store].clock().read(self.agenda.now()).0;
        let count = self.rng.u64(1..1_000);
        let asked = self.oracles[store].beat(now_ms, count, &self.stamps, &mut self.workload);
        for ticket in asked {
            self.plan(1, Happening::Arrive(ticket));
        }
    }
}
