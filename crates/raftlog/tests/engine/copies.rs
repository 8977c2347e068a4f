//! Copies of a log: of all of it while it is written, of what is whole of it, and as a stream.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, of which there is one")]

use crate::kit::{
    DIR, batch, entries, entry, moving, open_with, random_entry, read_all, reopen, segment_path,
    small, squeezed, text_entry, write,
};
use crate::oracle::Oracle;
use flotilla_raftlog::{
    Durability, Entry, Error, LogEngine, SalvageReport, SalvagedGroup, VerifyLevel,
};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const COPY: &str = "/copy";

/// The visible state of a group: bounds, the term before, keys, entries.
#[derive(Debug, PartialEq)]
struct Seen {
    first: u64,
    last: u64,
    term_before: Option<u64>,
    keys: Vec<(bytes::Bytes, bytes::Bytes)>,
    entries: Vec<Entry>,
}

fn seen(log: &LogEngine) -> BTreeMap<u64, Seen> {
    let look = |id| {
        let group = log.group(id).expect("listed");
        let (first, last) = (group.first_index(), group.last_index());
        let term_before = group.term(first - 1).ok();
        let (keys, entries) = (group.scan(), read_all(log, id));
        (id, Seen { first, last, term_before, keys, entries })
    };
    log.group_ids().into_iter().map(look).collect()
}

fn open_copy(disk: &FaultFs) -> Result<LogEngine, Error> {
    LogEngine::open_with(Arc::new(disk.clone()), Path::new(COPY), small()).map(|(log, _)| log)
}

/// A log with a purged beginning, groups of all kinds, and a batch that is not synced.
fn varied(disk: &FaultFs) -> LogEngine {
    let (log, _) = open_with(disk, squeezed()).expect("it opens");
    for index in 1..=10 {
        write(&log, |b| b.append(1, &[text_entry(index, 1, 900)])).expect("written");
        write(&log, |b| b.append(2, &entries(index, 2, &[500]))).expect("written");
        while log.maintain().expect("maintained") {}
    }
    write(&log, |b| {
        b.compact_to(1, 9, 1);
        b.compact_to(2, 8, 2);
        b.append(3, &entries(5, 1, &[40, 0, 40]));
        b.put(3, b"vote", b"7");
        b.put(4, b"only a key", b"");
        b.compact_to(5, 77, 6);
    })
    .expect("written");
    log.purge_expired_files().expect("purged");
    let last = batch(|b| b.append(3, &[text_entry(8, 2, 2000), entry(9, 2, 5)]));
    log.write(last, Durability::Buffered).wait().expect("written");
    log
}

#[test]
fn a_checkpoint_is_the_log_of_one_moment_while_it_goes_on() {
    let disk = FaultFs::new(1);
    let log = varied(&disk);
    let before = seen(&log);
    let (writer, mut next, mut looks) = (log.clone(), 10, 0);
    let mut meddle = |_| {
        // Others are written, sealed, and purged; what is copied must not be used again.
        looks += 1;
        write(&writer, |b| b.put(8, b"soon", b"")).expect("it fits into the newest segment");
        for _ in 0..6 {
            next += 1;
            write(&writer, |b| b.append(2, &[random_entry(next, 3, 850)])).expect("written");
            write(&writer, |b| b.append(1, &entries(next, 3, &[50]))).expect("written");
            while writer.maintain().expect("maintained") {}
        }
        write(&writer, |b| {
            b.compact_to(1, next, 3);
            b.compact_to(2, next, 3);
            b.remove_group(3);
            b.remove_group(4);
            b.remove_group(5);
        })
        .expect("written");
        writer.purge_expired_files().expect("purged");
    };
    let made = log.checkpoint(&disk, Path::new(COPY), &mut meddle).expect("copied");
    assert!(looks > 2 && made.segments > 1 && made.bytes > 4096, "{made:?}");
    assert!(made.last_lsn < write(&log, |b| b.put(9, b"k", b"")).expect("written"));
    // All of it is durable, also what was not in the log itself.
    disk.power_loss(1);
    let copy = open_copy(&disk).expect("it opens");
    assert_eq!(seen(&copy), before);
    assert_eq!(copy.verify(VerifyLevel::Entries, &mut |_| ()).expect("read").problems, []);
    write(&copy, |b| b.append(1, &entries(11, 4, &[10]))).expect("it can be written");
}

#[test]
fn a_checkpoint_that_is_cut_short_does_not_open() {
    let mut operations = 0;
    for cut in 1.. {
        let disk = FaultFs::new(cut);
        let log = varied(&disk);
        let before = seen(&log);
        disk.cut_power_after(cut);
        let made = log.checkpoint(&disk, Path::new(COPY), &mut |_| ());
        drop(log);
        disk.power_loss(cut);
        match open_copy(&disk) {
            Ok(copy) if copy.group_ids().is_empty() => {
                assert!(made.is_err(), "an empty directory after {cut}");
            }
            Ok(copy) => assert_eq!(seen(&copy), before, "cut after {cut}"),
            Err(Error::Corrupt { what, .. }) => {
                // The oldest is missing, or a later one that was not synced is seen to be torn
                // first.
                let is_told = ["the segment is missing", "the segment's header fails its checksum"];
                assert!(made.is_err() && is_told.contains(&what), "cut after {cut}: {what}");
            }
            Err(other) => panic!("cut after {cut}: {other}"),
        }
        if made.is_ok() {
            break;
        }
        operations = cut;
    }
    assert!(operations > 10);
}

#[test]
fn a_checkpoint_copies_no_damage_and_overwrites_nothing() {
    let disk = FaultFs::new(1);
    let log = varied(&disk);
    let path = segment_path(log.segments().expect("listed")[0].number);
    disk.flip_bit(&path, 300, 1);
    let damaged = log.checkpoint(&disk, Path::new(COPY), &mut |_| ());
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
    disk.flip_bit(&path, 300, 1);
    log.checkpoint(&disk, Path::new(COPY), &mut |_| ()).expect("nothing was left in the way");
    let again = log.checkpoint(&disk, Path::new(COPY), &mut |_| ());
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");

    let disk = FaultFs::new(1);
    let made = reopen(&disk).checkpoint(&disk, Path::new(COPY), &mut |_| ()).expect("copied");
    assert_eq!((made.segments, made.last_lsn), (0, 0));
    let (copy, _) =
        LogEngine::open_read_only(Arc::new(disk.clone()), Path::new(COPY), small()).expect("a log");
    assert!(copy.group_ids().is_empty());
}

#[test]
fn a_log_that_is_only_looked_at_is_copied_too() {
    let disk = FaultFs::new(1);
    let log = varied(&disk);
    let (look, _) =
        LogEngine::open_read_only(Arc::new(disk.clone()), Path::new(DIR), small()).expect("seen");
    write(&log, |b| b.put(1, b"later", b"")).expect("written");
    let before = seen(&look);
    look.checkpoint(&disk, Path::new(COPY), &mut |_| ()).expect("copied");
    assert_eq!(seen(&open_copy(&disk).expect("it opens")), before);
}

fn salvage(disk: &FaultFs) -> SalvageReport {
    flotilla_raftlog::salvage(Arc::new(disk.clone()), Path::new(DIR), Path::new(COPY), &mut |_| ())
        .expect("it is salvaged")
}

#[test]
fn a_sound_log_is_salvaged_whole() {
    for close in [true, false] {
        let disk = FaultFs::new(1);
        let log = varied(&disk);
        let before = seen(&log);
        if close {
            log.close().expect("closed");
        }
        drop(log);
        let report = salvage(&disk);
        assert_eq!((report.problems.len(), report.damaged_groups.len()), (0, 0), "{report:?}");
        assert_eq!((report.groups, report.keys, report.lost_batches.len()), (5, 2, 0));
        assert_eq!(seen(&open_copy(&disk).expect("it opens")), before);
    }
}

#[test]
fn logs_of_all_shapes_are_sound_and_copied_as_they_are() {
    let mut moved = 0;
    for seed in 0..40 {
        let disk = FaultFs::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let ((log, _), mut oracle) =
            (open_with(&disk, moving()).expect("it opens"), Oracle::default());
        for _ in 0..150 {
            let change = oracle.change(&mut rng);
            if !change.is_empty() {
                log.write(change, Durability::Buffered).wait().expect("written");
            }
            if rng.u8(..8) == 0 {
                log.purge_expired_files().expect("purged");
            }
            if rng.bool() {
                log.maintain().expect("maintained");
            }
        }
        log.sync().wait().expect("synced");
        oracle.check(&log);
        moved += log.stats().purge.rewritten_records;
        let before = seen(&log);
        let report = log.verify(VerifyLevel::Entries, &mut |_| ()).expect("read");
        assert_eq!(report.problems, [], "seed {seed}");
        log.checkpoint(&disk, Path::new(COPY), &mut |_| ()).expect("copied");
        assert_eq!(seen(&open_copy(&disk).expect("it opens")), before, "seed {seed}");
        let stream = export(&log, None);
        drop(log);
        let salvaged = flotilla_raftlog::salvage(
            Arc::new(disk.clone()),
            Path::new(DIR),
            Path::new("/salvaged"),
            &mut |_| (),
        );
        assert_eq!(salvaged.expect("salvaged").damaged_groups, [], "seed {seed}");
        let salvaged =
            LogEngine::open_with(Arc::new(disk.clone()), Path::new("/salvaged"), small());
        assert_eq!(seen(&salvaged.expect("it opens").0), before, "seed {seed}");
        let imported =
            LogEngine::open_with(Arc::new(disk.clone()), Path::new("/imported"), small());
        let (imported, _) = imported.expect("made");
        import(&imported, &stream).expect("imported");
        assert_eq!(seen(&imported), before, "seed {seed}");
    }
    assert!(moved > 100, "{moved} records were moved");
}

/// Ten entries of 850 bytes in group 1, four to a segment, and one each in group 2.
fn ten() -> FaultFs {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    for index in 1..=10 {
        write(&log, |b| b.append(1, &entries(index, 1, &[750]))).expect("written");
        if index == 1 {
            write(&log, |b| {
                b.append(2, &entries(1, 1, &[5]));
                b.put(2, b"k", b"v");
            })
            .expect("written");
        }
        if index == 9 {
            write(&log, |b| b.append(2, &entries(2, 1, &[5]))).expect("written");
        }
    }
    log.close().expect("closed");
    disk
}

#[test]
fn the_newest_part_without_a_hole_is_kept() {
    let disk = ten();
    // Entry 1 is at 100 or so, its batch followed by that of group 2; entry 6 lies in segment 2.
    disk.flip_bit(&segment_path(2), 1500, 1);
    let report = salvage(&disk);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    let lost = report.problems[0].entries.clone().expect("it is named");
    assert!(lost == (6..7) || lost == (7..8) || lost == (5..6), "{lost:?}");
    let joined = SalvagedGroup { group: 2, kept: 1..3, is_joined: true, ..Default::default() };
    let holed = SalvagedGroup {
        group: 1,
        kept: lost.end..11,
        lost: vec![lost.clone()],
        left_behind: vec![1..lost.start],
        is_joined: false,
    };
    assert_eq!(report.damaged_groups, [holed, joined]);
    let batch = lost.start + 1;
    assert_eq!(report.lost_batches, [batch..batch + 1]);
    let copy = open_copy(&disk).expect("it opens");
    assert_eq!(read_all(&copy, 1), entries(lost.end, 1, &vec![750; 11 - lost.end as usize]));
    assert_eq!(read_all(&copy, 2), entries(1, 1, &[5, 5]));
    assert!(copy.group(1).expect("there").term(lost.end - 1).is_err(), "nobody knows that term");
}

#[test]
fn every_flipped_byte_costs_at_most_what_it_hit() {
    let whole = 12;
    let disk = ten();
    let segments = disk.list(Path::new(DIR)).expect("listed").len() as u64 - 1;
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..400 {
        let disk = ten();
        let segment = rng.u64(1..=segments);
        let path = segment_path(segment);
        let len = disk.open(&path, OpenMode::Read).and_then(|file| file.len()).unwrap_or(0);
        if len == 0 {
            continue;
        }
        let offset = rng.u64(..len);
        disk.flip_bit(&path, offset, rng.u8(..8));
        let report = salvage(&disk);
        assert!(!report.problems.is_empty(), "segment {segment}, byte {offset}");
        let left: u64 = report
            .damaged_groups
            .iter()
            .flat_map(|g| &g.left_behind)
            .map(|r| r.end - r.start)
            .sum();
        // A salt that is wrong takes all frames of its segment along.
        let lost = whole - report.entries - left;
        assert!(lost <= 1 || offset < 64, "segment {segment}, byte {offset}: {report:?}");
        let copy = open_copy(&disk).expect("it opens");
        for id in copy.group_ids() {
            for read in read_all(&copy, id) {
                let len = if id == 1 { 750 } else { 5 };
                assert_eq!(read, entry(read.index, 1, len));
            }
        }
    }
}

#[test]
fn what_lies_behind_a_torn_flush_is_not_taken_for_the_log() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(1, 1, &[850]))).expect("written");
    for index in 2..=3 {
        let more = batch(|b| b.append(1, &entries(index, 1, &[850])));
        log.write(more, Durability::Buffered).wait().expect("written");
    }
    drop(log);
    let file = disk.open(&segment_path(1), OpenMode::Write).expect("there");
    file.write_at(&[0; 512], 1024).expect("the second is torn, the third whole");
    let report = salvage(&disk);
    assert_eq!((report.entries, report.problems.len(), report.damaged_groups.len()), (1, 0, 0));
    assert!(report.torn_bytes > 800);
    assert_eq!(seen(&open_copy(&disk).expect("it opens")), seen(&reopen(&disk)));
}

#[test]
fn missing_segments_leave_holes_and_a_torn_tail_is_none() {
    let disk = ten();
    disk.remove(&segment_path(2)).expect("removed");
    let report = salvage(&disk);
    let holed = &report.damaged_groups[0];
    assert_eq!((holed.group, holed.kept.end, holed.lost.len()), (1, 11, 1), "{report:?}");
    assert!(holed.left_behind[0].start == 1 && holed.lost[0].start == holed.left_behind[0].end);

    let disk = FaultFs::new(3);
    let log = varied(&disk);
    let torn = batch(|b| b.append(1, &[entry(11, 1, 3000), entry(12, 1, 3000)]));
    log.write(torn, Durability::Buffered).wait().expect("written");
    drop(log);
    for seed in 0..20 {
        disk.power_loss(seed);
    }
    let report = salvage(&disk);
    assert_eq!((report.problems.len(), report.damaged_groups.len()), (0, 0), "{report:?}");
    let (log, _) = open_with(&disk, small()).expect("it opens");
    assert_eq!(seen(&open_copy(&disk).expect("it opens")), seen(&log));
}

fn export(log: &LogEngine, groups: Option<&[u64]>) -> Vec<u8> {
    let mut stream = Vec::new();
    let done = flotilla_raftlog::export(log, groups, &mut stream, &mut |_| ()).expect("exported");
    assert_eq!(done.bytes, stream.len() as u64);
    stream
}

fn import(log: &LogEngine, stream: &[u8]) -> Result<flotilla_raftlog::Exported, Error> {
    flotilla_raftlog::import(log, &mut &stream[..], &mut |_| ())
}

#[test]
fn groups_go_through_a_stream_as_they_are() {
    let disk = FaultFs::new(1);
    let log = varied(&disk);
    let stream = export(&log, None);
    assert_eq!(stream[..12], *b"flotexpo\x01\0\0\0");
    let copy = open_copy(&disk).expect("made");
    let done = import(&copy, &stream).expect("imported");
    assert_eq!((done.groups, done.keys, done.bytes), (5, 2, stream.len() as u64));
    assert_eq!(seen(&copy), seen(&log));
    drop(copy);
    disk.power_loss(1);
    let copy = open_copy(&disk).expect("it opens");
    assert_eq!(copy.group_ids(), [1, 2, 3, 4, 5], "what was imported is durable");
    assert_eq!(export(&copy, None), stream, "and the same again");

    let other = FaultFs::new(1);
    let some = open_copy(&other).expect("made");
    import(&some, &export(&copy, Some(&[3, 5]))).expect("imported");
    assert_eq!(some.group_ids(), [3, 5]);
    let exists = import(&some, &export(&copy, Some(&[2, 3])));
    assert!(matches!(exists, Err(Error::GroupExists { group: 3 })), "{exists:?}");
    assert_eq!(some.group_ids(), [2, 3, 5], "what was complete before is there");
    let none = flotilla_raftlog::export(&copy, Some(&[3, 9]), &mut Vec::new(), &mut |_| ());
    assert!(matches!(none, Err(Error::NoGroup { group: 9 })), "{none:?}");
}

#[test]
fn a_stream_that_is_damaged_anywhere_is_refused_and_leaves_no_half_group() {
    let disk = FaultFs::new(1);
    let log = varied(&disk);
    let (stream, whole) = (export(&log, None), seen(&log));
    let check = |stream: &[u8], place: &str| {
        let disk = FaultFs::new(1);
        let config = small().spare_segments(0);
        let (copy, _) =
            LogEngine::open_with(Arc::new(disk.clone()), Path::new(COPY), config).expect("made");
        match import(&copy, stream) {
            Err(Error::Stream { offset, .. }) => {
                assert!(offset <= stream.len() as u64, "{place}");
            }
            other => panic!("{place}: {other:?}"),
        }
        for (id, group) in seen(&copy) {
            assert_eq!(whole.get(&id), Some(&group), "{place}");
        }
    };
    for at in (0..stream.len()).step_by(13).chain(0..60) {
        let mut wrong = stream.clone();
        wrong[at] ^= 1 << (at % 8);
        check(&wrong, &format!("byte {at} is wrong"));
        check(&stream[..at], &format!("cut at {at}"));
    }
    check(&[&stream[..], b"x"].concat(), "something follows");
    // A key that comes twice is whole both times.
    let (mut at, mut keys) = (12, Vec::new());
    while at < stream.len() {
        let len = u32::from_le_bytes(stream[at + 1..at + 5].try_into().expect("four bytes"));
        let end = at + 9 + len as usize;
        if stream[at] == 2 {
            keys.push(at..end);
        }
        at = end;
    }
    let key = keys.pop().expect("there are keys");
    check(&[&stream[..key.end], &stream[key.start..]].concat(), "a record is doubled");
}
