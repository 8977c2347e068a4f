//! `[snapshot]`: the flow of snapshots between stores.

use serde::Deserialize;

use super::error::{ConfigError, within};

/// The flow of snapshots between stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Bytes of snapshots in a second, in each direction, of all streams together. Default 400 MiB,
    /// at least 8 MiB, or 0 for any number.
    pub bytes_per_s: u64,
    /// The same while the store serves clients, if that is less. Default 8 MiB for each core, but
    /// 16 MiB at least and 64 MiB at most; at least 8 MiB, or 0 for no other bound.
    pub bytes_per_s_under_load: u64,
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let bytes_per_s_under_load = (cores * (8 << 20)).clamp(16 << 20, 64 << 20);
        Self { bytes_per_s: 400 << 20, bytes_per_s_under_load }
    }
}

impl SnapshotConfig {
    pub(super) fn check(self) -> Result<(), ConfigError> {
        let rates = [
            ("snapshot.bytes_per_s (or 0)", self.bytes_per_s),
            ("snapshot.bytes_per_s_under_load (or 0)", self.bytes_per_s_under_load),
        ];
        for (name, rate) in rates.into_iter().filter(|(_, rate)| *rate > 0) {
            // Below, as many streams as there may be take longer than their deadlines.
            within(name, rate, 8 << 20, 1 << 40)?;
        }
        Ok(())
    }
}
