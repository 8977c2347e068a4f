//! Keeps lines rare that any client can cause.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// From one line to the next one of its kind.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// When the last line of one kind was written, and how many were left out since.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    logged: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    /// Counts something to log. If it is to be logged: how many were not since the last line.
    pub(crate) fn note(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.logged.is_some_and(|logged| now < logged + LOG_INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_now_and_then_with_the_number_of_those_between() {
        let (log, began) = (LogLimit::default(), Instant::now());
        assert_eq!(log.note(began), Some(0));
        assert_eq!(log.note(began), None);
        assert_eq!(log.note(began + LOG_INTERVAL / 2), None);
        assert_eq!(log.note(began + LOG_INTERVAL), Some(2));
        assert_eq!(log.note(began + LOG_INTERVAL * 3), Some(0));
    }
}
