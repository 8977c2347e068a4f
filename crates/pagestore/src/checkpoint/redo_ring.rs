//! The redo ring's length: short at first, doubled as long as commits fill it.
//!
//! A longer ring makes checkpoints rarer, and takes room of the disk whether it is used or not. So
//! it begins with a 64th of [`Options::redo_bytes`](crate::Options::redo_bytes). A checkpoint that
//! finds half of it in use makes one that is twice as long, elsewhere in the file, and one that a
//! commit had to wait for, because its record did not fit, makes one that is four times as long. A
//! ring is allocated, filled with zeros and synced before a meta page names it: a disk that is full
//! refuses it before a commit depends on it. `docs/decisions/0031` has the reasons.

use crate::checkpoint::file_end::lock_with_room;
use crate::checkpoint::pace::{PACE_BYTES, Pace};
use crate::error::{Error, Result};
use crate::page::layout::{GROUP_UNITS, HEAD_UNITS};
use crate::page::{Span, UNIT_BYTES};
use crate::redo::RedoArea;
use crate::shared::{LastCheckpoint, StoreShared};
use crate::space::SpaceManager;

/// The first ring's part of [`Options::redo_bytes`](crate::Options::redo_bytes).
const FIRST_PART: u64 = 64;

/// Shorter than this a frame would hold next to nothing.
const UNITS_MIN: u64 = 16;

/// The scope of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointScope {
    /// Makes the last published root durable.
    Pages,
    /// And makes the redo area, if there is none and there shall be one. The caller keeps others
    /// from publishing.
    WithRedo,
}

/// A ring that a checkpoint is going to name, and the one before it.
pub(super) struct RingChange<'a> {
    shared: &'a StoreShared,
    new: Span,
    old: Option<Span>,
    is_adopted: bool,
}

impl RingChange<'_> {
    /// Notes that the new ring is in use, and that the old one is in use by nothing but leaders
    /// that may still write to it.
    pub(super) fn enter(&self, space: &mut SpaceManager) {
        space.adopt(&[self.new]);
        if let Some(old) = self.old {
            space.leave(old);
            space.enter_reservation(old);
        }
    }

    /// Takes [`RingChange::enter`] back.
    pub(super) fn undo(&self, space: &mut SpaceManager) {
        space.leave(self.new);
        space.enter_reservation(self.new);
        if let Some(old) = self.old {
            space.adopt(&[old]);
        }
    }

    /// The new ring, which was entered, and belongs to the checkpoint from now on.
    pub(super) fn adopt(mut self) -> Span {
        self.is_adopted = true;
        self.new
    }
}

impl Drop for RingChange<'_> {
    fn drop(&mut self) {
        if !self.is_adopted {
            let mut space = self.shared.space.lock();
            space.end_reservation(self.new);
            space.release(self.new);
        }
    }
}

/// Units of the first ring, if this checkpoint has to make it.
pub(super) fn first_units(shared: &StoreShared, scope: CheckpointScope) -> u32 {
    let units_max = units_max(shared);
    if scope == CheckpointScope::Pages || units_max == 0 || shared.redo.ring_use().is_some() {
        return 0;
    }
    (units_max / FIRST_PART as u32).max(UNITS_MIN as u32)
}

/// The length that the ring may come to have.
fn units_max(shared: &StoreShared) -> u32 {
    let units = shared.options.redo_bytes.div_ceil(UNIT_BYTES as u64);
    let units = if units == 0 { 0 } else { units.clamp(UNITS_MIN, GROUP_UNITS - HEAD_UNITS) };
    u32::try_from(units).expect("a group has fewer units")
}

/// Units of a ring that this checkpoint makes in place of the one that there is.
fn longer_units(shared: &StoreShared, scope: CheckpointScope) -> u32 {
    let Some(ring) = shared.redo.ring_use().filter(|ring| !ring.has_old) else { return 0 };
    let factor = match scope {
        CheckpointScope::WithRedo if ring.has_gap => 4,
        _ if 2 * ring.used >= ring.span.bytes() => 2,
        _ => return 0,
    };
    let units = ring.span.units.saturating_mul(factor).min(units_max(shared));
    if units > ring.span.units { units } else { 0 }
}

/// Makes a ring of zeros, if this checkpoint is to name another one than the last did.
///
/// # Errors
///
/// [`Error::NoSpace`] if the disk has no room for the first ring. Without room for a longer one the
/// log stays where it is.
pub(super) fn prepare<'a>(
    shared: &'a StoreShared,
    written: &LastCheckpoint,
    scope: CheckpointScope,
    pace: &mut Pace<'_>,
) -> Result<Option<RingChange<'a>>> {
    if shared.current().txid == written.meta.txid {
        return Ok(None);
    }
    let first = first_units(shared, scope);
    let units = if first > 0 { first } else { longer_units(shared, scope) };
    if units == 0 {
        return Ok(None);
    }
    let reserved = reserve(shared, units);
    let change = match reserved {
        Err(Error::NoSpace) if first == 0 => return Ok(None),
        other => other?,
    };
    let file = shared.page_reader.file();
    let area = RedoArea { span: change.new, from: 0 };
    // Synced before the first frame is written to it, and not only before it is named: frames pass
    // the cache that these zeros lie in.
    let mut wiped = 0;
    let paced = |bytes| {
        wiped += bytes;
        if wiped < PACE_BYTES { Ok(()) } else { pace(std::mem::take(&mut wiped)) }
    };
    let outcome = area.wipe(file, paced).and_then(|()| Ok(file.sync()?));
    if let Err(error) = outcome {
        shared.poison();
        return Err(error);
    }
    Ok(Some(change))
}

/// Reserves a span, with room for it in the file.
fn reserve(shared: &StoreShared, units: u32) -> Result<RingChange<'_>> {
    let old = shared.redo.ring_use().map(|ring| ring.span);
    let new = lock_with_room(shared, units)?.reserve(units)?;
    let change = RingChange { shared, new, old, is_adopted: false };
    // It may lie in a hole, which has to be reserved.
    drop(lock_with_room(shared, 0)?);
    Ok(change)
}
