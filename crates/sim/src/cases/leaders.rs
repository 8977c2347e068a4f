//! The leader changes while a split is under way, and ids of splits that came to nothing.

use super::{DATA, Scenario};
use crate::request::RequestState;

/// C6: the leader dies when the split is in the logs of others and applied nowhere. The next leader
/// carries it out.
#[test]
fn c6_the_leader_dies_with_a_split_that_others_have() {
    let mut case = Scenario::new(7);
    let leader = case.leader;
    for store in 0..3 {
        case.world.slow_applying(store, 200_000);
    }
    let last = case.status(leader, DATA).unwrap().last;
    let (split, child) = case.split(leader);
    let followers = case.followers;
    case.until("the entry", |world| {
        let has = |store: &usize| {
            world.nodes()[*store].status(DATA).is_some_and(|status| status.persisted > last)
        };
        followers.iter().all(has)
    });
    case.world.lose_power_for(leader, 3_000_000);
    assert_eq!(case.state(split), RequestState::Lost);
    case.until("a leader of the child", |world| world.leading(child).is_some());
    assert!(followers.contains(&case.world.leading(child).unwrap()));
    case.finish();
}

/// C6, C15b: the leader proposes a split that no other store hears of, and another one leads. The
/// split comes to nothing, and its ids are nowhere; one with other ids is made in its place.
#[test]
fn c6_c15b_a_split_that_no_other_store_hears_of_comes_to_nothing() {
    let mut case = Scenario::new(8);
    let leader = case.leader;
    case.world.cut_off(leader);
    let (lost, never) = case.split(leader);
    case.run(20_000);
    assert_eq!(case.state(lost), RequestState::Waiting, "it is in the log, and its fate open");
    let followers = case.followers;
    case.until("another leader", |world| followers.iter().any(|store| leads(world, *store)));
    let next = followers.into_iter().find(|store| leads(&case.world, *store)).unwrap();
    let (split, child) = case.split(next);
    case.served(split);
    assert_ne!(child, never, "ids that were proposed are spent");
    case.world.mend();
    case.refused(lost);
    assert!(!case.exists(never) && case.exists(child));
    case.until("the child", |world| world.nodes()[leader].status(child).is_some());
    assert!((0..3).all(|store| case.status(store, never).is_none()));
    case.finish();
}

/// C15b: of two splits of the same version in the log the second is void, and so are its ids.
#[test]
fn c15b_the_ids_of_a_void_split_are_spent() {
    let mut case = Scenario::new(9);
    let leader = case.leader;
    case.world.slow_applying(leader, 50_000);
    let (first, child) = case.split(leader);
    case.run(1_000);
    let (second, never) = case.split(leader);
    case.run(20_000);
    assert_eq!(case.state(second), RequestState::Waiting, "both are in the log");
    case.served(first);
    case.refused(second);
    let (region, end) = (case.region(DATA), case.key(2));
    let (third, other) = case.split_at(leader, &region, &end);
    case.served(third);
    assert!(case.exists(child) && case.exists(other) && !case.exists(never));
    assert!((0..3).all(|store| case.status(store, never).is_none()));
    case.finish();
}

fn leads(world: &crate::world::SimWorld, store: usize) -> bool {
    let status = world.nodes()[store].status(DATA);
    status.is_some_and(|status| status.role == flotilla_region::Role::Leader)
}
