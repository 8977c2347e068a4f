//! The engine's interface: open, write, read, purge. No mechanism.

use crate::batch::log_batch::LogBatch;
use crate::commit::commit_driver::CommitDriver;
use crate::commit::commit_handle::Commit;
use crate::commit::group_commit::GroupCommit;
use crate::commit::maintenance::{self, LogMaintenance};
use crate::error::Error;
use crate::purge::purger::{self, BlockingGroup, PurgeReport, Purger};
use crate::queue::write_queue::Durability;
use crate::read::block_cache::BlockCache;
use crate::read::group::Group;
use crate::recovery::recover;
use crate::recovery::report::RecoveryReport;
use crate::segments::directory::LogDirectory;
use crate::segments::segment::Segments;
use crate::stats::{SegmentState, SegmentStats, Stats};
use flotilla_base::sync::Mutex;
use flotilla_base::sync::atomic::Ordering;
use std::sync::Arc;

/// A log for many groups in one directory. A clone is another handle of the same log.
///
/// It starts no threads unless it is told to, or a task awaits a commit: a thread that waits for a
/// write, or calls [`LogEngine::flush`], leads the group commit. A caller of
/// [`LogEngine::maintain`], or else the writers themselves, preallocate and seal segments. Batches
/// that are queued when the last handle is dropped, commits included, are not written.
#[derive(Clone, Debug)]
pub struct LogEngine {
    /// The first field: its thread ends before the log goes.
    driver: Arc<CommitDriver>,
    pub(crate) group_commit: Arc<GroupCommit>,
    pub(crate) segments: Arc<Segments>,
    /// See [`recover::RecoveredLog`].
    unsealed_by_writer: Arc<[u64]>,
    cache: Arc<BlockCache>,
    purge: Arc<Mutex<Purger>>,
}

impl LogEngine {
    /// Opens the log in the directory.
    pub(crate) fn start(directory: LogDirectory) -> Result<(LogEngine, RecoveryReport), Error> {
        let cache = Arc::new(BlockCache::new(directory.config.cache_bytes_max));
        let recovered = recover::recover(directory)?;
        let groups = Arc::new(recovered.groups);
        let (appender, pool, usage) = (recovered.appender, recovered.pool, recovered.usage);
        let group_commit = Arc::new(GroupCommit::new(appender, pool, usage, groups));
        let log = LogEngine {
            driver: Arc::new(CommitDriver::new(group_commit.clone())),
            group_commit,
            segments: recovered.segments,
            unsealed_by_writer: recovered.unsealed_by_writer.into(),
            cache,
            purge: Arc::default(),
        };
        Ok((log, recovered.report))
    }

    /// Queues a batch. Never waits for the disk. Batches are written in the order in which they are
    /// queued, each one all or not at all, and can be read once they are written.
    ///
    /// # Errors
    ///
    /// They come with the commit, and those that follow from the batch at once: a wrong batch
    /// ([`Error::Gap`], [`Error::Stale`], [`Error::Invalid`], [`Error::TooLarge`]) changes nothing
    /// and does not stand in the way of others; at [`Error::Busy`] (backpressure) the caller has to
    /// wait for earlier commits, or flush, first.
    pub fn write(&self, batch: LogBatch, durability: Durability) -> Commit {
        let queued = self.group_commit.write(batch, durability);
        Commit::new(queued, self.driver.clone())
    }

    /// Queues a sync: when it is done, all that was queued before is durable.
    pub fn sync(&self) -> Commit {
        Commit::new(self.group_commit.sync(), self.driver.clone())
    }

    /// Waits until all that is queued is carried out: one write, one sync, on the calling thread
    /// unless another does it. False if nothing was queued or being carried out.
    pub fn flush(&self) -> bool {
        self.group_commit.flush()
    }

    /// A handle of the group, if it has entries, keys, or a log that was compacted.
    #[must_use]
    pub fn group(&self, id: u64) -> Option<Group> {
        let index = self.group_commit.groups.get(id)?;
        Some(Group::new(id, index, self.segments.clone(), self.cache.clone()))
    }

    /// The ids of all groups, in order.
    #[must_use]
    pub fn group_ids(&self) -> Vec<u64> {
        self.group_commit.groups.ids()
    }

    /// Does one step of background work: preallocates the next segment, seals a full one, or, if
    /// nothing was written since the last call, writes a sync marker, by which a later start knows
    /// that the last batch was synced. True if it did, so that there may be more.
    ///
    /// Reads and writes go on meanwhile. Without calls of this, writes do such work when they
    /// cannot go on without, and take as long as that takes.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a write or sync has failed, here or earlier; [`Error::Closed`].
    pub fn maintain(&self) -> Result<bool, Error> {
        maintenance::step(&self.group_commit)
    }

    /// Starts a thread that calls [`LogEngine::maintain`] whenever there may be something to do. It
    /// stops when the returned handle is dropped, and ends with the log, which it does not keep
    /// open.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel refuses a thread; else as [`LogEngine::maintain`].
    pub fn maintain_in_background(&self) -> Result<LogMaintenance, Error> {
        self.group_commit.check()?;
        Ok(LogMaintenance::start(&self.group_commit)?)
    }

    /// Writes what is queued, makes everything durable and seals it, so that the log opens quickly
    /// and without a change on disk. Later writes, by any handle, are refused with
    /// [`Error::Closed`]; reads go on. The directory is free once the last handle is dropped.
    /// Closing again does nothing, nor does closing a log that is open for reading only.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a write or sync fails, or has failed.
    pub fn close(&self) -> Result<(), Error> {
        // No purge may write, or take files away, while the log is closed.
        let _none = self.purge.lock();
        self.group_commit.close()
    }

    /// Garbage collection: removes dead segments, oldest first, and returns the groups with live
    /// records in the oldest one that is left. Reads and writes go on meanwhile. Some files may be
    /// recycled, see [`crate::Config::spare_segments`].
    ///
    /// If the log is above [`crate::Config::purge_above_bytes`], or there is hardly room for it,
    /// dead segments behind live ones are reduced to their tombstones, and the live records of old
    /// segments that are mostly garbage are rewritten to the end of the log, so that these die: up
    /// to [`crate::Config::move_bytes_max`] in one call. So the log takes at most that limit and
    /// twice what is live. If more is live than the limit the report names groups to compact.
    ///
    /// A call that finds no room for a rewrite ends with what it has done, and is no error.
    ///
    /// # Errors
    ///
    /// Those of a write, since a batch is written if there is anything to remove;
    /// [`Error::Corrupt`] if a live record is not what was written; [`Error::Io`] if it could not
    /// be read or a file could not be removed: it is when the log is opened next.
    pub fn purge_expired_files(&self) -> Result<PurgeReport, Error> {
        if self.group_commit.pool.directory().is_read_only {
            return Err(Error::ReadOnly);
        }
        self.purge.lock().run(&self.group_commit, &self.segments)
    }

    /// Has writes that find no room on the disk wait until there is some, instead of being refused
    /// with [`Error::NoSpace`]; false, the default, ends the waits. All later writes and syncs wait
    /// behind, those that only free space too: the caller sees that by
    /// [`LogEngine::is_waiting_for_room`], and makes room. A wait takes a segment that is as short
    /// as its writes allow.
    pub fn wait_for_room(&self, is_on: bool) {
        self.group_commit.pool.room.set(is_on);
    }

    /// Whether a write waits for room now.
    #[must_use]
    pub fn is_waiting_for_room(&self) -> bool {
        self.group_commit.pool.room.is_waiting()
    }

    /// Bytes that the log's files take, preallocated and recycled ones included, as the disk quota
    /// counts them.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.group_commit.pool.disk_bytes()
    }

    /// The high-water mark of durability: every batch up to this sequence number is known to be
    /// durable.
    #[must_use]
    pub fn durable_lsn(&self) -> u64 {
        self.group_commit.counters.durable_lsn.load(Ordering::Acquire)
    }

    /// The present figures. Costs a look at every group and segment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.group_commit.counters;
        let mut stats = Stats {
            batches: counters.batches.load(Ordering::Relaxed),
            flushes: counters.flushes.load(Ordering::Relaxed),
            syncs: counters.syncs.load(Ordering::Relaxed),
            bytes_written: counters.bytes_written.load(Ordering::Relaxed),
            queued_bytes: self.group_commit.queued_bytes(),
            durable_lsn: self.durable_lsn(),
            cache_bytes: self.cache.bytes(),
            live_bytes: counters.live_bytes.load(Ordering::Relaxed),
            flush_running: counters.flush_running(),
            purge: counters.purge.load(),
            ..Stats::default()
        };
        (stats.unsealed_segments, stats.recycled_segments) = self.group_commit.pool.counts();
        for segment in self.segments.all() {
            stats.segments += 1;
            stats.reduced_segments += u64::from(segment.header.is_reduced());
            // An unreadable length is no reason to have no figures at all.
            stats.segment_bytes += segment.file.len().unwrap_or(0);
        }
        stats.groups = self.group_commit.groups.count();
        stats.index_bytes = self.group_commit.groups.memory_bytes();
        stats
    }

    /// All segments that hold batches, oldest first. Waits for the group commit that is under way.
    /// In a log that is open for reading only the last one that is not sealed counts as active,
    /// whether or not a writer has it open.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the length of a file cannot be read.
    pub fn segments(&self) -> Result<Vec<SegmentStats>, Error> {
        let mut full = self.group_commit.pool.unsealed();
        full.extend_from_slice(&self.unsealed_by_writer);
        let mut all = Vec::new();
        for segment in self.segments.all() {
            let number = segment.number();
            let state =
                if full.contains(&number) { SegmentState::Full } else { SegmentState::Sealed };
            all.push(SegmentStats { number, bytes: segment.file.len()?, live_bytes: 0, state });
        }
        self.group_commit.with_log(|log| {
            let active = log.appender.active_segment();
            let active = active.or(self.unsealed_by_writer.last().copied());
            for segment in &mut all {
                segment.live_bytes = log.usage.live(segment.number).bytes;
                if active == Some(segment.number) {
                    segment.state = SegmentState::Active;
                }
            }
        });
        Ok(all)
    }

    /// The groups with live records in the oldest segment, in order of their ids: they block the
    /// purge, as [`PurgeReport::blocking_groups`] has them. None if that segment is the one being
    /// written. Costs a look at every group.
    #[must_use]
    pub fn blocking_groups(&self) -> Vec<BlockingGroup> {
        purger::blocking_groups(&self.group_commit, &self.segments)
    }

    /// Bytes of frames written since the log was opened: [`Stats::bytes_written`], without the cost
    /// of the other figures.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.group_commit.counters.bytes_written.load(Ordering::Relaxed)
    }

    /// The error of the write or sync that poisoned the log, if one did: nothing can be written any
    /// more.
    #[must_use]
    pub fn poisoned(&self) -> Option<Error> {
        self.group_commit.poison().map(Error::Poisoned)
    }
}
