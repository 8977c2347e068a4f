//! Stores are drained for a restart, leave for good, and are declared lost, while clients work.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod members;
mod processes;

use std::time::Duration;

use flotilla_client::{Config, Observer};
use load::Load;
use members::{PATIENCE, ids, join, regions};
use processes::{Processes, until_within};
use rustix::process::Signal;

/// Regions of the clients' keys.
const REGIONS: u64 = 4;

/// How many regions the store at an address leads, and has.
async fn counts(endpoint: &str) -> Result<(u64, u64), String> {
    let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
    let stats = Observer::new(endpoint, config).unwrap().stats().await;
    stats.map(|stats| (stats.leaders, stats.replicas)).map_err(|error| error.to_string())
}

/// Each of three stores in turn is drained, started again, and takes part again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_store_is_drained_and_started_again() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    load.progress(100).await;
    for place in 0..3 {
        let drained = cluster.ctl(&format!("--json store drain s{place}")).await.json();
        assert_eq!((&drained["state"], &drained["leaders"]), (&"draining".into(), &0.into()));
        assert_eq!(drained["replicas"], REGIONS + 1);
        let stores = cluster.ctl("--json stores").await.json();
        assert_eq!(stores[place]["registry_state"], "draining");
        cluster.stop(place);
        load.progress(50).await;
        cluster.restart(place);
        let endpoint = cluster.endpoints()[place].clone();
        until_within(PATIENCE, async || counts(&endpoint).await.map(|_| ())).await;
        let back = cluster.ctl(&format!("store cancel s{place}")).await;
        assert!(back.out.contains(&format!("s{place} is up")), "{back:?}");
        // Else the next one is drained while this one lacks entries.
        until_within(PATIENCE, async || match counts(&endpoint).await? {
            (0, _) => Err(format!("s{place} leads nothing yet")),
            _ => Ok(()),
        })
        .await;
        load.next_round();
    }
    load.no_refusals();
    println!("{}", load.end(cluster.endpoints()).await);
}

/// A second signal ends a store at once, while it still ends in good order for the first one; what
/// it acknowledged is there when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_store_at_once() {
    let mut cluster = Processes::start(1, 1).await;
    let client = load::client(cluster.endpoints()).await;
    client.put("key", "kept").await.unwrap();
    // It gets both when it goes on, so that it cannot have ended in between.
    cluster.suspend(0);
    cluster.ask_to_end(0, Signal::TERM);
    cluster.ask_to_end(0, Signal::INT);
    cluster.resume(0);
    cluster.ends_asked(0, 70, &["a second time"]).await;
    cluster.restart(0);
    cluster.ready().await;
    assert_eq!(client.get("key").await.unwrap().unwrap(), "kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_leaves_and_its_process_ends() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    cluster.ctl("store leave s0").await.refused(&["2 stores would stay", "3 replicas"]);
    let fourth = join(&mut cluster, "s3");
    cluster.says(fourth, &["the store has joined"]).await;
    let id = ids(&cluster).await["s3"];
    // One that leads and is the first of the list, and of the endpoints.
    let left = cluster.ctl("store leave s0 --wait 120").await;
    assert!(left.out.contains("s0 has left"), "{left:?}");
    println!("{}", left.errors);
    cluster.ends_left(0, &["store 1, s0,", "has left the cluster"]).await;
    let mut others = cluster.endpoints()[1..].to_vec();
    others.push(cluster.address(fourth));
    let now = regions(&others).await;
    assert_eq!(now.len() as u64, REGIONS + 1);
    for (region, seen) in &now {
        assert_eq!(seen.voters(), [2, 3, id].into(), "region {region}: {seen:?}");
        assert!(seen.is_settled(), "region {region}: {seen:?}");
    }
    // Its directory does not come back, by whatever flags.
    cluster.refused(0, &["store 1, s0,", "has left the cluster"]).await;
    let gone = cluster.ctl("store cancel 1").await;
    gone.refused(&["store 1 is removed, and that is for ever"]);
    let stores = cluster.ctl("--json stores").await.json();
    assert_eq!((&stores[0]["up"], &stores[0]["state"]), (&false.into(), &"removed".into()));
    cluster.ctl("store leave s1").await.refused(&["2 stores would stay", "3 replicas"]);
    load.progress(100).await;
    load.no_errors();
    println!("{}", load.end(&others).await);
}

/// A process ends well only if its store left meanwhile: a later start must not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_has_left_while_it_did_not_run_is_refused() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let fourth = join(&mut cluster, "s3");
    cluster.says(fourth, &["the store has joined"]).await;
    cluster.kill(2);
    let left = cluster.ctl("store leave s2 --wait 120").await;
    assert!(left.out.contains("s2 has left"), "{left:?}");
    // Its own copy of the registry does not say so: the others do, and then the copy does.
    for _ in 0..2 {
        cluster.refused(2, &["store 3, s2,", "has left the cluster"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_leaves_may_stay_after_all() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let fourth = join(&mut cluster, "s3");
    cluster.says(fourth, &["the store has joined"]).await;
    // It has begun, and is not waited for.
    cluster.ctl("store leave s1 --wait 0").await.refused(&["s1 is not there yet: leaving"]);
    cluster.ctl("store drain s1").await.refused(&["store 2 is leaving: cancel that first"]);
    let back = cluster.ctl("--json store cancel s1").await.json();
    assert_eq!(back["state"], "up");
    assert_eq!(cluster.ctl("store cancel s9").await.code, Some(2));
    cluster.ctl("store lost s2").await.refused(&["was heard", "stop it if it runs"]);
    cluster.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_declared_lost_is_replaced_by_the_others() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    let fourth = join(&mut cluster, "s3");
    cluster.says(fourth, &["the store has joined"]).await;
    let id = ids(&cluster).await["s3"];
    cluster.kill(1);
    // Asked again until the store has been silent for ten seconds.
    until_within(PATIENCE, async || {
        let lost = cluster.ctl("store lost s1").await;
        match lost.code {
            Some(0) => Ok(()),
            _ => Err(lost.errors),
        }
    })
    .await;
    let others =
        [cluster.endpoints()[0].clone(), cluster.endpoints()[2].clone(), cluster.address(fourth)];
    until_within(PATIENCE, async || {
        let now = regions(&others).await;
        let is_there = now.len() as u64 == REGIONS + 1
            && now
                .values()
                .all(|region| region.is_settled() && region.voters() == [1, 3, id].into());
        is_there.then_some(()).ok_or_else(|| format!("{now:#?}"))
    })
    .await;
    cluster.refused(1, &["store 2, s1,", "was declared lost"]).await;
    load.progress(100).await;
    println!("{}", load.end(&others).await);
}
