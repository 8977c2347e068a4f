//! Random stories with changes of the members: whoever dies or is cut off, no write is lost, no
//! read is stale, and in the end every store has the replica that the region lists for it, or none.

use super::cluster::{Cluster, REGION};
use super::members::descriptor_on;
use crate::*;

const STORES: u64 = 5;

fn config(seed: u64) -> Config {
    Config {
        seed,
        tick_ms: 15,
        election_ticks: 6,
        reads: ReadConfig { leases: true, retry_ms: 60, tries_max: 4 },
        window: WindowConfig {
            tail_bytes_max: 500,
            tail_count_max: 5,
            log_kept_region_bytes: (seed % 2) << 20,
            ..WindowConfig::default()
        },
        ..Config::default()
    }
}

/// A change that may make sense, or not.
fn draw_change(cluster: &mut Cluster, region: &Descriptor) -> MembershipChange {
    let any = |cluster: &mut Cluster, role: PeerRole| {
        let peers: Vec<_> = region.peers.iter().filter(|peer| peer.role == role).collect();
        let at = cluster.rng.usize(..peers.len().max(1));
        peers.get(at).map(|peer| peer.id)
    };
    let learner = any(cluster, PeerRole::Learner);
    let voter = any(cluster, PeerRole::Voter);
    match cluster.rng.u32(0..10) {
        0..3 => {
            let store = StoreId(cluster.rng.u64(1..=STORES));
            let id = PeerId(region.floor().0 + cluster.rng.u64(0..3));
            MembershipChange::Add(Peer { id, store })
        }
        3 => MembershipChange::LeaveJoint,
        4 | 5 => MembershipChange::Remove(learner.or(voter).unwrap_or_default()),
        6 => MembershipChange::Vote { promoted: learner.into_iter().collect(), demoted: vec![] },
        7 => MembershipChange::Vote { promoted: vec![], demoted: voter.into_iter().collect() },
        _ => MembershipChange::Vote {
            promoted: learner.into_iter().collect(),
            demoted: voter.into_iter().collect(),
        },
    }
}

fn propose(cluster: &mut Cluster, store: u64, change: MembershipChange) {
    if cluster.is_up(store) && cluster.waiting_count() < 300 {
        cluster.change(store, change);
    }
}

fn disturb(cluster: &mut Cluster) {
    let store = cluster.rng.u64(1..=STORES);
    match cluster.rng.u32(0..24) {
        0 => cluster.isolate(store),
        1..4 => cluster.heal(),
        4 if cluster.is_up(store) => cluster.crash(store),
        5..8 if !cluster.is_up(store) => cluster.restart(store),
        8 => cluster.pause(store, true),
        9..11 => (1..=STORES).for_each(|store| cluster.pause(store, false)),
        11 if cluster.is_up(store) => {
            cluster.transfer(store, None);
        }
        12 if cluster.is_up(store) => cluster.machines.get_mut(&store).unwrap().checkpoint(),
        13 if cluster.is_up(store) => cluster.push(store, Event::Campaign { region: REGION }),
        _ => {
            let Some(leader) = cluster.leader() else { return };
            let region = descriptor_on(cluster, leader).unwrap().clone();
            let change = draw_change(cluster, &region);
            propose(cluster, leader, change);
        }
    }
}

fn work(cluster: &mut Cluster) {
    let store = cluster.rng.u64(1..=STORES);
    if cluster.is_up(store) && cluster.waiting_count() < 300 {
        let value = cluster.now;
        match cluster.rng.u32(0..3) {
            0 => cluster.put(store, "a", value),
            1 => cluster.read(store, "a", false),
            _ => cluster.read(store, "a", true),
        };
    }
    // Most find no leader elsewhere.
    if let Some(leader) = cluster.leader().filter(|leader| cluster.is_up(*leader)) {
        let value = cluster.now;
        cluster.put(leader, "b", value);
    }
}

/// The next step towards three voters and nothing else.
fn tidy_up(cluster: &mut Cluster, leader: u64) {
    let region = descriptor_on(cluster, leader).unwrap().clone();
    let of = |role| move |peer: &&RegionPeer| peer.role == role;
    let own = region.peer_on(StoreId(leader)).map(|peer| peer.id);
    let voters = region.peers.iter().filter(of(PeerRole::Voter)).count();
    let learner = region.peers.iter().find(of(PeerRole::Learner));
    let other = region.peers.iter().filter(of(PeerRole::Voter)).find(|peer| Some(peer.id) != own);
    let change = match (voters, learner, other) {
        (0..=2, Some(learner), _) => {
            MembershipChange::Vote { promoted: vec![learner.id], demoted: vec![] }
        }
        (0..=2, None, _) => {
            let taken = |store: &u64| {
                let store = StoreId(*store);
                region.peer_on(store).is_some()
                    || region.removed.unconfirmed.iter().any(|peer| peer.store == store)
            };
            let Some(store) = (1..=STORES).find(|store| !taken(store)) else { return };
            let id = PeerId(region.floor().0 + 1);
            MembershipChange::Add(Peer { id, store: StoreId(store) })
        }
        (4.., _, Some(other)) => {
            MembershipChange::Vote { promoted: vec![], demoted: vec![other.id] }
        }
        (_, Some(learner), _) => MembershipChange::Remove(learner.id),
        _ => return,
    };
    propose(cluster, leader, change);
}

fn is_calm(cluster: &Cluster) -> bool {
    let Some(leader) = cluster.leader() else { return false };
    let region = descriptor_on(cluster, leader).unwrap();
    region.peers.len() == 3
        && region.peers.iter().all(|peer| peer.role == PeerRole::Voter)
        && region.removed.unconfirmed.is_empty()
}

fn settle(cluster: &mut Cluster, seed: u64) {
    cluster.heal();
    cluster.loss_percent = 0;
    for store in 1..=STORES {
        cluster.pause(store, false);
        if !cluster.is_up(store) {
            cluster.restart(store);
        }
    }
    cluster.run(3000);
    for _ in 0..600 {
        if is_calm(cluster) {
            break;
        }
        if let Some(leader) = cluster.leader() {
            tidy_up(cluster, leader);
        }
        cluster.run(200);
    }
    assert!(
        is_calm(cluster),
        "seed {seed}: {:?}",
        cluster.leader().map(|l| descriptor_on(cluster, l))
    );
    let leader = cluster.elect();
    cluster.put(leader, "last", 1);
    cluster.run(3000);
}

#[test]
fn whatever_happens_to_the_members_nothing_is_lost_and_no_replica_stays_behind() {
    let (mut changes, mut ends) = (0, 0);
    for seed in 0..40 {
        let mut cluster = Cluster::new(seed, config(seed));
        (4..=STORES).for_each(|store| cluster.add_store(store));
        cluster.loss_percent = cluster.rng.u32(0..10);
        for step in 0..1200 {
            if step % 16 == 0 {
                disturb(&mut cluster);
            }
            work(&mut cluster);
            cluster.run(5);
        }
        settle(&mut cluster, seed);
        assert_eq!(cluster.waiting_count(), 0, "seed {seed}: a ticket did not come out");
        assert_eq!(cluster.lost_logs, [], "seed {seed}");
        let leader = cluster.leader().unwrap();
        let region = descriptor_on(&cluster, leader).unwrap().clone();
        let rows = |store| &cluster.machines[&store].disks[&REGION].applied;
        for store in 1..=STORES {
            match region.peer_on(StoreId(store)) {
                Some(peer) => {
                    assert_eq!(rows(store), rows(leader), "seed {seed}: replicas differ");
                    assert_eq!(cluster.status(store).peer, peer.id, "seed {seed}");
                }
                None => {
                    let machine = &cluster.machines[&store];
                    assert!(machine.disks.is_empty(), "seed {seed}: store {store} has a replica");
                    assert_eq!(machine.shard.uninitialised().count(), 0, "seed {seed}");
                }
            }
        }
        assert!(cluster.machines.values().all(|m| m.stages.is_empty()), "seed {seed}: a stage");
        let stats = cluster.machines.values().map(|machine| machine.shard.stats());
        let (of_seed, ended) = stats.fold((0, 0), |(changes, ends), stats| {
            (changes + stats.membership_changes, ends + stats.replicas_ended)
        });
        (changes, ends) = (changes + of_seed, ends + ended);
    }
    assert!(changes > 700, "only {changes} changes");
    assert!(ends > 60, "only {ends} ends");
}
