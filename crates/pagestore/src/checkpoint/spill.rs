//! Spill: memory that only old snapshots need goes to a temporary file.
//!
//! Pages that were replaced, or that a checkpoint has written, stay in memory as long as a snapshot
//! is held that may have borrowed them. If that is much, the checkpoint *closes* all slabs after
//! its cut: new pages go to others. At its end hardly anything in them is part of the last
//! published root, or is written to, so their bytes are written to the spill file, and the memory
//! is mapped from there, at the same addresses. A reader that has borrowed some of it sees no
//! change.
//!
//! The spill file has no checksums: as in the map of the page file, the kernel is trusted with
//! bytes that were verified once. So a slab with a page that a later checkpoint will write, and
//! give a checksum, is left in memory (`docs/decisions/0032`).

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::memory::page_alloc::ClosedSlab;
use crate::memory::slab::{SLAB_BYTES, SLAB_UNITS, slab_address};
use crate::memory::spill_file::{SpillFile, SpillSlot};
use crate::page::UNIT_BYTES;
use crate::shared::StoreShared;
use flotilla_base::sync::thread;

/// Slabs that are written before they are synced together.
const BATCH: usize = 32;

/// How often to look whether the transaction has ended that was open at the cut.
const LOOKS: u32 = 200;

/// A spill that a checkpoint has begun: the holder of the writer lock at its cut, who may write to
/// the slabs that were closed.
pub(super) struct SpillPlan {
    holder: Option<u64>,
}

/// Closes the slabs if old snapshots need much of the memory: right after the cut, so that hardly
/// anything that is published later lies in them. `durable_txid` is of the last checkpoint, and
/// `cut_txid` of this one, which holds its root.
pub(super) fn begin(shared: &StoreShared, durable_txid: u64, cut_txid: u64) -> Option<SpillPlan> {
    if !shared.can_spill() {
        return None;
    }
    let mut space = shared.space.lock();
    // Older than the last checkpoint: they outlive this one, as likely as not.
    let has_old = space.oldest_reader().is_some_and(|txid| txid < durable_txid);
    let writing = shared.counters.writing_bytes.load(Ordering::Relaxed);
    let dirty_bytes = if has_old { writing } else { 0 };
    if space.old_version_bytes(cut_txid) + dirty_bytes <= shared.options.old_version_bytes {
        return None;
    }
    // Writers are throttled by it: the memory goes at the end of this, and not as it is written.
    let spilling = writing + space.superseded_before_cut();
    shared.counters.spilling_bytes.store(spilling, Ordering::Relaxed);
    space.page_alloc.close_slabs();
    let garbage = space.page_alloc.take_garbage();
    // After that: a later holder takes nothing from them.
    let holder = shared.writer_lock.holder();
    drop(space);
    drop(garbage);
    Some(SpillPlan { holder })
}

/// Writes the closed slabs to the spill file. Without room for them they stay in memory.
pub(super) fn run(shared: &StoreShared, plan: SpillPlan) {
    let mut is_quiet = false;
    for look in 0..LOOKS {
        is_quiet = plan.holder.is_none_or(|ticket| shared.writer_lock.has_released(ticket));
        if is_quiet {
            break;
        }
        if look < LOOKS / 2 {
            thread::yield_now();
        } else {
            std::thread::park_timeout(std::time::Duration::from_micros(100));
        }
    }
    let (cold, others) = closed_slabs(shared, is_quiet);
    let mut batches = cold.into_iter().peekable();
    let mut left = others;
    while batches.peek().is_some() {
        let batch: Vec<ClosedSlab> = batches.by_ref().take(BATCH).collect();
        if let Err(slabs) = spill(shared, batch) {
            left.extend(slabs.into_iter().chain(batches));
            shared.counters.spill_errors.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    shared.space.lock().page_alloc.reopen(left);
    shared.counters.spilling_bytes.store(0, Ordering::Relaxed);
    shared.background.write_throttle.progress();
}

/// The closed slabs that nothing writes to and that no checkpoint will write, and the others.
fn closed_slabs(shared: &StoreShared, is_quiet: bool) -> (Vec<ClosedSlab>, Vec<ClosedSlab>) {
    let mut space = shared.space.lock();
    let closed = space.page_alloc.take_closed();
    if !is_quiet {
        return (Vec::new(), closed);
    }
    let root = shared.current();
    let dirty = space.dirty_starts().filter_map(|start| shared.page_reader.dirty(&root, start));
    let hot: BTreeSet<usize> = dirty.map(|data| slab_address(data.bytes())).collect();
    drop(space);
    let units_min = spilled_units_min(shared);
    closed.into_iter().partition(|closed| {
        let slab = &closed.slab;
        !hot.contains(&slab.address()) && slab.taken_units() >= units_min
    })
}

/// A slab is written as a whole. So half of it has to be needed, or as much as may stay in memory.
fn spilled_units_min(shared: &StoreShared) -> usize {
    let bound = shared.options.old_version_bytes / UNIT_BYTES as u64;
    usize::try_from(bound).unwrap_or(usize::MAX).clamp(1, SLAB_UNITS / 2)
}

/// Spills some slabs, or gives them back.
fn spill(shared: &StoreShared, batch: Vec<ClosedSlab>) -> Result<(), Vec<ClosedSlab>> {
    let slots = match write(shared, &batch) {
        Ok(slots) => slots,
        Err(_) => return Err(batch),
    };
    let mut refused = Vec::new();
    for (closed, slot) in batch.into_iter().zip(slots) {
        if closed.slab.spill_to(slot) {
            shared.space.lock().page_alloc.add_spilled(closed.slab);
        } else {
            refused.push(closed);
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

fn write(shared: &StoreShared, batch: &[ClosedSlab]) -> io::Result<Vec<SpillSlot>> {
    let spill_file: Arc<SpillFile> = shared.spill_file()?;
    let slots = batch.iter().map(|closed| spill_file.write(closed.slab.contents()));
    let slots: Vec<SpillSlot> = slots.collect::<io::Result<_>>()?;
    // Only then the memory may go: what the kernel could not write back would be lost.
    spill_file.sync()?;
    let bytes = batch.len() as u64 * SLAB_BYTES as u64;
    shared.counters.spill_written_bytes.fetch_add(bytes, Ordering::Relaxed);
    Ok(slots)
}
