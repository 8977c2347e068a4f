//! Damage of single regions: a page or a long value that is not what was written.
//!
//! The rows that a damaged page held are lost here, and the other replicas of their regions have
//! them. So the page is taken out of its tree, in one transaction with a mark in the apply row of
//! each region that had keys there. A replica with the mark serves nothing, and entries change none
//! of its rows, until a snapshot takes their place, which takes the mark as well
//! (`docs/decisions/0060-a-damaged-replica-is-rebuilt-in-place.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use flotilla_pagestore::{Error as PagesError, LostKeys, PageStore, WriteTxn};
use flotilla_region::{Descriptor, PeerId, RegionId, Space, StoreId};
use parking_lot::Mutex;

use crate::data_range::end_bound;
use crate::error::Error;
use crate::schema::{self, APPLY, ApplyState, REGION};

/// The most damaged pages that are taken out in one transaction.
const PAGES_MAX: usize = 256;

/// The replicas here that are damaged.
#[derive(Debug)]
pub(crate) struct DamagedReplicas {
    regions: Mutex<BTreeSet<RegionId>>,
    /// Whether there was one since the start: then each read looks at the mark.
    were_some: AtomicBool,
}

impl DamagedReplicas {
    /// With those that the rows have at a start.
    pub(crate) fn new(regions: BTreeSet<RegionId>) -> Self {
        let were_some = AtomicBool::new(!regions.is_empty());
        Self { regions: Mutex::new(regions), were_some }
    }

    /// Before the transaction with the marks is published: no view may have it and not look.
    pub(crate) fn note(&self, found: &[DamagedReplica]) {
        self.were_some.store(true, Ordering::SeqCst);
        self.regions.lock().extend(found.iter().map(|replica| replica.region));
    }

    /// Its rows were replaced, or are gone.
    pub(crate) fn forget(&self, region: RegionId) {
        self.regions.lock().remove(&region);
    }

    /// Asked behind the taking of a view: whether it may have a mark.
    pub(crate) fn were_some(&self) -> bool {
        self.were_some.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> usize {
        self.regions.lock().len()
    }
}

/// A replica whose rows are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedReplica {
    /// The region.
    pub region: RegionId,
    /// Its replica here.
    pub peer: PeerId,
}

/// The outcome for a damaged page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// Whether the trees had the page, and do not any more. If not, a transaction has replaced it
    /// since it was read, and nothing is lost.
    pub was_found: bool,
    /// The replicas that are marked, also those that were before.
    pub replicas: Vec<DamagedReplica>,
}

/// Takes a page out that was found damaged, and marks the replicas that have lost rows by it. `of`
/// is the region that was read, if one was.
pub(crate) fn quarantine(
    pages: &PageStore,
    damaged: &DamagedReplicas,
    store: StoreId,
    page: u64,
    of: Option<RegionId>,
) -> Result<Quarantine, Error> {
    let mut units = BTreeSet::from([page]);
    let mut values = BTreeMap::new();
    loop {
        let mut txn = pages.write()?;
        match take_out(&mut txn, store, &units, &values) {
            Ok(found) if found.was_found => {
                damaged.note(&found.replicas);
                txn.publish()?;
                return Ok(found);
            }
            Ok(nothing) => {
                drop(txn);
                // No page of a tree: it may be a long value.
                if !values.is_empty() {
                    return Ok(nothing);
                }
                values = owners(pages, page, of)?;
                if values.is_empty() {
                    return Ok(nothing);
                }
            }
            // Another one that had to be read is damaged as well.
            Err(Error::Pages(PagesError::Corrupt { page, .. }))
                if units.len() < PAGES_MAX && units.insert(page) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Without the replica of a region whose rows are gone.
pub(crate) fn others(mut damaged: Vec<DamagedReplica>, region: RegionId) -> Vec<DamagedReplica> {
    damaged.retain(|replica| replica.region != region);
    damaged
}

/// Marks the replica whose log has a damaged entry, unless it is the only one of its region.
pub(crate) fn give_up_log(
    pages: &PageStore,
    damaged: &DamagedReplicas,
    store: StoreId,
    peer: PeerId,
) -> Result<Option<DamagedReplica>, Error> {
    let mut txn = pages.write()?;
    let mut regions = regions_of(&mut txn, Space::System)?;
    regions.extend(regions_of(&mut txn, Space::Raw)?);
    let is_it = |region: &&Descriptor| schema::replica_here(region, store) == Some(peer);
    let Some(region) = regions.iter().find(is_it) else { return Ok(None) };
    if !has_other_voter(region, store) {
        return Ok(None);
    }
    let replica = mark(&mut txn, store, region)?;
    damaged.note(&[replica]);
    txn.publish()?;
    Ok(Some(replica))
}

/// Keys of the trees of a space.
type LostValues = BTreeMap<Space, Vec<Vec<u8>>>;

fn take_out(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    units: &BTreeSet<u64>,
    values: &LostValues,
) -> Result<Quarantine, Error> {
    // Of rows that were removed, nothing is lost.
    let mut found = Quarantine { was_found: txn.drop_deferred(units)?, replicas: vec![] };
    for space in [Space::System, Space::Raw] {
        let mut lost = vec![];
        for trees in schema::trees_of(space) {
            for name in [Some(trees.rows), trees.expiries].into_iter().flatten() {
                let mut tree = txn.tree(name)?;
                if !tree.is_empty() {
                    let keys = tree.len();
                    let dropped = tree.drop_pages(units)?;
                    let count: u64 = dropped.iter().map(|keys| keys.count).sum();
                    assert_eq!(keys - count, tree.len(), "tree {name} has lost other keys");
                    lost.extend(dropped);
                }
            }
        }
        let values = values.get(&space).map_or(&[][..], |keys| keys);
        found.was_found |= !lost.is_empty() || !values.is_empty();
        for descriptor in regions_of(txn, space)? {
            let has_lost = lost.iter().any(|keys| meets(&descriptor, keys))
                || values.iter().any(|key| descriptor.contains(key));
            if has_lost {
                found.replicas.push(mark(txn, store, &descriptor)?);
            }
        }
    }
    Ok(found)
}

fn regions_of(txn: &mut WriteTxn<'_>, space: Space) -> Result<Vec<Descriptor>, Error> {
    let tree = txn.tree(REGION)?;
    let (mut regions, mut rows) = (vec![], tree.range(..));
    while let Some((key, row)) = rows.next()? {
        regions.push(schema::decode_descriptor(schema::region_of_key(key)?, row)?);
    }
    regions.retain(|descriptor| descriptor.space == space);
    Ok(regions)
}

fn meets(descriptor: &Descriptor, keys: &LostKeys) -> bool {
    let start = keys.start.as_deref().unwrap_or_default();
    assert!(keys.end.as_deref().is_none_or(|end| start < end), "keys of a page are out of order");
    let begins_before = descriptor.end.is_empty() || start < &descriptor.end[..];
    begins_before && keys.end.as_ref().is_none_or(|end| descriptor.start[..] < end[..])
}

fn mark(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    descriptor: &Descriptor,
) -> Result<DamagedReplica, Error> {
    let region = descriptor.id;
    let own = replica_of(descriptor, store).ok_or(Error::NoRegion(region))?;
    if !has_other_voter(descriptor, store) {
        return Err(Error::OnlyVoter(region));
    }
    let key = schema::region_key(region);
    let mut states = txn.tree(APPLY)?;
    let mut state = ApplyState::decode(region, states.get(&key)?.as_deref())?;
    // It is in the rows, so an end must not have come before.
    assert!(own.peer.0 > 0, "region {region}: its replica here has no id");
    state.is_damaged = true;
    states.put(&key, &state.encode())?;
    Ok(own)
}

/// The replica of a region here, as one of a damaged one.
pub(crate) fn replica_of(descriptor: &Descriptor, store: StoreId) -> Option<DamagedReplica> {
    let peer = schema::replica_here(descriptor, store)?;
    Some(DamagedReplica { region: descriptor.id, peer })
}

fn has_other_voter(descriptor: &Descriptor, store: StoreId) -> bool {
    descriptor.peers.iter().any(|peer| peer.votes() && peer.store != store)
}

/// The keys whose values lie on the damaged page, of one region or of all.
fn owners(pages: &PageStore, page: u64, of: Option<RegionId>) -> Result<LostValues, Error> {
    let view = pages.read();
    let mut lost = LostValues::new();
    let Some(regions) = view.tree(REGION)? else { return Ok(lost) };
    let mut rows = regions.range(..);
    while let Some((key, row)) = rows.next()? {
        let region = schema::region_of_key(key)?;
        if of.is_some_and(|of| of != region) {
            continue;
        }
        let descriptor = schema::decode_descriptor(region, row)?;
        for trees in schema::trees_of(descriptor.space) {
            let Some(tree) = view.tree(trees.rows)? else { continue };
            let bounds = (Bound::Included(&descriptor.start[..]), end_bound(&descriptor.end));
            let mut keys = tree.keys(bounds);
            while let Some(key) = keys.next()? {
                match tree.get(key) {
                    Err(PagesError::Corrupt { page: met, .. }) if met == page => {
                        lost.entry(descriptor.space).or_default().push(key.to_vec());
                    }
                    other => drop(other?),
                }
            }
        }
    }
    Ok(lost)
}
