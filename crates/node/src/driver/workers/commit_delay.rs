//! When the log writer rests: after a flush that had company, for a few times as long as flushes take.
//!
//! Every flush costs more than the sync: a round of reports, messages and wake-ups for each region
//! in it, on every store. Work that comes one by one makes a flush of nearly every write as soon
//! as the disk is quick, and the store is busy with rounds. After a flush that carried several
//! writes more will come; a rest lets them share the next one. A lone writer never waits.
//! `docs/decisions` has the measurements.

use std::time::{Duration, Instant};

/// Writes in a flush from which on it had company.
const COMMIT_SIBLINGS: usize = 3;
/// The rest, in times of what a flush takes on average.
const DELAY_FLUSHES: u32 = 4;
/// The longest rest: a slow disk makes large batches without one.
const DELAY_MAX: Duration = Duration::from_millis(2);

/// What the last flushes were like.
#[derive(Default)]
pub(crate) struct CommitDelay {
    /// Moving average over about eight flushes.
    flush: Duration,
    delay_until: Option<Instant>,
}

impl CommitDelay {
    /// Until when to gather before the next flush, if at all.
    pub(crate) fn delay_until(&self, now: Instant) -> Option<Instant> {
        self.delay_until.filter(|until| *until > now)
    }

    /// A flush of so many writes is done.
    pub(crate) fn note(&mut self, began: Instant, ended: Instant, writes: usize) {
        self.flush = (self.flush * 7 + (ended - began)) / 8;
        let rest = (self.flush * DELAY_FLUSHES).min(DELAY_MAX);
        self.delay_until = (writes >= COMMIT_SIBLINGS).then(|| ended + rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rested(flushes: u32, flush: Duration, writes: usize) -> Duration {
        let mut commit_delay = CommitDelay::default();
        let mut now = Instant::now();
        for _ in 0..flushes {
            commit_delay.note(now, now + flush, writes);
            now += flush;
        }
        commit_delay.delay_until(now).map_or(Duration::ZERO, |until| until - now)
    }

    #[test]
    fn a_lone_writer_never_waits() {
        assert_eq!(rested(100, Duration::from_micros(200), COMMIT_SIBLINGS - 1), Duration::ZERO);
    }

    #[test]
    fn company_rests_in_proportion_to_the_disk_and_not_longer_than_the_limit() {
        let rest = rested(100, Duration::from_micros(200), COMMIT_SIBLINGS);
        assert!(
            rest > Duration::from_micros(750) && rest <= Duration::from_micros(800),
            "{rest:?}"
        );
        assert_eq!(rested(100, Duration::from_millis(50), COMMIT_SIBLINGS), DELAY_MAX);
    }

    #[test]
    fn what_rested_meanwhile_needs_no_rest() {
        let mut commit_delay = CommitDelay::default();
        let now = Instant::now();
        commit_delay.note(now, now + Duration::from_millis(1), COMMIT_SIBLINGS);
        assert_eq!(commit_delay.delay_until(now + Duration::from_millis(10)), None);
    }
}
