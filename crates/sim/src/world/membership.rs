//! Changes of members by hand, what happens beside them, and the repair at the end.

#[cfg(test)]
use flotilla_region::Ticket;
use flotilla_region::{Descriptor, MembershipChange, MembershipCommand, Peer};

use super::{SimEvent, SimWorld};
use crate::executor::InstallArrow;
use crate::layout;
use crate::membership_planner::{MembershipCompanion, PlannedChange};
use crate::reference_model::CheckFailure;
use crate::request::{ClientRequest, ForgedField, RequestBody, RequestOwner};

/// Between two looks of the repair.
const REPAIR_US: u64 = 200_000;
/// Within this time after a change, a store that is to lose power inside an end meets one.
const END_US_MAX: u64 = 2_000_000;

impl SimWorld {
    /// Plans the next change of members.
    pub(super) fn schedule_membership(&mut self) {
        if let Some(delay_us) = self.swarm.membership().delay_us() {
            self.schedule(delay_us, SimEvent::ChangeMembership);
        }
    }

    /// An operator asks for a change of the members of a region.
    pub(super) fn change_members_by_hand(&mut self) -> Result<(), CheckFailure> {
        if !self.has_faults {
            return Ok(());
        }
        self.schedule_membership();
        let all: Vec<_> = self.reference_model.descriptors().map(|region| region.id).collect();
        let region = self.swarm.membership().choose(&all);
        let region = self.reference_model.descriptor(region).expect("it is one of these").clone();
        let Some(leader) = self.leader(region.id) else { return Ok(()) };
        let change = self.plan_change(&region, leader);
        let about = self.store_of(&region, &change.command).unwrap_or(leader);
        let request = request_of(change, &region, leader);
        self.counts.faults += 1;
        self.send(request.clone());
        self.accompany_change(&region, request, [leader, about])
    }

    fn plan_change(&mut self, region: &Descriptor, leader: usize) -> PlannedChange {
        let stores = self.nodes.len();
        self.swarm.membership().plan(region, layout::id(leader), stores)
    }

    /// Asks a store for a change of the members of a region.
    #[cfg(test)]
    pub(crate) fn ask_for_change(
        &mut self,
        region: &Descriptor,
        store: usize,
        change: MembershipChange,
    ) -> Ticket {
        let command = MembershipCommand { epoch: region.epoch, change };
        let body = RequestBody::Membership(command);
        self.send(ClientRequest::new(RequestOwner::Operator, region, store, body))
    }

    /// The store of the first replica that a change is about.
    fn store_of(&self, region: &Descriptor, command: &MembershipCommand) -> Option<usize> {
        let listed = |id| region.peer(id);
        let peer: Option<Peer> = match &command.change {
            MembershipChange::Add(peer) => Some(*peer),
            MembershipChange::Vote { promoted, demoted } => {
                promoted.iter().chain(demoted).find_map(|id| listed(*id))
            }
            MembershipChange::Remove(id) => listed(*id),
            MembershipChange::LeaveJoint => None,
        };
        peer.map(|peer| layout::place(peer.store)).filter(|store| *store < self.nodes.len())
    }

    fn accompany_change(
        &mut self,
        region: &Descriptor,
        request: ClientRequest,
        [leader, about]: [usize; 2],
    ) -> Result<(), CheckFailure> {
        let companion = self.swarm.membership().companion();
        let body = &request.body;
        self.say(format_args!("region {} changes by {body:?}, {companion:?}", region.id));
        let mend_us = self.swarm.membership().mend_us();
        match companion {
            MembershipCompanion::None => {}
            MembershipCompanion::Twice => drop(self.send(request)),
            MembershipCompanion::Late { us } => {
                self.schedule(us, SimEvent::AskAgain(Box::new(request)));
            }
            MembershipCompanion::SecondChange => {
                let change = self.plan_change(region, leader);
                self.send(request_of(change, region, leader));
            }
            MembershipCompanion::LeaderDies { us } => self.lose_power(leader, us),
            MembershipCompanion::LeaderAlone { us } => {
                self.schedule(us, SimEvent::Isolate { store: leader, us: mend_us });
            }
            MembershipCompanion::StoreDies { us } => self.lose_power(about, us),
            MembershipCompanion::StoreAway { us } => self.isolate(about, us),
            MembershipCompanion::CutAtEnd { arrow } => {
                let arrow = InstallArrow::ENDS[arrow % InstallArrow::ENDS.len()];
                self.nodes[about].cut_at_arrow(Some(arrow));
                let incarnation = self.nodes[about].incarnation();
                let lapse = SimEvent::SpareEnd { store: about, incarnation };
                self.schedule(END_US_MAX, lapse);
            }
            MembershipCompanion::CutStreams { us } => {
                self.schedule(us, SimEvent::CutStreams(about));
            }
            MembershipCompanion::Split if region.space == flotilla_region::Space::Raw => {
                self.ask_for_split(region, leader);
            }
            MembershipCompanion::Split => {}
            MembershipCompanion::Transfer => drop(self.ask_for_transfer(region, leader, None)),
            MembershipCompanion::Campaign => self.campaign(about, region.id)?,
            MembershipCompanion::Blackout { us } => {
                (0..self.nodes.len()).for_each(|store| self.lose_power(store, us));
            }
        }
        Ok(())
    }

    /// A change that was asked for is asked for again, of the leader now.
    pub(super) fn ask_again(&mut self, mut request: ClientRequest) {
        if self.has_faults {
            request.store = self.leader(request.region()).unwrap_or(request.store);
            self.send(request);
        }
    }

    /// The streams of a store are cut.
    pub(super) fn cut_streams_of(&mut self, store: usize) -> Result<(), CheckFailure> {
        if self.has_faults {
            self.nodes[store].cut_streams(&mut self.out);
            self.dispatch(store, Ok(()))?;
        }
        Ok(())
    }

    /// Brings every region one step nearer to the members that it should have.
    pub(super) fn repair_members(&mut self) {
        if !self.swarm.membership().repairs() {
            return;
        }
        self.schedule(REPAIR_US, SimEvent::RepairMembers);
        let stores = self.nodes.len();
        let all: Vec<_> = self.reference_model.descriptors().cloned().collect();
        for region in all {
            let Some(leader) = self.leader(region.id) else { continue };
            let planner = self.swarm.membership();
            if let Some(command) = planner.repair(&region, layout::id(leader), stores) {
                let body = RequestBody::Membership(command);
                self.send(ClientRequest::new(RequestOwner::Operator, &region, leader, body));
            }
        }
    }

    /// Whether every region has the members that it should have after the repair.
    ///
    /// # Errors
    ///
    /// In words, one that has others.
    pub(crate) fn are_members_repaired(&mut self) -> Result<(), CheckFailure> {
        let stores = self.nodes.len();
        let planner = self.swarm.membership();
        let mut all = self.reference_model.descriptors();
        all.try_for_each(|region| planner.is_repaired(region, stores))
    }
}

fn request_of(change: PlannedChange, region: &Descriptor, leader: usize) -> ClientRequest {
    let PlannedChange { command, is_void } = change;
    let body = RequestBody::Membership(command);
    let mut request = ClientRequest::new(RequestOwner::Operator, region, leader, body);
    request.forged = is_void.then_some(ForgedField::Membership);
    request
}
