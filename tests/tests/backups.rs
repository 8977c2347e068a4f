//! Backups of clusters of real processes, restored into others: under load, in another number of
//! stores, interrupted by kill -9, damaged, and where they do not belong.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flotilla_client::{Client, ColumnFamily, Config, RemainingTtl, RequestApi, Scan};
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{AllocIdRequest, RequestHeader};
use load::Load;
use processes::{Answer, Processes, begin_flotilla, flotilla, until};
use serde_json::Value;

/// The first bytes of the keys of each of four regions.
const PLACES: [u8; 4] = [0x10, 0x50, 0x90, 0xd0];

fn args(words: &[&str]) -> Vec<String> {
    ["flotilla"].iter().chain(words).map(|&word| word.to_owned()).collect()
}

fn backup_args(endpoints: &[String], to: &Path, more: &[&str]) -> Vec<String> {
    let (endpoints, to) = (endpoints.join(","), to.to_str().unwrap());
    let fixed = ["backup", "--json", "--endpoints", &endpoints, "--to", to];
    args(&[&fixed[..], more].concat())
}

async fn backup(endpoints: &[String], to: &Path, more: &[&str]) -> Value {
    flotilla(backup_args(endpoints, to, more)).await.json()
}

fn restore_args(endpoints: &[String], from: &Path, more: &[&str]) -> Vec<String> {
    let (endpoints, from) = (endpoints.join(","), from.to_str().unwrap());
    let fixed = ["restore", "--json", "--endpoints", &endpoints, "--from", from];
    args(&[&fixed[..], more].concat())
}

async fn restore(endpoints: &[String], from: &Path) -> Answer {
    flotilla(restore_args(endpoints, from, &["--mib-per-s", "0"])).await
}

async fn tool(words: &[&str], dir: &Path) -> Answer {
    flotilla(args(&[&["backup", "--json"], words, &[dir.to_str().unwrap()]].concat())).await
}

/// The regions of a backup, by their first keys.
async fn regions(dir: &Path, number: u64) -> BTreeMap<String, Value> {
    let listed = tool(&["list", "--number", &number.to_string()], dir).await.json();
    let parts = listed["parts"].as_array().unwrap();
    parts.iter().map(|part| (part["start"].as_str().unwrap().to_owned(), part.clone())).collect()
}

async fn client(endpoints: &[String]) -> Client {
    Client::connect(endpoints, Config::default()).await.unwrap()
}

fn key(place: u8, number: u32) -> Bytes {
    [&[place][..], format!("{number:06}").as_bytes()].concat().into()
}

/// Writes so many rows of `bytes` random bytes into each of the four regions.
async fn fill(client: &Client, rows: u32, bytes: usize) {
    let mut random = fastrand::Rng::with_seed(7);
    for place in PLACES {
        let mut value = || (0..bytes).map(|_| random.u8(..)).collect::<Vec<u8>>();
        let pairs = (0..rows).map(|number| (key(place, number), Bytes::from(value())));
        client.batch_put(pairs.collect::<Vec<_>>()).await.unwrap();
    }
}

async fn rows(client: &Client) -> Vec<(Bytes, Bytes)> {
    client.scan(Scan { limit: usize::MAX, ..Scan::default() }).await.unwrap()
}

fn data_files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("data")).into_iter().flatten();
    files.map(|file| file.unwrap().path()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_restored_into_more_stores_as_each_region_was_at_its_point() {
    let cluster = Processes::start(3, 4).await;
    let source = client(cluster.endpoints()).await;
    fill(&source, 200, 1000).await;
    let mut others = vec![];
    for family in [ColumnFamily::Lock, ColumnFamily::Write] {
        let source = source.in_family(family);
        source.put(key(PLACES[1], 1), family.name()).await.unwrap();
        others.push((family, family.name()));
    }
    let load = Load::start_without_ttl(4, cluster.endpoints()).await;
    load.progress(200).await;
    let dir = cluster.aside("backup");
    let made = backup(cluster.endpoints(), &dir, &[]).await;
    load.progress(100).await;
    load.end(cluster.endpoints()).await;
    assert_eq!((&made["backup"], &made["regions_unchanged"]), (&1.into(), &0.into()));
    assert_eq!(tool(&["verify"], &dir).await.json()["problems"], serde_json::json!([]));

    let bigger = Processes::start(5, 1).await;
    let restored = restore(bigger.endpoints(), &dir).await.json();
    assert_eq!(restored["rows_written"], made["rows"]);
    let again = bigger.aside("backup");
    backup(bigger.endpoints(), &again, &[]).await;
    let (before, after) = (regions(&dir, 1).await, regions(&again, 1).await);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (start, region) in &before {
        let there = &after[start];
        for field in ["digest", "rows", "bytes", "end"] {
            assert_eq!(region[field], there[field], "{field} of {region} and {there}");
        }
        assert!(region["index"].as_u64().unwrap() > 0 && region["time_ms"].as_u64() > Some(0));
    }
    let target = client(bigger.endpoints()).await;
    for (family, value) in others {
        let found = target.in_family(family).get(key(PLACES[1], 1)).await.unwrap();
        assert_eq!(found, Some(value.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_backup_refers_to_the_files_of_regions_that_are_unchanged() {
    let cluster = Processes::start(1, 4).await;
    let source = client(cluster.endpoints()).await;
    fill(&source, 50, 100).await;
    let dir = cluster.aside("backup");
    backup(cluster.endpoints(), &dir, &[]).await;
    let files = data_files(&dir).len();
    // Entries that leave the rows as they are, and one that does not.
    source.delete(key(PLACES[0], 999)).await.unwrap();
    source.put(key(PLACES[2], 1), "other").await.unwrap();
    let made = backup(cluster.endpoints(), &dir, &[]).await;
    assert_eq!((&made["backup"], &made["regions_unchanged"]), (&2.into(), &3.into()), "{made}");
    assert_eq!(data_files(&dir).len(), files + 1);
    let (first, second) = (regions(&dir, 1).await, regions(&dir, 2).await);
    let index = |regions: &BTreeMap<String, Value>| regions[""]["index"].as_u64().unwrap();
    assert!(index(&second) > index(&first), "an unchanged region has its new point");
    for number in ["1", "2"] {
        let verified = tool(&["verify", "--number", number], &dir).await.json();
        assert_eq!(verified["problems"], serde_json::json!([]));
    }
    let all = backup(cluster.endpoints(), &dir, &["--full"]).await;
    assert_eq!((&all["regions_unchanged"], data_files(&dir).len()), (&0.into(), files + 1));

    // A split makes other regions of the same rows.
    let region = source.region_of(key(PLACES[1], 0)).await.unwrap().region;
    source.split_region(region.id, [key(PLACES[1], 25)]).await.unwrap();
    let made = backup(cluster.endpoints(), &dir, &[]).await;
    assert_eq!((&made["regions"], &made["regions_unchanged"]), (&5.into(), &3.into()), "{made}");
    // The first one can still be restored.
    let target = Processes::start(1, 1).await;
    let from_first = restore_args(target.endpoints(), &dir, &["--number", "1"]);
    assert_eq!(flotilla(from_first).await.json()["backup"], 1);
    let value = client(target.endpoints()).await.get(key(PLACES[2], 1)).await.unwrap().unwrap();
    assert_eq!(value.len(), 100, "the value from before the change");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_and_a_restore_that_were_killed_go_on_region_by_region() {
    let cluster = Processes::start(1, 4).await;
    let source = client(cluster.endpoints()).await;
    fill(&source, 100, 10_000).await;
    let dir = cluster.aside("backup");
    let mut begun = begin_flotilla(&backup_args(cluster.endpoints(), &dir, &["--mib-per-s", "1"]));
    until(async || match data_files(&dir).len() {
        0 | 1 => Err("two regions were to be finished".to_owned()),
        _ => Ok(()),
    })
    .await;
    let other = flotilla(backup_args(cluster.endpoints(), &dir, &[])).await;
    other.refused(&["another backup is being made there"]);
    begun.kill().unwrap();
    begun.wait().unwrap();
    let none = tool(&["verify"], &dir).await;
    assert_eq!(none.code, Some(3), "a backup without its manifest is none: {none:?}");
    let made = backup(cluster.endpoints(), &dir, &[]).await;
    let resumed = made["regions_resumed"].as_u64().unwrap();
    assert!((1..4).contains(&resumed), "{made}");
    assert_eq!(tool(&["verify"], &dir).await.json()["problems"], serde_json::json!([]));

    let empty = Processes::start(3, 1).await;
    let target = client(empty.endpoints()).await;
    let mut begun = begin_flotilla(&restore_args(empty.endpoints(), &dir, &["--mib-per-s", "1"]));
    until(async || match target.get(key(PLACES[2], 0)).await.unwrap() {
        None => Err("the third region was to be begun".to_owned()),
        Some(_) => Ok(()),
    })
    .await;
    begun.kill().unwrap();
    begun.wait().unwrap();
    let dir_of_other = cluster.aside("other");
    backup(cluster.endpoints(), &dir_of_other, &[]).await;
    let other = restore(empty.endpoints(), &dir_of_other).await;
    other.refused(&["the restore of another backup was begun"]);
    let restored = restore(empty.endpoints(), &dir).await.json();
    let resumed = restored["regions_resumed"].as_u64().unwrap();
    assert!((1..4).contains(&resumed), "{restored}");
    assert_eq!(rows(&target).await, rows(&source).await);
    let again = restore(empty.endpoints(), &dir).await;
    again.refused(&["the cluster holds rows"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_found_and_nothing_of_it_is_restored() {
    let cluster = Processes::start(1, 4).await;
    fill(&client(cluster.endpoints()).await, 50, 100).await;
    let dir = cluster.aside("backup");
    backup(cluster.endpoints(), &dir, &[]).await;
    let empty = Processes::start(1, 1).await;
    let mut random = fastrand::Rng::with_seed(11);
    let manifest = dir.join("manifest-0000000001");
    for file in data_files(&dir).into_iter().chain([manifest]) {
        let good = fs::read(&file).unwrap();
        let (mut bad, at) = (good.clone(), random.usize(..good.len()));
        bad[at] ^= 1 << random.u32(..8);
        for bad in [&bad[..], &good[..at]] {
            fs::write(&file, bad).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            let verified = tool(&["verify"], &dir).await;
            assert_eq!(verified.code, Some(1), "{name}, byte {at}: {verified:?}");
            let said = format!("{}{}", verified.out, verified.errors);
            assert!(said.contains(name), "{name}: {said}");
            restore(empty.endpoints(), &dir).await.refused(&[name]);
        }
        fs::remove_file(&file).unwrap();
        assert_ne!(tool(&["verify"], &dir).await.code, Some(0), "{file:?} is missing");
        fs::write(&file, good).unwrap();
    }
    assert!(rows(&client(empty.endpoints()).await).await.is_empty());
    assert_eq!(restore(empty.endpoints(), &dir).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_keep_their_times_to_live_and_those_that_expired_do_not_come_back() {
    let cluster = Processes::start(1, 1).await;
    let source = client(cluster.endpoints()).await;
    source.put_with_ttl("hour", "v", 3600).await.unwrap();
    source.put_with_ttl("second", "v", 1).await.unwrap();
    source.put("ever", "v").await.unwrap();
    let dir = cluster.aside("backup");
    assert_eq!(backup(cluster.endpoints(), &dir, &[]).await["rows"], 3);
    until(async || match source.get("second").await.unwrap() {
        Some(_) => Err("the row was to expire".to_owned()),
        None => Ok(()),
    })
    .await;
    let empty = Processes::start(1, 1).await;
    let restored = restore(empty.endpoints(), &dir).await.json();
    assert_eq!((&restored["rows_written"], &restored["rows_expired"]), (&2.into(), &1.into()));
    let target = client(empty.endpoints()).await;
    assert_eq!(target.ttl("ever").await.unwrap(), Some(RemainingTtl::Unlimited));
    assert_eq!(target.get("second").await.unwrap(), None);
    let left = |ttl: Option<RemainingTtl>| match ttl {
        Some(RemainingTtl::Seconds(seconds)) => seconds,
        other => panic!("{other:?}"),
    };
    let (there, here) =
        (left(source.ttl("hour").await.unwrap()), left(target.ttl("hour").await.unwrap()));
    assert!(here.abs_diff(there) <= 2, "{there} s in the source, {here} s in the target");
}

/// The last of so many ids that placement has never given before.
async fn new_id(cluster: &Processes, count: u32) -> u64 {
    let mut pd = PdClient::connect(format!("http://{}", cluster.endpoints()[0])).await.unwrap();
    let header = Some(RequestHeader::default());
    let asked = pd.alloc_id(AllocIdRequest { header, count });
    asked.await.unwrap().into_inner().id
}

#[tokio::test(flavor = "multi_thread")]
async fn keyspaces_come_back_under_their_ids_and_new_ids_are_above_the_old_ones() {
    let api = |cluster: &mut Processes| {
        cluster.configure(0, &format!("{}api = \"v2\"\n", cluster.settings(0)));
        cluster.start_all();
    };
    let config = || Config { api: RequestApi::V2, ..Config::default() };
    let mut cluster = Processes::plan(1, 1);
    api(&mut cluster);
    cluster.ready_by(config()).await;
    for name in ["orders", "carts"] {
        cluster.ctl(&format!("keyspace create {name} --json")).await.json();
    }
    let source = Client::connect(cluster.endpoints(), config()).await.unwrap();
    let whole = |id: u8, key: &str| Bytes::from([&[b'r', 0, 0, id], key.as_bytes()].concat());
    source.put(whole(2, "k"), "v").await.unwrap();
    // More than the target leases by itself.
    let last_id = new_id(&cluster, 50_000).await;
    let dir = cluster.aside("backup");
    let made = backup(cluster.endpoints(), &dir, &[]).await;
    assert!(made["ids_end"].as_u64().unwrap() > last_id);

    let mut empty = Processes::plan(1, 1);
    api(&mut empty);
    empty.ready_by(config()).await;
    let target = Client::connect(empty.endpoints(), config()).await.unwrap();
    restore(empty.endpoints(), &dir).await.json();
    assert_eq!(target.get(whole(2, "k")).await.unwrap(), Some("v".into()));
    let listed = empty.ctl("keyspace list --json").await.json();
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|it| (&it["id"], &it["name"])).collect();
    let wanted = [(0, "DEFAULT"), (1, "orders"), (2, "carts")]
        .map(|(id, name)| (Value::from(id), Value::from(name)));
    assert!(names.iter().zip(&wanted).all(|(a, b)| (a.0, a.1) == (&b.0, &b.1)), "{listed}");
    let made_later = empty.ctl("keyspace create later --json").await.json();
    assert_eq!(made_later["id"], 3);
    assert!(new_id(&empty, 1).await >= made["ids_end"].as_u64().unwrap());

    let v1 = Processes::start(1, 1).await;
    restore(v1.endpoints(), &dir).await.refused(&["of API V2", "--api v2"]);
    let other = flotilla(backup_args(v1.endpoints(), &dir, &[])).await;
    other.refused(&["its backups are of cluster"]);
}
