//! Converts raft messages to and from the wire format. Bytes move; nothing is copied.
//!
//! Messages that come in are checked for form here, so that the core never sees a kind that only a
//! replica itself may use. Their meaning is for the core to check.

use flotilla_proto::{metapb, peers};
use flotilla_region::{
    EntryKind, Envelope, Epoch, Index, LogEntry, Message, MessageKind, Peer, PeerId, RegionId,
    StoreId, Term,
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
}

/// The message as it travels.
pub(super) fn to_wire(envelope: Envelope) -> peers::RegionMessage {
    let Envelope { region, from, to, epoch, gc_floor, message } = envelope;
    let kind = i32::try_from(message.kind.number()).expect("numbers of kinds are small");
    peers::RegionMessage {
        region_id: region.0,
        from: Some(peer_to_wire(from)),
        to: Some(peer_to_wire(to)),
        epoch: Some(metapb::RegionEpoch { conf_ver: epoch.conf_version, version: epoch.version }),
        gc_floor: gc_floor.0,
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
            ..peers::Message::default()
        }),
    }
}

/// The message as the core takes it.
pub(super) fn from_wire(wire: peers::RegionMessage) -> Result<Envelope, MalformedMessage> {
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
        },
    })
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
            },
        }
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
    fn the_data_of_an_entry_is_not_copied() {
        let data = Bytes::from(vec![7; 1000]);
        let mut sent = envelope(MessageKind::Append, b"");
        sent.message.entries[0].data = data.clone();
        let come = from_wire(to_wire(sent)).unwrap();
        assert_eq!(come.message.entries[0].data.as_ptr(), data.as_ptr());
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
        let entry = change(|wire| wire.message.as_mut().unwrap().entries[0].entry_type = 2);
        assert_eq!(entry, MalformedMessage::EntryKind { region: 2, kind: 2 });
    }
}
