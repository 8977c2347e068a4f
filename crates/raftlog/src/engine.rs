//! The engine: open, write, read, purge. The API, no mechanism.

use crate::batch::LogBatch;
use crate::commit::Commit;
use crate::config::Config;
use crate::error::Error;
use crate::group::Group;
use crate::group_commit::{Durability, GroupCommit};
use crate::purge::{self, Purged};
use crate::queue::{Directory, Segments};
use crate::recovery::{self, RecoveryReport};
use crate::stats::Stats;
use flotilla_vfs::FileSystem;
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LOCK_FILE: &str = "LOCK";

/// A log for many groups in one directory. A clone is another handle of the same log.
///
/// It starts no threads: what is written is carried out by those who wait for it or call
/// [`LogEngine::flush`]. What is queued when the last handle goes, commits included, is not written.
#[derive(Clone, Debug)]
pub struct LogEngine {
    group_commit: Arc<GroupCommit>,
    segments: Arc<Segments>,
    one_purge: Arc<Mutex<()>>,
}

impl LogEngine {
    /// Opens the log in `dir`, which is made if missing. Reads all of it.
    ///
    /// What a crash left of batches that were never acknowledged as synced is cut off; see
    /// [`RecoveryReport::torn_bytes`]. All that is then in the log is durable.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if somebody has it open; [`Error::Corrupt`] if bytes that were synced are
    /// damaged or missing, and then nothing on disk was changed; [`Error::Invalid`] if the
    /// configuration is; [`Error::NoSpace`] if there is no room for a first segment; [`Error::Io`].
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        config: Config,
    ) -> Result<(LogEngine, RecoveryReport), Error> {
        config.check()?;
        fs.create_dir_all(dir)?;
        let lock = fs.lock(&dir.join(LOCK_FILE)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::Locked,
            _ => error.into(),
        })?;
        let directory = Directory { fs, path: dir.to_owned(), config, _lock: lock };
        let recovered = recovery::recover(directory)?;
        let groups = Arc::new(recovered.groups);
        let group_commit = Arc::new(GroupCommit::new(recovered.queue, recovered.ledger, groups));
        let segments = recovered.segments;
        Ok((LogEngine { group_commit, segments, one_purge: Arc::default() }, recovered.report))
    }

    /// Queues a batch. Never waits for the disk. Batches are written in the order in which they are
    /// queued, each one all or not at all, and can be read once they are written.
    ///
    /// # Errors
    ///
    /// They come with the commit, and those that follow from the batch at once: a wrong batch
    /// ([`Error::Gap`], [`Error::Stale`], [`Error::Invalid`], [`Error::TooLarge`]) changes nothing
    /// and does not stand in the way of others; at [`Error::Busy`] the caller has to wait for
    /// earlier commits, or flush, first.
    pub fn write(&self, batch: LogBatch, durability: Durability) -> Commit {
        let slot = self.group_commit.write(batch, durability);
        Commit::new(slot, self.group_commit.clone())
    }

    /// Queues a sync: when it is done, all that was queued before is durable.
    pub fn sync(&self) -> Commit {
        Commit::new(self.group_commit.sync(), self.group_commit.clone())
    }

    /// Carries out one group commit on the calling thread: one write, one sync, for all that is
    /// queued. Waits for the one that another thread carries out. False if nothing was queued.
    pub fn flush(&self) -> bool {
        self.group_commit.flush()
    }

    /// A handle of the group, if it has entries, keys, or a log that was compacted.
    #[must_use]
    pub fn group(&self, id: u64) -> Option<Group> {
        let index = self.group_commit.groups.get(id)?;
        Some(Group::new(id, index, self.segments.clone()))
    }

    /// The ids of all groups, in order.
    #[must_use]
    pub fn group_ids(&self) -> Vec<u64> {
        self.group_commit.groups.ids()
    }

    /// Removes segments of which nothing is needed, oldest first, and names the groups that hold
    /// the oldest one left. Reads go on meanwhile; writes wait for a short while.
    ///
    /// # Errors
    ///
    /// Those of a write, since a batch is written if there is anything to remove; [`Error::Io`] if
    /// a file could not be removed: the next purge tries again.
    pub fn purge(&self) -> Result<Purged, Error> {
        let _one = self.one_purge.lock();
        purge::purge(&self.group_commit, &self.segments)
    }

    /// Every batch up to this sequence number is known to be durable.
    #[must_use]
    pub fn durable_lsn(&self) -> u64 {
        self.group_commit.counters.durable_lsn.load(Ordering::Acquire)
    }

    /// Figures of the moment. Costs a look at every group and segment.
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
            live_bytes: counters.live_bytes.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for number in self.segments.numbers() {
            if let Some(segment) = self.segments.get(number) {
                stats.segments += 1;
                // A length that cannot be read is no reason to have no figures at all.
                stats.segment_bytes += segment.file.len().unwrap_or(0);
            }
        }
        stats.groups = self.group_commit.groups.count();
        stats.index_bytes = self.group_commit.groups.memory_bytes();
        stats
    }

    /// Whether a write or sync has failed, and with what: from then on nothing can be written.
    #[must_use]
    pub fn poisoned(&self) -> Option<Error> {
        self.group_commit.poison().map(Error::Poisoned)
    }
}
