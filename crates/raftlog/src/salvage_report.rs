//! What a salvage says of itself.

use crate::verify::VerifyProblem;
use std::ops::Range;

/// What was salvaged, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Batches that are whole.
    pub frames: u64,
    /// Batches that are lost, by their sequence numbers; the first thousand ranges.
    pub lost_batches: Vec<Range<u64>>,
    /// Groups in the new log.
    pub groups: u64,
    /// Entries in the new log.
    pub entries: u64,
    /// Keys in the new log.
    pub keys: u64,
    /// Bytes behind the end of the log, of batches that were being written when the power or the
    /// process went.
    pub torn_bytes: u64,
    /// Groups of which something is missing, or may be.
    pub damaged_groups: Vec<SalvagedGroup>,
    /// What is damaged, as [`crate::VerifyReport::problems`].
    pub problems: Vec<VerifyProblem>,
    /// How many more problems there are.
    pub problems_left_out: u64,
}

/// What has become of a group of which something is missing, or may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvagedGroup {
    /// The group.
    pub group: u64,
    /// The entries in the new log: the newest part without a hole.
    pub kept: Range<u64>,
    /// Entries that are in no batch that is whole.
    pub lost: Vec<Range<u64>>,
    /// Entries that are whole and were left behind, because something is lost between them and
    /// those that were kept.
    pub left_behind: Vec<Range<u64>>,
    /// Entries from before and from after lost batches join without a hole. Nobody can see whether
    /// a lost batch had replaced some of them.
    pub is_joined: bool,
}
