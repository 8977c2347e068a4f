//! The repairer: decides which stores should have the replicas of each region, and hands out the
//! steps that bring them there.
//!
//! A region has the largest odd number of replicas that the setting and the stores allow, each on a
//! store of its own, in zones of their own as far as there are some. Changes are made for a reason,
//! the most urgent first ([`RepairReason`]), and the region of placement before all others. A
//! region has one operator at a time, and no store more than a few snapshots on their way in each
//! direction. Counts of replicas are evened out when nothing else is to be done.
//!
//! Nothing is kept across a term: the checks find a half-moved region again and finish it.
//!
//! Nothing is decided in the first seconds of a term: stores that have not reported seem to be
//! silent, and their regions unled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cluster_view::{ClusterView, LeaderStatus, RegionRoute};
use crate::replica_plan::{MembershipStep, NEW_REPLICAS_MAX};
use crate::route_table::{RegionInfo, ReplicaInfo};
use region_operator::{RegionOperator, Turn, TurnLimits};
pub use replica_choice::RepairReason;
use replica_choice::{choose, stages, target_count};
use store_figures::StoreFigures;

mod region_operator;
mod replica_balance;
mod replica_choice;
mod store_figures;

/// Ends of operators that are remembered.
const ENDED_MAX: usize = 1_024;

/// Bounds of repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairLimits {
    /// Nothing is begun before this time of a term. Milliseconds.
    pub settle_ms: u64,
    /// A store that was silent for so long is replaced. Milliseconds.
    pub down_ms: u64,
    /// A store that was silent for so long gets no replica that is on its way. Milliseconds.
    pub target_silent_ms: u64,
    /// A step is asked for again after this time. Milliseconds.
    pub step_ms: u64,
    /// An operator is given up after this time. Milliseconds.
    pub operator_ms: u64,
    /// No operator for a region within this time after one that has failed. Milliseconds.
    pub retry_ms: u64,
    /// No second move of a region for balance within this time. Milliseconds.
    pub rest_ms: u64,
    /// Snapshots on their way into a store, and out of one.
    pub snapshots_max: usize,
    /// Operators under way.
    pub operators_max: usize,
    /// Replicas of the region of placement, as far as there are stores.
    pub system_replicas: usize,
}

impl Default for RepairLimits {
    fn default() -> Self {
        Self {
            settle_ms: 10_000,
            down_ms: 300_000,
            target_silent_ms: 30_000,
            step_ms: 2_000,
            operator_ms: 600_000,
            retry_ms: 5_000,
            rest_ms: 600_000,
            snapshots_max: 2,
            operators_max: 2_048,
            system_replicas: 5,
        }
    }
}

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

/// How far the last operator of a region is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorState {
    /// It goes on.
    UnderWay {
        /// Its reason.
        reason: RepairReason,
        /// Why the present step is not done yet, if its store has said so.
        note: String,
    },
    /// The region has the replicas that it should have.
    Done,
    /// It was given up.
    Failed(String),
}

/// Why a change by hand is not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairRefusal {
    /// Placement knows no such region.
    #[error("there is no region {0} that placement knows")]
    UnknownRegion(u64),
    /// It has no leader now.
    #[error("region {0} has no leader")]
    NoLeader(u64),
    /// One operator a region.
    #[error("the replicas of region {0} are being changed: {1}")]
    UnderWay(u64, &'static str),
    /// It has a replica there.
    #[error("store {0} has a replica of it")]
    HasReplica(u64),
    /// It has none there.
    #[error("store {0} has no replica of it")]
    NoReplica(u64),
    /// The store is not of the cluster, or is lost.
    #[error("there is no store {0}")]
    UnknownStore(u64),
    /// The store does not answer, stops, or is being emptied.
    #[error("store {0} takes no replicas now: it does not answer, stops, or is to be emptied")]
    NoTarget(u64),
    /// It would have another number than it should.
    #[error(
        "that is against the replica count: {after} replicas, and the region should have {target}. \
         Repair would undo it: pause repair first"
    )]
    ReplicaCount {
        /// How many it would have.
        after: usize,
        /// How many it should have.
        target: usize,
    },
    /// A group of two stops when either dies.
    #[error("a region of two replicas stops when either dies: it has one, three, or more")]
    Two,
    /// Too many at a time.
    #[error("at most {NEW_REPLICAS_MAX} replicas are added at a time, and one stays")]
    TooMany,
    /// The only replica goes over a group of three, for which a third store is missing.
    #[error(
        "the only replica of a region is moved over a group of three: a third store is missing"
    )]
    NoThirdStore,
}

/// The state of repair in one term of placement.
#[derive(Clone, Debug)]
pub struct Repairer {
    limits: RepairLimits,
    replicas: usize,
    is_paused: bool,
    since_ms: Option<u64>,
    /// Since when stores have been silent.
    silent_since: BTreeMap<u64, u64>,
    operators: BTreeMap<u64, RegionOperator>,
    /// Regions whose last operator has failed, and when.
    failed_ms: BTreeMap<u64, u64>,
    /// Regions that were moved for balance, and when.
    moved_ms: BTreeMap<u64, u64>,
    /// The last ends, the newest last.
    ended: VecDeque<(u64, Result<(), String>)>,
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
            operators: BTreeMap::new(),
            failed_ms: BTreeMap::new(),
            moved_ms: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// Begins nothing by itself any more, or again. What was begun by itself ends: a joint
    /// configuration is left by the region.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
        if is_paused {
            self.operators.retain(|_, operator| operator.reason == RepairReason::Asked);
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
        self.operators.iter().map(|(region, operator)| (*region, operator.reason))
    }

    /// How far the last operator of a region is.
    #[must_use]
    pub fn state(&self, region: u64) -> Option<OperatorState> {
        if let Some(RegionOperator { reason, note, .. }) = self.operators.get(&region) {
            return Some(OperatorState::UnderWay { reason: *reason, note: note.clone() });
        }
        let (_, end) = self.ended.iter().rev().find(|(ended, _)| *ended == region)?;
        Some(match end {
            Ok(()) => OperatorState::Done,
            Err(why) => OperatorState::Failed(why.clone()),
        })
    }

    /// The steps to be asked for now. `here` is the store that leads the region of placement.
    /// Linear in the number of regions.
    pub fn propose(&mut self, now_ms: u64, view: &ClusterView, here: u64) -> Vec<ReplicaStep> {
        let RepairLimits { settle_ms, retry_ms, rest_ms, .. } = self.limits;
        self.note_silence(now_ms, view);
        self.failed_ms.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < retry_ms);
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
            StepAnswer::Later(note) => {
                if let Some(operator) = self.operators.get_mut(&region) {
                    operator.note = note;
                }
            }
            StepAnswer::Refused(why) => self.end(now_ms, region, Err(why)),
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
        if let Some(operator) = self.operators.get(&region) {
            return Err(RepairRefusal::UnderWay(region, operator.reason.words()));
        }
        leader(route).ok_or(RepairRefusal::NoLeader(region))?;
        let stores = self.figures(now_ms, view, &routes);
        let held: BTreeSet<u64> = route.region.replicas.iter().map(|at| at.store).collect();
        let voters = route.region.voting_stores();
        let mut wanted = voters.clone();
        for store in added {
            let figure = stores.get(*store).ok_or(RepairRefusal::UnknownStore(*store))?;
            if held.contains(store) && voters.contains(store) {
                return Err(RepairRefusal::HasReplica(*store));
            }
            if !figure.is_target {
                return Err(RepairRefusal::NoTarget(*store));
            }
            wanted.insert(*store);
        }
        for store in removed {
            if !held.contains(store) {
                return Err(RepairRefusal::NoReplica(*store));
            }
            wanted.remove(store);
        }
        let setting = self.setting(region, view);
        let target = target_count(voters.len(), setting, stores.sound_count());
        let after = wanted.len();
        if after == 2 && voters.len() != 2 {
            return Err(RepairRefusal::Two);
        }
        let is_many = wanted.difference(&voters).count() > NEW_REPLICAS_MAX;
        if after == 0 || is_many {
            return Err(RepairRefusal::TooMany);
        }
        if after != voters.len() && after != target && !self.is_paused {
            return Err(RepairRefusal::ReplicaCount { after, target });
        }
        let way = stages(route.region, &wanted, &stores);
        let way = way.ok_or(match voters.len() {
            1 => RepairRefusal::NoThirdStore,
            _ => RepairRefusal::TooMany,
        })?;
        let ends_ms = now_ms.saturating_add(self.limits.operator_ms);
        let operator = RegionOperator::new(route.region, way, RepairReason::Asked, ends_ms);
        self.operators.insert(region, operator);
        Ok(())
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
            let operator = self.operators.get(id);
            stores.count(route.region, operator.and_then(RegionOperator::wanted));
            let leader = route.leader.map_or(0, |leader| leader.store);
            if let Some(stage) = operator.and_then(RegionOperator::stage) {
                stores.count_snapshots(route.region, leader, stage);
            }
        }
        stores
    }

    /// How many replicas a region should have where there are as many stores.
    fn setting(&self, region: u64, view: &ClusterView) -> usize {
        let is_system = view.system().is_some_and(|system| system.id == region);
        if is_system { self.replicas.max(self.limits.system_replicas) } else { self.replicas }
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
        for (id, operator) in &mut self.operators {
            let Some(route) = routes.get(id) else {
                ends.push((*id, Err("the region is gone".to_owned())));
                continue;
            };
            let voters = route.region.voting_stores();
            let new = operator.stage().into_iter().flatten();
            if let Some(store) = new.copied().find(|at| !voters.contains(at) && silent.contains(at))
            {
                ends.push((*id, Err(format!("store {store} does not answer"))));
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
                    let (region, conf_version) = (*id, route.region.conf_version);
                    steps.push(ReplicaStep { region, from_store, conf_version, step });
                }
                Turn::Done => ends.push((*id, Ok(()))),
                Turn::Failed(why) => ends.push((*id, Err(why))),
            }
        }
        for (region, end) in ends {
            self.end(now_ms, region, end);
        }
        steps
    }

    /// How many regions each store sends the data of, about.
    fn sending(&self, routes: &Routes<'_>) -> BTreeMap<u64, usize> {
        let mut sending = BTreeMap::new();
        for (id, operator) in &self.operators {
            let Some(route) = routes.get(id) else { continue };
            if let Some(leader) = leader(route).filter(|_| operator.is_sending(route.region)) {
                *sending.entry(leader.store).or_insert(0) += 1;
            }
        }
        sending
    }

    fn end(&mut self, now_ms: u64, region: u64, end: Result<(), String>) {
        if self.operators.remove(&region).is_none() {
            return;
        }
        if end.is_err() {
            self.failed_ms.insert(region, now_ms);
        }
        self.ended.retain(|(ended, _)| *ended != region);
        self.ended.push_back((region, end));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    /// Begins what is to be done, the most urgent first.
    fn check(&mut self, now_ms: u64, view: &ClusterView, routes: &Routes<'_>) {
        let mut stores = self.figures(now_ms, view, routes);
        let system = view.system().map(|system| system.id);
        let mut wishes = vec![];
        for (id, route) in routes {
            let Some(leader) = leader(route) else { continue };
            if self.operators.contains_key(id) || self.failed_ms.contains_key(id) {
                continue;
            }
            let setting = self.setting(*id, view);
            if let Some(choice) = choose(route.region, leader.store, setting, &stores) {
                wishes.push((system != Some(*id), choice.reason, *id, leader.store));
            }
        }
        wishes.sort_unstable();
        let is_repair = |id: &u64| {
            self.operators.get(id).is_some_and(|operator| operator.reason != RepairReason::Asked)
        };
        let system_first = system.is_some_and(|id| {
            is_repair(&id) || wishes.first().is_some_and(|(is_other, ..)| !is_other)
        });
        let is_calm = wishes.is_empty();
        for (_, _, id, leader) in wishes {
            // All else rests on the region of placement.
            if system_first && system != Some(id) {
                continue;
            }
            let region = routes[&id].region;
            // Again, for each operator that was begun changes the counts.
            let setting = self.setting(id, view);
            let Some(choice) = choose(region, leader, setting, &stores) else { continue };
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
        self.operators.insert(region.id, RegionOperator::new(region, way, reason, ends_ms));
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
                    && !self.operators.contains_key(id)
                    && !self.moved_ms.contains_key(id)
                    && !self.failed_ms.contains_key(id)
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
