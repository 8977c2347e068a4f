//! Checks of a request's precondition against the replica as it is now. The checks and their order
//! are TiKV's: clients act on the first that fails.

use crate::descriptor::{Descriptor, Peer};
use crate::error::Reject;
use crate::event::RequestPrecondition;
use crate::ids::{PeerId, Term};

/// The replica's state that a request is checked against.
pub(crate) struct ReplicaStanding<'a> {
    pub(crate) descriptor: &'a Descriptor,
    pub(crate) peer: PeerId,
    pub(crate) term: Term,
    pub(crate) is_leader: bool,
    pub(crate) leader: Option<Peer>,
}

/// Checks a request that only a leader may serve, or any replica.
pub(crate) fn check(
    precondition: &RequestPrecondition,
    here: &ReplicaStanding<'_>,
    leader_only: bool,
) -> Result<(), Reject> {
    if let Some(request) = precondition.peer.filter(|peer| *peer != here.peer) {
        return Err(Reject::MismatchPeer { request, here: here.peer });
    }
    // Before the epoch: a client that went to the wrong store learns the leader, not a stale range.
    if leader_only && !here.is_leader {
        return Err(Reject::NotLeader { leader: here.leader });
    }
    // One term behind is a client that does not know of the election yet; two is an old request.
    if precondition.term.is_some_and(|term| here.term.0 > term.0.saturating_add(1)) {
        return Err(Reject::StaleCommand);
    }
    // Not only older ones: a client that knows a newer version has heard of a change that is not
    // applied here, and may name keys that have left the region.
    if precondition.version.is_some_and(|version| version != here.descriptor.epoch.version) {
        return Err(Reject::EpochNotMatch { current: vec![here.descriptor.clone()] });
    }
    // A region's range has no holes, so its two ends stand for all keys of the request.
    let keys = precondition.span.iter().flat_map(|span| [&span.first, &span.last]);
    match keys.into_iter().find(|key| !here.descriptor.contains(key)) {
        None => Ok(()),
        Some(key) => Err(Reject::KeyNotInRegion {
            key: key.clone(),
            descriptor: Box::new(here.descriptor.clone()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::descriptor::RemovedPeers;
    use crate::descriptor::{Epoch, Space};
    use crate::event::KeySpan;
    use crate::ids::{RegionId, StoreId};

    /// Everything about it is wrong; the tests mend one claim after the other.
    fn wrong() -> RequestPrecondition {
        RequestPrecondition {
            peer: Some(PeerId(9)),
            term: Some(Term(5)),
            version: Some(1),
            conf_version: Some(77),
            span: Some(KeySpan {
                first: Bytes::from_static(b"c"),
                last: Bytes::from_static(b"zz"),
            }),
            needs_room: true,
        }
    }

    #[test]
    fn the_first_mistake_in_order_is_told() {
        let leader = Peer { id: PeerId(2), store: StoreId(2) };
        let descriptor = Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(1),
            space: Space::Raw,
            start: Bytes::from_static(b"b"),
            end: Bytes::from_static(b"m"),
            epoch: Epoch { conf_version: 1, version: 2 },
            peers: vec![Peer { id: PeerId(1), store: StoreId(1) }.into(), leader.into()],
        };
        let mut here = ReplicaStanding {
            descriptor: &descriptor,
            peer: PeerId(1),
            term: Term(7),
            is_leader: false,
            leader: Some(leader),
        };
        let mut precondition = wrong();
        let mismatch = Reject::MismatchPeer { request: PeerId(9), here: PeerId(1) };
        assert_eq!(check(&precondition, &here, true), Err(mismatch));
        precondition.peer = Some(PeerId(1));
        assert_eq!(
            check(&precondition, &here, true),
            Err(Reject::NotLeader { leader: Some(leader) })
        );
        assert_eq!(check(&precondition, &here, false), Err(Reject::StaleCommand));
        here.is_leader = true;
        assert_eq!(check(&precondition, &here, true), Err(Reject::StaleCommand));
        precondition.term = Some(Term(6));
        let current = vec![descriptor.clone()];
        assert_eq!(check(&precondition, &here, true), Err(Reject::EpochNotMatch { current }));
        precondition.version = Some(2);
        let rejected = check(&precondition, &here, true).unwrap_err();
        assert!(matches!(rejected, Reject::KeyNotInRegion { key, .. } if key == "zz"));
        precondition.span.as_mut().unwrap().last = Bytes::from_static(b"lzz");
        assert_eq!(check(&precondition, &here, true), Ok(()));
        assert_eq!(check(&RequestPrecondition::default(), &here, true), Ok(()));
    }
}
