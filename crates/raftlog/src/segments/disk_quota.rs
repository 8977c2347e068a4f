//! The disk quota: how many bytes a log may take, and which writes may use the last of them.
//!
//! There are four steps. Batches that add data are refused first. A rewrite may go on into one more
//! segment, because it empties an older one; and a cheap rewrite into another one, so that purge
//! always finds room for work that pays. Batches that only free space always pass as long as the
//! disk itself has a few bytes.

use crate::batch::frame::WritePriority;
use crate::config::Config;

/// Files besides the segments that hold frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedFiles {
    /// Length of the preallocated segment.
    pub(crate) preallocated_bytes: u64,
    pub(crate) recycled_count: u64,
}

/// The quota does not allow another segment: the bytes there would be, and the limit for such a
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaExceeded {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
}

/// Room at the end of each segment that a frame has to leave for frames of a higher priority.
pub(crate) fn reserve_bytes(config: &Config, priority: WritePriority) -> u64 {
    match priority {
        WritePriority::Normal | WritePriority::CostlyRewrite => config.reserve_bytes(),
        // A rewrite must not use up the room that the purge behind it needs.
        WritePriority::Rewrite => config.reserve_bytes() / 2,
        WritePriority::Reclaim => 0,
    }
}

/// All bytes on disk, if the segments take `segment_bytes`. Recycled segments count as full-sized.
pub(crate) fn disk_bytes(
    config: &Config,
    segment_bytes: u64,
    reserved_files: ReservedFiles,
) -> u64 {
    segment_bytes
        + reserved_files.preallocated_bytes
        + reserved_files.recycled_count * config.segment_bytes
}

/// Whether the log may go on in a segment of `wanted_bytes`, for a frame of this priority. It is
/// the preallocated one, or is made of a recycled one, or of nothing.
pub(crate) fn check(
    config: &Config,
    segment_bytes: u64,
    reserved_files: ReservedFiles,
    wanted_bytes: u64,
    priority: WritePriority,
) -> Result<(), QuotaExceeded> {
    let Some(limit) = config.disk_bytes_max.filter(|_| config.disk_quota_refuses) else {
        return Ok(());
    };
    let there = match reserved_files {
        ReservedFiles { preallocated_bytes: 1.., .. } => reserved_files.preallocated_bytes,
        ReservedFiles { recycled_count: 1.., .. } => config.segment_bytes,
        ReservedFiles { .. } => 0,
    };
    let bytes =
        disk_bytes(config, segment_bytes, reserved_files) + wanted_bytes.saturating_sub(there);
    let limit = match priority {
        WritePriority::Normal => limit.saturating_sub(2 * config.segment_bytes),
        WritePriority::CostlyRewrite => limit.saturating_sub(config.segment_bytes),
        WritePriority::Rewrite => limit,
        WritePriority::Reclaim => u64::MAX,
    };
    if bytes > limit { Err(QuotaExceeded { bytes, limit }) } else { Ok(()) }
}

/// Whether so little of the quota is left that purge should free space at any price.
pub(crate) fn is_near(config: &Config, segment_bytes: u64, reserved_files: ReservedFiles) -> bool {
    let bytes = disk_bytes(config, segment_bytes, reserved_files) + 3 * config.segment_bytes;
    config.disk_bytes_max.is_some_and(|limit| bytes > limit)
}

/// How many recycled segments there may be.
pub(crate) fn recycled_count_max(
    config: &Config,
    segment_bytes: u64,
    preallocated_bytes: u64,
) -> u64 {
    let wanted = config.spare_segments as u64;
    let Some(limit) = config.disk_bytes_max else { return wanted };
    // Some segments are left free, or the log would always seem to be near its limit.
    let taken = segment_bytes + preallocated_bytes + 3 * config.segment_bytes;
    wanted.min(limit.saturating_sub(taken) / config.segment_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: ReservedFiles = ReservedFiles { preallocated_bytes: 0, recycled_count: 0 };

    fn config() -> Config {
        Config { segment_bytes: 10_000, disk_bytes_max: Some(100_000), ..Config::default() }
    }

    #[test]
    fn who_frees_passes_longest() {
        let fits =
            |segment_bytes, priority| check(&config(), segment_bytes, NONE, 10_000, priority);
        assert_eq!(fits(70_000, WritePriority::Normal), Ok(()));
        let over = QuotaExceeded { bytes: 80_001, limit: 80_000 };
        assert_eq!(fits(70_001, WritePriority::Normal), Err(over));
        assert_eq!(fits(80_000, WritePriority::CostlyRewrite), Ok(()));
        let over = QuotaExceeded { bytes: 90_001, limit: 90_000 };
        assert_eq!(fits(80_001, WritePriority::CostlyRewrite), Err(over));
        assert_eq!(
            (fits(90_000, WritePriority::Rewrite), fits(900_000, WritePriority::Reclaim)),
            (Ok(()), Ok(()))
        );
        let over = QuotaExceeded { bytes: 100_001, limit: 100_000 };
        assert_eq!(fits(90_001, WritePriority::Rewrite), Err(over));
        let advisory = Config { disk_quota_refuses: false, ..config() };
        assert_eq!(check(&advisory, 900_000, NONE, 10_000, WritePriority::Normal), Ok(()));
        assert!(is_near(&advisory, 900_000, NONE));
        let unlimited = Config { disk_bytes_max: None, ..config() };
        assert_eq!(check(&unlimited, 900_000, NONE, 10_000, WritePriority::Normal), Ok(()));
    }

    #[test]
    fn what_is_there_already_is_not_counted_twice() {
        let ahead = ReservedFiles { preallocated_bytes: 10_000, recycled_count: 0 };
        assert_eq!(check(&config(), 70_000, ahead, 10_000, WritePriority::Normal), Ok(()));
        assert!(check(&config(), 70_000, ahead, 10_001, WritePriority::Normal).is_err());
        let spares = ReservedFiles { preallocated_bytes: 0, recycled_count: 2 };
        assert_eq!(check(&config(), 60_000, spares, 10_000, WritePriority::Normal), Ok(()));
        assert!(check(&config(), 60_001, spares, 10_000, WritePriority::Normal).is_err());
        assert!(!is_near(&config(), 50_000, spares) && is_near(&config(), 50_001, spares));
    }

    #[test]
    fn spares_leave_room() {
        let config = Config { spare_segments: 3, ..config() };
        let counts = [0, 40_000, 45_000, 60_000, 65_000, 200_000]
            .map(|bytes| recycled_count_max(&config, bytes, 0));
        assert_eq!(counts, [3, 3, 2, 1, 0, 0]);
    }
}
