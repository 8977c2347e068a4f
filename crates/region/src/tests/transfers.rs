//! Tests of transfers of leadership: the next leader is there at once, writes wait and do not fail,
//! and no read is stale, whatever becomes of the transfer.

use super::cluster::{Cluster, REGION, descriptor, peer};
use super::machine::Answer;
use crate::*;

fn value(of: u64) -> Answer {
    Answer::Value(Some(bytes::Bytes::copy_from_slice(&of.to_be_bytes())))
}

/// Store 1 leads, holds a lease, and has written 1 to key `a`.
fn leased(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, Config { seed, ..Config::default() });
    assert_eq!(cluster.elect(), 1);
    let put = cluster.put(1, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.run(300);
    for _ in 0..2 {
        let read = cluster.read(1, "a", false);
        assert_eq!(cluster.answer(read), value(1));
    }
    assert!(cluster.machines[&1].shard.stats().reads_by_lease > 0);
    cluster
}

fn stats(cluster: &Cluster, store: u64) -> Stats {
    cluster.machines[&store].shard.stats()
}

fn refusal(cluster: &mut Cluster, store: u64, to: Option<u64>) -> Reject {
    let transfer = cluster.transfer(store, to);
    match cluster.answer(transfer) {
        Answer::Rejected(why) => why,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn the_next_leader_serves_within_a_few_messages_and_writes_meanwhile_do_not_fail() {
    for (seed, to) in [(1, Some(2)), (2, Some(3)), (3, None)] {
        let mut cluster = leased(seed);
        let began = cluster.now;
        let transfer = cluster.transfer(1, to);
        let Answer::Transferred(leader) = cluster.answer(transfer) else { panic!("not done") };
        assert!(cluster.now - began < 50, "{} ms", cluster.now - began);
        assert!(to.is_none_or(|to| leader == peer(to)));
        let put = cluster.put(leader.store.0, "a", 2);
        assert_eq!(cluster.answer(put), Answer::Done);
        assert!(cluster.now - began < 100, "{} ms", cluster.now - began);
        let read = cluster.read(leader.store.0, "a", false);
        assert_eq!(cluster.answer(read), value(2));
        let of_old = stats(&cluster, 1);
        assert_eq!((of_old.transfers_begun, of_old.transfers_done), (1, 1));
    }
}

#[test]
fn proposals_wait_for_the_outcome() {
    let mut cluster = leased(4);
    // The word to campaign is lost, so the transfer fails.
    let transfer = cluster.transfer(1, Some(2));
    cluster.run(1);
    assert_eq!(cluster.intercept(MessageKind::TimeoutNow).len(), 1);
    let put = cluster.put(1, "a", 2);
    cluster.run(300);
    assert!(cluster.is_waiting(put) && cluster.is_waiting(transfer));
    assert_eq!(cluster.status(1).queued, 1);
    let why = Reject::InvalidTransfer(TransferError::TimedOut(peer(2).id));
    assert_eq!(cluster.answer(transfer), Answer::Rejected(why));
    assert_eq!(cluster.answer(put), Answer::Done, "the leader goes on");
    assert_eq!(cluster.leader(), Some(1));
    assert_eq!(stats(&cluster, 1).transfers_refused, 1);
}

/// R22: the next leader does not wait for the end of the promises, and the old one may not have
/// heard of it.
#[test]
fn the_old_leader_answers_nothing_alone_once_it_has_called_for_an_election() {
    let mut cluster = leased(5);
    let by_lease = stats(&cluster, 1).reads_by_lease;
    cluster.transfer(1, Some(2));
    cluster.run(1);
    let called = cluster.intercept(MessageKind::TimeoutNow);
    cluster.isolate(1);
    called.into_iter().for_each(|envelope| cluster.push(2, Event::Message(envelope)));
    cluster.run_until("the next leader", |cluster| cluster.leader() == Some(2));
    let put = cluster.put(2, "a", 2);
    assert_eq!(cluster.answer(put), Answer::Done);
    assert_eq!(cluster.status(1).role, Role::Leader, "it has heard nothing");
    // Within the time of its lease. The cluster itself finds a stale read.
    let read = cluster.read(1, "a", false);
    let of_follower = cluster.read(3, "a", true);
    cluster.run(20);
    assert!(cluster.is_waiting(read));
    assert_eq!(cluster.answer(of_follower), value(2));
    assert!(matches!(cluster.answer(read), Answer::Rejected(_)));
    assert_eq!(stats(&cluster, 1).reads_by_lease, by_lease);
}

/// C22: the transfer fails, its vote comes late, and the old leader reads in between.
#[test]
fn a_transfer_that_failed_gives_the_lease_back_to_no_one() {
    let mut cluster = leased(6);
    let transfer = cluster.transfer(1, Some(2));
    let mut votes = vec![];
    for _ in 0..40 {
        cluster.run(1);
        votes.extend(cluster.intercept(MessageKind::RequestVote));
        // The candidate is cut off with its votes, before its term tells the others of it.
        if !votes.is_empty() {
            cluster.isolate(2);
        }
    }
    assert_eq!(votes.len(), 2);
    assert!(matches!(cluster.answer(transfer), Answer::Rejected(_)));
    let by_lease = stats(&cluster, 1).reads_by_lease;
    for value in 2..40 {
        let put = cluster.put(1, "a", value);
        assert_eq!(cluster.answer(put), Answer::Done);
        let reads = [cluster.read(1, "a", false), cluster.read(3, "a", true)];
        for read in reads {
            assert!(matches!(cluster.answer(read), Answer::Value(_)));
        }
    }
    let now = stats(&cluster, 1);
    assert_eq!(
        (now.reads_by_lease, now.followers_answered),
        (by_lease, 0),
        "the term has no lease"
    );
    // The vote of the other store, while it keeps its promise to the leader.
    cluster.isolate(1);
    let vote = votes.into_iter().find(|vote| vote.to == peer(3)).unwrap();
    let (term, withheld) = (vote.message.term, stats(&cluster, 3).dropped.votes_withheld);
    cluster.push(3, Event::Message(vote));
    cluster.run(1);
    assert_eq!(cluster.status(3).term, term, "a forced vote passes the promise");
    assert_eq!(stats(&cluster, 3).dropped.votes_withheld, withheld);
    cluster.heal();
    cluster.elect();
    cluster.run(2000);
    let leader = cluster.leader().unwrap();
    let put = cluster.put(leader, "a", 50);
    assert_eq!(cluster.answer(put), Answer::Done);
    for _ in 0..2 {
        let read = cluster.read(leader, "a", false);
        assert_eq!(cluster.answer(read), value(50));
    }
    assert!(stats(&cluster, leader).reads_by_lease > 0, "the next term has its lease");
}

#[test]
fn each_refusal_has_its_reason_and_changes_nothing() {
    let mut cluster = leased(7);
    let refused = |why| Reject::InvalidTransfer(why);
    assert_eq!(refusal(&mut cluster, 2, None), Reject::NotLeader { leader: Some(peer(1)) });
    let why = refused(TransferError::NotVoter(peer(9).id));
    assert_eq!(refusal(&mut cluster, 1, Some(9)), why);
    let here = cluster.transfer(1, Some(1));
    assert_eq!(cluster.answer(here), Answer::Transferred(peer(1)));
    // One store is away: first it is silent, then it lacks too much.
    cluster.isolate(3);
    cluster.run(300);
    assert_eq!(refusal(&mut cluster, 1, Some(3)), refused(TransferError::Silent(peer(3).id)));
    for round in 0..200 {
        let key = "a".repeat(1000);
        let put = cluster.put(1, &key, 10 + round);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
    cluster.heal();
    let mut lagged = false;
    while cluster.status(3).last < cluster.status(1).last {
        cluster.run(1);
        let transfer = cluster.transfer(1, Some(3));
        cluster.run(1);
        if let Some(answer) = cluster.answers.get(&transfer) {
            let why = TransferError::Lagging(peer(3).id);
            lagged |= *answer == Answer::Rejected(refused(why));
        }
    }
    assert!(lagged, "it was never refused for its log");
    // The first one is under way.
    cluster.run(2000);
    let leader = cluster.leader().unwrap();
    let others: Vec<u64> = (1..=3).filter(|store| *store != leader).collect();
    let first = cluster.transfer(leader, Some(others[0]));
    let second = cluster.transfer(leader, Some(others[1]));
    let why = refused(TransferError::UnderWay(peer(others[0]).id));
    assert_eq!(cluster.answer(second), Answer::Rejected(why));
    assert_eq!(cluster.answer(first), Answer::Transferred(peer(others[0])));
    // A store that is alone, and a region that is not here.
    let mut alone = Cluster::with_stores(1, Config::default(), 1);
    alone.elect();
    alone.run(50);
    assert_eq!(refusal(&mut alone, 1, None), refused(TransferError::NoCandidate));
    let mut effects = Effects::default();
    let shard = &mut Shard::new(Config::default());
    let event = Event::TransferLeader { region: REGION, to: None, ticket: Some(Ticket(1)) };
    shard.step(Time(0), [event].into_iter(), &mut effects);
    assert_eq!(effects.answers.rejected, [(Ticket(1), Reject::RegionNotFound(REGION))]);
}

/// C6: neither waits for the other, and neither begins beside it.
#[test]
fn a_split_and_a_transfer_keep_out_of_each_others_way() {
    let split = || {
        let peers = (1..=3).map(|store| PeerId(800 + store)).collect();
        let children = vec![SplitChild { id: RegionId(8), end: "m".into(), peers }];
        SplitCommand { epoch: descriptor(3).epoch, children }
    };
    let splitting = Reject::InvalidTransfer(TransferError::Changing);
    let mut cluster = leased(8);
    let made = cluster.split(1, split());
    // In the queue, then in the log, and until it is applied.
    let mut refused = vec![cluster.transfer(1, Some(2))];
    while cluster.is_waiting(made) {
        cluster.run(1);
        if cluster.is_waiting(made) {
            refused.push(cluster.transfer(1, Some(2)));
        }
    }
    assert!(refused.len() > 2, "the split was applied at once");
    for transfer in refused {
        assert_eq!(cluster.answer(transfer), Answer::Rejected(splitting.clone()));
    }
    assert_eq!(cluster.answer(made), Answer::Done);
    let mut cluster = leased(9);
    let transfer = cluster.transfer(1, Some(2));
    let late = cluster.split(1, split());
    assert!(matches!(cluster.answer(late), Answer::Rejected(Reject::Busy { .. })));
    assert_eq!(cluster.answer(transfer), Answer::Transferred(peer(2)));
}

/// A leader does not know which splits its predecessors have proposed until it has applied their
/// entries.
#[test]
fn a_new_leader_first_applies_what_it_has_found() {
    let mut cluster = leased(10);
    let first = cluster.transfer(1, Some(2));
    assert_eq!(cluster.answer(first), Answer::Transferred(peer(2)));
    cluster.run_until("the next leader", |cluster| cluster.status(2).role == Role::Leader);
    let again = refusal(&mut cluster, 2, Some(1));
    assert_eq!(again, Reject::InvalidTransfer(TransferError::NewLeader));
    cluster.elect();
    cluster.run(50);
    let back = cluster.transfer(2, Some(1));
    assert_eq!(cluster.answer(back), Answer::Transferred(peer(1)));
}

/// A message that was doubled, or comes late, deposes no sound leader.
#[test]
fn a_late_word_to_campaign_means_nothing() {
    let mut cluster = leased(11);
    let transfer = cluster.transfer(1, Some(2));
    cluster.run(1);
    let called = cluster.intercept(MessageKind::TimeoutNow);
    cluster.push(2, Event::Message(called[0].clone()));
    assert_eq!(cluster.answer(transfer), Answer::Transferred(peer(2)));
    cluster.elect();
    let (term, stale) = (cluster.status(2).term, stats(&cluster, 3).dropped.stale);
    let mut late = called[0].clone();
    cluster.push(2, Event::Message(late.clone()));
    late.to = peer(3);
    cluster.push(3, Event::Message(late.clone()));
    // In the name of a replica that does not lead.
    late.message.term = term;
    cluster.push(3, Event::Message(late));
    cluster.run(1000);
    assert_eq!((cluster.leader(), cluster.status(2).term), (Some(2), term));
    assert_eq!(stats(&cluster, 3).dropped.stale, stale + 2);
}
