//! Rounds of wrong starts under load: in each one a store is killed and started on a directory, or
//! with flags, that are not the right ones, or that are. The wrong start is refused, the kept
//! directory serves again, and no acknowledged write is lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::load::Load;
use crate::processes::{Processes, copy_dir};
use crate::{LOST, OLDER, is_heard};

/// How many rounds there are; a variable of the environment asks for more.
const ROUNDS: u64 = 5;
const ROUNDS_VARIABLE: &str = "FLOTILLA_WRONG_STARTS";
/// Where the sequence of rounds begins; another one at each run, unless the variable says which.
const SEED_VARIABLE: &str = "FLOTILLA_WRONG_STARTS_SEED";

/// A start of a store that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Start {
    /// Nothing is wrong.
    Right,
    /// Nothing is wrong, and nothing is said but where the directory is.
    WithoutFlags,
    /// The directory is empty.
    Emptied,
    /// The directory is empty, and the list has this store alone.
    EmptiedAlone,
    /// The directory is empty, and the settings of the cluster are others.
    EmptiedOtherwise,
    /// The directory is an older copy.
    OlderCopy,
    /// The directory is an older copy, and the list is left out.
    OlderCopyWithoutFlags,
    /// The directory has no log.
    NoLog,
    /// The directory has no pages.
    NoPages,
    /// The log is that of an older copy.
    OlderLog,
    /// The pages are those of an older copy.
    OlderPages,
    /// The flags have another store's name.
    WrongName,
    /// The flags have another cluster's id.
    WrongCluster,
    /// The flags have other settings of the cluster.
    WrongSettings,
}

const STARTS: [Start; 14] = [
    Start::Emptied,
    Start::OlderCopy,
    Start::WrongSettings,
    Start::NoLog,
    Start::EmptiedAlone,
    Start::Right,
    Start::OlderPages,
    Start::WrongName,
    Start::EmptiedOtherwise,
    Start::OlderLog,
    Start::WithoutFlags,
    Start::NoPages,
    Start::OlderCopyWithoutFlags,
    Start::WrongCluster,
];

impl Start {
    /// The words with which it is refused. None: it serves.
    fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Right | Self::WithoutFlags => None,
            Self::Emptied | Self::EmptiedOtherwise => Some(LOST),
            Self::EmptiedAlone => Some("this address is that of store"),
            Self::OlderCopy | Self::OlderCopyWithoutFlags => Some(OLDER),
            Self::NoLog => Some("has its pages, but not its log"),
            Self::NoPages => Some("has its log, but not its pages"),
            Self::OlderLog | Self::OlderPages => Some("are not of the same day"),
            Self::WrongName => Some("but the data directory"),
            Self::WrongCluster => Some("cluster_id = 7, but the data directory"),
            Self::WrongSettings => Some("is given, but the cluster has"),
        }
    }

    /// The settings of this start.
    fn settings(self, cluster: &Processes, place: usize) -> String {
        let right = cluster.settings(place);
        let own_name = format!("name = \"s{place}\"");
        match self {
            Self::WithoutFlags | Self::OlderCopyWithoutFlags => {
                format!("data_dir = {:?}\n", cluster.data_dir(place))
            }
            Self::EmptiedAlone => {
                let own = format!("s{place}={}", cluster.endpoints()[place]);
                right.replace(&cluster.list(), &own)
            }
            Self::EmptiedOtherwise => format!("{right}replicas = 1\nraft.election_ticks = 30\n"),
            Self::WrongName => {
                right.replace(&own_name, &format!("name = \"s{}\"", (place + 1) % 3))
            }
            Self::WrongCluster => format!("{right}cluster_id = 7\n"),
            Self::WrongSettings => format!("{right}replicas = 1\n"),
            _ => right,
        }
    }

    /// Whether the newest directory stays where it is.
    fn keeps_directory(self) -> bool {
        matches!(
            self,
            Self::Right
                | Self::WithoutFlags
                | Self::WrongName
                | Self::WrongCluster
                | Self::WrongSettings
        )
    }

    /// Makes the directory of this start; `older` is a copy of an earlier day.
    fn spoil(self, dir: &Path, older: &Path) {
        match self {
            kept if kept.keeps_directory() => {}
            Self::Emptied | Self::EmptiedAlone | Self::EmptiedOtherwise => {
                fs::remove_dir_all(dir).unwrap();
            }
            Self::OlderCopy | Self::OlderCopyWithoutFlags => copy_dir(older, dir),
            Self::NoLog => fs::remove_dir_all(dir.join("log")).unwrap(),
            Self::NoPages => fs::remove_file(dir.join("pages")).unwrap(),
            Self::OlderLog => copy_dir(&older.join("log"), &dir.join("log")),
            Self::OlderPages => {
                fs::copy(older.join("pages"), dir.join("pages")).unwrap();
            }
            _ => unreachable!("{self:?} keeps the directory"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_starts_under_load_lose_nothing() {
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let rounds = variable(ROUNDS_VARIABLE).unwrap_or(ROUNDS);
    let seed = variable(SEED_VARIABLE).unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("{SEED_VARIABLE}={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cluster = Processes::start(3, 4).await;
    let older: Vec<PathBuf> = older_copies(&mut cluster).await;
    let load = Load::start(6, cluster.endpoints()).await;
    let mut refused: BTreeMap<Start, Vec<Duration>> = BTreeMap::new();
    let mut served = 0;
    for round in 0..rounds {
        load.progress(100).await;
        let place = random.usize(..3);
        let start = STARTS[((seed + round) % STARTS.len() as u64) as usize];
        println!("round {round}: store {place}, {start:?}");
        cluster.kill(place);
        let took = try_start(&mut cluster, place, start, &older[place]).await;
        match took {
            Some(took) => refused.entry(start).or_default().push(took),
            None => served += 1,
        }
        is_heard(&cluster, place).await;
        cluster.ready().await;
        load.next_round();
    }
    load.progress(100).await;
    let figures = load.end(cluster.endpoints()).await;
    let count: usize = refused.values().map(Vec::len).sum();
    println!("{rounds} rounds: {served} right starts served, {count} wrong ones refused");
    for (start, took) in refused {
        println!("  {start:?}: {} times, {:?} at most", took.len(), took.iter().max().unwrap());
    }
    println!("{figures}");
}

/// A copy of each store's directory, which each other store has heard a later start of.
async fn older_copies(cluster: &mut Processes) -> Vec<PathBuf> {
    let mut older = Vec::new();
    for place in 0..3 {
        cluster.kill(place);
        let copy = cluster.aside(&format!("s{place}.older"));
        copy_dir(&cluster.data_dir(place), &copy);
        older.push(copy);
        // Twice, for the halves of a directory may be one start apart.
        for _ in 0..2 {
            cluster.restart(place);
            is_heard(cluster, place).await;
            cluster.ready().await;
            cluster.kill(place);
        }
        cluster.restart(place);
        is_heard(cluster, place).await;
        cluster.ready().await;
    }
    older
}

/// Starts a store that was killed, and if that is refused, starts it right. How long the refusal
/// took.
async fn try_start(
    cluster: &mut Processes,
    place: usize,
    start: Start,
    older: &Path,
) -> Option<Duration> {
    cluster.configure(place, &start.settings(cluster, place));
    let Some(words) = start.refusal() else {
        let began = Instant::now();
        cluster.restart(place);
        is_heard(cluster, place).await;
        println!("  serves after {:?}", began.elapsed());
        cluster.configure(place, &cluster.settings(place));
        return None;
    };
    let dir = cluster.data_dir(place);
    let newest = cluster.aside(&format!("s{place}.newest"));
    copy_dir(&dir, &newest);
    start.spoil(&dir, older);
    let took = cluster.refused(place, &[words]).await;
    println!("  refused after {took:?}: {}", cluster.said(place).lines().last().unwrap());
    if !start.keeps_directory() {
        cluster.put_back(place, &newest);
    }
    cluster.configure(place, &cluster.settings(place));
    cluster.restart(place);
    Some(took)
}
