//! Looking at a log changes nothing, blocks no writer, and shows it as it was at one moment.

use crate::kit::{DIR, batch, entries, entry, open, read_all, reopen, segment_path, small, write};
use flotilla_raftlog::{Durability, Error, LogEngine, RecoveryReport};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::{FileSystem, OpenMode};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

fn look(fs: impl FileSystem + 'static) -> Result<(LogEngine, RecoveryReport), Error> {
    LogEngine::open_read_only(Arc::new(fs), Path::new(DIR), small())
}

/// A log of a few segments with all kinds of changes.
fn some_log(disk: &FaultFs) -> LogEngine {
    let log = reopen(disk);
    for index in 1..=12 {
        write(&log, |b| b.append(1, &entries(index, 1, &[600]))).expect("written");
    }
    write(&log, |b| {
        b.compact_to(1, 3, 1);
        b.append(2, &entries(8, 3, &[10, 20]));
        b.put(2, b"vote", b"7");
    })
    .expect("written");
    log
}

fn assert_same(a: &LogEngine, b: &LogEngine) {
    assert_eq!(a.group_ids(), b.group_ids());
    for id in a.group_ids() {
        let [one, two] = [a, b].map(|log| log.group(id).expect("listed"));
        assert_eq!((one.first_index(), one.last_index()), (two.first_index(), two.last_index()));
        assert_eq!((one.term_runs(), one.scan()), (two.term_runs(), two.scan()));
        assert_eq!(read_all(a, id), read_all(b, id));
    }
}

#[test]
fn a_log_is_seen_as_it_is_whoever_has_it() {
    let disk = FaultFs::new(1);
    let log = some_log(&disk);
    let before = disk.operations();
    let (seen, report) = look(disk.clone()).expect("its writer does not mind");
    assert_same(&seen, &log);
    assert_eq!((report.last_lsn, report.groups, report.discarded_segments), (13, 2, 0));
    assert!(seen.durable_lsn() <= log.durable_lsn());
    assert_eq!(seen.stats().live_bytes, log.stats().live_bytes);
    assert_eq!(disk.operations(), before, "nothing is changed");
    assert!(matches!(open(&disk), Err(Error::Locked { .. })), "the writer's lock is still there");

    log.close().expect("closed");
    drop(log);
    let before = disk.operations();
    let (closed, report) = look(disk.clone()).expect("it opens");
    assert_same(&seen, &closed);
    assert_eq!((report.torn_bytes, disk.operations()), (0, before));
    open(&disk).expect("who only looks takes no lock");
}

#[test]
fn what_a_crash_left_is_seen_and_left_alone() {
    let disk = FaultFs::new(1);
    let log = some_log(&disk);
    let torn = batch(|b| b.append(1, &entries(13, 1, &[900, 900])));
    log.write(torn, Durability::Buffered).wait().expect("written");
    drop(log);
    for seed in 0..20 {
        disk.power_loss(seed);
        let before = disk.operations();
        let (seen, report) = look(disk.clone()).expect("it opens");
        assert_eq!(disk.operations(), before);
        let (log, mended) = open(&disk).expect("it opens");
        assert_same(&seen, &log);
        assert_eq!((report.last_lsn, report.torn_bytes), (mended.last_lsn, mended.torn_bytes));
        write(&log, |b| b.append(1, &entries(13, 1, &[900, 900]))).expect("written");
    }
}

#[test]
fn every_call_that_writes_is_refused() {
    let disk = FaultFs::new(1);
    some_log(&disk).close().expect("closed");
    let (seen, _) = look(disk.clone()).expect("it opens");
    let refused = write(&seen, |b| b.put(1, b"k", b"v")).expect_err("refused");
    assert!(matches!(refused, Error::ReadOnly), "{refused}");
    assert!(matches!(seen.sync().wait(), Err(Error::ReadOnly)));
    assert!(matches!(seen.maintain(), Err(Error::ReadOnly)));
    assert!(matches!(seen.maintain_in_background(), Err(Error::ReadOnly)));
    assert!(matches!(seen.purge_expired_files(), Err(Error::ReadOnly)));
    assert!(!seen.flush());
    let before = disk.operations();
    seen.close().expect("there is nothing to close");
    drop(seen);
    assert_eq!(disk.operations(), before);
}

#[test]
fn what_is_no_log_or_of_another_version_is_named() {
    let disk = FaultFs::new(1);
    assert!(matches!(look(disk.clone()), Err(Error::NoLog { dir }) if dir == Path::new(DIR)));
    disk.create_dir_all(Path::new(DIR)).expect("made");
    let other = Path::new(DIR).join("notes.txt");
    disk.open(&other, OpenMode::CreateNew).expect("made");
    assert!(matches!(look(disk.clone()), Err(Error::NoLog { .. })));
    drop(open(&disk).expect("made"));
    let (seen, _) = look(disk.clone()).expect("a log without a batch");
    assert!(seen.group_ids().is_empty());

    some_log(&disk).close().expect("closed");
    let path = segment_path(2);
    let file = disk.open(&path, OpenMode::Write).expect("there");
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).expect("read");
    header[8] = 9;
    file.write_at(&header, 0).expect("written");
    assert!(matches!(look(disk.clone()), Err(Error::Corrupt { segment: 2, .. })));
    let checksum = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&checksum.to_le_bytes());
    file.write_at(&header, 0).expect("written");
    for error in [look(disk.clone()).err(), open(&disk).err()] {
        let error = error.expect("it does not open");
        assert!(matches!(error, Error::UnknownFormat { segment: 2, version: 9 }), "{error}");
    }
    disk.remove(&path).expect("removed");
    assert!(matches!(look(disk.clone()), Err(Error::Corrupt { segment: 2, .. })));
}

/// Some more segments, and those before them purged and used again: each entry of group 1 has the
/// number of its batch in it.
fn burst(log: &LogEngine, next: &mut u64) {
    for _ in 0..9 {
        write(log, |b| b.append(1, &[entry(*next, 1, 700)])).expect("written");
        while log.maintain().expect("maintained") {}
        *next += 1;
    }
    write(log, |b| b.compact_to(1, *next - 2, 1)).expect("written");
    log.purge_expired_files().expect("purged");
}

#[test]
fn a_writer_may_come_in_between_at_any_time() {
    for at in 0..60 {
        let disk = FaultFs::new(1);
        let (log, mut next, mut looks) = (reopen(&disk), 1, 0);
        burst(&log, &mut next);
        burst(&log, &mut next);
        let first_before = log.group(1).expect("there").first_index();
        let writer = log.clone();
        let come_in = Mutex::new(move || {
            looks += 1;
            if looks == at || looks == 2 * at + 20 {
                burst(&writer, &mut next);
            }
        });
        let fs = HookedFs::new(Arc::new(disk.clone()), move |operation| {
            if matches!(operation, Operation::Open | Operation::List | Operation::Read) {
                come_in.lock().expect("whole")();
            }
        });
        let (seen, report) = look(fs).unwrap_or_else(|error| panic!("at look {at}: {error}"));
        let group = seen.group(1).expect("it is there at all times");
        assert!(group.first_index() >= first_before && report.last_lsn >= 20, "{report:?}");
        assert!(report.last_lsn <= log.group(1).expect("there").last_index() + 8);
        for index in group.first_index()..=group.last_index() {
            match group.entries(index..index + 1, u64::MAX) {
                Ok(read) => assert_eq!(read, [entry(index, 1, 700)]),
                Err(Error::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
                Err(other) => panic!("at look {at}, entry {index}: {other}"),
            }
        }
    }
}

#[test]
fn what_is_purged_and_used_again_afterwards_is_said_to_be_gone() {
    let disk = FaultFs::new(1);
    let config = small().cache_bytes_max(0);
    let (log, mut next) = (reopen(&disk), 1);
    burst(&log, &mut next);
    let (seen, _) = LogEngine::open_read_only(Arc::new(disk.clone()), Path::new(DIR), config)
        .expect("it opens");
    let group = seen.group(1).expect("there");
    let range = group.first_index()..group.last_index() + 1;
    assert_eq!(group.entries(range.clone(), u64::MAX).expect("read").len(), 2);
    for _ in 0..4 {
        burst(&log, &mut next);
    }
    match group.entries(range, u64::MAX) {
        Err(Error::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
}
