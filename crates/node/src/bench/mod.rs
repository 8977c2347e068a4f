//! `flotilla bench`: a load on a running cluster, what it took, and what the stores did for it.

mod args;
mod counts;
mod keys;
mod load;
mod report;

use std::process::ExitCode;

use flotilla_client::{Client, Config, Transport};
use indicatif::{ProgressBar, ProgressStyle};

use crate::tool::{self, Error};
pub use args::Args;
use counts::Counts;
use report::Report;

/// Does what the command line says.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    tool::run(args.target.json, measure(args))
}

async fn measure(args: &Args) -> Result<(), Error> {
    let client = Client::connect(&args.target.endpoints, config(args)).await?;
    if args.workload.reads() && !args.no_fill {
        let bar = bar("fill", args.keys);
        load::fill(&client, args, &bar).await?;
        bar.finish_and_clear();
    }
    let before = Counts::read(&args.target).await?;
    let bar = match args.seconds {
        None => bar(args.workload.name(), args.requests),
        Some(_) => spinner(args.workload.name()),
    };
    let outcome = load::run(&client, args, &bar).await;
    bar.finish_and_clear();
    let counts = Counts::read(&args.target).await?.since(before);
    Report { args, outcome: &outcome, counts }.print(&mut std::io::stdout().lock())?;
    match outcome.first_failure {
        None => Ok(()),
        Some(first) => Err(Error::Failed {
            failed: outcome.failed,
            asked: outcome.failed + outcome.latencies.len(),
            first: first.to_string(),
        }),
    }
}

fn config(args: &Args) -> Config {
    let defaults = args.target.config();
    Config {
        transport: if args.unary { Transport::Unary } else { Transport::Stream },
        connections_per_store: usize::from(args.connections),
        in_flight_max: defaults.in_flight_max.max(args.clients as usize),
        scan_rows_max: defaults.scan_rows_max.max(args.scan_rows),
        ..defaults
    }
}

/// On standard error, and nowhere if that is no terminal.
fn bar(name: &'static str, count: u64) -> ProgressBar {
    let style = "{prefix:>6} {wide_bar} {pos}/{len} {per_sec} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is well formed");
    ProgressBar::new(count).with_style(style).with_prefix(name)
}

fn spinner(name: &'static str) -> ProgressBar {
    let style = "{prefix:>6} {spinner} {pos} {per_sec} {elapsed}";
    let style = ProgressStyle::with_template(style).expect("the template is well formed");
    ProgressBar::no_length().with_style(style).with_prefix(name)
}
