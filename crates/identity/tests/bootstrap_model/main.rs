//! An exhaustive model of the bootstrap, around the real code: whatever two or three stores do,
//! crash, lose and are told, there is one cluster, and sound stores come into it.
//!
//! `BOOTSTRAP_STATES` says how many states of three stores are looked at in each exploration.

mod actions;
mod calm;
mod explore;
mod rules;
mod store;
mod world;

use actions::ModelBounds;
use explore::explore;

/// States of three stores in each exploration.
fn states_max() -> usize {
    let given = std::env::var("BOOTSTRAP_STATES").ok();
    given.map_or(20_000, |given| given.parse().expect("BOOTSTRAP_STATES is a number"))
}

#[test]
fn two_stores_whole() {
    let bounds = ModelBounds { stores: 2, clusters: 2, wipes: 1, odd_starts: 1, round_max: 3 };
    let explored = explore(&bounds, &[], usize::MAX);
    println!("{explored:?}");
    assert!(explored.is_whole);
}

#[test]
fn three_stores() {
    let bounds = ModelBounds { stores: 3, clusters: 2, wipes: 2, odd_starts: 1, round_max: 3 };
    println!("{:?}", explore(&bounds, &[], states_max()));
}
