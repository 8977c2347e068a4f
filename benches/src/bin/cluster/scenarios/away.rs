//! Stores that are away, one after the other, until the others have dropped the log that they kept
//! for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_cli::tool::Error;
use flotilla_client::Client;
use serde_json::json;

use super::rows::EvenRows;
use crate::load_record::LoadSpan;
use crate::open_load::OpenLoad;
use crate::report::{FigureLimit, ScenarioReport};
use crate::store_processes::{ClusterPlan, StoreProcesses, lines_of, metric};
use crate::test_bench::{ChangeSpans, TestBench};

/// The p99 while a store comes back may be this many times the calm one.
const RATIO_MAX: f64 = 1.5;
/// Bytes that are written while a store is away, in units of those that may be kept for it.
const WRITTEN_SHARE: f64 = 1.25;
/// Bytes of a value of the rows that are written over and over.
const VALUE_BYTES: usize = 16 << 10;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AwayArgs {
    /// `log_kept_bytes_max` of the stores, in MiB [default: 512, or 4 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    log_kept_mib: Option<u64>,
    /// How often a store is away [default: 3, or 1 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Regions [default: 16, or 4 if quick]
    #[arg(long)]
    regions: Option<u64>,
}

/// The greatest log of some stores.
#[derive(Clone, Copy, Debug, Default)]
struct LogPeak {
    /// On disk.
    dir_bytes: u64,
    /// Of entries that are still needed.
    live_bytes: u64,
}

/// One absence.
struct Absence {
    name: String,
    seconds_away: f64,
    written_bytes: u64,
    peak: LogPeak,
    replicas: usize,
    snapshots: usize,
    change: LoadSpan,
}

pub(crate) async fn measure(bench: &TestBench, args: &AwayArgs) -> Result<ScenarioReport, Error> {
    let kept = args.log_kept_mib.unwrap_or(bench.args.pick(512, 4)) << 20;
    let rounds = args.rounds.unwrap_or(bench.args.pick(3, 1));
    let regions = args.regions.unwrap_or(bench.args.pick(16, 4));
    let mut tables = format!("[raft]\nlog_kept_bytes_max = {kept}\n");
    tables += bench
        .args
        .pick("", "[storage]\nsegment_bytes = 1048576\nlog_purge_above_bytes = 1048576\n");
    tables += "[split]\nautomatic = false\n";
    let plan = ClusterPlan { regions, tables };
    let mut cluster = StoreProcesses::start(bench, "away", 3, &plan).await?;
    let rate = bench.rate(&cluster).await?;
    let rows = EvenRows::of(kept / 8, VALUE_BYTES);
    let client = cluster.client().await?;
    // The log without a store away, under the writes that follow.
    let (usual, _) = write(&cluster, &client, rows, kept / 2, &[0, 1, 2], bench.args.seed).await?;
    let load = OpenLoad::start(&client, bench.plan(Some(rate))?);
    bench.warm_up().await;
    let calm = bench.calm(&load).await;
    let mut absences = vec![];
    for round in 0..rounds {
        let place = (rounds - round) as usize % cluster.stores.len();
        let seed = bench.args.seed.wrapping_add(round + 1);
        absences.push(absence(bench, &mut cluster, &load, rows, (place, kept, seed)).await?);
    }
    let record = load.end().await;

    let mut report = ScenarioReport::new("away");
    report.tell("rate", "load, puts a second", rate);
    tell_usual(&mut report, &usual);
    for (round, away) in (1..).zip(&absences) {
        let key = |what: &str| format!("away_{round}_{what}");
        let words = |what: &str| format!("{round}, {}: {what}", away.name);
        report.tell(&key("seconds"), &words("seconds away"), away.seconds_away);
        report.tell(
            &key("written_mib"),
            &words("MiB of log written meanwhile"),
            mib(away.written_bytes),
        );
        report.tell(
            &key("dir_mib"),
            &words("log directory of the others, MiB at most"),
            mib(away.peak.dir_bytes),
        );
        let most = FigureLimit::AtMost(mib(kept + usual.live_bytes));
        let live = mib(away.peak.live_bytes);
        report.time(&key("live_mib"), &words("log that the others need, MiB at most"), live, most);
        report.tell(&key("replicas"), &words("replicas that came back"), away.replicas as f64);
        report.tell(&key("snapshots"), &words("by a snapshot"), away.snapshots as f64);
        let back = (away.change.to - away.change.from).as_secs_f64();
        report.tell(&key("back_seconds"), &words("seconds to come back"), back);
        let p99 = record.percentile(away.change, 99.0).unwrap_or(f64::NAN);
        report.tell(&key("back_p99_ms"), &words("p99 until it was back, ms"), p99);
        let tenths = record.p99s(away.change, Duration::from_millis(100));
        report.detail(&key("p99s_by_tenth_ms"), tenths);
    }
    let changes: Vec<_> = absences.iter().map(|away| away.change).collect();
    let spans = ChangeSpans { changes: &changes, calm };
    bench.compare(&mut report, ("back", "coming back"), &record, spans, Some(RATIO_MAX));
    bench.no_failures(&mut report, &[&record]);
    report.detail("log_kept_bytes_max", json!(kept));
    Ok(report)
}

/// The log while no store is away.
fn tell_usual(report: &mut ScenarioReport, usual: &LogPeak) {
    report.tell(
        "usual_live_mib",
        "log that is needed without an absence, MiB at most",
        mib(usual.live_bytes),
    );
    report.tell(
        "usual_dir_mib",
        "log directory without an absence, MiB at most",
        mib(usual.dir_bytes),
    );
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Kills a store, writes until the others have dropped what they kept for it, and starts it again.
async fn absence(
    bench: &TestBench,
    cluster: &mut StoreProcesses,
    load: &OpenLoad,
    rows: EvenRows,
    (place, kept, seed): (usize, u64, u64),
) -> Result<Absence, Error> {
    let name = cluster.stores[place].name.clone();
    bench.say(&format!("{name} is away"));
    let others: Vec<_> = (0..cluster.stores.len()).filter(|at| *at != place).collect();
    let gone = load.now();
    cluster.stores[place].kill();
    let client = cluster.client().await?;
    let bytes = (kept as f64 * WRITTEN_SHARE) as u64;
    let (peak, written_bytes) = write(cluster, &client, rows, bytes, &others, seed).await?;
    // The checkpoints of these writes are no part of what follows, nor are puts of the load that
    // they have held up: the disk takes less than both together.
    load.catch_up().await;
    bench.warm_up().await;
    let from = load.now();
    cluster.restart(place)?;
    cluster.caught_up(place).await?;
    let change = bench.change_ends(load, from).await;
    let said = cluster.stores[place].said(true);
    let replicas = cluster.replicas().await.iter().filter(|(at, _)| *at == place).count();
    Ok(Absence {
        name,
        seconds_away: (from - gone).as_secs_f64(),
        written_bytes,
        peak,
        replicas,
        snapshots: lines_of(&said, "a snapshot was installed").len(),
        change,
    })
}

/// Writes the rows again and again until the stores at `places` have so many bytes more in their
/// logs. The greatest of their logs meanwhile, and how many bytes they have written.
async fn write(
    cluster: &StoreProcesses,
    client: &Client,
    rows: EvenRows,
    bytes: u64,
    places: &[usize],
    seed: u64,
) -> Result<(LogPeak, u64), Error> {
    let before = logged(cluster, places).await?;
    let rounds = Arc::new(AtomicU64::new(seed << 32));
    let (client, number) = (client.clone(), Arc::clone(&rounds));
    let mut writes = tokio::task::JoinSet::new();
    writes.spawn(async move {
        let mut written = Ok(());
        while written.is_ok() {
            let seed = number.fetch_add(1, Ordering::Relaxed);
            written = rows.fill(&client, seed).await;
        }
        written
    });
    let mut peak = LogPeak::default();
    loop {
        for place in places {
            let stats = cluster.stats(*place).await?;
            peak.live_bytes = peak.live_bytes.max(metric(&stats, "log", "live_bytes"));
            let dir_bytes = cluster.stores[*place].bytes_below("log");
            peak.dir_bytes = peak.dir_bytes.max(dir_bytes);
        }
        let written = logged(cluster, places).await?.saturating_sub(before);
        if written >= bytes {
            return Ok((peak, written));
        }
        if let Some(ended) = writes.try_join_next() {
            ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The bytes that the store with the fewest has written to its log.
async fn logged(cluster: &StoreProcesses, places: &[usize]) -> Result<u64, Error> {
    let mut fewest = u64::MAX;
    for place in places {
        let stats = cluster.stats(*place).await?;
        fewest = fewest.min(metric(&stats, "log", "written_bytes"));
    }
    Ok(fewest)
}
