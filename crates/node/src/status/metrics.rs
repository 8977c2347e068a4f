//! The counters of a node in one snapshot, read from the parts that keep them.

use std::sync::Arc;

use flotilla_base::metric::{HistogramMetric, Metric, MetricKind, MetricUnit};
use flotilla_proto::peers;

use crate::driver::context::NodeContext;
use crate::driver::disk_view::DiskStats;
use crate::driver::router::{Router, RouterStats};
use crate::net::connection_counts::ConnectionStats;
use crate::net::security::{NodeSecurity, TlsStats};
use crate::service::rawkv::RpcDurations;
use crate::transport::{TransportCounters, TransportCounts};

/// Handles on all parts that keep counters.
#[derive(Clone)]
pub(crate) struct NodeStatsReader {
    pub(crate) context: NodeContext,
    pub(crate) router: Router,
    pub(crate) counters: Arc<TransportCounters>,
    pub(crate) security: NodeSecurity,
    pub(crate) rpc_durations: Arc<RpcDurations>,
}

impl NodeStatsReader {
    /// The counts now.
    pub(crate) fn read(&self) -> NodeStats {
        NodeStats {
            requests: self.router.counts(),
            transport: self.counters.read(),
            tls: self.security.stats(),
            connections: self.security.counts().read(),
            store: self.context.store.stats(),
            disk: self.context.disks.stats(),
            log_backlog_bytes: self.context.queues.log.bytes() as u64,
            apply_backlog_bytes: self.context.queues.applies.bytes() as u64,
        }
    }

    /// Calls `visit` once for each latency histogram.
    pub(crate) fn visit_histograms(&self, visit: &mut dyn FnMut(HistogramMetric<'_>)) {
        self.context.latencies.visit(visit);
        self.rpc_durations.visit(visit);
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
        /// Certificates and connections with TLS.
        pub tls: TlsStats => Nested(),
        /// Connections, and those that were slowed down.
        pub connections: ConnectionStats => Nested(),
        /// The store and its engines.
        pub store: flotilla_store::Stats => Nested(),
        /// The space on the disk.
        pub disk: DiskStats => Nested(),
        /// Bytes that wait to be written to the log.
        pub log_backlog_bytes: u64 => Gauge(Bytes),
        /// Bytes that wait to be applied.
        pub apply_backlog_bytes: u64 => Gauge(Bytes),
    }
}

flotilla_base::metrics! { "node",
    /// A store and its surroundings at one moment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct StoreFacts {
        /// Time since the store began to serve.
        pub uptime_milliseconds: u64 => Gauge(Milliseconds),
        /// Replicas that are here.
        pub replicas: u64 => Gauge(None),
        /// Regions that are led here.
        pub leaders: u64 => Gauge(None),
        /// Replicas that are here and know no leader.
        pub replicas_without_leader: u64 => Gauge(None),
        /// Stores of the cluster that are connected, this one included.
        pub stores_connected: u64 => Gauge(None),
        /// Stores of the cluster that this one knows, itself included.
        pub stores_known: u64 => Gauge(None),
        /// Lines of the process's log that standard error did not take.
        pub log_lines_lost: u64 => Counter(None),
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
        StoreFacts::default().visit(&mut check);
        flotilla_region::Stats::default().visit(&mut check);
        assert!(seen.len() > 70, "{} metrics", seen.len());
    }
}
