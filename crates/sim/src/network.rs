//! The network between stores: loses, doubles, delays, reorders, and cuts links, also one way.

use fastrand::Rng;
use flotilla_region::RegionId;

use crate::event_queue::SimTime;

/// How bad the network is, apart from cuts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkConditions {
    /// Lost messages of a million.
    pub(crate) lost_ppm: u32,
    /// Messages of a million that arrive twice.
    pub(crate) duplicated_ppm: u32,
    /// Messages of a million that arrive very late, up to `late_us_max`.
    pub(crate) late_ppm: u32,
    pub(crate) late_us_max: u64,
    pub(crate) delay_us_min: u64,
    pub(crate) delay_us_max: u64,
    /// Whether a link keeps the order of messages that are neither late nor doubled.
    pub(crate) is_ordered: bool,
}

impl NetworkConditions {
    /// Nothing is lost or late.
    pub(crate) const FAIR: Self = Self {
        lost_ppm: 0,
        duplicated_ppm: 0,
        late_ppm: 0,
        late_us_max: 0,
        delay_us_min: 100,
        delay_us_max: 1_000,
        is_ordered: true,
    };
}

/// The links that are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Partition {
    /// The stores of this set and the others do not hear each other.
    Split(Vec<bool>),
    /// No store hears this one; it hears all others.
    Mute(usize),
    /// This store hears no other one; all others hear it.
    Deaf(usize),
    /// The one does not hear the other; all else works.
    Link { from: usize, to: usize },
}

/// The snapshots that the network lets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PassedSnapshots {
    #[default]
    All,
    /// Those of one region.
    #[cfg_attr(not(test), expect(dead_code, reason = "for scripts"))]
    Of(RegionId),
}

#[derive(Debug)]
pub(crate) struct Network {
    stores: usize,
    rng: Rng,
    conditions: NetworkConditions,
    /// Until when each link is cut, by `from * stores + to`.
    cut: Vec<SimTime>,
    /// The delay of the messages of each link beyond that of others, and until when.
    late: Vec<(u64, SimTime)>,
    last_arrival: Vec<SimTime>,
    passed_snapshots: PassedSnapshots,
}

impl Network {
    pub(crate) fn new(stores: usize, conditions: NetworkConditions, rng: Rng) -> Self {
        let links = stores * stores;
        Self {
            stores,
            rng,
            conditions,
            cut: vec![0; links],
            late: vec![(0, 0); links],
            last_arrival: vec![0; links],
            passed_snapshots: PassedSnapshots::default(),
        }
    }

    pub(crate) fn set_conditions(&mut self, conditions: NetworkConditions) {
        self.conditions = conditions;
    }

    /// Lets some snapshots pass.
    #[cfg(test)]
    pub(crate) fn pass_snapshots(&mut self, passed: PassedSnapshots) {
        self.passed_snapshots = passed;
    }

    /// Whether snapshots of a region pass.
    pub(crate) fn passes_snapshots(&self, region: RegionId) -> bool {
        match self.passed_snapshots {
            PassedSnapshots::All => true,
            PassedSnapshots::Of(only) => only == region,
        }
    }

    /// When a message that is sent now arrives: never, once or twice.
    pub(crate) fn arrivals(
        &mut self,
        now: SimTime,
        from: usize,
        to: usize,
    ) -> [Option<SimTime>; 2] {
        let link = from * self.stores + to;
        if now < self.cut[link] || self.chance(self.conditions.lost_ppm) {
            return [None, None];
        }
        let first = if self.chance(self.conditions.late_ppm) {
            now + self.rng.u64(self.conditions.delay_us_min..=self.conditions.late_us_max)
        } else {
            let arrival = now + self.delay_us();
            let (late_us, until) = self.late[link];
            if late_us > 0 && now < until {
                arrival + late_us
            } else if self.conditions.is_ordered {
                // Late messages are left out: one would hold up all that follow it on its link.
                self.last_arrival[link] = self.last_arrival[link].max(arrival);
                self.last_arrival[link]
            } else {
                arrival
            }
        };
        let second = self.chance(self.conditions.duplicated_ppm).then(|| first + self.delay_us());
        [Some(first), second]
    }

    /// Cuts links until a moment, on top of those that are cut. The end of one cut mends nothing of
    /// another.
    pub(crate) fn cut(&mut self, cut: &Partition, until: SimTime) {
        for from in 0..self.stores {
            for to in 0..self.stores {
                let is_cut = match cut {
                    Partition::Split(side) => side[from] != side[to],
                    Partition::Mute(store) => from == *store,
                    Partition::Deaf(store) => to == *store,
                    Partition::Link { from: a, to: b } => from == *a && to == *b,
                };
                if is_cut {
                    let link = &mut self.cut[from * self.stores + to];
                    *link = until.max(*link);
                }
            }
        }
    }

    /// All that a store sends until a moment arrives so much later.
    pub(crate) fn slow_down(&mut self, from: usize, us: u64, until: SimTime) {
        self.late[from * self.stores..(from + 1) * self.stores].fill((us, until));
    }

    /// All that one store sends to another from now on arrives so much later.
    #[cfg(test)]
    pub(crate) fn slow_link(&mut self, from: usize, to: usize, us: u64) {
        self.late[from * self.stores + to] = (us, SimTime::MAX);
    }

    /// Mends every link at once.
    pub(crate) fn heal(&mut self) {
        self.cut.fill(0);
        self.late.fill((0, 0));
    }

    fn delay_us(&mut self) -> u64 {
        self.rng.u64(self.conditions.delay_us_min..=self.conditions.delay_us_max)
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.u32(..1_000_000) < ppm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(conditions: NetworkConditions) -> Network {
        Network::new(3, conditions, Rng::with_seed(1))
    }

    fn hears_at(network: &mut Network, now: SimTime, from: usize, to: usize) -> bool {
        network.arrivals(now, from, to)[0].is_some()
    }

    fn hears(network: &mut Network, from: usize, to: usize) -> bool {
        hears_at(network, 0, from, to)
    }

    #[test]
    fn a_cut_outlasts_the_end_of_another() {
        let mut network = network(NetworkConditions::FAIR);
        network.cut(&Partition::Mute(0), 5_000);
        network.cut(&Partition::Split(vec![true, false, false]), 1_000);
        assert!(!hears_at(&mut network, 999, 1, 0) && !hears_at(&mut network, 999, 0, 1));
        assert!(hears_at(&mut network, 1_000, 1, 0) && !hears_at(&mut network, 4_999, 0, 1));
        assert!(hears_at(&mut network, 5_000, 0, 1));
    }

    #[test]
    fn a_slow_store_is_heard_late_and_hears_in_time() {
        let mut network = network(NetworkConditions::FAIR);
        network.slow_down(1, 500_000, 10_000);
        assert!(network.arrivals(0, 1, 0)[0].is_some_and(|first| first > 500_000));
        assert!(network.arrivals(0, 0, 1)[0].is_some_and(|first| first < 2_000));
        assert!(network.arrivals(10_000, 1, 0)[0].is_some_and(|first| first < 12_000));
    }

    #[test]
    fn fair_weather_delivers_once_and_in_order() {
        let mut network = network(NetworkConditions::FAIR);
        let mut last = 0;
        for now in 0..1_000 {
            let [Some(first), None] = network.arrivals(now, 0, 1) else {
                panic!("lost or doubled")
            };
            assert!(first >= last && first >= now + 100);
            last = first;
        }
    }

    #[test]
    fn bad_weather_loses_doubles_and_reorders() {
        let conditions = NetworkConditions {
            lost_ppm: 200_000,
            duplicated_ppm: 200_000,
            late_ppm: 100_000,
            late_us_max: 100_000,
            is_ordered: false,
            ..NetworkConditions::FAIR
        };
        let mut network = network(conditions);
        let (mut lost, mut doubled, mut reordered, mut last) = (0, 0, 0, 0);
        for now in 0..1_000 {
            match network.arrivals(now, 0, 1) {
                [Some(first), second] => {
                    doubled += u32::from(second.is_some());
                    reordered += u32::from(first < last);
                    last = first;
                }
                _ => lost += 1,
            }
        }
        assert!((100..300).contains(&lost), "{lost} lost");
        assert!((80..300).contains(&doubled), "{doubled} doubled");
        assert!(reordered > 100, "{reordered} out of order");
    }

    #[test]
    fn cuts_may_go_one_way() {
        let mut network = network(NetworkConditions::FAIR);
        network.cut(&Partition::Mute(0), SimTime::MAX);
        assert!(!hears(&mut network, 0, 1) && !hears(&mut network, 0, 2));
        assert!(hears(&mut network, 1, 0) && hears(&mut network, 1, 2));
        network.heal();
        network.cut(&Partition::Link { from: 1, to: 2 }, SimTime::MAX);
        assert!(!hears(&mut network, 1, 2) && hears(&mut network, 2, 1));
        network.heal();
        network.cut(&Partition::Split(vec![true, false, false]), SimTime::MAX);
        assert!(!hears(&mut network, 0, 1) && !hears(&mut network, 2, 0));
        assert!(hears(&mut network, 1, 2));
        network.heal();
        assert!((0..9).all(|link| hears(&mut network, link / 3, link % 3)));
    }
}
