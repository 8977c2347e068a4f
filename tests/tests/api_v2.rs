//! API V2 with TiKV's client for Rust: keyspaces apart from each other, a region that splits and
//! stores that are killed under its requests; and borders on the wire, of both versions.
//!
//! Two bugs of the client are kept out of the way: the one with scans that reach the last region
//! (`clients.rs`), for the keyspaces end before it; and a scan is not tried again when the store
//! that it asks is gone, so all regions of one have just been asked for something else.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, RequestApi, Scan, StoreOperator};
use flotilla_identity::ApiVersion;
use flotilla_proto::keyspacepb::keyspace_client::KeyspaceClient;
use flotilla_proto::keyspacepb::{GetAllKeyspacesRequest, LoadKeyspaceRequest};
use flotilla_proto::kvrpcpb::{
    self, Context, RawGetRequest, RawPutRequest, RawScanRequest, SplitRegionRequest,
};
use flotilla_proto::metapb;
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{
    BatchScanRegionsRequest, ErrorType, GetMembersRequest, GetRegionByIdRequest, GetRegionRequest,
    KeyRange, QueryRegionRequest, ScanRegionsRequest, SplitRegionsRequest,
};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tempfile::TempDir;
use tikv_client::{Config, RawClient};
use tokio::sync::watch;
use tonic::Code;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(60);
/// Behind all keys of a round.
const END: &[u8] = b"f~";
/// How long the client does not connect to placement again, and a bit.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(1_100);

/// Key of the user in the keyspace with this id.
fn whole(keyspace: u8, key: &[u8]) -> Bytes {
    [&[b'r', 0, 0, keyspace][..], key].concat().into()
}

/// The memcomparable encoding, by its definition, of a key with at most seven bytes.
fn encoded(key: &[u8]) -> Bytes {
    assert!(key.len() < 8);
    let zeros = vec![0; 8 - key.len()];
    [key, &zeros, &[255 - zeros.len() as u8]].concat().into()
}

async fn start(dir: &TempDir, api: ApiVersion, regions: u64) -> Playground {
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.api = Some(api);
    settings.common.regions = regions;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    cluster
}

/// The place of the store that leads placement.
async fn placement_leader(endpoints: &[String]) -> usize {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        for endpoint in endpoints {
            let Ok(mut pd) = PdClient::connect(format!("http://{endpoint}")).await else {
                continue;
            };
            let Ok(members) = pd.get_members(GetMembersRequest::default()).await else { continue };
            let leader = members.into_inner().leader.unwrap_or_default();
            let urls = leader.client_urls;
            let is_it = |endpoint: &String| urls.iter().any(|url| url.ends_with(endpoint.as_str()));
            if let Some(place) = endpoints.iter().position(is_it) {
                return place;
            }
        }
    }
    panic!("no store leads placement");
}

async fn pd(endpoints: &[String]) -> PdClient<Channel> {
    let leader = placement_leader(endpoints).await;
    PdClient::connect(format!("http://{}", endpoints[leader])).await.unwrap()
}

/// The place of the store that leads the region of an encoded key.
async fn leader_of(endpoints: &[String], encoded_key: Bytes) -> usize {
    let request = GetRegionRequest { region_key: encoded_key, ..Default::default() };
    let found = pd(endpoints).await.get_region(request).await.unwrap().into_inner();
    // Ids are given in the order of the list.
    found.leader.unwrap().store_id as usize - 1
}

async fn create_keyspace(endpoints: &[String], name: &str) -> Result<u32, String> {
    let config = flotilla_client::Config::default();
    loop {
        for endpoint in endpoints {
            let operator = StoreOperator::new(endpoint, &config).unwrap();
            let response = operator.create_keyspace(name.to_owned()).await.unwrap();
            match response {
                _ if response.is_led_elsewhere => {}
                _ if response.refusal.is_empty() => return Ok(response.id),
                _ => return Err(response.refusal),
            }
        }
    }
}

async fn split_at(endpoints: &[String], keys: &[Bytes]) {
    let split_keys = keys.iter().map(|key| encoded(key)).collect();
    let request = SplitRegionsRequest { split_keys, ..Default::default() };
    let split = pd(endpoints).await.split_regions(request).await.unwrap().into_inner();
    assert_eq!((split.finished_percentage, split.regions_id.len()), (100, keys.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_client_does_everything_in_keyspaces_of_their_own() {
    let dir = TempDir::new().unwrap();
    let cluster = start(&dir, ApiVersion::V2, 3).await;
    let endpoints = cluster.endpoints();
    assert_eq!(create_keyspace(&endpoints, "orders").await, Ok(1));
    assert_eq!(create_keyspace(&endpoints, "stock").await, Ok(2));
    let again = create_keyspace(&endpoints, "orders").await;
    assert_eq!(again, Err("keyspace already exists".to_owned()));
    let illegal = create_keyspace(&endpoints, "a/b").await.unwrap_err();
    assert!(illegal.starts_with("illegal keyspace name a/b"), "{illegal}");
    split_at(&endpoints, &[whole(1, b""), whole(1, b"k"), whole(3, b"")]).await;

    let connect = |config: Config| RawClient::new_with_config(endpoints.clone(), config);
    let default = connect(Config::default().with_default_keyspace()).await.unwrap();
    let orders = connect(Config::default().with_keyspace("orders")).await.unwrap();
    let missing = connect(Config::default().with_keyspace("none")).await;
    assert!(missing.is_err_and(|error| error.to_string().contains("keyspace does not exist")));
    for round in 0..2 {
        one_round(&default, round).await.unwrap();
        one_round(&orders, round).await.unwrap();
    }
    // The same keys, and nothing of each other; the empty one is a key.
    for key in ["", "a", "z"] {
        default.put(key.to_owned(), "default").await.unwrap();
        orders.put(key.to_owned(), "orders").await.unwrap();
    }
    for (client, value) in [(&default, "default"), (&orders, "orders")] {
        let found = client.scan(.., 100).await.unwrap();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|pair| pair.1 == value.as_bytes()), "{found:?}");
        let found = client.scan_reverse("a".to_owned().."k".to_owned(), 100).await.unwrap();
        assert_eq!(found.len(), 1, "in {value}");
    }
    default.delete_range(..).await.unwrap();
    assert_eq!(default.scan(.., 100).await.unwrap(), []);
    assert_eq!(orders.scan(.., 100).await.unwrap().len(), 3);

    // Our own client, with whole keys.
    let config = flotilla_client::Config { api: RequestApi::V2, ..Default::default() };
    let own = Client::connect(&endpoints, config).await.unwrap();
    let rows = own.scan(Scan { limit: 10, ..Scan::default() }).await.unwrap();
    let keys: Vec<_> = rows.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [whole(1, b""), whole(1, b"a"), whole(1, b"z")]);
    let region = own.region_of(whole(1, b"a")).await.unwrap().region;
    assert_eq!((region.start_key, region.end_key), (whole(1, b""), whole(1, b"k")));
    let parts = own.split_region(region.id, [whole(1, b"c")]).await.unwrap();
    assert_eq!(parts[0].end_key, whole(1, b"c"));
    own.delete_range("", "").await.unwrap();
    assert_eq!(orders.scan(.., 100).await.unwrap(), []);
}

/// A scan that finds less than its limit goes on from region to region until one ends with the
/// keyspace. Downwards the client can do that within one region only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_client_scans_to_the_end_of_its_keyspace_in_both_directions() {
    let dir = TempDir::new().unwrap();
    let cluster = start(&dir, ApiVersion::V2, 1).await;
    let endpoints = cluster.endpoints();
    assert_eq!(create_keyspace(&endpoints, "orders").await, Ok(1));
    for config in
        [Config::default().with_default_keyspace(), Config::default().with_keyspace("orders")]
    {
        let client = RawClient::new_with_config(endpoints.clone(), config).await.unwrap();
        for key in ["a", "k", "z"] {
            client.put(key.to_owned(), key).await.unwrap();
        }
        assert_eq!(client.scan("b".to_owned().., 100).await.unwrap().len(), 2);
        let down = client.scan_reverse("b".to_owned().., 100).await.unwrap();
        let values: Vec<_> = down.iter().map(|pair| pair.1.as_slice()).collect();
        assert_eq!(values, [&b"z"[..], b"k"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_client_does_not_notice_splits_and_killed_stores_under_v2() {
    let dir = TempDir::new().unwrap();
    let mut cluster = start(&dir, ApiVersion::V2, 2).await;
    let endpoints = cluster.endpoints();
    split_at(&endpoints, &[whole(1, b"")]).await;
    let config = Config::default().with_default_keyspace();
    let client = RawClient::new_with_config(endpoints.clone(), config).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (done, mut rounds) = watch::channel(0);
    let worker = tokio::spawn({
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        async move {
            let mut round = 0;
            while !stop.load(Ordering::SeqCst) {
                one_round(&client, round).await.unwrap_or_else(|error| panic!("{round}: {error}"));
                client.put(kept(round), round.to_be_bytes().to_vec()).await.unwrap();
                round += 1;
                done.send_replace(round);
            }
            round
        }
    });
    some_more(&mut rounds, 2).await;
    for (place, border) in ["4", "8", "c"].into_iter().enumerate() {
        split_at(&endpoints, &[whole(0, border.as_bytes())]).await;
        some_more(&mut rounds, 2).await;
        let connected = Instant::now();
        while connected.elapsed() < RECONNECT_INTERVAL {
            some_more(&mut rounds, 1).await;
        }
        let leader = match place {
            0 => placement_leader(&endpoints).await,
            _ => leader_of(&endpoints, encoded(&whole(0, border.as_bytes()))).await,
        };
        cluster.abandon(leader).await;
        some_more(&mut rounds, 2).await;
        cluster.restart(leader).await.unwrap();
        cluster.ready(PATIENCE).await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let count = worker.await.unwrap();
    for round in 0..count {
        let value = client.get(kept(round)).await.unwrap();
        assert_eq!(value, Some(round.to_be_bytes().to_vec()), "round {round} of {count}");
    }
}

fn kept(round: u64) -> Vec<u8> {
    format!("{:x}-kept-{round:06}", round % 16).into_bytes()
}

/// Waits until the worker has finished `count` more rounds, or has failed.
async fn some_more(rounds: &mut watch::Receiver<u64>, count: u64) {
    let goal = *rounds.borrow() + count;
    let reached = tokio::time::timeout(PATIENCE, rounds.wait_for(|&done| done >= goal)).await;
    reached.expect("the worker hangs").expect("the worker goes on");
}

/// Every kind of request once, on keys over all of the keyspace.
async fn one_round(client: &RawClient, round: u64) -> tikv_client::Result<()> {
    let keys: Vec<_> = (0..16).map(|at| format!("{at:x}-{round:06}").into_bytes()).collect();
    let value = |key: &[u8]| [b"value of ", key].concat();
    for key in &keys {
        client.put(key.clone(), value(key)).await?;
        assert_eq!(client.get(key.clone()).await?, Some(value(key)));
    }
    let pairs: Vec<_> =
        keys.iter().map(|key| (key.clone(), [value(key), value(key)].concat())).collect();
    client.batch_put(pairs.clone()).await?;
    let found = client.batch_get(keys.clone()).await?.into_iter();
    let mut found: Vec<(Vec<u8>, Vec<u8>)> =
        found.map(|pair| (Vec::from(pair.0), pair.1)).collect();
    found.sort();
    assert_eq!(found, pairs);
    let all = client.scan(b"0".to_vec()..END.to_vec(), 10_000).await?;
    let all: Vec<Vec<u8>> = all.into_iter().map(|pair| Vec::from(pair.0)).collect();
    assert!(all.is_sorted() && keys.iter().all(|key| all.contains(key)), "{} rows", all.len());
    let few = client.scan_keys(b"0".to_vec()..END.to_vec(), 5).await?;
    assert_eq!(few.into_iter().map(Vec::from).collect::<Vec<_>>(), all[..5]);
    let ranges = keys[..2].iter().map(|key| key.clone()..[&key[..], b"~"].concat());
    assert_eq!(client.batch_scan(ranges, 10).await?.len(), 2);

    client.put_with_ttl(keys[6].clone(), "for a while", 1_000).await?;
    let left = client.get_key_ttl_secs(keys[6].clone()).await?.unwrap();
    assert!((1..=1_000).contains(&left), "{left} s");
    let with_ttl = [(keys[7].clone(), "v"), (keys[8].clone(), "w")];
    client.batch_put_with_ttl(with_ttl, [0, 2_000]).await?;
    assert_eq!(client.get_key_ttl_secs(keys[7].clone()).await?, Some(0));
    assert!(client.get_key_ttl_secs(keys[8].clone()).await?.unwrap() > 1_000);

    let now = client.get(keys[3].clone()).await?;
    let atomic = client.with_atomic_for_cas();
    // A swap that the client repeats on its own finds its own value, so the value is what counts.
    atomic.compare_and_swap(keys[3].clone(), now, b"swapped".to_vec()).await?;
    assert_eq!(client.get(keys[3].clone()).await?, Some(b"swapped".to_vec()));

    client.delete(keys[0].clone()).await?;
    assert_eq!(client.get(keys[0].clone()).await?, None);
    client.batch_delete(keys[1..5].to_vec()).await?;
    for key in &keys[5..] {
        client.delete_range(key.clone()..[&key[..], b"~"].concat()).await?;
    }
    assert_eq!(client.batch_get(keys).await?.len(), 0);
    Ok(())
}

/// A context for the region, as this version says it.
fn context(region: &metapb::Region, api: kvrpcpb::ApiVersion) -> Option<Context> {
    let (region_id, region_epoch) = (region.id, region.region_epoch);
    Some(Context { region_id, region_epoch, api_version: api.into(), ..Context::default() })
}

async fn region_of(endpoints: &[String], region_key: Bytes) -> metapb::Region {
    let request = GetRegionRequest { region_key, ..Default::default() };
    pd(endpoints).await.get_region(request).await.unwrap().into_inner().region.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borders_are_encoded_in_every_answer_of_placement() {
    let dir = TempDir::new().unwrap();
    let cluster = start(&dir, ApiVersion::V2, 1).await;
    let endpoints = cluster.endpoints();
    let (b, m) = (whole(0, b"b"), whole(0, b"m"));
    split_at(&endpoints, &[b.clone(), m.clone()]).await;
    let mut pd = pd(&endpoints).await;
    let is_middle = |region: Option<metapb::Region>| {
        let region = region.unwrap();
        assert_eq!((region.start_key, region.end_key), (encoded(&b), encoded(&m)));
    };
    let of = |key: &Bytes| GetRegionRequest { region_key: encoded(key), ..Default::default() };
    let found = pd.get_region(of(&whole(0, b"c"))).await.unwrap().into_inner().region;
    let region_id = found.as_ref().unwrap().id;
    is_middle(found);
    is_middle(pd.get_prev_region(of(&m)).await.unwrap().into_inner().region);
    let by_id = GetRegionByIdRequest { region_id, ..Default::default() };
    is_middle(pd.get_region_by_id(by_id).await.unwrap().into_inner().region);
    let (start_key, end_key) = (encoded(&b), encoded(&m));
    let scan = ScanRegionsRequest {
        start_key: start_key.clone(),
        end_key: end_key.clone(),
        ..Default::default()
    };
    let mut scanned = pd.scan_regions(scan).await.unwrap().into_inner();
    assert_eq!((scanned.region_metas.len(), scanned.regions.len()), (1, 1));
    is_middle(scanned.region_metas.pop());
    is_middle(scanned.regions.pop().unwrap().region);
    let ranges = vec![KeyRange { start_key, end_key }];
    let scan = BatchScanRegionsRequest { ranges, ..Default::default() };
    let mut scanned = pd.batch_scan_regions(scan).await.unwrap().into_inner().regions;
    assert_eq!(scanned.len(), 1);
    is_middle(scanned.pop().unwrap().region);
    let keys = vec![encoded(&b)];
    let query = QueryRegionRequest { keys, prev_keys: vec![encoded(&m)], ..Default::default() };
    let mut answers = pd.query_region(tokio_stream::iter([query])).await.unwrap().into_inner();
    let mut answer = answers.message().await.unwrap().unwrap();
    assert_eq!((answer.key_id_map, answer.prev_key_id_map), (vec![region_id], vec![region_id]));
    is_middle(answer.regions_by_id.remove(&region_id).unwrap().region);

    // All of them have borders, and the outer two are none.
    let all = pd.scan_regions(ScanRegionsRequest::default()).await.unwrap().into_inner().regions;
    let starts: Vec<_> = all.into_iter().map(|region| region.region.unwrap().start_key).collect();
    assert_eq!(starts, [Bytes::new(), encoded(&b), encoded(&m), encoded(&whole(1, b""))]);

    let refused = pd.get_region(GetRegionRequest { region_key: b.clone(), ..Default::default() });
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("memcomparable"), "{refused}");
    let split_keys = vec![encoded(b"r\0\x01")];
    let split = SplitRegionsRequest { split_keys, ..Default::default() };
    let refused = pd.split_regions(split).await.unwrap_err();
    assert!(refused.message().contains("too short"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_v2_refuses_other_keys_and_versions_and_encodes_borders() {
    use kvrpcpb::ApiVersion::{V1, V2};
    let dir = TempDir::new().unwrap();
    let cluster = start(&dir, ApiVersion::V2, 1).await;
    let endpoints = cluster.endpoints();
    let old = region_of(&endpoints, encoded(&whole(0, b"k"))).await;
    let leader = leader_of(&endpoints, encoded(&whole(0, b"k"))).await;
    let mut store = TikvClient::connect(format!("http://{}", endpoints[leader])).await.unwrap();
    let get =
        |context: Option<Context>, key: Bytes| RawGetRequest { context, key, ..Default::default() };
    let refused = store.raw_get(get(context(&old, V1), whole(0, b"k"))).await.unwrap();
    assert_eq!(
        refused.into_inner().error,
        "Api version in request does not match with TiKV storage, cmd: raw_get, storage: V2, \
         request: V1"
    );
    let put = RawPutRequest { context: context(&old, V2), key: "k".into(), ..Default::default() };
    assert_eq!(
        store.raw_put(put).await.unwrap().into_inner().error,
        "Key mode mismatched with the request mode, cmd: raw_put, storage: V2, key: 6B"
    );
    let scan = RawScanRequest { context: context(&old, V2), limit: 1, ..Default::default() };
    let refused = store.raw_scan(scan).await.unwrap().into_inner().region_error.unwrap().message;
    assert!(refused.ends_with("cmd: raw_scan, storage: V2, range: (None, None)"), "{refused}");

    // A split by whole keys; its answer is encoded, and so are the errors of the old version.
    let border = whole(0, b"m");
    let split = SplitRegionRequest {
        context: context(&old, V2),
        split_keys: vec![border.clone()],
        is_raw_kv: true,
        ..Default::default()
    };
    let split = store.split_region(split).await.unwrap().into_inner();
    let (left, right) = (split.left.unwrap(), split.right.unwrap());
    assert_eq!((&left.end_key, &right.start_key), (&encoded(&border), &encoded(&border)));
    let changed = store.raw_get(get(context(&old, V2), whole(0, b"k"))).await.unwrap();
    let changed = changed.into_inner().region_error.unwrap().epoch_not_match.unwrap();
    let borders = changed.current_regions.iter().map(|region| region.start_key.clone());
    assert!(borders.collect::<Vec<_>>().contains(&encoded(&border)), "{changed:?}");
    // The right half keeps the id, and is still led here.
    let foreign = store.raw_get(get(context(&right, V2), whole(0, b"k"))).await.unwrap();
    let foreign = foreign.into_inner().region_error.unwrap().key_not_in_region.unwrap();
    assert_eq!((foreign.key, foreign.start_key), (whole(0, b"k"), encoded(&border)));

    // A client of V1 has no luck anywhere.
    let client = Client::connect(
        &endpoints,
        flotilla_client::Config { deadline: Duration::from_secs(2), ..Default::default() },
    );
    assert!(client.await.unwrap().get("k").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_v1_refuses_v2_and_has_no_keyspaces() {
    let dir = TempDir::new().unwrap();
    let cluster = start(&dir, ApiVersion::V1Ttl, 1).await;
    let endpoints = cluster.endpoints();
    let region = region_of(&endpoints, Bytes::from("k")).await;
    let leader = leader_of(&endpoints, Bytes::from("k")).await;
    let mut store = TikvClient::connect(format!("http://{}", endpoints[leader])).await.unwrap();
    for (version, shown) in [(kvrpcpb::ApiVersion::V2, "V2"), (kvrpcpb::ApiVersion::V1ttl, "V1ttl")]
    {
        let context = context(&region, version);
        let get = RawGetRequest { context, key: whole(0, b"k"), ..Default::default() };
        let expected = format!(
            "Api version in request does not match with TiKV storage, cmd: raw_get, storage: \
             V1ttl, request: {shown}"
        );
        assert_eq!(store.raw_get(get).await.unwrap().into_inner().error, expected);
    }
    let placement = placement_leader(&endpoints).await;
    let address = format!("http://{}", endpoints[placement]);
    let mut keyspaces = KeyspaceClient::connect(address).await.unwrap();
    let load = LoadKeyspaceRequest { name: "DEFAULT".to_owned(), ..Default::default() };
    let answer = keyspaces.load_keyspace(load).await.unwrap().into_inner();
    let error = answer.header.unwrap().error.unwrap();
    assert_eq!((error.r#type(), answer.keyspace), (ErrorType::EntryNotFound, None));
    let all = keyspaces.get_all_keyspaces(GetAllKeyspacesRequest::default());
    assert_eq!(all.await.unwrap().into_inner().keyspaces, []);
    let refused = create_keyspace(&endpoints, "orders").await.unwrap_err();
    assert!(refused.contains("API version of this cluster is V1"), "{refused}");
}
