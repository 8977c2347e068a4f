//! `[snapshot]`: the flow of snapshots between stores.

use serde::Deserialize;

use super::error::{ConfigError, within};

/// The flow of snapshots between stores.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Bytes of snapshots in a second, in each direction, of all streams together. Default 400 MiB,
    /// at least 1 MiB, or 0 for any number.
    pub bytes_per_s: u64,
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        Self { bytes_per_s: 400 << 20 }
    }
}

impl SnapshotConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.bytes_per_s == 0 {
            return Ok(());
        }
        // Below, a region of the usual size takes longer than the deadline of its stream.
        within("snapshot.bytes_per_s (or 0)", self.bytes_per_s, 1 << 20, 1 << 40)
    }
}
