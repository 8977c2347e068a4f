//! Tests of logs: restarts, fetches of old entries, and compaction.

use super::cluster::{Cluster, REGION, descriptor, peer};
use super::machine::Answer;
use crate::*;

fn small_window() -> Config {
    let window =
        WindowConfig { tail_bytes_max: 1 << 20, tail_count_max: 8, ..WindowConfig::default() };
    Config { window, ..Config::default() }
}

fn write(cluster: &mut Cluster, count: u64) {
    for value in 1..=count {
        let leader = cluster.elect();
        let put = cluster.put(leader, "a", cluster.now * 1000 + value);
        cluster.answer(put);
    }
}

#[test]
fn a_replica_starts_again_from_its_log_and_catches_up() {
    let mut cluster = Cluster::new(1, Config::default());
    write(&mut cluster, 20);
    cluster.machines.get_mut(&2).unwrap().checkpoint();
    write(&mut cluster, 20);
    cluster.crash(2);
    write(&mut cluster, 20);
    cluster.restart(2);
    let leader = cluster.elect();
    cluster.run_until("caught up", |cluster| {
        cluster.status(2).applied == cluster.status(leader).applied
    });
    let rows = |store| &cluster.machines[&store].disks[&REGION].applied;
    assert_eq!(rows(2), rows(leader));
}

#[test]
fn a_slow_follower_is_served_from_disk() {
    let mut cluster = Cluster::new(2, small_window());
    assert_eq!(cluster.elect(), 1);
    cluster.isolate(3);
    write(&mut cluster, 100);
    for machine in cluster.machines.values_mut() {
        machine.checkpoint();
    }
    cluster.run(500);
    let entries = cluster.machines[&1].disks[&REGION].entries.len();
    assert!(entries >= 100, "only {entries} entries are left, the follower needs them all");
    cluster.heal();
    let last = cluster.status(1).last;
    cluster.run_until("caught up", |cluster| cluster.status(3).applied >= last);
}

#[test]
fn what_all_have_and_is_durable_is_dropped() {
    let mut cluster = Cluster::new(3, small_window());
    write(&mut cluster, 200);
    cluster.run(300);
    assert!(cluster.machines[&1].disks[&REGION].entries.len() > 200, "nothing is durable yet");
    for _ in 0..2 {
        for machine in cluster.machines.values_mut() {
            machine.checkpoint();
        }
        cluster.run(500);
    }
    for (store, machine) in &cluster.machines {
        let disk = &machine.disks[&REGION];
        assert_eq!(disk.entries.len(), 0, "a region at rest keeps nothing on store {store}");
        assert_eq!(disk.truncated.0, cluster.status(*store).last);
    }
    for store in 1..=3 {
        cluster.crash(store);
        cluster.restart(store);
    }
    write(&mut cluster, 5);
}

#[test]
fn entries_that_were_replaced_are_replaced_on_disk() {
    let mut cluster = Cluster::new(4, Config::default());
    assert_eq!(cluster.elect(), 1);
    cluster.run(100);
    cluster.isolate(1);
    for value in 0..5 {
        cluster.put(1, "lost", value);
        cluster.run(10);
    }
    cluster.run_until("another leader", |cluster| cluster.leader().is_some_and(|l| l != 1));
    let leader = cluster.leader().unwrap();
    let put = cluster.put(leader, "a", 9);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.heal();
    cluster.run(1000);
    assert_eq!(cluster.waiting_count(), 0);
    cluster.crash(1);
    cluster.restart(1);
    cluster.run(1000);
    let entries = |store| &cluster.machines[&store].disks[&REGION].entries;
    assert_eq!(entries(1), entries(leader));
}

#[test]
fn a_follower_with_too_much_to_apply_takes_no_more_entries() {
    let config = Config { apply_lag_bytes_max: 1000, ..Config::default() };
    let mut shard = Shard::new(config);
    shard.create(Time(0), RecoveredReplica::fresh(descriptor(3), peer(2).id), false).unwrap();
    let mut effects = Effects::default();
    let append = |index: u64, commit: u64| {
        Event::Message(Envelope {
            region: REGION,
            from: peer(1),
            to: peer(2),
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message {
                term: Term(1),
                log_term: Term(u64::from(index > 1)),
                index: Index(index - 1),
                commit: Index(commit),
                entries: vec![LogEntry {
                    index: Index(index),
                    term: Term(1),
                    kind: EntryKind::Normal,
                    data: vec![0; 600].into(),
                }],
                ..Message::default()
            },
        })
    };
    for index in 1..=4 {
        let number = effects.log.writes.last().map(|write| write.number);
        let persisted = number.map(|number| Event::Persisted { region: REGION, number });
        let events = persisted.into_iter().chain([append(index, index - 1)]);
        effects.clear();
        shard.step(Time(index), events, &mut effects);
        shard.check_invariants();
    }
    assert_eq!(shard.status(REGION).unwrap().last, Index(3));
    assert_eq!(shard.stats().dropped.lagging, 1);
    shard.step(
        Time(9),
        [
            Event::Applied { region: REGION, index: Index(2), changes: vec![], size: None },
            append(4, 3),
        ]
        .into_iter(),
        &mut effects,
    );
    assert_eq!(shard.status(REGION).unwrap().last, Index(4));
}

#[test]
fn what_cannot_be_a_replica_is_refused() {
    let sound = || {
        let entry =
            |index, term| LogEntry { index: Index(index), term: Term(term), ..LogEntry::default() };
        RecoveredReplica {
            descriptor: descriptor(3),
            peer: peer(2).id,
            hard_state: HardState { term: Term(4), vote: None, commit: Index(1) },
            applied: (Index(6), Term(2)),
            truncated: (Index(4), Term(1)),
            terms: vec![(Index(5), Term(2)), (Index(8), Term(3))],
            last: Index(8),
            tail: vec![entry(7, 2), entry(8, 3)],
            is_damaged: false,
        }
    };
    let create = |spoil: fn(&mut RecoveredReplica)| {
        let mut found = sound();
        spoil(&mut found);
        let mut shard = Shard::new(Config::default());
        shard.create(Time(0), found, false).map(|()| shard.status(REGION).unwrap())
    };
    let status = create(|_| {}).unwrap();
    assert_eq!((status.commit, status.applied, status.first), (Index(6), Index(6), Index(5)));
    create(|found| found.terms[0].0 = Index(3)).expect("a run may begin below the first entry");
    let broken = |spoil: fn(&mut RecoveredReplica)| {
        assert!(
            matches!(create(spoil), Err(CreateReplicaError::InvalidLog { .. })),
            "{:?}",
            create(spoil)
        );
    };
    broken(|found| found.tail.truncate(1));
    broken(|found| found.tail[1].term = Term(2));
    broken(|found| found.tail.clear());
    broken(|found| found.terms.clear());
    broken(|found| found.terms[0].0 = Index(6));
    broken(|found| found.terms[1].1 = Term(2));
    broken(|found| found.hard_state.term = Term(2));
    broken(|found| found.applied.1 = Term(1));
    broken(|found| found.truncated.1 = Term(5));
    let disorder = |spoil: fn(&mut RecoveredReplica)| {
        assert!(
            matches!(create(spoil), Err(CreateReplicaError::IndexOrder { .. })),
            "{:?}",
            create(spoil)
        );
    };
    disorder(|found| found.hard_state.commit = Index(9));
    disorder(|found| found.last = Index(5));
    disorder(|found| found.truncated.0 = Index(7));
    let stranger = create(|found| found.peer = PeerId(peer(3).id.0 + 1));
    assert!(matches!(stranger, Err(CreateReplicaError::NotMember { .. })));
    let doubled = create(|found| found.descriptor.peers.push(peer(2).into()));
    assert!(matches!(doubled, Err(CreateReplicaError::NotMember { .. })));
}
