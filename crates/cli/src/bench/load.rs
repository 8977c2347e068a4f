//! Runs a load: a closed loop of callers, each with one request at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_client::{Client, Scan};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::args::{LoadArgs, Workload};
use super::keys::LoadKeys;
use crate::tool::Error;

/// The longest latency that the histogram resolves, a minute; longer ones count as that.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// An empty histogram of latencies in nanoseconds, with three digits.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
        .expect("bounds and digits are what the histogram allows")
}

/// Pairs of one request of the fill.
const FILL_COUNT: usize = 1000;

/// The results of a load.
#[derive(Debug)]
pub(crate) struct LoadOutcome {
    pub(crate) elapsed: Duration,
    /// Time of each request that succeeded, in nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Puts that succeeded.
    pub(crate) puts: u64,
    /// Rows that scans returned.
    pub(crate) rows: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<flotilla_client::Error>,
}

impl LoadOutcome {
    fn new() -> LoadOutcome {
        let latencies = latencies();
        let elapsed = Duration::ZERO;
        LoadOutcome { elapsed, latencies, puts: 0, rows: 0, failed: 0, first_failure: None }
    }

    fn add(&mut self, other: LoadOutcome) {
        self.latencies.add(other.latencies).expect("both have the same bounds");
        self.puts += other.puts;
        self.rows += other.rows;
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

/// Writes every key once, so that what is read is there.
pub(crate) async fn fill(client: &Client, args: &LoadArgs, bar: &ProgressBar) -> Result<(), Error> {
    let value = value(args);
    let pairs = keys(args).all().map(|key| (key, value.clone()));
    fill_with(client, pairs, value.len(), bar).await
}

/// Writes `pairs`, whose values have up to `value_bytes_max` bytes.
///
/// # Errors
///
/// That of the first batch of pairs that is not written.
pub async fn fill_with(
    client: &Client,
    mut pairs: impl Iterator<Item = (Bytes, Bytes)>,
    value_bytes_max: usize,
    bar: &ProgressBar,
) -> Result<(), Error> {
    // Not more bytes at a time than a client ought to have on its way.
    let count = FILL_COUNT.min(((4 << 20) / (value_bytes_max + 64)).max(1));
    loop {
        let some: Vec<_> = pairs.by_ref().take(count).collect();
        if some.is_empty() {
            return Ok(());
        }
        let filled = some.len() as u64;
        client.batch_put(some).await?;
        bar.inc(filled);
    }
}

/// Runs the load to its end. Failures are counted; they do not stop it.
pub(crate) async fn run(
    client: &Client,
    workload: Workload,
    args: &LoadArgs,
    bar: &ProgressBar,
) -> LoadOutcome {
    let began = Instant::now();
    let plan = Arc::new(LoadPlan {
        workload,
        keys: keys(args),
        value: value(args),
        args: args.clone(),
        left: AtomicU64::new(if args.seconds.is_some() { u64::MAX } else { args.requests }),
        until: args.seconds.map(|seconds| began + Duration::from_secs(seconds)),
        bar: bar.clone(),
    });
    let mut callers = JoinSet::new();
    for caller in 0..args.clients {
        let chance = fastrand::Rng::with_seed(args.seed.wrapping_add(u64::from(caller) << 32));
        callers.spawn(ask(client.clone(), Arc::clone(&plan), chance));
    }
    let mut outcome = LoadOutcome::new();
    while let Some(done) = callers.join_next().await {
        outcome.add(done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
    }
    outcome.elapsed = began.elapsed();
    outcome
}

/// The state that all callers share.
struct LoadPlan {
    workload: Workload,
    keys: LoadKeys,
    value: Bytes,
    args: LoadArgs,
    /// Requests that no caller has taken yet.
    left: AtomicU64,
    until: Option<Instant>,
    bar: ProgressBar,
}

impl LoadPlan {
    /// Takes one request, unless the load is at its end.
    fn take(&self) -> bool {
        let has_time = self.until.is_none_or(|until| Instant::now() < until);
        let take = |left: u64| left.checked_sub(1);
        has_time && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

fn keys(args: &LoadArgs) -> LoadKeys {
    LoadKeys::new(args.keys, args.key_size, args.regions)
}

fn value(args: &LoadArgs) -> Bytes {
    let mut chance = fastrand::Rng::with_seed(args.seed);
    std::iter::repeat_with(|| chance.u8(..)).take(args.value_size as usize).collect()
}

async fn ask(client: Client, plan: Arc<LoadPlan>, mut chance: fastrand::Rng) -> LoadOutcome {
    let mut outcome = LoadOutcome::new();
    while plan.take() {
        let key = plan.keys.random(&mut chance);
        let is_put = match plan.workload {
            Workload::Put => true,
            Workload::Mixed => chance.u8(..100) >= plan.args.reads,
            Workload::Get | Workload::Scan => false,
        };
        let began = Instant::now();
        let result = if is_put {
            client.put(key, plan.value.clone()).await
        } else if plan.workload == Workload::Scan {
            let limit = plan.args.scan_rows as usize;
            let rows = client.scan(Scan { start: key, limit, ..Scan::default() }).await;
            rows.map(|rows| outcome.rows += rows.len() as u64)
        } else {
            client.get(key).await.map(drop)
        };
        match result {
            Ok(()) => {
                let latency = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                outcome.latencies.saturating_record(latency);
                outcome.puts += u64::from(is_put);
            }
            Err(error) => {
                outcome.failed += 1;
                outcome.first_failure.get_or_insert(error);
            }
        }
        plan.bar.inc(1);
    }
    outcome
}
