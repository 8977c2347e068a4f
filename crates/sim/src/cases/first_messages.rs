//! A child speaks to a store that has not applied its split yet.

use flotilla_region::Role;

use super::Scenario;

/// C1: appends of a child reach a store before the split is applied there. They are dropped, and
/// the child is whole there once it is made.
#[test]
fn c1_an_append_comes_before_the_split_is_applied() {
    let mut case = Scenario::new(1);
    let [slow, _] = case.followers;
    case.world.slow_applying(slow, 300_000);
    let (split, child) = case.split(case.leader);
    case.served(split);
    let leader = case.leader;
    case.until("a leader of the child", |world| world.leading(child) == Some(leader));
    let (region, key) = (case.region(child), case.key(0));
    let before = case.world.core_stats(slow).dropped.misrouted;
    let put = case.put(leader, &region, &key);
    case.served(put);
    case.run(10_000);
    assert_eq!(case.status(slow, child), None, "the split is not applied there");
    assert!(case.world.core_stats(slow).dropped.misrouted > before, "the append came");
    let last = case.status(leader, child).unwrap().last;
    case.until("the child", |world| {
        world.nodes()[slow].status(child).is_some_and(|status| status.applied >= last)
    });
    case.finish();
}

/// C1b: a vote is asked of a child before its split is applied there. It is kept, and given when
/// the child is made: the child has a leader long before a candidate would ask again.
#[test]
fn c1b_a_vote_that_came_too_early_is_given() {
    let mut case = Scenario::new(2);
    let [slow, away] = case.followers;
    // So that the one vote decides.
    case.world.lose_power_for(away, 3_000_000);
    case.world.slow_applying(slow, 100_000);
    let (split, child) = case.split(case.leader);
    case.served(split);
    let us = case.until("a leader of the child", |world| world.leading(child).is_some());
    assert!((50_000..250_000).contains(&us), "after {us} us");
    assert_eq!(case.world.leading(child), Some(case.leader));
    assert_eq!(case.world.core_stats(slow).held_votes, 1);
    assert_eq!(case.status(slow, child).unwrap().role, Role::Follower);
    case.finish();
}
