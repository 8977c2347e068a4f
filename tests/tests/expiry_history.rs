//! Many rows that expire one after the other, under load: no store shows one after its time, and
//! none is gone before it, while a region splits, its lead is transferred, a replica moves as a
//! snapshot, and a store dies and comes back. In the end they leave the disk.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, Observer, Scan};
use flotilla_proto::kvrpcpb::{Context, RawGetRequest};
use flotilla_proto::metapb;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use processes::ctl;
use tokio::task::JoinSet;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(60);
/// Rows, and the seconds over which they expire; a run by hand has a million over a minute.
const ROWS_VARIABLE: &str = "FLOTILLA_EXPIRING_ROWS";
const SPREAD_VARIABLE: &str = "FLOTILLA_EXPIRING_SECONDS";
const ROWS: u64 = 8_000;
const SPREAD_S: u64 = 6;
const STORES: usize = 4;
const WRITERS: u64 = 128;
const READERS: u64 = 8;
/// How far from its time a row may be gone: the log names times that are so far ahead of the clock.
const SLACK_US: u64 = 105_000;
/// The pause between two looks at counters.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Within this a row leaves the disk.
const REMOVED_WITHIN: Duration = Duration::from_secs(600);

/// When each row was put: the time before the put was sent, and that after its answer, in
/// microseconds of the run; 0 if it was not.
struct PutTimes {
    began: Instant,
    spread_s: u64,
    sent_us: Vec<AtomicU64>,
    answered_us: Vec<AtomicU64>,
}

impl PutTimes {
    fn new(rows: u64, spread_s: u64) -> Self {
        let times = || (0..rows).map(|_| AtomicU64::new(0)).collect();
        Self { began: Instant::now(), spread_s, sent_us: times(), answered_us: times() }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap() + 1
    }

    fn ttl_s(&self, row: u64) -> u64 {
        1 + row % self.spread_s
    }

    /// Checks what a read that was asked and answered at these times has found.
    fn check(&self, row: u64, asked_us: u64, answered_us: u64, found: bool, by: &str) {
        let ttl_us = 1_000_000 * self.ttl_s(row);
        // The time of the command lies between the two.
        let put = [&self.sent_us, &self.answered_us];
        let [sent, acknowledged] = put.map(|times| times[row as usize].load(Ordering::SeqCst));
        let was_there = acknowledged > 0 && acknowledged < asked_us;
        if found {
            let late = was_there && asked_us > acknowledged + ttl_us + SLACK_US;
            assert!(!late, "{by}: row {row} is there {} us after it", asked_us - acknowledged);
        } else {
            let early = was_there && answered_us + SLACK_US < sent + ttl_us;
            assert!(!early, "{by}: row {row} is gone {} us after it", answered_us - sent);
        }
    }
}

fn key(row: u64) -> Bytes {
    let first = (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    [&[first][..], format!("-expires-{row:08}").as_bytes()].concat().into()
}

/// Reads at any store, whether it leads or not.
struct AnyStore {
    stores: Vec<TikvClient<Channel>>,
    client: Client,
    /// Regions as they were last heard of, by their first keys.
    routes: BTreeMap<Bytes, metapb::Region>,
}

impl AnyStore {
    async fn route(&mut self, key: &Bytes) -> metapb::Region {
        let holds = |region: &&metapb::Region| region.end_key.is_empty() || *key < region.end_key;
        let known = self.routes.range(..=key.clone()).next_back().map(|(_, region)| region);
        if let Some(region) = known.filter(holds) {
            return region.clone();
        }
        let found = self.client.region_of(key.clone()).await.unwrap().region;
        self.routes.insert(found.start_key.clone(), found.clone());
        found
    }

    /// Whether the key is there, as the store says; `None` if it cannot say.
    async fn has(&mut self, place: usize, key: &Bytes) -> Option<bool> {
        let region = self.route(key).await;
        let context = Context {
            region_id: region.id,
            region_epoch: region.region_epoch,
            replica_read: true,
            ..Context::default()
        };
        let request =
            RawGetRequest { context: Some(context), key: key.clone(), ..RawGetRequest::default() };
        let answer = self.stores[place].raw_get(request).await.ok()?.into_inner();
        if answer.region_error.is_some() {
            self.routes.remove(&region.start_key);
            return None;
        }
        assert_eq!(answer.error, "");
        Some(!answer.not_found)
    }
}

/// What happens to a cluster whose rows expire.
struct ExpiryRun {
    cluster: Playground,
    client: Client,
    endpoints: Vec<String>,
    times: Arc<PutTimes>,
    /// Rows that were removed by stores that have died since.
    removed_before: u64,
}

impl ExpiryRun {
    async fn ctl(&self, args: &str) {
        let answer = ctl(&self.endpoints, args).await;
        assert_eq!(answer.code, Some(0), "{args}: {answer:?}");
    }

    /// Waits until this share of the rows is put, in hundredths.
    async fn put_share(&self, share: u64) {
        let row = self.times.answered_us.len() as u64 * share / 100;
        let mut looks = tokio::time::interval(LOOK_PAUSE);
        while self.times.sent_us[row as usize].load(Ordering::SeqCst) == 0 {
            looks.tick().await;
        }
    }

    async fn removed_by(&self, endpoint: &str) -> u64 {
        let stats = Observer::new(endpoint, Config::default()).unwrap().stats().await.unwrap();
        let rows = stats.metrics.iter().find(|metric| metric.name == "rows_expired");
        rows.unwrap().value
    }

    async fn removed(&self) -> u64 {
        let mut removed = self.removed_before;
        for endpoint in &self.endpoints {
            removed += self.removed_by(endpoint).await;
        }
        removed
    }

    /// The region of a key, and the stores that have it.
    async fn region(&self, key: &'static str) -> (u64, Option<u64>, Vec<u64>) {
        let found = self.client.region_of(key).await.unwrap();
        let stores = found.region.peers.iter().map(|peer| peer.store_id).collect();
        (found.region.id, found.leader.map(|leader| leader.store_id), stores)
    }

    async fn disturb(&mut self) {
        self.put_share(20).await;
        let (id, _, _) = self.region("a").await;
        self.client.split_region(id, [Bytes::from("a")]).await.unwrap();
        self.put_share(40).await;
        let (id, leader, stores) = self.region("a").await;
        let next = stores.iter().find(|store| Some(**store) != leader).unwrap();
        self.ctl(&format!("region transfer {id} --to s{next}")).await;
        self.put_share(60).await;
        let (id, _, stores) = self.region("a").await;
        let to = (1..=STORES as u64).find(|store| !stores.contains(store)).unwrap();
        self.ctl(&format!("region move {id} --from s{} --to s{to}", stores[0])).await;
        self.put_share(80).await;
        let (_, leader, _) = self.region("a").await;
        let place = leader.unwrap() as usize - 1;
        self.removed_before += self.removed_by(&self.endpoints[place]).await;
        self.cluster.abandon(place).await;
        // It is sent again here, which the client does not do: of the rows each is put once.
        let undetermined = |error: flotilla_client::Error| error.is_undetermined();
        while self.client.put("z", "v").await.is_err_and(undetermined) {}
        self.cluster.restart(place).await.unwrap();
    }

    fn write(&self, rows: u64) -> JoinSet<()> {
        let next = Arc::new(AtomicU64::new(0));
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let (client, times, next) =
                (self.client.clone(), Arc::clone(&self.times), Arc::clone(&next));
            writers.spawn(async move {
                loop {
                    let row = next.fetch_add(1, Ordering::SeqCst);
                    if row >= rows {
                        return;
                    }
                    times.sent_us[row as usize].store(times.now_us(), Ordering::SeqCst);
                    let value = format!("value of row {row}");
                    match client.put_with_ttl(key(row), value, times.ttl_s(row)).await {
                        Ok(()) => {
                            times.answered_us[row as usize].store(times.now_us(), Ordering::SeqCst)
                        }
                        // Its time is not known then.
                        Err(error) => assert!(error.is_undetermined(), "{error}"),
                    }
                }
            });
        }
        writers
    }

    fn read(&self, rows: u64, stop: &Arc<AtomicBool>) -> JoinSet<(u64, u64)> {
        let mut readers = JoinSet::new();
        let connect = |endpoint: &String| {
            let endpoint = tonic::transport::Endpoint::new(format!("http://{endpoint}")).unwrap();
            TikvClient::new(endpoint.connect_lazy())
        };
        for number in 0..READERS {
            let mut any = AnyStore {
                stores: self.endpoints.iter().map(connect).collect(),
                client: self.client.clone(),
                routes: BTreeMap::new(),
            };
            let (times, stop) = (Arc::clone(&self.times), Arc::clone(stop));
            readers.spawn(async move {
                let mut rng = Rng::with_seed(number);
                let (mut found, mut absent) = (0, 0);
                while !stop.load(Ordering::SeqCst) {
                    let row = rng.u64(..rows);
                    let asked_us = times.now_us();
                    let (by, has) = if rng.bool() {
                        let value = any.client.get(key(row)).await.unwrap();
                        ("the leader".to_owned(), Some(value.is_some()))
                    } else {
                        let place = rng.usize(..STORES);
                        (format!("store {}", place + 1), any.has(place, &key(row)).await)
                    };
                    let Some(has) = has else { continue };
                    times.check(row, asked_us, times.now_us(), has, &by);
                    *(if has { &mut found } else { &mut absent }) += 1;
                }
                (found, absent)
            });
        }
        readers
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_store_shows_a_row_after_its_time() {
    let number = |variable, or| {
        std::env::var(variable).map_or(or, |text: String| text.parse::<u64>().unwrap())
    };
    let (rows, spread_s) = (number(ROWS_VARIABLE, ROWS), number(SPREAD_VARIABLE, SPREAD_S));
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.stores = STORES;
    settings.common.limits.expiry_sweep_ms = 2_000;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let config = Config { deadline: PATIENCE, resend_undetermined: false, ..Config::default() };
    let endpoints = cluster.endpoints();
    let client = Client::connect(&endpoints, config).await.unwrap();
    let times = Arc::new(PutTimes::new(rows, spread_s));
    let mut run = ExpiryRun { cluster, client, endpoints, times, removed_before: 0 };
    run.ctl("repair pause").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = run.read(rows, &stop);
    let mut writers = run.write(rows);
    run.disturb().await;
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    let put_s = run.times.began.elapsed().as_secs_f64();

    // What a store that dies has removed since it was last asked is not counted.
    let (ended, enough) = (Instant::now(), rows * 98 / 100);
    let mut looks = tokio::time::interval(LOOK_PAUSE);
    let all_expired = Duration::from_secs(spread_s) + Duration::from_micros(SLACK_US);
    while run.removed().await < enough || ended.elapsed() < all_expired {
        assert!(ended.elapsed() < REMOVED_WITHIN, "{} of {rows} removed", run.removed().await);
        looks.tick().await;
    }
    stop.store(true, Ordering::SeqCst);
    let (mut found, mut absent) = (0, 0);
    while let Some(ended) = readers.join_next().await {
        let (has, has_not) = ended.unwrap();
        (found, absent) = (found + has, absent + has_not);
    }
    let all = Scan { limit: 10, ..Scan::default() };
    let left = run.client.scan(all).await.unwrap();
    assert_eq!(left, [(Bytes::from("z"), Bytes::from("v"))]);
    println!(
        "{rows} rows put in {put_s:.1} s; {found} times one was there and {absent} times not; {} \
         removed {:.1} s after the last put",
        run.removed().await,
        ended.elapsed().as_secs_f64()
    );
    assert!(found > 0 && absent > 0);
    run.cluster.shutdown().await.unwrap();
}
