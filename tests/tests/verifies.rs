//! A replica whose rows are not those of the others, on real processes: a value is changed on the
//! disk of a store that is down, with right checksums. A comparison names the store, and all stores
//! tell of it until the value is right again.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use flotilla_client::{Config, Observer};
use flotilla_pagestore::PageStore;
use processes::{Answer, Processes, until};
use serde_json::Value;

/// The store that is changed.
const ODD: usize = 1;
const KEY: &str = "ship";

/// Changes the last byte of the value in the page file of a store that does not run.
fn change_a_byte(cluster: &Processes, change: impl Fn(u8) -> u8) {
    let pages = PageStore::open(cluster.data_dir(ODD).join("pages")).unwrap();
    let mut txn = pages.write().unwrap();
    let mut rows = txn.tree("raw").unwrap();
    let mut row = rows.get(KEY.as_bytes()).unwrap().expect("the row is there").to_vec();
    let last = row.last_mut().unwrap();
    *last = change(*last);
    rows.put(KEY.as_bytes(), &row).unwrap();
    txn.publish().unwrap();
    pages.checkpoint().unwrap();
}

/// Compares the replicas of all regions, once all stores take part.
async fn verify(cluster: &Processes) -> (Answer, Vec<Value>) {
    let mut last = None;
    until(async || {
        let answer = cluster.ctl("region verify --json").await;
        let verdicts: Vec<Value> = serde_json::from_str(&answer.out).unwrap_or_default();
        let is_complete = |verdict: &Value| verdict["is_complete"] == true;
        if verdicts.is_empty() || !verdicts.iter().all(is_complete) {
            return Err(format!("{answer:?}"));
        }
        last = Some((answer, verdicts));
        Ok(())
    })
    .await;
    last.unwrap()
}

async fn metric(endpoint: &str, name: &str) -> u64 {
    let observer = Observer::new(endpoint, Config::default()).unwrap();
    let metrics = observer.stats().await.unwrap().metrics;
    let found = metrics.into_iter().find(|it| it.group == "store" && it.name == name);
    found.unwrap_or_else(|| panic!("there is no {name}")).value
}

/// The regions that each store knows to be inconsistent.
async fn known(cluster: &Processes) -> Vec<Vec<Value>> {
    let stores = cluster.ctl("stores --json").await.json();
    let known = |store: &Value| store["inconsistent_regions"].as_array().unwrap().clone();
    stores.as_array().unwrap().iter().map(known).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_that_was_changed_behind_a_store_is_found_and_named() {
    let mut cluster = Processes::start(3, 1).await;
    let put = cluster.ctl(&format!("put {KEY} Vasa")).await;
    assert_eq!(put.code, Some(0), "{put:?}");
    let (equal, verdicts) = verify(&cluster).await;
    assert_eq!(equal.code, Some(0), "{equal:?}");
    assert!(verdicts.iter().all(|verdict| verdict["differs"] == false), "{verdicts:?}");

    cluster.stop(ODD);
    change_a_byte(&cluster, |byte| byte ^ 1);
    cluster.restart(ODD);
    cluster.ready().await;
    let (found, verdicts) = verify(&cluster).await;
    assert_eq!(found.code, Some(5), "{found:?}");
    let differing: Vec<_> = verdicts.iter().filter(|verdict| verdict["differs"] == true).collect();
    let [verdict] = differing[..] else { panic!("{verdicts:?}") };
    let region = verdict["region"].as_u64().unwrap();
    let words = format!("the replicas of region {region} differ: s{ODD} (");
    assert!(found.errors.contains(&words), "{found:?}");
    let replicas = verdict["replicas"].as_array().unwrap();
    let odd: Vec<_> = replicas.iter().filter(|replica| replica["differs"] == true).collect();
    assert_eq!((odd.len(), odd[0]["name"].as_str()), (1, Some("s1")), "{verdict}");
    until(async || {
        for (store, known) in known(&cluster).await.into_iter().enumerate() {
            if known.len() != 1 || known[0] != *verdict {
                return Err(format!("store {store} knows {known:?}"));
            }
        }
        Ok(())
    })
    .await;
    for place in 0..3 {
        assert_eq!(metric(&cluster.endpoints()[place], "inconsistent_regions").await, 1);
        cluster.says(place, &["the replicas of a region differ", "(differs)"]).await;
    }
    let table = cluster.ctl("stores").await;
    assert!(table.out.contains(&words), "{table:?}");
    // The others serve what was written, whichever leads.
    let to = cluster.ctl(&format!("region transfer {region} --to s0")).await;
    assert_eq!(to.code, Some(0), "{to:?}");
    assert_eq!(cluster.ctl(&format!("get {KEY}")).await.out, "Vasa\n");

    cluster.stop(ODD);
    change_a_byte(&cluster, |byte| byte ^ 1);
    cluster.restart(ODD);
    cluster.ready().await;
    // It is known over the start until all were compared again.
    until(async || match known(&cluster).await.get(ODD) {
        Some(known) if known.len() == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let (equal, _) = verify(&cluster).await;
    assert_eq!(equal.code, Some(0), "{equal:?}");
    until(async || match known(&cluster).await.iter().all(Vec::is_empty) {
        true => Ok(()),
        false => Err("the alarm stays".to_owned()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_down_is_named_as_one_that_took_no_part() {
    let mut cluster = Processes::start(3, 1).await;
    cluster.stop(2);
    let answer = cluster.ctl("region verify 2").await;
    answer.refused(&["not all replicas were compared: region 2: s2 took no part"]);
    assert!(answer.out.contains("2 of 3"), "{answer:?}");
    let absent = cluster.ctl("region verify 999").await;
    assert_eq!(absent.code, Some(3), "{absent:?}");
}
