//! Tests of snapshots: replicas without data are fed, and nothing that was promised is forgotten.

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use super::members::{change, vote};
use super::single::split_at;
use crate::*;

fn write(cluster: &mut Cluster, leader: u64, count: u64) {
    for value in 1..=count {
        let put = cluster.put(leader, "a", cluster.now * 1000 + value);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
}

fn are_equal(cluster: &Cluster, a: u64, b: u64) -> bool {
    let state = |store| {
        let machine = &cluster.machines[&store];
        // A snapshot that is being installed does not count yet.
        let status = machine.shard.status(REGION)?;
        let applied = &machine.disks[&REGION].applied;
        (status.applied == applied.0).then_some(applied)
    };
    state(a).is_some() && state(a) == state(b)
}

#[test]
fn a_replica_without_data_is_fed_and_follows() {
    let mut cluster = Cluster::new(1, Config::default());
    cluster.without_data_on(3);
    let leader = cluster.elect();
    write(&mut cluster, leader, 20);
    cluster.run_until("fed", |cluster| are_equal(cluster, 3, leader));
    write(&mut cluster, leader, 20);
    cluster.run_until("it follows", |cluster| are_equal(cluster, 3, leader));
    cluster.run(1000);
    let stats = cluster.machines[&3].shard.stats();
    assert_eq!((stats.uninitialised, stats.snapshots_installed), (1, 1));
    assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1, "one is enough");
    assert!(cluster.machines[&3].stages.is_empty());
    // It has a vote and a log as every other one.
    cluster.crash(leader);
    cluster.run_until("another leader", |cluster| cluster.leader().is_some());
    let leader = cluster.elect();
    write(&mut cluster, leader, 5);
}

/// With a third dead the answers of a replica without data keep the leader, and its vote makes one.
#[test]
fn a_replica_without_data_votes_and_keeps_its_leader() {
    let mut cluster = Cluster::new(2, Config::default());
    cluster.without_data_on(3);
    cluster.snapshot_ms = 5000;
    assert_eq!(cluster.elect(), 1);
    cluster.run_until("a snapshot is on its way", |cluster| {
        cluster.machines[&1].shard.stats().snapshots_sent == 1
    });
    cluster.crash(2);
    let term = cluster.status(1).term;
    cluster.run(3000);
    assert_eq!((cluster.leader(), cluster.status(1).term), (Some(1), term), "nothing unseats it");
    assert!(cluster.find_status(3).is_none(), "the snapshot is on its way");
    // The vote of the replica without data is the missing one.
    cluster.machines.get_mut(&1).unwrap().checkpoint();
    cluster.crash(1);
    cluster.restart(1);
    cluster.run_until("it leads again", |cluster| cluster.leader() == Some(1));
    assert!(cluster.find_status(3).is_none());
    cluster.run_until("fed", |cluster| are_equal(cluster, 3, 1));
    write(&mut cluster, 1, 3);
}

/// A replica that lacks a durable entry gets a snapshot.
fn no_logs_kept() -> Config {
    let window = WindowConfig { log_kept_region_bytes: 0, ..WindowConfig::default() };
    Config { window, ..Config::default() }
}

/// A cluster in which a store was away while the log went that it lacks.
fn behind(seed: u64, config: Config) -> (Cluster, u64, u64) {
    let mut cluster = Cluster::new(seed, config);
    let leader = cluster.elect();
    let away = leader % 3 + 1;
    write(&mut cluster, leader, 10);
    cluster.run_until("all are equal", |cluster| are_equal(cluster, away, leader));
    cluster.machines.get_mut(&away).unwrap().checkpoint();
    cluster.isolate(away);
    write(&mut cluster, leader, 150);
    cluster.machines.get_mut(&leader).unwrap().checkpoint();
    cluster.run(100);
    assert!(cluster.status(leader).first > Index(100), "the log was kept for a store that is away");
    (cluster, leader, away)
}

#[test]
fn a_follower_behind_the_log_is_healed_by_a_snapshot() {
    let (mut cluster, leader, away) = behind(3, no_logs_kept());
    let before = cluster.status(away);
    cluster.heal();
    cluster.run_until("healed", |cluster| are_equal(cluster, away, leader));
    let status = cluster.status(away);
    assert!(status.first > before.last, "its log begins behind the snapshot: {status:?}");
    assert_eq!(cluster.machines[&away].shard.stats().snapshots_installed, 1);
    write(&mut cluster, leader, 20);
    cluster.run_until("it follows", |cluster| are_equal(cluster, away, leader));
    assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1, "one is enough");
    assert_eq!(cluster.lost_logs, []);
}

/// A follower hears a leader that it does not know yet, and gets the configuration that lists it by
/// a snapshot. Not a newcomer then, its address is that of the configuration.
#[test]
fn a_snapshot_lists_a_leader_that_was_unknown() {
    let mut cluster = Cluster::new(11, no_logs_kept());
    cluster.add_store(4);
    assert_eq!(cluster.elect(), 1);
    cluster.isolate(3);
    change(&mut cluster, &MembershipChange::Add(peer(4)));
    cluster.run_until("the learner has the data", |cluster| are_equal(cluster, 4, 1));
    change(&mut cluster, &vote(&[4], &[]));
    write(&mut cluster, 1, 150);
    let transfer = cluster.transfer(1, Some(4));
    assert_eq!(cluster.answer(transfer), Answer::Transferred(peer(4)));
    write(&mut cluster, 4, 5);
    cluster.machines.get_mut(&4).unwrap().checkpoint();
    cluster.run(100);
    cluster.heal();
    cluster.run_until("healed", |cluster| are_equal(cluster, 3, 4));
    assert_eq!(cluster.machines[&3].shard.stats().snapshots_installed, 1);
    write(&mut cluster, 4, 5);
    cluster.run_until("it follows", |cluster| are_equal(cluster, 3, 4));
}

/// C24: a power cut at each moment of a snapshot's way in, while writes go on and a candidate asks
/// for votes.
#[test]
fn a_power_cut_at_any_moment_of_a_snapshot_loses_nothing() {
    let mut installed = 0;
    for ms in 0..60 {
        let (mut cluster, leader, away) = behind(100 + ms, no_logs_kept());
        cluster.machines.get_mut(&away).unwrap().root_ms = 10;
        cluster.heal();
        cluster.run_until("a snapshot is on its way", |cluster| {
            cluster.machines[&leader].shard.stats().snapshots_sent > 0
        });
        cluster.put(leader, "b", 1);
        cluster.run(ms);
        cluster.push(leader % 3 + 1, Event::Campaign { region: REGION });
        cluster.run(ms % 7);
        installed += cluster.machines[&away].shard.stats().snapshots_installed;
        cluster.crash(away);
        cluster.run(ms);
        cluster.restart(away);
        let leader = cluster.elect();
        let put = cluster.put(leader, "c", 1);
        cluster.answer(put);
        cluster
            .run_until("healed", |cluster| (1..=3).all(|store| are_equal(cluster, store, leader)));
        assert_eq!(cluster.lost_logs, [], "{ms}");
    }
    assert!((5..55).contains(&installed), "before and after the end: {installed}");
}

/// C1, C4: parent and child come to a store that has neither, in any order, and none of them takes
/// the other's range.
#[test]
fn a_child_and_its_parent_are_fed_apart() {
    for ms in (0..300).step_by(10) {
        let mut cluster = Cluster::new(200 + ms, Config::default());
        cluster.without_data_on(3);
        cluster.snapshot_ms = 100;
        let leader = cluster.elect();
        write(&mut cluster, leader, 3);
        cluster.run(ms);
        let child = RegionId(8);
        let split = cluster.split(leader, split_at("m"));
        assert_eq!(cluster.answer(split), Answer::Done);
        let put = cluster.put(leader, "z", 7);
        assert_eq!(cluster.answer(put), Answer::Done);
        cluster.run_until("both are there", |cluster| {
            let applied = |store: u64, region| {
                let machine = &cluster.machines[&store];
                machine.shard.status(region).map(|_| &machine.disks[&region].applied)
            };
            [REGION, child].into_iter().all(|region| {
                applied(3, region).is_some() && applied(3, region) == applied(leader, region)
            })
        });
        assert_eq!(cluster.machines[&3].shard.uninitialised().count(), 0, "{ms}");
    }
}

/// The tickets of a deposed leader that a snapshot passes over: their fate is not learned.
#[test]
fn tickets_under_a_snapshot_are_undecided() {
    let mut cluster = Cluster::new(5, no_logs_kept());
    let old = cluster.elect();
    write(&mut cluster, old, 3);
    cluster.isolate(old);
    let puts: Vec<_> = (0..5).map(|value| cluster.put(old, "lost", value)).collect();
    cluster.run_until("another leader", |cluster| cluster.leader().is_some_and(|l| l != old));
    let leader = cluster.elect();
    write(&mut cluster, leader, 150);
    cluster.machines.get_mut(&leader).unwrap().checkpoint();
    cluster.run(100);
    cluster.heal();
    cluster.run_until("healed", |cluster| are_equal(cluster, old, leader));
    assert_eq!(cluster.undecided, puts);
    assert_eq!(cluster.waiting_count(), 0);
}

/// C28b: an acknowledgement that is there before the stream's end is the end.
#[test]
fn an_acknowledgement_ends_the_snapshot_and_a_lost_one_is_found_out() {
    for (ms, lost) in [(10, false), (10, true), (3000, false)] {
        let (mut cluster, leader, away) = behind(6, no_logs_kept());
        cluster.heal();
        cluster.report_ms = ms;
        cluster.run_until("a snapshot is on its way", |cluster| {
            cluster.machines[&leader].shard.stats().snapshots_sent > 0
        });
        if lost {
            cluster.run_until("installed", |cluster| {
                cluster.machines[&away].shard.stats().snapshots_installed == 1
            });
            cluster.isolate(away);
            cluster.run(300);
            cluster.heal();
        }
        write(&mut cluster, leader, 20);
        cluster.run_until("healed", |cluster| are_equal(cluster, away, leader));
        cluster.run(4000);
        assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1, "{ms} {lost}");
    }
}

/// The same of a replica without data, which has asked for its snapshot: raft forgets that with the
/// report only.
#[test]
fn an_acknowledgement_of_the_first_snapshot_ends_it() {
    let mut cluster = Cluster::new(9, Config::default());
    cluster.without_data_on(3);
    cluster.report_ms = 3000;
    let leader = cluster.elect();
    cluster.run_until("fed", |cluster| are_equal(cluster, 3, leader));
    write(&mut cluster, leader, 20);
    cluster.run_until("it follows", |cluster| are_equal(cluster, 3, leader));
    cluster.run(4000);
    assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1);
}

/// A snapshot that fails is sent again, after a rest.
#[test]
fn a_snapshot_that_fails_is_sent_again_after_a_rest() {
    let (mut cluster, leader, away) = behind(7, no_logs_kept());
    cluster.snapshot_ms = 100;
    cluster.heal();
    let sent = |cluster: &Cluster| cluster.machines[&leader].shard.stats().snapshots_sent;
    for count in 1..=2 {
        cluster.run_until("a snapshot is on its way", |cluster| sent(cluster) == count);
        cluster.isolate(away);
        cluster.run(150);
        cluster.heal();
        cluster.run(700);
        assert_eq!(sent(&cluster), count, "it rests");
    }
    cluster.run_until("healed", |cluster| are_equal(cluster, away, leader));
    assert_eq!(sent(&cluster), 3);
}

/// All that is kept for others has a bound in a shard; a store that comes back gets a snapshot.
#[test]
fn a_shard_keeps_logs_for_others_within_its_bound() {
    for (log_kept_bytes_max, is_kept) in [(1 << 30, true), (8000, false)] {
        let window = WindowConfig { log_kept_bytes_max, ..WindowConfig::default() };
        let mut cluster = Cluster::new(8, Config { window, ..Config::default() });
        let leader = cluster.elect();
        let child = RegionId(8);
        let split = cluster.split(leader, split_at("m"));
        assert_eq!(cluster.answer(split), Answer::Done);
        cluster.run(500);
        let away = leader % 3 + 1;
        cluster.isolate(away);
        for value in 0..100 {
            for (region, key) in [(REGION, "z"), (child, "a")] {
                let put = cluster.put_into(region, leader, key, value);
                assert_eq!(cluster.answer(put), Answer::Done);
            }
        }
        cluster.machines.get_mut(&leader).unwrap().checkpoint();
        cluster.run(100);
        let given_up = cluster.machines[&leader].shard.stats().logs_given_up;
        assert_eq!(given_up, u64::from(!is_kept), "one of the two is enough");
        cluster.heal();
        cluster.run_until("healed", |cluster| {
            [REGION, child].into_iter().all(|region| {
                let applied = |store: u64| &cluster.machines[&store].disks[&region].applied;
                applied(away) == applied(leader)
            })
        });
        cluster.run(100);
        assert_eq!(cluster.machines[&away].shard.stats().snapshots_installed, given_up);
    }
}
