//! The top level of a node's settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flotilla_identity::{ApiVersion, REGIONS_MAX};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::disk::DiskConfig;
use super::http2::Http2Config;
use super::key::{NO_LIMIT, count, labels, settings, switch, text, texts, word};
use super::limits::{LimitsConfig, ThreadsConfig};
use super::log_format::LogFormat;
use super::path_text::lossy;
use super::raft::RaftConfig;
use super::setting_source::SettingSources;
use super::snapshot::SnapshotConfig;
use super::split::SplitConfig;
use super::storage::{ScrubConfig, StorageConfig};
use super::tls::TlsConfig;
use super::verify::VerifyConfig;

settings! {
    /// The settings of one node. Identity and addresses come first.
    pub struct NodeConfig: "" {
        /// The name of this store among the initial ones, or of the store that joins; a name that
        /// is not the directory's is refused.
        #[key(text().default_is("`s1`; in a directory that has data, the name of its store"))]
        pub name: String,
        /// Where the store listens, as `host:port`; clients, placement and other stores use the
        /// same port. May change at any start.
        #[key(text().default_is(
            "from `initial_cluster`; without a list where the store was last, else \
             `127.0.0.1:20160`"
        ))]
        pub addr: String,
        /// The address that clients and other stores use, if that is not where the store listens.
        /// May change at any start.
        #[key(text().default_is(
            "from `initial_cluster`; without a list `addr`, else where the store was last"
        ))]
        pub advertise_addr: String,
        /// More addresses with the same services; one that is taken is left out with a warning.
        #[key(texts())]
        pub also_listen: Vec<String>,
        /// Everything that the store keeps is below this directory; never restored from a copy.
        #[key(text().default_is("`data/<name>`"))]
        #[serde(serialize_with = "lossy")]
        pub data_dir: PathBuf,
        /// The stores that begin the cluster, `name=host:port`, separated by commas, 1 to 99; equal
        /// on all of them, in the same order. A member needs none; one that is given names more
        /// addresses at which the others may be found.
        #[key(text().default_is("this store alone").at_bootstrap())]
        pub initial_cluster: String,
        /// Members of a running cluster, `host:port`, separated by commas, 1 to 32, that a store
        /// with an empty directory joins; needs `name` and `addr`, and no list. A member serves
        /// whatever it says, and stops if a store of another cluster answers there.
        #[key(text().default_is("none"))]
        pub join: String,
        /// Where the store stands, as `{ zone = "a" }` in a file and `zone=a` elsewhere: up to 16,
        /// key and value of 1 to 64 bytes. No two replicas of a region are in one `zone` while
        /// another has a store. New ones take the place of all former ones.
        #[key(labels().default_is("those that the store has"))]
        pub labels: BTreeMap<String, String>,
        /// The id that the cluster must have; 0: any. One is drawn at random at the bootstrap if
        /// none is given, and a directory of another cluster is refused.
        #[key(count(0, NO_LIMIT).default_is("any").at_bootstrap())]
        pub cluster_id: u64,
        /// Regions that the key space begins with; later they split by size and load. Equal on all
        /// stores; counts at the bootstrap only and is never compared again.
        #[key(count(1, REGIONS_MAX).at_bootstrap())]
        pub regions: u64,
        /// A file of keys at which regions begin besides; the same keys on all stores. Counts at
        /// the bootstrap only, and is not opened afterwards.
        #[key(text().default_is("none").at_bootstrap())]
        #[serde(serialize_with = "lossy")]
        pub split_keys: PathBuf,
        /// Replicas of each region, as far as there are stores; odd, or a majority costs one more
        /// for nothing. Counts at the bootstrap, later `flotilla ctl config set replicas`.
        #[key(count(1, 7).of_cluster().online())]
        pub replicas: Option<u64>,
        /// The form of the clients' keys, for ever: `v1ttl`, any byte string; `v2`, TiKV's API V2
        /// with keyspaces. There is no way from one to the other but to copy the rows.
        #[key(word(&["v1ttl", "v2"]).of_cluster())]
        #[serde(deserialize_with = "api_version", serialize_with = "api_word")]
        pub api: Option<ApiVersion>,
        /// The filter of the log on standard error: a level (`error`, `warn`, `info`, `debug`,
        /// `trace`, `off`), or a filter such as `flotilla_node=debug,warn`, in which each directive
        /// ends with a level; another word is refused.
        #[key(text().at_reload())]
        pub log: String,
        /// The form of the log's lines: `text` for people, `json` for programs, an object a line.
        #[key(word(&["text", "json"]))]
        pub log_format: LogFormat,
        /// Whether keys of clients are `?` in the log; false: they are shown. Values never are.
        #[key(switch())]
        pub log_redact: bool,
        ;
        /// The operator's word about an empty directory. Flags of the command line only: a file
        /// outlives the one case that it was meant for.
        #[serde(skip)]
        pub first_start: FirstStart,
        /// Where the values come from.
        #[serde(skip)]
        pub sources: SettingSources,
        /// Ticks, elections and entries.
        pub raft: RaftConfig,
        /// Files and checkpoints.
        pub storage: StorageConfig,
        /// Full disks.
        pub disk: DiskConfig,
        /// The search for bit rot.
        pub scrub: ScrubConfig,
        /// The comparison of the replicas of regions.
        pub verify: VerifyConfig,
        /// When a region becomes several.
        pub split: SplitConfig,
        /// The flow of snapshots between stores.
        pub snapshot: SnapshotConfig,
        /// Certificates and roles.
        pub tls: TlsConfig,
        /// Bounds on memory and waiting.
        pub limits: LimitsConfig,
        /// Limits of one connection.
        pub http2: Http2Config,
        /// Threads.
        pub threads: ThreadsConfig,
    }
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
            sources: SettingSources::default(),
            log: "info".to_owned(),
            log_format: LogFormat::Text,
            log_redact: true,
            raft: RaftConfig::default(),
            storage: StorageConfig::default(),
            disk: DiskConfig::default(),
            scrub: ScrubConfig::default(),
            verify: VerifyConfig::default(),
            split: SplitConfig::default(),
            snapshot: SnapshotConfig::default(),
            tls: TlsConfig::default(),
            limits: LimitsConfig::default(),
            http2: Http2Config::default(),
            threads: ThreadsConfig::default(),
        }
    }
}

impl NodeConfig {
    /// The file of borders, if one is given.
    pub(crate) fn split_keys(&self) -> Option<&Path> {
        Some(self.split_keys.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

fn api_version<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ApiVersion>, D::Error> {
    let word = Option::<String>::deserialize(from)?;
    word.map(|word| word.parse()).transpose().map_err(D::Error::custom)
}

fn api_word<S: Serializer>(api: &Option<ApiVersion>, to: S) -> Result<S::Ok, S::Error> {
    api.map(|api| api.to_string()).serialize(to)
}
