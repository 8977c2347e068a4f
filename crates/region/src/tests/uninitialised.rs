//! Tests of replicas without data: they vote once, ask for a snapshot, and become replicas.

use super::cluster::{REGION, descriptor, new_replica, peer};
use super::single::{Single, asks, persisted, staged};
use crate::*;

/// R14, C13: neither before its birth is on disk, nor after a start does it vote twice in a term.
#[test]
fn a_replica_without_data_is_born_before_it_votes_and_votes_once() {
    let mut single = Single::new();
    let asked = single.receive(asks(1, 3, 7));
    assert_eq!(asked.unknown, [asks(1, 3, 7)]);
    assert!(asked.log.is_empty() && asked.log.births.is_empty() && asked.messages.is_empty());
    let other = single.receive(asks(2, 3, 6));
    assert!(other.is_empty(), "one question at a time: {other:?}");
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    let hard_state = HardState { term: Term(7), vote: Some(peer(1).id), commit: Index(0) };
    assert_eq!(
        born.log.births,
        [ReplicaBirth {
            region: REGION,
            peer: peer(3).id,
            hard_state,
            origin: BirthOrigin::Message
        }]
    );
    assert_eq!(
        (born.log.writes.len(), born.log.writes[0].hard_state, born.log.writes[0].sync),
        (1, Some(hard_state), true)
    );
    assert!(born.messages.is_empty(), "its vote is not on disk: {born:?}");
    let again = single.receive(asks(1, 3, 7));
    assert!(again.is_empty(), "{again:?}");
    let voted = single.step(persisted(&born));
    assert!(!voted.messages.is_empty());
    for answer in &voted.messages {
        assert_eq!((answer.from, answer.to), (peer(3), peer(1)));
        let message = &answer.message;
        let kind = MessageKind::RequestVoteResponse;
        assert_eq!((message.kind, message.reject, message.term), (kind, false, Term(7)));
    }
    let refused = single.receive(asks(2, 3, 7));
    assert!(refused.messages[0].message.reject && refused.log.is_empty());

    let mut again = Single::new();
    let found = UninitialisedReplica { region: REGION, peer: peer(3).id, hard_state };
    again.shard.keep_uninitialised(found).unwrap();
    assert_eq!(again.shard.keep_uninitialised(found), Err(CreateReplicaError::Exists(REGION)));
    let refused = again.receive(asks(2, 3, 7));
    assert!(refused.messages[0].message.reject && refused.log.births.is_empty());
    let later = again.receive(asks(2, 3, 8));
    assert_eq!((later.log.writes.len(), later.messages.len()), (1, 0));
    assert!(!again.step(persisted(&later)).messages[0].message.reject);
}

#[test]
fn a_replica_without_data_answers_as_an_empty_log_does() {
    let mut single = Single::new();
    let hard_state = HardState { term: Term(7), vote: None, commit: Index(0) };
    let found = UninitialisedReplica { region: REGION, peer: peer(3).id, hard_state };
    single.shard.keep_uninitialised(found).unwrap();
    let mut answer = |kind, term, spoil: fn(&mut Envelope)| {
        let mut envelope = asks(1, 3, term);
        envelope.message.kind = kind;
        spoil(&mut envelope);
        let effects = single.receive(envelope);
        let written = single.step(persisted(&effects));
        let mut answers = effects.messages.into_iter().chain(written.messages);
        let answer = answers.next().map(|answer| answer.message);
        assert_eq!(answers.next(), None);
        answer
    };
    let empty = |kind| Message { kind, term: Term(7), ..Message::default() };
    use MessageKind as Kind;
    assert_eq!(
        answer(Kind::Append, 7, |_| {}),
        Some(Message { reject: true, request_snapshot: Index(1), ..empty(Kind::AppendResponse) })
    );
    assert_eq!(
        answer(Kind::Heartbeat, 7, |e| e.message.context = bytes::Bytes::from_static(&[1; 24])),
        Some(empty(Kind::HeartbeatResponse)),
        "its answer counts for no read"
    );
    for kind in [Kind::Append, Kind::Heartbeat] {
        assert_eq!(answer(kind, 6, |_| {}), Some(empty(Kind::AppendResponse)), "a later term");
    }
    let pre_vote = empty(Kind::RequestPreVoteResponse);
    let refused = Some(Message { reject: true, ..pre_vote.clone() });
    assert_eq!(answer(Kind::RequestPreVote, 7, |_| {}), refused);
    assert_eq!(
        answer(Kind::RequestPreVote, 9, |_| {}),
        Some(Message { term: Term(9), ..pre_vote })
    );
    assert_eq!(answer(Kind::RequestVote, 6, |_| {}), None);
    for kind in [Kind::ReadIndex, Kind::RequestVoteResponse, Kind::Snapshot] {
        assert_eq!(answer(kind, 7, |_| {}), None, "{kind:?}");
    }
    assert_eq!(answer(Kind::Append, 7, |e| e.to.id = PeerId(9)), None);
    assert_eq!(answer(Kind::Append, 7, |e| e.from.id = PeerId(0)), None);
    let forced = answer(Kind::RequestVote, 8, |e| e.message.context = "t".into());
    assert_eq!(forced.map(|vote| vote.reject), Some(false), "it has made no promise");
    assert_eq!(answer(Kind::Append, 8, |_| {}).unwrap().term, Term(8));
}

/// C2, C1b: the split that makes the region here takes the promises over.
#[test]
fn a_split_goes_on_with_the_vote_of_a_replica_without_data() {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    let new = new_replica(descriptor(3), peer(3).id, true);
    let created = single.step(vec![Event::Create(new)]);
    let status = single.shard.status(REGION).unwrap();
    assert_eq!((status.term, status.role), (Term(7), Role::Follower));
    assert!(created.messages.is_empty(), "its vote may not be on disk: {created:?}");
    assert_eq!(single.shard.uninitialised().count(), 0);
    // Late messages of its first life.
    single.step(vec![Event::Admitted(asks(2, 3, 7))]);
    let mut ask = asks(1, 3, 7);
    (ask.message.index, ask.message.log_term) = (SPLIT_INDEX, SPLIT_TERM);
    for _ in 0..100 {
        single.now += 50;
        assert!(single.receive(ask.clone()).messages.is_empty(), "its vote may not be on disk");
    }
    let answered = single.step(persisted(&born));
    let votes = answered.messages.iter().filter(|answer| !answer.message.reject);
    assert!(votes.clone().count() > 0 && votes.clone().all(|vote| vote.to == peer(1)));
}

#[test]
fn a_range_that_is_held_here_makes_no_replica() {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let (envelope, why) = (asks(1, 3, 7), NotAdmitted::Held);
    assert!(single.step(vec![Event::NotAdmitted { envelope, why }]).is_empty());
    assert!(single.receive(asks(1, 3, 8)).is_empty(), "not asked again so soon");
    // The vote is kept for the split.
    let new = new_replica(descriptor(3), peer(3).id, false);
    let mut ask = asks(1, 3, 9);
    (ask.message.index, ask.message.log_term) = (SPLIT_INDEX, SPLIT_TERM);
    assert!(single.receive(ask).is_empty());
    let created = single.step(vec![Event::Create(new)]);
    assert!(!single.step(persisted(&created)).messages[0].message.reject);

    let mut gone = Single::new();
    gone.receive(asks(1, 3, 7));
    let (envelope, why) = (asks(1, 3, 7), NotAdmitted::Gone);
    let told = gone.step(vec![Event::NotAdmitted { envelope, why }]);
    let ended = told.notices.iter().map(|it| (it.kind, it.peer, it.from.0, it.to.0));
    assert_eq!(ended.collect::<Vec<_>>(), [(NoticeKind::Ended, peer(3).id, 3, 1)]);
    assert_eq!(gone.receive(asks(1, 3, 8)).unknown.len(), 1, "asked again");
}

/// The same steps for a replica without data.
#[test]
fn a_replica_without_data_is_made_by_a_snapshot_and_acknowledges_first() {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    let waiting = single.step(vec![staged(7, 20, 1)]);
    assert!(waiting.installs.is_empty(), "its birth is not on disk: {waiting:?}");
    assert_eq!(single.step(vec![staged(6, 20, 2)]).discards, [StageId(2)], "of a former leader");
    let taken = single.step(persisted(&born));
    assert_eq!(taken.messages.len(), 1, "its vote");
    let hard_state = HardState { term: Term(7), vote: Some(peer(1).id), commit: Index(20) };
    assert_eq!((taken.installs.len(), taken.installs[0].hard_state), (1, hard_state));
    assert!(single.receive(asks(2, 3, 9)).is_empty(), "silent");
    let installed = Some(StageId(1));
    let checkpointed = Event::Checkpointed { region: REGION, applied: Index(20), installed };
    let rooted = single.step(vec![checkpointed]);
    assert_eq!((rooted.log.writes.len(), rooted.log.writes[0].hard_state), (1, Some(hard_state)));
    assert_eq!(rooted.log.writes[0].reset, Some(LogReset { index: Index(20), term: Term(1) }));
    assert!(rooted.log.writes[0].number > born.log.writes[0].number && rooted.messages.is_empty());
    assert!(single.receive(asks(2, 3, 9)).is_empty(), "silent");
    let ended = single.step(persisted(&rooted));
    let first = &ended.messages[0].message;
    let kind = MessageKind::AppendResponse;
    assert_eq!((first.kind, first.index, first.term), (kind, Index(20), Term(7)));
    assert_eq!(ended.ranges, [descriptor(3)]);
    let status = single.shard.status(REGION).unwrap();
    assert_eq!((status.applied, status.commit, status.term), (Index(20), Index(20), Term(7)));
    assert_eq!(single.shard.uninitialised().count(), 0);
}
