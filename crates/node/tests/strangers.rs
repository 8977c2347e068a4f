//! Answers of a node to processes outside of its cluster, and to connections that are opened and
//! stay silent.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::sync::Arc;
use std::time::Duration;

use flotilla_cli::playground::{self, Playground, PlaygroundConfig};
use flotilla_client::{Client, Config};
use flotilla_identity::{FEATURE_LEVEL, StoreRun, StoreUuid};
use flotilla_node::{FirstStart, Node, NodeConfig};
use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_proto::peers::snapshot_part::Part;
use flotilla_proto::peers::{
    Frame, Message, RegionMessage, SnapshotChunk, SnapshotEnd, SnapshotHead, SnapshotOffer,
    SnapshotOutcome, SnapshotPart, SnapshotVerdict, StoreHello,
};
use flotilla_proto::{metapb, peers};
use flotilla_region::RegionId;
use flotilla_store::{StartSeed, StoreDirectory};
use flotilla_vfs::os::OsFs;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster of three, and the last of its stores played by the test: the greeting of another start
/// of its directory was taken.
struct Impostor {
    cluster: Playground,
    hello: StoreHello,
}

impl Impostor {
    async fn start(dir: &TempDir) -> Self {
        let mut settings = PlaygroundConfig::new(dir.path());
        settings.common.regions = 1;
        let mut cluster = Playground::start(&settings).await.unwrap();
        cluster.ready(PATIENCE).await.unwrap();
        cluster.stop(2).await.unwrap();
        let seed = StartSeed { uuid: StoreUuid(1), nonce: 4 };
        let config = NodeConfig::default().storage.store();
        let disk = Arc::new(OsFs::new());
        let directory = StoreDirectory::open(disk, &dir.path().join("s3"), config, seed).unwrap();
        let identity = directory.identity();
        let run = |run: StoreRun| peers::StoreRun { starts: run.starts, nonce: run.nonce };
        let hello = StoreHello {
            cluster_id: identity.cluster_id,
            from_store: identity.store.0,
            to_store: 1,
            name: identity.name.clone(),
            address: cluster.endpoints()[2].clone(),
            uuid: identity.uuid.0.to_le_bytes().to_vec().into(),
            run: Some(run(identity.run)),
            level: FEATURE_LEVEL,
            settings: directory.copies().unwrap().1.encode().into(),
            ..StoreHello::default()
        };
        let mut impostor = Self { cluster, hello };
        impostor.is_taken().await;
        impostor
    }

    /// Greets the first store until it takes frames of this start.
    async fn is_taken(&mut self) {
        let mut client = self.peers().await;
        let heard = client.hello(self.hello.clone()).await.unwrap().into_inner();
        assert_eq!((heard.accepted, heard.refusal.as_str()), (false, ""), "not confirmed yet");
        // Its knowledge of the former start is right.
        self.hello.confirmed = heard.hello.unwrap().known;
        let heard = client.hello(self.hello.clone()).await.unwrap().into_inner();
        assert!(heard.accepted, "{}", heard.refusal);
    }

    async fn peers(&self) -> PeersClient<Channel> {
        PeersClient::connect(format!("http://{}", self.cluster.endpoints()[0])).await.unwrap()
    }

    /// A frame that is right.
    fn frame(&self) -> Frame {
        let run = self.hello.run.unwrap();
        Frame {
            cluster_id: self.hello.cluster_id,
            from_store: 3,
            to_store: 1,
            messages: Vec::new(),
            notices: Vec::new(),
            uuid: self.hello.uuid.clone(),
            starts: run.starts,
            nonce: run.nonce,
            log_end: 0,
            disk_usage: 0,
        }
    }

    /// An offer of the region of all keys that is right.
    fn offer(&self) -> SnapshotOffer {
        let run = self.hello.run.unwrap();
        let region = RegionId(2);
        let descriptor = self.cluster.node(0).unwrap().router().descriptor(region).unwrap();
        let mut message = message();
        message.from.as_mut().unwrap().id = descriptor.peers[2].id.0;
        message.to.as_mut().unwrap().id = descriptor.peers[0].id.0;
        // Before all that the store has: it is staged and not wanted.
        let head = SnapshotHead { index: 1, term: 1, descriptor: descriptor.encode() };
        let inner = message.message.as_mut().unwrap();
        (inner.msg_type, inner.snapshot) = (7, Some(head));
        SnapshotOffer {
            cluster_id: self.hello.cluster_id,
            from_store: 3,
            to_store: 1,
            uuid: self.hello.uuid.clone(),
            starts: run.starts,
            nonce: run.nonce,
            message: Some(message),
            rows: 0,
            bytes: 0,
        }
    }

    /// Begins a stream of a snapshot.
    async fn begin(&self) -> SnapshotSide {
        let (parts, body) = mpsc::channel(8);
        let verdicts = self.peers().await.snapshot(ReceiverStream::new(body)).await.unwrap();
        SnapshotSide { parts, verdicts: verdicts.into_inner() }
    }

    /// How a stream with these parts alone ends.
    async fn ends(&self, parts: impl IntoIterator<Item = Part>) -> Status {
        let mut side = self.begin().await;
        for part in parts {
            side.send(part).await;
        }
        loop {
            match side.verdicts.message().await {
                Err(status) => return status,
                Ok(None) => panic!("it ends well"),
                Ok(Some(_)) => {}
            }
        }
    }

    /// Sends frames and waits for what the store says to them.
    async fn told(&self, frames: Vec<Frame>) -> Result<(), Status> {
        self.peers().await.urgent(tokio_stream::iter(frames)).await.map(drop)
    }
}

/// The sending side of a snapshot's stream.
struct SnapshotSide {
    parts: mpsc::Sender<SnapshotPart>,
    verdicts: Streaming<SnapshotVerdict>,
}

impl SnapshotSide {
    async fn send(&mut self, part: Part) {
        // The store may have ended the stream.
        let _ = self.parts.send(SnapshotPart { part: Some(part) }).await;
    }

    async fn told(&mut self) -> (SnapshotOutcome, String) {
        let verdict = self.verdicts.message().await.unwrap().unwrap();
        (SnapshotOutcome::try_from(verdict.outcome).unwrap(), verdict.reason)
    }

    /// Offers, and hears whether the rows are wanted.
    async fn offer(&mut self, offer: SnapshotOffer) -> SnapshotOutcome {
        self.send(Part::Offer(offer)).await;
        self.told().await.0
    }
}

fn message() -> RegionMessage {
    let peer = |store_id| metapb::Peer { id: 200 + store_id, store_id, ..Default::default() };
    RegionMessage {
        region_id: 2,
        from: Some(peer(3)),
        to: Some(peer(1)),
        epoch: Some(metapb::RegionEpoch { conf_ver: 1, version: 1 }),
        message: Some(Message { msg_type: 8, term: 1, ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_for_somebody_else_ends_its_stream_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let impostor = Impostor::start(&dir).await;
    let frame = || impostor.frame();
    impostor.told(vec![frame(), frame()]).await.unwrap();
    let (cluster_id, starts) = (frame().cluster_id, frame().starts);
    let run = StoreRun { starts, nonce: 4 };
    let with_starts = |starts| StoreRun { starts, ..run };
    let wrong = [
        (
            Frame { cluster_id: 78, ..frame() },
            format!("cluster 78, this store of cluster {cluster_id}"),
        ),
        (Frame { to_store: 2, ..frame() }, "for store 2, this is store 1".to_owned()),
        (Frame { from_store: 1, ..frame() }, no_handshake(run, 1)),
        (Frame { from_store: 2, ..frame() }, no_handshake(run, 2)),
        (Frame { from_store: 4, ..frame() }, no_handshake(run, 4)),
        (Frame { uuid: vec![0; 16].into(), ..frame() }, no_handshake(run, 3)),
        (Frame { starts: starts - 1, ..frame() }, no_handshake(with_starts(starts - 1), 3)),
        (Frame { starts: starts + 1, ..frame() }, no_handshake(with_starts(starts + 1), 3)),
        (Frame { nonce: 5, ..frame() }, no_handshake(StoreRun { nonce: 5, ..run }, 3)),
    ];
    for (frame, reason) in wrong {
        let status = impostor.told(vec![frame]).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(&reason), "{}, not {reason}", status.message());
    }
    // A stream belongs to the store that began it.
    let other = Frame { from_store: 2, ..frame() };
    let status = impostor.told(vec![frame(), other]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    impostor.cluster.shutdown().await.unwrap();
}

/// How a frame of a start is refused that was not greeted for.
fn no_handshake(run: StoreRun, store: u64) -> String {
    format!("no handshake of {run} of store {store} was taken by store 1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_no_store_sends_ends_its_stream_and_harms_nobody() {
    let dir = TempDir::new().unwrap();
    let impostor = Impostor::start(&dir).await;
    let good = message();
    let mut hup = good.clone();
    hup.message.as_mut().unwrap().msg_type = 0;
    let mut nobody = good.clone();
    nobody.from = None;
    let mut elsewhere = good.clone();
    elsewhere.from.as_mut().unwrap().store_id = 2;
    for wrong in [hup, nobody, elsewhere] {
        let frame = Frame { messages: vec![good.clone(), wrong], ..impostor.frame() };
        let status = impostor.told(vec![frame]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let frame = Frame { messages: vec![good], ..impostor.frame() };
    impostor.told(vec![frame]).await.unwrap();
    impostor.cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_stream_of_a_store_ends_the_older_one() {
    let dir = TempDir::new().unwrap();
    let impostor = Impostor::start(&dir).await;
    let (older, frames) = mpsc::channel(1);
    let mut client = impostor.peers().await;
    let ended = tokio::spawn(async move { client.urgent(ReceiverStream::new(frames)).await });
    older.send(impostor.frame()).await.unwrap();
    // The older stream is the first only once its first frame has been read, which nothing tells:
    // so newer ones come until it has ended.
    let mut rounds = 0;
    while !ended.is_finished() {
        impostor.told(vec![impostor.frame()]).await.unwrap();
        let _ = older.try_send(impostor.frame());
        rounds += 1;
        assert!(rounds < 10_000, "the older stream goes on");
    }
    assert_eq!(ended.await.unwrap().unwrap_err().code(), Code::Aborted);
    impostor.cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_keep_others_out() {
    let dir = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let config = NodeConfig {
        initial_cluster: format!("s1={addr}"),
        first_start: FirstStart::New,
        data_dir: dir.path().to_owned(),
        regions: 1,
        ..NodeConfig::default()
    };
    let node = Node::start_on(listener, config).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_of_a_snapshot_is_checked_as_frames_are() {
    let dir = TempDir::new().unwrap();
    let impostor = Impostor::start(&dir).await;
    let offer = || impostor.offer();
    let wrong = [
        (SnapshotOffer { cluster_id: 78, ..offer() }, "this is store 1 of cluster"),
        (SnapshotOffer { to_store: 2, ..offer() }, "the snapshot is for store 2"),
        (SnapshotOffer { from_store: 2, ..offer() }, "no handshake"),
        (SnapshotOffer { nonce: 5, ..offer() }, "no handshake"),
        (SnapshotOffer { starts: offer().starts + 1, ..offer() }, "no handshake"),
        (SnapshotOffer { uuid: vec![0; 16].into(), ..offer() }, "no handshake"),
    ];
    for (offer, reason) in wrong {
        let status = impostor.ends([Part::Offer(offer)]).await;
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(reason), "{}, not {reason}", status.message());
    }
    let change = |change: fn(&mut RegionMessage)| {
        let mut offer = offer();
        change(offer.message.as_mut().unwrap());
        offer
    };
    let malformed = [
        SnapshotOffer { message: None, ..offer() },
        change(|message| message.from.as_mut().unwrap().store_id = 2),
        change(|message| message.to.as_mut().unwrap().store_id = 2),
        change(|message| message.message.as_mut().unwrap().msg_type = 3),
        change(|message| message.message.as_mut().unwrap().snapshot = None),
        change(|message| message.region_id = 3),
    ];
    for offer in malformed {
        let status = impostor.ends([Part::Offer(offer)]).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let status = impostor.ends([Part::End(SnapshotEnd::default())]).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let status = impostor.ends([Part::Offer(offer()), Part::Offer(offer())]).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    impostor.cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_wrong_leaves_no_stage_and_no_place_taken() {
    let dir = TempDir::new().unwrap();
    let impostor = Impostor::start(&dir).await;
    let offer = || impostor.offer();
    // More than there are places.
    for _ in 0..6 {
        // The end of the former stream may not have been noticed yet.
        let mut side = loop {
            let mut side = impostor.begin().await;
            match side.offer(offer()).await {
                SnapshotOutcome::SnapshotGo => break side,
                SnapshotOutcome::SnapshotBusy => tokio::task::yield_now().await,
                outcome => panic!("{outcome:?}"),
            }
        };
        // While it goes on, there is no other of the region.
        let mut second = impostor.begin().await;
        assert_eq!(second.offer(offer()).await, SnapshotOutcome::SnapshotBusy);
        let chunk = SnapshotChunk { number: 0, rows: b"no rows".as_slice().into() };
        side.send(Part::Chunk(chunk)).await;
        let (outcome, reason) = side.told().await;
        assert_eq!(outcome, SnapshotOutcome::SnapshotFailed, "{reason}");
        // Of this one nothing more comes.
        let mut cut = loop {
            let mut cut = impostor.begin().await;
            if cut.offer(offer()).await == SnapshotOutcome::SnapshotGo {
                break cut;
            }
        };
        let chunk = SnapshotChunk { number: 1, rows: b"rows".as_slice().into() };
        cut.send(Part::Chunk(chunk)).await;
        let (outcome, reason) = cut.told().await;
        assert_eq!(outcome, SnapshotOutcome::SnapshotFailed);
        assert_eq!(reason, "chunk 1 comes for 0");
        let lost = impostor.begin().await;
        drop(lost);
    }
    impostor.cluster.shutdown().await.unwrap();
}
