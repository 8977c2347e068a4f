//! The layout of a simulated cluster: its first regions and the places of their replicas.

use bytes::Bytes;
use fastrand::Rng;
use flotilla_identity::ClusterSettings;
use flotilla_region::{
    Config, Descriptor, Epoch, Peer, PeerId, RegionId, RegionSettings, RemovedPeers, Space, StoreId,
};

/// The region that holds placement's own rows.
pub(crate) const SYSTEM: RegionId = RegionId(1);
/// Replicas of the system region at most.
const SYSTEM_REPLICAS_MAX: usize = 5;

/// The system region and `data_regions` others that share the clients' keys evenly.
pub(crate) fn bootstrap(stores: usize, data_regions: usize, rng: &mut Rng) -> Vec<Descriptor> {
    let system = describe(SYSTEM, Space::System, Bytes::new(), Bytes::new());
    let mut all = vec![with_replicas(system, 0, stores.min(SYSTEM_REPLICAS_MAX), stores)];
    for place in 0..data_regions {
        let start = if place == 0 { Bytes::new() } else { border(place, data_regions) };
        let next = place + 1;
        let end = if next == data_regions { Bytes::new() } else { border(next, data_regions) };
        let region = describe(RegionId(2 + place as u64), Space::Raw, start, end);
        // With five stores some regions are not everywhere, so that requests meet stores without
        // them.
        let replicas = if rng.bool() { stores } else { 3 };
        all.push(with_replicas(region, place, replicas, stores));
    }
    all
}

/// The `nth` key of a region that clients use.
pub(crate) fn key(region: &Descriptor, nth: usize) -> Bytes {
    // The region's own beginning, so that its keys are inside whatever its borders are.
    let prefix = if region.start.is_empty() { &[0, 0][..] } else { &region.start };
    [prefix, format!("key{nth:02}").as_bytes()].concat().into()
}

/// Whether two regions share keys.
pub(crate) fn overlap(one: &Descriptor, other: &Descriptor) -> bool {
    let begins_before_end =
        |one: &Descriptor, other: &Descriptor| other.end.is_empty() || one.start < other.end;
    one.space == other.space && begins_before_end(one, other) && begins_before_end(other, one)
}

/// Checks that no key is in two of the regions of one store.
pub(crate) fn check_disjoint<'a>(
    regions: impl Iterator<Item = &'a Descriptor>,
) -> Result<(), String> {
    let regions: Vec<_> = regions.collect();
    for (nth, one) in regions.iter().enumerate() {
        if let Some(other) = regions[..nth].iter().find(|other| overlap(one, other)) {
            return Err(format!("a store has {one:?} and {other:?}, which overlap"));
        }
    }
    Ok(())
}

/// The number of the store with this id.
pub(crate) fn place(store: StoreId) -> usize {
    usize::try_from(store.0 - 1).expect("stores are few")
}

/// The id of the store with this number.
pub(crate) fn id(place: usize) -> StoreId {
    StoreId(place as u64 + 1)
}

fn border(place: usize, of: usize) -> Bytes {
    let border = u16::try_from(65_536 * place / of).expect("the last region has no border above");
    Bytes::copy_from_slice(&border.to_be_bytes())
}

fn describe(id: RegionId, space: Space, start: Bytes, end: Bytes) -> Descriptor {
    let epoch = Epoch { conf_version: 1, version: 1 };
    Descriptor { removed: RemovedPeers::default(), id, space, start, end, epoch, peers: Vec::new() }
}

fn with_replicas(region: Descriptor, first: usize, count: usize, stores: usize) -> Descriptor {
    let mut places: Vec<_> = (first..first + count).map(|place| place % stores).collect();
    places.sort_unstable();
    let peer = |place| Peer { id: PeerId(region.id.0 * 100 + id(place).0), store: id(place) };
    Descriptor { peers: places.into_iter().map(|place| peer(place).into()).collect(), ..region }
}

/// The part of the settings of the cluster that regions go by. A run draws its bound on entries
/// itself.
pub(crate) fn region_settings(settings: &ClusterSettings, drawn: &Config) -> RegionSettings {
    let entry_bytes_max = usize::try_from(settings.entry_bytes_max).unwrap_or(usize::MAX);
    RegionSettings {
        tick_ms: settings.tick_ms,
        leases: settings.uses_leases(),
        entry_bytes_max: entry_bytes_max.min(drawn.entry_bytes_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_share_the_keys_without_gaps() {
        for data_regions in 1..6 {
            let all = bootstrap(5, data_regions, &mut Rng::with_seed(1));
            assert_eq!(all[0].peers.len(), 5);
            let data = &all[1..];
            assert!(data[0].start.is_empty() && data[data_regions - 1].end.is_empty());
            assert!(data.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(data.iter().all(|region| (0..9).all(|nth| region.contains(&key(region, nth)))));
            assert!(data.iter().all(|region| region.peers.len() >= 3));
        }
    }
}
