//! When the log writer rests: after a flush that had company, for a few times as long as flushes take.
//!
//! Every flush costs more than the sync: a round of reports, messages and wake-ups for each region
//! in it, on every store. Work that comes one by one makes a flush of nearly every write as soon
//! as the disk is quick, and the store is busy with rounds. After a flush that carried several
//! writes more will come; a rest lets them share the next one. A lone writer never waits.
//! `docs/decisions` has the measurements.

use std::time::{Duration, Instant};

/// Writes in a flush from which on it had company.
const COMPANY: usize = 3;
/// The rest, in times of what a flush takes on average.
const REST_FLUSHES: u32 = 4;
/// The longest rest: a slow disk makes large batches without one.
const REST_MAX: Duration = Duration::from_millis(2);

/// What the last flushes were like.
#[derive(Default)]
pub(crate) struct Pace {
    /// Moving average over about eight flushes.
    flush: Duration,
    rest_until: Option<Instant>,
}

impl Pace {
    /// Until when to gather before the next flush, if at all.
    pub(crate) fn rest_until(&self, now: Instant) -> Option<Instant> {
        self.rest_until.filter(|until| *until > now)
    }

    /// A flush of so many writes is done.
    pub(crate) fn note(&mut self, began: Instant, ended: Instant, writes: usize) {
        self.flush = (self.flush * 7 + (ended - began)) / 8;
        let rest = (self.flush * REST_FLUSHES).min(REST_MAX);
        self.rest_until = (writes >= COMPANY).then(|| ended + rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rested(flushes: u32, flush: Duration, writes: usize) -> Duration {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for _ in 0..flushes {
            pace.note(now, now + flush, writes);
            now += flush;
        }
        pace.rest_until(now).map_or(Duration::ZERO, |until| until - now)
    }

    #[test]
    fn a_lone_writer_never_waits() {
        assert_eq!(rested(100, Duration::from_micros(200), COMPANY - 1), Duration::ZERO);
    }

    #[test]
    fn company_rests_in_proportion_to_the_disk_and_not_longer_than_the_limit() {
        let rest = rested(100, Duration::from_micros(200), COMPANY);
        assert!(
            rest > Duration::from_micros(750) && rest <= Duration::from_micros(800),
            "{rest:?}"
        );
        assert_eq!(rested(100, Duration::from_millis(50), COMPANY), REST_MAX);
    }

    #[test]
    fn what_rested_meanwhile_needs_no_rest() {
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.note(now, now + Duration::from_millis(1), COMPANY);
        assert_eq!(pace.rest_until(now + Duration::from_millis(10)), None);
    }
}
