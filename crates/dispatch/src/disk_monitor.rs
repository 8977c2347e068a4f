//! The judgement about a disk: how full it is, by the space that is left and by the log's own
//! limit, and when the reserve is given up and made again.
//!
//! A usage begins below its bound and ends an eighth above it, so that one purge more or less does
//! not turn leaders and puts away and back again. The reserve counts as taken also while it is
//! given up: else giving it up would look like room.

use flotilla_region::DiskUsage;

/// Bounds on the space of a disk. Of two bounds for one thing the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskLimits {
    /// Free part, from 0 to 1, below which the disk is almost full.
    pub almost_full_ratio: f64,
    /// Free bytes below which it is full.
    pub full_bytes: u64,
    /// Free part below which it is full.
    pub full_ratio: f64,
    /// Bytes of the reserve; 0 for none.
    pub reserve_bytes: u64,
    /// Bytes that the log may take, if that is bounded.
    pub log_bytes_max: Option<u64>,
    /// Bytes of one of the log's files.
    pub log_segment_bytes: u64,
}

/// The space of a disk at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// The size of the file system.
    pub total_bytes: u64,
    /// The room that it has left.
    pub free_bytes: u64,
    /// Bytes that the log takes.
    pub log_bytes: u64,
    /// A write to the log waits for room.
    pub is_write_waiting: bool,
    /// The reserve is there.
    pub is_reserve_held: bool,
}

/// The next step with the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveAction {
    /// Give it up: what is written now needs its room.
    Release,
    /// Make it again.
    Make,
}

/// A look at a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLook {
    /// The usage now.
    pub usage: DiskUsage,
    /// The usage before, if that is another usage.
    pub changed_from: Option<DiskUsage>,
    /// The log's own limit makes it as full as it is, and not the space.
    pub is_by_log: bool,
    /// The next step with the reserve, if there is one.
    pub reserve: Option<ReserveAction>,
}

/// Judges the disk of one store, look by look.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskMonitor {
    /// By the space, and by the log's limit.
    usages: [DiskUsage; 2],
}

/// A usage ends this part of its bound above it.
const HYSTERESIS: u64 = 8;
/// An exhausted disk has less than this part of what a full one has, and less than these bytes.
const EXHAUSTED_PART: u64 = 4;
const EXHAUSTED_BYTES_MAX: u64 = 1 << 30;

impl DiskLimits {
    /// Free bytes below which a disk of this size has each usage but the first, fuller ones first.
    fn bounds(&self, total_bytes: u64) -> [(DiskUsage, u64); 3] {
        let part = |ratio: f64| (total_bytes as f64 * ratio) as u64;
        let full = self.full_bytes.max(part(self.full_ratio));
        let exhausted = (full / EXHAUSTED_PART).min(EXHAUSTED_BYTES_MAX);
        let almost = full.max(part(self.almost_full_ratio));
        [
            (DiskUsage::Exhausted, exhausted),
            (DiskUsage::Full, full),
            (DiskUsage::AlmostFull, almost),
        ]
    }

    /// Free bytes below which a disk of this size is full.
    #[must_use]
    pub fn full_below(&self, total_bytes: u64) -> u64 {
        self.bounds(total_bytes)[1].1
    }

    /// Free bytes below which the reserve is given up.
    fn release_below(&self, total_bytes: u64) -> u64 {
        self.bounds(total_bytes)[0].1 / 2
    }

    /// By the log's limit: bytes from which on it has each usage, and below which that ends. Room
    /// for rewrites is left, by which purge makes more of it.
    fn log_bounds(&self) -> Option<[(DiskUsage, u64, u64); 2]> {
        let max = self.log_bytes_max?;
        let less = |segments: u64| max.saturating_sub(segments * self.log_segment_bytes);
        Some([(DiskUsage::Exhausted, less(0), less(1)), (DiskUsage::Full, less(2), less(2))])
    }

    /// Whether the log takes so much that a purge should come at once.
    #[must_use]
    pub fn is_log_near_limit(&self, log_bytes: u64) -> bool {
        let near = |max: u64| max.saturating_sub(3 * self.log_segment_bytes);
        self.log_bytes_max.is_some_and(|max| log_bytes > near(max))
    }
}

impl DiskMonitor {
    /// Judges the disk anew.
    pub fn look(&mut self, limits: &DiskLimits, space: DiskSpace) -> DiskLook {
        let before = self.usage();
        let missing = if space.is_reserve_held { 0 } else { limits.reserve_bytes };
        let room = space.free_bytes.saturating_sub(missing);
        self.usages = [self.by_space(limits, space.total_bytes, room), self.by_log(limits, space)];
        let usage = self.usage();
        let has_room = room >= limits.full_below(space.total_bytes);
        let is_short =
            space.is_write_waiting || space.free_bytes < limits.release_below(space.total_bytes);
        let reserve = match space.is_reserve_held {
            true if is_short => Some(ReserveAction::Release),
            false if limits.reserve_bytes > 0 && has_room && !is_short => Some(ReserveAction::Make),
            _ => None,
        };
        DiskLook {
            usage,
            changed_from: (usage != before).then_some(before),
            is_by_log: self.usages[1] == usage && self.usages[0] < usage,
            reserve,
        }
    }

    /// The usage of the disk, by the last look.
    #[must_use]
    pub fn usage(&self) -> DiskUsage {
        self.usages[0].max(self.usages[1])
    }

    fn by_space(&self, limits: &DiskLimits, total_bytes: u64, room: u64) -> DiskUsage {
        let now = |(usage, bound): &(DiskUsage, u64)| {
            // One that is there already ends later.
            let extra = if self.usages[0] >= *usage { bound / HYSTERESIS } else { 0 };
            room < bound.saturating_add(extra)
        };
        limits.bounds(total_bytes).iter().find(|it| now(it)).map_or(DiskUsage::Normal, |it| it.0)
    }

    fn by_log(&self, limits: &DiskLimits, space: DiskSpace) -> DiskUsage {
        let now = |(usage, from, end): &(DiskUsage, u64, u64)| {
            space.log_bytes > if self.usages[1] >= *usage { *end } else { *from }
        };
        let bounds = limits.log_bounds();
        bounds.iter().flatten().find(|it| now(it)).map_or(DiskUsage::Normal, |it| it.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn limits() -> DiskLimits {
        DiskLimits {
            almost_full_ratio: 0.1,
            full_bytes: 5 * GIB,
            full_ratio: 0.02,
            reserve_bytes: 256 * MIB,
            log_bytes_max: None,
            log_segment_bytes: 64 * MIB,
        }
    }

    fn usage(monitor: &mut DiskMonitor, total: u64, free: u64) -> DiskUsage {
        let space = DiskSpace {
            total_bytes: total,
            free_bytes: free,
            is_reserve_held: true,
            ..Default::default()
        };
        monitor.look(&limits(), space).usage
    }

    #[test]
    fn the_greater_bound_counts() {
        let fresh = |total, free| usage(&mut DiskMonitor::default(), total, free);
        assert_eq!(fresh(100 * GIB, 10 * GIB), DiskUsage::Normal);
        assert_eq!(fresh(100 * GIB, 10 * GIB - 1), DiskUsage::AlmostFull);
        assert_eq!(fresh(100 * GIB, 5 * GIB), DiskUsage::AlmostFull);
        assert_eq!(fresh(100 * GIB, 5 * GIB - 1), DiskUsage::Full);
        assert_eq!(fresh(1000 * GIB, 19 * GIB), DiskUsage::Full, "2 % are more than 5 GiB");
        assert_eq!(fresh(100 * GIB, GIB), DiskUsage::Full);
        assert_eq!(fresh(100 * GIB, GIB - 1), DiskUsage::Exhausted);
        assert_eq!(fresh(4 * GIB, 4 * GIB), DiskUsage::Full, "a small disk needs settings");
        assert_eq!(fresh(100 * GIB, 0), DiskUsage::Exhausted);
    }

    #[test]
    fn a_usage_begins_at_once_and_ends_with_a_distance() {
        let mut monitor = DiskMonitor::default();
        let total = 40 * GIB;
        let mut at = |free| usage(&mut monitor, total, free);
        assert_eq!(at(6 * GIB), DiskUsage::Normal);
        assert_eq!(at(5 * GIB - 1), DiskUsage::Full);
        assert_eq!(at(5 * GIB + 600 * MIB), DiskUsage::Full);
        assert_eq!(at(5 * GIB + 640 * MIB), DiskUsage::Normal);
        assert_eq!(at(5 * GIB + 600 * MIB), DiskUsage::Normal, "it begins below the bound only");
        assert_eq!(at(MIB), DiskUsage::Exhausted);
        assert_eq!(at(GIB + 127 * MIB), DiskUsage::Exhausted);
        assert_eq!(at(GIB + 128 * MIB), DiskUsage::Full);
        assert_eq!(at(30 * GIB), DiskUsage::Normal);
    }

    #[test]
    fn the_reserve_is_given_up_late_and_made_again_when_there_is_room() {
        let mut monitor = DiskMonitor::default();
        let mut look = |free_bytes, is_reserve_held, is_write_waiting| {
            let space = DiskSpace {
                total_bytes: 40 * GIB,
                free_bytes,
                log_bytes: 0,
                is_write_waiting,
                is_reserve_held,
            };
            let look = monitor.look(&limits(), space);
            (look.usage, look.reserve)
        };
        let (full, exhausted) = (DiskUsage::Full, DiskUsage::Exhausted);
        assert_eq!(look(20 * GIB, false, false), (DiskUsage::Normal, Some(ReserveAction::Make)));
        assert_eq!(look(4 * GIB, true, false), (full, None));
        assert_eq!(look(4 * GIB, true, true), (full, Some(ReserveAction::Release)));
        assert_eq!(look(600 * MIB, true, false), (exhausted, None));
        assert_eq!(look(511 * MIB, true, false), (exhausted, Some(ReserveAction::Release)));
        // The reserve that was given up is not taken for room.
        assert_eq!(look(GIB + 200 * MIB, false, false), (exhausted, None));
        assert_eq!(look(5 * GIB + 255 * MIB, false, false), (full, None));
        assert_eq!(look(5 * GIB + 256 * MIB, false, true), (full, None), "a write needs it");
        assert_eq!(look(5 * GIB + 256 * MIB, false, false), (full, Some(ReserveAction::Make)));
        let none = DiskLimits { reserve_bytes: 0, ..limits() };
        let space = DiskSpace { total_bytes: GIB, free_bytes: GIB, ..Default::default() };
        assert_eq!(DiskMonitor::default().look(&none, space).reserve, None);
    }

    #[test]
    fn the_limit_of_the_log_is_a_full_disk_too() {
        let limits = DiskLimits { log_bytes_max: Some(1024 * MIB), ..limits() };
        let mut monitor = DiskMonitor::default();
        let mut look = |log_bytes| {
            let space = DiskSpace {
                total_bytes: 100 * GIB,
                free_bytes: 50 * GIB,
                log_bytes,
                is_write_waiting: false,
                is_reserve_held: true,
            };
            let look = monitor.look(&limits, space);
            (look.usage, look.changed_from, look.is_by_log)
        };
        let (normal, full) = (DiskUsage::Normal, DiskUsage::Full);
        assert_eq!(look(896 * MIB), (normal, None, false));
        assert!(limits.is_log_near_limit(833 * MIB) && !limits.is_log_near_limit(832 * MIB));
        assert_eq!(look(896 * MIB + 1), (full, Some(normal), true));
        assert_eq!(look(1024 * MIB + 1), (DiskUsage::Exhausted, Some(full), true));
        assert_eq!(look(960 * MIB), (full, Some(DiskUsage::Exhausted), true));
        assert_eq!(look(896 * MIB), (normal, Some(full), false));
    }
}
