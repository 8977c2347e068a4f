//! Stores lose their directories under load and are replaced: real processes. The old flags are
//! refused, the new store gets all replicas that the old one had, nothing acknowledged is lost, and
//! the old directory is of no use any more.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::collections::BTreeSet;
use std::path::Path;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lost_its_directory_is_replaced_under_load() {
    let mut cluster = Processes::start(3, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    let (mut kept, mut replaced) = (Vec::new(), Vec::new());
    for round in 0..2 {
        load.next_round();
        load.progress(200).await;
        let before = ids(&cluster).await;
        let leader = pd_leader(&cluster).await;
        // First a follower of placement, then its leader.
        let place = if round == 0 { (leader + 1) % 3 } else { leader };
        let name = format!("s{place}");
        cluster.kill(place);
        let old = cluster.aside(&format!("{name}.{round}"));
        std::fs::rename(cluster.data_dir(place), &old).unwrap();
        kept.push((name.clone(), old));
        replaced.push(place);
        // Under the flags that it had, and to join as another one does.
        cluster.refused(place, &[LOST, "--replace"]).await;
        let own = cluster.endpoints()[place].clone();
        let dir = cluster.data_dir(place);
        cluster.configure(place, &replacing(&dir, &name, &own, &others(&cluster, place)));
        cluster.refused(place, &[LOST, "--replace"]).await;

        let began = Instant::now();
        cluster.restart_to_replace(place);
        cluster.says(place, &["the store has joined"]).await;
        println!("{name} is replaced after {:?}", began.elapsed());
        let after = ids(&cluster).await;
        assert_eq!(after.len(), 3, "{after:?}");
        let gone: Vec<_> = before.difference(&after).collect();
        assert_eq!(gone.len(), 1, "{before:?} became {after:?}");
        are_on(cluster.endpoints(), &after).await;
        println!("all regions are on it after {:?}", began.elapsed());
        load.progress(100).await;
        let rows = stores(&cluster).await;
        let old_row = rows.iter().find(|row| row["id"] == *gone[0]).unwrap();
        let (state, uuid) = (&old_row["state"], &old_row["uuid"]);
        assert_eq!((&old_row["name"], state), (&name.as_str().into(), &"lost".into()));
        let is_here = |row: &&Value| row["uuid"] != *uuid && row["name"] == *name;
        let new_row = rows.iter().find(is_here).unwrap();
        assert_eq!((&new_row["up"], &new_row["holds_registry"]), (&true.into(), &true.into()));
    }
    // It starts again as it is, without the flag and with it.
    let place = replaced[1];
    let after = ids(&cluster).await;
    cluster.kill(place);
    cluster.restart(place);
    load.progress(100).await;
    cluster.kill(place);
    cluster.restart_to_replace(place);
    load.progress(100).await;
    assert_eq!(ids(&cluster).await, after, "a member replaces nothing");
    println!("{}", load.end(cluster.endpoints()).await);

    // C37: the old disks are found again.
    for (name, dir) in kept {
        let contacts = others(&cluster, 9);
        let place = cluster.add(|own| replacing(&dir, &name, own, &contacts));
        for _ in 0..2 {
            // First it hears so, then it knows it.
            cluster.refused(place, &["was declared lost and never takes part again"]).await;
        }
    }
    assert_eq!(ids(&cluster).await, after);
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
