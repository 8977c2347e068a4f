//! A client's knowledge of regions, which errors mend.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use flotilla_region::{Descriptor, RegionId, Space};

use crate::layout;

/// The regions that a client knows, by their first keys. No two of them overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegionCache {
    regions: BTreeMap<Bytes, Descriptor>,
}

impl RegionCache {
    pub(crate) fn new(regions: &[Descriptor]) -> Self {
        let mut cache = Self::default();
        regions.iter().for_each(|region| cache.learn(region));
        cache
    }

    /// The region of a key, as far as it is known.
    pub(crate) fn region_of(&self, key: &[u8]) -> Option<&Descriptor> {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let (_, region) = self.regions.range::<[u8], _>(up_to).next_back()?;
        region.contains(key).then_some(region)
    }

    /// Takes in what a store or placement says. Regions that are older give way.
    pub(crate) fn learn(&mut self, region: &Descriptor) {
        let old: Vec<_> =
            self.regions.values().filter(|known| layout::overlap(known, region)).cloned().collect();
        // Each region outranks all older ones that it overlaps.
        let is_news = old.iter().all(|known| known.epoch.version <= region.epoch.version);
        if region.space == Space::Raw && is_news {
            for known in old {
                self.regions.remove(&known.start);
            }
            self.regions.insert(region.start.clone(), region.clone());
        }
    }

    /// A store does not have the region.
    pub(crate) fn forget(&mut self, region: RegionId) {
        self.regions.retain(|_, known| known.id != region);
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::Epoch;

    use super::*;
    use flotilla_region::RemovedPeers;

    fn region(id: u64, version: u64, start: &'static str, end: &'static str) -> Descriptor {
        let [start, end] = [start, end].map(|key| Bytes::from_static(key.as_bytes()));
        let epoch = Epoch { conf_version: 1, version };
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(id),
            space: Space::Raw,
            start,
            end,
            epoch,
            peers: Vec::new(),
        }
    }

    #[test]
    fn newer_regions_take_the_place_of_older_ones() {
        let mut cache = RegionCache::new(&[region(2, 1, "", "")]);
        cache.learn(&region(2, 2, "m", ""));
        assert_eq!(cache.region_of(b"a"), None, "the old one is gone");
        cache.learn(&region(7, 2, "", "m"));
        cache.learn(&region(2, 1, "", ""));
        let found = [&b"a"[..], b"l", b"m"].map(|key| cache.region_of(key).unwrap().id.0);
        assert_eq!(found, [7, 7, 2], "an older one is no news");
        cache.forget(RegionId(7));
        assert_eq!(cache.region_of(b"a"), None);
    }
}
