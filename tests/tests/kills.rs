//! SIGKILL at random moments of what changes a cluster: splits, transfers of leadership, snapshots,
//! moves of replicas. Afterwards each region has three voters, every acknowledged write is there,
//! one order of the operations explains what clients saw, timestamps went up all the time, and no
//! id was given out twice.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod members;
mod processes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use fastrand::Rng;
use flotilla_client::{Client, Config, StoreOperator};
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{AllocIdRequest, TsoRequest};
use flotilla_proto::peers::ChangeReplicasRequest;
use load::{Load, client};
use members::Seen;
use processes::{Processes, until_within};
use tokio::task::JoinSet;

/// How many stores are killed; a variable of the environment asks for more.
const ROUNDS: u64 = 4;
const ROUNDS_VARIABLE: &str = "FLOTILLA_KILL_ROUNDS";
/// The generator's seed; a variable of the environment takes another one.
const SEED_VARIABLE: &str = "FLOTILLA_KILL_SEED";
/// Operations that are answered between the beginning of a change and the kill, at most.
const OPERATIONS_BETWEEN_MAX: u64 = 200;
/// What the stores keep of their logs for one that is away.
const LOG_KEPT_BYTES_MAX: u64 = 1 << 20;
const BULK_VALUE_BYTES: usize = 64 << 10;

/// A change of the cluster that a kill comes into.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A region is split at a random key.
    Split,
    /// A leader is handed over.
    Transfer,
    /// A store comes back that lacks what the logs of the others have no more.
    Snapshot,
    /// A replica of a region moves to the store that has none.
    Move,
}

/// All of them.
const CHANGES: [Change; 4] = [Change::Split, Change::Transfer, Change::Snapshot, Change::Move];
/// Stores, of which each region has three.
const STORES: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_are_killed_while_regions_split_and_move_leaders_change_and_snapshots_flow() {
    let variable = |name, default| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let rounds = variable(ROUNDS_VARIABLE, ROUNDS);
    let mut rng = Rng::with_seed(variable(SEED_VARIABLE, 1));
    let mut cluster = cluster();
    cluster.ready().await;
    let load = Load::start(8, cluster.endpoints()).await;
    let given = Given::watch(cluster.endpoints());
    let operator = client(cluster.endpoints()).await;
    // Writes of it may be made twice.
    let config = Config { deadline: members::PATIENCE, ..Config::default() };
    let bulk = Client::connect(cluster.endpoints(), config).await.unwrap();
    let mut kinds = vec![];
    for round in 0..rounds {
        if kinds.is_empty() {
            kinds = CHANGES.to_vec();
            rng.shuffle(&mut kinds);
        }
        let change = kinds.pop().unwrap();
        let victim = rng.usize(..STORES);
        println!("round {round}: store {victim} is killed in a {change:?}");
        let mut changes = JoinSet::new();
        match change {
            Change::Split => {
                let border = Bytes::from(vec![rng.u8(1..), rng.u8(..)]);
                let operator = operator.clone();
                changes.spawn(async move {
                    let region = operator.region_of(border.clone()).await.unwrap().region.id;
                    // Which store is asked, and when that dies, is chance.
                    let _ = operator.split_region(region, [border]).await;
                });
            }
            Change::Transfer => {
                let to = rng.u64(1..=STORES as u64);
                let endpoints = cluster.endpoints().to_vec();
                let operator = operator.clone();
                changes.spawn(async move { transfer(&operator, &endpoints, to).await });
            }
            Change::Snapshot => {
                let away = rng.usize(..STORES);
                cluster.kill(away);
                overtake(&bulk, &mut rng).await;
                cluster.restart(away);
            }
            Change::Move => {
                let (endpoints, seed) = (cluster.endpoints().to_vec(), rng.u64(..));
                changes.spawn(async move { move_replica(&endpoints, seed).await });
            }
        }
        load.progress(rng.u64(..OPERATIONS_BETWEEN_MAX)).await;
        cluster.kill(victim);
        load.progress(50).await;
        while changes.join_next().await.is_some() {}
        cluster.restart(victim);
        cluster.ready().await;
        load.next_round();
    }
    load.progress(100).await;
    until_within(members::PATIENCE, async || {
        let now = members::regions(cluster.endpoints()).await;
        // That of placement begins on all stores of the list.
        let wanted = |region: &Seen| if region.is_system { STORES } else { 3 };
        let is_whole = |region: &Seen| region.is_settled() && region.peers.len() == wanted(region);
        now.values().all(is_whole).then_some(()).ok_or_else(|| format!("{now:#?}"))
    })
    .await;
    let (timestamps, ids) = given.end().await;
    let regions = operator.regions().await.unwrap().len();
    println!("{rounds} kills, {regions} regions, {timestamps} timestamps, {ids} ids");
    println!("{}", load.end(cluster.endpoints()).await);
}

/// Stores that keep little of their logs and write roots often, so that stores which are away need
/// snapshots.
fn cluster() -> Processes {
    let mut cluster = Processes::plan(STORES, 1);
    for place in 0..STORES {
        let settings = cluster.settings(place);
        let kept = format!("[raft]\nlog_kept_bytes_max = {LOG_KEPT_BYTES_MAX}\n");
        let often = "[storage]\ncheckpoint_interval_ms = 100\n";
        cluster.configure(place, &format!("{settings}{kept}{often}"));
    }
    cluster.start_all();
    cluster
}

/// Hands the leader of one region to a store, if it can.
async fn transfer(operator: &Client, endpoints: &[String], to: u64) {
    let regions = operator.regions().await.unwrap();
    let Some(leader) = regions[0].leader else { return };
    let endpoint = &endpoints[usize::try_from(leader.store_id).unwrap() - 1];
    let store = StoreOperator::new(endpoint, &Config::default()).unwrap();
    let _ = store.transfer_leader(regions[0].region.id, Some(to)).await;
}

/// Begins to move a replica of some region to the store that has none.
async fn move_replica(endpoints: &[String], seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let regions: Vec<_> = members::regions(endpoints).await.into_iter().collect();
    let Some((region_id, region)) = rng.choice(&regions) else { return };
    let voters = region.voters();
    let Some(to) = (1..=STORES as u64).find(|store| !voters.contains(store)) else { return };
    let from = rng.choice(voters).unwrap();
    println!("region {region_id} is to move from {from} to {to}");
    let request = ChangeReplicasRequest {
        region_id: *region_id,
        add_stores: vec![to],
        remove_stores: vec![from],
    };
    for endpoint in endpoints {
        let operator = StoreOperator::new(endpoint, &Config::default()).unwrap();
        if let Ok(answer) = operator.change_replicas(request.clone()).await
            && !answer.is_led_elsewhere
        {
            println!("{answer:?}");
        }
    }
}

/// Writes more than the logs are kept for.
async fn overtake(bulk: &Client, rng: &mut Rng) {
    for number in 0..3 * LOG_KEPT_BYTES_MAX / BULK_VALUE_BYTES as u64 {
        let key = [&[rng.u8(..)][..], format!("bulk-{number}").as_bytes()].concat();
        bulk.put(key, vec![7; BULK_VALUE_BYTES]).await.unwrap();
    }
}

/// Timestamps and ids that placement gives, asked for all the time.
struct Given {
    stop: Arc<AtomicBool>,
    asker: tokio::task::JoinHandle<(u64, u64)>,
}

impl Given {
    fn watch(endpoints: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let asker = tokio::spawn(ask(endpoints.to_vec(), Arc::clone(&stop)));
        Self { stop, asker }
    }

    /// How many of each were given.
    async fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.asker.await.unwrap()
    }
}

async fn ask(endpoints: Vec<String>, stop: Arc<AtomicBool>) -> (u64, u64) {
    let (mut newest, mut ids, mut timestamps) = ((0, 0), BTreeSet::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        for endpoint in &endpoints {
            // Only the leader of placement gives any.
            while let Ok((timestamp, id)) = some_from(endpoint).await {
                assert!(timestamp > newest, "{timestamp:?} after {newest:?}");
                assert!(ids.insert(id), "id {id} was given before");
                newest = timestamp;
                timestamps += 1;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
    (timestamps, ids.len() as u64)
}

async fn some_from(endpoint: &str) -> Result<((i64, i64), u64), Box<dyn std::error::Error>> {
    let mut pd = PdClient::connect(format!("http://{endpoint}")).await?;
    let request = TsoRequest { count: 1, ..Default::default() };
    let mut stream = pd.tso(tokio_stream::iter([request])).await?.into_inner();
    let given = stream.message().await?.ok_or("the stream ended")?.timestamp.unwrap();
    let id = pd.alloc_id(AllocIdRequest::default()).await?.into_inner().id;
    Ok(((given.physical, given.logical), id))
}
