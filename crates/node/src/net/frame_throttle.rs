//! Throttles a client that sends frames without a request faster than any client needs to, and
//! hangs up on one that goes on with it.
//!
//! The server library answers settings and pings as fast as they come, and each costs it as much
//! as a small request: a few connections full of them would take the cores from everybody else. A
//! client is not cut off for some: one that measures its bandwidth by pings sends some thousand
//! in a second, and waits a little at worst. One that is never done is. Its kernel goes on to
//! deliver megabytes of frames when the client itself is long gone, so a flooder that connects
//! anew every other second would have one more connection each time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The part of a second's frames that may come at once.
const BURST_PARTS: u32 = 10;
/// The shortest pause. The frames that are due after it are read in few turns, and what answers
/// them is written together; after one of a millisecond, each would be a write of its own.
const PAUSE_MIN: Duration = Duration::from_millis(4);
/// The time for which more may come than that, without a moment in which all that has come is
/// read. A client that waits for an answer to its last ping has such moments, however many it
/// sends.
const PATIENCE: Duration = Duration::from_secs(2);

/// Fetched bytes that allow for one frame more. Clients open their windows once for each 16 KiB,
/// of the stream and of the connection, or less often.
const BYTES_PER_FRAME: u32 = 4 << 10;

/// A rate of frames without a request, kept to by pauses in reading (the generic cell rate
/// algorithm: of the past, only the time is kept at which all frames so far were due).
#[derive(Debug)]
pub(crate) struct FrameThrottle {
    /// From one frame to the next.
    interval: Duration,
    due: Instant,
    /// The first pause since all frames so far were due, or all that had come was read.
    paused_since: Option<Instant>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl FrameThrottle {
    /// A throttle to `per_second` frames, and a tenth of that at once.
    ///
    /// # Panics
    ///
    /// `per_second` is 0.
    pub(crate) fn new(per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Self { interval, due: Instant::now(), paused_since: None, pause: None }
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
        let (now, burst) = (Instant::now(), Duration::from_secs(1) / BURST_PARTS);
        if self.due <= now {
            self.paused_since = None;
        }
        self.due = self.due.max(now) + self.interval * frames;
        let until = self.due - burst;
        if until > now {
            self.paused_since.get_or_insert(now);
            self.pause = Some(Box::pin(tokio::time::sleep_until(until.max(now + PAUSE_MIN))));
        }
    }

    /// Allows for the frames by which a client opens its windows for the bytes that it has
    /// fetched.
    pub(crate) fn fetch(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let frames = self.interval * bytes / BYTES_PER_FRAME;
        self.due = self.due.checked_sub(frames).unwrap_or(self.due);
    }

    /// Whether it has paused, and neither are all frames so far due nor all read.
    pub(crate) fn is_pausing(&self) -> bool {
        self.paused_since.is_some()
    }

    /// All that has come is read: this is no flood.
    pub(crate) fn rest(&mut self) {
        self.paused_since = None;
    }

    /// Ready if the next bytes may be read; wakes the task when they may.
    ///
    /// # Errors
    ///
    /// The client has flooded for too long.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
            if self.paused_since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn ready(throttle: &mut FrameThrottle) -> io::Result<()> {
        poll_fn(|context| throttle.poll_ready(context)).await
    }

    /// The time of the frames that may come at once.
    const BURST: Duration = Duration::from_millis(100);

    async fn time_of(rounds: u32, frames: u32, throttle: &mut FrameThrottle) -> Duration {
        let began = Instant::now();
        for _ in 0..rounds {
            ready(throttle).await.unwrap();
            throttle.count(frames);
        }
        ready(throttle).await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_taken_at_the_rate_and_a_burst_at_once() {
        let mut throttle = FrameThrottle::new(1000);
        assert_eq!(time_of(100, 1, &mut throttle).await, Duration::ZERO);
        let flood = time_of(30, 50, &mut throttle).await;
        let at_the_rate = Duration::from_millis(1500);
        assert!((at_the_rate..at_the_rate + BURST).contains(&flood), "{flood:?}");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(time_of(2, 50, &mut throttle).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_comes_steadily_and_not_in_bursts() {
        let mut throttle = FrameThrottle::new(1000);
        time_of(100, 1, &mut throttle).await;
        for _ in 0..10 {
            let five = time_of(1, 5, &mut throttle).await;
            assert!(five <= Duration::from_millis(6), "{five:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_floods_on_is_hung_up_on_and_one_that_rests_is_not() {
        let mut throttle = FrameThrottle::new(1000);
        for _ in 0..10 {
            time_of(30, 50, &mut throttle).await;
            tokio::time::advance(BURST).await;
        }
        let began = Instant::now();
        let error = loop {
            match ready(&mut throttle).await {
                Ok(()) => throttle.count(50),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let flood = began.elapsed();
        assert!((PATIENCE..PATIENCE + Duration::from_millis(200)).contains(&flood), "{flood:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_are_few_whatever_a_frame_weighs() {
        let mut throttle = FrameThrottle::new(1000);
        throttle.count(100);
        let mut pauses = 0;
        let flood = Instant::now();
        for _ in 0..1000 {
            throttle.count(1);
            let before = Instant::now();
            ready(&mut throttle).await.unwrap();
            pauses += u32::from(before.elapsed() > Duration::ZERO);
        }
        let seconds = flood.elapsed().as_secs_f64();
        assert!((0.99..1.02).contains(&seconds), "{seconds} s");
        assert!((150..=260).contains(&pauses), "{pauses} pauses");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_answers_is_throttled_and_not_hung_up_on() {
        let mut throttle = FrameThrottle::new(1000);
        let began = Instant::now();
        while began.elapsed() < 4 * PATIENCE {
            time_of(1, 4, &mut throttle).await;
            throttle.rest();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_fetches_much_may_open_its_windows_as_often() {
        let mut throttle = FrameThrottle::new(100);
        for _ in 0..1000 {
            throttle.fetch(16 << 10);
            assert_eq!(time_of(1, 2, &mut throttle).await, Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_requests_alone_never_waits() {
        let mut throttle = FrameThrottle::new(1);
        assert_eq!(time_of(1000, 0, &mut throttle).await, Duration::ZERO);
    }
}
