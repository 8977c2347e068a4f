//! Clients that we did not write: TiKV's for Rust, and its for Go where Go is installed. They run
//! everything against three stores, and again while each store is killed and restarted; no error
//! reaches the caller.
//!
//! Four bugs of the Rust client are kept out of the way; they are there with TiKV too:
//! - A scan that reaches the last region, the one without an end, begins again at the first key.
//!   All keys here lie below the border of the last region, and scans end there.
//! - A scan without an upper bound ends with the first region. All scans have one.
//! - A reverse scan over several regions asks the wrong one. Reverse scans stay within a region.
//! - Within a second of connecting to placement it does not connect again, but asks the broken
//!   connection ten times at once and gives up. Stores are killed only after that second.
//!
//! And one of the Go client, which its pull request 833 has mended since the release that is used
//! here: a batch stream that broke is never opened again. On batch streams it sees one store killed
//! and restarted, whose leaders move to others for good; all stores on single calls.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod go_client;
mod processes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{
    GetMembersRequest, GetRegionRequest, ScanRegionsRequest, SplitRegionsRequest,
};
use go_client::{GoRun, go_test};
use processes::Processes;
use tikv_client::{ColumnFamily, RawClient};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The key space has borders at 0x2000, 0x4000, and so on; the last region begins at 0xe000.
const REGIONS: u64 = 8;
const KEYS: std::ops::Range<u8> = 0x00..0xe0;
/// How long the Rust client does not connect to placement again, and a bit.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(1_100);
/// How long clients work between two splits.
const SPLIT_INTERVAL: Duration = Duration::from_millis(500);

/// How many regions one becomes under clients; a run by hand has a thousand.
const MANY_VARIABLE: &str = "FLOTILLA_CLIENT_REGIONS";
const MANY: u64 = 100;
/// Callers of the Rust client meanwhile.
const CALLERS: u64 = 64;

/// The first key of the last region, which no test uses.
fn end() -> Vec<u8> {
    vec![0xe0]
}

/// Keys over all regions but the last.
fn keys(round: u64) -> Vec<Vec<u8>> {
    let spread = KEYS.step_by(8);
    spread.map(|first| [&[first][..], format!("-rust-{round:06}").as_bytes()].concat()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_client_does_everything() {
    let cluster = Processes::start(3, REGIONS).await;
    let client = RawClient::new(cluster.endpoints().to_vec()).await.unwrap();
    one_round(&client, 0).await.unwrap();

    // An empty value is a value.
    client.put("empty".to_owned(), "".to_owned()).await.unwrap();
    assert_eq!(client.get("empty".to_owned()).await.unwrap(), Some(vec![]));
    client.delete("empty".to_owned()).await.unwrap();

    // Reverse scans, each within one region: its upper bound is the region's end.
    for first in [0x00, 0x20, 0xc0] {
        let key = |last: u8| vec![first, last];
        for last in 0..10 {
            client.put(key(last), vec![last]).await.unwrap();
        }
        let found = client.scan_reverse(key(2)..key(8), 4).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|pair| Vec::from(pair.0)).collect();
        assert_eq!(found, [key(7), key(6), key(5), key(4)]);
        let found = client.scan_keys_reverse(key(0)..vec![first + 0x20], 100).await.unwrap();
        assert_eq!(found.len(), 10, "from {first:02x}");
    }

    client.put_with_ttl("ttl".to_owned(), "v".to_owned(), 600).await.unwrap();
    let left = client.get_key_ttl_secs("ttl".to_owned()).await.unwrap();
    assert!(left.is_some_and(|left| (500..=600).contains(&left)), "{left:?}");
    client.put("ttl".to_owned(), "v".to_owned()).await.unwrap();
    let left = client.get_key_ttl_secs("ttl".to_owned()).await.unwrap();
    assert_eq!(left.filter(|left| *left > 0), None, "it is for ever");
    assert_eq!(client.get_key_ttl_secs("no ttl".to_owned()).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_client_does_not_notice_that_stores_are_killed() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let client = RawClient::new(cluster.endpoints().to_vec()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (done, mut rounds) = watch::channel(0);
    let worker = tokio::spawn({
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        async move {
            let mut round = 0;
            while !stop.load(Ordering::SeqCst) {
                one_round(&client, round).await.unwrap_or_else(|error| panic!("{round}: {error}"));
                // One key of the round stays, to be found at the end.
                let put = client.put(kept(round), round.to_be_bytes().to_vec()).await;
                put.unwrap_or_else(|error| panic!("{round}: {error}"));
                round += 1;
                done.send_replace(round);
            }
            round
        }
    });
    for _ in 0..3 {
        some_more(&mut rounds, 2).await;
        reconnectable(&mut rounds).await;
        let leader = leader_of(cluster.endpoints(), b"m").await;
        cluster.kill(leader);
        some_more(&mut rounds, 3).await;
        cluster.restart(leader);
        cluster.ready().await;
    }
    // And the store that leads placement.
    reconnectable(&mut rounds).await;
    let leader = placement_leader(cluster.endpoints()).await;
    cluster.kill(leader);
    some_more(&mut rounds, 3).await;
    cluster.restart(leader);
    cluster.ready().await;
    stop.store(true, Ordering::SeqCst);
    let count = worker.await.unwrap();
    for round in 0..count {
        let value = client.get(kept(round)).await.unwrap();
        assert_eq!(value, Some(round.to_be_bytes().to_vec()), "round {round} of {count}");
    }
}

fn kept(round: u64) -> Vec<u8> {
    let first = KEYS.start + (round * 13 % u64::from(KEYS.end)) as u8;
    [&[first][..], format!("-kept-{round:06}").as_bytes()].concat()
}

/// Waits until the worker has finished `count` more rounds, or has failed.
async fn some_more(rounds: &mut watch::Receiver<u64>, count: u64) {
    let goal = *rounds.borrow() + count;
    let reached = rounds.wait_for(|&done| done >= goal);
    let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
    reached.expect("the worker hangs").expect("the worker goes on");
}

/// Waits until the client is willing to connect to placement again.
async fn reconnectable(rounds: &mut watch::Receiver<u64>) {
    let began = Instant::now();
    while began.elapsed() < RECONNECT_INTERVAL {
        some_more(rounds, 1).await;
    }
}

/// Every kind of request once, over all regions.
async fn one_round(client: &RawClient, round: u64) -> tikv_client::Result<()> {
    let keys = keys(round);
    let value = |key: &[u8]| [b"value of ", key].concat();
    for key in &keys {
        client.put(key.clone(), value(key)).await?;
        assert_eq!(client.get(key.clone()).await?, Some(value(key)));
    }
    let pairs: Vec<_> =
        keys.iter().map(|key| (key.clone(), [value(key), value(key)].concat())).collect();
    client.batch_put(pairs.clone()).await?;
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = client
        .batch_get(keys.clone())
        .await?
        .into_iter()
        .map(|pair| (Vec::from(pair.0), pair.1))
        .collect();
    found.sort();
    assert_eq!(found, pairs);

    let all = client.scan(vec![]..end(), 10_000).await?;
    let all: Vec<Vec<u8>> = all.into_iter().map(|pair| Vec::from(pair.0)).collect();
    assert!(all.is_sorted() && keys.iter().all(|key| all.contains(key)), "{} rows", all.len());
    let few = client.scan_keys(vec![]..end(), 5).await?;
    let few: Vec<Vec<u8>> = few.into_iter().map(Vec::from).collect();
    assert_eq!(few, all[..5]);

    families(client, &keys[2], &value(&keys[2]).repeat(2)).await?;
    swap(client, &keys[3]).await?;
    client.delete(keys[0].clone()).await?;
    assert_eq!(client.get(keys[0].clone()).await?, None);
    client.batch_delete(keys[1..5].to_vec()).await?;
    // The rest lies in several regions and goes as ranges.
    for key in &keys[5..] {
        client.delete_range(key.clone()..[key, &b"z"[..]].concat()).await?;
    }
    assert_eq!(client.batch_get(keys).await?.len(), 0);
    Ok(())
}

/// A key has another value in each column family.
async fn families(client: &RawClient, key: &[u8], value: &[u8]) -> tikv_client::Result<()> {
    let families = [ColumnFamily::Lock, ColumnFamily::Write];
    for (number, family) in (0..).zip(families.clone()) {
        client.with_cf(family).put(key.to_vec(), vec![number]).await?;
    }
    for (number, family) in (0..).zip(families) {
        let client = client.with_cf(family);
        assert_eq!(client.get(key.to_vec()).await?, Some(vec![number]));
        client.delete(key.to_vec()).await?;
        assert_eq!(client.get(key.to_vec()).await?, None);
    }
    assert_eq!(client.get(key.to_vec()).await?.as_deref(), Some(value));
    Ok(())
}

async fn swap(client: &RawClient, key: &[u8]) -> tikv_client::Result<()> {
    let atomic = client.with_atomic_for_cas();
    let now = client.get(key.to_vec()).await?;
    // A swap that the client repeats on its own finds its own value, so what counts is the value.
    atomic.compare_and_swap(key.to_vec(), now, b"swapped".to_vec()).await?;
    assert_eq!(client.get(key.to_vec()).await?, Some(b"swapped".to_vec()));
    let wrong = Some(b"something else".to_vec());
    let (previous, swapped) = atomic.compare_and_swap(key.to_vec(), wrong, b"x".to_vec()).await?;
    assert_eq!((previous, swapped), (Some(b"swapped".to_vec()), false));
    Ok(())
}

/// The place of the store that leads the region of `key`, as placement says.
async fn leader_of(endpoints: &[String], key: &'static [u8]) -> usize {
    let leader = placement_leader(endpoints).await;
    let mut pd = PdClient::connect(format!("http://{}", endpoints[leader])).await.unwrap();
    let request = GetRegionRequest { region_key: key.into(), ..Default::default() };
    let region = pd.get_region(request).await.unwrap().into_inner();
    region.leader.expect("the region has a leader").store_id as usize - 1
}

/// The place of the store that leads placement.
async fn placement_leader(endpoints: &[String]) -> usize {
    let mut pd = PdClient::connect(format!("http://{}", endpoints[0])).await.unwrap();
    let members = pd.get_members(GetMembersRequest::default()).await.unwrap().into_inner();
    members.leader.expect("somebody leads").member_id as usize - 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_go_client_does_not_notice_that_stores_are_killed() {
    let dir = tempfile::TempDir::new().unwrap();
    let Some(program) = go_test(dir.path()) else { return };
    let mut cluster = Processes::start(3, REGIONS).await;

    // Once in peace.
    let go = run_go(&program, cluster.endpoints(), Mode::Batch, 0);
    go.finish().await;

    let client = RawClient::new(cluster.endpoints().to_vec()).await.unwrap();
    let leader = leader_of(cluster.endpoints(), b"m").await;
    let go = run_go(&program, cluster.endpoints(), Mode::Batch, 5);
    restart_under(&client, &mut cluster, leader).await;
    go.finish().await;

    let go = run_go(&program, cluster.endpoints(), Mode::Unary, 15);
    for place in 0..3 {
        restart_under(&client, &mut cluster, place).await;
    }
    go.finish().await;
}

/// YCSB's workloads, and a store that leads dies under them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_go_client_is_served_in_the_shapes_of_ycsb() {
    let dir = tempfile::TempDir::new().unwrap();
    let Some(program) = go_test(dir.path()) else { return };
    let mut cluster = Processes::start(3, REGIONS).await;
    let client = RawClient::new(cluster.endpoints().to_vec()).await.unwrap();
    let seconds = [("FLOTILLA_UNARY", "yes".to_owned()), ("FLOTILLA_SECONDS", "2".to_owned())];
    let go = GoRun::start(&program, "TestShapes", cluster.endpoints(), &seconds);
    put_everywhere(&client).await.unwrap();
    let leader = leader_of(cluster.endpoints(), b"m").await;
    restart_under(&client, &mut cluster, leader).await;
    go.finish().await;
}

/// Clients work while placement splits regions, until there are some fifty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_notices_that_regions_split() {
    let dir = tempfile::TempDir::new().unwrap();
    let cluster = Processes::start(3, REGIONS).await;
    let client = RawClient::new(cluster.endpoints().to_vec()).await.unwrap();
    let leader = placement_leader(cluster.endpoints()).await;
    let address = format!("http://{}", cluster.endpoints()[leader]);
    let mut pd = PdClient::connect(address).await.unwrap();
    let mut borders = (0..=u8::MAX).step_by(5).skip(1).filter(|first| KEYS.contains(first));
    let mut count = REGIONS;
    let mut split_keys = || {
        let keys: Vec<_> = borders.by_ref().take(4).map(|first| vec![first, b'-'].into()).collect();
        count += keys.len() as u64;
        (SplitRegionsRequest { split_keys: keys, ..Default::default() }, count)
    };
    for round in 0..3 {
        let split = pd.split_regions(split_keys().0);
        let (split, worked) = tokio::join!(split, one_round(&client, round));
        worked.unwrap_or_else(|error| panic!("{round}: {error}"));
        let split = split.unwrap().into_inner();
        assert_eq!((split.finished_percentage, split.regions_id.len()), (100, 4));
    }
    let program = go_test(dir.path());
    for mode in [Mode::Batch, Mode::Unary] {
        let Some(program) = &program else { break };
        let go = run_go(program, cluster.endpoints(), mode, 5);
        for _ in 0..4 {
            let began = Instant::now();
            while began.elapsed() < SPLIT_INTERVAL {
                put_everywhere(&client).await.unwrap();
            }
            pd.split_regions(split_keys().0).await.unwrap();
        }
        go.finish().await;
    }
    let (_, count) = split_keys();
    let all = ScanRegionsRequest { limit: 1_000, ..Default::default() };
    let regions = pd.scan_regions(all).await.unwrap().into_inner().regions;
    assert!(regions.len() as u64 >= count - 4, "{} regions", regions.len());
}

/// One region becomes many at once, under callers of both clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_notices_that_one_region_becomes_many() {
    let many = std::env::var(MANY_VARIABLE).map_or(MANY, |many| many.parse().unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    let cluster = Processes::start(3, 1).await;
    let client = RawClient::new(cluster.endpoints().to_vec()).await.unwrap();
    let leader = placement_leader(cluster.endpoints()).await;
    let address = format!("http://{}", cluster.endpoints()[leader]);
    let mut pd = PdClient::connect(address).await.unwrap();
    // The last region is as the clients need it.
    let split_keys = vec![end().into()];
    pd.split_regions(SplitRegionsRequest { split_keys, ..Default::default() }).await.unwrap();
    let program = go_test(dir.path());
    let go = program.as_ref().map(|it| run_go(it, cluster.endpoints(), Mode::Batch, 15));
    let stop = Arc::new(AtomicBool::new(false));
    let (done, mut rounds) = watch::channel(0);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (client, stop, done) = (client.clone(), Arc::clone(&stop), done.clone());
        callers.spawn(async move {
            let mut round = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                // All over the keys, and few enough that the Go test's scans of everything, which
                // end after 10,000 rows, find its own as well.
                let first = KEYS.start + ((caller + round) % 32 * 7) as u8;
                let key = [&[first][..], format!("-{caller:03}").as_bytes()].concat();
                client.put(key.clone(), round.to_be_bytes().to_vec()).await.unwrap();
                let seen = client.get(key).await.unwrap();
                assert_eq!(seen, Some(round.to_be_bytes().to_vec()), "caller {caller}");
                round += 1;
                done.send_modify(|all| *all += 1);
            }
        });
    }
    some_more(&mut rounds, 10 * CALLERS).await;
    let border = |number: u64| (number * (u64::from(KEYS.end) << 8) / (many - 1)) as u16;
    let split_keys = (1..many - 1).map(|number| border(number).to_be_bytes().to_vec().into());
    let split_keys = SplitRegionsRequest { split_keys: split_keys.collect(), ..Default::default() };
    let (began, before) = (Instant::now(), *rounds.borrow());
    let split = pd.split_regions(split_keys).await.unwrap().into_inner();
    let (took, meanwhile) = (began.elapsed(), *rounds.borrow() - before);
    assert_eq!((split.finished_percentage, split.regions_id.len() as u64), (100, many - 2));
    println!("{many} regions after {took:?}, {meanwhile} puts and gets meanwhile");
    some_more(&mut rounds, 50 * CALLERS).await;
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    if let Some(go) = go {
        go.finish().await;
    }
}

/// Kills a store, and starts it again once the others serve all regions.
async fn restart_under(client: &RawClient, cluster: &mut Processes, place: usize) {
    let began = Instant::now();
    while began.elapsed() < RECONNECT_INTERVAL {
        put_everywhere(client).await.unwrap();
    }
    cluster.kill(place);
    put_everywhere(client).await.unwrap();
    cluster.restart(place);
    cluster.ready().await;
}

/// Puts something into every region but the last; done when all of them serve.
async fn put_everywhere(client: &RawClient) -> tikv_client::Result<()> {
    for key in keys(0) {
        client.put(key, "everywhere".to_owned()).await?;
    }
    Ok(())
}

/// How the Go client talks to stores.
#[derive(PartialEq, Eq)]
enum Mode {
    Batch,
    Unary,
}

fn run_go(program: &Path, endpoints: &[String], mode: Mode, seconds: u32) -> GoRun {
    let unary = if mode == Mode::Unary { "yes" } else { "" };
    let settings =
        [("FLOTILLA_UNARY", unary.to_owned()), ("FLOTILLA_SECONDS", seconds.to_string())];
    GoRun::start(program, "TestEverything", endpoints, &settings)
}
