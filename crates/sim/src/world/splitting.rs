//! Splits by hand, and what happens beside them.

use flotilla_region::{Descriptor, RegionId, Space};

use super::{SimEvent, SimWorld};
use crate::layout;
use crate::reference_model::CheckFailure;
use crate::request::{ClientRequest, ForgedField, RequestBody, RequestOwner};
use crate::split_planner::{PlannedSplit, SplitCompanion};
use crate::task::WishedSplit;

impl SimWorld {
    /// Plans the next split.
    pub(super) fn schedule_split(&mut self) {
        if let Some(delay_us) = self.splits.delay_us() {
            self.schedule(delay_us, SimEvent::Split);
        }
    }

    /// An operator asks for a split of a region of the clients' keys.
    pub(super) fn split_by_hand(&mut self) -> Result<(), CheckFailure> {
        if !self.has_faults {
            return Ok(());
        }
        self.schedule_split();
        let data = self.data_regions();
        if !self.splits.wants_more(data.len()) {
            return Ok(());
        }
        let region = self.splits.choose(&data);
        let region = self.reference_model.descriptor(region).expect("it is one of these").clone();
        // Without a leader nothing comes of it, and the mishaps beside it would only add to those
        // for which there is none.
        let Some(leader) = self.leader(region.id) else { return Ok(()) };
        self.ask_for_split(&region, leader);
        self.accompany(&region, leader)
    }

    fn data_regions(&self) -> Vec<RegionId> {
        let all = self.reference_model.descriptors();
        all.filter(|region| region.space == Space::Raw).map(|region| region.id).collect()
    }

    /// A store asks itself for the split that a leader there wishes for.
    pub(super) fn split_as_wished(&mut self, store: usize, wish: WishedSplit) {
        // At the end a run looks at replicas that rest.
        if self.clients_active && self.splits.wants_more(self.data_regions().len()) {
            let WishedSplit { region, borders, is_by_load } = wish;
            let body = RequestBody::Split(self.splits.command(&region, borders));
            let owner = RequestOwner::Splitter { is_by_load };
            self.send(ClientRequest::new(owner, &region, store, body));
        }
    }

    pub(super) fn ask_for_split(&mut self, region: &Descriptor, leader: usize) {
        let keys = self.workload.keys_in(region);
        let PlannedSplit { command, is_legal } = self.splits.plan(region, &keys);
        let leader = Some(leader).filter(|_| self.splits.asks_leader());
        let store = leader.unwrap_or_else(|| {
            let replica = self.splits.replica(region);
            layout::place(region.peers[replica].store)
        });
        let body = RequestBody::Split(command);
        let mut request = ClientRequest::new(RequestOwner::Operator, region, store, body);
        request.forged = (!is_legal).then_some(ForgedField::Split);
        self.counts.faults += 1;
        self.send(request);
    }

    fn accompany(&mut self, region: &Descriptor, leader: usize) -> Result<(), CheckFailure> {
        let companion = self.splits.companion(region);
        self.say(format_args!("region {} is split, {companion:?}", region.id));
        let store = |replica: usize| layout::place(region.peers[replica].store);
        match companion {
            SplitCompanion::None => {}
            SplitCompanion::SecondSplit => self.ask_for_split(region, leader),
            SplitCompanion::PowerLoss { replica, us } => self.lose_power(store(replica), us),
            SplitCompanion::CutInside { replica, operations } => {
                self.nodes[store(replica)].cut_inside(operations);
                self.schedule_power_loss(store(replica));
            }
            SplitCompanion::CutAtBirth { replica, lists } => {
                self.nodes[store(replica)].cut_at_birth(Some(lists));
            }
            SplitCompanion::Blackout { us } => {
                (0..self.nodes.len()).for_each(|store| self.lose_power(store, us));
            }
            SplitCompanion::Campaign { replica } => {
                self.campaign(store(replica), region.id)?;
            }
            SplitCompanion::Away { replica, us } => self.isolate(store(replica), us),
            SplitCompanion::SlowDisk { replica, us } => {
                self.nodes[store(replica)].set_slow(true);
                self.schedule(us, SimEvent::RestoreDiskSpeed(store(replica)));
            }
        }
        Ok(())
    }

    /// A store loses power soon, unless the faults end before.
    pub(crate) fn lose_power(&mut self, store: usize, us: u64) {
        let incarnation = self.nodes[store].incarnation();
        self.schedule(us, SimEvent::DelayedPowerLoss { store, incarnation });
    }
}
