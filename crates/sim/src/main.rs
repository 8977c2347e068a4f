//! The command line: runs seeds and tells which of them broke something.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use clap::Parser;
use flotilla_sim::{Options, SimReport, run};

/// Runs simulated clusters, each from its seed, and checks everything that they say and hold.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, counting up.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Events of each run before its faults end.
    #[arg(long, default_value_t = 20_000)]
    events: u64,
    /// Stores of each cluster; the seed draws 3 or 5 if this is left out.
    #[arg(long, value_parser = clap::value_parser!(u8).range(3..=9))]
    stores: Option<u8>,
    /// Seeds that run at the same time; as many as there are cores if this is left out.
    #[arg(long)]
    jobs: Option<usize>,
    /// Ends at the first seed that fails.
    #[arg(long)]
    stop: bool,
    /// Splits no region.
    #[arg(long)]
    no_splits: bool,
    /// Transfers no leader.
    #[arg(long)]
    no_transfers: bool,
    /// Changes no member.
    #[arg(long)]
    no_membership: bool,
    /// Flips bits of pages with clients' rows.
    #[arg(long)]
    rot: bool,
    /// Prints everything that happens. One seed at a time.
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        events: arguments.events,
        stores: arguments.stores.map(usize::from),
        splits: !arguments.no_splits,
        transfers: !arguments.no_transfers,
        membership: !arguments.no_membership,
        bit_rot: arguments.rot,
        printed: arguments.trace,
    };
    // A run's panic is in its report; the usual output about threads would drown it. A trace of one
    // run has room for its place.
    if !arguments.trace {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.trace { 1 } else { arguments.jobs.unwrap_or(cores).max(1) };
    let start = Instant::now();
    let next = AtomicU64::new(arguments.seed);
    let end = arguments.seed.saturating_add(arguments.seeds);
    let (send, receive) = mpsc::channel();
    let mut summary = RunSummary::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || send.send(run(seed, options)).is_err() {
                        break;
                    }
                }
            });
        }
        // Else the loop below would wait for this sender as well, and never end.
        drop(send);
        for report in receive {
            if arguments.stop && report.failure.is_some() {
                // Jobs that draw a seed from now on find none.
                next.store(end, Ordering::Relaxed);
            }
            summary.add(&report);
            print_result(&report, options, arguments.seeds == 1);
        }
    });
    summary.print(start.elapsed().as_secs_f64());
    let untried = summary.untried(options);
    if !untried.is_empty() {
        println!("FAILED: in none of so many runs there were {}", untried.join(", "));
    }
    if summary.failures > 0 || !untried.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Shorter runs need not reach every corner.
const EVENTS_MIN: u64 = 20_000;

/// One line for a seed that failed, with the command that repeats it.
fn print_result(report: &SimReport, options: Options, is_alone: bool) {
    let seed = report.seed;
    if let Some(failure) = &report.failure {
        let stores = options.stores.map_or(String::new(), |stores| format!(" --stores {stores}"));
        let splits = if options.splits { "" } else { " --no-splits" };
        let transfers = if options.transfers { "" } else { " --no-transfers" };
        let membership = if options.membership { "" } else { " --no-membership" };
        let rot = if options.bit_rot { " --rot" } else { "" };
        let events = options.events;
        println!(
            "seed {seed} FAILED: {failure}\n    replay: cargo run --release -p flotilla-sim -- \
             --seed {seed} --events {events}{stores}{splits}{transfers}{membership}{rot} --trace"
        );
    } else if is_alone {
        println!("seed {seed}: trace {:016x}", report.trace);
    }
}

/// Sums over all seeds.
#[derive(Default)]
struct RunSummary {
    seeds: u64,
    failures: u64,
    sum: SimReport,
}

impl RunSummary {
    fn add(&mut self, report: &SimReport) {
        self.seeds += 1;
        self.failures += u64::from(report.failure.is_some());
        let sum = &mut self.sum;
        sum.simulated_us += report.simulated_us;
        sum.syncs += report.syncs;
        sum.stamps += report.stamps;
        sum.coverage += report.coverage;
        sum.counts.events += report.counts.events;
        sum.counts.crashes += report.counts.crashes;
        sum.counts.faults += report.counts.faults;
        sum.counts.messages += report.counts.messages;
        sum.counts.lost += report.counts.lost;
        sum.tally.asked += report.tally.asked;
        sum.tally.served += report.tally.served;
        sum.tally.refused += report.tally.refused;
        sum.checked.keys += report.checked.keys;
        sum.checked.operations += report.checked.operations;
        sum.checked.unknown += report.checked.unknown;
        // Runs end in any order; a sum does not mind.
        sum.trace = sum.trace.wrapping_add(report.trace);
    }

    /// Corners that were never reached although there were many long runs.
    fn untried(&self, options: Options) -> Vec<&'static str> {
        let are_long = self.sum.counts.events >= self.seeds * EVENTS_MIN;
        if are_long { self.sum.coverage.untried(self.seeds, options) } else { Vec::new() }
    }

    fn print(&self, wall_s: f64) {
        let sum = &self.sum;
        let simulated_s = sum.simulated_us as f64 / 1e6;
        println!(
            "{} seeds, {} failed; {} events, {} crashes, {} other faults, {} messages, {} lost, \
             {} syncs",
            self.seeds,
            self.failures,
            sum.counts.events,
            sum.counts.crashes,
            sum.counts.faults,
            sum.counts.messages,
            sum.counts.lost,
            sum.syncs
        );
        println!(
            "{} requests: {} served, {} refused; {} operations on {} keys checked, {} of unknown \
             fate; {} batches of timestamps",
            sum.tally.asked,
            sum.tally.served,
            sum.tally.refused,
            sum.checked.operations,
            sum.checked.keys,
            sum.checked.unknown,
            sum.stamps
        );
        println!("{:?}", sum.coverage);
        println!(
            "{:.2} simulated hours in {wall_s:.1} s, {:.0} x real time, {:.0} events/s; trace sum \
             {:016x}",
            simulated_s / 3600.0,
            simulated_s / wall_s,
            sum.counts.events as f64 / wall_s,
            sum.trace
        );
    }
}
