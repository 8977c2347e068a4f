//! Whole clusters from fixed seeds: none breaks a rule, the same seed repeats exactly, and the
//! seeds that once found a bug stay good. Many more seeds: `cargo run --release -p flotilla-sim`.

use flotilla_sim::{Options, SimReport, run};

/// Few events, because tests are built without optimisation.
const EVENTS: u64 = 4_000;

fn good(seed: u64, options: Options) -> SimReport {
    let report = run(seed, options);
    assert_eq!(report.failure, None, "seed {seed}, {options:?}");
    report
}

#[test]
fn clusters_of_fixed_seeds_break_no_rule() {
    let mut crashes = 0;
    let mut served = 0;
    let mut splits = 0;
    for seed in 1..=12 {
        let report = good(seed, Options { events: EVENTS, ..Options::default() });
        crashes += report.counts.crashes;
        served += report.tally.served;
        splits += report.coverage.splits.applied;
    }
    assert!(crashes > 10 && served > 500, "{crashes} crashes, {served} requests served");
    assert!(splits > 0, "no region was split");
}

#[test]
fn five_stores_break_no_rule() {
    let (mut changes, mut ended) = (0, 0);
    for seed in 1..=16 {
        let options = Options { events: EVENTS, stores: Some(5), ..Options::default() };
        let coverage = good(seed, options).coverage;
        changes += coverage.membership.changes;
        ended += coverage.membership.ended;
        let without = good(seed, Options { membership: false, ..options }).coverage;
        let mut membership = without.membership;
        // Digests of replicas that are compared go by notices as well.
        (membership.notices, membership.late) = (0, 0);
        assert_eq!(membership, flotilla_sim::Coverage::default().membership);
    }
    assert!(changes > 0 && ended > 0, "{changes} changes of members, {ended} ends");
}

#[test]
fn the_same_seed_repeats_exactly_and_another_does_not() {
    let options = Options { events: EVENTS, ..Options::default() };
    for seed in [3, 1_000_003] {
        assert_eq!(run(seed, options), run(seed, options));
        assert_ne!(run(seed, options).trace, run(seed + 1, options).trace);
    }
}

#[test]
fn seeds_that_found_something_stay_good() {
    for line in include_str!("../seeds.txt").lines() {
        let line = line.split('#').next().unwrap().trim();
        if line.is_empty() {
            continue;
        }
        let fields: Vec<_> = line.split_whitespace().collect();
        let [seed, events, stores] = fields[..] else { panic!("not three fields: {line}") };
        let stores = (stores != "-").then(|| stores.parse().unwrap());
        let options = Options { events: events.parse().unwrap(), stores, ..Options::default() };
        good(seed.parse().unwrap(), options);
    }
}
