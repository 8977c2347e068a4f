//! What a node says to those who do not belong to its cluster, and how it bears those who come and
//! say nothing.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::time::Duration;

use flotilla_client::{Client, Config};
use flotilla_node::{Node, NodeConfig, playground};
use flotilla_proto::metapb;
use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_proto::peers::{Frame, Message, RegionMessage};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

const PATIENCE: Duration = Duration::from_secs(30);
const CLUSTER: u64 = 77;

/// Store 1 of `stores` stores; the others are not there.
async fn start(dir: &TempDir, stores: u16) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let members = (1..=stores).map(|store| match store {
        1 => format!("s1={}", listener.local_addr().unwrap()),
        store => format!("s{store}=127.0.0.1:{store}"),
    });
    let config = NodeConfig {
        initial_cluster: members.collect::<Vec<_>>().join(","),
        cluster_id: CLUSTER,
        data_dir: dir.path().to_owned(),
        regions: 1,
        ..NodeConfig::default()
    };
    Node::start_on(listener, config).await.unwrap()
}

async fn peers(node: &Node) -> PeersClient<Channel> {
    PeersClient::connect(format!("http://{}", node.addr())).await.unwrap()
}

fn frame() -> Frame {
    Frame { cluster_id: CLUSTER, from_store: 2, to_store: 1, messages: Vec::new() }
}

fn message() -> RegionMessage {
    let peer = |store_id| metapb::Peer { id: 200 + store_id, store_id, ..Default::default() };
    RegionMessage {
        region_id: 2,
        from: Some(peer(2)),
        to: Some(peer(1)),
        epoch: Some(metapb::RegionEpoch { conf_ver: 1, version: 1 }),
        message: Some(Message { msg_type: 8, term: 1, ..Default::default() }),
        ..Default::default()
    }
}

/// Sends frames and waits for what the node says to them.
async fn told(node: &Node, frames: Vec<Frame>) -> Result<(), Status> {
    let sent = peers(node).await.urgent(tokio_stream::iter(frames)).await;
    sent.map(drop)
}

#[tokio::test]
async fn a_frame_for_somebody_else_ends_its_stream_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let node = start(&dir, 3).await;
    told(&node, vec![frame(), frame()]).await.unwrap();
    let wrong = [
        (Frame { cluster_id: 78, ..frame() }, "cluster 78, this store of cluster 77"),
        (Frame { to_store: 3, ..frame() }, "for store 3, this is store 1"),
        (Frame { from_store: 1, ..frame() }, "from store 1, which store 1 does not expect"),
        (Frame { from_store: 4, ..frame() }, "from store 4, which store 1 does not expect"),
    ];
    for (frame, reason) in wrong {
        let status = told(&node, vec![frame]).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(reason), "{}", status.message());
    }
    // A stream belongs to the store that began it.
    let status = told(&node, vec![frame(), Frame { from_store: 3, ..frame() }]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    node.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_message_that_no_store_sends_ends_its_stream_and_harms_nobody() {
    let dir = TempDir::new().unwrap();
    let node = start(&dir, 3).await;
    let good = message();
    let mut hup = good.clone();
    hup.message.as_mut().unwrap().msg_type = 0;
    let mut nobody = good.clone();
    nobody.from = None;
    let mut elsewhere = good.clone();
    elsewhere.from.as_mut().unwrap().store_id = 3;
    for wrong in [hup, nobody, elsewhere] {
        let frame = Frame { messages: vec![good.clone(), wrong], ..frame() };
        let status = told(&node, vec![frame]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    told(&node, vec![Frame { messages: vec![good], ..frame() }]).await.unwrap();
    node.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_newer_stream_of_a_store_ends_the_older_one() {
    let dir = TempDir::new().unwrap();
    let node = start(&dir, 3).await;
    let (older, frames) = mpsc::channel(1);
    let mut client = peers(&node).await;
    let ended = tokio::spawn(async move { client.urgent(ReceiverStream::new(frames)).await });
    older.send(frame()).await.unwrap();
    // The older stream is the first only once its first frame has been read, which nothing tells:
    // so newer ones come until it has ended.
    let mut rounds = 0;
    while !ended.is_finished() {
        told(&node, vec![frame()]).await.unwrap();
        let _ = older.try_send(frame());
        rounds += 1;
        assert!(rounds < 10_000, "the older stream goes on");
    }
    assert_eq!(ended.await.unwrap().unwrap_err().code(), Code::Aborted);
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_keep_others_out() {
    let dir = TempDir::new().unwrap();
    let node = start(&dir, 1).await;
    let addr = node.addr().to_string();
    let endpoints = [addr.clone()];
    playground::ready(&endpoints, 1, PATIENCE).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&addr).await.unwrap());
    }
    let client = Client::connect(&endpoints, Config::default()).await.unwrap();
    let put = client.put("key", "value");
    tokio::time::timeout(Duration::from_secs(5), put).await.unwrap().unwrap();
    node.shutdown().await.unwrap();
}
