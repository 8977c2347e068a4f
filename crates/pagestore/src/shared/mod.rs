//! State shared by all handles of one store, and the order of its locks.
//!
//! Locks, outermost first; a holder of one may take those below it:
//! 0. `defrag`: one defragmentation at a time; it takes `writer_lock` like any writer.
//!    `background.scrub`: one step of maintenance's scrub at a time.
//! 1. `writer_lock`: held as long as a write transaction is open; first come, first served.
//! 2. `last_checkpoint`: one checkpoint at a time; a scrub takes it to read one thing. Taken
//!    together with `writer_lock` only by `check`, and by a commit that costs a checkpoint.
//! 3. `resizing`: one at a time makes the file longer or shorter.
//! 4. `space`: held for moments by writer and checkpoint; readers never take it.
//! 5. `current`, `durable`: the two roots; held to copy a pointer.
//! 6. Those of `redo` and of `private_pages`, held for moments.
//!
//! Only 1 to 3 are held over a write, a sync or a change of the file's length. The length changes
//! under 3; that it is going to be shorter is noted under 4 as well, before it is.

pub(crate) mod background;
pub(crate) mod defrag_cursor;
pub(crate) mod maintenance_policy;
pub(crate) mod pacer;
pub(crate) mod scrub_progress;
pub(crate) mod snapshot_age;
pub(crate) mod write_throttle;
pub(crate) mod writer_lock;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flotilla_vfs::{FileSystem, LockGuard};

use crate::config::{Options, ReadMode};
use crate::error::{Error, Result};
use crate::memory::meta::MetaPage;
use crate::memory::page_reader::PageReader;
use crate::memory::private_pages::PrivatePages;
use crate::memory::root::Root;
use crate::memory::slab::{SLAB_BYTES, Slab};
use crate::memory::spill_file::SpillFile;
use crate::page::UNIT_BYTES;
use crate::redo::Redo;
use crate::shared::background::Background;
use crate::shared::defrag_cursor::DefragPass;
use crate::shared::writer_lock::WriterLock;
use crate::space::SpaceManager;
use crate::space::alloc_groups::AllocGroups;
use flotilla_base::sync::{Mutex, RwLock, thread, unlock_fair};

/// How many ended snapshots and the things that waited for them are looked at under one lock of the
/// space: about as long as a transaction of some puts holds it.
const ENDED_STEP: usize = 512;

/// State shared by all handles of one store.
pub(crate) struct StoreShared {
    pub(crate) page_reader: PageReader,
    pub(crate) writer_lock: WriterLock,
    pub(crate) last_checkpoint: Mutex<LastCheckpoint>,
    pub(crate) space: Mutex<SpaceManager>,
    pub(crate) current: RwLock<Arc<Root>>,
    pub(crate) durable: RwLock<Arc<Root>>,
    pub(crate) redo: Redo,
    pub(crate) options: Options,
    pub(crate) background: Background,
    /// A defragmentation that is under way.
    pub(crate) defrag: Mutex<Option<DefragPass>>,
    /// Held while the file gets longer or shorter.
    pub(crate) resizing: Mutex<()>,
    pub(crate) counters: PageCounters,
    /// Memory that the last transaction has left for the next.
    pub(crate) private_pages: Mutex<PrivatePages>,
    pub(crate) old_versions: OldVersions,
    poisoned: AtomicBool,
    _lock: Box<dyn LockGuard>,
}

/// Snapshots of transactions before this one were ended. Read with each page, so it shares its
/// cache lines with nothing that changes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SnapshotHorizon(AtomicU64);

impl SnapshotHorizon {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Refuses a read of a snapshot of `txid` that was ended.
    #[inline]
    pub(crate) fn verify(&self, txid: u64) -> Result<()> {
        if txid < self.get() { Err(Error::SnapshotTooOld { txid }) } else { Ok(()) }
    }

    /// Ends the snapshots of all transactions before `txid`.
    pub(crate) fn advance(&self, txid: u64) {
        self.0.fetch_max(txid, Ordering::Relaxed);
    }
}

/// State of what only old snapshots need: where the spill file is, or will be, and which snapshots
/// were ended.
pub(crate) struct OldVersions {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) path: PathBuf,
    pub(crate) file: Mutex<Option<Arc<SpillFile>>>,
    pub(crate) horizon: SnapshotHorizon,
}

/// The state of the last checkpoint.
pub(crate) struct LastCheckpoint {
    /// The meta page that counts.
    pub(crate) meta: MetaPage,
    /// The record of each group's bitmap.
    pub(crate) groups: AllocGroups,
    /// A mask of the whole copies of each meta page: whole when they were read, or written since.
    pub(crate) copies: [u8; 2],
}

/// Counters, which only grow, but for the length of the file and the bytes being written.
#[derive(Default)]
pub(crate) struct PageCounters {
    /// Checkpoints written.
    pub(crate) checkpoints: AtomicU64,
    /// Bytes written by them.
    pub(crate) written_bytes: AtomicU64,
    /// Those of them that are bitmaps and directories.
    pub(crate) space_written_bytes: AtomicU64,
    /// Bytes of free runs given back to the file system.
    pub(crate) punched_bytes: AtomicU64,
    /// Bytes cut off from the end of the file.
    pub(crate) trimmed_bytes: AtomicU64,
    /// Bytes that the scrub of maintenance has read, its whole passes, and its errors.
    pub(crate) scrubbed_bytes: AtomicU64,
    pub(crate) scrub_passes: AtomicU64,
    pub(crate) scrub_errors: AtomicU64,
    /// The length of the file in bytes.
    pub(crate) file_bytes: AtomicU64,
    /// Units of deferred frees that transactions still have to do for those they took.
    pub(crate) owed_units: AtomicU64,
    /// Bytes of pages and values that a checkpoint is writing.
    pub(crate) writing_bytes: AtomicU64,
    /// Bytes in memory at the cut of a checkpoint that spills, until it has.
    pub(crate) spilling_bytes: AtomicU64,
    /// Bytes written to the spill file, and how often that failed.
    pub(crate) spill_written_bytes: AtomicU64,
    pub(crate) spill_errors: AtomicU64,
    /// Snapshots that were ended.
    pub(crate) ended_snapshots: AtomicU64,
}

impl StoreShared {
    pub(crate) fn new(
        parts: (PageReader, Redo, SpaceManager, Arc<Root>, LastCheckpoint),
        options: Options,
        old_versions: OldVersions,
        lock: Box<dyn LockGuard>,
    ) -> StoreShared {
        let (page_reader, redo, space, root, written) = parts;
        StoreShared {
            page_reader,
            writer_lock: WriterLock::new(),
            last_checkpoint: Mutex::new(written),
            space: Mutex::new(space),
            current: RwLock::new(Arc::clone(&root)),
            durable: RwLock::new(root.of_the_file()),
            redo,
            options,
            background: Background::default(),
            defrag: Mutex::new(None),
            resizing: Mutex::new(()),
            counters: PageCounters::default(),
            private_pages: Mutex::new(PrivatePages::default()),
            old_versions,
            poisoned: AtomicBool::new(false),
            _lock: lock,
        }
    }

    /// The last published root.
    pub(crate) fn current(&self) -> Arc<Root> {
        Arc::clone(&self.current.read())
    }

    /// Bytes that are in memory only, and that the next checkpoint writes or the running one has
    /// not yet written.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let writing = self.counters.writing_bytes.load(Ordering::Relaxed);
        self.space.lock().dirty_bytes() + writing
    }

    /// As [`StoreShared::dirty_bytes`], with what was replaced since the last checkpoint and is
    /// needed by snapshots; of a checkpoint that spills, with all that it frees at its end.
    pub(crate) fn grown_bytes(&self) -> u64 {
        let writing = self.counters.writing_bytes.load(Ordering::Relaxed);
        let spilling = self.counters.spilling_bytes.load(Ordering::Relaxed);
        self.space.lock().grown_bytes() + writing.max(spilling)
    }

    /// Whether memory can be mapped from a file in its place.
    pub(crate) fn can_spill(&self) -> bool {
        self.options.read_mode == ReadMode::Mapped && self.old_versions.fs.can_remap()
    }

    /// Ends the oldest snapshot if old ones hold too much of the disk, and it is old enough. `now`
    /// is a time as maintenance has it.
    pub(crate) fn end_oldest_snapshot(&self, now: Duration) {
        let mut ages = self.background.snapshot_ages.lock();
        let current = self.current().txid;
        ages.note(now, current);
        let space = self.space.lock();
        let bytes = space.pending.units() * UNIT_BYTES as u64 + space.page_alloc.spill_file_bytes();
        if bytes <= self.options.old_version_disk_bytes {
            return;
        }
        let Some(oldest) = space.oldest_reader_from(self.old_versions.horizon.get()) else {
            return;
        };
        // The last published state is never ended: the open transaction reads it.
        if oldest < current && ages.may_end(now, oldest) {
            self.old_versions.horizon.advance(oldest + 1);
            self.counters.ended_snapshots.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The spill file, which the first call makes.
    pub(crate) fn spill_file(&self) -> std::io::Result<Arc<SpillFile>> {
        let mut made = self.old_versions.file.lock();
        if let Some(file) = &*made {
            return Ok(Arc::clone(file));
        }
        let OldVersions { fs, path, .. } = &self.old_versions;
        let file = Arc::new(SpillFile::create(&**fs, path, SLAB_BYTES as u64)?);
        Ok(Arc::clone(made.insert(file)))
    }

    /// Releases what `count` ended snapshots and their things held.
    pub(crate) fn reclaim_ended(&self, count: usize) {
        let mut space = self.space.lock();
        space.reclaim_ended(&self.page_reader, count);
        let garbage = space.page_alloc.take_garbage();
        drop(space);
        drop(garbage);
    }

    /// Returns memory for pages that was not needed since the last time.
    pub(crate) fn trim_memory(&self) {
        let free = self.space.lock().page_alloc.take_free();
        drop(free);
        let idle = self.space.lock().page_alloc.idle_slabs();
        drop(idle);
    }

    /// Prefaults the slabs that were asked for, so that no writer has to wait until one is made.
    pub(crate) fn make_slabs(&self) {
        loop {
            let Some(wanted) = self.space.lock().page_alloc.wants_slab() else { return };
            let Some(slab) = Slab::ahead(wanted) else { return };
            self.space.lock().page_alloc.add(slab, wanted);
        }
    }

    /// Releases all that ended snapshots held, a step at a time, so that a thread that needs the
    /// space waits for no more than one.
    pub(crate) fn reclaim_all_ended(&self) {
        loop {
            let mut space = self.space.lock();
            let count = space.reclaim_ended(&self.page_reader, ENDED_STEP);
            let garbage = space.page_alloc.take_garbage();
            unlock_fair(space);
            drop(garbage);
            if count < ENDED_STEP {
                return;
            }
            // A writer on this CPU may spin on the lock before it sleeps. Yield the CPU while the
            // lock is free, and not when the scheduler preempts this thread in the middle of a
            // step.
            if self.writer_lock.is_locked() {
                thread::yield_now();
            }
        }
    }

    /// Refuses operations that may not go on after a checkpoint has failed.
    pub(crate) fn refuse_if_poisoned(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) { Err(Error::Poisoned) } else { Ok(()) }
    }

    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
        self.background.write_throttle.progress();
        self.redo.fail();
    }
}
