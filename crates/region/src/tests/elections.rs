//! Tests of elections: the leader, the promises of followers, and the reports of both.

use super::cluster::{Cluster, REGION, peer};
use crate::*;

#[test]
fn the_replica_that_is_told_to_campaigns_at_once() {
    let mut cluster = Cluster::new(1, Config::default());
    cluster.run(30);
    assert_eq!(cluster.leader(), Some(1));
    cluster.run(200);
    for store in 1..=3 {
        let status = cluster.status(store);
        assert_eq!((status.term, status.leader), (Term(1), Some(peer(1))));
        let reported: Vec<_> = cluster.roles.iter().filter(|(at, _)| *at == store).collect();
        let last = reported.last().unwrap().1;
        assert_eq!((last.leader, last.is_leader), (Some(peer(1)), store == 1));
    }
}

#[test]
fn without_a_leader_another_is_elected_and_the_old_one_follows() {
    let mut cluster = Cluster::new(2, Config::default());
    cluster.elect();
    cluster.isolate(1);
    cluster.run_until("another leader", |cluster| cluster.leader().is_some_and(|l| l != 1));
    cluster.run_until("the old one steps down", |cluster| cluster.status(1).role != Role::Leader);
    cluster.heal();
    cluster.run(1000);
    let leader = cluster.elect();
    assert_eq!(cluster.status(1).leader, Some(peer(leader)));
    assert_eq!(cluster.status(1).commit, cluster.status(leader).commit);
}

#[test]
fn a_restarted_replica_keeps_still_for_an_election_timeout() {
    let mut cluster = Cluster::new(3, Config::default());
    cluster.elect();
    cluster.run(100);
    for store in 1..=3 {
        cluster.crash(store);
    }
    let start = cluster.now;
    for store in 1..=3 {
        cluster.restart(store);
        cluster.push(store, Event::Campaign { region: REGION });
    }
    let rounds = cluster.roles.len();
    // Clocks run up to two percent fast here.
    cluster.run(12 * 50 * 97 / 100);
    assert_eq!(cluster.roles.len(), rounds, "somebody campaigned within {}", cluster.now - start);
    cluster.elect();
}

/// A follower that has just heard from its leader receives a higher term from a third replica,
/// which then asks for its vote. Raft alone would forget the leader and vote, while the leader
/// answers reads under a lease that this follower's answer has renewed.
#[test]
fn a_follower_keeps_its_promise_when_it_hears_of_a_higher_term() {
    let mut cluster = Cluster::new(4, Config::default());
    assert_eq!(cluster.elect(), 1);
    cluster.run(101);
    cluster.isolate(3);
    let higher = Term(cluster.status(2).term.0 + 1);
    let message = |kind, term, index, log_term| {
        Event::Message(Envelope {
            region: REGION,
            from: peer(3),
            to: peer(2),
            epoch: Epoch { conf_version: 1, version: 1 },
            gc_floor: Index(0),
            range: None,
            message: Message { kind, term, index, log_term, reject: true, ..Message::default() },
        })
    };
    let refusal = message(MessageKind::RequestPreVoteResponse, higher, Index(0), Term(0));
    cluster.push(2, refusal);
    cluster.run(1);
    assert_eq!((cluster.status(2).term, cluster.status(2).leader), (higher, None));
    for kind in [MessageKind::RequestPreVote, MessageKind::RequestVote] {
        let last = cluster.status(2).last;
        cluster.push(2, message(kind, Term(higher.0 + 1), Index(last.0 + 5), higher));
    }
    cluster.push(2, Event::Campaign { region: REGION });
    cluster.run(1);
    let status = cluster.status(2);
    assert_eq!((status.term, status.role), (higher, Role::Follower));
    assert_eq!(cluster.machines[&2].shard.stats().dropped.votes_withheld, 2);
}

#[test]
fn a_late_clock_ticks_once() {
    let mut shard = Shard::new(Config::default());
    let found = RecoveredReplica::fresh(super::cluster::descriptor(3), peer(1).id);
    shard.create(Time(0), found, false).unwrap();
    let mut effects = Effects::default();
    let mut now = Time(0);
    // Each step comes an hour late; eleven of them are no election timeout.
    for _ in 0..11 {
        now = now.after_ms(3_600_000);
        shard.step(now, std::iter::empty(), &mut effects);
        assert_eq!(shard.next_step(), Some(now.after_ms(50)));
    }
    assert!(effects.messages.is_empty());
    assert_eq!(shard.status(REGION).unwrap().role, Role::Follower);
}

#[test]
fn a_lone_replica_elects_itself_and_serves() {
    let mut cluster = Cluster::with_stores(5, Config::default(), 1);
    assert_eq!(cluster.elect(), 1);
    let put = cluster.put(1, "a", 1);
    assert_eq!(cluster.answer(put), super::machine::Answer::Done);
    let read = cluster.read(1, "a", false);
    assert!(matches!(cluster.answer(read), super::machine::Answer::Value(Some(_))));
}
