//! The one clock of a node, read once for each step of a shard.

use std::time::{Duration, Instant};

use flotilla_region::Time;

/// Counts milliseconds since the node started. Never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that reads 0 now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// When this clock will read `time`, for those who must wait until then.
    #[must_use]
    pub fn instant(&self, time: Time) -> Instant {
        // A day ahead stands for "never": adding any u64 could overflow the platform's instant.
        const WAIT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
        let ahead = time.0.saturating_sub(self.now().0).min(WAIT_MS_MAX);
        // `now` rounds down, so the instant is never before the millisecond that was asked for.
        Instant::now() + Duration::from_millis(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_for_the_far_future_does_not_overflow() {
        let clock = Clock::start();
        assert!(clock.instant(Time(u64::MAX)) > Instant::now());
        assert!(clock.instant(Time(0)) <= Instant::now());
    }
}
