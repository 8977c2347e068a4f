//! Random stories: crashes, partitions, pauses, lost, doubled and late messages, clients that write
//! and read all the time. The cluster checks each answer; at the end all replicas must agree and
//! every ticket be out.

use super::cluster::{Cluster, REGION};
use crate::*;

const KEYS: [&str; 3] = ["a", "b", "c"];

fn config(seed: u64) -> Config {
    Config {
        seed,
        // Elections are quick, so that there are many.
        tick_ms: 15,
        election_ticks: 6,
        reads: ReadConfig { leases: true, retry_ms: 60, tries_max: 4 },
        pipeline_depth: 2,
        message_bytes_max: 300,
        messages_max: 3,
        uncommitted_bytes_max: 2000,
        merge_count_max: 5,
        window: WindowConfig {
            tail_bytes_max: 500,
            tail_count_max: 5,
            // In every second story a follower that lacks a durable entry gets a snapshot.
            log_kept_region_bytes: (seed % 2) << 20,
            ..WindowConfig::default()
        },
        ..Config::default()
    }
}

/// Something bad happens, or something good.
fn disturb(cluster: &mut Cluster) {
    let store = cluster.rng.u64(1..=3);
    match cluster.rng.u32(0..15) {
        0 | 1 => cluster.isolate(store),
        2 | 3 => cluster.heal(),
        4 if cluster.is_up(store) => cluster.crash(store),
        5 | 6 if !cluster.is_up(store) => cluster.restart(store),
        7 => cluster.pause(store, true),
        8 | 9 => (1..=3).for_each(|store| cluster.pause(store, false)),
        12..15 if cluster.is_up(store) => {
            let to = Some(cluster.rng.u64(1..=3)).filter(|_| cluster.rng.bool());
            cluster.transfer(store, to);
        }
        10 if cluster.is_up(store) => cluster.machines.get_mut(&store).unwrap().checkpoint(),
        _ if cluster.is_up(store) => cluster.push(store, Event::Campaign { region: REGION }),
        _ => {}
    }
}

/// Each key has values that grow, so that a stale read shows.
fn work(cluster: &mut Cluster) {
    for _ in 0..cluster.rng.u32(0..4) {
        let store = cluster.rng.u64(1..=3);
        if !cluster.is_up(store) || cluster.waiting_count() > 300 {
            continue;
        }
        let key = KEYS[cluster.rng.usize(..KEYS.len())];
        match cluster.rng.u32(0..4) {
            0 | 1 => {
                let value = cluster.now;
                cluster.put(store, key, value);
            }
            2 => {
                cluster.read(store, key, false);
            }
            _ => {
                cluster.read(store, key, true);
            }
        }
    }
}

fn settle(cluster: &mut Cluster) {
    cluster.heal();
    cluster.loss_percent = 0;
    for store in 1..=3 {
        cluster.pause(store, false);
        if !cluster.is_up(store) {
            cluster.restart(store);
        }
    }
    cluster.run(3000);
    // The next entry decides all tickets at places that were never reached.
    let leader = cluster.elect();
    cluster.put(leader, "last", 1);
    cluster.run(1000);
}

fn story(seed: u64, ms: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, config(seed));
    if seed % 4 == 1 {
        cluster.without_data_on(3);
    }
    cluster.loss_percent = cluster.rng.u32(0..20);
    for step in 0..ms / 5 {
        if step % 40 == 0 {
            disturb(&mut cluster);
            if let Some(leader) = cluster.leader().filter(|_| seed.is_multiple_of(2)) {
                cluster.machines.get_mut(&leader).unwrap().checkpoint();
            }
        }
        work(&mut cluster);
        cluster.run(5);
    }
    settle(&mut cluster);
    cluster
}

#[test]
fn whatever_happens_nothing_is_lost_and_no_read_is_stale() {
    let (mut served, mut installed) = (0, 0);
    for seed in 0..40 {
        let cluster = story(seed, 6000);
        assert_eq!(cluster.waiting_count(), 0, "seed {seed}: a ticket did not come out");
        assert_eq!(cluster.lost_logs, [], "seed {seed}: disks keep what was synced");
        assert_eq!(cluster.wild_terms, [], "seed {seed}");
        let rows = |store| &cluster.machines[&store].disks[&REGION].applied;
        for store in 2..=3 {
            assert_eq!(rows(store), rows(1), "seed {seed}: replicas differ");
        }
        let done = |answer: &&super::machine::Answer| {
            !matches!(answer, super::machine::Answer::Rejected(_))
        };
        served += cluster.answers.values().filter(done).count();
        let stats = cluster.machines.values().map(|machine| machine.shard.stats());
        installed += stats.map(|stats| stats.snapshots_installed).sum::<u64>();
        assert!(
            cluster.machines.values().all(|m| m.stages.is_empty()),
            "seed {seed}: a stage is left"
        );
    }
    assert!(served > 10_000, "only {served} requests were served");
    assert!(installed > 10, "only {installed} snapshots were installed");
}

#[test]
fn a_run_repeats_exactly_by_seed() {
    for seed in 100..103 {
        let (first, second) = (story(seed, 2000), story(seed, 2000));
        assert!(first.trace.len() > 1000);
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_ne!(first.trace, story(seed + 10, 2000).trace);
    }
}
