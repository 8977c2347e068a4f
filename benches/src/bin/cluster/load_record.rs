//! The answers of a load, each with its time, and what they say about any part of it.

use std::time::Duration;

/// One request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSample {
    /// When, in microseconds since the load began.
    pub(crate) at_us: u64,
    /// Microseconds since it was due.
    pub(crate) latency_us: u32,
}

/// A part of the time of a load, half open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSpan {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

impl LoadSpan {
    /// Windows of one length one after the other, as many as it takes to hold all of the span.
    fn windows(self, length: Duration) -> Vec<LoadSpan> {
        let mut windows = vec![];
        let mut from = self.from;
        while from < self.to {
            windows.push(LoadSpan { from, to: from + length });
            from += length;
        }
        windows
    }
}

/// All answers of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadRecord {
    /// By time.
    samples: Vec<LoadSample>,
    /// Requests that failed, with the words of the error.
    pub(crate) failures: Vec<(Duration, String)>,
}

impl LoadRecord {
    pub(crate) fn new(mut samples: Vec<LoadSample>, failures: Vec<(Duration, String)>) -> Self {
        samples.sort_unstable_by_key(|sample| sample.at_us);
        Self { samples, failures }
    }

    fn of(&self, span: LoadSpan) -> &[LoadSample] {
        let place = |time: Duration| {
            let micros = time.as_micros();
            self.samples.partition_point(|sample| u128::from(sample.at_us) < micros)
        };
        &self.samples[place(span.from)..place(span.to)]
    }

    /// Answers a second.
    pub(crate) fn rate(&self, span: LoadSpan) -> f64 {
        self.of(span).len() as f64 / (span.to - span.from).as_secs_f64()
    }

    /// A percentile of the latencies in milliseconds; none without answers.
    pub(crate) fn percentile(&self, span: LoadSpan, percent: f64) -> Option<f64> {
        let mut latencies: Vec<_> = self.of(span).iter().map(|it| it.latency_us).collect();
        let last = latencies.len().checked_sub(1)?;
        let place = (percent / 100.0 * latencies.len() as f64).ceil() as usize;
        let place = place.saturating_sub(1).min(last);
        let (_, found, _) = latencies.select_nth_unstable(place);
        Some(f64::from(*found) / 1e3)
    }

    /// The p99 of each window of a span, in milliseconds. Windows without answers are left out.
    pub(crate) fn p99s(&self, span: LoadSpan, window: Duration) -> Vec<f64> {
        let windows = span.windows(window).into_iter();
        windows.filter_map(|window| self.percentile(window, 99.0)).collect()
    }

    /// The longest time without an answer within a span, in milliseconds.
    pub(crate) fn longest_gap(&self, span: LoadSpan) -> f64 {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let inside = self.of(span).iter().map(|sample| sample.at_us);
        let (mut before, mut longest) = (micros(span.from), 0);
        for at in inside.chain([micros(span.to)]) {
            longest = longest.max(at - before);
            before = at;
        }
        longest as f64 / 1e3
    }
}

/// The one in the middle, or the mean of the two there; none of none.
pub(crate) fn median(of: &[f64]) -> Option<f64> {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let high = *sorted.get(sorted.len() / 2)?;
    let low = sorted[(sorted.len() - 1) / 2];
    Some(low.midpoint(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from_ms: u64, to_ms: u64) -> LoadSpan {
        LoadSpan { from: Duration::from_millis(from_ms), to: Duration::from_millis(to_ms) }
    }

    fn record(samples: &[(u64, u32)]) -> LoadRecord {
        let sample = |&(ms, latency_us)| LoadSample { at_us: ms * 1000, latency_us };
        LoadRecord::new(samples.iter().map(sample).collect(), vec![])
    }

    #[test]
    fn answers_count_in_their_window_and_a_span_is_held_by_its_windows() {
        let record = record(&[(2_500, 30), (100, 1000), (900, 2000), (1_000, 7000)]);
        assert_eq!(record.percentile(span(0, 1_000), 99.0), Some(2.0));
        assert_eq!(record.percentile(span(0, 1_000), 50.0), Some(1.0));
        assert_eq!(record.percentile(span(3_000, 4_000), 99.0), None);
        let second = Duration::from_secs(1);
        assert_eq!(record.p99s(span(0, 2_100), second), [2.0, 7.0, 0.03]);
        assert_eq!(record.p99s(span(0, 2_000), second), [2.0, 7.0]);
        assert!((record.rate(span(0, 2_000)) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn the_time_before_the_first_and_behind_the_last_answer_counts_as_a_gap() {
        let record = record(&[(100, 1), (300, 1), (350, 1)]);
        assert!((record.longest_gap(span(50, 400)) - 200.0).abs() < 1e-9);
        assert!((record.longest_gap(span(50, 900)) - 550.0).abs() < 1e-9);
        assert!((record.longest_gap(span(400, 900)) - 500.0).abs() < 1e-9);
    }

    #[test]
    fn of_an_even_number_the_mean_of_the_two_in_the_middle_is_taken() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[4.0]), Some(4.0));
        assert_eq!(median(&[]), None);
    }
}
