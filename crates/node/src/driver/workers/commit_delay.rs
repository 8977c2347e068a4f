//! The delay before a group commit, as PostgreSQL's `commit_delay`: it lets more writes share a
//! sync.
//!
//! Every flush costs more than the sync: completions, messages and wake-ups for each region in it,
//! on every store. Writes that come one by one make a flush of nearly every write as soon as the
//! disk is quick, and the store is busy with flushes. After a flush that carried several writes
//! more will come; a short delay lets them share the next one. A lone writer never waits. Decision
//! 7 (`docs/decisions/0007-a-rest-between-syncs.md`) has the measurements.

use std::time::{Duration, Instant};

/// Writes in a flush from which on the next flush is delayed.
const COMMIT_SIBLINGS: usize = 3;
/// The delay, as a multiple of the average time of a flush.
const DELAY_FLUSHES: u32 = 4;
/// The longest delay: a slow disk makes large batches without one.
const DELAY_MAX: Duration = Duration::from_millis(2);

/// The average duration of flushes, and the end of the current delay.
#[derive(Default)]
pub(crate) struct CommitDelay {
    /// Moving average over about eight flushes.
    flush: Duration,
    delay_until: Option<Instant>,
}

impl CommitDelay {
    /// Until when to wait for more writes before the next flush, if at all.
    pub(crate) fn delay_until(&self, now: Instant) -> Option<Instant> {
        self.delay_until.filter(|until| *until > now)
    }

    /// A flush of `writes` writes is done.
    pub(crate) fn note(&mut self, began: Instant, ended: Instant, writes: usize) {
        assert!(writes > 0, "a flush without a write");
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
