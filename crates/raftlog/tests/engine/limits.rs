//! A log that may take no more of the disk, or a disk that has no more.

use crate::kit::{DIR, batch, entries, open_with, read_all, small, write};
use flotilla_raftlog::{Commit, Config, Durability, Error, LogBatch, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::path::Path;

const LIMIT: u64 = 11 * 4096;

fn limited() -> Config {
    small().disk_bytes_max(Some(LIMIT))
}

/// Bytes of all files, spares and all.
fn disk_bytes(disk: &FaultFs) -> u64 {
    let names = disk.list(Path::new(DIR)).expect("listed");
    let len = |name: String| {
        let file = disk.open(&Path::new(DIR).join(name), OpenMode::Read).expect("opened");
        file.len().expect("known")
    };
    names.into_iter().map(len).sum()
}

/// Appends until that is refused. Returns the next index, and why.
fn append_on(log: &LogEngine, group: u64, mut index: u64) -> (u64, Error) {
    loop {
        match write(log, |b| b.append(group, &entries(index, 1, &[500]))) {
            Ok(_) => index += 1,
            Err(error) => return (index, error),
        }
        log.maintain().expect("maintained");
    }
}

#[test]
fn a_log_at_its_limit_takes_what_frees_and_goes_on_when_it_is_purged() {
    let disk = FaultFs::new(1);
    let log = open_with(&disk, limited()).expect("it opens").0;
    write(&log, |b| b.put(9, b"vote", b"1")).expect("written");
    let (mut index, mut written) = (1, 0);
    for round in 1..=5 {
        let (next, error) = append_on(&log, 1, index);
        assert!(
            matches!(error, Error::Full { bytes, limit } if bytes > limit && limit == LIMIT - 2 * 4096)
        );
        assert!(disk_bytes(&disk) <= LIMIT, "{} bytes", disk_bytes(&disk));
        assert!(next - index > 30, "round {round}: {} were written", next - index);
        written += next - index;
        // A refused batch leaves nothing, and the log is whole.
        let before = log.stats();
        assert!(matches!(
            write(&log, |b| b.append(1, &entries(next, 1, &[500]))),
            Err(Error::Full { .. })
        ));
        let after = log.stats();
        assert_eq!((before.batches, before.bytes_written), (after.batches, after.bytes_written));
        assert_eq!((after.queued_bytes, log.poisoned().is_none()), (0, true));
        assert_eq!(log.group(1).expect("there").last_index(), next - 1);
        // Nothing that is needed goes; what is in the way is moved.
        let purged = log.purge_expired_files().expect("purged");
        assert!(purged.segments <= 1, "{purged:?}");
        write(&log, |b| b.compact_to(1, next, 1)).expect("it frees");
        write(&log, |b| b.delete(9, b"other")).expect("it frees");
        let purged = log.purge_expired_files().expect("purged");
        assert!(purged.segments >= 6, "round {round}: {purged:?}");
        assert!(disk_bytes(&disk) <= LIMIT, "{} bytes", disk_bytes(&disk));
        assert_eq!(log.group(9).expect("there").get(b"vote").expect("there"), "1");
        index = next;
    }
    assert!(
        log.stats().purge.rewritten_records > 0 && written > 200,
        "{written}: {:?}",
        log.stats()
    );
    write(&log, |b| b.append(1, &entries(index, 1, &[5]))).expect("there is room");
    drop(log);
    let log = open_with(&disk, limited()).expect("it opens").0;
    assert_eq!(read_all(&log, 1), entries(index, 1, &[5]));
    assert_eq!(log.group(9).expect("there").get(b"vote").expect("there"), "1");
}

#[test]
fn a_group_that_nobody_compacts_fills_its_part_and_stands_in_nobodys_way() {
    let disk = FaultFs::new(1);
    let log = open_with(&disk, limited()).expect("it opens").0;
    let mut next = 1;
    // Half of the limit is of a group that is never compacted, most of each segment.
    for index in 1..=10 {
        write(&log, |b| b.append(2, &entries(index, 1, &[1500]))).expect("written");
        write(&log, |b| b.append(1, &entries(next, 1, &[600]))).expect("written");
        next += 1;
        write(&log, |b| b.compact_to(1, next, 1)).expect("written");
    }
    for _ in 0..20 {
        let (index, error) = append_on(&log, 1, next);
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(index > next, "nothing could be written");
        next = index;
        write(&log, |b| b.compact_to(1, next, 1)).expect("it frees");
        let purged = log.purge_expired_files().expect("purged");
        assert!(purged.bytes > 0, "{purged:?}");
        assert!(disk_bytes(&disk) <= LIMIT, "{} bytes", disk_bytes(&disk));
    }
    assert!(log.stats().purge.rewritten_bytes > 20_000, "{:?}", log.stats());
    assert_eq!(read_all(&log, 2).len(), 10);
    // Once it has all there is, the log says who and how much, and does not copy it about.
    let mut index = 11;
    let purged = loop {
        while write(&log, |b| b.append(2, &entries(index, 1, &[1500]))).is_ok() {
            index += 1;
        }
        let before = log.stats().bytes_written;
        let purged = log.purge_expired_files().expect("purged");
        if purged.bytes == 0 {
            assert_eq!((purged.rewritten_bytes, log.stats().bytes_written), (0, before));
            break purged;
        }
    };
    assert!(
        purged.blocking_groups.iter().any(|held| held.group == 2 && held.bytes > 1500),
        "{purged:?}"
    );
    write(&log, |b| b.compact_to(2, index, 1)).expect("it frees");
    let purged = log.purge_expired_files().expect("purged");
    assert!(purged.segments > 2, "{purged:?} {:?}", log.stats());
    write(&log, |b| b.append(2, &entries(index, 1, &[1500]))).expect("there is room");
}

#[test]
fn what_holds_a_full_disk_is_moved_with_the_last_bytes() {
    let disk = FaultFs::new(1);
    let config = || small().segment_bytes(16 << 10);
    let log = open_with(&disk, config()).expect("it opens").0;
    write(&log, |b| b.append(2, &entries(1, 1, &[300]))).expect("written");
    write(&log, |b| b.put(9, b"vote", b"1")).expect("written");
    disk.set_capacity(Some(5 * (16 << 10)));
    let (index, error) = append_on(&log, 1, 1);
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    write(&log, |b| b.compact_to(1, index, 1)).expect("it frees");
    // The log is far below what it may have, but there is no disk for that.
    let purged = log.purge_expired_files().expect("purged");
    assert!(purged.segments >= 3 && purged.rewritten_bytes > 300, "{purged:?}");
    write(&log, |b| b.append(1, &entries(index, 1, &[9000]))).expect("there is room");
    drop(log);
    let log = open_with(&disk, config()).expect("it opens").0;
    assert_eq!(read_all(&log, 2), entries(1, 1, &[300]));
    assert_eq!(log.group(9).expect("there").get(b"vote").expect("there"), "1");
}

#[test]
fn a_move_gets_a_short_segment_if_there_is_room_for_no_other() {
    let disk = FaultFs::new(1);
    let config = || small().segment_bytes(256 << 10);
    let log = open_with(&disk, config()).expect("it opens").0;
    write(&log, |b| b.append(2, &entries(1, 1, &[300]))).expect("written");
    for index in 1..=24 {
        write(&log, |b| b.append(1, &entries(index, 1, &[10_000]))).expect("written");
    }
    write(&log, |b| b.compact_to(1, 25, 1)).expect("written");
    log.close().expect("closed");
    drop(log);
    // A log that was just opened has no segment that anything could be added to.
    let log = open_with(&disk, config()).expect("it opens").0;
    disk.set_capacity(Some(disk_bytes(&disk) + (40 << 10)));
    let full = write(&log, |b| b.append(3, &entries(1, 1, &[9])));
    assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
    let purged = log.purge_expired_files().expect("purged");
    assert!(purged.segments >= 3 && purged.rewritten_bytes > 300, "{purged:?}");
    assert_eq!(read_all(&log, 2), entries(1, 1, &[300]));
    write(&log, |b| b.append(3, &entries(1, 1, &[9]))).expect("there is room");
}

#[test]
fn a_move_that_finds_no_room_is_left_for_later() {
    let disk = FaultFs::new(1);
    let config = || small().purge_above_bytes(0).move_live_ratio_max(1.0);
    let log = open_with(&disk, config()).expect("it opens").0;
    for index in 1..=6 {
        write(&log, |b| b.append(2, &entries(index, 1, &[500]))).expect("written");
    }
    write(&log, |b| b.append(1, &entries(1, 1, &[3000]))).expect("written");
    disk.set_capacity(Some(2 * 4096));
    let purged = log.purge_expired_files().expect("it is no error");
    assert_eq!((purged.segments, purged.blocking_groups[0].group), (0, 2));
    assert!(purged.rewritten_bytes < 1500 && purged.excess_bytes > 4096, "{purged:?}");
    assert!(log.poisoned().is_none());
    assert_eq!(read_all(&log, 2), entries(1, 1, &[500; 6]));
    disk.set_capacity(None);
    assert!(log.purge_expired_files().expect("purged").segments > 0);
    assert_eq!(read_all(&log, 2), entries(1, 1, &[500; 6]));
    drop(log);
    assert_eq!(read_all(&open_with(&disk, config()).expect("it opens").0, 2).len(), 6);
}

#[test]
fn what_frees_passes_behind_what_is_refused_unless_it_counts_on_it() {
    let disk = FaultFs::new(1);
    let log = open_with(&disk, limited()).expect("it opens").0;
    for group in 2..=4 {
        write(&log, |b| b.append(group, &entries(1, 1, &[9, 9, 9]))).expect("written");
    }
    let (next, _) = append_on(&log, 1, 1);
    let queue = |build: &dyn Fn(&mut LogBatch)| log.write(batch(build), Durability::Synced);
    let refused = queue(&|b| {
        b.append(1, &entries(next, 1, &[3000]));
        b.compact_to(1, 3, 1);
    });
    let commits: Vec<(bool, Commit)> = vec![
        (true, queue(&|b| b.compact_to(2, 2, 1))),
        (false, queue(&|b| b.put(3, b"k", b"v"))),
        (false, queue(&|b| b.compact_to(1, next + 1, 1))),
        // It comes too late only if the first one goes through.
        (false, queue(&|b| b.compact_to(1, 2, 1))),
        // It would have been right without the others, and is not asked again.
        (false, queue(&|b| b.compact_to(3, 2, 1))),
        (true, queue(&|b| b.truncate_from(2, 3))),
        (false, queue(&|b| b.append(2, &entries(3, 2, &[3000])))),
        (false, queue(&|b| b.truncate_from(2, 4))),
        (true, queue(&|b| b.remove_group(4))),
        (true, log.sync()),
    ];
    let told = std::sync::Arc::new(std::sync::Mutex::new(0));
    let count = told.clone();
    refused.on_done(move |outcome| {
        assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
        *count.lock().expect("whole") += 1;
    });
    assert!(log.flush() && !log.flush(), "one flush carries out all");
    let mut lsn = log.stats().batches - 3;
    for (at, (passes, mut commit)) in commits.into_iter().enumerate() {
        match commit.try_take().expect("it was flushed") {
            Ok(receipt) => {
                lsn = log.stats().batches.min(lsn + 1);
                assert!(passes && receipt.lsn == lsn, "{at}: {receipt:?}, not {lsn}");
            }
            Err(Error::Full { .. }) => assert!(!passes, "{at} is refused"),
            Err(other) => panic!("{at}: {other}"),
        }
    }
    assert_eq!((*told.lock().expect("whole"), log.stats().queued_bytes), (1, 0));
    let check = |log: &LogEngine| {
        assert_eq!(read_all(log, 2), entries(2, 1, &[9]));
        assert_eq!(read_all(log, 3), entries(1, 1, &[9, 9, 9]));
        assert!(log.group(4).is_none());
        assert_eq!(log.group(1).expect("there").last_index(), next - 1);
    };
    check(&log);
    // The bounds that later batches are checked against are right again.
    assert!(matches!(write(&log, |b| b.truncate_from(2, 4)), Err(Error::Gap { expected: 3, .. })));
    assert!(matches!(write(&log, |b| b.truncate_from(2, 1)), Err(Error::Stale { first: 2, .. })));
    write(&log, |b| b.compact_to(1, next, 1)).expect("it frees");
    drop(log);
    disk.power_loss(1);
    check(&open_with(&disk, limited()).expect("it opens").0);
}
