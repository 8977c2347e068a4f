//! Tests of ends: a replica that was removed ends by a root, whoever tells it, and is not made
//! again; those that ask are told, and nothing late is taken for news.

use super::cluster::{REGION, descriptor, new_replica, peer};
use super::machine::Answer;
use super::members::{change, cluster, descriptor_on, settled, vote, with_learner};
use super::single::{Single, append, asks, persisted, split_at};
use crate::*;
use MembershipChange::{Add, Remove};

fn notice(kind: NoticeKind, of: u64, conf_version: u64) -> Event {
    let epoch = Epoch { conf_version, version: 1 };
    let (from, to) = (StoreId(1), StoreId(3));
    Event::Notice(Notice { region: REGION, from, to, kind, peer: peer(of).id, epoch })
}

fn ended(of: u64) -> Event {
    Event::Ended { region: REGION, peer: peer(of).id }
}

fn end_of(store: u64) -> EndTask {
    EndTask { region: REGION, peer: peer(store).id }
}

fn told(effects: &Effects) -> Vec<(NoticeKind, PeerId, u64)> {
    effects.notices.iter().map(|told| (told.kind, told.peer, told.to.0)).collect()
}

/// Replica 3 of the region, without any entry.
fn replica() -> Single {
    let mut single = Single::new();
    let found = RecoveredReplica::fresh(descriptor(3), peer(3).id);
    single.shard.create(Time(0), found, false).unwrap();
    single.step(vec![]);
    single
}

/// Replica 3 without data, whose birth is on disk.
fn uninitialised() -> Single {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    single.step(persisted(&born));
    single
}

#[test]
fn a_store_that_never_had_the_replica_writes_its_end_and_answers_after_the_root() {
    let mut single = Single::new();
    let asked = single.step(vec![notice(NoticeKind::End, 3, 5)]);
    assert_eq!((asked.ends, asked.notices), (vec![end_of(3)], vec![]));
    assert!(single.step(vec![notice(NoticeKind::End, 3, 5)]).is_empty(), "one question at a time");
    assert!(single.receive(asks(1, 3, 7)).is_empty(), "the slot is not free");
    let done = single.step(vec![ended(3)]);
    assert_eq!(told(&done), [(NoticeKind::Ended, peer(3).id, 1)]);
    assert!(done.log.removals.is_empty(), "it has no log");
    let again = single.step(vec![notice(NoticeKind::End, 3, 5)]);
    assert_eq!(told(&again), [(NoticeKind::Ended, peer(3).id, 1)], "the answer was lost");
    assert!(again.ends.is_empty(), "no second root for it");
    // A start has forgotten it, and the store knows.
    assert_eq!(Single::new().step(vec![notice(NoticeKind::End, 3, 5)]).ends, [end_of(3)]);
}

#[test]
fn a_notice_of_no_possible_replica_is_refused() {
    let mut single = Single::new();
    for id in [0, 1 << 60, u64::MAX] {
        for kind in [NoticeKind::WhoIs, NoticeKind::Gone, NoticeKind::End, NoticeKind::Ended] {
            let (epoch, from, to) = (Epoch::default(), StoreId(1), StoreId(3));
            let notice = Notice { region: REGION, from, to, kind, peer: PeerId(id), epoch };
            assert!(single.step(vec![Event::Notice(notice)]).is_empty(), "{notice:?}");
        }
    }
    assert_eq!(single.shard.stats().dropped.malformed, 12);
}

/// C11, C11b: what the store said before the end makes no replica after it.
#[test]
fn an_answer_from_before_an_end_makes_no_replica() {
    for is_rooted in [false, true] {
        let mut single = Single::new();
        assert_eq!(single.receive(asks(1, 3, 7)).unknown.len(), 1);
        single.step(vec![notice(NoticeKind::End, 3, 5)]);
        if is_rooted {
            single.step(vec![ended(3)]);
        }
        assert!(single.step(vec![Event::Admitted(asks(1, 3, 7))]).is_empty());
        assert_eq!(single.shard.uninitialised().count(), 0);
    }
}

#[test]
fn a_replica_waits_until_nothing_is_under_way_and_gives_back_what_waits() {
    let mut single = replica();
    let written = single.receive(append(1, 0, &[(1, 1), (2, 1)], 1));
    single.step(vec![notice(NoticeKind::End, 3, 5)]);
    assert!(single.receive(append(1, 2, &[(3, 1)], 1)).is_empty(), "it takes nothing more");
    let precondition = RequestPrecondition::default();
    let ticket = Ticket(9);
    let read = Event::Read { region: REGION, ticket, precondition, follower: true };
    let refused = single.step(vec![read]).answers.rejected;
    assert_eq!(refused, [(ticket, Reject::RegionNotFound(REGION))]);
    let applies = single.step(persisted(&written));
    assert!(applies.ends.is_empty() && applies.apply.len() == 1, "the entry is committed");
    assert!(applies.messages.is_empty(), "its acknowledgement is of no use");
    let (index, changes) = (Index(1), vec![]);
    let applied = Event::Applied { region: REGION, index, changes, size: None };
    assert_eq!(single.step(vec![applied]).ends, [end_of(3)]);
    assert!(single.step(vec![notice(NoticeKind::End, 3, 5)]).is_empty());
    let done = single.step(vec![ended(3)]);
    assert_eq!(done.log.removals, [peer(3).id]);
    assert_eq!(told(&done), [(NoticeKind::Ended, peer(3).id, 1)]);
    assert_eq!(single.shard.regions().count(), 0);
    // Late, from the former life.
    let (region, from) = (REGION, peer(3).id);
    let late = vec![
        Event::SnapshotBegun { region, from, to: peer(1).id, number: 1, index: Index(1) },
        Event::SnapshotSent { region, from, to: peer(1).id, number: 1, ok: true },
        Event::FetchFailed { region, peer: from, context: 1 },
    ];
    assert!(single.step(late).is_empty());
    assert_eq!(single.shard.stats().late_answers, 3);
}

#[test]
fn a_replica_waits_for_its_writes_although_nothing_is_committed() {
    let mut single = replica();
    let written = single.receive(append(1, 0, &[(1, 1)], 0));
    assert!(single.step(vec![notice(NoticeKind::End, 3, 5)]).ends.is_empty());
    assert_eq!(single.step(persisted(&written)).ends, [end_of(3)]);
}

/// C12c: the store was asked by an earlier replica of the slot.
#[test]
fn answers_to_an_earlier_replica_are_dropped() {
    let mut single = replica();
    let (region, earlier, to, number) = (REGION, PeerId(peer(3).id.0 - 1), peer(1).id, 1);
    let late = vec![
        Event::Fetched { region, peer: earlier, context: 1, entries: vec![LogEntry::default()] },
        Event::FetchFailed { region, peer: earlier, context: 1 },
        Event::SnapshotBegun { region, from: earlier, to, number, index: Index(1) },
        Event::SnapshotSent { region, from: earlier, to, number, ok: true },
    ];
    assert!(single.step(late).is_empty());
    assert_eq!(single.shard.stats().late_answers, 4);
}

/// R12b: the rows of an unborn child lie in the range of its parent.
#[test]
fn a_parent_does_not_end_before_its_unborn_child_is_born() {
    let mut single = replica();
    let unborn = UnbornReplica {
        region: RegionId(8),
        peer: PeerId(803),
        parent: REGION,
        hard_state: RecoveredReplica::hard_state_of_split(),
        terms: vec![],
        last: SPLIT_INDEX,
        tail: vec![],
    };
    single.shard.keep_unborn(unborn).unwrap();
    assert!(single.step(vec![notice(NoticeKind::End, 3, 5)]).ends.is_empty());
    let child = split_at("m").divide(&descriptor(3)).unwrap().children.remove(0);
    let new = new_replica(child, PeerId(803), false);
    single.step(vec![Event::Create(new)]);
    single.now += 50;
    assert_eq!(single.step(vec![]).ends, [end_of(3)]);
}

#[test]
fn a_replica_ends_when_it_is_told_so_of_a_later_configuration_only() {
    let older = |event: Event| {
        let mut single = replica();
        assert!(single.step(vec![event]).is_empty());
        single.shard.check_invariants();
    };
    older(notice(NoticeKind::Gone, 3, 1));
    older(notice(NoticeKind::Gone, 2, 5));
    older(notice(NoticeKind::Ended, 3, 5));
    let later = |conf_version| {
        let mut envelope = asks(1, 4, 7);
        envelope.to.store = StoreId(3);
        envelope.epoch.conf_version = conf_version;
        Event::Message(envelope)
    };
    older(later(1));
    for event in [notice(NoticeKind::Gone, 3, 5), later(2)] {
        let mut single = replica();
        assert_eq!(single.step(vec![event]).ends, [end_of(3)]);
    }
}

#[test]
fn a_replica_without_data_ends_by_a_word_or_by_a_message_for_a_later_one() {
    let mut later = asks(1, 4, 7);
    later.to.store = StoreId(3);
    let events =
        [notice(NoticeKind::Gone, 3, 5), notice(NoticeKind::End, 3, 5), Event::Message(later)];
    for event in events {
        let mut single = uninitialised();
        assert_eq!(single.step(vec![event]).ends, [end_of(3)]);
        assert!(single.receive(asks(2, 3, 8)).is_empty(), "it votes no more");
        assert_eq!(single.step(vec![ended(3)]).log.removals, [peer(3).id]);
        assert_eq!(single.shard.uninitialised().count(), 0);
        assert_eq!(single.receive(asks(1, 3, 9)).unknown.len(), 1, "the slot is free");
    }
    let mut single = uninitialised();
    assert!(single.step(vec![notice(NoticeKind::Gone, 2, 5)]).is_empty());
    let mut single = uninitialised();
    let asked = single.step(vec![notice(NoticeKind::End, 2, 5)]);
    assert_eq!(asked.ends, [end_of(2)], "of an older one only the tombstone is written");
    assert!(!single.receive(asks(1, 3, 9)).is_empty(), "and this one goes on");
}

/// R17: a split makes a replica here that was removed meanwhile.
#[test]
fn a_dead_child_is_not_made() {
    let new = || Event::Create(new_replica(descriptor(3), peer(3).id, false));
    // The slot has a later replica, without data.
    let mut later = asks(1, 4, 7);
    later.to.store = StoreId(3);
    let mut single = Single::new();
    single.receive(later.clone());
    let born = single.step(vec![Event::Admitted(later)]);
    single.step(persisted(&born));
    assert_eq!(single.step(vec![new()]).ends, [end_of(3)]);
    assert_eq!(single.shard.regions().count(), 0);
    assert_eq!(single.step(vec![ended(3)]).log.removals, [peer(3).id]);
    assert_eq!(single.shard.uninitialised().collect::<Vec<_>>(), [(REGION, peer(4).id)]);
    // Its end is under way, or was a moment ago.
    let mut single = Single::new();
    single.step(vec![notice(NoticeKind::End, 3, 5)]);
    assert!(single.step(vec![new()]).is_empty());
    assert_eq!(single.step(vec![ended(3)]).log.removals, [peer(3).id]);
    assert_eq!(single.step(vec![new()]).log.removals, [peer(3).id]);
    assert_eq!(single.shard.regions().count(), 0);
    // It has voted, and ends, before the split is applied here; its word may wait for the disk.
    for is_written in [true, false] {
        let mut single = Single::new();
        single.receive(asks(1, 3, 7));
        let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
        if is_written {
            single.step(persisted(&born));
        }
        let told = single.step(vec![notice(NoticeKind::Gone, 3, 5)]);
        assert_eq!(told.ends.len(), usize::from(is_written));
        assert!(single.step(vec![new()]).is_empty(), "its own end takes the rows along");
        if !is_written {
            assert_eq!(single.step(persisted(&born)).ends, [end_of(3)]);
        }
        assert_eq!(single.step(vec![ended(3)]).log.removals, [peer(3).id]);
        let left = single.shard.regions().count() + single.shard.uninitialised().count();
        assert_eq!(left, 0);
    }
}

/// A root has the removal and not the end: the replica ends again.
#[test]
fn a_replica_that_is_not_listed_any_more_ends_at_a_start() {
    let mut gone = descriptor(3);
    gone.peers.pop();
    gone.removed = RemovedPeers { floor: peer(3).id, unconfirmed: vec![peer(3)] };
    let mut single = Single::new();
    single.shard.create(Time(0), RecoveredReplica::fresh(gone, peer(3).id), false).unwrap();
    assert_eq!(single.shard.next_step(), Some(Time(0)));
    assert_eq!(single.step(vec![]).ends, [end_of(3)]);
    assert_eq!(single.step(vec![ended(3)]).log.removals, [peer(3).id]);
}

/// C10: a voter was away while it was removed, and asks the others for votes.
#[test]
fn a_removed_replica_that_returns_is_told() {
    for seed in 0..4 {
        let mut cluster = with_learner(seed, 4);
        cluster.isolate(3);
        change(&mut cluster, &vote(&[4], &[3]));
        cluster.run_until("the joint configuration is left", |cluster| {
            !descriptor_on(cluster, 1).unwrap().is_joint()
        });
        change(&mut cluster, &Remove(peer(3).id));
        cluster.run(3000);
        assert!(descriptor_on(&cluster, 3).is_some(), "nobody has told it");
        cluster.heal();
        // The leader that asks for the end is not heard: another member tells.
        let leader = cluster.leader().unwrap();
        cluster.part(3, leader);
        cluster.run_until("it ends", |cluster| descriptor_on(cluster, 3).is_none());
        let has_told = |told: &Notice| told.kind == NoticeKind::Gone && told.from.0 != leader;
        assert!(cluster.notices.iter().any(has_told), "seed {seed}");
        assert!(!settled(&cluster));
        cluster.heal();
        // The leader asks more rarely by then.
        cluster.run(10_000);
        assert!(settled(&cluster), "seed {seed}");
        assert_eq!(cluster.elect(), leader, "seed {seed}: it has deposed nobody");
    }
}

/// A learner never campaigns: it has to ask.
#[test]
fn a_replica_that_hears_no_leader_asks_whether_it_is_listed() {
    let mut cluster = with_learner(2, 4);
    cluster.isolate(4);
    change(&mut cluster, &Remove(peer(4).id));
    cluster.heal();
    cluster.part(4, 1);
    cluster.run_until("it ends", |cluster| descriptor_on(cluster, 4).is_none());
    let asked = cluster.notices.iter().filter(|told| told.kind == NoticeKind::WhoIs).count();
    assert!((3..=6).contains(&asked), "each of three stores once: {asked}");
}

/// C12: ended, a crash before the root, and added again.
#[test]
fn an_end_that_no_root_has_did_not_happen() {
    let mut cluster = with_learner(6, 4);
    cluster.machines.get_mut(&4).unwrap().root_ms = 1_000_000;
    change(&mut cluster, &Remove(peer(4).id));
    cluster.run(500);
    assert!(cluster.machines[&4].has_ended(REGION, peer(4).id), "published");
    let again = Peer { id: peer(9).id, store: StoreId(4) };
    let early = cluster.change(1, Add(again));
    let taken = MembershipRefusal::Change(MembershipError::StoreTaken(StoreId(4)));
    assert_eq!(cluster.answer(early), Answer::Rejected(Reject::InvalidMembership(taken)));
    let is_answer = |told: &Notice| told.kind == NoticeKind::Ended;
    assert!(!cluster.notices.iter().any(is_answer), "R12: said before a root has it");
    cluster.crash(4);
    cluster.restart(4);
    cluster.run_until("it ends again, and is forgotten", settled);
    change(&mut cluster, &Add(again));
    cluster.run_until("the next life has the data", |cluster| {
        cluster.find_status(4).is_some_and(|status| status.peer == again.id)
    });
}

/// A store that never takes part again answers nothing: its driver answers in its place.
#[test]
fn a_replica_whose_store_is_gone_for_good_is_forgotten_without_its_word() {
    let mut cluster = with_learner(4, 5);
    cluster.crash(3);
    change(&mut cluster, &vote(&[4], &[3]));
    cluster.run_until("left", |cluster| !descriptor_on(cluster, 1).unwrap().is_joint());
    change(&mut cluster, &Remove(peer(3).id));
    cluster.run(3000);
    assert!(!settled(&cluster), "it is asked about");
    let is_end = |told: &&Notice| told.kind == NoticeKind::End;
    let asked = *cluster.notices.iter().rfind(is_end).unwrap();
    let answer = asked.answer_of_gone_store().unwrap();
    assert_eq!((answer.kind, answer.from, answer.to), (NoticeKind::Ended, asked.to, asked.from));
    assert_eq!(answer.answer_of_gone_store(), None, "it is no question");
    cluster.push(asked.from.0, Event::Notice(answer));
    cluster.run_until("it is forgotten", settled);
    // Its id stays spent.
    let floor = descriptor_on(&cluster, 1).unwrap().floor();
    assert!(floor >= peer(4).id, "{floor}");
}

/// C14: all members are others, and one was away all the time.
#[test]
fn a_membership_that_was_replaced_as_a_whole_ends_who_was_away() {
    let mut cluster = cluster(9, 6);
    cluster.isolate(3);
    for (old, new) in [(3, 4), (2, 5)] {
        change(&mut cluster, &Add(peer(new)));
        change(&mut cluster, &vote(&[new], &[old]));
        cluster.run_until("left", |cluster| !descriptor_on(cluster, 1).unwrap().is_joint());
        change(&mut cluster, &Remove(peer(old).id));
    }
    change(&mut cluster, &Add(peer(6)));
    let moved = cluster.transfer(1, Some(4));
    assert_eq!(cluster.answer(moved), Answer::Transferred(peer(4)));
    change(&mut cluster, &vote(&[6], &[1]));
    cluster.run_until("left", |cluster| !descriptor_on(cluster, 4).unwrap().is_joint());
    change(&mut cluster, &Remove(peer(1).id));
    cluster.run(3000);
    assert!(descriptor_on(&cluster, 3).is_some());
    cluster.heal();
    cluster.run(70_000);
    assert!(settled(&cluster), "asked each minute at least");
    for store in 1..=3 {
        assert!(descriptor_on(&cluster, store).is_none(), "store {store}");
    }
}
