//! The filter for snapshots of other stores: what their messages say about the region.

use crate::descriptor::{Descriptor, Peer};
use crate::ids::{Index, Term};
use crate::message::{Envelope, SnapshotHead};
use crate::message_filter::{NUMBER_MAX, Refusal};

/// The state of a replica that a snapshot is compared with.
pub(crate) struct SnapshotView<'a> {
    pub(crate) descriptor: &'a Descriptor,
    /// The last entry known to be committed, and its term.
    pub(crate) committed: (Index, Term),
}

/// Checks all that can be seen without a replica, and returns the state in the snapshot.
pub(crate) fn check_head(envelope: &Envelope, me: Peer) -> Result<&SnapshotHead, Refusal> {
    let Some(head) = envelope.message.snapshot.as_deref() else {
        return Err(Refusal::Malformed);
    };
    let SnapshotHead { index, term, descriptor } = head;
    let is_sound = (1..NUMBER_MAX).contains(&index.0)
        // A log beyond the replica's own term would count as newer than every sound one.
        && (1..=envelope.message.term.0).contains(&term.0)
        && descriptor.id == envelope.region
        && descriptor.has_sound_members()
        && descriptor.peer(me.id) == Some(me);
    if is_sound { Ok(head) } else { Err(Refusal::Malformed) }
}

/// Compares the state in a snapshot with a replica that has rows.
pub(crate) fn compare(head: &SnapshotHead, view: &SnapshotView<'_>) -> Result<(), Refusal> {
    let (committed, term) = view.committed;
    let (theirs, ours) = (&head.descriptor, view.descriptor);
    let is_possible = match head.index.cmp(&committed) {
        // Raft does not want it, and tells how far this log is.
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => head.term == term,
        // Terms and versions grow along a log.
        std::cmp::Ordering::Greater => {
            head.term >= term
                && theirs.space == ours.space
                && theirs.epoch.version >= ours.epoch.version
                && theirs.epoch.conf_version >= ours.epoch.conf_version
        }
    };
    if is_possible { Ok(()) } else { Err(Refusal::Malformed) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::descriptor::RemovedPeers;
    use crate::descriptor::{Epoch, Space};
    use crate::ids::{PeerId, RegionId, StoreId};
    use crate::message::{Message, MessageKind};

    fn member(id: u64) -> Peer {
        Peer { id: PeerId(id), store: StoreId(id) }
    }

    fn region() -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(1),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch { conf_version: 2, version: 2 },
            peers: vec![member(1).into(), member(2).into(), member(3).into()],
        }
    }

    /// Of entry 20 of term 4, for a replica that has committed entry 10 of term 3.
    fn checked(spoil: impl FnOnce(&mut Envelope)) -> Result<(), Refusal> {
        let head = SnapshotHead { index: Index(20), term: Term(4), descriptor: region() };
        let mut envelope = Envelope {
            region: RegionId(1),
            from: member(2),
            to: member(1),
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message {
                kind: MessageKind::Snapshot,
                term: Term(5),
                snapshot: Some(Box::new(head)),
                ..Message::default()
            },
        };
        spoil(&mut envelope);
        let descriptor = region();
        let view = SnapshotView { descriptor: &descriptor, committed: (Index(10), Term(3)) };
        check_head(&envelope, member(1)).and_then(|head| compare(head, &view))
    }

    fn head(envelope: &mut Envelope) -> &mut SnapshotHead {
        envelope.message.snapshot.as_deref_mut().unwrap()
    }

    #[test]
    fn a_snapshot_is_a_later_state_of_the_region_with_this_replica() {
        assert_eq!(checked(|_| {}), Ok(()));
        let malformed = |spoil: fn(&mut Envelope)| {
            assert_eq!(checked(spoil), Err(Refusal::Malformed));
        };
        malformed(|e| e.message.snapshot = None);
        malformed(|e| head(e).index = Index(0));
        malformed(|e| head(e).index = Index(NUMBER_MAX));
        malformed(|e| head(e).term = Term(0));
        malformed(|e| head(e).term = Term(6));
        malformed(|e| head(e).descriptor.id = RegionId(2));
        malformed(|e| head(e).descriptor.peers = vec![member(2).into(), member(3).into()]);
        malformed(|e| head(e).descriptor.peers[0].store = StoreId(9));
        malformed(|e| head(e).descriptor.peers[2] = member(2).into());
        malformed(|e| head(e).descriptor.peers[2].id = PeerId(0));
        malformed(|e| head(e).descriptor.space = Space::System);
        malformed(|e| head(e).descriptor.epoch.version = 1);
        malformed(|e| head(e).descriptor.epoch.conf_version = 1);
        malformed(|e| head(e).term = Term(2));
        malformed(|e| head(e).index = Index(10));
    }

    #[test]
    fn an_older_one_is_for_raft_to_answer() {
        let older = |e: &mut Envelope| {
            head(e).index = Index(9);
            head(e).term = Term(1);
            head(e).descriptor.epoch.version = 1;
        };
        assert_eq!(checked(older), Ok(()));
    }
}
