//! `flotilla bench`: puts a load on a running cluster; reports throughput, latency and the work of
//! the stores.

mod args;
mod bars;
mod counts;
mod keys;
mod latencies;
mod load;
mod pacing;
mod report;
mod windows;

use std::process::ExitCode;

use flotilla_client::{Client, Config, Transport};
use flotilla_node::config::read_split_keys;

use crate::diagnosis::explained;
use crate::split_keys;
use crate::tool::{self, Error};
pub use args::KeySpread;
use args::Workload;
pub use bars::bar;
use bars::spinner;
use counts::StoreCounts;
pub use keys::LoadKeys;
pub use latencies::{LATENCY_NS_MAX, latencies};
pub use load::fill_with;
use report::LoadReport;
pub use report::millis;

/// The arguments of `flotilla bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Bench {
    /// Writes of random keys
    Put(args::LoadArgs),
    /// Reads of random keys
    Get(args::LoadArgs),
    /// Rows from a random key on
    Scan(args::LoadArgs),
    /// Gets and puts
    Mixed(args::LoadArgs),
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &BenchArgs) -> ExitCode {
    let (workload, args) = match &args.bench {
        Bench::Put(args) => (Workload::Put, args),
        Bench::Get(args) => (Workload::Get, args),
        Bench::Scan(args) => (Workload::Scan, args),
        Bench::Mixed(args) => (Workload::Mixed, args),
    };
    let mut args = args.clone();
    match args.target.read_certificates() {
        Ok(()) => {
            tool::run(args.target.json, explained(&args.target, measure(workload, &args)))
        }
        Err(error) => tool::end(args.target.json, Err(error)),
    }
}

async fn measure(workload: Workload, args: &args::LoadArgs) -> Result<(), Error> {
    let borders = args.split_keys.as_deref().map(read_split_keys).transpose();
    let borders = borders.map_err(|error| Error::Argument(error.to_string()))?;
    let keys = LoadKeys::new(args.keys, args.key_size, args.regions).map_err(Error::Argument)?;
    let config = args.target.config_of_cluster(config(args)).await;
    let client = Client::connect(&args.target.endpoints, config).await?;
    if let Some(borders) = &borders {
        split_keys::split(&client, borders).await?;
    }
    if workload.reads() && !args.no_fill {
        let bar = bar("fill", args.keys);
        load::fill(&client, args, keys, &bar).await?;
        bar.finish_and_clear();
    }
    let regions_before = client.regions().await?.len();
    let before = StoreCounts::read(&args.target).await?;
    let bar = match args.pacing.seconds {
        None => bar(workload.name(), args.pacing.requests),
        Some(_) => spinner(workload.name()),
    };
    let outcome = load::run(&client, workload, args, keys, &bar).await;
    bar.finish_and_clear();
    let counts = StoreCounts::read(&args.target).await?.since(before);
    // They may have been split meanwhile, which the rate shows.
    let regions = (regions_before, client.regions().await?.len());
    let report = LoadReport { workload, args, outcome: &outcome, regions, counts };
    report.print(&mut std::io::stdout().lock())?;
    match outcome.first_failure {
        None => Ok(()),
        Some(first) => Err(Error::Failed {
            failed: outcome.failed,
            asked: outcome.failed + outcome.latencies.len(),
            first: first.to_string(),
        }),
    }
}

fn config(args: &args::LoadArgs) -> Config {
    let defaults = args.target.config();
    Config {
        transport: if args.unary { Transport::Unary } else { Transport::Stream },
        connections_per_store: usize::from(args.connections),
        in_flight_max: defaults.in_flight_max.max(args.clients as usize),
        scan_rows_max: defaults.scan_rows_max.max(args.scan_rows),
        ..defaults
    }
}
