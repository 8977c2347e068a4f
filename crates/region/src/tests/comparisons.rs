//! Comparisons of replicas: one that differs is named whatever gets lost, and equal ones never are.

use bytes::Bytes;

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;

/// A leader waits so long for replicas that do not answer.
const PATIENCE_MS: u64 = 10_000;

fn with_rows(seed: u64) -> (Cluster, u64) {
    let mut cluster = Cluster::new(seed, Config::default());
    let leader = cluster.elect();
    for value in 1..=3 {
        let put = cluster.put(leader, "k", value);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
    cluster.run(500);
    (cluster, leader)
}

/// Changes the row on one store, past the log.
fn alter(cluster: &mut Cluster, store: u64) {
    let disk = cluster.machines.get_mut(&store).unwrap().disks.get_mut(&REGION).unwrap();
    disk.applied.2.insert(Bytes::from_static(b"k"), Bytes::from_static(b"odd"));
}

fn verdicts(cluster: &Cluster) -> Vec<DigestComparison> {
    let commands = cluster.histories[&REGION].values().map(AdminCommand::decode);
    let verdicts = commands.filter_map(|command| match command.unwrap() {
        Some(AdminCommand::VerifyDigests(comparison)) => Some(comparison),
        _ => None,
    });
    verdicts.collect()
}

fn begin(cluster: &mut Cluster, store: u64) {
    let asked = cluster.compare(store);
    assert_eq!(cluster.answer(asked), Answer::Done);
}

/// The verdict of the comparison that was begun last.
fn verdict(cluster: &mut Cluster, ms: u64) -> ConsistencyVerdict {
    let before = verdicts(cluster).len();
    for _ in 0..ms {
        if verdicts(cluster).len() > before {
            break;
        }
        cluster.run(1);
    }
    let all = verdicts(cluster);
    assert_eq!(all.len(), before + 1, "one verdict, within {ms} ms");
    let region = cluster.machines[&1].shard.descriptor(REGION).unwrap();
    all[before].verdict(region)
}

fn differing(verdict: &ConsistencyVerdict) -> Vec<u64> {
    let differing = verdict.replicas.iter().filter(|replica| replica.differs);
    differing.map(|replica| replica.peer.store.0).collect()
}

#[test]
fn equal_replicas_are_told_equal_and_a_replica_that_differs_is_named() {
    for odd in 1..=3 {
        let (mut cluster, leader) = with_rows(odd);
        begin(&mut cluster, leader);
        let equal = verdict(&mut cluster, 500);
        assert!(equal.is_complete() && !equal.has_difference(), "{equal}");
        alter(&mut cluster, odd);
        begin(&mut cluster, leader);
        let found = verdict(&mut cluster, 500);
        assert!(found.is_complete());
        assert_eq!(differing(&found), [odd], "{found}");
    }
}

#[test]
fn digests_are_told_again_when_messages_are_lost() {
    for seed in 1..=4 {
        let (mut cluster, leader) = with_rows(seed);
        cluster.loss_percent = 30;
        begin(&mut cluster, leader);
        let found = verdict(&mut cluster, 2 * PATIENCE_MS);
        assert!(!found.has_difference() && found.compared() >= 2, "{found}");
    }
}

#[test]
fn a_replica_that_is_away_is_not_waited_for_long_and_one_that_gives_up_not_at_all() {
    let (mut cluster, leader) = with_rows(5);
    let away = leader % 3 + 1;
    cluster.isolate(away);
    begin(&mut cluster, leader);
    cluster.run(PATIENCE_MS / 2);
    assert!(verdicts(&cluster).is_empty(), "it may yet answer");
    let part = verdict(&mut cluster, PATIENCE_MS);
    assert_eq!((part.compared(), part.is_complete()), (2, false), "{part}");
    cluster.heal();
    cluster.run(2_000);
    cluster.machines.get_mut(&away).unwrap().has_digests = false;
    begin(&mut cluster, leader);
    let part = verdict(&mut cluster, 500);
    assert_eq!((part.compared(), part.has_difference()), (2, false), "{part}");
}

#[test]
fn one_comparison_of_a_region_at_a_time() {
    let (mut cluster, leader) = with_rows(6);
    cluster.isolate(leader % 3 + 1);
    begin(&mut cluster, leader);
    let second = cluster.compare(leader);
    assert!(matches!(cluster.answer(second), Answer::Rejected(Reject::Busy { .. })));
    let follower = (leader + 1) % 3 + 1;
    let elsewhere = cluster.compare(follower);
    let answer = cluster.answer(elsewhere);
    assert!(matches!(answer, Answer::Rejected(Reject::NotLeader { .. })), "{answer:?}");
}

#[test]
fn the_next_leader_comes_to_the_verdict() {
    let (mut cluster, leader) = with_rows(7);
    let odd = leader % 3 + 1;
    alter(&mut cluster, odd);
    begin(&mut cluster, leader);
    // Until its followers have applied the entry as well.
    let level = cluster.status(leader).commit;
    cluster.run_until("all have the entry", |cluster| {
        (1..=3).all(|store| cluster.status(store).applied >= level)
    });
    cluster.isolate(leader);
    let found = verdict(&mut cluster, 3 * PATIENCE_MS);
    assert_eq!(found.compared(), 2, "{found}");
    assert_eq!(differing(&found).len(), 2, "two that differ have no majority");
}

#[test]
fn only_members_tell_digests_and_of_the_entry_that_asked() {
    let (mut cluster, leader) = with_rows(8);
    let away = leader % 3 + 1;
    cluster.isolate(away);
    begin(&mut cluster, leader);
    let index = cluster.status(leader).applied;
    let tell = |from: u64, of: PeerId, index| {
        let kind = NoticeKind::Digest { index, digest: Some(1) };
        let (from, to) = (StoreId(from), StoreId(leader));
        let epoch = Epoch::default();
        Event::Notice(Notice { region: REGION, from, to, kind, peer: of, epoch })
    };
    for notice in [
        tell(9, PeerId(999), index),
        tell(9, peer(away).id, index),
        tell(away, peer(away).id, Index(index.0 - 1)),
        tell(away, peer(away).id, Index(index.0 + 1)),
    ] {
        cluster.push(leader, notice);
    }
    let part = verdict(&mut cluster, 2 * PATIENCE_MS);
    assert_eq!((part.compared(), part.has_difference()), (2, false), "{part}");
}
