//! Stores that come back to a log that others have let go: they are brought up by snapshots, while
//! clients work. No error reaches a client, and the replicas are the same.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, Observer};
use flotilla_identity::StoreUuid;
use flotilla_node::NodeConfig;
use flotilla_proto::peers::RegionStatus;
use flotilla_region::{RegionId, Space};
use flotilla_store::{StartSeed, Store, StoreDirectory};
use flotilla_vfs::os::OsFs;
use processes::until;
use tokio::task::JoinSet;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);
const VALUE_BYTES: usize = 64 << 10;
const WRITERS: u32 = 4;

fn settings(dir: &Path) -> PlaygroundConfig {
    let mut settings = PlaygroundConfig::new(dir);
    settings.common.regions = 1;
    settings.common.split.automatic = false;
    settings.common.raft.log_kept_bytes_max = Some(1 << 20);
    settings.common.storage.checkpoint_interval_ms = 50;
    settings
}

async fn client(cluster: &Playground) -> Client {
    let config = Config { deadline: PATIENCE, ..Config::default() };
    Client::connect(&cluster.endpoints(), config).await.unwrap()
}

fn key(number: u32) -> Bytes {
    format!("key{number:06}").into()
}

/// A store's replicas, by region.
async fn replicas(endpoint: &str) -> BTreeMap<u64, RegionStatus> {
    let observer = Observer::new(endpoint, Config::default()).unwrap();
    let replicas = observer.regions().await.unwrap_or_default();
    let id = |replica: &RegionStatus| replica.region.as_ref().map_or(0, |region| region.id);
    replicas.into_iter().map(|replica| (id(&replica), replica)).collect()
}

/// A counter of a store, by its group and name.
async fn counter(endpoint: &str, group: &str, name: &str) -> u64 {
    let observer = Observer::new(endpoint, Config::default()).unwrap();
    let metrics = observer.stats().await.unwrap().metrics;
    let metric = metrics.into_iter().find(|it| it.group == group && it.name == name);
    metric.unwrap_or_else(|| panic!("there is no counter {group} {name}")).value
}

/// What each store has of a region, and what has become of snapshots.
async fn describe(cluster: &Playground, region: u64) -> String {
    let mut told = String::new();
    for endpoint in cluster.endpoints() {
        let replica = replicas(&endpoint).await.remove(&region);
        told += &format!("\n{endpoint} has {replica:?}");
        for name in ["sent", "unsent", "received", "refused"] {
            let count = counter(&endpoint, "transport", &format!("snapshots_{name}")).await;
            told += &format!(", {name} {count}");
        }
    }
    told
}

/// Writes and reads a part of the keys until it is told to stop.
async fn work(client: Client, number: u32, stop: Arc<AtomicBool>) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let key = key(number + WRITERS * (round % 50));
        let value = Bytes::from(vec![(round % 251) as u8; VALUE_BYTES]);
        client.put(key.clone(), value.clone()).await.unwrap();
        assert_eq!(client.get(key).await.unwrap().as_ref(), Some(&value));
    }
}

/// Waits until no running store has the entry behind `index` of a region.
async fn log_is_let_go(cluster: &Playground, running: [usize; 2], region: u64, index: u64) {
    until(async || {
        for place in running {
            let replicas = replicas(&cluster.endpoints()[place]).await;
            let first = replicas.get(&region).map_or(0, |replica| replica.log_first);
            if first <= index + 1 {
                return Err(format!("store {place} has region {region} from {first}"));
            }
        }
        Ok(())
    })
    .await;
}

/// Waits until all stores have the same regions, each applied as far as on the first.
async fn all_are_level(cluster: &Playground) {
    until(async || {
        let mut seen = Vec::new();
        for endpoint in cluster.endpoints() {
            let replicas = replicas(&endpoint).await;
            let ends = replicas.into_iter().map(|(id, it)| (id, it.applied, it.log_last));
            seen.push(ends.collect::<Vec<_>>());
        }
        match seen.iter().all(|ends| *ends == seen[0]) {
            true => Ok(()),
            false => Err(format!("{seen:?}")),
        }
    })
    .await;
}

/// The hashes of all regions of a store that does not run.
fn digests(dir: &Path, place: usize) -> Vec<(RegionId, u64)> {
    let seed = StartSeed { uuid: StoreUuid(1), nonce: 4 };
    let config = NodeConfig::default().storage.store();
    let dir = dir.join(format!("s{}", place + 1));
    let directory = StoreDirectory::open(Arc::new(OsFs::new()), &dir, config, seed).unwrap();
    let (store, _) = Store::start(directory).unwrap();
    store.check().unwrap();
    let regions = store.descriptors().unwrap().into_iter().map(|region| region.id);
    // Applied indexes differ by the entries of an election.
    regions.map(|region| (region, store.region_digest(region).unwrap().1)).collect()
}

async fn end(cluster: Playground, dir: &Path) {
    all_are_level(&cluster).await;
    cluster.shutdown().await.unwrap();
    let first = digests(dir, 0);
    assert!(!first.is_empty());
    for place in 1..3 {
        // The rows of the system region go on while stores stop.
        let data = |digests: &[(RegionId, u64)]| digests[1..].to_vec();
        assert_eq!(data(&digests(dir, place)), data(&first), "store {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_away_comes_back_by_a_snapshot_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&settings(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let client = client(&cluster).await;
    let region = client.region_of(key(0)).await.unwrap().region.id;
    let (stop, mut workers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for number in 0..WRITERS {
        workers.spawn(work(client.clone(), number, Arc::clone(&stop)));
    }
    cluster.stop(2).await.unwrap();
    // The store went on until its leaders were handed over: it has at most what the others have.
    let mut away = 0;
    for place in 0..2 {
        away = away.max(replicas(&cluster.endpoints()[place]).await[&region].applied);
    }
    log_is_let_go(&cluster, [0, 1], region, away).await;
    cluster.restart(2).await.unwrap();
    let endpoint = cluster.endpoints()[2].clone();
    until(async || match counter(&endpoint, "transport", "snapshots_received").await {
        0 => Err(format!("no snapshot has come: {}", describe(&cluster, region).await)),
        _ => Ok(()),
    })
    .await;
    // Installed, and caught up with the log behind it.
    let now = replicas(&cluster.endpoints()[0]).await[&region].applied;
    until(async || match replicas(&endpoint).await.get(&region) {
        Some(replica) if replica.applied >= now => Ok(()),
        found => Err(format!("entry {now} is not applied: {found:?}")),
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    end(cluster, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_was_made_while_a_store_was_away_reaches_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&settings(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let client = client(&cluster).await;
    let parent = client.region_of(key(0)).await.unwrap().region.id;
    for number in 0..20 {
        client.put(key(number), vec![1; VALUE_BYTES]).await.unwrap();
    }
    let away = replicas(&cluster.endpoints()[2]).await[&parent].applied;
    cluster.abandon(2).await;
    let parts = client.split_region(parent, [key(10)]).await.unwrap();
    let child = parts.iter().map(|part| part.id).find(|id| *id != parent).unwrap();
    // More than is kept, in both.
    for round in 0..4u8 {
        for number in 0..20 {
            client.put(key(number), vec![2 + round; VALUE_BYTES]).await.unwrap();
        }
    }
    log_is_let_go(&cluster, [0, 1], parent, away + 1).await;
    cluster.restart(2).await.unwrap();
    let endpoint = cluster.endpoints()[2].clone();
    until(async || match replicas(&endpoint).await.get(&child) {
        Some(replica) if replica.applied > 0 => Ok(()),
        found => Err(format!("the new region is there as {found:?}")),
    })
    .await;
    let here = cluster.node(2).unwrap().router().locate(Space::Raw, &key(0)).unwrap();
    assert_eq!(here.id, RegionId(child), "the store knows its route");
    end(cluster, dir.path()).await;
}
