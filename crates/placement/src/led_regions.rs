//! The regions that a store leads, as it reports them to placement: which heartbeats a change is
//! worth.
//!
//! A store speaks for the regions that it leads, and for those that it has just ceased to lead. Of
//! a region without a leader it says nothing, with one exception: a replica that a split has made
//! campaigns at once if that of its parent leads. That region is reported along with its parent, or
//! placement would have a hole between the two, and with its replica here as the leader to be.

use std::collections::BTreeSet;

use crate::cluster_view::RegionHeartbeat;
use crate::route_table::{RegionInfo, ReplicaInfo};

/// A region that has a replica on a store, as that store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRegion {
    /// The region.
    pub region: RegionInfo,
    /// Its term and the leader of that, if the store knows one.
    pub leader: Option<(u64, ReplicaInfo)>,
    /// The term that the region begins in, if a split has just made it and its replica here
    /// campaigns.
    pub campaigns_from: Option<u64>,
}

/// The regions that one store leads, as far as placement was told.
#[derive(Clone, Debug)]
pub struct LedRegions {
    store: u64,
    leading: BTreeSet<u64>,
}

impl LedRegions {
    /// Nothing was told yet.
    #[must_use]
    pub fn new(store: u64) -> Self {
        Self { store, leading: BTreeSet::new() }
    }

    /// The heartbeats of a full report, if these are all regions of the store.
    pub fn report_all(
        &mut self,
        here: impl IntoIterator<Item = KnownRegion>,
    ) -> Vec<RegionHeartbeat> {
        self.leading.clear();
        here.into_iter().filter_map(|known| self.report(known)).collect()
    }

    /// Regions have other ranges or other replicas, or are new here.
    pub fn note_ranges(
        &mut self,
        changed: impl IntoIterator<Item = KnownRegion>,
    ) -> Vec<RegionHeartbeat> {
        changed.into_iter().filter_map(|known| self.report(known)).collect()
    }

    /// A region has another leader, another term, or both. `leads`: the replica here leads it now.
    pub fn note_role(
        &mut self,
        region: RegionInfo,
        term: u64,
        leader: Option<ReplicaInfo>,
        leads: bool,
    ) -> Option<RegionHeartbeat> {
        if leads {
            self.leading.insert(region.id);
        } else if !self.leading.remove(&region.id) {
            return None;
        }
        // Else it names no leader: the next one speaks for itself.
        Some(RegionHeartbeat { region, term, leader: leader.filter(|_| leads) })
    }

    /// The replica of a region here has ended. Another store leads it, and says so itself.
    pub fn note_end(&mut self, region: u64) {
        self.leading.remove(&region);
    }

    fn report(&mut self, known: KnownRegion) -> Option<RegionHeartbeat> {
        let KnownRegion { region, leader, campaigns_from } = known;
        let is_new = campaigns_from.is_some();
        // A claim of the first term gives way to the leader of any other.
        let to_be = || Some((campaigns_from?, region.on(self.store)?));
        let (term, leader) = leader.or_else(to_be)?;
        let leads = leader.store == self.store;
        if leads {
            self.leading.insert(region.id);
        }
        (leads || is_new).then_some(RegionHeartbeat { region, term, leader: Some(leader) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route_table::ReplicaRole;

    const HERE: u64 = 7;
    const FIRST_TERM: u64 = 5;

    fn replica(store: u64) -> ReplicaInfo {
        ReplicaInfo { id: 100 + store, store, role: ReplicaRole::Voter }
    }

    fn region(id: u64) -> RegionInfo {
        let replicas = [HERE, 8, 9].map(replica).to_vec();
        RegionInfo { id, version: 1, conf_version: 1, replicas, ..RegionInfo::default() }
    }

    fn known(id: u64, leader: Option<(u64, u64)>) -> KnownRegion {
        let leader = leader.map(|(term, store)| (term, replica(store)));
        KnownRegion { region: region(id), leader, campaigns_from: None }
    }

    fn split_off(id: u64, leader: Option<(u64, u64)>) -> KnownRegion {
        KnownRegion { campaigns_from: Some(FIRST_TERM), ..known(id, leader) }
    }

    fn told(heartbeats: impl IntoIterator<Item = RegionHeartbeat>) -> Vec<(u64, u64, u64)> {
        let told = heartbeats.into_iter().map(|heartbeat| {
            (heartbeat.region.id, heartbeat.term, heartbeat.leader.map_or(0, |peer| peer.store))
        });
        told.collect()
    }

    #[test]
    fn a_full_report_has_the_regions_that_are_led_here() {
        let mut led = LedRegions::new(HERE);
        let here = [known(1, Some((6, HERE))), known(2, Some((6, 8))), known(3, None)];
        assert_eq!(told(led.report_all(here)), [(1, 6, HERE)]);
    }

    #[test]
    fn of_a_region_that_is_led_elsewhere_nothing_is_said_beside_one_that_is_led_here() {
        let mut led = LedRegions::new(HERE);
        // One step of a shard: the members of a region change, and another one has got its data.
        let changed = [known(1, Some((6, HERE))), known(2, None), known(3, Some((6, 8)))];
        assert_eq!(told(led.note_ranges(changed)), [(1, 6, HERE)]);
        assert_eq!(led.note_role(region(2), 1, Some(replica(8)), false), None);
    }

    #[test]
    fn the_parts_of_a_split_come_together_and_the_new_ones_are_going_to_be_led_here() {
        let mut led = LedRegions::new(HERE);
        let parts = [known(1, Some((9, HERE))), split_off(2, None), split_off(3, Some((6, 8)))];
        let expected = [(1, 9, HERE), (2, FIRST_TERM, HERE), (3, 6, 8)];
        assert_eq!(told(led.note_ranges(parts)), expected);
        // The election went otherwise.
        let other = led.note_role(region(2), 6, Some(replica(9)), false);
        assert_eq!(told(other), [(2, 6, 0)]);
        assert_eq!(led.note_role(region(3), 7, Some(replica(9)), false), None);
    }

    #[test]
    fn who_ceases_to_lead_says_so_once_and_names_nobody() {
        let mut led = LedRegions::new(HERE);
        let leads = led.note_role(region(1), 6, Some(replica(HERE)), true);
        assert_eq!(told(leads), [(1, 6, HERE)]);
        // The same again is repeated: it may be of a later term.
        assert!(led.note_role(region(1), 6, Some(replica(HERE)), true).is_some());
        assert_eq!(told(led.note_role(region(1), 7, Some(replica(8)), false)), [(1, 7, 0)]);
        assert_eq!(led.note_role(region(1), 8, Some(replica(9)), false), None);
        led.note_role(region(2), 6, Some(replica(HERE)), true);
        led.note_end(2);
        assert_eq!(led.note_role(region(2), 7, None, false), None);
    }
}
