//! Garbage from the network: nothing panics and nothing that matters changes.

use bytes::Bytes;

use super::cluster::{Cluster, REGION, descriptor, peer};
use crate::*;

fn number(rng: &mut fastrand::Rng) -> u64 {
    match rng.u32(0..8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.u32(0..64),
        3 => rng.u64(..),
        _ => rng.u64(0..30),
    }
}

fn message(rng: &mut fastrand::Rng) -> Message {
    let kinds: Vec<_> = (0..20).filter_map(MessageKind::from_number).collect();
    let start = number(rng);
    let request_snapshot = Index(if rng.u8(0..4) == 0 { number(rng) } else { 0 });
    let entries = (1..=rng.u64(0..4)).map(|n| LogEntry {
        index: Index(if rng.u32(0..9) == 0 { number(rng) } else { start.saturating_add(n) }),
        term: Term(number(rng)),
        kind: EntryKind::Normal,
        data: Bytes::from_static(b"garbage"),
    });
    Message {
        request_snapshot,
        snapshot: None,
        entries: entries.collect(),
        kind: kinds[rng.usize(..kinds.len())],
        term: Term(number(rng)),
        log_term: Term(number(rng)),
        index: Index(start),
        commit: Index(number(rng)),
        commit_term: Term(number(rng)),
        reject: rng.bool(),
        reject_hint: Index(number(rng)),
        context: Bytes::from(vec![0; rng.usize(..40)]),
    }
}

/// A member of the region gone mad may depose leaders and replace what is not committed, but it
/// must not bring a process down. It sends to a replica alone: what it makes that one believe of
/// commits may be a lie.
#[test]
fn no_message_panics() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cluster = Cluster::new(seed, Config::default());
        cluster.elect();
        cluster.run(rng.u64(0..100));
        let store = rng.u64(1..=3);
        let machine = cluster.machines.get_mut(&store).unwrap();
        let mut now = super::cluster::clock(store, cluster.now);
        let mut effects = Effects::default();
        for _ in 0..300 {
            let others = [1, 2, 3, 3, 9];
            let envelope = Envelope {
                region: REGION,
                from: peer(others[rng.usize(..others.len())]),
                to: peer(if rng.u32(0..20) == 0 { 9 } else { store }),
                epoch: Epoch { conf_version: number(&mut rng), version: number(&mut rng) },
                gc_floor: Index(if rng.bool() { 0 } else { number(&mut rng) }),
                range: None,
                message: message(&mut rng),
            };
            now = now.after_ms(rng.u64(0..30));
            machine.shard.step(now, [Event::Message(envelope)].into_iter(), &mut effects);
            machine.shard.check_invariants();
            let writes: Vec<_> = effects.log.writes.iter().map(|write| write.number).collect();
            effects.clear();
            if let Some(number) = writes.into_iter().filter(|_| rng.bool()).max() {
                let persisted = Event::Persisted { region: REGION, number };
                machine.shard.step(now, [persisted].into_iter(), &mut effects);
            }
        }
        assert!(machine.shard.stats().dropped.malformed > 0);
    }
}

/// A vote that was never asked for makes a leader of a candidate whose own vote is not on disk yet.
#[test]
fn a_leader_by_a_forged_vote_sends_nothing_before_its_term_is_on_disk() {
    let mut shard = Shard::new(Config::default());
    let found = RecoveredReplica::fresh(descriptor(3), peer(1).id);
    shard.create(Time(0), found, true).expect("a sound replica");
    let mut effects = Effects::default();
    let forged = |kind| {
        Event::Message(Envelope {
            region: REGION,
            from: peer(2),
            to: peer(1),
            epoch: Epoch { conf_version: 1, version: 1 },
            gc_floor: Index(0),
            range: None,
            message: Message { kind, term: Term(1), ..Message::default() },
        })
    };
    shard.step(Time(0), std::iter::empty(), &mut effects);
    effects.messages.clear();
    for kind in [MessageKind::RequestPreVoteResponse, MessageKind::RequestVoteResponse] {
        shard.step(Time(0), [forged(kind)].into_iter(), &mut effects);
        assert!(effects.messages.is_empty(), "{:?}", effects.messages);
    }
    assert_eq!(shard.status(REGION).expect("it is here").role, Role::Leader);
    let number = effects.log.writes.last().expect("a term, and an entry").number;
    let persisted = Event::Persisted { region: REGION, number };
    shard.step(Time(0), [persisted].into_iter(), &mut effects);
    let is_append = |envelope: &Envelope| envelope.message.kind == MessageKind::Append;
    assert!(effects.messages.iter().any(is_append), "{:?}", effects.messages);
}

/// Garbage in a working cluster: it is counted by reason, and everything goes on.
#[test]
fn strangers_and_lost_letters_are_counted_and_change_nothing() {
    let mut cluster = Cluster::new(1, Config::default());
    let leader = cluster.elect();
    cluster.run(200);
    let heartbeat = |from: Peer, to: Peer, region| {
        Event::Message(Envelope {
            region,
            from,
            to,
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message { kind: MessageKind::Heartbeat, term: Term(50), ..Message::default() },
        })
    };
    let here = peer(leader);
    let liar = Peer { store: StoreId(3), ..peer(2) };
    cluster.push(leader, heartbeat(peer(2), here, RegionId(99)));
    cluster.push(leader, heartbeat(peer(2), peer(3), REGION));
    cluster.push(leader, heartbeat(Peer { id: PeerId(9), ..peer(2) }, here, REGION));
    cluster.push(leader, heartbeat(liar, here, REGION));
    cluster.push(leader, heartbeat(here, here, REGION));
    let before = cluster.machines[&leader].shard.stats().dropped;
    cluster.run(1);
    let after = cluster.machines[&leader].shard.stats().dropped;
    assert_eq!((after.misrouted, after.strangers), (before.misrouted + 2, before.strangers + 3));
    assert_eq!((cluster.leader(), cluster.status(leader).term), (Some(leader), Term(1)));
}

/// A cluster of three with something in its log, and a message of its leader to store 2.
fn led(seed: u64) -> (Cluster, impl Fn(MessageKind, u64, u64) -> Event) {
    let mut cluster = Cluster::new(seed, Config::default());
    assert_eq!(cluster.elect(), 1);
    cluster.run(200);
    let from_leader = |kind, term, commit| {
        Event::Message(Envelope {
            region: REGION,
            from: peer(1),
            to: peer(2),
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message {
                kind,
                term: Term(term),
                commit: Index(commit),
                ..Message::default()
            },
        })
    };
    (cluster, from_leader)
}

#[test]
fn a_commit_beyond_the_log_ends_the_store_in_words() {
    let (mut cluster, from_leader) = led(2);
    let last = cluster.status(2).last;
    cluster.push(2, from_leader(MessageKind::Heartbeat, 1, last.0 + 1));
    cluster.run(1);
    let acknowledged = Index(last.0 + 1);
    let lost = LostLog { region: REGION, from: peer(1), acknowledged, last };
    assert_eq!(cluster.lost_logs, [(2, lost)]);
    assert_eq!(cluster.machines[&2].shard.stats().dropped.lost_logs, 1);
    let words = lost.to_string();
    assert!(words.contains("store 1 counts on entry 2") && words.contains("ends at 1"), "{words}");
}

/// A disk that is set back to before the last entries, under a leader that has counted on them:
/// the real messages of that leader are the proof.
#[test]
fn a_follower_whose_disk_was_set_back_learns_that_it_lost_something() {
    for kept in [0, 1, 4] {
        let mut cluster = Cluster::new(3, Config::default());
        assert_eq!(cluster.elect(), 1);
        for round in 1..=9 {
            let put = cluster.put(1, "a", round);
            cluster.answer(put);
        }
        cluster.run(200);
        assert_eq!(cluster.status(2).last, Index(10));
        cluster.set_back(2, Index(kept));
        cluster.run_until("the loss is known", |cluster| !cluster.lost_logs.is_empty());
        let (store, lost) = cluster.lost_logs[0];
        assert_eq!((store, lost.from, lost.last), (2, peer(1), Index(kept)));
        assert!(lost.acknowledged > lost.last, "{lost}");
        assert_eq!(cluster.status(2).commit.max(Index(kept)), Index(kept), "nothing was believed");
    }
}

/// The greatest possible term would end a region for good: no replica can be elected above it.
#[test]
fn a_wild_term_is_refused_and_told_once() {
    let (mut cluster, from_leader) = led(4);
    // Reads have no term, and a snapshot comes with its state.
    let others = [MessageKind::ReadIndex, MessageKind::Snapshot];
    let kinds = || {
        let all = (0..20).filter_map(MessageKind::from_number);
        all.filter(|kind| !others.contains(kind))
    };
    for kind in kinds() {
        cluster.push(2, from_leader(kind, (1 << 60) - 1, 0));
    }
    cluster.run(1);
    let term = Term((1 << 60) - 1);
    let reported = WildTerm { region: REGION, from: peer(1), term, here: Term(1) };
    assert_eq!(cluster.wild_terms, [(2, reported)]);
    let dropped = cluster.machines[&2].shard.stats().dropped;
    assert_eq!(dropped.wild_terms, kinds().count() as u64);
    cluster.run(2000);
    assert_eq!(cluster.elect(), 1);
    assert_eq!(cluster.status(2).term, Term(1), "everything goes on");
}

/// A snapshot's message as a member gone mad may send it.
fn staged(rng: &mut fastrand::Rng, stage: u64) -> Event {
    let mut region = descriptor(3);
    region.epoch = Epoch { conf_version: rng.u64(0..3), version: rng.u64(0..4) };
    match rng.u32(0..20) {
        0 => region.id = RegionId(8),
        1 => region.space = Space::System,
        2 => region.peers.truncate(rng.usize(0..3)),
        3 => region.peers[rng.usize(0..3)] = peer(rng.u64(0..5)).into(),
        _ => {}
    }
    let mut near = |end| if rng.u32(0..8) == 0 { number(rng) } else { rng.u64(1..end) };
    let (index, term, sender_term) = (Index(near(100)), Term(near(6)), Term(near(40)));
    let head = SnapshotHead { index, term, descriptor: region };
    let mut message = Message { kind: MessageKind::Snapshot, ..message(rng) };
    if rng.u32(0..10) > 0 {
        message = Message {
            kind: MessageKind::Snapshot,
            term: sender_term,
            snapshot: Some(Box::new(head)),
            ..Message::default()
        };
    }
    let envelope = Envelope {
        region: REGION,
        from: peer([1, 2, 3, 9][rng.usize(0..4)]),
        to: peer(if rng.u32(0..20) == 0 { 9 } else { 3 }),
        epoch: Epoch::default(),
        gc_floor: Index(0),
        range: None,
        message,
    };
    Event::SnapshotStaged { envelope, stage: StageId(stage) }
}

/// The answers of a driver to effects.
fn answers(effects: &mut Effects, rng: &mut fastrand::Rng) -> Vec<Event> {
    let region = REGION;
    let mut events = vec![];
    let persisted = |write: LogWrite| Event::Persisted { region, number: write.number };
    events.extend(effects.log.writes.drain(..).map(persisted));
    events.extend(effects.apply.drain(..).map(|task| {
        let index = task.entries.last().unwrap().entry.index;
        Event::Applied { region, index, changes: vec![], size: None }
    }));
    events.extend(effects.installs.drain(..).map(|task| {
        let (applied, installed) = (task.head.index, Some(task.stage));
        Event::Checkpointed { region, applied, installed }
    }));
    let failed = |LogFetch { peer, context, .. }| Event::FetchFailed { region, peer, context };
    events.extend(effects.fetches.drain(..).map(failed));
    for send in effects.snapshots.drain(..) {
        let SnapshotSend { number, envelope } = send;
        let (from, to, index) =
            (envelope.from.id, envelope.to.id, envelope.message.snapshot.unwrap().index);
        events.push(Event::SnapshotBegun { region, from, to, number, index });
        events.push(Event::SnapshotSent { region, from, to, number, ok: rng.bool() });
    }
    for envelope in effects.unknown.drain(..) {
        let why = NotAdmitted::Held;
        let refused = Event::NotAdmitted { envelope: envelope.clone(), why };
        events.push(if rng.bool() { Event::Admitted(envelope) } else { refused });
    }
    events
}

/// Snapshots, votes and entries of a member gone mad, for a replica that has data and for one that
/// has none. Each stage is installed or discarded, once.
#[test]
fn no_snapshot_panics() {
    let mut installed = 0;
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut shard = Shard::new(Config { seed, ..Config::default() });
        if seed % 3 > 0 {
            let found = RecoveredReplica::fresh(descriptor(3), peer(3).id);
            shard.create(Time(0), found, false).unwrap();
        }
        let (mut now, mut stages, mut ended) = (Time(0), 0, 0);
        let mut work = std::collections::VecDeque::new();
        for _ in 0..400 {
            let mut events = vec![];
            match rng.u32(0..6) {
                0 => {
                    stages += 1;
                    events.push(staged(&mut rng, stages));
                }
                1 | 2 => events.push(Event::Message(Envelope {
                    region: REGION,
                    from: peer(rng.u64(1..3)),
                    to: peer(3),
                    epoch: Epoch::default(),
                    gc_floor: Index(rng.u64(0..20)),
                    range: None,
                    message: message(&mut rng),
                })),
                3 => events.push(Event::Campaign { region: REGION }),
                _ => events.extend(work.drain(..rng.usize(0..=work.len()))),
            }
            now = now.after_ms(rng.u64(0..30));
            let mut effects = Effects::default();
            shard.step(now, events.into_iter(), &mut effects);
            shard.check_invariants();
            ended += effects.discards.len() as u64 + effects.installs.len() as u64;
            installed += effects.installs.len();
            work.extend(answers(&mut effects, &mut rng));
        }
        // All but the one that may wait.
        assert!(stages - ended <= 1, "seed {seed}: of {stages} stages {ended} came back");
    }
    assert!(installed > 300, "only {installed} snapshots were installed");
}
