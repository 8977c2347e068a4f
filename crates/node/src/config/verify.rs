//! `[verify]`: the comparison of the replicas of regions.

use std::time::Duration;

use serde::Deserialize;

use super::error::{ConfigError, within};

/// The comparison of the replicas of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerifyConfig {
    /// Hours in which the replicas of each region that the store leads are compared once. Default
    /// 24, at most a year; 0: never, unless an operator asks.
    pub interval_hours: u64,
    /// Bytes of rows that the store reads in a second for comparisons, its own and those of other
    /// leaders. Default 32 MiB, at least 1 MiB.
    pub bytes_per_s: u64,
}

impl Default for VerifyConfig {
    fn default() -> Self {
        Self { interval_hours: 24, bytes_per_s: 32 << 20 }
    }
}

impl VerifyConfig {
    pub(super) fn check(self) -> Result<(), ConfigError> {
        within("verify.interval_hours", self.interval_hours, 0, 366 * 24)?;
        within("verify.bytes_per_s", self.bytes_per_s, 1 << 20, 1 << 40)
    }

    /// From one comparison of a region to the next; none if there are to be none.
    #[must_use]
    pub fn interval(self) -> Option<Duration> {
        (self.interval_hours > 0).then(|| Duration::from_secs(self.interval_hours * 60 * 60))
    }
}
