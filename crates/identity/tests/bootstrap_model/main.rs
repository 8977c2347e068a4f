//! An exhaustive model of the bootstrap, around the real code: whatever two or three stores do,
//! crash, lose and are told, there is one cluster, and sound stores come into it.
//!
//! `BOOTSTRAP_STATES` says how many states of three stores each exploration looks at.

mod actions;
mod calm;
mod explore;
mod rules;
mod store;
mod world;

use actions::ModelBounds;
use explore::{FirstState, explore};

/// Explores the states of three stores that are nearest to `first`, as many as wanted.
fn explore_three(first: FirstState, clusters: usize, wipes: u8, odd_starts: u8) {
    let given = std::env::var("BOOTSTRAP_STATES").ok();
    let states = given.map_or(25_000, |given| given.parse().expect("a number of states"));
    let bounds = ModelBounds { stores: 3, clusters, wipes, odd_starts, round_max: 3 };
    let explored = explore(&bounds, first, states);
    println!("{first:?}, {bounds:?}: {explored:?}");
}

#[test]
fn two_stores_whole() {
    let bounds = ModelBounds { stores: 2, clusters: 2, wipes: 1, odd_starts: 1, round_max: 3 };
    let explored = explore(&bounds, FirstState::Empty, usize::MAX);
    println!("{explored:?}");
    assert!(explored.is_whole);
    assert!(explored.acknowledged > 0);
}

#[test]
fn three_stores_from_empty_directories() {
    explore_three(FirstState::Empty, 2, 1, 1);
}

#[test]
fn three_stores_from_a_plan() {
    explore_three(FirstState::Drawn, 2, 1, 1);
}

#[test]
fn three_stores_from_a_plan_that_all_keep() {
    explore_three(FirstState::Kept, 2, 2, 0);
}

#[test]
fn three_stores_from_the_first_member() {
    explore_three(FirstState::Begun, 2, 2, 0);
}
