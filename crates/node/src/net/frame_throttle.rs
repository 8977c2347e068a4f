//! Throttles a client that sends frames without a request faster than any client needs to.
//!
//! The server library answers settings and pings as fast as they come, and each costs it as much as
//! a small request: a few connections full of them would take the cores from everybody else. A
//! client is not cut off for it: one that measures its bandwidth by pings sends some thousand in a
//! second, and waits a little at worst.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The part of a second's frames that may come at once.
const BURST_PARTS: u32 = 10;

/// A rate of frames without a request, kept to by pauses in reading (the generic cell rate
/// algorithm: of the past, only the time is kept at which all frames so far were due).
#[derive(Debug)]
pub(crate) struct FrameThrottle {
    /// From one frame to the next.
    interval: Duration,
    due: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

impl FrameThrottle {
    /// A throttle to `per_second` frames, and a tenth of that at once.
    ///
    /// # Panics
    ///
    /// `per_second` is 0.
    pub(crate) fn new(per_second: u32) -> Self {
        let now = Instant::now();
        Self { interval: Duration::from_secs(1) / per_second, due: now, pause: None }
    }

    /// The same, whose first frames are read at `begins`.
    pub(crate) fn beginning(mut self, begins: Option<Instant>) -> Self {
        self.pause = begins.map(|begins| Box::pin(tokio::time::sleep_until(begins)));
        self
    }

    /// Counts frames that were read, by their weight.
    pub(crate) fn count(&mut self, frames: u32) {
        if frames == 0 {
            return;
        }
        let now = Instant::now();
        self.due = self.due.max(now) + self.interval * frames;
        if self.due > now + Duration::from_secs(1) / BURST_PARTS {
            self.pause = Some(Box::pin(tokio::time::sleep_until(self.due)));
        }
    }

    /// Ready if the next bytes may be read; wakes the task when they may.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.pause.take_if(|pause| pause.as_mut().poll(context).is_ready());
        if self.pause.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn time_of(rounds: u32, frames: u32, throttle: &mut FrameThrottle) -> Duration {
        let began = Instant::now();
        for _ in 0..rounds {
            poll_fn(|context| throttle.poll_ready(context)).await;
            throttle.count(frames);
        }
        poll_fn(|context| throttle.poll_ready(context)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_taken_at_the_rate_and_a_burst_at_once() {
        let mut throttle = FrameThrottle::new(1000);
        assert_eq!(time_of(100, 1, &mut throttle).await, Duration::ZERO);
        let flood = time_of(100, 50, &mut throttle).await;
        assert!(
            (Duration::from_secs(5)..Duration::from_millis(5200)).contains(&flood),
            "{flood:?}"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(time_of(2, 50, &mut throttle).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_requests_alone_never_waits() {
        let mut throttle = FrameThrottle::new(1);
        assert_eq!(time_of(1000, 0, &mut throttle).await, Duration::ZERO);
    }
}
