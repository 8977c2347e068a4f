//! A large store with many regions beside one as large with few: the cost of a put, of a checkpoint
//! and of a start.

use std::time::{Duration, Instant};

use flotilla_cli::tool::Error;
use flotilla_client::Client;
use serde_json::{Value, json};

use super::rows::EvenRows;
use crate::load_record::LoadSpan;
use crate::open_load::{LoadPlan, OpenLoad};
use crate::report::ScenarioReport;
use crate::store_processes::{ClusterPlan, StoreProcesses, metric};
use crate::test_bench::TestBench;

/// Bytes of a value of the rows.
const VALUE_BYTES: usize = 1024;
/// Puts a second of a load so light that a checkpoint has little to write.
const LIGHT_RATE: f64 = 100.0;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LargeArgs {
    /// MiB of values in each of the two stores [default: 4096, or 32 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    mib: Option<u64>,
    /// Regions of the one store [default: 1000, or 100 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=9998))]
    regions: Option<u64>,
    /// Regions of the other store
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=9998))]
    few: u64,
}

/// The figures of a store, each with its key and its words.
type StoreCosts = Vec<(&'static str, &'static str, f64)>;

pub(crate) async fn measure(bench: &TestBench, args: &LargeArgs) -> Result<ScenarioReport, Error> {
    let bytes = args.mib.unwrap_or(bench.args.pick(4096, 32)) << 20;
    let regions = args.regions.unwrap_or(bench.args.pick(1000, 100));
    let rows = EvenRows::of(bytes, VALUE_BYTES);
    let few = costs(bench, args.few, rows).await?;
    let many = costs(bench, regions, rows).await?;
    let mut report = ScenarioReport::new("large");
    report.tell("mib", "MiB of values", (bytes >> 20) as f64);
    for ((key, words, few), (.., many)) in few.iter().zip(&many) {
        let name = |regions: u64| format!("{words}, {regions} regions");
        report.tell(&format!("{key}_few"), &name(args.few), *few);
        report.tell(&format!("{key}_many"), &name(regions), *many);
        report.tell(&format!("{key}_ratio"), &format!("{words}: ratio"), many / few);
    }
    let each =
        |costs: &StoreCosts| costs.iter().map(|(key, _, value)| (*key, *value)).collect::<Value>();
    report.detail("few", json!({ "regions": args.few, "costs": each(&few) }));
    report.detail("many", json!({ "regions": regions, "costs": each(&many) }));
    Ok(report)
}

/// Fills a store of its own with rows, and measures it.
async fn costs(bench: &TestBench, regions: u64, rows: EvenRows) -> Result<StoreCosts, Error> {
    bench.say(&format!("{regions} regions"));
    let name = format!("large-{regions}");
    let plan = ClusterPlan { regions, tables: "[split]\nautomatic = false\n".to_owned() };
    let mut cluster = StoreProcesses::start(bench, &name, 1, &plan).await?;
    let client = cluster.client().await?;
    rows.fill(&client, bench.args.seed).await?;
    bench.warm_up().await;
    let base = LoadPlan { keys: rows.keys(), ..bench.plan(None)? };
    let mut costs = vec![];
    let one = loaded(bench, &cluster, &client, LoadPlan { callers: 1, ..base.clone() }).await?;
    costs.push(("put_one_p50_ms", "a put, one client, median, ms", one.p50_ms));
    let all = loaded(bench, &cluster, &client, base.clone()).await?;
    costs.push(("put_rate", "puts a second, all clients", all.rate));
    costs.push(("put_p99_ms", "a put, all clients, p99, ms", all.p99_ms));
    costs.push(("put_cpu_us", "a put, all clients, CPU time of the store, us", all.cpu_us_per_put));
    costs.push((
        "put_page_bytes",
        "a put, all clients, bytes of pages written",
        all.page_bytes_per_put,
    ));
    let light = LoadPlan { rate: Some(LIGHT_RATE), ..base };
    let light = loaded(bench, &cluster, &client, light).await?;
    costs.push((
        "checkpoint_cpu_ms",
        "CPU time for each checkpoint of a light load, ms",
        light.cpu_ms_per_checkpoint,
    ));
    costs.push(("checkpoint_kib", "KiB of pages written by one", light.page_kib_per_checkpoint));
    let idle = idle(bench, &cluster).await;
    costs.push(("idle_cpu_percent", "CPU time of an idle store, % of a core", idle * 100.0));
    drop(client);
    cluster.stop(0).await?;
    costs.push(("start_ms", "a start, ms until all regions serve", start(&mut cluster).await?));
    cluster.stores[0].kill();
    costs.push(("start_killed_ms", "a start behind a kill, ms", start(&mut cluster).await?));
    drop(cluster);
    std::fs::remove_dir_all(bench.dir().join(name))?;
    Ok(costs)
}

async fn start(cluster: &mut StoreProcesses) -> Result<f64, Error> {
    let began = Instant::now();
    cluster.restart(0)?;
    cluster.ready().await?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

/// The share of a core that a store takes without a load.
async fn idle(bench: &TestBench, cluster: &StoreProcesses) -> f64 {
    let (began, before) = (Instant::now(), cluster.stores[0].cpu_seconds());
    tokio::time::sleep(bench.args.window()).await;
    let after = cluster.stores[0].cpu_seconds();
    let spent = after.zip(before).map_or(f64::NAN, |(after, before)| after - before);
    spent / began.elapsed().as_secs_f64()
}

/// The figures of a store under a load.
struct LoadedStore {
    rate: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us_per_put: f64,
    page_bytes_per_put: f64,
    cpu_ms_per_checkpoint: f64,
    page_kib_per_checkpoint: f64,
}

/// A window of a load, behind half a window that does not count.
async fn loaded(
    bench: &TestBench,
    cluster: &StoreProcesses,
    client: &Client,
    plan: LoadPlan,
) -> Result<LoadedStore, Error> {
    let load = OpenLoad::start(client, plan);
    tokio::time::sleep(bench.args.window() / 2).await;
    let before = cluster.stats(0).await?;
    let (from, cpu_before) = (load.now(), cluster.stores[0].cpu_seconds());
    // A checkpoint comes every two seconds.
    tokio::time::sleep(bench.args.window().max(Duration::from_secs(5))).await;
    let after = cluster.stats(0).await?;
    let (to, cpu_after) = (load.now(), cluster.stores[0].cpu_seconds());
    let record = load.end().await;
    if let Some((_, words)) = record.failures.first() {
        return Err(Error::Refused(format!("a put failed: {words}")));
    }
    let span = LoadSpan { from, to };
    let puts = record.rate(span) * (to - from).as_secs_f64();
    let cpu = cpu_after.zip(cpu_before).map_or(f64::NAN, |(after, before)| after - before);
    let more = |group, name| (metric(&after, group, name) - metric(&before, group, name)) as f64;
    let (pages, checkpoints) = (more("pages", "written_bytes"), more("store", "checkpoints"));
    let percentile = |percent| record.percentile(span, percent).unwrap_or(f64::NAN);
    Ok(LoadedStore {
        rate: record.rate(span),
        p50_ms: percentile(50.0),
        p99_ms: percentile(99.0),
        cpu_us_per_put: cpu * 1e6 / puts,
        page_bytes_per_put: pages / puts,
        cpu_ms_per_checkpoint: cpu * 1e3 / checkpoints,
        page_kib_per_checkpoint: pages / 1024.0 / checkpoints,
    })
}
