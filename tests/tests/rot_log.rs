//! Bits that flip in the log of one of three stores, while clients write and read. An entry that
//! another store lacks: the replica gets a snapshot of another one. One that a start needs: the
//! start is refused in words, and the store is replaced. Nothing wrong is read, and nothing that
//! was acknowledged is lost.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod members;
mod processes;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use flotilla_client::Client;
use load::{Load, client};
use processes::{Processes, store_metric, until_within};

/// How often a bit flips; a variable of the environment asks for more.
const ROUNDS: u64 = 2;
const ROUNDS_VARIABLE: &str = "FLOTILLA_ROT_ROUNDS";
/// The generator's seed; a variable of the environment takes another one.
const SEED_VARIABLE: &str = "FLOTILLA_ROT_SEED";
const STORES: usize = 3;
/// The region of the rows.
const REGION: u64 = 2;
const SEGMENT_BYTES: u64 = 1 << 20;
/// Rows of a round, some segments in all.
const ROWS: u64 = 96;
const VALUE_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(90);

fn key(round: u64, row: u64) -> Bytes {
    format!("{round:03}/row-that-stays-{row:03}").into()
}

/// Bytes that no compression makes smaller.
fn value(round: u64, row: u64) -> Bytes {
    let mut rng = Rng::with_seed(round * ROWS + row);
    (0..VALUE_BYTES).map(|_| rng.u8(..)).collect()
}

async fn check_rows(client: &Client, rounds: u64) {
    for (round, row) in (0..rounds).flat_map(|round| (0..ROWS).map(move |row| (round, row))) {
        let found = client.get(key(round, row)).await.unwrap();
        assert!(found == Some(value(round, row)), "row {row} of round {round} is another one");
    }
}

/// The files of the log of a store, oldest first.
fn segments(cluster: &Processes, store: usize) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cluster.data_dir(store).join("log")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    files
}

/// Flips a bit within `range` of a file.
fn flip(path: &PathBuf, range: std::ops::Range<u64>, rng: &mut Rng) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (at, mut byte) = (rng.u64(range), [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << rng.u8(..8)], at).unwrap();
    println!("a bit of byte {at} of {} is another one", path.display());
}

/// A cluster under load, and a client of rows that are never changed.
struct RottingLogs {
    cluster: Processes,
    load: Load,
    bulk: Client,
    rng: Rng,
}

impl RottingLogs {
    async fn start(seed: u64) -> Self {
        let settings = [
            ("FLOTILLA_STORAGE_SEGMENT_BYTES", SEGMENT_BYTES.to_string()),
            ("FLOTILLA_STORAGE_CHECKPOINT_INTERVAL_MS", "10m".to_owned()),
            // The rows are in one region, whose leader reads for the others.
            ("FLOTILLA_SPLIT_AUTOMATIC", "false".to_owned()),
        ];
        let environment = move |_| {
            let variables = settings.iter().map(|(name, value)| (name.into(), value.into()));
            variables.collect()
        };
        let cluster = Processes::start_in(STORES, 1, Box::new(environment)).await;
        let bulk = client(cluster.endpoints()).await;
        let load = Load::start(4, cluster.endpoints()).await;
        Self { cluster, load, bulk, rng: Rng::with_seed(seed) }
    }

    async fn put_rows(&self, round: u64) {
        for row in 0..ROWS {
            // The store that leads may be the one that was stopped a moment ago.
            until_within(PATIENCE, async || {
                let put = self.bulk.put(key(round, row), value(round, row)).await;
                put.map_err(|error| error.to_string())
            })
            .await;
        }
    }

    /// Another store lacks entries that this one has and leads.
    async fn rot_what_a_follower_lacks(&mut self, round: u64, store: usize) {
        let away = (store + 1) % STORES;
        self.cluster.stop(away);
        let before = segments(&self.cluster, store).len();
        self.put_rows(round).await;
        // What is in memory is not read from the disk.
        self.cluster.stop(store);
        let files = segments(&self.cluster, store);
        self.cluster.restart(store);
        until_within(PATIENCE, async || {
            let ask = format!("region transfer {REGION} --to s{store}");
            let answer = self.cluster.ctl(&ask).await;
            if answer.code == Some(0) { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
        assert!(files.len() >= before + 3, "{before} files became {}", files.len());
        // Behind the first of these rows, and not in the file that is written.
        let hit = &files[self.rng.usize(before + 1..files.len() - 1)];
        flip(hit, SEGMENT_BYTES / 4..SEGMENT_BYTES * 3 / 4, &mut self.rng);
        let began = Instant::now();
        self.cluster.restart(away);
        self.is_healed(round, store, began).await;
    }

    async fn is_healed(&mut self, round: u64, store: usize, began: Instant) {
        let endpoint = self.cluster.endpoints()[store].clone();
        until_within(PATIENCE, async || {
            let installed = store_metric(&endpoint, "snapshots_installed").await?;
            match (installed, store_metric(&endpoint, "damaged_replicas").await?) {
                (0, _) => Err("no damage is found".to_owned()),
                (_, 0) => Ok(()),
                (_, left) => Err(format!("{left} replicas are damaged")),
            }
        })
        .await;
        println!("round {round}: store {store}: healed after {:?}", began.elapsed());
        self.cluster.says(store, &["cannot be read", "a snapshot of another store"]).await;
        assert!(self.cluster.runs(store), "it has ended: {}", self.cluster.said(store));
        self.cluster.ready().await;
    }

    /// Entries that were not applied, in a full file or in the one that was written.
    async fn rot_what_a_start_needs(&mut self, round: u64, store: usize) {
        self.put_rows(round).await;
        let old = members::ids(&self.cluster).await[&format!("s{store}")];
        self.cluster.kill(store);
        let files = segments(&self.cluster, store);
        // Behind them is one that was only made ready.
        let newest = &files[files.len() - 2];
        let bytes = std::fs::read(newest).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
        if self.rng.bool() {
            // What was flushed last cannot be told from what was being written.
            flip(newest, 100..end / 2, &mut self.rng);
        } else {
            let full = &files[files.len() - 3 - self.rng.usize(..2)];
            flip(full, SEGMENT_BYTES / 4..SEGMENT_BYTES * 3 / 4, &mut self.rng);
        }
        self.cluster.restart(store);
        self.cluster.ends_refused(store, &["corrupt", "--replace and --join"]).await;
        let began = Instant::now();
        std::fs::rename(
            self.cluster.data_dir(store),
            self.cluster.aside(&format!("s{store}.{round}")),
        )
        .unwrap();
        let endpoints = self.cluster.endpoints().iter().enumerate();
        let others = endpoints.filter(|(other, _)| *other != store);
        let others = others.map(|(_, it)| it.as_str()).collect::<Vec<_>>().join(",");
        let (dir, own) = (self.cluster.data_dir(store), &self.cluster.endpoints()[store]);
        let settings = format!(
            "name = \"s{store}\"\ndata_dir = {dir:?}\naddr = \"{own}\"\njoin = \"{others}\"\n"
        );
        self.cluster.configure(store, &settings);
        self.cluster.restart_to_replace(store);
        self.cluster.says(store, &["the store has joined"]).await;
        let endpoints = self.cluster.endpoints();
        until_within(members::PATIENCE, async || {
            let regions = members::regions(endpoints).await;
            let is_whole = |seen: &&members::Seen| {
                seen.is_settled() && seen.voters().len() == STORES && !seen.voters().contains(&old)
            };
            match regions.values().filter(is_whole).count() {
                // That of placement and that of the rows.
                2 => Ok(()),
                _ => Err(format!("store {old} is to be replaced: {regions:?}")),
            }
        })
        .await;
        self.cluster.ready().await;
        println!("round {round}: store {store}: replaced after {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_whose_bits_have_flipped_are_healed_or_refused() {
    let variable = |name, default| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let rounds = variable(ROUNDS_VARIABLE, ROUNDS);
    let mut logs = RottingLogs::start(variable(SEED_VARIABLE, 1)).await;
    for round in 0..rounds {
        let store = logs.rng.usize(..STORES);
        if round % 2 == 0 {
            logs.rot_what_a_follower_lacks(round, store).await;
        } else {
            logs.rot_what_a_start_needs(round, store).await;
        }
        check_rows(&logs.bulk, round + 1).await;
        logs.load.progress(50).await;
        logs.load.next_round();
    }
    let RottingLogs { cluster, load, .. } = logs;
    println!("{}", load.end(cluster.endpoints()).await);
    let verified = cluster.ctl("region verify --json").await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
}
