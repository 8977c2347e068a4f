//! Transfers of leadership by hand, and what happens beside them.

use flotilla_region::{Descriptor, Peer};

use super::{SimEvent, SimWorld};
use crate::layout;
use crate::request::{ClientRequest, RequestBody, RequestOwner};
use crate::transfer_planner::TransferCompanion;

/// By then most transfers are over.
const TRANSFER_US: u64 = 600_000;

impl SimWorld {
    /// Plans the next transfer.
    pub(super) fn schedule_transfer(&mut self) {
        if let Some(delay_us) = self.swarm.transfers().delay_us() {
            self.schedule(delay_us, SimEvent::Transfer);
        }
    }

    /// An operator has a region led elsewhere.
    pub(super) fn transfer_by_hand(&mut self) {
        if !self.has_faults {
            return;
        }
        self.schedule_transfer();
        let all: Vec<_> = self.reference_model.descriptors().map(|region| region.id).collect();
        let region = self.swarm.transfers().choose(&all);
        let region = self.reference_model.descriptor(region).expect("it is one of these").clone();
        let Some(leader) = self.leader(region.id) else { return };
        let to = self.swarm.transfers().target(&region);
        self.counts.faults += 1;
        let asked = self.swarm.transfers().asked(leader, self.nodes.len());
        self.ask_for_transfer(&region, asked, to);
        // Requests that would show a stale read.
        self.schedule_probes(region.id, leader, 0, TRANSFER_US);
        self.accompany_transfer(&region, leader, to);
    }

    /// Asks a store to hand the lead of a region over.
    pub(crate) fn ask_for_transfer(
        &mut self,
        region: &Descriptor,
        store: usize,
        to: Option<Peer>,
    ) -> flotilla_region::Ticket {
        let body = RequestBody::Transfer(to.map(|peer| peer.id));
        self.send(ClientRequest::new(RequestOwner::Operator, region, store, body))
    }

    fn accompany_transfer(&mut self, region: &Descriptor, leader: usize, to: Option<Peer>) {
        let companion = self.swarm.transfers().companion();
        self.say(format_args!("region {} is transferred, {companion:?}", region.id));
        let next = to.map(|peer| layout::place(peer.store)).filter(|store| *store != leader);
        let mend_us = self.swarm.transfers().mend_us();
        match (companion, next) {
            (TransferCompanion::LeaderAlone { us }, _) => {
                self.schedule(us, SimEvent::Isolate { store: leader, us: mend_us });
            }
            (TransferCompanion::NextAlone { us }, Some(next)) => {
                self.schedule(us, SimEvent::Isolate { store: next, us: mend_us });
            }
            (TransferCompanion::LateVotes { us }, Some(next)) => {
                self.network.slow_down(next, us, self.event_queue.now() + mend_us);
            }
            (TransferCompanion::LeaderPauses { us }, _) => {
                self.pauses[leader].after_sending_us = Some(us);
            }
            (TransferCompanion::NextDies { us }, Some(next)) => {
                let incarnation = self.nodes[next].incarnation();
                self.schedule(us, SimEvent::DelayedPowerLoss { store: next, incarnation });
            }
            (TransferCompanion::Split, _) if region.space == flotilla_region::Space::Raw => {
                self.ask_for_split(region, leader);
            }
            (TransferCompanion::SecondTransfer, _) => {
                let to = self.swarm.transfers().target(region);
                self.ask_for_transfer(region, leader, to);
            }
            _ => {}
        }
    }
}
