//! An exhaustive model of the bootstrap, around the real code: for all actions, crashes, losses and
//! configurations of two or three stores, there is one cluster, and sound stores come into it.
//!
//! `BOOTSTRAP_STATES` says how many states of three stores each exploration looks at; if it is set,
//! two stores are looked at with a wiped directory and another list together.

mod actions;
mod calm;
mod explore;
mod rules;
mod store;
mod world;

use actions::ModelBounds;
use explore::{FirstState, explore};

fn states_given() -> Option<usize> {
    let given = std::env::var("BOOTSTRAP_STATES").ok()?;
    Some(given.parse().expect("BOOTSTRAP_STATES is a number of states"))
}

/// Explores the states of three stores that are nearest to `first`, as many as wanted.
fn explore_three(first: FirstState, clusters: usize, wipes: u8, odd_starts: u8) {
    let states = states_given().unwrap_or(25_000);
    let bounds = ModelBounds { stores: 3, clusters, wipes, odd_starts, round_max: 3 };
    let explored = explore(&bounds, first, states);
    println!("{first:?}, {bounds:?}: {explored:?}");
}

/// Explores all states of two stores.
fn explore_two(wipes: u8, odd_starts: u8) {
    let bounds = ModelBounds { stores: 2, clusters: 2, wipes, odd_starts, round_max: 3 };
    let explored = explore(&bounds, FirstState::Empty, usize::MAX);
    println!("{bounds:?}: {explored:?}");
    assert!(explored.is_whole);
    assert!(explored.acknowledged > 0);
}

#[test]
fn two_stores_with_other_lists() {
    explore_two(0, 1);
}

#[test]
fn two_stores_that_lose_a_directory() {
    explore_two(1, u8::from(states_given().is_some()));
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
