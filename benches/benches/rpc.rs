//! What does a put cost by JSON-RPC over HTTP/1.1, and what by gRPC?
//!
//! The same question was once asked of another store, by a naive client of a JSON API, one gRPC
//! client, and a hundred gRPC clients on one connection: gRPC was 13 times faster with one client
//! and 68 times with a hundred. Those ratios are printed beside ours; the machine, the store and
//! the two APIs differ, so only the order of magnitude can be compared.
//!
//! Everybody talks to the same three stores in this process, on real files with real syncs, and to
//! one region, whose leader's store answers directly. Both servers call the same service object
//! ([`RawKv`]), so all that differs is how the request gets there. `rpc/jsonrpc.rs` tells what the
//! JSON side does. Ratios are to its client that keeps its connection open and sends its next
//! request after the answer to the last, as HTTP/1.1 has it; shown are also the naive one that
//! connects anew for each request, and a hundred that have a connection each.
//!
//! `get` is measured beside `put` because it needs no disk: there the way of the request is nearly
//! all the cost, while one client's put waits for a sync and for two other stores whoever carries
//! it. So one client's put cannot become 13 times faster by another protocol here; a hundred
//! clients' puts can, for they share syncs.
//!
//! `cargo bench --bench rpc` sends 3,000 requests each way; `cargo bench --bench rpc -- --long`
//! sends 300,000; `-- --test` sends a few to see that it works.

#[path = "rpc/jsonrpc.rs"]
mod jsonrpc;

use std::error::Error;
use std::time::{Duration, Instant};

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, Transport};
use flotilla_node::service::rawkv::{RawKv, RawKvLimits};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// The article's clients on one connection.
const CLIENTS: usize = 100;
/// Of each put.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 128;

fn main() -> Result<(), Failure> {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let requests = match (has("--test"), has("--long")) {
        (true, _) => 100,
        (false, true) => 300_000,
        (false, false) => 3_000,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compare(requests))
}

async fn compare(requests: u64) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 1;
    let playground = Playground::start(&settings).await?;
    playground.ready(Duration::from_secs(60)).await?;

    let leader = leader_of(&playground).ok_or("no store leads the region")?;
    let router = playground.node(leader).ok_or("the leader's store is gone")?.router().clone();
    let json = jsonrpc::serve(RawKv::new(router.clone(), RawKvLimits::default()), router).await?;
    let endpoints = playground.endpoints();
    let client = async |transport| {
        let config = Config { transport, connections_per_store: 1, ..Config::default() };
        Client::connect(&endpoints, config).await
    };
    let (unary, stream) = (client(Transport::Unary).await?, client(Transport::Stream).await?);

    let mut table = Table::default();
    let alone = [jsonrpc::Caller::connect(json).await?];
    table.add("JSON-RPC, 1 client", "", both(alone, requests).await?);
    let naive = [jsonrpc::Naive::new(json)];
    table.add("JSON-RPC, 1 client, connects anew", "", both(naive, requests).await?);
    let mut many = Vec::new();
    for _ in 0..CLIENTS {
        many.push(jsonrpc::Caller::connect(json).await?);
    }
    table.add("JSON-RPC, 100 clients, 100 connections", "", both(many, requests).await?);
    table.add("gRPC, 1 client", "13x", both([unary.clone()], requests).await?);
    let many = vec![unary; CLIENTS];
    table.add("gRPC, 100 clients, 1 connection", "68x", both(many, requests).await?);
    let many = vec![stream; CLIENTS];
    table.add("batch stream, 100 clients, 1 connection", "", both(many, requests).await?);

    println!("{requests} requests each, key {KEY_BYTES} B, value {VALUE_BYTES} B");
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

/// The requests.
#[derive(Clone, Copy)]
enum Ask {
    Put,
    Get,
}

/// A client that can put and get.
trait Caller: Send + 'static {
    fn put(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    fn get(
        &mut self,
        key: Vec<u8>,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Failure>> + Send;
}

impl Caller for Client {
    async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        Ok(Client::put(self, key, value).await?)
    }

    async fn get(&mut self, key: Vec<u8>) -> Result<Option<Vec<u8>>, Failure> {
        Ok(Client::get(self, key).await?.map(Vec::from))
    }
}

impl Caller for jsonrpc::Caller {
    async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        jsonrpc::Caller::put(self, &key, &value).await
    }

    async fn get(&mut self, key: Vec<u8>) -> Result<Option<Vec<u8>>, Failure> {
        jsonrpc::Caller::get(self, &key).await
    }
}

impl Caller for jsonrpc::Naive {
    async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        self.connect().await?.put(&key, &value).await
    }

    async fn get(&mut self, key: Vec<u8>) -> Result<Option<Vec<u8>>, Failure> {
        self.connect().await?.get(&key).await
    }
}

/// Puts, then gets.
async fn both<C: Caller>(
    callers: impl IntoIterator<Item = C>,
    requests: u64,
) -> Result<[Run; 2], Failure> {
    let callers = callers.into_iter().collect();
    let (put, callers) = side_by_side(callers, Ask::Put, requests).await?;
    let (get, _) = side_by_side(callers, Ask::Get, requests).await?;
    Ok([put, get])
}

/// All callers at once, each with one request on its way. Gives the callers back.
async fn side_by_side<C: Caller>(
    mut callers: Vec<C>,
    ask: Ask,
    requests: u64,
) -> Result<(Run, Vec<C>), Failure> {
    for caller in &mut callers {
        // Connections are made and the key is there before the clock starts.
        caller.put(key(0), vec![b'v'; VALUE_BYTES]).await?;
    }
    let share = requests / callers.len() as u64;
    let requests = share * callers.len() as u64;
    let began = Instant::now();
    let mut running = JoinSet::new();
    for (place, caller) in (0..).zip(callers) {
        running.spawn(in_turn(caller, ask, place * share, share));
    }
    let callers = running.join_all().await.into_iter().collect::<Result<_, _>>()?;
    Ok((Run { requests, elapsed: began.elapsed() }, callers))
}

/// One caller's requests, one after the other.
async fn in_turn<C: Caller>(mut caller: C, ask: Ask, first: u64, count: u64) -> Result<C, Failure> {
    for number in first..first + count {
        match ask {
            Ask::Put => caller.put(key(number), vec![b'v'; VALUE_BYTES]).await?,
            Ask::Get => match caller.get(key(0)).await? {
                Some(value) if value.len() == VALUE_BYTES => {}
                _ => return Err("the value is not there".into()),
            },
        }
    }
    Ok(caller)
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

/// One line for each way, with its ratio to the first one and the article's.
#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, &'static str, [Run; 2])>,
}

impl Table {
    fn add(&mut self, name: &'static str, article: &'static str, runs: [Run; 2]) {
        self.rows.push((name, article, runs));
    }

    fn print(&self) {
        let columns = "requests/s  us/request    ratio";
        println!("{:40}{:>32} {:>7}  {:>32}", "", "put", "", "get");
        println!("{:40}{columns:>32} {:>7}  {columns:>32}", "", "article");
        let Some((_, _, base)) = self.rows.first() else { return };
        for (name, article, runs) in &self.rows {
            let [put, get]: [String; 2] = std::array::from_fn(|place| {
                let rate = runs[place].per_second();
                let ratio = rate / base[place].per_second();
                format!("{rate:>11.0} {:>11.1} {ratio:>7.1}x", 1e6 / rate)
            });
            println!("{name:40}{put:>32} {article:>7}  {get:>32}");
        }
    }
}
