//! Log compaction: the first entry that some replica may still need.
//!
//! There are no snapshots between stores yet. The floor keeps them unneeded: the leader knows how
//! far the log of *each* replica is on disk, and sends the least of these indexes with every
//! message. No replica drops an entry above the floor, so a follower can always be served from the
//! log. The price: a store that is gone for long holds back the logs of its regions everywhere.
//!
//! The floor stays true: an entry on all disks is in the log of every later leader.
//!
//! The rule and its price: `docs/decisions/0004-log-gc-without-snapshots.md`.
//! An entry must also be in a *durable* root of the page store: later entries are lost there in a
//! crash, and applied again from the log.

use crate::ids::Index;

/// Entries kept below the bound while a region is written to.
///
/// Raft 0.7 can look a little below what a follower has acknowledged when an old rejection arrives
/// late. A region at rest has nothing under way, keeps nothing and does not hold back old segments.
const KEEP_COUNT: u64 = 64;

/// Entries by which the floor must have moved before a slow follower's progress is worth one more
/// compaction record.
const STEP_COUNT: u64 = 256;

/// The two bounds: the last durable entry here, and the floor.
pub(crate) struct Compactor {
    durable: Index,
    floor: Index,
}

impl Compactor {
    /// For a replica whose page store was found with `applied`.
    pub(crate) fn new(applied: Index) -> Self {
        Self { durable: applied, floor: Index(0) }
    }

    pub(crate) fn floor(&self) -> Index {
        self.floor
    }

    /// All replicas have the log on disk up to here.
    pub(crate) fn raise_floor(&mut self, floor: Index) {
        self.floor = self.floor.max(floor);
    }

    /// The page store holds the region durably up to here.
    pub(crate) fn raise_durable(&mut self, durable: Index) {
        self.durable = self.durable.max(durable);
    }

    /// The first entry to be kept, if there is something to drop.
    pub(crate) fn plan(&self, truncated: Index, applied: Index, last: Index) -> Option<Index> {
        // The event of a checkpoint may arrive before that of the entries which it made durable.
        let durable = self.durable.min(applied);
        // Below both: a restart applies again from the durable index on, and a replica that lacks
        // an entry can have it from a log only (docs/decisions/0004-log-gc-without-snapshots.md).
        let bound = durable.min(self.floor);
        let worth = bound == durable || bound.0 >= truncated.0 + STEP_COUNT;
        // An idle region keeps nothing, so that it does not hold an old segment.
        let keep = if bound == last { 0 } else { KEEP_COUNT };
        let target = Index(bound.0.saturating_sub(keep));
        (worth && target > truncated).then_some(Index(target.0 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(durable: u64, floor: u64, truncated: u64, last: u64) -> Option<u64> {
        let mut compactor = Compactor::new(Index(0));
        compactor.raise_durable(Index(durable));
        compactor.raise_floor(Index(floor));
        compactor.plan(Index(truncated), Index(last), Index(last)).map(|first| first.0)
    }

    #[test]
    fn neither_bound_is_passed_and_a_tail_is_kept_under_load() {
        assert_eq!(plan(1000, 5000, 0, 5000), Some(1000 - 64 + 1));
        assert_eq!(plan(5000, 1000, 0, 5000), Some(1000 - 64 + 1));
        assert_eq!(plan(5000, 0, 0, 5000), None);
        assert_eq!(plan(0, 5000, 0, 5000), None);
    }

    #[test]
    fn a_region_at_rest_keeps_nothing() {
        assert_eq!(plan(50, 50, 0, 50), Some(51));
        assert_eq!(plan(50, 50, 50, 50), None);
        assert_eq!(plan(50, 49, 0, 50), None, "one replica lacks the last entry");
    }

    #[test]
    fn a_creeping_floor_is_followed_in_steps() {
        assert_eq!(plan(5000, 1100, 1000, 5000), None);
        assert_eq!(plan(5000, 1256, 1000, 5000), Some(1256 - 64 + 1));
    }

    #[test]
    fn a_checkpoint_heard_of_before_its_applying_counts_as_far_as_applied() {
        let mut compactor = Compactor::new(Index(0));
        compactor.raise_durable(Index(10));
        compactor.raise_floor(Index(10));
        assert_eq!(compactor.plan(Index(0), Index(4), Index(4)), Some(Index(5)));
    }
}
