//! A cluster of an older version is upgraded store by store while clients work: real processes.
//!
//! `tests/upgrade.sh` builds the older program and runs this. Without one the test says that it is
//! skipped: `tests/tests/compat` opens directories of all older versions.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::path::PathBuf;

use load::Load;
use processes::{Processes, until};
use serde_json::Value;

/// Names the program `flotilla` of the older version.
const OLD_VARIABLE: &str = "FLOTILLA_OLD_BINARY";
const STORES: usize = 3;
/// Begun with as many: the older version splits none.
const REGIONS: u64 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_upgraded_store_by_store() {
    let Some(old) = std::env::var_os(OLD_VARIABLE).map(PathBuf::from) else {
        println!("skipped: {OLD_VARIABLE} names no older program; tests/upgrade.sh builds one");
        return;
    };
    let mut cluster = Processes::plan(STORES, REGIONS);
    (0..STORES).for_each(|place| cluster.run_by(place, Some(&old)));
    cluster.start_all();
    cluster.ready().await;
    let load = Load::start_without_ttl(8, cluster.endpoints()).await;
    load.progress(500).await;
    for place in 0..STORES {
        cluster.stop(place);
        load.progress(100).await;
        cluster.run_by(place, None);
        cluster.restart(place);
        cluster.ready().await;
        load.progress(300).await;
        load.next_round();
        println!("store {place} has the new version");
        if place + 1 < STORES {
            refused_while_some_are_older(&cluster).await;
        }
        if place + 2 == STORES {
            refused_by_a_newer_leader(&mut cluster, STORES - 1).await;
        }
    }
    // As soon as placement has heard of the last one, all that is new works.
    until(async || {
        let split = cluster.ctl("region split --key m --json").await;
        if split.code == Some(0) { Ok(()) } else { Err(split.errors) }
    })
    .await;
    let drained = cluster.ctl("store drain s0").await;
    assert!(drained.out.contains("s0 is drained"), "{drained:?}");
    cluster.ctl("store cancel s0").await;
    load.progress(100).await;
    let regions: Value = cluster.ctl("regions --json").await.json();
    println!("{} regions", regions.as_array().map_or(0, Vec::len));
    load.no_refusals();
    println!("{}", load.end(cluster.endpoints()).await);
}

/// Nothing is asked of the cluster that the older stores, the last one among them, do not know.
async fn refused_while_some_are_older(cluster: &Processes) {
    let refused = cluster.ctl("region split 2 --key m").await;
    assert_ne!(refused.code, Some(0), "{refused:?}");
    println!("{}", refused.errors.trim());
    // A store that would keep its leases is named, too.
    let last = format!("s{}", STORES - 1);
    let refused = cluster.ctl("config set raft.tick_ms 100ms").await;
    refused.refused(&["upgrade", &last]);
    println!("{}", refused.errors.trim());
    // No replica moves before the last one is upgraded: it is named, whichever leads.
    for change in ["drain", "leave"] {
        let refused = cluster.ctl(&format!("store {change} s0 --wait 60")).await;
        refused.refused(&["upgrade", &last]);
        println!("{}", refused.errors.trim());
    }
}

/// The same of the only older store, whose restart has another one lead placement.
async fn refused_by_a_newer_leader(cluster: &mut Processes, older: usize) {
    cluster.stop(older);
    until(async || {
        let led = cluster.ctl("repair show --timeout 2").await;
        if led.code == Some(0) { Ok(()) } else { Err(led.errors) }
    })
    .await;
    cluster.restart(older);
    cluster.ready().await;
    for change in ["drain", "leave"] {
        let refused = cluster.ctl(&format!("store {change} s0 --wait 60")).await;
        refused.refused(&["the feature level is 1, and 3 is needed", &format!("s{older}")]);
        println!("{}", refused.errors.trim());
    }
}
