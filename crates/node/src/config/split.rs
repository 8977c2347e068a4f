//! `[split]`: when a region becomes several.

use serde::Deserialize;

use super::error::{ConfigError, within};

/// When the leaders of a store split their regions.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SplitConfig {
    /// Whether regions are split without being asked. Default true.
    pub automatic: bool,
    /// Bytes of a region's rows, as they lie in the page file, above which it is split. Default 256
    /// MiB, at least 1 MiB.
    pub region_bytes_max: u64,
    /// Rows of a region above which it is split. Default 4,194,304, at least 1000.
    pub region_keys_max: u64,
    /// Requests in a second above which a region is split between them. Default 2000, at least 10.
    pub requests_per_s_max: u64,
    /// Bytes of writes in a second above which a region is split so. Default 30 MiB, at least 1
    /// MiB.
    pub bytes_per_s_max: u64,
    /// Seconds in a row that such a load must last. Default 10, 1 to 3600.
    pub load_seconds: u32,
}

impl Default for SplitConfig {
    fn default() -> Self {
        let limits = flotilla_region::SplitLimits::default();
        Self {
            automatic: limits.automatic,
            region_bytes_max: limits.bytes_max,
            region_keys_max: limits.keys_max,
            requests_per_s_max: limits.requests_per_s_max,
            bytes_per_s_max: limits.bytes_per_s_max,
            load_seconds: limits.load_windows,
        }
    }
}

impl SplitConfig {
    /// The limits that the regions are told.
    #[must_use]
    pub fn limits(&self) -> flotilla_region::SplitLimits {
        flotilla_region::SplitLimits {
            automatic: self.automatic,
            bytes_max: self.region_bytes_max,
            keys_max: self.region_keys_max,
            requests_per_s_max: self.requests_per_s_max,
            bytes_per_s_max: self.bytes_per_s_max,
            load_windows: self.load_seconds,
        }
    }

    /// After how many bytes the store looks how large a region is: it may exceed its bound by that.
    #[must_use]
    pub fn size_check_bytes(&self) -> u64 {
        self.region_bytes_max / 16
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        // Below, the borders of pages would count for more than the rows.
        within("split.region_bytes_max", self.region_bytes_max, 1 << 20, 1 << 40)?;
        within("split.region_keys_max", self.region_keys_max, 1000, 1 << 40)?;
        within("split.requests_per_s_max", self.requests_per_s_max, 10, 1 << 40)?;
        within("split.bytes_per_s_max", self.bytes_per_s_max, 1 << 20, 1 << 40)?;
        within("split.load_seconds", self.load_seconds.into(), 1, 3600)
    }
}
