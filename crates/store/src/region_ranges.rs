//! Checks that the regions of a store have distinct ids and disjoint ranges.

use std::collections::BTreeSet;

use flotilla_region::{Descriptor, PeerId, RegionId};

use crate::error::Error;

/// The first regions of a cluster do not contradict each other.
pub(crate) fn check_first(regions: &[Descriptor]) -> Result<(), Error> {
    let (mut ids, mut peers) = (BTreeSet::new(), BTreeSet::new());
    for region in regions {
        if region.id == RegionId(0) || !ids.insert(region.id) {
            return Err(Error::Bootstrap(format!("region id {} is 0 or there twice", region.id)));
        }
        for peer in &region.peers {
            if peer.id == PeerId(0) || !peers.insert(peer.id) {
                return Err(Error::Bootstrap(format!("peer id {} is 0 or there twice", peer.id)));
            }
        }
    }
    check_disjoint(regions).map_err(Error::Bootstrap)
}

/// No key is in two regions, and no region is without keys.
pub(crate) fn check_disjoint(regions: &[Descriptor]) -> Result<(), String> {
    let mut sorted: Vec<&Descriptor> = regions.iter().collect();
    sorted.sort_by(|a, b| (a.space, &a.start).cmp(&(b.space, &b.start)));
    if let Some(empty) = sorted.iter().find(|r| !r.end.is_empty() && r.start >= r.end) {
        return Err(format!("region {} ends before it starts", empty.id));
    }
    for pair in sorted.windows(2) {
        let (one, next) = (pair[0], pair[1]);
        if one.space == next.space && (one.end.is_empty() || one.end > next.start) {
            return Err(format!("regions {} and {} overlap", one.id, next.id));
        }
    }
    Ok(())
}
