//! Regions that split while clients work: on three stores in one process, and on three processes
//! that are killed. No error reaches a client, and nothing acknowledged is lost.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, Observer, Scan};
use flotilla_node::router::{RequestError, RouteChange, RouterStats};
use flotilla_proto::kvrpcpb::{Context, RawGetRequest};
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{
    ErrorType, GetMembersRequest, GetOperatorRequest, OperatorStatus, ScatterRegionRequest,
    SplitAndScatterRegionsRequest,
};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_region::{Descriptor, RegionId, Reject, Space};
use load::Load;
use processes::{Processes, until};
use tokio::task::JoinSet;
use tokio::time::timeout;

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

/// The ids and borders of the regions on a store, as it says itself.
async fn seen(endpoint: &str) -> Vec<(Bytes, u64)> {
    let observer = Observer::new(endpoint, Config::default()).unwrap();
    let replicas = observer.regions().await.unwrap_or_default();
    let regions = replicas.into_iter().filter_map(|replica| replica.region);
    let mut seen: Vec<_> = regions.map(|region| (region.start_key, region.id)).collect();
    seen.sort();
    seen
}

/// Splits the region that holds `key` at `key`, wherever it is led.
async fn split_at(cluster: &Playground, key: &Bytes) -> Vec<Descriptor> {
    let mut made = None;
    until(async || {
        for node in (0..3).filter_map(|place| cluster.node(place)) {
            let router = node.router();
            let Some(region) = router.locate(Space::Raw, key) else { continue };
            if router.leads(region.id) {
                let split = router.split(region.id, std::slice::from_ref(key), "test").await;
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

/// Many borders take several splits. The next one begins when all parts of the last one are led.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_is_split_again_once_its_new_parts_are_led() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 1;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let mut changes = None;
    until(async || {
        let places = (0..3).filter_map(|place| cluster.node(place));
        let mut routers = places.map(flotilla_node::Node::router);
        let is_leader = |router: &&flotilla_node::router::Router| {
            router.locate(Space::Raw, &key(0)).is_some_and(|region| router.leads(region.id))
        };
        let router = routers.find(is_leader).ok_or("no store leads the region")?;
        let region = router.locate(Space::Raw, &key(0)).unwrap();
        // An attempt that fails half way has made some of the splits.
        changes.get_or_insert_with(|| router.changes());
        let keys: Vec<_> = (1..=60).map(key).collect();
        let split = router.split(region.id, &keys, "test").await;
        split.map(drop).map_err(|error| format!("{error:?}"))
    })
    .await;
    let (mut splits, mut leaderless) = (0, BTreeSet::new());
    let mut changes = changes.unwrap();
    // A store that does not lead any more hears of the last one a moment later.
    while splits < 4 {
        match timeout(PATIENCE, changes.recv()).await.expect("four splits").unwrap() {
            RouteChange::Ranges { ranges: parts, .. } => {
                assert!(leaderless.is_empty(), "{leaderless:?} are not led when others come");
                splits += 1;
                // The region itself is the first.
                leaderless.extend(parts[1..].iter().map(|part| part.id));
            }
            RouteChange::Role(role) if role.leader.is_some() => {
                leaderless.remove(&role.region);
            }
            RouteChange::Role(_) | RouteChange::Ended(_) => {}
        }
    }
    let is_split = |change: &RouteChange| matches!(change, RouteChange::Ranges { .. });
    let more = std::iter::from_fn(|| changes.try_recv().ok()).find(is_split);
    assert!(more.is_none(), "{more:?} is a fifth split");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_store_is_killed_after_a_split_and_nothing_is_lost() {
    let mut cluster = Processes::start(3, 1).await;
    let load = Load::start(8, cluster.endpoints()).await;
    let operator = client(cluster.endpoints()).await;
    for kill in 0..6u8 {
        let place = usize::from(kill) % 3;
        load.progress(100).await;
        // At and between the keys that are written.
        let border = Bytes::from(vec![0x10 + 0x20 * kill]);
        let region = operator.region_of(border.clone()).await.unwrap().region.id;
        let parts = operator.split_region(region, [border.clone()]).await.unwrap();
        assert_eq!((parts.len(), &parts[1].start_key), (2, &border));
        // At once: no checkpoint has the new rows.
        cluster.kill(place);
        load.progress(100).await;
        cluster.restart(place);
        cluster.ready().await;
        until(async || {
            let (restarted, other) = (
                seen(&cluster.endpoints()[place]).await,
                seen(&cluster.endpoints()[(place + 1) % 3]).await,
            );
            match restarted == other && restarted.len() == 3 + usize::from(kill) {
                true => Ok(()),
                false => Err(format!("{restarted:?} is not {other:?}")),
            }
        })
        .await;
        load.next_round();
    }
    load.progress(100).await;
    assert_eq!(operator.regions().await.unwrap().len(), 7);
    println!("{}", load.end(cluster.endpoints()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_behind_hears_of_all_parts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    (settings.stores, settings.common.regions) = (1, 1);
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let client = client(&cluster.endpoints()).await;
    let before = client.region_of("a").await.unwrap();
    client.put("a", "1").await.unwrap();
    let id = before.region.id;
    // More borders than one split takes.
    let keys: Vec<_> = (1..=20).map(key).collect();
    let parts = client.split_region(id, keys.clone()).await.unwrap();
    let borders: Vec<_> = parts.iter().skip(1).map(|part| part.start_key.clone()).collect();
    assert_eq!(borders, keys);
    assert_eq!(parts.last().unwrap().id, id, "the last part keeps the id");
    // Placement hears of the last parts by a report of their leader.
    until(async || {
        let known = client.regions().await.unwrap();
        match known.iter().map(|it| it.region.clone()).collect::<Vec<_>>() {
            known if known == parts => Ok(()),
            known => Err(format!("{known:?} is not {parts:?}")),
        }
    })
    .await;

    let mut store =
        TikvClient::connect(format!("http://{}", cluster.endpoints()[0])).await.unwrap();
    let context = Context {
        region_id: id,
        region_epoch: before.region.region_epoch,
        peer: before.leader,
        ..Context::default()
    };
    let request = RawGetRequest { context: Some(context), key: "a".into(), ..Default::default() };
    let answer = store.raw_get(request).await.unwrap().into_inner();
    let told = answer.region_error.unwrap().epoch_not_match.unwrap().current_regions;
    assert_eq!(told, parts[parts.len() - 16..], "those next to the region, at most 16");

    // Halves, by the bytes that are there.
    for number in 0..1_000 {
        client.put(format!("z{number:04}"), vec![7; 100]).await.unwrap();
    }
    let halves = client.split_region(id, []).await.unwrap();
    let border = &halves[1].start_key[..];
    assert!(border > &b"z03"[..] && border < &b"z07"[..], "{border:?}");
    // A border that is there already is no split.
    let again = client.split_region(id, [halves[1].start_key.clone()]).await.unwrap();
    assert_eq!(again, halves[1..]);
    let foreign = client.split_region(id, ["a".into()]).await.unwrap_err();
    assert!(foreign.to_string().contains("is not in region"), "{foreign}");
    let few = client.split_region(parts[0].id, []).await.unwrap_err();
    assert!(few.to_string().contains("too few rows"), "{few}");
    let router = cluster.node(0).unwrap().router();
    let system = router.split(RegionId(1), &["m".into()], "test").await;
    assert_eq!(system, Err(RequestError::Rejected(Reject::RegionNotFound(RegionId(1)))));
    cluster.shutdown().await.unwrap();
}

/// A client that is about to load much names the borders, and waits as TiKV's clients do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_are_split_and_scattered_for_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    (settings.common.regions, settings.common.split.automatic) = (1, false);
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let client = client(&cluster.endpoints()).await;
    client.put(key(0), "a").await.unwrap();
    let mut pd = pd_leader(&cluster).await;
    let split_keys: Vec<Bytes> = (1..=9).map(key).collect();
    let request = SplitAndScatterRegionsRequest { split_keys, ..Default::default() };
    let made = pd.split_and_scatter_regions(request).await.unwrap().into_inner();
    assert_eq!((made.split_finished_percentage, made.regions_id.len()), (100, 9));
    assert_eq!(made.scatter_finished_percentage, 100);
    until(async || {
        for region_id in &made.regions_id {
            let request = GetOperatorRequest { region_id: *region_id, ..Default::default() };
            let operator = pd.clone().get_operator(request).await.unwrap().into_inner();
            if operator.desc == "scatter-region" && operator.status() == OperatorStatus::Running {
                return Err(format!("region {region_id} is being scattered"));
            }
        }
        // Those of placement and of the keys before the first border count as well.
        let mut led = [0, 1, 2].map(|place| {
            let router = cluster.node(place).unwrap().router();
            router.descriptors().iter().filter(|region| router.leads(region.id)).count()
        });
        led.sort_unstable();
        if led == [3, 4, 4] { Ok(()) } else { Err(format!("stores lead {led:?}")) }
    })
    .await;
    let regions_id = [made.regions_id.clone(), vec![1 << 40]].concat();
    let request = ScatterRegionRequest { regions_id, retry_limit: 1, ..Default::default() };
    let scattered = pd.scatter_region(request).await.unwrap().into_inner();
    assert_eq!((scattered.finished_percentage, scattered.failed_regions_id), (90, vec![1 << 40]));
    let request = ScatterRegionRequest { region_id: 1 << 40, retry_limit: 1, ..Default::default() };
    let one = pd.scatter_region(request).await.unwrap().into_inner();
    assert_eq!(one.header.unwrap().error.unwrap().r#type(), ErrorType::RegionNotFound);
    let request = GetOperatorRequest { region_id: 1 << 40, ..Default::default() };
    let unknown = pd.get_operator(request).await.unwrap().into_inner();
    assert_eq!(unknown.header.unwrap().error.unwrap().r#type(), ErrorType::RegionNotFound);
    cluster.shutdown().await.unwrap();
}

/// The PD service where it leads.
async fn pd_leader(cluster: &Playground) -> PdClient<tonic::transport::Channel> {
    let endpoint = format!("http://{}", cluster.endpoints()[0]);
    let mut any = PdClient::connect(endpoint).await.unwrap();
    let members = any.get_members(GetMembersRequest::default()).await.unwrap().into_inner();
    let url = members.leader.unwrap().client_urls.remove(0);
    PdClient::connect(url).await.unwrap()
}
