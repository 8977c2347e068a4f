//! The configuration of a log, and its limits.

use crate::error::Error;
use std::fmt::Display;
use std::sync::LazyLock;

/// The largest batch, whatever the configuration says: offsets within a segment are 32 bits.
pub(crate) const BATCH_BYTES_CEILING: u64 = 1 << 30;

/// The query for the number of cores reads several files, and the number does not change.
static RECOVERY_THREADS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)));

/// How the engine uses disk and memory: the defaults, and what [`Config::segment_bytes`] and its
/// neighbours change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Size at which a segment is full, in bytes; all of it is allocated when the segment is made.
    /// Default 64 MiB, least 4 KiB, at most 1 GiB. The first segments after opening are shorter, a
    /// 64th of it and more each time, so that a log of a few records takes little room. A batch
    /// that is larger gets a segment of its own size. Purge frees whole segments, so smaller ones
    /// free space earlier.
    pub segment_bytes: u64,
    /// Largest encoded batch, in bytes. Default 64 MiB, at most 1 GiB.
    pub batch_bytes_max: u64,
    /// Most bytes of batches that are queued or being written; above it a write is refused with
    /// [`Error::Busy`], which is the backpressure of the log. Default 256 MiB. A single batch is
    /// taken whatever its size if the queue is empty. This is also the most memory that writes can
    /// hold.
    pub queue_bytes_max: u64,
    /// How many dead segments are recycled: writing to such a file is cheaper than to a new one,
    /// which is filled with zeros first if the log is synced often and little at a time. Default 4.
    /// They count in none of the figures but [`crate::Stats::recycled_segments`], and take up to
    /// `segment_bytes` of disk each. A dead segment that is much shorter than the next one would be
    /// is not recycled. A log with a [`crate::LogMaintenance`] has more of them for some seconds
    /// after a purge: they are given back to the file system in pieces.
    pub spare_segments: usize,
    /// Appends with more data than this are compressed, in the thread that writes them; see
    /// `docs/log-format.md`. Default 8 KiB: less is too short to become much smaller. `u64::MAX`:
    /// nothing is compressed.
    pub compress_above_bytes: u64,
    /// Most bytes of the cache of decompressed blocks. Default 32 MiB; with 0 each read
    /// decompresses again. A block that is seldom read is not cached, nor one of a long range: to
    /// decompress it again is as quick.
    pub cache_bytes_max: u64,
    /// How opening treats batches at the end of the log that were being written when the power or
    /// the process went, and damage. Default [`RecoveryMode::TolerateTail`].
    pub recovery: RecoveryMode,
    /// How many threads read segments when the log is opened. Default as many as the machine has
    /// cores, at most 4. With 1 no thread is started: the caller's reads.
    pub recovery_threads: usize,
    /// Bytes of the newest segments that purge leaves alone. Default 1 GiB. Of older ones it
    /// rewrites the live records of those that are mostly garbage; the log takes at most this and
    /// twice what is live. Below it nothing is rewritten, and segments go as they die: the higher
    /// it is, the more records die by themselves, and the lower is the write amplification.
    pub purge_above_bytes: u64,
    /// Most bytes that one call of purge rewrites, and so about how much it reads and writes; later
    /// calls go on. Default 64 MiB; with 0 nothing is ever rewritten.
    pub move_bytes_max: u64,
    /// The live part of an old segment, from 0 to 1, up to which purge rewrites it. If more is live
    /// it would cost more than it gains, and the segment stays; dead ones behind it are reduced to
    /// their tombstones. Default 0.5: at most as much is written again as is freed.
    pub move_live_ratio_max: f64,
    /// The disk quota: most bytes that the files of the log take, preallocated and recycled
    /// segments included. Default `None`: no quota. Batches that add data may not take the last two
    /// segments of it: once there is no room below, they are refused with [`crate::Error::Full`].
    /// The two are for rewrites of purge, and for batches that only free space, which always pass.
    /// At least eight segments.
    pub disk_bytes_max: Option<u64>,
    /// Whether the disk quota refuses batches. Default true. With false it only makes purge and
    /// recycling free space as they do near it, and no batch is refused: for a caller that looks at
    /// [`crate::LogEngine::disk_bytes`] and holds its own writers back, while votes and the like
    /// still pass.
    pub disk_quota_refuses: bool,
    /// Whether the first task that awaits a commit starts a thread, which from then on carries out
    /// what tasks await. Default true. With false the poll carries it out itself and waits for the
    /// disk: for a simulator, whose threads are all its own.
    pub commit_thread: bool,
    /// The salt of the checksums of frames, so that a client that only chooses the data cannot make
    /// bytes that pass for a frame. `None`, the default, draws one for each segment from the
    /// operating system; a test that must repeat byte for byte sets it.
    pub salt: Option<u64>,
}

/// How opening a log treats a torn end and damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryMode {
    /// It is an error, and nothing is changed.
    Strict,
    /// Batches that were never acknowledged as synced are cut off; see
    /// [`crate::RecoveryReport::torn_bytes`].
    #[default]
    TolerateTail,
    /// The same; and if bytes that were synced are damaged or missing, the whole part of the log
    /// takes its place, see [`crate::RecoveryReport::salvaged`] and [`crate::salvage()`].
    /// **Acknowledged writes are then lost**, so a member of a raft group that was opened in this
    /// way must not vote before it is brought up to date, or must be replaced. It takes as much
    /// room again. Segments that were damaged stay in the directory, renamed to `damaged-...`,
    /// until an operator removes them; as long as they are there, a log that is damaged once more
    /// does not open. Only damage that opening sees counts: it does not read the entries of sealed
    /// segments.
    Salvage,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segment_bytes: 64 << 20,
            batch_bytes_max: 64 << 20,
            queue_bytes_max: 256 << 20,
            spare_segments: 4,
            compress_above_bytes: 8 << 10,
            cache_bytes_max: 32 << 20,
            recovery: RecoveryMode::TolerateTail,
            recovery_threads: *RECOVERY_THREADS,
            purge_above_bytes: 1 << 30,
            move_bytes_max: 64 << 20,
            move_live_ratio_max: 0.5,
            disk_bytes_max: None,
            disk_quota_refuses: true,
            commit_thread: true,
            salt: None,
        }
    }
}

impl Config {
    /// With another [`Config::segment_bytes`](field@Config::segment_bytes).
    #[must_use]
    pub fn segment_bytes(mut self, segment_bytes: u64) -> Config {
        self.segment_bytes = segment_bytes;
        self
    }

    /// With another [`Config::batch_bytes_max`](field@Config::batch_bytes_max).
    #[must_use]
    pub fn batch_bytes_max(mut self, batch_bytes_max: u64) -> Config {
        self.batch_bytes_max = batch_bytes_max;
        self
    }

    /// With another [`Config::queue_bytes_max`](field@Config::queue_bytes_max).
    #[must_use]
    pub fn queue_bytes_max(mut self, queue_bytes_max: u64) -> Config {
        self.queue_bytes_max = queue_bytes_max;
        self
    }

    /// With another [`Config::spare_segments`](field@Config::spare_segments).
    #[must_use]
    pub fn spare_segments(mut self, spare_segments: usize) -> Config {
        self.spare_segments = spare_segments;
        self
    }

    /// With another [`Config::compress_above_bytes`](field@Config::compress_above_bytes).
    #[must_use]
    pub fn compress_above_bytes(mut self, compress_above_bytes: u64) -> Config {
        self.compress_above_bytes = compress_above_bytes;
        self
    }

    /// With another [`Config::cache_bytes_max`](field@Config::cache_bytes_max).
    #[must_use]
    pub fn cache_bytes_max(mut self, cache_bytes_max: u64) -> Config {
        self.cache_bytes_max = cache_bytes_max;
        self
    }

    /// With another [`Config::recovery`](field@Config::recovery).
    #[must_use]
    pub fn recovery(mut self, recovery: RecoveryMode) -> Config {
        self.recovery = recovery;
        self
    }

    /// With another [`Config::recovery_threads`](field@Config::recovery_threads).
    #[must_use]
    pub fn recovery_threads(mut self, recovery_threads: usize) -> Config {
        self.recovery_threads = recovery_threads;
        self
    }

    /// With another [`Config::purge_above_bytes`](field@Config::purge_above_bytes).
    #[must_use]
    pub fn purge_above_bytes(mut self, purge_above_bytes: u64) -> Config {
        self.purge_above_bytes = purge_above_bytes;
        self
    }

    /// With another [`Config::move_bytes_max`](field@Config::move_bytes_max).
    #[must_use]
    pub fn move_bytes_max(mut self, move_bytes_max: u64) -> Config {
        self.move_bytes_max = move_bytes_max;
        self
    }

    /// With another [`Config::move_live_ratio_max`](field@Config::move_live_ratio_max).
    #[must_use]
    pub fn move_live_ratio_max(mut self, move_live_ratio_max: f64) -> Config {
        self.move_live_ratio_max = move_live_ratio_max;
        self
    }

    /// With another [`Config::disk_quota_refuses`](field@Config::disk_quota_refuses).
    #[must_use]
    pub fn disk_quota_refuses(mut self, disk_quota_refuses: bool) -> Config {
        self.disk_quota_refuses = disk_quota_refuses;
        self
    }

    /// With another [`Config::disk_bytes_max`](field@Config::disk_bytes_max).
    #[must_use]
    pub fn disk_bytes_max(mut self, disk_bytes_max: Option<u64>) -> Config {
        self.disk_bytes_max = disk_bytes_max;
        self
    }

    /// With another [`Config::commit_thread`](field@Config::commit_thread).
    #[must_use]
    pub fn commit_thread(mut self, commit_thread: bool) -> Config {
        self.commit_thread = commit_thread;
        self
    }

    /// With another [`Config::salt`](field@Config::salt).
    #[must_use]
    pub fn salt(mut self, salt: Option<u64>) -> Config {
        self.salt = salt;
        self
    }

    /// Checks the limits, as opening a log does first. An embedder may do so earlier, where it
    /// reads its settings.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] about the first field that is out of its limits; its text begins with the
    /// name of that field.
    pub fn check(&self) -> Result<(), Error> {
        if !(4 << 10..=1 << 30).contains(&self.segment_bytes) {
            return wrong("segment_bytes", self.segment_bytes, "between 4 KiB and 1 GiB");
        }
        if self.batch_bytes_max == 0 || self.batch_bytes_max > BATCH_BYTES_CEILING {
            return wrong("batch_bytes_max", self.batch_bytes_max, "between 1 byte and 1 GiB");
        }
        if self.recovery_threads == 0 {
            return wrong("recovery_threads", self.recovery_threads, "at least 1");
        }
        if self.queue_bytes_max == 0 {
            return wrong("queue_bytes_max", self.queue_bytes_max, "at least 1");
        }
        if !(0.0..=1.0).contains(&self.move_live_ratio_max) {
            return wrong("move_live_ratio_max", self.move_live_ratio_max, "between 0 and 1");
        }
        if let Some(limit) = self.disk_bytes_max
            && limit / 8 < self.segment_bytes
        {
            return wrong("disk_bytes_max", limit, "at least eight segments");
        }
        Ok(())
    }

    /// Room at the end of each segment that only batches which free space may use, so that a full
    /// disk can still be purged.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        (self.segment_bytes / 16).min(64 << 10)
    }

    /// The number for a new segment's checksums.
    pub(crate) fn draw_salt(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        // The keys of a hash map are the one random source in the standard library.
        self.salt.unwrap_or_else(|| {
            std::collections::hash_map::RandomState::new().build_hasher().finish()
        })
    }
}

fn wrong(field: &str, value: impl Display, limits: &str) -> Result<(), Error> {
    Err(Error::Invalid(format!("{field} is {value} and must be {limits}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked() {
        assert!(Config::default().check().is_ok());
        for wrong in [
            Config { segment_bytes: 4095, ..Config::default() },
            Config { segment_bytes: (1 << 30) + 1, ..Config::default() },
            Config { batch_bytes_max: 0, ..Config::default() },
            Config { batch_bytes_max: (1 << 30) + 1, ..Config::default() },
            Config { queue_bytes_max: 0, ..Config::default() },
            Config { recovery_threads: 0, ..Config::default() },
            Config { move_live_ratio_max: -0.1, ..Config::default() },
            Config { move_live_ratio_max: 1.1, ..Config::default() },
            Config { move_live_ratio_max: f64::NAN, ..Config::default() },
            Config { disk_bytes_max: Some((512 << 20) - 1), ..Config::default() },
        ] {
            let Err(Error::Invalid(what)) = wrong.check() else { panic!("{wrong:?}") };
            // The field is a word of the text that `Debug` writes, and the first of this one.
            let field = what.split(' ').next().unwrap();
            assert!(format!("{wrong:?}").contains(&format!(" {field}: ")), "{what}");
        }
    }

    #[test]
    fn salts_differ_unless_set() {
        let drawn = Config::default();
        assert_ne!(drawn.draw_salt(), drawn.draw_salt());
        assert_eq!(Config { salt: Some(7), ..Config::default() }.draw_salt(), 7);
    }
}
