//! Opening a damaged log with what is whole of it.

use crate::kit::{DIR, entries, open_with, read_all, segment_path, small, write};
use flotilla_raftlog::{Config, Entry, Error, LogEngine, RecoveryMode, SalvageReport};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const COPY: &str = "/copy";
/// More than opening and salvaging the damaged log takes.
const OPERATIONS: u64 = 120;

fn salvaging() -> Config {
    small().recovery(RecoveryMode::Salvage)
}

fn names(disk: &FaultFs, prefix: &str) -> Vec<String> {
    let names = disk.list(Path::new(DIR)).expect("listed").into_iter();
    names.filter(|name| name.starts_with(prefix)).collect()
}

fn contents(log: &LogEngine) -> BTreeMap<u64, Vec<Entry>> {
    log.group_ids().into_iter().map(|id| (id, read_all(log, id))).collect()
}

/// Four segments and a log that was not closed. A batch in the newest is damaged, and synced ones
/// follow.
fn damaged() -> FaultFs {
    let disk = FaultFs::new(1);
    let (log, _) = open_with(&disk, small()).expect("it opens");
    for index in 1..=15 {
        write(&log, |b| b.append(1 + index % 2, &entries(1 + index / 2, 1, &[750])))
            .expect("written");
    }
    drop(log);
    assert_eq!(names(&disk, "0").len(), 4, "the tests damage the last");
    let spare = Path::new(DIR).join(format!("spare-{:020}.log", 9));
    disk.open(&spare, OpenMode::CreateNew).expect("made");
    disk.flip_bit(&segment_path(4), 700, 1);
    disk
}

/// The findings of a salvage to another directory.
fn salvaged(disk: &FaultFs) -> (BTreeMap<u64, Vec<Entry>>, SalvageReport) {
    let fs = Arc::new(disk.clone());
    let report =
        flotilla_raftlog::salvage(fs.clone(), Path::new(DIR), Path::new(COPY), &mut |_| ())
            .expect("salvaged");
    let (log, _) = LogEngine::open_with(fs, Path::new(COPY), small()).expect("it opens");
    (contents(&log), report)
}

#[test]
fn a_damaged_log_is_replaced_by_what_is_whole_of_it_once() {
    let (expected, report) = salvaged(&damaged());
    assert!(!report.damaged_groups.is_empty() && report.entries == 8, "{report:?}");
    let disk = damaged();
    for mode in [RecoveryMode::Strict, RecoveryMode::TolerateTail] {
        let config = small().recovery(mode);
        let refused = open_with(&disk, config).map(|(_, report)| report);
        assert!(matches!(refused, Err(Error::Corrupt { segment: 4, .. })), "{refused:?}");
    }
    let (log, opened) = open_with(&disk, salvaging()).expect("it opens");
    assert_eq!(opened.salvaged.as_ref(), Some(&report));
    assert_eq!(contents(&log), expected);
    assert_eq!(names(&disk, "damaged-").len(), 4);
    assert_eq!((names(&disk, "salvage").len(), names(&disk, "LOCK").len()), (0, 1));
    assert_eq!(names(&disk, "spare-").len(), 0, "what they hold has numbers that are used again");
    write(&log, |b| b.put(1, b"k", b"v")).expect("it can be written");
    drop(log);
    disk.power_loss(1);
    for config in [salvaging(), small()] {
        let (log, opened) = open_with(&disk, config).expect("it is sound");
        assert_eq!((contents(&log), opened.salvaged), (expected.clone(), None));
        assert_eq!(log.group(1).expect("there").get(b"k").as_deref(), Some(&b"v"[..]));
    }

    // Nothing more is given up before an operator has looked at the first loss.
    disk.remove(&segment_path(2)).expect("removed");
    let again = open_with(&disk, salvaging()).map(|(_, report)| report);
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
    for name in names(&disk, "damaged-") {
        disk.remove(&Path::new(DIR).join(name)).expect("removed");
    }
    let (_, opened) = open_with(&disk, salvaging()).expect("it opens");
    assert!(opened.salvaged.is_some_and(|report| !report.lost_batches.is_empty()));
}

#[test]
fn a_sound_log_and_a_torn_one_are_not_replaced() {
    let disk = FaultFs::new(1);
    let (log, opened) = open_with(&disk, salvaging()).expect("made");
    assert_eq!(opened.salvaged, None);
    write(&log, |b| b.append(1, &entries(1, 1, &[100]))).expect("written");
    let mut torn = flotilla_raftlog::LogBatch::new();
    torn.append(1, &entries(2, 1, &[2000]));
    log.write(torn, flotilla_raftlog::Durability::Buffered).wait().expect("written");
    drop(log);
    disk.power_loss(2);
    let (log, opened) = open_with(&disk, salvaging()).expect("it opens");
    assert_eq!((opened.salvaged, names(&disk, "damaged-").len()), (None, 0));
    assert_eq!(read_all(&log, 1)[0], entries(1, 1, &[100])[0]);
}

#[test]
fn a_crash_at_any_moment_leaves_the_damaged_log_or_what_is_whole_of_it() {
    let (expected, _) = salvaged(&damaged());
    let (mut kept, mut finished, mut halfway, mut whole) = (0, 0, 0, 0);
    for (seed, cut) in (0..8).flat_map(|seed| (1..OPERATIONS).map(move |cut| (seed, cut))) {
        let disk = damaged();
        disk.cut_power_after(cut);
        let opened = open_with(&disk, salvaging());
        let is_whole = opened.is_ok();
        drop(opened);
        disk.power_loss(seed);
        let fs = Arc::new(disk.clone());
        let look = LogEngine::open_read_only(fs, Path::new(DIR), small());
        let is_halfway = !names(&disk, "salvage-").is_empty();
        match look {
            Ok((log, _)) => assert!(!is_halfway && contents(&log) == expected, "cut {cut}"),
            Err(Error::Corrupt { what, .. }) => {
                assert_eq!(what.contains("salvage"), is_halfway, "cut {cut}: {what}");
                halfway += u32::from(is_halfway);
            }
            Err(other) => panic!("cut {cut}: {other}"),
        }
        // Any request first ends a replacement that was begun; without one the damage is still
        // there.
        match open_with(&disk, small()) {
            Ok((log, _)) => {
                assert_eq!(contents(&log), expected, "cut {cut}");
                finished += 1;
            }
            Err(Error::Corrupt { segment: 4, .. }) => {
                assert!(!is_halfway && !is_whole, "cut {cut}");
                kept += 1;
            }
            Err(other) => panic!("cut {cut}: {other}"),
        }
        let (log, _) = open_with(&disk, salvaging()).expect("it is salvaged now");
        assert_eq!(contents(&log), expected, "cut {cut}");
        assert_eq!((names(&disk, "damaged-").len(), names(&disk, "salvage").len()), (4, 0));
        whole += u32::from(is_whole);
    }
    assert!(kept > 100 && finished > 100 && halfway > 50, "{kept}, {finished}, {halfway}");
    assert!(whole > 0, "the power went at each operation");
}

#[test]
fn without_room_for_both_the_damaged_log_stays() {
    let disk = damaged();
    let before = names(&disk, "");
    disk.set_capacity(Some(24 << 10));
    let full = open_with(&disk, salvaging()).map(|(_, report)| report);
    assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
    assert_eq!(names(&disk, ""), before);
    disk.set_capacity(None);
    open_with(&disk, salvaging()).expect("there is room now");
}
