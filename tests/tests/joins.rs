//! Stores join a running cluster: real processes, under load, killed and started again in every
//! order. The registry is the same everywhere, and each wrong start is refused in words.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flotilla_client::{Config, Observer};
use flotilla_identity::{FEATURE_LEVEL, SCHEMA_VERSION, StoreUuid};
use flotilla_node::NodeConfig;
use flotilla_placement::FLOOR;
use flotilla_proto::peers::join_client::JoinClient;
use flotilla_proto::peers::{KnownStore, LocateRequest, RegisterRequest, RegisterResponse};
use flotilla_store::{StartSeed, StoreDirectory};
use flotilla_vfs::os::OsFs;
use load::Load;
use processes::{Processes, until};

/// The words of a store that does not have what the cluster knows of it.
const LOST: &str = "this store lost its data; bring its disk back";

/// The settings of a store that joins the cluster at `contacts`.
fn joining(dir: &Path, name: &str, own: &str, contacts: &str) -> String {
    format!(
        "name = \"{name}\"\ndata_dir = {dir:?}\naddr = \"{own}\"\njoin = \"{contacts}\"\n\
         labels = {{ zone = \"z-{name}\" }}\n"
    )
}

/// Starts one more store, of that name, which joins by way of the first two.
fn join(cluster: &mut Processes, name: &str) -> usize {
    let contacts = cluster.endpoints()[..cluster.endpoints().len().min(2)].join(",");
    let dir = cluster.aside(name);
    let place = cluster.add(|own| joining(&dir, name, own, &contacts));
    cluster.restart(place);
    place
}

fn observer(endpoint: &str) -> Observer {
    let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
    Observer::new(endpoint, config).unwrap()
}

/// What each store says of another one that does not change as it runs.
fn described(store: KnownStore) -> (u64, String, String, Vec<u8>, Vec<String>, u64) {
    let place = store.store.unwrap_or_default();
    let labels = place.labels.iter().map(|label| format!("{}={}", label.key, label.value));
    let (labels, uuid) = (labels.collect(), store.uuid.to_vec());
    (place.id, store.name, place.address, uuid, labels, store.starts)
}

/// Waits until the stores at `endpoints` have the same registry of `count` stores, and a link to
/// each of these that runs.
async fn agree(endpoints: &[String], count: usize) -> Vec<(u64, String, Vec<String>)> {
    let mut agreed = Vec::new();
    until(async || {
        let mut first = None;
        for endpoint in endpoints {
            let seen = observer(endpoint);
            let known = seen.stores().await.map_err(|error| format!("{endpoint}: {error}"))?;
            let stores: Vec<_> = known.stores.into_iter().map(described).collect();
            if stores.len() != count {
                return Err(format!("{endpoint} knows {stores:?}"));
            }
            let stats = seen.stats().await.map_err(|error| format!("{endpoint}: {error}"))?;
            if stats.stores_connected != endpoints.len() as u64 {
                return Err(format!("{endpoint} is connected to {}", stats.stores_connected));
            }
            match &first {
                Some(first) if *first != stores => {
                    return Err(format!("{endpoint} knows {stores:?}, another one {first:?}"));
                }
                _ => first = Some(stores),
            }
        }
        let stores = first.unwrap_or_default().into_iter();
        agreed = stores.map(|(id, name, _, _, labels, _)| (id, name, labels)).collect();
        Ok(())
    })
    .await;
    agreed
}

async fn put(cluster: &Processes, key: &str) {
    let client = load::client(cluster.endpoints()).await;
    client.put(key.to_owned(), "value").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_joins_under_load_and_every_store_starts_again_with_it() {
    let mut cluster = Processes::start(3, 4).await;
    let load = Load::start(4, cluster.endpoints()).await;
    load.progress(200).await;
    let fourth = join(&mut cluster, "s4");
    cluster.says(fourth, &["the store has joined"]).await;
    let mut all = cluster.endpoints().to_vec();
    all.push(cluster.address(fourth));
    let known = agree(&all, 4).await;
    let id = known[3].0;
    assert!(id >= FLOOR, "{id} is an id of the list");
    assert_eq!((known[3].1.as_str(), known[3].2[0].as_str()), ("s4", "zone=z-s4"));
    load.progress(200).await;

    // Placement and clients see it, and it answers clients itself.
    let client = load::client(&all[3..]).await;
    let stores = client.stores().await.unwrap();
    let fourth_store = stores.iter().find(|store| store.id == id).unwrap();
    assert_eq!((fourth_store.address.as_str(), fourth_store.labels.len()), (all[3].as_str(), 1));
    client.put("by way of the fourth", "value").await.unwrap();

    for place in [1, fourth, 0, 2] {
        match place % 2 {
            0 => cluster.stop(place),
            _ => cluster.kill(place),
        }
        load.next_round();
        load.progress(100).await;
        cluster.restart(place);
        assert_eq!(agree(&all, 4).await, known, "after a start of {place}");
    }
    // All at once, the fourth first.
    for place in 0..4 {
        cluster.kill(place);
    }
    cluster.restart(fourth);
    cluster.start_all();
    assert_eq!(agree(&all, 4).await, known);
    cluster.ready().await;
    println!("{}", load.end(cluster.endpoints()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joined_store_that_was_emptied_is_refused_under_its_old_flags() {
    let mut cluster = Processes::start(3, 1).await;
    let fourth = join(&mut cluster, "s4");
    let mut all = cluster.endpoints().to_vec();
    all.push(cluster.address(fourth));
    let known = agree(&all, 4).await;
    cluster.kill(fourth);
    let dir = cluster.aside("s4");
    let kept = cluster.aside("s4.kept");
    std::fs::rename(&dir, &kept).unwrap();
    for _ in 0..2 {
        cluster.refused(fourth, &[LOST, "s4 is the name of store", "does not take this"]).await;
    }
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::rename(&kept, &dir).unwrap();
    cluster.restart(fourth);
    assert_eq!(agree(&all, 4).await, known);
}

/// Case C36d: the only store that knows the new one's contacts was away while it joined, and there
/// is no placement to tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_away_takes_one_that_joined_without_placement() {
    let mut cluster = Processes::start(3, 1).await;
    cluster.stop(2);
    put(&cluster, "key").await;
    let fourth = join(&mut cluster, "s4");
    let mut all = cluster.endpoints().to_vec();
    all.push(cluster.address(fourth));
    let [first, second, third, new] = [0, 1, 2, 3].map(|place| all[place].clone());
    agree(&[first, second, new.clone()], 4).await;
    cluster.kill(0);
    cluster.kill(1);
    cluster.restart(2);
    agree(&[third.clone(), new.clone()], 4).await;
    // It has kept that: the two meet again, whichever starts first.
    cluster.kill(2);
    cluster.kill(fourth);
    cluster.restart(2);
    cluster.restart(fourth);
    agree(&[third, new], 4).await;
    cluster.start_all();
    cluster.ready().await;
}

/// Case C36c.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_one_that_has_grown_is_no_list_of_one_any_more() {
    let mut cluster = Processes::start(1, 1).await;
    put(&cluster, "key").await;
    let places = ["s1", "s2"].map(|name| join(&mut cluster, name));
    let mut all = cluster.endpoints().to_vec();
    all.extend(places.map(|place| cluster.address(place)));
    agree(&all, 3).await;
    cluster.kill(0);
    let kept = cluster.move_away(0);
    cluster.refused(0, &["this address is that of store 1 of cluster", "lost its data"]).await;
    cluster.put_back(0, &kept);
    cluster.restart(0);
    agree(&all, 3).await;
    cluster.ready().await;
}

/// Registers a directory as a store that joins does.
async fn register(endpoint: &str, uuid: StoreUuid, name: &str, address: &str) -> RegisterResponse {
    let mut client = JoinClient::connect(format!("http://{endpoint}")).await.unwrap();
    let located = client.locate(LocateRequest {}).await.unwrap().into_inner();
    let mut leader = JoinClient::connect(format!("http://{}", located.leader)).await.unwrap();
    let request = RegisterRequest {
        cluster_id: located.cluster_id,
        uuid: uuid.0.to_le_bytes().to_vec().into(),
        name: name.to_owned(),
        address: address.to_owned(),
        labels: Vec::new(),
        level: FEATURE_LEVEL,
        schema: SCHEMA_VERSION,
        replace: false,
    };
    leader.register(request).await.unwrap().into_inner()
}

/// Case C36f.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_registers_twice_has_one_id() {
    let mut cluster = Processes::start(3, 1).await;
    let dir = cluster.aside("s4");
    let fourth = {
        let (dir, contact) = (dir.clone(), cluster.endpoints()[0].clone());
        cluster.add(|own| joining(&dir, "s4", own, &contact))
    };
    let own = cluster.address(fourth);
    // A process that has registered, and dies before it keeps its identity.
    let seed = StartSeed { uuid: StoreUuid(44), nonce: 4 };
    let config = NodeConfig::default().storage.store();
    drop(StoreDirectory::open(Arc::new(OsFs::new()), &dir, config, seed).unwrap());
    let endpoint = &cluster.endpoints()[1];
    let first = register(endpoint, StoreUuid(44), "s4", "elsewhere:1").await;
    let again = register(endpoint, StoreUuid(44), "s4", &own).await;
    assert!(first.store_id >= FLOOR && first.refusal.is_empty(), "{}", first.refusal);
    assert_eq!(first.store_id, again.store_id, "the address has changed, the directory has not");
    let other = register(endpoint, StoreUuid(45), "s4", &own).await;
    assert_eq!(other.store_id, 0);
    assert!(other.refusal.contains(LOST), "{}", other.refusal);

    cluster.restart(fourth);
    let mut all = cluster.endpoints().to_vec();
    all.push(own.clone());
    let known = agree(&all, 4).await;
    assert_eq!(known[3].0, first.store_id);
    // From its first start as a member on, the directory is not one that asks.
    let refused = register(&all[1], StoreUuid(44), "s4", &own).await;
    assert!(refused.refusal.contains("an older copy of this store's disk"), "{}", refused.refusal);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_joins_are_refused_in_words() {
    let mut cluster = Processes::start(3, 1).await;
    let [first, second, third] = [0, 1, 2].map(|place| cluster.endpoints()[place].clone());
    let (list, dir) = (cluster.list(), cluster.aside("wrong"));
    let mut waiting = Processes::plan(2, 1);
    waiting.restart(0);
    let forming = waiting.endpoints()[0].clone();
    waiting.says(0, &["no cluster yet"]).await;
    let place = cluster.add(|_| String::new());
    let own = cluster.address(place);
    let anywhere = own.replace("127.0.0.1", "0.0.0.0");
    let right = joining(&dir, "s4", &own, &format!("{first},{second}"));
    let with = |line: &str| {
        let key = line.split(" =").next().unwrap();
        let kept = right.lines().filter(|line| !line.starts_with(key));
        kept.chain([line]).collect::<Vec<_>>().join("\n")
    };
    let wrong: Vec<(String, Vec<&str>)> = vec![
        (with("name = \"s1\""), vec!["s1 is the name of store 2", LOST]),
        (with("name = \"a b\""), vec!["cannot be a store's name"]),
        (with(&format!("advertise_addr = \"{third}\"")), vec!["is the address of store 3, s2"]),
        (with("replicas = 1"), vec!["replicas = 1 is given, but the cluster has 3"]),
        (with("cluster_id = 7"), vec!["and cluster 7 is meant"]),
        (with(&format!("join = \"{own}\"")), vec!["which is this store itself"]),
        (with("join = \"h\""), vec!["`h` is not of the form host:port"]),
        (with(&format!("join = \"{forming}\"")), vec![&forming, "has no cluster yet", "s1="]),
        (with(&format!("initial_cluster = \"{list}\"")), vec!["join and initial_cluster are both"]),
        (with("labels = { zone = \"\" }"), vec!["label \"zone\""]),
        (with(&format!("addr = \"{anywhere}\"")), vec!["no other store reaches this one at 0.0"]),
        (right.replace("name = \"s4\"\n", ""), vec!["--join without --name"]),
        (right.replace(&format!("addr = \"{own}\"\n"), ""), vec!["--join without --addr"]),
    ];
    for (settings, words) in wrong {
        cluster.configure(place, &settings);
        cluster.refused(place, &words).await;
    }
    // Nothing of that is left in the registry, and the right flags do.
    cluster.configure(place, &right);
    cluster.restart(place);
    let mut all = cluster.endpoints().to_vec();
    all.push(own.clone());
    agree(&all, 4).await;

    // A directory of one cluster, and the addresses of another.
    let mut other = Processes::start(1, 1).await;
    let foreign = other.endpoints()[0].clone();
    cluster.kill(place);
    cluster.configure(place, &with(&format!("join = \"{foreign}\"")));
    cluster.refused(place, &["the data directory is of cluster", &foreign]).await;
    cluster.configure(place, &right);
    cluster.restart(place);
    agree(&all, 4).await;
    other.kill(0);
}

/// A store waits for members that do not answer yet, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_may_be_started_before_the_members_that_it_joins() {
    let mut cluster = Processes::start(1, 1).await;
    cluster.kill(0);
    let second = join(&mut cluster, "s4");
    let contact = cluster.endpoints()[0].clone();
    cluster.says(second, &["no cluster yet: waiting for", &contact, "does not answer"]).await;
    let seen = observer(&cluster.address(second)).stores().await.unwrap_err();
    assert!(seen.to_string().contains("no cluster yet"), "{seen}");
    cluster.restart(0);
    agree(&[contact, cluster.address(second)], 2).await;
}
