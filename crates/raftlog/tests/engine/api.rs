//! Each call: its effect, and the input that it refuses.

use crate::kit::{
    batch, entries, entry, open, random_entry, read_all, reopen, segment_path, small, write,
};
use flotilla_raftlog::{BlockingGroup, Durability, Entry, Error, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::os::OsFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

#[test]
fn what_is_written_is_there_after_a_restart() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    assert!(log.group(1).is_none() && log.group_ids().is_empty());
    let first = write(&log, |b| {
        b.append(1, &entries(1, 5, &[10, 0, 300]));
        b.append(2, &entries(90, 1, &[7]));
        b.put(1, b"hs", b"one");
        b.put(3, b"a", b"1");
        b.put(3, b"b", b"2");
    });
    assert_eq!(first.expect("written"), 1);
    write(&log, |b| {
        b.append(1, &entries(3, 6, &[20, 21]));
        b.delete(3, b"a");
        b.put(1, b"hs", b"two");
    })
    .expect("written");
    let check = |log: &LogEngine| {
        assert_eq!(log.group_ids(), [1, 2, 3]);
        let one = log.group(1).expect("it exists");
        assert_eq!((one.first_index(), one.last_index()), (1, 4));
        assert_eq!(one.term_runs(), [(1, 5), (3, 6)]);
        assert_eq!((one.term(0).expect("before all"), one.term(3).expect("there")), (0, 6));
        assert!(matches!(one.term(5), Err(Error::Unavailable { last: 4 })));
        assert_eq!(one.get(b"hs").expect("there"), "two");
        let wanted = [entry(1, 5, 10), entry(2, 5, 0), entry(3, 6, 20), entry(4, 6, 21)];
        assert_eq!(read_all(log, 1), wanted);
        assert_eq!(read_all(log, 2), [entry(90, 1, 7)]);
        let three = log.group(3).expect("it has a key");
        assert_eq!((three.first_index(), three.last_index()), (1, 0));
        assert_eq!(three.scan(), [("b".into(), "2".into())]);
        assert_eq!(log.durable_lsn(), 2);
    };
    check(&log);
    drop(log);
    let (log, report) = open(&disk).expect("it opens");
    check(&log);
    assert_eq!((report.segments, report.frames, report.entries), (1, 2, 6));
    assert_eq!((report.groups, report.last_lsn, report.torn_bytes), (3, 2, 0));
}

#[test]
fn golden_bytes_of_a_log() {
    // Made by another program from docs/log-format.md. If this fails, logs of before do not open.
    const GOLDEN: &str = concat!(
        "666c6f74696c6f67020000000000000001000000000000000000000000000000",
        "2a000000000000000000000000000000000000000000000000000000d0ac488a",
        "0ef1010020000000010000000000000001000000000000000000000000000000",
        "5302eba10b4840f4011200000007010101010200e51e2812030261620307016b",
        "0176a6a6a6a6a6a6",
    );
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    let data = "ab".into();
    write(&log, |b| {
        b.append(7, &[Entry { index: 1, term: 2, kind: 3, data }]);
        b.put(7, b"k", b"v");
    })
    .expect("written");
    let mut bytes = vec![0; 4096];
    let file = disk.open(&segment_path(1), OpenMode::Read).expect("it is there");
    file.read_exact_at(&mut bytes, 0).expect("a segment is allocated as a whole");
    let (used, rest) = bytes.split_at(GOLDEN.len() / 2);
    let hex: String = used.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
    assert!(rest.iter().all(|byte| *byte == 0));
}

#[test]
fn the_real_file_system_does_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a/b");
    let open = || LogEngine::open_with(Arc::new(OsFs::new()), &path, small()).expect("it opens").0;
    let log = open();
    for i in 0..40 {
        write(&log, |b| b.append(i % 3, &entries(1 + i / 3, 1, &[500]))).expect("written");
    }
    assert!(log.stats().segments > 3);
    let again = LogEngine::open_with(Arc::new(OsFs::new()), &path, small());
    assert!(matches!(again, Err(Error::Locked { .. })));
    drop(log);
    let log = open();
    assert_eq!(read_all(&log, 0).len(), 14);
    write(&log, |b| (0..3).for_each(|group| b.remove_group(group))).expect("written");
    let purged = log.purge_expired_files().expect("purged");
    assert!(purged.segments > 3 && purged.blocking_groups.is_empty(), "{purged:?}");
    drop(log);
    assert!(open().group_ids().is_empty());
}

#[test]
fn wrong_input_changes_nothing() {
    let log = reopen(&FaultFs::new(1));
    write(&log, |b| b.append(1, &entries(5, 1, &[1, 1, 1]))).expect("written");
    write(&log, |b| b.compact_to(1, 6, 1)).expect("written");
    let gap = write(&log, |b| {
        b.put(1, b"k", b"v");
        b.append(2, &entries(1, 1, &[1]));
        b.append(1, &entries(9, 1, &[1]));
    });
    assert!(matches!(gap, Err(Error::Gap { group: 1, expected: 8, got: 9 })), "{gap:?}");
    let stale = write(&log, |b| b.append(1, &entries(5, 1, &[1])));
    assert!(matches!(stale, Err(Error::Stale { group: 1, first: 6, got: 5 })), "{stale:?}");
    let within = write(&log, |b| {
        b.append(2, &entries(1, 1, &[1]));
        b.append(2, &entries(3, 1, &[1]));
    });
    assert!(matches!(within, Err(Error::Gap { group: 2, expected: 2, got: 3 })), "{within:?}");
    assert!(matches!(write(&log, |_| ()), Err(Error::Invalid(_))));
    assert_eq!(log.group_ids(), [1]);
    assert_eq!(log.stats().batches, 2);
    // The refused batches left no trace in what is checked against.
    write(&log, |b| b.append(2, &entries(70, 1, &[1]))).expect("a new group begins anywhere");
}

#[test]
fn batches_are_checked_against_those_queued_before() {
    let log = reopen(&FaultFs::new(1));
    let write = |first, len| {
        log.write(batch(|b| b.append(1, &entries(first, 1, &[9; 4][..len]))), Durability::Synced)
    };
    let mut good = vec![write(1, 3), write(4, 2)];
    let mut gap = write(7, 1);
    assert!(matches!(gap.try_take(), Some(Err(Error::Gap { expected: 6, .. }))));
    good.push(write(6, 1));
    good.push(write(2, 1));
    good.push(log.write(batch(|b| b.remove_group(1)), Durability::Buffered));
    good.push(write(50, 2));
    assert!(log.group(1).is_none(), "nothing is written yet");
    assert!(log.flush());
    assert!(!log.flush());
    for (commit, lsn) in good.iter_mut().zip(1..) {
        let receipt = commit.try_take().expect("flushed").expect("right");
        assert_eq!(receipt.lsn, lsn);
    }
    assert_eq!(read_all(&log, 1), entries(50, 1, &[9, 9]));
    assert_eq!(log.stats().syncs, 1);
}

#[test]
fn reads_take_wrong_ranges_and_limits() {
    let log = reopen(&FaultFs::new(1));
    write(&log, |b| b.append(1, &entries(3, 1, &[100, 100, 100]))).expect("written");
    write(&log, |b| b.append(1, &entries(6, 1, &[100, 100, 100]))).expect("written");
    write(&log, |b| b.compact_to(1, 4, 1)).expect("written");
    let group = log.group(1).expect("it exists");
    let indexes = |range, max_bytes| {
        let entries: Vec<_> = group.entries(range, max_bytes).expect("it can be read");
        entries.iter().map(|e| e.index).collect::<Vec<_>>()
    };
    assert_eq!(indexes(4..9, u64::MAX), [4, 5, 6, 7, 8]);
    assert_eq!(indexes(5..7, u64::MAX), [5, 6]);
    assert_eq!(indexes(5..9, 0), [5], "at least one");
    assert_eq!(indexes(5..9, 299), [5, 6]);
    assert_eq!(indexes(5..9, 300), [5, 6, 7]);
    assert_eq!(indexes(7..7, 0), []);
    let (end, start) = (5, 4);
    assert!(matches!(group.entries(end..start, 1), Err(Error::Invalid(_))));
    assert!(matches!(group.entries(3..5, 1), Err(Error::Compacted { first: 4 })));
    assert!(matches!(group.entries(8..u64::MAX, 1), Err(Error::Unavailable { last: 8 })));
    assert!(matches!(group.entries(0..u64::MAX, u64::MAX), Err(Error::Compacted { .. })));
    assert_eq!(group.term(3).expect("just before the first"), 1);
    assert!(matches!(group.term(2), Err(Error::Compacted { first: 4 })));
}

#[test]
fn parts_of_large_appends_are_read() {
    let log = reopen(&FaultFs::new(1));
    let many: Vec<_> = (1..20_000).map(|index| entry(index, index / 5000, 3)).collect();
    write(&log, |b| b.append(1, &many)).expect("written");
    write(&log, |b| b.append(2, &entries(1, 1, &[200_000, 70_000, 1]))).expect("written");
    assert_eq!(read_all(&log, 1), many);
    assert_eq!(
        log.group(1).expect("there").entries(15_000..15_002, u64::MAX).expect("read"),
        many[14_999..15_001]
    );
    let two = log.group(2).expect("there");
    assert_eq!(two.entries(2..4, u64::MAX).expect("read"), entries(2, 1, &[70_000, 1]));
    assert_eq!(log.group(1).expect("there").term_runs().len(), 4);
}

#[test]
fn compaction_keeps_the_term_and_resets() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(1, 4, &[1; 9]))).expect("written");
    write(&log, |b| b.compact_to(1, 10, 4)).expect("written");
    write(&log, |b| b.compact_to(1, 3, 9)).expect("below the first index it does nothing");
    write(&log, |b| b.compact_to(2, 30, 8)).expect("a group can begin so");
    let check = |log: &LogEngine| {
        let one = log.group(1).expect("there");
        assert_eq!((one.first_index(), one.last_index(), one.term(9).expect("kept")), (10, 9, 4));
        let two = log.group(2).expect("there");
        assert_eq!((two.first_index(), two.last_index(), two.term(29).expect("kept")), (30, 29, 8));
        assert_eq!(two.entries(30..30, 1).expect("nothing"), []);
    };
    check(&log);
    drop(log);
    let log = reopen(&disk);
    check(&log);
    let gap = write(&log, |b| b.append(2, &entries(31, 8, &[1])));
    assert!(matches!(gap, Err(Error::Gap { expected: 30, .. })));
    write(&log, |b| b.compact_to(1, 100, 7)).expect("a reset");
    write(&log, |b| b.append(1, &entries(100, 7, &[1]))).expect("exactly there");
    assert_eq!(log.group(1).expect("there").term(99).expect("kept"), 7);
}

#[test]
fn a_log_can_be_cut_off_at_its_end() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| {
        b.append(1, &entries(5, 1, &[1; 6]));
        b.truncate_from(1, 9);
        b.append(2, &entries(5, 1, &[1; 6]));
        b.put(3, b"k", b"v");
        b.append(3, &entries(5, 1, &[1; 6]));
        b.compact_to(4, 5, 1);
        b.append(4, &entries(5, 1, &[1; 6]));
    })
    .expect("written");
    let stale = write(&log, |b| b.truncate_from(1, 4));
    assert!(matches!(stale, Err(Error::Stale { group: 1, first: 5, got: 4 })), "{stale:?}");
    let gap = write(&log, |b| b.truncate_from(1, 10));
    assert!(matches!(gap, Err(Error::Gap { group: 1, expected: 9, got: 10 })), "{gap:?}");
    let none = write(&log, |b| b.truncate_from(9, 2));
    assert!(matches!(none, Err(Error::Gap { group: 9, expected: 1, got: 2 })), "{none:?}");
    write(&log, |b| (2..5).for_each(|group| b.truncate_from(group, 5))).expect("written");
    let check = |log: &LogEngine| {
        assert_eq!(log.group_ids(), [1, 3, 4], "nothing is left of the second");
        assert_eq!(read_all(log, 1), entries(5, 1, &[1; 4]));
        let bounds = |id| log.group(id).map(|group| (group.first_index(), group.last_index()));
        assert_eq!((bounds(3), bounds(4)), (Some((1, 0)), Some((5, 4))));
        assert_eq!(log.group(4).expect("there").term(4).expect("kept"), 1);
    };
    check(&log);
    drop(log);
    let log = reopen(&disk);
    check(&log);
    write(&log, |b| b.append(3, &entries(70, 1, &[1]))).expect("it begins anywhere");
    let stale = write(&log, |b| b.append(4, &entries(4, 1, &[1])));
    assert!(matches!(stale, Err(Error::Stale { group: 4, first: 5, got: 4 })), "{stale:?}");
}

#[test]
fn a_compaction_that_came_too_late_is_not_believed_after_a_purge() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(101, 1, &[3500]))).expect("fills the segment");
    write(&log, |b| b.compact_to(1, 50, 1)).expect("it changes nothing");
    write(&log, |b| b.truncate_from(1, 101)).expect("written");
    write(&log, |b| b.append(1, &entries(30, 2, &[3500]))).expect("it begins anew");
    assert_eq!(log.purge_expired_files().expect("purged").segments, 1);
    drop(log);
    assert_eq!(read_all(&reopen(&disk), 1), entries(30, 2, &[3500]));
}

#[test]
fn a_compaction_is_believed_whatever_of_the_log_was_purged() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(15, 1, &[700; 4]))).expect("fills the segment");
    write(&log, |b| b.append(1, &entries(19, 1, &[2000]))).expect("the next one");
    write(&log, |b| b.compact_to(1, 18, 1)).expect("written");
    write(&log, |b| b.append(1, &entries(18, 2, &[3500]))).expect("replaces both");
    assert_eq!(log.purge_expired_files().expect("purged").segments, 1);
    drop(log);
    // The first append that is left is that of 19, and the compaction behind it is to 18.
    let log = reopen(&disk);
    assert_eq!(read_all(&log, 1), entries(18, 2, &[3500]));
    assert_eq!(log.group(1).expect("there").term(17).expect("kept"), 1);
}

#[test]
fn purge_removes_whole_segments_oldest_first() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.put(9, b"old", b"1")).expect("written");
    for index in 1..=60 {
        write(&log, |b| b.append(1, &entries(index, 1, &[500]))).expect("written");
    }
    let before = log.stats();
    assert!(before.segments > 6 && before.live_bytes > 30_000, "{before:?}");
    let purged = log.purge_expired_files().expect("nothing to do");
    let both = [
        BlockingGroup {
            group: 1,
            entries: true,
            keys: false,
            bytes: purged.blocking_groups[0].bytes,
        },
        BlockingGroup { group: 9, entries: false, keys: true, bytes: 12 },
    ];
    assert_eq!((purged.segments, &purged.blocking_groups[..]), (0, &both[..]));
    assert!((3_000..4096).contains(&both[0].bytes), "{purged:?}");

    write(&log, |b| b.compact_to(1, 60, 1)).expect("written");
    let purged = log.purge_expired_files().expect("purged");
    let key = [BlockingGroup { group: 9, entries: false, keys: true, bytes: 12 }];
    assert_eq!(
        (purged.segments, &purged.blocking_groups[..]),
        (0, &key[..]),
        "the key holds the oldest"
    );
    write(&log, |b| b.put(9, b"old", b"2")).expect("written");
    let purged = log.purge_expired_files().expect("purged");
    assert!(purged.segments > 5 && purged.bytes > 20_000, "{purged:?}");
    let after = log.stats();
    assert_eq!(after.segments, before.segments - purged.segments);
    assert!(after.live_bytes < 1_000, "{after:?}");
    assert_eq!(read_all(&log, 1), entries(60, 1, &[500]));
    drop(log);
    let log = reopen(&disk);
    assert_eq!(read_all(&log, 1), entries(60, 1, &[500]));
    assert_eq!(log.group(1).expect("there").term(59).expect("kept"), 1);
    assert_eq!(log.group(9).expect("there").get(b"old").expect("there"), "2");
}

#[test]
fn a_purged_log_begins_in_the_middle_of_its_groups() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    // Segment 1: 1..=20. A mark at 5 and 21..=40 behind. Then all below 30 goes, and segment 1
    // with it: what is left appends 21 to a group that knows of nothing between 5 and 20.
    let fill = |log: &LogEngine, group, range: std::ops::RangeInclusive<u64>| {
        range.for_each(|i| {
            write(log, |b| b.append(group, &entries(i, 1, &[150]))).expect("written");
        });
    };
    fill(&log, 1, 1..=20);
    write(&log, |b| b.compact_to(1, 5, 1)).expect("written");
    write(&log, |b| b.append(2, &entries(1, 1, &[3000]))).expect("fills the segment");
    write(&log, |b| b.compact_to(1, 6, 1)).expect("written");
    fill(&log, 1, 21..=40);
    // A group of which the first append left replaces what an earlier one, gone now, had.
    write(&log, |b| b.append(1, &entries(19, 2, &[9, 9, 9]))).expect("written");
    write(&log, |b| b.compact_to(1, 20, 2)).expect("written");
    write(&log, |b| b.remove_group(2)).expect("written");
    let purged = log.purge_expired_files().expect("purged");
    assert!(purged.segments > 0, "{purged:?}");
    drop(log);
    let log = reopen(&disk);
    assert_eq!(read_all(&log, 1), entries(20, 2, &[9, 9]));
    assert_eq!(log.group_ids(), [1]);
}

#[test]
fn a_batch_larger_than_a_segment_gets_its_own() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(1, 1, &[10]))).expect("written");
    write(&log, |b| b.append(1, &[random_entry(2, 1, 50_000)])).expect("written");
    write(&log, |b| b.append(1, &entries(3, 1, &[10]))).expect("written");
    assert_eq!(log.stats().segments, 3);
    drop(log);
    let wanted = [entry(1, 1, 10), random_entry(2, 1, 50_000), entry(3, 1, 10)];
    assert_eq!(read_all(&reopen(&disk), 1), wanted);
}

#[test]
fn limits_are_kept() {
    let disk = Arc::new(FaultFs::new(1));
    let config = small().batch_bytes_max(1000).queue_bytes_max(1500);
    let (log, _) = LogEngine::open_with(disk, Path::new("/log"), config).expect("it opens");
    let large = write(&log, |b| b.append(1, &entries(1, 1, &[1000])));
    assert!(matches!(large, Err(Error::TooLarge { limit: 1000, .. })), "{large:?}");
    let append =
        |index| log.write(batch(|b| b.append(1, &entries(index, 1, &[600]))), Durability::Buffered);
    let (first, second, mut third) = (append(1), append(2), append(3));
    assert!(matches!(third.try_take(), Some(Err(Error::Busy { limit: 1500, .. }))));
    second.wait().expect("written");
    first.wait().expect("written");
    assert_eq!(log.stats().queued_bytes, 0);
    append(3).wait().expect("there is room again");
}

#[test]
fn a_sync_makes_durable_what_was_only_buffered() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    let write = log.write(batch(|b| b.put(1, b"k", b"v")), Durability::Buffered);
    assert_eq!(write.wait().expect("written").lsn, 1);
    assert_eq!((log.durable_lsn(), log.stats().syncs), (0, 0));
    assert_eq!(log.sync().wait().expect("synced").lsn, 1);
    assert_eq!((log.durable_lsn(), log.stats().syncs), (1, 1));
    disk.power_loss(3);
    assert_eq!(reopen(&disk).group(1).expect("there").get(b"k").expect("there"), "v");
}

#[test]
fn callbacks_run_in_the_order_of_the_log_and_may_write() {
    let log = reopen(&FaultFs::new(1));
    let seen = Arc::new(Mutex::new(Vec::new()));
    for index in 1..=5 {
        let (seen, again) = (seen.clone(), log.clone());
        log.write(batch(|b| b.append(1, &entries(index, 1, &[8]))), Durability::Synced).on_done(
            move |outcome| {
                seen.lock().expect("whole").push(outcome.expect("written").lsn);
                if index == 3 {
                    // Waiting inside a callback leads another group commit, and does not hang.
                    write(&again, |b| b.put(1, b"k", b"v")).expect("written");
                }
            },
        );
    }
    assert!(log.flush());
    assert_eq!(*seen.lock().expect("whole"), [1, 2, 3, 4, 5]);
    let late = seen.clone();
    let commit = log.sync();
    log.flush();
    commit.on_done(move |outcome| late.lock().expect("whole").push(outcome.expect("synced").lsn));
    assert_eq!(seen.lock().expect("whole").last(), Some(&6));
}

#[test]
fn a_commit_is_a_future() {
    let log = reopen(&FaultFs::new(1));
    let mut commit = pin!(log.write(batch(|b| b.put(1, b"k", b"v")), Durability::Synced));
    let mut context = Context::from_waker(Waker::noop());
    assert!(commit.as_mut().poll(&mut context).is_pending());
    log.flush();
    let Poll::Ready(Ok(receipt)) = commit.as_mut().poll(&mut context) else { panic!("not ready") };
    assert_eq!(receipt.lsn, 1);
}

#[test]
fn what_is_queued_when_the_engine_goes_is_told() {
    let log = reopen(&FaultFs::new(1));
    let seen = Arc::new(Mutex::new(None));
    let told = seen.clone();
    log.write(batch(|b| b.put(1, b"k", b"v")), Durability::Synced)
        .on_done(move |outcome| *told.lock().expect("whole") = Some(outcome));
    drop(log);
    assert!(matches!(*seen.lock().expect("whole"), Some(Err(Error::Closed))));
}

#[test]
fn one_directory_has_one_engine() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    assert!(matches!(open(&disk), Err(Error::Locked { .. })));
    drop(log);
    let log = reopen(&disk);
    let commit = log.sync();
    drop(log);
    assert!(matches!(open(&disk), Err(Error::Locked { .. })), "a commit can still write");
    drop(commit);
    reopen(&disk);
}

#[test]
fn a_handle_of_a_removed_group_sees_nothing() {
    let log = reopen(&FaultFs::new(1));
    write(&log, |b| b.append(1, &entries(5, 1, &[1]))).expect("written");
    let group = log.group(1).expect("there");
    write(&log, |b| b.remove_group(1)).expect("written");
    assert!(log.group(1).is_none());
    assert_eq!((group.first_index(), group.last_index()), (1, 0));
    write(&log, |b| b.append(1, &entries(2, 1, &[1]))).expect("a new group");
    assert_eq!(group.last_index(), 0);
    assert_eq!(log.group(1).expect("there").last_index(), 2);
}

/// Found by the fuzz target `log_calls`: a compaction below the first index changes nothing, but
/// when what came before it was purged, a replay took it for the log's beginning.
#[test]
fn a_stale_compaction_is_no_beginning_after_a_purge() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(255, 1, &[1; 4]))).expect("written");
    // Enough to begin another segment.
    write(&log, |b| b.put(2, b"k", &[7; 3000])).expect("written");
    write(&log, |b| b.put(2, b"k", &[8; 3000])).expect("written");
    write(&log, |b| b.compact_to(1, 248, 1)).expect("it changes nothing");
    write(&log, |b| b.append(1, &entries(255, 2, &[2]))).expect("written");
    write(&log, |b| b.remove_group(2)).expect("written");
    assert!(log.purge_expired_files().expect("purged").segments > 0, "the beginning is gone");
    drop(log);
    let one = reopen(&disk).group(1).expect("there");
    assert_eq!((one.first_index(), one.last_index()), (255, 255));
}

/// A log whose first append is purged seems to begin later than it does; a compaction in between is
/// not stale for that.
#[test]
fn a_compaction_below_what_a_replay_has_seen_is_kept() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    let fill = |log: &LogEngine| write(log, |b| b.put(2, b"k", &[7; 3900])).expect("written");
    write(&log, |b| b.append(1, &entries(8, 1, &[1; 3]))).expect("written");
    fill(&log);
    write(&log, |b| b.append(1, &entries(11, 1, &[1; 3]))).expect("written");
    write(&log, |b| b.compact_to(1, 10, 1)).expect("written");
    // Replaces all that was seen, and all that lies in the first segment.
    write(&log, |b| b.append(1, &entries(10, 2, &[2; 4]))).expect("written");
    fill(&log);
    fill(&log);
    assert!(log.purge_expired_files().expect("purged").segments > 0, "the beginning is gone");
    drop(log);
    let one = reopen(&disk).group(1).expect("there");
    assert_eq!((one.first_index(), one.last_index()), (10, 13));
    assert_eq!(one.term(9).expect("the compaction told it"), 1);
}
