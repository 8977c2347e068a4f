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
        printed: arguments.trace,
    };
    // A run's panic is in its report; the usual output about threads would drown it.
    std::panic::set_hook(Box::new(|_| {}));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.trace { 1 } else { arguments.jobs.unwrap_or(cores).max(1) };
    let start = Instant::now();
    let next = AtomicU64::new(arguments.seed);
    let end = arguments.seed.saturating_add(arguments.seeds);
    let (send, receive) = mpsc::channel();
    let mut summary = RunSummary {
        has_splits: options.splits,
        has_transfers: options.transfers,
        has_membership: options.membership,
        ..RunSummary::default()
    };
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
    let untried = summary.untried();
    if !untried.is_empty() {
        println!("FAILED: in none of so many runs there were {}", untried.join(", "));
    }
    if summary.failures > 0 || !untried.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// This many runs of this many events must have reached every corner.
const SEEDS_MIN: u64 = 100;
const EVENTS_MIN: u64 = 20_000;

/// One line for a seed that failed, with the command that repeats it.
fn print_result(report: &SimReport, options: Options, is_alone: bool) {
    let seed = report.seed;
    if let Some(failure) = &report.failure {
        let stores = options.stores.map_or(String::new(), |stores| format!(" --stores {stores}"));
        let splits = if options.splits { "" } else { " --no-splits" };
        let transfers = if options.transfers { "" } else { " --no-transfers" };
        let membership = if options.membership { "" } else { " --no-membership" };
        let events = options.events;
        println!(
            "seed {seed} FAILED: {failure}\n    replay: cargo run --release -p flotilla-sim -- \
             --seed {seed} --events {events}{stores}{splits}{transfers}{membership} --trace"
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
    /// Whether regions could be split.
    has_splits: bool,
    /// Whether leaders could be transferred.
    has_transfers: bool,
    /// Whether members could change.
    has_membership: bool,
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

    /// Corners that were never reached although there were many runs.
    fn untried(&self) -> Vec<&'static str> {
        // In few or short runs chance alone may leave a corner out.
        if self.seeds < SEEDS_MIN || self.sum.counts.events < self.seeds * EVENTS_MIN {
            return Vec::new();
        }
        let coverage = &self.sum.coverage;
        let corners = [
            ("torn tails", coverage.torn_tails),
            ("checkpoints", coverage.checkpoints),
            ("waits before applying", coverage.apply_stalls),
            ("failed reads of the log", coverage.log.fetches_failed),
            ("segments purged", coverage.log.segments_purged),
            ("bytes of pages moved", coverage.pages.moved_bytes),
            ("bytes of pages trimmed", coverage.pages.trimmed_bytes),
            ("bytes of pages punched", coverage.pages.punched_bytes),
            ("bytes of trash reclaimed by upkeep", coverage.pages.reclaimed_bytes),
            ("bytes of pages scrubbed", coverage.pages.scrubbed_bytes),
            ("directories exchanged", coverage.identity.directory_swaps),
            ("stores refused", coverage.identity.refusals),
            ("suspended machines", coverage.bounds.suspended_us),
            ("late steps", coverage.bounds.late_steps),
            ("reads turned back by late steps", coverage.bounds.reads_turned_back),
            ("wild terms refused", coverage.bounds.wild_terms),
        ];
        let snapshots = [
            ("snapshots sent", coverage.snapshots.sent),
            ("snapshots that were not sent", coverage.snapshots.unsent),
            ("snapshots staged", coverage.snapshots.staged),
            ("snapshots installed", coverage.snapshots.installed),
            ("snapshots discarded", coverage.snapshots.discarded),
            ("streams of snapshots cut", coverage.snapshots.cut),
            ("power losses inside an installation", coverage.snapshots.cuts_at_arrows),
            ("proposals that a snapshot has passed over", coverage.snapshots.undecided),
        ];
        let splits = [
            ("splits", coverage.splits.applied),
            ("replicas that only the log had", coverage.splits.unborn),
            ("votes held for a replica", coverage.splits.held_votes),
            ("splits applied at once", coverage.splits.several_at_once),
            ("reads turned back by a split", coverage.splits.reads_turned_back),
            ("proposals that came after a split", coverage.splits.rejected),
            ("replicas made by a message", coverage.snapshots.uninitialised),
            ("starts with replicas without data", coverage.snapshots.uninitialised_starts),
            ("votes of replicas without data", coverage.snapshots.uninitialised_votes),
            ("replicas that were not admitted", coverage.snapshots.not_admitted),
        ];
        let splits = splits.into_iter().filter(|_| self.has_splits);
        let transfers = [
            ("transfers of leaders", coverage.transfers.done),
            ("transfers of leaders that failed", coverage.transfers.refused),
        ];
        let transfers = transfers.into_iter().filter(|_| self.has_transfers);
        let membership = [
            ("changes of members", coverage.membership.changes),
            ("joint configurations", coverage.membership.joint),
            ("changes of members that had no effect", coverage.membership.void),
            ("changes of members that were refused", coverage.membership.refused),
            ("learners that got votes", coverage.membership.promoted),
            ("replicas removed", coverage.membership.removed),
            ("replicas ended by a root", coverage.membership.ended),
            ("replicas ended", coverage.ends.replicas),
            ("ends of replicas that were not there", coverage.ends.without_replica),
            ("logs of ended replicas removed", coverage.ends.logs_removed),
            ("reads turned back by an end", coverage.ends.reads_turned_back),
            ("ends confirmed", coverage.membership.confirmed),
            ("notices that came", coverage.membership.notices),
            ("notices that came late", coverage.membership.late),
            ("power losses inside an end", coverage.membership.cuts_at_ends),
        ];
        let membership = membership.into_iter().filter(|_| self.has_membership);
        corners
            .into_iter()
            .chain(snapshots)
            .chain(splits)
            .chain(transfers)
            .chain(membership)
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| name)
            .collect()
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
