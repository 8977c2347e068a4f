//! A region in the wire protocol of clients.

use flotilla_proto::metapb;
use flotilla_region::{Descriptor, Peer, PeerRole, RegionPeer};

/// A region as clients know it.
pub(crate) fn region_to_proto(descriptor: &Descriptor) -> metapb::Region {
    metapb::Region {
        id: descriptor.id.0,
        start_key: descriptor.start.clone(),
        end_key: descriptor.end.clone(),
        region_epoch: Some(metapb::RegionEpoch {
            conf_ver: descriptor.epoch.conf_version,
            version: descriptor.epoch.version,
        }),
        peers: descriptor.peers.iter().map(listed_to_proto).collect(),
    }
}

/// A replica as clients know it; who asks for a leader or an address knows no role.
pub(crate) fn peer_to_proto(peer: &Peer) -> metapb::Peer {
    metapb::Peer { id: peer.id.0, store_id: peer.store.0, ..Default::default() }
}

fn listed_to_proto(peer: &RegionPeer) -> metapb::Peer {
    let role = match peer.role {
        PeerRole::Voter => metapb::PeerRole::Voter,
        PeerRole::Learner => metapb::PeerRole::Learner,
        PeerRole::Incoming => metapb::PeerRole::IncomingVoter,
        PeerRole::Outgoing => metapb::PeerRole::DemotingVoter,
    };
    metapb::Peer { role: role.into(), ..peer_to_proto(&peer.address()) }
}
