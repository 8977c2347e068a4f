//! Everything that can be set on a node: units, defaults, limits, and what each costs.
//!
//! A TOML file has the names of the fields here, with the groups as tables. A name that is not
//! here is refused, so that a misspelt key never means a silent default. Flags of the command line
//! win over the file.

mod error;
mod limits;
mod node;
mod raft;
mod resolved;
mod snapshot;
mod split;
mod split_keys;
mod storage;
#[cfg(test)]
mod tests;
mod verify;

pub use error::ConfigError;
pub(crate) use limits::KEY_BYTES_MAX;
pub use limits::{LimitsConfig, ThreadsConfig};
pub use node::{FirstStart, NodeConfig};
pub use raft::{ENTRY_BYTES_MAX, RaftConfig, shard_config};
pub use resolved::ResolvedConfig;
pub use snapshot::SnapshotConfig;
pub use split::SplitConfig;
pub(crate) use split_keys::read_first_borders;
pub use split_keys::{KEY_ESCAPES, read_split_keys, unescape_key};
pub use storage::{PagesReadMode, ScrubConfig, StorageConfig};
pub use verify::VerifyConfig;
