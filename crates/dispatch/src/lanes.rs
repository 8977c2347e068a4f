//! The lanes of a shard's mailbox: so that one kind of message does not block another.
//!
//! Completions of the shard's own effects come first and are in no lane. Then come the urgent
//! messages of other stores, entries of other stores, and requests of clients, each in their order.

use flotilla_region::{Event, MessageKind};

/// A way into the mailbox with room of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Small messages of other stores that must not wait behind data.
    Urgent,
    /// Log entries of other stores.
    Appends,
    /// Requests of clients.
    Clients,
}

impl Lane {
    /// All of them, in the order in which a shard takes them.
    pub const ALL: [Self; 3] = [Self::Urgent, Self::Appends, Self::Clients];

    /// The lane of an event; none for completions.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Message(envelope) if envelope.message.kind == MessageKind::Append => {
                Some(Self::Appends)
            }
            Event::Message(_) | Event::Notice(_) => Some(Self::Urgent),
            // Placement's, which waits for no answer and must not wait behind clients.
            Event::TransferLeader { ticket: None, .. } => Some(Self::Urgent),
            Event::Propose { .. }
            | Event::Read { .. }
            | Event::Split { .. }
            | Event::ChangeMembership { .. }
            | Event::CompareReplicas { .. }
            | Event::TransferLeader { .. } => Some(Self::Clients),
            _ => None,
        }
    }
}

/// The lanes that a shard is ready to take from; the others are always open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLanes {
    /// That of entries.
    pub appends: bool,
    /// That of clients.
    pub clients: bool,
}

impl OpenLanes {
    /// The lanes that are open while the workers have `behind` bytes to do: clients wait above the
    /// bound, entries of other stores from twice as much on.
    #[must_use]
    pub fn beside(behind: usize, backlog_bytes_max: usize) -> Self {
        Self {
            clients: behind <= backlog_bytes_max,
            appends: behind <= backlog_bytes_max.saturating_mul(2),
        }
    }

    /// Whether the shard takes from a lane.
    #[must_use]
    pub fn includes(self, lane: Lane) -> bool {
        match lane {
            Lane::Urgent => true,
            Lane::Appends => self.appends,
            Lane::Clients => self.clients,
        }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{
        Envelope, Epoch, Index, Message, Notice, NoticeKind, Peer, PeerId, RegionId, StoreId,
        Ticket,
    };

    use super::*;
    use crate::StreamKind;

    fn message(kind: MessageKind) -> Event {
        Event::Message(Envelope {
            region: RegionId(2),
            from: Peer::default(),
            to: Peer::default(),
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message { kind, ..Message::default() },
        })
    }

    #[test]
    fn entries_and_clients_have_lanes_of_their_own_and_completions_none() {
        let region = RegionId(2);
        for kind in [MessageKind::Heartbeat, MessageKind::RequestVote, MessageKind::TimeoutNow] {
            assert_eq!(Lane::of(&message(kind)), Some(Lane::Urgent));
            assert_eq!(StreamKind::of(kind), StreamKind::Urgent);
        }
        assert_eq!(Lane::of(&message(MessageKind::Append)), Some(Lane::Appends));
        assert_eq!(StreamKind::of(MessageKind::Append), StreamKind::Appends);
        let (from, to, peer) = (StoreId(1), StoreId(2), PeerId(7));
        let notice =
            Notice { region, from, to, kind: NoticeKind::End, peer, epoch: Epoch::default() };
        assert_eq!(Lane::of(&Event::Notice(notice)), Some(Lane::Urgent));
        let transfer = |ticket| Event::TransferLeader { region, to: None, ticket };
        assert_eq!(Lane::of(&transfer(Some(Ticket(1)))), Some(Lane::Clients));
        assert_eq!(Lane::of(&transfer(None)), Some(Lane::Urgent), "placement waits for no answer");
        assert_eq!(Lane::of(&Event::Persisted { region, number: 1 }), None);
        assert!(Lane::of(&Event::Persisted { region, number: 1 }) < Some(Lane::Urgent));
        assert!(Lane::ALL.is_sorted());
    }

    #[test]
    fn clients_wait_first_entries_later_and_urgent_messages_never() {
        let open = |behind| Lane::ALL.map(|lane| OpenLanes::beside(behind, 10).includes(lane));
        assert_eq!([open(0), open(10)], [[true; 3]; 2]);
        assert_eq!([open(11), open(20)], [[true, true, false]; 2]);
        assert_eq!([open(21), open(usize::MAX)], [[true, false, false]; 2]);
        assert!(OpenLanes::beside(usize::MAX, usize::MAX).appends);
    }
}
