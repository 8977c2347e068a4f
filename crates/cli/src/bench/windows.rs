//! The latencies of a load window by window: a mean over minutes hides what happened in one second.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::latencies::latencies;

/// A part of the load's time.
#[derive(Debug)]
pub(crate) struct Window {
    /// Of requests that were answered in it, in nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Requests that failed in it.
    pub(crate) failed: u64,
    /// The longest time without an answer that ended in it.
    pub(crate) longest_gap: Duration,
}

/// All windows so far.
pub(crate) struct Windows {
    began: Instant,
    length: Duration,
    state: Mutex<State>,
}

struct State {
    windows: Vec<Window>,
    answered: Instant,
}

impl Windows {
    pub(crate) fn new(length: Duration, began: Instant) -> Windows {
        let state = State { windows: vec![], answered: began };
        Windows { began, length, state: Mutex::new(state) }
    }

    /// A request was answered just now, after so many nanoseconds; none: it failed.
    pub(crate) fn record(&self, now: Instant, latency_ns: Option<u64>) {
        let mut state = self.state.lock();
        let place = (now - self.began).as_nanos() / self.length.as_nanos();
        let place = usize::try_from(place).expect("a load has fewer windows");
        while state.windows.len() <= place {
            let (latencies, longest_gap) = (latencies(), Duration::ZERO);
            state.windows.push(Window { latencies, failed: 0, longest_gap });
        }
        // Callers come to the lock in another order than to the clock.
        let gap = now.saturating_duration_since(state.answered);
        let window = &mut state.windows[place];
        match latency_ns {
            Some(latency) => {
                window.latencies.saturating_record(latency);
                window.longest_gap = window.longest_gap.max(gap);
                state.answered = state.answered.max(now);
            }
            None => window.failed += 1,
        }
    }

    pub(crate) fn into_windows(self) -> Vec<Window> {
        self.state.into_inner().windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_counts_where_it_came_and_gaps_where_they_ended() {
        let began = Instant::now();
        let windows = Windows::new(Duration::from_secs(1), began);
        let at = |ms| began + Duration::from_millis(ms);
        windows.record(at(100), Some(7));
        windows.record(at(900), Some(9));
        windows.record(at(950), None);
        windows.record(at(2_500), Some(8));
        let windows = windows.into_windows();
        let counts: Vec<_> = windows.iter().map(|it| (it.latencies.len(), it.failed)).collect();
        assert_eq!(counts, [(2, 1), (0, 0), (1, 0)]);
        let gaps: Vec<_> = windows.iter().map(|it| it.longest_gap.as_millis()).collect();
        assert_eq!(gaps, [800, 0, 1_600]);
    }
}
