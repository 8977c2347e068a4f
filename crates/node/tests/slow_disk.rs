//! A disk that takes its time: nothing is acknowledged before the disk has said so, and reads do
//! not wait for it.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod gate;

use std::time::Duration;

use bytes::Bytes;
use flotilla_kv::raw::{self, RawOp};
use flotilla_node::router::Router;
use flotilla_node::{FirstStart, Node, NodeConfig};
use flotilla_region::{RegionId, RequestPrecondition, Space};
use flotilla_vfs::fault::FaultFs;
use gate::{Gate, PATIENCE};
use tokio::net::TcpListener;

/// How long something is watched that must not happen.
const WATCH: Duration = Duration::from_millis(300);

async fn put(router: Router, region: RegionId, value: &'static [u8]) {
    let put = RawOp::put(Bytes::from_static(b"key"), Bytes::from_static(value));
    router.propose(region, RequestPrecondition::default(), raw::encode(&[put])).await.unwrap();
}

async fn get(router: &Router, region: RegionId) -> Bytes {
    let view = router.read(region, RequestPrecondition::default(), false).await.unwrap();
    view.region(region, None).unwrap().get(b"key").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_acknowledged_after_its_sync_and_reads_go_on_meanwhile() {
    let (gate, disk) = Gate::before(FaultFs::new(1));
    let config = NodeConfig {
        first_start: FirstStart::New,
        regions: 1,
        data_dir: "/store".into(),
        ..NodeConfig::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = Node::start_on_disk(listener, config, disk).await.unwrap();
    let router = node.router().clone();
    let region = router.locate(Space::Raw, b"key").unwrap().id;
    put(router.clone(), region, b"before").await;

    let _open = gate.shut();
    let mut writing = tokio::spawn(put(router.clone(), region, b"after"));
    gate.holds().await;
    let early = tokio::time::timeout(WATCH, &mut writing).await;
    assert!(early.is_err(), "acknowledged before the disk has it");
    assert_eq!(get(&router, region).await, "before");

    gate.open();
    tokio::time::timeout(PATIENCE, writing).await.unwrap().unwrap();
    assert_eq!(get(&router, region).await, "after");
    drop(router);
    node.shutdown().await.unwrap();
}
