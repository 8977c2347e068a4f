//! The first start: whose directory it is, and which regions it begins with.

use std::collections::BTreeSet;

use flotilla_pagestore::PageStore;
use flotilla_raftlog::LogEngine;
use flotilla_region::{Descriptor, PeerId, RegionId};

use crate::error::Error;
use crate::schema::{self, APPLY, ApplyState, Cut, IDENT, IDENTITY_KEY, Identity, REGION};

/// Checks whose directory it is. If nobody's, makes it that of `identity`, with those of `regions`
/// that have a replica on it; durably, and all at once: a start that dies half-way is repeated.
pub(crate) fn claim(
    pages: &PageStore,
    log: &LogEngine,
    identity: Identity,
    regions: &[Descriptor],
) -> Result<(), Error> {
    if let Some(found) = owner(pages)? {
        if found != identity {
            return Err(Error::OtherIdentity { found, asked: identity });
        }
        return Ok(());
    }
    // Nothing is logged before the directory is claimed. So this log lost its pages.
    if let Some(group) = log.group_ids().first() {
        return Err(Error::Corrupt(format!(
            "the log holds peer {group}, but the page file is empty"
        )));
    }
    check(identity, regions)?;
    let mut txn = pages.write()?;
    txn.tree(IDENT)?.put(IDENTITY_KEY, &identity.encode())?;
    for region in regions.iter().filter(|region| region.peer_on(identity.store).is_some()) {
        let key = schema::region_key(region.id);
        txn.tree(REGION)?.put(&key, &region.encode())?;
        txn.tree(APPLY)?.put(&key, &ApplyState::default().encode())?;
    }
    txn.set_mark(&Cut::default().encode());
    txn.publish()?;
    pages.checkpoint()?;
    Ok(())
}

fn owner(pages: &PageStore) -> Result<Option<Identity>, Error> {
    let Some(ident) = pages.read().tree(IDENT)? else { return Ok(None) };
    let row = ident.get(IDENTITY_KEY)?;
    Ok(row.map(|row| Identity::decode(&row)).transpose()?)
}

fn check(identity: Identity, regions: &[Descriptor]) -> Result<(), Error> {
    if identity.cluster_id == 0 || identity.store.0 == 0 {
        return Err(Error::Bootstrap(format!("{identity}: neither number may be 0")));
    }
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
