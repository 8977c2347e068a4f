//! Spans that nobody will need once certain snapshots have ended.
//!
//! The last durable root, and the root that a checkpoint is writing, are snapshots like any other:
//! what they reach is not overwritten.

use crate::page::Span;
use crate::waits::Waits;

/// Spans that wait for snapshots to end.
#[derive(Default)]
pub(crate) struct Pending {
    waits: Waits<Span>,
    units: u64,
}

impl Pending {
    /// Says that the root of transaction `txid` may be read from now on.
    pub(crate) fn open(&mut self, txid: u64) {
        self.waits.open(txid);
    }

    /// Says that nobody reads, or can come to read, the root of `txid` any more. Calls `release`
    /// for every span that becomes free.
    pub(crate) fn close(&mut self, txid: u64, mut release: impl FnMut(Span)) {
        self.waits.close(txid, |span| {
            self.units -= u64::from(span.units);
            release(span);
        });
    }

    /// Notes a span that was born in `birth` and is replaced in `death`. True if nobody needs it:
    /// then it is free at once, and not noted.
    pub(crate) fn add(&mut self, span: Span, birth: u64, death: u64) -> bool {
        let free = self.waits.add(span, birth, death).is_some();
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
        self.waits.snapshot_count()
    }

    /// The transaction of the oldest live snapshot.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.waits.oldest()
    }

    /// All spans that wait, in no order.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        self.waits.things().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64) -> Span {
        Span { start, units: 2 }
    }

    fn close(pending: &mut Pending, txid: u64) -> Vec<u64> {
        let mut freed = Vec::new();
        pending.close(txid, |span| freed.push(span.start));
        freed
    }

    #[test]
    fn page_waits_for_exactly_those_who_see_it() {
        let mut pending = Pending::default();
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
        let mut pending = Pending::default();
        pending.open(1);
        let mut freed = Vec::new();
        for txid in 2..100 {
            // Each transaction replaces what the one before has written; only 1 is still read.
            pending.open(txid);
            if txid > 2 {
                pending.close(txid - 1, |span| freed.push(span.start));
            }
            if pending.add(span(txid), txid - 1, txid) {
                freed.push(txid);
            }
        }
        assert_eq!(freed, (3..100).collect::<Vec<_>>());
        assert_eq!(pending.spans().collect::<Vec<_>>(), [span(2)]);
        assert_eq!(pending.snapshot_count(), 2);
    }
}
