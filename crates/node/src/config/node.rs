//! The top level of a node's settings, and how they are read from a TOML file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use flotilla_identity::ApiVersion;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::error::ConfigError;
use super::limits::{LimitsConfig, ThreadsConfig};
use super::raft::RaftConfig;
use super::snapshot::SnapshotConfig;
use super::split::SplitConfig;
use super::storage::{ScrubConfig, StorageConfig};
use super::verify::VerifyConfig;

/// Keys that an earlier version knew by another name: group, old name, new name.
const RENAMED_KEYS: [(&str, &str, &str); 3] = [
    ("limits", "hold_ms", "leader_wait_ms"),
    ("limits", "held_count_max", "leader_wait_count_max"),
    ("limits", "inbox_bytes_max", "mailbox_bytes_max"),
];

/// The settings of one node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// The name of this store among the initial ones. Default: `s1`; on a store that has data, its
    /// own name.
    pub name: String,
    /// Where the node listens, as `host:port`. Default: the address that `initial_cluster` gives
    /// for `name`, or `127.0.0.1:20160` without a list. May change at any start.
    pub addr: String,
    /// Where clients and other stores reach the node, as `host:port`. Default: the address that
    /// `initial_cluster` gives for `name`, or `addr` without a list. May change at any start.
    pub advertise_addr: String,
    /// More addresses to listen on, with the same services; one that is taken is left out with a
    /// warning. Default none.
    pub also_listen: Vec<String>,
    /// Where everything that the node keeps is, below one directory. Default: `data/<name>`.
    pub data_dir: PathBuf,
    /// The stores that begin the cluster, as `s1=host:port,s2=host:port`; equal on all of them.
    /// On a store that is a member already: more addresses to find the others at. Default: this
    /// store alone.
    pub initial_cluster: String,
    /// Addresses of members of a running cluster that this store joins, as `host:port,host:port`,
    /// if its directory is empty. Default none. A member serves whatever it says, and stops if a
    /// store of another cluster answers there.
    pub join: String,
    /// Where the store stands, for placement, as `{ zone = "a" }`. Default: the labels that it has.
    pub labels: BTreeMap<String, String>,
    /// The id that the cluster must have. Default, and if 0: any; one is drawn at the bootstrap.
    pub cluster_id: u64,
    /// Regions that the clients' keys are split into at the bootstrap; later starts ignore it.
    /// Default 1, at most 9997. Equal on all initial stores.
    pub regions: u64,
    /// A file with keys at which regions begin besides, as [`super::read_split_keys`] reads it.
    /// Counts at the bootstrap only; later starts do not open it. Default, and if empty: none. The
    /// same keys on all initial stores.
    pub split_keys: PathBuf,
    /// Replicas of each data region, as far as there are stores. Default 3; odd, or a majority
    /// costs one more for nothing. A setting of the cluster.
    pub replicas: Option<u64>,
    /// The form of the clients' keys, `v1ttl` or `v2`. Default `v1ttl`. A setting of the cluster,
    /// for ever.
    #[serde(deserialize_with = "api_version")]
    pub api: Option<ApiVersion>,
    /// The operator's word about an empty directory. Flags of the command line only: a file
    /// outlives the one case that it was meant for.
    #[serde(skip)]
    pub first_start: FirstStart,
    /// The filter of the log on standard error, in the syntax of `tracing` (`info`,
    /// `flotilla_node=debug,warn`). Default `info`. The variable `FLOTILLA_LOG` wins.
    pub log: String,
    /// Ticks, elections and entries.
    pub raft: RaftConfig,
    /// Files and checkpoints.
    pub storage: StorageConfig,
    /// The search for bit rot.
    pub scrub: ScrubConfig,
    /// The comparison of the replicas of regions.
    pub verify: VerifyConfig,
    /// When a region becomes several.
    pub split: SplitConfig,
    /// The flow of snapshots between stores.
    pub snapshot: SnapshotConfig,
    /// Bounds on memory and waiting.
    pub limits: LimitsConfig,
    /// Threads.
    pub threads: ThreadsConfig,
}

/// The operator's word about a store whose directory is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstStart {
    /// None: it is a new store, or one that lost its data and is refused.
    #[default]
    Usual,
    /// A new cluster of this one store is meant, even if another cluster knows its address: begin
    /// at once, and go on if a store of another cluster dials.
    New,
    /// The store that has this name lost its directory for ever: this one takes its place under a
    /// new id.
    Replace,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            addr: String::new(),
            advertise_addr: String::new(),
            also_listen: Vec::new(),
            data_dir: PathBuf::new(),
            initial_cluster: String::new(),
            join: String::new(),
            labels: BTreeMap::new(),
            cluster_id: 0,
            regions: 1,
            split_keys: PathBuf::new(),
            replicas: None,
            api: None,
            first_start: FirstStart::Usual,
            log: "info".to_owned(),
            raft: RaftConfig::default(),
            storage: StorageConfig::default(),
            scrub: ScrubConfig::default(),
            verify: VerifyConfig::default(),
            split: SplitConfig::default(),
            snapshot: SnapshotConfig::default(),
            limits: LimitsConfig::default(),
            threads: ThreadsConfig::default(),
        }
    }
}

impl NodeConfig {
    /// The file of borders, if one is given.
    pub(crate) fn split_keys(&self) -> Option<&Path> {
        Some(self.split_keys.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    /// Reads a TOML file. Nothing is checked yet but names and types.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Read`], [`ConfigError::Renamed`] and [`ConfigError::Parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        if let Some((old, new)) = renamed_key(&text) {
            return Err(ConfigError::Renamed { path: path.to_owned(), old, new });
        }
        toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }
}

fn api_version<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ApiVersion>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

/// The first key of `text` that has another name now, and that name, both with their group.
fn renamed_key(text: &str) -> Option<(String, String)> {
    // Text that is no TOML is refused by the parser, which says where.
    let table: toml::Table = text.parse().ok()?;
    let is_there = |(group, old, _): &&(&str, &str, &str)| {
        table
            .get(*group)
            .and_then(toml::Value::as_table)
            .is_some_and(|keys| keys.contains_key(*old))
    };
    let (group, old, new) = RENAMED_KEYS.iter().find(is_there)?;
    Some((format!("{group}.{old}"), format!("{group}.{new}")))
}
