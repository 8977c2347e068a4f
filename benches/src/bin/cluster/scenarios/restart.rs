//! Each of three stores in turn is drained, ended and started again, under load.

use flotilla_cli::tool::Error;

use crate::load_record::LoadSpan;
use crate::open_load::OpenLoad;
use crate::report::{FigureLimit, ScenarioReport};
use crate::store_processes::{ClusterPlan, StoreProcesses, metric, until};
use crate::test_bench::{ChangeSpans, TestBench};

/// The p99 of a restart may be this many times the calm one.
const RATIO_MAX: f64 = 1.5;
/// The longest time without an acknowledgement, and the goal.
const GAP_MS_MAX: f64 = 150.0;
const GAP_MS_GOAL: f64 = 50.0;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RestartArgs {
    /// Regions [default: 16, or 4 if quick]
    #[arg(long)]
    regions: Option<u64>,
    /// End the stores by SIGTERM alone, without `ctl store drain` before it
    #[arg(long)]
    no_drain: bool,
}

pub(crate) async fn measure(
    bench: &TestBench,
    args: &RestartArgs,
) -> Result<ScenarioReport, Error> {
    let regions = args.regions.unwrap_or(bench.args.pick(16, 4));
    let plan = ClusterPlan { regions, tables: String::new() };
    let mut cluster = StoreProcesses::start(bench, "restart", 3, &plan).await?;
    let rate = bench.rate(&cluster).await?;
    cluster.settled(3, 3).await?;
    let snapshots_before = cluster.lines_with("a snapshot was installed").len();
    let client = cluster.client().await?;
    let load = OpenLoad::start(&client, bench.plan(Some(rate))?);
    bench.warm_up().await;
    let calm = bench.calm(&load).await;
    let mut spans = vec![];
    for place in 0..cluster.stores.len() {
        bench.say(&format!("{} is restarted", cluster.stores[place].name));
        let from = load.now();
        restart(&mut cluster, place, !args.no_drain).await?;
        spans.push(bench.change_ends(&load, from).await);
    }
    let record = load.end().await;
    let mut report = ScenarioReport::new("restart");
    report.tell("rate", "load, puts a second", rate);
    report.tell(
        "calm_gap_ms",
        "calm: longest time without an acknowledgement, ms",
        record.longest_gap(calm),
    );
    for (place, span) in spans.iter().enumerate() {
        let name = &cluster.stores[place].name;
        let seconds = (span.to - span.from).as_secs_f64();
        report.tell(&format!("{name}_seconds"), &format!("{name}: seconds"), seconds);
        let words = format!("{name}: longest time without an acknowledgement, ms");
        report.tell(&format!("{name}_gap_ms"), &words, record.longest_gap(*span));
        let spans = ChangeSpans { changes: &[*span], calm };
        bench.compare(&mut report, (name, name), &record, spans, Some(RATIO_MAX));
    }
    let longest = spans.iter().map(|span: &LoadSpan| record.longest_gap(*span)).fold(0.0, f64::max);
    let words = "longest time without an acknowledgement, ms";
    report.time("gap_ms", words, longest, FigureLimit::AtMost(GAP_MS_MAX));
    report.detail("gap_ms_goal", GAP_MS_GOAL);
    let snapshots = cluster.lines_with("a snapshot was installed").len() - snapshots_before;
    report.count("snapshots", "snapshots", snapshots as f64, FigureLimit::AtMost(0.0));
    bench.no_failures(&mut report, &[&record]);
    Ok(report)
}

/// Ends a store and starts it again; waits until it has all entries and leads its share.
async fn restart(
    cluster: &mut StoreProcesses,
    place: usize,
    is_drained: bool,
) -> Result<(), Error> {
    let name = cluster.stores[place].name.clone();
    if is_drained {
        cluster.flotilla(&format!("ctl store drain {name}")).await?;
    }
    cluster.stop(place).await?;
    cluster.restart(place)?;
    cluster.caught_up(place).await?;
    if is_drained {
        cluster.flotilla(&format!("ctl store cancel {name}")).await?;
    }
    until(&format!("{name} was to lead regions again"), async || {
        let stats = cluster.stats(place).await?;
        let is_connected = stats.stores_connected == stats.stores_known;
        Ok(is_connected && stats.leaders > 0 && metric(&stats, "store", "entries_applied") > 0)
    })
    .await
}
