//! The settings that change while a node runs: they are given again as a whole, and those that may
//! change are put into effect. The rest waits for the next start.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::{
    DiskConfig, NodeConfig, ResolvedConfig, SettingEffect, setting_keys, setting_value,
    setting_values,
};
use crate::driver::disk_view::DiskView;
use crate::driver::latencies::Latencies;
use crate::transport::SnapshotRates;

/// The settings of a running node, and the handles of those that change.
pub(crate) struct OnlineSettings {
    running: Mutex<NodeConfig>,
    latencies: Arc<Latencies>,
    disks: Arc<DiskView>,
    snapshot_rates: SnapshotRates,
}

/// The outcome of settings that were given again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadedSettings {
    /// Keys whose value is another one from now on. `log` is that of the process, and put into
    /// effect there.
    pub changed: Vec<String>,
    /// Keys whose other value is looked at by the next start.
    pub at_next_start: Vec<String>,
}

impl OnlineSettings {
    /// Those of a node that starts with these settings.
    pub(crate) fn new(
        resolved: &ResolvedConfig,
        latencies: Arc<Latencies>,
        disks: Arc<DiskView>,
    ) -> Self {
        let snapshot_rates = SnapshotRates::from(resolved.config.snapshot);
        Self { running: Mutex::new(resolved.effective()), latencies, disks, snapshot_rates }
    }

    /// The rates of both directions.
    pub(crate) fn snapshot_rates(&self) -> SnapshotRates {
        self.snapshot_rates.clone()
    }

    /// Puts into effect what may change.
    pub(crate) fn reload(&self, resolved: &ResolvedConfig) -> ReloadedSettings {
        let given = resolved.effective();
        let mut running = self.running.lock();
        let (old, new) = (setting_values(&running), setting_values(&given));
        let mut reloaded = ReloadedSettings::default();
        for key in setting_keys() {
            if setting_value(&old, key) == setting_value(&new, key) {
                continue;
            }
            match key.effect() {
                SettingEffect::Reload => reloaded.changed.push(key.path()),
                SettingEffect::Bootstrap | SettingEffect::Start => {
                    reloaded.at_next_start.push(key.path());
                }
            }
        }
        running.log = given.log;
        running.limits.slow_request_ms = given.limits.slow_request_ms;
        running.snapshot = given.snapshot;
        let reserve_bytes = running.disk.reserve_bytes;
        running.disk = DiskConfig { reserve_bytes, ..given.disk };
        self.disks.set_limits(running.disk.limits(&running.storage));
        self.latencies.set_slow(running.limits.slow_request());
        self.snapshot_rates.set(running.snapshot);
        reloaded
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{SettingKind, SettingLayers};
    use crate::driver::shard_message::Mailboxes;
    use crate::test_store;

    fn resolved(assignments: &[String]) -> ResolvedConfig {
        let mut layers = SettingLayers::default();
        for assignment in assignments {
            layers.add_assignment("--set", assignment);
        }
        layers.finish().unwrap().config.resolve().unwrap()
    }

    #[test]
    fn each_setting_that_is_said_to_change_does_and_the_others_wait() {
        let running = resolved(&[]);
        let latencies = Arc::new(Latencies::new(running.config.limits.slow_request()));
        let disks = test_store::disks(&Mailboxes::new(1, 1 << 20));
        let online = OnlineSettings::new(&running, latencies, Arc::clone(&disks));
        assert_eq!(online.reload(&running), ReloadedSettings::default());
        let reloadable = setting_keys().filter(|key| key.effect() == SettingEffect::Reload);
        let keys: Vec<_> = reloadable.map(|key| (key.path(), key.kind())).collect();
        let another = |(path, kind): &(String, SettingKind)| match kind {
            SettingKind::Text => format!("{path}=warn"),
            SettingKind::BytesPerSecond => format!("{path}=9MiB"),
            _ => format!("{path}=1"),
        };
        let mut assignments: Vec<_> = keys.iter().map(another).collect();
        assignments.push("limits.connections_max=16".to_owned());
        let given = resolved(&assignments);
        let reloaded = online.reload(&given);
        let changed: Vec<_> = keys.into_iter().map(|(path, _)| path).collect();
        assert_eq!(reloaded.changed, changed);
        assert_eq!(reloaded.at_next_start, ["limits.connections_max"]);
        assert_eq!(disks.limits().full_bytes, 1);
        // They were taken over: the same settings change nothing more.
        let again = online.reload(&given);
        assert_eq!((again.changed, again.at_next_start), (vec![], reloaded.at_next_start));
        assert_eq!(online.running.lock().limits.slow_request(), Duration::from_millis(1));
    }
}
