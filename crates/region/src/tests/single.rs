//! One shard without a driver: tests complete its effects by hand.

use super::cluster::{REGION, descriptor, peer};
use crate::*;

/// A vote request of a candidate for the first region of the cluster.
pub(super) fn asks(from: u64, to: u64, term: u64) -> Envelope {
    Envelope {
        region: REGION,
        from: peer(from),
        to: peer(to),
        epoch: Epoch { conf_version: 1, version: 1 },
        gc_floor: Index(0),
        range: Some(Box::new(descriptor(3).range())),
        message: Message { kind: MessageKind::RequestVote, term: Term(term), ..Message::default() },
    }
}

pub(super) fn persisted(effects: &Effects) -> Vec<Event> {
    let told = |write: &LogWrite| Event::Persisted { region: REGION, number: write.number };
    effects.log.writes.iter().map(told).collect()
}

pub(super) struct Single {
    pub(super) shard: Shard,
    pub(super) now: u64,
}

impl Single {
    pub(super) fn new() -> Self {
        Self { shard: Shard::new(Config::default()), now: 0 }
    }

    pub(super) fn step(&mut self, events: Vec<Event>) -> Effects {
        let mut effects = Effects::default();
        self.now += 1;
        self.shard.step(Time(self.now), events.into_iter(), &mut effects);
        self.shard.check_invariants();
        effects
    }

    pub(super) fn receive(&mut self, envelope: Envelope) -> Effects {
        self.step(vec![Event::Message(envelope)])
    }
}

pub(super) fn append(term: u64, index: u64, entries: &[(u64, u64)], commit: u64) -> Envelope {
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

pub(super) fn snapshot(term: u64, index: u64) -> Envelope {
    let mut envelope = asks(1, 3, term);
    let descriptor = descriptor(3);
    let head = SnapshotHead { index: Index(index), term: Term(1), descriptor };
    envelope.message = Message {
        kind: MessageKind::Snapshot,
        term: Term(term),
        snapshot: Some(Box::new(head)),
        ..Message::default()
    };
    envelope
}

pub(super) fn staged(term: u64, index: u64, stage: u64) -> Event {
    Event::SnapshotStaged { envelope: snapshot(term, index), stage: StageId(stage) }
}

pub(super) fn split_at(border: &'static str) -> SplitCommand {
    let end = bytes::Bytes::from_static(border.as_bytes());
    let peers = (801..=803).map(PeerId).collect();
    let children = vec![SplitChild { id: RegionId(8), end, peers }];
    SplitCommand { epoch: descriptor(3).epoch, children }
}
