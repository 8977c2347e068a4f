//! The end of the file: growth before a checkpoint, and the bound down to which it may be
//! truncated.
//!
//! A checkpoint gives up the free units at the end of the file, if they are many, when it takes its
//! cut: the meta page that it writes names the new end. Once that is durable the file may be
//! truncated, which `trim_punch` does. No root reaches free units, so neither the durable root nor
//! the one before it loses a page; a crash in between leaves a file that is longer than it says,
//! which the next checkpoint finds.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::page::layout::{GROUP_UNITS, HEAD_UNITS, group_count, group_of, group_start};
use crate::page::{UNIT_BYTES, units_for};
use crate::shared::StoreShared;
use crate::space::SpaceManager;
use crate::space::alloc_groups::directory_bytes_max;
use flotilla_base::sync::MutexGuard;

/// Locks the space at a moment when the file is long enough for all units in use, for a redo area
/// of `redo_units`, and for a directory.
pub(crate) fn lock_with_room(
    shared: &StoreShared,
    redo_units: u32,
) -> Result<MutexGuard<'_, SpaceManager>> {
    loop {
        let space = shared.space.lock();
        if space.holes.are_unreserved() {
            drop(space);
            reserve(shared)?;
            continue;
        }
        let needed = bytes_needed(&space, redo_units);
        let reserved = shared.counters.file_bytes.load(Ordering::Relaxed);
        if needed <= reserved {
            return Ok(space);
        }
        drop(space);
        grow(shared, needed)?;
    }
}

/// The length that the file needs for all units in use, for a redo area of `redo_units`, and for a
/// directory.
pub(crate) fn bytes_needed(space: &SpaceManager, redo_units: u32) -> u64 {
    let end = end_behind(space.freelist.end(), redo_units);
    // The directory itself may begin a group, and leave the rest of the one before unused.
    let directory_units = u64::from(units_for(directory_bytes_max(group_count(end) + 2)));
    (end + 2 * (directory_units + HEAD_UNITS)) * UNIT_BYTES as u64
}

/// The end of a file that ended at `end` behind a span that was allocated there: it does not cross
/// the border of a group, and may leave the rest of one unused.
fn end_behind(end: u64, units: u32) -> u64 {
    let group = group_start(group_of(end));
    let start = end.max(group + HEAD_UNITS);
    let is_fitting = start + u64::from(units) <= group + GROUP_UNITS;
    let start = if is_fitting { start } else { group + GROUP_UNITS + HEAD_UNITS };
    start + u64::from(units)
}

/// Reserves room in the file, up to `needed` bytes and the step of growth behind them.
pub(crate) fn grow(shared: &StoreShared, needed: u64) -> Result<()> {
    let _resizing = shared.resizing.lock();
    let reserved = shared.counters.file_bytes.load(Ordering::Relaxed);
    if needed <= reserved {
        return Ok(());
    }
    let step = shared.options.growth_bytes.max(UNIT_BYTES as u64);
    let to = needed.next_multiple_of(step);
    let file = shared.page_reader.file();
    let outcome = file.allocate(reserved..to).map(|()| to);
    // Without the step behind it: the disk may have room for that.
    let outcome = outcome.or_else(|_| file.allocate(reserved..needed).map(|()| needed));
    let len = outcome.map_err(no_space)?;
    shared.counters.file_bytes.store(len, Ordering::Relaxed);
    Ok(())
}

/// Reserves the units that were allocated out of holes.
pub(crate) fn reserve(shared: &StoreShared) -> Result<()> {
    // Held to the end: a checkpoint that finds nothing unreserved is going to write, and units that
    // lie beyond the end when this has looked must not become part of the file meanwhile.
    let _resizing = shared.resizing.lock();
    let spans = {
        let mut space = shared.space.lock();
        // Units that were freed may have been cut off since.
        let end = space.freelist.end();
        space.holes.unreserved_before(end).to_vec()
    };
    let file = shared.page_reader.file();
    for span in spans {
        let bytes = |unit: u64| unit * UNIT_BYTES as u64;
        file.allocate(bytes(span.start)..bytes(span.end())).map_err(no_space)?;
        shared.space.lock().holes.note_reserved();
    }
    Ok(())
}

fn no_space(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::StorageFull => Error::NoSpace,
        _ => Error::Io(error),
    }
}

/// Gives up the free units at the end of the file if they are many.
pub(crate) fn trim(shared: &StoreShared, space: &mut SpaceManager) -> bool {
    let units_min = bytes_min(shared, space).div_ceil(UNIT_BYTES as u64);
    space.trim(units_min)
}

/// Notes a checkpoint that is durable, with the end that it names: if much behind what is needed is
/// reserved, that is to be cut off.
pub(crate) fn note_durable(shared: &StoreShared, space: &mut SpaceManager, end: u64) {
    space.tail.durable_end = end;
    let held = shared.counters.file_bytes.load(Ordering::Relaxed);
    if held >= shortest(shared, space) + bytes_min(shared, space) {
        space.tail.is_cut = true;
    } else if !space.tail.is_cut {
        space.note_shrunk();
    }
}

/// The shortest that the file may be now. Neither what is in use lies behind it, nor what the
/// durable root counts as free.
pub(crate) fn shortest(shared: &StoreShared, space: &SpaceManager) -> u64 {
    let durable_bytes = space.tail.durable_end * UNIT_BYTES as u64;
    let needed = bytes_needed(space, 0).max(durable_bytes);
    needed.next_multiple_of(shared.options.growth_bytes.max(1))
}

/// Less than this stays: a file that breathes should not be cut and grown in turn.
fn bytes_min(shared: &StoreShared, space: &SpaceManager) -> u64 {
    let step = shared.options.growth_bytes.max(UNIT_BYTES as u64);
    if space.is_shrinking() { step } else { shared.options.trim_bytes.max(step) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex, Weak};

    use flotilla_vfs::FileSystem;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::hooked::{HookedFs, Operation};

    use super::*;
    use crate::{Options, PageStore};

    #[test]
    fn nobody_takes_for_reserved_what_is_only_being_reserved() {
        let fs = FaultFs::new(1);
        fs.create_dir_all(Path::new("/data")).unwrap();
        let shared: Arc<Mutex<Weak<StoreShared>>> = Arc::default();
        let seen: Arc<Mutex<Vec<bool>>> = Arc::default();
        let hooked = {
            let (shared, seen) = (Arc::clone(&shared), Arc::clone(&seen));
            HookedFs::new(Arc::new(fs), move |operation| {
                let shared = shared.lock().unwrap().upgrade();
                if let (Operation::Allocate, Some(shared)) = (operation, shared) {
                    seen.lock().unwrap().push(shared.space.lock().holes.are_unreserved());
                }
            })
        };
        let path = Path::new("/data/pages");
        let store = PageStore::open_with(Arc::new(hooked), path, Options::default()).unwrap();
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(b"a", &[1; 40_000]).unwrap();
        txn.publish().unwrap();
        store.checkpoint().unwrap();
        *shared.lock().unwrap() = Arc::downgrade(store.shared());
        {
            let mut space = store.shared().space.lock();
            let span = space.allocate(8).unwrap();
            space.release(span);
            space.holes.add(span);
            let (first, second) = (space.allocate(4).unwrap(), space.allocate(4).unwrap());
            assert!(space.holes.are_unreserved());
            space.release(first);
            space.release(second);
        }
        reserve(store.shared()).unwrap();
        assert_eq!(*seen.lock().unwrap(), [true, true]);
        assert!(!store.shared().space.lock().holes.are_unreserved());
        store.check().unwrap();
    }
}
