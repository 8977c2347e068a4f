//! `UnsafeDestroyRange` in a cluster of three stores with several regions: a store that is asked
//! deletes the range in all of its regions, whoever leads them, and says so if it cannot.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config};
use flotilla_proto::kvrpcpb::{Context, UnsafeDestroyRangeRequest};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(60);
/// Borders of a split beside those of the start, which are at each quarter of the first byte.
const SPLITS: [u8; 3] = [0x10, 0x50, 0xa0];

/// All keys of the test: one for each first byte.
fn keys() -> impl Iterator<Item = Bytes> {
    (0..=255u8).map(|first| Bytes::from(vec![first, 1]))
}

async fn fill(client: &Client) {
    let pairs = keys().map(|key| (key, Bytes::from("value")));
    client.batch_put(pairs).await.unwrap();
}

/// The first bytes of the keys that are there.
async fn left(client: &Client) -> BTreeSet<u8> {
    let found = client.batch_get(keys()).await.unwrap();
    (0..=255).zip(found).filter_map(|(first, value)| value.map(|_| first)).collect()
}

/// Asks one store. The error of the answer.
async fn destroy(
    endpoint: &str,
    (start, end): (&[u8], &[u8]),
    context: Context,
) -> Result<String, tonic::Status> {
    let mut store = TikvClient::connect(format!("http://{endpoint}")).await.unwrap();
    let request = UnsafeDestroyRangeRequest {
        context: Some(context),
        start_key: Bytes::copy_from_slice(start),
        end_key: Bytes::copy_from_slice(end),
    };
    let asked = tokio::time::timeout(PATIENCE, store.unsafe_destroy_range(request));
    let answer = asked.await.expect("the call ends")?.into_inner();
    assert_eq!(answer.region_error, None);
    Ok(answer.error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_destroyed_in_all_regions_by_any_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 4;
    let mut cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let config = Config { deadline: PATIENCE, ..Config::default() };
    let client = Client::connect(&endpoints, config).await.unwrap();
    for border in SPLITS {
        let region = client.region_of(vec![border]).await.unwrap();
        client.split_region(region.region.id, [Bytes::from(vec![border])]).await.unwrap();
    }
    let all: BTreeSet<u8> = (0..=255).collect();
    let any = Context::default;

    // One store is asked, which leads some of the regions at most; then another.
    let ranges: [(&[u8], &[u8], std::ops::RangeInclusive<u8>); 5] = [
        (b"\x20", b"\x30", 0x20..=0x2f),
        (b"\x08", b"\xb0", 0x08..=0xaf),
        (b"\x90", b"", 0x90..=0xff),
        (b"", b"\x60\x01", 0x00..=0x5f),
        (b"", b"", 0x00..=0xff),
    ];
    for (place, (start, end, gone)) in ranges.into_iter().enumerate() {
        fill(&client).await;
        let endpoint = &endpoints[place % endpoints.len()];
        assert_eq!(destroy(endpoint, (start, end), any()).await.unwrap(), "");
        let expected: BTreeSet<u8> =
            all.iter().copied().filter(|first| !gone.contains(first)).collect();
        assert_eq!(left(&client).await, expected, "{gone:x?} by {endpoint}");
    }

    // Nothing, and what is not for this cluster or this version.
    fill(&client).await;
    for (start, end) in [(&b"\x30"[..], &b"\x20"[..]), (b"\x30", b"\x30")] {
        assert_eq!(destroy(&endpoints[0], (start, end), any()).await.unwrap(), "");
    }
    let foreign = Context { cluster_id: 4711, ..any() };
    let refused = destroy(&endpoints[0], (b"", b""), foreign).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let version = Context { api_version: 2, ..any() };
    let refused = destroy(&endpoints[0], (b"", b""), version).await.unwrap();
    assert!(refused.contains("Api version"), "{refused}");
    let refused = destroy(&endpoints[0], (&[7; 9000], b""), any()).await.unwrap();
    assert!(refused.contains("max key size exceeded"), "{refused}");
    assert_eq!(left(&client).await, all);

    // All stores at once, as clients ask.
    let range: (&[u8], &[u8]) = (b"\x40", b"\xc0");
    let ask = |place: usize| destroy(&endpoints[place], range, any());
    let (one, two, three) = tokio::join!(ask(0), ask(1), ask(2));
    assert_eq!([one.unwrap(), two.unwrap(), three.unwrap()], [""; 3]);
    let expected: BTreeSet<u8> =
        all.iter().copied().filter(|it| !(0x40..0xc0).contains(it)).collect();
    assert_eq!(left(&client).await, expected);

    // Without one store the others do it. Without two nobody can, and it is said in time.
    fill(&client).await;
    cluster.abandon(2).await;
    assert_eq!(destroy(&endpoints[0], range, any()).await.unwrap(), "");
    assert_eq!(left(&client).await, expected);
    cluster.abandon(1).await;
    let soon = Context { max_execution_duration_ms: 1500, ..any() };
    let error = destroy(&endpoints[0], range, soon).await.unwrap();
    assert!(error.contains("was not done in time"), "{error}");
    cluster.shutdown().await.unwrap();
}
