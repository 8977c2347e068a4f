//! A follower's `Ready`s: written late, replaced, with snapshots, twice.

use crate::kit::{GROUP, append_message, entries, no_tail, node, open_log, read, write};
use flotilla_raftlog::{Durability, LogBatch, LogEngine};
use flotilla_raftlog_raft_rs::{Config, GroupStorage};
use flotilla_vfs::fault::FaultFs;
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{Error, RawNode, Storage, StorageError};

/// A follower, number 1 of three, with an empty log.
fn follower(log: &LogEngine, config: Config) -> RawNode<GroupStorage> {
    let mut storage = GroupStorage::open(log.clone(), GROUP, config).expect("it opens");
    let mut batch = LogBatch::new();
    storage.persist_conf_state(&mut batch, &(vec![1, 2, 3], vec![]).into());
    write(log, batch);
    node(1, storage, 0)
}

/// Steps a message, and puts what it makes ready into a batch, which is not written.
fn step(node: &mut RawNode<GroupStorage>, message: Message) -> (LogBatch, u64) {
    node.step(message).expect("it is for this node");
    let ready = node.ready();
    let mut batch = LogBatch::new();
    node.mut_store().persist_ready(&mut batch, &ready).expect("it meets the log");
    let number = ready.number();
    node.advance_append_async(ready);
    (batch, number)
}

fn snapshot(index: u64, term: u64) -> Message {
    let mut snapshot = Snapshot::default();
    snapshot.mut_metadata().index = index;
    snapshot.mut_metadata().term = term;
    *snapshot.mut_metadata().mut_conf_state() = (vec![1, 2], vec![3]).into();
    let mut message = Message { from: 2, to: 1, term, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    message.set_snapshot(snapshot);
    message
}

#[test]
fn raft_sees_at_once_what_is_written_later() {
    for config in [Config::default(), no_tail()] {
        let log = open_log(&FaultFs::new(1));
        let mut node = follower(&log, config);
        let (one, _) = step(&mut node, append_message(1, 1, (0, 0), entries(1, &[1, 1, 1]), 0));
        // A new leader replaces the end, and yet another one puts the old end back.
        let (two, _) = step(&mut node, append_message(1, 2, (1, 1), entries(2, &[2]), 0));
        let (three, last) =
            step(&mut node, append_message(1, 3, (1, 1), entries(2, &[1, 1, 3]), 3));
        let expected = entries(1, &[1, 1, 1, 3]);
        let check = |node: &RawNode<GroupStorage>| {
            assert_eq!(node.store().last_index(), Ok(4));
            assert_eq!(read(node.store(), 1, 5, u64::MAX), Ok(expected.clone()));
            assert_eq!([1, 2, 3, 4].map(|i| node.store().term(i)), [Ok(1), Ok(1), Ok(1), Ok(3)]);
        };
        for batch in [one, two, three] {
            check(&node);
            write(&log, batch);
            // Lets go of what it may.
            let mut nothing = LogBatch::new();
            node.mut_store().persist_entries(&mut nothing, &[]).expect("nothing meets everything");
            assert!(nothing.is_empty());
        }
        check(&node);
        node.on_persist_ready(last);
        let committed = node.ready().take_committed_entries();
        assert_eq!(committed, expected[..3]);
    }
}

#[test]
fn hard_state_and_entries_of_a_ready_are_one_batch() {
    let disk = FaultFs::new(1);
    let log = open_log(&disk);
    let mut node = follower(&log, Config::default());
    let (batch, _) = step(&mut node, append_message(1, 5, (0, 0), entries(1, &[4, 5]), 1));
    write(&log, batch);
    drop((log, node));
    disk.power_loss(1);
    let storage = GroupStorage::open(open_log(&disk), GROUP, no_tail()).expect("it opens");
    let state = storage.initial_state().expect("it is known").hard_state;
    assert_eq!((state.term, state.commit, storage.last_index()), (5, 1, Ok(2)));
}

#[test]
fn a_snapshot_replaces_the_log_whatever_it_holds() {
    // How far the log has gone before, and whether its old entries are written before.
    for (last, first_written) in
        [(0, true), (3, true), (9, true), (9, false), (10, true), (14, false)]
    {
        let log = open_log(&FaultFs::new(1));
        let mut node = follower(&log, no_tail());
        let terms = vec![1; last];
        let (old, _) = step(&mut node, append_message(1, 1, (0, 0), entries(1, &terms), 0));
        let mut batches = vec![old];
        if first_written {
            batches.drain(..).for_each(|batch| write(&log, batch));
        }
        let (reset, _) = step(&mut node, snapshot(9, 2));
        let (behind, _) = step(&mut node, append_message(1, 2, (9, 2), entries(10, &[2, 2]), 9));
        batches.extend([reset, behind]);
        let check = |storage: &GroupStorage| {
            assert_eq!((storage.first_index(), storage.last_index()), (Ok(10), Ok(11)));
            assert_eq!((storage.term(9), storage.term(10)), (Ok(2), Ok(2)));
            assert!(storage.term(8).is_err() && storage.term(12).is_err());
            assert_eq!(read(storage, 10, 12, u64::MAX), Ok(entries(10, &[2, 2])));
            assert!(read(storage, 9, 12, u64::MAX).is_err());
        };
        for batch in batches {
            check(node.store());
            write(&log, batch);
        }
        check(node.store());
        let again = GroupStorage::open(log, GROUP, no_tail()).expect("it opens");
        check(&again);
        let state = again.initial_state().expect("it is known");
        assert_eq!(state.hard_state.commit, 9);
        assert_eq!(state.conf_state, (vec![1, 2], vec![3]).into());
    }
}

#[test]
fn a_snapshot_may_lie_right_below_the_first_entry_and_not_lower() {
    // The log begins at 10, with nothing in it or with entries of an old leader.
    for last in [9, 12] {
        let disk = FaultFs::new(1);
        let log = open_log(&disk);
        let mut node = follower(&log, no_tail());
        let (old, _) = step(&mut node, append_message(1, 1, (0, 0), entries(1, &vec![1; last]), 0));
        write(&log, old);
        let mut batch = LogBatch::new();
        node.mut_store().compact_to(&mut batch, 10).expect("the log goes on");
        write(&log, batch);

        node.step(snapshot(8, 2)).expect("it is for this node");
        let ready = node.ready();
        assert_eq!(ready.snapshot().get_metadata().index, 8, "raft takes it");
        let mut batch = LogBatch::new();
        let refused = node.mut_store().persist_ready(&mut batch, &ready);
        assert_eq!(refused, Err(Error::Store(StorageError::SnapshotOutOfDate)));
        assert!(batch.is_empty());
        assert_eq!(node.store().last_index(), Ok(last as u64), "nothing has changed");

        let storage = GroupStorage::open(log.clone(), GROUP, no_tail()).expect("it opens");
        let mut node = self::node(1, storage, 0);
        let (reset, _) = step(&mut node, snapshot(9, 2));
        let (behind, _) = step(&mut node, append_message(1, 2, (9, 2), entries(10, &[2, 2]), 9));
        let check = |storage: &GroupStorage, last| {
            assert_eq!((storage.first_index(), storage.last_index()), (Ok(10), Ok(last)));
            assert_eq!((storage.term(9), storage.term(10)), (Ok(2), Ok(2)));
            assert!(storage.term(8).is_err() && storage.term(last + 1).is_err());
        };
        check(node.store(), 11);
        write(&log, reset);
        check(node.store(), 11);
        // As after a crash here: nothing of the old leader's is left.
        let between = GroupStorage::open(log.clone(), GROUP, no_tail()).expect("it opens");
        assert_eq!((between.first_index(), between.last_index()), (Ok(10), Ok(9)));
        assert_eq!(between.term(9), Ok(2));
        write(&log, behind);
        check(node.store(), 11);
        assert_eq!(read(node.store(), 10, 12, u64::MAX), Ok(entries(10, &[2, 2])));
        drop((log, node));
        disk.power_loss(1);
        let again = GroupStorage::open(open_log(&disk), GROUP, no_tail()).expect("it opens");
        check(&again, 11);
    }
}

#[test]
fn a_ready_that_was_refused_is_put_into_another_batch() {
    for last in [0, 5, 12] {
        let log = open_log(&FaultFs::new(1));
        let mut node = follower(&log, no_tail());
        let (old, _) = step(&mut node, append_message(1, 1, (0, 0), entries(1, &vec![1; last]), 0));
        write(&log, old);
        node.step(snapshot(9, 2)).expect("it is for this node");
        node.step(append_message(1, 2, (9, 2), entries(10, &[2]), 9)).expect("the same");
        let ready = node.ready();
        let mut batch = LogBatch::new();
        node.mut_store().persist_ready(&mut batch, &ready).expect("it meets the log");
        // Something else in the batch is wrong.
        batch.compact_to(99, 0, 0);
        log.write(batch, Durability::Synced).wait().expect_err("the batch is wrong");
        let mut batch = LogBatch::new();
        node.mut_store().persist_ready(&mut batch, &ready).expect("it still does");
        write(&log, batch);
        node.advance(ready);
        assert_eq!(read(node.store(), 10, 11, u64::MAX), Ok(entries(10, &[2])));
        let again = GroupStorage::open(log, GROUP, no_tail()).expect("it opens");
        assert_eq!((again.first_index(), again.last_index()), (Ok(10), Ok(10)));
    }
}
