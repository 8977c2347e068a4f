//! Calls of other threads while one thread is at the disk.

use crate::kit::{DIR, batch, entries, small};
use bytes::Bytes;
use flotilla_raftlog::{Commit, Config, Durability, Entry, Error, LogBatch, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Hook = Box<dyn FnOnce() + Send>;

/// Runs a hook once, before the operation that it waits for.
#[derive(Clone, Default)]
struct Hooks(Arc<Mutex<Option<(Operation, Hook)>>>);

impl Hooks {
    fn set(&self, at: Operation, hook: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("whole") = Some((at, Box::new(hook)));
    }

    fn run(&self, at: Operation) {
        let hook = self.0.lock().expect("whole").take_if(|(when, _)| *when == at);
        if let Some((_, hook)) = hook {
            hook();
        }
    }
}

fn open() -> (FaultFs, Hooks, LogEngine) {
    open_with(small())
}

fn open_with(config: Config) -> (FaultFs, Hooks, LogEngine) {
    let (disk, hooks) = (FaultFs::new(1), Hooks::default());
    let run = hooks.clone();
    let fs = Arc::new(HookedFs::new(Arc::new(disk.clone()), move |at| run.run(at)));
    let (log, _) = LogEngine::open_with(fs, Path::new(DIR), config).expect("it opens");
    (disk, hooks, log)
}

fn append(log: &LogEngine, index: u64, len: usize) -> Commit {
    log.write(batch(|b| b.append(1, &entries(index, 1, &[len]))), Durability::Synced)
}

#[test]
fn writes_and_reads_go_on_while_the_disk_syncs() {
    let (_disk, hooks, log) = open();
    append(&log, 1, 10).wait().expect("written");
    let (during, kept) = (log.clone(), Arc::new(Mutex::new(None)));
    let commit = kept.clone();
    hooks.set(Operation::Sync, move || {
        let group = during.group(1).expect("there");
        assert_eq!(group.last_index(), 1, "what is not synced cannot be seen");
        assert!(during.stats().flush_running.is_some(), "a disk that hangs shows");
        assert_eq!(group.entries(1..2, u64::MAX).expect("read").len(), 1);
        let mut gap = append(&during, 4, 10);
        assert!(matches!(gap.try_take(), Some(Err(Error::Gap { expected: 3, .. }))));
        *commit.lock().expect("whole") = Some(append(&during, 3, 10));
    });
    append(&log, 2, 10).wait().expect("written");
    assert_eq!(log.stats().flush_running, None);
    assert_eq!(log.group(1).expect("there").last_index(), 2);
    let mut commit = kept.lock().expect("whole").take().expect("the hook ran");
    assert!(commit.try_take().is_none(), "it came too late for that sync");
    assert_eq!(commit.wait().expect("written").lsn, 3);
    assert_eq!(log.stats().syncs, 3);
}

#[test]
fn a_read_is_of_one_state_though_the_log_is_replaced_meanwhile() {
    let (_disk, hooks, log) = open();
    // More appends than a read looks up at once.
    (1..=150).for_each(|index| drop(append(&log, index, 10)));
    log.flush();
    let during = log.clone();
    hooks.set(Operation::Read, move || {
        let replaced = entries(60, 2, &[10; 91]);
        let commit = during.write(batch(|b| b.append(1, &replaced)), Durability::Buffered);
        commit.wait().expect("written");
    });
    let read = log.group(1).expect("there").entries(1..151, u64::MAX).expect("read");
    let mut wanted = entries(1, 1, &[10; 59]);
    wanted.extend(entries(60, 2, &[10; 91]));
    assert!(read == wanted, "old and new entries are mixed");
}

#[test]
fn a_read_meets_a_compaction() {
    let (_disk, hooks, log) = open();
    (1..=150).for_each(|index| drop(append(&log, index, 100)));
    log.flush();
    let during = log.clone();
    hooks.set(Operation::Read, move || {
        let compact = batch(|b| b.compact_to(1, 140, 1));
        during.write(compact, Durability::Synced).wait().expect("written");
        assert!(during.purge_expired_files().expect("purged").segments > 2);
    });
    let read = log.group(1).expect("there").entries(1..151, u64::MAX);
    assert!(matches!(read, Err(Error::Compacted { first: 140 })), "{read:?}");
}

#[test]
fn a_full_disk_fails_what_was_queued_behind() {
    let (disk, hooks, log) = open();
    append(&log, 1, 3000).wait().expect("written");
    let (during, kept) = (log.clone(), Arc::new(Mutex::new(None)));
    let commit = kept.clone();
    disk.set_capacity(Some(4096));
    hooks.set(Operation::Allocate, move || {
        *commit.lock().expect("whole") = Some(append(&during, 3, 10));
    });
    assert!(matches!(append(&log, 2, 3000).wait(), Err(Error::NoSpace { .. })));
    let commit = kept.lock().expect("whole").take().expect("the hook ran");
    assert!(matches!(commit.wait(), Err(Error::NoSpace { .. })), "entry 2 is missing below it");
    assert_eq!(log.stats().queued_bytes, 0);
    disk.set_capacity(None);
    let mut gap = append(&log, 3, 10);
    assert!(matches!(gap.try_take(), Some(Err(Error::Gap { expected: 2, .. }))));
    append(&log, 2, 3000).wait().expect("there is room again");
}

#[test]
fn a_failed_sync_fails_what_was_queued_behind() {
    let (disk, hooks, log) = open();
    append(&log, 1, 10).wait().expect("written");
    let (during, kept) = (log.clone(), Arc::new(Mutex::new(None)));
    let commit = kept.clone();
    disk.fail_syncs(true);
    hooks.set(Operation::Sync, move || {
        *commit.lock().expect("whole") = Some(append(&during, 3, 10));
    });
    assert!(matches!(append(&log, 2, 10).wait(), Err(Error::Poisoned(_))));
    let commit = kept.lock().expect("whole").take().expect("the hook ran");
    assert!(matches!(commit.wait(), Err(Error::Poisoned(_))));
    assert_eq!((log.stats().queued_bytes, log.durable_lsn()), (0, 1));
}

#[test]
fn a_panic_under_a_write_fails_those_who_wait() {
    let (_disk, hooks, log) = open();
    let mut other = append(&log, 1, 10);
    hooks.set(Operation::Sync, || panic!("a fault in the file system"));
    let waiting = append(&log, 2, 10);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiting.wait()));
    assert!(caught.is_err());
    assert!(matches!(other.try_take(), Some(Err(Error::Poisoned(_)))));
    assert!(matches!(append(&log, 1, 10).wait(), Err(Error::Poisoned(_))));
}

/// Changes of a group while its records are being rewritten: made after its bytes were read, and
/// before they are written.
fn change_while_moving(change: fn(&mut LogBatch)) -> (Vec<Entry>, u64, Option<Bytes>) {
    let config = || small().purge_above_bytes(0).move_live_ratio_max(1.0);
    let (disk, hooks, log) = open_with(config());
    let write = |log: &LogEngine, build: &dyn Fn(&mut LogBatch)| {
        log.write(batch(build), Durability::Buffered).wait().expect("written");
    };
    write(&log, &|b| b.append(2, &entries(1, 1, &[10, 20, 30])));
    write(&log, &|b| b.append(2, &entries(4, 1, &[40])));
    write(&log, &|b| b.compact_to(2, 2, 1));
    write(&log, &|b| b.put(2, b"k", b"old"));
    write(&log, &|b| b.append(1, &entries(1, 1, &[3800])));
    write(&log, &|b| b.compact_to(1, 2, 1));
    let during = log.clone();
    hooks.set(Operation::Read, move || {
        during.write(batch(change), Durability::Buffered).wait().expect("written");
    });
    assert_eq!(log.stats().segments, 2);
    assert!(log.purge_expired_files().expect("purged").segments >= 1);
    let state = |log: &LogEngine| {
        let Some(group) = log.group(2) else { return (Vec::new(), 0, None) };
        let first = group.first_index();
        let read = group.entries(first..group.last_index() + 1, u64::MAX).expect("read");
        (read, first, group.get(b"k"))
    };
    let found = state(&log);
    drop(log);
    // A restart sees the rewritten records only.
    disk.power_loss(1);
    let (log, _) =
        LogEngine::open_with(Arc::new(disk), Path::new(DIR), config()).expect("it opens");
    assert_eq!(state(&log), found);
    found
}

#[test]
fn what_changes_while_it_is_moved_is_moved_as_it_is_then() {
    let all = entries(2, 1, &[20, 30, 40]);
    let old = Some(Bytes::from_static(b"old"));
    let nothing = change_while_moving(|b| b.put(3, b"k", b"v"));
    assert_eq!(nothing, (all.clone(), 2, old.clone()));
    let compacted = change_while_moving(|b| b.compact_to(2, 3, 1));
    assert_eq!(compacted, (all[1..].to_vec(), 3, old.clone()));
    let truncated = change_while_moving(|b| b.truncate_from(2, 3));
    assert_eq!(truncated, (all[..1].to_vec(), 2, old.clone()));
    let replaced = change_while_moving(|b| b.append(2, &entries(3, 2, &[5])));
    assert_eq!(replaced, ([&all[..1], &entries(3, 2, &[5])].concat(), 2, old.clone()));
    let appended = change_while_moving(|b| b.append(2, &entries(5, 2, &[5])));
    assert_eq!(appended, ([&all[..], &entries(5, 2, &[5])].concat(), 2, old));
    let put = change_while_moving(|b| b.put(2, b"k", b"new"));
    assert_eq!(put, (all.clone(), 2, Some(Bytes::from_static(b"new"))));
    let deleted = change_while_moving(|b| b.delete(2, b"k"));
    assert_eq!(deleted, (all, 2, None));
    assert_eq!(change_while_moving(|b| b.remove_group(2)), (Vec::new(), 0, None));
    let again = change_while_moving(|b| {
        b.remove_group(2);
        b.append(2, &entries(2, 1, &[20, 30]));
    });
    assert_eq!(again, (entries(2, 1, &[20, 30]), 2, None));
}

#[test]
fn nothing_is_moved_to_a_log_that_broke_meanwhile() {
    let config = small().purge_above_bytes(0).move_live_ratio_max(1.0);
    let (disk, hooks, log) = open_with(config);
    append(&log, 1, 300).wait().expect("written");
    append(&log, 2, 3700).wait().expect("written");
    let (during, failing) = (log.clone(), disk.clone());
    hooks.set(Operation::Read, move || {
        failing.fail_writes(true);
        let broken = append(&during, 3, 10).wait();
        assert!(matches!(broken, Err(Error::Poisoned(_))));
        failing.fail_writes(false);
    });
    let batches = log.stats().batches;
    assert!(matches!(log.purge_expired_files(), Err(Error::Poisoned(_))));
    assert_eq!((log.stats().batches, log.stats().purge.rewritten_bytes), (batches, 0));
}

#[test]
fn what_is_queued_while_the_freeing_part_is_written_is_checked_against_it() {
    let (_disk, hooks, log) = open_with(small().disk_bytes_max(Some(8 * 4096)));
    let queue = |build: &dyn Fn(&mut LogBatch)| log.write(batch(build), Durability::Synced);
    queue(&|b| b.append(2, &entries(1, 1, &[9, 9, 9]))).wait().expect("written");
    let mut next = 1;
    while append(&log, next, 900).wait().is_ok() {
        next += 1;
    }
    let mut refused = append(&log, next, 3000);
    let mut freeing = queue(&|b| b.compact_to(2, 3, 1));
    let (during, kept) = (log.clone(), Arc::new(Mutex::new(None)));
    let stale = kept.clone();
    hooks.set(Operation::Sync, move || {
        let batch = batch(|b| b.truncate_from(2, 2));
        *stale.lock().expect("whole") = during.write(batch, Durability::Synced).try_take();
    });
    assert!(log.flush());
    assert!(matches!(refused.try_take(), Some(Err(Error::Full { .. }))));
    assert!(matches!(freeing.try_take(), Some(Ok(_))));
    let stale = kept.lock().expect("whole").take();
    assert!(matches!(stale, Some(Err(Error::Stale { first: 3, .. }))), "{stale:?}");
}

#[test]
fn a_write_without_a_sync_that_hangs_shows_from_the_first_look_on() {
    let (_disk, hooks, log) = open();
    append(&log, 1, 10).wait().expect("written");
    let during = log.clone();
    hooks.set(Operation::Write, move || {
        assert_eq!(during.stats().flush_running, Some(Duration::ZERO));
        assert!(during.stats().flush_running.is_some(), "it still is under way");
    });
    let buffered = batch(|b| b.append(1, &entries(2, 1, &[10])));
    log.write(buffered, Durability::Buffered).wait().expect("written");
    assert_eq!(log.stats().flush_running, None);
}
