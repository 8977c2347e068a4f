//! Live records of old segments are rewritten, so that the segments can go.

use crate::kit::{DIR, entries, open_with, random_entry, read_all, small, text_entry, write};
use flotilla_raftlog::{Config, Entry, Error, LogEngine, PurgeReport, RecoveryMode, VerifyLevel};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::path::Path;
use std::sync::Arc;

/// Everything above one segment is moved, whatever it costs.
fn eager() -> Config {
    small().purge_above_bytes(4096).move_live_ratio_max(1.0)
}

/// Fills segments with what is needed no more.
fn fill(log: &LogEngine, group: u64, segments: u64) {
    let first = log.group(group).map_or(1, |group| group.last_index() + 1);
    for index in first..first + segments * 8 {
        write(log, |b| b.append(group, &entries(index, 1, &[430]))).expect("written");
        write(log, |b| b.compact_to(group, index + 1, 1)).expect("written");
    }
}

fn purge(log: &LogEngine) -> PurgeReport {
    log.purge_expired_files().expect("purged")
}

fn oldest(disk: &FaultFs) -> String {
    let names = disk.list(Path::new(DIR)).expect("listed");
    names.into_iter().find(|name| name.starts_with('0')).expect("there is a segment")
}

#[test]
fn idle_groups_hold_no_segment_for_ever() {
    let disk = FaultFs::new(1);
    let config = || eager().compress_above_bytes(500);
    let mut log = open_with(&disk, config()).expect("it opens").0;
    let appends: [Vec<Entry>; 3] = [
        entries(5, 2, &[30, 40, 50]),
        vec![text_entry(8, 2, 900), random_entry(9, 3, 900)],
        entries(10, 3, &[1, 0]),
    ];
    for entries in &appends {
        write(&log, |b| b.append(2, entries)).expect("written");
    }
    // Of the first append the end is left, of the last the beginning.
    write(&log, |b| b.compact_to(2, 6, 2)).expect("written");
    write(&log, |b| b.truncate_from(2, 11)).expect("written");
    write(&log, |b| b.put(9, b"vote", b"1")).expect("written");
    write(&log, |b| b.compact_to(8, 50, 7)).expect("written");
    let wanted: Vec<Entry> = appends.concat()[1..6].to_vec();
    let check = |log: &LogEngine| {
        let group = log.group(2).expect("there");
        assert_eq!((read_all(log, 2), group.first_index()), (wanted.clone(), 6));
        assert_eq!(group.term_runs(), [(6, 2), (9, 3)]);
        assert_eq!((group.term(5).expect("kept"), group.last_index()), (2, 10));
        assert_eq!(log.group(9).expect("there").get(b"vote").expect("there"), "1");
        let group = log.group(8).expect("there");
        assert_eq!((group.first_index(), group.term(49).expect("kept")), (50, 7));
    };
    for round in 1..=4 {
        fill(&log, 1, 6);
        let (before, oldest_before) = (log.stats(), oldest(&disk));
        let purged = purge(&log);
        let stats = log.stats();
        assert!(purged.segments >= 5 && stats.segments <= 2, "round {round}: {purged:?}");
        // Compressed data stays so: the text is about half as long.
        assert!((1400..2000).contains(&purged.rewritten_bytes), "round {round}: {purged:?}");
        assert_eq!(
            stats.purge.rewritten_bytes - before.purge.rewritten_bytes,
            purged.rewritten_bytes
        );
        assert!(stats.bytes_written - before.bytes_written < purged.rewritten_bytes + 500);
        assert_eq!((stats.purge.segments, stats.purge.calls), (purged.segments, 1));
        assert!(stats.purge.rewritten_records >= 6, "{stats:?}");
        assert!(stats.live_bytes <= before.live_bytes, "what was moved is live once");
        assert_ne!(oldest(&disk), oldest_before);
        check(&log);
        drop(log);
        disk.power_loss(round);
        log = open_with(&disk, config()).expect("it opens").0;
        check(&log);
    }
    // The group goes on behind what was moved.
    write(&log, |b| b.append(2, &entries(9, 4, &[7]))).expect("written");
    assert_eq!(read_all(&log, 2)[3..], entries(9, 4, &[7]));
}

#[test]
fn nothing_is_moved_while_there_is_little_or_if_it_is_forbidden() {
    for config in [
        eager().purge_above_bytes(64 << 10),
        eager().move_bytes_max(0),
        eager().move_live_ratio_max(0.0),
    ] {
        let disk = FaultFs::new(1);
        let log = open_with(&disk, config).expect("it opens").0;
        write(&log, |b| b.put(9, b"vote", b"1")).expect("written");
        fill(&log, 1, 6);
        let purged = purge(&log);
        assert_eq!((purged.segments, purged.rewritten_bytes), (0, 0));
        assert_eq!(purged.blocking_groups.iter().map(|held| held.group).collect::<Vec<_>>(), [9]);
    }
}

#[test]
fn a_call_moves_no_more_than_it_may_and_the_next_goes_on() {
    let disk = FaultFs::new(1);
    let config = eager().move_bytes_max(400);
    let log = open_with(&disk, config).expect("it opens").0;
    for index in 1..=20 {
        write(&log, |b| b.append(2, &entries(index, 1, &[100]))).expect("written");
    }
    fill(&log, 1, 4);
    let mut calls = 0;
    while log.stats().segments > 2 {
        let purged = purge(&log);
        // One step more than the budget, at most.
        assert!(purged.rewritten_bytes <= 400 + 512, "{purged:?}");
        // Less than the limit is live: what is too much can be freed.
        assert_eq!(purged.excess_bytes > 0, log.stats().segments > 3, "{purged:?}");
        calls += 1;
    }
    assert!((4..10).contains(&calls), "{calls} calls");
    assert_eq!(read_all(&log, 2), entries(1, 1, &[100; 20]));
}

#[test]
fn a_segment_that_is_much_needed_is_named_and_stays_while_those_behind_it_are_reduced() {
    let disk = FaultFs::new(1);
    let config = || eager().move_live_ratio_max(0.5);
    let mut log = open_with(&disk, config()).expect("it opens").0;
    write(&log, |b| b.append(2, &entries(1, 1, &[1900]))).expect("written");
    write(&log, |b| b.append(3, &entries(1, 1, &[1000]))).expect("written");
    write(&log, |b| b.put(3, b"k", b"v")).expect("written");
    for round in 0..20 {
        fill(&log, 1, 6);
        write(&log, |b| b.put(4, b"gone", b"v")).expect("written");
        write(&log, |b| b.append(5, &entries(1, 1 + round, &[9, 9]))).expect("written");
        fill(&log, 1, 6);
        write(&log, |b| b.delete(4, b"gone")).expect("written");
        write(&log, |b| b.remove_group(5)).expect("written");
        let named = purge(&log);
        let blocking_groups: Vec<_> =
            named.blocking_groups.iter().map(|h| (h.group, h.entries, h.keys)).collect();
        assert_eq!(blocking_groups, [(2, true, false), (3, true, true)]);
        assert!(
            named.blocking_groups[0].bytes > 1900 && named.blocking_groups[1].bytes > 1000,
            "{named:?}"
        );
        assert_eq!((named.segments, named.rewritten_bytes), (0, 0), "round {round}");
        assert!(named.bytes > 10 * 3000, "round {round}: {named:?}");
        let stats = log.stats();
        assert!(stats.reduced_segments > 9 * (round + 1), "round {round}: {stats:?}");
        // The oldest, those that are not full or not sealed, and tombstones.
        let rest_bytes = stats.segment_bytes - 300 * stats.reduced_segments;
        assert!(rest_bytes < 5 * 4096, "round {round}: {stats:?}");
        if round % 4 == 3 {
            drop(log);
            disk.power_loss(round);
            log = open_with(&disk, config()).expect("it opens").0;
        }
        let sound = log.verify(VerifyLevel::Entries, &mut |_| {}).expect("read");
        assert!(sound.problems.is_empty(), "round {round}: {sound:?}");
        if log.stats().reduced_segments > 64 {
            break;
        }
        assert_eq!(read_all(&log, 2), entries(1, 1, &[1900]));
        assert_eq!(read_all(&log, 3), entries(1, 1, &[1000]));
        assert!(log.group(4).is_none() && log.group(5).is_none(), "round {round}");
        let last = log.group(1).expect("there").last_index();
        assert_eq!(log.group(1).expect("there").first_index(), last + 1);
    }
    // There are too many, and what is live in the oldest is moved after all.
    fill(&log, 1, 24);
    let freed = (0..2).map(|_| purge(&log)).collect::<Vec<_>>();
    assert!(freed.iter().any(|p| p.segments > 60 && p.rewritten_bytes > 2900), "{freed:?}");
    assert_eq!(log.stats().reduced_segments, 0);
    assert_eq!(read_all(&log, 2), entries(1, 1, &[1900]));
    assert_eq!(log.group(3).expect("there").get(b"k").expect("there"), "v");
    drop(log);
    let log = open_with(&disk, config()).expect("it opens").0;
    assert_eq!(read_all(&log, 3), entries(1, 1, &[1000]));
    assert!(log.group(4).is_none() && log.group(5).is_none());
}

#[test]
fn what_is_live_between_dead_segments_is_moved_and_they_are_reduced() {
    let disk = FaultFs::new(1);
    let config = || eager().move_live_ratio_max(0.5);
    let log = open_with(&disk, config()).expect("it opens").0;
    // Of the oldest much is live; behind it the records of an idle group lie here and there.
    write(&log, |b| b.append(2, &entries(1, 1, &[3000]))).expect("written");
    for index in 1..=5 {
        fill(&log, 1, 2);
        write(&log, |b| b.append(3, &entries(index, index, &[100, 100]))).expect("written");
        write(&log, |b| b.put(3, b"vote", &index.to_le_bytes())).expect("written");
    }
    fill(&log, 1, 2);
    let live_bytes = log.stats().live_bytes;
    let purged = purge(&log);
    assert!((600..2500).contains(&purged.rewritten_bytes), "{purged:?}");
    let stats = log.stats();
    assert!(stats.segment_bytes < 2 * live_bytes + 4 * 4096, "{stats:?}");
    let check = |log: &LogEngine| {
        let group = log.group(3).expect("there");
        assert_eq!(group.term_runs(), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
        assert_eq!(read_all(log, 3).len(), 6);
        assert_eq!(group.get(b"vote").expect("there"), 5_u64.to_le_bytes().as_slice());
        assert_eq!(read_all(log, 2), entries(1, 1, &[3000]));
        let sound = log.verify(VerifyLevel::Entries, &mut |_| {}).expect("read");
        assert!(sound.problems.is_empty(), "{sound:?}");
    };
    check(&log);
    drop(log);
    disk.power_loss(1);
    let log = open_with(&disk, config()).expect("it opens").0;
    assert!(log.stats().reduced_segments > 5);
    check(&log);
    // A copy has them as they are, and opens.
    let copy = FaultFs::new(2);
    log.checkpoint(&copy, Path::new(DIR), &mut |_| {}).expect("copied");
    check(&open_with(&copy, config()).expect("it opens").0);
    // A log that ends before the moves is damaged, however well it ends.
    drop(log);
    let names = disk.list(Path::new(DIR)).expect("listed");
    for name in names.iter().filter(|name| name.ends_with(".log")).skip(8) {
        disk.remove(&Path::new(DIR).join(name)).expect("removed");
    }
    let opened = open_with(&disk, config()).map(drop);
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
}

#[test]
fn damage_of_a_reduced_segment_is_found() {
    let disk = FaultFs::new(1);
    let config = || eager().move_live_ratio_max(0.5);
    let log = open_with(&disk, config()).expect("it opens").0;
    write(&log, |b| b.append(2, &entries(1, 1, &[3000]))).expect("written");
    write(&log, |b| b.put(3, b"gone", b"1")).expect("written");
    fill(&log, 1, 1);
    write(&log, |b| b.delete(3, b"gone")).expect("written");
    fill(&log, 1, 6);
    purge(&log);
    let reduced = log.stats().reduced_segments;
    assert!(reduced > 2, "{reduced}");
    drop(log);
    let path = crate::kit::segment_path(3);
    let bytes = disk.open(&path, OpenMode::Read).expect("there").len().expect("known");
    assert!(bytes < 1000, "{bytes}");
    for offset in 0..bytes {
        disk.flip_bit(&path, offset, 3);
        let opened = open_with(&disk, config()).map(drop);
        assert!(
            matches!(opened, Err(Error::Corrupt { .. } | Error::UnknownFormat { .. })),
            "{offset}: {opened:?}"
        );
        let report = LogEngine::verify_directory(
            Arc::new(disk.clone()),
            Path::new(DIR),
            VerifyLevel::Entries,
            &mut |_| {},
        );
        let report = report.expect("read");
        assert!(report.problems.iter().any(|problem| problem.segment == 3), "{offset}: {report:?}");
        disk.flip_bit(&path, offset, 3);
    }
    let log = open_with(&disk, config()).expect("it opens").0;
    assert!(log.group(3).is_none());
    drop(log);
    // A salvage keeps the tombstones of those that are whole.
    let last = disk.list(Path::new(DIR)).expect("listed");
    let last = last.iter().rfind(|name| name.starts_with('0')).expect("there is one").clone();
    disk.flip_bit(&Path::new(DIR).join(last), 64 + 50, 1);
    let salvaged = config().recovery(RecoveryMode::Salvage);
    let (log, report) = open_with(&disk, salvaged).expect("it opens");
    assert!(report.salvaged.is_some() && log.group(3).is_none(), "{report:?}");
    assert_eq!(read_all(&log, 2), entries(1, 1, &[3000]));
}

#[test]
fn what_is_needed_altogether_is_not_moved_round_and_round() {
    let disk = FaultFs::new(1);
    let config = eager().move_live_ratio_max(0.5);
    let log = open_with(&disk, config).expect("it opens").0;
    for index in 1..=6 {
        write(&log, |b| b.append(2, &entries(index, 1, &[3600]))).expect("written");
    }
    for _ in 0..30 {
        assert_eq!(purge(&log).rewritten_bytes, 0);
    }
    // Compaction of what was named is all it takes.
    write(&log, |b| b.compact_to(2, 6, 1)).expect("written");
    assert!(purge(&log).segments >= 4);
}

#[test]
fn damage_is_found_before_it_is_moved() {
    let disk = FaultFs::new(1);
    let log = open_with(&disk, eager()).expect("it opens").0;
    write(&log, |b| b.append(2, &entries(1, 3, &[100, 100]))).expect("written");
    fill(&log, 1, 3);
    // The group's number, behind the headers of segment and frame, the tag and the head's length.
    let path = crate::kit::segment_path(1);
    disk.flip_bit(&path, 64 + 40 + 5, 0);
    let corrupt = log.purge_expired_files();
    assert!(matches!(corrupt, Err(Error::Corrupt { segment: 1, offset: 104, .. })), "{corrupt:?}");
    disk.flip_bit(&path, 64 + 40 + 5, 0);
    // The term of both.
    disk.flip_bit(&path, 64 + 40 + 10, 0);
    assert!(matches!(log.purge_expired_files(), Err(Error::Corrupt { .. })));
    disk.flip_bit(&path, 64 + 40 + 10, 0);
    assert!(purge(&log).segments > 0);
    assert_eq!(read_all(&log, 2), entries(1, 3, &[100, 100]));
}
