//! Page cache with CLOCK eviction: clean pages that were read into memory, where the file is not
//! mapped.
//!
//! A radix table from page id to frame, in three levels that come into being as ids are first used
//! and then stay; a lookup takes no lock but that of the page itself, and that only to take a
//! counted reference. Frames are kept up to a limit and evicted by CLOCK in sixteen shards.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::page::{Frame, UNIT_COUNT_MAX};

const CHUNK: usize = 1024;
const TOP: usize = (UNIT_COUNT_MAX as usize) / CHUNK / CHUNK;
const PARTS: usize = 16;

/// The reference bit of CLOCK: set by a lookup, cleared by the hand.
const REFERENCED: u8 = 1;
/// The page is on the ring.
const IN_RING: u8 = 2;

/// One page's place in the table.
#[derive(Default)]
struct CacheSlot {
    frame: RwLock<Option<Frame>>,
    flags: AtomicU8,
}

type CacheChunk = Box<[CacheSlot]>;
type CacheRow = Box<[OnceLock<CacheChunk>]>;

/// Clean pages in memory.
pub(crate) struct PageCache {
    rows: Box<[OnceLock<CacheRow>]>,
    clocks: [Mutex<VecDeque<u64>>; PARTS],
    bytes: AtomicU64,
    bytes_max: u64,
}

/// The outcome of one look of the clock's hand.
#[derive(Debug, PartialEq, Eq)]
enum SweepOutcome {
    /// The frame was evicted; it had this many bytes.
    Evicted(usize),
    /// The reference bit was set; look again in the next round.
    Referenced,
    /// There is no frame; the ring forgets it.
    Nothing,
}

impl PageCache {
    /// Nothing yet, and never much more than `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> PageCache {
        PageCache {
            rows: (0..TOP).map(|_| OnceLock::new()).collect(),
            clocks: Default::default(),
            bytes: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Bytes of all pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn slot(&self, id: u64) -> Option<&CacheSlot> {
        let (top, row, at) = parts(id);
        self.rows.get(top)?.get()?[row].get()?.get(at)
    }

    fn slot_or_new(&self, id: u64) -> &CacheSlot {
        let (top, row, at) = parts(id);
        let row =
            &self.rows[top].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect())[row];
        &row.get_or_init(|| (0..CHUNK).map(|_| CacheSlot::default()).collect())[at]
    }

    /// The page `id`, if it is in memory.
    pub(crate) fn get(&self, id: u64) -> Option<Frame> {
        let slot = self.slot(id)?;
        let frame = slot.frame.read().clone()?;
        // Mostly set already: a load keeps the line shared between readers, a store would not.
        if slot.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            slot.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
        Some(frame)
    }

    /// Puts in a page that the file has, unless another thread was quicker: then that frame is
    /// returned.
    pub(crate) fn put(&self, id: u64, frame: Frame) -> Frame {
        let slot = self.slot_or_new(id);
        let mut held = slot.frame.write();
        if let Some(first) = held.as_ref() {
            return first.clone();
        }
        *held = Some(frame.clone());
        let flags = slot.flags.fetch_or(IN_RING | REFERENCED, Ordering::Relaxed);
        drop(held);
        // The slot is unlocked, since the sweep takes the locks of other slots.
        self.added(id, frame.len(), flags & IN_RING == 0);
        frame
    }

    /// Forgets a page that no root reaches any more.
    pub(crate) fn remove(&self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        if let Some(frame) = slot.frame.write().take() {
            self.bytes.fetch_sub(frame.len() as u64, Ordering::Relaxed);
        }
    }

    fn added(&self, id: u64, len: usize, new_to_ring: bool) {
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        let mut clock = self.clocks[part(id)].lock();
        if new_to_ring {
            clock.push_back(id);
        }
        // Once round at most, twice because the first look only clears the reference bit.
        for _ in 0..2 * clock.len() {
            if self.bytes.load(Ordering::Relaxed) <= self.bytes_max {
                break;
            }
            let Some(candidate) = clock.pop_front() else { break };
            match self.sweep(candidate) {
                SweepOutcome::Evicted(len) => {
                    self.bytes.fetch_sub(len as u64, Ordering::Relaxed);
                }
                SweepOutcome::Referenced => clock.push_back(candidate),
                SweepOutcome::Nothing => {}
            }
        }
    }

    /// Evicts the page if its reference bit is clear.
    fn sweep(&self, id: u64) -> SweepOutcome {
        let Some(slot) = self.slot(id) else { return SweepOutcome::Nothing };
        let mut held = slot.frame.write();
        if held.is_some() && slot.flags.load(Ordering::Relaxed) & REFERENCED != 0 {
            slot.flags.fetch_and(!REFERENCED, Ordering::Relaxed);
            return SweepOutcome::Referenced;
        }
        slot.flags.fetch_and(!IN_RING, Ordering::Relaxed);
        held.take().map_or(SweepOutcome::Nothing, |frame| SweepOutcome::Evicted(frame.len()))
    }
}

fn parts(id: u64) -> (usize, usize, usize) {
    let id = usize::try_from(id).expect("unit numbers are below 2^32");
    (id / CHUNK / CHUNK, id / CHUNK % CHUNK, id % CHUNK)
}

fn part(id: u64) -> usize {
    // Neighbours go to different parts; the multiplier spreads ids that differ by a power of two.
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8) -> Frame {
        Frame::from(vec![byte; 8])
    }

    #[test]
    fn what_is_looked_at_stays() {
        let cache = PageCache::new(1 << 20);
        assert_eq!(cache.get(5), None);
        assert_eq!(cache.sweep(5), SweepOutcome::Nothing);
        cache.put(5, frame(1));
        assert_eq!(cache.sweep(5), SweepOutcome::Referenced);
        assert_eq!(cache.get(5), Some(frame(1)));
        assert_eq!(cache.sweep(5), SweepOutcome::Referenced);
        assert_eq!(cache.sweep(5), SweepOutcome::Evicted(8));
        assert_eq!(cache.get(5), None);
    }

    #[test]
    fn first_of_two_readers_wins() {
        let cache = PageCache::new(1 << 20);
        assert_eq!(cache.put(1 << 21, frame(1)), frame(1));
        assert_eq!(cache.put(1 << 21, frame(2)), frame(1));
        assert_eq!(cache.bytes(), 8);
        cache.remove(1 << 21);
        assert_eq!(cache.bytes(), 0);
        assert_eq!(cache.put(1 << 21, frame(3)), frame(3));
    }
}
