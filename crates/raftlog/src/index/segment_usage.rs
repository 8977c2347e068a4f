//! The usage of each segment: live entries and keys, which no later record has replaced.
//!
//! The usage follows from the index and is changed together with it. A segment without live records
//! is dead. Tombstones (compactions, deletions, removals of groups) are not live: segments are
//! removed strictly oldest first, so whatever a tombstone hides goes before it does.
//!
//! Invariant: the first and the last row are not empty.

use std::collections::VecDeque;

/// The usage of all segments. Segments have numbers without gaps, so the rows are a list.
#[derive(Debug, Default)]
pub(crate) struct SegmentUsage {
    /// The segment of the first row.
    first: u64,
    rows: VecDeque<LiveUsage>,
    live_bytes: u64,
}

/// The live records of one segment, or of one group in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveUsage {
    /// Entries of any group.
    pub(crate) entries: u64,
    /// Keys of any group, and the compactions at which logs begin.
    pub(crate) keys: u64,
    /// Bytes of all these. An append that is live in part counts whole: it stays whole on disk.
    pub(crate) bytes: u64,
}

impl LiveUsage {
    pub(crate) fn is_empty(&self) -> bool {
        *self == LiveUsage::default()
    }

    pub(crate) fn add(&mut self, more: LiveUsage) {
        self.entries += more.entries;
        self.keys += more.keys;
        self.bytes += more.bytes;
    }

    fn checked_sub(self, less: LiveUsage) -> Option<LiveUsage> {
        Some(LiveUsage {
            entries: self.entries.checked_sub(less.entries)?,
            keys: self.keys.checked_sub(less.keys)?,
            bytes: self.bytes.checked_sub(less.bytes)?,
        })
    }
}

impl SegmentUsage {
    pub(crate) fn hold(&mut self, segment: u64, live: LiveUsage) {
        if live.is_empty() {
            return;
        }
        assert!(segment > 0, "no segment has the number 0, yet it should hold {live:?}");
        if self.rows.is_empty() {
            self.first = segment;
        }
        while segment < self.first {
            self.rows.push_front(LiveUsage::default());
            self.first -= 1;
        }
        let at = (segment - self.first) as usize;
        if at >= self.rows.len() {
            self.rows.resize(at + 1, LiveUsage::default());
        }
        self.rows[at].add(live);
        self.live_bytes += live.bytes;
    }

    pub(crate) fn release(&mut self, segment: u64, live: LiveUsage) {
        if live.is_empty() {
            return;
        }
        let at = segment.checked_sub(self.first).map(|at| at as usize);
        let Some(row) = at.and_then(|at| self.rows.get_mut(at)) else {
            panic!("segment {segment} holds nothing, yet {live:?} was to be released")
        };
        *row = row.checked_sub(live).unwrap_or_else(|| {
            panic!("segment {segment} holds less than the {live:?} that was to be released")
        });
        assert!(self.live_bytes >= live.bytes, "all segments hold less than the freed {live:?}");
        self.live_bytes -= live.bytes;
        while self.rows.pop_back_if(|row| row.is_empty()).is_some() {}
        while self.rows.pop_front_if(|row| row.is_empty()).is_some() {
            self.first += 1;
        }
        debug_assert_eq!(self.rows.iter().map(|row| row.bytes).sum::<u64>(), self.live_bytes);
    }

    /// The live records of the segment.
    pub(crate) fn live(&self, segment: u64) -> LiveUsage {
        let at = segment.checked_sub(self.first).map(|at| at as usize);
        at.and_then(|at| self.rows.get(at)).copied().unwrap_or_default()
    }

    /// Whether the segment has no live records.
    pub(crate) fn is_dead(&self, segment: u64) -> bool {
        self.live(segment).is_empty()
    }

    /// Live bytes of all segments.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: LiveUsage = LiveUsage { entries: 1, keys: 0, bytes: 10 };
    const KEY: LiveUsage = LiveUsage { entries: 0, keys: 1, bytes: 5 };

    #[test]
    fn a_segment_is_dead_once_all_is_released() {
        let mut usage = SegmentUsage::default();
        usage.hold(4, ENTRY);
        usage.hold(4, KEY);
        usage.hold(2, KEY);
        usage.hold(7, KEY);
        assert_eq!(usage.live_bytes(), 25);
        usage.release(4, ENTRY);
        assert_eq!(
            (usage.live(4), usage.live(3), usage.live(8)),
            (KEY, LiveUsage::default(), LiveUsage::default())
        );
        usage.release(4, KEY);
        assert!(usage.is_dead(4) && !usage.is_dead(2) && !usage.is_dead(7) && usage.is_dead(0));
        usage.release(2, KEY);
        assert_eq!((usage.first, usage.rows.len()), (7, 1));
        usage.release(7, KEY);
        usage.hold(3, KEY);
        assert_eq!((usage.live(3), usage.live_bytes()), (KEY, 5));
    }

    #[test]
    #[should_panic(expected = "holds less")]
    fn releasing_more_than_is_held_is_noticed() {
        let mut usage = SegmentUsage::default();
        usage.hold(1, ENTRY);
        usage.release(1, LiveUsage { entries: 2, keys: 0, bytes: 10 });
    }

    #[test]
    #[should_panic(expected = "holds nothing")]
    fn releasing_what_nothing_holds_is_noticed() {
        let mut usage = SegmentUsage::default();
        usage.hold(2, ENTRY);
        usage.release(1, ENTRY);
    }
}
