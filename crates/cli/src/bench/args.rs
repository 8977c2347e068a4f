//! Arguments of a load.

use std::path::PathBuf;

use crate::tool::ClusterTarget;

/// The arguments of `flotilla bench put`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PutLoadArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) expiry: ExpiryArgs,
}

/// The arguments of `flotilla bench get`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GetLoadArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) fill: FillArgs,
}

/// The arguments of `flotilla bench scan`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ScanLoadArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Rows of one scan
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) scan_rows: u32,
    #[command(flatten)]
    pub(crate) fill: FillArgs,
}

/// The arguments of `flotilla bench mixed`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MixedLoadArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Of a hundred requests, how many are gets; the others are puts
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) reads: u8,
    #[command(flatten)]
    pub(crate) expiry: ExpiryArgs,
    #[command(flatten)]
    pub(crate) fill: FillArgs,
}

/// The arguments of loads that put.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExpiryArgs {
    /// Seconds after which values that the load puts expire; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) ttl: u64,
}

/// The arguments of loads that read.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FillArgs {
    /// Do not write the keys that are read before the load begins
    #[arg(long)]
    pub(crate) no_fill: bool,
}

/// The arguments of every load.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) target: ClusterTarget,
    /// Callers, each with one request on its way
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: u32,
    /// Connections to each store
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) connections: u16,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(8..=8192))]
    pub(crate) key_size: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=8_000_000))]
    pub(crate) value_size: u32,
    /// Different keys
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    #[command(flatten)]
    pub(crate) pacing: PacingArgs,
    /// Requests of a connection share a stream; this is the default
    #[arg(long, conflicts_with = "unary")]
    pub(crate) batch: bool,
    /// Each request is a call of its own
    #[arg(long)]
    pub(crate) unary: bool,
    /// Where the keys are
    #[arg(long, value_enum, default_value_t = KeySpread::All)]
    pub(crate) regions: KeySpread,
    /// Splits regions first, so that they have borders at the keys of this file: one a line; `\\`
    /// is a backslash, `\xNN` a byte
    #[arg(long, value_name = "FILE")]
    pub(crate) split_keys: Option<PathBuf>,
    /// Which keys are chosen in which order
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The arguments that say how many requests there are, and when.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PacingArgs {
    /// Requests to send
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,
    /// Seconds to go on for, instead of a number of requests
    #[arg(long, conflicts_with = "requests", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// Requests a second, whether those before are answered or not: a latency counts from when its
    /// request was due. There must be more clients than requests are ever under way. Default: each
    /// client sends its next request when the last one is answered
    #[arg(long, value_name = "REQUESTS/S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
    /// Seconds of a window: latencies and the longest time without an answer of each are shown
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) window: Option<u64>,
}

/// The kind of requests, with what only that kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Writes of random keys, which expire after so many seconds; 0: never.
    Put { ttl: u64 },
    /// Reads of random keys.
    Get,
    /// So many rows from a random key on.
    Scan { rows: u32 },
    /// Gets, a share of a hundred, and puts.
    Mixed { reads: u8, ttl: u64 },
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Put { .. } => "put",
            Workload::Get => "get",
            Workload::Scan { .. } => "scan",
            Workload::Mixed { .. } => "mixed",
        }
    }
}

/// How keys lie in the key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeySpread {
    /// Evenly over the whole key space, so over all regions
    All,
    /// Close together, so in one region
    One,
    /// `user` and hexadecimal digits, like those of YCSB: in a 256th of the key space, evenly
    User,
}
