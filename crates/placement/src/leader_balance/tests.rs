//! Tests of leader balance: it converges from any start, within its bounds, and then rests.

mod loads;

use std::collections::BTreeMap;

use super::*;
use crate::cluster_view::{Config, RegionHeartbeat, StoreInfo, StoreStanding};
use crate::route_table::{RegionInfo, ReplicaInfo, ReplicaRole};

const VIEW: Config = Config { suspect_ms: 1_500, down_ms: 20_000 };
const LIMITS: LeaderBalanceLimits = LeaderBalanceLimits {
    settle_ms: 3_000,
    step_ms: 3_000,
    rest_ms: 10_000,
    under_way_max: 4,
    drained_max: 16,
    load_apart_min: 500,
};
/// Between two looks of the simulated placement.
const LOOK_MS: u64 = 300;
/// The store that leads the region of placement.
const HERE: u64 = 1;

/// A cluster as it is, and as placement sees it.
struct Simulated {
    now_ms: u64,
    rng: fastrand::Rng,
    stores: u64,
    /// The stores of each region, and its leader and term.
    regions: Vec<(Vec<u64>, u64, u64)>,
    /// Requests in a second of each region; empty if no store tells any.
    loads: Vec<u64>,
    silent: Vec<u64>,
    view: ClusterView,
    balance: LeaderBalance,
    /// When each region was last asked to move.
    asked_ms: BTreeMap<u64, u64>,
    /// Steps that have not been carried out.
    under_way: Vec<(u64, LeaderStep)>,
    steps: usize,
    /// How many of a hundred steps come to nothing.
    fail_percent: u32,
    under_way_max: usize,
}

impl Simulated {
    /// Regions with `replicas` replicas each, all of them led anywhere.
    fn new(seed: u64, stores: u64, regions: usize, replicas: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let regions = (0..regions).map(|_| {
            let mut on: Vec<u64> = (1..=stores).collect();
            rng.shuffle(&mut on);
            on.truncate(replicas);
            // Mostly the same store, as after a start.
            let leader = if rng.u32(0..3) > 0 { *on.iter().min().unwrap() } else { on[0] };
            (on, leader, 6)
        });
        let regions = regions.collect();
        let infos = (1..=stores).map(|id| StoreInfo { id, ..StoreInfo::default() });
        Self {
            now_ms: 0,
            rng,
            stores,
            regions,
            loads: vec![],
            silent: vec![],
            view: ClusterView::new(VIEW, infos),
            balance: LeaderBalance::new(LIMITS),
            asked_ms: BTreeMap::new(),
            under_way: vec![],
            steps: 0,
            fail_percent: 0,
            under_way_max: LIMITS.under_way_max,
        }
    }

    fn heartbeat(&self, region: usize) -> RegionHeartbeat {
        let (on, leader, term) = &self.regions[region];
        let replica = |store: &u64| ReplicaInfo {
            id: 1_000 * store + region as u64,
            store: *store,
            role: crate::ReplicaRole::Voter,
        };
        let key = |at: usize| match at {
            0 => vec![],
            at if at == self.regions.len() => vec![],
            at => format!("{at:05}").into_bytes(),
        };
        let info = RegionInfo {
            id: 2 + region as u64,
            start: key(region),
            end: key(region + 1),
            conf_version: 1,
            version: 1,
            replicas: on.iter().map(replica).collect(),
        };
        RegionHeartbeat { region: info, term: *term, leader: Some(replica(leader)) }
    }

    fn report(&mut self) {
        for store in (1..=self.stores).filter(|store| !self.silent.contains(store)) {
            let led = (0..self.regions.len()).filter(|region| self.regions[*region].1 == store);
            let heartbeats: Vec<_> = led.map(|region| self.heartbeat(region)).collect();
            self.view.observe(self.now_ms, store, &heartbeats, true);
            if !self.loads.is_empty() {
                let led = (2..).zip(&self.regions).zip(&self.loads);
                let led = led.filter(|((_, region), _)| region.1 == store);
                self.view.note_loads(store, led.map(|((id, _), load)| (id, *load)));
            }
        }
    }

    /// Time passes, stores report, steps are carried out, placement looks.
    fn look(&mut self) -> Vec<LeaderStep> {
        self.now_ms += LOOK_MS;
        let (now_ms, fail_percent) = (self.now_ms, self.fail_percent);
        let due = self.under_way.extract_if(.., |(due, _)| *due <= now_ms).collect::<Vec<_>>();
        for (_, step) in due {
            if self.rng.u32(0..100) >= fail_percent {
                let (on, leader, term) = &mut self.regions[step.region as usize - 2];
                assert!(on.contains(&step.to.store) && *leader == step.from_store);
                (*leader, *term) = (step.to.store, *term + 1);
            }
        }
        self.report();
        let steps = self.balance.propose(now_ms, &self.view, HERE);
        for step in &steps {
            let before = self.asked_ms.insert(step.region, now_ms);
            assert!(before.is_none_or(|before| now_ms - before >= LIMITS.rest_ms), "{step:?}");
            assert!(!self.silent.contains(&step.to.store), "to a silent store: {step:?}");
            let took_ms = self.rng.u64(1..1_000);
            self.under_way.push((now_ms + took_ms, *step));
        }
        for store in 1..=self.stores {
            let of = |end: fn(&LeaderStep) -> u64| {
                self.under_way.iter().filter(|(_, step)| end(step) == store).count()
            };
            assert!(of(|step| step.from_store) <= self.under_way_max);
            assert!(of(|step| step.to.store) <= self.under_way_max);
        }
        self.steps += steps.len();
        steps
    }

    fn counts(&self) -> Vec<usize> {
        let alive = (1..=self.stores).filter(|store| !self.silent.contains(store));
        let count = |store: u64| {
            let led = self.regions.iter().filter(|region| region.1 == store).count();
            led + usize::from(store == HERE)
        };
        alive.map(count).collect()
    }

    fn is_even(&self) -> bool {
        let counts = self.counts();
        counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1
    }

    /// Looks until the counts are even; how long that took.
    fn settle(&mut self, limit_ms: u64) -> u64 {
        let began = self.now_ms;
        while !self.is_even() || !self.under_way.is_empty() {
            assert!(self.now_ms < began + limit_ms, "{:?} after {limit_ms} ms", self.counts());
            self.look();
        }
        self.now_ms - began
    }

    fn rests(&mut self) {
        for _ in 0..100 {
            assert_eq!(self.look(), [], "{:?}", self.counts());
        }
    }
}

#[test]
fn three_stores_of_seventeen_regions_are_even_within_ten_seconds_and_then_rest() {
    for seed in 0..200 {
        let mut cluster = Simulated::new(seed, 3, 16, 3);
        let took_ms = cluster.settle(10_000);
        assert!(took_ms <= 10_000, "{took_ms} ms");
        cluster.rests();
    }
}

#[test]
fn it_converges_wherever_the_replicas_are_and_whatever_fails() {
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (stores, regions) = (rng.u64(3..=9), rng.usize(1..120));
        let mut cluster = Simulated::new(seed, stores, regions, 3);
        // With few regions some stores have no replica; evenness is then not to be had.
        let dense = regions >= 12 * stores as usize;
        cluster.fail_percent = rng.u32(0..40);
        if dense {
            cluster.settle(600_000);
        } else {
            (0..300).for_each(|_| drop(cluster.look()));
        }
        cluster.fail_percent = 0;
        // The regions of failed steps rest, and come again.
        (0..100).for_each(|_| drop(cluster.look()));
        cluster.rests();
    }
}

#[test]
fn no_more_is_moved_than_must_be() {
    for seed in 0..100 {
        let mut cluster = Simulated::new(seed, 3, 30, 3);
        let counts = cluster.counts();
        let share = 31_usize.div_ceil(3);
        let surplus: usize = counts.iter().map(|count| count.saturating_sub(share)).sum();
        cluster.settle(60_000);
        assert!(cluster.steps <= surplus + 2, "{} steps for {counts:?}", cluster.steps);
    }
}

#[test]
fn a_silent_store_is_left_out_and_gets_its_share_when_it_is_back() {
    let mut cluster = Simulated::new(1, 3, 16, 3);
    cluster.settle(10_000);
    cluster.silent = vec![3];
    cluster.view.disconnect(3);
    for (on, leader, term) in &mut cluster.regions {
        if *leader == 3 {
            (*leader, *term) = (on.iter().copied().find(|store| *store != 3).unwrap(), *term + 1);
        }
    }
    cluster.settle(30_000);
    cluster.rests();
    cluster.silent.clear();
    cluster.settle(10_000);
    assert!(cluster.counts()[2] >= 5);
}

#[test]
fn a_store_that_stops_gets_nothing_and_loses_nothing() {
    let mut cluster = Simulated::new(2, 3, 16, 3);
    cluster.settle(10_000);
    cluster.regions.iter_mut().for_each(|(_, leader, term)| {
        if *leader == 2 {
            (*leader, *term) = (3, *term + 1);
        }
    });
    cluster.view.note_stopping(2, true);
    for _ in 0..50 {
        let steps = cluster.look();
        assert!(steps.iter().all(|step| step.to.store != 2), "{steps:?}");
    }
    cluster.view.note_stopping(2, false);
    cluster.settle(30_000);
}

#[test]
fn a_drained_store_gives_up_all_that_it_leads() {
    let mut cluster = Simulated::new(2, 3, 40, 3);
    cluster.settle(20_000);
    let standing = StoreStanding { is_draining: true, ..StoreStanding::default() };
    cluster.view.note_standing(2, standing);
    cluster.under_way_max = LIMITS.drained_max;
    for _ in 0..40 {
        let steps = cluster.look();
        assert!(steps.iter().all(|step| step.to.store != 2), "{steps:?}");
    }
    let led = |cluster: &Simulated, store| {
        cluster.regions.iter().filter(|(_, leader, _)| *leader == store).count()
    };
    assert_eq!(led(&cluster, 2), 0);
    assert!(led(&cluster, 1).abs_diff(led(&cluster, 3)) <= 2);
    cluster.view.note_standing(2, StoreStanding::default());
    cluster.settle(30_000);
    assert!(led(&cluster, 2) > 0);
}

#[test]
fn a_store_is_drained_although_a_region_has_no_leader() {
    let mut cluster = Simulated::new(2, 4, 16, 3);
    cluster.settle(20_000);
    cluster.silent.push(4);
    (0..=VIEW.suspect_ms / LOOK_MS).for_each(|_| _ = cluster.look());
    cluster.under_way_max = LIMITS.drained_max;
    let standing = StoreStanding { is_draining: true, ..StoreStanding::default() };
    cluster.view.note_standing(2, standing);
    let led = |cluster: &Simulated, store| {
        cluster.regions.iter().filter(|(_, leader, _)| *leader == store).count()
    };
    let silent = led(&cluster, 4);
    assert!(silent > 0 && led(&cluster, 2) > 0);
    (0..40).for_each(|_| _ = cluster.look());
    assert_eq!((led(&cluster, 2), led(&cluster, 4)), (0, silent));
}

#[test]
fn the_region_of_placement_leaves_a_drained_store_last() {
    let mut cluster = Simulated::new(2, 3, 16, 3);
    cluster.settle(20_000);
    let replica = |store| ReplicaInfo { id: 100 + store, store, role: ReplicaRole::Voter };
    let replicas = (1..=3).map(replica).collect();
    cluster.view.note_system(RegionInfo { id: 1, replicas, ..RegionInfo::default() });
    let standing = StoreStanding { is_draining: true, ..StoreStanding::default() };
    cluster.view.note_standing(HERE, standing);
    let mut handed_over = None;
    for _ in 0..40 {
        cluster.now_ms += LOOK_MS;
        cluster.report();
        let steps = cluster.balance.propose(cluster.now_ms, &cluster.view, HERE);
        if let Some(step) = steps.iter().find(|step| step.region == 1) {
            assert!(step.from_store == HERE && step.to.store != HERE);
            handed_over.get_or_insert(cluster.now_ms);
            break;
        }
        for step in steps {
            let (_, leader, term) = &mut cluster.regions[step.region as usize - 2];
            (*leader, *term) = (step.to.store, *term + 1);
        }
    }
    assert!(handed_over.is_some());
    assert!(cluster.regions.iter().all(|(_, leader, _)| *leader != HERE));
}

#[test]
fn nothing_is_proposed_before_the_view_is_whole_and_calm() {
    let mut cluster = Simulated::new(3, 3, 16, 3);
    cluster.regions.iter_mut().for_each(|region| region.1 = 1);
    // A region that its leader has not reported.
    let all: Vec<_> = (0..16).map(|region| cluster.heartbeat(region)).collect();
    let propose = |cluster: &mut Simulated, led: &[RegionHeartbeat], full: bool| {
        cluster.now_ms += LOOK_MS;
        for store in 1..=3 {
            let led = if store == 1 { led } else { &[] };
            cluster.view.observe(cluster.now_ms, store, led, full && store == 1);
        }
        cluster.balance.propose(cluster.now_ms, &cluster.view, HERE)
    };
    let with_hole: Vec<_> = all.iter().filter(|said| said.region.id != 9).cloned().collect();
    for _ in 0..100 {
        assert_eq!(propose(&mut cluster, &with_hole, true), []);
    }
    let settled = LIMITS.settle_ms / LOOK_MS;
    for _ in 0..settled {
        assert_eq!(propose(&mut cluster, &all, true), []);
    }
    // One without a leader: the wait begins anew.
    assert_eq!(propose(&mut cluster, &with_hole, true), []);
    for _ in 0..settled {
        assert_eq!(propose(&mut cluster, &all, true), []);
    }
    assert!(!propose(&mut cluster, &all, true).is_empty());
    assert_eq!(cluster.balance.under_way(), 2 * LIMITS.under_way_max.min(2));
}

/// Two stores apart by two, with no region in common: a third one gives what it gets.
#[test]
fn a_step_goes_through_a_third_store_if_it_must() {
    let mut cluster = Simulated::new(4, 3, 7, 2);
    let places = [[1, 2], [1, 2], [2, 3], [2, 3], [2, 1], [2, 1], [3, 2]];
    for (region, on) in cluster.regions.iter_mut().zip(places) {
        *region = (on.to_vec(), on[0], 6);
    }
    // Leaders: with the region of placement 3, 4, 1.
    assert_eq!(cluster.counts(), [3, 4, 1]);
    cluster.settle(30_000);
    // And where the two ends have nothing in common.
    let mut cluster = Simulated::new(5, 3, 5, 2);
    let places = [[1, 2], [1, 2], [2, 3], [2, 3], [3, 2]];
    for (region, on) in cluster.regions.iter_mut().zip(places) {
        *region = (on.to_vec(), on[0], 6);
    }
    assert_eq!(cluster.counts(), [3, 2, 1]);
    cluster.settle(30_000);
    assert_eq!(cluster.counts(), [2, 2, 2]);
    cluster.rests();
}

#[test]
fn a_region_whose_replicas_change_is_not_moved() {
    let stores = (1..=2).map(|id| StoreInfo { id, ..StoreInfo::default() });
    let mut view = ClusterView::new(VIEW, stores);
    let replica = |store, role| ReplicaInfo { id: 200 + store, store, role };
    let region = |role| RegionInfo {
        id: 2,
        conf_version: 1,
        version: 1,
        replicas: vec![replica(1, ReplicaRole::Voter), replica(2, role)],
        ..RegionInfo::default()
    };
    let mut proposed = |role, busy: &[u64]| {
        let mut balance = LeaderBalance::new(LeaderBalanceLimits { settle_ms: 0, ..LIMITS });
        balance.set_busy(busy.iter().copied().collect());
        let mut region = region(role);
        region.conf_version = if role == ReplicaRole::Voter { 2 } else { 1 };
        let leader = Some(replica(1, ReplicaRole::Voter));
        view.observe(10, 1, &[RegionHeartbeat { region, term: 6, leader }], true);
        view.observe(10, 2, &[], true);
        balance.propose(10, &view, 1).len()
    };
    assert_eq!(proposed(ReplicaRole::Learner, &[]), 0, "a learner cannot lead");
    assert_eq!(proposed(ReplicaRole::Voter, &[2]), 0);
    assert_eq!(proposed(ReplicaRole::Voter, &[]), 1);
}

#[test]
fn a_scatter_spreads_the_leaders_of_its_regions_and_is_not_undone() {
    for seed in 0..50 {
        let mut cluster = Simulated::new(seed, 3, 31, 3);
        cluster.settle(30_000);
        // Nine regions that one store leads, while all counts are even.
        let led = |store| move |region: &&(Vec<u64>, u64, u64)| region.1 == store;
        assert!(cluster.regions.iter().filter(led(2)).count() >= 9);
        let places = (0..31).filter(|place| cluster.regions[*place].1 == 2).take(9);
        let named: Vec<u64> = places.map(|place| place as u64 + 2).collect();
        let scatter = cluster.balance.scatter(cluster.now_ms, &cluster.view, &named);
        assert_eq!((scatter.steps.len(), scatter.failed.len()), (6, 0));
        let state = |cluster: &Simulated, region| {
            cluster.balance.step_state(cluster.now_ms, &cluster.view, region)
        };
        let moved = scatter.steps[0].region;
        assert_eq!(state(&cluster, moved), Some(LeaderStepState::UnderWay));
        // Once more, before they are done: they stand.
        let again = cluster.balance.scatter(cluster.now_ms, &cluster.view, &named);
        assert_eq!(again, LeaderScatter::default());
        cluster.under_way.extend(scatter.steps.iter().map(|step| (cluster.now_ms, *step)));
        cluster.under_way_max = 6;
        cluster.look();
        assert_eq!(state(&cluster, moved), Some(LeaderStepState::Done));
        let counts = |cluster: &Simulated| {
            let leader = |region: &u64| cluster.regions[*region as usize - 2].1;
            let count = |store| named.iter().filter(|region| leader(region) == store).count();
            [count(1), count(2), count(3)]
        };
        assert_eq!(counts(&cluster), [3, 3, 3]);
        cluster.settle(30_000);
    }
}

#[test]
fn a_scatter_names_what_it_cannot_move() {
    let mut cluster = Simulated::new(7, 3, 16, 3);
    cluster.settle(30_000);
    cluster.balance.set_busy(BTreeSet::from([5]));
    let scatter = cluster.balance.scatter(cluster.now_ms, &cluster.view, &[99, 5, 5, 99]);
    assert_eq!(scatter, LeaderScatter { steps: vec![], failed: vec![99, 5] });
    // No leader goes to a store that is silent, and none is known of its own regions.
    cluster.silent = vec![3];
    cluster.view.disconnect(3);
    let all: Vec<u64> = (2..18).filter(|region| *region != 5).collect();
    let led_by_3 = all.iter().filter(|region| cluster.regions[**region as usize - 2].1 == 3);
    let led_by_3: Vec<u64> = led_by_3.copied().collect();
    let scatter = cluster.balance.scatter(cluster.now_ms, &cluster.view, &all);
    assert!(scatter.steps.iter().all(|step| step.to.store != 3), "{scatter:?}");
    assert_eq!(scatter.failed, led_by_3);
}

#[test]
fn a_transfer_that_comes_to_nothing_is_late() {
    let mut cluster = Simulated::new(7, 3, 16, 3);
    cluster.settle(30_000);
    let all: Vec<u64> =
        (2..18).filter(|region| cluster.regions[*region as usize - 2].1 == 2).collect();
    let scatter = cluster.balance.scatter(cluster.now_ms, &cluster.view, &all);
    let moved = scatter.steps[0].region;
    cluster.now_ms += LIMITS.step_ms;
    let state = cluster.balance.step_state(cluster.now_ms, &cluster.view, moved);
    assert_eq!(state, Some(LeaderStepState::Late));
}
