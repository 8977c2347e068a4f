//! `ctl` where the cluster does not serve: no store, no cluster yet, no quorum, each in its words.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use flotilla_cli::ReservedPort;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_node::{Node, NodeConfig};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

async fn ctl(args: &[&str], endpoints: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    command.arg("ctl").args(args).args(["--endpoints", &endpoints.join(",")]);
    command.stdin(Stdio::null()).output().await.unwrap()
}

/// Standard error of a command that fails.
async fn refusal(args: &[&str], endpoints: &[String]) -> String {
    let output = ctl(args, endpoints).await;
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// JSON output of a command that succeeds.
async fn answer(args: &[&str], endpoints: &[String]) -> Value {
    let output = ctl(args, endpoints).await;
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn column<'a>(stores: &'a Value, key: &str) -> Vec<&'a Value> {
    stores.as_array().unwrap().iter().map(|store| &store[key]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_store_answers_each_address_is_named_with_its_reason() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let ports: Vec<ReservedPort> = (0..2).map(|_| ReservedPort::reserve(any).unwrap()).collect();
    let endpoints: Vec<String> = ports.iter().map(|port| port.addr().to_string()).collect();
    for command in [&["get", "a", "--timeout", "1"][..], &["stores"], &["regions"]] {
        let said = refusal(command, &endpoints).await;
        assert!(endpoints.iter().all(|endpoint| said.contains(endpoint)), "{said}");
        assert!(said.contains("no store answers") && said.contains("refused"), "{said}");
        assert!(said.contains("Does the cluster run?"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_a_cluster_says_what_it_waits_for() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (own, other) = (ReservedPort::reserve(any).unwrap(), ReservedPort::reserve(any).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let config = NodeConfig {
        name: "s1".to_owned(),
        data_dir: dir.path().join("s1"),
        initial_cluster: format!("s1={},s2={}", own.addr(), other.addr()),
        ..NodeConfig::default()
    };
    let waiting = tokio::spawn(Node::start(config));
    let endpoints = [own.addr().to_string()];
    let waits_for = format!("no cluster yet: waiting for s2={} does not answer", other.addr());
    for command in [&["get", "a", "--timeout", "2"][..], &["stores"], &["regions"]] {
        // The store opens its directory first.
        let listens = async {
            loop {
                let said = refusal(command, &endpoints).await;
                if !said.contains("refused") {
                    return said;
                }
            }
        };
        let said = timeout(PATIENCE, listens).await.unwrap();
        assert!(said.contains(&waits_for) && said.contains(&endpoints[0]), "{said}");
        assert!(!said.contains("no store answers"), "{said}");
    }
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_the_stores_that_are_missing_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 4;
    let mut playground = Playground::start(&settings).await.unwrap();
    playground.ready(PATIENCE).await.unwrap();
    let endpoints = playground.endpoints();
    let stores = answer(&["stores", "--json"], &endpoints).await;
    assert_eq!(column(&stores, "state"), ["up", "up", "up"]);
    assert_eq!(column(&stores, "starts"), [1, 1, 1]);
    assert_eq!(column(&stores, "feature_level"), [flotilla_identity::FEATURE_LEVEL; 3]);
    let mut uuids = column(&stores, "uuid");
    assert!(uuids.iter().all(|uuid| uuid.as_str().unwrap().len() == 32), "{uuids:?}");
    uuids.dedup();
    assert_eq!(uuids.len(), 3);

    playground.abandon(0).await;
    playground.abandon(2).await;
    for command in [&["put", "a", "b"][..], &["get", "a"], &["leader-of", "a"]] {
        let said = refusal(&[command, &["--timeout", "4"]].concat(), &endpoints).await;
        assert!(said.contains("1 of 3 stores answers: s1 at"), "{said}");
        assert!(said.contains("s3 at") && said.contains("the cluster needs 2"), "{said}");
        assert!(!said.contains("no store answers"), "{said}");
    }

    // Views need no quorum. The replicas there notice soon that no replica leads.
    let notices = async {
        loop {
            let stores = answer(&["stores", "--json"], &endpoints).await;
            assert_eq!(column(&stores, "up"), [false, true, false]);
            if stores[1]["state"] == "no leader" {
                return stores[1].clone();
            }
            assert_eq!(stores[1]["state"], "up", "{stores}");
        }
    };
    let store = timeout(PATIENCE, notices).await.unwrap();
    assert_eq!(store["replicas_without_leader"], 5);
    assert_eq!((&store["stores_connected"], &store["stores_known"]), (&1.into(), &3.into()));
    let table = String::from_utf8(ctl(&["stores"], &endpoints).await.stdout).unwrap();
    assert!(
        table.contains("no leader (of 5 replicas)") && table.contains("no answer ("),
        "{table}"
    );
    let regions = answer(&["regions", "--json"], &endpoints).await;
    assert_eq!(column(&regions, "leader_store"), [&Value::Null; 5]);
}
