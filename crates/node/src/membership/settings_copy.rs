//! The settings of the cluster as a store has them: kept durably, and then in force in its shards.

use std::time::Duration;

use flotilla_identity::ClusterSettings;
use tokio::sync::watch;
use tokio::time::timeout;

/// Shards take other settings up between two steps; longer means that the node stops.
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings that are kept, and how far they are in force.
pub(crate) struct SettingsCopy {
    kept: watch::Sender<ClusterSettings>,
    in_force: watch::Sender<u64>,
}

impl SettingsCopy {
    /// Those that a store starts with: its shards are made of them.
    pub(super) fn new(settings: ClusterSettings) -> Self {
        Self { in_force: watch::Sender::new(settings.version), kept: watch::Sender::new(settings) }
    }

    /// The settings that are kept.
    pub(super) fn kept(&self) -> ClusterSettings {
        *self.kept.borrow()
    }

    /// Later ones are kept durably now.
    pub(super) fn note_kept(&self, settings: ClusterSettings) {
        self.kept.send_replace(settings);
    }

    /// For the one who puts them into force.
    pub(super) fn follow(&self) -> watch::Receiver<ClusterSettings> {
        self.kept.subscribe()
    }

    /// All shards have this version.
    pub(super) fn note_in_force(&self, version: u64) {
        self.in_force.send_replace(version);
    }

    /// The version that all shards have.
    pub(super) fn in_force(&self) -> u64 {
        *self.in_force.borrow()
    }

    /// Waits until all shards have this version. False if the node stops.
    pub(super) async fn wait_in_force(&self, version: u64) -> bool {
        let mut in_force = self.in_force.subscribe();
        let waited = timeout(TAKE_UP_TIMEOUT, in_force.wait_for(|now| *now >= version)).await;
        matches!(waited, Ok(Ok(_)))
    }
}
