//! The page store next to redb, LMDB, bbolt and canopydb: the same loads on each in turn, in one
//! run.
//!
//! `cargo run --release --no-default-features --features pages --bin pages -- goals --quick` shows
//! in two minutes that all works; without `--quick` it takes half an hour, and ends with the table
//! of what must hold. Each engine runs in a process of its own, and all of them are asked by lines
//! of JSON, so that bbolt, which is a Go program in `bbolt/`, is asked for the same as the others.

mod bench;
mod cases;
mod cold;
mod engines;
mod goals;
mod keys;
mod load;
mod loads;
mod plot;
mod record;
mod serve;
mod session;
mod store;
mod table;

use crate::bench::{Bench, Sizes};
use crate::engines::Contender;
use crate::record::Records;
use clap::{Parser, Subcommand};
use peers::Result;
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures stores of pages side by side.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    workload: Workload,
    /// Small files, short times, one round.
    #[arg(long, global = true)]
    quick: bool,
    /// Also the file with four million free pages, which takes 40 GiB.
    #[arg(long, global = true)]
    largest: bool,
    /// How many free pages that lie apart, in place of 1,000 and 1,000,000; the first is what the
    /// others are compared with.
    #[arg(long, global = true, value_delimiter = ',')]
    free_pages: Option<Vec<u64>>,
    /// How often each case is measured; 3, quick 1, if nothing is said.
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// How long one measurement lasts; 1500, quick 200, if nothing is said.
    #[arg(long, global = true)]
    ms: Option<u64>,
    /// Engines to measure; by default all that are available.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    engines: Option<Vec<Contender>>,
    /// Where stores are made; it should be on the disk that is meant. Up to 16 GiB, quick 1 GiB.
    #[arg(long, global = true, default_value = ".")]
    dir: PathBuf,
    /// Writes all values of all rounds into this file.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Draws the goals into this file.
    #[arg(long, global = true)]
    svg: Option<PathBuf>,
}

#[derive(Subcommand, PartialEq)]
enum Workload {
    /// Everything that must hold.
    Goals,
    /// Gets, scans, reads and writes beside scans, commits with and without a sync.
    Warm,
    /// Reads and writes beside long scans, while the file grows.
    Grow,
    /// Large values into files with many free pages that lie apart.
    Scattered,
    /// Opening a file whose process was killed.
    Kill,
    /// Half a file deleted, then defragmented under load.
    Defragment,
    /// Gets, scans and puts in a store larger than memory, limited by a cgroup; 40 times as long.
    Cold,
    /// Has a store open and does what standard input says; the other workloads start it.
    #[command(hide = true)]
    Serve {
        /// Which engine.
        engine: Contender,
        /// Where its store is.
        dir: PathBuf,
        /// Whether commits may be durable.
        #[arg(long)]
        durable: bool,
        /// How much memory its process may use.
        #[arg(long)]
        memory_mib: Option<u64>,
    },
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
    if let Workload::Serve { engine, dir, durable, memory_mib } = &options.workload {
        return engine.serve(dir, *durable, *memory_mib);
    }
    let dir = tempfile::Builder::new().prefix("pages-").tempdir_in(&options.dir)?;
    let ms = options.ms.unwrap_or(if options.quick { 200 } else { 1500 });
    let quick = options.quick;
    let mut sizes = if quick { Sizes::quick(ms) } else { Sizes::full(options.largest, ms) };
    if let Some(pages) = options.free_pages.clone().filter(|pages| !pages.is_empty()) {
        sizes.scattered = pages;
    }
    let bbolt = session::build_bbolt(dir.path());
    let mut engines = Contender::built();
    match &bbolt {
        Ok(_) => engines.extend([Contender::Bbolt, Contender::BboltSynced, Contender::BboltArray]),
        Err(why) => println!("bbolt is not measured: {why}"),
    }
    let is_wanted = |e: &Contender| options.engines.as_ref().is_none_or(|named| named.contains(e));
    engines.retain(is_wanted);
    let mut bench = Bench {
        engines,
        rounds: options.rounds.unwrap_or(if quick { 1 } else { 3 }).max(1),
        sizes,
        dir: dir.path().to_owned(),
        bbolt: bbolt.ok(),
        records: Records::default(),
        progress: bench::spinner(),
    };
    let measured = measure(&options, &mut bench);
    bench.progress.finish_and_clear();
    show(&options, &bench)?;
    measured
}

fn measure(options: &Options, bench: &mut Bench) -> Result<()> {
    type Measure = fn(&mut Bench) -> Result<()>;
    let all: [(Workload, Measure); 6] = [
        (Workload::Warm, cases::warm),
        (Workload::Grow, cases::grow),
        (Workload::Scattered, cases::scattered),
        (Workload::Kill, cases::kill),
        (Workload::Defragment, cases::defragment),
        (Workload::Cold, cold::cold),
    ];
    let asked = &options.workload;
    for (_, measure) in all.iter().filter(|(one, _)| *asked == Workload::Goals || one == asked) {
        measure(bench)?;
        // Also what a run that is ended half way has seen.
        write(options, bench)?;
    }
    Ok(())
}

/// A run as a file: how it was made, and all values.
#[derive(Serialize)]
struct Output<'a> {
    engines: &'a [Contender],
    rounds: usize,
    ms: u64,
    quick: bool,
    processors: usize,
    #[serde(flatten)]
    records: &'a Records,
}

/// Shows what was measured, also if the run has failed half way.
fn show(options: &Options, bench: &Bench) -> Result<()> {
    let mut goals = goals::goals(&bench.sizes);
    if options.workload != Workload::Goals {
        goals.retain(|goal| bench.records.knows(&goal.ours.case));
    }
    println!("{} rounds of {} ms, medians", bench.rounds, bench.sizes.ms);
    println!("\n{}\n", table::results(&bench.records, &bench.engines));
    println!("What must hold:\n\n{}", table::must_show(&goals, &bench.records));
    if let Some(file) = &options.svg {
        plot::plot(&goals, &bench.records, file)?;
    }
    write(options, bench)
}

/// Writes all values into the file that was asked for.
fn write(options: &Options, bench: &Bench) -> Result<()> {
    if let Some(file) = &options.json {
        let output = Output {
            engines: &bench.engines,
            rounds: bench.rounds,
            ms: bench.sizes.ms,
            quick: options.quick,
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            records: &bench.records,
        };
        serde_json::to_writer_pretty(File::create(file)?, &output)?;
    }
    Ok(())
}
