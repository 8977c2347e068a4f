//! `[snapshot]`: the flow of snapshots between stores.

use super::key::{MIB, TIB, bytes_per_s, settings};

settings! {
    /// The rates at which replicas that are far behind are brought up.
    #[derive(Copy, Eq)]
    pub struct SnapshotConfig: "snapshot" {
        /// Bytes of snapshots in a second, in each direction, of all streams together. 0: any
        /// number.
        // Below the least, as many streams as there may be take longer than their deadlines.
        #[key(bytes_per_s(8 * MIB, TIB).or_zero().at_reload())]
        pub bytes_per_s: u64,
        /// The same while the store serves clients, if that is less; 0: no other bound. A store is
        /// under load while it takes more than 100 requests and entries in a second, by the last
        /// tenth of a second.
        #[key(
            bytes_per_s(8 * MIB, TIB)
                .or_zero()
                .at_reload()
                .default_is("8MiB for each core, 16MiB at least and 64MiB at most")
        )]
        pub bytes_per_s_under_load: u64,
    }
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let bytes_per_s_under_load = (cores * (8 << 20)).clamp(16 << 20, 64 << 20);
        Self { bytes_per_s: 400 << 20, bytes_per_s_under_load }
    }
}
