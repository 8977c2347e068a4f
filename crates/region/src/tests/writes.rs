//! Proposals, from the ticket that goes in to the ticket that comes out.

use bytes::Bytes;
use flotilla_kv::raw;

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;

#[test]
fn a_put_reaches_every_replica() {
    let mut cluster = Cluster::new(1, Config::default());
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.run(200);
    for machine in cluster.machines.values() {
        assert_eq!(machine.disks[&REGION].applied.2[&b"a"[..]], &1u64.to_be_bytes()[..]);
    }
}

#[test]
fn proposals_of_a_step_share_one_entry_and_come_out_in_order() {
    let mut cluster = Cluster::new(2, Config::default());
    let leader = cluster.elect();
    let before = cluster.status(leader).last;
    let puts: Vec<_> = (0..100).map(|n| cluster.put(leader, &format!("{n}"), n)).collect();
    cluster.run(1);
    assert_eq!(cluster.status(leader).last.0, before.0 + 1);
    for put in puts {
        assert_eq!(cluster.answer(put), Answer::Done);
    }
    let entry = &cluster.histories[&REGION][&Index(before.0 + 1)];
    assert_eq!(entry_data::proposals(&entry.data).count(), 100);
}

/// A message of its own for each commit would double the messages of a put.
#[test]
fn followers_hear_of_a_commit_with_the_next_entry_or_heartbeat() {
    let config = Config { heartbeat_ticks: 6, election_ticks: 40, ..Config::default() };
    let mut cluster = Cluster::new(6, config);
    let leader = cluster.elect();
    cluster.run(1000);
    let taken = |cluster: &Cluster| -> u64 {
        cluster.machines.values().map(|machine| machine.shard.stats().messages_taken).sum()
    };
    let before = taken(&cluster);
    for value in 1..=100 {
        let put = cluster.put(leader, "a", value);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
    // Four for each put, and now and then heartbeats.
    let messages = taken(&cluster) - before;
    assert!(messages < 5 * 100, "{messages} messages for 100 puts");
    cluster.run(350);
    for machine in cluster.machines.values() {
        assert_eq!(machine.disks[&REGION].applied.2[&b"a"[..]], &100u64.to_be_bytes()[..]);
    }
}

#[test]
fn so_many_writes_are_under_way_and_the_rest_waits() {
    let config = Config { pipeline_depth: 2, ..Config::default() };
    let mut cluster = Cluster::new(3, config);
    let leader = cluster.elect();
    cluster.run(50);
    let before = cluster.status(leader).last;
    let mut events = |count: u64| {
        let mut effects = Effects::default();
        let machine = cluster.machines.get_mut(&leader).unwrap();
        let now = super::cluster::clock(leader, cluster.now);
        let ops = [raw::RawOp::Delete { key: Bytes::new() }];
        let propose = |ticket| Event::Propose {
            region: REGION,
            ticket: Ticket(1000 + ticket),
            precondition: RequestPrecondition::default(),
            command: raw::encode(&ops),
        };
        machine.shard.step(now, (0..count).map(propose), &mut effects);
        (machine.shard.status(REGION).unwrap(), effects)
    };
    for _ in 0..5 {
        events(3);
    }
    let (status, _) = events(0);
    assert_eq!(status.last.0, before.0 + 2, "two entries are written");
    assert_eq!((status.proposed, status.queued), (6, 9));
}

#[test]
fn a_follower_names_the_leader() {
    let mut cluster = Cluster::new(4, Config::default());
    assert_eq!(cluster.elect(), 1);
    cluster.run(100);
    let why = Reject::NotLeader { leader: Some(peer(1)) };
    let put = cluster.put(2, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Rejected(why.clone()));
    let read = cluster.read(2, "a", false);
    assert_eq!(cluster.answer(read), Answer::Rejected(why));
}

#[test]
fn what_is_refused_comes_back_in_the_same_step() {
    let mut config = Config { entry_bytes_max: 1 << 19, ..Config::default() };
    config.queue.bytes_max = 1000;
    let mut shard = Shard::new(config);
    let found = RecoveredReplica::fresh(super::cluster::descriptor(1), peer(1).id);
    shard.create(Time(0), found, true).unwrap();
    let mut effects = Effects::default();
    shard.step(Time(0), std::iter::empty(), &mut effects);
    assert_eq!(shard.status(REGION).unwrap().role, Role::Leader);
    effects.clear();
    let propose = |region, ticket, bytes: usize, version| Event::Propose {
        region,
        ticket: Ticket(ticket),
        precondition: RequestPrecondition { version, ..RequestPrecondition::default() },
        command: Bytes::from(vec![0; bytes]),
    };
    let events = [
        propose(RegionId(99), 1, 1, None),
        propose(REGION, 2, 1, Some(9)),
        propose(REGION, 3, 1 << 19, None),
        propose(REGION, 4, 900, Some(1)),
        propose(REGION, 5, 900, Some(1)),
    ];
    shard.step(Time(1), events.into_iter(), &mut effects);
    let rejected: Vec<_> =
        effects.answers.rejected.iter().map(|(ticket, why)| (ticket.0, why)).collect();
    assert!(matches!(
        rejected[..],
        [
            (1, Reject::RegionNotFound(RegionId(99))),
            (2, Reject::EpochNotMatch { .. }),
            (3, Reject::EntryTooLarge { limit: 524_288, .. }),
            (5, Reject::Busy { .. }),
        ]
    ));
}

/// A leader is cut off with proposals in its log and in its queue. The queue is given back when it
/// steps down; what is in the log waits. The new leader's entries take its place: stale.
#[test]
fn a_proposal_that_lost_its_place_is_stale_and_only_then() {
    let config = Config { pipeline_depth: 1, ..Config::default() };
    let mut cluster = Cluster::new(5, config);
    assert_eq!(cluster.elect(), 1);
    cluster.run(100);
    cluster.isolate(1);
    let in_log = cluster.put(1, "a", 1);
    cluster.run(1);
    let queued = cluster.put(1, "a", 2);
    cluster.run(1);
    cluster.run_until("step down", |cluster| cluster.status(1).role != Role::Leader);
    assert!(cluster.is_waiting(in_log), "nobody knows yet");
    cluster.run_until("another leader", |cluster| cluster.leader().is_some());
    let leader = cluster.leader().unwrap();
    let put = cluster.put(leader, "a", 3);
    assert_eq!(cluster.answer(put), Answer::Done);
    assert!(cluster.is_waiting(in_log), "nobody knows yet");
    cluster.heal();
    assert_eq!(cluster.answer(in_log), Answer::Rejected(Reject::StaleCommand));
    let _ = cluster.answer(queued);
}

/// A leader's proposal reaches a follower, the leader is cut off and steps down. The follower leads
/// next and commits the entry: the client of the former leader hears of its success.
#[test]
fn a_proposal_of_a_former_leader_may_still_succeed() {
    let mut cluster = Cluster::new(6, Config::default());
    assert_eq!(cluster.elect(), 1);
    cluster.run(100);
    cluster.isolate(3);
    let put = cluster.put(1, "a", 1);
    cluster.run_until("the follower has it", |cluster| {
        let last = cluster.status(1).last;
        cluster.status(2).last == last && cluster.status(1).commit < last
    });
    cluster.heal();
    cluster.isolate(1);
    cluster.run_until("step down", |cluster| cluster.status(1).role != Role::Leader);
    assert!(cluster.is_waiting(put));
    cluster.run_until("the follower leads", |cluster| cluster.status(2).role == Role::Leader);
    cluster.heal();
    assert_eq!(cluster.answer(put), Answer::Done);
}

#[test]
fn draining_tells_apart_what_had_no_effect_from_what_may_have() {
    let config = Config { pipeline_depth: 1, ..Config::default() };
    let mut cluster = Cluster::new(7, config);
    let leader = cluster.elect();
    cluster.run(100);
    let in_log = cluster.put(leader, "a", 1);
    cluster.run(1);
    let queued = cluster.put(leader, "a", 2);
    let now = super::cluster::clock(leader, cluster.now);
    let machine = cluster.machines.get_mut(&leader).unwrap();
    let mut effects = Effects::default();
    machine.shard.step(now, machine.inbox.drain(..), &mut effects);
    effects.clear();
    assert_eq!(machine.shard.drain(&mut effects), [in_log]);
    assert_eq!(effects.answers.rejected, [(queued, Reject::NotLeader { leader: None })]);
    machine.shard.check_invariants();
}
