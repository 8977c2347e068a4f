//! Allocator of memory for long values: prefaulted slabs, or else the heap.
//!
//! New memory is faulted in 4 KiB at a time when it is first written to, which takes longer than to
//! write to it. So long values are copied into prefaulted slabs where some are ready. No put waits
//! for a slab: it falls back to the heap. A store that puts few long values between two checkpoints
//! gets no slab at all.
//!
//! A slab is filled from its beginning, then the next one (next fit); earlier slabs are searched
//! again when less than half of all is taken, or after a checkpoint, which frees most. So the slabs
//! are not more than twice the values that lie in them, and one.

use std::sync::Arc;

use crate::memory::slab::{SLAB_UNITS, Slab, SlabValue};
use crate::page::UNIT_BYTES;

/// Bytes of long values that come from the heap between two checkpoints before slabs are wanted, at
/// most.
const HEAP_BYTES_MAX: u64 = 2 << 20;

/// Longer values come from the heap: too much of a slab might be left over behind them.
const PIECE_UNITS_MAX: usize = 64;

/// Values that come from the heap after all slabs were searched in vain, before they are searched
/// again.
const PASSED_MAX: u32 = 64;

/// Slabs that long values lie in.
pub(crate) struct ValueAlloc {
    slabs: Vec<UsedSlab>,
    /// The slab that was taken from last.
    current: usize,
    /// The unit of it to look from.
    unit: usize,
    /// Bytes that came from the heap since [`ValueAlloc::reset`].
    heap_bytes: u64,
    heap_bytes_max: u64,
    /// Values that still come from the heap before the slabs are searched again.
    passed: u32,
}

/// A slab, and whether it was taken from since idle slabs were asked for last.
pub(super) struct UsedSlab {
    pub(super) slab: Arc<Slab>,
    pub(super) was_needed: bool,
}

impl Default for ValueAlloc {
    fn default() -> ValueAlloc {
        ValueAlloc {
            slabs: Vec::new(),
            current: 0,
            unit: 0,
            heap_bytes: 0,
            heap_bytes_max: HEAP_BYTES_MAX,
            passed: 0,
        }
    }
}

impl ValueAlloc {
    /// Takes no more than `bytes` from the heap before slabs are wanted.
    pub(crate) fn limit_heap(&mut self, bytes: u64) {
        self.heap_bytes_max = HEAP_BYTES_MAX.min(bytes);
    }

    /// Memory for a value of `len` bytes, if need be from a slab that `ready` gives; nothing if it
    /// shall come from the heap.
    pub(crate) fn take(
        &mut self,
        len: usize,
        ready: impl FnOnce() -> Option<Arc<Slab>>,
    ) -> Option<SlabValue> {
        if !is_fitting(len) {
            return None;
        }
        let piece = self.take_of_slabs(len, ready);
        if piece.is_none() {
            self.heap_bytes += len as u64;
        }
        piece
    }

    fn take_of_slabs(
        &mut self,
        len: usize,
        ready: impl FnOnce() -> Option<Arc<Slab>>,
    ) -> Option<SlabValue> {
        if !self.wants_slabs() {
            return None;
        }
        if self.passed > 0 {
            self.passed -= 1;
            return None;
        }
        if let Some(piece) = self.take_from_here(len) {
            return Some(piece);
        }
        if self.is_half_taken() {
            self.slabs.push(UsedSlab { slab: ready()?, was_needed: false });
            return self.take_from_here(len);
        }
        self.look_from_the_beginning();
        let piece = self.take_from_here(len);
        if piece.is_none() {
            self.passed = PASSED_MAX;
        }
        piece
    }

    /// From the current slab, or those behind it.
    fn take_from_here(&mut self, len: usize) -> Option<SlabValue> {
        while let Some(used) = self.slabs.get_mut(self.current) {
            if let Some((piece, next)) = used.slab.take_piece(len, self.unit) {
                debug_assert_eq!(piece.as_ref().len(), len, "a slab gave memory of another length");
                used.was_needed = true;
                self.unit = next;
                return Some(piece);
            }
            self.current += 1;
            self.unit = 1;
        }
        None
    }

    fn is_half_taken(&self) -> bool {
        let taken: usize = self.slabs.iter().map(|used| used.slab.taken_units()).sum();
        debug_assert!(taken <= self.slabs.len() * SLAB_UNITS, "{taken} units are taken");
        2 * taken >= self.slabs.len() * SLAB_UNITS
    }

    fn look_from_the_beginning(&mut self) {
        (self.current, self.unit) = (0, 1);
    }

    /// Whether slabs should be kept ready.
    pub(crate) fn wants_slabs(&self) -> bool {
        !self.slabs.is_empty() || self.heap_bytes >= self.heap_bytes_max
    }

    /// Starts over after a checkpoint, which has freed much of the slabs.
    pub(crate) fn reset(&mut self) {
        self.heap_bytes = 0;
        self.passed = 0;
        self.look_from_the_beginning();
    }

    /// Hands over all slabs.
    pub(super) fn take_slabs(&mut self) -> Vec<UsedSlab> {
        self.look_from_the_beginning();
        std::mem::take(&mut self.slabs)
    }

    /// Takes a slab back.
    pub(super) fn add_slab(&mut self, used: UsedSlab) {
        self.slabs.push(used);
    }

    /// Hands over slabs that are not in use and were not since the last call; if `quiet`, those
    /// that were needed as well.
    pub(crate) fn idle_slabs(&mut self, quiet: bool) -> Vec<Arc<Slab>> {
        let is_needed = |used: &mut UsedSlab| std::mem::take(&mut used.was_needed) && !quiet;
        let idle = self.slabs.extract_if(.., |used| !is_needed(used) && used.slab.is_idle());
        let idle = idle.map(|used| used.slab).collect();
        self.look_from_the_beginning();
        idle
    }
}

/// Whether a value lies in units of a slab with a quarter of them left over at most.
fn is_fitting(len: usize) -> bool {
    let units = len.div_ceil(UNIT_BYTES);
    (1..=PIECE_UNITS_MAX).contains(&units) && 4 * len >= 3 * units * UNIT_BYTES
}

#[cfg(test)]
#[cfg(not(any(miri, shuttle)))]
mod tests {
    use super::*;

    const LEN: usize = 16 << 10;

    /// Slabs that are ready, and how many were asked for.
    fn take(values: &mut ValueAlloc, len: usize, made: &mut usize) -> Option<SlabValue> {
        values.take(len, || {
            *made += 1;
            Slab::new()
        })
    }

    /// Pieces that want slabs.
    fn wanting() -> ValueAlloc {
        let (mut values, mut made) = (ValueAlloc::default(), 0);
        while !values.wants_slabs() {
            assert!(take(&mut values, LEN, &mut made).is_none(), "of the heap");
        }
        assert_eq!((values.heap_bytes, made), (HEAP_BYTES_MAX, 0));
        values
    }

    #[test]
    fn few_values_want_no_slab() {
        let (mut values, mut made) = (wanting(), 0);
        values.reset();
        assert!(!values.wants_slabs());
        for len in [0, 1, 1100, 2 * UNIT_BYTES + 1, 65 * UNIT_BYTES, 16 << 20] {
            for _ in 0..2000 {
                assert!(take(&mut values, len, &mut made).is_none());
            }
        }
        assert!(!values.wants_slabs() && made == 0, "these always come from the heap");
    }

    #[test]
    fn slabs_are_filled_one_after_the_other_and_again_after_a_checkpoint() {
        let (mut values, mut made) = (wanting(), 0);
        let held: Vec<SlabValue> =
            (0..254).map(|_| take(&mut values, LEN, &mut made).expect("slabs are ready")).collect();
        assert_eq!(made, 2);
        let first = held[0].as_ref().as_ptr();
        assert!(values.take(LEN, || None).is_none(), "nobody waits for a slab");
        drop(held);
        values.reset();
        let piece = take(&mut values, LEN, &mut made).expect("all is free");
        assert_eq!((piece.as_ref().as_ptr(), made), (first, 2));
        assert_eq!(values.idle_slabs(false).len(), 0, "both were needed");
        assert_eq!(values.idle_slabs(false).len(), 1, "one is in use");
        drop(piece);
        assert_eq!(values.idle_slabs(false).len(), 1);
        assert!(!values.wants_slabs());
        let mut values = wanting();
        drop(take(&mut values, LEN, &mut made));
        assert_eq!(values.idle_slabs(true).len(), 1, "quiet: also if it was needed");
    }

    #[test]
    fn slabs_are_not_more_than_twice_what_lies_in_them() {
        let (mut values, mut made) = (wanting(), 0);
        // One that stays, and many that go at once.
        let mut stay = Vec::new();
        for _ in 0..100 {
            stay.extend(take(&mut values, 2 * UNIT_BYTES, &mut made));
            for _ in 0..200 {
                drop(take(&mut values, 256 << 10, &mut made));
            }
        }
        let units: usize = stay.iter().map(|piece| piece.as_ref().len() / UNIT_BYTES).sum();
        assert!(stay.len() > 80 && made <= 2 * units / SLAB_UNITS + 1, "{made} slabs, {units}");
        assert_eq!(made, values.slabs.len());
    }

    #[test]
    fn slabs_without_room_are_not_looked_through_for_each_value() {
        let (mut values, mut made) = (wanting(), 0);
        let mut held: Vec<SlabValue> = (0..511)
            .map(|_| take(&mut values, UNIT_BYTES, &mut made).expect("a slab is ready"))
            .collect();
        // Every second unit, and one more: less than half is taken, and nothing of two units fits.
        let mut at = 0;
        held.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        assert!(!values.is_half_taken());
        for _ in 0..=PASSED_MAX {
            assert!(take(&mut values, 2 * UNIT_BYTES, &mut made).is_none());
        }
        assert_eq!((values.passed, made), (0, 1));
        drop(held);
        assert!(take(&mut values, 2 * UNIT_BYTES, &mut made).is_some(), "it is looked at again");
        assert_eq!(made, 1);
    }
}
