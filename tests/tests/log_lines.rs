//! What stores log: no key and no value unless that is asked for, and no warning without a cause.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod processes;

use bytes::Bytes;
use flotilla_client::{Client, Config};
use flotilla_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use processes::{Processes, until};
use serde_json::Value;

/// In no text but those of this test.
const KEY: &str = "canary-key";
const VALUE: &str = "canary-value";

/// The key as text, as hexadecimal digits, and as numbers in a list.
fn forms(of: &str) -> [String; 4] {
    let join =
        |each: fn(u8) -> String, between| of.bytes().map(each).collect::<Vec<_>>().join(between);
    let hex = join(|byte| format!("{byte:02x}"), "");
    [of.to_owned(), hex.to_uppercase(), hex, join(|byte| byte.to_string(), ", ")]
}

fn has(log: &str, word: &str) -> bool {
    forms(word).iter().any(|form| log.contains(form.as_str()))
}

/// Three stores that log everything there is to their own code.
async fn start(lines: &str) -> Processes {
    let mut cluster = Processes::plan(3, 1);
    for place in 0..3 {
        let settings = cluster.settings(place);
        let own = format!("{lines}\n[limits]\nslow_request_ms = 1\n");
        cluster.configure(place, &format!("{settings}{own}"));
    }
    cluster.start_all();
    cluster.ready().await;
    cluster
}

async fn client(cluster: &Processes) -> Client {
    Client::connect(cluster.endpoints(), Config::default()).await.unwrap()
}

/// Has the stores meet the key in all ways that they have words for.
async fn meet_the_key(cluster: &Processes) {
    let client = client(cluster).await;
    let key = |number: u32| format!("{KEY}{number:04}");
    for number in 0..200 {
        client.put(key(number), VALUE.repeat(100)).await.unwrap();
        client.get(key(number)).await.unwrap().unwrap();
    }
    let long = client.put(KEY.repeat(1_000), VALUE).await.unwrap_err();
    assert!(long.to_string().contains("max key size exceeded"), "{long}");
    // Regions that begin and end with it, by hand and by its rows.
    let whole = client.region_of(KEY).await.unwrap();
    client.split_region(whole.region.id, [Bytes::from(key(50))]).await.unwrap();
    let right = client.region_of(key(60)).await.unwrap();
    client.split_region(right.region.id, []).await.unwrap();
    // A border that is in another region, and one that is there already.
    let foreign = client.split_region(right.region.id, [Bytes::from(KEY)]).await.unwrap_err();
    assert!(foreign.to_string().contains(KEY), "the one who asked is told: {foreign}");

    // A key that is not in the region, and a region that has changed.
    let right = client.region_of(key(50)).await.unwrap();
    let leader = right.leader.unwrap();
    let place = usize::try_from(leader.store_id).unwrap() - 1;
    let url = format!("http://{}", cluster.endpoints()[place]);
    let mut store = TikvClient::connect(url).await.unwrap();
    let context = Context {
        region_id: right.region.id,
        region_epoch: right.region.region_epoch,
        peer: Some(leader),
        ..Context::default()
    };
    let get = RawGetRequest {
        context: Some(context.clone()),
        key: KEY.into(),
        ..RawGetRequest::default()
    };
    let answer = store.raw_get(get).await.unwrap().into_inner();
    let told = answer.region_error.unwrap();
    assert!(told.key_not_in_region.is_some() || told.not_leader.is_some(), "{told:?}");
    let stale = Context { region_epoch: whole.region.region_epoch, ..context };
    let put = RawPutRequest {
        context: Some(stale),
        key: key(50).into(),
        value: VALUE.into(),
        ..RawPutRequest::default()
    };
    let answer = store.raw_put(put).await.unwrap().into_inner();
    assert!(answer.region_error.is_some(), "{answer:?}");
    // A leader that moves, and the slow line that each store has by now.
    let moved = cluster.ctl(&format!("region transfer {} --to s1", right.region.id)).await;
    assert!(moved.code.is_some(), "{moved:?}");
    client.delete_range(key(0), key(100)).await.unwrap();
    let slow = |place| cluster.said(place).contains(" took ");
    until(async || match (0..3).any(slow) {
        true => Ok(()),
        false => {
            client.put(key(0), VALUE).await.unwrap();
            Err("no request was slow".to_owned())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_values_stay_out_of_the_log() {
    let mut cluster = start("log = \"debug,flotilla_node=trace\"").await;
    meet_the_key(&cluster).await;
    for place in 0..3 {
        cluster.stop(place);
        let said = cluster.said(place);
        assert!(said.contains("DEBUG") && said.contains("the node stops"), "{said}");
        let leak = said.lines().find(|line| has(line, KEY) || has(line, VALUE));
        assert_eq!(leak, None, "store {place}");
    }
}

/// Borders of a bootstrap are keys, and two stores that were given other ones say which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_in_the_log_if_that_is_asked_for() {
    for (lines, is_shown) in [("log_redact = false", true), ("", false)] {
        let mut cluster = Processes::plan(2, 1);
        for place in 0..2 {
            let file = cluster.aside(&format!("keys{place}"));
            std::fs::write(&file, format!("{KEY}{place}\n")).unwrap();
            let settings = cluster.settings(place);
            cluster.configure(place, &format!("{settings}split_keys = {file:?}\n{lines}\n"));
        }
        cluster.start_all();
        cluster.says(0, &["no cluster yet", "split_keys = 1 keys, number 1 of them"]).await;
        assert_eq!(has(&cluster.said(0), KEY), is_shown, "{}", cluster.said(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_works_warns_of_nothing() {
    let mut cluster = Processes::plan(3, 4);
    for place in 0..3 {
        let lines = "log_format = \"json\"\n[limits]\nslow_request_ms = 0\n";
        cluster.configure(place, &format!("{}{lines}", cluster.settings(place)));
    }
    cluster.start_all();
    cluster.ready().await;
    let client = client(&cluster).await;
    for number in 0..500 {
        client.put(format!("key{number}"), vec![7; 100]).await.unwrap();
    }
    let region = client.region_of("key").await.unwrap().region.id;
    client.split_region(region, ["key2".into(), "key4".into()]).await.unwrap();
    let transfer = cluster.ctl(&format!("region transfer {region} --to s1")).await;
    assert_eq!(transfer.code, Some(0), "{transfer:?}");
    // A store that stops has its leaders elsewhere, and is back in time.
    cluster.stop(0);
    client.put("key", "without s0").await.unwrap();
    let mut messages = lines_of(&cluster, 0);
    cluster.restart(0);
    cluster.ready().await;
    for place in 0..3 {
        cluster.stop(place);
        messages.extend(lines_of(&cluster, place));
    }
    for expected in [
        "a node starts",
        "settings",
        "the store is open",
        "the node serves",
        "leaders were elected",
        "a region was split",
        "a leader was transferred",
        "checkpoints were made",
        "the node stops",
    ] {
        let is_said = messages.iter().any(|message| message.starts_with(expected));
        assert!(is_said, "{expected:?} is not in {messages:#?}");
    }
}

/// The messages of a store since its start, none of which is a warning.
fn lines_of(cluster: &Processes, place: usize) -> Vec<String> {
    let said = cluster.said(place);
    // The test program says a line or two as well.
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert_eq!(line["level"], "INFO", "{line}");
    }
    lines.iter().map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}
