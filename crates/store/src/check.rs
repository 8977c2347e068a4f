//! Consistency check of a whole store: pages, rows and logs fit together.

use flotilla_pagestore::{PageStore, Snapshot, Tree};
use flotilla_region::{Descriptor, KeyRange, PeerId, RegionId, Space, StoreId, Term};

use crate::error::Error;
use crate::range_map::RangeMap;
use crate::region_ranges;
use crate::schema::{self, ApplyState, BIRTH_KEY, BirthRecord, DataRow, FamilyTrees, MalformedRow};
use crate::snapshot_read::StoreSnapshot;
use crate::store_log::StoreLog;

/// The result of a check.
#[derive(Clone, Debug)]
pub struct StoreCheckReport {
    /// The page store's own report: every page is reachable, free or pending.
    pub pages: flotilla_pagestore::PageCheckReport,
    /// How many regions have their rows, disjoint ranges and a log that fits.
    pub regions: u64,
    /// How many rows of data there are, each inside of a region.
    pub rows: u64,
    /// How many replicas have no data, and a row that says so.
    pub uninitialised: u64,
    /// How many regions have had a replica here that has ended.
    pub tombstones: u64,
    /// How many ranges are promised to snapshots on their way.
    pub promised: u64,
}

/// Checks pages, rows and logs.
pub(crate) fn check(
    pages: &PageStore,
    log: &StoreLog,
    ranges: &RangeMap,
    store: StoreId,
) -> Result<StoreCheckReport, Error> {
    let (snapshot, held) = {
        // The map changes under the writer lock: with it, map and view are of one moment.
        let _writer = pages.write()?;
        (pages.read(), ranges.held())
    };
    let view = StoreSnapshot::new(snapshot.clone());
    let descriptors = view.descriptors()?;
    region_ranges::check_disjoint(&descriptors).map_err(Error::Corrupt)?;
    let promised = check_ranges(&descriptors, held, ranges)?;
    let uninitialised = check_uninitialised(log, store, &view, &descriptors)?;
    let tombstones = check_tombstones(log, store, &view, &descriptors)?;
    check_inconsistent(&view, &descriptors)?;
    let states = view.states()?;
    if states.len() != descriptors.len() {
        return Err(Error::Corrupt(format!(
            "{} regions, but {} apply rows",
            descriptors.len(),
            states.len()
        )));
    }
    for (descriptor, (region, state)) in descriptors.iter().zip(&states) {
        if descriptor.id != *region {
            return Err(Error::Corrupt(format!("region {} has no apply row", descriptor.id)));
        }
        check_log(log, store, descriptor, state)?;
    }
    let mut rows = 0;
    for space in [Space::System, Space::Raw] {
        let inside: Vec<&Descriptor> = descriptors.iter().filter(|d| d.space == space).collect();
        for trees in schema::trees_of(space) {
            let Some(tree) = snapshot.tree(trees.rows)? else { continue };
            // One of the two has lost a page that the other one has.
            if !states.iter().any(|(_, state)| state.is_damaged) {
                check_expiries(&snapshot, trees, &tree)?;
            }
            let mut all = tree.range(..);
            while let Some((key, value)) = all.next()? {
                DataRow::decode(value)?;
                if !inside.iter().any(|descriptor| descriptor.contains(key)) {
                    return Err(Error::Corrupt(format!("key {key:?} is in no region")));
                }
                rows += 1;
            }
        }
    }
    let (pages, regions) = (pages.check()?, descriptors.len() as u64);
    Ok(StoreCheckReport { pages, regions, rows, uninitialised, tombstones, promised })
}

/// A verdict is about a region that is here.
fn check_inconsistent(view: &StoreSnapshot, descriptors: &[Descriptor]) -> Result<(), Error> {
    let is_here = |region: &RegionId| descriptors.iter().any(|it| it.id == *region);
    match view.inconsistent()?.keys().find(|region| !is_here(region)) {
        Some(region) => {
            Err(Error::Corrupt(format!("a verdict about region {region}, which is not here")))
        }
        None => Ok(()),
    }
}

/// The expiry tree has the times of the rows that expire, and no others.
fn check_expiries(snapshot: &Snapshot, trees: &FamilyTrees, rows: &Tree) -> Result<(), Error> {
    let expiries = trees.expiries.map(|name| snapshot.tree(name)).transpose()?.flatten();
    let mut found = 0;
    let mut all = rows.range(..);
    while let Some((key, row)) = all.next()? {
        let expires_ms = DataRow::decode(row)?.expires_ms;
        if expires_ms == 0 {
            continue;
        }
        let expiry = expiries.as_ref().map(|expiries| expiries.get(key)).transpose()?.flatten();
        let expiry = expiry.map(|row| schema::decode_expiry(&row)).transpose()?;
        if expiry != Some(expires_ms) {
            return Err(Error::Corrupt(format!(
                "key {key:?} expires at {expires_ms}, but its time is {expiry:?}"
            )));
        }
        found += 1;
    }
    let times = expiries.map_or(0, |expiries| expiries.len());
    if times != found {
        return Err(Error::Corrupt(format!("{found} rows expire, but there are {times} times")));
    }
    Ok(())
}

/// The range map has the ranges of the rows, and promises none of them to another region. Returns
/// how many are promised.
fn check_ranges(
    descriptors: &[Descriptor],
    mut held: Vec<(RegionId, KeyRange)>,
    ranges: &RangeMap,
) -> Result<u64, Error> {
    held.sort_by_key(|(region, _)| *region);
    let rows = descriptors.iter().map(|descriptor| (descriptor.id, descriptor.range()));
    if !rows.eq(held) {
        return Err(Error::Corrupt("the range map is not that of the rows".to_owned()));
    }
    let promised = ranges.promised();
    for (region, range) in &promised {
        if let Some(other) = ranges.holder(range, Some(*region)) {
            return Err(Error::Corrupt(format!(
                "region {other} holds a range that is promised to a snapshot of {region}"
            )));
        }
    }
    Ok(promised.len() as u64)
}

/// No replica at a tombstone or below is here, and the log has none but those whose ends are on
/// their way to a root.
fn check_tombstones(
    log: &StoreLog,
    store: StoreId,
    view: &StoreSnapshot,
    descriptors: &[Descriptor],
) -> Result<u64, Error> {
    let (tombstones, without_data) = (view.tombstones()?, view.uninitialised()?);
    let with_rows = descriptors
        .iter()
        .filter_map(|descriptor| Some((descriptor.id, schema::replica_here(descriptor, store)?)));
    let mut here = with_rows.chain(without_data.iter().map(|(region, row)| (*region, row.peer)));
    let has_ended = |(region, peer): &(RegionId, PeerId)| {
        tombstones.get(region).is_some_and(|tombstone| *peer <= tombstone.peer)
    };
    if let Some((region, peer)) = here.find(has_ended) {
        return Err(Error::Corrupt(format!(
            "region {region}: replica {peer} has ended, and is here"
        )));
    }
    let mut groups = tombstones.values().flat_map(|tombstone| &tombstone.groups);
    let is_left =
        |peer: &&PeerId| log.engine().group(peer.0).is_some() && !log.is_removal_due(**peer);
    match groups.find(is_left) {
        Some(peer) => Err(Error::Corrupt(format!("the log of {peer} is left, which has ended"))),
        None => Ok(tombstones.len() as u64),
    }
}

/// A replica without data has no other rows, unless those are of an earlier replica that ends, and
/// no entries in the log.
fn check_uninitialised(
    log: &StoreLog,
    store: StoreId,
    view: &StoreSnapshot,
    descriptors: &[Descriptor],
) -> Result<u64, Error> {
    let found = view.uninitialised()?;
    for (region, row) in &found {
        let corrupt = |what: &str| Err(Error::Corrupt(format!("region {region}: {what}")));
        let of_region = descriptors.iter().find(|descriptor| descriptor.id == *region);
        let with_rows =
            of_region.map(|descriptor| schema::replica_here(descriptor, store).unwrap_or_default());
        if with_rows.is_some_and(|other| other >= row.peer) {
            return corrupt("it has data, and a row that says that it has none");
        }
        let Some(group) = log.engine().group(row.peer.0) else { continue };
        let birth = group.get(BIRTH_KEY).map(BirthRecord::decode).transpose();
        // Behind a split that is not in the rows again yet, it may have entries.
        let is_split =
            matches!(birth.map_err(MalformedRow::from)?, Some(BirthRecord::Split { .. }));
        if !is_split && group.last_index() > 0 {
            return corrupt("a replica without data has entries");
        }
    }
    Ok(found.len() as u64)
}

/// The log reaches down to the durable root and up to what is applied, with the same terms.
fn check_log(
    log: &StoreLog,
    store: StoreId,
    descriptor: &Descriptor,
    state: &ApplyState,
) -> Result<(), Error> {
    let region = descriptor.id;
    let corrupt = |what: String| Err(Error::Corrupt(format!("region {region}: {what}")));
    let Some(peer) = schema::replica_here(descriptor, store) else {
        return corrupt("no replica on this store".to_owned());
    };
    let durable = log.durable(peer);
    // Between a snapshot and the reset of the log the two have nothing in common.
    if log.is_reset_due(peer) {
        return Ok(());
    }
    if state.applied < durable {
        return corrupt(format!("applied up to {}, but durable to {durable}", state.applied));
    }
    // A group may hold a hard state and no entry: its log has not begun.
    let Some(group) = log.engine().group(peer.0).filter(|group| group.last_index() > 0) else {
        if state.applied > durable {
            return corrupt(format!("no log from {durable} to the applied {}", state.applied));
        }
        return Ok(());
    };
    let (first, last) = (group.first_index(), group.last_index());
    // A restart begins at the durable index, not at the applied one, and needs each entry from
    // there on.
    if first > durable.0 + 1 {
        return corrupt(format!("the log begins at {first}, but only {durable} is durable"));
    }
    if last < state.applied.0 {
        return corrupt(format!("the log ends at {last}, below the applied {}", state.applied));
    }
    match group.term(state.applied.0) {
        Ok(term) if Term(term) != state.term => corrupt(format!(
            "entry {} was applied in term {}, but is of term {term} in the log",
            state.applied, state.term
        )),
        // Compacted: there is no term to compare.
        _ => Ok(()),
    }
}
