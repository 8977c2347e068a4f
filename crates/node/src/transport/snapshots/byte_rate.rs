//! A token bucket: how many bytes of snapshots flow in one direction, over all streams.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The time whose bytes may flow at once after a rest. Longer than a timer is late, so that the
/// rate is kept on average.
const BURST: Duration = Duration::from_millis(20);

/// A bound on the bytes of a second. Takers wait in the order in which they ask.
pub(crate) struct ByteRate {
    bytes_per_s: u64,
    /// All bytes that were taken until now will have flowed then.
    flowed: Mutex<Instant>,
}

impl ByteRate {
    /// So many bytes a second; 0 for any number.
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s, flowed: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` may flow.
    ///
    /// # Cancel safety
    ///
    /// A taker that goes away has taken its bytes all the same.
    pub(crate) async fn take(&self, bytes: usize) {
        if self.bytes_per_s == 0 {
            return;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        let flowed = {
            let mut flowed = self.flowed.lock();
            *flowed = (*flowed).max(Instant::now()) + cost;
            *flowed
        };
        // An instant before the machine's first is not needed: then nothing is waited for.
        if let Some(start) = flowed.checked_sub(BURST) {
            sleep_until(start).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_flow_at_the_rate_and_some_at_once_after_a_rest() {
        let rate = ByteRate::new(1 << 20);
        let start = Instant::now();
        rate.take(1 << 14).await;
        assert!(start.elapsed() < Duration::from_millis(2), "{:?}", start.elapsed());
        for _ in 0..4 {
            rate.take(1 << 20).await;
        }
        let took = start.elapsed();
        let expected = Duration::from_millis(3990)..Duration::from_millis(4010);
        assert!(expected.contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn two_takers_share_a_rate() {
        let rate = ByteRate::new(1 << 20);
        let start = Instant::now();
        let take = || async {
            for _ in 0..8 {
                rate.take(1 << 18).await;
            }
        };
        tokio::join!(take(), take());
        let took = start.elapsed();
        assert!(took > Duration::from_millis(3900), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_rate_waits_for_nothing() {
        let (rate, start) = (ByteRate::new(0), Instant::now());
        rate.take(usize::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
