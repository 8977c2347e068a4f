//! `[split]`: when a region becomes several.

use super::key::{MIB, TIB, bytes, bytes_per_s, count, seconds, settings, switch};

settings! {
    /// When the leaders of a store split their regions.
    #[derive(Eq)]
    pub struct SplitConfig: "split" {
        /// Whether leaders split their regions without being asked.
        #[key(switch())]
        pub automatic: bool,
        /// Bytes of a region's rows, as they lie in the page file, above which it is split into
        /// parts of about half as many.
        // Below the least, the borders of pages would count for more than the rows.
        #[key(bytes(MIB, TIB))]
        pub region_bytes_max: u64,
        /// Rows of a region above which it is split so.
        #[key(count(1000, 1_000_000_000_000))]
        pub region_keys_max: u64,
        /// Requests in a second above which a region is split at a key that has load on both sides.
        #[key(count(10, 1_000_000_000_000))]
        pub requests_per_s_max: u64,
        /// Bytes of writes in a second above which a region is split so.
        #[key(bytes_per_s(MIB, TIB))]
        pub bytes_per_s_max: u64,
        /// Seconds in a row that such a load must last. 1 counts as 2: where the load is parted is
        /// learnt from the second one on.
        #[key(seconds(1, 3600))]
        pub load_seconds: u32,
    }
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
}
