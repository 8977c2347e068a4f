//! Online defragmentation: pages and long values at the end of the file move to free places before
//! it.
//!
//! The target is the space that is in use and an eighth. While there is one, allocations take units
//! before it as long as some fit, and each checkpoint gives up the free units at the end. A *pass*
//! goes once through all trees, some of it in each call; passes follow until nothing lies beyond
//! the target, or nothing more can be moved. Nothing of this is kept in the file: moved pages are
//! ordinary pages.

use std::sync::Arc;

use crate::error::Result;
use crate::page::UNIT_BYTES;
use crate::page::layout::{GROUP_UNITS, HEAD_UNITS, META_UNITS};
use crate::shared::StoreShared;
use crate::shared::defrag_cursor::DefragPass;
use crate::space::SpaceManager;
use crate::tree::RelocateBudget;
use crate::txn::write_txn::WriteTxn;

/// Pages that one call looks at, at most, so that a writer does not wait long.
const PAGES_MAX: u64 = 128;

/// Passes after which it is enough, whatever writers have put beyond the target meanwhile.
const PASSES_MAX: u32 = 8;

/// How far a call of [`PageStore::defragment`](crate::PageStore::defragment) has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DefragProgress {
    /// Bytes of pages and long values that this call has moved.
    pub moved_bytes: u64,
    /// Bytes in use that lie beyond the target.
    pub left_bytes: u64,
    /// How long the file shall be; its length if there is nothing to be gained.
    pub target_bytes: u64,
    /// Nothing more can be moved. After the next two checkpoints the end of the file can be given
    /// back, if no snapshot sees what lay there.
    pub is_done: bool,
}

/// Moves some of the pages that lie beyond the target.
pub(crate) fn step(shared: &Arc<StoreShared>, budget_bytes: u64) -> Result<DefragProgress> {
    let progress = step_with(shared, budget_bytes, |shared| WriteTxn::begin(shared).map(Some))?;
    Ok(progress.expect("it waits for the writer lock"))
}

/// As [`step`], but nothing if the writer lock is taken: for the thread that makes checkpoints,
/// since the holder of the lock may wait for one.
pub(crate) fn try_step(
    shared: &Arc<StoreShared>,
    budget_bytes: u64,
) -> Result<Option<DefragProgress>> {
    step_with(shared, budget_bytes, WriteTxn::try_begin)
}

fn step_with<'a>(
    shared: &'a Arc<StoreShared>,
    budget_bytes: u64,
    begin_txn: impl FnOnce(&'a Arc<StoreShared>) -> Result<Option<WriteTxn<'a>>>,
) -> Result<Option<DefragProgress>> {
    let mut state = shared.defrag.lock();
    let Some(mut pass) = state.take().or_else(|| begin(shared, 0)) else {
        let target_bytes = shared.space.lock().freelist.end() * UNIT_BYTES as u64;
        let done = DefragProgress { target_bytes, is_done: true, ..DefragProgress::default() };
        return Ok(Some(done));
    };
    let mut budget = RelocateBudget {
        limit: pass.limit,
        bytes: budget_bytes.max(1),
        pages: PAGES_MAX,
        moved_bytes: 0,
    };
    let Some(mut txn) = begin_txn(shared)? else {
        *state = Some(pass);
        return Ok(None);
    };
    let next = txn.relocate(pass.at.clone(), &mut budget)?;
    txn.publish()?;
    pass.moved_bytes += budget.moved_bytes;
    let mut report = DefragProgress {
        moved_bytes: budget.moved_bytes,
        left_bytes: shared.space.lock().used_units(pass.limit) * UNIT_BYTES as u64,
        target_bytes: pass.limit * UNIT_BYTES as u64,
        is_done: false,
    };
    *state = match next {
        Some(at) => Some(DefragPass { at, ..pass }),
        None if report.left_bytes == 0 || pass.moved_bytes == 0 || pass.number >= PASSES_MAX => {
            None
        }
        None => begin(shared, pass.number),
    };
    report.is_done = state.is_none();
    Ok(Some(report))
}

/// Begins a pass after `count` others, if there is something to be gained.
fn begin(shared: &StoreShared, count: u32) -> Option<DefragPass> {
    shared.reclaim_all_ended();
    let mut space = shared.space.lock();
    let limit = target(&space);
    // The redo area stays where it is.
    let limit = limit.max(shared.redo.ring_use().map_or(0, |ring| ring.span.end()));
    let step = shared.options.growth_bytes / UNIT_BYTES as u64;
    if limit + (limit / 32).max(step) >= space.freelist.end() {
        return None;
    }
    space.shrink_to(limit);
    Some(DefragPass::new(limit, count + 1))
}

/// The target end of the file: room for the units in use, for those that change meanwhile, and for
/// gaps.
fn target(space: &SpaceManager) -> u64 {
    let used = space.used_units(0);
    let units = used + used / 8 + 32;
    let inside = GROUP_UNITS - HEAD_UNITS;
    META_UNITS + units + units.div_ceil(inside) * HEAD_UNITS
}
