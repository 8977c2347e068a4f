//! Tests of repair: it brings a simulated cluster to its replicas, within its bounds, and rests.

use super::*;
use crate::cluster_view::{Config, RegionHeartbeat, StoreInfo, StoreStanding};
use crate::route_table::ReplicaRole::{self, Incoming, Learner, Outgoing, Voter};

mod exits;
mod terms;

const SYSTEM: u64 = 1;
const LOOK_MS: u64 = 500;
const LIMITS: RepairLimits = RepairLimits {
    settle_ms: 2_000,
    down_ms: 20_000,
    target_silent_ms: 5_000,
    step_ms: 1_000,
    operator_ms: 60_000,
    retry_ms: 2_000,
    rest_ms: 30_000,
    snapshots_max: 2,
    operators_max: 64,
    system_replicas: 5,
};

struct SimulatedRegion {
    info: RegionInfo,
    leader: u64,
    term: u64,
    /// When each learner has its data.
    data_ms: BTreeMap<u64, u64>,
}

/// A cluster as it is, and as placement sees it.
struct Cluster {
    now_ms: u64,
    rng: fastrand::Rng,
    regions: Vec<SimulatedRegion>,
    dead: BTreeSet<u64>,
    has_died: bool,
    stores: u64,
    next_id: u64,
    view: ClusterView,
    repairer: Repairer,
    steps: Vec<ReplicaStep>,
    /// How many of a hundred steps are lost on their way.
    lost_percent: u32,
    here: u64,
}

fn replica(id: u64, store: u64, role: ReplicaRole) -> ReplicaInfo {
    ReplicaInfo { id, store, role }
}

impl Cluster {
    /// `regions` of clients, each on `on`, and the region of placement.
    fn new(stores: u64, regions: u64, on: &[u64], replicas: usize) -> Self {
        let key = |number: u64| number.to_be_bytes().to_vec();
        let make = |id: u64| {
            let replicas = on.iter().map(|store| replica(id * 100 + store, *store, Voter));
            let (start, end) = match id {
                SYSTEM => (vec![], vec![]),
                _ => {
                    let start = if id == 2 { vec![] } else { key(id) };
                    (start, if id == regions + 1 { vec![] } else { key(id + 1) })
                }
            };
            let (conf_version, version) = (1, 1);
            let replicas = replicas.collect();
            let info = RegionInfo { id, start, end, conf_version, version, replicas };
            let leader = on[id as usize % on.len()];
            SimulatedRegion { info, leader, term: 6, data_ms: BTreeMap::new() }
        };
        let infos = (1..=stores).map(|id| StoreInfo { id, ..StoreInfo::default() });
        let mut all: Vec<_> = (1..=regions + 1).map(make).collect();
        all[0].leader = on[0];
        Self {
            now_ms: 0,
            rng: fastrand::Rng::with_seed(7),
            regions: all,
            dead: BTreeSet::new(),
            has_died: false,
            stores,
            next_id: 1_000_000,
            view: ClusterView::new(Config { suspect_ms: 1_500, down_ms: 20_000 }, infos),
            repairer: Repairer::new(LIMITS, replicas),
            steps: vec![],
            lost_percent: 0,
            here: on[0],
        }
    }

    fn join(&mut self) -> u64 {
        self.stores += 1;
        self.view.learn_store(self.stores, &format!("s{}", self.stores), "", &[]);
        self.stores
    }

    fn zone(&mut self, store: u64, zone: &str) {
        let standing = StoreStanding { zone: zone.to_owned(), ..StoreStanding::default() };
        self.view.note_standing(store, standing);
    }

    fn region(&self, id: u64) -> &SimulatedRegion {
        self.regions.iter().find(|region| region.info.id == id).unwrap()
    }

    /// The next moment: reports, steps, and what regions do by themselves.
    fn tick(&mut self) {
        self.now_ms += LOOK_MS;
        self.has_died |= !self.dead.is_empty();
        self.elect();
        for store in (1..=self.stores).filter(|store| !self.dead.contains(store)) {
            let led = self.regions.iter().filter(|at| at.leader == store && at.info.id != SYSTEM);
            let reports: Vec<_> = led
                .map(|at| RegionHeartbeat {
                    region: at.info.clone(),
                    term: at.term,
                    leader: at.info.on(store),
                })
                .collect();
            self.view.observe(self.now_ms, store, &reports, true);
            let held = self.regions.iter().filter(|at| at.info.on(store).is_some());
            self.view.note_replicas(store, held.count() as u64);
        }
        self.view.note_system(self.regions[0].info.clone());
        let steps = self.repairer.propose(self.now_ms, &self.view, self.here);
        self.check_limits();
        for step in steps {
            if self.rng.u32(0..100) >= self.lost_percent {
                self.carry_out(&step);
            }
            self.steps.push(step);
        }
    }

    /// Live leaders for all regions that have a quorum. Placement moves with its region.
    fn elect(&mut self) {
        for region in &mut self.regions {
            let is_live = |store: u64| !self.dead.contains(&store);
            let votes = |role| matches!(role, Voter | Incoming);
            let live = |at: &&ReplicaInfo| votes(at.role) && is_live(at.store);
            if !is_live(region.leader)
                && let Some(next) = region.info.replicas.iter().find(live)
            {
                region.leader = next.store;
                region.term += 1;
            }
        }
        let here = self.regions[0].leader;
        if here != self.here {
            self.here = here;
            self.repairer = Repairer::new(LIMITS, self.repairer.replicas());
        }
    }

    fn has_quorum(&self, info: &RegionInfo) -> bool {
        let half = |roles: [ReplicaRole; 2]| {
            let voters = info.replicas.iter().filter(|at| roles.contains(&at.role));
            let (live, all) = voters.fold((0, 0), |(live, all), at| {
                (live + u32::from(!self.dead.contains(&at.store)), all + 1)
            });
            live * 2 > all
        };
        half([Voter, Incoming]) && half([Voter, Outgoing])
    }

    /// A region that does as it is asked, or says why not.
    fn carry_out(&mut self, step: &ReplicaStep) {
        let at = self.regions.iter().position(|at| at.info.id == step.region).unwrap();
        let has_quorum = self.has_quorum(&self.regions[at].info);
        let (now_ms, next_id) = (self.now_ms, self.next_id);
        let dead = self.dead.clone();
        let region = &mut self.regions[at];
        if region.info.conf_version != step.conf_version || region.leader != step.from_store {
            return;
        }
        assert!(has_quorum, "a region without a quorum has no leader that reports");
        let growth = step.step.growth(&region.info);
        match &step.step {
            MembershipStep::Add { store } => {
                assert_eq!(region.info.on(*store), None, "one replica a store");
                assert!(!region.info.is_joint());
                region.info.replicas.push(replica(next_id, *store, Learner));
                region.data_ms.insert(*store, now_ms + 3_000);
                self.next_id += 1;
            }
            MembershipStep::Vote { promoted, demoted } => {
                let leader = region.info.on(region.leader).unwrap();
                assert!(!demoted.contains(&leader.id), "the leader keeps its vote");
                let lacks = |at: &ReplicaInfo| {
                    let data_ms = region.data_ms.get(&at.store).copied().unwrap_or(0);
                    promoted.contains(&at.id) && (data_ms > now_ms || dead.contains(&at.store))
                };
                if region.info.replicas.iter().any(lacks) {
                    let later = StepAnswer::Later("it lacks data".to_owned());
                    return self.repairer.answer(now_ms, step.region, later);
                }
                let is_joint = step.step.is_joint();
                for at in &mut region.info.replicas {
                    if promoted.contains(&at.id) {
                        assert_eq!(at.role, Learner);
                        at.role = if is_joint { Incoming } else { Voter };
                    } else if demoted.contains(&at.id) {
                        assert_eq!(at.role, Voter);
                        at.role = if is_joint { Outgoing } else { Learner };
                    }
                }
            }
            MembershipStep::LeaveJoint => {
                for at in &mut region.info.replicas {
                    at.role = match at.role {
                        Voter | Incoming => Voter,
                        Learner | Outgoing => Learner,
                    };
                }
            }
            MembershipStep::TransferLeader { to } => {
                if !dead.contains(&to.store) {
                    region.leader = to.store;
                    region.term += 1;
                }
            }
            MembershipStep::Remove { replica } => {
                let gone = region.info.replicas.iter().position(|at| at.id == *replica).unwrap();
                assert_eq!(region.info.replicas.remove(gone).role, Learner);
            }
        }
        region.info.conf_version += growth;
        let voters = region.info.voting_stores().len();
        assert_ne!(voters, 2, "a group of two: {:?}", region.info);
    }

    /// No store has more snapshots on their way than it may.
    fn check_limits(&self) {
        let (mut incoming, mut outgoing) = (BTreeMap::new(), BTreeMap::new());
        let mut emptying = BTreeMap::new();
        let is_leaving = |id| self.view.store(id).is_some_and(|store| store.standing.is_leaving);
        for (id, operator) in self.repairer.operators.iter() {
            let region = self.region(id);
            let voters = region.info.voting_stores();
            let stage = operator.stage().cloned().unwrap_or_default();
            for store in stage.difference(&voters) {
                *incoming.entry(*store).or_insert(0) += 1;
            }
            if !stage.is_empty() && !stage.is_subset(&voters) {
                for store in voters.difference(&stage).filter(|store| is_leaving(**store)) {
                    *emptying.entry(*store).or_insert(0) += 1;
                }
            }
            let leader_stays = stage.contains(&region.leader);
            let mut lacking = region.data_ms.iter().filter(|(store, data_ms)| {
                **data_ms > self.now_ms && region.info.on(**store).is_some()
            });
            let is_sent = lacking.next().is_some();
            let is_known = leader_stays || self.has_died || voters.len() < 3;
            assert!(is_known || !is_sent, "a leader that goes sends data");
            *outgoing.entry(region.leader).or_insert(0) += usize::from(is_sent);
        }
        assert!(incoming.values().all(|count| *count <= LIMITS.snapshots_max), "{incoming:?}");
        assert!(emptying.values().all(|count| *count <= LIMITS.snapshots_max), "{emptying:?}");
        // The successor of a store that died may send already.
        let is_within = outgoing.values().all(|count| *count <= LIMITS.snapshots_max);
        assert!(is_within || self.has_died, "{outgoing:?}");
        assert!(self.repairer.operators.len() <= LIMITS.operators_max);
    }

    fn run(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.tick();
        }
    }

    /// Until nothing is under way for a minute.
    fn settle(&mut self) {
        let mut calm_since_ms = self.now_ms;
        let end_ms = self.now_ms + 3_600_000;
        while self.now_ms < calm_since_ms + 60_000 {
            assert!(self.now_ms < end_ms, "no rest: {:?}", self.repairer.operators);
            let steps = self.steps.len();
            self.tick();
            if self.steps.len() > steps || self.repairer.operators.len() > 0 {
                calm_since_ms = self.now_ms;
            }
        }
    }

    fn stores_of(&self, id: u64) -> Vec<u64> {
        let info = &self.region(id).info;
        assert!(info.replicas.iter().all(|at| at.role == Voter), "{info:?}");
        info.voting_stores().into_iter().collect()
    }

    fn counts(&self) -> BTreeMap<u64, usize> {
        let mut counts: BTreeMap<u64, usize> =
            (1..=self.stores).filter(|at| !self.dead.contains(at)).map(|at| (at, 0)).collect();
        let replicas = self.regions.iter().flat_map(|at| &at.info.replicas);
        for at in replicas {
            counts.entry(at.store).and_modify(|count| *count += 1);
        }
        counts
    }
}

#[test]
fn one_three_and_five_stores_are_one_path() {
    let mut cluster = Cluster::new(1, 8, &[1], 5);
    cluster.settle();
    assert_eq!(cluster.stores_of(2), [1]);
    cluster.join();
    cluster.settle();
    assert_eq!((cluster.stores_of(SYSTEM), cluster.stores_of(2)), (vec![1], vec![1]));
    cluster.join();
    cluster.settle();
    for id in 1..=9 {
        assert_eq!(cluster.stores_of(id), [1, 2, 3]);
    }
    cluster.join();
    cluster.settle();
    assert_eq!(cluster.stores_of(SYSTEM).len(), 3);
    cluster.join();
    cluster.settle();
    for id in 1..=9 {
        assert_eq!(cluster.stores_of(id), [1, 2, 3, 4, 5]);
    }
    cluster.repairer.set_replicas(3);
    cluster.settle();
    assert_eq!(cluster.stores_of(SYSTEM).len(), 5);
    for id in 2..=9 {
        assert_eq!(cluster.stores_of(id).len(), 3, "region {id}");
    }
}

#[test]
fn the_region_of_placement_comes_before_all_others() {
    let mut cluster = Cluster::new(1, 20, &[1], 3);
    cluster.run(5_000);
    let _ = (cluster.join(), cluster.join());
    cluster.settle();
    let is_system = |step: &ReplicaStep| step.region == SYSTEM;
    let last = cluster.steps.iter().rposition(is_system).unwrap();
    let first = cluster.steps.iter().position(|step| !is_system(step)).unwrap();
    assert!(last < first, "{:?}", &cluster.steps[..last]);
}

#[test]
fn a_dead_store_is_replaced_after_a_while_and_no_replica_given_up_for_it() {
    let mut cluster = Cluster::new(3, 12, &[1, 2, 3], 3);
    cluster.run(5_000);
    cluster.dead.insert(3);
    cluster.run(LIMITS.down_ms * 3);
    // There is no other store: two copies are better than one.
    assert!(cluster.steps.is_empty(), "{:?}", cluster.steps);
    cluster.join();
    cluster.settle();
    for id in 1..=13 {
        assert_eq!(cluster.stores_of(id), [1, 2, 4], "region {id}");
    }
}

#[test]
fn a_short_silence_moves_nothing_and_a_lost_store_is_replaced_at_once() {
    let mut cluster = Cluster::new(4, 12, &[1, 2, 3], 3);
    cluster.repairer.set_paused(true);
    cluster.run(5_000);
    cluster.repairer.set_paused(false);
    cluster.settle();
    let before = cluster.steps.len();
    cluster.dead.insert(3);
    cluster.run(LIMITS.down_ms - 3_000);
    assert_eq!(cluster.steps.len(), before);
    cluster.dead.remove(&3);
    cluster.settle();
    assert_eq!(cluster.steps.len(), before);
    cluster.dead.insert(3);
    cluster.view.note_standing(3, StoreStanding { is_lost: true, ..StoreStanding::default() });
    cluster.run(10_000);
    assert!(cluster.steps.len() > before);
    cluster.settle();
    for id in 1..=13 {
        assert_eq!(cluster.stores_of(id), [1, 2, 4]);
    }
}

#[test]
fn a_store_that_leaves_is_emptied_as_far_as_three_replicas_stay() {
    let mut cluster = Cluster::new(5, 30, &[1, 2, 3], 3);
    cluster.settle();
    let standing = StoreStanding { is_leaving: true, ..StoreStanding::default() };
    cluster.view.note_standing(1, standing);
    cluster.settle();
    assert_eq!(cluster.counts()[&1], 0);
    for id in 1..=31 {
        assert_eq!(cluster.stores_of(id).len(), 3);
    }
    // Two more: the last three replicas stay, whatever is said of their stores.
    for store in [2, 3] {
        let standing = StoreStanding { is_leaving: true, ..StoreStanding::default() };
        cluster.view.note_standing(store, standing);
    }
    cluster.settle();
    assert!((1..=31).all(|id| cluster.stores_of(id).len() == 3));
}

#[test]
fn zones_are_kept_apart() {
    let mut cluster = Cluster::new(6, 24, &[1, 2, 3], 3);
    for (store, zone) in [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c"), (6, "c")] {
        cluster.zone(store, zone);
    }
    cluster.settle();
    for id in 2..=25 {
        let zones: BTreeSet<u64> =
            cluster.stores_of(id).iter().map(|store| (store - 1) / 2).collect();
        assert_eq!(zones.len(), 3, "region {id} on {:?}", cluster.stores_of(id));
    }
}

#[test]
fn counts_are_evened_out_and_then_nothing_moves() {
    let mut cluster = Cluster::new(3, 60, &[1, 2, 3], 3);
    cluster.run(5_000);
    cluster.join();
    cluster.settle();
    let counts = cluster.counts();
    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
    assert!(most - least <= 2, "{counts:?}");
    let steps = cluster.steps.len();
    cluster.run(10 * LIMITS.rest_ms);
    assert_eq!(cluster.steps.len(), steps);
}

#[test]
fn by_hand_a_replica_is_moved_and_the_count_is_kept_unless_repair_is_paused() {
    let mut cluster = Cluster::new(4, 1, &[1, 2, 3], 3);
    cluster.run(1_000);
    let begin = |cluster: &mut Cluster, added: &[u64], removed: &[u64]| {
        let (now_ms, here) = (cluster.now_ms, cluster.here);
        cluster.repairer.begin(now_ms, &cluster.view, here, 2, (added, removed))
    };
    let refused = begin(&mut cluster, &[4], &[]).unwrap_err();
    assert_eq!(refused, RepairRefusal::ReplicaCount { after: 4, target: 3 });
    assert!(refused.to_string().contains("against the replica count"), "{refused}");
    assert_eq!(begin(&mut cluster, &[], &[1]), Err(RepairRefusal::Two));
    assert_eq!(begin(&mut cluster, &[4], &[5]), Err(RepairRefusal::NoReplica(5)));
    assert_eq!(begin(&mut cluster, &[2], &[1]), Err(RepairRefusal::HasReplica(2)));
    assert_eq!(begin(&mut cluster, &[9], &[1]), Err(RepairRefusal::UnknownStore(9)));
    assert_eq!(begin(&mut cluster, &[], &[1, 2, 3]), Err(RepairRefusal::TooMany));
    let unknown = cluster.repairer.begin(0, &cluster.view, 1, 9, (&[4], &[1]));
    assert_eq!(unknown, Err(RepairRefusal::UnknownRegion(9)));
    assert_eq!(begin(&mut cluster, &[4], &[1]), Ok(()));
    let again = begin(&mut cluster, &[4], &[1]);
    assert!(matches!(again, Err(RepairRefusal::UnderWay(2, _))), "{again:?}");
    cluster.run(10_000);
    assert_eq!(cluster.stores_of(2), [2, 3, 4]);
    assert_eq!(cluster.repairer.state(2), Some(OperatorState::Done));
    cluster.repairer.set_paused(true);
    assert_eq!(begin(&mut cluster, &[1], &[]), Ok(()));
    cluster.run(20_000);
    assert_eq!(cluster.stores_of(2), [1, 2, 3, 4]);
    cluster.repairer.set_paused(false);
    cluster.settle();
    assert_eq!(cluster.stores_of(2).len(), 3);
}

#[test]
fn the_only_replica_moves_over_three() {
    let mut cluster = Cluster::new(3, 1, &[1], 1);
    cluster.repairer.set_paused(true);
    cluster.run(1_000);
    let (now_ms, here) = (cluster.now_ms, cluster.here);
    cluster.repairer.begin(now_ms, &cluster.view, here, 2, (&[3], &[1])).unwrap();
    cluster.run(30_000);
    assert_eq!(cluster.stores_of(2), [3]);
    let mut small = Cluster::new(2, 1, &[1], 1);
    small.run(1_000);
    let refused = small.repairer.begin(1_000, &small.view, 1, 2, (&[2], &[1]));
    assert_eq!(refused, Err(RepairRefusal::NoThirdStore));
}

#[test]
fn an_operator_ends_when_the_region_moves_otherwise() {
    let mut cluster = Cluster::new(4, 1, &[1, 2, 3], 3);
    cluster.run(1_000);
    cluster.lost_percent = 100;
    cluster.repairer.begin(1_000, &cluster.view, 1, 2, (&[4], &[1])).unwrap();
    cluster.run(1_000);
    cluster.regions[1].info.conf_version += 7;
    cluster.run(1_000);
    let state = cluster.repairer.state(2).unwrap();
    assert!(matches!(&state, OperatorState::Failed(why) if why.contains("by others")), "{state:?}");
}

#[test]
fn an_operator_that_gets_nowhere_is_given_up_with_the_reason() {
    let mut cluster = Cluster::new(4, 1, &[1, 2, 3], 3);
    cluster.run(1_000);
    cluster.repairer.set_paused(true);
    cluster.lost_percent = 100;
    cluster.repairer.begin(1_000, &cluster.view, 1, 2, (&[4], &[1])).unwrap();
    cluster.repairer.answer(1_000, 2, StepAnswer::Later("the disk is full".to_owned()));
    cluster.run(LIMITS.operator_ms + 1_000);
    let state = cluster.repairer.state(2).unwrap();
    assert!(matches!(&state, OperatorState::Failed(why) if why.contains("disk is full")));
    cluster.repairer.begin(cluster.now_ms, &cluster.view, 1, 2, (&[4], &[1])).unwrap();
    cluster.repairer.answer(cluster.now_ms, 2, StepAnswer::Refused("no".to_owned()));
    assert_eq!(cluster.repairer.state(2), Some(OperatorState::Failed("no".to_owned())));
}

/// Stores join and die while steps are lost; in the end every region has its replicas on live
/// stores, and the counts are even.
#[test]
fn random_clusters_converge_within_the_limits() {
    for seed in 0..4 {
        let mut cluster = Cluster::new(3, 120, &[1, 2, 3], 3);
        cluster.rng = fastrand::Rng::with_seed(seed);
        cluster.lost_percent = cluster.rng.u32(0..40);
        cluster.run(3_000);
        for _ in 0..6 {
            if cluster.rng.bool() {
                cluster.join();
            } else if cluster.dead.is_empty() && cluster.stores >= 5 {
                // One at a time, and only while no region has lost another one.
                let victim = cluster.rng.u64(1..=cluster.stores);
                cluster.dead.insert(victim);
                let is_safe = cluster.regions.iter().all(|at| cluster.has_quorum(&at.info));
                if !is_safe {
                    cluster.dead.remove(&victim);
                }
            }
            let run_ms = cluster.rng.u64(5_000..120_000);
            cluster.run(run_ms);
            if cluster.rng.bool() {
                cluster.dead.clear();
            }
        }
        cluster.settle();
        let live = cluster.stores - cluster.dead.len() as u64;
        for id in 2..=121 {
            let stores = cluster.stores_of(id);
            assert_eq!(stores.len(), 3, "seed {seed}: region {id}");
            let dead = stores.iter().any(|store| cluster.dead.contains(store));
            assert!(!dead || live < 3, "seed {seed}: region {id} on {stores:?}");
        }
        let counts = cluster.counts();
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        // A twentieth of the mean is no difference.
        assert!(most - least <= 2 + most / 20, "seed {seed}: {counts:?}");
    }
}
