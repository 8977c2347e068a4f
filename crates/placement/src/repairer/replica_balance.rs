//! Balance of replicas: the next move from a store that has many to one that has few.
//!
//! A move is made if the counts differ by two at least, and by more than a twentieth of the mean:
//! so no move is undone, and a large cluster does not copy regions for the sake of one.

use std::collections::BTreeSet;

use super::store_figures::StoreFigures;
use crate::route_table::RegionInfo;

/// Of so many replicas of the mean store, one is no difference.
const TOLERATED_PART: usize = 20;

/// The region to be moved, its leader's store, and its stores behind the move. `regions` are those
/// that may be moved.
pub(super) fn next_move<'a>(
    regions: impl Iterator<Item = (&'a RegionInfo, u64)>,
    stores: &StoreFigures,
    snapshots_max: usize,
) -> Option<(&'a RegionInfo, u64, BTreeSet<u64>)> {
    let mut counts: Vec<(usize, u64)> = stores
        .iter()
        .filter(|(_, figure)| figure.is_target)
        .map(|(id, figure)| (figure.replicas, id))
        .collect();
    counts.sort_unstable();
    let total: usize = counts.iter().map(|(count, _)| count).sum();
    let least_gap = (total / counts.len().max(1) / TOLERATED_PART).max(1) + 1;
    if counts.last()?.0 < counts.first()?.0 + least_gap {
        return None;
    }
    let regions: Vec<_> = regions.collect();
    for (many, from) in counts.iter().rev() {
        for (few, to) in counts.iter().take_while(|(few, _)| few + least_gap <= *many) {
            debug_assert!(few < many);
            let mut found = None;
            for (region, leader) in &regions {
                let wanted = moved(region, *from, *to, stores);
                let Some(wanted) = wanted else { continue };
                if !stores.has_room(region, *leader, &wanted, snapshots_max) {
                    continue;
                }
                // A leader would have to be transferred first.
                let is_led_there = leader == from;
                if !is_led_there {
                    return Some((*region, *leader, wanted));
                }
                found.get_or_insert((*region, *leader, wanted));
            }
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The stores of a region behind a move, if it has a replica on one and none on the other, and its
/// zones are as many afterwards.
fn moved(region: &RegionInfo, from: u64, to: u64, stores: &StoreFigures) -> Option<BTreeSet<u64>> {
    let mut wanted = region.voting_stores();
    // A region of one is moved over a third store: not for the sake of balance.
    if wanted.len() < 2 || region.on(to).is_some() || !wanted.remove(&from) {
        return None;
    }
    if stores.clashes(to, &wanted) > stores.clashes(from, &wanted) {
        return None;
    }
    wanted.insert(to);
    Some(wanted)
}
