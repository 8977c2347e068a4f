//! The cluster view: stores, regions and leaders as the heartbeats of the stores report them.
//!
//! Each region's own raft group is authoritative for the region; the view is a hint, good enough to
//! find the way. Of two claims about a region's leader the one of the higher term is right. A
//! leader is trusted as long as its own store sends heartbeats; a store that falls silent, or whose
//! connection breaks, makes its leaders suspect, and a request for them should wait a moment for a
//! fresher claim.

use crate::route_table::{RegionInfo, ReplicaInfo, RouteTable};
use std::collections::{BTreeMap, BTreeSet};

/// How long silence is taken lightly.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// After so long without a word from a store its leaders are doubtful. Milliseconds; must be
    /// more than the interval of the reports.
    pub suspect_ms: u64,
    /// After so long its replicas are named as down. Milliseconds.
    pub down_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { suspect_ms: 1_500, down_ms: 20_000 }
    }
}

/// The most requests in a second that a region is believed to take: sums of it do not overflow.
const LOAD_MAX: u64 = 1 << 32;

/// One store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Where it listens, `host:port`.
    pub address: String,
    /// Where it stands, as its operator says: `zone` = `a`.
    pub labels: Vec<(String, String)>,
    /// When it was heard last; `None` if never by this leader, or if its connection broke since.
    pub heard_ms: Option<u64>,
    /// When it was heard last, also if its connection broke since; `None` if never by this leader.
    pub last_heard_ms: Option<u64>,
    /// Whether it has said that it hands its leaders over and stops.
    pub is_stopping: bool,
    /// Its disk is full or nearly: it gets no replicas.
    pub is_almost_full: bool,
    /// Its disk is full: it should lead nothing.
    pub is_full: bool,
    /// How many replicas it has, as it says itself; `None` before it does.
    pub replicas: Option<u64>,
    /// Whether it says how many requests its regions take: an earlier version does not.
    pub tells_loads: bool,
    /// Its state in the registry.
    pub standing: StoreStanding,
}

/// The standing of a store in the registry, for placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStanding {
    /// Stores of one zone fail together. Empty: none is known.
    pub zone: String,
    /// It leads nothing and gets no replicas, and keeps those that it has.
    pub is_draining: bool,
    /// Its replicas are to be moved away.
    pub is_leaving: bool,
    /// It will never come back.
    pub is_lost: bool,
}

/// One replica's heartbeat: its view of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionHeartbeat {
    /// The region as this replica has it.
    pub region: RegionInfo,
    /// The replica's term.
    pub term: u64,
    /// The leader of this term as the replica knows it.
    pub leader: Option<ReplicaInfo>,
}

/// How far the word about a leader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderStatus {
    /// Its store was heard just now.
    Fresh,
    /// Its store has fallen silent; there may be another leader by now.
    Suspect,
    /// No leader is known.
    Unknown,
}

/// The answer to the question where a key is.
#[derive(Clone, Copy, Debug)]
pub struct RegionRoute<'a> {
    /// The region.
    pub region: &'a RegionInfo,
    /// Its leader, if one is known.
    pub leader: Option<ReplicaInfo>,
    /// How far the leader is trusted.
    pub leader_status: LeaderStatus,
}

#[derive(Clone, Copy, Debug)]
struct LeaderClaim {
    term: u64,
    leader: Option<ReplicaInfo>,
}

/// Everything that is known about the cluster.
#[derive(Clone, Debug)]
pub struct ClusterView {
    config: Config,
    stores: BTreeMap<u64, StoreInfo>,
    routes: RouteTable,
    leaders: BTreeMap<u64, LeaderClaim>,
    /// Requests in a second, of the regions that take any.
    loads: BTreeMap<u64, u64>,
    /// The region of placement, which has no place among the clients' keys.
    system: Option<RegionInfo>,
}

impl ClusterView {
    /// A cluster of these stores, none of which was heard yet.
    #[must_use]
    pub fn new(config: Config, stores: impl IntoIterator<Item = StoreInfo>) -> Self {
        let stores = stores.into_iter().map(|store| (store.id, store)).collect();
        Self {
            config,
            stores,
            routes: RouteTable::default(),
            leaders: BTreeMap::new(),
            loads: BTreeMap::new(),
            system: None,
        }
    }

    /// Applies the heartbeats of a store. True if a route or a leader changed, or a suspicion
    /// ended: requests that wait for either should look again. A store that is not of the cluster
    /// is not believed.
    ///
    /// A `full` report names every region that the store leads: it leads no other.
    pub fn observe(
        &mut self,
        now_ms: u64,
        store: u64,
        heartbeats: &[RegionHeartbeat],
        full: bool,
    ) -> bool {
        // Before the time is noted: a suspicion that ends with this report has to wake the requests
        // that wait for it.
        let doubted = self.is_silent(now_ms, store);
        let Some(known) = self.stores.get_mut(&store) else {
            return false;
        };
        known.heard_ms = Some(now_ms);
        known.last_heard_ms = Some(now_ms);
        let mut changed = doubted;
        for heartbeat in heartbeats {
            changed |= self.routes.learn(&heartbeat.region);
            changed |= self.update_leader(store, heartbeat);
        }
        if full {
            let named: BTreeSet<u64> = heartbeats.iter().map(|named| named.region.id).collect();
            for (region, claim) in &mut self.leaders {
                let leads = claim.leader.is_some_and(|leader| leader.store == store);
                // The store has stepped down there, and the heartbeat of the new leader may still
                // be under way.
                if leads && !named.contains(region) {
                    claim.leader = None;
                }
            }
        }
        changed
    }

    /// Notes the requests in a second that a store takes for the regions that it leads. Regions
    /// that it does not name take none. A region that it has just ceased to lead keeps its load
    /// until the next leader tells it.
    pub fn note_loads(&mut self, store: u64, loads: impl IntoIterator<Item = (u64, u64)>) {
        let Some(teller) = self.stores.get_mut(&store) else { return };
        teller.tells_loads = true;
        let Self { loads: known, leaders, routes, .. } = self;
        let leads = |region: u64| {
            let leader = leaders.get(&region).and_then(|claim| claim.leader);
            leader.is_some_and(|leader| leader.store == store)
        };
        known.retain(|region, _| routes.get(*region).is_some() && !leads(*region));
        let loads = loads.into_iter().map(|(region, load)| (region, load.min(LOAD_MAX)));
        known.extend(loads.filter(|(region, load)| *load > 0 && leads(*region)));
    }

    /// The requests in a second of a region, as its leader has told; 0 if it has not.
    pub(crate) fn load(&self, region: u64) -> u64 {
        self.loads.get(&region).copied().unwrap_or(0)
    }

    /// The requests in a second of each store that tells them, for the regions that it leads.
    pub(crate) fn store_loads(&self) -> BTreeMap<u64, u64> {
        let telling = self.stores.values().filter(|store| store.tells_loads);
        let mut loads: BTreeMap<u64, u64> = telling.map(|store| (store.id, 0)).collect();
        for (region, load) in &self.loads {
            let leader = self.leaders.get(region).and_then(|claim| claim.leader);
            if let Some(of_store) = leader.and_then(|leader| loads.get_mut(&leader.store)) {
                *of_store += load;
            }
        }
        loads
    }

    /// Takes over what the registry says of a store: it may be new, or have moved.
    pub fn learn_store(&mut self, id: u64, name: &str, address: &str, labels: &[(String, String)]) {
        let store =
            self.stores.entry(id).or_insert_with(|| StoreInfo { id, ..StoreInfo::default() });
        name.clone_into(&mut store.name);
        address.clone_into(&mut store.address);
        labels.clone_into(&mut store.labels);
    }

    /// Takes over what the registry says of a store that is known.
    pub fn note_standing(&mut self, id: u64, standing: StoreStanding) {
        if let Some(store) = self.stores.get_mut(&id) {
            store.standing = standing;
        }
    }

    /// Notes the region of placement. No client hears of it.
    pub fn note_system(&mut self, region: RegionInfo) {
        let is_older = |known: &RegionInfo| known.conf_version > region.conf_version;
        if !self.system.as_ref().is_some_and(is_older) {
            self.system = Some(region);
        }
    }

    /// The region of placement, once it was noted.
    pub(crate) fn system(&self) -> Option<&RegionInfo> {
        self.system.as_ref()
    }

    /// Whether a store was heard a moment ago.
    pub(crate) fn is_live(&self, now_ms: u64, store: u64) -> bool {
        !self.is_silent(now_ms, store)
    }

    /// Notes that the connection to a store broke: its leaders are doubtful until it is heard.
    pub fn disconnect(&mut self, store: u64) {
        if let Some(store) = self.stores.get_mut(&store) {
            store.heard_ms = None;
        }
    }

    /// Notes what a store says of itself: whether it hands its leaders over, to stop.
    pub fn note_stopping(&mut self, store: u64, is_stopping: bool) {
        if let Some(store) = self.stores.get_mut(&store) {
            store.is_stopping = is_stopping;
        }
    }

    /// Notes what a store says of its disk: whether that has room for replicas, and for puts.
    pub fn note_disk(&mut self, store: u64, takes_replicas: bool, takes_puts: bool) {
        if let Some(store) = self.stores.get_mut(&store) {
            (store.is_almost_full, store.is_full) = (!takes_replicas, !takes_puts);
        }
    }

    /// Notes what a store says of itself: how many replicas it has.
    pub fn note_replicas(&mut self, store: u64, replicas: u64) {
        if let Some(store) = self.stores.get_mut(&store) {
            store.replicas = Some(replicas);
        }
    }

    /// Whether the leaders of a store should go elsewhere, by the word of an operator.
    pub(crate) fn is_drained(&self, store: u64) -> bool {
        let standing = self.stores.get(&store).map(|store| &store.standing);
        standing.is_some_and(|standing| standing.is_draining || standing.is_leaving)
    }

    /// Whether a store should lead regions: it was heard a moment ago, does not stop, has
    /// room for puts, and takes part.
    pub(crate) fn may_lead(&self, now_ms: u64, store: u64) -> bool {
        let goes = |known: &StoreInfo| {
            let StoreStanding { is_draining, is_leaving, is_lost, .. } = known.standing;
            known.is_stopping || known.is_full || is_draining || is_leaving || is_lost
        };
        !self.stores.get(&store).is_none_or(goes) && !self.is_silent(now_ms, store)
    }

    /// The region that holds `key`.
    #[must_use]
    pub fn locate(&self, now_ms: u64, key: &[u8]) -> Option<RegionRoute<'_>> {
        self.routes.locate(key).map(|region| self.route(now_ms, region))
    }

    /// The region before the one that holds `key`.
    #[must_use]
    pub fn before(&self, now_ms: u64, key: &[u8]) -> Option<RegionRoute<'_>> {
        self.routes.before(key).map(|region| self.route(now_ms, region))
    }

    /// The region of this id.
    #[must_use]
    pub fn region(&self, now_ms: u64, id: u64) -> Option<RegionRoute<'_>> {
        self.routes.get(id).map(|region| self.route(now_ms, region))
    }

    /// The regions that hold a part of `[start, end)`, in order; an empty `end` is no end.
    pub fn scan(
        &self,
        now_ms: u64,
        start: &[u8],
        end: &[u8],
    ) -> impl Iterator<Item = RegionRoute<'_>> {
        self.routes.scan(start, end).map(move |region| self.route(now_ms, region))
    }

    /// The first key without a region, as far as it is known; `None` if all keys have one.
    pub(crate) fn first_hole(&self) -> Option<Vec<u8>> {
        let mut end: Option<&[u8]> = Some(b"");
        for region in self.routes.scan(b"", b"") {
            if end != Some(region.start.as_slice()) {
                break;
            }
            end = Some(region.end.as_slice()).filter(|end| !end.is_empty());
        }
        end.map(<[u8]>::to_vec)
    }

    /// The store of this id.
    #[must_use]
    pub fn store(&self, id: u64) -> Option<&StoreInfo> {
        self.stores.get(&id)
    }

    /// All stores, by id.
    pub fn stores(&self) -> impl Iterator<Item = &StoreInfo> {
        self.stores.values()
    }

    /// The replicas of `region` whose stores have been silent for long, and for how long.
    pub fn down<'a>(
        &'a self,
        now_ms: u64,
        region: &'a RegionInfo,
    ) -> impl Iterator<Item = (ReplicaInfo, u64)> + 'a {
        region.replicas.iter().filter_map(move |replica| {
            // A store that this leader of placement has not heard yet has no known length of
            // silence.
            let silent_ms = now_ms.saturating_sub(self.stores.get(&replica.store)?.heard_ms?);
            (silent_ms >= self.config.down_ms).then_some((*replica, silent_ms))
        })
    }

    fn route<'a>(&self, now_ms: u64, region: &'a RegionInfo) -> RegionRoute<'a> {
        let leader = self.leaders.get(&region.id).and_then(|claim| claim.leader);
        let leader_status = match leader {
            None => LeaderStatus::Unknown,
            Some(leader) if self.is_silent(now_ms, leader.store) => LeaderStatus::Suspect,
            Some(_) => LeaderStatus::Fresh,
        };
        RegionRoute { region, leader, leader_status }
    }

    fn is_silent(&self, now_ms: u64, store: u64) -> bool {
        let heard_ms = self.stores.get(&store).and_then(|store| store.heard_ms);
        // A store may be named as a leader by another one before it has spoken itself: that is no
        // fresh word.
        heard_ms.is_none_or(|heard_ms| now_ms.saturating_sub(heard_ms) >= self.config.suspect_ms)
    }

    fn update_leader(&mut self, store: u64, heartbeat: &RegionHeartbeat) -> bool {
        let new = LeaderClaim { term: heartbeat.term, leader: heartbeat.leader };
        let Some(known) = self.leaders.get_mut(&heartbeat.region.id) else {
            self.leaders.insert(heartbeat.region.id, new);
            return true;
        };
        // Within a term there is one leader, so a name outweighs none, unless the named leader
        // itself reports none: it has stepped down.
        let stepped_down = known.leader.is_some_and(|leader| leader.store == store);
        let newer = new.term > known.term
            || (new.term == known.term
                && match (known.leader, new.leader) {
                    (None, Some(_)) => true,
                    (Some(_), None) => stepped_down,
                    _ => false,
                });
        // An older claim may be the newest that its store knows: heartbeats of followers lag
        // behind.
        if newer {
            *known = new;
        }
        newer
    }
}

#[cfg(test)]
mod tests;
