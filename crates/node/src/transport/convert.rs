//! Converts raft messages to and from the wire format. Bytes move; nothing is copied.
//!
//! Messages that come in are checked for form here, so that the core never sees a kind that only a
//! replica itself may use. Their meaning is for the core to check.

use flotilla_proto::{metapb, peers};
use flotilla_region::{
    Descriptor, EntryKind, Envelope, Epoch, Index, KeyRange, LogEntry, Message, MessageKind,
    Notice, NoticeKind, Peer, PeerId, RegionId, SnapshotHead, Space, StoreId, Term,
};

/// Why a message of another store cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MalformedMessage {
    /// A part that every message has is not there.
    #[error("a message of region {region} has no `{part}`")]
    Missing {
        /// The region.
        region: u64,
        /// The part.
        part: &'static str,
    },
    /// A kind of message that stores do not send one another.
    #[error("region {region}: a store does not send messages of kind {kind}")]
    Kind {
        /// The region.
        region: u64,
        /// The number of the kind.
        kind: i32,
    },
    /// A kind of entry that this version does not know.
    #[error("region {region}: entries of kind {kind} are not known here")]
    EntryKind {
        /// The region.
        region: u64,
        /// The number of the kind.
        kind: i32,
    },
    /// The state of the region in a snapshot cannot be read, or is not the region's, or is where
    /// none belongs.
    #[error("region {region}: the head of a snapshot is {what}")]
    Head {
        /// The region.
        region: u64,
        /// The fault.
        what: &'static str,
    },
    /// A space of keys that this version does not know.
    #[error("region {region}: space {space} is not known here")]
    Space {
        /// The region.
        region: u64,
        /// The number of the space.
        space: i32,
    },
    /// A notice that this version does not know, or of no region, or of no replica.
    #[error("region {region}: a notice of kind {kind} about replica {peer} is not known here")]
    Notice {
        /// The region.
        region: u64,
        /// The number of the kind.
        kind: i32,
        /// The replica.
        peer: u64,
    },
}

/// The kinds of notices without more to tell, and their names on the wire.
const NOTICES: [(NoticeKind, peers::NoticeKind); 4] = [
    (NoticeKind::WhoIs, peers::NoticeKind::WhoIs),
    (NoticeKind::Gone, peers::NoticeKind::Gone),
    (NoticeKind::End, peers::NoticeKind::End),
    (NoticeKind::Ended, peers::NoticeKind::Ended),
];

/// The notice as it travels. Its stores are those of the frame.
pub(super) fn notice_to_wire(notice: &Notice) -> peers::Notice {
    let Notice { region, kind, peer, epoch, .. } = notice;
    let (kind, index, digest) = match kind {
        NoticeKind::Digest { index, digest } => (peers::NoticeKind::Digest, index.0, *digest),
        kind => {
            let found = NOTICES.into_iter().find(|(of, _)| of == kind);
            (found.expect("all others are there").1, 0, None)
        }
    };
    peers::Notice {
        kind: kind.into(),
        index,
        digest,
        region_id: region.0,
        peer_id: peer.0,
        epoch: Some(metapb::RegionEpoch { conf_ver: epoch.conf_version, version: epoch.version }),
    }
}

/// A notice of a frame between these two stores, as the core takes it.
pub(super) fn notice_from_wire(
    wire: peers::Notice,
    (from, to): (StoreId, StoreId),
) -> Result<Notice, MalformedMessage> {
    let peers::Notice { kind, region_id: region, peer_id: peer, epoch, index, digest } = wire;
    let digested = NoticeKind::Digest { index: Index(index), digest };
    let all = NOTICES.into_iter().chain([(digested, peers::NoticeKind::Digest)]);
    let known = all.into_iter().find(|(_, name)| i32::from(*name) == kind);
    let Some((kind, _)) = known.filter(|_| region != 0 && peer != 0) else {
        return Err(MalformedMessage::Notice { region, kind, peer });
    };
    let epoch = epoch.unwrap_or_default();
    let epoch = Epoch { conf_version: epoch.conf_ver, version: epoch.version };
    Ok(Notice { region: RegionId(region), from, to, kind, peer: PeerId(peer), epoch })
}

/// The message as it travels.
pub(super) fn to_wire(envelope: Envelope) -> peers::RegionMessage {
    let Envelope { region, from, to, epoch, gc_floor, range, message } = envelope;
    let kind = i32::try_from(message.kind.number()).expect("numbers of kinds are small");
    peers::RegionMessage {
        region_id: region.0,
        from: Some(peer_to_wire(from)),
        to: Some(peer_to_wire(to)),
        epoch: Some(metapb::RegionEpoch { conf_ver: epoch.conf_version, version: epoch.version }),
        gc_floor: gc_floor.0,
        range: range.map(|range| range_to_wire(*range)),
        message: Some(peers::Message {
            msg_type: kind,
            to: to.id.0,
            from: from.id.0,
            term: message.term.0,
            log_term: message.log_term.0,
            index: message.index.0,
            entries: message.entries.into_iter().map(entry_to_wire).collect(),
            commit: message.commit.0,
            reject: message.reject,
            reject_hint: message.reject_hint.0,
            context: message.context,
            commit_term: message.commit_term.0,
            request_snapshot: message.request_snapshot.0,
            snapshot: message.snapshot.map(|head| head_to_wire(&head)),
            ..peers::Message::default()
        }),
    }
}

/// The message of a frame, as the core takes it.
pub(super) fn from_wire(wire: peers::RegionMessage) -> Result<Envelope, MalformedMessage> {
    let (region, envelope) = (wire.region_id, read(wire)?);
    let kind = envelope.message.kind;
    // A snapshot without its rows is none.
    if kind == MessageKind::Snapshot {
        let kind = i32::try_from(kind.number()).expect("numbers of kinds are small");
        return Err(MalformedMessage::Kind { region, kind });
    }
    match envelope.message.snapshot {
        Some(_) => Err(MalformedMessage::Head { region, what: "in another message" }),
        None => Ok(envelope),
    }
}

/// The message of a snapshot's offer, with its head.
pub(super) fn snapshot_from_wire(wire: peers::RegionMessage) -> Result<Envelope, MalformedMessage> {
    let (region, envelope) = (wire.region_id, read(wire)?);
    let message = &envelope.message;
    if message.kind != MessageKind::Snapshot {
        let kind = i32::try_from(message.kind.number()).expect("numbers of kinds are small");
        return Err(MalformedMessage::Kind { region, kind });
    }
    let head = message.snapshot.as_ref();
    let head = head.ok_or(MalformedMessage::Missing { region, part: "snapshot" })?;
    if head.descriptor.id != envelope.region {
        return Err(MalformedMessage::Head { region, what: "of another region" });
    }
    if head.term > message.term {
        return Err(MalformedMessage::Head { region, what: "of a later term than its message" });
    }
    Ok(envelope)
}

fn read(wire: peers::RegionMessage) -> Result<Envelope, MalformedMessage> {
    let region = wire.region_id;
    let missing = |part| MalformedMessage::Missing { region, part };
    let message = wire.message.ok_or_else(|| missing("message"))?;
    let epoch = wire.epoch.ok_or_else(|| missing("epoch"))?;
    let kind = u32::try_from(message.msg_type)
        .ok()
        .and_then(MessageKind::from_number)
        .ok_or(MalformedMessage::Kind { region, kind: message.msg_type })?;
    let entries: Result<Vec<_>, _> =
        message.entries.into_iter().map(|entry| entry_from_wire(region, entry)).collect();
    Ok(Envelope {
        region: RegionId(region),
        from: peer_from_wire(&wire.from.ok_or_else(|| missing("from"))?),
        to: peer_from_wire(&wire.to.ok_or_else(|| missing("to"))?),
        epoch: Epoch { conf_version: epoch.conf_ver, version: epoch.version },
        gc_floor: Index(wire.gc_floor),
        range: wire.range.map(|range| range_from_wire(region, range)).transpose()?,
        message: Message {
            kind,
            term: Term(message.term),
            log_term: Term(message.log_term),
            index: Index(message.index),
            entries: entries?,
            commit: Index(message.commit),
            commit_term: Term(message.commit_term),
            reject: message.reject,
            reject_hint: Index(message.reject_hint),
            context: message.context,
            request_snapshot: Index(message.request_snapshot),
            snapshot: message.snapshot.map(|head| head_from_wire(region, head)).transpose()?,
        },
    })
}

fn head_to_wire(head: &SnapshotHead) -> peers::SnapshotHead {
    let SnapshotHead { index, term, descriptor } = head;
    peers::SnapshotHead { index: index.0, term: term.0, descriptor: descriptor.encode() }
}

fn head_from_wire(
    region: u64,
    head: peers::SnapshotHead,
) -> Result<Box<SnapshotHead>, MalformedMessage> {
    let descriptor = Descriptor::decode(head.descriptor)
        .map_err(|_| MalformedMessage::Head { region, what: "unreadable" })?;
    Ok(Box::new(SnapshotHead { index: Index(head.index), term: Term(head.term), descriptor }))
}

fn range_to_wire(range: KeyRange) -> peers::KeyRange {
    let space = match range.space {
        Space::System => peers::Space::System,
        Space::Raw => peers::Space::Raw,
    };
    peers::KeyRange { space: space.into(), start: range.start, end: range.end }
}

fn range_from_wire(region: u64, range: peers::KeyRange) -> Result<Box<KeyRange>, MalformedMessage> {
    let space = match peers::Space::try_from(range.space) {
        Ok(peers::Space::System) => Space::System,
        Ok(peers::Space::Raw) => Space::Raw,
        Err(_) => return Err(MalformedMessage::Space { region, space: range.space }),
    };
    Ok(Box::new(KeyRange { space, start: range.start, end: range.end }))
}

fn entry_to_wire(entry: LogEntry) -> peers::Entry {
    peers::Entry {
        entry_type: i32::from(entry.kind.to_byte()),
        term: entry.term.0,
        index: entry.index.0,
        data: entry.data,
        ..peers::Entry::default()
    }
}

fn entry_from_wire(region: u64, entry: peers::Entry) -> Result<LogEntry, MalformedMessage> {
    let kind = u8::try_from(entry.entry_type)
        .ok()
        .and_then(|byte| EntryKind::from_byte(byte).ok())
        .ok_or(MalformedMessage::EntryKind { region, kind: entry.entry_type })?;
    Ok(LogEntry { index: Index(entry.index), term: Term(entry.term), kind, data: entry.data })
}

fn peer_to_wire(peer: Peer) -> metapb::Peer {
    metapb::Peer { id: peer.id.0, store_id: peer.store.0, ..metapb::Peer::default() }
}

fn peer_from_wire(peer: &metapb::Peer) -> Peer {
    Peer { id: PeerId(peer.id), store: StoreId(peer.store_id) }
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;

    use super::*;
    use flotilla_region::RemovedPeers;

    pub(in crate::transport) fn envelope(kind: MessageKind, data: &'static [u8]) -> Envelope {
        let entry = LogEntry {
            index: Index(8),
            term: Term(3),
            kind: EntryKind::Normal,
            data: Bytes::from_static(data),
        };
        Envelope {
            region: RegionId(2),
            from: Peer { id: PeerId(201), store: StoreId(1) },
            to: Peer { id: PeerId(202), store: StoreId(2) },
            epoch: Epoch { conf_version: 4, version: 5 },
            gc_floor: Index(6),
            range: Some(Box::new(KeyRange {
                space: Space::Raw,
                start: Bytes::from_static(b"b"),
                end: Bytes::from_static(b"m"),
            })),
            message: Message {
                kind,
                term: Term(3),
                log_term: Term(2),
                index: Index(7),
                entries: vec![entry],
                commit: Index(6),
                commit_term: Term(1),
                reject: true,
                reject_hint: Index(9),
                context: Bytes::from_static(b"context"),
                request_snapshot: Index(1),
                snapshot: None,
            },
        }
    }

    /// The message of a snapshot of a region.
    pub(in crate::transport) fn snapshot() -> Envelope {
        let mut envelope = envelope(MessageKind::Snapshot, b"");
        envelope.message.entries.clear();
        let descriptor = Descriptor {
            removed: RemovedPeers::default(),
            id: envelope.region,
            space: Space::Raw,
            start: Bytes::from_static(b"b"),
            end: Bytes::from_static(b"m"),
            epoch: envelope.epoch,
            peers: vec![envelope.from.into(), envelope.to.into()],
        };
        let head = SnapshotHead { index: Index(9), term: Term(3), descriptor };
        envelope.message.snapshot = Some(Box::new(head));
        envelope
    }

    #[test]
    fn a_message_comes_back_as_it_went() {
        for kind in [MessageKind::Append, MessageKind::RequestVote, MessageKind::ReadIndexResponse]
        {
            let sent = envelope(kind, b"data");
            assert_eq!(from_wire(to_wire(sent.clone())), Ok(sent));
        }
    }

    #[test]
    fn a_snapshot_comes_in_an_offer_and_in_no_frame() {
        let sent = snapshot();
        assert_eq!(snapshot_from_wire(to_wire(sent.clone())), Ok(sent.clone()));
        let refused = MalformedMessage::Kind { region: 2, kind: 7 };
        assert_eq!(from_wire(to_wire(sent)), Err(refused));
        let append = to_wire(envelope(MessageKind::Append, b"data"));
        let refused = MalformedMessage::Kind { region: 2, kind: 3 };
        assert_eq!(snapshot_from_wire(append), Err(refused));
    }

    #[test]
    fn the_head_of_a_snapshot_is_of_its_region_and_in_no_other_message() {
        let refusal = |change: fn(&mut Envelope)| {
            let mut sent = snapshot();
            change(&mut sent);
            snapshot_from_wire(to_wire(sent)).unwrap_err()
        };
        let head = |what| MalformedMessage::Head { region: 2, what };
        let none = refusal(|sent| sent.message.snapshot = None);
        assert_eq!(none, MalformedMessage::Missing { region: 2, part: "snapshot" });
        let other = refusal(|sent| {
            sent.message.snapshot.as_mut().unwrap().descriptor.id = RegionId(3);
        });
        assert_eq!(other, head("of another region"));
        let late = refusal(|sent| sent.message.snapshot.as_mut().unwrap().term = Term(4));
        assert_eq!(late, head("of a later term than its message"));
        let mut wire = to_wire(snapshot());
        let message = wire.message.as_mut().unwrap();
        message.snapshot.as_mut().unwrap().descriptor = Bytes::from_static(b"?");
        assert_eq!(snapshot_from_wire(wire), Err(head("unreadable")));
        let mut append = to_wire(envelope(MessageKind::Append, b"data"));
        append.message.as_mut().unwrap().snapshot = to_wire(snapshot()).message.unwrap().snapshot;
        assert_eq!(from_wire(append), Err(head("in another message")));
        let mut append = to_wire(envelope(MessageKind::Append, b"data"));
        append.range.as_mut().unwrap().space = 9;
        assert_eq!(from_wire(append), Err(MalformedMessage::Space { region: 2, space: 9 }));
    }

    #[test]
    fn the_data_of_an_entry_is_not_copied() {
        let data = Bytes::from(vec![7; 1000]);
        let mut sent = envelope(MessageKind::Append, b"");
        sent.message.entries[0].data = data.clone();
        let come = from_wire(to_wire(sent)).unwrap();
        assert_eq!(come.message.entries[0].data.as_ptr(), data.as_ptr());
    }

    pub(in crate::transport) fn notice(kind: NoticeKind) -> Notice {
        Notice {
            region: RegionId(2),
            from: StoreId(1),
            to: StoreId(2),
            kind,
            peer: PeerId(201),
            epoch: Epoch { conf_version: 4, version: 5 },
        }
    }

    #[test]
    fn a_notice_comes_back_with_the_stores_of_its_frame_and_strange_ones_are_refused() {
        let stores = (StoreId(1), StoreId(2));
        let digest = |digest| NoticeKind::Digest { index: Index(9), digest };
        let digests = [digest(Some(0)), digest(Some(u64::MAX)), digest(None)];
        for kind in NOTICES.map(|(kind, _)| kind).into_iter().chain(digests) {
            let sent = notice(kind);
            assert_eq!(notice_from_wire(notice_to_wire(&sent), stores), Ok(sent));
        }
        let refused = |change: fn(&mut peers::Notice)| {
            let mut wire = notice_to_wire(&notice(NoticeKind::End));
            change(&mut wire);
            notice_from_wire(wire, stores).unwrap_err()
        };
        let (region, kind, peer) = (2, 2, 201);
        for (error, expected) in [
            (refused(|wire| wire.kind = 9), MalformedMessage::Notice { region, kind: 9, peer }),
            (refused(|wire| wire.peer_id = 0), MalformedMessage::Notice { region, kind, peer: 0 }),
            (
                refused(|wire| wire.region_id = 0),
                MalformedMessage::Notice { region: 0, kind, peer },
            ),
        ] {
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn what_a_store_does_not_send_is_refused() {
        let good = to_wire(envelope(MessageKind::Append, b"data"));
        let change = |change: fn(&mut peers::RegionMessage)| {
            let mut wire = good.clone();
            change(&mut wire);
            from_wire(wire).unwrap_err()
        };
        let missing = change(|wire| wire.to = None);
        assert_eq!(missing, MalformedMessage::Missing { region: 2, part: "to" });
        for kind in [0, 1, 2, 7, 10, 13, -1, i32::MAX] {
            let mut wire = good.clone();
            wire.message.as_mut().unwrap().msg_type = kind;
            assert_eq!(from_wire(wire), Err(MalformedMessage::Kind { region: 2, kind }));
        }
        let entry = change(|wire| wire.message.as_mut().unwrap().entries[0].entry_type = 1);
        assert_eq!(entry, MalformedMessage::EntryKind { region: 2, kind: 1 });
    }
}
