//! Reads the counters, the histograms and the connections each second, for the status page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::link_times::LinkTimes;
use super::load_history::{LoadHistory, LoadReading};
use crate::membership::Membership;
use crate::status::metrics::NodeStatsReader;
use crate::status::reader::StatusReader;
use crate::transport::PeerConnections;

/// Between two samples.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Fills the history of the page.
pub(crate) struct LoadSampler {
    membership: Membership,
    connections: PeerConnections,
    stats: NodeStatsReader,
    history: Arc<LoadHistory>,
    links: Arc<LinkTimes>,
}

impl LoadSampler {
    pub(super) fn new(
        reader: &StatusReader,
        history: Arc<LoadHistory>,
        links: Arc<LinkTimes>,
    ) -> Self {
        let StatusReader { membership, connections, stats, .. } = reader.clone();
        Self { membership, connections, stats, history, links }
    }

    /// Runs until it is aborted.
    pub(crate) async fn run(self) {
        let mut samples = interval(SAMPLE_INTERVAL);
        // After a suspend one sample is enough, and not one for each second that was missed.
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let _ = samples.tick().await;
            let own = self.membership.id().store;
            let others = self.membership.stores().into_iter().filter(|other| other.store != own);
            let links = others.map(|other| (other.store, self.connections.is_up(other.store)));
            self.links.observe(Instant::now(), links);
            self.history.push(self.read());
        }
    }

    /// Only what costs nothing: the figures of the engines look at every replica.
    fn read(&self) -> LoadReading {
        let (requests, transport) = (self.stats.router.counts(), self.stats.counters.read());
        let context = &self.stats.context;
        let mut histograms = Vec::new();
        context.latencies.visit(&mut |metric| {
            let labels = metric.labels.iter().map(|(_, value)| *value);
            let name: Vec<_> = std::iter::once(metric.name).chain(labels).collect();
            histograms.push((name.join("."), metric.histogram.read()));
        });
        LoadReading {
            at: Instant::now(),
            counters: [
                requests.writes_acknowledged,
                requests.reads_granted,
                context.store.log_written_bytes(),
                transport.frame_bytes_sent + transport.snapshot_bytes_sent,
                transport.frame_bytes_received + transport.snapshot_bytes_received,
            ],
            histograms,
        }
    }
}
