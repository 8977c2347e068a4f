//! A disk that takes its time: nothing is acknowledged before the disk has said so, and reads do
//! not wait for it.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_node::router::Router;
use flotilla_node::{Node, NodeConfig};
use flotilla_region::command::{self, Op};
use flotilla_region::{Guard, RegionId, Space};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use tokio::net::TcpListener;
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(30);

/// How long something is watched that must not happen.
const WATCH: Duration = Duration::from_millis(300);

/// Stands before every sync.
#[derive(Clone, Debug)]
struct Gate {
    shut: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

impl Gate {
    fn pass(&self) {
        self.waiting.send_modify(|count| *count += 1);
        let mut shut = self.shut.subscribe();
        // Syncs are made by threads that are not tokio's.
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async { shut.wait_for(|shut| !shut).await.map(drop) })
            .unwrap();
        self.waiting.send_modify(|count| *count -= 1);
    }
}

async fn put(router: Router, region: RegionId, value: &'static [u8]) {
    let put = Op::Put { key: Bytes::from_static(b"key"), value: Bytes::from_static(value) };
    router.propose(region, Guard::default(), command::encode(&[put])).await.unwrap();
}

async fn get(router: &Router, region: RegionId) -> Bytes {
    let view = router.read(region, Guard::default(), false).await.unwrap();
    view.region(region, None).unwrap().get(b"key").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_acknowledged_after_its_sync_and_reads_go_on_meanwhile() {
    let gate = Gate { shut: watch::Sender::new(false), waiting: watch::Sender::new(0) };
    let syncs = gate.clone();
    let disk = HookedFs::new(Arc::new(FaultFs::new(1)), move |operation| {
        if operation == Operation::Sync {
            syncs.pass();
        }
    });
    let config = NodeConfig { regions: 1, data_dir: "/store".into(), ..NodeConfig::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = Node::start_on_disk(listener, config, Arc::new(disk)).await.unwrap();
    let router = node.router().clone();
    let region = router.locate(Space::Raw, b"key").unwrap().id;
    put(router.clone(), region, b"before").await;

    gate.shut.send_replace(true);
    let mut writing = tokio::spawn(put(router.clone(), region, b"after"));
    let mut waiting = gate.waiting.subscribe();
    let at_the_gate = waiting.wait_for(|count| *count > 0);
    tokio::time::timeout(PATIENCE, at_the_gate).await.unwrap().unwrap();
    let early = tokio::time::timeout(WATCH, &mut writing).await;
    assert!(early.is_err(), "acknowledged before the disk has it");
    assert_eq!(get(&router, region).await, "before");

    gate.shut.send_replace(false);
    tokio::time::timeout(PATIENCE, writing).await.unwrap().unwrap();
    assert_eq!(get(&router, region).await, "after");
    drop(router);
    node.shutdown().await.unwrap();
}
