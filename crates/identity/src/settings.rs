//! Cluster settings: the values on which any two stores must agree.
//!
//! At the bootstrap the effective values of all listed stores must be equal. Afterwards each store
//! takes them from its own copy, and only a value that an operator gives is compared with it. The
//! row of the system region is authoritative; each change counts its version up, and of two copies
//! the one of the later version is right. [`crate::SettingsRollout`] has the changes.

use std::fmt;

use flotilla_base::fields::{Malformed, put_varint};

use crate::api_version::ApiVersion;
use crate::codec::row;
use crate::tick_change::TickChange;

/// The first byte of the settings row of API V1. Earlier versions read such a row, and wrote it.
const FORMAT: u8 = 1;
/// The same with the API version behind the other values.
const API_FORMAT: u8 = 2;
/// The same with the API version, and the change of the tick that is under way, behind them.
const CHANGE_FORMAT: u8 = 3;

/// How many values there are.
const COUNT: usize = 7;

/// Their names in the configuration, in the order of [`ClusterSettings::values`].
const NAMES: [&str; COUNT] = [
    "replicas",
    "raft.tick_ms",
    "raft.election_ticks",
    "raft.heartbeat_ticks",
    "raft.entry_bytes_max",
    "raft.read_leases",
    "api",
];

/// The place of the one value that is shown as a truth value.
const READ_LEASES: usize = 5;

/// The place of the one value that is shown as a word.
const API: usize = 6;

/// The settings of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterSettings {
    /// Counts changes; 1 at the bootstrap.
    pub version: u64,
    /// Replicas of each region, as far as there are stores.
    pub replicas: u64,
    /// Milliseconds of a tick. Leases rest on it: changed in steps, as `tick_change` says.
    pub tick_ms: u64,
    /// Ticks of the shortest election timeout. Leases rest on it: never changed.
    pub election_ticks: u64,
    /// Ticks between heartbeats: never changed.
    pub heartbeat_ticks: u64,
    /// Bytes of one log entry at most.
    pub entry_bytes_max: u64,
    /// Whether leaders answer reads under a lease.
    pub read_leases: bool,
    /// The form of the clients' keys: never changed.
    pub api: ApiVersion,
    /// The stage of a change of the tick.
    pub tick_change: TickChange,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            version: 1,
            replicas: 3,
            tick_ms: 50,
            election_ticks: 12,
            heartbeat_ticks: 2,
            entry_bytes_max: 8 << 20,
            read_leases: true,
            api: ApiVersion::V1Ttl,
            tick_change: TickChange::Settled,
        }
    }
}

/// Settings of the cluster given by flags or a file. The rest is taken from the store's copy, so
/// that a new version's default refuses no store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenSettings {
    /// As [`ClusterSettings::replicas`].
    pub replicas: Option<u64>,
    /// As [`ClusterSettings::tick_ms`].
    pub tick_ms: Option<u64>,
    /// As [`ClusterSettings::election_ticks`].
    pub election_ticks: Option<u64>,
    /// As [`ClusterSettings::heartbeat_ticks`].
    pub heartbeat_ticks: Option<u64>,
    /// As [`ClusterSettings::entry_bytes_max`].
    pub entry_bytes_max: Option<u64>,
    /// As [`ClusterSettings::read_leases`].
    pub read_leases: Option<bool>,
    /// As [`ClusterSettings::api`].
    pub api: Option<ApiVersion>,
}

/// Two values of one setting that must be equal and are not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SettingConflict {
    /// The setting's name in the configuration.
    pub name: String,
    /// The value of the store that says so.
    pub ours: String,
    /// The other value.
    pub theirs: String,
}

impl fmt::Display for SettingConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ours, theirs } = self;
        write!(f, "{name} is {ours} here and {theirs} there")
    }
}

impl GivenSettings {
    /// The given values, and the defaults of this version for the rest.
    #[must_use]
    pub fn effective(&self) -> ClusterSettings {
        let default = ClusterSettings::default();
        ClusterSettings {
            version: default.version,
            replicas: self.replicas.unwrap_or(default.replicas),
            tick_ms: self.tick_ms.unwrap_or(default.tick_ms),
            election_ticks: self.election_ticks.unwrap_or(default.election_ticks),
            heartbeat_ticks: self.heartbeat_ticks.unwrap_or(default.heartbeat_ticks),
            entry_bytes_max: self.entry_bytes_max.unwrap_or(default.entry_bytes_max),
            read_leases: self.read_leases.unwrap_or(default.read_leases),
            api: self.api.unwrap_or(default.api),
            tick_change: default.tick_change,
        }
    }

    fn values(&self) -> [Option<u64>; COUNT] {
        [
            self.replicas,
            self.tick_ms,
            self.election_ticks,
            self.heartbeat_ticks,
            self.entry_bytes_max,
            self.read_leases.map(u64::from),
            self.api.map(ApiVersion::number),
        ]
    }
}

impl ClusterSettings {
    // In the order of the bytes on disk.
    fn values(&self) -> [u64; COUNT] {
        [
            self.replicas,
            self.tick_ms,
            self.election_ticks,
            self.heartbeat_ticks,
            self.entry_bytes_max,
            u64::from(self.read_leases),
            self.api.number(),
        ]
    }

    /// Whether a store with these settings answers reads under leases.
    #[must_use]
    pub fn uses_leases(&self) -> bool {
        self.read_leases && self.tick_change == TickChange::Settled
    }

    /// The time for which a follower that runs with them keeps still for its leader; a lease is
    /// shorter.
    #[must_use]
    pub fn promise_ms(&self) -> u64 {
        self.election_ticks.saturating_sub(1).saturating_mul(self.tick_ms)
    }

    /// The first value that differs from another store's, versions aside.
    #[must_use]
    pub fn conflict(&self, theirs: &Self) -> Option<SettingConflict> {
        let theirs = theirs.values().map(Some);
        conflict_of(self.values(), theirs)
    }

    /// The first given value that differs.
    #[must_use]
    pub fn conflict_with_given(&self, given: &GivenSettings) -> Option<SettingConflict> {
        conflict_of(self.values(), given.values())
    }

    /// The bytes of the row, as `docs/durability.md` has them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // A cluster of V1 may have stores that know no other.
        let (format, count) = match (self.tick_change, self.api) {
            (TickChange::Settled, ApiVersion::V1Ttl) => (FORMAT, API),
            (TickChange::Settled, ApiVersion::V2) => (API_FORMAT, COUNT),
            // Such a store would serve by its leases meanwhile, and must not read it.
            (TickChange::LeasesOff { .. } | TickChange::Spreading, _) => (CHANGE_FORMAT, COUNT),
        };
        let mut out = vec![format];
        put_varint(&mut out, self.version);
        self.values().into_iter().take(count).for_each(|value| put_varint(&mut out, value));
        if format == CHANGE_FORMAT {
            self.tick_change.encode(&mut out);
        }
        out
    }

    /// Reads what [`ClusterSettings::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let known = [API_FORMAT, CHANGE_FORMAT];
        let format = known.into_iter().find(|it| bytes.first() == Some(it)).unwrap_or(FORMAT);
        let mut reader = row(bytes, format, "settings row")?;
        let mut settings = Self {
            version: reader.varint()?,
            replicas: reader.varint()?,
            tick_ms: reader.varint()?,
            election_ticks: reader.varint()?,
            heartbeat_ticks: reader.varint()?,
            entry_bytes_max: reader.varint()?,
            read_leases: reader.varint()? != 0,
            api: ApiVersion::V1Ttl,
            tick_change: TickChange::Settled,
        };
        if format != FORMAT {
            let api = ApiVersion::from_number(reader.varint()?);
            // V1 has a row of the other format, so that equal settings have equal bytes.
            let api = api.filter(|it| format == CHANGE_FORMAT || *it != ApiVersion::V1Ttl);
            settings.api = api.ok_or(reader.malformed())?;
        }
        if format == CHANGE_FORMAT {
            settings.tick_change = TickChange::decode(&mut reader)?;
        }
        reader.finish()?;
        Ok(settings)
    }
}

fn conflict_of(ours: [u64; COUNT], theirs: [Option<u64>; COUNT]) -> Option<SettingConflict> {
    (0..COUNT).find_map(|at| {
        let theirs = theirs[at].filter(|theirs| *theirs != ours[at])?;
        let name = NAMES[at].to_owned();
        Some(SettingConflict { name, ours: shown(at, ours[at]), theirs: shown(at, theirs) })
    })
}

fn shown(at: usize, value: u64) -> String {
    match (at, ApiVersion::from_number(value)) {
        (READ_LEASES, _) => (value != 0).to_string(),
        (API, Some(api)) => api.to_string(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_damaged_ones_do_not() {
        let settings = ClusterSettings { replicas: 5, read_leases: false, ..Default::default() };
        let bytes = settings.encode();
        assert_eq!(bytes, [1, 1, 5, 50, 12, 2, 0x80, 0x80, 0x80, 4, 0]);
        assert_eq!(ClusterSettings::decode(&bytes), Ok(settings));
        let v2 = ClusterSettings { api: ApiVersion::V2, ..settings };
        let v2_bytes = v2.encode();
        assert_eq!(v2_bytes, [2, 1, 5, 50, 12, 2, 0x80, 0x80, 0x80, 4, 0, 2]);
        assert_eq!(ClusterSettings::decode(&v2_bytes), Ok(v2));
        for bytes in [&bytes, &v2_bytes] {
            for len in 0..bytes.len() {
                assert!(ClusterSettings::decode(&bytes[..len]).is_err(), "cut at {len}");
            }
            let longer = [&bytes[..], &[2]].concat();
            assert!(ClusterSettings::decode(&longer).is_err(), "{longer:?}");
        }
        let changing = [TickChange::LeasesOff { next_ms: 100 }, TickChange::Spreading];
        for tick_change in changing {
            let changing = ClusterSettings { tick_change, ..settings };
            let bytes = changing.encode();
            assert_eq!((bytes[0], ClusterSettings::decode(&bytes)), (3, Ok(changing)));
            for len in 0..bytes.len() {
                assert!(ClusterSettings::decode(&bytes[..len]).is_err(), "cut at {len}");
            }
        }
        // A row without a change has another format.
        for kind in [0, 3] {
            let unknown = [3, 1, 5, 50, 12, 2, 1, 0, 1, kind];
            assert!(ClusterSettings::decode(&unknown).is_err(), "change {kind}");
        }
        for api in [0, 1, 3] {
            let unknown = [&v2_bytes[..v2_bytes.len() - 1], &[api]].concat();
            assert!(ClusterSettings::decode(&unknown).is_err(), "API version {api}");
        }
    }

    #[test]
    fn every_value_that_differs_is_named_with_both_values() {
        let ours = ClusterSettings::default();
        let theirs = [
            ClusterSettings { replicas: 1, ..ours },
            ClusterSettings { tick_ms: 51, ..ours },
            ClusterSettings { election_ticks: 13, ..ours },
            ClusterSettings { heartbeat_ticks: 3, ..ours },
            ClusterSettings { entry_bytes_max: 1 << 20, ..ours },
            ClusterSettings { read_leases: false, ..ours },
            ClusterSettings { api: ApiVersion::V2, ..ours },
        ];
        for (theirs, name) in theirs.iter().zip(NAMES) {
            assert_eq!(ours.conflict(theirs).unwrap().name, name);
        }
        let conflict = ours.conflict(&theirs[5]).unwrap();
        assert_eq!(conflict.to_string(), "raft.read_leases is true here and false there");
        let conflict = ours.conflict(&theirs[6]).unwrap();
        assert_eq!(conflict.to_string(), "api is v1ttl here and v2 there");
        assert_eq!(ours.conflict(&ClusterSettings { version: 9, ..ours }), None);
    }

    #[test]
    fn only_given_values_are_compared() {
        let copy = ClusterSettings { election_ticks: 20, ..Default::default() };
        assert_eq!(copy.conflict_with_given(&GivenSettings::default()), None);
        let given = GivenSettings { election_ticks: Some(12), ..Default::default() };
        let conflict = copy.conflict_with_given(&given).unwrap();
        assert_eq!((conflict.ours.as_str(), conflict.theirs.as_str()), ("20", "12"));
        assert_eq!(given.effective().election_ticks, 12);
        assert_eq!(given.effective().tick_ms, 50);
    }
}
