//! A node whose disk fails: it stops, acknowledges nothing from then on, and loses nothing that it
//! acknowledged before.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{Client, Config};
use flotilla_kv::raw::{self, RawOp};
use flotilla_node::router::{RequestError, Router};
use flotilla_node::{FirstStart, Node, NodeConfig};
use flotilla_region::{RegionId, Reject, RequestPrecondition, Space};
use flotilla_store::ApplyOutcome;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem as _, OpenMode};
use tokio::net::TcpListener;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bits are flipped in steps of this many bytes; no page is smaller.
const PAGE_BYTES: u64 = 4096;

async fn start(disk: &FaultFs) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = NodeConfig {
        // Another port at each start, but the same store of the same cluster.
        initial_cluster: format!("s1={}", listener.local_addr().unwrap()),
        cluster_id: 1,
        first_start: FirstStart::New,
        regions: 2,
        data_dir: "/store".into(),
        ..NodeConfig::default()
    };
    let node = Node::start_on_disk(listener, config, Arc::new(disk.clone())).await.unwrap();
    for region in node.router().descriptors() {
        let mut leadership = node.router().leadership(region.id).unwrap();
        let led = leadership.wait_for(|now| now.leader.is_some());
        tokio::time::timeout(PATIENCE, led).await.expect("a leader is found").unwrap();
    }
    node
}

fn region_of(router: &Router, key: &[u8]) -> RegionId {
    router.locate(Space::Raw, key).unwrap().id
}

async fn put(
    router: &Router,
    key: &'static [u8],
    value: &'static [u8],
) -> Result<(), RequestError> {
    let put = RawOp::put(Bytes::from_static(key), Bytes::from_static(value));
    let region = region_of(router, key);
    let outcome =
        router.propose(region, RequestPrecondition::default(), raw::encode(&[put])).await?;
    assert!(matches!(outcome, ApplyOutcome::Done), "{outcome:?}");
    Ok(())
}

async fn get(router: &Router, key: &[u8]) -> Option<Bytes> {
    let region = region_of(router, key);
    let view = router.read(region, RequestPrecondition::default(), false).await.unwrap();
    view.region(region, None).unwrap().get(key).unwrap()
}

/// Bytes that the log cannot compress.
fn noise(bytes: usize) -> Bytes {
    let mut value = vec![0; bytes];
    fastrand::Rng::with_seed(1).fill(&mut value);
    value.into()
}

async fn failed(node: &Node) -> String {
    tokio::time::timeout(PATIENCE, node.failed()).await.expect("the node fails")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_stops_the_node_and_nothing_is_acknowledged_after_it() {
    let disk = FaultFs::new(1);
    let node = start(&disk).await;
    let router = node.router().clone();
    put(&router, b"a", b"acknowledged").await.unwrap();

    disk.fail_syncs(true);
    let began = Instant::now();
    // A write of the node's own, of how far the log is committed, may meet the failure first.
    let refused = put(&router, b"b", b"never").await.expect_err("the disk cannot sync");
    assert!(matches!(refused, RequestError::Undecided | RequestError::Stopping), "{refused:?}");
    let reason = failed(&node).await;
    assert!(reason.starts_with("the log cannot be written"), "{reason}");
    assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());

    // Not even if the disk says that it is well again.
    disk.fail_syncs(false);
    assert_eq!(put(&router, b"c", b"never").await, Err(RequestError::Stopping));
    drop(router);
    node.abandon().await;

    disk.power_loss(2);
    let node = start(&disk).await;
    assert_eq!(get(node.router(), b"a").await.unwrap(), "acknowledged");
    assert_eq!(get(node.router(), b"c").await, None);
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_stops_the_node_even_if_nobody_asks_for_it() {
    let disk = FaultFs::new(3);
    let node = start(&disk).await;
    put(node.router(), b"a", b"1").await.unwrap();
    // The log has it. The next write is the checkpoint, or how far the log is committed.
    disk.fail_writes(true);
    let reason = failed(&node).await;
    let expected = ["a checkpoint failed", "the log cannot be written"];
    assert!(expected.iter().any(|expected| reason.starts_with(expected)), "{reason}");
    node.abandon().await;
    disk.fail_writes(false);
    disk.power_loss(4);
    let node = start(&disk).await;
    assert_eq!(get(node.router(), b"a").await.unwrap(), "1");
    node.shutdown().await.unwrap();
}

/// The engines find no room at all, without a warning of the file system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_room_writes_wait_reads_go_on_and_it_heals() {
    let disk = FaultFs::new(8);
    let node = start(&disk).await;
    let router = node.router().clone();
    put(&router, b"a", b"1").await.unwrap();
    disk.set_capacity(Some(0));
    // More than is left of the segment that is written and of the next one.
    let value = noise(4 << 20);
    let writes = (0..40_u8).map(|number| {
        let (router, value) = (router.clone(), value.clone());
        tokio::spawn(async move {
            let put = RawOp::put(vec![b'b', number].into(), value);
            let region = region_of(&router, b"b");
            router.propose(region, RequestPrecondition::default(), raw::encode(&[put])).await
        })
    });
    let writes: Vec<_> = writes.collect();
    let waits = async {
        while node.router().counts().waiting == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waits).await.unwrap();
    for _ in 0..20 {
        assert_eq!(get(&router, b"a").await.unwrap(), "1");
    }
    assert_eq!(node.failure().reason(), None);
    disk.set_capacity(None);
    for write in writes {
        let outcome = tokio::time::timeout(PATIENCE, write).await.unwrap().unwrap();
        // One that has waited too long may be carried out still, and only so many wait.
        let is_right = |error: &RequestError| match error {
            RequestError::Undecided | RequestError::Rejected(Reject::Busy { .. }) => true,
            RequestError::Rejected(_) | RequestError::Stopping => false,
        };
        assert!(outcome.as_ref().err().is_none_or(is_right), "{outcome:?}");
    }
    put(&router, b"a", b"2").await.unwrap();
    assert_eq!(get(&router, b"a").await.unwrap(), "2");
    drop(router);
    node.shutdown().await.unwrap();
}

/// The writes that wait were not acknowledged, and are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_room() {
    let disk = FaultFs::new(9);
    let node = start(&disk).await;
    let router = node.router().clone();
    put(&router, b"a", b"1").await.unwrap();
    disk.set_capacity(Some(0));
    let value = noise(4 << 20);
    let write = {
        let (router, put) = (router.clone(), RawOp::put(Bytes::from_static(b"b"), value));
        tokio::spawn(async move {
            for _ in 0..40 {
                let region = region_of(&router, b"b");
                let command = raw::encode(std::slice::from_ref(&put));
                let written = router.propose(region, RequestPrecondition::default(), command);
                if written.await.is_err() {
                    return;
                }
            }
        })
    };
    // No write was acknowledged for a second: one waits for room.
    let full = async {
        let mut before = None;
        loop {
            let acknowledged = node.router().counts().writes_acknowledged;
            let waits = node.router().counts().waiting > 0;
            if waits && before == Some(acknowledged) {
                return;
            }
            before = Some(acknowledged);
            let mut looks = tokio::time::interval(Duration::from_secs(1));
            looks.tick().await;
            looks.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, full).await.unwrap();
    drop(router);
    // Whether the last checkpoint finds room is another question.
    let _ = tokio::time::timeout(PATIENCE, node.shutdown()).await.unwrap();
    write.await.unwrap();
    disk.set_capacity(None);
    let node = start(&disk).await;
    assert_eq!(get(node.router(), b"a").await.unwrap(), "1");
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_at_any_moment_keeps_what_was_acknowledged() {
    const KEYS: [&[u8]; 6] = [b"a", b"\xf0b", b"c", b"\xf0d", b"e", b"\xf0f"];
    for operations in [0, 1, 2, 3, 5, 8, 13] {
        let disk = FaultFs::new(operations);
        let node = start(&disk).await;
        put(node.router(), b"first", b"1").await.unwrap();
        disk.cut_power_after(operations);
        let mut acknowledged = vec![&b"first"[..]];
        for key in KEYS {
            match put(node.router(), key, b"1").await {
                Ok(()) => acknowledged.push(key),
                Err(RequestError::Undecided | RequestError::Stopping) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        node.abandon().await;
        disk.power_loss(operations);
        let node = start(&disk).await;
        for key in acknowledged {
            assert!(get(node.router(), key).await.is_some(), "cut after {operations}: {key:?}");
        }
        node.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_page_stops_the_node_and_is_never_served() {
    let disk = FaultFs::new(6);
    let node = start(&disk).await;
    put(node.router(), b"a", b"as it was written").await.unwrap();
    // Makes a checkpoint, after which the log is not asked for the value any more.
    node.shutdown().await.unwrap();

    let node = start(&disk).await;
    let config = Config { deadline: Duration::from_secs(5), ..Config::default() };
    let client = Client::connect(&[node.addr().to_string()], config).await.unwrap();
    let pages = disk.open(Path::new("/store/pages"), OpenMode::Read).unwrap().len().unwrap();
    for page in 2..pages / PAGE_BYTES {
        disk.flip_bit(Path::new("/store/pages"), page * PAGE_BYTES + 100, 3);
    }
    let error = client.get("a").await.unwrap_err();
    let reason = failed(&node).await;
    assert!(reason.contains("is damaged: "), "{reason}, and the client heard {error}");
    node.abandon().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_the_disk_refuses_is_told_and_counted_and_may_succeed_later() {
    let disk = FaultFs::new(7);
    let node = start(&disk).await;
    put(node.router(), b"a", b"1").await.unwrap();
    // Makes a checkpoint, so that the next start finds the value in the file alone.
    node.shutdown().await.unwrap();

    let node = start(&disk).await;
    let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
    let client = Client::connect(&[node.addr().to_string()], config).await.unwrap();
    disk.fail_reads(true);
    let error = client.get("a").await.unwrap_err().to_string();
    assert!(error.contains("cannot be read here: pages"), "{error}");
    assert!(node.router().counts().reads_failed >= 1);
    disk.fail_reads(false);
    assert_eq!(client.get("a").await.unwrap().unwrap(), "1");
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_in_use_or_of_another_store_is_refused() {
    let disk = FaultFs::new(5);
    let node = start(&disk).await;
    let refused = |config: NodeConfig| {
        let disk = disk.clone();
        async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let started = Node::start_on_disk(listener, config, Arc::new(disk)).await;
            started.err().expect("two nodes cannot share a directory").to_string()
        }
    };
    let config = NodeConfig { data_dir: "/store".into(), ..NodeConfig::default() };
    let error = refused(config.clone()).await;
    assert!(error.contains("/store") && error.contains("in use"), "{error}");
    node.shutdown().await.unwrap();
    let error = refused(NodeConfig { cluster_id: 7, ..config }).await;
    assert!(
        error.contains("cluster_id = 7, but the data directory /store is of cluster 1"),
        "{error}"
    );
}
