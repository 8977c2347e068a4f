//! A store's own clock: runs a little fast or slow, never goes back, and goes on in suspend.

use flotilla_region::Time;

use crate::event_queue::SimTime;

const MILLION: i64 = 1_000_000;
const US_PER_MS: u64 = 1_000;

/// Turns moments of the run into the store's time and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalClock {
    /// Microseconds of the store's clock in a second.
    rate: u64,
    offset_us: u64,
    /// How long the machine was suspended, all in all. It does not count: the clock that a node
    /// reads goes on meanwhile.
    suspended_us: u64,
}

impl LocalClock {
    pub(crate) fn new(drift_ppm: i64, offset_us: u64) -> Self {
        let rate = u64::try_from(MILLION + drift_ppm).expect("a drift is a few per cent");
        Self { rate, offset_us, suspended_us: 0 }
    }

    /// Notes that the machine was suspended for so long.
    pub(crate) fn suspend(&mut self, us: u64) {
        self.suspended_us += us;
    }

    /// How long the machine was suspended.
    pub(crate) fn suspended_us(self) -> u64 {
        self.suspended_us
    }

    /// The reading of the store's clock at a moment.
    pub(crate) fn read(self, moment: SimTime) -> Time {
        // Without `suspended_us`: the node's clock is `CLOCK_BOOTTIME`, which does not stand still
        // (docs/decisions/0005-leases.md).
        Time((self.offset_us + moment * self.rate / MILLION as u64) / US_PER_MS)
    }

    /// The first moment, not before `now`, at which the store's clock says `time`.
    pub(crate) fn moment(self, time: Time, now: SimTime) -> SimTime {
        let local_us = time.0.saturating_mul(US_PER_MS).saturating_sub(self.offset_us);
        let Some(scaled) = local_us.checked_mul(MILLION as u64) else { return SimTime::MAX };
        // Rounded up: woken a moment too early, the core would find no timer due and be woken again
        // at the same time.
        scaled.div_ceil(self.rate).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_first_at_which_the_clock_says_so() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..10_000 {
            let clock = LocalClock::new(rng.i64(-10_000..=10_000), rng.u64(..5_000_000));
            let time = Time(rng.u64(..1_000_000));
            let moment = clock.moment(time, 0);
            assert!(clock.read(moment) >= time);
            assert!(moment == 0 || clock.read(moment - 1) < time, "{clock:?} {time:?}");
        }
    }

    #[test]
    fn a_suspended_machine_finds_that_time_has_passed() {
        let mut clock = LocalClock::new(0, 0);
        clock.suspend(500_000);
        assert_eq!((clock.read(1_000_000), clock.suspended_us()), (Time(1_000), 500_000));
    }

    #[test]
    fn one_per_cent_is_ten_milliseconds_a_second() {
        assert_eq!(LocalClock::new(10_000, 0).read(1_000_000), Time(1_010));
        assert_eq!(LocalClock::new(-10_000, 0).read(1_000_000), Time(990));
    }
}
