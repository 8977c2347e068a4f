//! Messages between stores, and the requests of clients and timestamp oracles.

use std::time::Duration;

use flotilla_dispatch::LeaderWaitStep;
use flotilla_region::{Envelope, Event, Notice, PeerId, RegionId, Reject, Ticket};
use flotilla_store::ApplyOutcome;

use super::{SimEvent, SimWorld, TICK_US};
use crate::event_queue::SimTime;
use crate::layout;
use crate::packet::{Packet, PacketBody, SnapshotPart};
use crate::reference_model::CheckFailure;
use crate::request::{ClientReply, RequestOwner, RequestState};
use crate::task::Task;

/// A client waits so long for an answer before it turns to something else.
const CLIENT_TIMEOUT_US: u64 = 3_000_000;
/// A request takes up to this long to a store, and an answer back.
const REQUEST_DELAY_US_MAX: u64 = 500;
/// From a leadership that is news to a request that waited for it.
const RETRY_US_MAX: u64 = 300;
/// The refusal for which a request waits at its store.
const NO_LEADER: ClientReply = ClientReply::Refused(Reject::NotLeader { leader: None });
/// Between two full reports of a store to placement.
const FULL_REPORT_US: u64 = 5_000_000;
/// One of this many messages that do not get through is reported to the sender.
const REPORTED_OF: u32 = 8;

impl SimWorld {
    /// Gives a message to the network.
    pub(super) fn post(&mut self, from: usize, envelope: Envelope) {
        let to = layout::place(envelope.to.store);
        let [first, second] = self.network.arrivals(self.event_queue.now(), from, to);
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
        let packet = first.and_then(|_| self.nodes[from].frame(envelope, false));
        match (first, packet) {
            (Some(first), Some(packet)) => {
                if let Some(us) = self.swarm.membership().late_message_us() {
                    self.schedule(us, SimEvent::Packet(Box::new(packet.clone())));
                }
                self.schedule_arrivals(packet, first, second);
            }
            _ => {
                self.counts.lost += 1;
                self.report_unreachable(from, region, peer);
            }
        }
    }

    /// Gives a notice to the network.
    pub(super) fn post_notice(&mut self, from: usize, notice: Notice) -> Result<(), CheckFailure> {
        if !self.nodes[from].is_swapped() {
            self.reference_model.check_notice(&notice)?;
        }
        self.trace.add(&[notice.region.0, notice.peer.0, from as u64]);
        self.say(format_args!("{notice:?}"));
        let Some(packet) = self.nodes[from].notice(notice) else { return Ok(()) };
        if let Some(us) = self.swarm.membership().late_notice_us() {
            self.schedule(us, SimEvent::Packet(Box::new(packet.clone())));
            self.nodes[from].count_late_notice();
        }
        self.send_packet(packet);
        Ok(())
    }

    /// Gives a greeting, a question or a notice to the network.
    pub(super) fn send_packet(&mut self, packet: Packet) {
        if let PacketBody::SnapshotPart { part: SnapshotPart::Offer { envelope, .. }, .. } =
            &packet.body
            && !self.network.passes_snapshots(envelope.region)
        {
            self.counts.lost += 1;
            return;
        }
        let [first, second] = self.network.arrivals(self.now(), packet.from, packet.to);
        self.trace.add(&[packet.from as u64, packet.to as u64, first.unwrap_or(0)]);
        if let Some(first) = first {
            self.schedule_arrivals(packet, first, second);
        }
    }

    fn schedule_arrivals(&mut self, packet: Packet, first: SimTime, second: Option<SimTime>) {
        if let Some(second) = second {
            self.schedule(second - self.now(), SimEvent::Packet(Box::new(packet.clone())));
        }
        self.schedule(first - self.now(), SimEvent::Packet(Box::new(packet)));
    }

    fn report_unreachable(&mut self, from: usize, region: RegionId, peer: PeerId) {
        if self.rng.u32(..REPORTED_OF) == 0 {
            let incarnation = self.nodes[from].incarnation();
            let task = Task::Post(vec![Event::Unreachable { region, peer }]);
            self.schedule(REQUEST_DELAY_US_MAX, SimEvent::Work { store: from, incarnation, task });
        }
    }

    pub(super) fn deliver(&mut self, packet: Packet) -> Result<(), CheckFailure> {
        let to = packet.to;
        if !self.nodes[to].is_up() {
            self.counts.lost += 1;
            if let PacketBody::Frame { envelope, .. } = &packet.body {
                self.report_unreachable(packet.from, envelope.region, envelope.to.id);
            }
            return Ok(());
        }
        self.counts.messages += 1;
        self.note_settings(&packet);
        let received = self.nodes[to].receive(packet, &mut self.out);
        self.dispatch(to, received)
    }

    pub(super) fn issue_request(&mut self, client: usize) {
        if self.clients_active {
            let ticket = self.workload.next_request(client, &self.reference_model);
            self.schedule(CLIENT_TIMEOUT_US, SimEvent::ClientTimeout { client, ticket });
            let delay_us = self.rng.u64(1..=REQUEST_DELAY_US_MAX);
            self.schedule(delay_us, SimEvent::Arrive(ticket));
        }
    }

    pub(super) fn arrive(&mut self, ticket: Ticket) -> Result<(), CheckFailure> {
        let store = self.workload.request(ticket).store;
        if !self.nodes[store].is_running() {
            // It has surely had no effect, so it does not enter the history.
            let freed = self.workload.refuse_connection(ticket);
            self.resume_client(freed);
            return Ok(());
        }
        // The call begins here and not when the client sends: until the store has it, it cannot
        // have an effect.
        let event = self.workload.arrive(ticket, self.now());
        self.say(format_args!("ticket {ticket}: {:?}", self.workload.request(ticket).body));
        self.nodes[store].post(event, &mut self.out);
        self.dispatch(store, Ok(()))
    }

    /// A store answers a request, or has it wait for a leader.
    pub(super) fn answer(
        &mut self,
        store: usize,
        ticket: Ticket,
        reply: ClientReply,
    ) -> Result<(), CheckFailure> {
        if reply != NO_LEADER {
            self.nodes[store].forget_wait(ticket);
            return self.reply(ticket, reply);
        }
        let (now, region) = (self.now(), self.workload.request(ticket).region());
        match self.nodes[store].wait_for_leader(now, ticket, region) {
            LeaderWaitStep::Retry => self.try_again(store, ticket),
            LeaderWaitStep::Wait(until) => {
                let left = until.saturating_sub(Duration::from_micros(now));
                let delay_us = u64::try_from(left.as_micros()).expect("a wait is short");
                let incarnation = self.nodes[store].incarnation();
                self.schedule(delay_us, SimEvent::EndWait { store, incarnation, ticket });
            }
            LeaderWaitStep::GiveUp => return self.reply(ticket, reply),
        }
        Ok(())
    }

    /// A request that was refused for want of a leader comes to its region again.
    pub(super) fn try_again(&mut self, store: usize, ticket: Ticket) {
        let event = self.workload.request(ticket).event(ticket);
        self.say(format_args!("ticket {ticket} is tried again"));
        let (incarnation, task) = (self.nodes[store].incarnation(), Task::Post(vec![event]));
        let delay_us = self.rng.u64(1..=RETRY_US_MAX);
        self.schedule(delay_us, SimEvent::Work { store, incarnation, task });
    }

    /// A request has waited for a leader as long as it may.
    pub(super) fn end_wait(
        &mut self,
        store: usize,
        incarnation: u64,
        ticket: Ticket,
    ) -> Result<(), CheckFailure> {
        let is_same = self.nodes[store].incarnation() == incarnation;
        if is_same && self.nodes[store].end_wait(ticket) {
            self.reply(ticket, NO_LEADER)?;
        }
        Ok(())
    }

    pub(super) fn reply(&mut self, ticket: Ticket, reply: ClientReply) -> Result<(), CheckFailure> {
        self.trace.add(&[ticket.0, reply.print()]);
        self.say(format_args!("ticket {ticket} is told {reply:?}"));
        let now = self.now();
        let freed = self.workload.answer(ticket, &reply, now, &self.reference_model)?;
        let request = self.workload.request(ticket);
        match request.owner {
            RequestOwner::TsoOracle(store) => {
                self.oracles[store].on_reply(ticket, reply, &mut self.placement.stamps)?;
            }
            RequestOwner::Reader(read) => self.end_logged_read(read, &reply)?,
            RequestOwner::Sweeper => {
                if let ClientReply::Wrote(ApplyOutcome::RemovedExpired { rows }) = reply {
                    self.nodes[request.store].count_expired(rows);
                }
            }
            RequestOwner::Splitter { is_by_load } if request.state == RequestState::Served => {
                self.nodes[request.store].count_wished_split(is_by_load);
            }
            _ => {}
        }
        self.resume_client(freed);
        Ok(())
    }

    /// A client that got what it waited for, or never will, thinks of something else.
    pub(super) fn resume_client(&mut self, freed: Option<usize>) {
        if let Some(client) = freed {
            let delay_us = self.think_us();
            self.schedule(delay_us, SimEvent::NextRequest(client));
        }
    }

    pub(super) fn tick(&mut self, store: usize) {
        self.schedule(TICK_US, SimEvent::OracleTick(store));
        if self.nodes[store].is_running() && self.event_queue.now() % FULL_REPORT_US < TICK_US {
            let here = self.nodes[store].regions();
            self.placement.watch.report_all(self.event_queue.now(), store, here);
        }
        if !self.nodes[store].is_running() || !self.clients_active {
            return;
        }
        let now_ms = self.nodes[store].clock().read(self.event_queue.now()).0;
        let count = self.rng.u64(1..1_000);
        if let Some(system) = self.reference_model.descriptor(layout::SYSTEM) {
            self.oracles[store].learn(system);
        }
        let asked =
            self.oracles[store].tick(now_ms, count, &self.placement.stamps, &mut self.workload);
        for ticket in asked {
            self.schedule(1, SimEvent::Arrive(ticket));
        }
    }
}
