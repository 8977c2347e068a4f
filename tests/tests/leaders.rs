//! Leaders of three stores in processes of their own: they are spread evenly, a store that stops
//! hands its own over, and no client sees an error.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{Client, Config, Observer};
use processes::{Processes, until};
use tokio::task::JoinSet;

/// With the system region there are seventeen.
const REGIONS: u64 = 16;
const WRITERS: u8 = 8;
/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// Within this time leaders are spread, on a machine that has nothing else to do.
const EVEN_WITHIN: Duration = Duration::from_secs(15);
/// What is not handed over is without a leader for longer.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(600);

/// Regions that each store leads, as it says itself; none of one that does not answer.
async fn leaders(stores: &Processes) -> Vec<u64> {
    let mut counts = vec![];
    for endpoint in stores.endpoints() {
        let observer = Observer::new(endpoint, Config::default()).unwrap();
        counts.extend(observer.stats().await.map(|stats| stats.leaders));
    }
    counts
}

/// Waits until each of three stores leads as many regions as the others, or one more or less. How
/// long that took.
async fn even(stores: &Processes) -> Duration {
    let began = Instant::now();
    until(async || {
        let counts = leaders(stores).await;
        let (least, most) = (counts.iter().min(), counts.iter().max());
        let is_even = least.zip(most).is_some_and(|(least, most)| most - least <= 1);
        match counts.len() == 3 && counts.iter().sum::<u64>() == REGIONS + 1 && is_even {
            true => Ok(()),
            false => Err(format!("leaders {counts:?}")),
        }
    })
    .await;
    began.elapsed()
}

/// What all writers have in common.
#[derive(Default)]
struct Progress {
    puts: AtomicU64,
    /// Whether waits count: connections and routes are not new any more.
    is_measured: AtomicBool,
    is_over: AtomicBool,
}

/// Puts into all regions in turn until it is told to stop. The longest wait that counts.
async fn put(client: Client, writer: u8, progress: Arc<Progress>) -> Duration {
    let (mut count, mut longest) = (0_u64, Duration::ZERO);
    while !progress.is_over.load(Ordering::Relaxed) {
        // The first byte decides which region.
        let region = (count % REGIONS) as u8 * (u8::MAX / REGIONS as u8 + 1);
        let key = Bytes::copy_from_slice(&[region, writer]);
        let (began, counts) = (Instant::now(), progress.is_measured.load(Ordering::Relaxed));
        client.put(key, count.to_be_bytes().to_vec()).await.unwrap();
        if counts {
            longest = longest.max(began.elapsed());
        }
        count += 1;
        progress.puts.fetch_add(1, Ordering::Relaxed);
    }
    longest
}

/// Waits until there have been so many more puts as each writer needs for all regions.
async fn a_turn_of_puts(progress: &Progress) {
    let before = progress.puts.load(Ordering::Relaxed);
    until(async || {
        let puts = progress.puts.load(Ordering::Relaxed) - before;
        match puts >= 2 * REGIONS * u64::from(WRITERS) {
            true => Ok(()),
            false => Err(format!("{puts} puts")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leaders_are_even_after_a_start_and_after_each_store_has_restarted_under_load() {
    let mut stores = Processes::start(3, REGIONS).await;
    let took = even(&stores).await;
    println!("even {took:?} after the start");
    assert!(took < 2 * EVEN_WITHIN, "{took:?}");
    let config = Config { deadline: PATIENCE, ..Config::default() };
    let client = Client::connect(stores.endpoints(), config).await.unwrap();
    let mut longest = vec![];
    for place in 0..3 {
        let progress = Arc::new(Progress::default());
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(put(client.clone(), writer, Arc::clone(&progress)));
        }
        a_turn_of_puts(&progress).await;
        progress.is_measured.store(true, Ordering::Relaxed);
        let began = Instant::now();
        tokio::task::block_in_place(|| stores.stop(place));
        let stopped = began.elapsed();
        let said = stores.said(place);
        a_turn_of_puts(&progress).await;
        progress.is_over.store(true, Ordering::Relaxed);
        let waited = writers.join_all().await.into_iter().max().unwrap();
        println!("store {place} stopped in {stopped:?}; the longest put took {waited:?}");
        assert!(said.contains("leaders are handed over"), "{said}");
        longest.push(waited);
        stores.restart(place);
        stores.ready().await;
        let took = even(&stores).await;
        println!("even {took:?} after the restart");
        assert!(took < 2 * EVEN_WITHIN, "{took:?}");
    }
    // Once would be chance: another program may have had the machine.
    assert!(longest.iter().any(|waited| *waited < ELECTION_TIMEOUT), "{longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_alone_or_has_no_quorum_stops_at_once() {
    let mut alone = Processes::start(1, 2).await;
    let began = Instant::now();
    alone.stop(0);
    println!("alone: {:?}", began.elapsed());
    assert!(!alone.said(0).contains("handed over"));
    let mut stores = Processes::start(3, 2).await;
    let leader = leaders(&stores).await.iter().position(|count| *count > 0).unwrap();
    (0..3).filter(|place| *place != leader).for_each(|place| stores.kill(place));
    let began = Instant::now();
    stores.stop(leader);
    println!("without a quorum: {:?}", began.elapsed());
    assert!(!stores.said(leader).contains("handed over"));
}
