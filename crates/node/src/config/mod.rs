//! Everything that can be set on a node: units, defaults, limits, and what each costs.
//!
//! A key is a field of the struct of its section, declared by `settings!` (`key.rs`) with its range
//! and its meaning; the table of all keys (`table.rs`) is made of these. A TOML file has the names
//! of the fields, with the sections as tables. Variables of the environment win over the file, and
//! flags of the command line over both (`layers.rs`). A name that does not exist is refused, so
//! that a misspelt key never means a silent default.

mod cluster_change;
mod default_file;
mod disk;
mod error;
mod given_value;
mod http2;
mod key;
mod layers;
mod limits;
mod log_format;
mod node;
mod path_text;
mod quantity;
mod raft;
mod resolved;
mod setting_source;
mod snapshot;
mod split;
mod split_keys;
mod storage;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod toml_file;
mod verify;

pub(crate) use cluster_change::{ClusterChange, cluster_change};
pub use default_file::{default_file, default_values};
pub use disk::DiskConfig;
pub use error::ConfigError;
pub use http2::Http2Config;
pub use key::{SettingEffect, SettingKey, SettingKind, SettingScope, SettingSection, ValueRange};
pub use layers::{LayeredConfig, SettingLayers};
pub(crate) use limits::KEY_BYTES_MAX;
pub use limits::{LimitsConfig, ThreadsConfig};
pub use log_format::{LogFormat, UnknownLogFormat};
pub use node::{FirstStart, NodeConfig};
pub use raft::{ENTRY_BYTES_MAX, RaftConfig, region_settings, shard_config};
pub use resolved::ResolvedConfig;
pub use setting_source::{SettingSource, SettingSources};
pub use snapshot::SnapshotConfig;
pub use split::SplitConfig;
pub(crate) use split_keys::read_first_borders;
pub use split_keys::{KEY_ESCAPES, escape_key, read_split_keys, unescape_key};
pub use storage::{PagesReadMode, ScrubConfig, StorageConfig};
pub use table::{SECTIONS, setting_keys, setting_value, setting_values};
pub use tls::{TlsConfig, TlsMode};
pub use verify::VerifyConfig;
