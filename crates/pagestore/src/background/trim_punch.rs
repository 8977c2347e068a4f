//! Space that checkpoints have found to be spare goes back to the file system, a piece at a time.
//!
//! A file system holds up all who read or write the file while it shortens it or makes a hole in it,
//! for as long as that takes: tens of milliseconds for each 16 MiB where the disk is told of it. So no
//! checkpoint does it, nor anybody who holds a lock that writers need, and whoever does it rests
//! between two pieces.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::checkpoint::file_end;
use crate::error::Result;
use crate::page::{Span, UNIT_BYTES};
use crate::shared::StoreShared;
use crate::space::SpaceManager;

/// What goes back at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Who gives pieces back one after the other rests for so many times as long as the last one took: a
/// tenth of the time may be lost to others then.
const RESTS: u32 = 9;

/// The longest of these rests.
const REST_MAX: Duration = Duration::from_millis(250);

/// How long to rest after a piece that took so long.
pub(crate) fn rest(took: Duration) -> Duration {
    (took * RESTS).min(REST_MAX)
}

/// Gives one piece back. Returns whether there was one. Nobody waits for it but who wants the file to
/// be longer.
pub(crate) fn step(shared: &StoreShared) -> Result<bool> {
    shared.refuse_if_poisoned()?;
    let outcome = match truncate_step(shared) {
        Ok(false) => punch_step(shared),
        other => other,
    };
    if outcome.is_err() {
        shared.poison();
    }
    outcome
}

/// How much waits to be given back.
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
        // Before the file is shorter: who is given a unit beyond from now on makes it longer first,
        // and waits for that until it is.
        shared.counters.file_bytes.store(to, Ordering::Relaxed);
        (file_bytes, to)
    };
    shared.page_reader.file().set_len(to)?;
    let unit_bytes = UNIT_BYTES as u64;
    shared.page_reader.clear_all_verified(to / unit_bytes..file_bytes.div_ceil(unit_bytes));
    shared.counters.trimmed_bytes.fetch_add(file_bytes - to, Ordering::Relaxed);
    Ok(true)
}

/// Makes a hole of a piece of what checkpoints have chosen.
fn punch_step(shared: &StoreShared) -> Result<bool> {
    // Nobody is given a unit of it meanwhile.
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
        // This file system cannot do it.
        space.holes.forget_chosen();
    }
    Ok(done)
}
