//! The end of the file: how long it must be, and when it gets shorter.
//!
//! A checkpoint gives up the free units at the end of the file, if they are many, when it takes its
//! cut: the meta page that it writes names the new end. Once that is durable the file is cut off.
//! What is free is seen by nobody, so neither the durable root nor the one before it loses a page;
//! a crash in between leaves a file that is longer than it says, which the next checkpoint mends.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::freelist::HEAD_UNITS;
use crate::page::{Span, UNIT_BYTES, units_for};
use crate::regions::{directory_bytes_max, region_count};
use crate::shared::Shared;
use crate::space::Space;

/// How much to cut off at a time. Nothing is allocated meanwhile, and a file system takes longer
/// the more it gets back.
const STEP_BYTES: u64 = 256 << 20;

/// How long the file must be for all that is in use, for so many units of a redo area, and for a
/// directory.
pub(crate) fn bytes_needed(space: &Space, redo_units: u32) -> u64 {
    let end = space.freelist.end();
    // Each of the two may begin a region, and leave what is left of the one before.
    let redo_units = u64::from(redo_units);
    let region_count = region_count(end + 2 * redo_units) + 2;
    let directory_units = u64::from(units_for(directory_bytes_max(region_count)));
    (end + 2 * (redo_units + directory_units + HEAD_UNITS)) * UNIT_BYTES as u64
}

/// Reserves room in the file, up to `needed` bytes and the step of growth behind them.
pub(crate) fn grow(shared: &Shared, needed: u64) -> Result<()> {
    let _resizing = shared.resizing.lock();
    let reserved = shared.counters.file_bytes.load(Ordering::Relaxed);
    if needed <= reserved {
        return Ok(());
    }
    let step = shared.options.growth_bytes.max(UNIT_BYTES as u64);
    let to = needed.next_multiple_of(step);
    let file = shared.pool.file();
    let outcome = file.allocate(reserved..to).map(|()| to);
    let outcome = outcome.or_else(|_| file.allocate(reserved..needed).map(|()| needed));
    let len = outcome.map_err(no_space)?;
    shared.counters.file_bytes.store(len, Ordering::Relaxed);
    Ok(())
}

/// Reserves what was given out of holes.
pub(crate) fn reserve(shared: &Shared) -> Result<()> {
    let spans = {
        let mut space = shared.space.lock();
        let mut spans = space.holes.take_unreserved();
        // What came back may have been cut off since.
        spans.retain(|span| span.end() <= space.freelist.end());
        spans
    };
    let file = shared.pool.file();
    for (i, span) in spans.iter().enumerate() {
        let bytes = |unit: u64| unit * UNIT_BYTES as u64;
        if let Err(error) = file.allocate(bytes(span.start)..bytes(span.end())) {
            shared.space.lock().holes.put_unreserved(spans[i..].to_vec());
            return Err(no_space(error));
        }
    }
    Ok(())
}

fn no_space(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::StorageFull => Error::NoSpace,
        _ => Error::Io(error),
    }
}

/// Makes holes of what a checkpoint has chosen; it is free again then.
pub(crate) fn punch(shared: &Shared, spans: &[Span]) -> Result<()> {
    let file = shared.pool.file();
    let bytes = |unit: u64| unit * UNIT_BYTES as u64;
    let mut outcome = Ok(true);
    for &span in spans {
        if let Ok(true) = outcome {
            outcome = file.punch(bytes(span.start)..bytes(span.end()));
        }
        let mut space = shared.space.lock();
        space.release(span);
        if let Ok(true) = outcome {
            space.holes.add(span);
            shared.counters.punched_bytes.fetch_add(span.bytes(), Ordering::Relaxed);
        }
    }
    outcome.map(|_| ()).map_err(Error::Io)
}

/// Gives up the free units at the end of the file if they are many.
pub(crate) fn trim(shared: &Shared, space: &mut Space) -> bool {
    let units_min = bytes_min(shared, space).div_ceil(UNIT_BYTES as u64);
    space.trim(units_min)
}

/// Cuts the file off behind what is needed. The last durable root must say where it ends.
pub(crate) fn shrink(shared: &Shared) -> Result<()> {
    loop {
        let _resizing = shared.resizing.lock();
        let mut space = shared.space.lock();
        let needed = bytes_needed(&space, 0).next_multiple_of(shared.options.growth_bytes.max(1));
        let held = shared.counters.file_bytes.load(Ordering::Relaxed);
        if held <= needed || held - needed < bytes_min(shared, &space) {
            space.note_shrunk();
            return Ok(());
        }
        // Under the lock, so that nobody is given a unit there and writes to it before it is gone.
        let to = needed.max(held.saturating_sub(STEP_BYTES));
        shared.pool.file().set_len(to)?;
        shared.counters.file_bytes.store(to, Ordering::Relaxed);
        shared.counters.trimmed_bytes.fetch_add(held - to, Ordering::Relaxed);
    }
}

/// Less than this stays: a file that breathes should not be cut and grown in turn.
fn bytes_min(shared: &Shared, space: &Space) -> u64 {
    let step = shared.options.growth_bytes.max(UNIT_BYTES as u64);
    if space.is_shrinking() { step } else { shared.options.trim_bytes.max(step) }
}
