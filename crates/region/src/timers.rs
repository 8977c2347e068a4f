//! A table of deadlines: which region wants to be stepped when.

use std::collections::BTreeSet;

use crate::ids::{RegionId, Time};

/// One deadline for each region. All operations are logarithmic in the number of regions.
#[derive(Default)]
pub(crate) struct Timers {
    deadlines: BTreeSet<(Time, RegionId)>,
}

impl Timers {
    pub(crate) fn set(&mut self, region: RegionId, deadline: Time) {
        let is_new = self.deadlines.insert((deadline, region));
        // Twice in the table, a region would tick twice as fast, and its promises would end before
        // their time.
        assert!(is_new, "region {region} has this deadline already");
    }

    /// The region has no deadline any more.
    pub(crate) fn remove(&mut self, region: RegionId, deadline: Time) {
        let was_there = self.deadlines.remove(&(deadline, region));
        assert!(was_there, "region {region} does not have this deadline");
    }

    /// Takes out one region whose deadline has come.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<RegionId> {
        let &first = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&first);
        Some(first.1)
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_is_due_in_order_and_leaves_the_rest() {
        let mut timers = Timers::default();
        for (region, deadline) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
            timers.set(RegionId(region), Time(deadline));
        }
        assert_eq!(timers.next(), Some(Time(10)));
        assert_eq!(timers.take_due(Time(9)), None);
        assert_eq!(timers.take_due(Time(20)), Some(RegionId(2)));
        assert_eq!(timers.take_due(Time(20)), Some(RegionId(3)));
        assert_eq!(timers.take_due(Time(20)), None);
        assert_eq!(timers.next(), Some(Time(30)));
    }
}
