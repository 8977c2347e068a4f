//! From keys to a split: where a region is cut at them, and the command with ids for the new
//! regions. Drivers do the same for operators, for clients, and for what a leader wishes.

use bytes::Bytes;

use crate::admin_command::{SplitChild, SplitCommand};
use crate::descriptor::{Descriptor, Space};
use crate::effects::SplitWish;
use crate::error::Reject;
use crate::ids::{PeerId, RegionId};

impl SplitCommand {
    /// The borders of a split of `parent` at `keys`, which come in any order: each of them once, in
    /// order, without the one at which the region begins, for that is a border already.
    ///
    /// # Errors
    ///
    /// [`Reject::KeyNotInRegion`] for a key that is not in the region.
    pub fn borders(parent: &Descriptor, keys: &[Bytes]) -> Result<Vec<Bytes>, Reject> {
        let mut borders: Vec<_> =
            keys.iter().filter(|key| **key != parent.start).cloned().collect();
        borders.sort_unstable();
        borders.dedup();
        match borders.iter().find(|key| !parent.contains(key)) {
            None => Ok(borders),
            Some(key) => {
                let (key, descriptor) = (key.clone(), Box::new(parent.clone()));
                Err(Reject::KeyNotInRegion { key, descriptor })
            }
        }
    }

    /// A split with new regions up to each of `borders`, which have replicas where `parent` has its
    /// own. `regions` and `peers` give ids that were never used; ids that lack leave regions out.
    pub fn with_borders(
        parent: &Descriptor,
        borders: &[Bytes],
        regions: impl IntoIterator<Item = RegionId>,
        peers: impl IntoIterator<Item = PeerId>,
    ) -> Self {
        let (count, mut peers) = (parent.peers.len(), peers.into_iter());
        let children = borders.iter().zip(regions).map(|(end, id)| {
            let (end, peers) = (end.clone(), peers.by_ref().take(count).collect());
            SplitChild { id, end, peers }
        });
        Self { epoch: parent.epoch, children: children.collect() }
    }
}

impl SplitWish {
    /// Whether the wish is still for the region as it is. The rows of the system region stay
    /// together.
    #[must_use]
    pub fn is_for(&self, region: &Descriptor) -> bool {
        self.region == region.id && self.epoch == region.epoch && region.space == Space::Raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Epoch, Peer, RemovedPeers};
    use crate::effects::SplitReason;
    use crate::ids::StoreId;

    fn parent() -> Descriptor {
        let peer = |id, store| Peer { id: PeerId(id), store: StoreId(store) };
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(2),
            space: Space::Raw,
            start: "b".into(),
            end: "m".into(),
            epoch: Epoch { conf_version: 3, version: 4 },
            peers: vec![peer(201, 3).into(), peer(202, 1).into()],
        }
    }

    #[test]
    fn children_have_ids_of_their_own_in_the_order_of_the_replicas() {
        let (parent, keys) = (parent(), [Bytes::from("d"), Bytes::from("f")]);
        let (regions, peers) = ((10..12).map(RegionId), (20..24).map(PeerId));
        let split = SplitCommand::with_borders(&parent, &keys, regions, peers);
        let made = split.divide(&parent).unwrap();
        let peer = |id, store| Peer { id: PeerId(id), store: StoreId(store) };
        assert_eq!(made.children[0].id, RegionId(10));
        assert_eq!(made.children[0].peers, [peer(20, 3).into(), peer(21, 1).into()]);
        assert_eq!(made.children[1].id, RegionId(11));
        assert_eq!(made.children[1].peers, [peer(22, 3).into(), peer(23, 1).into()]);
        assert_eq!((&made.parent.start[..], made.parent.epoch.version), (&b"f"[..], 6));
    }

    #[test]
    fn keys_in_any_order_become_borders_and_one_outside_is_named() {
        let borders = |keys: &[&'static str]| {
            let keys: Vec<_> = keys.iter().map(|key| Bytes::from(*key)).collect();
            SplitCommand::borders(&parent(), &keys)
        };
        assert_eq!(borders(&["f", "b", "d", "f"]), Ok(vec!["d".into(), "f".into()]));
        assert_eq!(borders(&["b"]), Ok(vec![]));
        for outside in ["a", "m", "z"] {
            let refused = borders(&["d", outside]).unwrap_err();
            assert!(matches!(refused, Reject::KeyNotInRegion { key, .. } if key == outside));
        }
    }

    #[test]
    fn a_wish_is_void_when_the_region_has_changed() {
        let reason = SplitReason::Size { parts: 2 };
        let wish = SplitWish { region: RegionId(2), epoch: parent().epoch, reason };
        assert!(wish.is_for(&parent()));
        let changed = |change: fn(&mut Descriptor)| {
            let mut region = parent();
            change(&mut region);
            wish.is_for(&region)
        };
        assert!(!changed(|region| region.epoch.version = 5));
        assert!(!changed(|region| region.epoch.conf_version = 4));
        assert!(!changed(|region| region.id = RegionId(3)));
        assert!(!changed(|region| region.space = Space::System));
    }
}
