//! Stores lose power around a split.

use flotilla_kv::raw::RawOp;
use flotilla_region::{RegionId, SPLIT_INDEX};

use super::{DATA, Scenario};
use crate::request::RequestBody;

/// A split with a child whose write only the leader and one follower have, and no root of any store
/// has anything of it. Returns the child.
fn split_between_two(case: &mut Scenario, away: usize) -> RegionId {
    case.world.cut_off(away);
    let (split, child) = case.split(case.leader);
    case.served(split);
    case.until("a leader of the child", |world| world.leading(child).is_some());
    let (region, key) = (case.region(child), case.key(0));
    let put = RawOp::put(key, b"acknowledged".as_slice().into());
    let put = case.ask(case.leader, &region, RequestBody::Write(vec![put]));
    case.served(put);
    child
}

/// C5: the power goes before anything of a split is durable in the pages, and after the child has
/// voted and acknowledged. Its store comes back without the former leader, and must know both.
#[test]
fn c5_a_child_that_has_acknowledged_loses_its_split() {
    let mut case = Scenario::new(3);
    let [voter, away] = case.followers;
    let child = split_between_two(&mut case, away);
    let before = case.status(voter, child).unwrap();
    case.world.lose_power_for(case.leader, 8_000_000);
    case.world.lose_power_for(voter, 10_000);
    case.world.mend();
    case.until("the child", |world| world.nodes()[voter].status(child).is_some());
    assert_eq!(case.unborn(voter), 1, "only the log had it");
    let after = case.status(voter, child).unwrap();
    assert!(after.term >= before.term && after.last >= before.last, "{before:?}, {after:?}");
    case.until("a leader", |world| world.leading(child).is_some());
    assert_eq!(case.world.leading(child), Some(voter), "the other one lacks the entry");
    let (region, key) = (case.region(child), case.key(0));
    let get = case.ask(voter, &region, RequestBody::Get(key));
    case.served(get);
    case.finish();
}

/// C5b: after a start, messages for a child come before its split is applied again. They change
/// nothing that the child has in the log.
#[test]
fn c5b_a_message_comes_before_the_split_is_applied_again() {
    let mut case = Scenario::new(4);
    let [again, away] = case.followers;
    let child = split_between_two(&mut case, away);
    let before = case.status(again, child).unwrap();
    case.world.lose_power_for(again, 10_000);
    case.until("the start", |world| world.nodes()[again].is_running());
    assert_eq!(case.unborn(again), 1);
    case.world.slow_applying(again, 400_000);
    let put = {
        let (region, key) = (case.region(child), case.key(0));
        case.run(200_000);
        case.put(case.leader, &region, &key)
    };
    case.run(50_000);
    assert_eq!(case.status(again, child), None, "the split is not applied again");
    assert!(case.world.core_stats(again).dropped.misrouted > 0, "messages came");
    case.until("the child", |world| world.nodes()[again].status(child).is_some());
    let after = case.status(again, child).unwrap();
    assert!(after.term >= before.term && after.last >= before.last, "{before:?}, {after:?}");
    // The third store is away: the write needs this replica.
    case.served(put);
    case.finish();
}

/// C5d: the process ends a second time, right after the split was applied again. The second birth
/// has taken nothing from the log.
#[test]
fn c5d_a_child_is_born_twice() {
    let mut case = Scenario::new(12);
    let [voter, away] = case.followers;
    let child = split_between_two(&mut case, away);
    let before = case.status(voter, child).unwrap();
    case.world.lose_power_for(case.leader, 8_000_000);
    case.world.lose_power_for(voter, 10_000);
    case.until("the child", |world| world.nodes()[voter].status(child).is_some());
    case.run(50_000);
    case.world.end_process(voter, 10_000);
    case.until("the end", |world| !world.nodes()[voter].is_running());
    case.until("the child", |world| world.nodes()[voter].status(child).is_some());
    assert_eq!(case.unborn(voter), 2, "at both starts");
    let after = case.status(voter, child).unwrap();
    assert!(after.term >= before.term && after.last >= before.last, "{before:?}, {after:?}");
    case.finish();
}

/// A child of a child: neither split is in the pages, and the grandchild waits for both.
#[test]
fn c5c_a_grandchild_waits_for_two_splits() {
    let mut case = Scenario::new(5);
    let [again, away] = case.followers;
    let child = split_between_two(&mut case, away);
    let (region, border) = (case.region(child), [&case.key(0)[..], &[0]].concat());
    let (split, grandchild) = case.split_at(case.leader, &region, &border);
    case.served(split);
    case.until("a leader", |world| world.leading(grandchild).is_some());
    case.run(50_000);
    case.world.lose_power_for(again, 10_000);
    case.until("the start", |world| world.nodes()[again].is_running());
    assert_eq!(case.unborn(again), 2);
    case.until("the grandchild", |world| world.nodes()[again].status(grandchild).is_some());
    assert!(case.status(again, child).unwrap().applied > SPLIT_INDEX);
    case.finish();
}

/// A store that was away through several splits finds them all in the log of the parent.
#[test]
fn c7b_a_store_was_away_through_several_splits() {
    let mut case = Scenario::new(6);
    let [away, _] = case.followers;
    case.world.cut_off(away);
    let mut children = Vec::new();
    for nth in 1..4 {
        let (region, end) = (case.region(DATA), case.key(nth));
        let (split, child) = case.split_at(case.leader, &region, &end);
        case.served(split);
        // The core hears of it after the client.
        case.run(1_000);
        children.push(child);
    }
    assert!(children.iter().all(|child| case.status(away, *child).is_none()));
    case.world.mend();
    for child in children {
        case.until("each child", |world| world.nodes()[away].status(child).is_some());
    }
    case.finish();
}
