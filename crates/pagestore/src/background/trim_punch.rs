//! Giving spare space back to the file system a piece at a time: truncation of the file, and hole
//! punching.
//!
//! A file system blocks all reads and writes of the file while it shortens it or punches a hole,
//! for as long as that takes: tens of milliseconds for each 16 MiB where it issues discards. So no
//! checkpoint does it, nor any thread that holds a lock that writers need, and the caller rests
//! between two pieces.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::checkpoint::file_end;
use crate::error::Result;
use crate::page::{Span, UNIT_BYTES};
use crate::shared::StoreShared;
use crate::space::SpaceManager;

/// The length of a piece.
const PIECE_BYTES: u64 = 1 << 20;

/// A caller that loops rests this many times as long as the last piece took: so at most a tenth of
/// the time is lost to other threads.
const RESTS: u32 = 9;

/// The longest of these rests.
const REST_MAX: Duration = Duration::from_millis(250);

/// How long to rest after a piece that took `took`.
pub(crate) fn rest(took: Duration) -> Duration {
    (took * RESTS).min(REST_MAX)
}

/// Gives one piece back. Returns whether there was one. Only a thread for which the file has to
/// grow waits for it.
pub(crate) fn step(shared: &StoreShared) -> Result<bool> {
    shared.refuse_if_poisoned()?;
    let outcome = match truncate_step(shared) {
        Ok(false) => punch_step(shared),
        other => other,
    };
    // It is unknown how much of the file is left.
    if outcome.is_err() {
        shared.poison();
    }
    outcome
}

/// Spare bytes that wait to be given back.
pub(crate) fn waiting_bytes(shared: &StoreShared, space: &SpaceManager) -> u64 {
    let file_bytes = shared.counters.file_bytes.load(Ordering::Relaxed);
    let is_cut = space.tail.is_cut;
    let behind =
        if is_cut { file_bytes.saturating_sub(file_end::shortest(shared, space)) } else { 0 };
    behind + space.holes.chosen_units() * UNIT_BYTES as u64
}

/// Makes the file shorter by a piece.
fn truncate_step(shared: &StoreShared) -> Result<bool> {
    let _resizing = shared.resizing.lock();
    let (file_bytes, to) = {
        let mut space = shared.space.lock();
        if !space.tail.is_cut {
            return Ok(false);
        }
        let shortest = file_end::shortest(shared, &space);
        let file_bytes = shared.counters.file_bytes.load(Ordering::Relaxed);
        if file_bytes <= shortest {
            space.tail.is_cut = false;
            space.note_shrunk();
            return Ok(false);
        }
        // Not a part of a unit: the file may have had any length when it was opened.
        let to = file_bytes.saturating_sub(PIECE_BYTES).next_multiple_of(UNIT_BYTES as u64);
        let to = to.clamp(shortest, file_bytes);
        // Stored before the file is shorter: an allocation beyond the new end makes the file longer
        // first, and waits on `resizing` until the truncation is done.
        shared.counters.file_bytes.store(to, Ordering::Relaxed);
        (file_bytes, to)
    };
    shared.page_reader.file().set_len(to)?;
    let unit_bytes = UNIT_BYTES as u64;
    shared.page_reader.clear_all_verified(to / unit_bytes..file_bytes.div_ceil(unit_bytes));
    shared.counters.trimmed_bytes.fetch_add(file_bytes - to, Ordering::Relaxed);
    Ok(true)
}

/// Punches a piece of the runs that checkpoints have chosen.
fn punch_step(shared: &StoreShared) -> Result<bool> {
    // Reserved, so that no unit of it is allocated meanwhile.
    let piece = shared.space.lock().take_chosen((PIECE_BYTES / UNIT_BYTES as u64) as u32);
    let Some(piece) = piece else { return Ok(false) };
    let Span { start, .. } = piece;
    let bytes = |unit: u64| unit * UNIT_BYTES as u64;
    let outcome = shared.page_reader.file().punch(bytes(start)..bytes(piece.end()));
    shared.page_reader.clear_all_verified(start..piece.end());
    let mut space = shared.space.lock();
    space.end_reservation(piece);
    space.release(piece);
    let done = outcome?;
    if done {
        space.holes.add(piece);
        shared.counters.punched_bytes.fetch_add(piece.bytes(), Ordering::Relaxed);
    } else {
        // The file system does not support holes.
        space.holes.forget_chosen();
    }
    Ok(done)
}
