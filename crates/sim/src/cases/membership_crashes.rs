//! Members change, and stores die or are cut off beside it.

use flotilla_region::{MembershipChange, PeerRole, Role};

use super::membership::{latest_leader, vote};
use super::{DATA, Scenario};
use crate::executor::InstallArrow;
use crate::request::{ClientRequest, RequestBody, RequestOwner, RequestState};

/// C16: the leader dies between entering a joint configuration and leaving it. The next one
/// leaves it, and no operator has to ask.
#[test]
fn c16_the_leader_dies_between_enter_and_leave() {
    for seed in 220..224 {
        let mut case = Scenario::wide(seed, 4);
        let (leader, [from, other]) = (case.leader, case.followers);
        let old = case.id_on(from);
        let new = case.add(DATA, 3);
        case.has_data(DATA, 3);
        case.all_are_level(DATA);
        // The others know the configuration, and the leader has not applied it.
        case.world.slow_applying(leader, 900_000);
        let enter = case.commit(DATA, &vote(&[new], &[old]));
        case.until("the configuration", |world| {
            let joint =
                |store: usize| world.nodes()[store].descriptor(DATA)?.is_joint().then_some(());
            joint(other).is_some() && joint(3).is_some()
        });
        case.world.lose_power_for(leader, 9_000_000);
        assert_eq!(case.answered(enter), RequestState::Lost);
        case.has_left(DATA);
        assert_eq!(case.role_on(DATA, 3), Some(PeerRole::Voter));
        assert_eq!(case.role_on(DATA, from), Some(PeerRole::Learner));
        assert!(!case.world.nodes()[leader].is_running(), "it is still away");
        case.takes_a_write(DATA);
        case.finish();
    }
}

/// C17: the leader dies as soon as a joint configuration is committed. Those that have the entry do
/// not know that it is.
#[test]
fn c17_the_best_log_does_not_know_the_commit() {
    for seed in 224..230 {
        let mut case = Scenario::wide(seed, 4);
        let (leader, [from, _]) = (case.leader, case.followers);
        let old = case.id_on(from);
        let new = case.add(DATA, 3);
        case.has_data(DATA, 3);
        case.all_are_level(DATA);
        case.commit(DATA, &vote(&[new], &[old]));
        case.until("the configuration", |world| {
            world.reference_model().descriptor(DATA).is_some_and(|region| region.is_joint())
        });
        case.world.lose_power_for(leader, 9_000_000);
        case.has_left(DATA);
        assert!(!case.world.nodes()[leader].is_running(), "it is still away");
        case.takes_a_write(DATA);
        case.finish();
    }
}

/// C17b: in a joint configuration the leader dies, and one that is outgoing follows it; the next
/// best is outgoing as well. The region comes out of it, led by one that keeps its vote.
#[test]
fn c17b_the_leader_and_the_next_best_are_outgoing() {
    for seed in 230..234 {
        let mut case = Scenario::wide(seed, 5);
        let (leader, [one, other]) = (case.leader, case.followers);
        let old = [case.id_on(one), case.id_on(other)];
        let new = [case.add(DATA, 3), case.add(DATA, 4)];
        [3, 4].into_iter().for_each(|store| case.has_data(DATA, store));
        case.all_are_level(DATA);
        case.world.slow_applying(leader, 900_000);
        case.commit(DATA, &vote(&new, &old));
        case.until("the configuration", |world| {
            let descriptor = |store: usize| world.nodes()[store].descriptor(DATA);
            [one, other, 3, 4].into_iter().all(|it| descriptor(it).is_some_and(|it| it.is_joint()))
        });
        case.world.lose_power_for(leader, 9_000_000);
        for _ in 0..6 {
            case.world.campaign(one, DATA).expect("nothing is done yet");
            case.run(400_000);
        }
        case.has_left(DATA);
        case.takes_a_write(DATA);
        let next = case.latest_leader(DATA).unwrap();
        assert_eq!(case.role_on(DATA, next), Some(PeerRole::Voter));
        assert_eq!(case.role_on(DATA, one), Some(PeerRole::Learner));
        assert_eq!(case.role_on(DATA, other), Some(PeerRole::Learner));
        case.finish();
    }
}

/// C18: a learner was promoted and has not heard of it, and no leader can be without its vote.
#[test]
fn c18_a_promoted_replica_does_not_know_and_its_vote_is_needed() {
    let mut case = Scenario::wide(234, 4);
    let (leader, [one, other]) = (case.leader, case.followers);
    let new = case.add(DATA, 3);
    case.has_data(DATA, 3);
    case.all_are_level(DATA);
    case.world.cut_link(leader, 3);
    let promote = case.commit(DATA, &vote(&[new], &[]));
    case.served(promote);
    case.until("the others", |world| {
        [one, other].into_iter().all(|store| {
            let region = world.nodes()[store].descriptor(DATA);
            region.and_then(|region| region.listed(new)).is_some_and(|peer| peer.votes())
        })
    });
    let here = case.world.nodes()[3].descriptor(DATA).and_then(|it| it.listed(new)).unwrap();
    assert_eq!(here.role, PeerRole::Learner, "it does not know");
    // Three of four are needed, and three are there.
    case.world.lose_power_for(leader, 9_000_000);
    case.world.mend();
    case.until("another leader", |world| {
        [one, other].into_iter().any(|store| world.leads(store, DATA))
    });
    case.takes_a_write(DATA);
    assert!(!case.world.nodes()[leader].is_running(), "it is still away");
    case.finish();
}

/// C12, C12b: the power goes behind each arrow of the end of a replica. The store comes back with
/// the replica, which ends again, or without anything of it; and the region comes to it again, as
/// another replica.
#[test]
fn c12_the_power_goes_inside_an_end_and_the_region_comes_again() {
    for (nth, arrow) in InstallArrow::ENDS.into_iter().enumerate() {
        let mut case = Scenario::with_roots(240 + nth as u64);
        let [store, _] = case.followers;
        case.puts(DATA, 3);
        case.world.cut_at_arrow(store, arrow);
        let id = case.id_on(store);
        case.change(DATA, &vote(&[], &[id]));
        case.change(DATA, &MembershipChange::Remove(id));
        case.until("the power loss", |world| {
            world.nodes()[store].coverage().membership.cuts_at_ends == 1
        });
        case.all_confirmed(DATA);
        assert!(case.status(store, DATA).is_none(), "{arrow:?}");
        let new = case.add(DATA, store);
        case.has_data(DATA, store);
        case.change(DATA, &vote(&[new], &[]));
        case.all_are_level(DATA);
        assert_eq!(case.status(store, DATA).unwrap().peer, new);
        case.finish();
    }
}

/// C12c, C11b: the core hears of all that is done half a second late, and looks and reads of the
/// log are as late, while a region leaves a store and comes back again and again.
#[test]
fn c12c_completions_of_an_earlier_life_come_late() {
    for seed in 250..254 {
        let mut case = Scenario::wide_with_short_logs(seed, 4);
        for round in 0..3 {
            case.world.slow_notices_of_work(3, 500_000);
            let id = case.add(DATA, 3);
            case.run([1_000, 100_000, 700_000][round]);
            case.change(DATA, &MembershipChange::Remove(id));
            case.try_puts(DATA, 3);
            case.all_confirmed(DATA);
        }
        case.add(DATA, 3);
        case.has_data(DATA, 3);
        case.finish();
    }
}

/// C3: a child was removed from a store, as a voter or as a learner, and has ended there, before
/// the split that makes it is applied. The split makes no replica of it then.
#[test]
fn c3_a_split_is_applied_after_its_child_has_ended() {
    for (seed, as_learner) in [(255, false), (256, true), (257, false), (258, true)] {
        let mut case = Scenario::wide(seed, 4);
        let (leader, [late, other]) = (case.leader, case.followers);
        if as_learner {
            let id = case.id_on(late);
            case.change(DATA, &vote(&[], &[id]));
            // The core hears of it after the client.
            case.run(50_000);
        }
        case.world.cut_off(late);
        let (split, child) = case.split(leader);
        case.served(split);
        case.until("a leader of the child", |world| latest_leader(world, child).is_some());
        // It is led elsewhere than its parent, whose leader the store is not to hear.
        case.hand_over(child, other);
        case.drop_replica(child, late);
        case.world.mend();
        case.world.cut_link(leader, late);
        case.has_ended(late, 1);
        assert!(case.status(late, child).is_none());
        case.world.mend();
        case.all_confirmed(child);
        case.all_are_level(DATA);
        assert!(case.status(late, DATA).is_some(), "the parent has applied the split");
        assert!(case.status(late, child).is_none(), "the child is dead");
        case.finish();
    }
}

/// C21: the lead is to go to a replica that was promoted just now and does not know it. The
/// region is led all the while, or soon again.
#[test]
fn c21_a_transfer_to_one_that_was_just_promoted() {
    for seed in 270..274 {
        let mut case = Scenario::wide(seed, 4);
        let leader = case.leader;
        let new = case.add(DATA, 3);
        case.has_data(DATA, 3);
        case.all_are_level(DATA);
        case.world.slow_applying(3, 1_500_000);
        case.change(DATA, &vote(&[new], &[]));
        let (region, to) = (case.region(DATA), case.region(DATA).peer(new));
        let transfer = case.world.ask_for_transfer(&region, leader, to);
        case.answered(transfer);
        case.takes_a_write(DATA);
        case.finish();
    }
}

/// C23: a follower is asked for a read, and is demoted and removed before the answer is there.
#[test]
fn c23_a_read_is_asked_of_a_follower_that_is_removed() {
    for seed in 274..280 {
        let mut case = Scenario::wide(seed, 4);
        let [reader, other] = case.followers;
        let (region, key) = (case.region(DATA), case.key(1));
        case.world.slow_down(reader, 150_000);
        let ask = |case: &mut Scenario| {
            let body = RequestBody::Get(key.clone());
            let mut get = ClientRequest::new(RequestOwner::Auditor, &region, reader, body);
            get.follower = true;
            case.world.send(get)
        };
        let mut gets = vec![ask(&mut case)];
        let id = case.id_on(reader);
        case.change(DATA, &vote(&[], &[id]));
        gets.push(ask(&mut case));
        case.run(10_000);
        case.change(DATA, &MembershipChange::Remove(id));
        gets.push(ask(&mut case));
        case.takes_a_write(DATA);
        assert_ne!(case.latest_leader(DATA), Some(other));
        for get in gets {
            case.answered(get);
        }
        case.world.mend();
        case.all_confirmed(DATA);
        case.finish();
    }
}

/// C27: a read is granted, its replica ends, and then the read is carried out.
#[test]
fn c27_a_replica_ends_between_the_grant_and_the_read() {
    let mut turned_back = 0;
    for seed in 280..286 {
        let mut case = Scenario::wide(seed, 4);
        let [reader, _] = case.followers;
        let (region, key) = (case.region(DATA), case.key(1));
        let id = case.id_on(reader);
        case.change(DATA, &vote(&[], &[id]));
        // Cores hear of it after the client, and the reads wait for nothing then.
        case.run(50_000);
        case.world.slow_notices_of_work(reader, 400_000);
        let mut gets = Vec::new();
        for _ in 0..10 {
            let body = RequestBody::Get(key.clone());
            let mut get = ClientRequest::new(RequestOwner::Auditor, &region, reader, body);
            get.follower = true;
            gets.push(case.world.send(get));
        }
        case.run(20_000);
        // The reads that are granted by now stay as late as they are; the end comes at once.
        case.world.slow_notices_of_work(reader, 300);
        case.change(DATA, &MembershipChange::Remove(id));
        for get in gets {
            case.answered(get);
        }
        turned_back += case.world.nodes()[reader].coverage().ends.reads_turned_back;
        case.all_confirmed(DATA);
        case.finish();
    }
    assert!(turned_back > 0, "every read came before the end");
}

/// C24b: a change of the members is handed out and not applied when a snapshot that is beyond it is
/// there. It waits for the change.
#[test]
fn c24b_a_change_is_under_way_when_a_snapshot_comes() {
    for seed in 290..294 {
        let mut case = Scenario::wide_with_short_logs(seed, 4);
        let [slow, other] = case.followers;
        let id = case.id_on(other);
        case.world.slow_applying(slow, 400_000);
        case.puts(DATA, 6);
        case.add(DATA, 3);
        case.change(DATA, &vote(&[], &[id]));
        case.run(20_000);
        let behind = case.status(slow, DATA).unwrap();
        assert!(behind.applied < behind.last, "{behind:?}");
        case.change(DATA, &vote(&[id], &[]));
        case.world.cut_off(slow);
        case.let_go(DATA, behind.last);
        case.world.mend();
        case.all_are_level(DATA);
        assert!(case.snapshots().installed > 0);
        case.finish();
    }
}

/// C26: a learner is removed while its snapshot comes, is staged, and is in memory only.
#[test]
fn c26_a_replica_is_told_to_end_while_its_snapshot_comes() {
    for (seed, state) in [(300, 0), (301, 1), (302, 2), (303, 0), (304, 1), (305, 2)] {
        let mut case = Scenario::wide_with_short_logs(seed, 4);
        case.puts(DATA, 20);
        case.world.slow_syncs(3, 500_000);
        let id = case.add(DATA, 3);
        case.until("the snapshot", |world| {
            let seen = world.nodes()[3].coverage().snapshots;
            match state {
                0 => world.nodes()[3].streams() > 0,
                1 => seen.staged > 0,
                _ => seen.installed > 0,
            }
        });
        case.change(DATA, &MembershipChange::Remove(id));
        case.all_confirmed(DATA);
        assert!(case.status(3, DATA).is_none());
        case.finish();
    }
}

/// C28: the leader changes while its snapshot is under way, so that two leaders send one.
#[test]
fn c28_two_leaders_send() {
    for seed in 310..314 {
        let mut case = Scenario::wide_with_short_logs(seed, 4);
        let (leader, [next, _]) = (case.leader, case.followers);
        case.puts(DATA, 20);
        case.world.slow_down(3, 200_000);
        case.add(DATA, 3);
        case.until("a stream", |world| world.nodes()[leader].streams() > 0);
        case.hand_over(DATA, next);
        case.world.mend();
        case.until_in(40_000_000, "the rows", |world| world.nodes()[3].status(DATA).is_some());
        let role = case.status(leader, DATA).unwrap().role;
        assert_eq!(role, Role::Follower);
        case.finish();
    }
}
