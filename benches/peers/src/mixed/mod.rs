//! The experiment that the log engine exists for: three stores of many regions in one process,
//! driven as the node drives them, under a mix after TPC-C, with another log under the same
//! regions, pages and threads.
//!
//! First every engine's peak: a fixed number of terminals, each of which begins a transaction when
//! its last one is done. Then all engines at one rate, a third of the slowest peak, with arrivals
//! that wait for nothing: closed loops begin less just when an engine is slow, so their percentiles
//! flatter. Decision 33 (`docs/decisions/0033-the-log-under-a-mix.md`) has the design.

mod account;
mod check;
mod checkpointer;
mod client;
mod cluster;
mod logs;
mod mailbox;
mod mix;
mod rows;
mod shard;
mod workers;

// The node's own, without its sockets.
#[allow(dead_code, reason = "a short queue needs less of it")]
#[path = "../../../../crates/node/src/driver/workers/commit_delay.rs"]
mod commit_delay;
#[allow(dead_code, reason = "no thread here copies many bytes")]
#[path = "../../../../crates/node/src/sched.rs"]
mod sched;
#[allow(dead_code, reason = "no queue here is drained")]
#[path = "../../../../crates/node/src/driver/workers/work_queue.rs"]
mod work_queue;

use crate::bench::{Bench, us_at};
use crate::data::Kind;
use crate::engines::Contender;
use crate::load::histogram;
use crate::log::Result;
use crate::record::Metric;
use account::{Account, Used};
use client::{Client, Seen, Source, Window};
use cluster::Cluster;
use flotilla_kv::raw;
use hdrhistogram::Histogram;
use mix::Mix;
use peers::measure;
use rows::{RowId, Rows};
use std::path::Path;
use std::time::{Duration, Instant};

/// The workload's name.
pub const NAME: &str = "mixed";
/// Clients in the closed loop, if nothing is said.
pub const TERMINALS: usize = 64;
/// Threads of clients.
const CLIENT_THREADS: usize = 2;
/// Writes of the first rows that are under way at once in one thread.
const LOADS_AT_ONCE: usize = 16;
/// The load is the slowest engine's peak divided by this.
const LOAD_DIVISOR: f64 = 3.0;
/// The case of the open loop, as goals name it.
pub const OPEN: &str = "a third of the slowest peak, arrivals at a fixed rate";
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The size of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Regions, each with a replica on three stores.
    #[arg(long, default_value_t = 128)]
    regions: u64,
    /// Warehouses, spread over the regions.
    #[arg(long, default_value_t = 256)]
    warehouses: u32,
    /// Clients in the closed loop.
    #[arg(long, default_value_t = TERMINALS)]
    terminals: usize,
    /// Seconds of load before each measurement: until each log writes to files that it had before.
    #[arg(long, default_value_t = 60.0)]
    warm_up: f64,
    /// Transactions a second of the open loop, instead of a third of the slowest peak; then no peak
    /// is measured.
    #[arg(long)]
    rate: Option<f64>,
    /// Only the peaks.
    #[arg(long)]
    peak_only: bool,
}

/// The case of the closed loop.
pub fn peak_case(terminals: usize) -> String {
    format!("{terminals} terminals, closed loop")
}

/// Measures it.
///
/// # Errors
///
/// The first error of an engine, of the disk, or of the check at the end of each run.
pub fn run(bench: &mut Bench, options: &Options) -> Result<()> {
    let peak = peak_case(options.terminals);
    if options.rate.is_none() && bench.wants(&peak) {
        all(bench, options, &peak, None)?;
    }
    if options.peak_only || !bench.wants(OPEN) {
        return Ok(());
    }
    let rate_of = |engine: &Contender| {
        bench.records.median(NAME, &peak, *engine, Metric::TransactionsPerSecond)
    };
    let slowest = bench.engines.iter().filter_map(rate_of).reduce(f64::min);
    let rate = options.rate.or(slowest.map(|rate| rate / LOAD_DIVISOR));
    let rate = rate.ok_or("without a peak, --rate has to say how much is offered")?;
    eprintln!("offered: {rate:.0} transactions a second");
    all(bench, options, OPEN, Some(rate))
}

fn all(bench: &mut Bench, options: &Options, case: &str, rate: Option<f64>) -> Result<()> {
    for round in 0..bench.rounds {
        for engine in bench.in_order(round) {
            bench.say(NAME, case, round, engine);
            let dir = bench.fresh(NAME)?;
            let outcome = once(engine, &dir, options, (bench.time, bench.data), rate)?;
            outcome.keep(bench, case, engine);
            bench.remove(&dir)?;
        }
    }
    Ok(())
}

/// The results of one run.
struct Outcome {
    writes: Histogram<u64>,
    reads: Histogram<u64>,
    refused: u64,
    time: Duration,
    used: Used,
    log_bytes: u64,
    pages_bytes: u64,
    proven: u64,
}

fn once(
    engine: Contender,
    dir: &Path,
    options: &Options,
    (time, kind): (Duration, Kind),
    rate: Option<f64>,
) -> Result<Outcome> {
    let mix = Mix::new(options.warehouses, options.regions);
    Cluster::run(engine, dir, options.regions, CLIENT_THREADS, |cluster| {
        load(cluster, &mix, kind)?;
        measure::settle(dir)?;
        let sources = (0..CLIENT_THREADS).map(|thread| match rate {
            None => Source::Closed(share(options.terminals, thread)),
            Some(rate) => Source::Open(rate / CLIENT_THREADS as f64),
        });
        let window = Window::new();
        let clients = |window: &Window| drive(cluster, &mix, kind, sources.collect(), window);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                watch(cluster, dir, engine, &window, Duration::from_secs_f64(options.warm_up), time)
            });
            let seen = clients(&window);
            // A client that failed leaves no work for the watch; it ends by itself.
            let watched = watch.join().expect("the watch does not panic");
            finish(cluster, options, seen?, watched?)
        })
    })
}

fn share(all: usize, thread: usize) -> usize {
    (all + thread) / CLIENT_THREADS
}

/// Writes the first rows of all warehouses.
fn load(cluster: &Cluster, mix: &Mix, kind: Kind) -> Result<()> {
    let mut rows = Rows::new(mix.regions(), kind, 1);
    let mut given: Vec<Vec<_>> = vec![Vec::new(); CLIENT_THREADS];
    for warehouse in 0..mix.warehouses() {
        for part in rows::first_rows(warehouse) {
            let place = rows.place(&part[0]);
            let ops: Vec<_> = part.iter().map(|row| rows.put(row)).collect();
            given[warehouse as usize % CLIENT_THREADS].push((place, raw::encode(&ops)));
        }
    }
    let sources = given.into_iter().map(|writes| Source::Given(writes, LOADS_AT_ONCE)).collect();
    drive(cluster, mix, kind, sources, &Window::new()).map(|_| ())
}

/// Runs the threads of clients, one for each source.
fn drive(
    cluster: &Cluster,
    mix: &Mix,
    kind: Kind,
    sources: Vec<Source>,
    window: &Window,
) -> Result<Vec<Seen>> {
    std::thread::scope(|scope| {
        let threads = (0..).zip(sources).map(|(thread, source)| {
            let rows = Rows::new(mix.regions(), kind, 100 + thread as u64);
            let client = Client::new(cluster, mix, rows, thread);
            scope.spawn(move || client.run(source, window))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().expect("a client does not panic")).collect()
    })
}

/// What the watch has seen.
struct Watched {
    time: Duration,
    used: Used,
    log_bytes: u64,
    pages_bytes: u64,
}

/// Opens and closes the window, and looks at the counters at both moments and at the disk between.
fn watch(
    cluster: &Cluster,
    dir: &Path,
    engine: Contender,
    window: &Window,
    warm_up: Duration,
    time: Duration,
) -> Result<Watched> {
    wait(warm_up);
    let before = Account::now(cluster, dir);
    window.open();
    let begin = Instant::now();
    let (mut log_bytes, mut pages_bytes) = (0, 0);
    let mut looked = Ok(());
    while begin.elapsed() < time && looked.is_ok() && cluster.check().is_ok() {
        wait(LOOK_EVERY.min(time.saturating_sub(begin.elapsed())));
        looked = account::on_disk(cluster, engine).map(|(logs, pages)| {
            log_bytes = logs.max(log_bytes);
            pages_bytes = pages.max(pages_bytes);
        });
    }
    // Before any error: without it the clients would go on.
    window.close();
    let time = begin.elapsed();
    let used = Account::now(cluster, dir)?.since(&before?);
    looked.map(|()| Watched { time, used, log_bytes, pages_bytes })
}

fn wait(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::park_timeout(end.saturating_duration_since(Instant::now()));
    }
}

fn finish(
    cluster: &Cluster,
    options: &Options,
    seen: Vec<Seen>,
    watched: Watched,
) -> Result<Outcome> {
    let (mut writes, mut reads) = (histogram(), histogram());
    let (mut proofs, mut refused): (Vec<RowId>, u64) = (Vec::new(), 0);
    for one in seen {
        writes.add(one.writes)?;
        reads.add(one.reads)?;
        proofs.extend(one.proofs);
        refused += one.refused;
    }
    let proven = check::check(cluster, options.regions, &proofs)?;
    let Watched { time, used, log_bytes, pages_bytes } = watched;
    Ok(Outcome { writes, reads, refused, time, used, log_bytes, pages_bytes, proven })
}

impl Outcome {
    fn keep(&self, bench: &mut Bench, case: &str, engine: Contender) {
        let seconds = self.time.as_secs_f64();
        let commits = self.writes.len().max(1) as f64;
        let all = commits + self.reads.len() as f64;
        let kib = |bytes: u64| bytes as f64 / 1024.0 / commits;
        let mut add = |metric, value| bench.records.add(NAME, case, engine, metric, value);
        add(Metric::TransactionsPerSecond, all / seconds);
        add(Metric::CommitsPerSecond, commits / seconds);
        add(Metric::CpuUsPerCommit, self.used.cpu.as_secs_f64() * 1e6 / commits);
        if let Some(device) = self.used.device {
            add(Metric::DeviceKibPerCommit, kib(device));
            add(Metric::LogKibPerCommit, kib(device.saturating_sub(self.used.pages)));
        }
        let log_called = self.used.called.saturating_sub(self.used.pages);
        add(Metric::LogCallsKibPerCommit, kib(log_called));
        add(Metric::PagesKibPerCommit, kib(self.used.pages));
        add(Metric::DirtiedKibPerCommit, kib(self.used.dirtied));
        add(Metric::LogDiskMib, self.log_bytes as f64 / f64::from(1 << 20));
        add(Metric::PagesDiskMib, self.pages_bytes as f64 / f64::from(1 << 20));
        add(Metric::ReadP999Us, us_at(&self.reads, 0.999));
        add(Metric::LongestMs, self.writes.max() as f64 / 1e6);
        bench.add_latency(NAME, case, engine, &self.writes);
        eprintln!(
            "{case}: {engine}: {commits} commits in {seconds:.0} s, p99.9 {:.0} us, {} refused, \
             {} rows proven on each store",
            us_at(&self.writes, 0.999),
            self.refused,
            self.proven
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rows::Table;

    fn small() -> Options {
        let (regions, warehouses, terminals, warm_up) = (4, 6, 4, 0.05);
        Options { regions, warehouses, terminals, warm_up, rate: None, peak_only: true }
    }

    #[test]
    fn every_engine_carries_the_mix_and_all_is_proven() {
        for engine in Contender::built() {
            for rate in [None, Some(200.0)] {
                let dir = tempfile::tempdir_in(".").expect("a temporary directory");
                let kind = (Duration::from_millis(300), Kind::Half);
                let outcome = once(engine, dir.path(), &small(), kind, rate).expect("it runs");
                assert!(!outcome.writes.is_empty() && outcome.proven > 0, "{engine}");
            }
        }
    }

    #[test]
    fn the_proof_sees_a_row_that_is_missing() {
        let dir = tempfile::tempdir_in(".").expect("a temporary directory");
        let mix = Mix::new(6, 4);
        let missing = Cluster::run(Contender::Raftlog, dir.path(), 4, CLIENT_THREADS, |cluster| {
            load(cluster, &mix, Kind::Half)?;
            check::check(cluster, 4, &[RowId::new(Table::Stock, 1, 0, 1)])?;
            check::check(cluster, 4, &[RowId::new(Table::History, 1, 0, 1)])
        });
        let error = missing.expect_err("nobody has paid").to_string();
        assert!(error.contains("1 acknowledged rows"), "{error}");
    }
}
