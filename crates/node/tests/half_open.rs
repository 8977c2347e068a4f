//! Connections that are begun and left there: a node gives them up, and others get their places.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::time::Duration;

use flotilla_cli::playground;
use flotilla_client::{Client, Config};
use flotilla_node::config::LimitsConfig;
use flotilla_node::{FirstStart, Node, NodeConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections that the node has at a time.
const CONNECTIONS_MAX: usize = 64;

/// How long the test looks for what the node does at once, before it lets time pass again; and how
/// often it does that.
const MOMENT: Duration = Duration::from_millis(10);
const ROUNDS_MAX: u32 = 1000;

/// Connections that wait for a place; as many as the kernel keeps for a listener, or it drops what
/// comes and clients try again after a second.
const WAITING: usize = 120;

/// A node that is alone, and its address.
async fn start(dir: &TempDir) -> (Node, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let config = NodeConfig {
        initial_cluster: format!("s1={addr}"),
        data_dir: dir.path().to_owned(),
        regions: 1,
        first_start: FirstStart::New,
        limits: LimitsConfig { connections_max: CONNECTIONS_MAX, ..LimitsConfig::default() },
        ..NodeConfig::default()
    };
    (Node::start_on(listener, config).await.unwrap(), addr)
}

/// Lets time pass without a thread that waits for it.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Opens `count` connections and says `said` on each. The tasks end when the node closes them.
async fn leave_half_open(addr: &str, said: &'static [u8], count: usize) -> JoinSet<()> {
    let mut closed = JoinSet::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(said).await.unwrap();
        closed.spawn(async move { while matches!(stream.read(&mut [0; 256]).await, Ok(1..)) {} });
    }
    closed
}

#[tokio::test]
async fn half_prefaces_make_room_for_a_put() {
    let dir = TempDir::new().unwrap();
    let (node, addr) = start(&dir).await;
    let endpoints = [addr.clone()];
    playground::ready(&endpoints, 1, PATIENCE).await.unwrap();
    let mut open = leave_half_open(&addr, b"PRI * HTTP/2", CONNECTIONS_MAX + WAITING).await;
    let mut rounds = 0;
    while !open.is_empty() {
        // Some are taken when others have been given up, and have their own time from then on.
        pass(Duration::from_secs(10)).await;
        while let Ok(Some(_)) = tokio::time::timeout(MOMENT, open.join_next()).await {}
        rounds += 1;
        assert!(rounds < ROUNDS_MAX, "{} are held", open.len());
    }
    let client = Client::connect(&endpoints, Config::default()).await.unwrap();
    client.put("key", "value").await.unwrap();
    node.shutdown().await.unwrap();
}

#[tokio::test]
async fn clients_that_ask_for_nothing_make_room_for_a_put() {
    let dir = TempDir::new().unwrap();
    let (node, addr) = start(&dir).await;
    let endpoints = [addr.clone()];
    playground::ready(&endpoints, 1, PATIENCE).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        // A whole client: it answers when it is asked whether it is there.
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
        idle.push(endpoint.connect().await.unwrap());
    }
    let mut last = TcpStream::connect(&addr).await.unwrap();
    // The server answers it with its own settings.
    last.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let taken = tokio::time::timeout(MOMENT, last.read_u8()).await;
    assert!(taken.is_err(), "there is a place left: {taken:?}");
    pass(Duration::from_secs(60)).await;
    let taken = tokio::time::timeout(PATIENCE, last.read_u8()).await;
    taken.expect("a place is free").unwrap();
    let client = Client::connect(&endpoints, Config::default()).await.unwrap();
    client.put("key", "value").await.unwrap();
    node.shutdown().await.unwrap();
    drop(idle);
}
