//! Converts between placement's plain types and the protocols of clients and stores.

use bytes::Bytes;
use flotilla_placement::{
    LeaderStep, RegionHeartbeat, RegionInfo, ReplicaInfo, ReplicaRole, StoreInfo,
};
use flotilla_proto::peers::{LeaderTransfer, RegionLeader, Space as SpaceProto};
use flotilla_proto::{metapb, pdpb};
use flotilla_region::{Descriptor, PeerRole, RegionPeer, Space};

use crate::membership::{KnownStore, labels_to_wire};
use crate::net::dial::Dialer;

/// A store as clients know it.
pub(super) fn store_to_proto(store: &StoreInfo) -> metapb::Store {
    // Clients forget a store that is a tombstone; its address may be another one's by now.
    let (state, node_state) = match store.standing.is_lost {
        true => (metapb::StoreState::Tombstone, metapb::NodeState::Removed),
        false => (metapb::StoreState::Up, metapb::NodeState::Serving),
    };
    metapb::Store {
        id: store.id,
        address: store.address.clone(),
        state: state.into(),
        node_state: node_state.into(),
        version: crate::TIKV_VERSION.to_owned(),
        peer_address: store.address.clone(),
        // Plain HTTP is spoken on the same port.
        status_address: store.address.clone(),
        labels: labels_to_wire(&store.labels),
        ..metapb::Store::default()
    }
}

/// A store of the cluster as one that can answer for placement.
pub(super) fn member_to_proto(member: &KnownStore, dialer: &Dialer) -> pdpb::Member {
    let url = dialer.url(&member.address);
    pdpb::Member {
        name: member.name.clone(),
        member_id: member.store.0,
        peer_urls: vec![url.clone()],
        client_urls: vec![url],
        binary_version: crate::TIKV_VERSION.to_owned(),
        ..pdpb::Member::default()
    }
}

/// A region as clients know it.
pub(super) fn region_to_proto(region: &RegionInfo) -> metapb::Region {
    metapb::Region {
        id: region.id,
        start_key: Bytes::copy_from_slice(&region.start),
        end_key: Bytes::copy_from_slice(&region.end),
        region_epoch: Some(metapb::RegionEpoch {
            conf_ver: region.conf_version,
            version: region.version,
        }),
        peers: region.replicas.iter().map(replica_to_proto).collect(),
    }
}

/// A replica as clients know it.
pub(super) fn replica_to_proto(replica: &ReplicaInfo) -> metapb::Peer {
    let (_, role) =
        ROLES.into_iter().find(|(role, _)| *role == replica.role).expect("all are there");
    let (id, store_id) = (replica.id, replica.store);
    metapb::Peer { id, store_id, role: role.into(), ..metapb::Peer::default() }
}

/// The roles of replicas, and their names in the protocol.
const ROLES: [(ReplicaRole, metapb::PeerRole); 4] = [
    (ReplicaRole::Voter, metapb::PeerRole::Voter),
    (ReplicaRole::Learner, metapb::PeerRole::Learner),
    (ReplicaRole::Incoming, metapb::PeerRole::IncomingVoter),
    (ReplicaRole::Outgoing, metapb::PeerRole::DemotingVoter),
];

/// A region as placement keeps it.
pub(super) fn region_from_descriptor(descriptor: &Descriptor) -> RegionInfo {
    RegionInfo {
        id: descriptor.id.0,
        start: descriptor.start.to_vec(),
        end: descriptor.end.to_vec(),
        conf_version: descriptor.epoch.conf_version,
        version: descriptor.epoch.version,
        replicas: descriptor.peers.iter().map(replica_from_peer).collect(),
    }
}

/// The same for a region of the clients' keys: the system region is not a part of these.
pub(super) fn client_region(descriptor: &Descriptor) -> Option<RegionInfo> {
    (descriptor.space == Space::Raw).then(|| region_from_descriptor(descriptor))
}

/// The heartbeat of a region of the clients' keys.
pub(super) fn heartbeat_to_proto(heartbeat: RegionHeartbeat) -> RegionLeader {
    let RegionHeartbeat { region, term, leader } = heartbeat;
    RegionLeader {
        region: Some(region_to_proto(&region)),
        space: SpaceProto::Raw.into(),
        leader: leader.as_ref().map(replica_to_proto),
        term,
    }
}

/// The heartbeat as placement takes it; `None` if it is not about the clients' keys.
pub(super) fn sighting_from_proto(said: RegionLeader) -> Option<RegionHeartbeat> {
    if said.space != i32::from(SpaceProto::Raw) {
        return None;
    }
    let region = said.region?;
    let epoch = region.region_epoch.unwrap_or_default();
    let region = RegionInfo {
        id: region.id,
        start: region.start_key.to_vec(),
        end: region.end_key.to_vec(),
        conf_version: epoch.conf_ver,
        version: epoch.version,
        replicas: region.peers.iter().map(replica_from_proto).collect(),
    };
    let leader = said.leader.as_ref().map(replica_from_proto);
    Some(RegionHeartbeat { region, term: said.term, leader })
}

/// A transfer of leadership as the store that leads is asked for it.
pub(super) fn step_to_proto(step: &LeaderStep) -> LeaderTransfer {
    LeaderTransfer { region_id: step.region, to: Some(replica_to_proto(&step.to)) }
}

pub(super) fn replica_from_peer(peer: &RegionPeer) -> ReplicaInfo {
    let role = match peer.role {
        PeerRole::Voter => ReplicaRole::Voter,
        PeerRole::Learner => ReplicaRole::Learner,
        PeerRole::Incoming => ReplicaRole::Incoming,
        PeerRole::Outgoing => ReplicaRole::Outgoing,
    };
    ReplicaInfo { id: peer.id.0, store: peer.store.0, role }
}

fn replica_from_proto(peer: &metapb::Peer) -> ReplicaInfo {
    let role = ROLES.into_iter().find(|(_, role)| i32::from(*role) == peer.role);
    // One that is not known does not vote, as far as placement may count on it.
    let role = role.map_or(ReplicaRole::Learner, |(role, _)| role);
    ReplicaInfo { id: peer.id, store: peer.store_id, role }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Epoch, Peer, PeerId, RegionId, StoreId};

    use super::*;
    use flotilla_region::RemovedPeers;

    fn descriptor(space: Space) -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(2),
            space,
            start: "b".into(),
            end: "m".into(),
            epoch: Epoch { conf_version: 3, version: 4 },
            peers: vec![Peer { id: PeerId(201), store: StoreId(1) }.into()],
        }
    }

    #[test]
    fn a_store_that_is_lost_is_a_tombstone_for_clients() {
        let mut store = StoreInfo { id: 2, address: "h:2".to_owned(), ..StoreInfo::default() };
        assert_eq!(store_to_proto(&store).state(), metapb::StoreState::Up);
        store.standing.is_lost = true;
        let lost = store_to_proto(&store);
        let states = (metapb::StoreState::Tombstone, metapb::NodeState::Removed);
        assert_eq!((lost.state(), lost.node_state()), states);
    }

    #[test]
    fn a_heartbeat_arrives_as_it_was_meant() {
        let leader = ReplicaInfo { id: 201, store: 1, role: ReplicaRole::Voter };
        for leader in [Some(leader), None] {
            let region = client_region(&descriptor(Space::Raw)).unwrap();
            let meant = RegionHeartbeat { region, term: 5, leader };
            assert_eq!(sighting_from_proto(heartbeat_to_proto(meant.clone())), Some(meant));
        }
    }

    #[test]
    fn the_system_region_is_not_reported() {
        assert!(client_region(&descriptor(Space::System)).is_none());
        let said = RegionLeader { space: SpaceProto::System.into(), ..RegionLeader::default() };
        assert!(sighting_from_proto(said).is_none());
    }
}
