//! Puts and gets in turn at a steady rate: a client that behaves and has work to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::target::Target;

const CALLERS: usize = 64;
const VALUE_BYTES: usize = 128;

/// The requests of a client, which share one connection.
pub(crate) struct SteadyLoad {
    kv: TikvClient<Channel>,
    /// A key of each region, with what a request for it says of the region.
    keys: Arc<[(Bytes, Context)]>,
}

/// The 99th percentiles of the puts and of the gets of a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub(crate) put: Duration,
    pub(crate) get: Duration,
}

impl Latencies {
    /// The middle ones of some times.
    pub(crate) fn median(of: &[Self]) -> Self {
        Self {
            put: median(of.iter().map(|it| it.put).collect()),
            get: median(of.iter().map(|it| it.get).collect()),
        }
    }
}

impl SteadyLoad {
    pub(crate) async fn new(target: &mut Target) -> Self {
        let mut keys = vec![];
        for first in [0x20, 0x60, 0xa0, 0xe0] {
            let key = Bytes::from(vec![first; 16]);
            let context = target.context(&key).await;
            keys.push((key, context));
        }
        Self { kv: target.kv.clone(), keys: keys.into() }
    }

    /// How many requests a second are answered when each caller sends its next one at once.
    pub(crate) async fn peak(&self, window: Duration) -> f64 {
        let (puts, gets) = self.send(None, window).await;
        (puts.len() + gets.len()) as f64 / window.as_secs_f64()
    }

    /// The latencies at a rate. They count from the moment at which a request was due.
    pub(crate) async fn latencies(&self, rate: f64, window: Duration) -> Latencies {
        let (puts, gets) = self.send(Some(rate), window).await;
        Latencies { put: p99(puts), get: p99(gets) }
    }

    async fn send(&self, rate: Option<f64>, window: Duration) -> (Vec<Duration>, Vec<Duration>) {
        let (began, given) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (given, keys, mut kv) =
                (Arc::clone(&given), Arc::clone(&self.keys), self.kv.clone());
            callers.spawn(async move {
                let (mut puts, mut gets) = (vec![], vec![]);
                loop {
                    let number = given.fetch_add(1, Ordering::Relaxed);
                    let mut due = Instant::now();
                    if let Some(rate) = rate {
                        let planned = began + Duration::from_secs_f64(number as f64 / rate);
                        if planned > due {
                            tokio::time::sleep_until(planned.into()).await;
                            // The timer's inaccuracy is not the store's.
                            due = Instant::now();
                        } else {
                            due = planned;
                        }
                    }
                    if due >= began + window {
                        return (puts, gets);
                    }
                    let (key, context) = keys[number as usize / 2 % keys.len()].clone();
                    if number % 2 == 0 {
                        put(&mut kv, key, context).await;
                        puts.push(due.elapsed());
                    } else {
                        get(&mut kv, key, context).await;
                        gets.push(due.elapsed());
                    }
                }
            });
        }
        let mut all = (vec![], vec![]);
        while let Some(ended) = callers.join_next().await {
            let (puts, gets) = ended.unwrap();
            all.0.extend(puts);
            all.1.extend(gets);
        }
        all
    }
}

async fn put(kv: &mut TikvClient<Channel>, key: Bytes, context: Context) {
    let value = Bytes::from_static(&[7; VALUE_BYTES]);
    let request = RawPutRequest { context: Some(context), key, value, ..Default::default() };
    let answer = kv.raw_put(request).await.unwrap().into_inner();
    assert_eq!((answer.error.as_str(), answer.region_error), ("", None));
}

async fn get(kv: &mut TikvClient<Channel>, key: Bytes, context: Context) {
    let request = RawGetRequest { context: Some(context), key, ..Default::default() };
    let answer = kv.raw_get(request).await.unwrap().into_inner();
    assert_eq!((answer.error.as_str(), answer.region_error), ("", None));
}

fn p99(mut latencies: Vec<Duration>) -> Duration {
    latencies.sort_unstable();
    latencies[latencies.len() - 1 - latencies.len() / 100]
}

/// The middle one.
fn median(mut latencies: Vec<Duration>) -> Duration {
    latencies.sort_unstable();
    latencies[latencies.len() / 2]
}
