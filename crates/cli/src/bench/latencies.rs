//! Histograms of latencies.

use hdrhistogram::Histogram;

/// The longest latency that the histogram resolves, a minute; longer ones count as that.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// An empty histogram of latencies in nanoseconds, with three digits.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
        .expect("bounds and digits are what the histogram allows")
}
