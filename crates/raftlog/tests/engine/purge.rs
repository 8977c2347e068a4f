//! Live records of old segments are rewritten, so that the segments can go.

use crate::kit::{DIR, entries, open_with, random_entry, read_all, small, text_entry, write};
use flotilla_raftlog::{Config, Entry, Error, LogEngine, PurgeReport};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use std::path::Path;

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
    let excess = log.stats().segment_bytes - 4096;
    let mut calls = 0;
    while log.stats().segments > 2 {
        let purged = purge(&log);
        // One step more than the budget, at most.
        assert!(purged.rewritten_bytes <= 400 + 512, "{purged:?}");
        assert_eq!(purged.excess_bytes > 0, log.stats().segments > 1, "{purged:?}");
        assert!(purged.excess_bytes <= excess, "{purged:?}");
        calls += 1;
    }
    assert!((4..10).contains(&calls), "{calls} calls");
    assert_eq!(read_all(&log, 2), entries(1, 1, &[100; 20]));
}

#[test]
fn a_segment_that_is_much_needed_is_named_and_moved_once_that_was_in_vain() {
    let disk = FaultFs::new(1);
    let config = eager().move_live_ratio_max(0.5);
    let log = open_with(&disk, config).expect("it opens").0;
    write(&log, |b| b.append(2, &entries(1, 1, &[1900]))).expect("written");
    write(&log, |b| b.append(3, &entries(1, 1, &[1000]))).expect("written");
    write(&log, |b| b.put(3, b"k", b"v")).expect("written");
    fill(&log, 1, 6);
    let named = purge(&log);
    let blocking_groups: Vec<_> =
        named.blocking_groups.iter().map(|h| (h.group, h.entries, h.keys)).collect();
    assert_eq!((named.segments, named.rewritten_bytes), (0, 0));
    assert_eq!(blocking_groups, [(2, true, false), (3, true, true)]);
    assert!(
        named.blocking_groups[0].bytes > 1900 && named.blocking_groups[1].bytes > 1000,
        "{named:?}"
    );
    for _ in 0..5 {
        assert_eq!(purge(&log), named);
    }
    // Something was let go, so it was not in vain; but it is still too much.
    write(&log, |b| b.delete(3, b"k")).expect("written");
    for _ in 0..8 {
        assert_eq!(purge(&log).segments, 0);
    }
    let forced = purge(&log);
    assert!(forced.segments >= 5 && forced.rewritten_bytes > 2900, "{forced:?}");
    assert_eq!(read_all(&log, 2), entries(1, 1, &[1900]));
    assert_eq!(read_all(&log, 3), entries(1, 1, &[1000]));
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
