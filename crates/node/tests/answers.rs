//! Every request is answered once, and no answer says more than is known: a write that may still
//! happen is never refused as if it could not.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod gate;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_identity::{SYSTEM_REGION, StoreRegistry};
use flotilla_kv::raw::{self, RawOp};
use flotilla_node::config::LimitsConfig;
use flotilla_node::router::{RequestError, Router};
use flotilla_node::service::rawkv::{RawKv, RawKvLimits, RawKvServer};
use flotilla_node::{FirstStart, Node, NodeConfig};
use flotilla_placement::rows;
use flotilla_proto::kvrpcpb::{
    Context, KvPair, RawBatchDeleteRequest, RawBatchPutRequest, RawCasRequest,
    RawDeleteRangeRequest, RawDeleteRequest, RawPutRequest, SplitRegionRequest,
};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_proto::{errorpb, metapb};
use flotilla_region::{RegionId, Reject, RequestPrecondition, Space};
use flotilla_store::ApplyOutcome;
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use gate::{Gate, PATIENCE};
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

type Told = Result<ApplyOutcome, RequestError>;

async fn start(disk: Arc<dyn FileSystem>, config: NodeConfig) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = NodeConfig {
        // Another port at each start, but the same store of the same cluster.
        initial_cluster: format!("s1={}", listener.local_addr().unwrap()),
        cluster_id: 1,
        first_start: FirstStart::New,
        data_dir: "/store".into(),
        ..config
    };
    let node = Node::start_on_disk(listener, config, disk).await.unwrap();
    for region in node.router().descriptors() {
        let mut leadership = node.router().leadership(region.id).unwrap();
        let led = leadership.wait_for(|now| now.leader.is_some());
        tokio::time::timeout(PATIENCE, led).await.expect("a leader is found").unwrap();
    }
    let is_quiet = async { while !placement_is_quiet(node.router()).await {} };
    tokio::time::timeout(PATIENCE, is_quiet).await.expect("placement writes its rows");
    node
}

/// Whether placement has written that this start is there, after which it writes nothing unasked:
/// what a test sees in the log is its own.
async fn placement_is_quiet(router: &Router) -> bool {
    tokio::task::yield_now().await;
    let Ok(view) = router.read(SYSTEM_REGION, RequestPrecondition::default(), false).await else {
        return false;
    };
    let region = view.region(SYSTEM_REGION, None).unwrap();
    let Some(row) = region.get(rows::STORES_KEY).unwrap() else { return false };
    let registry = StoreRegistry::decode(&row).unwrap();
    registry.stores.iter().all(|store| store.run.starts > 0)
        && region.get(rows::SETTINGS_KEY).unwrap().is_some()
}

fn one_region() -> NodeConfig {
    NodeConfig { regions: 1, ..NodeConfig::default() }
}

/// The key of a number in the part of the key space that begins with `first`.
fn key(first: u8, number: usize) -> Bytes {
    let mut key = vec![first];
    key.extend_from_slice(format!("{number:08}").as_bytes());
    key.into()
}

fn region_of(router: &Router, key: &[u8]) -> RegionId {
    router.locate(Space::Raw, key).unwrap().id
}

async fn propose(router: Router, key: Bytes, ops: Vec<RawOp>) -> Told {
    let region = region_of(&router, &key);
    router.propose(region, RequestPrecondition::default(), raw::encode(&ops)).await
}

async fn put(router: Router, key: Bytes, bytes: usize) -> Told {
    let value = vec![7; bytes].into();
    propose(router, key.clone(), vec![RawOp::put(key, value)]).await
}

/// Writes until it is acknowledged: the limits of these tests are short, and machines are busy.
async fn written(router: &Router, key: Bytes) {
    let tries = async { while put(router.clone(), key.clone(), 1).await.is_err() {} };
    tokio::time::timeout(PATIENCE, tries).await.expect("the disk is good");
}

async fn has(router: &Router, key: &[u8]) -> bool {
    let region = region_of(router, key);
    let read = async {
        loop {
            if let Ok(view) = router.read(region, RequestPrecondition::default(), false).await {
                return view;
            }
        }
    };
    let view = tokio::time::timeout(PATIENCE, read).await.expect("the region is led");
    view.region(region, None).unwrap().get(key).unwrap().is_some()
}

/// Waits until so many requests wait for their answers.
async fn under_way(router: &Router, count: usize) {
    let all = async {
        while router.counts().waiting < count as u64 {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, all).await;
    assert!(in_time.is_ok(), "{} of {count} requests are under way", router.counts().waiting);
}

/// The answers of all, by key; everybody must have one in time.
async fn answers(mut asked: JoinSet<(Bytes, Told)>) -> BTreeMap<Bytes, Told> {
    let mut told = BTreeMap::new();
    let all = async {
        while let Some(answer) = asked.join_next().await {
            let (key, answer) = answer.unwrap();
            told.insert(key, answer);
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, all).await;
    assert!(in_time.is_ok(), "of all that asked only {} were answered", told.len());
    told
}

/// Whether the write surely was not carried out.
fn is_refused(answer: &Told) -> bool {
    matches!(answer, Err(RequestError::Rejected(_) | RequestError::Stopping))
}

/// More than a shard takes at once, than an entry holds, than the log is given at once, and of
/// regions of two shards. Each answer names the key that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_many_proposals_at_once_are_answered_each_with_its_own() {
    const FIRSTS: [u8; 8] = [0x01, 0x21, 0x41, 0x61, 0x81, 0xa1, 0xc1, 0xe1];
    const LARGE_BYTES: usize = 1_200_000;
    let (gate, disk) = Gate::before(FaultFs::new(1));
    let mut config = NodeConfig { regions: FIRSTS.len() as u64, ..NodeConfig::default() };
    config.threads.shards = 2;
    // A request without an answer ends with an error after the test has given up.
    config.limits.request_timeout_ms = 2 * PATIENCE.as_millis() as u64;
    // The log is given more than it writes at once; then the shards leave clients waiting.
    config.limits.backlog_bytes_max = 24 << 20;
    let node = start(disk, config).await;
    let router = node.router().clone();
    // Eight times as many in one region as in the others.
    let counts = FIRSTS.map(|first| if first == FIRSTS[0] { 8000 } else { 1000 });
    for (first, count) in FIRSTS.into_iter().zip(counts) {
        let value = |key: Bytes| RawOp::put(key.clone(), key);
        let puts = (0..count).map(|number| value(key(first, number))).collect();
        let written = propose(router.clone(), key(first, 0), puts);
        tokio::time::timeout(PATIENCE, written).await.expect("all rows are written").unwrap();
    }
    let acknowledged = router.counts().writes_acknowledged;

    let _open = gate.shut();
    let mut asked = JoinSet::new();
    let (at_the_gate, asks) = (key(FIRSTS[0], 2_000_000), router.clone());
    asked.spawn(async move { (at_the_gate.clone(), put(asks, at_the_gate, 1).await) });
    gate.holds().await;
    for first in FIRSTS {
        for large in 0..3 {
            let (router, key) = (router.clone(), key(first, 1_000_000 + large));
            asked.spawn(async move { (key.clone(), put(router, key, LARGE_BYTES).await) });
        }
    }
    under_way(&router, asked.len()).await;
    for (first, count) in FIRSTS.into_iter().zip(counts) {
        for number in 0..count {
            let (router, key) = (router.clone(), key(first, number));
            let swap = RawOp::CompareAndSwap {
                key: key.clone(),
                expected: None,
                value: Some(Bytes::from_static(b"never")),
                ttl_s: 0,
            };
            asked.spawn(async move { (key.clone(), propose(router, key, vec![swap]).await) });
        }
    }
    let total = asked.len();
    under_way(&router, total).await;
    gate.open();
    for (key, answer) in answers(asked).await {
        match answer.unwrap_or_else(|error| panic!("{key:?} was not carried out: {error:?}")) {
            ApplyOutcome::Done => {}
            ApplyOutcome::Swapped { succeeded, previous } => {
                assert_eq!((succeeded, previous), (false, Some(key)), "somebody else's answer");
            }
            other => panic!("{key:?} ended as {other:?}"),
        }
    }
    let counts = router.counts();
    assert_eq!(counts.writes_acknowledged - acknowledged, total as u64);
    assert_eq!(counts.waiting, 0);
    drop(router);
    node.shutdown().await.unwrap();
}

/// A grant says how far the snapshot must have applied the region, and the router looks. Writes are
/// under way all the time, so a snapshot that was taken before its grant is behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_next_to_writes_get_what_their_grants_ask_for() {
    let node = start(Arc::new(FaultFs::new(6)), one_region()).await;
    let router = node.router().clone();
    let mut asked = JoinSet::new();
    for writer in 0..4 {
        let router = router.clone();
        asked.spawn(async move {
            for number in 0..300 {
                let key = key(writer, number);
                written(&router, key.clone()).await;
                assert!(has(&router, &key).await, "{key:?} is not there");
            }
        });
    }
    while let Some(wrote) = asked.join_next().await {
        wrote.unwrap();
    }
    drop(router);
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_stop_answers_those_under_way() {
    let (gate, disk) = Gate::before(FaultFs::new(2));
    let node = start(disk, one_region()).await;
    let router = node.router().clone();
    written(&router, key(0, 0)).await;
    let _open = gate.shut();
    let mut asked = JoinSet::new();
    for number in 0..2000 {
        let (router, key) = (router.clone(), key(0, number));
        asked.spawn(async move { (key.clone(), put(router, key, 1).await) });
    }
    under_way(&router, asked.len()).await;
    let stopping = tokio::spawn(node.shutdown());
    // Reads do not wait for the disk; the first that is refused says that the end has begun.
    let region = region_of(&router, &key(0, 0));
    while router.read(region, RequestPrecondition::default(), false).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(put(router.clone(), key(1, 0), 1).await, Err(RequestError::Stopping));
    gate.open();
    let mut done = 0;
    for (key, answer) in answers(asked).await {
        assert!(!is_refused(&answer), "{key:?} was under way: {answer:?}");
        done += usize::from(answer == Ok(ApplyOutcome::Done));
    }
    // On a very busy machine the node's patience may end before the last of them is done.
    assert!(done > 0, "the node waited for nobody");
    drop(router);
    stopping.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_at_once_answers_all_and_calls_nothing_undone_that_is_done() {
    const LARGE_BYTES: usize = 600 << 10;
    let files = FaultFs::new(3);
    let (gate, disk) = Gate::before(files.clone());
    let mut config = one_region();
    config.limits.request_bytes_max = 16 << 20;
    let node = start(disk, config).await;
    let router = node.router().clone();
    written(&router, key(9, 0)).await;
    let _open = gate.shut();
    let mut asked = JoinSet::new();
    let ask = |asked: &mut JoinSet<_>, key: Bytes, bytes| {
        let router = router.clone();
        asked.spawn(async move { (key.clone(), put(router, key, bytes).await) });
    };
    ask(&mut asked, key(0, 0), 1);
    gate.holds().await;
    (0..2000).for_each(|number| ask(&mut asked, key(1, number), 1));
    under_way(&router, asked.len()).await;
    // More than may be under way; the others wait for their share.
    (0..40).for_each(|number| ask(&mut asked, key(2, number), LARGE_BYTES));
    let ending = tokio::spawn(node.abandon());
    // While the log is still about to write what it has in its hands.
    let told = answers(asked).await;
    let undecided = told.values().filter(|told| **told == Err(RequestError::Undecided)).count();
    let refused: Vec<_> = told.iter().filter(|(_, told)| is_refused(told)).collect();
    assert_eq!(undecided + refused.len(), told.len(), "acknowledged without the disk: {told:?}");
    assert!(!refused.is_empty(), "nobody was refused");
    gate.open();
    drop(router);
    ending.await.unwrap();

    let node = start(Arc::new(files), one_region()).await;
    for (key, answer) in refused {
        assert!(!has(node.router(), key).await, "{key:?} happened after {answer:?}");
    }
    // The check above would pass if nothing that was not acknowledged ever happened.
    assert!(has(node.router(), &key(0, 0)).await, "what the log had in its hands");
    node.shutdown().await.unwrap();
}

/// Requests are given up where they wait for the log, in the shard's mailbox or for room there, and
/// at once because too many wait for their part of the budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_because_it_took_too_long_never_happens() {
    const LARGE_BYTES: usize = 600 << 10;
    let (gate, disk) = Gate::before(FaultFs::new(4));
    let limits = LimitsConfig {
        request_bytes_max: 16 << 20,
        queued_count_max: 4,
        request_timeout_ms: 2000,
        mailbox_bytes_max: 1 << 20,
        backlog_bytes_max: 1 << 20,
        ..LimitsConfig::default()
    };
    let node = start(disk, NodeConfig { limits, ..one_region() }).await;
    let router = node.router().clone();
    written(&router, key(9, 0)).await;
    let _open = gate.shut();
    let mut asked = JoinSet::new();
    for number in 0..60 {
        let (router, key) = (router.clone(), key(0, number));
        asked.spawn(async move { (key.clone(), put(router, key, LARGE_BYTES).await) });
    }
    let told = answers(asked).await;
    let mut reasons = BTreeMap::<_, usize>::new();
    for answer in told.values() {
        let reason = match answer {
            Err(RequestError::Undecided) => "undecided",
            Err(RequestError::Rejected(Reject::Busy { reason })) => reason,
            other => panic!("{other:?} while the disk does nothing"),
        };
        *reasons.entry(reason).or_default() += 1;
    }
    for expected in
        ["undecided", "the shard took nothing until the deadline", "too many requests wait"]
    {
        assert!(reasons.contains_key(expected), "nobody was told `{expected}`: {reasons:?}");
    }
    gate.open();
    // The region carries out what it was given in order, so what was before this is done.
    written(&router, key(9, 1)).await;
    let mut late = 0;
    for (key, answer) in &told {
        let happened = has(&router, key).await;
        assert!(!(happened && is_refused(answer)), "{key:?} happened after {answer:?}");
        late += usize::from(happened);
    }
    assert!(late > 0, "nothing happened late, so nothing could be told wrongly");
    drop(router);
    node.shutdown().await.unwrap();
}

/// One request of each kind that writes, answered with what its answer says of the region.
async fn every_write(
    client: TikvClient<Channel>,
    context: Context,
) -> Vec<(&'static str, Option<errorpb::Error>)> {
    let key = |name: &'static str| Bytes::from_static(name.as_bytes());
    let context = Some(context);
    let pairs = vec![KvPair { key: key("batch-put"), value: key("1") }];
    let [one, two, three, four, five, six] = std::array::from_fn(|_| client.clone());
    macro_rules! told {
        ($client:ident . $call:ident ( $request:ident { $($fields:tt)* } )) => {{
            let mut client = $client;
            let context = context.clone();
            let request = $request { context, $($fields)*, ..Default::default() };
            async move { client.$call(request).await.unwrap().into_inner().region_error }
        }};
    }
    let told = tokio::join!(
        told!(one.raw_put(RawPutRequest { key: key("put"), value: key("1") })),
        told!(two.raw_batch_put(RawBatchPutRequest { pairs })),
        told!(three.raw_delete(RawDeleteRequest { key: key("delete") })),
        told!(four.raw_batch_delete(RawBatchDeleteRequest { keys: vec![key("batch-delete")] })),
        told!(five.raw_delete_range(RawDeleteRangeRequest {
            start_key: key("range-a"),
            end_key: key("range-b")
        })),
        told!(six.raw_compare_and_swap(RawCasRequest {
            key: key("swap"),
            value: key("1"),
            previous_not_exist: true
        })),
    );
    let names = ["put", "batch put", "delete", "batch delete", "delete range", "swap"];
    let told = [told.0, told.1, told.2, told.3, told.4, told.5];
    names.into_iter().zip(told).collect()
}

/// A client that does not wait any longer is told that the outcome is open, whether it said itself
/// how long it waits or the store's own limit has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_time_is_over_is_told_that_nobody_knows() {
    let (gate, disk) = Gate::before(FaultFs::new(5));
    let mut config = one_region();
    config.limits.request_timeout_ms = 1000;
    let node = start(disk, config).await;
    let router = node.router().clone();
    for name in ["delete", "batch-delete", "range-a"] {
        written(&router, Bytes::from_static(name.as_bytes())).await;
    }
    let client = TikvClient::connect(format!("http://{}", node.addr())).await.unwrap();
    let region_id = region_of(&router, b"put").0;
    let _open = gate.shut();
    for max_execution_duration_ms in [100, 0] {
        let region_epoch = Some(metapb::RegionEpoch { conf_ver: 1, version: 1 });
        let context =
            Context { region_id, region_epoch, max_execution_duration_ms, ..Default::default() };
        for (name, error) in every_write(client.clone(), context).await {
            let error = error.unwrap_or_else(|| panic!("{name}: done without the disk"));
            assert!(error.undetermined_result.is_some(), "{name}: {error:?}");
        }
    }
    gate.open();
    written(&router, key(9, 1)).await;
    for (key, expected) in [
        ("put", true),
        ("batch-put", true),
        ("delete", false),
        ("batch-delete", false),
        ("range-a", false),
        ("swap", true),
    ] {
        assert_eq!(has(&router, key.as_bytes()).await, expected, "{key} happened after all");
    }
    drop((router, client));
    node.shutdown().await.unwrap();
}

/// Puts a small value by a call that comes to the service itself, without a network between: a
/// client that sends `grpc-timeout` ends its calls by it, too. The status, if there is no answer.
async fn put_within(mut server: RawKvServer, key: Bytes, timeout: &'static str) -> Option<Code> {
    let region_epoch = Some(metapb::RegionEpoch { conf_ver: 1, version: 1 });
    let context = Some(Context { region_id: 2, region_epoch, ..Default::default() });
    let request = RawPutRequest { context, key, value: "late".into(), ..Default::default() };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap();
    let body = Bytes::from([&[0], &length.to_be_bytes()[..], &message].concat());
    let request = http::Request::post("/tikvpb.Tikv/RawPut").header("grpc-timeout", timeout);
    let request = request.body(axum::body::Body::from(body)).unwrap();
    let answering = tokio::time::timeout(PATIENCE, server.call(request));
    let Ok(answer) = answering.await.expect("the call ends");
    let status = answer.headers().get("grpc-status")?;
    Some(Code::from_bytes(status.as_bytes()))
}

/// The time of a call is over while its request waits for its turn: the client is told so, and the
/// request is not begun when its turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_beyond_the_deadline_of_its_call_never_happens() {
    const LARGE_BYTES: usize = 2 << 20;
    let (gate, disk) = Gate::before(FaultFs::new(6));
    let limits = LimitsConfig { backlog_bytes_max: 1 << 20, ..LimitsConfig::default() };
    let node = start(disk, NodeConfig { limits, ..one_region() }).await;
    let router = node.router().clone();
    let server = RawKv::new(router.clone(), RawKvLimits::default()).into_server();
    assert_eq!(put_within(server.clone(), key(0, 0), "60S").await, None, "it is served");
    assert_eq!(put_within(server.clone(), key(0, 1), "0m").await, Some(Code::DeadlineExceeded));
    let _open = gate.shut();
    // While the log has so much to do, its shard takes no more requests.
    let large = tokio::spawn(put(router.clone(), key(1, 0), LARGE_BYTES));
    gate.holds().await;
    for number in 1..9 {
        let late = put_within(server.clone(), key(2, number), "20m").await;
        assert_eq!(late, Some(Code::DeadlineExceeded));
    }
    gate.open();
    assert_eq!(large.await.unwrap(), Ok(ApplyOutcome::Done));
    // The region carries out what it is given in order, so what was before this is done.
    written(&router, key(9, 1)).await;
    assert!(has(&router, &key(0, 0)).await);
    for key in (1..9).map(|number| key(2, number)).chain([key(0, 1)]) {
        assert!(!has(&router, &key).await, "{key:?} happened after its time");
    }
    drop((router, server));
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_at_too_many_keys_is_refused_and_splits_nothing() {
    let node = start(Arc::new(FaultFs::new(1)), one_region()).await;
    let region = region_of(node.router(), b"");
    let mut client = TikvClient::connect(format!("http://{}", node.addr())).await.unwrap();
    let request = SplitRegionRequest {
        context: Some(Context {
            region_id: region.0,
            region_epoch: Some(metapb::RegionEpoch { conf_ver: 1, version: 1 }),
            ..Context::default()
        }),
        split_keys: (0..10_001).map(|number| key(b'k', number)).collect(),
        is_raw_kv: true,
        ..SplitRegionRequest::default()
    };
    let refused = client.split_region(request).await.unwrap_err();
    assert!(refused.message().contains("10001 split keys at once, at most 10000"), "{refused}");
    assert_eq!(region_of(node.router(), b"z"), region);
    node.shutdown().await.unwrap();
}
