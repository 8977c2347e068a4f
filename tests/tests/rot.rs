//! Bits that flip on the disk of one of three stores, while clients write and read: nothing wrong
//! is read, the store goes on with its other regions, and the replicas that have lost rows are
//! built anew from the other stores.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use flotilla_client::{Client, Scan};
use flotilla_pagestore::tools::PageFile;
use flotilla_vfs::os::OsFs;
use load::{Load, client};
use processes::{Processes, store_metric, until_within};

/// How often a bit flips; a variable of the environment asks for more.
const ROUNDS: u64 = 2;
const ROUNDS_VARIABLE: &str = "FLOTILLA_ROT_ROUNDS";
/// The generator's seed; a variable of the environment takes another one.
const SEED_VARIABLE: &str = "FLOTILLA_ROT_SEED";
const STORES: usize = 3;
/// Rows that are never changed.
const ROWS: u32 = 2_000;
const VALUE_BYTES: usize = 100;
const UNIT_BYTES: u64 = 4096;
/// Where a page's cells may begin.
const HEADER_BYTES: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(90);

/// The keys lie in all regions.
fn key(row: u32) -> Bytes {
    let first = u8::try_from(row * 256 / ROWS).unwrap();
    Bytes::from([&[first][..], format!("/row-that-stays-{row:06}").as_bytes()].concat())
}

fn value(row: u32) -> Bytes {
    format!("{row:0VALUE_BYTES$}").into()
}

/// Flips a bit of the newest leaf that has the row, in the pages of a store that does not run.
fn rot(cluster: &Processes, store: usize, row: u32, rng: &mut Rng) {
    let path = cluster.data_dir(store).join("pages");
    let pages = PageFile::open(&OsFs::new(), &path).unwrap();
    let units = std::fs::metadata(&path).unwrap().len() / UNIT_BYTES;
    let leaves = (0..units).filter_map(|unit| pages.page(unit).ok()).filter(|page| {
        page.kind == "leaf" && page.cells.iter().any(|cell| cell.key == key(row)[..])
    });
    let leaf = leaves.max_by_key(|page| page.created_txid).expect("a leaf has the row").page;
    drop(pages);
    let at = leaf * UNIT_BYTES + rng.u64(HEADER_BYTES..UNIT_BYTES);
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << rng.u8(..8)], at).unwrap();
}

/// All rows are there, and as they were put.
async fn check_rows(client: &Client) {
    let scan = Scan { limit: 1 << 20, ..Scan::default() };
    let all = client.scan(scan).await.unwrap();
    // Those of the load have other lengths.
    let found = all.into_iter().filter(|(found, _)| found.len() == key(0).len());
    let mut expected = (0..ROWS).map(|row| (key(row), value(row)));
    assert!(found.eq(&mut expected), "a scan has other rows than were put");
    for row in (0..ROWS).step_by(37) {
        assert_eq!(client.get(key(row)).await.unwrap(), Some(value(row)), "row {row}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_built_anew_where_bits_have_flipped() {
    let variable = |name, default| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let rounds = variable(ROUNDS_VARIABLE, ROUNDS);
    let mut rng = Rng::with_seed(variable(SEED_VARIABLE, 1));
    let mut cluster = Processes::start(STORES, 4).await;
    let bulk = client(cluster.endpoints()).await;
    for row in 0..ROWS {
        bulk.put(key(row), value(row)).await.unwrap();
    }
    let load = Load::start(4, cluster.endpoints()).await;
    load.progress(50).await;
    for round in 0..rounds {
        let (store, row) = (rng.usize(..STORES), rng.u32(..ROWS));
        cluster.stop(store);
        rot(&cluster, store, row, &mut rng);
        cluster.restart(store);
        cluster.ready().await;
        let began = Instant::now();
        let endpoint = cluster.endpoints()[store].clone();
        // A comparison has each replica read its rows.
        until_within(PATIENCE, async || {
            cluster.ctl("region verify --json").await;
            match store_metric(&endpoint, "damaged_pages").await? {
                0 => Err("no damage is found".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
        let found = began.elapsed();
        check_rows(&bulk).await;
        until_within(PATIENCE, async || {
            match store_metric(&endpoint, "damaged_replicas").await? {
                0 => Ok(()),
                left => Err(format!("{left} replicas are damaged")),
            }
        })
        .await;
        println!(
            "round {round}: store {store}, row {row}: found after {found:?}, healed after {:?}",
            began.elapsed()
        );
        assert!(
            store_metric(&endpoint, "snapshots_installed").await.unwrap() > 0,
            "it was sent its rows"
        );
        assert!(cluster.runs(store), "store {store} has ended: {}", cluster.said(store));
        check_rows(&bulk).await;
        load.progress(50).await;
        load.next_round();
    }
    load.progress(50).await;
    println!("{}", load.end(cluster.endpoints()).await);
    let verified = cluster.ctl("region verify --json").await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
}
