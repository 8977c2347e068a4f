//! Runs a load: callers, each with one request at a time, in a closed loop or at a rate.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_client::{Client, Scan};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use tokio::sync::watch;
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

/// Runs the load to its end, or until it is stopped: requests that are under way then count as if
/// they had never been sent. Failures are counted; they do not stop it.
pub(crate) async fn run(
    client: &Client,
    workload: Workload,
    args: &LoadArgs,
    keys: LoadKeys,
    bar: &ProgressBar,
    stopped: watch::Receiver<bool>,
) -> LoadOutcome {
    let began = Instant::now();
    let window = args.pacing.window.map(Duration::from_secs);
    let plan = Arc::new(LoadPlan {
        workload,
        keys,
        value: value(args),
        pacing: Pacing::new(&args.pacing, began),
        windows: window.map(|length| Windows::new(length, began)),
        bar: bar.clone(),
        stopped,
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
    pacing: Pacing,
    windows: Option<Windows>,
    bar: ProgressBar,
    /// Whether the load is to end before its time.
    stopped: watch::Receiver<bool>,
}

fn value(args: &LoadArgs) -> Bytes {
    let mut chance = fastrand::Rng::with_seed(args.seed);
    std::iter::repeat_with(|| chance.u8(..)).take(args.value_size as usize).collect()
}

async fn ask(client: Client, plan: Arc<LoadPlan>, mut chance: fastrand::Rng) -> LoadOutcome {
    let mut outcome = LoadOutcome::new();
    let mut stopped = plan.stopped.clone();
    let mut stopped = pin!(async move {
        // The sender outlives all callers.
        let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
    });
    loop {
        let next = async {
            let began = plan.pacing.next().await?;
            Some((began, request(&client, &plan, &mut chance).await))
        };
        let answered = tokio::select! {
            biased;
            answered = next => answered,
            () = &mut stopped => None,
        };
        let Some((began, answer)) = answered else { return outcome };
        let now = Instant::now();
        let latency = u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX);
        if let Some(windows) = &plan.windows {
            windows.record(now, answer.is_ok().then_some(latency));
        }
        match answer {
            Ok(answer) => {
                outcome.latencies.saturating_record(latency);
                outcome.puts += u64::from(answer == LoadAnswer::Put);
                outcome.rows += answer.rows();
            }
            Err(error) => {
                outcome.failed += 1;
                outcome.first_failure.get_or_insert(error);
            }
        }
        plan.bar.inc(1);
    }
}

/// The answer to one request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadAnswer {
    Put,
    Get,
    /// With so many rows.
    Scan(u64),
}

impl LoadAnswer {
    fn rows(self) -> u64 {
        if let LoadAnswer::Scan(rows) = self { rows } else { 0 }
    }
}

/// Sends one request and waits for its answer.
async fn request(
    client: &Client,
    plan: &LoadPlan,
    chance: &mut fastrand::Rng,
) -> Result<LoadAnswer, flotilla_client::Error> {
    let key = plan.keys.random(chance);
    let ttl = match plan.workload {
        Workload::Put { ttl } => Some(ttl),
        Workload::Mixed { reads, ttl } => (chance.u8(..100) >= reads).then_some(ttl),
        Workload::Get => None,
        Workload::Scan { rows } => {
            let scan = Scan { start: key, limit: rows as usize, ..Scan::default() };
            return Ok(LoadAnswer::Scan(client.scan(scan).await?.len() as u64));
        }
    };
    match ttl {
        Some(ttl) => {
            let put = client.put_with_ttl(key, plan.value.clone(), ttl).await;
            put.map(|()| LoadAnswer::Put)
        }
        None => client.get(key).await.map(|_| LoadAnswer::Get),
    }
}
