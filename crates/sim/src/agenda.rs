//! What will happen, by moment: the only clock of a simulated cluster.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds of simulated time since the run began.
pub(crate) type Moment = u64;

/// A queue of things to come. Of two at the same moment the one planned first happens first.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    now: Moment,
    planned: u64,
    /// (moment, number, slot): small, because a heap moves its items a lot.
    order: BinaryHeap<Reverse<(Moment, u64, u32)>>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self { now: 0, planned: 0, order: BinaryHeap::new(), slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Plans `what` for `delay_us` from now.
    pub(crate) fn plan(&mut self, delay_us: u64, what: T) {
        self.planned += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 things are planned")
        });
        self.slots[slot as usize] = Some(what);
        self.order.push(Reverse((self.now + delay_us, self.planned, slot)));
    }

    /// Goes on to the next thing.
    pub(crate) fn next(&mut self) -> Option<T> {
        let Reverse((moment, _, slot)) = self.order.pop()?;
        assert!(moment >= self.now, "time went back from {} to {moment}", self.now);
        self.now = moment;
        self.free.push(slot);
        self.slots[slot as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_by_moment_then_in_the_order_of_planning() {
        let mut agenda = Agenda::new();
        agenda.plan(5, "c");
        agenda.plan(1, "a");
        agenda.plan(5, "d");
        agenda.plan(2, "b");
        let mut seen = Vec::new();
        while let Some(what) = agenda.next() {
            seen.push((agenda.now(), what));
            if what == "a" {
                agenda.plan(3, "late a");
            }
        }
        assert_eq!(seen, [(1, "a"), (2, "b"), (4, "late a"), (5, "c"), (5, "d")]);
    }
}
