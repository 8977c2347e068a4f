//! One region that splits by load, and whose parts spread over three stores, as `flotilla bench
//! put` with keys like those of YCSB finds it.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_cli::tool::Error;
use serde_json::json;

use crate::report::{FigureLimit, ScenarioReport};
use crate::store_processes::{ClusterPlan, StoreProcesses, metric, run_flotilla};
use crate::test_bench::TestBench;

const REGIONS_LEAST: f64 = 8.0;
const LEADERS_APART_MAX: f64 = 1.0;
const WRITES_RATIO_MAX: f64 = 1.5;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SpreadArgs {
    /// Seconds of the load [default: 90, or 20 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(4..))]
    seconds: Option<u64>,
}

/// The writes of a store since its start.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    acknowledged: u64,
    log_bytes: u64,
}

pub(crate) async fn measure(bench: &TestBench, args: &SpreadArgs) -> Result<ScenarioReport, Error> {
    let seconds = args.seconds.unwrap_or(bench.args.pick(90, 20));
    // Short runs split as soon as the load is there.
    let tables = bench.args.pick("", "[split]\nload_seconds = 2\nrequests_per_s_max = 300\n");
    let plan = ClusterPlan { regions: 1, tables: tables.to_owned() };
    let cluster = StoreProcesses::start(bench, "spread", 3, &plan).await?;
    let began = written(&cluster).await?;
    let (binary, endpoints) = (bench.binary.clone(), cluster.endpoints());
    let clients = bench.args.clients;
    let load = tokio::spawn(async move {
        let load = format!(
            "bench put --regions user --keys 10000000 --clients {clients} --seconds {seconds}"
        );
        run_flotilla(&binary, &endpoints, &load).await
    });
    // The last ninth of the load shows where the stores have come to.
    let last = Duration::from_secs(seconds).div_f64(9.0);
    tokio::time::sleep(Duration::from_secs(seconds) - last).await;
    let late = written(&cluster).await?;
    let put = load.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
    let ended = written(&cluster).await?;
    let regions = cluster.regions().await;
    let mut leaders = BTreeMap::<u64, u64>::new();
    for region in regions.values() {
        *leaders.entry(region.leader_store).or_default() += 1;
    }

    let mut report = ScenarioReport::new("spread");
    let number = |key: &str| put[key].as_f64().unwrap_or(f64::NAN);
    report.tell("puts_per_second", "puts a second", number("requests_per_second"));
    let count = regions.values().filter(|region| !region.is_system).count();
    report.time("regions", "regions at the end", count as f64, FigureLimit::AtLeast(REGIONS_LEAST));
    let counts = || leaders.values().copied();
    let apart = match leaders.len() == cluster.stores.len() {
        true => counts().max().unwrap_or(0) - counts().min().unwrap_or(0),
        false => counts().max().unwrap_or(0),
    };
    let most = FigureLimit::AtMost(LEADERS_APART_MAX);
    report.time("leaders_apart", "leaders of a store, most less fewest", apart as f64, most);
    let log = ratio(&began, &ended, |written| written.log_bytes);
    report.tell("log_bytes_ratio", "bytes to the log, most to fewest", log);
    let acknowledged = |written: &Written| written.acknowledged;
    let most = FigureLimit::AtMost(WRITES_RATIO_MAX);
    let late_ratio = ratio(&late, &ended, acknowledged);
    let words = "writes acknowledged in the last ninth, most to fewest";
    report.time("late_writes_ratio", words, late_ratio, most);
    let all = ratio(&began, &ended, acknowledged);
    report.tell("writes_ratio", "writes acknowledged in all, most to fewest", all);
    report.count("failed", "requests that failed", number("failed"), FigureLimit::AtMost(0.0));
    report.detail("leaders", json!(leaders.values().collect::<Vec<_>>()));
    report.detail("load", put);
    Ok(report)
}

async fn written(cluster: &StoreProcesses) -> Result<Vec<Written>, Error> {
    let mut written = vec![];
    for place in 0..cluster.stores.len() {
        let stats = cluster.stats(place).await?;
        written.push(Written {
            acknowledged: metric(&stats, "requests", "writes_acknowledged"),
            log_bytes: metric(&stats, "log", "written_bytes"),
        });
    }
    Ok(written)
}

/// The greatest increase of a store to the least.
fn ratio(before: &[Written], after: &[Written], of: impl Fn(&Written) -> u64) -> f64 {
    let pairs = before.iter().zip(after);
    let increases: Vec<_> = pairs.map(|(before, after)| of(after) - of(before)).collect();
    let (most, least) = (increases.iter().max(), increases.iter().min());
    most.zip(least).map_or(f64::NAN, |(most, least)| *most as f64 / *least as f64)
}
