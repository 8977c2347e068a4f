//! Two of three stores are lost for good, under load: the third goes on alone with all that it had
//! acknowledged, the lost ones come back and are refused, and new stores get replicas.
//!
//! All is killed in the middle of writes. A write that a region's leader has acknowledged is in
//! its own log, so where the survivor led, each acknowledged write is there. Where another store
//! led, it may lack the last ones, and never one before them: each writer has one write under way
//! at a time, so the writes of a region that are there are the first ones of each writer.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod members;
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_client::{Client, Config};
use processes::{Answer, Processes, flotilla, until};
use tokio::task::JoinSet;

/// Clusters that lose their majority, one after the other.
const ROUNDS_VARIABLE: &str = "FLOTILLA_LOST_MAJORITY_ROUNDS";
/// The first bytes of the keys of each of four regions.
const PLACES: [u8; 4] = [0x10, 0x50, 0x90, 0xd0];
/// Writers in each region.
const WRITERS: usize = 3;
/// Writes that are acknowledged before the stores are killed.
const WRITES: u64 = 600;

fn key(writer: usize, number: u64) -> Bytes {
    let place = PLACES[writer % PLACES.len()];
    [&[place][..], format!("{writer:02}-{number:08}").as_bytes()].concat().into()
}

/// Writers, each with the count of its acknowledged writes.
struct Writers {
    acknowledged: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Writers {
    async fn start(endpoints: &[String]) -> Self {
        let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        let mut acknowledged = vec![];
        for writer in 0..PLACES.len() * WRITERS {
            // Its last write is not tried for long when the stores are gone.
            let deadline = Duration::from_secs(5);
            let config = Config { deadline, ..Config::default() };
            let client = Client::connect(endpoints, config).await.unwrap();
            let count = Arc::new(AtomicU64::new(0));
            acknowledged.push(Arc::clone(&count));
            let stop = Arc::clone(&stop);
            tasks.spawn(async move {
                for number in 0.. {
                    let written = client.put(key(writer, number), number.to_string()).await;
                    if written.is_err() || stop.load(Ordering::SeqCst) {
                        break;
                    }
                    count.store(number + 1, Ordering::SeqCst);
                }
            });
        }
        Self { acknowledged, stop, tasks }
    }

    fn counts(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect()
    }

    async fn progress(&self) {
        until(async || match self.counts().iter().sum::<u64>() {
            count if count >= WRITES => Ok(()),
            count => Err(format!("{count} writes only are acknowledged")),
        })
        .await;
    }

    async fn end(mut self) -> Vec<u64> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.counts()
    }
}

async fn recover(cluster: &Processes, places: &[usize], lost: &str, more: &[&str]) -> Answer {
    let mut args: Vec<String> = ["flotilla", "recover", "--json", "--lost", lost]
        .iter()
        .map(|&word| word.to_owned())
        .collect();
    for place in places {
        args.extend(["--dir".to_owned(), cluster.data_dir(*place).display().to_string()]);
    }
    args.extend(more.iter().map(|&word| word.to_owned()));
    flotilla(args).await
}

/// The number of writes of each writer that are there: all its first ones.
async fn found(client: &Client) -> Vec<u64> {
    let mut counts = vec![];
    for writer in 0..PLACES.len() * WRITERS {
        let (start, end) = (key(writer, 0), key(writer, 99_999_999));
        let scan = flotilla_client::Scan { start, end, limit: usize::MAX, ..Default::default() };
        let rows = client.scan(scan).await.unwrap();
        for (number, (found, value)) in (0..).zip(&rows) {
            assert_eq!((found, value), (&key(writer, number), &number.to_string().into()));
        }
        counts.push(rows.len() as u64);
    }
    counts
}

/// The survivor serves by itself: each region.
async fn serves(endpoint: &[String]) -> Client {
    let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
    let mut client = None;
    until(async || {
        let connected = Client::connect(endpoint, config.clone()).await;
        let connected = connected.map_err(|error| error.to_string())?;
        for place in PLACES {
            let got = connected.get(vec![place]).await;
            got.map_err(|error| format!("{place:x}: {error}"))?;
        }
        client = Some(connected);
        Ok(())
    })
    .await;
    client.unwrap()
}

/// One cluster that loses `s1` and `s2`. The survivor leads every region in a round that `drains`
/// the others.
async fn round(drains: bool) {
    let mut cluster = Processes::start(3, PLACES.len() as u64).await;
    if drains {
        for store in ["s1", "s2"] {
            let drained = cluster.ctl(&format!("store drain {store} --wait 60 --json")).await;
            assert_eq!(drained.code, Some(0), "{drained:?}");
        }
    }
    let writers = Writers::start(cluster.endpoints()).await;
    writers.progress().await;
    for place in [2, 0, 1] {
        cluster.kill(place);
    }
    let acknowledged = writers.end().await;

    let planned = recover(&cluster, &[0], "s1,s2", &["--dry-run"]).await.json();
    let id = planned["cluster_id"].as_str().unwrap().to_owned();
    let regions = planned["regions"].as_array().unwrap();
    assert_eq!(regions.len(), PLACES.len() + 1);
    assert!(regions.iter().all(|region| region["is_recovered"] == true), "{planned}");
    recover(&cluster, &[0], "s1,s2", &["--cluster-id", "1"]).await.refused(&["not the id"]);
    let recovered = recover(&cluster, &[0], "s1,s2", &["--cluster-id", &id]).await;
    assert_eq!(recovered.code, Some(0), "{recovered:?}");
    // A second time there is nothing left to do.
    let again = recover(&cluster, &[0], "s1,s2", &["--cluster-id", &id]).await;
    again.refused(&["every region keeps its majority"]);

    cluster.restart(0);
    let alone = [cluster.address(0)];
    let client = serves(&alone).await;
    let there = found(&client).await;
    println!("acknowledged {acknowledged:?}, there {there:?}");
    for (writer, (there, acknowledged)) in there.iter().zip(&acknowledged).enumerate() {
        assert!(there <= &(acknowledged + 1), "writer {writer} has written no more");
        assert!(!drains || there >= acknowledged, "writer {writer}: {there} of {acknowledged}");
    }
    for place in PLACES {
        client.put([&[place][..], b"after"].concat(), "recovered").await.unwrap();
    }
    for place in [1, 2] {
        cluster.restart(place);
        cluster.ends_refused(place, &["was declared lost and never takes part again"]).await;
        cluster.refused(place, &["was declared lost and never takes part again"]).await;
    }
    gets_replicas(&mut cluster, &alone).await;
    let config = Config { deadline: Duration::from_secs(20), ..Config::default() };
    let client = Client::connect(&alone, config).await.unwrap();
    assert_eq!(found(&client).await, there);
}

/// Two stores join, and each region has three replicas.
async fn gets_replicas(cluster: &mut Processes, survivors: &[String]) {
    let (mut endpoints, contact) = (survivors.to_vec(), &survivors[0]);
    for name in ["n1", "n2"] {
        let dir = cluster.aside(name);
        let place = cluster.add(|own| {
            format!(
                "name = \"{name}\"\ndata_dir = {dir:?}\naddr = \"{own}\"\njoin = \"{contact}\"\n"
            )
        });
        cluster.restart(place);
        endpoints.push(cluster.address(place));
    }
    processes::until_within(members::PATIENCE, async || {
        let regions = members::regions(&endpoints).await;
        let is_whole = |seen: &&members::Seen| seen.is_settled() && seen.voters().len() == 3;
        match regions.values().filter(is_whole).count() {
            count if count == PLACES.len() + 1 => Ok(()),
            _ => Err(format!("each region was to have three replicas: {regions:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_goes_on_with_all_that_it_had_acknowledged() {
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(1, |count| count.parse().unwrap());
    for number in 0..rounds {
        println!("round {number}");
        round(number % 2 == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_where_it_does_not_belong_is_refused_and_changes_nothing() {
    let mut cluster = Processes::start(3, 1).await;
    let client = Client::connect(cluster.endpoints(), Config::default()).await.unwrap();
    client.put("k", "v").await.unwrap();
    recover(&cluster, &[0], "s1,s2", &[]).await.refused(&["Stop its store first"]);
    for place in 0..3 {
        cluster.stop(place);
    }
    let refused = recover(&cluster, &[0, 1], "s2", &[]).await;
    refused.refused(&["every region keeps its majority", "flotilla ctl store lost"]);
    recover(&cluster, &[0], "s1", &[]).await.refused(&["s2, is neither lost nor given"]);
    recover(&cluster, &[0, 1], "s1,s2", &[]).await.refused(&["is given, and is said to be lost"]);
    assert_eq!(recover(&cluster, &[0], "s1,s7", &[]).await.code, Some(2));
    let mut other = Processes::start(1, 1).await;
    other.stop(0);
    let foreign = other.data_dir(0).display().to_string();
    recover(&cluster, &[0], "s1,s2", &["--dir", &foreign]).await.refused(&["is of cluster"]);
    let empty = cluster.aside("empty").display().to_string();
    std::fs::create_dir(&empty).unwrap();
    recover(&cluster, &[0], "s1,s2", &["--dir", &empty]).await.refused(&["no store of a cluster"]);
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    // Without an answer to the question for the id.
    recover(&cluster, &[0], "s1,s2", &[]).await.refused(&["nothing was changed"]);
    cluster.start_all();
    cluster.ready().await;
    assert_eq!(client.get("k").await.unwrap(), Some("v".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_survivors_of_five_are_recovered_each_on_its_machine_by_reports() {
    let mut cluster = Processes::plan(5, PLACES.len() as u64);
    for place in 0..5 {
        // On fewer stores some region would have no replica left.
        let settings = cluster.settings(place);
        cluster.configure(place, &format!("{settings}replicas = 5\n"));
    }
    cluster.start_all();
    cluster.ready().await;
    let writers = Writers::start(cluster.endpoints()).await;
    writers.progress().await;
    for place in [4, 0, 2, 1, 3] {
        cluster.kill(place);
    }
    writers.end().await;
    let report = |place: usize| {
        let dir = cluster.data_dir(place).display().to_string();
        let args = ["flotilla", "recover", "report", &dir].map(str::to_owned).to_vec();
        let file = cluster.aside(&format!("s{place}.report"));
        async move {
            let answer = flotilla(args).await;
            assert_eq!(answer.code, Some(0), "{answer:?}");
            std::fs::write(&file, answer.out).unwrap();
            file.display().to_string()
        }
    };
    let reports = [report(0).await, report(1).await];
    let reports = ["--report", &reports[0], "--report", &reports[1]];
    let lost = "s2,s3,s4";
    let planned =
        recover(&cluster, &[0], lost, &[&reports[..], &["--dry-run"]].concat()).await.json();
    let id = planned["cluster_id"].as_str().unwrap().to_owned();
    for place in [0, 1] {
        let more = [&reports[..], &["--cluster-id", &id]].concat();
        let recovered = recover(&cluster, &[place], lost, &more).await;
        assert_eq!(recovered.code, Some(0), "{recovered:?}");
        cluster.restart(place);
        if place == 0 {
            // The second one is recovered while the first one runs.
            cluster.says(0, &["the node serves"]).await;
        }
    }
    let survivors = [cluster.address(0), cluster.address(1)];
    let client = serves(&survivors).await;
    let there = found(&client).await;
    assert!(there.iter().sum::<u64>() > 0, "{there:?}");
    cluster.restart(3);
    cluster.ends_refused(3, &["was declared lost and never takes part again"]).await;
    gets_replicas(&mut cluster, &survivors).await;
    assert_eq!(found(&serves(&survivors).await).await, there);
}
