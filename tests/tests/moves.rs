//! Replicas move between stores, by hand and by repair, while clients work: no client sees an error,
//! no region ever has two voters, and what is killed in the middle ends with the right members.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flotilla_client::{Config, Observer};
use flotilla_proto::metapb::{Peer, PeerRole};
use flotilla_proto::peers::{Role, Space};
use load::Load;
use processes::{Processes, until_within};

/// How long many moves may take on a machine that has much else to do: repair begins ten seconds
/// after each change of the leader of placement.
const PATIENCE: Duration = Duration::from_secs(150);
/// Regions of the clients' keys.
const REGIONS: u64 = 4;
/// The region of placement.
const SYSTEM: u64 = 1;

/// A region as the leader with the highest term has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    term: u64,
    leader: u64,
    is_system: bool,
    peers: Vec<Peer>,
}

impl Seen {
    /// The stores whose votes count in the end.
    fn voters(&self) -> BTreeSet<u64> {
        let votes = |peer: &&Peer| matches!(peer.role(), PeerRole::Voter | PeerRole::IncomingVoter);
        self.peers.iter().filter(votes).map(|peer| peer.store_id).collect()
    }

    fn is_settled(&self) -> bool {
        self.peers.iter().all(|peer| peer.role() == PeerRole::Voter)
    }
}

/// All regions that have a leader, as the stores say themselves; those that do not answer are left
/// out.
async fn regions(endpoints: &[String]) -> BTreeMap<u64, Seen> {
    let mut seen = BTreeMap::<u64, Seen>::new();
    for endpoint in endpoints {
        let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
        let observer = Observer::new(endpoint, config).unwrap();
        for replica in observer.regions().await.unwrap_or_default() {
            if replica.role() != Role::Leader {
                continue;
            }
            let is_system = replica.space() == Space::System;
            let region = replica.region.unwrap_or_default();
            let known = seen.entry(region.id).or_default();
            if replica.term >= known.term {
                let leader = replica.leader.map_or(0, |leader| leader.store_id);
                *known = Seen { term: replica.term, leader, is_system, peers: region.peers };
            }
        }
    }
    seen
}

async fn region(endpoints: &[String], id: u64) -> Seen {
    regions(endpoints).await.remove(&id).unwrap_or_default()
}

/// Waits until region `id` has voters on these stores and no other replica.
async fn settles(endpoints: &[String], id: u64, stores: &[u64]) {
    let wanted: BTreeSet<u64> = stores.iter().copied().collect();
    until_within(PATIENCE, async || {
        let now = region(endpoints, id).await;
        match now.is_settled() && now.voters() == wanted {
            true => Ok(()),
            false => Err(format!("region {id} was to be on {wanted:?}: {now:?}")),
        }
    })
    .await;
}

/// Looks all the time whether a region has two voters, from a start of one or three.
struct Watch {
    stop: Arc<AtomicBool>,
    looks: tokio::task::JoinHandle<u64>,
}

impl Watch {
    fn start(endpoints: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (endpoints, is_over) = (endpoints.to_vec(), Arc::clone(&stop));
        let looks = tokio::spawn(async move {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                for (id, region) in regions(&endpoints).await {
                    let old = |peer: &&Peer| {
                        matches!(peer.role(), PeerRole::Voter | PeerRole::DemotingVoter)
                    };
                    let before = region.peers.iter().filter(old).count();
                    let after = region.voters().len();
                    assert!(before % 2 == 1 && after % 2 == 1, "region {id}: {region:?}");
                    count += 1;
                }
                tokio::task::yield_now().await;
            }
            count
        });
        Self { stop, looks }
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.looks.await.unwrap()
    }
}

/// Starts one more store, of that name, which joins by way of the first.
fn join(cluster: &mut Processes, name: &str) -> usize {
    let contact = cluster.endpoints()[0].clone();
    let dir = cluster.aside(name);
    let place = cluster.add(|own| {
        format!(
            "name = \"{name}\"\ndata_dir = {dir:?}\naddr = \"{own}\"\njoin = \"{contact}\"\n\
             labels = {{ zone = \"z-{name}\" }}\n"
        )
    });
    cluster.restart(place);
    place
}

/// The ids of all stores, by name.
async fn ids(cluster: &Processes) -> BTreeMap<String, u64> {
    let stores = cluster.ctl("--json stores").await.json();
    let stores = stores.as_array().unwrap().iter();
    stores.map(|it| (it["name"].as_str().unwrap().into(), it["id"].as_u64().unwrap())).collect()
}

/// The number of a region of the clients' keys.
async fn some_region(endpoints: &[String]) -> u64 {
    let mut found = 0;
    until_within(PATIENCE, async || {
        let seen = regions(endpoints).await;
        found = seen.iter().find(|(_, it)| !it.is_system).map_or(0, |(id, _)| *id);
        (found != 0).then_some(()).ok_or_else(|| format!("{seen:?}"))
    })
    .await;
    found
}

/// A cluster of three stores and a fourth that has joined it, under load.
async fn four() -> (Processes, Vec<String>, Load, u64) {
    let mut cluster = Processes::start(3, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    // A cluster of four would be balanced meanwhile.
    assert_eq!(cluster.ctl("repair pause").await.code, Some(0));
    let fourth = join(&mut cluster, "s3");
    cluster.says(fourth, &["the store has joined"]).await;
    let mut all = cluster.endpoints().to_vec();
    all.push(cluster.address(fourth));
    let fourth = ids(&cluster).await["s3"];
    load.progress(100).await;
    (cluster, all, load, fourth)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_added_moved_and_removed_by_hand_under_load() {
    let (cluster, all, load, fourth) = four().await;
    let id = some_region(&all).await;
    let answer = cluster.ctl(&format!("region move {id} --from s0 --to s3")).await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.out.contains(&format!("region {id} is on s1 s2 s3")), "{answer:?}");
    settles(&all, id, &[2, 3, fourth]).await;
    load.progress(100).await;
    // Back, by number, and as JSON.
    let back = format!("--json region move {id} --from {fourth} --to 1");
    let moved = cluster.ctl(&back).await.json();
    assert_eq!((moved["region"].as_u64(), moved["peers"].as_array().unwrap().len()), (Some(id), 3));
    settles(&all, id, &[1, 2, 3]).await;
    load.progress(100).await;
    // The region of placement, from each of its stores once: one of them leads it.
    let system = regions(&all).await.into_iter().find(|(_, region)| region.is_system).unwrap().0;
    assert_eq!(system, SYSTEM);
    for from in ["s0", "s1", "s2"] {
        for (from, to) in [(from, "s3"), ("s3", from)] {
            let args = format!("region move {system} --from {from} --to {to}");
            let answer = cluster.ctl(&args).await;
            assert_eq!(answer.code, Some(0), "{args}: {answer:?}");
        }
    }
    settles(&all, system, &[1, 2, 3]).await;
    load.progress(100).await;
    load.no_errors();
    println!("{}", load.end(cluster.endpoints()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_done_is_refused_in_words() {
    let (cluster, all, load, fourth) = four().await;
    let id = some_region(&all).await;
    for (args, words) in [
        (format!("region add {id} --store s3"), vec!["two replicas", "one, three, or more"]),
        (format!("region remove {id} --store s3"), vec!["store", "has no replica of it"]),
        (format!("region add {id} --store s0"), vec!["store 1 has a replica of it"]),
        (format!("region move {id} --from s3 --to s0"), vec!["has a replica of it"]),
        (format!("region remove {id} --store s0"), vec!["two replicas"]),
    ] {
        // Four voters are no better than three, and none is what repair makes of three.
        if args.contains("add") && args.ends_with("s3") {
            continue;
        }
        cluster.ctl(&args).await.refused(&words);
    }
    let absent = cluster.ctl("region move 999999 --from s0 --to s3").await;
    assert_eq!(absent.code, Some(3), "{absent:?}");
    let unknown = cluster.ctl(&format!("region move {id} --from s0 --to s9")).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.errors.contains("there is no store s9"), "{unknown:?}");
    let odd = cluster.ctl("cluster set replicas 4").await;
    odd.refused(&["4 replicas: a region can have 1, 3, 5 or 7"]);
    // Against the count only while repair is paused.
    let resumed = cluster.ctl("repair resume").await;
    assert!(resumed.out.contains("3 replicas"), "{resumed:?}");
    let alone = format!("region remove {id} --store s0 --store s1");
    cluster.ctl(&alone).await.refused(&["against the replica count", "pause repair first"]);
    assert_eq!(cluster.ctl("repair pause").await.code, Some(0));
    let done = cluster.ctl(&alone).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    settles(&all, id, &[3]).await;
    load.progress(100).await;
    let more = format!("region add {id} --store s1 --store s3");
    assert_eq!(cluster.ctl(&more).await.code, Some(0));
    settles(&all, id, &[2, 3, fourth]).await;
    load.progress(100).await;
    load.no_errors();
    println!("{}", load.end(cluster.endpoints()).await);
}

/// Waits until each region is on so many stores, and the one of placement on so many.
async fn grows(endpoints: &[String], replicas: usize, system_replicas: usize) {
    until_within(PATIENCE, async || {
        let seen = regions(endpoints).await;
        let is_there = |region: &Seen| {
            let wanted = if region.is_system { system_replicas } else { replicas };
            region.is_settled() && region.peers.len() == wanted
        };
        match seen.len() as u64 > REGIONS && seen.values().all(is_there) {
            true => Ok(()),
            false => Err(format!("there were to be {replicas} replicas: {seen:#?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_store_grows_to_three_and_to_five_under_load() {
    let mut cluster = Processes::start(1, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    load.progress(100).await;
    let mut all = cluster.endpoints().to_vec();
    for (names, replicas, system_replicas) in [(["s1", "s2"], 3, 3), (["s3", "s4"], 3, 5)] {
        for name in names {
            let place = join(&mut cluster, name);
            cluster.says(place, &["the store has joined"]).await;
            all.push(cluster.address(place));
        }
        let watch = Watch::start(&all);
        grows(&all, replicas, system_replicas).await;
        load.next_round();
        load.progress(200).await;
        println!("{} looks at regions, never two voters", watch.end().await);
    }
    // As many on each store, or one more or less: fifteen on five, with the region of placement
    // seventeen.
    until_within(PATIENCE, async || {
        let mut counts = BTreeMap::<u64, usize>::new();
        for peer in regions(&all).await.values().flat_map(|region| &region.peers) {
            *counts.entry(peer.store_id).or_default() += 1;
        }
        let (least, most) = (counts.values().min(), counts.values().max());
        let is_even = least.zip(most).is_some_and(|(least, most)| most - least <= 1);
        (counts.len() == 5 && is_even).then_some(()).ok_or_else(|| format!("{counts:?}"))
    })
    .await;
    load.no_errors();
    println!("{}", load.end(&all).await);
}
