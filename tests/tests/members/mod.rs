//! The members of regions, as the stores of a cluster of processes say themselves, and stores that
//! join it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flotilla_client::{Config, Observer};
use flotilla_proto::metapb::{Peer, PeerRole};
use flotilla_proto::peers::{Role, Space};

use crate::processes::{Processes, until_within};

/// How long many moves may take on a machine that has much else to do: repair begins ten seconds
/// after each change of the leader of placement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// A region as the leader with the highest term has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) term: u64,
    pub(crate) leader: u64,
    pub(crate) is_system: bool,
    pub(crate) peers: Vec<Peer>,
}

impl Seen {
    /// The stores whose votes count in the end.
    pub(crate) fn voters(&self) -> BTreeSet<u64> {
        let votes = |peer: &&Peer| matches!(peer.role(), PeerRole::Voter | PeerRole::IncomingVoter);
        self.peers.iter().filter(votes).map(|peer| peer.store_id).collect()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.peers.iter().all(|peer| peer.role() == PeerRole::Voter)
    }
}

/// All regions that have a leader, as the stores say themselves; those that do not answer are left
/// out.
pub(crate) async fn regions(endpoints: &[String]) -> BTreeMap<u64, Seen> {
    let mut seen = BTreeMap::<u64, Seen>::new();
    for endpoint in endpoints {
        let config = Config { deadline: Duration::from_secs(2), ..Config::default() };
        let observer = Observer::new(endpoint, config).unwrap();
        for replica in observer.regions().await.unwrap_or_default() {
            if replica.role() != Role::Leader {
                continue;
            }
            let is_system = replica.space() == Space::System;
            let region = replica.region.unwrap_or_default();
            let known = seen.entry(region.id).or_default();
            if replica.term >= known.term {
                let leader = replica.leader.map_or(0, |leader| leader.store_id);
                *known = Seen { term: replica.term, leader, is_system, peers: region.peers };
            }
        }
    }
    seen
}

pub(crate) async fn region(endpoints: &[String], id: u64) -> Seen {
    regions(endpoints).await.remove(&id).unwrap_or_default()
}

/// Waits until region `id` has voters on these stores and no other replica.
pub(crate) async fn settles(endpoints: &[String], id: u64, stores: &[u64]) {
    let wanted: BTreeSet<u64> = stores.iter().copied().collect();
    until_within(PATIENCE, async || {
        let now = region(endpoints, id).await;
        match now.is_settled() && now.voters() == wanted {
            true => Ok(()),
            false => Err(format!("region {id} was to be on {wanted:?}: {now:?}")),
        }
    })
    .await;
}

/// Looks all the time whether a region has two voters, from a start of one or three.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    looks: tokio::task::JoinHandle<u64>,
}

impl Watch {
    pub(crate) fn start(endpoints: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (endpoints, is_over) = (endpoints.to_vec(), Arc::clone(&stop));
        let looks = tokio::spawn(async move {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                for (id, region) in regions(&endpoints).await {
                    let old = |peer: &&Peer| {
                        matches!(peer.role(), PeerRole::Voter | PeerRole::DemotingVoter)
                    };
                    let before = region.peers.iter().filter(old).count();
                    let after = region.voters().len();
                    assert!(before % 2 == 1 && after % 2 == 1, "region {id}: {region:?}");
                    count += 1;
                }
                tokio::task::yield_now().await;
            }
            count
        });
        Self { stop, looks }
    }

    pub(crate) async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.looks.await.unwrap()
    }
}

/// Starts one more store, of that name, which joins by way of the first.
pub(crate) fn join(cluster: &mut Processes, name: &str) -> usize {
    let contact = cluster.endpoints()[0].clone();
    let dir = cluster.aside(name);
    let place = cluster.add(|own| {
        format!(
            "name = \"{name}\"\ndata_dir = {dir:?}\naddr = \"{own}\"\njoin = \"{contact}\"\n\
             labels = {{ zone = \"z-{name}\" }}\n"
        )
    });
    cluster.restart(place);
    place
}

/// The ids of all stores, by name.
pub(crate) async fn ids(cluster: &Processes) -> BTreeMap<String, u64> {
    let stores = cluster.ctl("--json stores").await.json();
    let stores = stores.as_array().unwrap().iter();
    stores.map(|it| (it["name"].as_str().unwrap().into(), it["id"].as_u64().unwrap())).collect()
}

/// The number of a region of the clients' keys.
pub(crate) async fn some_region(endpoints: &[String]) -> u64 {
    let mut found = 0;
    until_within(PATIENCE, async || {
        let seen = regions(endpoints).await;
        found = seen.iter().find(|(_, it)| !it.is_system).map_or(0, |(id, _)| *id);
        (found != 0).then_some(()).ok_or_else(|| format!("{seen:?}"))
    })
    .await;
    found
}
