//! The cluster as placement sees it: the heartbeats of all stores, by the product's own code. They
//! arrive at once, for what is looked at is what they say.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_placement::{
    ClusterView, Config, KnownRegion, LedRegions, RegionHeartbeat, RegionInfo, ReplicaInfo,
    ReplicaRole, StoreInfo,
};
use flotilla_region::{Descriptor, Peer, RegionId, RoleChange, SPLIT_TERM, Space, Term};

use crate::event_queue::SimTime;
use crate::layout;
use crate::reference_model::CheckFailure;

/// The regions of one step of a shard that have other ranges or members, or are new.
#[derive(Debug)]
pub(crate) struct StepRanges {
    pub(crate) ranges: Vec<Descriptor>,
    /// Those of them whose replicas are new, and campaign at once.
    pub(crate) campaigning: BTreeSet<RegionId>,
}

pub(crate) struct PlacementWatch {
    view: ClusterView,
    reporters: Vec<Reporter>,
}

/// The part of a store that sends heartbeats.
struct Reporter {
    led: LedRegions,
    leaders: BTreeMap<RegionId, (Term, Option<Peer>)>,
}

impl PlacementWatch {
    pub(crate) fn new(stores: usize) -> Self {
        let ids = (0..stores).map(|place| layout::id(place).0);
        let infos = ids.map(|id| StoreInfo { id, ..StoreInfo::default() });
        let view = ClusterView::new(Config::default(), infos);
        Self { view, reporters: (0..stores).map(Reporter::new).collect() }
    }

    /// A store has stopped: it knows no leaders when it starts again.
    pub(crate) fn restart(&mut self, store: usize) {
        self.reporters[store] = Reporter::new(store);
    }

    /// A store has heard of a leader, or of a term.
    pub(crate) fn note_role(
        &mut self,
        now: SimTime,
        store: usize,
        role: &RoleChange,
        region: Option<&Descriptor>,
    ) {
        let reporter = &mut self.reporters[store];
        reporter.leaders.insert(role.region, (role.term, role.leader));
        let Some(region) = region.and_then(client_region) else { return };
        let leader = role.leader.map(replica);
        let told = reporter.led.note_role(region, role.term.0, leader, role.is_leader);
        self.hear(now, store, &Vec::from_iter(told), false);
    }

    /// A step of a store has brought forth ranges. The store names a leader that it has heard of,
    /// or its own replica that campaigns: a claim of a later term would outweigh the leader's word.
    pub(crate) fn note_ranges(
        &mut self,
        now: SimTime,
        store: usize,
        step: &StepRanges,
    ) -> Result<(), CheckFailure> {
        let reporter = &mut self.reporters[store];
        let StepRanges { ranges, campaigning } = step;
        let known: Vec<_> = ranges
            .iter()
            .filter_map(|range| reporter.known(range, campaigning.contains(&range.id)))
            .collect();
        let told = reporter.led.note_ranges(known);
        for RegionHeartbeat { region, term, leader } in &told {
            let heard = reporter.leaders.get(&RegionId(region.id));
            let is_heard = heard.is_some_and(|(heard, peer)| {
                heard.0 == *term && peer.map(replica) == *leader && leader.is_some()
            });
            if !is_heard && !campaigning.contains(&RegionId(region.id)) {
                let id = region.id;
                return Err(format!("region {id}: placement is told of {leader:?} in term {term}"));
            }
        }
        self.hear(now, store, &told, false);
        Ok(())
    }

    /// A replica has ended.
    pub(crate) fn note_end(&mut self, store: usize, region: RegionId) {
        self.reporters[store].led.note_end(region.0);
        self.reporters[store].leaders.remove(&region);
    }

    /// A store that has these regions sends a full report.
    pub(crate) fn report_all<'a>(
        &mut self,
        now: SimTime,
        store: usize,
        here: impl Iterator<Item = &'a Descriptor>,
    ) {
        let reporter = &mut self.reporters[store];
        let known: Vec<_> = here.filter_map(|region| reporter.known(region, false)).collect();
        let told = reporter.led.report_all(known);
        self.hear(now, store, &told, true);
    }

    fn hear(&mut self, now: SimTime, store: usize, told: &[RegionHeartbeat], is_full: bool) {
        if is_full || !told.is_empty() {
            self.view.observe(now / 1000, layout::id(store).0, told, is_full);
        }
    }

    /// Whether placement finds a region, as it is, where it is led.
    pub(crate) fn check(
        &self,
        now: SimTime,
        region: &Descriptor,
        leader: Option<usize>,
    ) -> Result<(), CheckFailure> {
        let Some(expected) = client_region(region) else { return Ok(()) };
        let route = self.view.locate(now / 1000, &region.start);
        let found = route.map(|route| (route.region, route.leader.map(|peer| peer.store)));
        let leader = leader.map(|place| layout::id(place).0);
        match found {
            Some((info, Some(store))) if *info == expected && leader == Some(store) => Ok(()),
            _ => Err(format!("placement knows {found:?} of {expected:?}, which {leader:?} leads")),
        }
    }
}

impl Reporter {
    fn new(store: usize) -> Self {
        Self { led: LedRegions::new(layout::id(store).0), leaders: BTreeMap::new() }
    }

    fn known(&self, region: &Descriptor, campaigns: bool) -> Option<KnownRegion> {
        let info = client_region(region)?;
        let leader = self.leaders.get(&region.id);
        let leader = leader.and_then(|(term, peer)| Some((term.0, replica((*peer)?))));
        Some(KnownRegion {
            region: info,
            leader,
            campaigns_from: campaigns.then_some(SPLIT_TERM.0),
        })
    }
}

fn client_region(region: &Descriptor) -> Option<RegionInfo> {
    (region.space == Space::Raw).then(|| RegionInfo {
        id: region.id.0,
        start: region.start.to_vec(),
        end: region.end.to_vec(),
        conf_version: region.epoch.conf_version,
        version: region.epoch.version,
        replicas: region.peers.iter().map(|peer| replica(peer.address())).collect(),
    })
}

/// Nothing that is looked at here depends on roles.
fn replica(peer: Peer) -> ReplicaInfo {
    ReplicaInfo { id: peer.id.0, store: peer.store.0, role: ReplicaRole::Voter }
}
