//! Arguments of the experiment; the defaults are the published ones.

use std::time::Duration;

use flotilla_cli::bench::{KeySpread, LoadKeys};
use flotilla_cli::tool::{ClusterTarget, Error};

/// The arguments of `concurrent-read`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) target: ClusterTarget,
    /// Different keys, all written before the first run
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(8..=8192))]
    pub(crate) key_size: u16,
    /// Bytes of the shortest value
    #[arg(long, default_value_t = 1 << 10, value_parser = clap::value_parser!(u32).range(0..=8_000_000))]
    pub(crate) value_bytes_min: u32,
    /// Bytes of the longest value; lengths are spread evenly
    #[arg(long, default_value_t = 32 << 10, value_parser = clap::value_parser!(u32).range(0..=8_000_000))]
    pub(crate) value_bytes_max: u32,
    /// Runs, each of them once without and once with large scans
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Seconds of a run without, and again of one with large scans
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Rows of a short scan
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) scan_rows: u32,
    /// Short scans a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) scans_per_second: u32,
    /// Puts a second
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) puts_per_second: u32,
    /// Rows of a large scan, fetched page by page; at most as many as there are keys
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) large_scan_rows: u64,
    /// Milliseconds from one large scan to the next
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(crate) large_scan_interval_ms: u64,
    /// Each request is a call of its own, instead of sharing a stream with others of its kind
    #[arg(long)]
    pub(crate) unary: bool,
    /// Where the keys are
    #[arg(long, value_enum, default_value_t = KeySpread::All)]
    pub(crate) regions: KeySpread,
    /// Do not write the keys before the first run: they are there
    #[arg(long)]
    pub(crate) no_fill: bool,
    /// Which keys and lengths are chosen in which order
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Bytes of keys and values that one page of a large scan may have. A store refuses answers above
/// 32 MiB; and of each large scan under way there is one page in memory.
const PAGE_BYTES_MAX: u64 = 16 << 20;

impl Args {
    /// Checks values that do not fit together, which the parser cannot.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Args { value_bytes_min, value_bytes_max, large_scan_rows, keys, .. } = self;
        let wrong = if value_bytes_min > value_bytes_max {
            format!("--value-bytes-min {value_bytes_min} is above the maximum, {value_bytes_max}")
        } else if large_scan_rows > keys {
            format!("--large-scan-rows {large_scan_rows} is more than there are keys, {keys}")
        } else {
            return Ok(());
        };
        Err(Error::Argument(wrong))
    }

    pub(crate) fn keys(&self) -> Result<LoadKeys, Error> {
        LoadKeys::new(self.keys, self.key_size, self.regions).map_err(Error::Argument)
    }

    /// Rows of one page of a large scan.
    pub(crate) fn page_rows(&self) -> u64 {
        let row_bytes = u64::from(self.key_size) + u64::from(self.value_bytes_max);
        (PAGE_BYTES_MAX / row_bytes).clamp(1, self.large_scan_rows)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    pub(crate) fn parse(line: &str) -> Args {
        Cli::parse_from(["bench"].into_iter().chain(line.split_whitespace())).args
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        assert!(parse("").check().is_ok());
        assert!(parse("--keys 20000").check().is_ok());
        let few = parse("--keys 19999").check().unwrap_err().to_string();
        assert_eq!(few, "--large-scan-rows 20000 is more than there are keys, 19999");
        let inverted = parse("--value-bytes-min 9 --value-bytes-max 8").check().unwrap_err();
        assert_eq!(inverted.to_string(), "--value-bytes-min 9 is above the maximum, 8");
    }

    #[test]
    fn a_page_stays_below_what_a_store_answers_with() {
        assert_eq!(parse("").page_rows(), (16 << 20) / (128 + (32 << 10)));
        assert_eq!(parse("--value-bytes-max 8000000 --large-scan-rows 9").page_rows(), 2);
        assert_eq!(parse("--key-size 8192 --value-bytes-max 8000000").page_rows(), 2);
        assert_eq!(parse("--value-bytes-min 0 --value-bytes-max 9").page_rows(), 20_000);
    }
}
