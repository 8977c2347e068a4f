//! Backpressure: how long a writer waits, as a pure function of dirty bytes and write throughput,
//! without a clock or a lock.
//!
//! Above the soft limit a writer waits before it begins, for the time in which a checkpoint writes
//! as much as the last transaction has added, times `f / (1 - f)`, where f is how far it is from
//! the soft limit to the hard one: nothing at first, as long as the checkpoint takes half-way, for
//! ever at the hard limit.

use std::time::Duration;

use crate::config::DirtyLimits;

/// Assumed throughput, until a checkpoint has shown how fast it is.
const BYTES_PER_SECOND: f64 = 64.0 * (1 << 20) as f64;

/// The longest wait below the hard limit. The longest ones are those next to it, where a writer
/// looks again soon anyway.
const REST_MAX: Duration = Duration::from_secs(1);

impl DirtyLimits {
    /// How far it is from the soft limit to the hard one: 0 at the first, 1 at the second.
    pub(crate) fn fraction(&self, dirty_bytes: u64) -> f64 {
        let above = dirty_bytes.saturating_sub(self.soft_bytes) as f64;
        above / self.hard_bytes.saturating_sub(self.soft_bytes).max(1) as f64
    }

    /// How long the next transaction is to wait, after one that added `added_bytes`; nothing if it
    /// may not begin at all.
    fn rest(&self, dirty_bytes: u64, added_bytes: u64, bytes_per_second: f64) -> Option<Duration> {
        let f = self.fraction(dirty_bytes);
        let seconds = added_bytes as f64 / bytes_per_second * f / (1.0 - f);
        (f < 1.0).then(|| Duration::from_secs_f64(seconds.min(REST_MAX.as_secs_f64())))
    }
}

/// Tells writers of [`PageStore`](crate::PageStore) how long to wait, so that they come to add as
/// much as the checkpoints take away: for an embedder that makes its own checkpoints. Where a
/// [`MaintenanceThread`](crate::MaintenanceThread) runs, writers are throttled by themselves.
///
/// It has no clock: `now` is the time since any moment that stays the same.
#[derive(Clone, Debug)]
pub struct Pacer {
    bytes_per_second: f64,
    /// When the last transaction began, and what was dirty then.
    began: Duration,
    dirty_bytes: u64,
    /// The bytes that it has added, once the wait of the next one was asked for.
    added_bytes: Option<u64>,
}

impl Default for Pacer {
    fn default() -> Pacer {
        let bytes_per_second = BYTES_PER_SECOND;
        Pacer { bytes_per_second, began: Duration::ZERO, dirty_bytes: 0, added_bytes: None }
    }
}

impl Pacer {
    /// How much longer the next transaction has to wait, a second at most and zero if it may begin;
    /// nothing if it may not before a checkpoint has written something. Ask again when this time is
    /// over, or dirty bytes have become fewer.
    pub fn left(
        &mut self,
        limits: DirtyLimits,
        dirty_bytes: u64,
        now: Duration,
    ) -> Option<Duration> {
        let before = self.dirty_bytes;
        // Fixed by the first call: progress of a checkpoint must not look like fewer added bytes.
        let added = *self.added_bytes.get_or_insert(dirty_bytes.saturating_sub(before));
        let rest = limits.rest(dirty_bytes, added, self.bytes_per_second)?;
        Some(rest.saturating_sub(now.saturating_sub(self.began)))
    }

    /// Notes that a transaction begins.
    pub fn begin(&mut self, dirty_bytes: u64, now: Duration) {
        (self.dirty_bytes, self.began, self.added_bytes) = (dirty_bytes, now, None);
    }

    /// Notes the bytes that a checkpoint has written, and its duration. Less than 1 MiB says
    /// nothing of the disk's throughput.
    pub fn note_checkpoint(&mut self, bytes: u64, took: Duration) {
        if bytes >= 1 << 20 {
            self.bytes_per_second = bytes as f64 / took.as_secs_f64().max(1e-6);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DirtyLimits = DirtyLimits { soft_bytes: 1000, hard_bytes: 3000 };
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rests_grow_smoothly_from_nothing_to_for_ever() {
        let rests = [0, 1000, 1500, 2000, 2500, 2900, 2999, 3000, 9000]
            .map(|dirty| LIMITS.rest(dirty, 500, 1e6).map(|rest| rest.as_micros()));
        let expected = [0, 0, 166, 500, 1500, 9500, 999_500].map(Some);
        assert_eq!(rests[..7], expected);
        assert_eq!(rests[7..], [None, None]);
        assert_eq!(LIMITS.rest(2500, 0, 1e6), Some(Duration::ZERO), "who adds nothing waits not");
    }

    #[test]
    fn rest_counts_from_when_the_last_one_began_and_for_what_it_added() {
        let mut pacer = Pacer::default();
        // A megabyte a millisecond.
        pacer.note_checkpoint(1 << 20, MS);
        let limits = DirtyLimits { soft_bytes: 0, hard_bytes: 8 << 20 };
        pacer.begin(2 << 20, 5 * MS);
        // Two more megabytes, half-way.
        assert_eq!(pacer.left(limits, 4 << 20, 5 * MS), Some(2 * MS));
        assert_eq!(pacer.left(limits, 4 << 20, 6 * MS), Some(MS));
        assert_eq!(pacer.left(limits, 8 << 20, 6 * MS), None, "somebody else has added more");
        assert_eq!(pacer.left(limits, 4 << 20, 8 * MS), Some(Duration::ZERO));
        // Less is dirty than before, and that is not what the last one added.
        assert_eq!(pacer.left(limits, 0, 5 * MS), Some(Duration::ZERO));
        pacer.begin(0, 9 * MS);
        assert_eq!(pacer.left(limits, 4 << 20, 9 * MS), Some(4 * MS));
        pacer.note_checkpoint((1 << 20) - 1, Duration::ZERO);
        assert_eq!(pacer.left(limits, 4 << 20, 9 * MS), Some(4 * MS), "too short to count");
    }

    #[test]
    fn who_adds_more_than_is_written_comes_to_rest_below_the_hard_limit() {
        let limits = DirtyLimits { soft_bytes: 64 << 20, hard_bytes: 256 << 20 };
        let (mut pacer, mut now, mut dirty) = (Pacer::default(), Duration::ZERO, 0_u64);
        let mut least = u64::MAX;
        // A megabyte at a time, which takes a millisecond; 64 are written in a second meanwhile.
        for transaction in 0..20_000 {
            let mut asked = 0;
            while pacer.left(limits, dirty, now) != Some(Duration::ZERO) {
                now += MS;
                dirty -= 64 << 10;
                asked += 1;
                assert!(asked < 100, "{dirty} dirty after {transaction} transactions");
            }
            pacer.begin(dirty, now);
            dirty += 1 << 20;
            now += MS;
            if transaction > 10_000 {
                least = least.min(dirty);
            }
            assert!(dirty < 250 << 20, "{dirty} dirty after {transaction} transactions");
        }
        assert!(least > 64 << 20, "{least} dirty: it waits longer than it must");
    }
}
