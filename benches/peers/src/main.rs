//! The log engine next to raft-engine and RocksDB: the same loads on each in turn, in one run.
//!
//! `cargo run --release -- all --quick` measures the most important cases in some minutes and ends
//! with the table of what must hold. Without `--quick` it takes hours, since each measurement lasts
//! 20 s; with `--goals` only what that table needs is measured, at full length.

mod append;
mod bench;
mod child;
mod churn;
mod cold;
mod data;
mod engines;
mod fetch;
mod goals;
mod load;
mod log;
#[cfg(feature = "mixed")]
mod mixed;
mod open;
mod plot;
mod record;
mod room;
mod table;

use crate::bench::Bench;
use crate::data::Kind;
use crate::engines::Contender;
use crate::log::Result;
use crate::record::Records;
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measures raft log engines side by side.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    workload: Workload,
    /// The most important cases alone, shorter, three rounds.
    #[arg(long, global = true)]
    quick: bool,
    /// How often each case is measured; 3 if nothing is said.
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Seconds of one measurement of a load. Default 20, quick 2, of `mixed` 300, quick 20: shorter
    /// runs show how an engine begins.
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Engines to measure; by default all that are built in.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    engines: Option<Vec<Contender>>,
    /// Contents of the entries.
    #[arg(long, global = true, value_enum, default_value_t = Kind::Half)]
    data: Kind,
    /// Only the cases whose names hold this text.
    #[arg(long, global = true, default_value = "")]
    only: String,
    /// Only the cases of which something must hold.
    #[arg(long, global = true)]
    goals: bool,
    /// Where logs are made; it should be on the disk that is meant. Up to 30 GiB, quick 3 GiB.
    #[arg(long, global = true, default_value = ".")]
    dir: PathBuf,
    /// Writes all values of all rounds into this file.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Draws the ratios to raft-engine into this file.
    #[arg(long, global = true)]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Workload {
    /// Everything.
    All,
    /// Appends: sizes, threads, groups, synced or buffered.
    Append,
    /// Reads: ranges and random entries.
    Fetch,
    /// Reads of a log that is larger than memory, in a cgroup.
    Cold,
    /// Opening a log: after a clean close, after kill -9.
    Open,
    /// Memory of a million entries.
    Memory,
    /// The load of a store with many regions: bytes written, and writes while purging.
    AppendCompactPurge,
    /// Three replicas of many regions under a mix after TPC-C, with another log under them.
    #[cfg(feature = "mixed")]
    Mixed(mixed::Options),
    /// Bytes on disk and bytes written where some groups are never compacted.
    Room,
    /// Opens a log in a process of its own; the other workloads start it.
    #[command(hide = true)]
    Child(child::Task),
    /// Reads a log in a process of its own, with little memory; `cold` starts it.
    #[command(hide = true)]
    ColdChild(cold::Task),
}

impl Workload {
    /// Seconds of one measurement, if nothing is said.
    fn seconds(&self, quick: bool) -> f64 {
        match self {
            #[cfg(feature = "mixed")]
            Workload::Mixed(_) => {
                if quick {
                    20.0
                } else {
                    300.0
                }
            }
            _ => {
                if quick {
                    2.0
                } else {
                    20.0
                }
            }
        }
    }
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    if let Workload::Child(task) = &options.workload {
        return child::be(task);
    }
    if let Workload::ColdChild(task) = &options.workload {
        return cold::be(task);
    }
    let dir = tempfile::Builder::new().prefix("peers-").tempdir_in(&options.dir)?;
    let quick = options.quick;
    let seconds = options.seconds.unwrap_or_else(|| options.workload.seconds(quick));
    let mut bench = Bench {
        engines: options.engines.clone().unwrap_or_else(Contender::built),
        rounds: options.rounds.unwrap_or(3).max(1),
        time: Duration::try_from_secs_f64(seconds)?,
        quick,
        data: options.data,
        only: options.only.clone(),
        cases: Vec::new(),
        dir: dir.path().to_owned(),
        records: Records::default(),
        progress: bench::spinner(),
    };
    if options.goals {
        bench.cases = goals::goals(&bench).into_iter().map(|goal| goal.case).collect();
    }
    let measured = measure_all(&options.workload, &mut bench);
    bench.progress.finish_and_clear();
    show(&options, &bench)?;
    measured
}

fn measure_all(workload: &Workload, bench: &mut Bench) -> Result<()> {
    match workload {
        Workload::All => {
            append::run(bench)?;
            fetch::run(bench)?;
            cold::run(bench)?;
            open::run_memory(bench)?;
            open::run(bench)?;
            churn::run(bench)?;
            room::run(bench)
        }
        Workload::Append => append::run(bench),
        Workload::Fetch => fetch::run(bench),
        Workload::Cold => cold::run(bench),
        Workload::Open => open::run(bench),
        Workload::Memory => open::run_memory(bench),
        Workload::AppendCompactPurge => churn::run(bench),
        Workload::Child(_) | Workload::ColdChild(_) => Ok(()),
        #[cfg(feature = "mixed")]
        Workload::Mixed(options) => mixed::run(bench, options),
        Workload::Room => room::run(bench),
    }
}

/// A run as a file: how it was made, and all values.
#[derive(Serialize)]
struct Output<'a> {
    engines: &'a [Contender],
    rounds: usize,
    seconds: f64,
    quick: bool,
    data: Kind,
    processors: usize,
    #[serde(flatten)]
    records: &'a Records,
}

/// Shows what was measured, also if the run has failed half way.
fn show(options: &Options, bench: &Bench) -> Result<()> {
    println!("{} rounds, {:?} each, {}", bench.rounds, bench.time, bench.data);
    println!("\n{}\n", table::results(&bench.records, &bench.engines));
    println!("What must hold, our median in units of the peer's:\n\n{}", table::must_show(bench));
    if let Some(file) = &options.json {
        let output = Output {
            engines: &bench.engines,
            rounds: bench.rounds,
            seconds: bench.time.as_secs_f64(),
            quick: bench.quick,
            data: bench.data,
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            records: &bench.records,
        };
        serde_json::to_writer_pretty(File::create(file)?, &output)?;
    }
    if let Some(file) = &options.svg {
        plot::plot(&bench.records, file)?;
    }
    Ok(())
}
