//! Latency histograms: the stages of requests, and the rounds of the workers.
//!
//! A request notes when it passes a milestone; its own task counts the stages between them when it
//! has its answer, so the threads that serve it only read their clock, once for each batch
//! (decision 47, `docs/decisions/0047-stages-are-timed-where-they-end.md`).

use std::time::{Duration, Instant};

use flotilla_base::histogram::LatencyHistogram;
use flotilla_base::metric::HistogramMetric;

use super::slow_log::{SlowLog, StageDuration};

/// A point that a request passes on its way, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// It goes into its shard's mailbox.
    Sent,
    /// Its shard has taken it.
    Taken,
    /// A majority has its entry. Writes only, as the next one.
    Committed,
    /// The transaction that applies its entry begins.
    Applying,
    /// It is answered.
    Answered,
}

/// When a request passed its milestones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    passed: [Option<Instant>; 5],
}

impl RequestTimes {
    /// It is sent now.
    pub(crate) fn sent(now: Instant) -> Self {
        let mut times = Self { passed: [None; 5] };
        times.pass(Milestone::Sent, now);
        times
    }

    /// It passes a milestone.
    pub(crate) fn pass(&mut self, milestone: Milestone, now: Instant) {
        self.passed[milestone as usize] = Some(now);
    }

    fn at(&self, milestone: Milestone) -> Option<Instant> {
        self.passed[milestone as usize]
    }
}

/// The kind of a request, by the way that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// A proposal, until it is applied.
    Write,
    /// A read, until it is granted.
    Read,
}

/// The stages of a write, each with its name and the milestone at its end. The first one begins
/// with the request, and the last one ends when its task goes on.
const WRITE_STAGES: [(&str, Option<Milestone>); 6] = [
    ("admission", Some(Milestone::Sent)),
    ("mailbox", Some(Milestone::Taken)),
    ("commit", Some(Milestone::Committed)),
    ("apply_queue", Some(Milestone::Applying)),
    ("apply", Some(Milestone::Answered)),
    ("wake", None),
];

/// The stages of a read. Rows are read behind them.
const READ_STAGES: [(&str, Option<Milestone>); 4] = [
    ("admission", Some(Milestone::Sent)),
    ("mailbox", Some(Milestone::Taken)),
    ("grant", Some(Milestone::Answered)),
    ("wake", None),
];

/// The histograms of a node.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    writes: RequestLatencies<{ WRITE_STAGES.len() }>,
    reads: RequestLatencies<{ READ_STAGES.len() }>,
    /// Reading the rows of a request, behind its grant.
    pub(crate) row_read: LatencyHistogram,
    /// Group commits of the log: one write and one sync for all regions.
    pub(crate) log_write: LatencyHistogram,
    /// Transactions in which entries are applied.
    pub(crate) apply: LatencyHistogram,
    /// Checkpoints.
    pub(crate) checkpoint: LatencyHistogram,
    slow_log: SlowLog,
}

#[derive(Debug)]
struct RequestLatencies<const STAGES: usize> {
    whole: LatencyHistogram,
    stages: [LatencyHistogram; STAGES],
}

impl<const STAGES: usize> Default for RequestLatencies<STAGES> {
    fn default() -> Self {
        let stages = std::array::from_fn(|_| LatencyHistogram::default());
        Self { whole: LatencyHistogram::default(), stages }
    }
}

impl Latencies {
    /// Histograms without counts. A request that takes `slow` or longer is logged.
    pub(crate) fn new(slow: Duration) -> Self {
        Self { slow_log: SlowLog::new(slow), ..Self::default() }
    }

    /// A request that takes `slow` or longer is logged from now on.
    pub(crate) fn set_slow(&self, slow: Duration) {
        self.slow_log.set(slow);
    }

    /// Counts a request that began at `began` and was answered. Returns the line that the log
    /// should have if it was slow.
    pub(super) fn note_request(
        &self,
        kind: RequestKind,
        began: Instant,
        times: &RequestTimes,
    ) -> Option<String> {
        let now = Instant::now();
        match kind {
            RequestKind::Write => {
                let stages = durations(&WRITE_STAGES, began, times, now);
                self.writes.note(now - began, &stages);
                self.slow_log.line("write", now, now - began, &stages)
            }
            RequestKind::Read => {
                let stages = durations(&READ_STAGES, began, times, now);
                self.reads.note(now - began, &stages);
                self.slow_log.line("read", now, now - began, &stages)
            }
        }
    }

    /// Calls `visit` once for each histogram.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(HistogramMetric<'_>)) {
        self.writes.visit("write", &WRITE_STAGES.map(|(name, _)| name), visit);
        self.reads.visit("read", &READ_STAGES.map(|(name, _)| name), visit);
        for (name, help, histogram) in [
            ("row_read", "Reading the rows of a request, behind its grant.", &self.row_read),
            ("log_write", "Group commits of the log: one write and one sync.", &self.log_write),
            ("apply", "Transactions in which entries are applied.", &self.apply),
            ("checkpoint", "Checkpoints of the page store.", &self.checkpoint),
        ] {
            visit(HistogramMetric { name, labels: &[], help, histogram });
        }
    }
}

impl<const STAGES: usize> RequestLatencies<STAGES> {
    fn note(&self, whole: Duration, stages: &[StageDuration; STAGES]) {
        self.whole.observe(whole);
        for (histogram, (_, duration)) in self.stages.iter().zip(stages) {
            histogram.observe(*duration);
        }
    }

    fn visit(
        &self,
        kind: &'static str,
        names: &[&'static str; STAGES],
        visit: &mut dyn FnMut(HistogramMetric<'_>),
    ) {
        visit(HistogramMetric {
            name: "request",
            labels: &[("kind", kind)],
            help: "Requests to regions here, from their admission to their answer.",
            histogram: &self.whole,
        });
        for (stage, histogram) in names.iter().zip(&self.stages) {
            visit(HistogramMetric {
                name: "request_stage",
                labels: &[("kind", kind), ("stage", stage)],
                help: "Stages of requests to regions here.",
                histogram,
            });
        }
    }
}

/// The duration of each stage. A milestone that was not passed ends its stage where it began: a
/// request of an older form, or one that another thread has overtaken.
fn durations<const STAGES: usize>(
    stages: &[(&'static str, Option<Milestone>); STAGES],
    began: Instant,
    times: &RequestTimes,
    now: Instant,
) -> [StageDuration; STAGES] {
    let mut from = began;
    stages.map(|(name, milestone)| {
        let until = milestone.map_or(Some(now), |it| times.at(it)).unwrap_or(from);
        let duration = until.saturating_duration_since(from);
        from = from.max(until);
        (name, duration)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn stages_lie_between_milestones_and_add_up() {
        let began = Instant::now();
        let mut times = RequestTimes::sent(began + MS);
        times.pass(Milestone::Taken, began + 3 * MS);
        times.pass(Milestone::Committed, began + 6 * MS);
        times.pass(Milestone::Applying, began + 10 * MS);
        times.pass(Milestone::Answered, began + 15 * MS);
        let stages = durations(&WRITE_STAGES, began, &times, began + 21 * MS);
        assert_eq!(stages.map(|(_, duration)| duration), [1, 2, 3, 4, 5, 6].map(|ms| ms * MS));
        assert_eq!(stages[3].0, "apply_queue");

        let mut read = RequestTimes::sent(began + MS);
        read.pass(Milestone::Taken, began + 3 * MS);
        read.pass(Milestone::Answered, began + 6 * MS);
        let stages = durations(&READ_STAGES, began, &read, began + 10 * MS);
        assert_eq!(stages.map(|(_, duration)| duration), [1, 2, 3, 4].map(|ms| ms * MS));
    }

    #[test]
    fn a_milestone_that_was_not_passed_costs_its_stage_nothing() {
        let began = Instant::now();
        let mut times = RequestTimes::sent(began);
        times.pass(Milestone::Answered, began + 5 * MS);
        let stages = durations(&WRITE_STAGES, began, &times, began + 5 * MS);
        assert_eq!(stages.map(|(_, duration)| duration), [0, 0, 0, 0, 5, 0].map(|ms| ms * MS));
    }

    #[test]
    fn every_histogram_is_visited_once() {
        let latencies = Latencies::new(Duration::MAX);
        let began = Instant::now();
        let line = latencies.note_request(RequestKind::Write, began, &RequestTimes::sent(began));
        assert_eq!(line, None);
        let mut seen = Vec::new();
        let mut writes = 0;
        latencies.visit(&mut |metric| {
            let labels = metric.labels.to_vec();
            if labels.contains(&("kind", "write")) {
                writes += metric.histogram.read().count();
            }
            seen.push((metric.name, labels));
        });
        let all = 2 + WRITE_STAGES.len() + READ_STAGES.len() + 4;
        assert_eq!((seen.len(), writes), (all, 1 + WRITE_STAGES.len() as u64));
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all);
    }
}
