//! Stores, regions and leaders as the stores report them.
//!
//! The truth about a region is in its own raft group; what is here is hearsay, good enough to find
//! the way. Of two claims about a region's leader the one of the higher term is right. A leader is
//! trusted as long as its own store is heard; a store that falls silent, or whose connection
//! breaks, makes its leaders doubtful, and who asks for them does well to wait a moment for a
//! fresher claim.

use crate::routes::{Region, Replica, Routes};
use std::collections::{BTreeMap, BTreeSet};

/// How long silence is taken lightly.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// After so long without a word from a store its leaders are doubtful. Milliseconds; must be
    /// more than the interval of the reports.
    pub doubt_ms: u64,
    /// After so long its replicas are named as down. Milliseconds.
    pub down_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { doubt_ms: 1_500, down_ms: 20_000 }
    }
}

/// One store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Its id.
    pub id: u64,
    /// Its name in the initial cluster.
    pub name: String,
    /// Where it listens, `host:port`.
    pub address: String,
    /// When it was heard last; `None` if never by this leader.
    pub heard_ms: Option<u64>,
}

/// What one replica knows of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The region as this replica has it.
    pub region: Region,
    /// The replica's term.
    pub term: u64,
    /// Whom it takes for the leader of this term.
    pub leader: Option<Replica>,
}

/// How far the word about a leader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its store was heard just now.
    Fresh,
    /// Its store has fallen silent; there may be another leader by now.
    Doubtful,
    /// No leader is known.
    Leaderless,
}

/// The answer to the question where a key is.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// The region.
    pub region: &'a Region,
    /// Its leader, if one is known.
    pub leader: Option<Replica>,
    /// What that is worth.
    pub trust: Trust,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    term: u64,
    leader: Option<Replica>,
}

/// Everything that is known about the cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    config: Config,
    stores: BTreeMap<u64, Store>,
    routes: Routes,
    claims: BTreeMap<u64, Claim>,
}

impl Cluster {
    /// A cluster of these stores, none of which was heard yet.
    #[must_use]
    pub fn new(config: Config, stores: impl IntoIterator<Item = Store>) -> Self {
        let stores = stores.into_iter().map(|store| (store.id, store)).collect();
        Self { config, stores, routes: Routes::default(), claims: BTreeMap::new() }
    }

    /// Takes in what a store reports. True if a route or a leader changed, or a doubt ended: who
    /// waits for either should look again. A store that is not of the cluster is not believed.
    ///
    /// A `full` report names every region that the store leads: it leads no other.
    pub fn hear(&mut self, now_ms: u64, store: u64, sightings: &[Sighting], full: bool) -> bool {
        let doubted = self.is_silent(now_ms, store);
        let Some(known) = self.stores.get_mut(&store) else {
            return false;
        };
        known.heard_ms = Some(now_ms);
        let mut changed = doubted;
        for sighting in sightings {
            changed |= self.routes.learn(&sighting.region);
            changed |= self.claim(store, sighting);
        }
        if full {
            let named: BTreeSet<u64> = sightings.iter().map(|named| named.region.id).collect();
            for (region, claim) in &mut self.claims {
                let leads = claim.leader.is_some_and(|leader| leader.store == store);
                if leads && !named.contains(region) {
                    claim.leader = None;
                }
            }
        }
        changed
    }

    /// Takes over what the registry says of a store: it may be new, or have moved.
    pub fn learn_store(&mut self, id: u64, name: &str, address: &str) {
        let store = self.stores.entry(id).or_insert_with(|| Store { id, ..Store::default() });
        name.clone_into(&mut store.name);
        address.clone_into(&mut store.address);
    }

    /// Notes that the connection to a store broke: its leaders are doubtful until it is heard.
    pub fn lose(&mut self, store: u64) {
        if let Some(store) = self.stores.get_mut(&store) {
            store.heard_ms = None;
        }
    }

    /// The region that holds `key`.
    #[must_use]
    pub fn locate(&self, now_ms: u64, key: &[u8]) -> Option<Route<'_>> {
        self.routes.locate(key).map(|region| self.route(now_ms, region))
    }

    /// The region before the one that holds `key`.
    #[must_use]
    pub fn before(&self, now_ms: u64, key: &[u8]) -> Option<Route<'_>> {
        self.routes.before(key).map(|region| self.route(now_ms, region))
    }

    /// The region of this id.
    #[must_use]
    pub fn region(&self, now_ms: u64, id: u64) -> Option<Route<'_>> {
        self.routes.get(id).map(|region| self.route(now_ms, region))
    }

    /// The regions that hold a part of `[start, end)`, in order; an empty `end` is no end.
    pub fn scan(&self, now_ms: u64, start: &[u8], end: &[u8]) -> impl Iterator<Item = Route<'_>> {
        self.routes.scan(start, end).map(move |region| self.route(now_ms, region))
    }

    /// The store of this id.
    #[must_use]
    pub fn store(&self, id: u64) -> Option<&Store> {
        self.stores.get(&id)
    }

    /// All stores, by id.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.stores.values()
    }

    /// The replicas of `region` whose stores have been silent for long, and for how long.
    pub fn down<'a>(
        &'a self,
        now_ms: u64,
        region: &'a Region,
    ) -> impl Iterator<Item = (Replica, u64)> + 'a {
        region.replicas.iter().filter_map(move |replica| {
            let silent_ms = now_ms.saturating_sub(self.stores.get(&replica.store)?.heard_ms?);
            (silent_ms >= self.config.down_ms).then_some((*replica, silent_ms))
        })
    }

    fn route<'a>(&self, now_ms: u64, region: &'a Region) -> Route<'a> {
        let leader = self.claims.get(&region.id).and_then(|claim| claim.leader);
        let trust = match leader {
            None => Trust::Leaderless,
            Some(leader) if self.is_silent(now_ms, leader.store) => Trust::Doubtful,
            Some(_) => Trust::Fresh,
        };
        Route { region, leader, trust }
    }

    fn is_silent(&self, now_ms: u64, store: u64) -> bool {
        let heard_ms = self.stores.get(&store).and_then(|store| store.heard_ms);
        heard_ms.is_none_or(|heard_ms| now_ms.saturating_sub(heard_ms) >= self.config.doubt_ms)
    }

    fn claim(&mut self, store: u64, sighting: &Sighting) -> bool {
        let new = Claim { term: sighting.term, leader: sighting.leader };
        let Some(known) = self.claims.get_mut(&sighting.region.id) else {
            self.claims.insert(sighting.region.id, new);
            return true;
        };
        // Within a term there is one leader, so a name outweighs none, unless the one who is
        // named says so: it has stepped down.
        let stepped_down = known.leader.is_some_and(|leader| leader.store == store);
        let newer = new.term > known.term
            || (new.term == known.term
                && match (known.leader, new.leader) {
                    (None, Some(_)) => true,
                    (Some(_), None) => stepped_down,
                    _ => false,
                });
        if newer {
            *known = new;
        }
        newer
    }
}

#[cfg(test)]
mod tests;
