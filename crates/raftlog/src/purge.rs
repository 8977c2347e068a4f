//! Removes dead segments, strictly oldest first.
//!
//! A tombstone (a compaction, a deletion, the removal of a group) must outlive all that it hides. It
//! does, because what it hides lies in the same segment or an older one, and no segment goes before
//! all older ones. So tombstones hold nothing, and a dead segment behind a live one has to wait.
//!
//! Some dead segments are kept as spares, to become segments again.
//!
//! Before files go, a batch that says which ones is made durable: it also makes durable whatever let
//! go of their entries, and tells a later start that segments below are missing with good reason.

use crate::batch::LogBatch;
use crate::error::Error;
use crate::group_commit::{Durability, GroupCommit, Log};
use crate::segment::Segments;

/// What a purge did, and what stands in the way of more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Segments removed.
    pub segments: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Who holds the oldest segment that is left; empty if that is the one being written.
    pub held_by: Vec<Holder>,
}

/// A group that holds the oldest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The group.
    pub group: u64,
    /// It has entries there: compacting lets go of them.
    pub entries: bool,
    /// It has keys there, or the compaction that says where its log begins: writing them again lets
    /// go of the old ones.
    pub keys: bool,
}

/// Removes what can be removed. The caller lets one thread in at a time.
pub(crate) fn purge(group_commit: &GroupCommit, segments: &Segments) -> Result<Purged, Error> {
    let dead =
        group_commit.with_log(|log| dead_segments(log, group_commit.stock.newest(), segments));
    let mut purged = Purged::default();
    if let Some(last) = dead.last() {
        let mut batch = LogBatch::new();
        batch.discard(last + 1);
        let slot = group_commit.write(batch, Durability::Synced);
        group_commit.wait(&slot)?;
        let dead = dead.into_iter().map(|number| (number, segments.remove(number)));
        let dead: Vec<_> = dead.collect();
        for segment in dead.iter().filter_map(|(_, segment)| segment.as_ref()) {
            purged.bytes += segment.file.len()?;
        }
        purged.segments = dead.len() as u64;
        group_commit.stock.discard(dead)?;
    }
    purged.held_by = holders(group_commit, segments);
    Ok(purged)
}

/// The oldest segments, as far as all are dead. A dead segment stays dead: only the newest one can
/// gain anything, so that one stays even if nothing in it is needed.
fn dead_segments(log: &Log, newest: u64, segments: &Segments) -> Vec<u64> {
    let is_dead = |number: &u64| *number < newest && log.ledger.is_dead(*number);
    segments.numbers().into_iter().take_while(is_dead).collect()
}

fn holders(group_commit: &GroupCommit, segments: &Segments) -> Vec<Holder> {
    let mut held_by = Vec::new();
    let numbers = segments.numbers();
    if let [oldest, .., _] = numbers[..] {
        for (group, held) in group_commit.groups.holders(oldest) {
            held_by.push(Holder { group, entries: held.entries > 0, keys: held.keys > 0 });
        }
    }
    held_by
}
