//! Runs a load: callers, each with one request at a time, in a closed loop or at a rate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_client::{Client, Scan};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::args::{LoadArgs, Workload};
use super::keys::LoadKeys;
use super::latencies::latencies;
use super::pacing::Pacing;
use super::windows::{Window, Windows};
use crate::tool::Error;

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
    /// The windows, if they were asked for.
    pub(crate) windows: Vec<Window>,
}

impl LoadOutcome {
    fn new() -> LoadOutcome {
        let latencies = latencies();
        let elapsed = Duration::ZERO;
        LoadOutcome {
            elapsed,
            latencies,
            puts: 0,
            rows: 0,
            failed: 0,
            first_failure: None,
            windows: vec![],
        }
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
pub(crate) async fn fill(
    client: &Client,
    args: &LoadArgs,
    keys: LoadKeys,
    bar: &ProgressBar,
) -> Result<(), Error> {
    let value = value(args);
    let pairs = keys.all().map(|key| (key, value.clone()));
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
    keys: LoadKeys,
    bar: &ProgressBar,
) -> LoadOutcome {
    let began = Instant::now();
    let window = args.pacing.window.map(Duration::from_secs);
    let plan = Arc::new(LoadPlan {
        workload,
        keys,
        value: value(args),
        args: args.clone(),
        pacing: Pacing::new(&args.pacing, began),
        windows: window.map(|length| Windows::new(length, began)),
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
    let plan = Arc::into_inner(plan).expect("all callers are done");
    outcome.windows = plan.windows.map_or_else(Vec::new, Windows::into_windows);
    outcome
}

/// The state that all callers share.
struct LoadPlan {
    workload: Workload,
    keys: LoadKeys,
    value: Bytes,
    args: LoadArgs,
    pacing: Pacing,
    windows: Option<Windows>,
    bar: ProgressBar,
}

fn value(args: &LoadArgs) -> Bytes {
    let mut chance = fastrand::Rng::with_seed(args.seed);
    std::iter::repeat_with(|| chance.u8(..)).take(args.value_size as usize).collect()
}

async fn ask(client: Client, plan: Arc<LoadPlan>, mut chance: fastrand::Rng) -> LoadOutcome {
    let mut outcome = LoadOutcome::new();
    while let Some(began) = plan.pacing.next().await {
        let key = plan.keys.random(&mut chance);
        let is_put = match plan.workload {
            Workload::Put => true,
            Workload::Mixed => chance.u8(..100) >= plan.args.reads,
            Workload::Get | Workload::Scan => false,
        };
        let result = if is_put {
            client.put_with_ttl(key, plan.value.clone(), plan.args.ttl).await
        } else if plan.workload == Workload::Scan {
            let limit = plan.args.scan_rows as usize;
            let rows = client.scan(Scan { start: key, limit, ..Scan::default() }).await;
            rows.map(|rows| outcome.rows += rows.len() as u64)
        } else {
            client.get(key).await.map(drop)
        };
        let now = Instant::now();
        let latency = u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX);
        if let Some(windows) = &plan.windows {
            windows.record(now, result.is_ok().then_some(latency));
        }
        match result {
            Ok(()) => {
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
