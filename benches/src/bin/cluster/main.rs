//! `cluster`: a cluster of real processes, measured while it changes.
//!
//! Stores join and leave, are away and come back, are restarted; regions split and are copied; all
//! of it under load. Latencies follow one rule: an open loop at a third of the peak rate of the
//! cluster's final size, and the p99 of windows in which it changes against that of calm windows of
//! as many stores. Stores are processes of `flotilla serve` on this machine, so they share its
//! cores with the load.

mod args;
mod load_record;
mod open_load;
mod report;
mod scenarios;
mod store_process;
mod store_processes;
mod test_bench;

use std::process::ExitCode;

use clap::Parser;
use flotilla_cli::tool::{self, Error};

use args::CommonArgs;
use report::ScenarioReport;
use scenarios::{Scenario, measure};
use test_bench::TestBench;

/// Measures a cluster of real processes while it changes
#[derive(Debug, Parser)]
#[command(name = "cluster", max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    common: CommonArgs,
    #[command(subcommand)]
    scenario: Scenario,
}

fn main() -> ExitCode {
    let Cli { common, scenario } = Cli::parse();
    tool::run(common.json, run(common, scenario))
}

/// Measures, reports, and fails if a figure misses its limit.
async fn run(common: CommonArgs, scenario: Scenario) -> Result<(), Error> {
    let mut bench = TestBench::new(common)?;
    let report: Result<ScenarioReport, Error> = measure(&bench, &scenario).await;
    if report.is_err() {
        bench.keep_dir();
        bench.say(&format!("the stores' directories stay in {}", bench.dir().display()));
    }
    let report = report?;
    report.print(bench.args.json, &mut std::io::stdout().lock())?;
    report.judge(bench.args.quick)
}
