//! What does a put cost by JSON-RPC over HTTP/1.1, and what by gRPC?
//!
//! The same question was once asked of another store, by a naive client of a JSON API, one gRPC
//! client, and a hundred gRPC clients on one connection: gRPC was 13 times faster with one client
//! and 68 times with a hundred. Those ratios are printed beside ours; the machine, the store and
//! the two APIs differ, so only the order of magnitude can be compared.
//!
//! Everybody talks to the same three stores in this process, on real files with real syncs, and to
//! one region, whose leader's store answers directly. Both servers call the same service object
//! ([`RawKv`]), so all that differs is how the request gets there. What `json` does is told in
//! `rpc/jsonrpc.rs`; it keeps its connection open, and sends its next request after the answer to
//! the last, as every HTTP/1.1 client must. `get` is measured beside `put` because it needs no
//! disk: there the way of the request is nearly all the cost, while one client's put waits for a
//! sync and for two other stores whoever carries it.
//!
//! `cargo bench --bench rpc` sends 3,000 requests each way; `cargo bench --bench rpc -- --long`
//! sends 300,000; `-- --test` sends a few to see that it works.

#[path = "rpc/jsonrpc.rs"]
mod jsonrpc;

use std::error::Error;
use std::time::{Duration, Instant};

use flotilla_client::{Client, Config, Transport};
use flotilla_node::playground::{Playground, Settings};
use flotilla_node::service::{Limits, RawKv};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// The article's clients on one connection.
const CLIENTS: u64 = 100;
/// The article's key and value.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 128;

fn main() -> Result<(), Failure> {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let requests = match (has("--test"), has("--long")) {
        (true, _) => CLIENTS,
        (false, true) => 300_000,
        (false, false) => 3_000,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compare(requests))
}

async fn compare(requests: u64) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let mut settings = Settings::new(dir.path());
    settings.common.regions = 1;
    let playground = Playground::start(&settings).await?;
    playground.ready(Duration::from_secs(60)).await?;

    let leader = leader_of(&playground).ok_or("no store leads the region")?;
    let router = playground.node(leader).ok_or("the leader's store is gone")?.router().clone();
    let json = jsonrpc::serve(RawKv::new(router.clone(), Limits::default()), router).await?;
    let endpoints = playground.endpoints();
    let client = async |transport| {
        let config = Config { transport, connections_per_store: 1, ..Config::default() };
        Client::connect(&endpoints, config).await
    };
    let (unary, stream) = (client(Transport::Unary).await?, client(Transport::Stream).await?);

    let mut table = Table::default();
    let connect = || jsonrpc::Caller::connect(json);
    table.add(
        "JSON-RPC over HTTP/1.1, 1 client",
        None,
        [
            in_turn(connect().await?, Ask::Put, requests).await?,
            in_turn(connect().await?, Ask::Get, requests).await?,
        ],
    );
    table.add(
        "gRPC, 1 client",
        Some(13),
        [in_turn(&unary, Ask::Put, requests).await?, in_turn(&unary, Ask::Get, requests).await?],
    );
    table.add(
        "gRPC, 100 clients, 1 connection",
        Some(68),
        [
            side_by_side(&unary, Ask::Put, requests).await?,
            side_by_side(&unary, Ask::Get, requests).await?,
        ],
    );
    table.add(
        "batch stream, 100 clients, 1 connection",
        None,
        [
            side_by_side(&stream, Ask::Put, requests).await?,
            side_by_side(&stream, Ask::Get, requests).await?,
        ],
    );
    println!(
        "{requests} requests each, key {KEY_BYTES} B, value {VALUE_BYTES} B, 3 stores, synced"
    );
    table.print();
    playground.shutdown().await?;
    Ok(())
}

/// The store that leads the one region of the clients' keys.
fn leader_of(playground: &Playground) -> Option<usize> {
    (0..3).find(|store| {
        let Some(node) = playground.node(*store) else { return false };
        let raw = node.router().locate(flotilla_region::Space::Raw, b"");
        raw.is_some_and(|region| node.router().leads(region.id))
    })
}

/// What is asked for.
#[derive(Clone, Copy)]
enum Ask {
    Put,
    Get,
}

/// Somebody who can put and get.
trait Caller {
    fn put(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    fn get(&mut self, key: Vec<u8>) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl Caller for &Client {
    async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        Ok(Client::put(self, key, value).await?)
    }

    async fn get(&mut self, key: Vec<u8>) -> Result<(), Failure> {
        match Client::get(self, key).await? {
            Some(value) if value.len() == VALUE_BYTES => Ok(()),
            _ => Err("the value is not there".into()),
        }
    }
}

impl Caller for jsonrpc::Caller {
    async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        jsonrpc::Caller::put(self, &key, &value).await
    }

    async fn get(&mut self, key: Vec<u8>) -> Result<(), Failure> {
        match jsonrpc::Caller::get(self, &key).await? {
            Some(value) if value.len() == VALUE_BYTES => Ok(()),
            _ => Err("the value is not there".into()),
        }
    }
}

/// One caller's requests, one after the other.
async fn in_turn(mut caller: impl Caller, ask: Ask, requests: u64) -> Result<Run, Failure> {
    // Connections are made and the key is there before the clock starts.
    caller.put(key(0), vec![b'v'; VALUE_BYTES]).await?;
    let began = Instant::now();
    go(caller, ask, 0, requests).await?;
    Ok(Run { requests, elapsed: began.elapsed() })
}

/// A hundred who share a connection, each with one request on its way.
async fn side_by_side(client: &Client, ask: Ask, requests: u64) -> Result<Run, Failure> {
    client.put(key(0), vec![b'v'; VALUE_BYTES]).await?;
    let share = requests / CLIENTS;
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..CLIENTS {
        let client = client.clone();
        callers.spawn(async move { go(&client, ask, caller * share, share).await });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    Ok(Run { requests: share * CLIENTS, elapsed: began.elapsed() })
}

async fn go(mut caller: impl Caller, ask: Ask, first: u64, count: u64) -> Result<(), Failure> {
    for number in first..first + count {
        match ask {
            Ask::Put => caller.put(key(number), vec![b'v'; VALUE_BYTES]).await?,
            Ask::Get => caller.get(key(0)).await?,
        }
    }
    Ok(())
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:0KEY_BYTES$}").into_bytes()
}

/// How long so many requests took.
struct Run {
    requests: u64,
    elapsed: Duration,
}

impl Run {
    fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }
}

/// One line for each way, with its ratio to the first one.
#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, Option<u32>, [Run; 2])>,
}

impl Table {
    fn add(&mut self, name: &'static str, article: Option<u32>, runs: [Run; 2]) {
        self.rows.push((name, article, runs));
    }

    fn print(&self) {
        println!("{:40} {:>42} {:>34}", "", "put", "get");
        let columns = "requests/s  us/request   ratio";
        println!("{:40} {columns:>33}  article {columns:>34}", "");
        let Some((_, _, base)) = self.rows.first() else { return };
        for (name, article, [put, get]) in &self.rows {
            let article = article.map(|ratio| format!("{ratio}x")).unwrap_or_default();
            let cells = |run: &Run, base: &Run| {
                let rate = run.per_second();
                format!("{rate:>10.0} {:>11.1} {:>6.1}x", 1e6 / rate, rate / base.per_second())
            };
            println!(
                "{name:40} {:>33} {article:>8} {:>34}",
                cells(put, &base[0]),
                cells(get, &base[1])
            );
        }
    }
}
