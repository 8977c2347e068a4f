//! Pending spans: replaced, and free once certain snapshots have ended.
//!
//! The last durable root, and the root that a checkpoint is writing, are snapshots like any other:
//! the units that they reach are not overwritten.

use crate::page::Span;
use crate::space::epoch_list::EpochList;

/// Spans that wait for snapshots to end.
#[derive(Default)]
pub(crate) struct PendingSpans {
    epochs: EpochList<Span>,
    units: u64,
}

impl PendingSpans {
    /// Notes that the root of transaction `txid` may be read from now on.
    pub(crate) fn open(&mut self, txid: u64) {
        self.epochs.open(txid);
    }

    /// Notes that no reader holds, or can come to hold, the root of `txid`.
    pub(crate) fn close(&mut self, txid: u64) {
        self.epochs.close(txid);
    }

    /// Looks at up to `count` spans that waited for that, and calls `release` for each that becomes
    /// free. Returns at how many it has looked.
    pub(crate) fn collect(&mut self, count: usize, mut release: impl FnMut(Span)) -> usize {
        self.epochs.collect(count, |span| {
            debug_assert!(self.units >= u64::from(span.units), "{span:?} was not counted");
            self.units -= u64::from(span.units);
            release(span);
        })
    }

    /// Notes a span that was created in `created` and is replaced in `replaced`. True if no
    /// snapshot needs it: then it is free at once, and not noted.
    pub(crate) fn add(&mut self, span: Span, created: u64, replaced: u64) -> bool {
        let free = self.epochs.add(span, created, replaced).is_some();
        if !free {
            self.units += u64::from(span.units);
        }
        free
    }

    /// Units that wait.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// How many snapshots are live, the last durable root included.
    pub(crate) fn snapshot_count(&self) -> usize {
        self.epochs.snapshot_count()
    }

    /// The transaction of the oldest live snapshot.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.epochs.oldest()
    }

    /// All spans that wait, in no order.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        self.epochs.things().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64) -> Span {
        Span { start, units: 2 }
    }

    fn close(pending: &mut PendingSpans, txid: u64) -> Vec<u64> {
        pending.close(txid);
        collect(pending, usize::MAX)
    }

    fn collect(pending: &mut PendingSpans, count: usize) -> Vec<u64> {
        let mut freed = Vec::new();
        pending.collect(count, |span| freed.push(span.start));
        freed
    }

    #[test]
    fn page_waits_for_exactly_those_who_see_it() {
        let mut pending = PendingSpans::default();
        for txid in [3, 5, 8] {
            pending.open(txid);
        }
        assert!(pending.add(span(10), 6, 8), "no snapshot between birth and death");
        assert!(pending.add(span(11), 9, 9), "born and dead in one transaction");
        assert!(!pending.add(span(12), 4, 8), "seen by 5");
        assert!(!pending.add(span(13), 3, 8), "seen by 5 and 3");
        assert!(!pending.add(span(14), 1, 4), "seen by 3");
        assert_eq!(pending.units(), 6);
        assert_eq!(close(&mut pending, 5), [12]);
        assert_eq!(close(&mut pending, 3), [14, 13]);
        assert_eq!((pending.units(), pending.oldest()), (0, Some(8)));
    }

    #[test]
    fn old_snapshot_pins_only_what_it_sees() {
        let mut pending = PendingSpans::default();
        pending.open(1);
        let mut freed = Vec::new();
        for txid in 2..100 {
            // Each transaction replaces what the one before has written; only 1 is still read.
            pending.open(txid);
            if txid > 2 {
                freed.extend(close(&mut pending, txid - 1));
            }
            if pending.add(span(txid), txid - 1, txid) {
                freed.push(txid);
            }
        }
        assert_eq!(freed, (3..100).collect::<Vec<_>>());
        assert_eq!(pending.spans().collect::<Vec<_>>(), [span(2)]);
        assert_eq!(pending.snapshot_count(), 2);
    }

    #[test]
    fn what_waited_is_settled_a_part_at_a_time() {
        let mut pending = PendingSpans::default();
        pending.open(1);
        pending.open(2);
        for i in 0..3000 {
            // Every third one is seen by the older snapshot too.
            assert!(!pending.add(span(2 * i), if i % 3 == 0 { 1 } else { 2 }, 3));
        }
        pending.open(3);
        pending.close(2);
        let mut freed = 0;
        for _ in 0..30 {
            let part = collect(&mut pending, 100).len();
            assert!((66..=67).contains(&part), "{part} of 100");
            freed += part;
            assert_eq!(pending.spans().count(), 3000 - freed, "none is lost meanwhile");
            assert_eq!(pending.units() as usize, 2 * (3000 - freed));
        }
        assert_eq!((freed, collect(&mut pending, 100).len()), (2000, 0));
        assert_eq!(close(&mut pending, 1).len(), 1000);
        assert_eq!((pending.units(), pending.oldest()), (0, Some(3)));
    }
}
