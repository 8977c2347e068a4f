//! Views that are held for long, as by slow readers: whatever the store does meanwhile, their rows
//! stay what they were when the view was taken, or the store says that it has ended the view.

use bytes::Bytes;
use fastrand::Rng;
use flotilla_region::RegionId;
use flotilla_store::{Error, PagesError, ReadError, Store, StoreSnapshot};

use super::reads::rows;
use crate::coverage::SpillCoverage;
use crate::event_queue::SimTime;
use crate::reference_model::RowKey;

/// Views that are held at a time.
const HELD_MAX: usize = 4;
/// A view is held up to this many times as long as a scan waits between two parts.
const SCAN_PARTS: u64 = 4;

/// The rows of each region.
type RowsByRegion = Vec<(RegionId, Vec<(RowKey, Bytes)>)>;

/// A view, and its rows when it was taken.
#[derive(Debug)]
struct HeldView {
    view: StoreSnapshot,
    rows: RowsByRegion,
    until: SimTime,
    /// Bytes that were spilled before it was taken.
    spilled_before: u64,
}

/// The views of one store.
#[derive(Debug, Default)]
pub(super) struct HeldViews(Vec<HeldView>);

impl HeldViews {
    /// Lets views go whose time is over, and takes new ones, if scans are long.
    ///
    /// # Errors
    ///
    /// The page store failed.
    ///
    /// # Panics
    ///
    /// If the rows of a view have changed.
    pub(super) fn step(
        &mut self,
        store: &Store,
        now: SimTime,
        scan_us_max: u64,
        rng: &mut Rng,
        spills: &mut SpillCoverage,
    ) -> Result<(), Error> {
        if scan_us_max == 0 {
            return Ok(());
        }
        let written = store.stats().pages.spill.written_bytes;
        let over: Vec<HeldView> = self.0.extract_if(.., |held| held.until <= now).collect();
        for HeldView { view, rows, spilled_before, .. } in over {
            match rows_of(&view)? {
                Some(found) => {
                    assert_eq!(found, rows, "the rows of a view have changed");
                    spills.views += u64::from(written > spilled_before);
                }
                None => spills.views_ended += 1,
            }
        }
        if self.0.len() < HELD_MAX && rng.bool() {
            let view = store.read();
            let rows = rows_of(&view)?.expect("the last published state is never ended");
            let until = now + rng.u64(1..=SCAN_PARTS * scan_us_max);
            self.0.push(HeldView { view, rows, until, spilled_before: written });
        }
        Ok(())
    }
}

/// The rows of a view; none if the store has ended it.
fn rows_of(view: &StoreSnapshot) -> Result<Option<RowsByRegion>, Error> {
    let read = || {
        let mut all = RowsByRegion::new();
        for region in view.descriptors()? {
            match view.region(region.id, None).and_then(|region| rows(&region)) {
                // It has the mark at each look.
                Err(ReadError::Damaged) => {}
                found => all.push((region.id, found.map_err(failed)?)),
            }
        }
        Ok(all)
    };
    match read() {
        Ok(rows) => Ok(Some(rows)),
        Err(Error::Pages(PagesError::SnapshotTooOld { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(error: ReadError) -> Error {
    match error {
        ReadError::Pages(error) => Error::Pages(error),
        error => panic!("a region that a view lists cannot be read: {error}"),
    }
}
