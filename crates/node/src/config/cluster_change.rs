//! Changes of settings of the cluster, as an operator asks for them
//! (decision 58, `docs/decisions/0058-settings-change-online.md`).

use flotilla_identity::SettingChange;

use super::given_value::GivenValue;
use super::key::{SettingEffect, SettingScope};
use super::table::find;

/// The change that an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterChange {
    /// Another number of replicas: the repair of regions has it.
    Replicas(u32),
    /// Another value in the settings of the cluster.
    Setting(SettingChange),
}

/// The change that gives the key at `path` the value that `text` means, as a flag would.
///
/// # Errors
///
/// There is no such key, it is not one that changes so, or the value is not in its range; in a
/// sentence that says what would be right.
pub(crate) fn cluster_change(path: &str, text: &str) -> Result<ClusterChange, String> {
    let key = find(path)?;
    if key.scope() == SettingScope::Store {
        let then = match key.effect() {
            SettingEffect::Reload => "send them SIGHUP",
            SettingEffect::Start | SettingEffect::Online => "start them again",
            SettingEffect::Bootstrap => "note that it counts only when a cluster begins",
        };
        return Err(format!(
            "{path} is a setting of each store: change the files, variables or flags of the stores, \
             and {then}"
        ));
    }
    match path {
        "api" => {
            return Err(
                "api is chosen when a cluster begins, for ever: copy the rows to a cluster that \
                 has the other"
                    .to_owned(),
            );
        }
        "raft.election_ticks" | "raft.heartbeat_ticks" => {
            return Err(format!(
                "{path} is fixed when a cluster begins: replicas that run keep their number of \
                 ticks; raft.tick_ms changes how long they are"
            ));
        }
        _ => {}
    }
    let value = key.read(&GivenValue::Untyped(text.to_owned()))?;
    let number = value.as_u64();
    let change = match (path, number, value.as_bool()) {
        ("replicas", Some(count), _) => u32::try_from(count).ok().map(ClusterChange::Replicas),
        ("raft.tick_ms", Some(ms), _) => Some(ClusterChange::Setting(SettingChange::TickMs(ms))),
        ("raft.entry_bytes_max", Some(bytes), _) => {
            Some(ClusterChange::Setting(SettingChange::EntryBytesMax(bytes)))
        }
        ("raft.read_leases", _, Some(is_on)) => {
            Some(ClusterChange::Setting(SettingChange::ReadLeases(is_on)))
        }
        _ => None,
    };
    change.ok_or_else(|| format!("{path} does not change while a cluster runs"))
}

#[cfg(test)]
mod tests {
    use super::super::table::setting_keys;
    use super::*;

    fn refused(path: &str, text: &str) -> String {
        cluster_change(path, text).unwrap_err()
    }

    #[test]
    fn values_have_units_and_ranges() {
        let changed = |path, text| cluster_change(path, text).unwrap();
        let setting = ClusterChange::Setting;
        assert_eq!(changed("raft.tick_ms", "100ms"), setting(SettingChange::TickMs(100)));
        assert_eq!(changed("raft.tick_ms", "1s"), setting(SettingChange::TickMs(1000)));
        let bytes = SettingChange::EntryBytesMax(1 << 20);
        assert_eq!(changed("raft.entry_bytes_max", "1MiB"), setting(bytes));
        assert_eq!(changed("raft.read_leases", "false"), setting(SettingChange::ReadLeases(false)));
        assert_eq!(changed("replicas", "5"), ClusterChange::Replicas(5));
        assert_eq!(
            refused("raft.tick_ms", "5ms"),
            "raft.tick_ms = 5ms is out of range: 10ms to 10s"
        );
        assert!(refused("raft.tick_ms", "1MiB").contains("no unit of this key"));
        assert!(refused("raft.entry_bytes_max", "1GiB").contains("64KiB to 12MiB"));
        assert!(refused("raft.read_leases", "maybe").contains("expected true or false"));
        assert!(refused("replicas", "9").contains("1 to 7"));
    }

    #[test]
    fn other_keys_are_refused_with_what_to_do() {
        assert!(refused("raft.tick", "5").contains("the nearest is `raft.tick_ms`"));
        assert!(refused("limits.slow_request_ms", "2s").ends_with("send them SIGHUP"));
        assert!(refused("limits.connections_max", "9").ends_with("start them again"));
        assert!(refused("regions", "9").ends_with("only when a cluster begins"));
        assert!(refused("api", "v2").contains("for ever"));
        assert!(refused("raft.election_ticks", "20").contains("raft.tick_ms changes"));
    }

    #[test]
    fn each_key_that_is_said_to_change_so_does_and_no_other() {
        for key in setting_keys() {
            let texts = ["5", "100ms", "1MiB", "true", "v2"];
            let changes = texts.iter().any(|text| cluster_change(&key.path(), text).is_ok());
            assert_eq!(changes, key.effect() == SettingEffect::Online, "{}", key.path());
        }
    }
}
