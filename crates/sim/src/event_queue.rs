//! The event queue of the discrete-event simulation: the only clock of a simulated cluster.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds of simulated time since the run began.
pub(crate) type SimTime = u64;

/// A queue of things to come. Of two at the same moment the one planned first happens first.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    now: SimTime,
    scheduled: u64,
    /// (moment, number, slot): small, because a heap moves its items a lot.
    order: BinaryHeap<Reverse<(SimTime, u64, u32)>>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self { now: 0, scheduled: 0, order: BinaryHeap::new(), slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn now(&self) -> SimTime {
        self.now
    }

    /// Plans `what` for `delay_us` from now.
    pub(crate) fn schedule(&mut self, delay_us: u64, what: T) {
        self.scheduled += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 things are planned")
        });
        self.slots[slot as usize] = Some(what);
        // The number decides between equal moments, else a heap's own order would.
        self.order.push(Reverse((self.now + delay_us, self.scheduled, slot)));
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
        let mut queue = EventQueue::new();
        queue.schedule(5, "c");
        queue.schedule(1, "a");
        queue.schedule(5, "d");
        queue.schedule(2, "b");
        let mut seen = Vec::new();
        while let Some(what) = queue.next() {
            seen.push((queue.now(), what));
            if what == "a" {
                queue.schedule(3, "late a");
            }
        }
        assert_eq!(seen, [(1, "a"), (2, "b"), (4, "late a"), (5, "c"), (5, "d")]);
    }
}
