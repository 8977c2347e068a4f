//! When the requests of a load are sent: one after the other, or at a rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::args::PacingArgs;

/// Gives requests out to the callers of a load.
pub(crate) struct Pacing {
    began: Instant,
    until: Option<Instant>,
    /// Requests to be given out; none: as many as there is time for.
    count: Option<u64>,
    rate: Option<u32>,
    given: AtomicU64,
}

impl Pacing {
    pub(crate) fn new(args: &PacingArgs, began: Instant) -> Pacing {
        Pacing {
            began,
            until: args.seconds.map(|seconds| began + Duration::from_secs(seconds)),
            count: args.seconds.is_none().then_some(args.requests),
            rate: args.rate,
            given: AtomicU64::new(0),
        }
    }

    /// Waits until the next request is due, and says since when its latency counts; none at the
    /// end of the load.
    ///
    /// Without a rate that is now. With one it is the time at which the request was due, if the
    /// caller was not free before: what waits for a slow answer counts as slow. A caller that has
    /// waited for that time begins when it wakes, so that the timer's inaccuracy is not counted.
    pub(crate) async fn next(&self) -> Option<Instant> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let due = self.rate.map_or(now, |rate| {
            self.began + Duration::from_secs_f64(number as f64 / f64::from(rate))
        });
        let is_over = self.count.is_some_and(|count| number >= count)
            || self.until.is_some_and(|until| now.max(due) >= until);
        if is_over {
            return None;
        }
        if due <= now {
            return Some(due);
        }
        tokio::time::sleep_until(due).await;
        Some(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacing(requests: u64, seconds: Option<u64>, rate: Option<u32>) -> Pacing {
        let args = PacingArgs { requests, seconds, rate, window: None };
        Pacing::new(&args, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_ends_at_its_count_or_at_its_time() {
        let counted = pacing(3, None, None);
        for _ in 0..3 {
            assert!(counted.next().await.is_some());
        }
        assert_eq!(counted.next().await, None);
        let timed = pacing(3, Some(2), Some(10));
        let mut given = 0;
        while timed.next().await.is_some() {
            given += 1;
        }
        assert_eq!((given, timed.began.elapsed().as_millis() / 100), (20, 19));
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_for_a_caller_counts_from_when_it_was_due() {
        let paced = pacing(10, None, Some(1_000));
        let began = paced.began;
        assert_eq!(paced.next().await, Some(began));
        tokio::time::advance(Duration::from_millis(50)).await;
        assert_eq!(paced.next().await, Some(began + Duration::from_millis(1)));
        assert_eq!(paced.next().await, Some(began + Duration::from_millis(2)));
    }
}
