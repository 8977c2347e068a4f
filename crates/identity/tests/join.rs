//! A store with an empty directory on its way into a running cluster: each answer, each refusal,
//! and repeated steps.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use flotilla_identity::{
    ClusterSettings, GivenSettings, IdentityState, Join, JoinAnswer, JoinQuestion, JoinRefusal,
    JoinStep, JoinTarget, RegisterRequest, Registration, StoreIdentity, StoreReach, StoreRecord,
    StoreRegistry, StoreRun, StoreUuid,
};
use flotilla_region::{StoreId, Time};

const NOW: Time = Time(1_000);
const CLUSTER: u64 = 7;
const ALL: StoreReach = StoreReach { stores: 3, connected: 3 };
const OWN: StoreUuid = StoreUuid(9);

fn identity() -> StoreIdentity {
    StoreIdentity::new(OWN, StoreRun { starts: 1, nonce: 2 })
}

fn target(contacts: &[&str]) -> JoinTarget {
    JoinTarget {
        contacts: contacts.iter().map(|&contact| contact.to_owned()).collect(),
        cluster_id: 0,
        given: GivenSettings::default(),
        request: RegisterRequest {
            uuid: OWN,
            name: "s4".to_owned(),
            address: "h:4".to_owned(),
            labels: Vec::new(),
            level: 2,
            schema: 3,
            is_replacement: false,
        },
    }
}

fn join(contacts: &[&str]) -> Join {
    Join::new(&identity(), target(contacts)).unwrap()
}

fn member(cluster_id: u64, leader: Option<&str>) -> JoinAnswer {
    member_of(cluster_id, leader, ALL)
}

fn member_of(cluster_id: u64, leader: Option<&str>, reach: StoreReach) -> JoinAnswer {
    let (uuid, settings) = (StoreUuid(1), ClusterSettings::default());
    JoinAnswer::Member { cluster_id, uuid, settings, leader: leader.map(str::to_owned), reach }
}

fn silent() -> JoinAnswer {
    JoinAnswer::Silent("refused".to_owned())
}

fn no_cluster() -> JoinAnswer {
    JoinAnswer::NoCluster { uuid: StoreUuid(2), waiting: "s2=h:2".to_owned() }
}

fn registry() -> StoreRegistry {
    let record = StoreRecord {
        id: StoreId(1),
        name: "s1".to_owned(),
        address: "h:1".to_owned(),
        uuid: StoreUuid(1),
        ..StoreRecord::default()
    };
    StoreRegistry { version: 1, level: 2, stores: vec![record] }
}

/// The leader of placement answers as its registry says.
fn registered(registry: &mut StoreRegistry, join: &Join, id: u64) -> JoinAnswer {
    if let Ok(Registration::Write(changed)) = registry.register(join.request(), Some(StoreId(id))) {
        *registry = *changed;
    }
    let Ok(Registration::Known(store)) = registry.register(join.request(), None) else {
        panic!("it is not registered")
    };
    let settings = ClusterSettings { replicas: 5, ..ClusterSettings::default() };
    JoinAnswer::Registered { store, registry: Box::new(registry.clone()), settings }
}

#[test]
fn a_member_names_the_leader_and_the_leader_gives_the_id() {
    let (mut join, mut registry) = (join(&["h:1", "h:2"]), registry());
    assert_eq!(join.question(), ("h:1", JoinQuestion::Locate));
    assert_eq!(join.hear(NOW, silent()), Ok(JoinStep::Ask));
    assert_eq!(join.question(), ("h:2", JoinQuestion::Locate));
    assert_eq!(join.hear(NOW, member(CLUSTER, Some("h:3"))), Ok(JoinStep::Ask));
    assert_eq!(join.question(), ("h:3", JoinQuestion::Register { cluster_id: CLUSTER }));
    let answer = registered(&mut registry, &join, 1_000_000);
    let Ok(JoinStep::Write(write)) = join.hear(NOW, answer) else { panic!("it is a member") };
    let identity = write.apply(&identity());
    assert_eq!((identity.state, identity.cluster_id), (IdentityState::Member, CLUSTER));
    assert_eq!((identity.store, identity.uuid), (StoreId(1_000_000), OWN));
    assert_eq!((identity.name.as_str(), identity.run.starts), ("s4", 1));
    assert_eq!((write.registry, write.settings.replicas), (registry, 5));
}

/// Case C36f: the answer is lost, or the store dies before it keeps its identity.
#[test]
fn a_store_that_asks_again_gets_the_same_id() {
    let (mut first, mut registry) = (join(&["h:1"]), registry());
    first.hear(NOW, member(CLUSTER, Some("h:1"))).unwrap();
    let _lost = registered(&mut registry, &first, 1_000_000);
    assert_eq!(first.hear(NOW, silent()), Ok(JoinStep::Pause));
    let version = registry.version;
    // The process that dies leaves the directory's number, and that is all.
    for mut join in [first, join(&["h:1"])] {
        join.hear(NOW, member(CLUSTER, Some("h:1"))).unwrap();
        let answer = registered(&mut registry, &join, 1_000_001);
        let Ok(JoinStep::Write(write)) = join.hear(NOW, answer) else { panic!("it is a member") };
        assert_eq!(write.store, StoreId(1_000_000));
    }
    assert_eq!(registry.version, version, "no row was written for that");
}

#[test]
fn a_store_waits_for_members_and_for_a_leader() {
    let mut join = join(&["h:1", "h:2"]);
    assert_eq!(join.waiting(), "an answer");
    assert_eq!(join.hear(NOW, silent()), Ok(JoinStep::Ask));
    assert_eq!(join.hear(NOW, silent()), Ok(JoinStep::Pause));
    assert_eq!(join.waiting(), "h:1 does not answer (refused); h:2 does not answer (refused)");
    assert_eq!(join.hear(NOW, member(CLUSTER, None)), Ok(JoinStep::Ask));
    assert!(join.waiting().contains("h:1 knows no leader of placement"));
    // A member has answered: stores without a cluster decide nothing.
    assert_eq!(join.hear(NOW, no_cluster()), Ok(JoinStep::Pause));
    assert_eq!(join.hear(NOW, member(CLUSTER, Some("h:9"))), Ok(JoinStep::Ask));
    assert_eq!(join.hear(NOW, silent()), Ok(JoinStep::Ask));
    assert!(join.waiting().contains("h:9, which leads placement as h:1 says"));
    assert_eq!(join.question(), ("h:2", JoinQuestion::Locate), "another one may lead by now");
}

#[test]
fn each_wrong_cluster_is_refused_in_words() {
    let ends = |target: JoinTarget, answers: Vec<JoinAnswer>| {
        let mut join = Join::new(&identity(), target).unwrap();
        let refusal = answers.into_iter().find_map(|answer| join.hear(NOW, answer).err());
        refusal.expect("it is refused")
    };
    let two = || target(&["h:1", "h:2"]);
    let own = JoinAnswer::NoCluster { uuid: OWN, waiting: String::new() };
    assert_eq!(ends(two(), vec![silent(), own]), JoinRefusal::Itself("h:2".to_owned()));

    let other = ends(two(), vec![member(7, None), member(8, None)]);
    assert!(matches!(other, JoinRefusal::OtherCluster { found: 8, wanted: 7, .. }));
    let meant = JoinTarget { cluster_id: 6, ..two() };
    let other = ends(meant, vec![member(7, Some("h:1"))]);
    assert!(matches!(other, JoinRefusal::OtherCluster { found: 7, wanted: 6, .. }));

    let forming = ends(two(), vec![silent(), no_cluster()]);
    assert!(forming.to_string().contains("h:2 has no cluster yet, it waits for s2=h:2"));

    let stranger = JoinAnswer::NoStore("unimplemented".to_owned());
    let stranger = ends(two(), vec![stranger, silent()]);
    assert!(stranger.to_string().contains("h:1 answers, but not as a store"));

    let given = GivenSettings { replicas: Some(1), ..GivenSettings::default() };
    let differs = ends(JoinTarget { given, ..two() }, vec![member(7, Some("h:1"))]);
    assert!(differs.to_string().contains("replicas = 1 is given, but the cluster has 3"));

    let refused = JoinAnswer::Refused("too old".to_owned());
    let refused = ends(two(), vec![member(7, Some("h:3")), refused]);
    let words = "cluster 7 does not take this store, as h:3 says: too old";
    assert_eq!(refused.to_string(), words);
}

#[test]
fn an_answer_without_the_store_makes_no_member() {
    let mut join = join(&["h:1"]);
    join.hear(NOW, member(CLUSTER, Some("h:1"))).unwrap();
    let (registry, settings) = (Box::new(registry()), ClusterSettings::default());
    let answer = JoinAnswer::Registered { store: StoreId(1), registry, settings };
    assert_eq!(join.hear(NOW, answer), Ok(JoinStep::Pause));
    assert!(join.waiting().contains("does not have this store"));
}

#[test]
fn a_directory_that_keeps_a_plan_does_not_join() {
    let mut identity = identity();
    identity.state = IdentityState::Forming;
    (identity.cluster_id, identity.store) = (CLUSTER, StoreId(2));
    let refusal = Join::new(&identity, target(&["h:1"])).unwrap_err();
    assert!(refusal.to_string().contains("keeps the plan of cluster 7, in which it is store 2"));
}

fn replacement() -> Join {
    let mut target = target(&["h:1", "h:2"]);
    target.request.is_replacement = true;
    Join::new(&identity(), target).unwrap()
}

/// Each contact names the leader, which gives `answer`; the step after all of that.
fn round(join: &mut Join, now: Time, answer: &JoinAnswer) -> Result<JoinStep, JoinRefusal> {
    assert_eq!(join.hear(now, member(CLUSTER, Some("h:1"))), Ok(JoinStep::Ask));
    assert_eq!(join.hear(now, answer.clone()), Ok(JoinStep::Ask));
    assert_eq!(join.hear(now, member(CLUSTER, Some("h:1"))), Ok(JoinStep::Ask));
    join.hear(now, answer.clone())
}

#[test]
fn a_replacement_that_only_needs_time_waits_and_is_given_up_in_the_end() {
    let heard = JoinAnswer::NotNow("store 2, s2, was heard 3 s ago".to_owned());
    let mut join = replacement();
    assert_eq!(round(&mut join, NOW, &heard), Ok(JoinStep::Pause));
    assert!(join.waiting().contains("h:1, which leads placement: store 2, s2, was heard"));
    assert_eq!(round(&mut join, NOW.after_ms(24_999), &heard), Ok(JoinStep::Pause));
    let refusal = round(&mut join, NOW.after_ms(25_000), &heard).unwrap_err();
    let words = "cluster 7 does not take this store, as h:1 says: store 2, s2, was heard 3 s ago";
    assert_eq!(refusal.to_string(), words);
    // A leader that changes in between is no progress, and none is no reason.
    let mut join = replacement();
    assert_eq!(round(&mut join, NOW, &heard), Ok(JoinStep::Pause));
    let later = NOW.after_ms(60_000);
    assert_eq!(round(&mut join, later, &silent()), Ok(JoinStep::Pause));
    assert_eq!(round(&mut join, later, &heard), Ok(JoinStep::Pause));
    // A store that joins has nothing to wait for: no leader says that to it.
    let mut joins = self::join(&["h:1", "h:2"]);
    assert_eq!(round(&mut joins, NOW, &heard), Ok(JoinStep::Pause));
    assert_eq!(round(&mut joins, later, &heard), Ok(JoinStep::Pause));
}

#[test]
fn a_cluster_without_a_quorum_replaces_no_store() {
    let alone = || member_of(CLUSTER, None, StoreReach { stores: 3, connected: 1 });
    let ask = |join: &mut Join, now: Time, answer: JoinAnswer| {
        join.hear(now, silent()).unwrap();
        join.hear(now, answer)
    };
    let mut join = replacement();
    assert_eq!(ask(&mut join, NOW, alone()), Ok(JoinStep::Pause));
    let words = "no quorum: 2 of 3 stores are gone; replace needs one";
    assert!(join.waiting().contains(words), "{}", join.waiting());
    assert_eq!(ask(&mut join, NOW.after_ms(7_999), alone()), Ok(JoinStep::Pause));
    let refusal = ask(&mut join, NOW.after_ms(8_000), alone()).unwrap_err();
    assert!(refusal.to_string().starts_with(words), "{refusal}");
    assert!(matches!(refusal, JoinRefusal::NoQuorum { by, .. } if by == "h:2"));

    // The leader that was heard of may be the very store that is gone.
    let mut join = replacement();
    for (now, is_late) in [(NOW, false), (NOW.after_ms(8_000), true)] {
        join.hear(now, silent()).unwrap();
        let hearsay = member_of(CLUSTER, Some("h:9"), StoreReach { stores: 3, connected: 1 });
        assert_eq!(join.hear(now, hearsay), Ok(JoinStep::Ask));
        assert_eq!(join.hear(now, silent()).is_err(), is_late);
    }
    // An election is no missing quorum.
    let mut join = replacement();
    for now in [NOW, NOW.after_ms(60_000)] {
        let two = member_of(CLUSTER, None, StoreReach { stores: 3, connected: 2 });
        assert_eq!(ask(&mut join, now, two), Ok(JoinStep::Pause));
    }
}
