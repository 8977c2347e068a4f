//! Every rule of the `Storage` trait: bounds, terms, limits, compaction, snapshots, states.

use crate::kit::{GROUP, append, entries, entry, from_three, no_tail, open_log, read, write};
use flotilla_raftlog::LogBatch;
use flotilla_raftlog_raft_rs::{Config, GroupStorage};
use flotilla_vfs::fault::FaultFs;
use raft::eraftpb::{ConfState, Entry, Snapshot};
use raft::util::limit_size;
use raft::{Error, Storage, StorageError};

const COMPACTED: raft::Result<u64> = Err(Error::Store(StorageError::Compacted));
const UNAVAILABLE: raft::Result<u64> = Err(Error::Store(StorageError::Unavailable));

#[test]
fn terms_are_known_from_the_one_before_the_first_to_the_last() {
    for (log, mut storage) in from_three(&[3, 4, 5]) {
        let terms: Vec<_> = (0..8).map(|index| storage.term(index)).collect();
        let known = [COMPACTED, COMPACTED, Ok(2), Ok(3), Ok(4), Ok(5), UNAVAILABLE, UNAVAILABLE];
        assert_eq!(terms, known);
        append(&log, &mut storage, &entries(4, &[6]));
        let terms: Vec<_> = (2..7).map(|index| storage.term(index)).collect();
        assert_eq!(terms, [Ok(2), Ok(3), Ok(6), UNAVAILABLE, UNAVAILABLE]);
    }
}

#[test]
fn a_new_group_is_truncated_at_zero() {
    let storage = GroupStorage::open(open_log(&FaultFs::new(1)), GROUP, Config::default());
    let storage = storage.expect("it opens");
    assert_eq!((storage.first_index(), storage.last_index()), (Ok(1), Ok(0)));
    assert_eq!((storage.term(0), storage.term(1)), (Ok(0), UNAVAILABLE));
    assert!(!storage.initial_state().expect("it is known").initialized());
    assert_eq!(read(&storage, 1, 1, 0), Ok(vec![]));
}

#[test]
fn entries_are_bounded_by_the_log() {
    for (_, storage) in from_three(&[3, 4, 5, 6]) {
        let compacted = Err(Error::Store(StorageError::Compacted));
        assert_eq!(read(&storage, 2, 6, u64::MAX), compacted);
        assert_eq!(read(&storage, 0, 1, u64::MAX), compacted);
        assert_eq!(read(&storage, 3, 4, u64::MAX), Ok(entries(3, &[3])));
        assert_eq!(read(&storage, 4, 6, u64::MAX), Ok(entries(4, &[4, 5])));
        assert_eq!(read(&storage, 3, 7, u64::MAX), Ok(entries(3, &[3, 4, 5, 6])));
        assert_eq!(read(&storage, 7, 7, u64::MAX), Ok(vec![]));
        let unavailable = Err(Error::Store(StorageError::Unavailable));
        assert_eq!(read(&storage, 4, 8, u64::MAX), unavailable);
        assert_eq!(read(&storage, 8, 8, u64::MAX), unavailable);
    }
}

#[test]
fn limits_are_those_of_raft() {
    for (_, storage) in from_three(&[3, 4, 5, 6, 6, 6]) {
        let whole = read(&storage, 3, 9, u64::MAX).expect("all are there");
        for low in 3..9 {
            for limit in 0..200 {
                let mut expected = whole[low as usize - 3..].to_vec();
                limit_size(&mut expected, Some(limit));
                assert_eq!(read(&storage, low, 9, limit), Ok(expected), "{low}, {limit} bytes");
            }
        }
        let context = raft::GetEntriesContext::empty(false);
        assert_eq!(storage.entries(3, 9, None, context), Ok(whole));
    }
}

#[test]
fn a_range_over_disk_and_memory_is_one() {
    let [(log, _), _] = from_three(&[3, 4, 5]);
    let mut storage = GroupStorage::open(log, GROUP, no_tail()).expect("it opens");
    // Not written yet, so in memory only.
    let mut batch = LogBatch::new();
    storage.persist_entries(&mut batch, &entries(6, &[6, 7])).expect("they meet the log");
    let whole = entries(3, &[3, 4, 5, 6, 7]);
    assert_eq!((storage.first_index(), storage.last_index()), (Ok(3), Ok(7)));
    for low in 3..8 {
        for high in low..9 {
            let expected = whole[low as usize - 3..high as usize - 3].to_vec();
            assert_eq!(read(&storage, low, high, u64::MAX), Ok(expected), "{low}..{high}");
        }
        for limit in 0..200 {
            let mut expected = whole[low as usize - 3..].to_vec();
            limit_size(&mut expected, Some(limit));
            assert_eq!(read(&storage, low, 8, limit), Ok(expected), "{low}, {limit} bytes");
        }
    }
}

#[test]
fn compaction_moves_the_first_and_keeps_the_term_before() {
    // Compacted to, then: first index, its term if there is one, entries left.
    for (to, first, count) in [(2, 3, 3), (3, 3, 3), (4, 4, 2), (5, 5, 1), (6, 6, 0)] {
        for (log, mut storage) in from_three(&[3, 4, 5]) {
            let mut batch = LogBatch::new();
            storage.compact_to(&mut batch, to).expect("the log goes on below");
            assert_eq!(batch.is_empty(), to <= 3);
            if to > 3 {
                write(&log, batch);
            }
            assert_eq!((storage.first_index(), storage.last_index()), (Ok(first), Ok(5)));
            assert_eq!(
                (storage.term(first - 1), storage.term(first - 2)),
                (Ok(first - 1), COMPACTED)
            );
            assert_eq!(read(&storage, first, 6, u64::MAX).map(|all| all.len()), Ok(count));
            assert!(read(&storage, first - 1, 6, u64::MAX).is_err());
        }
    }
    for (_, mut storage) in from_three(&[3, 4, 5]) {
        let mut batch = LogBatch::new();
        assert_eq!(storage.compact_to(&mut batch, 7).map(|()| 0), UNAVAILABLE);
        assert!(batch.is_empty());
    }
}

#[test]
fn appends_replace_a_suffix_and_nothing_else() {
    // Appended, and what is then in the log from 3 on.
    let cases: [(u64, &[u64], &[u64]); 5] = [
        (3, &[3, 4, 5], &[3, 4, 5]),
        (3, &[3, 6, 5, 5], &[3, 6, 5, 5]),
        (4, &[6], &[3, 6]),
        (6, &[5, 6], &[3, 4, 5, 5, 6]),
        (5, &[], &[3, 4, 5]),
    ];
    for (first, terms, left) in cases {
        for (log, mut storage) in from_three(&[3, 4, 5]) {
            let mut batch = LogBatch::new();
            storage.persist_entries(&mut batch, &entries(first, terms)).expect("they meet the log");
            let expected = entries(3, left);
            let end = 3 + left.len() as u64;
            // At once from memory, then from wherever, and after a restart.
            assert_eq!(storage.last_index(), Ok(end - 1));
            assert_eq!(read(&storage, 3, end, u64::MAX), Ok(expected.clone()));
            if !batch.is_empty() {
                write(&log, batch);
            }
            assert_eq!(read(&storage, 3, end, u64::MAX), Ok(expected.clone()));
            let again = GroupStorage::open(log, GROUP, no_tail()).expect("it opens");
            assert_eq!(again.last_index(), Ok(end - 1));
            assert_eq!(read(&again, 3, end, u64::MAX), Ok(expected));
        }
    }
    for (_, mut storage) in from_three(&[3, 4, 5]) {
        let mut batch = LogBatch::new();
        let mut refused = |entries: &[Entry]| storage.persist_entries(&mut batch, entries).is_err();
        assert!(refused(&entries(2, &[3, 4])), "below the first");
        assert!(refused(&entries(7, &[6])), "a hole");
        assert!(refused(&[entry(6, 6), entry(8, 6)]), "a hole inside");
        assert!(batch.is_empty());
        assert_eq!(storage.last_index(), Ok(5));
    }
}

#[test]
fn what_is_written_leaves_memory() {
    let is_fetched = |storage: &GroupStorage, low| {
        let context = raft::GetEntriesContext::empty(true);
        let unavailable = Err(Error::Store(StorageError::LogTemporarilyUnavailable));
        storage.entries(low, low + 1, None, context) == unavailable
    };
    let log = open_log(&FaultFs::new(1));
    let config = Config { entry_cache_bytes_max: 300, async_fetches: true };
    let mut storage = GroupStorage::open(log.clone(), GROUP, config).expect("it opens");
    append(&log, &mut storage, &entries(1, &[1; 20]));
    append(&log, &mut storage, &entries(11, &[2; 20]));
    assert!(!is_fetched(&storage, 1), "it was not known to be written");
    storage.persist_entries(&mut LogBatch::new(), &[]).expect("nothing meets everything");
    assert!(is_fetched(&storage, 1) && is_fetched(&storage, 20), "more than its bytes are kept");
    assert!(!is_fetched(&storage, 30), "the newest are not kept");
}

#[test]
fn snapshots_come_from_the_source_if_they_are_of_use() {
    let snapshot = |index: u64| {
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = index;
        snapshot
    };
    let not_yet = Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
    for (_, storage) in from_three(&[3, 4, 5]) {
        assert_eq!(storage.snapshot(0, 1), not_yet);
        // A source whose newest snapshot is at twice the number of who asks.
        let storage = storage.with_snapshots(Box::new(move |_, to| Ok(snapshot(2 * to))));
        assert_eq!(storage.snapshot(0, 2), Ok(snapshot(4)));
        assert_eq!(storage.snapshot(4, 2), Ok(snapshot(4)));
        assert_eq!(storage.snapshot(5, 2), not_yet, "older than asked for");
        assert_eq!(storage.snapshot(0, 1), Ok(snapshot(2)));
        assert_eq!(storage.snapshot(0, 0), not_yet, "the log begins later");
    }
    let source = move |_, _| Ok(Snapshot::default());
    let storage = GroupStorage::open(open_log(&FaultFs::new(1)), GROUP, Config::default());
    let storage = storage.expect("it opens").with_snapshots(Box::new(source));
    assert_eq!(storage.snapshot(0, 1), not_yet, "an empty one would make raft panic");
}

#[test]
fn states_outlive_a_restart_and_commit_is_at_least_what_is_compacted() {
    let disk = FaultFs::new(3);
    let log = open_log(&disk);
    let mut storage = GroupStorage::open(log.clone(), GROUP, Config::default()).expect("opens");
    let conf = ConfState::from((vec![1, 2, 3], vec![4]));
    let mut batch = LogBatch::new();
    storage.persist_conf_state(&mut batch, &conf);
    storage.persist_entries(&mut batch, &entries(1, &[1, 1, 2])).expect("they meet the log");
    write(&log, batch);
    let mut batch = LogBatch::new();
    storage.compact_to(&mut batch, 3).expect("the log goes on");
    write(&log, batch);
    drop((log, storage));
    disk.power_loss(1);
    let storage = GroupStorage::open(open_log(&disk), GROUP, Config::default()).expect("opens");
    let state = storage.initial_state().expect("it is known");
    assert_eq!((state.conf_state, state.hard_state.commit), (conf, 2));
}

#[test]
fn keys_of_somebody_else_are_an_error() {
    for key in [&b"raft/state"[..], b"raft/conf"] {
        let log = open_log(&FaultFs::new(1));
        let mut batch = LogBatch::new();
        batch.put(GROUP, key, b"what is this");
        write(&log, batch);
        assert!(GroupStorage::open(log, GROUP, Config::default()).is_err());
    }
}
