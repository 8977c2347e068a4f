//! Replicas move between stores, by hand and by repair, while clients work: no client sees an
//! error, no region ever has two voters, and what is killed in the middle ends with the right
//! members.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod members;
mod processes;

use std::collections::BTreeMap;

use load::Load;
use members::{PATIENCE, Seen, Watch, ids, join, regions, settles, some_region};
use processes::{Answer, Processes, ctl, until_within};

/// Regions of the clients' keys.
const REGIONS: u64 = 4;
/// The region of placement.
const SYSTEM: u64 = 1;

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
    // One of the two may lead it already. The moves have transferred it, too.
    for to in ["s0", "s1"] {
        let transferred = cluster.ctl(&format!("region transfer {id} --to {to}")).await;
        assert_eq!(transferred.code, Some(0), "{transferred:?}");
    }
    let split = cluster.ctl(&format!("region split {id}")).await;
    assert_eq!(split.code, Some(0), "{split:?}");
    each_change_has_a_line(&cluster, id);
    load.no_errors();
    println!("{}", load.end(cluster.endpoints()).await);
}

/// The logs of the stores have one line for each change of a region that was moved to a fourth
/// store and back, led by its first and its second store by hand, and split.
fn each_change_has_a_line(cluster: &Processes, id: u64) {
    let said: String = (0..4).map(|place| cluster.said(place)).collect();
    let (region, epoch) = (format!(" region={id} "), [" version=", " conf_version="]);
    let lines = |event: &str, fields: &[&str]| {
        let of_it = |line: &&str| line.contains(event) && line.contains(&region);
        let lines: Vec<&str> = said.lines().filter(of_it).collect();
        for line in &lines {
            let fields = fields.iter().chain(&epoch).chain(&[" ms=", " cause="]);
            fields.for_each(|field| assert!(line.contains(field), "no{field} in {line}"));
        }
        assert!(!lines.is_empty(), "no line says that {event}:\n{said}");
        lines
    };
    let changes = lines("the members of a region changed", &[" change="]);
    // To and fro.
    for (change, count) in [("learner ", 2), (" vote, ", 2), (" is removed", 2)] {
        let found = changes.iter().filter(|line| line.contains(change)).count();
        assert!(found >= count, "{found} lines with {change}: {changes:?}");
    }
    // The region leaves the joint configuration by itself, and each time its leader says so, once.
    let count = |change: &str| changes.iter().filter(|line| line.contains(change)).count();
    let (entered, left) = (count(" vote, "), count("the joint configuration is left"));
    assert_eq!(left, entered, "{changes:?}");
    // An election may fall between the two.
    let has_cause = |line: &&str| {
        line.contains("asked for")
            || line.contains("is left") && line.contains("begun under another leader")
    };
    assert!(changes.iter().all(has_cause), "{changes:?}");
    lines("a snapshot was sent", &[" bytes=", " index=", " store="]);
    lines("a snapshot was received", &[" bytes=", " index=", "sent by store"]);
    lines("a snapshot was installed", &[" bytes=", " index=", "the replica is new"]);
    lines("a replica ended", &[" bytes=", " rows="]);
    let transfers = lines("a leader was transferred", &[" to="]);
    let by_hand = transfers.iter().filter(|line| line.contains("cause=\"asked for\"")).count();
    assert!(by_hand >= 1, "{transfers:?}");
    let splits = lines("a region was split", &[" bytes=", " parts=2 ", "asked for in halves"]);
    assert_eq!(splits.len(), 1, "{splits:?}");
}

/// The answer to a command once the region is not being changed by repair.
async fn answer_at_rest(cluster: &Processes, args: &str) -> Answer {
    let mut answer = cluster.ctl(args).await;
    until_within(PATIENCE, async || {
        if !answer.errors.contains("are being changed") {
            return Ok(());
        }
        let before = std::mem::replace(&mut answer, cluster.ctl(args).await);
        Err(before.errors)
    })
    .await;
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_done_is_refused_in_words() {
    let (cluster, all, load, fourth) = four().await;
    let id = some_region(&all).await;
    for (args, words) in [
        (format!("region remove {id} --store s3"), vec!["store", "has no replica of it"]),
        (format!("region add {id} --store s0"), vec!["store 1 has a replica of it"]),
        (format!("region move {id} --from s3 --to s0"), vec!["has a replica of it"]),
        (format!("region remove {id} --store s0"), vec!["two replicas", "one, three, or more"]),
        (format!("region remove {id} --store s0 --store s1 --store s2"), vec!["one stays"]),
    ] {
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
    let refused = answer_at_rest(&cluster, &alone).await;
    refused.refused(&["against the replica count", "pause repair first"]);
    assert_eq!(cluster.ctl("repair pause").await.code, Some(0));
    let done = answer_at_rest(&cluster, &alone).await;
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
async fn one_store_grows_to_three_and_five_and_shrinks_to_three_under_load() {
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
    even(&all).await;
    // As many replicas of each region as the cluster is set to, and back.
    for replicas in [5, 3] {
        let set = cluster.ctl(&format!("--json cluster set replicas {replicas}")).await.json();
        assert_eq!(set["replicas"], replicas);
        let watch = Watch::start(&all);
        grows(&all, replicas, 5).await;
        load.next_round();
        println!("{} looks at regions, never two voters", watch.end().await);
    }
    // The first of the list goes, which leads placement or did, and the last that has joined.
    for (place, name) in [(0, "s0"), (4, "s4")] {
        let left = ctl(&all[1..4], &format!("store leave {name} --wait 120")).await;
        assert!(left.out.contains(&format!("{name} has left")), "{left:?}");
        cluster.ends_left(place, &["has left the cluster"]).await;
        load.next_round();
        load.progress(100).await;
    }
    let left = all[1..4].to_vec();
    grows(&left, 3, 3).await;
    even(&left).await;
    load.no_errors();
    println!("{}", load.end(&left).await);
}

/// Waits until each store has as many replicas as the others, or two more or less: that of
/// placement is not moved for balance.
async fn even(endpoints: &[String]) {
    until_within(PATIENCE, async || {
        let mut counts = BTreeMap::<u64, usize>::new();
        for peer in regions(endpoints).await.values().flat_map(|region| &region.peers) {
            *counts.entry(peer.store_id).or_default() += 1;
        }
        let (least, most) = (counts.values().min(), counts.values().max());
        let is_even = least.zip(most).is_some_and(|(least, most)| most - least <= 2);
        let is_there = counts.len() == endpoints.len() && is_even;
        is_there.then_some(()).ok_or_else(|| format!("{counts:?}"))
    })
    .await;
}

/// The part of a move that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The store that leads the region.
    Leader,
    /// The store that gives the replica up.
    Source,
    /// The store that gets it.
    Target,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_ends_with_the_right_members_whatever_is_killed_in_the_middle() {
    let (mut cluster, all, load, fourth) = four().await;
    let id = some_region(&all).await;
    let places = BTreeMap::from([(1, 0), (2, 1), (3, 2), (fourth, 3)]);
    // The move is asked for again until it is done: what was begun may end with a term of
    // placement.
    for (round, victim) in [Victim::Leader, Victim::Source, Victim::Target].into_iter().enumerate()
    {
        let before = regions(&all).await.remove(&id).unwrap();
        let held = before.voters();
        let to = *places.keys().find(|store| !held.contains(store)).unwrap();
        let mut others = held.iter().copied().filter(|store| *store != before.leader);
        let from = match victim {
            Victim::Leader => before.leader,
            Victim::Source | Victim::Target => others.next().unwrap(),
        };
        let killed = match victim {
            Victim::Leader => before.leader,
            Victim::Source => from,
            Victim::Target => to,
        };
        println!("round {round}: region {id} from {from} to {to}, {victim:?} {killed} is killed");
        let args = format!("region move {id} --from {from} --to {to} --wait 60");
        let endpoints = all.clone();
        let moving = tokio::spawn(async move { ctl(&endpoints, &args).await });
        load.progress(20 * (round as u64 + 1)).await;
        cluster.kill(places[&killed]);
        load.progress(100).await;
        cluster.restart(places[&killed]);
        println!("{:?}", moving.await.unwrap());
        let wanted: Vec<u64> =
            held.iter().copied().filter(|store| *store != from).chain([to]).collect();
        let again = format!("region move {id} --from {from} --to {to} --wait 60");
        until_within(PATIENCE, async || {
            let now = regions(&all).await.remove(&id).unwrap_or_default();
            if now.is_settled() && now.voters() == wanted.iter().copied().collect() {
                return Ok(());
            }
            let answer = ctl(&all, &again).await;
            Err(format!("{now:?}: {answer:?}"))
        })
        .await;
        settles(&all, id, &wanted).await;
        load.next_round();
    }
    println!("{}", load.end(&all).await);
}
