//! Opening a store, and handing out its parts.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flotilla_vfs::os::OsFs;
use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode};
use parking_lot::Mutex;

use crate::background::defragment::{self, DefragProgress};
use crate::background::maintenance::{self, MaintenanceThread};
use crate::background::trim_punch;
use crate::check::{self, PageCheckReport};
use crate::checkpoint::{self, CheckpointScope};
use crate::config::{Options, TreeOptions};
use crate::error::{Error, Result};
use crate::memory::meta::MetaPage;
use crate::memory::page_reader::PageReader;
use crate::memory::root::{EndedRoots, Root};
use crate::page::layout::{META_UNITS, group_count};
use crate::page::leaf::ValueExtent;
use crate::page::unit_set::UnitSet;
use crate::page::{PageSize, UNIT_BYTES};
use crate::redo::Redo;
use crate::shared::maintenance_policy::{MaintenanceAction, MaintenanceOutcome};
use crate::shared::scrub_progress::Scrub;
use crate::shared::{LastCheckpoint, OldVersions, StoreShared};
use crate::space::SpaceManager;
use crate::space::alloc_groups::AllocGroups;
use crate::space::holes::Holes;
use crate::space::space_map::{self, StoreSpaceMap};
use crate::stats::{ReadStats, SpillStats, Stats, TrimPunchStats};
use crate::tree::ingest::TreeBuilder;
use crate::txn::replay;
use crate::txn::snapshot::Snapshot;
use crate::txn::write_txn::{self, WriteTxn};

/// Trees of pages in one file. Clones are handles to the same store.
#[derive(Clone)]
pub struct PageStore {
    shared: Arc<StoreShared>,
}

/// A durable state: a crash at this moment would leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurableState {
    /// The transaction that published it.
    pub txid: u64,
    /// Its commit metadata.
    pub commit_metadata: Vec<u8>,
}

impl PageStore {
    /// Opens the store in the file `path` of the operating system, with the defaults; see
    /// [`PageStore::open_with`].
    ///
    /// # Errors
    ///
    /// As [`PageStore::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<PageStore> {
        PageStore::open_with(Arc::new(OsFs::new()), path.as_ref(), Options::default())
    }

    /// Opens the store in the file `path`, which is made if it is missing. The lock file
    /// `path.lock` keeps other processes out. Reads the bitmaps of free space, 4 KiB for each 127
    /// MiB, and replays the redo records beyond the last checkpoint; reads nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if another process has it open, [`Error::Corrupt`] or
    /// [`Error::Unsupported`] if its meta pages, bitmaps or redo area cannot be trusted,
    /// [`Error::Io`] if the kernel refused.
    pub fn open_with(fs: Arc<dyn FileSystem>, path: &Path, options: Options) -> Result<PageStore> {
        let lock = lock(&*fs, path)?;
        let file = match fs.open(path, OpenMode::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => create(&*fs, path)?,
            other => other?,
        };
        // The writes of the process before that were not synced are trusted from here on.
        file.sync()?;
        let redo = fs.open_direct(path)?;
        let (meta, copies) = read_meta(&*file)?;
        let page_reader = PageReader::new(file, &options)?;
        let (groups, used) = read_groups(&page_reader, &meta)?;
        let ended = EndedRoots::new(Mutex::new(Vec::new()));
        let holes = Holes::new(options.punch_bytes);
        let mut space = SpaceManager::new(used, meta.end, meta.txid, holes, Arc::clone(&ended));
        space.page_alloc.limit_heap(options.old_version_bytes);
        // Records flag groups, not units: all free units of a flagged group count as holes.
        space.expect_holes(|group| groups.has_holes(group));
        let root = Root::durable(&meta, ended);
        let file_bytes = page_reader.file().len()?;
        let redo = Redo::new(redo, meta.txid);
        let parts = (page_reader, redo, space, root, LastCheckpoint { meta, groups, copies });
        let old_versions = OldVersions {
            fs,
            path: with_suffix(path, ".spill"),
            file: Default::default(),
            horizon: Default::default(),
        };
        let shared = Arc::new(StoreShared::new(parts, options, old_versions, lock));
        shared.counters.file_bytes.store(file_bytes, Ordering::Relaxed);
        replay::run(&shared)?;
        Ok(PageStore { shared })
    }

    /// The state as last published. Takes the time of copying a pointer; never waits.
    pub fn read(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.shared))
    }

    /// Begins a write transaction, once those have ended that were asked for before. Readers and
    /// checkpoints go on. It may have to wait for a checkpoint; see
    /// [`PageStore::maintain_in_background`].
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a checkpoint has failed, [`Error::NoSpace`] if it has to wait for one
    /// that the full disk refuses.
    pub fn write(&self) -> Result<WriteTxn<'_>> {
        WriteTxn::begin(&self.shared)
    }

    /// Makes the last published state durable and returns once it is. Reads, writes and publishing
    /// go on meanwhile; a second checkpoint waits for the first. It gives no space back to the file
    /// system: see [`PageStore::trim_punch`].
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if the file cannot grow: nothing has happened. [`Error::Io`] if a write
    /// or a sync failed: the contents of the file are unknown until it is opened again, so the
    /// store takes no more writes and checkpoints ([`Error::Poisoned`]); reads go on.
    pub fn checkpoint(&self) -> Result<DurableState> {
        checkpoint::run(&self.shared, CheckpointScope::Pages)?;
        Ok(self.durable())
    }

    /// A builder of a tree from entries in rising order of keys (bulk load). It works concurrently
    /// with all transactions, on any thread, and writes straight to the file;
    /// [`TreeMut::ingest`](crate::TreeMut::ingest) puts the tree in.
    ///
    /// It is for a tree with the default of [`TreeOptions`]; [`PageStore::tree_builder_with`] for
    /// others.
    pub fn tree_builder(&self) -> TreeBuilder {
        TreeBuilder::new(&self.shared, PageSize::UNIT)
    }

    /// As [`PageStore::tree_builder`], for a tree that was made with `options`.
    ///
    /// # Errors
    ///
    /// [`Error::PageUnits`] if there can be no tree with such pages.
    pub fn tree_builder_with(&self, options: TreeOptions) -> Result<TreeBuilder> {
        Ok(TreeBuilder::new(&self.shared, PageSize::new(options.page_units)?))
    }

    /// Goes on with a pass over all that the last checkpoint relies on, for about `bytes_max`, and
    /// at least for one page, long value or frame of the redo area. Reads it from the file and
    /// checks it as when it was first read, to find bit rot before a reader needs it: all trees
    /// with their long values, the subtrees whose free is deferred, the bitmaps and the directory
    /// of free space, both meta pages, and the records of the redo area that are durable.
    ///
    /// Between two steps nothing is held. Readers and writers go on. A checkpoint waits while a
    /// bitmap, the directory, a meta page or a frame is read, and a step that comes to one of them
    /// waits for the checkpoint that is under way.
    ///
    /// It sees the bytes that the kernel delivers, which may come from its page cache. A page or
    /// value that is found corrupt is an error for every reader from then on, whether or not it was
    /// whole before. Of the copies of a meta page those count that were whole when the store was
    /// opened.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] names the page; the next step begins before it again. [`Error::Io`] if
    /// the disk cannot read. [`Error::Poisoned`] behind the trees and the deferred frees, once a
    /// checkpoint or an append has failed: the rest of the file is unknown.
    pub fn scrub(&self, scrub: &mut Scrub, bytes_max: u64) -> Result<()> {
        scrub.step(&self.shared, bytes_max)
    }

    /// Frees pages whose free is deferred, about `bytes` of them or all of them, in a transaction
    /// of its own. Returns how many bytes it freed. [`Stats::deferred_free_bytes`] says how many
    /// wait; ordinary transactions free some as well.
    ///
    /// Reads the branches of the subtrees that were cut off, and leaves that have long values;
    /// writes no more than a transaction of a few puts.
    ///
    /// # Errors
    ///
    /// As [`PageStore::write`], and [`Error::Corrupt`] or [`Error::Io`] if a page that was cut off
    /// cannot be read: the pages that were freed before it are published as free.
    pub fn reclaim(&self, bytes: u64) -> Result<u64> {
        let mut txn = self.write()?;
        let (units, met) = txn.reclaim(bytes.div_ceil(UNIT_BYTES as u64))?;
        txn.publish()?;
        met.map(|()| units * UNIT_BYTES as u64)
    }

    /// Gives a piece of spare space, a megabyte or less, back to the file system: truncates the
    /// file by it, or punches a hole. Returns whether there was one. [`Stats::trim_punch`] says how
    /// much waits.
    ///
    /// No transaction waits for it, except one for which the file has to grow. But file systems
    /// block reads from the disk and writes meanwhile, some of them for milliseconds, so a caller
    /// that loops rests in between. [`PageStore::maintain`] does it if there is nothing else to do,
    /// and the thread of [`PageStore::maintain_in_background`] rests nine times as long as a piece
    /// takes.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`], or [`Error::Io`] if the kernel refused: then the store takes no more
    /// writes, as after a checkpoint that has failed.
    pub fn trim_punch(&self) -> Result<bool> {
        trim_punch::step(&self.shared)
    }

    /// Makes durable all that is published, in the way that [`WriteTxn::commit`] does it: mostly by
    /// one append and one sync. Returns the last durable transaction.
    ///
    /// # Errors
    ///
    /// Those of [`PageStore::checkpoint`].
    pub fn sync(&self) -> Result<u64> {
        write_txn::sync(&self.shared)
    }

    /// All transactions up to this one are durable: by a checkpoint, or by their records in the
    /// redo area.
    pub fn durable_txid(&self) -> u64 {
        self.shared.redo.durable()
    }

    /// One step of maintenance: a checkpoint if one is due, else some deferred frees, else a piece
    /// of the file is given back, else pages move, else a step of the scrub. Returns whether there
    /// was something to do. `now` is the time since any moment that stays the same.
    ///
    /// A checkpoint is due when [`Options::dirty_soft_bytes`] are in memory only, when half of the
    /// redo area is in use, or after [`Options::checkpoint_interval`].
    ///
    /// # Errors
    ///
    /// Those of [`PageStore::checkpoint`], of [`PageStore::trim_punch`], once of
    /// [`PageStore::reclaim`], and of [`PageStore::scrub`]: each time until the page is mended.
    pub fn maintain(&self, now: Duration) -> Result<bool> {
        maintenance::step(&self.shared, now).map(|done| done != MaintenanceOutcome::Nothing)
    }

    /// The next action of maintenance at `now`, a time as for [`PageStore::maintain`]: for a caller
    /// that has work of its own before a checkpoint, or that is a simulation. `is_urgent`: the
    /// caller wants a checkpoint for changes of its own. Prefaults memory for pages to come, if
    /// that is short, which may take milliseconds; holds no lock meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub fn next_maintenance(&self, now: Duration, is_urgent: bool) -> Result<MaintenanceAction> {
        maintenance::next(&self.shared, now, is_urgent)
    }

    /// Carries out an action of [`PageStore::next_maintenance`], with its `now`. A caller may make
    /// the checkpoint by [`PageStore::checkpoint`] instead. After a piece of the file went back to
    /// the file system, a caller that loops rests some times as long as that took.
    ///
    /// # Errors
    ///
    /// Those of [`PageStore::maintain`].
    pub fn run_maintenance(
        &self,
        now: Duration,
        action: MaintenanceAction,
    ) -> Result<MaintenanceOutcome> {
        maintenance::run(&self.shared, now, action)
    }

    /// Whether maintenance should be looked at now and not at its time: many bytes are in memory
    /// only, or memory for pages to come is short.
    pub fn needs_maintenance(&self) -> bool {
        let is_short = self.shared.space.lock().page_alloc.wants_slab().is_some();
        is_short || self.dirty_bytes() >= self.shared.options.dirty_soft_bytes
    }

    /// Starts a thread that calls [`PageStore::maintain`] whenever there may be something to do. As
    /// long as it runs, writers are throttled: they wait the longer, the nearer the dirty bytes
    /// come to [`Options::dirty_hard_bytes`]. It ends when a checkpoint fails, which the next
    /// writer is told.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel refuses a thread.
    pub fn maintain_in_background(&self) -> Result<MaintenanceThread> {
        MaintenanceThread::start(&self.shared)
    }

    /// Waits until a checkpoint has made transaction `txid` durable, for `timeout` at most, and
    /// returns the last checkpoint. It makes none, and stops waiting once one has failed.
    pub fn wait_for_checkpoint(&self, txid: u64, timeout: Duration) -> Option<DurableState> {
        let is_durable = || self.shared.durable.read().txid >= txid;
        let is_over = || is_durable() || self.shared.refuse_if_poisoned().is_err();
        self.shared.background.write_throttle.wait_until(timeout, is_over);
        is_durable().then(|| self.durable())
    }

    /// The state that the last checkpoint has made durable.
    pub fn durable(&self) -> DurableState {
        let root = Arc::clone(&self.shared.durable.read());
        DurableState { txid: root.txid, commit_metadata: root.commit_metadata.to_vec() }
    }

    /// Bytes that are in memory only, and that the next checkpoint writes or the running one is
    /// about to have written.
    pub fn dirty_bytes(&self) -> u64 {
        self.shared.dirty_bytes()
    }

    /// Statistics of this moment. Cheap, unless a snapshot that has pinned much has just ended:
    /// then the first caller releases the rest of what it pinned. No other thread waits for that.
    pub fn stats(&self) -> Stats {
        let dirty_bytes = self.dirty_bytes();
        let StoreShared { page_reader, counters, .. } = &*self.shared;
        self.shared.reclaim_all_ended();
        let space = self.shared.space.lock();
        let root = self.shared.current();
        let idle = space.freelist.free_units() + space.pending.units();
        assert!(
            idle < space.freelist.end(),
            "{idle} units are free or pending, and there are fewer"
        );
        let bytes = |units: u64| units * UNIT_BYTES as u64;
        Stats {
            txid: root.txid,
            durable_txid: self.shared.redo.durable(),
            oldest_txid: space.pending.oldest().unwrap_or_default(),
            root_count: space.pending.snapshot_count(),
            file_bytes: counters.file_bytes.load(Ordering::Relaxed),
            span_bytes: bytes(space.freelist.end()),
            free_bytes: bytes(space.freelist.free_units()),
            pending_bytes: bytes(space.pending.units()),
            deferred_free_bytes: bytes(root.deferred_free.units),
            dirty_bytes,
            redo_bytes: self.shared.redo.bytes().0,
            reads: ReadStats {
                retired_bytes: space.retired_bytes(),
                cached_bytes: page_reader.clean_bytes(),
                read_count: page_reader.reads(),
                scrubbed_bytes: counters.scrubbed_bytes.load(Ordering::Relaxed),
                scrub_passes: counters.scrub_passes.load(Ordering::Relaxed),
                scrub_errors: counters.scrub_errors.load(Ordering::Relaxed),
            },
            checkpoint_count: counters.checkpoints.load(Ordering::Relaxed),
            written_bytes: counters.written_bytes.load(Ordering::Relaxed),
            space_written_bytes: counters.space_written_bytes.load(Ordering::Relaxed),
            spill: SpillStats {
                old_version_bytes: space.old_version_bytes(root.txid),
                spilled_bytes: space.page_alloc.spilled_bytes(),
                file_bytes: space.page_alloc.spill_file_bytes(),
                written_bytes: counters.spill_written_bytes.load(Ordering::Relaxed),
                error_count: counters.spill_errors.load(Ordering::Relaxed),
                ended_snapshots: counters.ended_snapshots.load(Ordering::Relaxed),
            },
            trim_punch: TrimPunchStats {
                trimmed_bytes: counters.trimmed_bytes.load(Ordering::Relaxed),
                punched_bytes: counters.punched_bytes.load(Ordering::Relaxed),
                hole_bytes: bytes(space.holes.count()),
                waiting_bytes: trim_punch::waiting_bytes(&self.shared, &space),
            },
        }
    }

    /// The use of each part of the file, in `count_max` cells of equal length at most, and 256 KiB
    /// at least. For operators.
    ///
    /// Looks at two bits for each 4 KiB of the file, without reading it. The lock that writers take
    /// for moments is taken once for each 127 MiB of the file, to copy 8 KiB; readers never wait.
    /// So the parts of a large file are as of different moments, and their sums may differ from
    /// [`PageStore::stats`].
    pub fn space_map(&self, count_max: usize) -> StoreSpaceMap {
        space_map::read(count_max, |look| look(&self.shared.space.lock()))
    }

    /// Moves about `budget_bytes` of pages and long values from the end of the file to free places
    /// before it, in one transaction like any other: readers and writers go on, and a crash takes
    /// back what no checkpoint has made durable. Call it until it is done, with checkpoints in
    /// between, because moved pages are dirty until then. The file then ends at about nine eighths
    /// of the space that was in use, once two checkpoints have followed, no snapshot sees the old
    /// pages beyond, and [`PageStore::trim_punch`] has truncated it.
    ///
    /// A call looks at no more than 128 pages, so it may move less, or nothing, and not be done.
    /// Moved pages are not lost if the calls stop, or the store is closed. Long values stay where
    /// no free place before the target is long enough, and so does the redo area.
    ///
    /// # Errors
    ///
    /// Those of [`PageStore::write`], or an error of reading a page.
    pub fn defragment(&self, budget_bytes: u64) -> Result<DefragProgress> {
        defragment::step(&self.shared, budget_bytes)
    }

    /// Proves that the store is whole: every page is reachable, free or pending, and only one of
    /// them; keys are in order and lie between their separators; every page of the file is read
    /// from it and its checksum holds; the durable state is all there in the file.
    ///
    /// Takes the writer lock and waits for a running checkpoint, so it holds both up; readers go
    /// on.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] names the first thing that is not so.
    pub fn check(&self) -> Result<PageCheckReport> {
        check::run(&self.shared)
    }
}

#[cfg(test)]
impl PageStore {
    pub(crate) fn shared(&self) -> &Arc<StoreShared> {
        &self.shared
    }
}

impl std::fmt::Debug for PageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageStore").field("stats", &self.stats()).finish()
    }
}

/// Makes the file under another name first, so that a file of the right name is always whole.
fn create(fs: &dyn FileSystem, path: &Path) -> Result<Arc<dyn File>> {
    let new = with_suffix(path, ".new");
    match fs.remove(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let file = fs.open(&new, OpenMode::CreateNew)?;
    let mut pages = MetaPage::empty().encode();
    pages.resize(2 * UNIT_BYTES, 0);
    file.write_at(&pages, 0)?;
    file.sync()?;
    // The name last, and durable only with its directory.
    fs.rename(&new, path)?;
    fs.sync_dir(parent(path))?;
    Ok(file)
}

/// The directory of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// The path with a suffix appended to its name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// The meta page that counts, and a mask of the whole copies of both.
/// Takes the lock file, which keeps other stores and tools out.
pub(crate) fn lock(fs: &dyn FileSystem, path: &Path) -> Result<Box<dyn LockGuard>> {
    fs.lock(&with_suffix(path, ".lock")).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Error::Locked,
        _ => Error::Io(error),
    })
}

/// Reads both meta pages.
pub(crate) fn read_meta_pages(file: &dyn File) -> Result<Vec<u8>> {
    let mut pages = vec![0; 2 * UNIT_BYTES];
    file.read_exact_at(&mut pages, 0).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => Error::Corrupt { page: 0, what: "the file is too short" },
        _ => Error::Io(error),
    })?;
    Ok(pages)
}

fn read_meta(file: &dyn File) -> Result<(MetaPage, [u8; 2])> {
    let pages = read_meta_pages(file)?;
    let meta = MetaPage::newest(&pages)?;
    meta.verify_places()?;
    Ok((meta, MetaPage::copies(&pages)))
}

/// The records of the allocation groups, and the units in use.
fn read_groups(page_reader: &PageReader, meta: &MetaPage) -> Result<(AllocGroups, UnitSet)> {
    let ValueExtent { len: 1.., start, .. } = meta.directory else { return Ok(Default::default()) };
    let directory = page_reader.read_extent(&meta.directory)?;
    let count = group_count(meta.end);
    let (groups, used) =
        AllocGroups::load(&directory, start, count, page_reader.file(), meta.txid)?;
    if used.count_from(meta.end - META_UNITS) > 0 {
        let what = "a page beyond the end is in use by the bitmap";
        return Err(Error::Corrupt { page: meta.end, what });
    }
    Ok((groups, used))
}
