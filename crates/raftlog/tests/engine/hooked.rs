//! What others do while one thread is at the disk: a file system that lets a test in between.

use crate::kit::{DIR, batch, entries, small};
use flotilla_raftlog::{Commit, Durability, Error, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode, View};
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Operations that a test can come in between.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Sync,
    Allocate,
    Read,
}

type Hook = Box<dyn FnOnce() + Send>;

/// Runs a hook once, before the operation that it waits for.
#[derive(Clone, Default)]
struct Hooks(Arc<Mutex<Option<(At, Hook)>>>);

impl Hooks {
    fn set(&self, at: At, hook: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("whole") = Some((at, Box::new(hook)));
    }

    fn run(&self, at: At) {
        let hook = self.0.lock().expect("whole").take_if(|(when, _)| *when == at);
        if let Some((_, hook)) = hook {
            hook();
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

#[derive(Debug)]
struct HookedFs(FaultFs, Hooks);

#[derive(Debug)]
struct HookedFile(Arc<dyn File>, Hooks);

impl FileSystem for HookedFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(HookedFile(self.0.open(path, mode)?, self.1.clone())))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.0.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.0.lock(path)
    }
}

impl File for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.run(At::Read);
        self.0.read_at(buf, offset)
    }
    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_all_at(parts, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.run(At::Sync);
        self.0.sync()
    }
    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.1.run(At::Allocate);
        self.0.allocate(range)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn view(&self, range: Range<u64>) -> io::Result<View> {
        self.1.run(At::Read);
        self.0.view(range)
    }
}

fn open() -> (FaultFs, Hooks, LogEngine) {
    let (disk, hooks) = (FaultFs::new(1), Hooks::default());
    let fs = Arc::new(HookedFs(disk.clone(), hooks.clone()));
    let (log, _) = LogEngine::open(fs, Path::new(DIR), small()).expect("it opens");
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
    hooks.set(At::Sync, move || {
        let group = during.group(1).expect("there");
        assert_eq!(group.last_index(), 1, "what is not synced cannot be seen");
        assert_eq!(group.entries(1..2, u64::MAX).expect("read").len(), 1);
        let mut gap = append(&during, 4, 10);
        assert!(matches!(gap.try_take(), Some(Err(Error::Gap { expected: 3, .. }))));
        *commit.lock().expect("whole") = Some(append(&during, 3, 10));
    });
    append(&log, 2, 10).wait().expect("written");
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
    hooks.set(At::Read, move || {
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
    hooks.set(At::Read, move || {
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
    hooks.set(At::Allocate, move || {
        *commit.lock().expect("whole") = Some(append(&during, 3, 10));
    });
    assert!(matches!(append(&log, 2, 3000).wait(), Err(Error::NoSpace)));
    let commit = kept.lock().expect("whole").take().expect("the hook ran");
    assert!(matches!(commit.wait(), Err(Error::NoSpace)), "entry 2 is missing below it");
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
    hooks.set(At::Sync, move || {
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
    hooks.set(At::Sync, || panic!("a fault in the file system"));
    let waiting = append(&log, 2, 10);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiting.wait()));
    assert!(caught.is_err());
    assert!(matches!(other.try_take(), Some(Err(Error::Poisoned(_)))));
    assert!(matches!(append(&log, 1, 10).wait(), Err(Error::Poisoned(_))));
}
