//! Options of a store and of a tree, and the fixed limits of keys, values and names.

use std::time::Duration;

/// The longest key in bytes: 8 KiB of the user's and room for what a layer above puts before it.
pub const KEY_BYTES_MAX: usize = 8192 + 64;

/// The longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// The longest commit metadata in bytes.
pub const COMMIT_METADATA_BYTES_MAX: usize = 64;

/// The longest name of a tree in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// How pages that the file has are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadMode {
    /// From a memory map of the file, where the file system maps: without a copy, a lock or a
    /// count, and pages that are read often stay in memory as long as the kernel has room. Where
    /// the disk cannot read a page, the process ends by the signal `SIGBUS`. Where the file system
    /// does not map, as [`ReadMode::Cached`].
    #[default]
    Mapped,
    /// Read into a cache of the store's own, of [`Options::cache_bytes`]. A page that the disk
    /// cannot read is an error.
    Cached,
}

/// Options of one tree, chosen when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeOptions {
    /// How many units of 4 KiB the pages of the tree are long, but for those of which a long key
    /// wants more. 1 to 15, default 1. Values up to a quarter of it, or of 1920 bytes if that is
    /// more, lie in the page; longer ones lie by themselves.
    ///
    /// With longer pages a scan is faster, a tree is lower, and fewer values lie by themselves. But
    /// the first change of a page in a transaction copies all of it, a checkpoint writes all of it,
    /// and a get reads all of it once.
    pub page_units: u32,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions { page_units: 1 }
    }
}

impl TreeOptions {
    /// The defaults with pages of another length; see [`TreeOptions::page_units`].
    #[must_use]
    pub fn page_units(mut self, units: u32) -> TreeOptions {
        self.page_units = units;
        self
    }
}

/// Two limits of what is in memory only, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Above it a writer waits, the longer the further.
    pub soft_bytes: u64,
    /// At it a writer waits until there is less. Taken as no less than the first.
    pub hard_bytes: u64,
}

/// Options of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How pages that the file has are read. Default [`ReadMode::Mapped`].
    pub read_mode: ReadMode,
    /// Bytes of clean pages to keep in memory where the file is not mapped. Default 64 MiB, least
    /// 1 MiB (less is taken as that). Pages not yet in the file come on top:
    /// [`PageStore::dirty_bytes`] says how many.
    ///
    /// [`PageStore::dirty_bytes`]: crate::PageStore::dirty_bytes
    pub cache_bytes: u64,
    /// The file grows in steps of this many bytes, reserved before anything is written to them.
    /// Default 1 MiB; 0 reserves exactly as much as is needed.
    pub growth_bytes: u64,
    /// Most bytes of the redo area, which makes it quick to commit with
    /// [`CommitDurability::Sync`]. The first such commit makes one of a 64th of this, at least 64
    /// KiB. A checkpoint that finds half of it in use makes it twice as long, and one that a commit
    /// had to wait for, because it did not fit, four times. It never gets shorter. Default 32 MiB,
    /// most 126 MiB; 0 makes none, and such a commit then costs a checkpoint.
    ///
    /// A longer one makes checkpoints rarer, and opening the store after a crash slower: it reads
    /// the area and does again what the last checkpoint lacks.
    ///
    /// [`CommitDurability::Sync`]: crate::CommitDurability::Sync
    pub redo_bytes: u64,
    /// This many dirty bytes, which are in memory only, make [`PageStore::maintain`] begin a
    /// checkpoint: the soft limit. Default 256 MiB.
    ///
    /// [`PageStore::maintain`]: crate::PageStore::maintain
    pub dirty_soft_bytes: u64,
    /// The hard limit. As long as a [`MaintenanceThread`] runs, the dirty bytes that its checkpoint
    /// has not yet written stay below this: writers are throttled. Pages that it has written stay
    /// in memory until it ends, up to as much again. The memory of long values is up to twice their
    /// length, and is kept for the next ones until nothing has changed for a minute. Default 512
    /// MiB.
    ///
    /// [`MaintenanceThread`]: crate::MaintenanceThread
    pub dirty_hard_bytes: u64,
    /// This many bytes that only old snapshots need stay in memory. If a checkpoint finds more, it
    /// writes them to a temporary file next to the page file, where files may be mapped
    /// ([`ReadMode::Mapped`]). Memory of pages of one unit, and of most long values, can be written
    /// so; the rest stays. Below 2 MiB even that of few pages is, 2 MiB at a time. Default 64 MiB.
    pub old_version_bytes: u64,
    /// If snapshots keep more than this many bytes of the disk, in the page file and in the
    /// temporary file of [`Options::old_version_bytes`], [`PageStore::maintain`] ends the oldest
    /// one, but none before it is 10 s old, and one a second: its next read is
    /// [`Error::SnapshotTooOld`], and the space is free when it is dropped. Default 16 GiB.
    ///
    /// [`Error::SnapshotTooOld`]: crate::Error::SnapshotTooOld
    /// [`PageStore::maintain`]: crate::PageStore::maintain
    pub old_version_disk_bytes: u64,
    /// [`PageStore::maintain`] makes a checkpoint after this time with changes. Default 5 s; none:
    /// time alone is no reason.
    ///
    /// [`PageStore::maintain`]: crate::PageStore::maintain
    pub checkpoint_interval: Option<Duration>,
    /// The rate limit of a checkpoint of [`PageStore::maintain`], in bytes a second. It does not
    /// hold while a caller waits for the checkpoint or memory or the redo area run short. Default
    /// 0: no limit.
    ///
    /// [`PageStore::maintain`]: crate::PageStore::maintain
    pub checkpoint_bytes_per_second: u64,
    /// The file is truncated when this many bytes at its end are free. Default 64 MiB; less than a
    /// step of growth is taken as that.
    pub trim_bytes: u64,
    /// Free runs of this many bytes elsewhere in the file are punched out, so that they become
    /// holes of it, when they have stayed free over eight checkpoints. Default 1 MiB; less than 512
    /// KiB is taken as that.
    pub punch_bytes: u64,
    /// About this many bytes of the pages that one operation cuts off from a tree are freed with
    /// it, a branch page and its leaves at a time; the others are *deferred*:
    /// [`PageStore::reclaim`] and ordinary transactions free them later. Default 1 MiB; 0: all of
    /// them are deferred.
    ///
    /// [`PageStore::reclaim`]: crate::PageStore::reclaim
    pub reclaim_at_once_bytes: u64,
    /// Bytes that [`PageStore::maintain`] moves from the end of the file to free places before it
    /// between two checkpoints, so that the file can be truncated. Default 0: none.
    ///
    /// [`PageStore::maintain`]: crate::PageStore::maintain
    pub defragment_bytes: u64,
    /// The free part of the file, 0 to 1, from which on it moves them. Default 0.5.
    pub defragment_free_ratio_min: f64,
    /// The time in which [`PageStore::maintain`] reads the whole file again to find bit rot, over
    /// and over: in small pieces at equal intervals, when the store is idle. A store that never is
    /// takes up to eight times as long for a pass. Default 7 days; none: it reads nothing again.
    ///
    /// [`PageStore::maintain`]: crate::PageStore::maintain
    pub scrub_interval: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_mode: ReadMode::default(),
            cache_bytes: 64 << 20,
            growth_bytes: 1 << 20,
            redo_bytes: 32 << 20,
            dirty_soft_bytes: 256 << 20,
            dirty_hard_bytes: 512 << 20,
            old_version_bytes: 64 << 20,
            old_version_disk_bytes: 16 << 30,
            checkpoint_interval: Some(Duration::from_secs(5)),
            checkpoint_bytes_per_second: 0,
            trim_bytes: 64 << 20,
            punch_bytes: 1 << 20,
            reclaim_at_once_bytes: 1 << 20,
            defragment_bytes: 0,
            defragment_free_ratio_min: 0.5,
            scrub_interval: Some(Duration::from_secs(7 * 24 * 60 * 60)),
        }
    }
}

impl Options {
    /// The defaults with another way of reading; see [`Options::read_mode`].
    #[must_use]
    pub fn read_mode(mut self, mode: ReadMode) -> Options {
        self.read_mode = mode;
        self
    }

    /// The defaults with another size of the cache; see [`Options::cache_bytes`].
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Options {
        self.cache_bytes = bytes;
        self
    }

    /// The defaults with another step of growth; see [`Options::growth_bytes`].
    #[must_use]
    pub fn growth_bytes(mut self, bytes: u64) -> Options {
        self.growth_bytes = bytes;
        self
    }

    /// The defaults with another size of the redo area; see [`Options::redo_bytes`].
    #[must_use]
    pub fn redo_bytes(mut self, bytes: u64) -> Options {
        self.redo_bytes = bytes;
        self
    }

    /// The defaults with other limits of what is in memory only; see [`Options::dirty_soft_bytes`]
    /// and [`Options::dirty_hard_bytes`]. The second is taken as no less than the first.
    #[must_use]
    pub fn dirty_bytes(mut self, soft: u64, hard: u64) -> Options {
        self.dirty_soft_bytes = soft;
        self.dirty_hard_bytes = hard;
        self
    }

    /// The defaults with another limit of the memory for old snapshots; see
    /// [`Options::old_version_bytes`].
    #[must_use]
    pub fn old_version_bytes(mut self, bytes: u64) -> Options {
        self.old_version_bytes = bytes;
        self
    }

    /// The defaults with another limit of the disk space for old snapshots; see
    /// [`Options::old_version_disk_bytes`].
    #[must_use]
    pub fn old_version_disk_bytes(mut self, bytes: u64) -> Options {
        self.old_version_disk_bytes = bytes;
        self
    }

    /// The defaults with another time between checkpoints; see [`Options::checkpoint_interval`].
    #[must_use]
    pub fn checkpoint_interval(mut self, interval: Option<Duration>) -> Options {
        self.checkpoint_interval = interval;
        self
    }

    /// The defaults with a limit of what checkpoints write; see
    /// [`Options::checkpoint_bytes_per_second`].
    #[must_use]
    pub fn checkpoint_bytes_per_second(mut self, bytes: u64) -> Options {
        self.checkpoint_bytes_per_second = bytes;
        self
    }

    pub(crate) fn limits(&self) -> DirtyLimits {
        let hard_bytes = self.dirty_hard_bytes.max(self.dirty_soft_bytes);
        DirtyLimits { soft_bytes: self.dirty_soft_bytes, hard_bytes }
    }

    /// The defaults with another hysteresis of the end of the file; see [`Options::trim_bytes`].
    #[must_use]
    pub fn trim_bytes(mut self, bytes: u64) -> Options {
        self.trim_bytes = bytes;
        self
    }

    /// The defaults with another length of the free runs that become holes; see
    /// [`Options::punch_bytes`].
    #[must_use]
    pub fn punch_bytes(mut self, bytes: u64) -> Options {
        self.punch_bytes = bytes;
        self
    }

    /// The defaults with defragmentation by maintenance; see [`Options::defragment_bytes`] and
    /// [`Options::defragment_free_ratio_min`].
    #[must_use]
    pub fn defragment(mut self, bytes: u64, free_ratio_min: f64) -> Options {
        self.defragment_bytes = bytes;
        self.defragment_free_ratio_min = free_ratio_min;
        self
    }

    /// The defaults with another time for a pass of the scrub; see [`Options::scrub_interval`].
    #[must_use]
    pub fn scrub_interval(mut self, interval: Option<Duration>) -> Options {
        self.scrub_interval = interval;
        self
    }

    /// The defaults with another share of pages that are freed at once; see
    /// [`Options::reclaim_at_once_bytes`].
    #[must_use]
    pub fn reclaim_at_once_bytes(mut self, bytes: u64) -> Options {
        self.reclaim_at_once_bytes = bytes;
        self
    }
}
