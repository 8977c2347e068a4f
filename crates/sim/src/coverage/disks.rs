//! Coverage of disks that are full or rot.

use std::ops::AddAssign;

/// Sums over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCoverage {
    /// Disks that have become full.
    pub full: u64,
    /// Disks that have become exhausted.
    pub exhausted: u64,
    /// Reserves that were given up.
    pub reserves_released: u64,
    /// Puts that were refused.
    pub puts_refused: u64,
    /// Leaders that have left a full disk.
    pub transfers: u64,
    /// Messages with entries that an exhausted disk had no room for.
    pub entries_refused: u64,
    /// Snapshots that were refused.
    pub snapshots_refused: u64,
    /// Checkpoints for which an engine found no room.
    pub checkpoints_refused: u64,
    /// Bits that have flipped.
    pub rotten: u64,
    /// Damaged pages that were met and taken out.
    pub pages_taken_out: u64,
    /// Runs that ended before their time, because rows that only one store had were lost.
    pub lost: u64,
}

impl AddAssign for DiskCoverage {
    fn add_assign(&mut self, more: Self) {
        self.full += more.full;
        self.exhausted += more.exhausted;
        self.reserves_released += more.reserves_released;
        self.puts_refused += more.puts_refused;
        self.transfers += more.transfers;
        self.entries_refused += more.entries_refused;
        self.snapshots_refused += more.snapshots_refused;
        self.checkpoints_refused += more.checkpoints_refused;
        self.rotten += more.rotten;
        self.pages_taken_out += more.pages_taken_out;
        self.lost += more.lost;
    }
}
