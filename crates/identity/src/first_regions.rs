//! The first regions of a cluster, and the store that campaigns first in each.

use std::collections::BTreeSet;

use bytes::Bytes;
use flotilla_region::{
    Descriptor, Epoch, Peer, PeerId, RegionId, RegionPeer, RemovedPeers, Space, StoreId,
};

/// Initial stores at most: replica ids have two digits for the store.
pub const STORES_MAX: usize = 99;

/// Data regions at most that a configuration asks for: with one more, for the end of the keyspace
/// `DEFAULT`, replica ids stay below those that are handed out later.
pub const REGIONS_MAX: u64 = 9_997;

/// The region of placement's own rows.
pub const SYSTEM_REGION: RegionId = RegionId(1);

/// Replicas of the system region at most.
const SYSTEM_REPLICAS_MAX: usize = 5;

/// The regions of a new cluster of `stores` stores: the system region, and those of the clients'
/// keys. `regions` of these begin at even places of the first two bytes behind `prefix`, with which
/// the keys are expected to begin, and one more at each of `split_keys`, in any order, where none
/// begins.
///
/// # Panics
///
/// If `regions` is 0, or all regions are more than [`REGIONS_MAX`] and one; configurations are
/// checked before.
#[must_use]
pub fn first_regions(
    stores: usize,
    (regions, prefix): (u64, &[u8]),
    split_keys: &[Bytes],
    replicas: usize,
) -> Vec<Descriptor> {
    let even = (0..regions).map(|place| even_border(place, regions, prefix));
    let borders: BTreeSet<Bytes> = even.chain(split_keys.iter().cloned()).collect();
    let count = borders.len() as u64;
    let is_possible = regions > 0 && count <= REGIONS_MAX + 1;
    assert!(is_possible, "{regions} even regions, {count} in all, cannot begin a cluster");
    let id = |place: usize| StoreId((place % stores) as u64 + 1);
    let mut all = Vec::with_capacity(borders.len() + 1);
    let system = (0..stores.min(SYSTEM_REPLICAS_MAX)).map(id);
    all.push(region(SYSTEM_REGION, Space::System, Bytes::new(), Bytes::new(), system));
    let ends = borders.iter().skip(1).cloned().chain([Bytes::new()]);
    for (place, (start, end)) in (0..).zip(borders.iter().zip(ends)) {
        let region_id = RegionId(SYSTEM_REGION.0 + 1 + place);
        let first = region_id.0 as usize;
        // Round-robin, so that replicas and first leaders are spread over the stores.
        let replicas = (first..first + replicas.min(stores)).map(id);
        all.push(region(region_id, Space::Raw, start.clone(), end, replicas));
    }
    all
}

/// The store that campaigns for `region` at once when the cluster is new, so that no client waits
/// for an election timeout and leaders are spread.
#[must_use]
pub fn first_campaigner(region: &Descriptor) -> Option<StoreId> {
    let place = region.id.0 as usize % region.peers.len().max(1);
    match region.space {
        Space::System => region.peers.first().map(|peer| peer.store),
        Space::Raw => region.peers.get(place).map(|peer| peer.store),
    }
}

/// The lower border of the `place`-th of `regions` ranges.
fn even_border(place: u64, regions: u64, prefix: &[u8]) -> Bytes {
    if place == 0 {
        return Bytes::new();
    }
    // Fewer regions than prefixes (`REGIONS_MAX`), so no two borders are the same.
    let border = u16::try_from((place << 16) / regions).expect("place < regions");
    Bytes::from([prefix, &border.to_be_bytes()].concat())
}

fn region(
    id: RegionId,
    space: Space,
    start: Bytes,
    end: Bytes,
    stores: impl Iterator<Item = StoreId>,
) -> Descriptor {
    let mut peers: Vec<RegionPeer> =
        stores.map(|store| Peer { id: PeerId(id.0 * 100 + store.0), store }.into()).collect();
    peers.sort_by_key(|peer| peer.store);
    Descriptor {
        removed: RemovedPeers::default(),
        id,
        space,
        start,
        end,
        epoch: Epoch { conf_version: 1, version: 1 },
        peers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_cover_every_key_once_on_distinct_stores() {
        for count in [1, 2, 3, 7, 16, 1000, REGIONS_MAX, REGIONS_MAX + 1] {
            let regions = first_regions(3, (count, b""), &[], 3);
            assert_eq!(regions[0].space, Space::System);
            let data = &regions[1..];
            assert_eq!(data.len() as u64, count);
            assert!(data[0].start.is_empty() && data[data.len() - 1].end.is_empty());
            for pair in data.windows(2) {
                assert_eq!(pair[0].end, pair[1].start);
                assert!(pair[0].start < pair[1].start, "region {} is empty", pair[0].id);
            }
            for region in &regions {
                let mut stores: Vec<_> = region.peers.iter().map(|peer| peer.store).collect();
                stores.dedup();
                assert_eq!(stores.len(), 3);
                assert!(region.peers.iter().all(|peer| peer.id.0 < 1_000_000));
                assert!(stores.contains(&first_campaigner(region).unwrap()));
            }
        }
    }

    #[test]
    fn given_borders_are_those_of_the_first_regions_once_each_and_in_order() {
        let keys = ["m", "b", "m", "\u{80}"].map(|key| Bytes::from_static(key.as_bytes()));
        let starts = |regions| -> Vec<Bytes> {
            let all = first_regions(3, (regions, b""), &keys, 3);
            assert_eq!(all[all.len() - 1].end, "");
            assert!(all[1..].windows(2).all(|pair| pair[0].end == pair[1].start));
            all[1..].iter().map(|region| region.start.clone()).collect()
        };
        assert_eq!(starts(1), ["", "b", "m", "\u{80}"]);
        // The even border lies among them.
        let even: [&[u8]; 5] = [b"", b"b", b"m", b"\x80\0", "\u{80}".as_bytes()];
        assert_eq!(starts(2), even);
    }

    #[test]
    fn the_first_leaders_are_spread_over_the_stores() {
        let regions = first_regions(3, (30, b""), &[], 3);
        for store in 1..=3 {
            let led = regions[1..].iter().filter(|r| first_campaigner(r) == Some(StoreId(store)));
            assert_eq!(led.count(), 10);
        }
    }
}
