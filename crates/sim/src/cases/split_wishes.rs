//! Splits that no operator asks for: leaders wish for them, and their stores carry them out.

use flotilla_region::SplitLimits;

use super::{DATA, Scenario};
use crate::world::SimWorld;

/// Puts until a region under load is split are fewer than this.
const PUTS_MAX: usize = 1_000;

fn regions(world: &SimWorld) -> usize {
    // One is the system's.
    world.reference_model().descriptors().count() - 1
}

/// A region with more rows than it may have becomes several, each with about as many.
#[test]
fn a_region_that_has_grown_is_split() {
    let mut case = Scenario::with_limits(60, SplitLimits { keys_max: 2, ..SplitLimits::default() });
    let (leader, region) = (case.leader, case.region(DATA));
    for nth in 0..3 {
        let key = case.key(nth);
        let put = case.put(leader, &region, &key);
        case.served(put);
    }
    case.until("a split by size", |world| regions(world) > 1);
    case.run(500_000);
    let parts: Vec<_> = case.world.reference_model().descriptors().cloned().collect();
    let keys = parts.iter().map(|part| case.world.workload().keys_in(part).len());
    assert!(keys.max() <= Some(2), "{parts:?}");
    let coverage = case.world.nodes()[leader].coverage().wishes;
    assert_eq!((coverage.by_size, coverage.by_load), (1, 0));
    case.finish();
}

/// A region with more requests than it may have becomes two, each with some of them; one with fewer
/// stays one.
#[test]
fn a_region_under_load_is_split_between_its_requests() {
    let limits = |requests_per_s_max| SplitLimits {
        requests_per_s_max,
        load_windows: 1,
        ..SplitLimits::default()
    };
    for (requests, is_split) in [(20, true), (100_000, false)] {
        let mut case = Scenario::with_limits(61, limits(requests));
        let region = case.region(DATA);
        let mut puts = 0;
        while regions(&case.world) == 1 && puts < PUTS_MAX {
            let key = case.key(puts % 4);
            let put = case.put(case.leader, &region, &key);
            case.answered(put);
            case.run(2_000);
            puts += 1;
        }
        assert_eq!((regions(&case.world) > 1, puts < PUTS_MAX), (is_split, is_split));
        let parts: Vec<_> = case.world.reference_model().descriptors().cloned().collect();
        let data = parts.iter().filter(|part| part.space == region.space);
        assert!(data.into_iter().all(|part| !case.world.workload().keys_in(part).is_empty()));
        case.run(50_000);
        let coverage = case.world.nodes()[case.leader].coverage().wishes;
        assert_eq!(coverage.by_load, u64::from(is_split));
        case.finish();
    }
}
