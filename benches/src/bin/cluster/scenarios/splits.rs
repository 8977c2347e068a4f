//! One region becomes many by one request, under load.

use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::tool::Error;
use flotilla_client::Client;

use crate::open_load::OpenLoad;
use crate::report::{FigureLimit, ScenarioReport};
use crate::store_processes::{ClusterPlan, StoreProcesses, until};
use crate::test_bench::{ChangeSpans, TestBench};

/// The p99 while the region splits may be this many times the calm one.
const RATIO_MAX: f64 = 2.0;
/// Seconds until all regions are there.
const SECONDS_MAX: f64 = 10.0;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SplitsArgs {
    /// Regions at the end [default: 1000, or 100 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=9000))]
    regions: Option<u64>,
}

pub(crate) async fn measure(bench: &TestBench, args: &SplitsArgs) -> Result<ScenarioReport, Error> {
    let regions = args.regions.unwrap_or(bench.args.pick(1000, 100));
    let tables = "[split]\nautomatic = false\n".to_owned();
    let plan = ClusterPlan { regions: 1, tables };
    // Each region writes, sends and applies for itself: the peak is that of all of them.
    let rate = bench.rate_of(&ClusterPlan { regions, ..plan.clone() }, 3).await?;
    let cluster = StoreProcesses::start(bench, "splits", 3, &plan).await?;
    let client = cluster.client().await?;
    let load = OpenLoad::start(&client, bench.plan(Some(rate))?);
    bench.warm_up().await;
    let before = bench.calm(&load).await;
    let from = load.now();
    split(&client, regions).await?;
    let split_in = load.now() - from;
    is_led(&cluster, regions).await?;
    let led_in = load.now() - from;
    let change = bench.change_ends(&load, from).await;
    bench.warm_up().await;
    let after = bench.calm(&load).await;
    let record = load.end().await;

    let mut report = ScenarioReport::new("splits");
    report.tell("rate", "load, puts a second", rate);
    let seconds = |time: Duration| time.as_secs_f64();
    let most = FigureLimit::AtMost(SECONDS_MAX);
    report.time(
        "split_seconds",
        "seconds until placement has all regions",
        seconds(split_in),
        most,
    );
    report.time("led_seconds", "seconds until each has a leader", seconds(led_in), most);
    let counted = client.regions().await?.len();
    let all = FigureLimit::AtLeast(regions as f64);
    report.count("regions", "regions", counted as f64, all);
    let gap = record.longest_gap(change);
    report.tell("gap_ms", "longest time without an answer, ms", gap);
    let spans = ChangeSpans { changes: &[change], calm: before };
    bench.compare(&mut report, ("one", "to one region before"), &record, spans, Some(RATIO_MAX));
    let spans = ChangeSpans { changes: &[change], calm: after };
    bench.compare(&mut report, ("many", "to all regions behind"), &record, spans, Some(RATIO_MAX));
    let seconds = record.p99s(change, Duration::from_secs(1));
    report.detail("p99s_by_second_ms", seconds);
    bench.no_failures(&mut report, &[&record]);
    Ok(report)
}

/// Splits the only region into equal parts of the key space.
async fn split(client: &Client, parts: u64) -> Result<(), Error> {
    let located = client.regions().await?;
    let region = located.first().map_or(0, |located| located.region.id);
    let border = |part: u64| Bytes::copy_from_slice(&(part * (u64::MAX / parts)).to_be_bytes());
    let made = client.split_region(region, (1..parts).map(border)).await?;
    until("placement was to have all regions", async || {
        Ok(client.regions().await?.len() >= made.len())
    })
    .await
}

async fn is_led(cluster: &StoreProcesses, regions: u64) -> Result<(), Error> {
    until("each region was to have a leader", async || {
        // That of placement is one more.
        Ok(cluster.regions().await.len() as u64 > regions)
    })
    .await
}
