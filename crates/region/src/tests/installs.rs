//! Tests of a replica that takes a snapshot: when it does, and its silence.

use super::cluster::{REGION, descriptor, new_replica, peer};
use super::single::{Single, append, asks, persisted, snapshot, split_at, staged};
use crate::*;

/// A follower of term 1 with an entry that is committed, written and not applied.
fn follower() -> (Single, Effects) {
    let mut single = Single::new();
    let found = RecoveredReplica::fresh(descriptor(3), peer(3).id);
    single.shard.create(Time(0), found, false).unwrap();
    let written = single.receive(append(1, 0, &[(1, 1)], 1));
    let applying = single.step(persisted(&written));
    assert_eq!(applying.apply[0].entries[0].entry.index, Index(1));
    (single, applying)
}

fn applied(index: u64) -> Event {
    Event::Applied { region: REGION, index: Index(index), changes: vec![], size: None }
}

/// R15, C24b: raft takes a snapshot when nothing of the replica is under way.
#[test]
fn a_snapshot_waits_for_writes_and_for_what_is_applied() {
    let (mut single, applying) = follower();
    let waiting = single.step(persisted(&applying).into_iter().chain([staged(1, 20, 1)]).collect());
    assert!(waiting.installs.is_empty(), "an entry is not applied: {waiting:?}");
    let dropped = single.receive(append(1, 1, &[(2, 1)], 1));
    assert!(dropped.log.is_empty(), "writes would never end: {dropped:?}");
    assert_eq!(single.shard.stats().dropped.installing, 1);
    // A newer one takes its place, another region's leader may not.
    assert_eq!(single.step(vec![staged(1, 21, 2)]).discards, [StageId(1)]);
    let mut stranger = snapshot(1, 30);
    stranger.from = Peer { id: PeerId(99), store: StoreId(99) };
    let refused =
        single.step(vec![Event::SnapshotStaged { envelope: stranger, stage: StageId(3) }]);
    assert_eq!(refused.discards, [StageId(3)]);
    // A later term, whose write is under way when the last entry is heard to be applied.
    let mut heartbeat = append(2, 0, &[], 0);
    heartbeat.message.kind = MessageKind::Heartbeat;
    let raised = single.receive(heartbeat);
    assert_eq!(raised.log.writes.len(), 1);
    assert!(single.step(vec![applied(1)]).installs.is_empty(), "a write is under way");
    let stale = single.step(persisted(&raised));
    assert_eq!((stale.installs.len(), stale.discards), (0, vec![StageId(2)]), "of a former leader");
    let taken = single.step(vec![staged(2, 22, 4)]);
    assert_eq!((taken.installs.len(), taken.installs[0].stage), (1, StageId(4)));
    let hard_state = HardState { term: Term(2), vote: None, commit: Index(22) };
    assert_eq!(taken.installs[0].hard_state, hard_state);
}

/// R15, C25: from the taking until the log is emptied nothing leaves, whatever happens.
#[test]
fn a_replica_that_installs_is_silent() {
    let (mut single, applying) = follower();
    single.step(persisted(&applying).into_iter().chain([applied(1)]).collect());
    let taken = single.step(vec![staged(3, 20, 1)]);
    let hard_state = HardState { term: Term(3), vote: None, commit: Index(20) };
    assert_eq!((taken.installs.len(), taken.installs[0].hard_state), (1, hard_state));
    assert!(taken.log.is_empty() && taken.messages.is_empty(), "{taken:?}");
    let mut heartbeat = append(4, 0, &[], 0);
    heartbeat.message.kind = MessageKind::Heartbeat;
    let forced = |single: &mut Single| {
        for _ in 0..100 {
            single.now += 60;
            let events = [
                Event::Message(asks(2, 3, 9)),
                Event::Message(append(3, 20, &[(21, 3)], 20)),
                Event::Message(heartbeat.clone()),
                Event::Campaign { region: REGION },
                Event::Unreachable { region: REGION, peer: peer(1).id },
                Event::Checkpointed { region: REGION, applied: Index(1), installed: None },
            ];
            let effects = single.step(events.into());
            assert!(effects.is_empty(), "{effects:?}");
        }
        let effects = single.step(vec![
            staged(5, 30, 2),
            Event::Propose {
                region: REGION,
                ticket: Ticket(1),
                precondition: RequestPrecondition::default(),
                command: bytes::Bytes::from_static(b"a"),
            },
            Event::Read {
                region: REGION,
                ticket: Ticket(2),
                precondition: RequestPrecondition::default(),
                follower: true,
            },
        ]);
        let why = Reject::NotLeader { leader: Some(peer(1)) };
        assert_eq!(effects.answers.rejected, [(Ticket(1), why.clone()), (Ticket(2), why)]);
        assert_eq!(effects.discards, [StageId(2)]);
        assert!(effects.messages.is_empty() && effects.log.is_empty());
        assert_eq!(single.shard.status(REGION).unwrap().applied, Index(1));
    };
    forced(&mut single);
    let installed = Some(StageId(1));
    let rooted =
        single.step(vec![Event::Checkpointed { region: REGION, applied: Index(20), installed }]);
    let write = &rooted.log.writes[0];
    assert_eq!(
        (rooted.log.writes.len(), write.hard_state, write.sync),
        (1, Some(hard_state), true)
    );
    assert_eq!(write.reset, Some(LogReset { index: Index(20), term: Term(1) }));
    assert!(rooted.messages.is_empty() && rooted.ranges.is_empty(), "{rooted:?}");
    forced(&mut single);
    let ended = single.step(persisted(&rooted));
    assert_eq!(ended.ranges, [descriptor(3)]);
    let acknowledged = &ended.messages[0];
    assert_eq!((ended.messages.len(), acknowledged.to), (1, peer(1)));
    let kind = MessageKind::AppendResponse;
    assert_eq!((acknowledged.message.kind, acknowledged.message.index), (kind, Index(20)));
    let status = single.shard.status(REGION).unwrap();
    assert_eq!((status.applied, status.last, status.first), (Index(20), Index(20), Index(21)));
    // The promise to the leader holds on behind the silence.
    let refused = single.receive(asks(2, 3, 9));
    assert!(refused.is_empty(), "{refused:?}");
    let written = single.receive(append(3, 20, &[(21, 3)], 20));
    assert_eq!(written.log.writes[0].entries[0].index, Index(21), "it follows");
}

/// A snapshot that the log connects with is not installed; its sender hears how far the log is.
#[test]
fn a_snapshot_that_is_not_needed_is_discarded_and_answered() {
    let (mut single, applying) = follower();
    single.step(persisted(&applying).into_iter().chain([applied(1)]).collect());
    let answered = single.step(vec![staged(1, 1, 1)]);
    assert_eq!((answered.installs.len(), answered.discards), (0, vec![StageId(1)]));
    let answer = &answered.messages[0].message;
    assert_eq!((answer.kind, answer.index), (MessageKind::AppendResponse, Index(1)));
}

/// R15b: the rows of an unborn child lie in the range of its parent.
#[test]
fn a_replica_with_an_unborn_child_takes_no_snapshot() {
    let (mut single, applying) = follower();
    let child = RegionId(8);
    let unborn = UnbornReplica {
        region: child,
        peer: PeerId(803),
        parent: REGION,
        hard_state: RecoveredReplica::hard_state_of_split(),
        terms: vec![],
        last: SPLIT_INDEX,
        tail: vec![],
    };
    single.shard.keep_unborn(unborn).unwrap();
    let events = persisted(&applying).into_iter().chain([applied(1), staged(1, 20, 1)]);
    assert!(single.step(events.collect()).installs.is_empty());
    let regions = split_at("m").divide(&descriptor(3)).unwrap();
    let new = new_replica(regions.children[0].clone(), PeerId(803), false);
    single.step(vec![Event::Create(new)]);
    single.now += 50;
    assert_eq!(single.step(vec![]).installs.len(), 1, "born: now it may");
}

/// Entries and the snapshot in one step: raft's log is ahead of what is written.
#[test]
fn a_snapshot_may_come_in_the_step_of_the_entries_that_it_is_compared_with() {
    let (mut single, applying) = follower();
    single.step(persisted(&applying).into_iter().chain([applied(1)]).collect());
    let entries = Event::Message(append(1, 1, &[(2, 1), (3, 1)], 3));
    let waiting = single.step(vec![entries, staged(1, 20, 1)]);
    assert_eq!((waiting.installs.len(), waiting.log.writes.len()), (0, 1));
    let applying = single.step(persisted(&waiting));
    assert_eq!(applying.apply[0].entries.len(), 2);
    assert_eq!(single.step(vec![applied(3)]).installs.len(), 1);
}

/// A snapshot that the log connects with raises the commit index: the births of the step in which
/// it could be taken do not write an older one behind that.
#[test]
fn a_snapshot_in_the_step_of_a_split_waits_for_the_births() {
    let (mut single, applying) = follower();
    single.step(persisted(&applying).into_iter().chain([applied(1)]).collect());
    let entries = single.receive(append(1, 1, &[(2, 1), (3, 1)], 2));
    let applying = single.step(persisted(&entries));
    assert_eq!(applying.apply[0].entries[0].entry.index, Index(2));
    let regions = split_at("m").divide(&descriptor(3)).unwrap();
    let mut envelope = snapshot(1, 3);
    envelope.epoch = regions.parent.epoch;
    envelope.message.snapshot.as_mut().unwrap().descriptor = regions.parent.clone();
    let staged = Event::SnapshotStaged { envelope, stage: StageId(1) };
    let changes = vec![RegionChange::Split { index: Index(2), regions }];
    let split = Event::Applied { region: REGION, index: Index(2), changes, size: None };
    let born = single.step(vec![staged, split]);
    assert!(born.log.writes.is_empty() && born.discards.is_empty(), "{born:?}");
    let BirthOrigin::Split { parent_hard_state, .. } = born.log.births[0].origin else {
        panic!("{:?}", born.log.births)
    };
    assert_eq!(parent_hard_state.commit, Index(2));
    single.now += 50;
    let taken = single.step(vec![]);
    assert_eq!(taken.discards, [StageId(1)]);
    assert_eq!(taken.log.writes[0].hard_state.unwrap().commit, Index(3));
}
