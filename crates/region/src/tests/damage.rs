//! Tests of damaged replicas: which entries they take, and when one leads all the same.

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;

fn stats(cluster: &Cluster, store: u64) -> Stats {
    cluster.machines[&store].shard.stats()
}

fn damage(cluster: &mut Cluster, store: u64) {
    cluster.push(store, Event::Damaged { region: REGION, peer: peer(store).id });
}

/// A leader and its followers, with an entry on all of them.
fn settled(seed: u64) -> (Cluster, u64, u64, u64) {
    let mut cluster = Cluster::new(seed, Config::default());
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.run(1000);
    let mut others = (1..=3).filter(|store| *store != leader);
    let (one, other) = (others.next().unwrap(), others.next().unwrap());
    (cluster, leader, one, other)
}

/// Its acknowledgements are needed for a majority: what the leader sends while it asks for rows is
/// not committed before they are there, and then it is.
#[test]
fn a_majority_with_a_damaged_replica_goes_on_behind_its_snapshot() {
    let (mut cluster, leader, damaged, away) = settled(1);
    cluster.crash(away);
    cluster.snapshot_ms = 3000;
    let last = cluster.status(damaged).last;
    damage(&mut cluster, damaged);
    // Sent before the leader hears of a request.
    let put = cluster.put(leader, "a", 2);
    cluster.run(1500);
    assert_eq!(cluster.status(damaged).last, last, "the log ends where the snapshot has to reach");
    assert!(stats(&cluster, damaged).dropped.damaged > 0);
    assert!(cluster.is_waiting(put));
    assert_eq!(cluster.answer(put), Answer::Done);
    assert_eq!(stats(&cluster, damaged).snapshots_installed, 1);
}

/// A new leader commits nothing before an entry of its own term is on a majority, and so sends no
/// snapshot that reaches as far as the log of the damaged replica.
#[test]
fn a_damaged_replica_takes_the_first_entries_of_a_new_leader() {
    let (mut cluster, leader, damaged, next) = settled(2);
    // Both have it, and do not know that it is committed.
    let before = cluster.status(leader).last;
    let put = cluster.put(leader, "a", 2);
    cluster.run_until("it is sent", |cluster| {
        [damaged, next].into_iter().all(|store| cluster.status(store).last > before)
    });
    assert!(cluster.status(leader).commit == before);
    damage(&mut cluster, damaged);
    cluster.crash(leader);
    cluster.run_until("another leader", |cluster| cluster.leader() == Some(next));
    cluster.run_until("new rows", |cluster| stats(cluster, damaged).snapshots_installed == 1);
    assert!(!cluster.is_waiting(put), "its fate is open");
    let put = cluster.put(next, "a", 3);
    assert_eq!(cluster.answer(put), Answer::Done);
}

/// Its log is longer than that of the only other one, which can win no election before it has what
/// is committed: the damaged replica leads until then.
#[test]
fn the_damaged_replica_with_the_longest_log_leads_until_another_has_it() {
    let (mut cluster, leader, damaged, behind) = settled(3);
    cluster.snapshot_ms = 60_000;
    cluster.isolate(behind);
    let put = cluster.put(leader, "a", 2);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.run(500);
    damage(&mut cluster, damaged);
    cluster.run(50);
    cluster.crash(leader);
    cluster.heal();
    cluster.run_until("the lead of the damaged one", |cluster| cluster.leader() == Some(damaged));
    let refused = cluster.put(damaged, "a", 3);
    assert!(matches!(cluster.answer(refused), Answer::Rejected(_)), "it serves nothing");
    cluster.run_until("the next leader", |cluster| cluster.leader() == Some(behind));
    cluster.snapshot_ms = 100;
    cluster.run_until("new rows", |cluster| stats(cluster, damaged).snapshots_installed == 1);
    let put = cluster.put(behind, "a", 4);
    assert_eq!(cluster.answer(put), Answer::Done);
}

/// As long as another one can, it does not campaign.
#[test]
fn a_sound_replica_leads_before_a_damaged_one() {
    for seed in 10..20 {
        let (mut cluster, leader, damaged, next) = settled(seed);
        cluster.snapshot_ms = 60_000;
        damage(&mut cluster, damaged);
        cluster.run(50);
        cluster.crash(leader);
        cluster.run_until("another leader", |cluster| cluster.leader().is_some());
        assert_eq!(cluster.leader(), Some(next));
    }
}
