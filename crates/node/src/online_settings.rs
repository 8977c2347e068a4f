//! The settings that change while a node runs: they are given again as a whole, and those that may
//! change are put into effect. The rest waits for the next start.

use std::sync::Arc;

use flotilla_identity::ClusterSettings;
use flotilla_proto::peers::SettingValue;
use parking_lot::Mutex;
use serde_json::Value;

use crate::config::{
    DiskConfig, NodeConfig, ResolvedConfig, SettingEffect, SettingKey, SettingScope, SettingSource,
    setting_keys, setting_value, setting_values,
};
use crate::driver::disk_view::DiskView;
use crate::driver::latencies::Latencies;
use crate::transport::SnapshotRates;

/// The settings of a running node, and the handles of those that change.
pub(crate) struct OnlineSettings {
    state: Mutex<GivenAndRunning>,
    latencies: Arc<Latencies>,
    disks: Arc<DiskView>,
    snapshot_rates: SnapshotRates,
}

struct GivenAndRunning {
    /// Those in force.
    running: NodeConfig,
    /// Those that were given last: where they differ, they wait for the next start.
    given: NodeConfig,
}

/// The outcome of settings that were given again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadedSettings {
    /// Keys whose value is another one from now on. `log` is that of the process, and put into
    /// effect there.
    pub changed: Vec<String>,
    /// Keys whose other value is looked at by the next start.
    pub at_next_start: Vec<String>,
    /// Keys of the cluster, whose other value does not count.
    pub of_cluster: Vec<String>,
}

impl OnlineSettings {
    /// Those of a node that starts with these settings.
    pub(crate) fn new(
        resolved: &ResolvedConfig,
        latencies: &Arc<Latencies>,
        disks: &Arc<DiskView>,
    ) -> Self {
        let snapshot_rates = SnapshotRates::from(resolved.config.snapshot);
        let running = resolved.effective();
        let state = Mutex::new(GivenAndRunning { given: running.clone(), running });
        let (latencies, disks) = (Arc::clone(latencies), Arc::clone(disks));
        Self { state, latencies, disks, snapshot_rates }
    }

    /// The rates of both directions.
    pub(crate) fn snapshot_rates(&self) -> SnapshotRates {
        self.snapshot_rates.clone()
    }

    /// The value of each key now, by sections. Those of the scope *cluster* are the cluster's copy.
    pub(crate) fn running_values(&self, cluster: &ClusterSettings) -> Value {
        let mut running = self.state.lock().running.clone();
        running.put_cluster(cluster);
        setting_values(&running)
    }

    /// Puts into effect what may change.
    pub(crate) fn reload(&self, resolved: &ResolvedConfig) -> ReloadedSettings {
        let given = resolved.effective();
        let mut state = self.state.lock();
        let (old, new) = (setting_values(&state.running), setting_values(&given));
        let mut reloaded = ReloadedSettings::default();
        let running = &mut state.running;
        for key in setting_keys() {
            let path = key.path();
            if key.effect() == SettingEffect::Reload {
                running.sources.set(path.clone(), given.sources.of(&path).clone());
            }
            if setting_value(&old, key) == setting_value(&new, key) {
                continue;
            }
            match (key.effect(), key.scope()) {
                (SettingEffect::Reload, _) => reloaded.changed.push(path),
                (_, SettingScope::Cluster) => reloaded.of_cluster.push(path),
                (_, SettingScope::Store) => reloaded.at_next_start.push(path),
            }
        }
        running.log.clone_from(&given.log);
        running.limits.slow_request_ms = given.limits.slow_request_ms;
        running.snapshot = given.snapshot;
        let reserve_bytes = running.disk.reserve_bytes;
        running.disk = DiskConfig { reserve_bytes, ..given.disk };
        self.disks.set_limits(running.disk.limits(&running.storage));
        self.latencies.set_slow(running.limits.slow_request());
        self.snapshot_rates.set(running.snapshot);
        state.given = given;
        reloaded
    }

    /// The values in force on this store, in the order of the table; those of the cluster are the
    /// store's copy. The number of replicas is not among them: placement has it.
    pub(crate) fn values(&self, cluster: &ClusterSettings) -> Vec<SettingValue> {
        let state = self.state.lock();
        let mut running = state.running.clone();
        running.put_cluster(cluster);
        let (now, next) = (setting_values(&running), setting_values(&state.given));
        let keys = setting_keys().filter(|key| key.path() != REPLICAS);
        keys.map(|key| {
            if key.scope() == SettingScope::Cluster {
                return value_of_cluster(key, &now);
            }
            let source = running.sources.of(&key.path());
            let is_given = *source != SettingSource::Default;
            let (value, waiting) = (setting_value(&now, key), setting_value(&next, key));
            SettingValue {
                source: source.kind().to_owned(),
                place: if is_given { source.to_string() } else { String::new() },
                at_next_start: (waiting != value).then(|| key.value_words(waiting)),
                ..value_of_cluster(key, &now)
            }
        })
        .collect()
    }
}

/// The key of the number of replicas.
const REPLICAS: &str = "replicas";

/// The values of the cluster's settings, in the order of the table.
pub(crate) fn cluster_values(cluster: &ClusterSettings) -> Vec<SettingValue> {
    let mut config = NodeConfig::default();
    config.put_cluster(cluster);
    let values = setting_values(&config);
    let keys = setting_keys().filter(|key| key.scope() == SettingScope::Cluster);
    keys.map(|key| value_of_cluster(key, &values)).collect()
}

fn value_of_cluster(key: &SettingKey, values: &Value) -> SettingValue {
    let value = setting_value(values, key);
    SettingValue {
        key: key.path(),
        value: key.value_words(value),
        json: value.to_string(),
        source: "cluster".to_owned(),
        ..SettingValue::default()
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
        let online = OnlineSettings::new(&running, &latencies, &disks);
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
        assert_eq!(online.state.lock().running.limits.slow_request(), Duration::from_millis(1));
    }

    #[test]
    fn values_have_their_sources_and_what_waits_for_the_next_start() {
        let running = resolved(&["limits.connections_max=16".to_owned()]);
        let latencies = Arc::new(Latencies::new(running.config.limits.slow_request()));
        let disks = test_store::disks(&Mailboxes::new(1, 1 << 20));
        let online = OnlineSettings::new(&running, &latencies, &disks);
        let cluster = ClusterSettings { tick_ms: 100, ..ClusterSettings::default() };
        let value = |key: &str| {
            let values = online.values(&cluster);
            values.into_iter().find(|it| it.key == key).unwrap()
        };
        let seen = |key: &str| {
            let it = value(key);
            (it.value, it.source, it.place, it.at_next_start)
        };
        let words = |value: &str, source: &str, place: &str, next: Option<&str>| {
            (value.to_owned(), source.to_owned(), place.to_owned(), next.map(str::to_owned))
        };
        assert_eq!(seen("limits.connections_max"), words("16", "flag", "--set", None));
        assert_eq!(seen("raft.tick_ms"), words("100ms", "cluster", "", None));
        assert_eq!(value("raft.tick_ms").json, "100");
        assert_eq!(seen("log"), words("info", "default", "", None));
        let given = ["limits.connections_max=32", "log=warn", "raft.tick_ms=20ms"];
        let reloaded = online.reload(&resolved(&given.map(str::to_owned)));
        assert_eq!(reloaded.changed, ["log"]);
        assert_eq!(reloaded.at_next_start, ["limits.connections_max"]);
        assert_eq!(reloaded.of_cluster, ["raft.tick_ms"]);
        assert_eq!(seen("log"), words("warn", "flag", "--set", None));
        assert_eq!(seen("limits.connections_max"), words("16", "flag", "--set", Some("32")));
        assert_eq!(seen("raft.tick_ms"), words("100ms", "cluster", "", None));
        let keys: Vec<_> = cluster_values(&cluster).into_iter().map(|it| it.key).collect();
        assert!(
            keys.contains(&REPLICAS.to_owned()) && keys.contains(&"api".to_owned()),
            "{keys:?}"
        );
        assert!(online.values(&cluster).iter().all(|it| it.key != REPLICAS));
    }
}
