//! Tests of full disks: leaders leave them, puts are refused where there is no room, and all goes
//! on by itself once there is.

use bytes::Bytes;

use super::cluster::{Cluster, REGION, descriptor, peer};
use super::machine::Answer;
use crate::*;

/// A region with a voter on each of these stores; ids are those of the stores.
pub(crate) fn region_of(stores: &[u64]) -> Descriptor {
    let voter = |store: &u64| Peer { id: PeerId(*store), store: StoreId(*store) }.into();
    Descriptor { peers: stores.iter().map(voter).collect(), ..descriptor(0) }
}

/// Store 1 leads and has written 1 to key `a`.
fn written(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, Config { seed, ..Config::default() });
    assert_eq!(cluster.elect(), 1);
    let put = cluster.put(1, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.run(300);
    cluster
}

/// All stores hear of these disks.
fn fill(cluster: &mut Cluster, usages: &[(u64, DiskUsage)]) {
    let mut disks = StoreDisks::default();
    for (store, usage) in usages {
        disks.note(StoreId(*store), *usage);
    }
    for machine in cluster.machines.values_mut() {
        machine.shard.note_disks(disks.clone());
    }
}

/// A proposal that needs no room, as a deletion does.
fn delete(cluster: &mut Cluster, store: u64, key: &str) -> Ticket {
    let ticket = cluster.put(store, key, 3);
    let inbox = &mut cluster.machines.get_mut(&store).unwrap().inbox;
    let Some(Event::Propose { precondition, .. }) = inbox.back_mut() else {
        panic!("a put is a proposal")
    };
    precondition.needs_room = false;
    ticket
}

fn refused(stores: &[u64]) -> Answer {
    let stores = stores.iter().map(|store| StoreId(*store)).collect();
    Answer::Rejected(Reject::DiskFull { stores })
}

#[test]
fn a_leader_leaves_a_full_disk_and_puts_are_refused_until_it_has() {
    for seed in 1..=3 {
        let mut cluster = written(seed);
        fill(&mut cluster, &[(1, DiskUsage::Full)]);
        let put = cluster.put(1, "a", 2);
        assert_eq!(cluster.answer(put), refused(&[1]));
        cluster.run(300);
        let leader = cluster.leader().expect("another store leads");
        assert_ne!(leader, 1);
        let put = cluster.put(leader, "a", 3);
        assert_eq!(cluster.answer(put), Answer::Done);
        let stats = cluster.machines[&1].shard.stats();
        assert_eq!((stats.puts_refused, stats.disk_full_transfers), (1, 1));
        // A follower on a full disk takes entries.
        cluster.run(300);
        assert_eq!(cluster.status(1).last, cluster.status(leader).last);
    }
}

#[test]
fn a_leader_stays_where_not_all_stores_know_of_transfers() {
    let mut cluster = written(7);
    let mut disks = StoreDisks::default();
    assert!(disks.note_leaders_stay(true) && !disks.note_leaders_stay(true));
    disks.note(StoreId(1), DiskUsage::Full);
    cluster.machines.get_mut(&1).unwrap().shard.note_disks(disks.clone());
    cluster.run(3000);
    assert_eq!(cluster.leader(), Some(1));
    assert!(disks.note_leaders_stay(false));
    cluster.machines.get_mut(&1).unwrap().shard.note_disks(disks);
    cluster.run_until("another leader", |cluster| cluster.leader().is_some_and(|at| at != 1));
}

#[test]
fn a_store_with_room_gets_the_lead_of_two_full_ones_and_takes_no_puts() {
    let mut cluster = written(4);
    fill(&mut cluster, &[(1, DiskUsage::Full), (2, DiskUsage::Exhausted)]);
    cluster.run(300);
    assert_eq!(cluster.leader(), Some(3));
    let put = cluster.put(3, "a", 2);
    assert_eq!(cluster.answer(put), refused(&[1, 2]));
    let delete = delete(&mut cluster, 3, "a");
    assert_eq!(cluster.answer(delete), Answer::Done);
}

#[test]
fn an_exhausted_follower_takes_no_entries_and_comes_back_when_there_is_room() {
    let mut cluster = written(5);
    let before = cluster.status(3).last;
    fill(&mut cluster, &[(3, DiskUsage::Exhausted)]);
    for value in 2..=20 {
        let put = cluster.put(1, "a", value);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
    // Longer than an election timeout: it follows all the same, and does not campaign.
    cluster.run(3000);
    assert_eq!((cluster.leader(), cluster.status(3).last), (Some(1), before));
    assert!(cluster.machines[&3].shard.stats().dropped.disk_full > 0);
    fill(&mut cluster, &[]);
    cluster.run_until("the follower has all entries", |cluster| {
        cluster.status(3).applied == cluster.status(1).applied
    });
}

#[test]
fn where_all_disks_are_full_reads_deletions_and_elections_go_on() {
    let mut cluster = written(6);
    let all = [1, 2, 3].map(|store| (store, DiskUsage::Exhausted));
    fill(&mut cluster, &all);
    cluster.run(3000);
    assert_eq!(cluster.leader(), Some(1), "none is better");
    let (put, read) = (cluster.put(1, "a", 2), cluster.read(1, "a", false));
    assert_eq!(cluster.answer(put), refused(&[1, 2, 3]));
    assert_eq!(
        cluster.answer(read),
        Answer::Value(Some(Bytes::copy_from_slice(&1u64.to_be_bytes())))
    );
    let transfer = cluster.transfer(1, Some(2));
    assert_eq!(cluster.answer(transfer), Answer::Transferred(peer(2)));
    let delete = delete(&mut cluster, 2, "a");
    assert_eq!(cluster.answer(delete), Answer::Done);
    cluster.crash(2);
    cluster.run(3000);
    let leader = cluster.leader().expect("the others elect");
    fill(&mut cluster, &[]);
    let put = cluster.put(leader, "a", 4);
    assert_eq!(cluster.answer(put), Answer::Done);
    assert_eq!(cluster.machines[&leader].shard.descriptor(REGION).map(|it| it.id), Some(REGION));
}

/// A load that is not told any more would be believed for ever.
#[test]
fn an_almost_full_store_wants_no_split_and_goes_on_telling_loads() {
    let split = SplitLimits { keys_max: 1, ..SplitLimits::default() };
    let mut cluster = Cluster::new(7, Config { split, ..Config::default() });
    let leader = cluster.elect();
    fill(&mut cluster, &[(leader, DiskUsage::AlmostFull)]);
    for key in 0..50 {
        let put = cluster.put(leader, &key.to_string(), 1);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
    cluster.run(30_000);
    let led = &cluster.machines[&leader];
    assert!(led.split_wishes.is_empty());
    let loads: Vec<u64> = led.loads.iter().map(|load| load.requests_per_s).collect();
    assert!(loads.iter().any(|load| *load > 0) && loads.last() == Some(&0), "{loads:?}");
    fill(&mut cluster, &[(leader, DiskUsage::Normal)]);
    let wishes = |cluster: &Cluster| cluster.machines[&leader].split_wishes.len();
    cluster.run_until("a wish, once there is room", |cluster| wishes(cluster) > 0);
}
