//! When a store has the replicas of the regions that it leads compared
//! (`docs/decisions/0049-replicas-are-compared-by-digests.md`).
//!
//! Each region has its turn once in an interval. A store that starts does not know when its regions
//! were compared last, so each gets a moment within the interval, drawn anew at each start. Every
//! store with a replica hears of verdicts, so a new leader goes on where the last one was.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_region::RegionId;

/// A comparison in which some replica took no part is repeated after this part of the interval.
const RETRY_PART: u32 = 8;

/// The turns of the regions with a replica on a store. Times are counted from any moment.
#[derive(Clone, Debug)]
pub struct ComparisonSchedule {
    interval: Duration,
    seed: u64,
    due: BTreeMap<RegionId, Duration>,
}

impl ComparisonSchedule {
    /// A schedule in which each region has its turn once in `interval`.
    #[must_use]
    pub fn new(interval: Duration, seed: u64) -> Self {
        Self { interval, seed, due: BTreeMap::new() }
    }

    /// The region of those with a replica here that has waited longest for its turn, of those that
    /// the store leads; none if it is no one's turn. The answer stays the same until
    /// [`ComparisonSchedule::compared`] says what has come of it.
    pub fn next(
        &mut self,
        now: Duration,
        here: impl IntoIterator<Item = RegionId>,
        leads: impl Fn(RegionId) -> bool,
    ) -> Option<RegionId> {
        let mut known = std::mem::take(&mut self.due);
        // Regions that are not here any more are left behind.
        for region in here {
            let due = known.remove(&region).unwrap_or_else(|| now + self.phase(region));
            self.due.insert(region, due);
        }
        let ready = self.due.iter().filter(|(region, due)| **due <= now && leads(**region));
        ready.min_by_key(|(region, due)| (**due, **region)).map(|(region, _)| *region)
    }

    /// A region was compared, here or by another leader, or could not be.
    pub fn compared(&mut self, now: Duration, region: RegionId, is_complete: bool) {
        let wait = if is_complete { self.interval } else { self.interval / RETRY_PART };
        self.due.insert(region, now.saturating_add(wait));
    }

    /// A moment within the interval, of this region and this start.
    fn phase(&self, region: RegionId) -> Duration {
        // The finalizer of splitmix64.
        let mut mixed = self.seed ^ region.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let millis = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(mixed % millis.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const MINUTE: Duration = Duration::from_secs(60);

    fn regions() -> impl Iterator<Item = RegionId> {
        (1..=100).map(RegionId)
    }

    #[test]
    fn each_region_has_its_turn_once_in_an_interval_and_not_all_at_once() {
        let mut schedule = ComparisonSchedule::new(DAY, 7);
        let (mut turns, mut at_once) = (Vec::new(), 0);
        for minute in 0..2 * 24 * 60 {
            let now = MINUTE * minute;
            let mut ready = 0;
            while let Some(region) = schedule.next(now, regions(), |_| true) {
                turns.push((region, now));
                schedule.compared(now, region, true);
                ready += 1;
            }
            at_once = at_once.max(ready);
        }
        assert_eq!(turns.len(), 200, "two days");
        let first: BTreeSet<_> = turns[..100].iter().map(|(region, _)| *region).collect();
        assert_eq!(first.len(), 100, "no region comes twice before all had their turn");
        assert!(at_once <= 5, "{at_once} in one minute");
    }

    #[test]
    fn a_store_compares_what_it_leads_and_knows_of_the_comparisons_of_others() {
        let mut schedule = ComparisonSchedule::new(DAY, 7);
        let (one, two) = (RegionId(1), RegionId(2));
        assert_eq!(schedule.next(Duration::ZERO, [one, two], |_| true), None, "no turn yet");
        assert_eq!(schedule.next(DAY, [one, two], |region| region == two), Some(two));
        schedule.compared(DAY, two, false);
        assert_eq!(schedule.next(DAY, [one, two], |region| region == two), None);
        let later = DAY + DAY / RETRY_PART;
        assert_eq!(schedule.next(later, [one, two], |region| region == two), Some(two), "again");
        // Another leader has compared it.
        schedule.compared(later, one, true);
        assert_eq!(schedule.next(later + DAY / 2, [one, two], |region| region == one), None);
        assert_eq!(schedule.next(later + DAY, [one], |_| true), Some(one));
        assert_eq!(schedule.due.len(), 1, "the other is not here any more");
    }
}
