//! Stores lose their directories under load and are replaced: real processes. The old flags are
//! refused, the new store gets all replicas that the old one had, nothing acknowledged is lost, and
//! the old directory is of no use any more.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flotilla_client::{Config, Observer};
use flotilla_proto::metapb::PeerRole;
use flotilla_proto::peers::{RegionStatus, Role, Space};
use load::Load;
use processes::{Processes, until};
use serde_json::Value;

/// The words of a store that does not have what the cluster knows of it.
const LOST: &str = "this store lost its data; bring its disk back";
const REGIONS: u64 = 4;
/// Directories that are lost, one after the other, and the seed of which and when.
const ROUNDS_VARIABLE: &str = "FLOTILLA_WIPE_ROUNDS";
const SEED_VARIABLE: &str = "FLOTILLA_WIPE_SEED";

/// The settings of a store that is started with `--replace`.
fn replacing(dir: &Path, name: &str, own: &str, contacts: &str) -> String {
    format!("name = \"{name}\"\ndata_dir = {dir:?}\naddr = \"{own}\"\njoin = \"{contacts}\"\n")
}

/// The endpoints of all stores but one.
fn others(cluster: &Processes, place: usize) -> String {
    let others = cluster.endpoints().iter().enumerate().filter(|(other, _)| *other != place);
    others.map(|(_, endpoint)| endpoint.as_str()).collect::<Vec<_>>().join(",")
}

/// All regions, as their leaders describe them.
async fn led(endpoints: &[String]) -> Vec<RegionStatus> {
    let mut led = Vec::new();
    for endpoint in endpoints {
        let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
        let regions = Observer::new(endpoint, config).unwrap().regions().await;
        let regions = regions.unwrap_or_default().into_iter();
        led.extend(regions.filter(|region| region.role() == Role::Leader));
    }
    led
}

/// Waits until each region has a voter on each of `stores` and no other replica.
async fn are_on(endpoints: &[String], stores: &BTreeSet<u64>) {
    until(async || {
        let led = led(endpoints).await;
        let is_there = |status: &&RegionStatus| {
            let peers = &status.region.as_ref().unwrap().peers;
            let votes = peers.iter().all(|peer| peer.role() == PeerRole::Voter);
            votes && peers.iter().map(|peer| peer.store_id).collect::<BTreeSet<_>>() == *stores
        };
        let there: BTreeSet<u64> =
            led.iter().filter(is_there).map(|it| it.region.as_ref().unwrap().id).collect();
        match there.len() as u64 {
            count if count == REGIONS + 1 => Ok(()),
            _ => Err(format!("only regions {there:?} are on {stores:?}: {led:?}")),
        }
    })
    .await;
}

/// The place of the store that leads placement.
async fn pd_leader(cluster: &Processes) -> usize {
    let mut found = 0;
    until(async || {
        for (place, endpoint) in cluster.endpoints().iter().enumerate() {
            let led = led(std::slice::from_ref(endpoint)).await;
            if led.iter().any(|region| region.space() == Space::System) {
                found = place;
                return Ok(());
            }
        }
        Err("none leads placement".to_owned())
    })
    .await;
    found
}

/// The rows of `ctl stores`.
async fn stores(cluster: &Processes) -> Vec<Value> {
    let rows = cluster.ctl("--json stores").await.json();
    rows.as_array().unwrap().clone()
}

/// The ids of the stores that take part.
async fn ids(cluster: &Processes) -> BTreeSet<u64> {
    let stores = stores(cluster).await.into_iter();
    let here = stores.filter(|store| store["registry_state"] == "up");
    here.map(|store| store["id"].as_u64().unwrap()).collect()
}

/// The number in a variable of the environment, or the default.
fn variable(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |given| given.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A cluster under load whose stores lose their directories.
struct Losses {
    cluster: Processes,
    load: Load,
    random: fastrand::Rng,
    /// The directories that were lost, with the names of their stores.
    lost: Vec<(String, PathBuf)>,
}

impl Losses {
    async fn start(random: fastrand::Rng) -> Self {
        let cluster = Processes::start(3, REGIONS).await;
        let load = Load::start(4, cluster.endpoints()).await;
        Self { cluster, load, random, lost: Vec::new() }
    }

    /// A store loses its directory. It is refused under the flags that it had, and to join as
    /// another one does.
    async fn lose(&mut self, round: u64, place: usize) {
        let (name, cluster) = (format!("s{place}"), &mut self.cluster);
        println!("round {round}: {name} loses its directory");
        cluster.kill(place);
        let old = cluster.aside(&format!("{name}.{round}"));
        std::fs::rename(cluster.data_dir(place), &old).unwrap();
        cluster.refused(place, &[LOST, "--replace"]).await;
        let own = cluster.endpoints()[place].clone();
        let dir = cluster.data_dir(place);
        cluster.configure(place, &replacing(&dir, &name, &own, &others(cluster, place)));
        cluster.refused(place, &[LOST, "--replace"]).await;
        self.lost.push((name, old));
    }

    /// It is replaced, and gets all that it had. `is_disturbed`: stores are killed meanwhile.
    async fn replace(&mut self, place: usize, is_disturbed: bool) {
        let before = ids(&self.cluster).await;
        let began = Instant::now();
        self.cluster.restart_to_replace(place);
        if is_disturbed && self.random.bool() {
            // Its directory is the same: it goes on where it was, registered or not.
            self.cluster.says(place, &["no cluster yet: waiting for"]).await;
            self.load.progress(self.random.u64(1..200)).await;
            self.cluster.kill(place);
            self.cluster.restart_to_replace(place);
        }
        self.cluster.says(place, &["the store has joined"]).await;
        println!("s{place} is replaced after {:?}", began.elapsed());
        let mut after = BTreeSet::new();
        // Each store hears of it with its next report.
        until(async || {
            after = ids(&self.cluster).await;
            (after != before).then_some(()).ok_or_else(|| format!("there are {before:?} still"))
        })
        .await;
        let gone: Vec<_> = before.difference(&after).collect();
        assert_eq!((after.len(), gone.len()), (3, 1), "{before:?} became {after:?}");
        if is_disturbed && self.random.bool() {
            // While the data moves: any store, the new one too.
            self.load.progress(self.random.u64(1..100)).await;
            let killed = self.random.usize(..3);
            self.cluster.kill(killed);
            self.cluster.restart(killed);
        }
        are_on(self.cluster.endpoints(), &after).await;
        println!("all regions are on it after {:?}", began.elapsed());
        self.load.progress(100).await;
        self.check_rows(&format!("s{place}"), *gone[0]).await;
    }

    /// Operators see both: the one that is lost, and the one that has its name.
    async fn check_rows(&self, name: &str, lost: u64) {
        let rows = stores(&self.cluster).await;
        let old = rows.iter().find(|row| row["id"] == lost).unwrap();
        assert_eq!((&old["name"], &old["state"]), (&name.into(), &"lost".into()));
        let is_here = |row: &&Value| row["registry_state"] == "up" && row["name"] == name;
        let new = rows.iter().find(is_here).unwrap();
        assert_eq!((&new["up"], &new["holds_registry"]), (&true.into(), &true.into()));
    }

    /// C37: old disks are found again. They change nothing.
    async fn find_lost_disks(&mut self) {
        for (name, dir) in self.lost.iter().take(4) {
            let contacts = self.cluster.endpoints().join(",");
            let place = self.cluster.add(|own| replacing(dir, name, own, &contacts));
            for _ in 0..2 {
                // First it hears so, then it knows it.
                let words = ["was declared lost and never takes part again"];
                self.cluster.refused(place, &words).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lost_its_directory_is_replaced_under_load() {
    let rounds = variable(ROUNDS_VARIABLE, 2);
    let seed = variable(SEED_VARIABLE, fastrand::u64(..));
    println!("{SEED_VARIABLE}={seed} {ROUNDS_VARIABLE}={rounds}");
    let mut losses = Losses::start(fastrand::Rng::with_seed(seed)).await;
    let mut place = 0;
    for round in 0..rounds {
        losses.load.next_round();
        losses.load.progress(losses.random.u64(1..400)).await;
        let leader = pd_leader(&losses.cluster).await;
        // First a follower of placement, then its leader, then any.
        place = match round {
            0 => (leader + 1) % 3,
            1 => leader,
            _ => losses.random.usize(..3),
        };
        losses.lose(round, place).await;
        losses.replace(place, round >= 2).await;
    }
    // It starts again as it is, without the flag and with it.
    let Losses { cluster, load, .. } = &mut losses;
    let after = ids(cluster).await;
    cluster.kill(place);
    cluster.restart(place);
    load.progress(100).await;
    cluster.kill(place);
    cluster.restart_to_replace(place);
    load.progress(100).await;
    assert_eq!(ids(cluster).await, after, "a member replaces nothing");
    losses.find_lost_disks().await;
    assert_eq!(ids(&losses.cluster).await, after);
    println!("{}", losses.load.end(losses.cluster.endpoints()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_store_is_replaced_while_the_cluster_cannot_do_without_it() {
    let mut cluster = Processes::start(3, 1).await;
    let dir = cluster.aside("new");
    let contacts = cluster.endpoints().join(",");
    let place = cluster.add(|own| replacing(&dir, "s9", own, &contacts));
    let own = cluster.address(place);
    let replaces = |name: &str| replacing(&dir, name, &own, &contacts);
    // It is never told to wait for what does not come.
    cluster.restart_to_replace(place);
    let nothing = ["no store of this cluster has ever been s9", "leave out --replace"];
    cluster.ends_refused(place, &nothing).await;
    let joins = format!("join = \"{contacts}\"\n");
    cluster.configure(place, &replaces("s1").replace(&joins, ""));
    cluster.restart_to_replace(place);
    cluster.ends_refused(place, &["--replace without --join"]).await;

    // The store runs, whatever its operator believes.
    cluster.configure(place, &replaces("s1"));
    cluster.restart_to_replace(place);
    cluster.says(place, &["no cluster yet: waiting for", "s1, was heard", "stop it"]).await;
    assert_eq!(ids(&cluster).await.len(), 3);
    cluster.kill(place);

    // Two of three are gone.
    cluster.kill(1);
    cluster.kill(2);
    cluster.restart_to_replace(place);
    let words = "no quorum: 2 of 3 stores are gone; replace needs one";
    cluster.says(place, &[words]).await;
    cluster.ends_refused(place, &[words, "start the stores"]).await;
    cluster.restart(1);
    cluster.restart(2);
    cluster.ready().await;
    assert_eq!(ids(&cluster).await.len(), 3);
}
