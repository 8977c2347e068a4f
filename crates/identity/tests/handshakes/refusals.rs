//! Each reason not to take a store's messages, and the words that say so.

use std::collections::BTreeMap;

use flotilla_identity::{
    ClusterSettings, Handshake, HandshakeRefusal, HelloDecision, PeerWrite, RunHistory, StoreHello,
    StoreRegistry, StoreRun, StoreState, StoreUuid,
};
use flotilla_region::StoreId;

use crate::members::{CLUSTER, introduction, known, registry, remembered, uuid};

const RUN: StoreRun = StoreRun { starts: 5, nonce: 55 };

/// Store 1 in its fifth start, which has taken messages of the third start of store 2.
fn first(registry: StoreRegistry, is_meant_alone: bool) -> Handshake {
    let runs = (1..=5).map(|starts| (starts, (starts * 11, starts * 100))).collect();
    let known = remembered([(StoreId(2), StoreRun { starts: 3, nonce: 33 })].into());
    Handshake::new(introduction(1, RUN), RunHistory { runs }, registry, known, is_meant_alone)
}

/// A greeting of store `id` to store 1, in its third start.
fn hello(id: u64) -> StoreHello {
    let run = StoreRun { starts: 3, nonce: 33 };
    StoreHello { to: StoreId(1), expected_uuid: Some(uuid(1)), ..introduction(id, run) }
}

fn refusal(registry: StoreRegistry, hello: &StoreHello) -> HandshakeRefusal {
    match first(registry, false).decide(hello, 500) {
        HelloDecision::Refuse(refusal) => refusal,
        decision => panic!("{hello:?} is not refused: {decision:?}"),
    }
}

fn stop(registry: StoreRegistry, hello: &StoreHello) -> String {
    match first(registry, false).decide(hello, 500) {
        HelloDecision::Stop(words) => words,
        decision => panic!("{hello:?} does not stop the store: {decision:?}"),
    }
}

fn assert_says(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "`{part}` is missing: {words}");
    }
}

#[test]
fn a_known_start_is_taken_and_no_other() {
    let mut own = first(registry(1..=3), false);
    let hello = hello(2);
    assert!(!own.takes(StoreId(2), uuid(2), hello.run), "before the handshake");
    assert_eq!(own.decide(&hello, 500), HelloDecision::Accept(None));
    own.accept(&hello);
    assert!(own.takes(StoreId(2), uuid(2), hello.run));
    assert!(!own.takes(StoreId(2), StoreUuid(9), hello.run));
    assert!(!own.takes(StoreId(2), uuid(2), StoreRun { starts: 2, nonce: 22 }));
    assert!(!own.takes(StoreId(3), uuid(3), hello.run));
}

#[test]
fn a_new_start_is_taken_once_it_found_the_former_one() {
    let mut own = first(registry(1..=3), false);
    let run = StoreRun { starts: 4, nonce: 44 };
    let mut hello = StoreHello { run, ..hello(2) };
    assert_eq!(own.decide(&hello, 500), HelloDecision::Unconfirmed);
    hello.confirmed = known(2, 22, 0);
    assert_eq!(own.decide(&hello, 500), HelloDecision::Unconfirmed, "an earlier one");
    hello.confirmed = own.greet(StoreId(2)).known;
    let HelloDecision::Accept(Some(write)) = own.decide(&hello, 500) else {
        panic!("a start that is new has to be remembered")
    };
    assert_eq!((write.store, write.run), (StoreId(2), run));
    own.accept(&hello);
    assert!(own.takes(StoreId(2), uuid(2), run));
    assert!(!own.takes(StoreId(2), uuid(2), StoreRun { starts: 3, nonce: 33 }));
}

/// The registry of three stores as it is once store 4 has joined.
fn grown() -> StoreRegistry {
    StoreRegistry { version: 2, ..registry(1..=4) }
}

#[test]
fn a_store_that_joined_later_is_taken_once_it_shows_the_registry() {
    let mut own = first(registry(1..=3), false);
    let hello = StoreHello { expected_uuid: None, registry_version: 2, ..hello(4) };
    assert_eq!(own.decide(&hello, 500), HelloDecision::Unconfirmed, "it must show it first");
    let shown = StoreHello { registry: Some(Box::new(grown())), ..hello };
    assert_eq!(own.decide(&shown, 500), HelloDecision::Learn(Box::new(grown())));
    assert!(own.learn_registry(grown()));
    assert!(!own.learn_registry(grown()), "it is no news");
    assert!(matches!(own.decide(&shown, 500), HelloDecision::Accept(Some(_))));
    own.accept(&shown);
    assert!(own.takes(StoreId(4), uuid(4), shown.run));
    assert!(!own.takes(StoreId(4), StoreUuid(9), shown.run));
    // By its directory, not by its id.
    let run = StoreRun { starts: 4, nonce: 9 };
    let stranger = StoreHello { uuid: StoreUuid(9), run, ..shown };
    let decision = own.decide(&stranger, 500);
    let expected =
        HandshakeRefusal::WrongUuid { store: StoreId(4), expected: uuid(4), found: StoreUuid(9) };
    assert_eq!(decision, HelloDecision::Refuse(expected));
}

#[test]
fn a_registry_that_is_no_later_state_of_the_own_one_is_refused() {
    let mut other = grown();
    other.stores[2].uuid = StoreUuid(9);
    for shown in [other, StoreRegistry { version: 2, ..registry([1, 2, 4]) }] {
        let mut own = first(registry(1..=3), false);
        assert!(!own.learn_registry(shown.clone()));
        let registry = Some(Box::new(shown));
        let hello = StoreHello { registry_version: 2, registry, ..hello(2) };
        let HelloDecision::Refuse(refusal) = own.decide(&hello, 500) else {
            panic!("it is not refused")
        };
        assert_says(&refusal.to_string(), &["store 2", "version 2", "version 1", "no later state"]);
    }
    // One of another cluster is not even looked at.
    let mut own = first(registry(1..=3), false);
    let registry = Some(Box::new(grown()));
    let mut hello = StoreHello { registry_version: 2, registry, ..hello(4) };
    hello.from.cluster_id = 8;
    let decision = own.decide(&hello, 500);
    assert!(matches!(decision, HelloDecision::Refuse(HandshakeRefusal::OtherCluster { .. })));
}

#[test]
fn the_registry_is_shown_to_a_store_that_is_known_to_be_behind() {
    let mut own = first(grown(), false);
    assert_eq!(own.greet(StoreId(2)).registry, None, "not known to be behind");
    assert!(matches!(
        own.decide(&StoreHello { registry_version: 1, ..hello(2) }, 500),
        HelloDecision::Accept(None)
    ));
    let greeting = own.greet(StoreId(2));
    assert_eq!((greeting.registry_version, greeting.registry), (2, Some(Box::new(grown()))));
    own.decide(&StoreHello { registry_version: 2, ..hello(2) }, 500);
    assert_eq!(own.greet(StoreId(2)).registry, None, "it has it by now");
}

/// Store 3 was down while store 4 joined, and no other store is there to tell it: the two take each
/// other in two exchanges, each by what it has itself.
#[test]
fn two_stores_meet_although_one_does_not_know_the_other() {
    let own = |id: u64, registry: StoreRegistry| {
        let run = StoreRun { starts: 3, nonce: 33 };
        let history = RunHistory { runs: [(3, (33, 0))].into() };
        Handshake::new(introduction(id, run), history, registry, Vec::new(), false)
    };
    let (mut third, mut fourth) = (own(3, registry(1..=3)), own(4, grown()));
    let judge = |by: &mut Handshake, hello: &StoreHello| {
        let mut decision = by.decide(hello, 0);
        if let HelloDecision::Learn(registry) = decision {
            assert!(by.learn_registry(*registry));
            decision = by.decide(hello, 0);
        }
        let is_taken = matches!(decision, HelloDecision::Accept(_));
        if is_taken {
            by.accept(hello);
        }
        is_taken
    };
    let mut taken = Vec::new();
    for _ in 0..2 {
        let (there, back) = (fourth.greet(StoreId(3)), third.greet(StoreId(4)));
        taken.push((judge(&mut third, &there), judge(&mut fourth, &back)));
    }
    assert_eq!(taken, [(false, true), (true, true)]);
    assert_eq!(third.registry(), &grown());
}

#[test]
fn a_store_of_another_cluster_is_refused() {
    let mut hello = hello(2);
    hello.from.cluster_id = 8;
    let refusal = refusal(registry(1..=3), &hello);
    assert!(matches!(refusal, HandshakeRefusal::OtherCluster { .. }));
    assert_says(&refusal.to_string(), &["s1", "cluster 7", "cluster 8"]);
}

#[test]
fn a_lone_store_that_is_dialled_for_another_cluster_ends_unless_it_is_meant_alone() {
    let mut hello = hello(2);
    hello.from.cluster_id = 8;
    let words = stop(registry([1]), &hello);
    assert_says(&words, &["store 1", "cluster 8", "s2 at h:2", "cluster 7", "--new"]);
    let decision = first(registry([1]), true).decide(&hello, 500);
    assert!(matches!(decision, HelloDecision::Refuse(HandshakeRefusal::OtherCluster { .. })));
}

#[test]
fn a_greeting_for_another_store_is_refused() {
    let meant = StoreHello { to: StoreId(3), ..hello(2) };
    let words = refusal(registry(1..=3), &meant).to_string();
    assert_says(&words, &["store 1", "store 3"]);
    let same = refusal(registry(1..=3), &hello(1));
    assert!(matches!(same, HandshakeRefusal::Misdirected { .. }), "it says that it is this store");
}

#[test]
fn stores_that_are_not_listed_or_gone_are_refused() {
    let without_2 = registry([1, 3]);
    let words = refusal(without_2, &hello(2)).to_string();
    assert_says(&words, &["cluster 7", "store 2"]);
    for state in [StoreState::Lost, StoreState::Removed] {
        let mut registry = registry(1..=3);
        registry.stores[1].state = state;
        assert_eq!(refusal(registry, &hello(2)), HandshakeRefusal::Gone { store: StoreId(2) });
    }
    for state in [StoreState::Draining, StoreState::Leaving] {
        let mut registry = registry(1..=3);
        registry.stores[1].state = state;
        let decision = first(registry, false).decide(&hello(2), 500);
        assert_eq!(decision, HelloDecision::Accept(None));
    }
}

/// R19: a store that is lost takes no part from the moment at which that is known.
#[test]
fn a_store_that_is_gone_is_not_heard_any_more_and_learns_that_it_must_stop() {
    for state in [StoreState::Lost, StoreState::Removed] {
        let mut own = first(registry(1..=3), false);
        let greeting = hello(2);
        own.accept(&greeting);
        assert!(own.takes(StoreId(2), uuid(2), greeting.run));
        let mut later = StoreRegistry { version: 2, ..registry(1..=3) };
        later.stores[1].state = state;
        assert!(own.learn_registry(later.clone()));
        assert!(!own.takes(StoreId(2), uuid(2), greeting.run), "its stream is open still");
        // It greets, and is shown the registry that says so.
        let back = StoreHello { registry_version: 1, ..greeting };
        let refused = HelloDecision::Refuse(HandshakeRefusal::Gone { store: StoreId(2) });
        assert_eq!(own.decide(&back, 500), refused);
        let answer = own.greet(StoreId(2));
        assert_eq!(answer.registry.as_deref(), Some(&later));
        let run = StoreRun { starts: 3, nonce: 33 };
        let history = RunHistory { runs: [(3, (33, 0))].into() };
        let mut lost =
            Handshake::new(introduction(2, run), history, registry(1..=3), vec![], false);
        assert_eq!(lost.decide(&answer, 0), HelloDecision::Learn(Box::new(later.clone())));
        assert!(lost.learn_registry(later));
        let HelloDecision::Stop(words) = lost.decide(&answer, 0) else { panic!("it goes on") };
        assert_says(&words, &["store 2, s2,", "never takes part again"]);
    }
}

/// All that a lost store knows are addresses, and those are of its successors by now.
#[test]
fn a_lost_store_learns_that_also_from_a_store_that_it_does_not_know() {
    let mut later = StoreRegistry { version: 3, ..registry(1..=4) };
    later.stores[0].state = StoreState::Lost;
    later.stores[1].state = StoreState::Lost;
    let run = StoreRun { starts: 1, nonce: 11 };
    let history = RunHistory { runs: [(1, (11, 0))].into() };
    let mut successor = Handshake::new(introduction(4, run), history, later.clone(), vec![], false);
    // It means store 1, whose address store 4 has now.
    let back = StoreHello { registry_version: 1, ..hello(2) };
    let misdirected = HandshakeRefusal::Misdirected { ours: StoreId(4), meant: StoreId(1) };
    assert_eq!(successor.decide(&back, 0), HelloDecision::Refuse(misdirected));
    let answer = successor.greet(StoreId(2));
    let run = StoreRun { starts: 3, nonce: 33 };
    let history = RunHistory { runs: [(3, (33, 0))].into() };
    let mut lost = Handshake::new(introduction(2, run), history, registry(1..=3), vec![], false);
    assert_eq!(lost.decide(&answer, 0), HelloDecision::Learn(Box::new(later)));
}

#[test]
fn another_directory_is_refused_and_told() {
    let found = StoreHello { uuid: StoreUuid(9), ..hello(2) };
    let words = refusal(registry(1..=3), &found).to_string();
    let (expected, found) = (uuid(2).to_string(), StoreUuid(9).to_string());
    assert_says(&words, &["store 2", &expected, &found, "lost its data"]);

    let expected = StoreHello { expected_uuid: Some(StoreUuid(9)), ..hello(2) };
    let words = stop(registry(1..=3), &expected);
    let (expected, own) = (StoreUuid(9).to_string(), uuid(1).to_string());
    assert_says(&words, &["s2 at h:2", &expected, &own, "lost its data", "bring its disk back"]);
}

#[test]
fn an_older_level_is_refused() {
    let mut registry = registry(1..=3);
    registry.level = 3;
    let old = StoreHello { level: 2, ..hello(2) };
    let words = refusal(registry.clone(), &old).to_string();
    assert_says(&words, &["store 2", "level 2", "needs 3"]);
    let same = StoreHello { level: 3, ..hello(2) };
    assert_eq!(first(registry, false).decide(&same, 500), HelloDecision::Accept(None));
}

#[test]
fn settings_of_one_version_must_be_equal() {
    let settings = ClusterSettings { election_ticks: 13, ..ClusterSettings::default() };
    let differs = StoreHello { settings, ..hello(2) };
    let words = refusal(registry(1..=3), &differs).to_string();
    assert_says(&words, &["raft.election_ticks", "12 here", "13 there"]);
    let newer = ClusterSettings { version: 2, ..settings };
    let mut own = first(registry(1..=3), false);
    let newer_hello = StoreHello { settings: newer, ..hello(2) };
    assert_eq!(own.decide(&newer_hello, 500), HelloDecision::TakeUp(newer));
    assert_eq!(own.settings().version, 1, "they are not in force");
    assert!(own.learn_settings(newer) && !own.learn_settings(newer));
    assert_eq!(own.settings(), &newer);
    assert_eq!(own.decide(&newer_hello, 500), HelloDecision::Accept(None));
    assert_eq!(own.decide(&hello(2), 500), HelloDecision::Accept(None), "it learns them from here");
}

#[test]
fn an_older_start_of_a_store_is_refused() {
    for run in [StoreRun { starts: 2, nonce: 22 }, StoreRun { starts: 3, nonce: 34 }] {
        let older = StoreHello { run, ..hello(2) };
        let words = refusal(registry(1..=3), &older).to_string();
        let known = StoreRun { starts: 3, nonce: 33 }.to_string();
        assert_says(&words, &["store 2", &known, &run.to_string(), "older copy"]);
    }
}

#[test]
fn a_store_whose_later_state_was_heard_ends() {
    let registry = registry(1..=3);
    let says = |known| StoreHello { known, ..hello(2) };
    for (starts, nonce) in [(6, 66), (5, 56), (3, 34)] {
        let words = stop(registry.clone(), &says(known(starts, nonce, 0)));
        let heard = StoreRun { starts, nonce }.to_string();
        assert_says(&words, &["older copy", "s2 at h:2", &heard, "5 starts"]);
    }
    // The log ended at 400 when start 4 opened it, and is at 500 now.
    for (starts, heard, ends) in [(3, 401, 400), (5, 501, 500)] {
        let words = stop(registry.clone(), &says(known(starts, starts * 11, heard)));
        assert_says(&words, &["older copy", &format!("up to {heard}"), &format!("at {ends}")]);
        let same = says(known(starts, starts * 11, ends));
        let decision = first(registry.clone(), false).decide(&same, 500);
        assert_eq!(decision, HelloDecision::Accept(None));
    }
}

#[test]
fn starts_before_the_history_are_forgotten_and_without_a_history_all_are_missing() {
    let says = |starts| StoreHello { known: known(starts, 1, 0), ..hello(2) };
    let with = |runs| {
        let history = RunHistory { runs };
        let known = Vec::new();
        Handshake::new(introduction(1, RUN), history, registry(1..=3), known, false)
    };
    let mut own = with(BTreeMap::from([(4, (44, 0)), (5, (55, 0))]));
    assert!(matches!(own.decide(&says(3), 0), HelloDecision::Accept(_)));
    assert!(matches!(own.decide(&says(4), 0), HelloDecision::Stop(_)));
    let mut own = with(BTreeMap::new());
    assert!(matches!(own.decide(&says(3), 0), HelloDecision::Stop(_)));
}

#[test]
fn an_address_is_that_of_the_latest_start() {
    let mut own = first(registry(1..=3), false);
    assert_eq!(own.address(StoreId(2)), Some("h:2"), "as the registry has it");
    own.accept(&StoreHello { address: "moved:2".to_owned(), ..hello(2) });
    assert_eq!(own.address(StoreId(2)), Some("moved:2"));
    let mut newer = registry(1..=3);
    newer.version = 2;
    newer.stores[1].run = StoreRun { starts: 4, nonce: 44 };
    assert!(own.learn_registry(newer.clone()) && !own.learn_registry(newer));
    assert_eq!(own.address(StoreId(2)), Some("h:2"), "the registry knows a later start");
    assert_eq!(own.registry().version, 2);
    own.accept(&hello(4));
    assert_eq!(own.address(StoreId(4)), Some("h:4"), "it is not in the registry yet");
    assert_eq!(own.address(StoreId(5)), None);
    assert_eq!(own.greet(StoreId(2)).from.cluster_id, CLUSTER);
}

/// Else two stores that moved one after the other would look for each other where neither is.
#[test]
fn an_address_that_was_heard_outlives_the_start() {
    let run = StoreRun { starts: 3, nonce: 33 };
    let moved = PeerWrite { store: StoreId(2), run, address: "moved:2".to_owned() };
    let history = RunHistory::default();
    let own = Handshake::new(introduction(1, RUN), history, registry(1..=3), vec![moved], false);
    assert_eq!(own.address(StoreId(2)), Some("moved:2"));
    assert_eq!(own.address(StoreId(3)), Some("h:3"));
}
