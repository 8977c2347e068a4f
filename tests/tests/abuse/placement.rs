//! Questions to placement: of strangers, and of both generations of clients.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{
    AllocIdRequest, GetMembersRequest, GetRegionRequest, GetStoreRequest, QueryRegionRequest,
    RequestHeader, ScanRegionsRequest, TsoRequest,
};
use tonic::{Code, Status};

use crate::processes::Processes;
use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_cluster_is_told_by_placement() {
    let mut target = Target::start().await;
    let right = target.context(b"key").await.cluster_id;
    let header = || Some(RequestHeader { cluster_id: 4711, ..Default::default() });
    let told = |status: Status| {
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.message(), format!("mismatch cluster id, need {right} but got 4711"));
    };
    let request = GetRegionRequest { header: header(), ..Default::default() };
    told(target.pd.get_region(request).await.unwrap_err());
    let request = AllocIdRequest { header: header(), ..Default::default() };
    told(target.pd.alloc_id(request).await.unwrap_err());
    let request = TsoRequest { header: header(), count: 1, ..Default::default() };
    let mut stream = target.pd.tso(tokio_stream::iter([request])).await.unwrap().into_inner();
    told(stream.message().await.unwrap_err());
    let request = QueryRegionRequest { header: header(), ..Default::default() };
    let mut stream =
        target.pd.query_region(tokio_stream::iter([request])).await.unwrap().into_inner();
    told(stream.message().await.unwrap_err());

    let request = GetStoreRequest { store_id: 99, ..Default::default() };
    let header = target.pd.get_store(request).await.unwrap().into_inner().header.unwrap();
    let message = header.error.unwrap().message;
    assert!(message.contains("invalid store ID") && message.contains("not found"), "{message}");
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_answers_both_generations_of_clients() {
    let mut target = Target::start().await;
    // The newer ask by batches on a stream; lists come back as long as they were.
    let keys = [&b""[..], b"\x41", b"\xff"].map(Bytes::from).to_vec();
    let request = QueryRegionRequest {
        keys: keys.clone(),
        prev_keys: keys,
        ids: vec![4, 999],
        ..Default::default()
    };
    let mut stream =
        target.pd.query_region(tokio_stream::iter([request])).await.unwrap().into_inner();
    let answer = stream.message().await.unwrap().unwrap();
    assert_eq!(answer.key_id_map, [2, 3, 5]);
    assert_eq!(answer.prev_key_id_map, [0, 2, 4]);
    assert!(answer.header.is_some());
    let leaders: BTreeMap<_, _> =
        answer.regions_by_id.iter().map(|(id, region)| (*id, region.leader)).collect();
    assert_eq!(leaders.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert!(leaders.values().all(|leader| leader.unwrap().store_id == 1));

    // Timestamps grow, in one stream and from one to the next; ids are never repeated.
    let mut last = (0, 0);
    for _ in 0..2 {
        let requests = (1..=50).map(|count| TsoRequest { count, ..Default::default() });
        let stream = target.pd.tso(tokio_stream::iter(requests)).await.unwrap();
        let mut stream = stream.into_inner();
        for count in 1..=50 {
            let answer = stream.message().await.unwrap().unwrap();
            let given = answer.timestamp.unwrap();
            let first = (given.physical, given.logical - i64::from(count) + 1);
            assert!(first > last, "{first:?} after {last:?}");
            last = (given.physical, given.logical);
        }
    }
    let first = target.pd.alloc_id(AllocIdRequest { count: 10, ..Default::default() }).await;
    let second = target.pd.alloc_id(AllocIdRequest::default()).await;
    assert_eq!(first.unwrap().into_inner().id + 1, second.unwrap().into_inner().id);
    let request = TsoRequest { count: 1 << 20, ..Default::default() };
    let mut stream = target.pd.tso(tokio_stream::iter([request])).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap_err().code(), Code::InvalidArgument);
}

/// A client asks because it cannot reach the leader that it knows. Placement has heard of that
/// store a moment ago and has no reason to doubt it, but finds out before it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_gives_no_word_is_not_named() {
    let cluster = Processes::start(3, 9).await;
    let url = format!("http://{}", cluster.endpoints()[0]);
    let mut pd = PdClient::connect(url).await.unwrap();
    let members = pd.get_members(GetMembersRequest::default()).await.unwrap().into_inner();
    let leader = members.leader.unwrap();
    let mut pd = PdClient::connect(leader.client_urls[0].clone()).await.unwrap();
    let scan = ScanRegionsRequest::default();
    let regions = pd.scan_regions(scan).await.unwrap().into_inner().regions;
    let led =
        regions.into_iter().find(|region| region.leader.unwrap().store_id != leader.member_id);
    let led = led.expect("each store leads some regions");
    let paused = led.leader.unwrap().store_id;

    cluster.suspend(paused as usize - 1);
    let request =
        GetRegionRequest { region_key: led.region.unwrap().start_key, ..Default::default() };
    let found = pd.get_region(request.clone()).await.unwrap().into_inner();
    assert!(found.region.is_some());
    assert!(found.leader.is_none_or(|leader| leader.store_id != paused), "{found:?}");
    // Soon another one leads, and is named.
    let elected = async {
        while pd.get_region(request.clone()).await.unwrap().into_inner().leader.is_none() {}
    };
    tokio::time::timeout(Duration::from_secs(20), elected).await.unwrap();
    cluster.resume(paused as usize - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_and_ids_go_on_under_another_leader() {
    let mut cluster = Processes::start(3, 1).await;
    let mut last = ((0, 0), 0);
    for _ in 0..3 {
        let (place, given) = some_from_the_leader(&cluster).await;
        assert!(given.0 > last.0 && given.1 > last.1, "{given:?} after {last:?}");
        last = given;
        cluster.kill(place);
        let (other, given) = some_from_the_leader(&cluster).await;
        assert_ne!(other, place);
        assert!(given.0 > last.0 && given.1 > last.1, "{given:?} after {last:?}");
        last = given;
        cluster.restart(place);
        cluster.ready().await;
    }
}

/// The place of the store that leads placement, and a timestamp and an id that it gives; asks
/// around until one does.
async fn some_from_the_leader(cluster: &Processes) -> (usize, ((i64, i64), u64)) {
    let given = async {
        loop {
            for (place, endpoint) in cluster.endpoints().iter().enumerate() {
                if let Ok(given) = some_from(endpoint).await {
                    return (place, given);
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), given).await.unwrap()
}

async fn some_from(endpoint: &str) -> Result<((i64, i64), u64), Box<dyn std::error::Error>> {
    let mut pd = PdClient::connect(format!("http://{endpoint}")).await?;
    let request = TsoRequest { count: 1000, ..Default::default() };
    let mut stream = pd.tso(tokio_stream::iter([request])).await?.into_inner();
    let given = stream.message().await?.ok_or("the stream ended")?.timestamp.unwrap();
    let id = pd.alloc_id(AllocIdRequest::default()).await?.into_inner().id;
    Ok(((given.physical, given.logical), id))
}
