//! Verdicts about the replicas of a region as they travel.

use flotilla_proto::peers;
use flotilla_region::{ComparedReplica, ConsistencyVerdict, RegionId};

pub(crate) fn verdict_to_wire(
    region: RegionId,
    verdict: &ConsistencyVerdict,
) -> peers::RegionVerdict {
    let replicas = verdict.replicas.iter().map(|replica| {
        let ComparedReplica { peer, digest, differs } = *replica;
        peers::ReplicaDigest { peer_id: peer.id.0, store_id: peer.store.0, digest, differs }
    });
    let (region_id, index) = (region.0, verdict.index.0);
    peers::RegionVerdict { region_id, index, replicas: replicas.collect() }
}
