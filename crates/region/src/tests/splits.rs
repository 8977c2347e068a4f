//! Tests of splits: the new regions have leaders at once, and no request is answered by the wrong
//! region.

use bytes::Bytes;

use super::cluster::{Cluster, REGION, descriptor, new_replica, peer};
use super::machine::Answer;
use crate::*;

const CHILD: RegionId = RegionId(8);

/// Cuts the test region in two at `border`.
fn halves(border: &'static str, version: u64) -> SplitCommand {
    let peers = (1..=3).map(|store| PeerId(CHILD.0 * 100 + store)).collect();
    let end = Bytes::from_static(border.as_bytes());
    let epoch = Epoch { version, ..descriptor(3).epoch };
    SplitCommand { epoch, children: vec![SplitChild { id: CHILD, end, peers }] }
}

fn leads(cluster: &Cluster, region: RegionId, store: u64) -> bool {
    let status = cluster.machines[&store].shard.status(region);
    status.is_some_and(|status| status.role == Role::Leader && status.commit > SPLIT_INDEX)
}

#[test]
fn the_new_region_is_led_from_the_same_store_within_a_few_messages() {
    let mut cluster = Cluster::new(1, Config::default());
    let leader = cluster.elect();
    let put = cluster.put(leader, "a", 1);
    assert_eq!(cluster.answer(put), Answer::Done);
    let split = cluster.split(leader, halves("m", 1));
    assert_eq!(cluster.answer(split), Answer::Done);
    cluster.run(50);
    assert!(leads(&cluster, CHILD, leader), "an election timeout passes before it has a leader");
    let read = cluster.read_of(CHILD, leader, "a", false);
    assert_eq!(
        cluster.answer(read),
        Answer::Value(Some(Bytes::copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1])))
    );
    for (region, key) in [(CHILD, "b"), (REGION, "n")] {
        let put = cluster.put_into(region, leader, key, 2);
        assert_eq!(cluster.answer(put), Answer::Done, "{region}");
    }
    cluster.run(500);
    for machine in cluster.machines.values() {
        let child = machine.shard.descriptor(CHILD).unwrap();
        let parent = machine.shard.descriptor(REGION).unwrap();
        assert_eq!((&child.start[..], &child.end[..]), (&b""[..], &b"m"[..]));
        assert_eq!((&parent.start[..], &parent.end[..]), (&b"m"[..], &b""[..]));
        assert_eq!(parent.epoch, Epoch { conf_version: 1, version: 2 });
        assert_eq!(machine.disks[&CHILD].applied.0, Index(7), "an empty entry and a put");
        assert_eq!(machine.shard.stats().splits, 1);
    }
}

/// A new region has one replica until the followers have applied the split.
#[test]
fn followers_hear_of_a_split_before_the_next_heartbeat() {
    let config = Config { heartbeat_ticks: 6, election_ticks: 40, ..Config::default() };
    let mut cluster = Cluster::new(4, config);
    let leader = cluster.elect();
    cluster.run(1000);
    let split = cluster.split(leader, halves("m", 1));
    assert_eq!(cluster.answer(split), Answer::Done);
    cluster.run(40);
    for machine in cluster.machines.values() {
        assert!(machine.shard.descriptor(CHILD).is_some(), "a follower waits for a heartbeat");
    }
    assert!(leads(&cluster, CHILD, leader));
}

#[test]
fn proposals_of_the_old_range_are_refused_wherever_they_are() {
    let config = Config { pipeline_depth: 1, merge_count_max: 1, ..Config::default() };
    let mut cluster = Cluster::new(2, config);
    let leader = cluster.elect();
    let before = cluster.put(leader, "a", 1);
    let split = cluster.split(leader, halves("m", 1));
    let behind: Vec<_> = (2..40).map(|value| cluster.put(leader, "z", value)).collect();
    assert_eq!(cluster.answer(before), Answer::Done, "it was before the split");
    assert_eq!(cluster.answer(split), Answer::Done);
    for put in behind {
        let answer = cluster.answer(put);
        let Answer::Rejected(Reject::EpochNotMatch { current }) = answer else {
            panic!("a proposal of the old range: {answer:?}");
        };
        assert!(current.iter().all(|region| region.epoch.version == 2));
    }
    let again = cluster.put(leader, "z", 50);
    assert_eq!(cluster.answer(again), Answer::Done);
}

#[test]
fn a_split_of_another_version_or_with_wrong_borders_is_refused() {
    let mut cluster = Cluster::new(3, Config::default());
    let leader = cluster.elect();
    let follower = leader % 3 + 1;
    let refused = |cluster: &mut Cluster, store, split| {
        let ticket = cluster.split(store, split);
        match cluster.answer(ticket) {
            Answer::Rejected(why) => why,
            answer => panic!("{answer:?}"),
        }
    };
    let why = refused(&mut cluster, follower, halves("m", 1));
    assert!(matches!(why, Reject::NotLeader { leader: Some(_) }), "{why:?}");
    let why = refused(&mut cluster, leader, halves("m", 2));
    assert!(matches!(why, Reject::EpochNotMatch { .. }), "{why:?}");
    let why = refused(&mut cluster, leader, halves("", 1));
    assert_eq!(why, Reject::InvalidSplit(SplitError::Borders));
    // Two that are asked for at once: the second has lost its version when it is applied.
    let one = cluster.split(leader, halves("m", 1));
    let two = cluster.split(leader, halves("p", 1));
    assert_eq!(cluster.answer(one), Answer::Done);
    assert!(matches!(cluster.answer(two), Answer::Rejected(_)));
}

/// The child has a leader, a log and answers while a third store is away; it finds all of it in its
/// parent's log.
#[test]
fn a_store_that_was_away_makes_the_child_when_it_has_caught_up() {
    let mut cluster = Cluster::new(4, Config::default());
    let leader = cluster.elect();
    let away = leader % 3 + 1;
    cluster.isolate(away);
    let split = cluster.split(leader, halves("m", 1));
    assert_eq!(cluster.answer(split), Answer::Done);
    cluster.run_until("a leader of the child", |cluster| leads(cluster, CHILD, leader));
    let put = cluster.put_into(CHILD, leader, "b", 2);
    assert_eq!(cluster.answer(put), Answer::Done);
    cluster.run(3000);
    assert!(cluster.machines[&away].shard.status(CHILD).is_none());
    cluster.heal();
    cluster.run_until("the child on all stores", |cluster| {
        let store = &cluster.machines[&away];
        store.disks.get(&CHILD).is_some_and(|disk| disk.applied.2.contains_key(&b"b"[..]))
    });
}

/// A split keeps the lease of the parent and gives none to the child: a leader that was cut off
/// answers no read of keys that another store writes meanwhile. (The cluster compares each read
/// with what was answered before.)
#[test]
fn a_leader_that_is_cut_off_amid_a_split_serves_nothing_stale() {
    for seed in 0..30 {
        let mut cluster = Cluster::new(100 + seed, Config::default());
        let leader = cluster.elect();
        let put = cluster.put(leader, "a", 1);
        cluster.answer(put);
        cluster.split(leader, halves("m", 1));
        cluster.run(seed % 12);
        cluster.isolate(leader);
        for round in 2..40 {
            cluster.read(leader, "a", false);
            cluster.read_of(CHILD, leader, "a", false);
            for store in (1..=3).filter(|store| *store != leader) {
                cluster.put_into(CHILD, store, "a", round);
                cluster.put_into(REGION, store, "a", round);
            }
            cluster.run(50);
        }
        cluster.heal();
        cluster.run(3000);
        let leader = cluster.elect();
        let put = cluster.put(leader, "z", 1000);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
}

/// The births of a step lie behind its writes in the log, and repeat the parent's state: a commit
/// index that was raised in the same step does not go back.
#[test]
fn a_birth_does_not_take_a_commit_back() {
    let mut shard = Shard::new(Config::default());
    let (region, peer) = (descriptor(1), descriptor(1).peers[0].id);
    shard.create(Time(0), RecoveredReplica::fresh(region.clone(), peer), true).unwrap();
    let mut now = 0;
    let mut step = |events: Vec<Event>| {
        let mut effects = Effects::default();
        now += 1;
        shard.step(Time(now), events.into_iter(), &mut effects);
        effects
    };
    let persisted = |effects: &Effects| -> Vec<Event> {
        let writes = effects.log.writes.iter();
        writes.map(|write| Event::Persisted { region: REGION, number: write.number }).collect()
    };
    let voted = step(vec![]);
    let led = step(persisted(&voted));
    let committed = step(persisted(&led));
    let applied = Event::Applied { region: REGION, index: Index(1), changes: vec![], size: None };
    step([persisted(&committed), vec![applied]].concat());
    let mut split = halves("m", 1);
    split.children[0].peers.truncate(1);
    let regions = split.divide(&region).unwrap();
    let proposed = step(vec![Event::Split { region: REGION, ticket: Ticket(1), split }]);
    let committed = step(persisted(&proposed));
    assert_eq!(committed.apply[0].entries[0].entry.index, Index(2));
    let precondition = RequestPrecondition::default();
    let command = Bytes::from_static(b"a");
    let put = Event::Propose { region: REGION, ticket: Ticket(2), precondition, command };
    let proposed = step([persisted(&committed), vec![put]].concat());
    let changes = vec![RegionChange::Split { index: Index(2), regions }];
    let applied = Event::Applied { region: REGION, index: Index(2), changes, size: None };
    let effects = step([vec![applied], persisted(&proposed)].concat());
    let written = effects.log.writes.last().unwrap().hard_state.unwrap();
    assert_eq!(written.commit, Index(3));
    let BirthOrigin::Split { parent_hard_state, .. } = effects.log.births[0].origin else {
        panic!("{:?}", effects.log.births)
    };
    assert_eq!(parent_hard_state, written);
}

/// Puts so many rows into the region, which is too large from the eleventh on.
fn fill(cluster: &mut Cluster, leader: u64, rows: u64) {
    let puts: Vec<_> = (0..rows).map(|n| cluster.put(leader, &format!("z{n:02}"), n + 1)).collect();
    for put in puts {
        assert_eq!(cluster.answer(put), Answer::Done);
    }
}

fn too_large_with_ten_rows(seed: u64) -> Cluster {
    let split = SplitLimits { keys_max: 10, ..SplitLimits::default() };
    Cluster::new(seed, Config { split, ..Config::default() })
}

/// A learner that waits for its data would need a snapshot of each part.
#[test]
fn a_learner_without_data_holds_a_split_back_for_a_while_and_one_with_data_does_not() {
    // Milliseconds of the snapshot, rows, and when a split is wanted.
    for (snapshot_ms, rows, least, most) in [
        (1, 11, 0, 2_000),
        (5_000, 11, 5_000, 7_000),
        (60_000, 11, 9_000, 12_000),
        (60_000, 21, 0, 2_000),
    ] {
        let mut cluster = too_large_with_ten_rows(6);
        cluster.snapshot_ms = snapshot_ms;
        cluster.add_store(4);
        let leader = cluster.elect();
        let add = cluster.change(leader, MembershipChange::Add(peer(4)));
        assert_eq!(cluster.answer(add), Answer::Done);
        // It has been asked for a snapshot.
        cluster.run(200);
        fill(&mut cluster, leader, rows);
        let wanted = |cluster: &Cluster| cluster.machines[&leader].split_wishes.len();
        if least > 0 {
            cluster.run(least - 1_000);
            assert_eq!(wanted(&cluster), 0, "a snapshot of {snapshot_ms} ms, {rows} rows");
        }
        cluster.run(most - least.saturating_sub(1_000));
        assert!(wanted(&cluster) > 0, "a snapshot of {snapshot_ms} ms, {rows} rows");
    }
}

/// A voter that answers and lacks the last split may need a snapshot of what came of it.
#[test]
fn a_voter_that_lacks_the_last_split_holds_the_next_one_back() {
    let mut cluster = too_large_with_ten_rows(7);
    let leader = cluster.elect();
    let behind = leader % 3 + 1;
    let run = |cluster: &mut Cluster, ms| {
        for _ in 0..ms {
            cluster.run(1);
            for envelope in cluster.intercept(MessageKind::Append) {
                if envelope.to.store.0 != behind {
                    cluster.push(envelope.to.store.0, Event::Message(envelope));
                }
            }
        }
    };
    cluster.split(leader, halves("m", 1));
    run(&mut cluster, 500);
    for n in 0..12 {
        cluster.put(leader, &format!("z{n:02}"), n + 1);
    }
    run(&mut cluster, 3_000);
    let wanted = |cluster: &Cluster| cluster.machines[&leader].split_wishes.len();
    let led = &cluster.machines[&leader];
    assert_eq!(led.shard.descriptor(REGION).unwrap().epoch.version, 2);
    assert_eq!(led.disks[&REGION].applied.2.len(), 12);
    assert_eq!(wanted(&cluster), 0, "store {behind} lacks the split");
    cluster.run_until("a wish, once it has caught up", |cluster| wanted(cluster) > 0);
}

/// A start keeps a vote that it finds in the log of a replica whose birth its rows do not have: the
/// replica does not vote twice in a term.
#[test]
fn an_unborn_replica_takes_no_message_and_keeps_its_vote() {
    let mut shard = Shard::new(Config::default());
    let child = Descriptor {
        id: CHILD,
        peers: (1..=3).map(|s| Peer { id: PeerId(800 + s), store: StoreId(s) }.into()).collect(),
        ..descriptor(3)
    };
    let vote = HardState { term: Term(7), vote: Some(PeerId(802)), commit: SPLIT_INDEX };
    let unborn = UnbornReplica {
        region: CHILD,
        peer: PeerId(801),
        parent: REGION,
        hard_state: vote,
        terms: vec![],
        last: SPLIT_INDEX,
        tail: vec![],
    };
    shard.keep_unborn(unborn.clone()).unwrap();
    assert_eq!(shard.keep_unborn(unborn), Err(CreateReplicaError::Exists(CHILD)));
    let message = Message {
        kind: MessageKind::RequestVote,
        term: Term(7),
        log_term: SPLIT_TERM,
        index: SPLIT_INDEX,
        ..Message::default()
    };
    let asked = Envelope {
        region: CHILD,
        from: child.peers[2].address(),
        to: child.peers[0].address(),
        epoch: child.epoch,
        gc_floor: Index(0),
        range: None,
        message,
    };
    let mut effects = Effects::default();
    shard.step(Time(1), [Event::Message(asked)].into_iter(), &mut effects);
    assert!(effects.is_empty() && shard.status(CHILD).is_none(), "{effects:?}");
    let new = new_replica(child, PeerId(801), true);
    shard.step(Time(2), [Event::Create(new)].into_iter(), &mut effects);
    let status = shard.status(CHILD).unwrap();
    assert_eq!((status.term, status.role), (Term(7), Role::Follower), "it may have promised");
    assert_eq!(effects.messages, [], "the vote of the term was given");
}
