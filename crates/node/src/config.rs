//! Everything that can be set on a node: units, defaults, limits, and what each costs.
//!
//! A TOML file has the names of the fields here, with the groups as tables. A name that is not
//! here is refused, so that a misspelt key never means a silent default. Flags of the command line
//! win over the file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flotilla_identity::{
    ClusterSettings, ClusterSpec, GivenSettings, InitialStore, InvalidList, REGIONS_MAX,
};
use flotilla_store::{PageOptions, PageReadMode};
use serde::Deserialize;

use crate::router;

/// The settings of one node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Which of the initial stores this is. Default: `s1`; on a store that has data, its own name.
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
    /// The id that the cluster must have. Default, and if 0: any; one is drawn at the bootstrap.
    pub cluster_id: u64,
    /// Regions that the clients' keys are split into at the bootstrap; later starts ignore it.
    /// Default 16, at most 9998. Equal on all initial stores.
    pub regions: u64,
    /// Replicas of each data region, as far as there are stores. Default 3; odd, or a majority
    /// costs one more for nothing. A setting of the cluster.
    pub replicas: Option<u64>,
    /// A new cluster of this one store is meant, whoever else knows its address: begin at once,
    /// and go on if a store of another cluster dials. A flag of the command line only.
    #[serde(skip)]
    pub new: bool,
    /// What is logged to standard error, as a filter of `tracing` (`info`,
    /// `flotilla_node=debug,warn`). Default `info`. The variable `FLOTILLA_LOG` wins.
    pub log: String,
    /// Ticks, elections and entries.
    pub raft: RaftConfig,
    /// Files and checkpoints.
    pub storage: StorageConfig,
    /// Bounds on memory and waiting.
    pub limits: LimitsConfig,
    /// Threads.
    pub threads: ThreadsConfig,
}

/// Ticks, elections and entries: settings of the cluster. They are fixed at its bootstrap; later a
/// store takes them from its own copy, and a value that is given must be equal to that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// Milliseconds of one tick. Default 50, 10 to 10 000.
    pub tick_ms: Option<u64>,
    /// Ticks without a leader before a replica stands for election. Default 12, that is 600 ms;
    /// at least 4 and at least three times `heartbeat_ticks`.
    pub election_ticks: Option<u64>,
    /// Ticks between a leader's heartbeats. Default 2, at least 1.
    pub heartbeat_ticks: Option<u64>,
    /// Bytes of one log entry at most; a larger command is refused. Default 8 MiB, 64 KiB to
    /// 12 MiB: a message between stores holds one entry and may have 16 MiB.
    pub entry_bytes_max: Option<u64>,
    /// Whether leaders answer reads under a lease. Default true. False: every read asks a
    /// majority, whatever the clocks do.
    pub read_leases: Option<bool>,
}

/// Files and checkpoints. What begins with `log_` is handed to the log engine as it is, and has its
/// meaning, default and limits there: [`flotilla_raftlog::Config`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageConfig {
    /// Bytes of one file of the log. Default 64 MiB, 1 MiB to 1 GiB. Old files go as a whole, so
    /// this is also the unit in which space comes back.
    pub segment_bytes: u64,
    /// Bytes of the log above which what is still needed is moved out of its oldest files, so that
    /// they can go. Default 1 GiB.
    pub log_purge_above_bytes: u64,
    /// Bytes that one purge, so one checkpoint, moves at most. Default 64 MiB; 0: none are moved.
    pub log_move_bytes_max: u64,
    /// Part of a file, 0 to 1, up to which moving what is needed of it pays. Default 0.5.
    pub log_move_live_ratio_max: f64,
    /// Bytes that the log may take on disk; the store stops rather than take more. Default none;
    /// at least eight times `segment_bytes`.
    pub log_disk_bytes_max: Option<u64>,
    /// Dead files of the log kept to be written again. Default 4.
    pub log_spare_segments: usize,
    /// Bytes of decompressed log entries to keep in memory. Default 32 MiB.
    pub log_cache_bytes_max: u64,
    /// Milliseconds between checkpoints of the pages while something is written. Default 2000,
    /// 50 to 600 000. Longer means fewer page writes, a longer log and a longer restart.
    pub checkpoint_interval_ms: u64,
    /// Bytes of changed pages in memory that ask for a checkpoint before its time. Default
    /// 64 MiB, at least 4 MiB.
    pub dirty_bytes_max: u64,
    /// Bytes of changed pages in memory at which applying waits until a checkpoint has written some of
    /// them. From `dirty_bytes_max` on it waits the longer the nearer they come to this. Default four
    /// times `dirty_bytes_max`, and at least that.
    pub dirty_bytes_hard_max: Option<u64>,
    /// Bytes of clean pages to keep in memory where the page file cannot be mapped. Default 64 MiB,
    /// at least 1 MiB.
    pub cache_bytes: u64,
    /// How pages are read. Default `mapped`.
    pub pages_read_mode: PagesReadMode,
    /// Bytes by which the file of the pages grows. Default 1 MiB, at most 1 GiB.
    pub pages_growth_bytes: u64,
    /// Free bytes at the end of that file at which it is cut off. Default 64 MiB.
    pub pages_trim_bytes: u64,
    /// Bytes of pages that are moved towards the beginning of the file with one checkpoint. Default
    /// 16 MiB; 0: none are moved.
    pub pages_move_bytes_max: u64,
    /// Part of the file, 0 to 1, that is free when moving begins. Default 0.5.
    pub pages_move_free_ratio_min: f64,
}

/// How pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PagesReadMode {
    /// From a map of the file; the system decides what stays in memory.
    Mapped,
    /// Into a cache of `cache_bytes`.
    Cached,
}

/// Bounds on memory and waiting.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Bytes of client requests under way, 1 KiB for each included. Default 256 MiB, at least
    /// 16 MiB. Who finds it spent waits.
    pub request_bytes_max: u32,
    /// Requests that may wait for that; more are told that the store is busy. Default 16 384.
    pub queued_count_max: usize,
    /// Milliseconds until a request is given up. Default 10 000, at least 100.
    pub request_timeout_ms: u64,
    /// Milliseconds that a request waits for its region to have a leader. Default 1000, less than
    /// what clients retry for.
    pub hold_ms: u64,
    /// Requests that may wait for leaders. Default 4096.
    pub held_count_max: usize,
    /// Bytes that may wait in a shard for each of: urgent messages, appends, client requests.
    /// Default 32 MiB, at least 1 MiB.
    pub inbox_bytes_max: u32,
    /// Bytes that may wait for another store on each of its two streams. More are dropped, and
    /// raft sends them again. Default 32 MiB, at least 16 MiB so that any message fits.
    pub peer_queue_bytes_max: usize,
    /// Bytes that wait for the log or for applying before a shard takes no more from clients; at
    /// twice as much it takes no more entries from leaders either. Default 32 MiB, at least 1 MiB.
    pub backlog_bytes_max: usize,
    /// Connections at once. Default 4096, at least 16.
    pub connections_max: usize,
    /// Streams of one connection at once. Default 1024, at least 16.
    pub streams_per_connection_max: u32,
}

/// Threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadsConfig {
    /// Threads that run regions. Default 0: half of the cores, at least one. At most 64.
    pub shards: usize,
    /// Threads for connections. Default 0: half of the cores, at least one. At most 256.
    pub runtime: usize,
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
            cluster_id: 0,
            regions: 16,
            replicas: None,
            new: false,
            log: "info".to_owned(),
            raft: RaftConfig::default(),
            storage: StorageConfig::default(),
            limits: LimitsConfig::default(),
            threads: ThreadsConfig::default(),
        }
    }
}

impl Default for StorageConfig {
    fn default() -> Self {
        let flotilla_store::Config { log, pages, .. } = flotilla_store::Config::default();
        Self {
            segment_bytes: log.segment_bytes,
            log_purge_above_bytes: log.purge_above_bytes,
            log_move_bytes_max: log.move_bytes_max,
            log_move_live_ratio_max: log.move_live_ratio_max,
            log_disk_bytes_max: log.disk_bytes_max,
            log_spare_segments: log.spare_segments,
            log_cache_bytes_max: log.cache_bytes_max,
            checkpoint_interval_ms: 2000,
            dirty_bytes_max: 64 << 20,
            dirty_bytes_hard_max: None,
            cache_bytes: 64 << 20,
            pages_read_mode: PagesReadMode::Mapped,
            pages_growth_bytes: pages.growth_bytes,
            pages_trim_bytes: pages.trim_bytes,
            pages_move_bytes_max: 16 << 20,
            pages_move_free_ratio_min: 0.5,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            request_bytes_max: 256 << 20,
            queued_count_max: 16 * 1024,
            request_timeout_ms: 10_000,
            hold_ms: 1000,
            held_count_max: 4096,
            inbox_bytes_max: 32 << 20,
            peer_queue_bytes_max: 32 << 20,
            backlog_bytes_max: 32 << 20,
            connections_max: 4096,
            streams_per_connection_max: 1024,
        }
    }
}

impl ThreadsConfig {
    /// Threads that run regions, with the default put in.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        if self.shards == 0 { half_of_the_cores() } else { self.shards }
    }

    /// Threads for connections, with the default put in.
    #[must_use]
    pub fn runtime_count(&self) -> usize {
        if self.runtime == 0 { half_of_the_cores() } else { self.runtime }
    }
}

impl StorageConfig {
    /// What the store takes.
    #[must_use]
    pub fn store(&self) -> flotilla_store::Config {
        let mut config =
            flotilla_store::Config { log: self.log(), ..flotilla_store::Config::default() };
        if let Some(limit) = self.log_disk_bytes_max {
            // The log keeps what no checkpoint has yet, so one must be due long before it is full.
            config.checkpoint_log_bytes = config.checkpoint_log_bytes.min(limit / 4);
        }
        config.pages = PageOptions::default()
            .read_mode(match self.pages_read_mode {
                PagesReadMode::Mapped => PageReadMode::Mapped,
                PagesReadMode::Cached => PageReadMode::Cached,
            })
            .cache_bytes(self.cache_bytes)
            .growth_bytes(self.pages_growth_bytes)
            .trim_bytes(self.pages_trim_bytes);
        config.checkpoint_dirty_bytes = self.dirty_bytes_max;
        config.dirty_bytes_max = self.dirty_bytes_hard_max();
        config.pages_move_bytes_max = self.pages_move_bytes_max;
        config.pages_move_free_ratio_min = self.pages_move_free_ratio_min;
        config
    }

    fn dirty_bytes_hard_max(&self) -> u64 {
        self.dirty_bytes_hard_max.unwrap_or(self.dirty_bytes_max.saturating_mul(4))
    }

    fn check_pages(&self) -> Result<(), ConfigError> {
        within("storage.dirty_bytes_max", self.dirty_bytes_max, 4 << 20, u64::MAX)?;
        within(
            "storage.dirty_bytes_hard_max (at least storage.dirty_bytes_max)",
            self.dirty_bytes_hard_max(),
            self.dirty_bytes_max,
            u64::MAX,
        )?;
        within("storage.cache_bytes", self.cache_bytes, 1 << 20, u64::MAX)?;
        within("storage.pages_growth_bytes", self.pages_growth_bytes, 0, 1 << 30)?;
        let ratio = self.pages_move_free_ratio_min;
        if (0.0..=1.0).contains(&ratio) {
            return Ok(());
        }
        let what = format!("storage.pages_move_free_ratio_min = {ratio} is out of range: 0 to 1");
        Err(ConfigError::Value(what))
    }

    fn log(&self) -> flotilla_raftlog::Config {
        flotilla_raftlog::Config {
            segment_bytes: self.segment_bytes,
            purge_above_bytes: self.log_purge_above_bytes,
            move_bytes_max: self.log_move_bytes_max,
            move_live_ratio_max: self.log_move_live_ratio_max,
            disk_bytes_max: self.log_disk_bytes_max,
            spare_segments: self.log_spare_segments,
            cache_bytes_max: self.log_cache_bytes_max,
            ..flotilla_raftlog::Config::default()
        }
    }
}

impl LimitsConfig {
    /// The part that the router keeps to.
    #[must_use]
    pub fn router(&self) -> router::Limits {
        router::Limits {
            request_bytes_max: self.request_bytes_max,
            queued_count_max: self.queued_count_max,
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            hold: Duration::from_millis(self.hold_ms),
            held_count_max: self.held_count_max,
        }
    }
}

/// What is wrong with the settings. The text says what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a name or a type that does not belong there.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        source: Box<toml::de::Error>,
    },
    /// The list of initial stores is wrong.
    #[error("initial_cluster: {0}")]
    Cluster(#[from] InvalidList),
    /// A value is outside its range, or does not fit another one.
    #[error("{0}")]
    Value(String),
}

impl NodeConfig {
    /// Reads a TOML file. Nothing is checked yet but names and types.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Read`] and [`ConfigError::Parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Puts in the defaults that depend on other values, and checks everything.
    ///
    /// # Errors
    ///
    /// The first value that is wrong, with what would be right.
    pub fn settle(mut self) -> Result<Settled, ConfigError> {
        let is_named = !self.name.is_empty();
        if !is_named {
            "s1".clone_into(&mut self.name);
        }
        let is_listed = !self.initial_cluster.is_empty();
        if !is_listed {
            let given = [&self.advertise_addr, &self.addr].into_iter().find(|a| !a.is_empty());
            let address = given.map_or(DEFAULT_ADDR, String::as_str);
            self.initial_cluster = format!("{}={address}", self.name);
        }
        let stores = ClusterSpec::parse_stores(&self.initial_cluster)?;
        let Some(place) = stores.iter().position(|store| store.name == self.name) else {
            let known: Vec<_> = stores.iter().map(|store| store.name.as_str()).collect();
            return Err(ConfigError::Value(format!(
                "name = \"{}\" is not in initial_cluster, which has {}: correct one of the two",
                self.name,
                known.join(", ")
            )));
        };
        if self.data_dir.as_os_str().is_empty() {
            self.data_dir = Path::new("data").join(&self.name);
        }
        self.check()?;
        let settings = self.given().effective();
        check_settings(&settings)?;
        let spec =
            ClusterSpec { stores, settings, regions: self.regions, cluster_id: self.cluster_id };
        Ok(Settled { config: self, spec, place, is_named, is_listed })
    }

    /// What is said about the settings of the cluster.
    fn given(&self) -> GivenSettings {
        GivenSettings {
            replicas: self.replicas,
            tick_ms: self.raft.tick_ms,
            election_ticks: self.raft.election_ticks,
            heartbeat_ticks: self.raft.heartbeat_ticks,
            entry_bytes_max: self.raft.entry_bytes_max,
            read_leases: self.raft.read_leases,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let (storage, limits) = (&self.storage, &self.limits);
        within("regions", self.regions, 1, REGIONS_MAX)?;
        within("storage.segment_bytes", storage.segment_bytes, 1 << 20, 1 << 30)?;
        // The engine's text begins with the name of its field, which is ours behind the prefix.
        storage.log().check().map_err(|error| match error {
            flotilla_raftlog::Error::Invalid(what) => {
                ConfigError::Value(format!("storage.log_{what}"))
            }
            other => ConfigError::Value(format!("storage: {other}")),
        })?;
        within("storage.checkpoint_interval_ms", storage.checkpoint_interval_ms, 50, 600_000)?;
        storage.check_pages()?;
        let bytes = u64::from(limits.request_bytes_max);
        within("limits.request_bytes_max", bytes, 16 << 20, u64::from(u32::MAX))?;
        within("limits.request_timeout_ms", limits.request_timeout_ms, 100, 3_600_000)?;
        within("limits.hold_ms", limits.hold_ms, 0, limits.request_timeout_ms)?;
        let bytes = u64::from(limits.inbox_bytes_max);
        within("limits.inbox_bytes_max", bytes, 1 << 20, u64::from(u32::MAX))?;
        let bytes = limits.peer_queue_bytes_max as u64;
        within("limits.peer_queue_bytes_max", bytes, 16 << 20, 1 << 40)?;
        within("limits.backlog_bytes_max", limits.backlog_bytes_max as u64, 1 << 20, 1 << 40)?;
        within("limits.connections_max", limits.connections_max as u64, 16, 1 << 20)?;
        let streams = u64::from(limits.streams_per_connection_max);
        within("limits.streams_per_connection_max", streams, 16, 1 << 20)?;
        within("threads.shards", self.threads.shards as u64, 0, 64)?;
        within("threads.runtime", self.threads.runtime as u64, 0, 256)
    }
}

/// Where a store listens that was told nothing.
const DEFAULT_ADDR: &str = "127.0.0.1:20160";

/// Settings that fit together, and what follows from them.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The settings, with no default left open but the addresses.
    pub config: NodeConfig,
    /// The cluster that this store is to begin, if its directory is empty.
    pub spec: ClusterSpec,
    /// This store's place in the list.
    pub place: usize,
    /// Whether the name was given, and is not the default.
    is_named: bool,
    /// Whether the list was given, and is not made of this store alone.
    is_listed: bool,
}

impl Settled {
    /// This store in the list.
    #[must_use]
    pub fn own(&self) -> &InitialStore {
        &self.spec.stores[self.place]
    }

    /// The addresses of the list, by name; none if no list was given.
    #[must_use]
    pub fn listed_addresses(&self) -> BTreeMap<String, String> {
        let listed = self.spec.stores.iter().filter(|_| self.is_listed);
        listed.map(|store| (store.name.clone(), store.address.clone())).collect()
    }

    /// Where to listen, if that follows from the settings. `known` is the address that the
    /// directory's copy of the registry has for this store.
    #[must_use]
    pub fn listen_addr(&self, known: Option<&str>) -> String {
        match known {
            _ if !self.config.addr.is_empty() => self.config.addr.clone(),
            Some(known) if !self.is_listed => known.to_owned(),
            _ => self.own().address.clone(),
        }
    }

    /// Where others are to reach this store, which listens on `listen`.
    #[must_use]
    pub fn advertised(&self, listen: &str, known: Option<&str>) -> String {
        let config = &self.config;
        match known {
            _ if !config.advertise_addr.is_empty() => config.advertise_addr.clone(),
            _ if self.is_listed => self.own().address.clone(),
            Some(known) if config.addr.is_empty() => known.to_owned(),
            _ => listen.to_owned(),
        }
    }

    /// Compares what is given with what a member's directory says.
    ///
    /// # Errors
    ///
    /// The first value that differs, with both.
    pub fn check_member(
        &self,
        name: &str,
        cluster_id: u64,
        copy: &ClusterSettings,
    ) -> Result<(), ConfigError> {
        let config = &self.config;
        let dir = config.data_dir.display();
        if self.is_named && config.name != name {
            return Err(ConfigError::Value(format!(
                "name = \"{}\", but the data directory {dir} is that of store {name}: correct --name \
                 or --data-dir",
                config.name
            )));
        }
        if config.cluster_id != 0 && config.cluster_id != cluster_id {
            return Err(ConfigError::Value(format!(
                "cluster_id = {}, but the data directory {dir} is of cluster {cluster_id}: correct \
                 --cluster-id or --data-dir",
                config.cluster_id
            )));
        }
        if let Some(conflict) = copy.conflict_with_given(&config.given()) {
            return Err(ConfigError::Value(format!(
                "{} = {} is given, but the cluster has {}, as the copy in {dir} says: it cannot be \
                 changed here; take it out of the flags and files of this store",
                conflict.name, conflict.theirs, conflict.ours
            )));
        }
        Ok(())
    }
}

/// The settings of a cluster are within their ranges, and fit together.
fn check_settings(settings: &ClusterSettings) -> Result<(), ConfigError> {
    within("replicas", settings.replicas, 1, 7)?;
    within("raft.tick_ms", settings.tick_ms, 10, 10_000)?;
    within("raft.heartbeat_ticks", settings.heartbeat_ticks, 1, 1000)?;
    within(
        "raft.election_ticks (at least three times raft.heartbeat_ticks)",
        settings.election_ticks,
        (3 * settings.heartbeat_ticks).max(4),
        10_000,
    )?;
    within("raft.entry_bytes_max", settings.entry_bytes_max, 64 << 10, 12 << 20)
}

/// What the shards of a store take. `seed` must be another one at each start.
#[must_use]
pub fn shard_config(settings: &ClusterSettings, seed: u64) -> flotilla_region::Config {
    let ticks = |count: u64| u32::try_from(count).expect("checked to be at most 10 000");
    let mut config = flotilla_region::Config {
        tick_ms: settings.tick_ms,
        election_ticks: ticks(settings.election_ticks),
        heartbeat_ticks: ticks(settings.heartbeat_ticks),
        seed,
        entry_bytes_max: settings.entry_bytes_max as usize,
        ..flotilla_region::Config::default()
    };
    config.reads.leases = settings.read_leases;
    config
}

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Value(format!("{name} = {value} is out of range: {least} to {most}")))
}

fn half_of_the_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let config: Result<NodeConfig, _> = toml::from_str(text);
        match config {
            Err(error) => error.to_string(),
            Ok(config) => config.settle().unwrap_err().to_string(),
        }
    }

    #[test]
    fn nothing_set_gives_one_store_that_works() {
        let settled = NodeConfig::default().settle().unwrap();
        assert!(settled.listed_addresses().is_empty(), "this store is no other's address");
        assert_eq!(settled.listen_addr(None), "127.0.0.1:20160");
        assert_eq!(settled.config.data_dir, Path::new("data/s1"));
        assert_eq!(settled.spec.stores.len(), 1);
        assert!(settled.config.threads.shard_count() >= 1);
    }

    #[test]
    fn a_file_sets_what_it_names_and_keeps_the_rest() {
        let config: NodeConfig =
            toml::from_str("name = 'b'\ninitial_cluster = 'a=h:1,b=h:2'\n[raft]\ntick_ms = 20\n")
                .unwrap();
        let settled = config.settle().unwrap();
        assert_eq!(settled.place, 1);
        assert_eq!(settled.listen_addr(Some("known:1")), "h:2");
        assert_eq!(settled.spec.settings.tick_ms, 20);
        assert_eq!(settled.spec.settings.election_ticks, 12);
    }

    #[test]
    fn addresses_follow_from_what_is_given_at_this_start() {
        let addresses = |text: &str, known: Option<&str>| {
            let config: NodeConfig = toml::from_str(text).unwrap();
            let settled = config.settle().unwrap();
            let listen = settled.listen_addr(known);
            (settled.advertised(&listen, known), listen)
        };
        let of = |advertised: &str, listen: &str| (advertised.to_owned(), listen.to_owned());
        let list = "initial_cluster = 's1=h:1,s2=h:2'";
        assert_eq!(addresses("", None), of(DEFAULT_ADDR, DEFAULT_ADDR));
        assert_eq!(addresses("", Some("known:1")), of("known:1", "known:1"));
        assert_eq!(addresses("addr = 'a:1'", Some("known:1")), of("a:1", "a:1"));
        assert_eq!(addresses(list, Some("known:1")), of("h:1", "h:1"));
        let listens_elsewhere = format!("addr = '0.0.0.0:9'\n{list}");
        assert_eq!(addresses(&listens_elsewhere, None), of("h:1", "0.0.0.0:9"));
        let both = "addr = 'a:1'\nadvertise_addr = 'b:2'";
        assert_eq!(addresses(both, Some("known:1")), of("b:2", "a:1"));
    }

    #[test]
    fn a_member_is_started_with_what_its_directory_says_or_refused_with_both_values() {
        let check = |text: &str| {
            let config: NodeConfig = toml::from_str(text).unwrap();
            let copy = ClusterSettings { election_ticks: 20, ..ClusterSettings::default() };
            config.settle().unwrap().check_member("s1", 7, &copy).map_err(|e| e.to_string())
        };
        assert_eq!(check(""), Ok(()));
        assert_eq!(check("cluster_id = 7\nname = 's1'\nregions = 5"), Ok(()));
        assert_eq!(check("[raft]\nelection_ticks = 20"), Ok(()));
        let refused = |text: &str| check(text).unwrap_err();
        assert!(refused("cluster_id = 8").contains("cluster_id = 8, but"));
        assert!(refused("name = 's2'").contains("is that of store s1"));
        let settings = refused("[raft]\nelection_ticks = 12");
        assert!(settings.contains("raft.election_ticks = 12 is given, but the cluster has 20"));
        assert!(refused("replicas = 1").contains("replicas = 1 is given, but the cluster has 3"));
    }

    #[test]
    fn a_wrong_setting_is_refused_by_its_name() {
        assert!(refused("nmae = 'x'").contains("nmae"));
        assert!(refused("[raft]\ntick = 5").contains("tick"));
        assert!(refused("regions = 0").contains("regions = 0 is out of range: 1 to 9998"));
        assert!(refused("[raft]\nelection_ticks = 5").contains("three times"));
        assert!(refused("name = 'x'\ninitial_cluster = 'a=h:1,b=h:2'").contains("has a, b"));
        assert!(refused("initial_cluster = 's1'").contains("name=host:port"));
        assert!(refused("regions = 'many'").contains("regions"));
        assert!(refused("[raft]\nentry_bytes_max = 99999999").contains("entry_bytes_max"));
    }

    #[test]
    fn each_setting_of_the_log_reaches_the_engine() {
        let log = |line: &str| {
            let config: NodeConfig = toml::from_str(&format!("[storage]\n{line}\n")).unwrap();
            config.settle().unwrap().config.storage.store()
        };
        assert_eq!(log("segment_bytes = 2097152").log.segment_bytes, 2 << 20);
        assert_eq!(log("log_purge_above_bytes = 5").log.purge_above_bytes, 5);
        assert_eq!(log("log_move_bytes_max = 0").log.move_bytes_max, 0);
        assert_eq!(log("log_move_live_ratio_max = 0.25").log.move_live_ratio_max, 0.25);
        assert_eq!(log("log_move_live_ratio_max = 1").log.move_live_ratio_max, 1.0);
        assert_eq!(log("log_spare_segments = 9").log.spare_segments, 9);
        assert_eq!(log("log_cache_bytes_max = 7").log.cache_bytes_max, 7);
        let limited = log("log_disk_bytes_max = 536870912");
        assert_eq!(limited.log.disk_bytes_max, Some(512 << 20));
        assert_eq!(limited.checkpoint_log_bytes, 128 << 20);
        let standard = flotilla_store::Config::default();
        assert_eq!(format!("{:?}", log("").log), format!("{:?}", standard.log));
        assert_eq!(log("").checkpoint_log_bytes, standard.checkpoint_log_bytes);
    }

    #[test]
    fn each_setting_of_the_pages_reaches_the_engine_or_is_refused() {
        let store = |line: &str| {
            let config: NodeConfig = toml::from_str(&format!("[storage]\n{line}\n")).unwrap();
            config.settle().unwrap().config.storage.store()
        };
        assert_eq!(store("").pages.read_mode, PageReadMode::Mapped);
        assert_eq!(store("pages_read_mode = 'cached'").pages.read_mode, PageReadMode::Cached);
        assert_eq!(store("cache_bytes = 1048577").pages.cache_bytes, 1_048_577);
        assert_eq!(store("pages_growth_bytes = 5").pages.growth_bytes, 5);
        assert_eq!(store("pages_trim_bytes = 6").pages.trim_bytes, 6);
        assert_eq!(store("pages_move_bytes_max = 7").pages_move_bytes_max, 7);
        assert_eq!(store("pages_move_free_ratio_min = 0.25").pages_move_free_ratio_min, 0.25);
        assert_eq!(store("dirty_bytes_max = 8388608").checkpoint_dirty_bytes, 8 << 20);
        assert_eq!(store("dirty_bytes_max = 8388608").dirty_bytes_max, 32 << 20);
        assert_eq!(store("dirty_bytes_hard_max = 67108864").dirty_bytes_max, 64 << 20);
        let standard = flotilla_store::Config::default();
        assert_eq!(format!("{:?}", store("")), format!("{standard:?}"));

        let wrong = |line: &str| refused(&format!("[storage]\n{line}"));
        assert!(wrong("pages_read_mode = 'quick'").contains("`mapped` or `cached`"));
        assert!(wrong("pages_move_free_ratio_min = nan").contains("NaN is out of range: 0 to 1"));
        assert!(wrong("pages_growth_bytes = 1073741825").contains("pages_growth_bytes"));
        assert!(
            wrong("dirty_bytes_hard_max = 4194304").contains("at least storage.dirty_bytes_max")
        );
    }

    #[test]
    fn the_engine_refuses_what_is_wrong_about_its_log() {
        let wrong = |line: &str| refused(&format!("[storage]\n{line}"));
        let ratio = |given: &str| {
            format!("storage.log_move_live_ratio_max is {given} and must be between 0 and 1")
        };
        assert_eq!(wrong("log_move_live_ratio_max = 1.5"), ratio("1.5"));
        assert_eq!(wrong("log_move_live_ratio_max = nan"), ratio("NaN"));
        let disk = |given: u64| {
            format!("storage.log_disk_bytes_max is {given} and must be at least eight segments")
        };
        assert_eq!(wrong("log_disk_bytes_max = 536870911"), disk(536_870_911));
        let larger = wrong("segment_bytes = 134217728\nlog_disk_bytes_max = 536870912");
        assert_eq!(larger, disk(536_870_912));
        assert!(wrong("log_spare_segments = -1").contains("log_spare_segments"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = NodeConfig::read(Path::new("/nowhere/flotilla.toml")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/flotilla.toml"));
    }

    /// The keys that a group has, as the refusal of an unknown one lists them.
    fn known(group: &str) -> Vec<String> {
        let header = if group.is_empty() { String::new() } else { format!("[{group}]\n") };
        let error = toml::from_str::<NodeConfig>(&format!("{header}zzz = 1\n")).unwrap_err();
        let listed = error.message().split_once("expected one of ");
        let listed = listed.or_else(|| error.message().split_once("expected ")).unwrap().1;
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_page_about_settings_has_all_of_them_and_no_others() {
        const GROUPS: [&str; 4] = ["raft", "storage", "limits", "threads"];
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let page = fs::read_to_string(path).unwrap();
        let mut group = "";
        let mut documented: Vec<(&str, &str)> = Vec::new();
        for line in page.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                group =
                    heading.strip_prefix("`[").map_or("", |rest| rest.split(']').next().unwrap());
            } else if let Some(row) = line.strip_prefix("| `") {
                documented.push((group, row.split('`').next().unwrap()));
            }
        }
        for group in GROUPS.into_iter().chain([""]) {
            let mut known = known(group);
            known.retain(|key| !GROUPS.contains(&key.as_str()));
            let mut here: Vec<&str> =
                documented.iter().filter(|(of, _)| *of == group).map(|(_, key)| *key).collect();
            here.sort_unstable();
            known.sort_unstable();
            assert_eq!(here, known, "[{group}]");
        }
    }
}
