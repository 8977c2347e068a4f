//! A latency histogram that many threads fill without a lock.
//!
//! The buckets are fixed: two for each power of two, from 16 microseconds to 12.6 seconds, so that
//! a quantile read from them is at most 50 % too high. To observe a duration costs two additions
//! to atomics; the bucket is computed and not searched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets with an upper bound.
const BOUNDED_BUCKETS: usize = 40;
/// The bound of the first bucket, as a power of two of a microsecond.
const FIRST_BOUND_LOG2: u32 = 4;

/// A latency histogram. See the module for its buckets.
#[derive(Debug)]
pub struct LatencyHistogram {
    /// The last one has no bound.
    buckets: [AtomicU64; BOUNDED_BUCKETS + 1],
    sum_ns: AtomicU64,
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramReading {
    counts: [u64; BOUNDED_BUCKETS + 1],
    sum: Duration,
}

impl Default for HistogramReading {
    fn default() -> Self {
        Self { counts: [0; BOUNDED_BUCKETS + 1], sum: Duration::ZERO }
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl LatencyHistogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        // Relaxed: a reading may have a duration in its bucket and not in its sum.
        self.buckets[bucket_of(duration)].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The counts now.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        HistogramReading {
            counts: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

impl HistogramReading {
    /// The number of durations that were observed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The durations that were observed after `earlier`, an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts);
        // Saturating: an earlier reading of another histogram makes no sense, and no panic either.
        let mut counts = counts.map(|(now, before)| now.saturating_sub(*before));
        Self {
            counts: std::array::from_fn(|_| counts.next().unwrap_or_default()),
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }

    /// The duration that a part `share` of all, between 0 and 1, does not exceed; `None` without
    /// any. Durations count as evenly spread over their bucket, as Prometheus has it, and those
    /// beyond the last bound as that.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = share.clamp(0.0, 1.0) * count as f64;
        let (mut low, mut below) = (Duration::ZERO, 0);
        for (at, count) in self.counts.iter().take(BOUNDED_BUCKETS).enumerate() {
            let high = bound(at);
            if *count > 0 && (below + count) as f64 >= rank {
                let part = (rank - below as f64).max(0.0) / *count as f64;
                return Some(low + (high - low).mul_f64(part));
            }
            (low, below) = (high, below + count);
        }
        Some(low)
    }

    /// The upper bound of each bucket that has one, and how many durations are not above it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut below = 0;
        self.counts.iter().take(BOUNDED_BUCKETS).enumerate().map(move |(at, count)| {
            below += count;
            (bound(at), below)
        })
    }
}

/// The upper bound of a bucket: 2^k or 1.5 * 2^k microseconds.
fn bound(at: usize) -> Duration {
    let unit = if at.is_multiple_of(2) { 2 } else { 3 };
    Duration::from_micros(unit << (FIRST_BOUND_LOG2 as usize - 1 + at / 2))
}

/// The bucket of a duration: the first one whose bound is not below it.
fn bucket_of(duration: Duration) -> usize {
    // Rounded up: a bound belongs to its bucket, and whatever is above it does not.
    let us = u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
    let below = us.saturating_sub(1);
    let Some(octave) = below.checked_ilog2().and_then(|log2| log2.checked_sub(FIRST_BOUND_LOG2))
    else {
        return 0;
    };
    let is_upper_half = below >> (octave + FIRST_BOUND_LOG2 - 1) & 1;
    (2 * octave as usize + 1 + is_upper_half as usize).min(BOUNDED_BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_is_not_below_it() {
        let bounds: Vec<_> = (0..BOUNDED_BUCKETS).map(bound).collect();
        assert!(bounds.is_sorted());
        assert_eq!((bounds[0], bounds[1]), (Duration::from_micros(16), Duration::from_micros(24)));
        assert_eq!(bounds[BOUNDED_BUCKETS - 1], Duration::from_micros(3 << 22));
        let near = |bound: Duration| {
            let ns = Duration::from_nanos(1);
            [bound - ns, bound, bound + ns]
        };
        let outermost = [Duration::ZERO, Duration::MAX];
        for duration in bounds.iter().copied().flat_map(near).chain(outermost) {
            let searched = bounds.iter().position(|bound| *bound >= duration);
            assert_eq!(bucket_of(duration), searched.unwrap_or(BOUNDED_BUCKETS), "{duration:?}");
        }
    }

    #[test]
    fn a_reading_has_cumulative_counts() {
        let histogram = LatencyHistogram::default();
        for ms in [1, 1, 3, 60_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let reading = histogram.read();
        assert_eq!((reading.count(), reading.sum()), (4, Duration::from_millis(60_005)));
        let buckets: Vec<_> = reading.buckets().collect();
        let below = |ms| {
            let within = buckets.iter().rfind(|(bound, _)| *bound <= Duration::from_millis(ms));
            within.map(|(_, count)| *count)
        };
        assert_eq!([below(1), below(2), below(4)], [Some(0), Some(2), Some(3)]);
        assert_eq!(buckets.last().map(|(_, count)| *count), Some(3), "a minute has no bound");
    }

    #[test]
    fn a_quantile_lies_in_its_bucket_and_a_difference_has_what_came_between() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.read().quantile(0.5), None);
        histogram.observe(Duration::from_secs(1));
        let before = histogram.read();
        for ms in 1..=100 {
            histogram.observe(Duration::from_millis(ms));
        }
        let reading = histogram.read().since(&before);
        assert_eq!((reading.count(), reading.sum()), (100, Duration::from_millis(5050)));
        for (share, ms) in [(0.01, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            let quantile = reading.quantile(share).unwrap();
            let exact = Duration::from_millis(ms);
            let is_near = quantile > exact.mul_f64(0.66) && quantile < exact.mul_f64(1.5);
            assert!(is_near, "{share}: {quantile:?}, is {exact:?}");
        }
        assert_eq!(before.since(&histogram.read()), HistogramReading::default());
        let slow = LatencyHistogram::default();
        slow.observe(Duration::from_secs(60));
        assert_eq!(slow.read().quantile(0.5), Some(bound(BOUNDED_BUCKETS - 1)));
    }
}
