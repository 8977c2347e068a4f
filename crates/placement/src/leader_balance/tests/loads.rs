//! Tests of exchanges for even loads: they end, they keep the counts even, and each is worth it.

use super::*;

impl Simulated {
    /// Requests in a second that each store takes.
    fn store_loads(&self) -> Vec<u64> {
        let led = |store| self.regions.iter().zip(&self.loads).filter(move |(at, _)| at.1 == store);
        (1..=self.stores).map(|store| led(store).map(|(_, load)| load).sum()).collect()
    }

    fn most_to_least(&self) -> f64 {
        let loads = self.store_loads();
        *loads.iter().max().unwrap() as f64 / *loads.iter().min().unwrap() as f64
    }

    /// Looks for so long, and asserts that the counts are even then, and a minute is quiet.
    fn settle_loads(&mut self, limit_ms: u64) {
        let end = self.now_ms + limit_ms;
        while self.now_ms < end {
            self.look();
        }
        assert!(self.is_even(), "{:?}", self.counts());
        for _ in 0..200 {
            assert_eq!(self.look(), [], "{:?} with {:?}", self.counts(), self.store_loads());
        }
    }
}

/// As after some splits by load: parts of about the same load, which no counts make even.
#[test]
fn three_stores_take_loads_within_a_half_of_each_other() {
    for seed in 0..200 {
        let mut cluster = Simulated::new(seed, 3, 8, 3);
        let mut rng = fastrand::Rng::with_seed(seed);
        cluster.loads = (0..8).map(|_| rng.u64(700..2_000)).collect();
        cluster.settle_loads(60_000);
        let loads = cluster.store_loads();
        assert!(cluster.most_to_least() <= 1.5, "{loads:?} of {:?}", cluster.loads);
        let steps = cluster.steps;
        assert!(steps <= 20, "{steps}");
    }
}

#[test]
fn many_regions_of_skewed_loads_are_spread_wherever_they_are() {
    for seed in 0..16 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let stores = rng.u64(3..=7);
        let regions = 20 * stores as usize;
        let mut cluster = Simulated::new(seed, stores, regions, 3);
        // As Zipf has it, but for the head, which no balance divides.
        cluster.loads = (0..regions as u64).map(|rank| 20_000 / (rank + 4)).collect();
        rng.shuffle(&mut cluster.loads);
        cluster.fail_percent = rng.u32(0..30);
        while cluster.now_ms < 200_000 {
            cluster.look();
        }
        cluster.fail_percent = 0;
        cluster.settle_loads(300_000);
        // Two stores may have little in common.
        assert!(cluster.most_to_least() <= 1.4, "{:?}", cluster.store_loads());
    }
}

#[test]
fn what_cannot_be_divided_and_what_is_not_worth_it_stays() {
    for loads in [[9_000, 10, 10, 10, 10, 10], [90, 10, 20, 40, 60, 30], [0; 6]] {
        let mut cluster = Simulated::new(3, 3, 6, 3);
        cluster.settle(10_000);
        cluster.loads = loads.to_vec();
        cluster.rests();
    }
}

/// An earlier version tells no loads: it seems to take none, and must not get them all.
#[test]
fn a_store_that_tells_no_loads_takes_no_part() {
    let mut cluster = Simulated::new(4, 3, 12, 3);
    cluster.settle(20_000);
    cluster.loads = vec![1_000; 12];
    cluster.look();
    let teller = |store| StoreInfo { id: store, ..StoreInfo::default() };
    let mut view = ClusterView::new(VIEW, (1..=3).map(teller));
    for store in 1..=3 {
        let led = (0..12).filter(|region| cluster.regions[*region].1 == store);
        let heartbeats: Vec<_> = led.clone().map(|region| cluster.heartbeat(region)).collect();
        view.observe(cluster.now_ms, store, &heartbeats, true);
        if store != 3 {
            let load = |at: usize| (at as u64 + 2, if store == 1 { 2_000 } else { 1_000 });
            view.note_loads(store, led.map(load));
        }
    }
    let mut balance = LeaderBalance::new(LeaderBalanceLimits { settle_ms: 0, ..LIMITS });
    let steps = balance.propose(cluster.now_ms, &view, HERE);
    assert!(!steps.is_empty(), "stores 1 and 2 tell theirs");
    let ends = steps.iter().flat_map(|step| [step.from_store, step.to.store]);
    assert!(ends.into_iter().all(|store| store != 3), "{steps:?}");
}
