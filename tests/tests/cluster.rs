//! Three real stores over real sockets and files, and their loss: one after the other, in good
//! order, as a crash inside a process, and with SIGKILL under load. Afterwards every acknowledged
//! write is there, and what clients saw can be explained by one order of their operations.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use load::{Load, client};
use processes::Processes;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many stores the test with SIGKILL kills; a variable of the environment asks for more.
const KILLS: u64 = 6;
const KILLS_VARIABLE: &str = "FLOTILLA_KILLS";

fn settings(dir: &Path) -> PlaygroundConfig {
    let mut settings = PlaygroundConfig::new(dir);
    settings.common.regions = 4;
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_any_store_is_survived_and_made_good() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&settings(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let client = client(&cluster.endpoints()).await;
    let mut written: Vec<(String, String)> = Vec::new();
    for place in 0..3 {
        for crash in [true, false] {
            let key = format!("{}key of {place} {crash}", ['A', '\u{7f}', 'z'][place]);
            client.put(key.clone(), "before").await.unwrap();
            if crash {
                cluster.abandon(place).await;
            } else {
                cluster.stop(place).await.unwrap();
            }
            assert_eq!(client.get(key.clone()).await.unwrap().unwrap(), "before");
            client.put(key.clone(), format!("without {place}")).await.unwrap();
            written.push((key, format!("without {place}")));
            cluster.restart(place).await.unwrap();
            cluster.ready(PATIENCE).await.unwrap();
        }
    }
    for (key, value) in written {
        assert_eq!(client.get(key).await.unwrap().unwrap(), value);
    }
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_stopped_finds_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Playground::start(&settings(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let keys: Vec<_> = (0..=255u8).map(|first| Bytes::from(vec![first, 1])).collect();
    let before = client(&cluster.endpoints()).await;
    let pairs = keys.iter().map(|key| (key.clone(), Bytes::from("value")));
    before.batch_put(pairs).await.unwrap();
    for place in 0..3 {
        cluster.stop(place).await.unwrap();
    }
    for place in 0..3 {
        cluster.restart(place).await.unwrap();
    }
    cluster.ready(PATIENCE).await.unwrap();
    let found = client(&cluster.endpoints()).await.batch_get(keys).await.unwrap();
    assert_eq!(found, vec![Some(Bytes::from("value")); 256]);
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_sigkill_and_no_client_sees_the_impossible() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |kills| kills.parse().unwrap());
    let mut cluster = Processes::start(3, 4).await;
    let load = Load::start(8, cluster.endpoints()).await;
    for kill in 0..kills {
        let place = kill as usize % 3;
        load.progress(100).await;
        cluster.kill(place);
        load.progress(100).await;
        cluster.restart(place);
        cluster.ready().await;
        load.next_round();
    }
    load.progress(100).await;
    println!("{kills} kills, {}", load.end(cluster.endpoints()).await);
}
