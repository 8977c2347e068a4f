//! The pace of a store's splits: the throttle of all of them, its clock, and those in flight.

use flotilla_dispatch::SplitThrottle;
use flotilla_region::RegionId;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::in_flight::{InFlightGuard, InFlightList};

/// Lets splits begin one after the other.
pub(crate) struct SplitPace {
    throttle: Mutex<SplitThrottle>,
    /// Times are counted from here.
    start: Instant,
    in_flight: InFlightList<SplitInFlight>,
}

/// A split that this store was asked for, from the wait for its turn to the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitInFlight {
    pub(crate) region: RegionId,
    /// Into so many.
    pub(crate) parts: usize,
}

impl SplitPace {
    pub(super) fn new() -> Self {
        let in_flight = InFlightList::default();
        Self { throttle: Mutex::default(), start: Instant::now(), in_flight }
    }

    /// Notes that a split begins.
    pub(super) fn begin(&self, region: RegionId, parts: usize) -> InFlightGuard<SplitInFlight> {
        self.in_flight.begin(SplitInFlight { region, parts })
    }

    /// The splits that are in flight.
    pub(crate) fn in_flight(&self) -> &InFlightList<SplitInFlight> {
        &self.in_flight
    }

    /// Waits until a split that makes `regions` new ones may begin. A caller that is dropped
    /// meanwhile leaves its time unused.
    pub(super) async fn admit(&self, regions: usize) {
        let begins = self.throttle.lock().admit(self.start.elapsed(), regions);
        sleep_until(self.start + begins).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_split_waits_for_the_time_of_those_before_it() {
        let pace = SplitPace::new();
        let began = Instant::now();
        pace.admit(16).await;
        assert!(began.elapsed().is_zero(), "the first begins at once");
        pace.admit(2).await;
        let first = began.elapsed();
        assert!(!first.is_zero());
        tokio::join!(pace.admit(16), pace.admit(1));
        assert!(began.elapsed() >= 2 * first, "{:?} after {first:?}", began.elapsed());
    }
}
