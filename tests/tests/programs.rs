//! Random programs of RawKV calls against a model: each program has keys of its own, over several
//! regions that are split meanwhile, and every answer must be that of the model. Times to live are
//! so long that none ends within a program; `expiry.rs` tests their ends.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod go_client;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, ColumnFamily, Config, Pair, RemainingTtl, RequestApi, Scan};
use flotilla_identity::ApiVersion;
use go_client::{GoRun, go_test};
use tempfile::TempDir;
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);
/// For all programs of the Go client, also ten thousand.
const GO_PATIENCE: Duration = Duration::from_secs(1_800);
/// Programs, and the seed of the first; a run by hand has ten thousand.
const COUNT_VARIABLE: &str = "FLOTILLA_PROGRAMS";
const SEED_VARIABLE: &str = "FLOTILLA_PROGRAM_SEED";
const COUNT: u64 = 400;
/// Programs that run at the same time.
const AT_ONCE: u64 = 32;
const CALLS_MAX: usize = 24;
/// Splits while they run.
const SPLITS: u8 = 6;

/// The rows that a program must find: values, and whether they expire some day.
type Model = BTreeMap<(ColumnFamily, Bytes), (Bytes, bool)>;

struct Program {
    rng: Rng,
    /// The keys, in order, over the whole key space.
    keys: Vec<Bytes>,
    model: Model,
    /// The column family of the call that is being made.
    family: ColumnFamily,
    /// The calls so far, for the report.
    calls: Vec<String>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let firsts = (0..rng.u8(2..9)).map(|_| rng.u8(..)).collect::<Vec<_>>();
        let mut keys: Vec<Bytes> = firsts
            .into_iter()
            .map(|first| [&[first], format!("-program-{seed:06}").as_bytes()].concat().into())
            .collect();
        keys.sort_unstable();
        keys.dedup();
        Self { rng, keys, model: Model::new(), family: ColumnFamily::Default, calls: vec![] }
    }

    fn key(&mut self) -> Bytes {
        self.keys[self.rng.usize(..self.keys.len())].clone()
    }

    fn some_keys(&mut self) -> Vec<Bytes> {
        let some = self.keys.clone().into_iter().filter(|_| self.rng.bool());
        some.collect()
    }

    fn value(&mut self) -> Bytes {
        let bytes =
            if self.rng.u8(..8) == 0 { self.rng.usize(..20_000) } else { self.rng.usize(..9) };
        vec![self.rng.u8(..); bytes].into()
    }

    fn ttl_s(&mut self) -> u64 {
        if self.rng.bool() { 0 } else { self.rng.u64(3_600..100_000) }
    }

    /// A range around one key, so that rows of other programs are not met.
    fn range(key: &Bytes) -> (Bytes, Bytes) {
        (key.clone(), [&key[..], &[0]].concat().into())
    }

    async fn run(mut self, client: &Client) -> Result<(), String> {
        for _ in 0..self.rng.usize(1..CALLS_MAX) {
            self.family = ColumnFamily::ALL[self.rng.usize(..3)];
            let client = &client.in_family(self.family);
            let kind = self.rng.u8(..12);
            let done = match kind {
                0 | 1 => self.put(client).await,
                2 | 3 => self.get(client).await,
                4 => self.delete(client).await,
                5 => self.batch_put(client).await,
                6 => self.batch_get(client).await,
                7 => self.batch_delete(client).await,
                8 => self.scan(client).await,
                9 => self.delete_range(client).await,
                10 => self.swap(client).await,
                _ => self.ttl(client).await,
            };
            done.map_err(|what| format!("{what}\nafter {:#?}", self.calls))?;
        }
        Ok(())
    }

    fn note(&mut self, call: String) {
        self.calls.push(format!("{}: {call}", self.family));
    }

    /// The row of a key that the model has.
    fn held(&self, key: &Bytes) -> Option<&(Bytes, bool)> {
        self.model.get(&(self.family, key.clone()))
    }

    fn hold(&mut self, key: Bytes, row: (Bytes, bool)) {
        self.model.insert((self.family, key), row);
    }

    fn drop_row(&mut self, key: &Bytes) {
        self.model.remove(&(self.family, key.clone()));
    }

    async fn put(&mut self, client: &Client) -> Result<(), String> {
        let (key, value, ttl_s) = (self.key(), self.value(), self.ttl_s());
        self.note(format!("put {key:?}, {} bytes, for {ttl_s}", value.len()));
        self.hold(key.clone(), (value.clone(), ttl_s > 0));
        client.put_with_ttl(key, value, ttl_s).await.map_err(|error| error.to_string())
    }

    async fn get(&mut self, client: &Client) -> Result<(), String> {
        let key = self.key();
        self.note(format!("get {key:?}"));
        let found = client.get(key.clone()).await.map_err(|error| error.to_string())?;
        same(&found, &self.held(&key).map(|(value, _)| value.clone()))
    }

    async fn delete(&mut self, client: &Client) -> Result<(), String> {
        let key = self.key();
        self.note(format!("delete {key:?}"));
        self.drop_row(&key);
        client.delete(key).await.map_err(|error| error.to_string())
    }

    async fn batch_put(&mut self, client: &Client) -> Result<(), String> {
        let keys = self.some_keys();
        self.note(format!("batch put {keys:?}"));
        let pairs: Vec<Pair> = keys.into_iter().map(|key| (key, self.value())).collect();
        pairs.iter().for_each(|(key, value)| self.hold(key.clone(), (value.clone(), false)));
        client.batch_put(pairs).await.map_err(|error| error.to_string())
    }

    async fn batch_get(&mut self, client: &Client) -> Result<(), String> {
        let mut keys = self.some_keys();
        self.rng.shuffle(&mut keys);
        self.note(format!("batch get {keys:?}"));
        let found = client.batch_get(keys.clone()).await.map_err(|error| error.to_string())?;
        let expected = keys.iter().map(|key| self.held(key).map(|(value, _)| value.clone()));
        same(&found, &expected.collect())
    }

    async fn batch_delete(&mut self, client: &Client) -> Result<(), String> {
        let keys = self.some_keys();
        self.note(format!("batch delete {keys:?}"));
        keys.iter().for_each(|key| self.drop_row(key));
        client.batch_delete(keys).await.map_err(|error| error.to_string())
    }

    async fn scan(&mut self, client: &Client) -> Result<(), String> {
        let (key, reverse, key_only) = (self.key(), self.rng.bool(), self.rng.bool());
        self.note(format!("scan {key:?}, reverse {reverse}, key only {key_only}"));
        let (start, end) = Self::range(&key);
        let scan = Scan { start, end, limit: self.rng.usize(1..4), reverse, key_only };
        let found = client.scan(scan).await.map_err(|error| error.to_string())?;
        let value = |value: &Bytes| if key_only { Bytes::new() } else { value.clone() };
        let expected = self.held(&key).map(|(it, _)| (key.clone(), value(it)));
        same(&found, &expected.into_iter().collect())
    }

    async fn delete_range(&mut self, client: &Client) -> Result<(), String> {
        let key = self.key();
        self.note(format!("delete the range of {key:?}"));
        let (start, end) = Self::range(&key);
        self.drop_row(&key);
        client.delete_range(start, end).await.map_err(|error| error.to_string())
    }

    async fn swap(&mut self, client: &Client) -> Result<(), String> {
        let (key, ttl_s) = (self.key(), self.ttl_s());
        let held = self.held(&key).map(|(value, _)| value.clone());
        let expected = if self.rng.u8(..4) > 0 { held.clone() } else { Some(self.value()) };
        let value = (self.rng.u8(..4) > 0).then(|| self.value());
        self.note(format!("swap {key:?}, deletes {}, for {ttl_s}", value.is_none()));
        let asked = (expected.clone(), value.clone());
        let swap = client.compare_and_swap_with_ttl(key.clone(), asked.0, asked.1, ttl_s);
        let swapped = swap.await.map_err(|error| error.to_string())?;
        same(&(swapped.succeeded, swapped.previous), &(held == expected, held.clone()))?;
        match value {
            _ if held != expected => {}
            Some(value) => self.hold(key, (value, ttl_s > 0)),
            None => self.drop_row(&key),
        }
        Ok(())
    }

    async fn ttl(&mut self, client: &Client) -> Result<(), String> {
        let key = self.key();
        self.note(format!("ttl {key:?}"));
        let found = client.ttl(key.clone()).await.map_err(|error| error.to_string())?;
        let expires = found.map(|left| left != RemainingTtl::Unlimited);
        same(&expires, &self.held(&key).map(|(_, expires)| *expires))
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("the answer was {found:?} and not {expected:?}"))
}

fn number(variable: &str, or: u64) -> u64 {
    std::env::var(variable).map_or(or, |number| number.parse().unwrap())
}

/// Splits while programs run.
async fn split(client: &Client, key: impl Fn(u8) -> Bytes) {
    for place in 0..SPLITS {
        let border = key(place * 40 + 20);
        let region = client.region_of(border.clone()).await.unwrap();
        client.split_region(region.region.id, [border]).await.unwrap();
    }
}

async fn start(dir: &TempDir, api: ApiVersion) -> Playground {
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = if api == ApiVersion::V2 { 1 } else { 2 };
    settings.common.api = Some(api);
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_a_program_is_that_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(&dir, ApiVersion::V1Ttl).await;
    // One that may have had its effect is not made twice: a swap would find its own value.
    let config = Config { resend_undetermined: false, deadline: PATIENCE, ..Config::default() };
    let client = Client::connect(&cluster.endpoints(), config).await.unwrap();
    let (count, first) = (number(COUNT_VARIABLE, COUNT), number(SEED_VARIABLE, 1));
    let next = Arc::new(AtomicU64::new(first));
    let mut runners = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (client, next) = (client.clone(), Arc::clone(&next));
        runners.spawn(async move {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + count {
                    return;
                }
                if let Err(what) = Program::new(seed).run(&client).await {
                    panic!("program {seed}: {what}");
                }
            }
        });
    }
    split(&client, |first| Bytes::from(vec![first])).await;
    while let Some(ended) = runners.join_next().await {
        ended.unwrap();
    }
    println!(
        "{count} programs from seed {first} on, {} regions",
        client.regions().await.unwrap().len()
    );
    cluster.shutdown().await.unwrap();
}

/// The Go client has programs of its own, with checksums, in both versions of the API. The keys of
/// V2 lie in a keyspace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_the_go_client_is_that_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = go_test(dir.path()) else { return };
    let (count, first) = (number(COUNT_VARIABLE, COUNT), number(SEED_VARIABLE, 1));
    for api in [ApiVersion::V1Ttl, ApiVersion::V2] {
        let dir = tempfile::tempdir().unwrap();
        let cluster = start(&dir, api).await;
        let (name, prefix, request_api) = match api {
            ApiVersion::V1Ttl => ("", &b""[..], RequestApi::V1),
            ApiVersion::V2 => ("DEFAULT", &b"r\0\0\0"[..], RequestApi::V2),
        };
        let settings = [
            ("FLOTILLA_PROGRAMS", count.to_string()),
            ("FLOTILLA_PROGRAM_SEED", first.to_string()),
            ("FLOTILLA_KEYSPACE", name.to_owned()),
        ];
        let go = GoRun::start(&program, "TestPrograms", &cluster.endpoints(), &settings);
        let config = Config { api: request_api, ..Config::default() };
        let client = Client::connect(&cluster.endpoints(), config).await.unwrap();
        split(&client, |first| [prefix, &[first]].concat().into()).await;
        go.finish_within(GO_PATIENCE).await;
        cluster.shutdown().await.unwrap();
    }
}
