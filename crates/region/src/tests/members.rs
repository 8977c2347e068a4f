//! Tests of changes of the members: a replica comes, gets its vote, and goes; no change stops the
//! region, whoever dies between two of its steps.

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;
use MembershipChange::{Add, LeaveJoint, Remove, Vote};

/// Stores 1 to 3 have the region, store 1 leads, and the other stores have nothing.
pub(super) fn cluster(seed: u64, stores: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, Config { seed, ..Config::default() });
    (4..=stores).for_each(|store| cluster.add_store(store));
    assert_eq!(cluster.elect(), 1);
    let put = cluster.put(1, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster
}

pub(super) fn descriptor_on(cluster: &Cluster, store: u64) -> Option<&Descriptor> {
    cluster.machines[&store].shard.descriptor(REGION)
}

pub(super) fn vote(promoted: &[u64], demoted: &[u64]) -> MembershipChange {
    let ids = |stores: &[u64]| stores.iter().map(|store| peer(*store).id).collect();
    Vote { promoted: ids(promoted), demoted: ids(demoted) }
}

/// Asks until it is done: a leader refuses what comes a moment too early.
pub(super) fn change(cluster: &mut Cluster, change: &MembershipChange) {
    for _ in 0..100 {
        let leader = cluster.elect();
        let ticket = cluster.change(leader, change.clone());
        match cluster.answer(ticket) {
            Answer::Done => return,
            _ => cluster.run(100),
        }
    }
    panic!("{change:?} was not done");
}

pub(super) fn settled(cluster: &Cluster) -> bool {
    let Some(leader) = cluster.leader() else { return false };
    let of_leader = descriptor_on(cluster, leader).unwrap();
    let role = of_leader.peer_on(StoreId(leader)).and_then(|peer| of_leader.listed(peer.id));
    role.is_some_and(|peer| peer.role == PeerRole::Voter)
        && !of_leader.is_joint()
        && of_leader.removed.unconfirmed.is_empty()
}

fn refusal(cluster: &mut Cluster, change: MembershipChange) -> MembershipRefusal {
    let leader = cluster.leader().unwrap();
    let ticket = cluster.change(leader, change);
    match cluster.answer(ticket) {
        Answer::Rejected(Reject::InvalidMembership(why)) => why,
        answer => panic!("{answer:?}"),
    }
}

fn serves(cluster: &mut Cluster, value: u64) {
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", value);
    assert_eq!(cluster.answer(put), Answer::Done);
    let read = cluster.read(leader, "a", false);
    let expected = bytes::Bytes::copy_from_slice(&value.to_be_bytes());
    assert_eq!(cluster.answer(read), Answer::Value(Some(expected)));
}

/// Learner 4 comes and has the data.
pub(super) fn with_learner(seed: u64, stores: u64) -> Cluster {
    let mut cluster = cluster(seed, stores);
    change(&mut cluster, &Add(peer(4)));
    cluster.run_until("the learner has the data", |cluster| {
        cluster.find_status(4).is_some_and(|status| status.applied >= Index(3))
    });
    cluster.run(300);
    cluster
}

#[test]
fn a_replica_moves_to_another_store_and_the_old_one_ends() {
    for seed in 0..5 {
        let mut cluster = with_learner(seed, 4);
        let on_four = cluster.machines[&4].shard.stats();
        assert_eq!(on_four.snapshots_installed, 1, "it has no data otherwise");
        change(&mut cluster, &vote(&[4], &[3]));
        cluster.run_until("the joint configuration is left", settled);
        serves(&mut cluster, 2);
        change(&mut cluster, &Remove(peer(3).id));
        cluster.run_until("the end is confirmed", |cluster| {
            settled(cluster) && descriptor_on(cluster, 3).is_none()
        });
        cluster.run(500);
        let three = &cluster.machines[&3];
        assert_eq!(three.tombstones.1.get(&REGION), Some(&peer(3).id), "seed {seed}");
        assert_eq!((three.disks.len(), three.shard.stats().replicas_ended), (0, 1));
        serves(&mut cluster, 3);
        for store in [1, 2, 4] {
            let region = descriptor_on(&cluster, store).unwrap();
            assert_eq!(region.epoch.conf_version, 1 + 1 + 2 + 2 + 1);
            let stores: Vec<_> =
                region.peers.iter().map(|peer| (peer.store.0, peer.role)).collect();
            assert_eq!(stores, [1, 2, 4].map(|store| (store, PeerRole::Voter)));
        }
        assert_eq!(cluster.waiting_count(), 0);
    }
}

/// Raft probes a replica that was unreachable until the next entry, which may never come.
#[test]
fn a_replica_that_was_away_is_promoted_and_leads_in_a_region_at_rest() {
    let mut cluster = with_learner(8, 4);
    for store in [2, 4] {
        cluster.push(1, Event::Unreachable { region: REGION, peer: peer(store).id });
    }
    cluster.run(1000);
    let last = cluster.status(1).last;
    let ticket = cluster.change(1, vote(&[4], &[]));
    assert_eq!(cluster.answer(ticket), Answer::Done);
    assert!(cluster.status(1).last <= Index(last.0 + 1), "no entry came before the change");
    cluster.push(1, Event::Unreachable { region: REGION, peer: peer(2).id });
    cluster.run(1000);
    let transfer = cluster.transfer(1, Some(2));
    assert_eq!(cluster.answer(transfer), Answer::Transferred(peer(2)));
}

/// A leader does not know which changes its predecessors have proposed until it has applied their
/// entries.
#[test]
fn a_new_leader_changes_nothing_before_it_has_applied_its_log() {
    let mut cluster = with_learner(9, 4);
    let transfer = cluster.transfer(1, Some(2));
    cluster.run_until("the next leader", |cluster| cluster.status(2).role == Role::Leader);
    let promote = cluster.change(2, vote(&[4], &[]));
    let why = Reject::InvalidMembership(MembershipRefusal::NewLeader);
    assert_eq!(cluster.answer(promote), Answer::Rejected(why));
    assert_eq!(cluster.answer(transfer), Answer::Transferred(peer(2)));
    change(&mut cluster, &vote(&[4], &[]));
}

#[test]
fn each_refusal_has_its_reason_and_changes_nothing() {
    let mut cluster = with_learner(7, 5);
    let before = descriptor_on(&cluster, 1).unwrap().clone();
    let own = refusal(&mut cluster, vote(&[], &[1]));
    assert_eq!(own, MembershipRefusal::LeaderVote, "C19");
    let own = refusal(&mut cluster, vote(&[4], &[1]));
    assert_eq!(own, MembershipRefusal::LeaderVote);
    let taken = |why| MembershipRefusal::Change(why);
    let second = Peer { id: PeerId(790), store: StoreId(4) };
    let why = refusal(&mut cluster, Add(second));
    assert_eq!(why, taken(MembershipError::StoreTaken(StoreId(4))), "C19b");
    let older = Peer { id: PeerId(700), store: StoreId(5) };
    assert_eq!(refusal(&mut cluster, Add(older)), taken(MembershipError::Floor(older.id)), "C15");
    assert_eq!(refusal(&mut cluster, LeaveJoint), taken(MembershipError::NotJoint));
    let command = MembershipCommand { epoch: Epoch::default(), change: Remove(peer(4).id) };
    let old = cluster.change_at(1, command);
    let current = vec![before.clone()];
    assert_eq!(cluster.answer(old), Answer::Rejected(Reject::EpochNotMatch { current }));
    let follower = cluster.change(2, Remove(peer(4).id));
    let leader = Some(peer(1));
    assert_eq!(cluster.answer(follower), Answer::Rejected(Reject::NotLeader { leader }));
    // A learner that has not answered for two seconds gets no vote.
    cluster.isolate(4);
    cluster.run(2100);
    assert_eq!(refusal(&mut cluster, vote(&[4], &[])), MembershipRefusal::Silent(peer(4).id));
    cluster.heal();
    cluster.run(300);
    // Behind the change store 1 alone of two would be there.
    cluster.isolate(3);
    cluster.run(2100);
    assert_eq!(refusal(&mut cluster, vote(&[], &[2])), MembershipRefusal::NoMajority);
    cluster.heal();
    cluster.run(300);
    assert_eq!(descriptor_on(&cluster, 1), Some(&before));
}

#[test]
fn a_learner_without_the_data_gets_no_vote() {
    let mut cluster = cluster(3, 4);
    cluster.snapshot_ms = 3000;
    change(&mut cluster, &Add(peer(4)));
    cluster.run(500);
    assert_eq!(refusal(&mut cluster, vote(&[4], &[])), MembershipRefusal::Lagging(peer(4).id));
    cluster.run(4000);
    change(&mut cluster, &vote(&[4], &[]));
}

#[test]
fn changes_come_one_at_a_time_and_not_beside_splits_and_transfers() {
    let mut cluster = with_learner(8, 5);
    let first = cluster.change(1, vote(&[4], &[]));
    let second = cluster.change(1, Add(peer(5)));
    let busy = MembershipRefusal::Changing;
    assert_eq!(cluster.answer(second), Answer::Rejected(Reject::InvalidMembership(busy)));
    assert_eq!(cluster.answer(first), Answer::Done);
    let region = descriptor_on(&cluster, 1).unwrap().clone();
    let split = |end: &'static str, id| SplitCommand {
        epoch: region.epoch,
        children: vec![SplitChild {
            id: RegionId(id),
            end: bytes::Bytes::from_static(end.as_bytes()),
            peers: (1..=4).map(|store| PeerId(100 * id + store)).collect(),
        }],
    };
    // A change beside a split, a split and a transfer beside a change.
    let splits = cluster.split(1, split("m", 8));
    let beside = cluster.change(1, Add(peer(5)));
    assert_eq!(cluster.answer(beside), Answer::Rejected(Reject::InvalidMembership(busy)));
    assert_eq!(cluster.answer(splits), Answer::Done);
    cluster.run(300);
    let adds = cluster.change(1, Add(peer(5)));
    let transfers = cluster.transfer(1, Some(2));
    let split = SplitCommand { epoch: descriptor_on(&cluster, 1).unwrap().epoch, ..split("t", 9) };
    let splits = cluster.split(1, split);
    let changing = Reject::InvalidTransfer(TransferError::Changing);
    assert_eq!(cluster.answer(transfers), Answer::Rejected(changing));
    assert!(matches!(cluster.answer(splits), Answer::Rejected(Reject::Busy { .. })));
    assert_eq!(cluster.answer(adds), Answer::Done);
    let learner = cluster.transfer(1, Some(5));
    let not_voter = TransferError::NotVoter(peer(5).id);
    assert_eq!(cluster.answer(learner), Answer::Rejected(Reject::InvalidTransfer(not_voter)));
    let transfers = cluster.transfer(1, Some(2));
    let beside = cluster.change(1, Remove(peer(5).id));
    let handing = MembershipRefusal::Transferring;
    assert_eq!(cluster.answer(beside), Answer::Rejected(Reject::InvalidMembership(handing)));
    assert_eq!(cluster.answer(transfers), Answer::Transferred(peer(2)));
}

/// C16: the joint configuration is in the log, and its leader dies before it is left.
#[test]
fn the_next_leader_leaves_the_joint_configuration() {
    for seed in 0..8 {
        let mut cluster = with_learner(seed, 4);
        let joint = Index(cluster.status(1).last.0 + 1);
        cluster.change(1, vote(&[4], &[3]));
        // Its leader does not know that yet, so it has not asked to leave it.
        cluster.run_until("another voter has the joint configuration", |cluster| {
            (2..=3).any(|store| cluster.status(store).persisted >= joint)
        });
        assert_eq!(cluster.status(1).last, joint, "seed {seed}");
        cluster.isolate(1);
        cluster.crash(1);
        cluster.run_until("another leader leaves it", |cluster| {
            let leader = cluster.leader();
            leader.is_some_and(|leader| {
                let region = descriptor_on(cluster, leader).unwrap();
                region.epoch.conf_version == 6 && !region.is_joint()
            })
        });
        serves(&mut cluster, 9);
        cluster.heal();
        cluster.restart(1);
        cluster.run(2000);
        let region = descriptor_on(&cluster, 1).unwrap();
        assert_eq!(region.listed(peer(3).id).unwrap().role, PeerRole::Learner, "seed {seed}");
    }
}

/// Half of a joint configuration confirms no read: neither its lease nor its index counts.
#[test]
fn a_read_in_a_joint_configuration_needs_both_halves() {
    // Store 1 leads with one more of the new half {1, 2, 4}, or of the old one {1, 2, 3}.
    for with in [4, 3] {
        let mut cluster = with_learner(5, 4);
        cluster.change(1, vote(&[4], &[3]));
        cluster.run_until("the leader is joint", |cluster| {
            descriptor_on(cluster, 1).unwrap().is_joint()
        });
        let away: Vec<_> = [2, 3, 4].into_iter().filter(|store| *store != with).collect();
        away.iter().for_each(|store| cluster.isolate(*store));
        // The lease of before is over.
        cluster.run(600);
        let read = cluster.read(1, "a", false);
        let answer = cluster.answer(read);
        assert!(matches!(answer, Answer::Rejected(_)), "with {with}: {answer:?}");
        assert!(descriptor_on(&cluster, 1).unwrap().is_joint(), "and is not left");
        cluster.heal();
        cluster.run_until("it is left", |cluster| {
            descriptor_on(cluster, 1).is_some_and(|region| !region.is_joint())
        });
        serves(&mut cluster, 9);
    }
}

/// C17b: the one that is elected in the joint configuration loses its vote by it.
#[test]
fn an_outgoing_leader_hands_over_and_its_successor_leaves() {
    for seed in 0..8 {
        let mut cluster = with_learner(seed, 4);
        cluster.change(1, vote(&[4], &[2]));
        cluster
            .run_until("store 2 is joint", |cluster| descriptor_on(cluster, 2).unwrap().is_joint());
        cluster.crash(1);
        cluster.run(700);
        cluster.push(2, Event::Campaign { region: REGION });
        cluster.run_until("a leader that keeps its vote", |cluster| {
            cluster.leader().is_some_and(|leader| leader != 2) && settled(cluster)
        });
        serves(&mut cluster, 9);
        let region = descriptor_on(&cluster, 3).unwrap();
        assert_eq!(region.listed(peer(2).id).unwrap().role, PeerRole::Learner, "seed {seed}");
    }
}

/// C17: a replica with the best log does not know that the joint configuration was left.
#[test]
fn the_best_log_need_not_know_the_commit() {
    for seed in 0..8 {
        let mut cluster = with_learner(seed, 4);
        cluster.change(1, vote(&[4], &[2]));
        cluster.run_until("store 1 has left", |cluster| {
            let region = descriptor_on(cluster, 1).unwrap();
            region.epoch.conf_version == 6 && !region.is_joint()
        });
        // Nothing of the commit reaches the others.
        cluster.isolate(1);
        cluster.crash(1);
        cluster.run_until("a leader among the others", |cluster| {
            cluster.leader().is_some() && settled(cluster)
        });
        serves(&mut cluster, 5);
    }
}

/// C18: a learner was promoted, does not know it, and its vote is the missing one.
#[test]
fn a_learner_that_does_not_know_of_its_vote_gives_it() {
    let mut cluster = with_learner(5, 4);
    let promoted = cluster.change(1, vote(&[4], &[]));
    cluster.run(1);
    cluster.isolate(4);
    assert_eq!(cluster.answer(promoted), Answer::Done);
    cluster.run_until("the others know", |cluster| {
        [2, 3].iter().all(|store| descriptor_on(cluster, *store).unwrap().epoch.conf_version == 3)
    });
    assert_eq!(descriptor_on(&cluster, 4).unwrap().epoch.conf_version, 2);
    cluster.crash(1);
    cluster.heal();
    serves(&mut cluster, 4);
}

/// C21: a transfer to one that was promoted and does not know it comes to nothing, or works.
#[test]
fn a_transfer_to_one_just_promoted_does_no_harm() {
    for seed in 0..5 {
        let mut cluster = with_learner(seed, 4);
        let promoted = cluster.change(1, vote(&[4], &[]));
        assert_eq!(cluster.answer(promoted), Answer::Done);
        let transfer = cluster.transfer(1, Some(4));
        let put = cluster.put(1, "b", 1);
        let answer = cluster.answer(transfer);
        let timed_out = Reject::InvalidTransfer(TransferError::TimedOut(peer(4).id));
        assert!(
            answer == Answer::Transferred(peer(4)) || answer == Answer::Rejected(timed_out),
            "{answer:?}"
        );
        cluster.answer(put);
        serves(&mut cluster, 8);
    }
}

/// Three voters out of one, and back: never a group of two.
#[test]
fn a_group_grows_from_one_and_shrinks_again() {
    let mut cluster = Cluster::with_stores(4, Config { seed: 4, ..Config::default() }, 1);
    (2..=3).for_each(|store| cluster.add_store(store));
    cluster.elect();
    serves(&mut cluster, 1);
    change(&mut cluster, &Add(peer(2)));
    change(&mut cluster, &Add(peer(3)));
    change(&mut cluster, &vote(&[2, 3], &[]));
    cluster.run_until("the joint configuration is left", settled);
    cluster.crash(1);
    serves(&mut cluster, 2);
    cluster.restart(1);
    let leader = cluster.elect();
    let others: Vec<_> = (1..=3).filter(|store| *store != leader).collect();
    change(&mut cluster, &vote(&[], &others));
    cluster.run_until("the joint configuration is left", settled);
    others.iter().for_each(|store| change(&mut cluster, &Remove(peer(*store).id)));
    cluster.run_until("all ends are confirmed", settled);
    serves(&mut cluster, 3);
    assert_eq!(descriptor_on(&cluster, leader).unwrap().peers.len(), 1);
}
