//! `concurrent-read`: the latency of short scans and puts with and without large scans.
//!
//! The experiment is that of "Strong Consistency and Fully Concurrent Reads", the article on etcd
//! 3.4: short scans and puts come at a fixed rate; in half of the time a large scan begins every
//! second as well. A store whose reads hold nothing that others need shows the same latencies in
//! both halves, as far as there are cores for the large scans.

mod args;
mod lane;
mod pace;
mod report;
mod run;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use clap::Parser;
use flotilla_cli::bench::{LoadKeys, bar, fill_with};
use flotilla_cli::diagnosis::explained;
use flotilla_cli::tool::{self, Error};
use flotilla_client::{Client, Config, Error as ClientError, Scan, Transport};
use indicatif::ProgressBar;
use tokio::runtime::Handle;

use args::Args;
use lane::Lane;
use pace::{Pace, Tally};
use report::Report;
use run::{Half, Run};

/// Short requests of a kind that may wait for their answers.
const SHORT_AT_ONCE_MAX: usize = 10_000;
/// Large scans under way. Each has a page in memory.
const LARGE_AT_ONCE_MAX: usize = 8;
/// Different contents of a value of one length.
const OFFSETS: usize = 4096;

/// Short scans and puts at a fixed rate, alone and next to large scans
#[derive(Debug, Parser)]
#[command(name = "concurrent-read", max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Cli { args } = Cli::parse();
    tool::run(args.target.json, explained(&args.target, measure(&args)))
}

/// Fills, measures, reports.
async fn measure(args: &Args) -> Result<(), Error> {
    args.check()?;
    let work = Work::connect(args).await?;
    if !args.no_fill {
        let bar = bar("fill", args.keys);
        let mut chance = fastrand::Rng::with_seed(args.seed);
        let pairs = work.keys.all().map(|key| (key, work.values.random(&mut chance)));
        let client = Client::connect(&args.target.endpoints, config(args)).await?;
        fill_with(&client, pairs, args.value_bytes_max as usize, &bar).await?;
        bar.finish_and_clear();
    }
    let each = work.request_count(false) + work.request_count(true);
    let bar = bar("runs", each * u64::from(args.runs));
    let mut runs = Vec::new();
    for number in 0..args.runs {
        let without = work.half(number, false, &bar).await;
        let with = work.half(number, true, &bar).await;
        runs.push(Run { without, with });
    }
    bar.finish_and_clear();
    Report { args, runs: &runs }.print(&mut std::io::stdout().lock())?;
    run::judge(&runs)
}

/// The clients and data of a run.
struct Work<'a> {
    args: &'a Args,
    keys: LoadKeys,
    values: Values,
    /// One client for each kind of requests: on one connection or thread they would wait for each
    /// other's bytes, and the store has no part in that.
    scans: Lane,
    puts: Lane,
    large: Lane,
}

impl Work<'_> {
    async fn connect(args: &Args) -> Result<Work<'_>, Error> {
        let (endpoints, config) = (&args.target.endpoints, config(args));
        Ok(Work {
            args,
            keys: args.keys()?,
            values: Values::new(args),
            scans: Lane::connect("scans", endpoints, &config).await?,
            puts: Lane::connect("puts", endpoints, &config).await?,
            large: Lane::connect("large-scans", endpoints, &config).await?,
        })
    }

    /// Requests of a run without or with large scans.
    fn request_count(&self, large: bool) -> u64 {
        let [scans, puts, large_scans] = self.paces(Instant::now());
        scans.count + puts.count + if large { large_scans.count } else { 0 }
    }

    /// When short scans, puts and large scans are due.
    fn paces(&self, began: Instant) -> [Pace; 3] {
        let args = self.args;
        let pace = |interval: Duration, at_once_max| {
            let count = args.duration().as_nanos().div_ceil(interval.as_nanos().max(1));
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            Pace { began, interval, count, at_once_max }
        };
        let second = Duration::from_secs(1);
        [
            pace(second / args.scans_per_second, SHORT_AT_ONCE_MAX),
            pace(second / args.puts_per_second, SHORT_AT_ONCE_MAX),
            pace(Duration::from_millis(args.large_scan_interval_ms), LARGE_AT_ONCE_MAX),
        ]
    }

    async fn half(&self, run: u32, large: bool, bar: &ProgressBar) -> Half {
        let [scan_pace, put_pace, large_pace] = self.paces(Instant::now());
        // Both halves of a run choose the same keys.
        let seed = self.args.seed.wrapping_add(u64::from(run) << 32);
        let scans = self.scans(scan_pace, seed, bar);
        let puts = self.puts(put_pace, seed.wrapping_add(1), bar);
        let large_scans = async {
            match large {
                true => Some(self.large_scans(large_pace, seed.wrapping_add(2), bar).await),
                false => None,
            }
        };
        let (scans, puts, large) = tokio::join!(scans, puts, large_scans);
        Half { scans, puts, large }
    }

    async fn scans(&self, pace: Pace, seed: u64, bar: &ProgressBar) -> Tally {
        let (keys, bar) = (self.keys, bar.clone());
        let limit = self.args.scan_rows as usize;
        let mut chance = fastrand::Rng::with_seed(seed);
        let send = move |runtime: &Handle, client: Client| {
            pace::send(runtime, pace, &bar, |_| {
                let scan = Scan { start: keys.random(&mut chance), limit, ..Scan::default() };
                let client = client.clone();
                async move { Ok(client.scan(scan).await?.len() as u64) }
            })
        };
        self.scans.send(send).await
    }

    async fn puts(&self, pace: Pace, seed: u64, bar: &ProgressBar) -> Tally {
        let (keys, bar) = (self.keys, bar.clone());
        let values = self.values.clone();
        let mut chance = fastrand::Rng::with_seed(seed);
        let send = move |runtime: &Handle, client: Client| {
            pace::send(runtime, pace, &bar, |_| {
                let (key, value) = (keys.random(&mut chance), values.random(&mut chance));
                let client = client.clone();
                async move { client.put(key, value).await.map(|()| 0) }
            })
        };
        self.puts.send(send).await
    }

    async fn large_scans(&self, pace: Pace, seed: u64, bar: &ProgressBar) -> Tally {
        let (keys, bar) = (self.keys, bar.clone());
        let (rows, page_rows) = (self.args.large_scan_rows, self.args.page_rows());
        let mut chance = fastrand::Rng::with_seed(seed);
        let send = move |runtime: &Handle, client: Client| {
            pace::send(runtime, pace, &bar, |_| {
                large_scan(client.clone(), keys.random(&mut chance), rows, page_rows)
            })
        };
        self.large.send(send).await
    }
}

/// How the clients behave.
fn config(args: &Args) -> Config {
    Config {
        transport: if args.unary { Transport::Unary } else { Transport::Stream },
        connections_per_store: 1,
        in_flight_max: SHORT_AT_ONCE_MAX,
        // A page is one request, or one for each region that it touches.
        scan_rows_max: u32::MAX,
        ..args.target.config()
    }
}

/// Reads `rows` rows from a key on, and from the first key on when the last has been read. No page
/// is kept.
async fn large_scan(
    client: Client,
    mut start: Bytes,
    rows: u64,
    page_rows: u64,
) -> Result<u64, ClientError> {
    let mut left = rows;
    while left > 0 {
        let limit = left.min(page_rows);
        let scan = Scan { start: start.clone(), limit: limit as usize, ..Scan::default() };
        let page = client.scan(scan).await?;
        if page.is_empty() && start.is_empty() {
            break;
        }
        left -= page.len() as u64;
        start = match page.last() {
            Some((key, _)) if page.len() as u64 == limit => successor(key),
            _ => Bytes::new(),
        };
    }
    Ok(rows - left)
}

/// The least key above `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::from(key);
    next.extend_from_slice(&[0]);
    next.freeze()
}

/// Values of all lengths that are wanted, parts of the same bytes.
#[derive(Clone)]
struct Values {
    bytes: Bytes,
    bytes_min: usize,
    bytes_max: usize,
}

impl Values {
    fn new(args: &Args) -> Values {
        let (bytes_min, bytes_max) = (args.value_bytes_min as usize, args.value_bytes_max as usize);
        let mut chance = fastrand::Rng::with_seed(args.seed);
        let bytes = std::iter::repeat_with(|| chance.u8(..)).take(bytes_max + OFFSETS).collect();
        Values { bytes, bytes_min, bytes_max }
    }

    fn random(&self, chance: &mut fastrand::Rng) -> Bytes {
        let bytes = chance.usize(self.bytes_min..=self.bytes_max);
        let from = chance.usize(..OFFSETS);
        self.bytes.slice(from..from + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_lengths_that_are_wanted() {
        let args = args::tests::parse("--value-bytes-min 3 --value-bytes-max 9");
        let values = Values::new(&args);
        let mut chance = fastrand::Rng::with_seed(1);
        let mut lengths: Vec<_> = (0..1000).map(|_| values.random(&mut chance).len()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!(lengths, [3, 4, 5, 6, 7, 8, 9]);
    }
}
