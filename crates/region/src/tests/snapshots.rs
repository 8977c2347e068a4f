//! Tests of snapshots: replicas without data are fed, and nothing that was promised is forgotten.

use super::cluster::{Cluster, REGION, peer};
use super::machine::Answer;
use crate::*;

fn write(cluster: &mut Cluster, leader: u64, count: u64) {
    for value in 1..=count {
        let put = cluster.put(leader, "a", cluster.now * 1000 + value);
        assert_eq!(cluster.answer(put), Answer::Done);
    }
}

fn are_equal(cluster: &Cluster, a: u64, b: u64) -> bool {
    let state = |store| {
        let machine = &cluster.machines[&store];
        // A snapshot that is being installed does not count yet.
        let status = machine.shard.status(REGION)?;
        let applied = &machine.disks[&REGION].applied;
        (status.applied == applied.0).then_some(applied)
    };
    state(a).is_some() && state(a) == state(b)
}

#[test]
fn a_replica_without_data_is_fed_and_follows() {
    let mut cluster = Cluster::new(1, Config::default());
    cluster.without_data_on(3);
    let leader = cluster.elect();
    write(&mut cluster, leader, 20);
    cluster.run_until("fed", |cluster| are_equal(cluster, 3, leader));
    write(&mut cluster, leader, 20);
    cluster.run_until("it follows", |cluster| are_equal(cluster, 3, leader));
    cluster.run(1000);
    let stats = cluster.machines[&3].shard.stats();
    assert_eq!((stats.uninitialised, stats.snapshots_installed), (1, 1));
    assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1, "one is enough");
    assert!(cluster.machines[&3].stages.is_empty());
    // It has a vote and a log as every other one.
    cluster.crash(leader);
    cluster.run_until("another leader", |cluster| cluster.leader().is_some());
    let leader = cluster.elect();
    write(&mut cluster, leader, 5);
}

/// With a third dead the answers of a replica without data keep the leader, and its vote makes one.
#[test]
fn a_replica_without_data_votes_and_keeps_its_leader() {
    let mut cluster = Cluster::new(2, Config::default());
    cluster.without_data_on(3);
    cluster.snapshot_ms = 5000;
    assert_eq!(cluster.elect(), 1);
    cluster.run_until("a snapshot is on its way", |cluster| {
        cluster.machines[&1].shard.stats().snapshots_sent == 1
    });
    cluster.crash(2);
    let term = cluster.status(1).term;
    cluster.run(3000);
    assert_eq!((cluster.leader(), cluster.status(1).term), (Some(1), term), "nothing unseats it");
    assert!(cluster.find_status(3).is_none(), "the snapshot is on its way");
    // The vote of the replica without data is the missing one.
    cluster.machines.get_mut(&1).unwrap().checkpoint();
    cluster.crash(1);
    cluster.restart(1);
    cluster.run_until("it leads again", |cluster| cluster.leader() == Some(1));
    assert!(cluster.find_status(3).is_none());
    cluster.run_until("fed", |cluster| are_equal(cluster, 3, 1));
    write(&mut cluster, 1, 3);
}

/// A vote request of a candidate for the first region of the cluster.
fn asks(from: u64, to: u64, term: u64) -> Envelope {
    Envelope {
        region: REGION,
        from: peer(from),
        to: peer(to),
        epoch: Epoch { conf_version: 1, version: 1 },
        gc_floor: Index(0),
        range: Some(Box::new(super::cluster::descriptor(3).range())),
        message: Message { kind: MessageKind::RequestVote, term: Term(term), ..Message::default() },
    }
}

fn persisted(effects: &Effects) -> Vec<Event> {
    let told = |write: &LogWrite| Event::Persisted { region: REGION, number: write.number };
    effects.log.iter().map(told).collect()
}

struct Single {
    shard: Shard,
    now: u64,
}

impl Single {
    fn new() -> Self {
        Self { shard: Shard::new(Config::default()), now: 0 }
    }

    fn step(&mut self, events: Vec<Event>) -> Effects {
        let mut effects = Effects::default();
        self.now += 1;
        self.shard.step(Time(self.now), events.into_iter(), &mut effects);
        self.shard.check_invariants();
        effects
    }

    fn receive(&mut self, envelope: Envelope) -> Effects {
        self.step(vec![Event::Message(envelope)])
    }
}

/// R14, C13: neither before its birth is on disk, nor after a start does it vote twice in a term.
#[test]
fn a_replica_without_data_is_born_before_it_votes_and_votes_once() {
    let mut single = Single::new();
    let asked = single.receive(asks(1, 3, 7));
    assert_eq!(asked.unknown, [asks(1, 3, 7)]);
    assert!(asked.log.is_empty() && asked.births.is_empty() && asked.messages.is_empty());
    let other = single.receive(asks(2, 3, 6));
    assert!(other.is_empty(), "one question at a time: {other:?}");
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    let hard_state = HardState { term: Term(7), vote: Some(peer(1).id), commit: Index(0) };
    assert_eq!(
        born.births,
        [ReplicaBirth {
            region: REGION,
            peer: peer(3).id,
            hard_state,
            origin: BirthOrigin::Message
        }]
    );
    assert_eq!(
        (born.log.len(), born.log[0].hard_state, born.log[0].sync),
        (1, Some(hard_state), true)
    );
    assert!(born.messages.is_empty(), "its vote is not on disk: {born:?}");
    let again = single.receive(asks(1, 3, 7));
    assert!(again.is_empty(), "{again:?}");
    let voted = single.step(persisted(&born));
    assert!(!voted.messages.is_empty());
    for answer in &voted.messages {
        assert_eq!((answer.from, answer.to), (peer(3), peer(1)));
        let message = &answer.message;
        let kind = MessageKind::RequestVoteResponse;
        assert_eq!((message.kind, message.reject, message.term), (kind, false, Term(7)));
    }
    let refused = single.receive(asks(2, 3, 7));
    assert!(refused.messages[0].message.reject && refused.log.is_empty());

    let mut again = Single::new();
    let found = UninitialisedReplica { region: REGION, peer: peer(3).id, hard_state };
    again.shard.keep_uninitialised(found).unwrap();
    assert_eq!(again.shard.keep_uninitialised(found), Err(CreateReplicaError::Exists(REGION)));
    let refused = again.receive(asks(2, 3, 7));
    assert!(refused.messages[0].message.reject && refused.births.is_empty());
    let later = again.receive(asks(2, 3, 8));
    assert_eq!((later.log.len(), later.messages.len()), (1, 0));
    assert!(!again.step(persisted(&later)).messages[0].message.reject);
}

#[test]
fn a_replica_without_data_answers_as_an_empty_log_does() {
    let mut single = Single::new();
    let hard_state = HardState { term: Term(7), vote: None, commit: Index(0) };
    let found = UninitialisedReplica { region: REGION, peer: peer(3).id, hard_state };
    single.shard.keep_uninitialised(found).unwrap();
    let mut answer = |kind, term, spoil: fn(&mut Envelope)| {
        let mut envelope = asks(1, 3, term);
        envelope.message.kind = kind;
        spoil(&mut envelope);
        let effects = single.receive(envelope);
        let written = single.step(persisted(&effects));
        let mut answers = effects.messages.into_iter().chain(written.messages);
        let answer = answers.next().map(|answer| answer.message);
        assert_eq!(answers.next(), None);
        answer
    };
    let empty = |kind| Message { kind, term: Term(7), ..Message::default() };
    use MessageKind as Kind;
    assert_eq!(
        answer(Kind::Append, 7, |_| {}),
        Some(Message { reject: true, request_snapshot: Index(1), ..empty(Kind::AppendResponse) })
    );
    assert_eq!(
        answer(Kind::Heartbeat, 7, |e| e.message.context = bytes::Bytes::from_static(&[1; 24])),
        Some(empty(Kind::HeartbeatResponse)),
        "its answer counts for no read"
    );
    for kind in [Kind::Append, Kind::Heartbeat] {
        assert_eq!(answer(kind, 6, |_| {}), Some(empty(Kind::AppendResponse)), "a later term");
    }
    let pre_vote = empty(Kind::RequestPreVoteResponse);
    let refused = Some(Message { reject: true, ..pre_vote.clone() });
    assert_eq!(answer(Kind::RequestPreVote, 7, |_| {}), refused);
    assert_eq!(
        answer(Kind::RequestPreVote, 9, |_| {}),
        Some(Message { term: Term(9), ..pre_vote })
    );
    assert_eq!(answer(Kind::RequestVote, 6, |_| {}), None);
    for kind in [Kind::ReadIndex, Kind::RequestVoteResponse, Kind::Snapshot] {
        assert_eq!(answer(kind, 7, |_| {}), None, "{kind:?}");
    }
    assert_eq!(answer(Kind::Append, 7, |e| e.to.id = PeerId(9)), None);
    assert_eq!(answer(Kind::Append, 7, |e| e.from.id = PeerId(0)), None);
    assert_eq!(answer(Kind::RequestVote, 8, |e| e.message.context = "t".into()), None);
    assert_eq!(answer(Kind::Append, 8, |_| {}).unwrap().term, Term(8));
}

/// C2, C1b: the split that makes the region here takes the promises over.
#[test]
fn a_split_goes_on_with_the_vote_of_a_replica_without_data() {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    let descriptor = super::cluster::descriptor(3);
    let new = NewReplica { descriptor, peer: peer(3).id, campaigns: true };
    let created = single.step(vec![Event::Create(new)]);
    let status = single.shard.status(REGION).unwrap();
    assert_eq!((status.term, status.role), (Term(7), Role::Follower));
    assert!(created.messages.is_empty(), "its vote may not be on disk: {created:?}");
    assert_eq!(single.shard.uninitialised().count(), 0);
    // Late messages of its first life.
    single.step(vec![Event::Admitted(asks(2, 3, 7))]);
    let mut ask = asks(1, 3, 7);
    (ask.message.index, ask.message.log_term) = (SPLIT_INDEX, SPLIT_TERM);
    for _ in 0..100 {
        single.now += 50;
        assert!(single.receive(ask.clone()).messages.is_empty(), "its vote may not be on disk");
    }
    let answered = single.step(persisted(&born));
    let votes = answered.messages.iter().filter(|answer| !answer.message.reject);
    assert!(votes.clone().count() > 0 && votes.clone().all(|vote| vote.to == peer(1)));
}

#[test]
fn a_range_that_is_held_here_makes_no_replica() {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let (envelope, why) = (asks(1, 3, 7), NotAdmitted::Held);
    assert!(single.step(vec![Event::NotAdmitted { envelope, why }]).is_empty());
    assert!(single.receive(asks(1, 3, 8)).is_empty(), "not asked again so soon");
    // The vote is kept for the split.
    let descriptor = super::cluster::descriptor(3);
    let new = NewReplica { descriptor, peer: peer(3).id, campaigns: false };
    let mut ask = asks(1, 3, 9);
    (ask.message.index, ask.message.log_term) = (SPLIT_INDEX, SPLIT_TERM);
    assert!(single.receive(ask).is_empty());
    let created = single.step(vec![Event::Create(new)]);
    assert!(!single.step(persisted(&created)).messages[0].message.reject);

    let mut gone = Single::new();
    gone.receive(asks(1, 3, 7));
    let (envelope, why) = (asks(1, 3, 7), NotAdmitted::Gone);
    assert!(gone.step(vec![Event::NotAdmitted { envelope, why }]).is_empty());
    assert_eq!(gone.receive(asks(1, 3, 8)).unknown.len(), 1, "asked again");
}

/// A replica that lacks a durable entry gets a snapshot.
fn no_logs_kept() -> Config {
    let window = WindowConfig { log_kept_region_bytes: 0, ..WindowConfig::default() };
    Config { window, ..Config::default() }
}

/// A cluster in which a store was away while the log went that it lacks.
fn behind(seed: u64, config: Config) -> (Cluster, u64, u64) {
    let mut cluster = Cluster::new(seed, config);
    let leader = cluster.elect();
    let away = leader % 3 + 1;
    write(&mut cluster, leader, 10);
    cluster.run_until("all are equal", |cluster| are_equal(cluster, away, leader));
    cluster.machines.get_mut(&away).unwrap().checkpoint();
    cluster.isolate(away);
    write(&mut cluster, leader, 150);
    cluster.machines.get_mut(&leader).unwrap().checkpoint();
    cluster.run(100);
    assert!(cluster.status(leader).first > Index(100), "the log was kept for a store that is away");
    (cluster, leader, away)
}

#[test]
fn a_follower_behind_the_log_is_healed_by_a_snapshot() {
    let (mut cluster, leader, away) = behind(3, no_logs_kept());
    let before = cluster.status(away);
    cluster.heal();
    cluster.run_until("healed", |cluster| are_equal(cluster, away, leader));
    let status = cluster.status(away);
    assert!(status.first > before.last, "its log begins behind the snapshot: {status:?}");
    assert_eq!(cluster.machines[&away].shard.stats().snapshots_installed, 1);
    write(&mut cluster, leader, 20);
    cluster.run_until("it follows", |cluster| are_equal(cluster, away, leader));
    assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1, "one is enough");
    assert_eq!(cluster.lost_logs, []);
}

/// C24: a power cut at each moment of a snapshot's way in, while writes go on and a candidate asks
/// for votes.
#[test]
fn a_power_cut_at_any_moment_of_a_snapshot_loses_nothing() {
    let mut installed = 0;
    for ms in 0..60 {
        let (mut cluster, leader, away) = behind(100 + ms, no_logs_kept());
        cluster.machines.get_mut(&away).unwrap().root_ms = 10;
        cluster.heal();
        cluster.run_until("a snapshot is on its way", |cluster| {
            cluster.machines[&leader].shard.stats().snapshots_sent > 0
        });
        cluster.put(leader, "b", 1);
        cluster.run(ms);
        cluster.push(leader % 3 + 1, Event::Campaign { region: REGION });
        cluster.run(ms % 7);
        installed += cluster.machines[&away].shard.stats().snapshots_installed;
        cluster.crash(away);
        cluster.run(ms);
        cluster.restart(away);
        let leader = cluster.elect();
        let put = cluster.put(leader, "c", 1);
        cluster.answer(put);
        cluster
            .run_until("healed", |cluster| (1..=3).all(|store| are_equal(cluster, store, leader)));
        assert_eq!(cluster.lost_logs, [], "{ms}");
    }
    assert!((5..55).contains(&installed), "before and after the end: {installed}");
}

fn split_at(border: &'static str) -> SplitCommand {
    let end = bytes::Bytes::from_static(border.as_bytes());
    let peers = (801..=803).map(PeerId).collect();
    let children = vec![SplitChild { id: RegionId(8), end, peers }];
    SplitCommand { epoch: super::cluster::descriptor(3).epoch, children }
}

/// C1, C4: parent and child come to a store that has neither, in any order, and none of them takes
/// the other's range.
#[test]
fn a_child_and_its_parent_are_fed_apart() {
    for ms in (0..300).step_by(10) {
        let mut cluster = Cluster::new(200 + ms, Config::default());
        cluster.without_data_on(3);
        cluster.snapshot_ms = 100;
        let leader = cluster.elect();
        write(&mut cluster, leader, 3);
        cluster.run(ms);
        let child = RegionId(8);
        let split = cluster.split(leader, split_at("m"));
        assert_eq!(cluster.answer(split), Answer::Done);
        let put = cluster.put(leader, "z", 7);
        assert_eq!(cluster.answer(put), Answer::Done);
        cluster.run_until("both are there", |cluster| {
            let applied = |store: u64, region| {
                let machine = &cluster.machines[&store];
                machine.shard.status(region).map(|_| &machine.disks[&region].applied)
            };
            [REGION, child].into_iter().all(|region| {
                applied(3, region).is_some() && applied(3, region) == applied(leader, region)
            })
        });
        assert_eq!(cluster.machines[&3].shard.uninitialised().count(), 0, "{ms}");
    }
}

/// The tickets of a deposed leader that a snapshot passes over: their fate is not learned.
#[test]
fn tickets_under_a_snapshot_are_undecided() {
    let mut cluster = Cluster::new(5, no_logs_kept());
    let old = cluster.elect();
    write(&mut cluster, old, 3);
    cluster.isolate(old);
    let puts: Vec<_> = (0..5).map(|value| cluster.put(old, "lost", value)).collect();
    cluster.run_until("another leader", |cluster| cluster.leader().is_some_and(|l| l != old));
    let leader = cluster.elect();
    write(&mut cluster, leader, 150);
    cluster.machines.get_mut(&leader).unwrap().checkpoint();
    cluster.run(100);
    cluster.heal();
    cluster.run_until("healed", |cluster| are_equal(cluster, old, leader));
    assert_eq!(cluster.undecided, puts);
    assert_eq!(cluster.waiting_count(), 0);
}

/// C28b: an acknowledgement that is there before the stream's end is the end.
#[test]
fn an_acknowledgement_ends_the_snapshot_and_a_lost_one_is_found_out() {
    for (ms, lost) in [(10, false), (10, true), (3000, false)] {
        let (mut cluster, leader, away) = behind(6, no_logs_kept());
        cluster.heal();
        cluster.report_ms = ms;
        cluster.run_until("a snapshot is on its way", |cluster| {
            cluster.machines[&leader].shard.stats().snapshots_sent > 0
        });
        if lost {
            cluster.run_until("installed", |cluster| {
                cluster.machines[&away].shard.stats().snapshots_installed == 1
            });
            cluster.isolate(away);
            cluster.run(300);
            cluster.heal();
        }
        write(&mut cluster, leader, 20);
        cluster.run_until("healed", |cluster| are_equal(cluster, away, leader));
        cluster.run(4000);
        assert_eq!(cluster.machines[&leader].shard.stats().snapshots_sent, 1, "{ms} {lost}");
    }
}

/// A snapshot that fails is sent again, after a rest.
#[test]
fn a_snapshot_that_fails_is_sent_again_after_a_rest() {
    let (mut cluster, leader, away) = behind(7, no_logs_kept());
    cluster.snapshot_ms = 100;
    cluster.heal();
    let sent = |cluster: &Cluster| cluster.machines[&leader].shard.stats().snapshots_sent;
    for count in 1..=2 {
        cluster.run_until("a snapshot is on its way", |cluster| sent(cluster) == count);
        cluster.isolate(away);
        cluster.run(150);
        cluster.heal();
        cluster.run(700);
        assert_eq!(sent(&cluster), count, "it rests");
    }
    cluster.run_until("healed", |cluster| are_equal(cluster, away, leader));
    assert_eq!(sent(&cluster), 3);
}

/// All that is kept for others has a bound in a shard; a store that comes back gets a snapshot.
#[test]
fn a_shard_keeps_logs_for_others_within_its_bound() {
    for (log_kept_bytes_max, is_kept) in [(1 << 30, true), (8000, false)] {
        let window = WindowConfig { log_kept_bytes_max, ..WindowConfig::default() };
        let mut cluster = Cluster::new(8, Config { window, ..Config::default() });
        let leader = cluster.elect();
        let child = RegionId(8);
        let split = cluster.split(leader, split_at("m"));
        assert_eq!(cluster.answer(split), Answer::Done);
        cluster.run(500);
        let away = leader % 3 + 1;
        cluster.isolate(away);
        for value in 0..100 {
            for (region, key) in [(REGION, "z"), (child, "a")] {
                let put = cluster.put_into(region, leader, key, value);
                assert_eq!(cluster.answer(put), Answer::Done);
            }
        }
        cluster.machines.get_mut(&leader).unwrap().checkpoint();
        cluster.run(100);
        let given_up = cluster.machines[&leader].shard.stats().logs_given_up;
        assert_eq!(given_up, u64::from(!is_kept), "one of the two is enough");
        cluster.heal();
        cluster.run_until("healed", |cluster| {
            [REGION, child].into_iter().all(|region| {
                let applied = |store: u64| &cluster.machines[&store].disks[&region].applied;
                applied(away) == applied(leader)
            })
        });
        cluster.run(100);
        assert_eq!(cluster.machines[&away].shard.stats().snapshots_installed, given_up);
    }
}

fn append(term: u64, index: u64, entries: &[(u64, u64)], commit: u64) -> Envelope {
    let entry = |(index, term): &(u64, u64)| LogEntry {
        index: Index(*index),
        term: Term(*term),
        ..LogEntry::default()
    };
    let mut envelope = asks(1, 3, term);
    envelope.message = Message {
        kind: MessageKind::Append,
        term: Term(term),
        index: Index(index),
        log_term: Term(u64::from(index > 0)),
        entries: entries.iter().map(entry).collect(),
        commit: Index(commit),
        ..Message::default()
    };
    envelope
}

fn snapshot(term: u64, index: u64) -> Envelope {
    let mut envelope = asks(1, 3, term);
    let descriptor = super::cluster::descriptor(3);
    let head = SnapshotHead { index: Index(index), term: Term(1), descriptor };
    envelope.message = Message {
        kind: MessageKind::Snapshot,
        term: Term(term),
        snapshot: Some(Box::new(head)),
        ..Message::default()
    };
    envelope
}

fn staged(term: u64, index: u64, stage: u64) -> Event {
    Event::SnapshotStaged { envelope: snapshot(term, index), stage: StageId(stage) }
}

/// A follower of term 1 with an entry that is committed, written and not applied.
fn follower() -> (Single, Effects) {
    let mut single = Single::new();
    let found = RecoveredReplica::fresh(super::cluster::descriptor(3), peer(3).id);
    single.shard.create(Time(0), found, false).unwrap();
    let written = single.receive(append(1, 0, &[(1, 1)], 1));
    let applying = single.step(persisted(&written));
    assert_eq!(applying.apply[0].entries[0].entry.index, Index(1));
    (single, applying)
}

fn applied(index: u64) -> Event {
    Event::Applied { region: REGION, index: Index(index), changes: vec![], size: None }
}

/// R15, C24b: raft takes a snapshot when nothing of the replica is under way.
#[test]
fn a_snapshot_waits_for_writes_and_for_what_is_applied() {
    let (mut single, applying) = follower();
    let waiting = single.step(persisted(&applying).into_iter().chain([staged(1, 20, 1)]).collect());
    assert!(waiting.installs.is_empty(), "an entry is not applied: {waiting:?}");
    let dropped = single.receive(append(1, 1, &[(2, 1)], 1));
    assert!(dropped.log.is_empty(), "writes would never end: {dropped:?}");
    assert_eq!(single.shard.stats().dropped.installing, 1);
    // A newer one takes its place, another region's leader may not.
    assert_eq!(single.step(vec![staged(1, 21, 2)]).discards, [StageId(1)]);
    let mut stranger = snapshot(1, 30);
    stranger.from = Peer { id: PeerId(99), store: StoreId(99) };
    let refused =
        single.step(vec![Event::SnapshotStaged { envelope: stranger, stage: StageId(3) }]);
    assert_eq!(refused.discards, [StageId(3)]);
    // A later term, whose write is under way when the last entry is heard to be applied.
    let mut heartbeat = append(2, 0, &[], 0);
    heartbeat.message.kind = MessageKind::Heartbeat;
    let raised = single.receive(heartbeat);
    assert_eq!(raised.log.len(), 1);
    assert!(single.step(vec![applied(1)]).installs.is_empty(), "a write is under way");
    let stale = single.step(persisted(&raised));
    assert_eq!((stale.installs.len(), stale.discards), (0, vec![StageId(2)]), "of a former leader");
    let taken = single.step(vec![staged(2, 22, 4)]);
    assert_eq!((taken.installs.len(), taken.installs[0].stage), (1, StageId(4)));
    let hard_state = HardState { term: Term(2), vote: None, commit: Index(22) };
    assert_eq!(taken.installs[0].hard_state, hard_state);
}

/// R15, C25: from the taking until the log is emptied nothing leaves, whatever happens.
#[test]
fn a_replica_that_installs_is_silent() {
    let (mut single, applying) = follower();
    single.step(persisted(&applying).into_iter().chain([applied(1)]).collect());
    let taken = single.step(vec![staged(3, 20, 1)]);
    let hard_state = HardState { term: Term(3), vote: None, commit: Index(20) };
    assert_eq!((taken.installs.len(), taken.installs[0].hard_state), (1, hard_state));
    assert!(taken.log.is_empty() && taken.messages.is_empty(), "{taken:?}");
    let mut heartbeat = append(4, 0, &[], 0);
    heartbeat.message.kind = MessageKind::Heartbeat;
    let forced = |single: &mut Single| {
        for _ in 0..100 {
            single.now += 60;
            let events = [
                Event::Message(asks(2, 3, 9)),
                Event::Message(append(3, 20, &[(21, 3)], 20)),
                Event::Message(heartbeat.clone()),
                Event::Campaign { region: REGION },
                Event::Unreachable { region: REGION, peer: peer(1).id },
                Event::Checkpointed { region: REGION, applied: Index(1), installed: None },
            ];
            let effects = single.step(events.into());
            assert!(effects.is_empty(), "{effects:?}");
        }
        let effects = single.step(vec![
            staged(5, 30, 2),
            Event::Propose {
                region: REGION,
                ticket: Ticket(1),
                precondition: RequestPrecondition::default(),
                command: bytes::Bytes::from_static(b"a"),
            },
            Event::Read {
                region: REGION,
                ticket: Ticket(2),
                precondition: RequestPrecondition::default(),
                follower: true,
            },
        ]);
        let why = Reject::NotLeader { leader: Some(peer(1)) };
        assert_eq!(effects.rejected, [(Ticket(1), why.clone()), (Ticket(2), why)]);
        assert_eq!(effects.discards, [StageId(2)]);
        assert!(effects.messages.is_empty() && effects.log.is_empty());
        assert_eq!(single.shard.status(REGION).unwrap().applied, Index(1));
    };
    forced(&mut single);
    let installed = Some(StageId(1));
    let rooted =
        single.step(vec![Event::Checkpointed { region: REGION, applied: Index(20), installed }]);
    let write = &rooted.log[0];
    assert_eq!((rooted.log.len(), write.hard_state, write.sync), (1, Some(hard_state), true));
    assert_eq!(write.reset, Some(LogReset { index: Index(20), term: Term(1) }));
    assert!(rooted.messages.is_empty() && rooted.ranges.is_empty(), "{rooted:?}");
    forced(&mut single);
    let ended = single.step(persisted(&rooted));
    assert_eq!(ended.ranges, [super::cluster::descriptor(3)]);
    let acknowledged = &ended.messages[0];
    assert_eq!((ended.messages.len(), acknowledged.to), (1, peer(1)));
    let kind = MessageKind::AppendResponse;
    assert_eq!((acknowledged.message.kind, acknowledged.message.index), (kind, Index(20)));
    let status = single.shard.status(REGION).unwrap();
    assert_eq!((status.applied, status.last, status.first), (Index(20), Index(20), Index(21)));
    // The promise to the leader holds on behind the silence.
    let refused = single.receive(asks(2, 3, 9));
    assert!(refused.is_empty(), "{refused:?}");
    let written = single.receive(append(3, 20, &[(21, 3)], 20));
    assert_eq!(written.log[0].entries[0].index, Index(21), "it follows");
}

/// A snapshot that the log connects with is not installed; its sender hears how far the log is.
#[test]
fn a_snapshot_that_is_not_needed_is_discarded_and_answered() {
    let (mut single, applying) = follower();
    single.step(persisted(&applying).into_iter().chain([applied(1)]).collect());
    let answered = single.step(vec![staged(1, 1, 1)]);
    assert_eq!((answered.installs.len(), answered.discards), (0, vec![StageId(1)]));
    let answer = &answered.messages[0].message;
    assert_eq!((answer.kind, answer.index), (MessageKind::AppendResponse, Index(1)));
}

/// R15b: the rows of an unborn child lie in the range of its parent.
#[test]
fn a_replica_with_an_unborn_child_takes_no_snapshot() {
    let (mut single, applying) = follower();
    let child = RegionId(8);
    let unborn = UnbornReplica {
        region: child,
        peer: PeerId(803),
        parent: REGION,
        hard_state: RecoveredReplica::hard_state_of_split(),
        terms: vec![],
        last: SPLIT_INDEX,
        tail: vec![],
    };
    single.shard.keep_unborn(unborn).unwrap();
    let events = persisted(&applying).into_iter().chain([applied(1), staged(1, 20, 1)]);
    assert!(single.step(events.collect()).installs.is_empty());
    let regions = split_at("m").divide(&super::cluster::descriptor(3)).unwrap();
    let descriptor = regions.children[0].clone();
    let new = NewReplica { descriptor, peer: PeerId(803), campaigns: false };
    single.step(vec![Event::Create(new)]);
    single.now += 50;
    assert_eq!(single.step(vec![]).installs.len(), 1, "born: now it may");
}

/// The same steps for a replica without data.
#[test]
fn a_replica_without_data_is_made_by_a_snapshot_and_acknowledges_first() {
    let mut single = Single::new();
    single.receive(asks(1, 3, 7));
    let born = single.step(vec![Event::Admitted(asks(1, 3, 7))]);
    let waiting = single.step(vec![staged(7, 20, 1)]);
    assert!(waiting.installs.is_empty(), "its birth is not on disk: {waiting:?}");
    assert_eq!(single.step(vec![staged(6, 20, 2)]).discards, [StageId(2)], "of a former leader");
    let taken = single.step(persisted(&born));
    assert_eq!(taken.messages.len(), 1, "its vote");
    let hard_state = HardState { term: Term(7), vote: Some(peer(1).id), commit: Index(20) };
    assert_eq!((taken.installs.len(), taken.installs[0].hard_state), (1, hard_state));
    assert!(single.receive(asks(2, 3, 9)).is_empty(), "silent");
    let installed = Some(StageId(1));
    let checkpointed = Event::Checkpointed { region: REGION, applied: Index(20), installed };
    let rooted = single.step(vec![checkpointed]);
    assert_eq!((rooted.log.len(), rooted.log[0].hard_state), (1, Some(hard_state)));
    assert_eq!(rooted.log[0].reset, Some(LogReset { index: Index(20), term: Term(1) }));
    assert!(rooted.log[0].number > born.log[0].number && rooted.messages.is_empty());
    assert!(single.receive(asks(2, 3, 9)).is_empty(), "silent");
    let ended = single.step(persisted(&rooted));
    let first = &ended.messages[0].message;
    let kind = MessageKind::AppendResponse;
    assert_eq!((first.kind, first.index, first.term), (kind, Index(20), Term(7)));
    assert_eq!(ended.ranges, [super::cluster::descriptor(3)]);
    let status = single.shard.status(REGION).unwrap();
    assert_eq!((status.applied, status.commit, status.term), (Index(20), Index(20), Term(7)));
    assert_eq!(single.shard.uninitialised().count(), 0);
}
