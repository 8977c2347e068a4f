//! Reports of opening, salvaging and verifying a log.

use std::ops::Range;

/// The result of opening a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Segments with batches that were read.
    pub segments: u64,
    /// Segments removed, because a purge that was cut short had left them.
    pub discarded_segments: u64,
    /// Batches in them.
    pub frames: u64,
    /// Entries in them, live or not.
    pub entries: u64,
    /// Groups that have entries or keys.
    pub groups: u64,
    /// The last batch, which is durable now as are all before it.
    pub last_lsn: u64,
    /// Bytes cut off at the end, or left alone where nothing may be changed: batches that were
    /// being written when the power or the process went, and had not been acknowledged as synced.
    pub torn_bytes: u64,
    /// The result of the salvage, if the log was damaged and its whole part took its place
    /// ([`crate::RecoveryMode::Salvage`]). The sequence numbers of batches, and those of segments,
    /// begin anew then. None if a crash cut the salvage short and this opening ended it.
    pub salvaged: Option<SalvageReport>,
}

/// The result of a salvage: what was kept and what was lost.
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
    /// The damage, as [`crate::VerifyReport::problems`].
    pub problems: Vec<VerifyProblem>,
    /// How many more problems there are.
    pub problems_left_out: u64,
}

/// The result for a group of which something is missing, or may be.
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
    /// Entries from before and from after lost batches join without a hole. It cannot be known
    /// whether a lost batch had replaced some of them.
    pub is_joined: bool,
}

/// A part of a log that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyProblem {
    /// The segment; its file is named after it.
    pub segment: u64,
    /// The offset in the file.
    pub offset: u64,
    /// The kind of damage.
    pub what: &'static str,
    /// The group that is affected, if that is known.
    pub group: Option<u64>,
    /// The entries that are affected, if that is known.
    pub entries: Option<Range<u64>>,
}

impl VerifyProblem {
    /// Damage of which no group is known.
    pub(crate) fn of_segment(segment: u64, offset: u64, what: &'static str) -> VerifyProblem {
        VerifyProblem { segment, offset, what, group: None, entries: None }
    }
}
