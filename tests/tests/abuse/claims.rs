//! Requests that claim what is not so, and a store that cannot keep what it would promise.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{AllocIdRequest, GetMembersRequest};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_proto::{errorpb, metapb};
use tonic::Code;
use tonic::transport::Channel;

use crate::processes::Processes;
use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn false_claims_are_answered_by_kind() {
    let mut target = Target::start().await;
    let good = target.context(b"key").await;
    let peer = good.peer.unwrap();
    let value = || Bytes::from("never written");

    let context = Context { region_epoch: None, ..good.clone() };
    let (_, error) = target.put(context, b"key", value()).await;
    let message = "missing epoch!".to_owned();
    assert_eq!(error, errorpb::Error { message, ..Default::default() });

    let context = Context { region_id: 999, ..good.clone() };
    let (_, error) = target.put(context, b"key", value()).await;
    assert_eq!(error.region_not_found.unwrap().region_id, 999);
    let (_, error) = target.put(Context::default(), b"key", value()).await;
    assert!(error.region_not_found.is_some(), "no context at all");
    let (_, error) =
        target.put(Context { region_id: 1, ..Default::default() }, b"k", value()).await;
    assert!(error.region_not_found.is_some(), "placement's own region");

    let elsewhere = metapb::Peer { store_id: 77, ..peer };
    let context = Context { peer: Some(elsewhere), ..good.clone() };
    let (_, error) = target.put(context, b"key", value()).await;
    let error = error.store_not_match.unwrap();
    assert_eq!((error.request_store_id, error.actual_store_id), (77, peer.store_id));

    let other = metapb::Peer { id: 4711, ..peer };
    let context = Context { peer: Some(other), ..good.clone() };
    let (_, error) = target.put(context, b"key", value()).await;
    let error = error.mismatch_peer_id.unwrap();
    assert_eq!((error.request_peer_id, error.store_peer_id), (4711, peer.id));

    for version in [0, 9] {
        let epoch = metapb::RegionEpoch { version, ..good.region_epoch.unwrap() };
        let context = Context { region_epoch: Some(epoch), ..good.clone() };
        let (_, error) = target.put(context, b"key", value()).await;
        let current = error.epoch_not_match.unwrap().current_regions;
        // To a version of before, its neighbours may be what was split off.
        let this = current.iter().find(|region| region.id == good.region_id).unwrap();
        assert_eq!(this.region_epoch, good.region_epoch);
    }

    let (_, error) = target.put(good.clone(), b"\xf0 elsewhere", value()).await;
    let error = error.key_not_in_region.unwrap();
    assert_eq!((error.key, error.region_id), (Bytes::from(&b"\xf0 elsewhere"[..]), good.region_id));

    let context = Some(Context { cluster_id: 4711, ..good.clone() });
    let request =
        RawPutRequest { context, key: "key".into(), value: value(), ..Default::default() };
    let status = target.kv.raw_put(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);

    assert_eq!(target.get(b"key").await, None, "none of them was carried out");
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_majority_says_so_in_time() {
    let mut cluster = Processes::start(3, 2).await;
    let url = format!("http://{}", cluster.endpoints()[0]);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let (mut kv, mut pd) = (TikvClient::new(channel.clone()), PdClient::new(channel));
    cluster.kill(1);
    cluster.kill(2);
    // The client waits for half a second; the answer comes before it has given up.
    let region_epoch = Some(metapb::RegionEpoch { conf_ver: 1, version: 1 });
    let named = Context { region_id: 2, region_epoch, ..Default::default() };
    let context = Some(Context { max_execution_duration_ms: 500, ..named.clone() });
    let key = Bytes::from("key");
    let get = RawGetRequest { context: context.clone(), key: key.clone(), ..Default::default() };
    let put = RawPutRequest { context, key, ..Default::default() };
    for _ in 0..4 {
        let began = Instant::now();
        let error = kv.raw_get(get.clone()).await.unwrap().into_inner().region_error.unwrap();
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        let late = error.message == "Deadline is exceeded";
        let leaderless = error.not_leader.is_some() || error.read_index_not_ready.is_some();
        assert!(late || leaderless, "{error:?}");
        let began = Instant::now();
        let error = kv.raw_put(put.clone()).await.unwrap().into_inner().region_error.unwrap();
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        assert!(error.undetermined_result.is_some() || error.not_leader.is_some(), "{error:?}");
    }
    // Placement has no leader either, and says so in the words that clients look for.
    let patience = Duration::from_secs(10);
    let refused = async {
        loop {
            match pd.alloc_id(AllocIdRequest::default()).await {
                Err(status) => return status,
                // Ids that were leased before are good for as long as they last.
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    };
    let status = tokio::time::timeout(patience, refused).await.unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("leader"), "{status}");
    let members = pd.get_members(GetMembersRequest::default()).await.unwrap().into_inner();
    assert_eq!(members.members.len(), 3);
    // With one of the others back there is a majority again.
    cluster.restart(1);
    let served = async {
        let get = RawGetRequest { context: Some(Context { replica_read: true, ..named }), ..get };
        while kv.raw_get(get.clone()).await.unwrap().into_inner().region_error.is_some() {}
    };
    tokio::time::timeout(Duration::from_secs(30), served).await.unwrap();
}
