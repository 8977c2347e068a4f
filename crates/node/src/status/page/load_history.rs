//! Load and latencies of the last ten minutes: a ring of samples, each the difference of two
//! readings of the counters and histograms.
//!
//! A sample costs a look at some hundreds of atomics, and 200 bytes; there are 600 at most.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use flotilla_base::histogram::HistogramReading;
use parking_lot::Mutex;

/// Samples that are kept at most.
pub(super) const SAMPLES_MAX: usize = 600;

/// Counters of which the history has the rates, in the order of [`LoadReading::counters`].
pub(super) const RATES: [&str; 5] =
    ["writes", "reads", "log_bytes", "sent_bytes", "received_bytes"];

/// The counters and histograms at one moment.
#[derive(Clone, Debug)]
pub(super) struct LoadReading {
    pub(super) at: Instant,
    pub(super) counters: [u64; RATES.len()],
    /// Each with its name; the same ones in the same order in each reading.
    pub(super) histograms: Vec<(String, HistogramReading)>,
}

/// The load between two readings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LoadSample {
    /// By the second, as in [`RATES`].
    pub(super) rates: [f64; RATES.len()],
    /// Of each histogram; `None` where nothing was observed.
    pub(super) latencies: Vec<Option<LatencyQuantiles>>,
}

/// Quantiles of what was observed between two readings, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatencyQuantiles {
    pub(super) p50_us: u32,
    pub(super) p99_us: u32,
}

/// The samples of the last ten minutes.
#[derive(Debug, Default)]
pub(crate) struct LoadHistory {
    ring: Mutex<LoadRing>,
}

#[derive(Debug, Default)]
struct LoadRing {
    last: Option<LoadReading>,
    samples: VecDeque<LoadSample>,
    /// The number of the next sample, counted from the start of the store.
    next: u64,
}

/// A part of the history.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HistoryPart {
    /// The number of the first sample here.
    pub(super) first: u64,
    /// The names of the latencies of each sample.
    pub(super) names: Vec<String>,
    pub(super) samples: Vec<LoadSample>,
}

impl LoadHistory {
    /// Adds a reading. The first one makes no sample.
    pub(super) fn push(&self, reading: LoadReading) {
        let mut ring = self.ring.lock();
        if let Some(last) = &ring.last {
            let sample = sample_between(last, &reading);
            ring.samples.push_back(sample);
            ring.next += 1;
            if ring.samples.len() > SAMPLES_MAX {
                ring.samples.pop_front();
            }
        }
        ring.last = Some(reading);
    }

    /// The newest sample, if there is one.
    pub(super) fn newest(&self) -> HistoryPart {
        let from = self.ring.lock().next.saturating_sub(1);
        self.part(from)
    }

    /// The samples from number `from` on, as far as they are kept.
    pub(super) fn part(&self, from: u64) -> HistoryPart {
        let ring = self.ring.lock();
        let oldest = ring.next - ring.samples.len() as u64;
        let first = from.clamp(oldest, ring.next);
        let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX);
        let histograms = ring.last.iter().flat_map(|reading| &reading.histograms);
        let names = histograms.map(|(name, _)| name.clone()).collect();
        HistoryPart { first, names, samples: ring.samples.iter().skip(skipped).cloned().collect() }
    }
}

fn sample_between(last: &LoadReading, reading: &LoadReading) -> LoadSample {
    let seconds = reading.at.saturating_duration_since(last.at).max(Duration::from_millis(1));
    let seconds = seconds.as_secs_f64();
    let rates = std::array::from_fn(|at| {
        reading.counters[at].saturating_sub(last.counters[at]) as f64 / seconds
    });
    let pairs = last.histograms.iter().zip(&reading.histograms);
    let latencies = pairs.map(|((_, before), (_, now))| {
        let between = now.since(before);
        let quantile = |share| {
            let us = between.quantile(share)?.as_micros();
            Some(u32::try_from(us).unwrap_or(u32::MAX))
        };
        Some(LatencyQuantiles { p50_us: quantile(0.5)?, p99_us: quantile(0.99)? })
    });
    LoadSample { rates, latencies: latencies.collect() }
}

#[cfg(test)]
mod tests {
    use flotilla_base::histogram::LatencyHistogram;

    use super::*;

    #[test]
    fn a_sample_has_what_came_since_the_last_reading() {
        let (history, histogram) = (LoadHistory::default(), LatencyHistogram::default());
        let start = Instant::now();
        let mut writes = 0;
        let mut read = |seconds, new: u64, ms| {
            writes += new;
            (0..new).for_each(|_| histogram.observe(Duration::from_millis(ms)));
            let counters = [writes, 0, 4096 * writes, 0, 0];
            let histograms = vec![("request.write".to_owned(), histogram.read())];
            let at = start + Duration::from_secs(seconds);
            history.push(LoadReading { at, counters, histograms });
        };
        read(0, 1000, 500);
        read(1, 10, 2);
        read(3, 40, 8);
        read(4, 0, 0);
        let part = history.part(0);
        assert_eq!((part.first, part.names), (0, vec!["request.write".to_owned()]));
        let rates = |at: usize| (part.samples[at].rates[0], part.samples[at].rates[2]);
        assert_eq!((rates(0), rates(1), rates(2)), ((10.0, 40960.0), (20.0, 81920.0), (0.0, 0.0)));
        let quantiles = |at: usize| part.samples[at].latencies[0];
        let first = quantiles(0).unwrap();
        assert!((1500..=2048).contains(&first.p50_us) && first.p99_us <= 2048, "{first:?}");
        assert!(quantiles(1).unwrap().p50_us > 6000);
        assert_eq!(quantiles(2), None, "there was no write");
    }

    #[test]
    fn the_oldest_samples_go_and_a_caller_gets_those_that_it_lacks() {
        let history = LoadHistory::default();
        assert_eq!(history.part(7).samples, []);
        let at = Instant::now();
        for count in 0..=SAMPLES_MAX as u64 + 5 {
            history.push(LoadReading { at, counters: [count; 5], histograms: vec![] });
        }
        let (all, newest) = (history.part(0), history.part(SAMPLES_MAX as u64 + 3));
        assert_eq!((all.first, all.samples.len()), (5, SAMPLES_MAX));
        assert_eq!((newest.first, newest.samples.len()), (SAMPLES_MAX as u64 + 3, 2));
        assert_eq!(history.newest().samples, newest.samples[1..]);
        let none = history.part(u64::MAX);
        assert_eq!((none.first, none.samples.len()), (SAMPLES_MAX as u64 + 5, 0));
    }
}
