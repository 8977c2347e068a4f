//! `flotilla bench`: puts a load on a running cluster; reports throughput, latency and the work of
//! the stores.

mod args;
mod bars;
mod counts;
mod interrupts;
mod keys;
mod latencies;
mod load;
mod pacing;
mod report;
mod windows;

use std::pin::pin;
use std::process::ExitCode;

use flotilla_client::{Client, Config, Transport};
use flotilla_node::config::read_split_keys;
use tokio::sync::watch;

use crate::diagnosis::explained;
use crate::split_keys;
use crate::tool::{self, Error};
pub use args::KeySpread;
use args::{LoadArgs, Workload};
pub use bars::bar;
use bars::spinner;
use counts::StoreCounts;
use interrupts::Interrupts;
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
    Put(args::PutLoadArgs),
    /// Reads of random keys
    Get(args::GetLoadArgs),
    /// Rows from a random key on
    Scan(args::ScanLoadArgs),
    /// Gets and puts
    Mixed(args::MixedLoadArgs),
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &BenchArgs) -> ExitCode {
    let (workload, load, is_filled) = match &args.bench {
        Bench::Put(args) => (Workload::Put { ttl: args.expiry.ttl }, &args.load, false),
        Bench::Get(args) => (Workload::Get, &args.load, !args.fill.no_fill),
        Bench::Scan(args) => {
            (Workload::Scan { rows: args.scan_rows }, &args.load, !args.fill.no_fill)
        }
        Bench::Mixed(args) => {
            let mixed = Workload::Mixed { reads: args.reads, ttl: args.expiry.ttl };
            (mixed, &args.load, !args.fill.no_fill)
        }
    };
    let mut load = load.clone();
    if let Err(error) = load.target.read_certificates() {
        return tool::end(load.target.json, Err(error));
    }
    let measured = measure(workload, &load, is_filled);
    tool::run(load.target.json, explained(&load.target, measured))
}

/// Runs the load and reports. The first signal stops it, and what was measured until then is
/// reported; the next one ends the process.
async fn measure(workload: Workload, args: &LoadArgs, is_filled: bool) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let keys = LoadKeys::new(args.keys, args.key_size, args.regions).map_err(Error::Argument)?;
    let ready = interrupts.until(prepare(workload, args, keys, is_filled)).await?;
    let ClusterBefore { client, regions, counts } = ready?;
    let bar = match args.pacing.seconds {
        None => bar(workload.name(), args.pacing.requests),
        Some(_) => spinner(workload.name()),
    };
    let (stop, stopped) = watch::channel(false);
    let mut load = pin!(load::run(&client, workload, args, keys, &bar, stopped));
    let outcome = match interrupts.until(&mut load).await {
        Ok(outcome) => outcome,
        Err(_) => {
            stop.send_replace(true);
            interrupts.until(load).await?
        }
    };
    bar.finish_and_clear();
    let after = async { (count_since(args, counts).await, client.regions().await) };
    let (counts, now) = match interrupts.until(after).await {
        Ok((counts, now)) => (counts, now.map_or(regions, |now| now.len())),
        Err(_) => (Err("the stores were not asked for their counts"), regions),
    };
    let stopped_by = interrupts.first();
    // They may have been split meanwhile, which the rate shows.
    let regions = (regions, now);
    let report = LoadReport { workload, args, outcome: &outcome, regions, counts, stopped_by };
    report.print(&mut std::io::stdout().lock())?;
    match (stopped_by, outcome.first_failure) {
        (Some(signal), _) => Err(signal.into()),
        (None, None) => Ok(()),
        (None, Some(first)) => Err(Error::Failed {
            failed: outcome.failed,
            asked: outcome.failed + outcome.latencies.len(),
            first: first.to_string(),
        }),
    }
}

/// The cluster before the load.
struct ClusterBefore {
    client: Client,
    /// How many regions the clients' keys have.
    regions: usize,
    counts: StoreCounts,
}

/// Connects, splits and fills, as far as the arguments say so.
async fn prepare(
    workload: Workload,
    args: &LoadArgs,
    keys: LoadKeys,
    is_filled: bool,
) -> Result<ClusterBefore, Error> {
    let borders = args.split_keys.as_deref().map(read_split_keys).transpose();
    let borders = borders.map_err(|error| Error::Argument(error.to_string()))?;
    let config = args.target.config_of_cluster(config(workload, args)).await?;
    let client = Client::connect(&args.target.endpoints, config).await?;
    if let Some(borders) = &borders {
        split_keys::split(&client, borders).await?;
    }
    if is_filled {
        let bar = bar("fill", args.keys);
        load::fill(&client, args, keys, &bar).await?;
        bar.finish_and_clear();
    }
    let regions = client.regions().await?.len();
    let counts = StoreCounts::read(&args.target).await?;
    Ok(ClusterBefore { client, regions, counts })
}

/// The stores' counts since `before`, or why there are none: what was measured is worth a report
/// without them.
async fn count_since(args: &LoadArgs, before: StoreCounts) -> Result<StoreCounts, &'static str> {
    let after = StoreCounts::read(&args.target).await;
    let after = after.map_err(|_| "no store answers any more: their counts are left out")?;
    after.since(before).ok_or("a store came, went or began anew: its counts are left out")
}

fn config(workload: Workload, args: &LoadArgs) -> Config {
    let defaults = args.target.config();
    let scan_rows = if let Workload::Scan { rows } = workload { rows } else { 0 };
    Config {
        transport: if args.unary { Transport::Unary } else { Transport::Stream },
        connections_per_store: usize::from(args.connections),
        in_flight_max: defaults.in_flight_max.max(args.clients as usize),
        scan_rows_max: defaults.scan_rows_max.max(scan_rows),
        ..defaults
    }
}
