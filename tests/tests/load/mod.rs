//! Clients at work on a cluster, and the check of their answers: one order of their operations
//! explains them, and no acknowledged write is lost.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{Client, Config};
use flotilla_sim::checker::{self, History, OperationId, RegisterAction, RegisterAnswer};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client whose attempts can be written down: one that may have had its effect is not made twice,
/// or one write of the history would stand for two.
pub(crate) async fn client(endpoints: &[String]) -> Client {
    client_by(endpoints, Config::default()).await
}

/// The same, with what else `config` says.
async fn client_by(endpoints: &[String], config: Config) -> Client {
    let config = Config { resend_undetermined: false, deadline: PATIENCE, ..config };
    Client::connect(endpoints, config).await.unwrap()
}

/// Clients that work until they are stopped.
pub(crate) struct Load {
    shared: Arc<SharedLoad>,
    clients: JoinSet<()>,
    config: Config,
}

impl Load {
    /// Starts `count` clients on a cluster of four regions.
    pub(crate) async fn start(count: u64, endpoints: &[String]) -> Self {
        Self::begin(count, endpoints, true, Config::default(), 0).await
    }

    /// The same, but no value expires: not all stores know of that.
    pub(crate) async fn start_without_ttl(count: u64, endpoints: &[String]) -> Self {
        Self::begin(count, endpoints, false, Config::default(), 0).await
    }

    /// Starts clients with this configuration, which have registers and keys of their own: those of
    /// another load stay as they are.
    pub(crate) async fn start_apart(count: u64, endpoints: &[String], config: Config) -> Self {
        Self::begin(count, endpoints, true, config, APART).await
    }

    async fn begin(
        count: u64,
        endpoints: &[String],
        has_ttl: bool,
        config: Config,
        first: u64,
    ) -> Self {
        let shared = Arc::new(SharedLoad::new(has_ttl, first));
        let mut clients = JoinSet::new();
        for number in first..first + count {
            let client = client_by(endpoints, config.clone()).await;
            let shared = Arc::clone(&shared);
            clients.spawn(async move { shared.run(number, &client).await });
        }
        Self { shared, clients, config }
    }

    /// Waits until `count` more operations were acknowledged.
    pub(crate) async fn progress(&self, count: u64) {
        self.shared.progress(count).await;
    }

    /// Checks that no client has seen an error so far.
    #[allow(dead_code, reason = "each test program uses a part of it")]
    pub(crate) fn no_errors(&self) {
        let errors = self.shared.errors.lock().unwrap();
        assert!(errors.is_empty(), "{} errors: {:?}", errors.len(), errors.first());
    }

    /// The same, but for writes whose connection ended: these clients send none twice.
    pub(crate) fn no_refusals(&self) {
        let errors = self.shared.errors.lock().unwrap();
        let (unknown, refused): (Vec<_>, Vec<_>) = errors.iter().partition(|(unknown, _)| *unknown);
        println!("the fate of {} writes is unknown", unknown.len());
        assert!(refused.is_empty(), "{} errors: {:?}", refused.len(), refused.first());
    }

    /// From now on clients take other registers.
    pub(crate) fn next_round(&self) {
        self.shared.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the clients, reads everything once more and checks it; the figures.
    pub(crate) async fn end(mut self, endpoints: &[String]) -> String {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.shared.read_all(&client_by(endpoints, self.config).await).await;
        let checked = self.shared.history.lock().unwrap().check();
        let checked = checked.unwrap_or_else(|(key, violation)| panic!("{key:?}: {violation}"));
        let once = self.shared.written_once.lock().unwrap().len();
        format!("{checked:?}, {once} keys written once, none lost")
    }
}

/// The first number of a load that stays apart from another.
const APART: u64 = 1_000_000;

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

/// How far from its time a value may be gone, on a machine with one clock: a leader has its log
/// name a time that is so far ahead, and clocks are read in milliseconds.
const EXPIRY_SLACK: Duration = Duration::from_millis(102);

/// The shared state of all clients, with their history.
struct SharedLoad {
    began: Instant,
    /// The number of the first client and of the first round.
    first: u64,
    /// Whether some values expire.
    has_ttl: bool,
    /// Goes into the names of keys, so that no register collects too many operations whose fate is
    /// unknown: each of them doubles what the checker has to think of.
    round: AtomicU64,
    stop: AtomicBool,
    acknowledged: watch::Sender<u64>,
    history: Mutex<History<Bytes>>,
    written_once: Mutex<Vec<(Bytes, Bytes)>>,
    /// The errors that clients have seen, and whether the fate of the request is unknown.
    errors: Mutex<Vec<(bool, String)>>,
}

impl SharedLoad {
    fn new(has_ttl: bool, first: u64) -> Self {
        Self {
            began: Instant::now(),
            first,
            has_ttl,
            round: AtomicU64::new(first),
            stop: AtomicBool::new(false),
            acknowledged: watch::Sender::new(0),
            history: Mutex::default(),
            written_once: Mutex::default(),
            errors: Mutex::default(),
        }
    }

    fn note(&self, error: &flotilla_client::Error) {
        self.errors.lock().unwrap().push((error.is_undetermined(), error.to_string()));
    }

    /// Waits until `count` more operations were acknowledged.
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
        // The last known value of each register, for swaps that may succeed.
        let mut held: BTreeMap<Bytes, checker::RegisterValue> = BTreeMap::new();
        for count in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let round = self.round.load(Ordering::Relaxed);
            let first = FIRST_BYTES[random.usize(..4)];
            if random.u8(..4) == 0 {
                let key = key(first, &format!("once-{number}-{count}"));
                let value = Bytes::from(format!("{count}"));
                match client.put(key.clone(), value.clone()).await {
                    Ok(()) => {
                        self.written_once.lock().unwrap().push((key, value));
                        self.acknowledged.send_modify(|count| *count += 1);
                    }
                    Err(error) => self.note(&error),
                }
                continue;
            }
            let key = register(first, round, random.u8(..REGISTERS));
            let unique = Bytes::from(format!("{number}-{count}"));
            let action = match random.u8(..10) {
                0..4 => RegisterAction::Get,
                4..7 => RegisterAction::Put(unique),
                7 => RegisterAction::Delete,
                _ => {
                    let expected = held.get(&key).cloned().flatten();
                    RegisterAction::Swap { expected, value: Some(unique) }
                }
            };
            let ttl_s = match action {
                RegisterAction::Put(_) | RegisterAction::Swap { .. } if self.has_ttl => {
                    random.u64(0..6).saturating_sub(2)
                }
                _ => 0,
            };
            let answer = self.operate(client, number, key.clone(), action.clone(), ttl_s).await;
            if let Some(answer) = answer {
                held.insert(key, checker::held_after(&action, &answer));
            }
        }
    }

    /// Notes when the value of an action is gone, if it expires: from when on, until it is known
    /// when it was written.
    fn note_expiry(
        &self,
        (key, number, called): (&Bytes, u64, u64),
        action: &RegisterAction,
        ttl_s: u64,
    ) -> Option<OperationId> {
        let (RegisterAction::Put(value) | RegisterAction::Swap { value: Some(value), .. }) = action
        else {
            return None;
        };
        let gone = called + nanos(Duration::from_secs(ttl_s).saturating_sub(EXPIRY_SLACK));
        let mut history = self.history.lock().unwrap();
        (ttl_s > 0)
            .then(|| history.call(key.clone(), number, gone, RegisterAction::Expire(value.clone())))
    }

    /// Asks and notes what came of it. A value that is written expires after `ttl_s`, if that is
    /// not 0.
    async fn operate(
        &self,
        client: &Client,
        number: u64,
        key: Bytes,
        action: RegisterAction,
        ttl_s: u64,
    ) -> Option<RegisterAnswer> {
        let called = self.now();
        let expiry = self.note_expiry((&key, number, called), &action, ttl_s);
        let id = self.history.lock().unwrap().call(key.clone(), number, called, action.clone());
        let answer = match action {
            RegisterAction::Get => client.get(key).await.map(RegisterAnswer::Seen),
            RegisterAction::Put(value) => {
                client.put_with_ttl(key, value, ttl_s).await.map(|()| RegisterAnswer::Done)
            }
            RegisterAction::Delete => client.delete(key).await.map(|()| RegisterAnswer::Done),
            RegisterAction::Swap { expected, value } => {
                client.compare_and_swap_with_ttl(key, expected, value, ttl_s).await.map(|swap| {
                    RegisterAnswer::Swapped { succeeded: swap.succeeded, previous: swap.previous }
                })
            }
            RegisterAction::Expire(_) => unreachable!("no client asks for it"),
        };
        let returned = self.now();
        if let Err(error) = &answer {
            self.note(error);
        }
        let mut history = self.history.lock().unwrap();
        match answer {
            Ok(answer) => {
                history.answer(id, returned, answer.clone());
                if let Some(expiry) = expiry {
                    let gone = returned + nanos(Duration::from_secs(ttl_s) + EXPIRY_SLACK);
                    history.answer(expiry, gone, RegisterAnswer::Done);
                }
                self.acknowledged.send_modify(|count| *count += 1);
                Some(answer)
            }
            // Without an answer: it may have happened, or may yet.
            Err(error) if error.is_undetermined() => None,
            Err(_) => {
                [Some(id), expiry].into_iter().flatten().for_each(|id| history.forget(id));
                None
            }
        }
    }

    /// Reads every register once more, for the history, and every key that was written once.
    async fn read_all(&self, client: &Client) {
        for round in self.first..=self.round.load(Ordering::Relaxed) {
            for first in FIRST_BYTES {
                for place in 0..REGISTERS {
                    let register = register(first, round, place);
                    self.operate(client, 99, register, RegisterAction::Get, 0).await;
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
        nanos(self.began.elapsed())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}
