//! The counters of a node in one snapshot, read from the parts that keep them.

use std::sync::{Arc, OnceLock};

use flotilla_base::metric::{Metric, MetricKind, MetricUnit};
use flotilla_proto::peers;

use crate::driver::context::NodeContext;
use crate::driver::router::{Router, RouterStats};
use crate::transport::{TransportCounters, TransportCounts};

/// Returns the lines that the process's logger had to drop.
static LOG_LINES_LOST: OnceLock<fn() -> u64> = OnceLock::new();

/// Lets the nodes of this process report the lines that its logger had to drop: `count` returns how
/// many since the process began. Counts once; a process has one logger.
pub fn report_log_lines_lost(count: fn() -> u64) {
    // Set before: the first logger stays, as `tracing` keeps the first subscriber.
    let _ = LOG_LINES_LOST.set(count);
}

/// Lines that the process's logger had to drop. 0 without a logger that counts.
pub(crate) fn log_lines_lost() -> u64 {
    LOG_LINES_LOST.get().map_or(0, |count| count())
}

/// Handles on all parts that keep counters.
#[derive(Clone)]
pub(crate) struct NodeStatsReader {
    pub(crate) context: NodeContext,
    pub(crate) router: Router,
    pub(crate) counters: Arc<TransportCounters>,
}

impl NodeStatsReader {
    /// The counts now.
    pub(crate) fn read(&self) -> NodeStats {
        NodeStats {
            requests: self.router.counts(),
            transport: self.counters.read(),
            store: self.context.store.stats(),
            log_backlog_bytes: self.context.queues.log.bytes() as u64,
            apply_backlog_bytes: self.context.queues.applies.bytes() as u64,
        }
    }
}

flotilla_base::metrics! { "queues",
    /// The counts of one node at one moment.
    #[derive(Clone, Debug, Default)]
    pub struct NodeStats {
        /// Requests of clients.
        pub requests: RouterStats => Nested(),
        /// Messages between stores.
        pub transport: TransportCounts => Nested(),
        /// The disk.
        pub store: flotilla_store::Stats => Nested(),
        /// Bytes that wait to be written to the log.
        pub log_backlog_bytes: u64 => Gauge(Bytes),
        /// Bytes that wait to be applied.
        pub apply_backlog_bytes: u64 => Gauge(Bytes),
    }
}

impl NodeStats {
    /// The part that other stores and operators see. The caller adds the identity of the store.
    #[must_use]
    pub fn to_wire(&self) -> peers::StatsResponse {
        let mut response = peers::StatsResponse::default();
        self.visit(&mut |metric| response.metrics.push(metric_to_wire(&metric)));
        response
    }
}

fn metric_to_wire(metric: &Metric) -> peers::Metric {
    let kind = match metric.kind {
        MetricKind::Counter => peers::metric::Kind::Counter,
        MetricKind::Gauge => peers::metric::Kind::Gauge,
    };
    let unit = match metric.unit {
        MetricUnit::None => peers::metric::Unit::None,
        MetricUnit::Bytes => peers::metric::Unit::Bytes,
        MetricUnit::Milliseconds => peers::metric::Unit::Milliseconds,
    };
    peers::Metric {
        group: metric.group.to_owned(),
        name: metric.name.to_owned(),
        kind: kind.into(),
        unit: unit.into(),
        value: metric.value,
        help: metric.help.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn is_snake_case(name: &str) -> bool {
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
        name.split('_').all(is_word)
    }

    #[test]
    fn metrics_have_a_name_of_their_own_by_the_conventions_and_a_help_text() {
        let mut seen = BTreeSet::new();
        let mut check = |metric: Metric| {
            let Metric { group, name, unit, help, .. } = metric;
            assert!(seen.insert((group, name)), "{metric:?} is there twice");
            assert!(is_snake_case(group) && is_snake_case(name), "{metric:?}");
            for suffix in ["_total", "_count", "_sum", "_bucket", "_info"] {
                assert!(!name.ends_with(suffix), "{metric:?}: {suffix} has a meaning of its own");
            }
            for (suffix, of) in
                [("_bytes", MetricUnit::Bytes), ("_milliseconds", MetricUnit::Milliseconds)]
            {
                assert_eq!(name.ends_with(suffix), unit == of, "{metric:?}");
            }
            let is_plain = !help.contains(['`', '[', '\\', '\n']);
            assert!(help.len() > 10 && help.ends_with('.') && is_plain, "{metric:?}");
        };
        NodeStats::default().visit(&mut check);
        flotilla_region::Stats::default().visit(&mut check);
        assert!(seen.len() > 70, "{} metrics", seen.len());
    }
}
