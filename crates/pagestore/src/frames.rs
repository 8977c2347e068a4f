//! Which pages are in memory: a table from page id to frame, with a lock for each page alone.
//!
//! The table has three levels that come into being as ids are first used and then stay, so a
//! lookup takes no lock but that of the page itself, and that only to take a counted reference.
//! Clean frames may go when memory is short; dirty ones stay, for the file does not have them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::RwLock;

use crate::page::{Frame, UNIT_COUNT_MAX};

const CHUNK: usize = 1024;
const TOP: usize = (UNIT_COUNT_MAX as usize) / CHUNK / CHUNK;

/// The file does not have this page yet.
const DIRTY: u8 = 1;
/// Somebody looked at it since the clock's hand came by.
const TOUCHED: u8 = 2;
/// The clock's ring names it.
const RINGED: u8 = 4;

/// One page's place in the table.
#[derive(Default)]
struct Slot {
    frame: RwLock<Option<Frame>>,
    flags: AtomicU8,
}

type Chunk = Box<[Slot]>;
type Row = Box<[OnceLock<Chunk>]>;

/// Frames by page id.
pub(crate) struct Frames {
    rows: Box<[OnceLock<Row>]>,
}

/// What the clock's hand found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hand {
    /// The frame is gone; it had so many bytes.
    Evicted(usize),
    /// It was looked at; ask again in the next round.
    Touched,
    /// There is no clean frame; the ring forgets it.
    Nothing,
}

impl Frames {
    pub(crate) fn new() -> Frames {
        Frames { rows: (0..TOP).map(|_| OnceLock::new()).collect() }
    }

    fn slot(&self, id: u64) -> Option<&Slot> {
        let (top, row, at) = parts(id);
        self.rows.get(top)?.get()?[row].get()?.get(at)
    }

    fn slot_or_new(&self, id: u64) -> &Slot {
        let (top, row, at) = parts(id);
        let row =
            &self.rows[top].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect())[row];
        &row.get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect())[at]
    }

    /// The frame of page `id`, if it is in memory.
    pub(crate) fn get(&self, id: u64) -> Option<Frame> {
        let slot = self.slot(id)?;
        let frame = slot.frame.read().clone()?;
        // Mostly set already: a load keeps the line shared between readers, a store would not.
        if slot.flags.load(Ordering::Relaxed) & TOUCHED == 0 {
            slot.flags.fetch_or(TOUCHED, Ordering::Relaxed);
        }
        Some(frame)
    }

    /// Whether the file does not have page `id`.
    pub(crate) fn is_dirty(&self, id: u64) -> bool {
        self.slot(id).is_some_and(|slot| slot.flags.load(Ordering::Relaxed) & DIRTY != 0)
    }

    /// Puts in a frame that the file does not have.
    pub(crate) fn put_dirty(&self, id: u64, frame: Frame) {
        let slot = self.slot_or_new(id);
        let mut held = slot.frame.write();
        assert!(held.is_none(), "page {id} was given out while its frame was in memory");
        slot.flags.fetch_or(DIRTY, Ordering::Relaxed);
        *held = Some(frame);
    }

    /// Puts in a frame just read from the file, unless somebody was quicker: then theirs is
    /// returned. The flag says whether the frame is new to the clock's ring.
    pub(crate) fn put_clean(&self, id: u64, frame: Frame) -> (Frame, Option<bool>) {
        let slot = self.slot_or_new(id);
        let mut held = slot.frame.write();
        if let Some(first) = held.as_ref() {
            return (first.clone(), None);
        }
        *held = Some(frame.clone());
        let flags = slot.flags.fetch_or(RINGED | TOUCHED, Ordering::Relaxed);
        (frame, Some(flags & RINGED == 0))
    }

    /// Says that the file has the page now. Returns its length and whether it is new to the ring.
    pub(crate) fn mark_clean(&self, id: u64) -> Option<(usize, bool)> {
        let slot = self.slot(id)?;
        let held = slot.frame.write();
        let len = held.as_ref()?.len();
        slot.flags.fetch_and(!DIRTY, Ordering::Relaxed);
        Some((len, slot.flags.fetch_or(RINGED, Ordering::Relaxed) & RINGED == 0))
    }

    /// Forgets a page that nobody can name any more. Returns its frame, and whether it was clean.
    pub(crate) fn remove(&self, id: u64) -> Option<(Frame, bool)> {
        let slot = self.slot(id)?;
        let mut held = slot.frame.write();
        let frame = held.take()?;
        let flags = slot.flags.fetch_and(!DIRTY, Ordering::Relaxed);
        Some((frame, flags & DIRTY == 0))
    }

    /// Evicts the page if it is clean and nobody looked at it since the last call.
    pub(crate) fn sweep(&self, id: u64) -> Hand {
        let Some(slot) = self.slot(id) else { return Hand::Nothing };
        let mut held = slot.frame.write();
        let flags = slot.flags.load(Ordering::Relaxed);
        let Some(frame) = held.as_ref().filter(|_| flags & DIRTY == 0) else {
            slot.flags.fetch_and(!RINGED, Ordering::Relaxed);
            return Hand::Nothing;
        };
        if flags & TOUCHED != 0 {
            slot.flags.fetch_and(!TOUCHED, Ordering::Relaxed);
            return Hand::Touched;
        }
        let len = frame.len();
        *held = None;
        slot.flags.fetch_and(!RINGED, Ordering::Relaxed);
        Hand::Evicted(len)
    }
}

fn parts(id: u64) -> (usize, usize, usize) {
    let id = usize::try_from(id).expect("unit numbers are below 2^32");
    (id / CHUNK / CHUNK, id / CHUNK % CHUNK, id % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8) -> Frame {
        Frame::from(vec![byte; 8])
    }

    #[test]
    fn dirty_frames_are_never_evicted() {
        let frames = Frames::new();
        assert_eq!(frames.get(5), None);
        frames.put_dirty(5, frame(1));
        assert_eq!(frames.sweep(5), Hand::Nothing);
        assert_eq!(frames.sweep(5), Hand::Nothing);
        assert_eq!(frames.mark_clean(5), Some((8, true)));
        assert_eq!(frames.get(5), Some(frame(1)));
        assert_eq!(frames.sweep(5), Hand::Touched);
        assert_eq!(frames.sweep(5), Hand::Evicted(8));
        assert_eq!(frames.get(5), None);
        assert_eq!(frames.sweep(5), Hand::Nothing);
    }

    #[test]
    fn first_of_two_readers_wins() {
        let frames = Frames::new();
        assert_eq!(frames.put_clean(1 << 21, frame(1)), (frame(1), Some(true)));
        assert_eq!(frames.put_clean(1 << 21, frame(2)), (frame(1), None));
        assert_eq!(frames.remove(1 << 21), Some((frame(1), true)));
        assert_eq!(frames.put_clean(1 << 21, frame(3)), (frame(3), Some(false)));
    }
}
