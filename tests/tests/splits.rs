//! Regions that split while clients work: on three stores in one process, and on three processes
//! that are killed. No error reaches a client, and nothing acknowledged is lost.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, Scan};
use flotilla_node::router::RouterStats;
use flotilla_region::{Descriptor, Space};
use processes::until;
use tokio::task::JoinSet;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);
const WRITERS: u32 = 16;

async fn client(endpoints: &[String]) -> Client {
    let config = Config { deadline: PATIENCE, ..Config::default() };
    Client::connect(endpoints, config).await.unwrap()
}

fn key(number: u32) -> Bytes {
    format!("key{number:06}").into()
}

/// Splits the region that holds `key` at `key`, wherever it is led.
async fn split_at(cluster: &Playground, key: &Bytes) -> Vec<Descriptor> {
    let mut made = None;
    until(async || {
        for node in (0..3).filter_map(|place| cluster.node(place)) {
            let router = node.router();
            let Some(region) = router.locate(Space::Raw, key) else { continue };
            if router.leads(region.id) {
                let split = router.split(region.id, std::slice::from_ref(key)).await;
                made = Some(split.map_err(|error| format!("{error:?}"))?);
                return Ok(());
            }
        }
        Err("no store leads the region".to_owned())
    })
    .await;
    made.unwrap()
}

fn regions(cluster: &Playground, place: usize) -> Vec<Descriptor> {
    let descriptors = cluster.node(place).unwrap().router().descriptors();
    let mut regions: Vec<_> =
        descriptors.into_iter().filter(|region| region.space == Space::Raw).collect();
    regions.sort_by(|one, other| one.start.cmp(&other.start));
    regions
}

/// Writes and reads a part of the keys until it is told to stop; what it wrote last.
async fn work(client: Client, number: u32, stop: Arc<AtomicBool>) -> BTreeMap<Bytes, Bytes> {
    let mut written = BTreeMap::new();
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        for nth in 0..20 {
            let key = key(number + WRITERS * ((round + nth * 7) % 250));
            let value = Bytes::from(format!("{number}-{round}-{nth}"));
            client.put(key.clone(), value.clone()).await.unwrap();
            assert_eq!(client.get(key.clone()).await.unwrap().as_ref(), Some(&value));
            written.insert(key, value);
        }
        let keys: Vec<_> = written.keys().cloned().collect();
        let found = client.batch_get(keys).await.unwrap();
        assert_eq!(found, written.values().cloned().map(Some).collect::<Vec<_>>());
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_splits_under_load_and_no_client_sees_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 1;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let shared = client(&endpoints).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for number in 0..WRITERS {
        // Half of them share a cache, half have one each.
        let client = if number % 2 == 0 { shared.clone() } else { client(&endpoints).await };
        workers.spawn(work(client, number, Arc::clone(&stop)));
    }
    // In the middle, to the right, to the left, within a part: 16 splits one after the other.
    let borders: Vec<u32> = (1..=16).map(|nth| nth * 1_103 % 4_000).collect();
    for border in &borders {
        let parts = split_at(&cluster, &key(*border)).await;
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].end, key(*border));
        assert_eq!(parts[1].start, key(*border));
        // The placement driver answers at once.
        let found = shared.region_of(key(*border)).await.unwrap();
        until(async || match shared.region_of(key(*border)).await.unwrap().region.start_key {
            start if start == key(*border) => Ok(()),
            start => Err(format!("the border {border} is not known, but {start:?}: {found:?}")),
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut written = BTreeMap::new();
    while let Some(worker) = workers.join_next().await {
        written.extend(worker.unwrap());
    }
    // All stores have all regions, and the same.
    for place in 0..3 {
        until(async || match regions(&cluster, place) == regions(&cluster, 0) {
            true if regions(&cluster, place).len() == 17 => Ok(()),
            _ => Err(format!("store {place} has {:?}", regions(&cluster, place))),
        })
        .await;
    }
    let fresh = client(&endpoints).await;
    let rows = fresh.scan(Scan { limit: 100_000, ..Scan::default() }).await.unwrap();
    assert_eq!(rows, written.into_iter().collect::<Vec<_>>());
    assert_eq!(fresh.regions().await.unwrap().len(), 17);
    let counts = (0..3).map(|place| cluster.node(place).unwrap().router().counts());
    let rerouted: u64 = counts.map(|counts: RouterStats| counts.rerouted).sum();
    println!("{rerouted} requests were rerouted");
    cluster.shutdown().await.unwrap();
}
