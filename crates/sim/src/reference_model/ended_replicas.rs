//! The replicas that have ended for good: a durable root has their end, and none of them comes
//! back.

use std::collections::BTreeMap;

use flotilla_region::{PeerId, RegionId, StoreId};

/// By store and region, the greatest replica whose end a root has.
#[derive(Debug, Default)]
pub(super) struct EndedReplicas {
    ended: BTreeMap<(StoreId, RegionId), PeerId>,
}

impl EndedReplicas {
    pub(super) fn note(&mut self, store: StoreId, region: RegionId, peer: PeerId) {
        let ended = self.ended.entry((store, region)).or_default();
        *ended = peer.max(*ended);
    }

    /// Whether a root of the store has the end of the replica.
    pub(super) fn has(&self, store: StoreId, region: RegionId, peer: PeerId) -> bool {
        self.ended.get(&(store, region)).is_some_and(|ended| peer <= *ended)
    }

    pub(super) fn check_alive(
        &self,
        store: StoreId,
        region: RegionId,
        peer: PeerId,
    ) -> Result<(), String> {
        if self.has(store, region, peer) {
            return Err(format!(
                "store {store}, region {region}: replica {peer} is there, and a root has its end"
            ));
        }
        Ok(())
    }
}
