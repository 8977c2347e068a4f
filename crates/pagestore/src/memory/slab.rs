//! Slabs of 2 MiB: memory for pages on huge pages, and for long values, prefaulted.
//!
//! Pages in memory lie in slabs, which the kernel backs by one huge page each where it can: random
//! writes then cost no TLB miss. Most long values lie in slabs of their own, so that their memory
//! is prefaulted, and not faulted in 4 KiB at a time while they are put. A [`SlabPage`] and a
//! [`SlabValue`] have one owner each, and count as holders of their slab, which so outlives them.
#![expect(unsafe_code, reason = "parts and pieces know their slab by where they lie")]

use std::ops::{Deref, DerefMut, Range};
use std::ptr;
use std::sync::{Arc, OnceLock};

use flotilla_vfs::AnonymousMap as Mapped;

use crate::memory::spill_file::SpillSlot;
use crate::page::UNIT_BYTES;
use flotilla_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Units of a slab; the first says where the slab is.
pub(crate) const SLAB_UNITS: usize = 512;
pub(crate) const SLAB_BYTES: usize = SLAB_UNITS * UNIT_BYTES;

/// Memory for 511 pages of one unit, in one huge page if the kernel has such, or for long values.
#[derive(Debug)]
pub(crate) struct Slab {
    /// Twice as long, so that a slab lies in it at a multiple of its length; the rest is not
    /// touched.
    map: Mapped,
    /// A bit for each unit, one if it has an owner.
    taken: [AtomicU64; SLAB_UNITS / 64],
    /// Its free units are not given out, and its pages are not used again.
    is_closed: AtomicBool,
    /// The place of its bytes in the spill file, once it is mapped from there. Dropped after `map`.
    spilled: OnceLock<SpillSlot>,
}

/// The slab in which bytes lie, if they lie in any.
pub(crate) fn slab_address(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr() & !(SLAB_BYTES - 1)
}

/// The use of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlabUse {
    /// Pages, which are written to at random: on huge pages.
    Pages,
    /// Long values, which are written sequentially: on pages of any size. In a virtual machine
    /// whose host took back contiguous free memory the kernel has small ones sooner.
    Values,
}

impl Slab {
    /// A slab for pages that the caller needs now. The kernel clears all of it now if it has huge
    /// pages, so the caller holds no lock. Nothing if memory comes from the heap only.
    pub(crate) fn new() -> Option<Arc<Slab>> {
        Slab::made(SlabUse::Pages)
    }

    fn made(wanted: SlabUse) -> Option<Arc<Slab>> {
        if cfg!(any(miri, shuttle)) {
            return None;
        }
        let map = match wanted {
            SlabUse::Pages => Mapped::with_huge_pages(2 * SLAB_BYTES).ok()?,
            SlabUse::Values => Mapped::new(2 * SLAB_BYTES).ok()?,
        };
        let mut taken = [const { AtomicU64::new(0) }; SLAB_UNITS / 64];
        *taken[0].get_mut() = 1;
        let (is_closed, spilled) = (AtomicBool::new(false), OnceLock::new());
        let slab = Arc::new(Slab { map, taken, is_closed, spilled });
        let at: *mut *const Slab = slab.begin().cast();
        // SAFETY: The map has these bytes from there on, and no other owner yet.
        unsafe { at.write(Arc::as_ptr(&slab)) };
        Some(slab)
    }

    /// A slab for later: all of it is prefaulted, also where pages are small.
    pub(crate) fn ahead(wanted: SlabUse) -> Option<Arc<Slab>> {
        let slab = Slab::made(wanted)?;
        let from = slab.begin().addr() - slab.map.as_mut_ptr().addr();
        slab.map.populate(from..from + SLAB_BYTES);
        Some(slab)
    }

    fn begin(&self) -> *mut u8 {
        self.map.as_mut_ptr().map_addr(|addr| addr.next_multiple_of(SLAB_BYTES))
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.begin().addr()
    }

    /// Says whether its pages may be used again.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Release);
    }

    /// The bytes of all its units but the first, which says where the slab is. The caller has
    /// closed it, and has waited until no owner of a unit writes to it any more.
    pub(crate) fn contents(&self) -> &[u8] {
        debug_assert!(self.is_closed.load(Ordering::Acquire), "pages of it are written to");
        self.map.bytes(self.content_range())
    }

    fn content_range(&self) -> Range<usize> {
        let from = self.begin().addr() - self.map.as_mut_ptr().addr();
        from + UNIT_BYTES..from + SLAB_BYTES
    }

    /// Maps [`Slab::contents`] from a slot that has them, durably, in place of memory. False, and
    /// nothing has happened, if the kernel refused.
    pub(crate) fn spill_to(&self, slot: SpillSlot) -> bool {
        let is_mapped = slot.remap(&self.map, self.content_range()).unwrap_or(false);
        if is_mapped {
            let old = self.spilled.set(slot);
            assert!(old.is_ok(), "a slab was spilled twice");
        }
        is_mapped
    }

    /// A free unit, if there is one. Its contents are stale.
    pub(crate) fn take(self: &Arc<Slab>) -> Option<SlabPage> {
        for (i, word) in self.taken.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != u64::MAX {
                let bit = seen.trailing_ones();
                seen = word.fetch_or(1 << bit, Ordering::Acquire);
                if seen >> bit & 1 == 0 {
                    let bytes = self.begin().wrapping_add((i * 64 + bit as usize) * UNIT_BYTES);
                    // The page counts as a holder of the slab.
                    let _ = Arc::into_raw(Arc::clone(self));
                    return Some(SlabPage(bytes));
                }
            }
        }
        None
    }

    /// Memory for `len` bytes in neighbouring free units, from unit `from` on, if there is such;
    /// and the unit behind it. Its contents are stale.
    pub(crate) fn take_piece(
        self: &Arc<Slab>,
        len: usize,
        from: usize,
    ) -> Option<(SlabValue, usize)> {
        let units = len.div_ceil(UNIT_BYTES);
        let mut at = self.next(from, false);
        while at + units <= SLAB_UNITS {
            let end = self.next(at, true);
            if end - at >= units {
                if !self.acquire(at..at + units) {
                    return None;
                }
                // The value counts as a holder of the slab.
                let _ = Arc::into_raw(Arc::clone(self));
                let begin = self.begin().wrapping_add(at * UNIT_BYTES);
                return Some((SlabValue { begin, len }, at + units));
            }
            at = self.next(end, false);
        }
        None
    }

    /// The first unit from `from` on that has an owner, or has none; behind the last if there is
    /// none.
    fn next(&self, from: usize, has_owner: bool) -> usize {
        let mut at = from;
        while at < SLAB_UNITS {
            let word = self.taken[at / 64].load(Ordering::Relaxed);
            let wanted = (if has_owner { word } else { !word }) >> (at % 64);
            if wanted != 0 {
                return at + wanted.trailing_zeros() as usize;
            }
            at = (at / 64 + 1) * 64;
        }
        SLAB_UNITS
    }

    /// Makes the caller the owner of these units, unless another thread was quicker with one of
    /// them.
    fn acquire(&self, units: Range<usize>) -> bool {
        for (i, mask) in masks(units.clone()) {
            let seen = self.taken[i].fetch_or(mask, Ordering::Acquire);
            if seen & mask != 0 {
                // Only the bits that this call has set: the others belong to the quicker thread.
                self.taken[i].fetch_and(!(mask & !seen), Ordering::Release);
                self.release(units.start..(i * 64).max(units.start));
                return false;
            }
        }
        true
    }

    /// Says that these units have no owner any more.
    fn release(&self, units: Range<usize>) {
        for (i, mask) in masks(units) {
            debug_assert_eq!(
                self.taken[i].load(Ordering::Relaxed) & mask,
                mask,
                "memory is freed twice"
            );
            self.taken[i].fetch_and(!mask, Ordering::Release);
        }
    }

    /// How many units have an owner.
    pub(crate) fn taken_units(&self) -> usize {
        let words = self.taken.iter().map(|word| word.load(Ordering::Relaxed));
        words.map(u64::count_ones).sum::<u32>() as usize - 1
    }

    /// Whether no unit has an owner.
    pub(crate) fn is_idle(&self) -> bool {
        self.taken_units() == 0
    }

    /// The slab in which `begin` lies, for the last time.
    ///
    /// # Safety
    ///
    /// `begin` is where a page or a value begins that counts as a holder of its slab, and no longer
    /// does.
    unsafe fn of(begin: *mut u8) -> (Arc<Slab>, usize) {
        let slab = begin.map_addr(|addr| addr & !(SLAB_BYTES - 1));
        let unit = (begin.addr() - slab.addr()) / UNIT_BYTES;
        debug_assert!((1..SLAB_UNITS).contains(&unit), "unit {unit} of a slab has no owner");
        // SAFETY: The slab is there, for the caller counts as its holder until now; what it has
        // written of itself at its beginning is never changed.
        (unsafe { Arc::from_raw(*slab.cast::<*const Slab>()) }, unit)
    }
}

/// The words of a bitmap that have the bits `units`, and which bits of them.
fn masks(units: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = units.start / 64..units.end.div_ceil(64);
    words.filter_map(move |i| {
        let from = units.start.max(i * 64) - i * 64;
        let count = units.end.min(i * 64 + 64).checked_sub(i * 64 + from)?;
        let ones = u64::MAX.checked_shr(64 - count as u32)?;
        Some((i, ones << from))
    })
}

/// A unit of a slab, owned. Its address says in which slab it lies, so that most users need not
/// look at the slab.
#[derive(Debug)]
pub(crate) struct SlabPage(*mut u8);

impl SlabPage {
    /// Whether its memory may not be used again.
    pub(crate) fn is_closed(&self) -> bool {
        let slab = self.0.map_addr(|addr| addr & !(SLAB_BYTES - 1));
        // SAFETY: The slab is there, for the page counts as its holder; what it has written of
        // itself at its beginning is never changed.
        unsafe { &**slab.cast::<*const Slab>() }.is_closed.load(Ordering::Acquire)
    }

    /// The address of its bytes. It lives on until [`SlabPage::from_raw`] makes one of that again.
    pub(crate) fn into_raw(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).0
    }

    /// # Safety
    ///
    /// `bytes` came from [`SlabPage::into_raw`], and becomes a part again once.
    pub(crate) unsafe fn from_raw(bytes: *mut u8) -> SlabPage {
        SlabPage(bytes)
    }
}

impl Deref for SlabPage {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: They are its own bytes, and were zero when the kernel gave them.
        unsafe { &*ptr::slice_from_raw_parts(self.0, UNIT_BYTES) }
    }
}

impl DerefMut for SlabPage {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: As above; a unique reference to the page is one to its bytes.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(self.0, UNIT_BYTES) }
    }
}

// SAFETY: It is memory that has one owner, as a `Box` is; its `drop` reads of the slab what all
// threads may read.
unsafe impl Send for SlabPage {}
// SAFETY: As above; a shared reference gives nothing but one to its bytes.
unsafe impl Sync for SlabPage {}

impl Drop for SlabPage {
    fn drop(&mut self) {
        // SAFETY: It counts as a holder until now.
        let (slab, unit) = unsafe { Slab::of(self.0) };
        debug_assert!(slab.taken_units() > 0, "memory is freed twice");
        slab.taken[unit / 64].fetch_and(!(1 << (unit % 64)), Ordering::Release);
    }
}

/// Neighbouring units of a slab, owned: memory for a long value.
#[derive(Debug)]
pub(crate) struct SlabValue {
    begin: *mut u8,
    len: usize,
}

// SAFETY: As for a part.
unsafe impl Send for SlabValue {}
// SAFETY: As for a part.
unsafe impl Sync for SlabValue {}

impl AsRef<[u8]> for SlabValue {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: They are its own bytes, in one slab, which it holds; they were zero when the
        // kernel gave them.
        unsafe { &*ptr::slice_from_raw_parts(self.begin, self.len) }
    }
}

impl AsMut<[u8]> for SlabValue {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: As above; a unique reference to the value is one to its bytes.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(self.begin, self.len) }
    }
}

impl Drop for SlabValue {
    fn drop(&mut self) {
        // SAFETY: It counts as a holder until now.
        let (slab, unit) = unsafe { Slab::of(self.begin) };
        slab.release(unit..unit + self.len.div_ceil(UNIT_BYTES));
    }
}

#[cfg(test)]
#[cfg(not(any(miri, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_slab_have_one_owner_each() {
        let slab = Slab::ahead(SlabUse::Values).unwrap();
        let mut held: Vec<(SlabValue, Range<usize>, u8)> = Vec::new();
        let mut refused = 0;
        fastrand::seed(7);
        for round in 0..4000_u32 {
            if held.len() > 40 || (!held.is_empty() && fastrand::u8(..) < 100) {
                let (piece, _, fill) = held.swap_remove(fastrand::usize(..held.len()));
                let bytes = piece.as_ref().iter().step_by(1000).chain(piece.as_ref().last());
                assert!({ bytes }.all(|&byte| byte == fill), "somebody wrote to it");
                continue;
            }
            let units = fastrand::usize(1..80);
            let (len, from) =
                (units * UNIT_BYTES - fastrand::usize(..4096), fastrand::usize(1..512));
            let Some((mut piece, end)) = slab.take_piece(len, from) else {
                let is_free = |at: usize| held.iter().all(|(_, other, _)| !other.contains(&at));
                let fits = |at: usize| (at..at + units).all(is_free);
                assert!(!(from..=512_usize.saturating_sub(units)).any(fits), "there was room");
                refused += 1;
                continue;
            };
            let begin = (piece.as_ref().as_ptr().addr() - slab.begin().addr()) / UNIT_BYTES;
            assert!(begin >= from && end == begin + units && piece.as_ref().len() == len);
            assert!(held.iter().all(|(_, other, _)| other.end <= begin || end <= other.start));
            piece.as_mut().fill(round as u8);
            held.push((piece, begin..end, round as u8));
            let taken = held.iter().map(|(_, units, _)| units.len()).sum::<usize>();
            assert_eq!(slab.taken_units(), taken);
        }
        assert!(refused > 100);
        drop(held);
        assert!(slab.is_idle() && Arc::strong_count(&slab) == 1);
    }

    #[test]
    fn piece_that_somebody_has_a_part_of_is_not_taken() {
        let slab = Slab::new().unwrap();
        assert!(slab.acquire(200..201));
        assert!(!slab.acquire(60..300) && !slab.acquire(199..201) && !slab.acquire(200..202));
        assert_eq!(slab.taken_units(), 1, "what was begun is taken back");
        assert!(slab.acquire(60..200) && slab.acquire(201..512) && slab.acquire(1..60));
        assert_eq!(slab.taken_units(), 511);
        assert!(slab.take().is_none() && slab.take_piece(1, 1).is_none());
        slab.release(1..512);
    }
}
