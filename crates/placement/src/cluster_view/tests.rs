//! Tests of the cluster view: which claims about leaders it believes.

use super::*;

const CONFIG: Config = Config { suspect_ms: 100, down_ms: 1_000 };

fn cluster() -> ClusterView {
    ClusterView::new(CONFIG, (1..=3).map(|id| StoreInfo { id, ..StoreInfo::default() }))
}

fn on(store: u64) -> ReplicaInfo {
    ReplicaInfo { id: 200 + store, store }
}

fn heartbeat(term: u64, leader: Option<u64>) -> RegionHeartbeat {
    let region = RegionInfo {
        id: 2,
        version: 1,
        conf_version: 1,
        replicas: (1..=3).map(on).collect(),
        ..RegionInfo::default()
    };
    RegionHeartbeat { region, term, leader: leader.map(on) }
}

fn leader(cluster: &ClusterView, now_ms: u64) -> (Option<u64>, LeaderStatus) {
    let route = cluster.locate(now_ms, b"any").unwrap();
    (route.leader.map(|leader| leader.store), route.leader_status)
}

#[test]
fn the_higher_term_is_right() {
    let mut cluster = cluster();
    assert!(cluster.observe(0, 1, &[heartbeat(5, Some(1))], false));
    assert!(!cluster.observe(0, 1, &[heartbeat(5, Some(1))], false), "nothing new");
    assert_eq!(leader(&cluster, 0), (Some(1), LeaderStatus::Fresh));
    assert!(cluster.observe(0, 2, &[heartbeat(6, Some(2))], false));
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], false);
    assert_eq!(
        leader(&cluster, 0),
        (Some(2), LeaderStatus::Fresh),
        "the old leader does not know yet"
    );
}

#[test]
fn an_election_makes_a_region_leaderless() {
    let mut cluster = cluster();
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], false);
    cluster.observe(0, 2, &[heartbeat(6, None)], false);
    assert_eq!(leader(&cluster, 0), (None, LeaderStatus::Unknown));
    assert!(cluster.observe(0, 3, &[heartbeat(6, Some(3))], false));
    assert_eq!(leader(&cluster, 0), (Some(3), LeaderStatus::Fresh));
}

#[test]
fn only_the_leader_itself_can_step_down_within_its_term() {
    let mut cluster = cluster();
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], false);
    cluster.observe(0, 2, &[heartbeat(5, None)], false);
    assert_eq!(
        leader(&cluster, 0),
        (Some(1), LeaderStatus::Fresh),
        "a follower that hears nothing"
    );
    assert!(cluster.observe(0, 1, &[heartbeat(5, None)], false));
    assert_eq!(leader(&cluster, 0), (None, LeaderStatus::Unknown));
}

#[test]
fn a_silent_store_is_doubted_and_believed_again() {
    let mut cluster = cluster();
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], false);
    assert_eq!(leader(&cluster, 99), (Some(1), LeaderStatus::Fresh));
    assert_eq!(leader(&cluster, 100), (Some(1), LeaderStatus::Suspect));
    // Heartbeats of other stores do not help; its own does, and wakes the requests that wait.
    cluster.observe(100, 2, &[heartbeat(5, Some(1))], false);
    assert_eq!(leader(&cluster, 100), (Some(1), LeaderStatus::Suspect));
    assert!(cluster.observe(110, 1, &[], false));
    assert_eq!(leader(&cluster, 110), (Some(1), LeaderStatus::Fresh));
}

#[test]
fn a_broken_connection_is_silence_at_once() {
    let mut cluster = cluster();
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], false);
    cluster.disconnect(1);
    assert_eq!(leader(&cluster, 1), (Some(1), LeaderStatus::Suspect));
}

#[test]
fn a_leader_that_only_others_name_is_doubtful() {
    let mut cluster = cluster();
    cluster.observe(0, 2, &[heartbeat(5, Some(1))], false);
    assert_eq!(leader(&cluster, 0), (Some(1), LeaderStatus::Suspect));
}

#[test]
fn strangers_are_not_believed() {
    let mut cluster = cluster();
    assert!(!cluster.observe(0, 9, &[heartbeat(5, Some(9))], false));
    assert!(cluster.locate(0, b"any").is_none());
}

#[test]
fn long_silence_is_down() {
    let mut cluster = cluster();
    for store in 1..=3 {
        cluster.observe(0, store, &[heartbeat(5, Some(1))], false);
    }
    cluster.observe(900, 1, &[], false);
    let region = cluster.region(1_000, 2).unwrap().region;
    let down: Vec<_> = cluster.down(1_000, region).collect();
    assert_eq!(down, [(on(2), 1_000), (on(3), 1_000)]);
}

#[test]
fn a_full_report_ends_what_it_does_not_name() {
    let mut cluster = cluster();
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], false);
    cluster.observe(0, 2, &[], true);
    assert_eq!(leader(&cluster, 0), (Some(1), LeaderStatus::Fresh), "not of the one who reports");
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], true);
    assert_eq!(leader(&cluster, 0), (Some(1), LeaderStatus::Fresh));
    cluster.observe(0, 1, &[], true);
    assert_eq!(leader(&cluster, 0), (None, LeaderStatus::Unknown));
}
