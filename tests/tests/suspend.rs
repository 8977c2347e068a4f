//! Leaders that are suspended, as real processes: each is stopped with SIGSTOP, and a library that
//! is preloaded makes the clocks stand still that would stand still if the machine were suspended.
//! Clients read at the leader as soon as it goes on, and what they saw must be explained by one
//! order of their operations. A leader that counts its lease by such a clock would believe in it
//! still, and answer what was right before.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{Client, Config};
use flotilla_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use flotilla_proto::metapb::RegionEpoch;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_sim::checker::{History, RegisterAction, RegisterAnswer};
use processes::Processes;
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// How often a leader is suspended; a variable of the environment asks for more.
const ROUNDS: u64 = 4;
const ROUNDS_VARIABLE: &str = "FLOTILLA_SUSPENSIONS";
/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections to the leader, and reads that wait in each when it goes on: many, so that some come
/// to its shard before the messages of the new leader, which wait as well.
const CONNECTIONS: usize = 32;
const READS_WAITING: usize = 2;
/// The only region of the clients' keys.
const REGION: u64 = 2;
/// Registers of a round that the clients at work choose from.
const REGISTERS: u8 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_leader_serves_nothing_by_its_lease() {
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let clocks = StoppedClocks::new(3);
    let cluster = Processes::start_in(3, 1, clocks.environment()).await;
    clocks.check_that_they_are_used(&cluster);
    let mut stores = Vec::new();
    for endpoint in cluster.endpoints() {
        stores.push(Pinned::connect(endpoint).await);
    }
    let seen = Arc::new(Seen::new());
    let mut others = JoinSet::new();
    for number in 0..3 {
        let config = Config {
            resend_undetermined: false,
            attempt_timeout: Duration::from_secs(1),
            ..Config::default()
        };
        let client = Client::connect(cluster.endpoints(), config).await.unwrap();
        let seen = Arc::clone(&seen);
        others.spawn(async move { seen.work(number, &client).await });
    }
    let (mut answered, mut refused) = (0, 0);
    for round in 0..rounds {
        seen.round.store(round, Ordering::Relaxed);
        let reads = suspend_a_leader(&cluster, &clocks, &stores, &seen, round).await;
        answered += reads.iter().filter(|read| **read).count();
        refused += reads.iter().filter(|read| !**read).count();
        cluster.ready().await;
    }
    seen.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = others.join_next().await {
        ended.unwrap();
    }
    let checked = seen.history.lock().unwrap().check();
    let checked = checked.unwrap_or_else(|(key, violation)| panic!("{key:?}: {violation}"));
    println!(
        "{rounds} suspensions; of the reads that waited for the leader {answered} were answered \
         and {refused} refused; {checked:?}"
    );
}

/// Suspends the leader until another one has taken a write, and reports of each read that waited
/// for it whether it was answered.
async fn suspend_a_leader(
    cluster: &Processes,
    clocks: &StoppedClocks,
    stores: &[Pinned],
    seen: &Arc<Seen>,
    round: u64,
) -> Vec<bool> {
    let key = Bytes::from(format!("key of round {round}"));
    seen.write(stores, &key).await;
    let leader = find_leader(stores, seen, &key).await;
    let others: Vec<_> = (0..stores.len()).filter(|place| *place != leader).collect();
    let others: Vec<_> = others.into_iter().map(|place| stores[place].clone()).collect();
    // So that the leader has a lease, and most of it is ahead.
    for _ in 0..20 {
        seen.read(&stores[leader], 0, &key).await;
    }
    cluster.suspend(leader);
    let stopped = Instant::now();
    let mut waiting = JoinSet::new();
    seen.write(&others, &key).await;
    for connection in 0..CONNECTIONS * READS_WAITING {
        let (store, seen, key) = (stores[leader].clone(), Arc::clone(seen), key.clone());
        waiting.spawn(async move { seen.read(&store, connection % CONNECTIONS, &key).await });
    }
    // Meanwhile they get as far as the leader's sockets.
    for _ in 0..5 {
        seen.write(&others, &key).await;
    }
    // Not more than it stood still: no clock goes back.
    clocks.add(leader, stopped.elapsed());
    cluster.resume(leader);
    let mut reads = Vec::new();
    while let Some(read) = tokio::time::timeout(PATIENCE, waiting.join_next()).await.unwrap() {
        reads.push(read.unwrap());
    }
    reads
}

/// The store that serves reads of the region.
async fn find_leader(stores: &[Pinned], seen: &Seen, key: &Bytes) -> usize {
    let found = async {
        loop {
            for (place, store) in stores.iter().enumerate() {
                if seen.read(store, 0, key).await {
                    return place;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the region has a leader")
}

/// Clients that talk to one store, whether or not it leads.
#[derive(Clone)]
struct Pinned {
    connections: Vec<TikvClient<Channel>>,
}

impl Pinned {
    async fn connect(endpoint: &str) -> Self {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let channel = Channel::from_shared(format!("http://{endpoint}")).unwrap();
            connections.push(TikvClient::new(channel.connect().await.unwrap()));
        }
        Self { connections }
    }
}

fn context() -> Option<Context> {
    // It is never split.
    let region_epoch = Some(RegionEpoch { conf_ver: 1, version: 1 });
    Some(Context { region_id: REGION, region_epoch, ..Default::default() })
}

/// The history of all clients.
struct Seen {
    began: Instant,
    history: Mutex<History<Bytes>>,
    client_count: AtomicU64,
    round: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            history: Mutex::default(),
            client_count: AtomicU64::new(0),
            round: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    /// Asks, each time as a client of its own, and notes what came of it: an answer, `Ok(None)` for
    /// one that does not tell, `Err` if it surely had no effect. Says whether there was an answer.
    async fn note(
        &self,
        key: &Bytes,
        action: RegisterAction,
        asked: impl Future<Output = Result<Option<RegisterAnswer>, ()>>,
    ) -> bool {
        let client = self.client_count.fetch_add(1, Ordering::Relaxed);
        let called = self.now();
        let id = self.history.lock().unwrap().call(key.clone(), client, called, action);
        let answer = asked.await;
        let returned = self.now();
        let mut history = self.history.lock().unwrap();
        match answer {
            Ok(Some(answer)) => {
                history.answer(id, returned, answer);
                return true;
            }
            Ok(None) => {}
            Err(()) => history.forget(id),
        }
        false
    }

    /// Reads at one store.
    async fn read(&self, store: &Pinned, connection: usize, key: &Bytes) -> bool {
        let mut kv = store.connections[connection].clone();
        let get = RawGetRequest { context: context(), key: key.clone(), ..Default::default() };
        let asked = async {
            let response = kv.raw_get(get).await.map_err(drop)?.into_inner();
            if response.region_error.is_some() || !response.error.is_empty() {
                return Err(());
            }
            Ok(Some(RegisterAnswer::Seen((!response.not_found).then_some(response.value))))
        };
        self.note(key, RegisterAction::Get, asked).await
    }

    /// Writes at one of the stores after the other, until one has taken it.
    async fn write(&self, stores: &[Pinned], key: &Bytes) {
        let taken = async {
            loop {
                for store in stores {
                    if self.put(store, key).await {
                        return;
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.expect("one of the stores leads");
    }

    async fn put(&self, store: &Pinned, key: &Bytes) -> bool {
        let value = Bytes::from(format!("{}", self.client_count.load(Ordering::Relaxed)));
        let mut kv = store.connections[0].clone();
        let put = RawPutRequest {
            context: context(),
            key: key.clone(),
            value: value.clone(),
            ..Default::default()
        };
        let asked = async {
            let Ok(response) = kv.raw_put(put).await else { return Ok(None) };
            let response = response.into_inner();
            match response.region_error {
                None if response.error.is_empty() => Ok(Some(RegisterAnswer::Done)),
                Some(error) if error.not_leader.is_some() => Err(()),
                // Any other answer: an undetermined result is always right.
                _ => Ok(None),
            }
        };
        self.note(key, RegisterAction::Put(value), asked).await
    }

    /// A client at work on a few registers, which finds its way to the leader by itself.
    async fn work(&self, number: u64, client: &Client) {
        let mut random = fastrand::Rng::with_seed(number);
        for count in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let round = self.round.load(Ordering::Relaxed);
            let key = Bytes::from(format!("register {round} {}", random.u8(..REGISTERS)));
            if random.bool() {
                let asked = async { client.get(key.clone()).await.map(RegisterAnswer::Seen) };
                self.note(&key, RegisterAction::Get, certain(asked)).await;
            } else {
                let value = Bytes::from(format!("{number} {count}"));
                let put = client.put(key.clone(), value.clone());
                let asked = async { put.await.map(|()| RegisterAnswer::Done) };
                self.note(&key, RegisterAction::Put(value), certain(asked)).await;
            }
        }
    }
}

/// The answer to a client, as far as it is certain.
async fn certain(
    asked: impl Future<Output = Result<RegisterAnswer, flotilla_client::Error>>,
) -> Result<Option<RegisterAnswer>, ()> {
    match asked.await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_undetermined() => Ok(None),
        Err(_) => Err(()),
    }
}

/// A file for each store that says how long its clocks have stood still, and the library that reads
/// it.
struct StoppedClocks {
    dir: tempfile::TempDir,
    library: PathBuf,
    stopped: Vec<Mutex<Duration>>,
}

impl StoppedClocks {
    fn new(stores: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libstopped_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload/stopped_clock.rs");
        let compiled = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
            .args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-o"])
            .args([&library, &source])
            .status();
        assert!(compiled.unwrap().success(), "the library cannot be compiled");
        let stopped = (0..stores).map(|_| Mutex::default()).collect();
        let clocks = Self { dir, library, stopped };
        (0..stores).for_each(|place| clocks.add(place, Duration::ZERO));
        clocks
    }

    fn path(dir: &Path, place: usize) -> PathBuf {
        dir.join(format!("stopped-{place}"))
    }

    fn environment(&self) -> processes::Environment {
        let (dir, library) = (self.dir.path().to_owned(), self.library.clone());
        Box::new(move |place| {
            vec![
                ("LD_PRELOAD".into(), library.clone().into()),
                ("FLOTILLA_STOPPED_CLOCK".into(), Self::path(&dir, place).into()),
            ]
        })
    }

    /// The loader only warns of a library that it cannot load.
    fn check_that_they_are_used(&self, cluster: &Processes) {
        for place in 0..self.stopped.len() {
            let maps = fs::read_to_string(format!("/proc/{}/maps", cluster.pid(place))).unwrap();
            for used in [&self.library, &Self::path(self.dir.path(), place)] {
                assert!(maps.contains(used.to_str().unwrap()), "{} is not used", used.display());
            }
        }
    }

    /// Adds to the time for which a store's clocks have stood still.
    fn add(&self, place: usize, longer: Duration) {
        let mut stopped = self.stopped[place].lock().unwrap();
        *stopped += longer;
        let nanos = i64::try_from(stopped.as_nanos()).unwrap();
        let path = Self::path(self.dir.path(), place);
        let file = fs::File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.write_all_at(&nanos.to_ne_bytes(), 0).unwrap();
    }
}
