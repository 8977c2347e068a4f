//! The status page: its documents against what the cluster is, and the page itself in a browser
//! where one is installed.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod browser;
mod http;

use std::collections::BTreeSet;
use std::time::Duration;

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config};
use flotilla_node::config::escape_key;
use flotilla_region::{RegionId, Space};
use serde_json::Value;

use http::{PATIENCE, ask, document, eventually, metric};

const STORES: usize = 3;
const REGIONS: u64 = 16;
const VALUE_BYTES: u64 = 16 << 10;
/// A key that looks like markup and has bytes of all kinds.
const STRANGE_KEY: &[u8] = b"k<b>\\\x00\xff&\"'";

/// A cluster of three stores with a log of small segments, and a client.
struct Cluster {
    playground: Playground,
    client: Client,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = PlaygroundConfig::new(dir.path());
        settings.common.regions = REGIONS;
        settings.common.storage.segment_bytes = 1 << 20;
        let playground = Playground::start(&settings).await.unwrap();
        playground.ready(PATIENCE).await.unwrap();
        let client = Client::connect(&playground.endpoints(), Config::default()).await.unwrap();
        Self { playground, client, _dir: dir }
    }

    fn endpoints(&self) -> Vec<String> {
        self.playground.endpoints()
    }

    /// The store that leads a region, by what the shards of the stores themselves say.
    fn leader(&self, region: u64) -> Option<u64> {
        let leads = |place: &usize| {
            let node = self.playground.node(*place);
            node.is_some_and(|node| node.router().leads(RegionId(region)))
        };
        (0..STORES).find(leads).map(|place| place as u64 + 1)
    }

    /// Splits the region that holds a key at that key, where it is led.
    async fn split_at(&self, key: &'static [u8]) {
        eventually("the region is split", async || {
            for place in 0..STORES {
                let router = self.playground.node(place).unwrap().router();
                let Some(region) = router.locate(Space::Raw, key) else {
                    continue;
                };
                let keys = [bytes::Bytes::from_static(key)];
                let is_there = region.start == key;
                if is_there || router.split(region.id, &keys, "a test").await.is_ok() {
                    return Some(());
                }
            }
            None
        })
        .await;
    }
}

fn ids(regions: &Value) -> Vec<u64> {
    regions.as_array().unwrap().iter().map(|region| region["id"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_store_tells_of_all_stores_and_of_all_regions_in_order() {
    let cluster = Cluster::start().await;
    cluster.split_at(STRANGE_KEY).await;
    let endpoints = cluster.endpoints();
    for (addr, own) in endpoints.iter().zip(1..) {
        let stores = eventually("each store answers for all", async || {
            let stores = document(addr, "/status/stores").await;
            let rows = stores["stores"].as_array()?;
            let answer =
                rows.iter().filter(|row| row["connected"] == true && row["status"].is_object());
            let sum = |name: &str| {
                rows.iter().map(|row| row["status"][name].as_u64()).sum::<Option<u64>>()
            };
            // With the system region. A leader may be on its way.
            let is_whole = sum("leaders")? == REGIONS + 2 && sum("replicas")? == 3 * (REGIONS + 2);
            (answer.count() == STORES && is_whole).then_some(stores)
        })
        .await;
        assert_eq!(stores["here"], own);
        for (row, id) in stores["stores"].as_array().unwrap().iter().zip(1..) {
            assert_eq!((&row["id"], &row["status"]["id"]), (&Value::from(id), &Value::from(id)));
            assert_eq!((&row["state"], &row["reason"]), (&Value::from("up"), &Value::Null));
            assert_eq!(row["name"], format!("s{id}"));
            assert_eq!(row["address"], endpoints[id as usize - 1]);
            let disk = &row["status"]["disk"];
            assert!(disk["free_bytes"].as_u64() <= disk["bytes"].as_u64(), "{disk}");
            assert!(row["since_ms"].is_u64() && disk["free_bytes"].as_u64() > Some(0), "{row}");
        }
        let regions = eventually("the leaders are those that lead", async || {
            let regions = document(addr, "/status/regions").await;
            let is_true = |region: &Value| {
                let id = region["id"].as_u64().unwrap();
                region["leader"].as_u64() == cluster.leader(id)
                    && region["leader_status"] == "fresh"
            };
            let rows = regions["regions"].as_array()?;
            let is_all = rows.len() as u64 == REGIONS + 1 && rows.iter().all(is_true);
            is_all.then_some(regions)
        })
        .await;
        assert_eq!((&regions["view"], &regions["more"]), (&"placement".into(), &false.into()));
        assert_eq!(regions["total"], REGIONS + 1);
        assert_eq!(regions["without_leader"], 0);
        let rows = regions["regions"].as_array().unwrap();
        assert_eq!((&rows[0]["start"], &rows[rows.len() - 1]["end"]), (&"".into(), &"".into()));
        for pair in rows.windows(2) {
            assert_eq!(pair[0]["end"], pair[1]["start"]);
        }
        let strange = rows.iter().filter(|row| row["start"] == escape_key(STRANGE_KEY));
        assert_eq!(strange.count(), 1);
        assert!(rows.iter().all(|row| row["replicas"].as_array().unwrap().len() == 3));
        // A page at a time it is the same.
        let (mut paged, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/status/regions?after={after}&limit=5");
            let part = document(addr, &path).await;
            paged.extend(ids(&part["regions"]));
            after = *paged.last().unwrap();
            if part["more"] == false {
                break;
            }
        }
        assert_eq!(paged, ids(&regions["regions"]));
    }
    let leader = document(&endpoints[0], "/status/stores").await["placement_leader"].as_u64();
    let leader = &endpoints[leader.unwrap() as usize - 1];
    for wrong in ["after=999999", "after=x", "limit=-1"] {
        let path = format!("/status/regions?{wrong}");
        assert_eq!(ask(leader, &path).await.status, 400, "{wrong}");
    }
    cluster.playground.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_log_and_page_file_are_told_as_the_metrics_have_them() {
    const PUTS: u32 = 400;
    let mut cluster = Cluster::start().await;
    // The others keep their logs for a store that is away, so no segment is purged.
    cluster.playground.abandon(2).await;
    let endpoints = &cluster.endpoints()[..2];
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..PUTS {
        // Bytes that no compression makes fewer of: several segments, and long values.
        let value: Vec<u8> = (0..VALUE_BYTES).map(|_| random.u8(..)).collect();
        cluster.client.put(format!("k{n}"), value).await.unwrap();
        assert!(cluster.client.get(format!("k{n}")).await.unwrap().is_some());
    }
    let mut writes = 0.0;
    for addr in endpoints {
        let counted = metric(addr, "flotilla_requests_writes_acknowledged_total").await;
        let history = eventually("the history has all writes", async || {
            let history = document(addr, "/status/history").await;
            let rates = history["rates"]["writes"].as_array()?;
            let sum: f64 = rates.iter().map(|rate| rate.as_f64().unwrap()).sum();
            // Samples are a second apart, and further on a machine that has much to do.
            (sum >= counted * 0.5).then_some((history, sum))
        })
        .await;
        writes += history.1;
        let history = history.0;
        let count = history["rates"]["writes"].as_array().unwrap().len();
        let first = history["first"].as_u64().unwrap();
        assert_eq!(history["next"], first + count as u64);
        let latencies = history["latencies"].as_object().unwrap();
        let stage = "request_stage.write.commit";
        for name in ["request.write", "request.read", stage, "row_read", "log_write"] {
            let of = |quantile: &str| latencies[name][quantile].as_array().unwrap().clone();
            let (p50, p99) = (of("p50_us"), of("p99_us"));
            assert_eq!((p50.len(), p99.len()), (count, count), "{name}");
            let pairs = p50.iter().zip(&p99);
            let is_ordered = |(p50, p99): (&Value, &Value)| p50.as_u64() <= p99.as_u64();
            assert!(pairs.clone().all(is_ordered), "{name}");
        }
        assert!(latencies["log_write"]["p50_us"].as_array().unwrap().iter().any(Value::is_u64));
        let path = format!("/status/history?from={}", first + count as u64);
        let rest = document(addr, &path).await;
        assert_eq!(rest["first"], first + count as u64, "only what is new");
        check_log(addr).await;
        check_pages(addr, PUTS.into()).await;
    }
    assert!(writes >= f64::from(PUTS) * 0.5, "{writes} of {PUTS}");
    cluster.playground.shutdown().await.unwrap();
}

/// The segments of a store's log, and the regions that hold the oldest one.
async fn check_log(addr: &str) {
    let log = eventually("the log is as its metrics", async || {
        let log = document(addr, "/status/log").await;
        let is_same = async |name: &str, metric_name: &str| {
            log[name].as_f64() == Some(metric(addr, metric_name).await)
        };
        (is_same("segments_total", "flotilla_log_segments").await
            && is_same("bytes", "flotilla_log_segment_bytes").await)
            .then_some(log)
    })
    .await;
    let segments = log["segments"].as_array().unwrap();
    assert!(segments.len() >= 4, "{log}");
    assert_eq!(segments.len() as u64, log["segments_total"]);
    let number = |at: usize| segments[at]["number"].as_u64().unwrap();
    assert!((1..segments.len()).all(|at| number(at - 1) < number(at)), "{log}");
    assert_eq!(segments.iter().filter(|segment| segment["state"] == "active").count(), 1);
    let live = |segment: &Value| segment["live_bytes"].as_u64().unwrap();
    assert!(segments.iter().all(|it| live(it) <= it["bytes"].as_u64().unwrap()), "{log}");
    assert_eq!(segments.iter().map(live).sum::<u64>(), log["live_bytes"]);
    let holders = log["holders"].as_array().unwrap();
    assert!(holders.iter().any(|holder| holder["has_entries"] == true), "{log}");
    assert!(holders.len() as u64 <= log["holders_total"].as_u64().unwrap());
    let known: BTreeSet<_> = (1..=REGIONS + 1).collect();
    for holder in holders {
        let is_store = holder["peer"].is_null();
        let region = holder["region"].as_u64();
        assert!(is_store || region.is_some_and(|it| known.contains(&it)), "{holder}");
        assert!(holder["bytes"].as_u64() > Some(0), "{holder}");
    }
    let held: u64 = holders.iter().map(|holder| holder["bytes"].as_u64().unwrap()).sum();
    let is_all = holders.len() as u64 == log["holders_total"];
    assert!(!is_all || held == live(&segments[0]), "{held}: {log}");
}

/// The map of a store's page file, and its trees.
async fn check_pages(addr: &str, keys: u64) {
    let pages = eventually("the map is as the figures", async || {
        let pages = document(addr, "/status/pages").await;
        let sum = |part: &str| -> u64 {
            let cells = pages["cells"][part].as_array().unwrap();
            cells.iter().map(|cell| cell.as_u64().unwrap()).sum()
        };
        let (used, free) = (sum("used_bytes"), sum("free_bytes"));
        let is_whole = used + free + sum("pending_bytes") == pages["span_bytes"];
        let raw = pages["trees"].as_array()?.iter().find(|tree| tree["name"] == "raw")?.clone();
        // A follower applies a moment later.
        let is_applied = raw["keys"].as_u64()? >= keys;
        let is_right = is_whole && is_applied && free == pages["free_bytes"];
        is_right.then_some((pages, raw, used))
    })
    .await;
    let (pages, raw, used) = pages;
    let trees = pages["trees"].as_array().unwrap();
    let in_trees: u64 = trees.iter().map(|tree| tree["bytes"].as_u64().unwrap()).sum();
    assert!(raw["bytes"].as_u64() > Some(keys * VALUE_BYTES), "{raw}");
    assert!(in_trees <= used, "{used} bytes are used: {trees:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_is_work_in_flight_as_long_as_it_goes_on() {
    const KEYS: u64 = 128;
    let cluster = Cluster::start().await;
    let (place, region) = eventually("a store leads the region of the keys", async || {
        let router = cluster.playground.node(0)?.router();
        let region = router.locate(Space::Raw, b"k")?.id;
        Some((cluster.leader(region.0)? as usize - 1, region))
    })
    .await;
    let router = cluster.playground.node(place).unwrap().router().clone();
    // Several splits, each of which waits for its turn.
    let keys: Vec<_> = (0..KEYS).map(|n| bytes::Bytes::from(format!("k{n:03}"))).collect();
    let split = tokio::spawn(async move { router.split(region, &keys, "a test").await });
    let addr = &cluster.endpoints()[place];
    let listed = eventually("the split is listed", async || {
        let store = document(addr, "/status/store").await;
        let mut work = store["work"].as_array()?.iter();
        work.find(|it| it["kind"] == "split" && it["region"] == region.0).cloned()
    })
    .await;
    assert_eq!(listed["parts"], 17);
    assert!(listed["ms"].is_u64(), "{listed}");
    split.await.unwrap().unwrap();
    assert_eq!(document(addr, "/status/store").await["work_total"], 0);
    eventually("all parts are regions", async || {
        let regions = document(addr, "/status/regions").await;
        (regions["total"] == REGIONS + KEYS && regions["without_leader"] == 0).then_some(())
    })
    .await;
    cluster.playground.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_is_a_row_with_a_reason_and_one_alone_shows_what_it_has() {
    let mut cluster = Cluster::start().await;
    let endpoints = cluster.endpoints();
    cluster.playground.abandon(0).await;
    for addr in &endpoints[1..] {
        eventually("the dead store is told", async || {
            let stores = document(addr, "/status/stores").await;
            let dead = &stores["stores"][0];
            let is_told = dead["connected"] == false && dead["status"].is_null();
            (is_told && !dead["reason"].as_str()?.is_empty() && dead["since_ms"].is_u64())
                .then_some(())
        })
        .await;
        eventually("others lead its regions", async || {
            let regions = document(addr, "/status/regions").await;
            (regions["view"] == "placement" && regions["without_leader"] == 0).then_some(())
        })
        .await;
    }
    cluster.playground.abandon(1).await;
    let addr = &endpoints[2];
    eventually("its own regions are all that it can tell", async || {
        let regions = document(addr, "/status/regions").await;
        let is_local = regions["view"] == "store" && regions["store"] == 3;
        (is_local && regions["total"] == REGIONS && regions["reason"].is_string()).then_some(())
    })
    .await;
    let path = "/status/regions?relayed=1";
    eventually("a request of another store is not sent on", async || {
        (ask(addr, path).await.status == 503).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_may_load_nothing_from_elsewhere_and_a_browser_shows_the_cluster() {
    let cluster = Cluster::start().await;
    cluster.split_at(STRANGE_KEY).await;
    let addr = &cluster.endpoints()[1];
    for path in ["/", "/status/page/page.js", "/status/page/page.css", "/status/stores"] {
        let answer = ask(addr, path).await;
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"));
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    assert_eq!(ask(addr, "/").await.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(ask(addr, "/status/page/../page.rs").await.status, 404);
    assert_eq!(ask(addr, "/status/page/secret.js").await.status, 404);
    let Some(browser) = browser::Browser::find() else { return };
    for n in 0..200 {
        cluster.client.put(format!("k{n}"), "v").await.unwrap();
    }
    eventually("the leaders are known", async || {
        let regions = document(addr, "/status/regions").await;
        (regions["without_leader"] == 0 && regions["total"] == REGIONS + 1).then_some(())
    })
    .await;
    let shown = browser.page(addr).await;
    assert_eq!(shown.text("sum-stores"), "3 of 3");
    assert_eq!(shown.text("sum-regions"), (REGIONS + 1).to_string());
    assert_eq!(shown.text("sum-regions-note"), "all have leaders");
    assert!(shown.text("where").starts_with("s2 (store 2) · cluster "), "{}", shown.text("where"));
    assert!(shown.is_hidden("alarm") && shown.is_hidden("regions-view"));
    assert_eq!(shown.count("<tr data-region="), REGIONS as usize + 1);
    assert!(shown.text("stores-note").ends_with(" leads placement"));
    // A key that looks like markup is a text.
    let key =
        escape_key(STRANGE_KEY).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    assert!(shown.count(&format!(">{key}</td>")) >= 2, "{key} is not in the page");
    assert_eq!(shown.count("<b>\\\\"), 0);
    for id in ["log-line", "pages-line"] {
        assert!(shown.part(id).contains("iB</b>"), "{id}: {}", shown.part(id));
    }
    for (name, scheme) in [("light", browser::Scheme::Light), ("dark", browser::Scheme::Dark)] {
        browser.screenshot(addr, &format!("status-page-{name}.png"), scheme).await;
    }
    cluster.playground.shutdown().await.unwrap();
}
