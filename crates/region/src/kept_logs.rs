//! The log entries that the regions of a shard keep for other replicas, beyond what they need
//! themselves, and the order in which they are given up when all of that is too much.

use std::collections::BTreeMap;

use crate::ids::{Index, PeerId, RegionId};

/// The log that a region keeps for the replica that it keeps most for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptLog {
    pub(crate) bytes: u64,
    /// Whether that replica was not heard for long.
    pub(crate) is_silent: bool,
    /// That replica and the last entry that it has, if the one here leads.
    pub(crate) follower: Option<(PeerId, Index)>,
}

#[derive(Default)]
pub(crate) struct KeptLogs {
    /// Of regions that keep something.
    kept: BTreeMap<RegionId, KeptLog>,
    total: u64,
}

impl KeptLogs {
    /// A region keeps this now.
    pub(crate) fn note(&mut self, region: RegionId, kept: KeptLog) {
        let before =
            if kept.bytes > 0 { self.kept.insert(region, kept) } else { self.kept.remove(&region) };
        let before = before.map_or(0, |before| before.bytes);
        assert!(self.total >= before, "region {region} kept {before} of {}", self.total);
        self.total = self.total - before + kept.bytes;
    }

    /// The region that has to give up a replica, if all keep more than `bytes_max`: first for those
    /// that are silent, then for those that are most behind.
    pub(crate) fn next_to_give_up(&self, bytes_max: u64) -> Option<RegionId> {
        if self.total <= bytes_max {
            return None;
        }
        let most = self.kept.iter().max_by_key(|(_, kept)| (kept.is_silent, kept.bytes));
        most.map(|(region, _)| *region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_lose_first_then_the_most_behind() {
        let mut logs = KeptLogs::default();
        for (region, bytes, is_silent) in [(1, 500, false), (2, 300, true), (3, 100, true)] {
            logs.note(RegionId(region), KeptLog { bytes, is_silent, follower: None });
        }
        let mut lost = vec![];
        while let Some(region) = logs.next_to_give_up(99) {
            lost.push(region.0);
            logs.note(region, KeptLog::default());
        }
        assert_eq!(lost, [2, 3, 1]);
        assert_eq!(logs.total, 0);
        logs.note(RegionId(1), KeptLog { bytes: 100, ..KeptLog::default() });
        assert_eq!(logs.next_to_give_up(100), None);
    }
}
