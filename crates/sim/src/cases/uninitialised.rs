//! Replicas without data: their votes and terms, and what makes a replica of them, or ends them.

use flotilla_region::{MembershipChange, RegionId};

use super::membership::{latest_leader, vote};
use super::snapshots::split_while_away;
use super::{DATA, Scenario};
use crate::network::PassedSnapshots;
use crate::world::SimWorld;

/// A store gets the rows of the data region as they were before a split, so that messages may make
/// a replica without data of the child there first. Returns the child, which `other` leads.
fn split_behind_a_stream(seed: u64) -> (Scenario, RegionId) {
    let mut case = Scenario::wide(seed, 4);
    let (leader, [other, _]) = (case.leader, case.followers);
    case.puts(DATA, 3);
    case.world.slow_link(leader, 3, 450_000);
    case.add(DATA, 3);
    // The rows are those of now; their range is promised when the offer arrives.
    case.until("a stream", |world| world.nodes()[leader].streams() > 0);
    case.world.pass_snapshots(PassedSnapshots::Of(DATA));
    let (split, child) = case.split(leader);
    case.served(split);
    case.until("a leader of the child", |world| latest_leader(world, child).is_some());
    case.hand_over(child, other);
    case.has_data(DATA, 3);
    case.until("the child", |world| world.nodes()[3].status(child).is_some());
    (case, child)
}

/// C2: a message makes a replica without data; then the parent, whose rows come from before the
/// split, applies the split, which makes the same replica.
#[test]
fn c2_a_replica_without_data_is_then_made_by_the_split() {
    let mut made = 0;
    for seed in 260..266 {
        let (mut case, _) = split_behind_a_stream(seed);
        let seen = case.world.nodes()[3].coverage();
        made += u32::from(seen.snapshots.uninitialised > 1 && seen.snapshots.installed == 1);
        case.world.mend();
        case.world.pass_snapshots(PassedSnapshots::All);
        case.finish();
    }
    assert!(made > 0, "no message came before the split");
}

/// C2e: the same, and the power goes before a root has the split: the replica's birth by the split
/// is in the log, and its row without data may be in the root.
#[test]
fn c2e_the_power_goes_when_a_split_has_made_a_replica_without_data() {
    let mut both = 0;
    for seed in 260..272 {
        let (mut case, child) = split_behind_a_stream(seed);
        let had_none = case.world.nodes()[3].coverage().snapshots.uninitialised > 1;
        // Until the births are synced.
        case.run(5_000);
        case.world.lose_power_for(3, 50_000);
        case.until("the child", |world| world.nodes()[3].status(child).is_some());
        both += u32::from(had_none && case.unborn(3) > 0);
        case.world.mend();
        case.world.pass_snapshots(PassedSnapshots::All);
        case.finish();
    }
    assert!(both > 0, "no start found the birth of a replica that had no data");
}

/// C2b: the first messages of the leader are lost, and then its snapshots.
#[test]
fn c2b_the_first_messages_to_a_learner_are_lost() {
    let mut case = Scenario::wide(266, 4);
    let leader = case.leader;
    case.world.cut_link(leader, 3);
    case.add(DATA, 3);
    case.run(500_000);
    case.world.pass_snapshots(PassedSnapshots::Of(RegionId(99)));
    case.world.mend();
    case.until("a replica without data", |world| {
        world.nodes()[3].coverage().snapshots.uninitialised > 0
    });
    case.run(3_000_000);
    assert!(case.status(3, DATA).is_none(), "no snapshot came");
    case.world.pass_snapshots(PassedSnapshots::All);
    case.until_in(40_000_000, "the rows", |world| world.nodes()[3].status(DATA).is_some());
    case.finish();
}

/// C2c: the third replica of a child is dead, and one is without data: with the vote of that one
/// the child has a leader, and its writes are acknowledged once it has the rows.
#[test]
fn c2c_a_child_with_a_dead_third_goes_on() {
    let mut case = Scenario::with_short_logs(81);
    let [away, other] = case.followers;
    let child = split_while_away(&mut case, away, 1)[0];
    case.world.mend();
    case.until("a replica without data", |world| {
        world.nodes()[away].coverage().snapshots.uninitialised > 0
    });
    case.world.lose_power_for(other, 9_000_000);
    case.until("a leader", |world| world.leading(child).is_some_and(|leader| leader != other));
    let leader = case.world.leading(child).unwrap();
    let (region, key) = (case.region(child), case.key(0));
    let put = case.put(leader, &region, &key);
    case.served(put);
    case.finish();
}

/// C2d: a replica without data has voted above the leader's term. The leader hears of it, and the
/// region goes on in a later term.
#[test]
fn c2d_a_replica_without_data_has_voted_above_its_leader() {
    for seed in 82..86 {
        let mut case = Scenario::with_short_logs(seed);
        let [away, other] = case.followers;
        let child = split_while_away(&mut case, away, 1)[0];
        case.world.pass_snapshots(PassedSnapshots::Of(DATA));
        case.world.mend();
        case.until("a replica without data", |world| {
            world.nodes()[away].coverage().snapshots.uninitialised > 0
        });
        let leader = case.latest_leader(child).unwrap();
        let candidate = if leader == other { case.leader } else { other };
        let term = case.term(leader, child);
        let is_later = |world: &SimWorld, store: usize| {
            world.nodes()[store].status(child).is_some_and(|status| status.term > term)
        };
        case.world.cut_link(leader, candidate);
        case.world.cut_link(candidate, leader);
        // It has the pre-vote of the one without data, and not yet its vote.
        case.until("a candidate", |world| is_later(world, candidate));
        case.world.cut_link(away, candidate);
        case.until("the leader hears of the vote", |world| is_later(world, leader));
        assert!(!case.world.leads(candidate, child), "the vote was lost");
        case.world.cut_off(candidate);
        case.world.pass_snapshots(PassedSnapshots::All);
        case.until_in(40_000_000, "the rows", |world| world.nodes()[away].status(child).is_some());
        case.world.mend();
        case.finish();
    }
}

/// C11: a replica without data was ended; then a candidate that does not know of it asks it for its
/// vote. It is not made again.
#[test]
fn c11_an_older_candidate_calls_a_replica_that_has_ended() {
    let mut case = Scenario::with_short_logs(254);
    let [away, other] = case.followers;
    let child = split_while_away(&mut case, away, 1)[0];
    // The parent's rows come, which frees the child's range, and none of the child's.
    case.world.pass_snapshots(PassedSnapshots::Of(DATA));
    case.world.mend();
    case.until("a replica without data", |world| {
        world.nodes()[away].coverage().snapshots.uninitialised > 0
    });
    let leader = case.latest_leader(child).unwrap();
    let candidate = if leader == other { case.leader } else { other };
    case.world.cut_off(candidate);
    // Two of three: the one that asks, and the one without data, whose log is empty.
    case.run(100_000);
    case.world.pass_snapshots(PassedSnapshots::All);
    case.has_data(child, away);
    let id = case.listed(child, away).unwrap();
    let gone = case.listed(child, candidate).unwrap();
    case.change(child, &vote(&[], &[gone]));
    case.change(child, &vote(&[], &[id]));
    case.change(child, &MembershipChange::Remove(id));
    case.has_ended(away, 1);
    let made = case.world.nodes()[away].coverage().snapshots.uninitialised;
    // The leader is not to tell the candidate of anything.
    case.world.mend();
    case.world.cut_link(leader, candidate);
    for _ in 0..5 {
        case.world.campaign(candidate, child).expect("nothing is done yet");
        case.run(200_000);
    }
    assert_eq!(case.world.nodes()[away].coverage().snapshots.uninitialised, made);
    assert!(case.status(away, child).is_none());
    case.world.mend();
    case.finish();
}

/// C13: a replica without data gives the vote that decides, restarts, and keeps it.
#[test]
fn c13_a_replica_without_data_votes_and_restarts() {
    let mut case = Scenario::with_short_logs(80);
    let [away, other] = case.followers;
    let child = split_while_away(&mut case, away, 1)[0];
    // No snapshot of the child gets through: the replica stays without data.
    // That of the parent does: its old range holds the child's.
    case.world.pass_snapshots(PassedSnapshots::Of(DATA));
    case.world.mend();
    case.until("a replica without data", |world| {
        world.nodes()[away].coverage().snapshots.uninitialised > 0
    });
    let leader = case.world.leading(child).unwrap();
    let candidate = if leader == other { case.leader } else { other };
    case.world.lose_power_for(leader, 4_000_000);
    case.until("another leader", |world| world.leading(child) == Some(candidate));
    assert!(case.snapshots().uninitialised_votes > 0, "its vote was needed");
    case.world.lose_power_for(away, 10_000);
    case.until("the start", |world| world.nodes()[away].is_running());
    assert!(case.snapshots().uninitialised_starts > 0);
    // A vote is asked of it again in the term that it has voted in, and in the next.
    case.world.campaign(candidate, child).expect("nothing is done yet");
    case.run(500_000);
    case.world.pass_snapshots(PassedSnapshots::All);
    case.until("the child", |world| world.nodes()[away].status(child).is_some());
    case.finish();
}
