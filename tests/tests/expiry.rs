//! Times to live in a cluster of three stores: a row is there until its time and nowhere after it,
//! on any store and through another leader, and it leaves the disk.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, Observer, RemainingTtl, Scan};
use flotilla_proto::kvrpcpb::{
    ChecksumAlgorithm, Context, KeyRange, KvPair, RawBatchPutRequest, RawChecksumRequest,
    RawGetKeyTtlRequest, RawGetRequest,
};
use flotilla_proto::metapb;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// How far from its time a row may be gone: the log names times that are so far ahead of the clock.
const SLACK: Duration = Duration::from_millis(105);

async fn start(dir: &std::path::Path) -> (Playground, Client) {
    let mut settings = PlaygroundConfig::new(dir);
    settings.common.regions = 1;
    settings.common.limits.expiry_sweep_ms = 1_000;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let config = Config { deadline: PATIENCE, ..Config::default() };
    let client = Client::connect(&cluster.endpoints(), config).await.unwrap();
    (cluster, client)
}

async fn connect(endpoint: &str) -> TikvClient<Channel> {
    TikvClient::connect(format!("http://{endpoint}")).await.unwrap()
}

fn context(region: &metapb::Region, follower: bool) -> Context {
    Context {
        region_id: region.id,
        region_epoch: region.region_epoch,
        replica_read: follower,
        ..Context::default()
    }
}

/// Rows that expired and were removed, as all stores count them.
async fn removed(cluster: &Playground) -> u64 {
    let mut removed = 0;
    for endpoint in cluster.endpoints() {
        let stats = Observer::new(&endpoint, Config::default()).unwrap().stats().await.unwrap();
        let rows = stats.metrics.iter().find(|metric| metric.name == "rows_expired");
        removed += rows.unwrap().value;
    }
    removed
}

/// Looks until the key is gone, and checks that this is in its time. Returns how often it was seen.
async fn is_gone_in_time(
    client: &Client,
    key: &str,
    put: (Instant, Instant),
    ttl: Duration,
) -> u64 {
    let mut seen = 0;
    let mut looks = tokio::time::interval(LOOK_PAUSE);
    loop {
        looks.tick().await;
        let asked = Instant::now();
        let found = client.get(key.to_owned()).await.unwrap();
        if found.is_none() {
            assert!(put.0.elapsed() + SLACK >= ttl, "{key} is gone after {:?}", put.0.elapsed());
            return seen;
        }
        assert!(asked - put.1 <= ttl + SLACK, "{key} is there after {:?}", asked - put.1);
        seen += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_gone_in_its_time_on_every_store_and_leaves_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut cluster, client) = start(dir.path()).await;
    let begun = Instant::now();
    client.put_with_ttl("short", "v", 2).await.unwrap();
    let put = (begun, Instant::now());
    client.put_with_ttl("long", "v", 600).await.unwrap();
    client.put("ever", "v").await.unwrap();
    assert_eq!(client.ttl("ever").await.unwrap(), Some(RemainingTtl::Unlimited));
    assert_eq!(client.ttl("none").await.unwrap(), None);
    let Some(RemainingTtl::Seconds(left)) = client.ttl("long").await.unwrap() else { panic!() };
    assert!((500..=600).contains(&left), "{left} s");
    assert!(is_gone_in_time(&client, "short", put, Duration::from_secs(2)).await > 10);

    // A replica that does not lead shows no more: the leader's log has named the time.
    let region = client.region_of("short").await.unwrap().region;
    for endpoint in cluster.endpoints() {
        let request = |key: &'static str| RawGetRequest {
            context: Some(context(&region, true)),
            key: Bytes::from(key),
            ..RawGetRequest::default()
        };
        let mut store = connect(&endpoint).await;
        let short = store.raw_get(request("short")).await.unwrap().into_inner();
        assert!(short.not_found && short.region_error.is_none(), "{endpoint}: {short:?}");
        let ever = store.raw_get(request("ever")).await.unwrap().into_inner();
        assert_eq!((&ever.value[..], ever.not_found), (&b"v"[..], false), "{endpoint}");
    }
    let began = Instant::now();
    let mut looks = tokio::time::interval(LOOK_PAUSE);
    while removed(&cluster).await < 1 {
        assert!(began.elapsed() < PATIENCE, "no row was removed");
        looks.tick().await;
    }

    // Nor does the next leader.
    let led = |place: &usize| cluster.node(*place).unwrap().router().leads(region_id(&region));
    let leader = (0..3).find(led).unwrap();
    client.put_with_ttl("again", "v", 1).await.unwrap();
    cluster.abandon(leader).await;
    assert_eq!(client.get("short").await.unwrap(), None);
    let began = Instant::now();
    while client.get("again").await.unwrap().is_some() {
        assert!(began.elapsed() < PATIENCE, "the next leader shows it for ever");
        looks.tick().await;
    }
    assert_eq!(client.get("ever").await.unwrap(), Some(Bytes::from("v")));
    cluster.shutdown().await.unwrap();
}

fn region_id(region: &metapb::Region) -> flotilla_region::RegionId {
    flotilla_region::RegionId(region.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_scans_checksums_and_swaps_know_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, client) = start(dir.path()).await;
    let region = client.region_of("a").await.unwrap();
    let leads =
        |place: &usize| cluster.node(*place).unwrap().router().leads(region_id(&region.region));
    let leader = (0..3).find(leads).unwrap();
    let mut store = connect(&cluster.endpoints()[leader]).await;
    let context = Some(context(&region.region, false));
    let pair = |key: &'static str| KvPair { key: key.into(), value: "v".into() };
    let batch = |ttls: Vec<u64>| RawBatchPutRequest {
        context: context.clone(),
        pairs: vec![pair("a"), pair("b"), pair("c")],
        ttls,
        ..RawBatchPutRequest::default()
    };
    let refused = store.raw_batch_put(batch(vec![1, 2])).await.unwrap().into_inner();
    assert_eq!(refused.error, "The length of ttls does not equal to the length of pairs");
    let put = store.raw_batch_put(batch(vec![1, 0, 900])).await.unwrap().into_inner();
    assert_eq!((put.error.as_str(), put.region_error), ("", None));
    let mut ttls = vec![];
    for key in ["a", "b", "c"] {
        let request = RawGetKeyTtlRequest {
            context: context.clone(),
            key: key.into(),
            ..RawGetKeyTtlRequest::default()
        };
        ttls.push(store.raw_get_key_ttl(request).await.unwrap().into_inner().ttl);
    }
    assert!(ttls[0] <= 1 && ttls[1] == 0 && (800..=900).contains(&ttls[2]), "{ttls:?}");

    let all = || Scan { start: "a".into(), end: "d".into(), limit: 100, ..Scan::default() };
    let began = Instant::now();
    let mut looks = tokio::time::interval(LOOK_PAUSE);
    while client.scan(all()).await.unwrap().len() == 3 {
        assert!(began.elapsed() < PATIENCE, "it is scanned for ever");
        looks.tick().await;
    }
    let keys = |rows: Vec<(Bytes, Bytes)>| rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(client.scan(all()).await.unwrap()), ["b", "c"]);
    let key_only = Scan { key_only: true, ..all() };
    assert_eq!(keys(client.scan(key_only).await.unwrap()), ["b", "c"]);
    let found = client.batch_get(["a", "b", "c"].map(Bytes::from)).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
    let request = RawChecksumRequest {
        context: context.clone(),
        algorithm: ChecksumAlgorithm::Crc64Xor.into(),
        ranges: vec![KeyRange { start_key: "a".into(), end_key: "d".into() }],
    };
    let sum = store.raw_checksum(request).await.unwrap().into_inner();
    assert_eq!((sum.total_kvs, sum.total_bytes), (2, 4));

    // A value that has expired is none for a swap, and one that is swapped in may expire.
    let swap = |expected: Option<&'static str>, ttl_s| {
        let (expected, value) = (expected.map(Bytes::from), Some(Bytes::from("w")));
        client.compare_and_swap_with_ttl("a", expected, value, ttl_s)
    };
    let missed = swap(Some("v"), 0).await.unwrap();
    assert_eq!((missed.succeeded, missed.previous), (false, None));
    assert!(swap(None, 700).await.unwrap().succeeded);
    let Some(RemainingTtl::Seconds(left)) = client.ttl("a").await.unwrap() else { panic!() };
    assert!((600..=700).contains(&left), "{left} s");
    // A put without a time to live takes it away.
    client.put("a", "x").await.unwrap();
    assert_eq!(client.ttl("a").await.unwrap(), Some(RemainingTtl::Unlimited));
    cluster.shutdown().await.unwrap();
}
