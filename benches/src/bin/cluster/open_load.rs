//! Puts of random keys, at a rate or one after the other, until they are told to end.
//!
//! At a rate, a latency counts from the moment at which its request was due. So when the cluster
//! stalls, all requests that should have been sent meanwhile show it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_client::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load_record::{LoadRecord, LoadSample};

/// A load that is no further behind its rate has caught up.
const BEHIND_MAX: Duration = Duration::from_millis(10);

/// The keys of a load: any of them, chosen by chance.
pub(crate) type KeyChoice = Arc<dyn Fn(&mut fastrand::Rng) -> Bytes + Send + Sync>;

/// The requests of a load.
#[derive(Clone)]
pub(crate) struct LoadPlan {
    pub(crate) keys: KeyChoice,
    pub(crate) value: Bytes,
    pub(crate) callers: u32,
    /// Requests a second; none: each caller sends the next one when the last is answered.
    pub(crate) rate: Option<f64>,
    pub(crate) seed: u64,
}

/// A load that is under way. It ends when it is dropped, too.
pub(crate) struct OpenLoad {
    shared: Arc<LoadState>,
    callers: JoinSet<LoadRecordPart>,
}

type LoadRecordPart = (Vec<LoadSample>, Vec<(Duration, String)>);

struct LoadState {
    plan: LoadPlan,
    began: Instant,
    given: AtomicU64,
    is_over: AtomicBool,
}

impl OpenLoad {
    pub(crate) fn start(client: &Client, plan: LoadPlan) -> OpenLoad {
        let shared = Arc::new(LoadState {
            plan,
            began: Instant::now(),
            given: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut callers = JoinSet::new();
        for caller in 0..shared.plan.callers {
            let seed = shared.plan.seed.wrapping_add(u64::from(caller) << 32);
            let chance = fastrand::Rng::with_seed(seed);
            callers.spawn(Arc::clone(&shared).ask(client.clone(), chance));
        }
        OpenLoad { shared, callers }
    }

    /// The time since it began.
    pub(crate) fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// Waits until it has caught up with its rate: requests that fell due while the cluster was
    /// behind are sent, and later ones count from a time of their own.
    pub(crate) async fn catch_up(&self) {
        let Some(rate) = self.shared.plan.rate else { return };
        loop {
            let sent = self.shared.given.load(Ordering::Relaxed) as f64 / rate;
            if self.now().as_secs_f64() - sent < BEHIND_MAX.as_secs_f64() {
                return;
            }
            tokio::time::sleep(BEHIND_MAX).await;
        }
    }

    /// Ends it when the requests under way are answered.
    pub(crate) async fn end(mut self) -> LoadRecord {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let (mut samples, mut failures) = (vec![], vec![]);
        while let Some(ended) = self.callers.join_next().await {
            let part = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            samples.extend(part.0);
            failures.extend(part.1);
        }
        LoadRecord::new(samples, failures)
    }
}

impl LoadState {
    async fn ask(self: Arc<Self>, client: Client, mut chance: fastrand::Rng) -> LoadRecordPart {
        let (mut samples, mut failures) = (vec![], vec![]);
        while let Some(due) = self.next().await {
            let key = (self.plan.keys)(&mut chance);
            let answer = client.put(key, self.plan.value.clone()).await;
            let now = Instant::now();
            match answer {
                Ok(()) => samples.push(LoadSample {
                    at_us: u64::try_from((now - self.began).as_micros()).unwrap_or(u64::MAX),
                    latency_us: u32::try_from((now - due).as_micros()).unwrap_or(u32::MAX),
                }),
                Err(error) => failures.push((now - self.began, error.to_string())),
            }
        }
        (samples, failures)
    }

    /// Waits until the next request is due, and says since when its latency counts. A caller that
    /// has waited for that time begins when it wakes: the timer's inaccuracy is not counted.
    async fn next(&self) -> Option<Instant> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let Some(rate) = self.plan.rate else { return Some(Instant::now()) };
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let due = self.began + Duration::from_secs_f64(number as f64 / rate);
        if due <= Instant::now() {
            return Some(due);
        }
        tokio::time::sleep_until(due).await;
        (!self.is_over.load(Ordering::Relaxed)).then(Instant::now)
    }
}
