//! Samples connections and leaders each second, logs trouble that lasts, and answers gRPC's health
//! checks. A store that serves is healthy for its clients (`""`, `tikvpb.Tikv`) whatever becomes of
//! its regions, for they give up a store that is not.

use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use tokio::time::{MissedTickBehavior, interval};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::health_monitor::{HealthLine, HealthMonitor, HealthSample, PeerSample};
use crate::clock::Clock;
use crate::driver::router::Router;
use crate::membership::Membership;
use crate::transport::PeerConnections;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The health checks of a store's clients, healthy from the first to the last request.
const CLIENTS: [&str; 2] = ["", "tikvpb.Tikv"];
/// The health check of placement.
const PLACEMENT: &str = "pdpb.PD";
/// The health check that fails while a region with a replica here has no leader that is known.
const REGIONS: &str = "flotilla.Regions";

/// Where a look finds its figures.
#[derive(Clone)]
pub(crate) struct HealthWatch {
    pub(crate) membership: Membership,
    pub(crate) connections: PeerConnections,
    pub(crate) router: Router,
    pub(crate) clock: Clock,
}

impl HealthWatch {
    /// Runs until it is aborted.
    pub(crate) async fn run(self, reporter: HealthReporter) {
        let mut looks = interval(LOOK_INTERVAL);
        // After a suspend one sample is enough, and not one for each second that was missed.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut monitor = HealthMonitor::default();
        loop {
            looks.tick().await;
            let sample = self.look();
            reporter.set_service_status(PLACEMENT, status(has_placement(&self.router))).await;
            reporter.set_service_status(REGIONS, status(sample.leaderless.is_empty())).await;
            for line in monitor.observe(self.clock.now(), &sample) {
                match line {
                    HealthLine::Trouble(words) => tracing::warn!("{words}"),
                    HealthLine::Recovery(words) => tracing::info!("{words}"),
                }
            }
        }
    }

    fn look(&self) -> HealthSample {
        let own = self.membership.id().store;
        let others = self.membership.stores().into_iter().filter(|other| other.store != own);
        let peers = others.map(|other| PeerSample {
            store: other.store,
            is_connected: self.connections.is_up(other.store),
            fault: self.connections.fault(other.store),
            name: other.name,
            address: other.address,
        });
        let (region_count, leaderless) = self.router.leaderless();
        HealthSample { peers: peers.collect(), region_count, leaderless }
    }
}

/// Whether the leader of placement is known; a store without a replica of the system region finds
/// it by asking.
pub(super) fn has_placement(router: &Router) -> bool {
    let replica = router.descriptor(SYSTEM_REGION);
    replica.is_none() || router.leader(SYSTEM_REGION).is_some()
}

/// Answers the health checks of clients from now on.
pub(crate) async fn tell_clients(reporter: &HealthReporter, status: ServingStatus) {
    for service in CLIENTS {
        reporter.set_service_status(service, status).await;
    }
}

fn status(is_healthy: bool) -> ServingStatus {
    if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing }
}
