//! Promises to a leader: that they are renewed in a region that is only read, and that they hold
//! towards candidates however far ahead their terms are.

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;

/// How far ahead of the leader's term a candidate may be. A sound replica can reach each of these
/// terms.
const AHEAD: [u64; 5] = [1, 2, 10, 1000, 1 << 19];

/// A cluster that store 1 leads and in which nothing is written any more, but much is read.
fn read_for_a_while(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, Config { seed, ..Config::default() });
    assert_eq!(cluster.elect(), 1);
    let put = cluster.put(1, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    let last = cluster.status(1).last;
    // Three times as long as a promise lasts.
    for _ in 0..100 {
        cluster.read(1, "a", false);
        cluster.run(20);
    }
    assert_eq!((cluster.leader(), cluster.status(1).last), (Some(1), last), "it was only read");
    cluster
}

/// A message of store `from` to store `to`, whose log is the longest and whose term is so far ahead
/// of the receiver's.
fn message(cluster: &Cluster, from: u64, to: u64, kind: MessageKind, ahead: u64) -> Event {
    let status = cluster.status(to);
    let (index, log_term) = (Index(status.last.0 + 5), status.term);
    let reject = kind == MessageKind::RequestPreVoteResponse;
    let term = Term(status.term.0 + ahead);
    Event::Message(Envelope {
        region: REGION,
        from: peer(from),
        to: peer(to),
        epoch: Epoch { conf_version: 1, version: 1 },
        gc_floor: Index(0),
        range: None,
        message: Message { kind, term, index, log_term, reject, ..Message::default() },
    })
}

#[test]
fn a_region_that_is_only_read_keeps_the_promises_to_its_leader() {
    for (seed, ahead) in (0..).zip(AHEAD) {
        let mut cluster = read_for_a_while(seed);
        let term = cluster.status(2).term;
        for kind in [MessageKind::RequestPreVote, MessageKind::RequestVote] {
            let question = message(&cluster, 3, 2, kind, ahead);
            cluster.push(2, question);
        }
        cluster.push(2, Event::Campaign { region: REGION });
        cluster.run(1);
        let status = cluster.status(2);
        assert_eq!((status.term, status.role), (term, Role::Follower), "{ahead} terms ahead");
        let withheld = cluster.machines[&2].shard.stats().dropped.votes_withheld;
        assert_eq!(withheld, 2, "{ahead} terms ahead");
        let by_lease = cluster.machines[&1].shard.stats().reads_by_lease;
        let read = cluster.read(1, "a", false);
        cluster.run(1);
        assert!(matches!(cluster.answers[&read], Answer::Value(Some(_))));
        let stats = cluster.machines[&1].shard.stats();
        assert_eq!(stats.reads_by_lease, by_lease + 1, "the leader did not count on the promise");
    }
}

/// Raft forgets its leader when it hears of a higher term; it would then vote. The promise must not
/// be forgotten, however high the term was, and must end when its time is over.
#[test]
fn a_follower_that_heard_of_a_term_far_ahead_withholds_its_vote_for_a_whole_promise() {
    for (seed, ahead) in (0..).zip(AHEAD) {
        let mut cluster = read_for_a_while(seed);
        let config = Config::default();
        cluster.isolate(1);
        cluster.isolate(3);
        let heard = cluster.now;
        let refusal = message(&cluster, 3, 2, MessageKind::RequestPreVoteResponse, ahead);
        cluster.push(2, refusal);
        cluster.run(1);
        let status = cluster.status(2);
        assert_eq!((status.term.0 - cluster.status(1).term.0, status.leader), (ahead, None));
        let term = status.term;
        // The leader's last word may be as old as the time between two heartbeats.
        let kept_ms =
            config.tick_ms * u64::from(config.election_ticks - 1 - config.heartbeat_ticks);
        while cluster.now < heard + kept_ms * 97 / 100 {
            let question = message(&cluster, 3, 2, MessageKind::RequestVote, ahead);
            cluster.push(2, question);
            cluster.push(2, Event::Campaign { region: REGION });
            cluster.run(10);
            let passed = cluster.now - heard;
            assert_eq!(cluster.status(2).term, term, "{passed} ms after {ahead} terms ahead");
        }
        cluster.run(2 * config.tick_ms * u64::from(config.heartbeat_ticks + 1));
        let question = message(&cluster, 3, 2, MessageKind::RequestVote, ahead);
        cluster.push(2, question);
        cluster.run(1);
        assert_eq!(cluster.status(2).term.0, term.0 + ahead, "the promise never ended");
    }
}

/// The earliest election that the promises allow, with all others far ahead, against a leader that
/// answers reads alone. The cluster itself finds the stale read.
#[test]
fn candidates_far_ahead_are_not_elected_while_the_leader_answers_alone() {
    for (seed, ahead) in (0..).zip(AHEAD) {
        let mut cluster = read_for_a_while(seed);
        cluster.isolate(1);
        for store in [2, 3] {
            let from = 5 - store;
            let refusal =
                message(&cluster, from, store, MessageKind::RequestPreVoteResponse, ahead);
            cluster.push(store, refusal);
        }
        for round in 2..150 {
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
