//! The repairer: decides which stores should have the replicas of each region, and hands out the
//! steps that bring them there.
//!
//! A region has the largest odd number of replicas that the setting and the stores allow, each on a
//! store of its own, in zones of their own as far as there are some. Changes are made for a reason,
//! the most urgent first ([`RepairReason`]), and the region of placement before all others. A
//! region has one operator at a time, and no store more than a few snapshots on their way in each
//! direction. Counts of replicas are evened out when nothing else is to be done.
//!
//! Nothing is kept across a term: the checks find a half-moved region again and finish it
//! (`docs/decisions/0038-replicas-are-repaired-by-what-is-seen.md`).
//!
//! Nothing is decided in the first seconds of a term: stores that have not reported seem to be
//! silent, and their regions unled.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster_view::{ClusterView, LeaderStatus, RegionRoute, StoreInfo};
use crate::replica_plan::MembershipStep;
use crate::route_table::{RegionInfo, ReplicaInfo};
use asked_change::AskedChange;
pub use asked_change::RepairRefusal;
pub use limits::RepairLimits;
pub use operator_table::OperatorState;
use operator_table::OperatorTable;
use region_operator::{RegionOperator, Turn, TurnLimits};
pub use replica_choice::RepairReason;
use replica_choice::{ReplicaCount, choose, stages};
pub use store_exit::ExitRefusal;
use store_exit::{check_drain, check_leave};
use store_figures::StoreFigures;

mod asked_change;
mod limits;
mod operator_table;
mod region_operator;
mod replica_balance;
mod replica_choice;
mod store_exit;
mod store_figures;

/// A step that placement asks the leader of a region for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStep {
    /// The region.
    pub region: u64,
    /// The store that leads it.
    pub from_store: u64,
    /// The version of its replicas that the step is for.
    pub conf_version: u64,
    /// The change.
    pub step: MembershipStep,
}

/// The answer of a store to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAnswer {
    /// It is carried out, or was not yet possible: it is asked for again.
    Later(String),
    /// It cannot be done.
    Refused(String),
}

/// A store that is emptied leaves so many replicas of a region at least, unless fewer are set.
const LEAST: usize = 3;

/// The state of repair in one term of placement.
#[derive(Clone, Debug)]
pub struct Repairer {
    limits: RepairLimits,
    replicas: usize,
    is_paused: bool,
    since_ms: Option<u64>,
    /// Since when stores have been silent.
    silent_since: BTreeMap<u64, u64>,
    operators: OperatorTable,
    /// Regions that were moved for balance, and when.
    moved_ms: BTreeMap<u64, u64>,
}

type Routes<'a> = BTreeMap<u64, RegionRoute<'a>>;

impl Repairer {
    /// Repair in a term that begins. `replicas` is the setting.
    #[must_use]
    pub fn new(limits: RepairLimits, replicas: usize) -> Self {
        Self {
            limits,
            replicas,
            is_paused: false,
            since_ms: None,
            silent_since: BTreeMap::new(),
            operators: OperatorTable::default(),
            moved_ms: BTreeMap::new(),
        }
    }

    /// Begins nothing by itself any more, or again. Operators that it has begun by itself end: a
    /// joint configuration is left by the region.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
        if is_paused {
            self.operators.keep_asked();
        }
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The number of replicas that a region has where there are as many stores.
    pub fn set_replicas(&mut self, replicas: usize) {
        self.replicas = replicas;
    }

    /// The number of replicas that a region has where there are as many stores.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// The regions whose replicas are being changed, and why.
    pub fn under_way(&self) -> impl Iterator<Item = (u64, RepairReason)> {
        self.operators.iter().map(|(region, operator)| (region, operator.reason))
    }

    /// How far the last operator of a region is.
    #[must_use]
    pub fn state(&self, region: u64) -> Option<OperatorState> {
        self.operators.state(region)
    }

    /// The steps to be asked for now. `here` is the store that leads the region of placement.
    /// Linear in the number of regions.
    pub fn propose(&mut self, now_ms: u64, view: &ClusterView, here: u64) -> Vec<ReplicaStep> {
        let RepairLimits { settle_ms, retry_ms, rest_ms, .. } = self.limits;
        self.note_silence(now_ms, view);
        self.operators.forget_failures(now_ms, retry_ms);
        self.moved_ms.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < rest_ms);
        let routes = routes(now_ms, view, here);
        let mut steps = self.turn_all(now_ms, view, &routes);
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        if !self.is_paused && now_ms.saturating_sub(since_ms) >= settle_ms {
            self.check(now_ms, view, &routes);
            steps.extend(self.turn_all(now_ms, view, &routes));
        }
        steps
    }

    /// Takes the answer of the store that leads `region` to the step that it was asked for.
    pub fn answer(&mut self, now_ms: u64, region: u64, answer: StepAnswer) {
        match answer {
            StepAnswer::Later(note) => self.operators.note(region, note),
            StepAnswer::Refused(why) => self.operators.end(now_ms, region, Err(why)),
        }
    }

    /// Begins a change that an operator asks for: replicas on `added`, none on `removed`.
    ///
    /// # Errors
    ///
    /// Why not. Nothing has changed then.
    pub fn begin(
        &mut self,
        now_ms: u64,
        view: &ClusterView,
        here: u64,
        region: u64,
        (added, removed): (&[u64], &[u64]),
    ) -> Result<(), RepairRefusal> {
        let routes = routes(now_ms, view, here);
        let route = routes.get(&region).ok_or(RepairRefusal::UnknownRegion(region))?;
        if let Some(operator) = self.operators.get(region) {
            return Err(RepairRefusal::UnderWay(region, operator.reason.words()));
        }
        leader(route).ok_or(RepairRefusal::NoLeader(region))?;
        let stores = self.figures(now_ms, view, &routes);
        let setting = self.count(region, view).setting;
        let asked = AskedChange { added, removed, is_any_count: self.is_paused };
        let way = asked.stages(route.region, setting, &stores)?;
        let ends_ms = now_ms.saturating_add(self.limits.operator_ms);
        self.operators.begin(route.region, way, RepairReason::Asked, ends_ms);
        Ok(())
    }

    /// Whether a refusal may be one because this term is young: stores have not reported yet.
    #[must_use]
    pub fn may_pass(&self, now_ms: u64, refusal: &RepairRefusal) -> bool {
        self.is_young(now_ms) && refusal.rests_on_reports()
    }

    /// Whether stores may not have reported yet in this term.
    #[must_use]
    pub fn is_young(&self, now_ms: u64) -> bool {
        now_ms < self.limits.settle_ms
    }

    /// Checks that leaders of `store` can go elsewhere, for it is to be drained.
    ///
    /// # Errors
    ///
    /// Why they cannot.
    pub fn check_drain(
        &self,
        now_ms: u64,
        view: &ClusterView,
        store: u64,
    ) -> Result<(), ExitRefusal> {
        check_drain(&self.figures(now_ms, view, &Routes::new()), store)
    }

    /// Checks that regions keep their number of replicas without `store`, for it is to leave.
    ///
    /// # Errors
    ///
    /// Why they would not.
    pub fn check_leave(
        &self,
        now_ms: u64,
        view: &ClusterView,
        store: u64,
    ) -> Result<(), ExitRefusal> {
        if self.is_paused {
            return Err(ExitRefusal::Paused);
        }
        let regions = view.scan(now_ms, b"", b"").map(|route| route.region).chain(view.system());
        check_leave(&self.figures(now_ms, view, &Routes::new()), regions, store, self.replicas)
    }

    /// The stores that leave and have nothing more to do here: no region lists them, no operator
    /// names them, and they say themselves that they have no replica, or say nothing any more. None
    /// in a young term: a step of the last one may be on its way.
    #[must_use]
    pub fn emptied(&self, now_ms: u64, view: &ClusterView, here: u64) -> Vec<u64> {
        let routes = routes(now_ms, view, here);
        // A region that is not known may have a replica there.
        let has_leaders = routes.values().all(|route| leader(route).is_some());
        let is_whole = view.system().is_some() && view.first_hole().is_none() && has_leaders;
        if self.is_young(now_ms) || !is_whole {
            return vec![];
        }
        let leaving = view.stores().filter(|store| store.standing.is_leaving);
        let silent = self.silent(now_ms, self.limits.target_silent_ms);
        let is_empty = |store: &&StoreInfo| {
            let is_listed = routes.values().any(|route| route.region.on(store.id).is_some());
            let has_none = store.replicas == Some(0) || silent.contains(&store.id);
            has_none && !is_listed && !self.operators.names(store.id)
        };
        leaving.filter(is_empty).map(|store| store.id).collect()
    }

    fn note_silence(&mut self, now_ms: u64, view: &ClusterView) {
        for store in view.stores() {
            if view.is_live(now_ms, store.id) {
                self.silent_since.remove(&store.id);
            } else {
                self.silent_since.entry(store.id).or_insert(now_ms);
            }
        }
    }

    /// The stores that have been silent for `least_ms`.
    fn silent(&self, now_ms: u64, least_ms: u64) -> BTreeSet<u64> {
        let silent = self.silent_since.iter();
        let long = silent.filter(|(_, since_ms)| now_ms.saturating_sub(**since_ms) >= least_ms);
        long.map(|(store, _)| *store).collect()
    }

    fn figures(&self, now_ms: u64, view: &ClusterView, routes: &Routes<'_>) -> StoreFigures {
        let down = self.silent(now_ms, self.limits.down_ms);
        let mut stores = StoreFigures::new(now_ms, view, &down);
        for (id, route) in routes {
            let operator = self.operators.get(*id);
            stores.count(route.region, operator.and_then(RegionOperator::wanted));
            let leader = route.leader.map_or(0, |leader| leader.store);
            if let Some(stage) = operator.and_then(RegionOperator::stage) {
                stores.count_snapshots(route.region, leader, stage);
            }
        }
        stores
    }

    /// How many replicas a region should have.
    fn count(&self, region: u64, view: &ClusterView) -> ReplicaCount {
        let is_system = view.system().is_some_and(|system| system.id == region);
        let system_replicas = if is_system { self.limits.system_replicas } else { 0 };
        let setting = self.replicas.max(system_replicas);
        // A cluster set to one replica may go back to one store, that of placement too.
        ReplicaCount { setting, least: self.replicas.min(LEAST) }
    }

    /// Lets each operator take its turn.
    fn turn_all(
        &mut self,
        now_ms: u64,
        view: &ClusterView,
        routes: &Routes<'_>,
    ) -> Vec<ReplicaStep> {
        let able = self.figures(now_ms, view, routes).able();
        let silent = self.silent(now_ms, self.limits.target_silent_ms);
        let RepairLimits { step_ms, snapshots_max, .. } = self.limits;
        let mut sending = self.sending(routes);
        let (mut steps, mut ends) = (vec![], vec![]);
        for (id, operator) in self.operators.iter_mut() {
            let Some(route) = routes.get(&id) else {
                ends.push((id, Err("the region is gone".to_owned())));
                continue;
            };
            let voters = route.region.voting_stores();
            let new = operator.stage().into_iter().flatten();
            if let Some(store) = new.copied().find(|at| !voters.contains(at) && silent.contains(at))
            {
                ends.push((id, Err(format!("store {store} does not answer"))));
                continue;
            }
            let leader = leader(route);
            let from_store = leader.map_or(0, |leader| leader.store);
            let sent = sending.entry(from_store).or_insert(0);
            let limits = TurnLimits { step_ms, may_send: *sent < snapshots_max };
            match operator.turn(now_ms, route.region, leader, &able, limits) {
                Turn::Wait => {}
                Turn::Give(step) => {
                    *sent += usize::from(matches!(step, MembershipStep::Add { .. }));
                    let (region, conf_version) = (id, route.region.conf_version);
                    steps.push(ReplicaStep { region, from_store, conf_version, step });
                }
                Turn::Done => ends.push((id, Ok(()))),
                Turn::Failed(why) => ends.push((id, Err(why))),
            }
        }
        for (region, end) in ends {
            self.operators.end(now_ms, region, end);
        }
        steps
    }

    /// How many regions each store sends the data of, about.
    fn sending(&self, routes: &Routes<'_>) -> BTreeMap<u64, usize> {
        let mut sending = BTreeMap::new();
        for (id, operator) in self.operators.iter() {
            let Some(route) = routes.get(&id) else { continue };
            if let Some(leader) = leader(route).filter(|_| operator.is_sending(route.region)) {
                *sending.entry(leader.store).or_insert(0) += 1;
            }
        }
        sending
    }

    /// Begins what is to be done, the most urgent first.
    fn check(&mut self, now_ms: u64, view: &ClusterView, routes: &Routes<'_>) {
        let mut stores = self.figures(now_ms, view, routes);
        let system = view.system().map(|system| system.id);
        let mut wishes = vec![];
        for (id, route) in routes {
            let Some(leader) = leader(route) else { continue };
            if !self.operators.is_free(*id) {
                continue;
            }
            let count = self.count(*id, view);
            if let Some(choice) = choose(route.region, leader.store, count, &stores) {
                wishes.push((system != Some(*id), choice.reason, *id, leader.store));
            }
        }
        wishes.sort_unstable();
        let is_repair = |id: u64| {
            self.operators.get(id).is_some_and(|operator| operator.reason != RepairReason::Asked)
        };
        let system_first = system.is_some_and(|id| {
            is_repair(id) || wishes.first().is_some_and(|(is_other, ..)| !is_other)
        });
        let is_calm = wishes.is_empty();
        for (_, _, id, leader) in wishes {
            // All else rests on the region of placement.
            if system_first && system != Some(id) {
                continue;
            }
            let region = routes[&id].region;
            // Again, for each operator that was begun changes the counts.
            let count = self.count(id, view);
            let Some(choice) = choose(region, leader, count, &stores) else { continue };
            self.start(now_ms, region, leader, (choice.wanted, choice.reason), &mut stores);
        }
        // Else the counts are not those of all replicas.
        if is_calm && !system_first && view.first_hole().is_none() {
            self.balance(now_ms, routes, system, &mut stores);
        }
    }

    /// Begins an operator if the limits allow it, and counts it. True if it was begun.
    fn start(
        &mut self,
        now_ms: u64,
        region: &RegionInfo,
        leader: u64,
        (wanted, reason): (BTreeSet<u64>, RepairReason),
        stores: &mut StoreFigures,
    ) -> bool {
        let Some(way) = stages(region, &wanted, stores) else { return false };
        let RepairLimits { snapshots_max, operators_max, operator_ms, .. } = self.limits;
        let has_room = stores.has_room(region, leader, &way[0], snapshots_max);
        if !has_room || self.operators.len() >= operators_max {
            return false;
        }
        stores.count_snapshots(region, leader, &way[0]);
        let held: BTreeSet<u64> = region.replicas.iter().map(|at| at.store).collect();
        stores.move_replicas(&held, &wanted);
        let ends_ms = now_ms.saturating_add(operator_ms);
        self.operators.begin(region, way, reason, ends_ms);
        true
    }

    /// Moves replicas from stores that have many to such that have few.
    fn balance(
        &mut self,
        now_ms: u64,
        routes: &Routes<'_>,
        system: Option<u64>,
        stores: &mut StoreFigures,
    ) {
        loop {
            let is_free = |id: &u64| {
                system != Some(*id)
                    && self.operators.is_free(*id)
                    && !self.moved_ms.contains_key(id)
            };
            let free = routes.iter().filter(|(id, _)| is_free(id));
            let led = free.filter_map(|(_, route)| Some((route.region, leader(route)?.store)));
            let snapshots_max = self.limits.snapshots_max;
            let Some(found) = replica_balance::next_move(led, stores, snapshots_max) else {
                return;
            };
            let (region, leader, wanted) = found;
            if !self.start(now_ms, region, leader, (wanted, RepairReason::Balance), stores) {
                return;
            }
            self.moved_ms.insert(region.id, now_ms);
        }
    }
}

/// All regions with their leaders. That of placement is led here, whatever is reported of it.
fn routes<'a>(now_ms: u64, view: &'a ClusterView, here: u64) -> Routes<'a> {
    let mut routes: Routes<'a> =
        view.scan(now_ms, b"", b"").map(|route| (route.region.id, route)).collect();
    if let Some(region) = view.system() {
        let (leader, leader_status) = (region.on(here), LeaderStatus::Fresh);
        routes.insert(region.id, RegionRoute { region, leader, leader_status });
    }
    routes
}

fn leader(route: &RegionRoute<'_>) -> Option<ReplicaInfo> {
    let leader = route.leader.filter(|_| route.leader_status == LeaderStatus::Fresh)?;
    // The report of a leader may be older than the region's version.
    route.region.replicas.iter().copied().find(|replica| replica.id == leader.id)
}

#[cfg(test)]
mod tests;
