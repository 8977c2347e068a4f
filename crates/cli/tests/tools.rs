//! `ctl` and `bench` as a user meets them at a shell, against a cluster in this process.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod cluster;

use std::process::Stdio;

use cluster::{Cluster, PATIENCE, flotilla};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_put_shown_and_deleted() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.says(&["ctl", "put", "ship", "Vasa"]).await, "done\n");
    assert_eq!(cluster.says(&["ctl", "get", "ship"]).await, "Vasa\n");
    cluster.says(&["ctl", "--hex", "put", "c0ff", "00"]).await;
    let refused = cluster.run(&["ctl", "put", &"x".repeat(9000), "too long"]).await;
    assert_eq!(refused.status.code(), Some(1));
    let errors = String::from_utf8(refused.stderr).unwrap();
    let addresses = cluster.playground.endpoints();
    let is_named = |address| errors.contains(&format!(" at {address}: max key size exceeded"));
    assert!(addresses.iter().any(is_named), "{errors}");
    let rows = cluster.tells(&["ctl", "scan", "--json"]).await;
    let keys: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["key_hex"]).collect();
    assert_eq!(keys, ["73686970", "c0ff"]);
    let rows = cluster.tells(&["ctl", "scan", "sh", "--prefix", "--json", "--keys-only"]).await;
    assert_eq!(rows, serde_json::json!([{ "key": "ship", "key_hex": "73686970" }]));
    let table = cluster.says(&["ctl", "scan", "--reverse", "--limit", "1"]).await;
    assert!(table.contains("\\xc0\\xff") && table.contains("see --limit"), "{table}");

    cluster.says(&["ctl", "delete", "ship"]).await;
    let absent = cluster.run(&["ctl", "get", "ship"]).await;
    assert_eq!(absent.status.code(), Some(3));
    assert_eq!(absent.stdout, b"");
    let wrong = cluster.run(&["ctl", "--hex", "get", "ship"]).await;
    assert_eq!(wrong.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn views_show_the_cluster_and_who_is_missing() {
    let mut cluster = Cluster::start().await;
    let regions = cluster.tells(&["ctl", "regions", "--json"]).await;
    let regions = regions.as_array().unwrap();
    assert_eq!(regions.len(), 5);
    assert_eq!(regions[0]["space"], "system");
    assert!(regions.iter().all(|region| region["replicas"].as_array().unwrap().len() == 3));
    assert_eq!(regions[1]["start_hex"], "");
    assert_eq!(regions[1]["end_hex"], "4000");

    let leader = cluster.tells(&["ctl", "leader-of", "a", "--json"]).await;
    let region = regions.iter().find(|region| region["id"] == leader["region"]).unwrap();
    assert_eq!(region["leader_store"], leader["leader_store"]);
    let place = leader["leader_store"].as_u64().unwrap() as usize - 1;
    assert_eq!(leader["address"], cluster.playground.endpoints()[place]);

    cluster.playground.abandon(2).await;
    let stores = cluster.tells(&["ctl", "stores", "--json"]).await;
    let up: Vec<_> = stores.as_array().unwrap().iter().map(|store| &store["up"]).collect();
    assert_eq!(up, [true, true, false]);
    let output = cluster.run(&["ctl", "regions"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("no answer from s3"), "{said}");
    assert_eq!(cluster.says(&["ctl", "put", "still", "here"]).await, "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_is_counted_on_both_sides() {
    let cluster = Cluster::start().await;
    for transport in ["--batch", "--unary"] {
        let load = ["bench", "put", "--requests", "500", "--clients", "16", "--json", transport];
        let report = cluster.tells(&load).await;
        assert_eq!(report["succeeded"], 500);
        assert_eq!(report["failed"], 0);
        // Placement may note the starts of stores meanwhile, a write for each.
        let written = report["all_stores"]["writes_acknowledged"].as_u64().unwrap();
        assert!((500..=510).contains(&written), "{written} writes for 500 puts");
        let syncs = report["all_stores"]["log_syncs_per_put_and_store"].as_f64().unwrap();
        assert!(syncs > 0.0 && syncs < 1.0, "{syncs} syncs for each put");
        assert!(report["latency_us"]["percentiles"]["p99"].as_f64().unwrap() > 0.0);
    }
    let mixed = ["bench", "mixed", "--keys", "100", "--requests", "300", "--reads", "90"];
    let text = cluster.says(&mixed).await;
    assert!(text.contains("mixed: 300 requests") && text.contains("99.9 %"), "{text}");
    let scan = ["bench", "scan", "--keys", "100", "--requests", "20", "--scan-rows", "7", "--json"];
    let report = cluster.tells(&scan).await;
    assert!((20..=140).contains(&report["rows"].as_u64().unwrap()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_is_interrupted_reports_what_was_measured() {
    let cluster = Cluster::start().await;
    for (json, signal, code) in [("--json", Signal::INT, 130), ("--batch", Signal::TERM, 143)] {
        let before = cluster.puts().await;
        let mut load = cluster.command(&["bench", "put", "--seconds", "3600", json]);
        let load = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while cluster.puts().await < before + 100 {}
        let pid = load.id().and_then(|id| Pid::from_raw(id as i32)).unwrap();
        kill_process(pid, signal).unwrap();
        let output = load.wait_with_output().await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let (said, errors) =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).into();
        if json == "--json" {
            let report: Value = serde_json::from_str(&said).unwrap();
            assert_eq!((&report["stopped_by"], &report["failed"]), (&"SIGINT".into(), &0.into()));
            assert!(report["succeeded"].as_u64().unwrap() >= 100, "{report}");
            assert!(report["all_stores"]["log_syncs"].as_u64().unwrap() > 0, "{report}");
        } else {
            assert!(said.contains("stopped by SIGTERM") && said.contains("99.9 %"), "{said}");
        }
        assert!(errors.contains("stopped by SIG"), "{errors}");
    }
}

/// Before the load begins there is nothing to report.
#[tokio::test(flavor = "multi_thread")]
async fn a_fill_that_is_interrupted_ends() {
    let cluster = Cluster::start().await;
    let fill = ["bench", "get", "--keys", "1000000000", "--value-size", "1000"];
    let mut load = cluster.command(&fill);
    let load = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while cluster.puts().await < 10 {}
    kill_process(load.id().and_then(|id| Pid::from_raw(id as i32)).unwrap(), Signal::INT).unwrap();
    let output = load.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{output:?}");
}

#[tokio::test]
async fn nobody_there_is_said_with_what_to_do() {
    let nobody = "127.0.0.1:1";
    for args in [["ctl", "stores"], ["ctl", "regions"], ["bench", "put"]] {
        let args = [&args[..], &["--timeout", "1"]].concat();
        let output = flotilla(&args, nobody).await;
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(nobody) && said.contains("--endpoints"), "{said}");
    }
    let output = flotilla(&["ctl", "stores", "--json"], "nowhere").await;
    assert_eq!(output.status.code(), Some(2));
    let said: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(said["error"].as_str().unwrap().contains("\"nowhere\""), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_is_led_by_the_store_that_was_named() {
    let cluster = Cluster::start().await;
    let regions = cluster.tells(&["ctl", "regions", "--json"]).await;
    let id = regions[1]["id"].to_string();
    for (name, store) in [("s1", 1), ("3", 3), ("s2", 2)] {
        let transfer = ["ctl", "region", "transfer", &id, "--to", name, "--json"];
        let began = std::time::Instant::now();
        let output = loop {
            let output = cluster.run(&transfer).await;
            // On a busy machine a store may not have been heard for a moment, and then says so.
            if output.status.success() || began.elapsed() > PATIENCE {
                break output;
            }
            let why = String::from_utf8(output.stderr).unwrap();
            assert!(why.contains(&format!("region {id}: ")), "{why}");
        };
        assert!(output.status.success(), "{output:?}");
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(done["leader"]["store"], store);
        assert_eq!(done["region"].to_string(), id);
    }
    let absent = cluster.run(&["ctl", "region", "transfer", "999"]).await;
    assert_eq!(absent.status.code(), Some(3));
    let wrong = cluster.run(&["ctl", "region", "transfer", &id, "--to", "s9"]).await;
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("there are s1, s2, s3"));
}

/// Each command that is given a region's number has the same answer to one that there is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_not_there_has_an_exit_code_of_its_own() {
    let cluster = Cluster::start().await;
    for args in [
        &["show", "99"][..],
        &["split", "99"],
        &["split", "99", "--key", "m"],
        &["transfer", "99"],
        &["add", "99", "--store", "s1"],
        &["remove", "99", "--store", "s1"],
        &["move", "99", "--from", "s1", "--to", "s2"],
    ] {
        let absent = cluster.run(&[&["ctl", "region"], args].concat()).await;
        let errors = String::from_utf8(absent.stderr).unwrap();
        assert_eq!(absent.status.code(), Some(3), "{args:?}: {errors}");
        assert!(errors.contains("there is no region 99"), "{args:?}: {errors}");
    }
    // One that is there, and refuses.
    let regions = cluster.tells(&["ctl", "regions", "--json"]).await;
    let empty = cluster.run(&["ctl", "region", "split", &regions[1]["id"].to_string()]).await;
    assert_eq!(empty.status.code(), Some(1), "{empty:?}");
    assert!(String::from_utf8(empty.stderr).unwrap().contains("too few rows"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_begins_with_the_borders_of_a_file() {
    let cluster = Cluster::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a\\x01\nm\nz\\\\\n").unwrap();
    let path = file.path().to_str().unwrap();
    let load = ["bench", "put", "--requests", "50", "--json", "--split-keys", path];
    // Twice: what is a border already is left alone.
    for _ in 0..2 {
        let report = cluster.tells(&load).await;
        assert_eq!((&report["regions_before"], &report["failed"]), (&7.into(), &0.into()));
    }
    let regions = cluster.tells(&["ctl", "regions", "--json"]).await;
    let starts: Vec<_> =
        regions.as_array().unwrap().iter().map(|region| region["start"].clone()).collect();
    assert!(
        ["a\\x01", "m", "z\\\\"].iter().all(|key| starts.contains(&(*key).into())),
        "{starts:?}"
    );
    std::fs::write(file.path(), "a\n\\q\n").unwrap();
    let refused = cluster.run(&load).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("line 2"));
}

/// Without a number, keys are split where they lie, also if several regions hold them.
#[tokio::test(flavor = "multi_thread")]
async fn regions_are_split_where_keys_lie_and_their_sizes_are_shown() {
    let cluster = Cluster::start().await;
    let split = ["ctl", "region", "split", "--key", "c", "--key", "\u{c3}\u{a9}", "--json"];
    // Twice: what is a border already is left alone.
    for _ in 0..2 {
        let parts = cluster.tells(&split).await;
        let parts = parts.as_array().unwrap();
        assert_eq!(parts.len(), 4, "both sides of two borders: {parts:?}");
        assert_eq!((&parts[0]["end"], &parts[1]["start"]), (&"c".into(), &"c".into()));
        assert!(parts.iter().all(|part| part["version"].as_u64() > Some(1)), "{parts:?}");
    }
    let regions = cluster.tells(&["ctl", "regions", "--json"]).await;
    for region in regions.as_array().unwrap() {
        assert!(region["bytes"].is_u64() && region["keys"].is_u64(), "{region}");
        assert!(region["work"].is_null(), "{region}");
    }
    assert!(cluster.says(&["ctl", "regions"]).await.contains("size"));
    for (args, words) in [
        (&["ctl", "region", "split"][..], "required"),
        (&["ctl", "region", "split", "--key", ""][..], "key 1 is empty"),
    ] {
        let refused = cluster.run(args).await;
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        let errors = String::from_utf8(refused.stderr).unwrap();
        assert!(errors.contains(words), "{args:?}: {errors}");
    }
}
