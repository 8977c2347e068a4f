//! Tests of the cluster view: which claims about leaders it believes.

use super::*;

const CONFIG: Config = Config { suspect_ms: 100, down_ms: 1_000 };

fn cluster() -> ClusterView {
    ClusterView::new(CONFIG, (1..=3).map(|id| StoreInfo { id, ..StoreInfo::default() }))
}

fn on(store: u64) -> ReplicaInfo {
    ReplicaInfo { id: 200 + store, store, role: crate::ReplicaRole::Voter }
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

/// All stores have been heard, so that only routes are news.
fn heard() -> ClusterView {
    let mut cluster = cluster();
    for store in 1..=3 {
        cluster.observe(0, store, &[], false);
    }
    cluster
}

fn part(id: u64, start: &str, end: &str, version: u64) -> RegionHeartbeat {
    let replicas = (1..=3)
        .map(|store| ReplicaInfo { id: id * 100 + store, store, role: crate::ReplicaRole::Voter })
        .collect();
    let (start, end) = (start.into(), end.into());
    let region = RegionInfo { id, start, end, version, conf_version: 1, replicas };
    let leader = Some(ReplicaInfo { id: id * 100 + 1, store: 1, role: crate::ReplicaRole::Voter });
    RegionHeartbeat { region, term: 5, leader }
}

fn holders(cluster: &ClusterView) -> [u64; 4] {
    ["a", "f", "m", "z"].map(|key| cluster.locate(0, key.as_bytes()).map_or(0, |it| it.region.id))
}

/// Region 2 was split at f and m. Stores report at times of their own.
#[test]
fn the_parts_of_a_split_replace_the_region_in_every_order_of_reports() {
    let old = || part(2, "", "", 1);
    let parts = || [part(7, "", "f", 3), part(8, "f", "m", 3), part(2, "m", "", 3)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut cluster = heard();
        cluster.observe(0, 1, &[old()], false);
        for (reported, place) in order.into_iter().enumerate() {
            let part = &parts()[place];
            assert!(cluster.observe(0, 1, std::slice::from_ref(part), false), "{order:?}");
            let found = cluster.locate(0, &part.region.start).unwrap();
            assert_eq!(found.region, &part.region, "{order:?}");
            assert_eq!(found.leader_status, LeaderStatus::Fresh);
            // A store that has not applied the split reports the whole region still.
            assert!(!cluster.observe(0, 2, &[old()], false), "{order:?} after {reported}");
            assert_eq!(cluster.locate(0, &part.region.start).unwrap().region, &part.region);
        }
        assert_eq!(holders(&cluster), [7, 8, 2, 2], "{order:?}");
        assert!(!cluster.observe(0, 1, &parts(), false), "known already");
    }
}

#[test]
fn all_parts_of_a_split_in_one_report_leave_no_hole() {
    let mut cluster = heard();
    cluster.observe(0, 1, &[part(2, "", "", 1)], false);
    let parts = [part(2, "m", "", 3), part(7, "", "f", 3), part(8, "f", "m", 3)];
    assert!(cluster.observe(0, 1, &parts, false));
    assert_eq!(holders(&cluster), [7, 8, 2, 2]);
    for id in [2, 7, 8] {
        let route = cluster.region(0, id).unwrap();
        assert_eq!(route.leader.map(|leader| leader.store), Some(1), "region {id}");
    }
    let all: Vec<u64> = cluster.scan(0, b"", b"").map(|route| route.region.id).collect();
    assert_eq!(all, [7, 8, 2]);
}

/// A part is split again before the report of the first split comes from a slower store.
#[test]
fn reports_of_two_splits_that_cross_leave_the_newer() {
    let first = [part(7, "", "f", 2), part(2, "f", "", 2)];
    let second = [part(9, "", "c", 3), part(7, "c", "f", 3)];
    let mut cluster = heard();
    cluster.observe(0, 1, &[part(2, "", "", 1)], false);
    cluster.observe(0, 1, &second, false);
    assert_eq!(holders(&cluster), [9, 0, 0, 0], "the rest is not reported yet");
    cluster.observe(0, 2, &first, false);
    assert_eq!(holders(&cluster), [9, 2, 2, 2]);
    let found = cluster.locate(0, b"d").unwrap();
    assert_eq!((found.region.id, found.region.version), (7, 3));
    assert!(!cluster.observe(0, 3, &[part(2, "", "", 1)], false));
    assert_eq!(holders(&cluster), [9, 2, 2, 2]);
}

/// The first leader of a new region is expected where its parent is led. Another store that wins
/// the election has a greater term.
#[test]
fn an_expected_leader_gives_way_to_the_one_that_was_elected() {
    let mut cluster = heard();
    cluster.observe(0, 1, &[part(7, "", "f", 3)], false);
    let elected = ReplicaInfo { id: 703, store: 3, role: crate::ReplicaRole::Voter };
    let claim = RegionHeartbeat { term: 6, leader: Some(elected), ..part(7, "", "f", 3) };
    assert!(cluster.observe(0, 3, &[claim], false));
    assert!(!cluster.observe(0, 1, &[part(7, "", "f", 3)], false));
    assert_eq!(cluster.region(0, 7).unwrap().leader, Some(elected));
}

#[test]
fn loads_are_those_that_the_leader_tells_and_stay_until_the_next_one_does() {
    let mut cluster = cluster();
    assert!(cluster.store_loads().is_empty(), "no store has told any");
    cluster.observe(0, 1, &[heartbeat(5, Some(1))], true);
    cluster.note_loads(1, [(2, 70), (9, 80)]);
    cluster.note_loads(2, [(2, 90)]);
    cluster.note_loads(7, [(2, 90)]);
    assert_eq!((cluster.load(2), cluster.load(9)), (70, 0));
    assert_eq!(cluster.store_loads(), BTreeMap::from([(1, 70), (2, 0)]));
    cluster.observe(0, 2, &[heartbeat(6, Some(2))], true);
    cluster.note_loads(1, []);
    assert_eq!(cluster.store_loads(), BTreeMap::from([(1, 0), (2, 70)]));
    cluster.note_loads(2, [(2, u64::MAX)]);
    assert_eq!(cluster.load(2), LOAD_MAX);
    cluster.note_loads(2, []);
    assert_eq!(cluster.load(2), 0);
}
