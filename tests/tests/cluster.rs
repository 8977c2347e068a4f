//! Three real stores over real sockets and files, and their loss: one after the other, in good
//! order, as a crash inside a process, and with SIGKILL under load. Afterwards every acknowledged
//! write is there, and what clients saw can be explained by one order of their operations.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{Client, Config};
use flotilla_node::playground::{Playground, Settings};
use flotilla_sim::checker::{self, Action, Answer, History};
use processes::Processes;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many stores the test with SIGKILL kills; a variable of the environment asks for more.
const KILLS: u64 = 6;
const KILLS_VARIABLE: &str = "FLOTILLA_KILLS";

fn settings(dir: &Path) -> Settings {
    let mut settings = Settings::new(dir);
    settings.common.regions = 4;
    settings
}

async fn client(endpoints: &[String]) -> Client {
    // An attempt that may have had its effect must not be made twice, or one write of the history
    // would stand for two.
    let config = Config { resend_undetermined: false, deadline: PATIENCE, ..Config::default() };
    Client::connect(endpoints, config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_any_store_is_survived_and_made_good() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&settings(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let client = client(&cluster.endpoints()).await;
    let mut written: Vec<(String, String)> = Vec::new();
    for place in 0..3 {
        for crash in [true, false] {
            let key = format!("{}key of {place} {crash}", ['A', '\u{7f}', 'z'][place]);
            client.put(key.clone(), "before").await.unwrap();
            if crash {
                cluster.abandon(place).await;
            } else {
                cluster.stop(place).await.unwrap();
            }
            assert_eq!(client.get(key.clone()).await.unwrap().unwrap(), "before");
            client.put(key.clone(), format!("without {place}")).await.unwrap();
            written.push((key, format!("without {place}")));
            cluster.restart(place).await.unwrap();
            cluster.ready(PATIENCE).await.unwrap();
        }
    }
    for (key, value) in written {
        assert_eq!(client.get(key).await.unwrap().unwrap(), value);
    }
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_stopped_finds_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&settings(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let keys: Vec<_> = (0..=255u8).map(|first| Bytes::from(vec![first, 1])).collect();
    let before = client(&cluster.endpoints()).await;
    let pairs = keys.iter().map(|key| (key.clone(), Bytes::from("value")));
    before.batch_put(pairs).await.unwrap();
    for place in 0..3 {
        cluster.stop(place).await.unwrap();
    }
    for place in 0..3 {
        cluster.restart(place).await.unwrap();
    }
    cluster.ready(PATIENCE).await.unwrap();
    let found = client(&cluster.endpoints()).await.batch_get(keys).await.unwrap();
    assert_eq!(found, vec![Some(Bytes::from("value")); 256]);
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_sigkill_and_no_client_sees_the_impossible() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |kills| kills.parse().unwrap());
    let mut cluster = Processes::start(3, 4).await;
    let load = Arc::new(Load::new());
    let mut writers = JoinSet::new();
    for number in 0..8 {
        let (load, client) = (Arc::clone(&load), client(cluster.endpoints()).await);
        writers.spawn(async move { load.run(number, &client).await });
    }
    for kill in 0..kills {
        let place = kill as usize % 3;
        load.progress(100).await;
        cluster.kill(place);
        load.progress(100).await;
        cluster.restart(place);
        cluster.ready().await;
        load.round.fetch_add(1, Ordering::Relaxed);
    }
    load.progress(100).await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    let client = client(cluster.endpoints()).await;
    load.read_all(&client).await;
    let checked = load.history.lock().unwrap().check();
    let checked = checked.unwrap_or_else(|(key, violation)| panic!("{key:?}: {violation}"));
    let once = load.written_once.lock().unwrap().len();
    println!("{kills} kills, {checked:?}, {once} keys written once, none lost");
}

/// One for each region.
const FIRST_BYTES: [u8; 4] = [0x10, 0x50, 0x90, 0xd0];

/// Registers in each region that clients fight over at a time.
const REGISTERS: u8 = 4;

fn key(first: u8, rest: &str) -> Bytes {
    [&[first], rest.as_bytes()].concat().into()
}

fn register(first: u8, round: u64, place: u8) -> Bytes {
    key(first, &format!("register-{round}-{place}"))
}

/// Clients at work, and what they were told.
struct Load {
    began: Instant,
    /// Goes into the names of keys, so that no register collects too many operations whose fate is
    /// unknown: each of them doubles what the checker has to think of.
    round: AtomicU64,
    stop: AtomicBool,
    acknowledged: watch::Sender<u64>,
    history: Mutex<History<Bytes>>,
    written_once: Mutex<Vec<(Bytes, Bytes)>>,
}

impl Load {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            round: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            acknowledged: watch::Sender::new(0),
            history: Mutex::default(),
            written_once: Mutex::default(),
        }
    }

    /// Waits until so many more operations were acknowledged.
    async fn progress(&self, count: u64) {
        let mut acknowledged = self.acknowledged.subscribe();
        let enough = *acknowledged.borrow() + count;
        let reached = acknowledged.wait_for(|now| *now >= enough);
        tokio::time::timeout(PATIENCE, reached).await.expect("clients get on").unwrap();
    }

    /// One client: a register of a few, a random operation on it, and now and then a key of its
    /// own that is written once and never again.
    async fn run(&self, number: u64, client: &Client) {
        let mut random = fastrand::Rng::with_seed(number);
        // What each register held when this client heard of it last, for swaps that may succeed.
        let mut held: BTreeMap<Bytes, checker::Value> = BTreeMap::new();
        for count in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let round = self.round.load(Ordering::Relaxed);
            let first = FIRST_BYTES[random.usize(..4)];
            if random.u8(..4) == 0 {
                let key = key(first, &format!("once-{number}-{count}"));
                let value = Bytes::from(format!("{count}"));
                if client.put(key.clone(), value.clone()).await.is_ok() {
                    self.written_once.lock().unwrap().push((key, value));
                    self.acknowledged.send_modify(|count| *count += 1);
                }
                continue;
            }
            let key = register(first, round, random.u8(..REGISTERS));
            let unique = Bytes::from(format!("{number}-{count}"));
            let action = match random.u8(..10) {
                0..4 => Action::Get,
                4..7 => Action::Put(unique),
                7 => Action::Delete,
                _ => {
                    let expected = held.get(&key).cloned().flatten();
                    Action::Swap { expected, value: Some(unique) }
                }
            };
            if let Some(answer) = self.operate(client, number, key.clone(), action.clone()).await {
                held.insert(key, checker::held_after(&action, &answer));
            }
        }
    }

    /// Asks and notes what came of it.
    async fn operate(
        &self,
        client: &Client,
        number: u64,
        key: Bytes,
        action: Action,
    ) -> Option<Answer> {
        let called = self.now();
        let id = self.history.lock().unwrap().call(key.clone(), number, called, action.clone());
        let answer = match action {
            Action::Get => client.get(key).await.map(Answer::Seen),
            Action::Put(value) => client.put(key, value).await.map(|()| Answer::Done),
            Action::Delete => client.delete(key).await.map(|()| Answer::Done),
            Action::Swap { expected, value } => client
                .compare_and_swap(key, expected, value)
                .await
                .map(|swap| Answer::Swapped { succeeded: swap.succeeded, previous: swap.previous }),
        };
        let returned = self.now();
        let mut history = self.history.lock().unwrap();
        match answer {
            Ok(answer) => {
                history.answer(id, returned, answer.clone());
                self.acknowledged.send_modify(|count| *count += 1);
                Some(answer)
            }
            // Without an answer: it may have happened, or may yet.
            Err(error) if error.is_undetermined() => None,
            Err(_) => {
                history.forget(id);
                None
            }
        }
    }

    /// Reads every register once more, for the history, and every key that was written once.
    async fn read_all(&self, client: &Client) {
        for round in 0..=self.round.load(Ordering::Relaxed) {
            for first in FIRST_BYTES {
                for place in 0..REGISTERS {
                    self.operate(client, 99, register(first, round, place), Action::Get).await;
                }
            }
        }
        let written = self.written_once.lock().unwrap().clone();
        let keys = written.iter().map(|(key, _)| key.clone());
        let found = client.batch_get(keys).await.unwrap();
        for ((key, value), found) in written.into_iter().zip(found) {
            assert_eq!(found, Some(value), "{key:?} was acknowledged");
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }
}
