//! Samples connections and leaders each second, and logs trouble that lasts.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::health_monitor::{HealthLine, HealthMonitor, HealthSample, PeerSample};
use crate::clock::Clock;
use crate::driver::router::Router;
use crate::membership::Membership;
use crate::transport::PeerConnections;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
    pub(crate) async fn run(self) {
        let mut looks = interval(LOOK_INTERVAL);
        // After a suspend one sample is enough, and not one for each second that was missed.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut monitor = HealthMonitor::default();
        loop {
            looks.tick().await;
            for line in monitor.observe(self.clock.now(), &self.look()) {
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
