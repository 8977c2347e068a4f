//! `[verify]`: the comparison of the replicas of regions.

use std::time::Duration;

use super::key::{HOUR, MIB, TIB, bytes_per_s, milliseconds, settings};

settings! {
    /// The comparison of the replicas of regions.
    #[derive(Copy, Eq)]
    pub struct VerifyConfig: "verify" {
        /// The time in which the replicas of each region that the store leads are compared once,
        /// one region at a time. 0: never, unless an operator asks by `ctl region verify`.
        #[key(milliseconds(HOUR, 366 * 24 * HOUR).or_zero())]
        pub interval_ms: u64,
        /// Bytes of rows that the store reads in a second for comparisons, its own and those of
        /// other leaders.
        #[key(bytes_per_s(MIB, TIB))]
        pub bytes_per_s: u64,
    }
}

impl Default for VerifyConfig {
    fn default() -> Self {
        Self { interval_ms: 24 * HOUR, bytes_per_s: 32 << 20 }
    }
}

impl VerifyConfig {
    /// From one comparison of a region to the next; none if there are to be none.
    #[must_use]
    pub fn interval(self) -> Option<Duration> {
        (self.interval_ms > 0).then(|| Duration::from_millis(self.interval_ms))
    }
}
