//! Reads: under a lease, by a quorum, on followers; never stale. The cluster itself checks each
//! read against what was answered before it was asked.

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;

fn value(number: u64) -> Answer {
    Answer::Value(Some(bytes::Bytes::copy_from_slice(&number.to_be_bytes())))
}

#[test]
fn a_leader_under_lease_grants_in_the_same_step() {
    let mut cluster = Cluster::new(1, Config::default());
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 5);
    cluster.answer(put);
    let first = cluster.read(leader, "a", false);
    assert_eq!(cluster.answer(first), value(5));
    assert_eq!(cluster.machines[&leader].shard.stats().reads_by_lease, 0);
    let second = cluster.read(leader, "a", false);
    cluster.run(1);
    assert_eq!(cluster.answers[&second], value(5));
    assert_eq!(cluster.machines[&leader].shard.stats().reads_by_lease, 1);
}

#[test]
fn the_lease_is_kept_while_reads_come_and_costs_nothing_at_rest() {
    let mut cluster = Cluster::new(2, Config::default());
    let leader = cluster.elect();
    let stats = |cluster: &Cluster| cluster.machines[&leader].shard.stats();
    for _ in 0..100 {
        cluster.read(leader, "a", false);
        cluster.run(20);
    }
    assert!(stats(&cluster).reads_by_index <= 2, "{:?}", stats(&cluster));
    assert!(stats(&cluster).read_rounds <= 12, "{:?}", stats(&cluster));
    cluster.run(1000);
    let rounds = stats(&cluster).read_rounds;
    cluster.run(5000);
    assert_eq!(stats(&cluster).read_rounds, rounds);
}

/// A leader stands still while the others elect another and write. Reads wait in its inbox; when it
/// goes on, its lease must be over although it has not heard of the new leader.
#[test]
fn a_leader_that_stood_still_answers_nothing_from_its_past() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, Config::default());
        assert_eq!(cluster.elect(), 1);
        let first = cluster.put(1, "a", 1);
        cluster.answer(first);
        let read = cluster.read(1, "a", false);
        cluster.answer(read);
        cluster.pause(1, true);
        cluster.isolate(1);
        let other = |cluster: &Cluster| {
            [2, 3].into_iter().find(|store| cluster.status(*store).role == Role::Leader)
        };
        cluster.run_until("another leader", |cluster| other(cluster).is_some());
        let leader = other(&cluster).unwrap();
        let second = cluster.put(leader, "a", 2);
        assert_eq!(cluster.answer(second), Answer::Done);
        let stale: Vec<_> = (0..3).map(|_| cluster.read(1, "a", false)).collect();
        cluster.pause(1, false);
        for read in stale {
            assert!(matches!(cluster.answer(read), Answer::Rejected(_)));
        }
    }
}

/// The lease of a leader that is cut off ends before another can have been elected: the earliest
/// election that the rules allow, against a leader that reads all the time.
#[test]
fn a_leader_that_is_cut_off_stops_answering_in_time() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, Config { seed, ..Config::default() });
        assert_eq!(cluster.elect(), 1);
        for round in 1..10 {
            let put = cluster.put(1, "a", round);
            cluster.answer(put);
            cluster.read(1, "a", false);
            cluster.run(20);
        }
        cluster.isolate(1);
        for round in 10..150 {
            cluster.read(1, "a", false);
            for store in [2, 3] {
                cluster.push(store, Event::Campaign { region: REGION });
                cluster.put(store, "a", round);
            }
            cluster.run(10);
        }
        assert!([2, 3].iter().any(|store| cluster.status(*store).role == Role::Leader));
    }
}

/// A round that was asked with one tick is answered, and its answer comes late, when all have
/// another one: it is counted from the asking, and would be as long as the new promises, though
/// the followers have given the old ones.
#[test]
fn a_round_from_before_another_tick_earns_no_lease() {
    let mut cluster = Cluster::new(4, Config::default());
    assert_eq!(cluster.elect(), 1);
    let put = cluster.put(1, "a", 1);
    cluster.answer(put);
    let read = cluster.read(1, "a", false);
    cluster.run_until("a round", |cluster| cluster.machines[&1].shard.stats().read_rounds > 0);
    let now = |tick_ms, leases| RegionSettings { tick_ms, leases, entry_bytes_max: 8 << 20 };
    for (tick_ms, leases) in [(50, false), (500, false), (500, true)] {
        for machine in cluster.machines.values_mut() {
            machine.shard.reconfigure(now(tick_ms, leases));
        }
    }
    assert_eq!(cluster.answer(read), value(1));
    let by_lease = |cluster: &Cluster| cluster.machines[&1].shard.stats().reads_by_lease;
    let second = cluster.read(1, "a", false);
    assert_eq!((cluster.answer(second), by_lease(&cluster)), (value(1), 0));
    // That one has a lease of the new length.
    let third = cluster.read(1, "a", false);
    assert_eq!((cluster.answer(third), by_lease(&cluster)), (value(1), 1));
}

/// Leases are off at once, and a replica whose next tick is far comes to it by the new tick.
#[test]
fn other_settings_are_in_force_from_the_next_step_on() {
    let mut cluster = Cluster::new(5, Config { tick_ms: 5_000, ..Config::default() });
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 1);
    cluster.answer(put);
    (0..2).for_each(|_| {
        let read = cluster.read(leader, "a", false);
        cluster.answer(read);
    });
    let stats = |cluster: &Cluster| cluster.machines[&leader].shard.stats();
    assert_eq!(stats(&cluster).reads_by_lease, 1);
    let settings = RegionSettings { tick_ms: 20, leases: false, entry_bytes_max: 100 };
    for machine in cluster.machines.values_mut() {
        machine.shard.reconfigure(settings);
        assert_eq!(machine.shard.settings(), settings);
    }
    // With the former tick an election would take a minute.
    cluster.isolate(leader);
    let from = cluster.now;
    cluster.run_until("another leader", |cluster| {
        (1..=3).any(|store| store != leader && cluster.status(store).role == Role::Leader)
    });
    assert!(cluster.now - from < 2_000, "{} ms", cluster.now - from);
    cluster.heal();
    cluster.run(1_000);
    let leader = cluster.leader().unwrap();
    let read = cluster.read(leader, "a", false);
    assert_eq!(cluster.answer(read), value(1));
    let by_lease: u64 =
        cluster.machines.values().map(|machine| machine.shard.stats().reads_by_lease).sum();
    assert_eq!(by_lease, 1, "leases are off");
    let large = cluster.put(leader, &"k".repeat(100), 2);
    assert!(matches!(cluster.answer(large), Answer::Rejected(Reject::EntryTooLarge { .. })));
}

/// The answer of the leader tells the follower what is committed.
#[test]
fn a_read_of_a_follower_waits_for_no_heartbeat() {
    let config = Config { heartbeat_ticks: 6, election_ticks: 40, ..Config::default() };
    let mut cluster = Cluster::new(3, config);
    let leader = cluster.elect();
    cluster.run(1000);
    for round in 1..10 {
        let put = cluster.put(leader, "a", round);
        cluster.answer(put);
        let from = cluster.now;
        let follower = if leader == 1 { 2 } else { 1 };
        let read = cluster.read(follower, "a", true);
        assert_eq!(cluster.answer(read), value(round));
        assert!(cluster.now - from <= 40, "{} ms", cluster.now - from);
    }
}

#[test]
fn a_follower_reads_what_was_written_before() {
    let mut cluster = Cluster::new(3, Config::default());
    let leader = cluster.elect();
    assert_eq!(leader, 1);
    cluster.run(200);
    for round in 1..30 {
        let put = cluster.put(1, "a", round);
        cluster.answer(put);
        let reads = [cluster.read(2, "a", true), cluster.read(3, "a", true)];
        for read in reads {
            assert_eq!(cluster.answer(read), value(round));
        }
    }
    let stats = cluster.machines[&1].shard.stats();
    assert!(stats.followers_answered > 40, "mostly under the lease: {stats:?}");
    assert!(stats.read_rounds < 10, "which is renewed now and then: {stats:?}");
}

#[test]
fn without_leases_a_quorum_confirms_every_read() {
    let mut config = Config::default();
    config.reads.leases = false;
    let mut cluster = Cluster::new(6, config);
    let leader = cluster.elect();
    for round in 1..20 {
        let put = cluster.put(leader, "a", round);
        cluster.answer(put);
        for (store, follower) in [(leader, false), (2, true), (3, true)] {
            let read = cluster.read(store, "a", follower);
            assert_eq!(cluster.answer(read), value(round));
        }
    }
    let stats = cluster.machines[&leader].shard.stats();
    assert_eq!((stats.reads_by_lease, stats.followers_answered), (0, 0));
    let rounds = stats.read_rounds;
    cluster.run(1000);
    let stats = cluster.machines[&leader].shard.stats();
    assert_eq!(stats.read_rounds, rounds, "there is no lease to keep");
}

/// The driver looks at its clock again before it hands out what a step has granted.
#[test]
fn a_late_step_serves_nothing_by_a_lease() {
    let config = Config::default();
    let in_time_ms = config.lateness_ms_max() - 1;
    let mut cluster = Cluster::new(7, config);
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 5);
    cluster.answer(put);
    for (late_ms, turned_back) in [(0, 0), (in_time_ms, 0), (in_time_ms + 1, 1), (60_000, 2)] {
        // The first earns the lease again.
        cluster.machines.get_mut(&leader).unwrap().late_ms = 0;
        let read = cluster.read(leader, "a", false);
        cluster.answer(read);
        cluster.machines.get_mut(&leader).unwrap().late_ms = late_ms;
        let read = cluster.read(leader, "a", false);
        cluster.run(1);
        assert_eq!(cluster.is_waiting(read), turned_back > 0, "{late_ms} ms late");
        cluster.machines.get_mut(&leader).unwrap().late_ms = 0;
        assert_eq!(cluster.answer(read), value(5), "no client sees an error");
        let stats = cluster.machines[&leader].shard.stats();
        assert_eq!(stats.reads_turned_back, turned_back, "{late_ms} ms late");
    }
}

#[test]
fn a_late_step_tells_followers_nothing_by_a_lease() {
    let mut cluster = Cluster::new(8, Config::default());
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 5);
    cluster.answer(put);
    let read = cluster.read(leader, "a", false);
    cluster.answer(read);
    let read = cluster.read(2, "a", true);
    cluster.answer(read);
    let stats = cluster.machines[&leader].shard.stats();
    assert_eq!((stats.followers_answered, stats.reads_turned_back), (1, 0), "under the lease");
    cluster.machines.get_mut(&leader).unwrap().late_ms = 1000;
    let began = cluster.now;
    let read = cluster.read(2, "a", true);
    assert_eq!(cluster.answer(read), value(5));
    assert_eq!(cluster.machines[&leader].shard.stats().reads_turned_back, 1);
    assert!(cluster.now - began < 100, "the leader asks the quorum, without being asked again");
}

#[test]
fn a_follower_that_is_cut_off_gives_up() {
    let mut cluster = Cluster::new(4, Config::default());
    cluster.elect();
    cluster.run(200);
    cluster.isolate(3);
    let read = cluster.read(3, "a", true);
    let why = cluster.answer(read);
    assert!(matches!(
        why,
        Answer::Rejected(Reject::ReadIndexNotReady | Reject::NotLeader { leader: None })
    ));
}

#[test]
fn reads_survive_lost_messages() {
    let mut cluster = Cluster::new(5, Config::default());
    let leader = cluster.elect();
    cluster.run(200);
    cluster.loss_percent = 30;
    let mut served = 0;
    for _ in 0..50 {
        let reads = [cluster.read(leader, "a", false), cluster.read(3, "a", true)];
        let answers = reads.map(|read| cluster.answer(read));
        served += answers.iter().filter(|a| matches!(a, Answer::Value(_))).count();
    }
    assert!(served > 80, "{served} of 100");
}

#[test]
fn a_new_leader_waits_for_an_entry_of_its_own_term() {
    let mut shard = Shard::new(Config::default());
    let found = RecoveredReplica::fresh(super::cluster::descriptor(1), peer(1).id);
    shard.create(Time(0), found, true).unwrap();
    let mut effects = Effects::default();
    let read = Event::Read {
        region: REGION,
        ticket: Ticket(1),
        precondition: RequestPrecondition::default(),
        follower: false,
    };
    shard.step(Time(0), std::iter::empty(), &mut effects);
    shard.step(Time(1), [read].into_iter(), &mut effects);
    let number = effects.log.writes.iter().rfind(|write| write.sync).unwrap().number;
    shard.step(Time(2), [Event::Persisted { region: REGION, number }].into_iter(), &mut effects);
    assert!(effects.answers.reads.is_empty(), "committed, but not applied");
    let index = Index(1);
    shard.step(
        Time(3),
        [Event::Applied { region: REGION, index, changes: vec![], size: None }].into_iter(),
        &mut effects,
    );
    let (by_lease, follower) = (false, false);
    assert_eq!(
        effects.answers.reads,
        [ReadGrant { region: REGION, ticket: Ticket(1), by_lease, follower, index }]
    );
}

/// A new leader may hold a lease before it has applied what its predecessors had answered.
#[test]
fn a_lease_does_not_replace_applying() {
    let entry = LogEntry { index: Index(1), term: Term(1), ..LogEntry::default() };
    let found = RecoveredReplica {
        hard_state: HardState { term: Term(1), vote: None, commit: Index(1) },
        terms: vec![(Index(1), Term(1))],
        last: Index(1),
        tail: vec![entry],
        is_damaged: false,
        ..RecoveredReplica::fresh(super::cluster::descriptor(1), peer(1).id)
    };
    let mut shard = Shard::new(Config::default());
    shard.create(Time(0), found, false).unwrap();
    let mut effects = Effects::default();
    while shard.status(REGION).unwrap().role != Role::Leader {
        let now = shard.next_step().unwrap();
        shard.step(now, std::iter::empty(), &mut effects);
    }
    let read = |ticket| Event::Read {
        region: REGION,
        ticket: Ticket(ticket),
        precondition: RequestPrecondition::default(),
        follower: false,
    };
    let now = shard.next_step().unwrap();
    let number = effects.log.writes.iter().rfind(|write| write.sync).unwrap().number;
    shard.step(now, [Event::Persisted { region: REGION, number }].into_iter(), &mut effects);
    shard.step(now, [read(1)].into_iter(), &mut effects);
    shard.step(now, [read(2)].into_iter(), &mut effects);
    assert_eq!(shard.stats().reads_by_lease, 1, "the first read earned a lease");
    assert!(effects.answers.reads.is_empty(), "nothing is applied");
    let applied =
        |index| Event::Applied { region: REGION, index: Index(index), changes: vec![], size: None };
    shard.step(now, [applied(1)].into_iter(), &mut effects);
    assert!(effects.answers.reads.is_empty(), "the entry of its own term is not applied");
    shard.step(now, [applied(2)].into_iter(), &mut effects);
    assert_eq!(effects.answers.reads.len(), 2);
}
