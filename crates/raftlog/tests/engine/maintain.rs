//! Segments made ahead, sealed afterwards and used again; closing; and what the disk may do to it.

use crate::kit::{batch, entries, open, open_with, read_all, reopen, segment_path, small, write};
use flotilla_raftlog::{Durability, Error, LogEngine, SegmentState};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::os::OsFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::path::Path;
use std::sync::Arc;

fn maintain(log: &LogEngine) -> u64 {
    let mut steps = 0;
    while log.maintain().expect("the disk does as it is told") {
        steps += 1;
    }
    steps
}

/// Writes one entry that fills a segment of the smallest size.
fn fill(log: &LogEngine, index: u64, durability: Durability) {
    let batch = batch(|b| b.append(1, &entries(index, 1, &[3700])));
    log.write(batch, durability).wait().expect("written");
}

fn names(disk: &FaultFs) -> Vec<String> {
    let mut names = disk.list(Path::new("/log")).expect("listed");
    names.retain(|name| name != "LOCK");
    names.iter().map(|name| name.trim_start_matches("0").replace(&"0".repeat(19), "")).collect()
}

#[test]
fn a_segment_that_is_made_ahead_is_begun_without_a_word_to_the_disk() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    assert!(names(&disk).is_empty(), "opening makes nothing");
    for index in 1..=20 {
        assert!(maintain(&log) > 0);
        let operations = disk.operations();
        fill(&log, index, Durability::Buffered);
        assert_eq!(disk.operations() - operations, 1, "the write itself");
        assert_eq!(log.stats().segments, index);
    }
    maintain(&log);
    let stats = log.stats();
    assert_eq!((stats.unsealed_segments, stats.syncs), (0, 0));
    assert_eq!(log.durable_lsn(), 19, "what was sealed is durable");
    disk.power_loss(3);
    assert!(read_all(&reopen(&disk), 1).len() >= 19);
}

/// Fills a segment of 64 KiB entry by entry, and returns up to where the next one was written while
/// maintenance kept pace.
fn data_end_of_next(log: &LogEngine, disk: &FaultFs, is_synced: impl Fn(u64) -> bool) -> u64 {
    let segment = log.stats().segments;
    let first = log.group(1).map_or(1, |group| group.last_index() + 1);
    for count in 0..20 {
        let batch = batch(|b| b.append(1, &entries(first + count, 1, &[3000])));
        let durability = if is_synced(count) { Durability::Synced } else { Durability::Buffered };
        log.write(batch, durability).wait().expect("written");
        maintain(log);
    }
    assert_eq!(log.stats().segments, segment + 1, "the first entry went to a new one");
    let next = disk.open(&segment_path(segment + 2), OpenMode::Read).expect("preallocated");
    assert_eq!(next.len().expect("known"), 64 << 10);
    next.data_end().expect("known")
}

#[test]
fn zeros_are_written_ahead_only_where_syncs_are_quicker_for_it() {
    let disk = FaultFs::new(1);
    let log = open_with(&disk, small().segment_bytes(64 << 10)).expect("it opens").0;
    // From here on segments have their full length.
    for index in 1..=3 {
        write(&log, |b| b.append(1, &entries(index, 1, &[61_000]))).expect("written");
        maintain(&log);
    }
    assert_eq!(data_end_of_next(&log, &disk, |_| false), 4096, "the header alone");
    // One sync for each 3 KiB, one for each 15 KiB, one for each 30 KiB.
    assert_eq!(data_end_of_next(&log, &disk, |_| true), 64 << 10);
    assert_eq!(data_end_of_next(&log, &disk, |count| count % 5 == 0), 64 << 10);
    assert_eq!(data_end_of_next(&log, &disk, |count| count % 10 == 9), 4096);
}

#[test]
fn writes_make_and_seal_themselves_what_nobody_does_in_time() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    for index in 1..=20 {
        fill(&log, index, Durability::Buffered);
        assert!(log.stats().unsealed_segments <= 2);
    }
    assert_eq!((log.stats().segments, log.stats().unsealed_segments), (20, 2));
    log.sync().wait().expect("synced");
    assert_eq!(log.durable_lsn(), 20);
    disk.power_loss(3);
    assert_eq!(read_all(&reopen(&disk), 1).len(), 20);
}

#[test]
fn a_sync_covers_full_segments_oldest_first() {
    for seed in 0..40 {
        let disk = FaultFs::new(seed);
        let log = reopen(&disk);
        (1..=3).for_each(|index| fill(&log, index, Durability::Buffered));
        fill(&log, 4, Durability::Synced);
        drop(log);
        disk.power_loss(seed);
        assert_eq!(read_all(&reopen(&disk), 1).len(), 4, "seed {seed}");
    }
}

#[test]
fn frames_of_a_group_stay_together_if_little_is_left() {
    let disk = FaultFs::new(1);
    let config = || small().segment_bytes(64 << 10);
    let log = open_with(&disk, config()).expect("it opens").0;
    let append = |index, len: usize| {
        log.write(batch(|b| b.append(1, &entries(index, 1, &[len]))), Durability::Synced)
    };
    append(1, 58_500).wait().expect("written");
    maintain(&log);
    let operations = disk.operations();
    // The first of these would fit.
    let commits = [append(2, 1500), append(3, 1500)];
    log.flush();
    assert!(commits.into_iter().all(|mut c| c.try_take().expect("flushed").is_ok()));
    assert_eq!(disk.operations() - operations, 2, "one write, one sync");
    assert_eq!(log.stats().segments, 2);
    drop(log);
    assert_eq!(read_all(&open_with(&disk, config()).expect("it opens").0, 1).len(), 3);
}

#[test]
fn dead_segments_are_used_again() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    for index in 1..=40 {
        fill(&log, index, Durability::Synced);
        write(&log, |b| b.compact_to(1, index, 1)).expect("written");
        log.purge_expired_files().expect("purged");
        maintain(&log);
    }
    let (spares, segments): (Vec<_>, Vec<_>) =
        names(&disk).into_iter().partition(|name| name.starts_with("spare"));
    assert!(segments.len() <= 3 && spares.len() <= 4, "{segments:?} {spares:?}");
    assert_eq!(log.stats().recycled_segments, spares.len() as u64);
    // The last has the flag, and what it was before is still behind its frames.
    let last = *log_numbers(&disk).last().expect("there is one");
    assert_eq!(bytes_of(&disk, last)[12], 1);
    assert!(last > 20);
    drop(log);
    let log = reopen(&disk);
    assert_eq!(read_all(&log, 1), entries(40, 1, &[3700]));
    let none = small().spare_segments(0);
    drop(log);
    let log = open_with(&disk, none).expect("it opens").0;
    assert!(names(&disk).iter().all(|name| !name.starts_with("spare")), "none are wanted");
    write(&log, |b| b.remove_group(1)).expect("written");
    assert!(log.purge_expired_files().expect("purged").segments > 0);
    assert_eq!(log.stats().recycled_segments, 0);
}

fn log_numbers(disk: &FaultFs) -> Vec<u64> {
    let names = disk.list(Path::new("/log")).expect("listed");
    names.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect()
}

fn bytes_of(disk: &FaultFs, segment: u64) -> Vec<u8> {
    let file = disk.open(&segment_path(segment), OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("it has one") as usize];
    file.read_exact_at(&mut bytes, 0).expect("it can be read");
    bytes
}

/// A log whose newest segment was another one before, with two synced entries in it.
fn reused() -> (FaultFs, LogEngine, u64) {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    fill(&log, 1, Durability::Synced);
    fill(&log, 2, Durability::Synced);
    write(&log, |b| b.compact_to(1, 3, 1)).expect("written");
    log.purge_expired_files().expect("purged");
    maintain(&log);
    write(&log, |b| b.append(1, &entries(3, 1, &[3000]))).expect("written");
    write(&log, |b| b.append(1, &entries(4, 1, &[100]))).expect("written");
    write(&log, |b| b.append(1, &entries(5, 1, &[100]))).expect("written");
    let newest = log.group(1).map_or(0, |_| *log_numbers(&disk).last().expect("there is one"));
    (disk, log, newest)
}

#[test]
fn rot_in_the_last_batch_shows_once_the_log_was_idle() {
    // Without the sync marker, in a file that was used before, it passes for a write that was torn.
    for is_idle in [false, true] {
        let (disk, log, newest) = reused();
        assert_eq!(bytes_of(&disk, newest)[12], 1, "it is a file that was used before");
        let end = {
            let bytes = bytes_of(&disk, newest);
            let data = entries(5, 1, &[100]).remove(0).data;
            bytes.windows(100).rposition(|window| window == data).expect("it is there")
        };
        if is_idle {
            // The first call finds out what was written last, the second that nothing came after.
            assert!(maintain(&log) <= 2);
            assert!(maintain(&log) >= 1, "a voucher");
            assert_eq!(maintain(&log), 0, "one is enough");
        }
        drop(log);
        disk.flip_bit(&segment_path(newest), end as u64 + 50, 2);
        match open(&disk) {
            Err(Error::Corrupt { segment, .. }) => assert!(is_idle && segment == newest),
            Ok((log, report)) => {
                assert!(!is_idle && report.torn_bytes > 100);
                assert_eq!(read_all(&log, 1), entries(3, 1, &[3000, 100]));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_torn_flush_over_several_segments_is_given_up_from_the_first_loss_on() {
    for lost in 1..=3 {
        let disk = FaultFs::new(1);
        let log = reopen(&disk);
        fill(&log, 1, Durability::Synced);
        (2..=4).for_each(|index| fill(&log, index, Durability::Buffered));
        // Those behind it are on the disk, and it is not.
        let file = disk.open(&segment_path(lost + 1), OpenMode::Write).expect("there");
        drop(log);
        file.write_at(&[0; 4096 - 512], 512).expect("written");
        let (log, report) = open(&disk).expect("it opens");
        assert_eq!(read_all(&log, 1).len() as u64, lost);
        assert!(report.torn_bytes > 400, "{report:?}");
        assert_eq!(log_numbers(&disk), (1..=lost).collect::<Vec<_>>(), "the others are removed");
        write(&log, |b| b.append(1, &entries(lost + 1, 9, &[3700]))).expect("written");
        drop(log);
        let log = reopen(&disk);
        let terms = log.group(1).expect("there").term_runs();
        assert_eq!(terms, [(1, 1), (lost + 1, 9)]);
    }
}

#[test]
fn a_segment_made_ahead_is_kept_over_a_restart() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    fill(&log, 1, Durability::Synced);
    maintain(&log);
    assert_eq!(log_numbers(&disk), [1, 2]);
    drop(log);
    let log = reopen(&disk);
    assert_eq!(log_numbers(&disk), [1, 2]);
    let operations = disk.operations();
    fill(&log, 2, Durability::Buffered);
    assert_eq!(disk.operations() - operations, 1);
    assert_eq!(log_numbers(&disk), [1, 2]);
}

#[test]
fn a_closed_log_takes_nothing_and_is_opened_without_a_write() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    fill(&log, 1, Durability::Buffered);
    maintain(&log);
    let second = batch(|b| b.append(1, &entries(2, 1, &[100])));
    log.write(second, Durability::Buffered).wait().expect("written");
    maintain(&log);
    assert_eq!(log_numbers(&disk), [1, 2, 3]);
    let mut queued = log.write(batch(|b| b.put(1, b"k", b"v")), Durability::Buffered);
    log.close().expect("closed");
    assert_eq!(queued.try_take().expect("it was queued before").expect("written").lsn, 3);
    assert_eq!((log.durable_lsn(), log.stats().unsealed_segments), (3, 0));
    assert!(matches!(write(&log, |b| b.put(1, b"k", b"w")), Err(Error::Closed)));
    assert!(matches!(log.sync().wait(), Err(Error::Closed)));
    assert!(matches!(log.maintain(), Err(Error::Closed)));
    log.close().expect("it is closed already");
    assert_eq!(read_all(&log, 1).len(), 2);
    drop((log, queued));
    disk.power_loss(1);
    let before = (names(&disk), disk.stats().writes);
    let (log, report) = open(&disk).expect("it opens");
    assert_eq!((names(&disk), disk.stats().writes), before);
    assert_eq!((report.last_lsn, report.torn_bytes, read_all(&log, 1).len()), (3, 0, 2));
    assert_eq!(log_numbers(&disk), [1, 2], "what was made ahead became a spare");
    log.close().expect("nothing to do");
    drop(log);
    assert_eq!(disk.stats().writes, before.1);
}

#[test]
fn a_thread_maintains_the_log_and_ends_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let open =
        || LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), small()).expect("it opens").0;
    let log = open();
    let thread = log.maintain_in_background().expect("it starts");
    for index in 1..=200 {
        fill(&log, index, Durability::Buffered);
    }
    while log.stats().unsealed_segments > 0 {
        std::thread::yield_now();
    }
    drop(thread);
    drop(log);
    let log = open();
    assert_eq!(read_all(&log, 1).len(), 200);
    // The thread does not keep the log open, and sees that it is gone.
    let thread = log.maintain_in_background().expect("it starts");
    drop(log);
    while matches!(
        LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), small()),
        Err(Error::Locked { .. })
    ) {
        std::thread::yield_now();
    }
    drop(thread);
}

#[test]
fn a_sync_that_fails_behind_the_writers_poisons() {
    for prepared in [false, true] {
        let disk = FaultFs::new(1);
        let log = reopen(&disk);
        if prepared {
            maintain(&log);
        }
        fill(&log, 1, Durability::Buffered);
        if prepared {
            assert!(log.maintain().expect("made"), "so that there is only something to seal");
        }
        fill(&log, 2, Durability::Buffered);
        let mut queued = log.write(batch(|b| b.put(1, b"k", b"v")), Durability::Buffered);
        disk.fail_syncs(true);
        assert!(matches!(log.maintain(), Err(Error::Poisoned(_))));
        disk.fail_syncs(false);
        assert!(matches!(queued.try_take(), Some(Err(Error::Poisoned(_)))));
        assert!(matches!(log.sync().wait(), Err(Error::Poisoned(_))));
        assert!(matches!(log.maintain(), Err(Error::Poisoned(_))));
        assert!(matches!(log.close(), Err(Error::Poisoned(_))));
        assert_eq!((log.durable_lsn(), log.stats().queued_bytes), (0, 0));
    }
}

#[test]
fn a_full_disk_is_met_when_a_segment_is_made_and_left_behind_when_there_is_room() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    fill(&log, 1, Durability::Synced);
    disk.set_capacity(Some(2 * 4096));
    maintain(&log);
    fill(&log, 2, Durability::Synced);
    assert_eq!(maintain(&log), 1, "the first is sealed, no other can be made");
    let full = write(&log, |b| b.append(1, &entries(3, 1, &[3700])));
    assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
    assert!(log.poisoned().is_none());
    disk.set_capacity(Some(3 * 4096));
    assert!(maintain(&log) > 0);
    fill(&log, 3, Durability::Synced);
    drop(log);
    // Opened on a full disk: no segment is active, so there is no reserve in one.
    let log = reopen(&disk);
    assert!(matches!(write(&log, |b| b.put(1, b"k", b"v")), Err(Error::NoSpace { .. })));
    assert_eq!(read_all(&log, 1).len(), 3);
}

#[test]
fn a_disk_too_full_for_a_segment_has_room_for_what_only_frees() {
    let disk = FaultFs::new(1);
    let config = || small().segment_bytes(64 << 10);
    let log = open_with(&disk, config()).expect("it opens").0;
    let append = |log: &LogEngine, index| {
        write(log, |b| b.append(1, &entries(index, 1, &[60_000]))).map(|_| ())
    };
    append(&log, 1).expect("written");
    append(&log, 2).expect("written");
    drop(log);
    disk.set_capacity(Some(2 * (64 << 10) + (8 << 10)));
    let log = open_with(&disk, config()).expect("it opens").0;
    assert!(matches!(append(&log, 3), Err(Error::NoSpace { .. })));
    write(&log, |b| b.compact_to(1, 3, 1)).expect("it gets a short segment");
    assert_eq!(log.purge_expired_files().expect("purged").segments, 2);
    append(&log, 3).expect("there is room");
    drop(log);
    assert_eq!(read_all(&open_with(&disk, config()).expect("it opens").0, 1).len(), 1);
}

#[test]
fn a_write_waits_for_room_if_that_is_wanted_and_those_behind_it_too() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    fill(&log, 1, Durability::Synced);
    disk.set_capacity(Some(2 * 4096));
    log.wait_for_room(true);
    let (first, second) = std::thread::scope(|scope| {
        let append = |index| {
            log.write(batch(|b| b.append(1, &entries(index, 1, &[3700]))), Durability::Synced)
        };
        let (first, second) = (append(2), append(3));
        let (first, second) = (scope.spawn(|| first.wait()), scope.spawn(|| second.wait()));
        while !log.is_waiting_for_room() {
            std::thread::yield_now();
        }
        assert!(!first.is_finished() || !second.is_finished());
        disk.set_capacity(None);
        (first.join().expect("no panic"), second.join().expect("no panic"))
    });
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert!(!log.is_waiting_for_room());
    assert_eq!(read_all(&log, 1).len(), 3);
    // Turned off, it refuses what waits.
    disk.set_capacity(Some(0));
    let refused = std::thread::scope(|scope| {
        let append = log.write(batch(|b| b.append(1, &entries(4, 1, &[3700]))), Durability::Synced);
        let waits = scope.spawn(|| append.wait());
        while !log.is_waiting_for_room() {
            std::thread::yield_now();
        }
        log.wait_for_room(false);
        waits.join().expect("no panic")
    });
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert!(!log.is_waiting_for_room() && log.poisoned().is_none());
    assert!(log.disk_bytes() >= 3 * 4096, "{}", log.disk_bytes());
}

#[test]
fn each_segment_says_how_far_it_is() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    (1..=4).for_each(|index| fill(&log, index, Durability::Buffered));
    write(&log, |b| b.compact_to(1, 3, 1)).expect("written");
    let states = |log: &LogEngine| {
        let segments = log.segments().expect("all can be told");
        assert!(segments.iter().map(|s| s.number).eq(1..=4));
        segments.into_iter().map(|s| (s.state, s.live_bytes > 3700)).collect::<Vec<_>>()
    };
    use SegmentState::{Active, Full, Sealed};
    let live = [(Sealed, false), (Full, false), (Full, true), (Active, true)];
    assert_eq!(states(&log), live);
    maintain(&log);
    let live = [(Sealed, false), (Sealed, false), (Sealed, true), (Active, true)];
    assert_eq!(states(&log), live);
    let total: u64 = log.segments().expect("all can be told").iter().map(|s| s.live_bytes).sum();
    assert_eq!(total, log.stats().live_bytes);
    drop(log);
    let log = reopen(&disk);
    let live = [(Sealed, false), (Sealed, false), (Sealed, true), (Full, true)];
    assert_eq!(states(&log), live, "opening leaves the sealing for later");
    maintain(&log);
    let live = [(Sealed, false), (Sealed, false), (Sealed, true), (Sealed, true)];
    assert_eq!(states(&log), live);
}

#[test]
fn what_opening_has_found_is_durable() {
    for seed in 0..8 {
        let disk = FaultFs::new(seed);
        let config = || small().recovery_threads(1 + seed as usize % 3);
        let log = reopen(&disk);
        (1..=4).for_each(|index| fill(&log, index, Durability::Buffered));
        drop(log);
        let (log, report) = open_with(&disk, config()).expect("it opens");
        assert_eq!((report.last_lsn, log.durable_lsn()), (4, 4));
        fill(&log, 5, Durability::Buffered);
        drop(log);
        disk.power_loss(seed);
        let (log, report) = open_with(&disk, config()).expect("it opens");
        assert!(report.last_lsn >= 4, "{report:?}");
        fill(&log, report.last_lsn + 1, Durability::Buffered);
        drop(log);
        disk.fail_syncs(true);
        let failed = open_with(&disk, config());
        assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    }
}

#[test]
fn the_newest_segment_stays_though_nothing_in_it_is_needed() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    fill(&log, 1, Durability::Synced);
    write(&log, |b| b.remove_group(1)).expect("written");
    drop(log);
    let mut last_lsn = 2;
    for _ in 0..3 {
        let (log, report) = open(&disk).expect("it opens");
        assert_eq!(report.last_lsn, last_lsn, "numbers go on where they were");
        write(&log, |b| b.remove_group(1)).expect("written");
        // Twice, since the first purge leaves a segment that holds nothing but its own batch.
        log.purge_expired_files().expect("purged");
        log.purge_expired_files().expect("purged");
        last_lsn += log.stats().batches;
    }
}
