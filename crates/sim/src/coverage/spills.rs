//! Sums over what old snapshots hold: memory that went to the spill file, and snapshots that were
//! ended.

use std::ops::AddAssign;

/// Sums over spills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillCoverage {
    /// Written to the spill files.
    pub written_bytes: u64,
    /// Spills that the disk refused.
    pub refused: u64,
    /// Scans that were granted before a spill, and ended behind it.
    pub scans: u64,
    /// Streams of snapshots that were begun before a spill, and ended behind it.
    pub streams: u64,
    /// Snapshots that were ended because they were old.
    pub ended: u64,
    /// Scans that were refused because of that.
    pub scans_refused: u64,
    /// Views that were held over a spill, and read again behind it.
    pub views: u64,
    /// Views that were ended while they were held.
    pub views_ended: u64,
}

impl AddAssign for SpillCoverage {
    fn add_assign(&mut self, more: Self) {
        self.written_bytes += more.written_bytes;
        self.refused += more.refused;
        self.scans += more.scans;
        self.streams += more.streams;
        self.ended += more.ended;
        self.scans_refused += more.scans_refused;
        self.views += more.views;
        self.views_ended += more.views_ended;
    }
}
