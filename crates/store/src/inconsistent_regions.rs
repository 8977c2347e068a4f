//! The regions whose replicas were found to differ. Each has a row until a later comparison of all
//! its replicas finds no difference, or its replica here ends.

use std::collections::BTreeMap;

use flotilla_pagestore::WriteTxn;
use flotilla_region::{ConsistencyVerdict, RegionId};
use parking_lot::Mutex;

use crate::error::Error;
use crate::schema::{self, INCONSISTENT};

/// The rows of [`INCONSISTENT`] in memory, so that the status of a store needs no disk.
#[derive(Debug)]
pub(crate) struct InconsistentRegions {
    verdicts: Mutex<BTreeMap<RegionId, ConsistencyVerdict>>,
}

/// The effect of a verdict on the row of its region.
enum AlarmChange {
    Raise,
    /// All replicas were compared: any that differed is equal now, or none of them any more.
    Clear,
    /// The one that differed may have taken no part.
    Keep,
}

impl AlarmChange {
    fn of(verdict: &ConsistencyVerdict) -> Self {
        match (verdict.has_difference(), verdict.is_complete()) {
            (true, _) => Self::Raise,
            (false, true) => Self::Clear,
            (false, false) => Self::Keep,
        }
    }
}

impl InconsistentRegions {
    /// With those that the rows have at a start.
    pub(crate) fn new(verdicts: BTreeMap<RegionId, ConsistencyVerdict>) -> Self {
        Self { verdicts: Mutex::new(verdicts) }
    }

    /// A verdict was applied, in a transaction that is published.
    pub(crate) fn note(&self, region: RegionId, verdict: &ConsistencyVerdict) {
        let mut verdicts = self.verdicts.lock();
        match AlarmChange::of(verdict) {
            AlarmChange::Raise => drop(verdicts.insert(region, verdict.clone())),
            AlarmChange::Clear => drop(verdicts.remove(&region)),
            AlarmChange::Keep => {}
        }
    }

    /// The replica of a region here has ended.
    pub(crate) fn forget(&self, region: RegionId) {
        self.verdicts.lock().remove(&region);
    }

    pub(crate) fn count(&self) -> usize {
        self.verdicts.lock().len()
    }

    pub(crate) fn all(&self) -> BTreeMap<RegionId, ConsistencyVerdict> {
        self.verdicts.lock().clone()
    }
}

/// Puts the row of a region whose replicas differ, or removes it.
pub(crate) fn put(
    txn: &mut WriteTxn<'_>,
    region: RegionId,
    verdict: &ConsistencyVerdict,
) -> Result<(), Error> {
    assert!(!verdict.replicas.is_empty(), "region {region}: a verdict about no replica");
    match AlarmChange::of(verdict) {
        AlarmChange::Raise => {
            txn.tree(INCONSISTENT)?.put(&schema::region_key(region), &verdict.encode())?;
            Ok(())
        }
        AlarmChange::Clear => remove(txn, region),
        AlarmChange::Keep => Ok(()),
    }
}

/// Removes the row of a region, if there is one.
pub(crate) fn remove(txn: &mut WriteTxn<'_>, region: RegionId) -> Result<(), Error> {
    let mut rows = txn.tree(INCONSISTENT)?;
    // A delete of nothing would copy the pages down to it.
    if !rows.is_empty() {
        rows.delete(&schema::region_key(region))?;
    }
    Ok(())
}
