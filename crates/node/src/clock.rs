//! The monotonic clock of a node, read before each step of a shard and after it.
//!
//! Leases rest on it, so it must go on while the machine is suspended: a leader that comes back
//! after a minute must know that a minute has passed. Linux' `CLOCK_BOOTTIME` does; the clock
//! behind [`Instant`], `CLOCK_MONOTONIC`, stands still. It is read through libc's `clock_gettime`,
//! so that a preloaded library can stand between, as tests do.
//!
//! Waits are counted by the other clock. A thread that waits while the machine is suspended wakes
//! later than asked for, by as much as was left of the wait: ticks come late then, and none comes
//! early.

use std::time::{Duration, Instant};

use flotilla_region::Time;

/// Counts milliseconds since the node started. Never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The reading of the machine's clock at the start.
    origin: Duration,
}

impl Clock {
    /// Whether this clock goes on while the machine is suspended. Where it does not, no leader may
    /// count on a lease.
    pub const GOES_ON_IN_SUSPEND: bool = cfg!(target_os = "linux");

    /// A clock that reads 0 now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: since_boot() }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Time {
        // Saturating: the time must not go back, whatever the kernel says.
        let elapsed = since_boot().saturating_sub(self.origin);
        Time(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
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

/// Since the machine was started, suspensions included.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    use nix::time::{ClockId, clock_gettime};

    let time = clock_gettime(ClockId::CLOCK_BOOTTIME);
    Duration::from(time.expect("Linux has had this clock since 2.6.39"))
}

/// Since the first call. Leases are off here.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
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

    #[test]
    fn a_clock_begins_at_nothing_and_counts() {
        let clock = Clock::start();
        assert!(clock.now() < Time(60_000));
        let earlier = Clock { origin: clock.origin.saturating_sub(Duration::from_secs(3600)) };
        assert!(earlier.now() >= Time(3_600_000) || clock.origin < Duration::from_secs(3600));
    }
}
