//! Settings that differ: before the bootstrap all stores wait, after it the store with another
//! value is refused.

use std::fs;
use std::path::PathBuf;

use crate::processes::Processes;
use crate::{get, put};

/// A setting of one store, and the name that each side gives to the difference.
struct Difference {
    line: String,
    name: &'static str,
    right: String,
    wrong: String,
}

fn differences(cluster: &Processes) -> Vec<Difference> {
    let difference = |line: &str, name, right: &str, wrong: &str| Difference {
        line: line.to_owned(),
        name,
        right: right.to_owned(),
        wrong: wrong.to_owned(),
    };
    let [first, second, third] = [0, 1, 2].map(|place| &cluster.endpoints()[place]);
    let swapped = format!("s1={second},s0={first},s2={third}");
    vec![
        difference("regions = 3", "regions", "2", "3"),
        difference("replicas = 1", "replicas", "3", "1"),
        difference("raft.election_ticks = 24", "raft.election_ticks", "12", "24"),
        difference(
            &format!("initial_cluster = \"{swapped}\""),
            "initial_cluster",
            &cluster.list(),
            &swapped,
        ),
    ]
}

/// A file with keys, one a line.
fn keys_file(cluster: &Processes, name: &str, keys: &str) -> PathBuf {
    let path = cluster.aside(name);
    fs::write(&path, keys).unwrap();
    path
}

/// The settings of a store with one line instead of the one of the same key.
fn with_line(cluster: &Processes, place: usize, line: &str) -> String {
    let key = line.split('=').next().unwrap();
    let settings = cluster.settings(place);
    let kept = settings.lines().filter(|line| !line.starts_with(key));
    kept.chain([line]).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_were_told_different_things_wait_and_name_both_values() {
    let mut cluster = Processes::plan(3, 2);
    for Difference { line, name, right, wrong } in differences(&cluster) {
        cluster.configure(2, &with_line(&cluster, 2, &line));
        cluster.start_all();
        let (has_wrong, has_right) = (
            format!("has {name} = {wrong}, and this store has {right}"),
            format!("has {name} = {right}, and this store has {wrong}"),
        );
        for place in [0, 1] {
            cluster.says(place, &["no cluster yet", "s2=", &has_wrong]).await;
        }
        cluster.says(2, &["no cluster yet", "s0=", &has_right]).await;
        for place in 0..3 {
            assert!(cluster.runs(place), "{line}");
            assert!(!cluster.said(place).contains("the node serves"), "{line}");
            cluster.kill(place);
        }
    }
    cluster.configure(2, &cluster.settings(2));
    cluster.start_all();
    cluster.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_refused_for_what_is_given_and_differs_and_for_nothing_else() {
    let mut cluster = Processes::plan(3, 2);
    for place in 0..3 {
        cluster.configure(place, &with_line(&cluster, place, "raft.election_ticks = 16"));
    }
    cluster.start_all();
    cluster.ready().await;
    put(&cluster, "key", "value").await;
    cluster.stop(2);
    let wrong = [
        ("replicas = 1", "replicas = 1 is given, but the cluster has 3"),
        ("raft.election_ticks = 12", "raft.election_ticks = 12 is given, but the cluster has 16"),
        ("raft.tick_ms = 51", "raft.tick_ms = 51 is given, but the cluster has 50"),
        ("raft.read_leases = false", "raft.read_leases = false is given, but the cluster has true"),
        ("cluster_id = 7", "cluster_id = 7, but the data directory"),
        ("name = \"s1\"", "name = \"s1\", but the data directory"),
    ];
    for (line, words) in wrong {
        cluster.configure(2, &with_line(&cluster, 2, line));
        cluster.refused(2, &[words]).await;
    }

    // Values that are not given are the copy's, the number of first regions is never compared
    // again, and a member needs no list.
    cluster.configure(2, &with_line(&cluster, 2, "regions = 5"));
    cluster.restart(2);
    cluster.ready().await;
    cluster.stop(2);
    cluster.configure(2, &format!("data_dir = {:?}\n", cluster.data_dir(2)));
    cluster.restart(2);
    cluster.kill(0);
    assert_eq!(get(&cluster, "key").await.unwrap(), "value");
    cluster.restart(0);
    cluster.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_regions_begin_at_the_keys_of_a_file_that_all_stores_were_given() {
    let mut cluster = Processes::plan(3, 4);
    let right = keys_file(&cluster, "right", "m\n\\x80\ne\n");
    let wrong = keys_file(&cluster, "wrong", "n\n\\x80\ne\n");
    let broken = keys_file(&cluster, "broken", "m\n\\q\n");
    let with = |cluster: &Processes, place, path: &PathBuf| {
        let settings = with_line(cluster, place, "regions = 1");
        let keys = format!("split_keys = {path:?}\nlog_redact = false");
        cluster.configure(place, &format!("{settings}\n{keys}\n"));
    };
    with(&cluster, 2, &broken);
    cluster.refused(2, &["broken: line 2: \"\\\\q\" is no key"]).await;

    for (place, path) in [&right, &right, &wrong].into_iter().enumerate() {
        with(&cluster, place, path);
    }
    cluster.start_all();
    let [ours, theirs] = ["m", "n"].map(|key| format!("3 keys, number 2 of them {key:?}"));
    let differs = format!("has split_keys = {theirs}, and this store has {ours}");
    for place in [0, 1] {
        cluster.says(place, &["no cluster yet", "s2=", &differs]).await;
    }
    cluster.kill(2);
    with(&cluster, 2, &right);
    cluster.restart(2);
    cluster.ready().await;
    let regions = cluster.ctl("regions --json").await.json();
    let regions = regions.as_array().unwrap().iter().filter(|region| region["space"] == "raw");
    let starts: Vec<_> = regions.map(|region| region["start"].as_str().unwrap()).collect();
    assert_eq!(starts, ["", "e", "m", "\\x80"]);

    // A member does not open the file again.
    for path in [&right, &wrong, &broken] {
        fs::remove_file(path).unwrap();
    }
    cluster.kill(0);
    cluster.restart(0);
    cluster.ready().await;
}
