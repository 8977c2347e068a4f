//! The throttle of a store's splits (`docs/decisions/0040-splits-are-paced.md`).
//!
//! A split costs its clients an election and a request that is sent again. If the next split of the
//! region follows at once, that request is overtaken again, and so are all after it: so new regions
//! come at a rate, and a split that makes many has the store to itself for a while.
//!
//! Invariant: over any time, a store makes no more regions than one split may, and those that the
//! rate allows.

use std::time::Duration;

/// The time for one new region: 400 a second.
const REGION_INTERVAL: Duration = Duration::from_micros(2_500);

/// Says when the splits of a store may begin. Times are counted from any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitThrottle {
    /// When the next split may begin.
    free: Duration,
}

impl SplitThrottle {
    /// When a split that makes `regions` new ones may begin, if it is asked for at `now`: at once,
    /// or once those that were admitted before it have had their time.
    pub fn admit(&mut self, now: Duration, regions: usize) -> Duration {
        let begins = self.free.max(now);
        let regions = u32::try_from(regions).unwrap_or(u32::MAX);
        self.free = begins.saturating_add(REGION_INTERVAL.saturating_mul(regions));
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn splits_of_a_store_at_rest_begin_at_once() {
        let mut throttle = SplitThrottle::default();
        assert_eq!(throttle.admit(at(0), 16), at(0));
        assert_eq!(throttle.admit(at(40), 1), at(40));
        assert_eq!(throttle.admit(at(9_000), 16), at(9_000), "rest is not saved up");
        assert_eq!(throttle.admit(at(9_000), 1), at(9_040));
    }

    #[test]
    fn a_thousand_regions_come_evenly_and_within_seconds() {
        let (mut throttle, mut now) = (SplitThrottle::default(), at(700));
        let mut begun = vec![];
        for _ in 0..63 {
            // Each is asked for a moment after the one before it.
            now = throttle.admit(now + at(4), 16);
            begun.push(now);
        }
        let pauses = begun.windows(2).map(|two| two[1] - two[0]);
        assert!(pauses.into_iter().all(|pause| pause == at(40)));
        assert!(now < at(3_500), "{now:?}");
    }

    #[test]
    fn those_that_ask_together_come_one_after_the_other() {
        let mut throttle = SplitThrottle::default();
        let begins: Vec<_> = (0..4).map(|_| throttle.admit(at(5), 2)).collect();
        assert_eq!(begins, [at(5), at(10), at(15), at(20)]);
        assert_eq!(throttle.admit(at(6), usize::MAX), at(25), "a number without sense is no panic");
    }
}
