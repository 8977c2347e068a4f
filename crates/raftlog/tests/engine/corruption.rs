//! Damage is told from a torn tail: what was synced is either there as it was, or an error.

use crate::kit::{
    DIR, batch, entries, open, open_with, read_all, reopen, segment_path, small, write,
};
use flotilla_raftlog::{Durability, Error, LogEngine, RecoveryMode};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::path::Path;

/// Where the frames of a log with three segments end: entries of 850 bytes, four to a segment.
fn three_segments() -> FaultFs {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    for index in 1..=10 {
        write(&log, |b| b.append(1, &entries(index, 1, &[850]))).expect("written");
    }
    assert_eq!(log.stats().segments, 3);
    disk
}

fn bytes_of(disk: &FaultFs, segment: u64) -> Vec<u8> {
    let file = disk.open(&segment_path(segment), OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("it has one") as usize];
    file.read_exact_at(&mut bytes, 0).expect("it can be read");
    bytes
}

fn used_bytes(disk: &FaultFs, segment: u64) -> u64 {
    let last = bytes_of(disk, segment).iter().rposition(|byte| *byte != 0);
    last.expect("there is a header") as u64 + 1
}

/// Sets bytes on the medium.
fn overwrite(disk: &FaultFs, segment: u64, offset: u64, data: &[u8]) {
    let file = disk.open(&segment_path(segment), OpenMode::Write).expect("it is there");
    file.write_at(data, offset).expect("written");
    file.sync().expect("synced");
}

#[test]
fn any_flipped_byte_of_synced_frames_is_corruption() {
    let disk = three_segments();
    for segment in 1..=3 {
        for offset in 0..used_bytes(&disk, segment) {
            let bit = (offset % 8) as u8;
            disk.flip_bit(&segment_path(segment), offset, bit);
            match open(&disk) {
                Err(Error::Corrupt { segment: found, .. }) => assert_eq!(found, segment),
                other => panic!("segment {segment}, byte {offset}: {other:?}"),
            }
            disk.flip_bit(&segment_path(segment), offset, bit);
        }
    }
    assert_eq!(read_all(&reopen(&disk), 1).len(), 10, "opening what is corrupt changed nothing");
}

#[test]
fn a_flipped_byte_behind_the_last_frame_is_cut_off() {
    let disk = three_segments();
    // Nothing can be told apart there: such bytes look like a flush that was torn.
    let end = used_bytes(&disk, 3);
    disk.flip_bit(&segment_path(3), end + 700, 1);
    let (log, report) = open(&disk).expect("it opens");
    assert!(report.torn_bytes > 600);
    assert_eq!(read_all(&log, 1).len(), 10);
}

#[test]
fn an_entry_that_rots_while_the_log_is_open_is_not_read() {
    let disk = three_segments();
    let log = reopen(&disk);
    let group = log.group(1).expect("there");
    for offset in (64..used_bytes(&disk, 1)).step_by(7) {
        disk.flip_bit(&segment_path(1), offset, 3);
        // Frame headers and padding are not looked at by a read; entries never come back changed.
        match group.entries(1..5, u64::MAX) {
            Ok(read) => assert_eq!(read, entries(1, 1, &[850; 4])),
            Err(Error::Corrupt { segment: 1, .. }) => {}
            Err(other) => panic!("{other}"),
        }
        disk.flip_bit(&segment_path(1), offset, 3);
    }
    disk.flip_bit(&segment_path(1), 500, 3);
    assert!(matches!(group.entries(1..2, u64::MAX), Err(Error::Corrupt { .. })));
    assert_eq!(group.entries(2..5, u64::MAX).expect("the others are whole").len(), 3);
}

#[test]
fn missing_segments_are_corruption() {
    for missing in 1..=2 {
        let disk = three_segments();
        disk.remove(&segment_path(missing)).expect("removed");
        match open(&disk) {
            Err(Error::Corrupt { segment, .. }) => assert_eq!(segment, missing),
            other => panic!("{other:?}"),
        }
    }
    let disk = three_segments();
    disk.rename(&segment_path(1), &segment_path(2)).expect("renamed");
    assert!(matches!(open(&disk), Err(Error::Corrupt { .. })), "a segment under a wrong name");
}

#[test]
fn a_purged_segment_may_be_missing_and_an_older_one_left_over() {
    let disk = three_segments();
    let first = bytes_of(&disk, 1);
    let log = reopen(&disk);
    write(&log, |b| b.compact_to(1, 10, 1)).expect("written");
    assert_eq!(log.purge_expired_files().expect("purged").segments, 2);
    drop(log);
    // As if the removal of the second had come to the disk, and that of the first had not.
    let file = disk.open(&segment_path(1), OpenMode::CreateNew).expect("made");
    file.write_at(&first, 0).expect("written");
    let (log, report) = open(&disk).expect("it opens");
    assert_eq!((report.segments, report.discarded_segments), (2, 1));
    assert_eq!(read_all(&log, 1), entries(10, 1, &[850]));
    assert!(disk.open(&segment_path(1), OpenMode::Read).is_err(), "it was removed");
}

#[test]
fn a_shortened_segment_is_corruption() {
    let disk = three_segments();
    let (bytes, end) = (bytes_of(&disk, 2), used_bytes(&disk, 2).next_multiple_of(8));
    let file = disk.open(&segment_path(2), OpenMode::Write).expect("there");
    let is_corrupt = || matches!(open(&disk), Err(Error::Corrupt { segment: 2, .. }));
    for cut in [1, 8, 900, end - 100, end - 64, end - 10] {
        file.set_len(end - cut).expect("cut");
        assert!(is_corrupt(), "{cut} bytes cut");
        file.set_len(bytes.len() as u64).expect("grown");
        assert!(is_corrupt(), "{cut} bytes zero");
        file.write_at(&bytes, 0).expect("mended");
    }
    assert!(open(&disk).is_ok());
}

#[test]
fn what_stands_behind_the_frames_of_a_full_segment_means_nothing() {
    let disk = three_segments();
    let end = used_bytes(&disk, 2).next_multiple_of(8);
    overwrite(&disk, 2, end, &[7; 100]);
    let (log, report) = open(&disk).expect("the log goes on in the next segment");
    assert_eq!((read_all(&log, 1).len(), report.torn_bytes), (10, 0));
}

#[test]
fn a_zeroed_frame_before_others_is_corruption_only_if_it_was_synced() {
    // Each frame takes 960 bytes or so; the second of three is lost as a whole.
    let frames = |durability: Durability| {
        let disk = FaultFs::new(1);
        let log = reopen(&disk);
        let mut ends = Vec::new();
        for index in 1..=3 {
            let batch = batch(|b| b.append(1, &entries(index, 1, &[900])));
            log.write(batch, durability).wait().expect("written");
            ends.push(used_bytes(&disk, 1).next_multiple_of(8));
        }
        drop(log);
        overwrite(&disk, 1, ends[0], &vec![0; (ends[1] - ends[0]) as usize]);
        disk
    };
    assert!(matches!(open(&frames(Durability::Synced)), Err(Error::Corrupt { segment: 1, .. })));
    let disk = frames(Durability::Buffered);
    let (log, report) = open(&disk).expect("the second flush was torn, the third is no proof");
    assert_eq!(read_all(&log, 1).len(), 1);
    assert!(report.torn_bytes > 900);
    // The third frame is still of the size and at the place at which it would be read again.
    write(&log, |b| b.append(1, &entries(2, 7, &[900]))).expect("written");
    drop(log);
    assert_eq!(read_all(&reopen(&disk), 1).len(), 2);
}

#[test]
fn data_that_looks_like_a_frame_is_not_taken_for_one() {
    // A log under one salt, copied as data into another, whose tail is then torn.
    let inner = three_segments();
    let copy = bytes_of(&inner, 1);
    let disk = FaultFs::new(1);
    let config = small().salt(Some(43)).segment_bytes(1 << 16);
    let open =
        || LogEngine::open_with(std::sync::Arc::new(disk.clone()), Path::new(DIR), config.clone());
    let (log, _) = open().expect("it opens");
    let mut batch = batch(|b| b.put(2, b"k", b"v"));
    batch.append(1, &[flotilla_raftlog::Entry { index: 1, term: 1, kind: 0, data: copy.into() }]);
    log.write(batch, Durability::Buffered).wait().expect("written");
    drop(log);
    overwrite(&disk, 1, 64, &[0; 448]);
    let (log, report) = open().expect("the tail was torn");
    assert_eq!((report.frames, log.group_ids().len()), (0, 0));
    assert!(report.torn_bytes > 3000);
}

#[test]
fn garbage_is_not_opened() {
    for bytes in [&b"not a segment at all"[..], &[0; 64], &[0xff; 9000], &[]] {
        let disk = FaultFs::new(1);
        disk.create_dir_all(Path::new(DIR)).expect("made");
        let file = disk.open(&segment_path(1), OpenMode::CreateNew).expect("made");
        file.write_at(bytes, 0).expect("written");
        assert!(matches!(open(&disk), Err(Error::Corrupt { segment: 1, offset: 0, .. })));
    }
}

/// A closed log of four segments: entries alone and together, keys, compactions, moves of terms.
fn closed() -> FaultFs {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    for index in 1..=12 {
        write(&log, |b| {
            b.append(1, &entries(index, 1 + index / 3, &[850]));
            b.append(2, &entries(2 * index, 7, &[30, 50]));
            b.put(3, &[b'a' + index as u8 % 3], &[index as u8; 20]);
        })
        .expect("written");
    }
    write(&log, |b| b.compact_to(2, 9, 7)).expect("written");
    log.close().expect("closed");
    disk
}

/// All that can be asked of a log; the first error that comes up.
fn all(log: &LogEngine) -> Result<String, Error> {
    let mut all = String::new();
    for id in log.group_ids() {
        let group = log.group(id).expect("it is among the ids");
        let (first, last) = (group.first_index(), group.last_index());
        let entries = group.entries(first..last + 1, u64::MAX)?;
        let (terms, before) = (group.term_runs(), group.term(first - 1).ok());
        all +=
            &format!("{id} {first} {last} {terms:?} {before:?} {entries:?} {:?}\n", group.scan());
    }
    Ok(all)
}

#[test]
fn any_flipped_byte_of_a_closed_log_is_found_or_changes_nothing() {
    let disk = closed();
    let look = || {
        let fs = std::sync::Arc::new(disk.clone());
        let (log, _) = LogEngine::open_read_only(fs, Path::new(DIR), small())?;
        all(&log)
    };
    let whole = look().expect("nothing is wrong yet");
    let mut found = 0;
    for segment in 1..=4 {
        let bytes = bytes_of(&disk, segment);
        for offset in 0..bytes.len() as u64 {
            let bit = (offset % 8) as u8;
            disk.flip_bit(&segment_path(segment), offset, bit);
            match look() {
                Ok(seen) => assert!(seen == whole, "segment {segment}, byte {offset}"),
                Err(Error::Corrupt { segment: at, .. }) => {
                    assert_eq!(at, segment);
                    found += 1;
                }
                Err(Error::UnknownFormat { .. }) if offset < 64 => found += 1,
                Err(other) => panic!("segment {segment}, byte {offset}: {other}"),
            }
            disk.flip_bit(&segment_path(segment), offset, bit);
        }
    }
    // The data of all entries that are live, at least.
    assert!(found > 12 * 850, "{found}");
}

#[test]
fn a_log_is_opened_from_its_footers() {
    let disk = closed();
    let open_and_count = |config| {
        let before = disk.stats().bytes_read;
        let (log, report) = open_with(&disk, config).expect("it opens");
        let bytes_read = disk.stats().bytes_read - before;
        (bytes_read, report, all(&log).expect("nothing is wrong"))
    };
    let (bytes_read, report, seen) = open_and_count(small());
    assert!(bytes_read < 4 * 700, "{bytes_read}");
    assert_eq!((report.segments, report.frames, report.entries), (4, 13, 36));
    for recovery_threads in [1, 2, 9] {
        let again = open_and_count(small().recovery_threads(recovery_threads));
        assert_eq!((&again.1, &again.2), (&report, &seen));
    }
    // Without them it is the same. All but two are written at once, the others when there is time.
    let footers: Vec<Vec<u8>> = (1..=4).map(|segment| bytes_of(&disk, segment)).collect();
    for segment in 1..=4 {
        let bytes = &footers[segment as usize - 1];
        let trailer = bytes.len() - 32;
        let begin =
            u64::from_le_bytes(bytes[trailer + 16..trailer + 24].try_into().expect("eight"));
        overwrite(&disk, segment, begin, &vec![0; bytes.len() - begin as usize]);
    }
    let scanned = open_and_count(small());
    assert_eq!((&scanned.1, &scanned.2), (&report, &seen));
    assert!(scanned.0 > 4 * 3000, "{}", scanned.0);
    let is_whole = |segment: u64| bytes_of(&disk, segment) == footers[segment as usize - 1];
    assert_eq!([1, 2, 3, 4].map(is_whole), [true, true, false, false]);
    let log = open_with(&disk, small()).expect("it opens").0;
    assert_eq!(log.stats().unsealed_segments, 2);
    log.close().expect("closed");
    drop(log);
    assert_eq!([1, 2, 3, 4].map(is_whole), [true; 4], "they are as they were");
    assert!(open_and_count(small()).0 <= bytes_read);
}

#[test]
fn a_torn_end_is_an_error_if_that_is_wanted() {
    let strict = |disk: &FaultFs| {
        open_with(disk, small().recovery(RecoveryMode::Strict)).map(|(log, _)| log)
    };
    for is_torn in [false, true] {
        let disk = FaultFs::new(1);
        let log = strict(&disk).expect("a new log");
        write(&log, |b| b.append(1, &entries(1, 1, &[100]))).expect("written");
        let begin = used_bytes(&disk, 1).next_multiple_of(8);
        let second = batch(|b| b.append(1, &entries(2, 1, &[2000])));
        log.write(second, Durability::Buffered).wait().expect("written");
        drop(log);
        if !is_torn {
            assert_eq!(
                read_all(&strict(&disk).expect("a process that ends tears nothing"), 1).len(),
                2
            );
            continue;
        }
        overwrite(&disk, 1, begin + 512, &[0; 1024]);
        let before = bytes_of(&disk, 1);
        let torn = strict(&disk).map(drop);
        let is_told =
            matches!(torn, Err(Error::Corrupt { segment: 1, offset, .. }) if offset == begin);
        assert!(is_told, "{torn:?}");
        assert!(bytes_of(&disk, 1) == before, "nothing was changed");
        assert!(open(&disk).expect("it may be torn").1.torn_bytes > 1500);
        assert_eq!(read_all(&strict(&disk).expect("it is mended"), 1).len(), 1);
    }
}
