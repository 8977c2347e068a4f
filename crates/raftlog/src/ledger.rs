//! What each segment still holds: entries and keys that nothing newer has replaced.
//!
//! The ledger follows from the index and is changed together with it. A segment that holds nothing
//! is dead. Tombstones (compactions of what is gone, deletions, removals of groups) hold nothing:
//! segments are removed strictly oldest first, so whatever a tombstone hides goes before it does.

use std::collections::BTreeMap;

/// Live records by segment.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    segments: BTreeMap<u64, Live>,
}

/// What one segment still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    /// Entries of any group.
    pub(crate) entries: u64,
    /// Keys of any group, and the marks from which groups know where their logs begin.
    pub(crate) keys: u64,
    /// Bytes of all these. Of an append that is live in part: the same part of its bytes.
    pub(crate) bytes: u64,
}

impl Ledger {
    pub(crate) fn hold(&mut self, segment: u64, live: Live) {
        let held = self.segments.entry(segment).or_default();
        held.entries += live.entries;
        held.keys += live.keys;
        held.bytes += live.bytes;
    }

    pub(crate) fn release(&mut self, segment: u64, live: Live) {
        let Some(held) = self.segments.get_mut(&segment) else {
            panic!("segment {segment} holds nothing, yet {live:?} was to be released")
        };
        let less = |have: u64, less: u64| {
            have.checked_sub(less).unwrap_or_else(|| {
                panic!("segment {segment} holds less than the {live:?} that was to be released")
            })
        };
        *held = Live {
            entries: less(held.entries, live.entries),
            keys: less(held.keys, live.keys),
            bytes: less(held.bytes, live.bytes),
        };
        if *held == Live::default() {
            self.segments.remove(&segment);
        }
    }

    /// Whether nothing in the segment is needed any more.
    pub(crate) fn is_dead(&self, segment: u64) -> bool {
        !self.segments.contains_key(&segment)
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.segments.values().map(|live| live.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_dead_once_all_is_released() {
        let mut ledger = Ledger::default();
        let one = Live { entries: 1, keys: 0, bytes: 10 };
        let key = Live { entries: 0, keys: 1, bytes: 5 };
        ledger.hold(1, one);
        ledger.hold(1, key);
        ledger.hold(2, key);
        assert_eq!(ledger.live_bytes(), 20);
        ledger.release(1, one);
        assert!(!ledger.is_dead(1));
        ledger.release(1, key);
        assert!(ledger.is_dead(1) && !ledger.is_dead(2));
    }

    #[test]
    #[should_panic(expected = "holds less")]
    fn releasing_more_than_is_held_is_noticed() {
        let mut ledger = Ledger::default();
        ledger.hold(1, Live { entries: 1, keys: 0, bytes: 10 });
        ledger.release(1, Live { entries: 2, keys: 0, bytes: 10 });
    }
}
