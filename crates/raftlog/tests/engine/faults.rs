//! The disk refuses: poisoning, and a disk that is full.

use crate::kit::{batch, entries, open, read_all, reopen, write};
use flotilla_raftlog::{Durability, Error};
use flotilla_vfs::fault::FaultFs;

#[test]
fn a_failed_sync_poisons_and_leaves_reads_alone() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    write(&log, |b| b.append(1, &entries(1, 1, &[100, 100]))).expect("written");
    disk.fail_syncs(true);
    let failing = [Durability::Buffered, Durability::Synced, Durability::Buffered]
        .map(|durability| log.write(batch(|b| b.put(1, b"k", b"new")), durability));
    assert!(log.flush());
    for mut commit in failing {
        assert!(
            matches!(commit.try_take(), Some(Err(Error::Poisoned(_)))),
            "the whole group fails"
        );
    }
    disk.fail_syncs(false);
    let later = write(&log, |b| b.put(1, b"k", b"later"));
    assert!(matches!(later, Err(Error::Poisoned(_))), "a sync that works later proves nothing");
    assert!(matches!(log.sync().wait(), Err(Error::Poisoned(_))));
    assert!(matches!(log.purge_expired_files(), Ok(purged) if purged.segments == 0));
    assert!(log.poisoned().is_some());
    assert_eq!((log.durable_lsn(), log.stats().queued_bytes), (1, 0));
    assert_eq!(log.group(1).expect("there").get(b"k"), None, "nothing of it can be read");
    assert_eq!(read_all(&log, 1), entries(1, 1, &[100, 100]));
    drop(log);
    let log = reopen(&disk);
    assert_eq!(read_all(&log, 1), entries(1, 1, &[100, 100]));
    write(&log, |b| b.put(1, b"k", b"again")).expect("a new engine starts over");
}

#[test]
fn a_failed_write_poisons() {
    for seed in 0..20 {
        let disk = FaultFs::new(seed);
        let log = reopen(&disk);
        write(&log, |b| b.append(1, &entries(1, 1, &[100]))).expect("written");
        disk.fail_writes(true);
        for index in 2..=3 {
            let batch = batch(|b| b.append(1, &entries(index, 1, &[700])));
            let poisoned = log.write(batch, Durability::Buffered).wait();
            assert!(matches!(poisoned, Err(Error::Poisoned(_))));
        }
        disk.fail_writes(false);
        assert_eq!(log.group(1).expect("there").last_index(), 1);
        drop(log);
        // Part of the batch may have been written; all of it or nothing comes back.
        let (log, _) = open(&disk).expect("it opens");
        let count = read_all(&log, 1).len();
        assert!(count == 1 || count == 2, "{count}");
        write(&log, |b| b.append(1, &entries(2, 9, &[700]))).expect("written");
        drop(log);
        assert_eq!(read_all(&reopen(&disk), 1)[1..], entries(2, 9, &[700]));
    }
}

#[test]
fn a_full_disk_refuses_before_it_writes_and_can_be_purged() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    disk.set_capacity(Some(5 * 4096));
    let mut written = 0;
    let error = loop {
        match write(&log, |b| b.append(1, &entries(written + 1, 1, &[300]))) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    assert!(written > 20, "{written}");
    assert_eq!(log.group(1).expect("there").last_index(), written);
    // Writes that are queued behind fail too, since they rest on those before.
    let commits = [1, 2].map(|i| {
        log.write(batch(|b| b.append(1, &entries(written + i, 1, &[300]))), Durability::Synced)
    });
    log.flush();
    for mut commit in commits {
        assert!(matches!(commit.try_take(), Some(Err(Error::NoSpace { .. }))));
    }
    assert!(log.poisoned().is_none());
    // Batches that only let go of things find room still, and after them there is some for all.
    write(&log, |b| b.compact_to(1, written, 1)).expect("there is a reserve");
    assert!(log.purge_expired_files().expect("purged").segments > 1);
    write(&log, |b| b.append(1, &entries(written + 1, 1, &[300]))).expect("there is room again");
    drop(log);
    assert_eq!(read_all(&reopen(&disk), 1), entries(written, 1, &[300, 300]));
}

#[test]
fn frames_before_a_full_disk_are_written() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    disk.set_capacity(Some(4096));
    let commits: Vec<_> = (1..=8)
        .map(|index| {
            let batch = batch(|b| b.append(1, &entries(index, 1, &[900])));
            log.write(batch, Durability::Synced)
        })
        .collect();
    log.flush();
    let outcomes: Vec<bool> =
        commits.into_iter().map(|mut c| c.try_take().expect("flushed").is_ok()).collect();
    assert_eq!(outcomes, [true, true, true, false, false, false, false, false]);
    disk.power_loss(1);
    assert_eq!(read_all(&reopen(&disk), 1).len(), 3);
}
