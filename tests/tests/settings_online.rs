//! Settings of the cluster change while real processes run and clients work: no client sees an
//! error, the history of what they saw is linearizable, and restarts bring nothing back.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use load::Load;
use processes::{Processes, until};
use serde_json::{Value, json};

const STORES: usize = 3;
const REGIONS: u64 = 4;

/// The rows of `config get --json` that are about a key.
async fn rows(cluster: &Processes, key: &str) -> Vec<Value> {
    let all = cluster.ctl(&format!("--json config get {key}")).await.json();
    all.as_array().unwrap().clone()
}

/// Waits until all stores have this value of a key of the cluster.
async fn all_have(cluster: &Processes, key: &str, value: Value) {
    until(async || {
        let seen = rows(cluster, key).await;
        match &seen[..] {
            [only] if only["value"] == value => Ok(()),
            _ => Err(format!("{seen:?}, not {value}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tick_changes_under_load_and_no_client_sees_an_error() {
    let cluster = Processes::start(STORES, REGIONS).await;
    let load = Load::start(8, cluster.endpoints()).await;
    load.progress(200).await;
    for (value, ms) in [("100ms", 100), ("25ms", 25), ("60", 60)] {
        let set = cluster.ctl(&format!("config set raft.tick_ms {value}")).await;
        assert_eq!(set.code, Some(0), "{set:?}");
        assert_eq!(set.out, format!("raft.tick_ms is {ms}ms on all stores\n"));
        println!("{}", set.errors.trim());
        load.progress(200).await;
        all_have(&cluster, "raft.tick_ms", json!(ms)).await;
    }
    // Each store says that its leases are on again.
    for place in 0..STORES {
        cluster.says(place, &["the settings of the cluster have changed", "leases=true"]).await;
    }
    for value in ["false", "true"] {
        let set = cluster.ctl(&format!("--json config set raft.read_leases {value}")).await.json();
        assert_eq!(set["value"], json!(value == "true"), "{set}");
        load.progress(200).await;
    }
    load.no_errors();
    println!("{}", load.end(cluster.endpoints()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_settings_survive_a_restart_of_all_stores_and_what_their_files_say() {
    let mut cluster = Processes::plan(STORES, REGIONS);
    for place in 0..STORES {
        let given = format!("{}[raft]\ntick_ms = \"50ms\"\n", cluster.settings(place));
        cluster.configure(place, &given);
    }
    cluster.start_all();
    cluster.ready().await;
    for (key, value) in [
        ("raft.tick_ms", "80ms"),
        ("raft.entry_bytes_max", "64KiB"),
        ("raft.read_leases", "false"),
        ("replicas", "5"),
    ] {
        let set = cluster.ctl(&format!("config set {key} {value}")).await;
        assert_eq!(set.code, Some(0), "{set:?}");
        assert_eq!(set.out, format!("{key} is {value} on all stores\n"));
    }
    (0..STORES).for_each(|place| cluster.kill(place));
    (0..STORES).for_each(|place| cluster.restart(place));
    cluster.ready().await;
    for place in 0..STORES {
        let words = "raft.tick_ms = 50 is given and does not count: the cluster was changed to 80";
        cluster.says(place, &[words]).await;
    }
    all_have(&cluster, "raft.tick_ms", json!(80)).await;
    all_have(&cluster, "raft.entry_bytes_max", json!(64 << 10)).await;
    all_have(&cluster, "raft.read_leases", json!(false)).await;
    all_have(&cluster, "replicas", json!(5)).await;
    let large = cluster.aside("large");
    std::fs::write(&large, vec![7; 65 << 10]).unwrap();
    let put = cluster.ctl(&format!("put ship --file {}", large.display())).await;
    assert_eq!(put.code, Some(1), "{put:?}");
    // Both ways lead to the one number.
    let set = cluster.ctl("cluster set replicas 3").await;
    assert_eq!(set.code, Some(0), "{set:?}");
    all_have(&cluster, "replicas", json!(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_changes_are_refused_with_what_would_be_right() {
    let cluster = Processes::start(STORES, REGIONS).await;
    for (change, words) in [
        ("raft.tick_ms 5ms", "raft.tick_ms = 5ms is out of range: 10ms to 10s"),
        ("raft.tick_ms 1MiB", "\"MiB\" is no unit of this key"),
        (
            "raft.entry_bytes_max 1GiB",
            "raft.entry_bytes_max = 1GiB is out of range: 64KiB to 12MiB",
        ),
        ("raft.read_leases maybe", "expected true or false"),
        ("raft.election_ticks 20", "is fixed when a cluster begins"),
        ("replicas 4", "a region can have 1, 3, 5 or 7"),
        ("replicas 9", "replicas = 9 is out of range: 1 to 7"),
        ("api v2", "for ever"),
        ("limits.slow_request_ms 2s", "is a setting of each store"),
        ("raft.tick 2s", "the nearest is `raft.tick_ms`"),
    ] {
        cluster.ctl(&format!("config set {change}")).await.refused(&[words]);
    }
    all_have(&cluster, "raft.tick_ms", json!(50)).await;
    let unknown = cluster.ctl("config get nothing").await;
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    // A value of a store: all of them have it from their files, at a line.
    let regions = rows(&cluster, "regions").await;
    let places: Vec<_> = regions.iter().map(|row| row["place"].as_str().unwrap()).collect();
    assert!(
        places.len() == STORES && places.iter().all(|it| it.ends_with(", line 3")),
        "{places:?}"
    );
    let one = cluster.ctl("--json config get log --store s1").await.json();
    let log = &one[0];
    assert_eq!((&log["stores"], &log["source"]), (&json!(["s1"]), &json!("default")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_waits_for_the_next_start_is_shown_beside_the_one_in_force() {
    let cluster = Processes::start(1, 1).await;
    let given = format!("{}[limits]\nconnections_max = 77\n", cluster.settings(0));
    cluster.configure(0, &given);
    cluster.hang_up(0);
    cluster.says(0, &["these do not change before the next start: limits.connections_max"]).await;
    let seen = &rows(&cluster, "limits.connections_max").await[0];
    assert_eq!((&seen["source"], &seen["at_next_start"]), (&json!("default"), &json!("77")));
    assert_ne!(seen["value"], json!(77));
}

/// The change is named with the store that it waits for, while clients go on; it can be taken back;
/// and it comes about when the store is back, whose own copy is from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_tick_waits_for_a_store_that_is_down() {
    let mut cluster = Processes::start(STORES, REGIONS).await;
    let load = Load::start(4, cluster.endpoints()).await;
    load.progress(100).await;
    cluster.kill(2);
    let waiting = ["raft.tick_ms becomes 100ms once no store uses leases", "waiting for s2"];
    cluster.ctl("config set raft.tick_ms 100ms --wait 5").await.refused(&waiting);
    load.progress(100).await;
    all_have(&cluster, "raft.tick_ms", json!(50)).await;
    let shown = cluster.ctl("config get raft.tick_ms").await;
    assert!(shown.out.contains(waiting[0]) && shown.out.contains(waiting[1]), "{shown:?}");
    // Taken back: leases are on again with the store away, which is still to hear of it.
    let back = cluster.ctl("config set raft.tick_ms 50ms --wait 2").await;
    back.refused(&["not all stores have it: waiting for s2"]);
    let shown = cluster.ctl("config get raft.tick_ms").await;
    assert!(!shown.out.contains("leases"), "{shown:?}");
    cluster.ctl("config set raft.tick_ms 100ms --wait 5").await.refused(&waiting);
    cluster.restart(2);
    all_have(&cluster, "raft.tick_ms", json!(100)).await;
    cluster.says(2, &["tick_ms=100", "leases=true"]).await;
    load.progress(100).await;
    // A store that is killed may leave the fate of a write open.
    load.no_refusals();
    println!("{}", load.end(cluster.endpoints()).await);
}
