//! Slow requests: their line in the log, with the time of each stage, at a bounded rate.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Least time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// A stage's name and how long it took.
pub(super) type StageDuration = (&'static str, Duration);

/// Decides which requests are slow, and which of them get a line.
#[derive(Debug)]
pub(super) struct SlowLog {
    /// From so many microseconds on.
    slow_us: AtomicU64,
    state: Mutex<SlowLogState>,
}

#[derive(Debug, Default)]
struct SlowLogState {
    /// When the last line was made.
    last: Option<Instant>,
    /// Slow requests since then, which got none.
    unsaid: u64,
}

/// No request is slow.
impl Default for SlowLog {
    fn default() -> Self {
        Self::new(Duration::MAX)
    }
}

impl SlowLog {
    /// A request is slow if it takes `slow` or longer.
    pub(super) fn new(slow: Duration) -> Self {
        Self { slow_us: AtomicU64::new(micros(slow)), state: Mutex::default() }
    }

    /// A request is slow from now on if it takes `slow` or longer.
    pub(super) fn set(&self, slow: Duration) {
        // No other memory depends on it.
        self.slow_us.store(micros(slow), Ordering::Relaxed);
    }

    /// The line about a request of a kind that ended at `now` and took `whole`; `None` if it was
    /// not slow, or if the last line was made less than a second ago.
    pub(super) fn line(
        &self,
        kind: &str,
        now: Instant,
        whole: Duration,
        stages: &[StageDuration],
    ) -> Option<String> {
        if micros(whole) < self.slow_us.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        let is_due =
            state.last.is_none_or(|last| now.saturating_duration_since(last) >= LINE_INTERVAL);
        if !is_due {
            state.unsaid += 1;
            return None;
        }
        state.last = Some(now);
        let unsaid = std::mem::take(&mut state.unsaid);
        drop(state);
        let mut line = format!("a {kind} took {} ms:", whole.as_millis());
        for (name, duration) in stages {
            // A String takes every write.
            let _ = write!(line, " {name} {}", duration.as_millis());
        }
        if unsaid > 0 {
            let _ = write!(line, "; {unsaid} other slow requests since the last such line");
        }
        Some(line)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn slow_requests_are_named_once_a_second_with_their_stages() {
        let log = SlowLog::new(10 * MS);
        let start = Instant::now();
        let stages = [("mailbox", 3 * MS), ("commit", 8 * MS)];
        let line = |at, whole| log.line("write", start + at, whole, &stages);
        assert_eq!(line(MS, 9 * MS), None, "not slow");
        let first = line(MS, 11 * MS).expect("it is slow");
        assert_eq!(first, "a write took 11 ms: mailbox 3 commit 8");
        assert_eq!(line(2 * MS, 11 * MS), None, "too early");
        assert_eq!(line(3 * MS, 12 * MS), None, "too early");
        let next = line(1001 * MS, 10 * MS).expect("a second has passed");
        assert!(next.ends_with("2 other slow requests since the last such line"), "{next}");
    }
}
