//! A cluster is bootstrapped once: real processes with emptied, older and halved directories, with
//! settings that differ, wrong flags and new addresses. Nothing acknowledged is lost, and each
//! wrong start is refused in words.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod addresses;
mod copies;
#[path = "../load/mod.rs"]
mod load;
mod lost_data;
#[path = "../processes/mod.rs"]
mod processes;
mod rounds;
mod settings;

use std::time::Duration;

use flotilla_client::{Client, Config, Observer};
use processes::{Processes, until};

/// The words of a store whose directory was emptied.
const LOST: &str = "this store lost its data; bring its disk back, or start it with";
/// The words of a store whose directory is not the newest.
const OLDER: &str = "an older copy of this store's disk";

/// Whether a put gets through within a moment.
async fn can_put(endpoints: &[String], key: &str) -> bool {
    let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
    match Client::connect(endpoints, config).await {
        Ok(client) => client.put(key.to_owned(), "value").await.is_ok(),
        Err(_) => false,
    }
}

async fn put(cluster: &Processes, key: &str, value: &str) {
    let client = load::client(cluster.endpoints()).await;
    client.put(key.to_owned(), value.to_owned()).await.unwrap();
}

async fn get(cluster: &Processes, key: &str) -> Option<String> {
    let client = load::client(cluster.endpoints()).await;
    let value = client.get(key.to_owned()).await.unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Waits until each replica of a store knows its leader: then each leader has taken the store's
/// handshake, and remembers this start of it.
async fn is_heard(cluster: &Processes, place: usize) {
    let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
    until(async || {
        let seen = Observer::new(&cluster.endpoints()[place], config.clone()).unwrap();
        match seen.regions().await {
            Ok(regions) if regions.iter().all(|region| region.leader.is_some()) => Ok(()),
            Ok(_) => Err(format!("a replica of store {place} has no leader")),
            Err(error) => Err(format!("store {place}: {error}")),
        }
    })
    .await;
}
