//! Plain HTTP on the port of gRPC: what TiKV's status server and PD's API tell, and what operators
//! and their tools read, on every store.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::time::Duration;

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(60);
/// Stores that a question is sent on to at most.
const REDIRECTS_MAX: usize = 3;

/// One request on a connection of its own: the status, the place to go on at, and the body.
async fn ask_once(addr: &str, path: &str) -> (u16, Option<String>, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("an answer, and the end of the connection").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let location = head.lines().find_map(|line| line.strip_prefix("location: http://"));
    (status, location.map(str::to_owned), body.to_owned())
}

/// The document at `path`, wherever the store at `addr` sends the caller.
async fn document(addr: &str, path: &str) -> Value {
    let mut at = (addr.to_owned(), path.to_owned());
    for _ in 0..=REDIRECTS_MAX {
        let (status, location, body) = ask_once(&at.0, &at.1).await;
        let Some(location) = location else {
            assert_eq!(status, 200, "{at:?}: {body}");
            return serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        };
        assert_eq!(status, 307);
        let (host, rest) = location.split_once('/').unwrap();
        at = (host.to_owned(), format!("/{rest}"));
    }
    panic!("{addr} sends the caller round in a circle")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_store_answers_what_tikv_and_pd_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 4;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let client = Client::connect(&endpoints, Config::default()).await.unwrap();
    let stores = client.stores().await.unwrap();
    assert_eq!(stores.len(), 3);
    for store in &stores {
        // Where clients look for the settings of a store.
        let config = document(&store.status_address, "/config").await;
        assert_eq!(
            (&config["storage"]["api-version"], &config["storage"]["enable-ttl"]),
            (&Value::from(1), &Value::from(true))
        );
        assert_eq!(ask_once(&store.status_address, "/status").await.0, 200);
    }
    for addr in &endpoints {
        let regions = document(addr, "/pd/api/v1/regions").await;
        assert_eq!(
            (&regions["count"], regions["regions"].as_array().unwrap().len()),
            (&Value::from(4), 4)
        );
        let first = &regions["regions"][0];
        assert_eq!(
            (&first["start_key"], first["peers"].as_array().unwrap().len()),
            (&Value::from(""), 3)
        );
        let one = document(addr, &format!("/pd/api/v1/region/id/{}", first["id"])).await;
        assert_eq!((&one["id"], &one["end_key"]), (&first["id"], &first["end_key"]));
        let listed = document(addr, "/pd/api/v1/stores").await;
        assert_eq!(listed["count"], 3);
        let leaders = listed["stores"].as_array().unwrap().iter().map(|store| {
            assert_eq!(store["store"]["state_name"], "Up");
            store["status"]["leader_count"].as_u64().unwrap()
        });
        assert_eq!(leaders.sum::<u64>(), 4);
        let store = document(addr, "/pd/api/v1/store/2").await;
        assert_eq!(store["store"]["id"], 2);
        let members = document(addr, "/pd/api/v1/members").await;
        assert_eq!(members["members"].as_array().unwrap().len(), 3);
        assert!(members["leader"]["client_urls"][0].as_str().unwrap().starts_with("http://"));
        let health = document(addr, "/pd/api/v1/health").await;
        assert!(health.as_array().unwrap().iter().all(|member| member["health"] == true));
        let config = document(addr, "/pd/api/v1/config").await;
        assert_eq!(config["replication"]["max-replicas"], 3);
        assert_eq!(document(addr, "/pd/api/v1/version").await["version"], "6.1.0");
    }
    let leader = document(&endpoints[0], "/pd/api/v1/leader").await;
    let leader = leader["client_urls"][0].as_str().unwrap().strip_prefix("http://").unwrap();
    assert_eq!(ask_once(leader, "/pd/api/v1/store/99").await.0, 404);
    assert_eq!(ask_once(leader, "/pd/api/v1/region/id/x").await.0, 400);
    assert_eq!(ask_once(leader, "/nothing/here").await.0, 404);
    // What is too long is refused, and the connection ends.
    let long = format!("/{}", "x".repeat(1 << 20));
    let mut stream = TcpStream::connect(leader).await.unwrap();
    let _ = stream.write_all(format!("GET {long} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
    let ended = async { while matches!(stream.read(&mut [0; 4096]).await, Ok(1..)) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the connection is closed");
    client.put("k", "v").await.unwrap();
    cluster.shutdown().await.unwrap();
}

/// The value of a metric that has one sample of this name and these labels.
fn metric(scrape: &str, sample: &str) -> f64 {
    let mut values = scrape.lines().filter_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    let value = values.next().unwrap_or_else(|| panic!("{sample} is not in {scrape}"));
    assert_eq!(values.next(), None, "{sample} is there twice");
    value.parse().unwrap()
}

/// The sum of a metric over all stores.
async fn sum(endpoints: &[String], sample: &str) -> f64 {
    let mut sum = 0.0;
    for addr in endpoints {
        let (status, _, scrape) = ask_once(addr, "/metrics").await;
        assert_eq!(status, 200, "{scrape}");
        sum += metric(&scrape, sample);
    }
    sum
}

/// Each stage is counted once for each request, and all stages together are the request.
fn stages_add_up(scrape: &str) {
    for (kind, stages) in [
        ("write", &["admission", "mailbox", "commit", "apply_queue", "apply", "wake"][..]),
        ("read", &["admission", "mailbox", "grant", "wake"]),
    ] {
        let of = |name: &str, labels: &str| {
            metric(scrape, &format!("flotilla_request_{name}{{kind=\"{kind}\"{labels}}}"))
        };
        let (whole, count) = (of("duration_seconds_sum", ""), of("duration_seconds_count", ""));
        let mut sum = 0.0;
        for stage in stages {
            let label = format!(",stage=\"{stage}\"");
            assert_eq!(of("stage_duration_seconds_count", &label), count, "{stage}");
            sum += of("stage_duration_seconds_sum", &label);
        }
        // The clock of a request is read at each milestone, and once more for the whole.
        assert!((whole - sum).abs() < 0.001 * whole + 0.001, "{kind}: {whole} s, stages {sum} s");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_find_metrics_readiness_and_regions_on_every_store() {
    const PUTS: u32 = 50;
    let dir = tempfile::tempdir().unwrap();
    let mut settings = PlaygroundConfig::new(dir.path());
    settings.common.regions = 4;
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let client = Client::connect(&endpoints, Config::default()).await.unwrap();
    let writes = "flotilla_request_duration_seconds_count{kind=\"write\"}";
    let before = sum(&endpoints, writes).await;
    for n in 0..PUTS {
        let key = format!("k{n}");
        client.put(key.clone(), "v").await.unwrap();
        assert!(client.get(key).await.unwrap().is_some());
    }
    assert!(sum(&endpoints, writes).await >= before + f64::from(PUTS));
    for addr in &endpoints {
        let (_, _, scrape) = ask_once(addr, "/metrics").await;
        stages_add_up(&scrape);
    }
    for rpc in ["RawPut", "RawGet"] {
        let calls = format!("flotilla_rpc_duration_seconds_count{{rpc=\"{rpc}\"}}");
        let mut counted = 0.0;
        for addr in &endpoints {
            let (_, _, scrape) = ask_once(addr, "/metrics").await;
            // A store that leads no region of these keys has none.
            counted += if scrape.contains(&calls) { metric(&scrape, &calls) } else { 0.0 };
        }
        assert!(counted >= f64::from(PUTS), "{rpc}: {counted}");
    }
    assert_eq!(sum(&endpoints, "flotilla_node_leaders").await, 5.0, "with the system region");
    assert_eq!(sum(&endpoints, "flotilla_node_replicas").await, 15.0);
    for (addr, store) in endpoints.iter().zip(1..) {
        let (_, _, scrape) = ask_once(addr, "/metrics").await;
        let info = format!("store=\"{store}\",name=\"s{store}\"}} 1");
        assert!(scrape.contains(&info), "{info} is not in {scrape}");
        assert!(metric(&scrape, "flotilla_raft_entries_proposed_total") >= 0.0);
        let disk =
            ["bytes", "free_bytes"].map(|it| metric(&scrape, &format!("flotilla_disk_{it}")));
        assert!(disk[0] > disk[1] && disk[1] > 0.0, "{disk:?}");
        assert!(metric(&scrape, "process_cpu_seconds_total") > 0.0);
        assert!(metric(&scrape, "process_open_fds") < metric(&scrape, "process_max_fds"));
        assert!(metric(&scrape, "process_resident_memory_bytes") > 1e6);
        assert_eq!(document(addr, "/live").await["live"], true);
        assert_eq!(document(addr, "/ready").await["ready"], true);
        let region = document(addr, "/regions/2").await;
        assert_eq!((&region["id"], &region["space"]), (&Value::from(2), &Value::from("raw")));
        assert_eq!(region["peers"].as_array().unwrap().len(), 3);
        assert!(region["applied"].as_u64().unwrap() <= region["committed"].as_u64().unwrap());
        assert_eq!(ask_once(addr, "/regions/999").await.0, 404);
        assert_eq!(ask_once(addr, "/regions/x").await.0, 400);
        // The logger of this process is not one that a node knows.
        assert_eq!(ask_once(addr, "/log-level").await.0, 404);
    }
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_quorum_is_live_and_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&PlaygroundConfig::new(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    cluster.abandon(0).await;
    cluster.abandon(1).await;
    let addr = &endpoints[2];
    let unready = async {
        loop {
            let (status, _, body) = ask_once(addr, "/ready").await;
            if status == 503 {
                return body;
            }
        }
    };
    let body = tokio::time::timeout(PATIENCE, unready).await.unwrap();
    assert!(body.contains("no leader of placement is known"), "{body}");
    assert_eq!(ask_once(addr, "/live").await.0, 200);
    let (_, _, scrape) = ask_once(addr, "/metrics").await;
    assert!(metric(&scrape, "flotilla_node_replicas_without_leader") > 0.0);
    assert_eq!(metric(&scrape, "flotilla_node_stores_known"), 3.0);
}
