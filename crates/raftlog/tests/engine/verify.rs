//! Every byte of a log is checked, and what is wrong is named.

use crate::kit::{
    DIR, batch, entries, entry, open_with, reopen, segment_path, small, squeezed, text_entry, write,
};
use crate::oracle::Oracle;
use flotilla_raftlog::{
    DumpLine, DumpOptions, Durability, Error, LogBatch, LogEngine, VerifyLevel, VerifyReport, dump,
};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn verify(disk: &FaultFs, level: VerifyLevel) -> VerifyReport {
    LogEngine::verify_directory(Arc::new(disk.clone()), Path::new(DIR), level, &mut |_| ())
        .expect("whatever is in the files, it is read")
}

fn segments(disk: &FaultFs) -> Vec<u64> {
    let names = disk.list(Path::new(DIR)).expect("listed");
    names.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect()
}

fn len(disk: &FaultFs, segment: u64) -> u64 {
    let file = disk.open(&segment_path(segment), OpenMode::Read).expect("there");
    file.len().expect("known")
}

fn bytes_at(disk: &FaultFs, segment: u64, offset: u64) -> [u8; 8] {
    let file = disk.open(&segment_path(segment), OpenMode::Read).expect("there");
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).expect("read");
    bytes
}

/// A closed log of several segments, with items of all kinds, compressed and not, one frame an item
/// or more, and, after purges, files that were used before.
fn closed() -> FaultFs {
    let disk = FaultFs::new(1);
    let (log, _) = open_with(&disk, squeezed()).expect("it opens");
    for index in 1..=8 {
        write(&log, |b| b.append(1, &[text_entry(index, 1, 900)])).expect("written");
        write(&log, |b| b.append(2, &entries(index, 2, &[500]))).expect("written");
        while log.maintain().expect("maintained") {}
    }
    write(&log, |b| {
        b.compact_to(1, 8, 1);
        b.compact_to(2, 8, 2);
        b.compact_to(2, 3, 1); // too late: a change that is none
    })
    .expect("written");
    assert!(log.purge_expired_files().expect("purged").segments >= 2);
    write(&log, |b| {
        b.append(1, &[text_entry(9, 1, 900), text_entry(10, 2, 900), entry(11, 2, 5)]);
        b.append(3, &entries(1, 1, &[40, 0, 40]));
        b.put(3, b"vote", b"7");
        b.put(3, b"gone", b"7");
    })
    .expect("written");
    write(&log, |b| {
        b.truncate_from(3, 3);
        b.delete(3, b"gone");
        b.append(4, &entries(5, 1, &[9]));
    })
    .expect("written");
    write(&log, |b| b.remove_group(4)).expect("written");
    for index in 9..=15 {
        write(&log, |b| b.append(2, &entries(index, 2, &[700]))).expect("written");
        while log.maintain().expect("maintained") {}
    }
    log.close().expect("closed");
    disk
}

#[test]
fn a_sound_log_has_no_problem_open_or_closed() {
    let disk = closed();
    for level in [VerifyLevel::Frames, VerifyLevel::Entries] {
        let mut looks = Vec::new();
        let fs = Arc::new(disk.clone());
        let look = &mut |progress| looks.push(progress);
        let report = LogEngine::verify_directory(fs, Path::new(DIR), level, look).expect("read");
        assert_eq!(report.problems, []);
        assert_eq!(report.segments, segments(&disk).len() as u64);
        assert_eq!(report.bytes, segments(&disk).iter().map(|s| len(&disk, *s)).sum::<u64>());
        assert!(report.frames > 10 && report.last_lsn > report.frames);
        assert_eq!(report.entries > 10, level == VerifyLevel::Entries);
        let last: flotilla_raftlog::ToolProgress = *looks.last().expect("it was called");
        assert_eq!((last.bytes_done, last.bytes), (report.bytes, report.bytes));
        assert!(looks.len() as u64 > report.segments);
        let log = reopen(&disk);
        assert_eq!(log.verify(level, &mut |_| ()).expect("read"), report);
    }
}

#[test]
fn every_flipped_byte_of_a_closed_log_is_named() {
    let disk = closed();
    assert!(segments(&disk).len() >= 3);
    let mut named = 0;
    for segment in segments(&disk) {
        for offset in 0..len(&disk, segment) {
            let bit = (offset * 5 % 8) as u8;
            disk.flip_bit(&segment_path(segment), offset, bit);
            let level = [VerifyLevel::Frames, VerifyLevel::Entries][offset as usize % 2];
            let report = verify(&disk, level);
            let hit =
                |p: &&flotilla_raftlog::VerifyProblem| p.segment == segment && p.offset <= offset;
            let problem = report.problems.iter().find(hit);
            let Some(problem) = problem else {
                panic!("segment {segment}, byte {offset}: {report:?}")
            };
            assert!(report.problems.len() < 6, "segment {segment}, byte {offset}: {report:?}");
            named += u64::from(problem.entries.is_some());
            disk.flip_bit(&segment_path(segment), offset, bit);
        }
    }
    assert!(named > 4000, "entries are named where data is damaged: {named}");
    assert_eq!(verify(&disk, VerifyLevel::Entries).problems, []);
}

#[test]
fn what_is_damaged_in_several_places_is_named_in_all() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    for index in 1..=10 {
        write(&log, |b| b.append(1, &entries(index, 1, &[850]))).expect("written");
    }
    log.close().expect("closed");
    for (segment, offset) in [(1, 500), (1, 2500), (2, 500)] {
        disk.flip_bit(&segment_path(segment), offset, 1);
    }
    let report = verify(&disk, VerifyLevel::Entries);
    let found: Vec<_> = report.problems.iter().map(|p| (p.segment, p.entries.clone())).collect();
    assert_eq!(found, [(1, Some(1..2)), (1, Some(3..4)), (2, Some(5..6))]);
    assert!(report.problems.iter().all(|problem| problem.group == Some(1)));
    assert_eq!((report.frames, report.entries, report.torn_bytes), (7, 7, 0));
}

#[test]
fn missing_segments_and_other_versions_are_named() {
    let disk = closed();
    let all = segments(&disk);
    for missing in all.iter().copied() {
        let disk = closed();
        disk.remove(&segment_path(missing)).expect("removed");
        let report = verify(&disk, VerifyLevel::Frames);
        if missing == *all.last().expect("some") {
            // The rest does not show it, if no purge names it.
            continue;
        }
        assert_eq!(report.problems.len(), 1, "{missing} of {all:?}: {report:?}");
        assert_eq!(report.problems[0].segment, missing);
        assert!(report.problems[0].what.contains("missing"));
    }
    let file = disk.open(&segment_path(all[1]), OpenMode::Write).expect("there");
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).expect("read");
    header[8] = 9;
    let checksum = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&checksum.to_le_bytes());
    file.write_at(&header, 0).expect("written");
    let report = verify(&disk, VerifyLevel::Frames);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].what.contains("version"));
    let nothing = LogEngine::verify_directory(
        Arc::new(disk),
        Path::new("/elsewhere"),
        VerifyLevel::Frames,
        &mut |_| (),
    );
    assert!(matches!(nothing, Err(Error::NoLog { .. })));
}

/// All that a dump tells, entries included.
fn dump_all(disk: &FaultFs) -> String {
    let (mut told, options) = (String::new(), DumpOptions { group: None, entries: true });
    let mut take = |dumped: DumpLine<'_>| {
        told.push_str(&format!("{dumped:?}\n"));
        ControlFlow::Continue(())
    };
    dump(Arc::new(disk.clone()), Path::new(DIR), options, &mut take).expect("it is read");
    told
}

#[test]
fn all_kinds_of_changes_are_dumped_and_damage_among_them() {
    let disk = closed();
    let told = dump_all(&disk);
    for kind in [
        "Batch", "Append", "Entry", "Truncate", "Compact", "Put", "Delete", "Remove", "Discard",
        "Stale", "Footer",
    ] {
        assert!(told.contains(&format!("record: {kind}")), "{kind} is missing");
    }
    assert!(!told.contains("Damaged") && !told.contains("Err("));
    let last = *segments(&disk).last().expect("some");
    disk.flip_bit(&segment_path(last), 400, 1);
    let damaged = dump_all(&disk);
    assert!(damaged.contains("Damaged") && damaged.lines().count() < told.lines().count());
}

#[test]
fn garbage_is_named_and_never_a_panic() {
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..300 {
        let disk = closed();
        for _ in 0..rng.usize(1..4) {
            let segment = *rng.choice(&segments(&disk)).expect("some");
            let file = disk.open(&segment_path(segment), OpenMode::Write).expect("there");
            let len = file.len().expect("known");
            let at = rng.u64(..len);
            let mut bytes = vec![0; rng.usize(1..600)];
            match rng.u8(..4) {
                0 => rng.fill(&mut bytes),
                1 => {}
                2 => {
                    // Bytes of the log itself, somewhere else.
                    let from = disk.open(&segment_path(segment), OpenMode::Read).expect("there");
                    let begin = rng.u64(..len) / 8 * 8;
                    bytes.truncate((len - begin) as usize);
                    from.read_exact_at(&mut bytes, begin).expect("read");
                }
                _ => {
                    file.set_len(at).expect("cut");
                    continue;
                }
            }
            file.write_at(&bytes, if rng.bool() { at / 8 * 8 } else { at }).expect("written");
        }
        let report = verify(&disk, VerifyLevel::Entries);
        let dumped = dump_all(&disk);
        assert!(dumped.contains("Batch") || dumped.contains("Damaged"), "round {round}");
        let opened = open_with(&disk, squeezed());
        assert!(
            !report.problems.is_empty() || opened.is_ok(),
            "round {round}: {opened:?} although nothing is wrong: {report:?}"
        );
    }
}

#[test]
fn what_a_crash_leaves_is_no_problem() {
    for seed in 0..150 {
        let disk = FaultFs::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (log, mut oracle) = (reopen(&disk), Oracle::default());
        disk.cut_power_after(rng.u64(5..120));
        for _ in 0..60 {
            let synced = if rng.bool() { Durability::Synced } else { Durability::Buffered };
            let change: LogBatch = oracle.change(&mut rng);
            if change.is_empty() {
                continue;
            }
            if log.write(change, synced).wait().is_err() || log.maintain().is_err() {
                break;
            }
            if rng.u8(..10) == 0 && log.purge_expired_files().is_err() {
                break;
            }
        }
        drop(log);
        disk.power_loss(seed);
        let mut report = verify(&disk, VerifyLevel::Entries);
        // A footer is not synced; in a file that was used before rot of it looks the same.
        report.problems.retain(|problem| !problem.what.contains("the footer"));
        assert_eq!(report.problems, [], "seed {seed}");
        let (log, recovered) = open_with(&disk, small()).expect("it opens");
        assert_eq!(report.last_lsn, recovered.last_lsn, "seed {seed}");
        assert_eq!(log.verify(VerifyLevel::Entries, &mut |_| ()).expect("read").problems, []);
    }
}

#[test]
fn an_open_log_is_verified_while_it_is_written() {
    let disk = FaultFs::new(1);
    let config = small().spare_segments(0);
    let (log, _) = open_with(&disk, config).expect("it opens");
    for index in 1..=9 {
        write(&log, |b| b.append(1, &entries(index, 1, &[850]))).expect("written");
    }
    let (writer, mut next) = (log.clone(), 10);
    let mut meddle = |_| {
        // Between any two segments others are filled, sealed, and the oldest purged.
        for _ in 0..6 {
            let more = batch(|b| b.append(1, &entries(next, 1, &[850])));
            writer.write(more, Durability::Buffered).wait().expect("written");
            next += 1;
        }
        while writer.maintain().expect("maintained") {}
        write(&writer, |b| b.compact_to(1, next - 1, 1)).expect("written");
        writer.purge_expired_files().expect("purged");
    };
    let report = log.verify(VerifyLevel::Entries, &mut meddle).expect("read");
    assert_eq!((report.problems, report.frames, report.last_lsn), (vec![], 9, 9));
    // Also what is not synced, in the newest segment, must be there.
    let has_frames = |segment: &u64| bytes_at(&disk, *segment, 64) != [0; 8];
    let last = segments(&disk).into_iter().rfind(has_frames).expect("some");
    disk.flip_bit(&segment_path(last), 300, 3);
    let report = log.verify(VerifyLevel::Entries, &mut |_| ()).expect("read");
    assert!(report.problems.iter().any(|problem| problem.segment == last), "{report:?}");
    disk.flip_bit(&segment_path(last), 300, 3);
    assert_eq!(log.verify(VerifyLevel::Entries, &mut |_| ()).expect("read").problems, []);
    let file = disk.open(&segment_path(last), OpenMode::Write).expect("there");
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("a frame") as u64 + 1;
    write(&log, |b| b.delete(7, b"none")).expect("written");
    file.write_at(&[0; 64], used).expect("written");
    let report = log.verify(VerifyLevel::Frames, &mut |_| ()).expect("read");
    let lost: Vec<_> = report.problems.iter().map(|p| (p.segment, p.offset)).collect();
    assert_eq!(lost, [(last, used)], "zeros where a frame was written");
}
