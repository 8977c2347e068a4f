//! The page table: for each unit one pointer, read without a lock, to a dirty page or long value,
//! or a mark that the page in the file was verified.
//!
//! An entry is null, or says that the page or long value that begins at this unit was verified in
//! the file and how long it is, or points to the bytes of one that lies in memory. A reader loads
//! the entry and borrows the bytes; nothing is counted. This is sound because
//!
//! - bytes that an entry points to are never changed while it does;
//! - a reader asks only for what its root reaches, and borrows from the root;
//! - a thread that takes an entry out of the table keeps the bytes until every root that reaches
//!   them, and that was held when the entry was taken out, has ended (epoch-based reclamation).
//!   `space` sees to that: a page that no root needs any more goes at once, one that a checkpoint
//!   has written is retired on the list of the roots.
//!
//! Next to the entries stands a byte for each unit with the length of its verified page: most reads
//! look at nothing else, and eight times as many of them share a cache line.
//!
//! The table comes into being in chunks as units are first used, and stays: 9 bytes for each unit.
//! Chunks are zeroed by the kernel on the first touch.
#![expect(unsafe_code, reason = "the table's entries are owned pointers, made thin")]

use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::config::VALUE_BYTES_MAX;
use crate::memory::root::Root;
use crate::memory::slab::SlabPage;
#[cfg(not(any(shuttle, miri)))]
use crate::page::UNIT_COUNT_MAX;
use crate::page::{self, Frame, UNIT_BYTES, prefetch};
use flotilla_base::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// Entries that come into being together: those of 4 GiB of the file. They take no memory until
/// they are touched.
#[cfg(not(any(shuttle, miri)))]
const CHUNK: usize = 1 << 20;
#[cfg(not(any(shuttle, miri)))]
const CHUNK_COUNT: usize = UNIT_COUNT_MAX as usize / CHUNK;

/// The model's atomics are large, and its files small. Miri is slow.
#[cfg(any(shuttle, miri))]
const CHUNK: usize = 1 << 6;
#[cfg(any(shuttle, miri))]
const CHUNK_COUNT: usize = 1 << 6;

/// The kinds of entries, tagged in the lowest bits, which are zero in every pointer.
const TAG: usize = 7;
const PAGE: usize = 0;
const LONG: usize = 1;
const VERIFIED: usize = 2;
/// A page of one unit in a slab: its length and kind are known without a look at it.
const LEAF: usize = 3;
const BRANCH: usize = 4;

type Entry = AtomicPtr<u8>;

/// A chunk of the table.
struct TableChunk {
    entries: Box<[Entry]>,
    /// The length of a verified page. It is 0 wherever the entry points to bytes: it is set after
    /// the entry, and cleared before the unit can be allocated again.
    verified_units: Box<[AtomicU8]>,
}

/// The page table: dirty or verified pages and long values, by their first units.
pub(crate) struct PageTable {
    chunks: Box<[OnceLock<TableChunk>]>,
    /// How many entries point to bytes.
    held_count: AtomicUsize,
}

/// A long value in memory: its bytes and the transaction that created it.
type Long = (Bytes, u64);

/// The state of a unit in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnitState<'a> {
    /// No entry: the page that begins there, if any, is in the file and was not verified yet.
    Nothing,
    /// The page or long value is in the file, and was verified.
    Verified(Verified),
    /// A page.
    Page(&'a [u8]),
    /// A long value and the transaction that created it.
    Long(&'a [u8], u64),
}

/// The mark of a verified page or long value: its kind and length, and of a long value, which does
/// not say itself when it was written, the low bits of its creating transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verified(usize);

impl Verified {
    /// A page of `units`.
    #[inline]
    pub(crate) fn page(units: u32) -> Verified {
        Verified((units as usize) << 1)
    }

    /// A long value of `bytes` bytes, created in `created_txid`.
    #[inline]
    pub(crate) fn long(bytes: u32, created_txid: u64) -> Verified {
        const LENGTH_BITS: u32 = 25;
        const _: () = assert!(VALUE_BYTES_MAX < 1 << LENGTH_BITS);
        let length_and_birth = (created_txid as usize) << LENGTH_BITS | bytes as usize;
        // Three bits of an entry are its tag.
        Verified((length_and_birth << 1 | 1) & usize::MAX >> 3)
    }

    fn page_units(self) -> Option<u8> {
        (self.0 & 1 == 0).then(|| u8::try_from(self.0 >> 1).expect("15 units at most"))
    }

    #[inline]
    fn entry(self) -> *mut u8 {
        ptr::without_provenance_mut(self.0 << 3 | VERIFIED)
    }
}

/// A page or long value that was unlinked from the table. Its memory is free when this is dropped,
/// so it is kept until all readers have ended that may have borrowed it.
#[derive(Debug)]
pub(crate) enum UnlinkedFrame {
    /// A page, and whether it is a leaf.
    Page(PageBuffer, bool),
    /// A long value and the transaction that created it.
    Long(Box<Long>),
}

impl UnlinkedFrame {
    /// The transaction that wrote it.
    pub(crate) fn created_txid(&self) -> u64 {
        match self {
            UnlinkedFrame::Page(buffer, _) => page::created_txid(buffer),
            UnlinkedFrame::Long(long) => long.1,
        }
    }

    /// Its length in memory.
    pub(crate) fn len(&self) -> usize {
        match self {
            UnlinkedFrame::Page(buffer, _) => buffer.len(),
            UnlinkedFrame::Long(long) => long.0.len(),
        }
    }
}

impl PageTable {
    pub(crate) fn new() -> PageTable {
        let chunks = (0..CHUNK_COUNT).map(|_| OnceLock::new()).collect();
        PageTable { chunks, held_count: AtomicUsize::new(0) }
    }

    #[inline]
    fn slot(&self, id: u64) -> Option<(&Entry, &AtomicU8)> {
        let id = id as usize;
        let chunk = self.chunks.get(id / CHUNK)?.get()?;
        Some((chunk.entries.get(id % CHUNK)?, chunk.verified_units.get(id % CHUNK)?))
    }

    fn slot_or_new(&self, id: u64) -> (&Entry, &AtomicU8) {
        let id = usize::try_from(id).expect("unit numbers are below 2^32");
        let chunk = self.chunks[id / CHUNK].get_or_init(new_chunk);
        (&chunk.entries[id % CHUNK], &chunk.verified_units[id % CHUNK])
    }

    /// Whether a page of `units` begins at unit `id`, is in the file, and was verified. If not,
    /// [`PageTable::find`] says more.
    #[inline]
    pub(crate) fn is_verified(&self, id: u64, units: u32) -> bool {
        let Some((_, verified_units)) = self.slot(id) else { return false };
        let verified_units = u32::from(verified_units.load(Ordering::Acquire));
        verified_units == units && units > 0
    }

    /// The state of unit `id`, seen from a root, which pins it.
    #[inline]
    pub(crate) fn find<'a>(&'a self, root: &'a Root, id: u64) -> UnitState<'a> {
        debug_assert!(root.keeps_frames(), "the durable root keeps nothing in memory");
        let Some((entry, _)) = self.slot(id) else { return UnitState::Nothing };
        let entry = entry.load(Ordering::Acquire);
        match entry.addr() & TAG {
            _ if entry.is_null() => UnitState::Nothing,
            VERIFIED => UnitState::Verified(Verified(entry.addr() >> 3)),
            // SAFETY: The entry came from `put_page`, and `Acquire` shows the bytes as they were
            // put. They stay for 'a: the root is held, and what it reaches is kept, as said above.
            PAGE | LEAF | BRANCH => UnitState::Page(unsafe { &*page_of(entry) }),
            _ => {
                // SAFETY: As above, from `put_long`.
                let long: &Long = unsafe { &*long_of(entry) };
                UnitState::Long(&long.0, long.1)
            }
        }
    }

    /// Prefetches `bytes` bytes of the page in memory at unit `id`.
    #[inline]
    pub(crate) fn prefetch(&self, id: u64, bytes: usize) {
        let Some((entry, _)) = self.slot(id) else { return };
        let entry = entry.load(Ordering::Relaxed);
        if points(entry) {
            prefetch::bytes_at(bytes_of(entry), bytes);
        }
    }

    /// Puts in a dirty page.
    pub(crate) fn put_page(&self, id: u64, buffer: PageBuffer) {
        let len = usize::from(buffer[page::UNITS]) * UNIT_BYTES;
        assert!(len == buffer.len(), "page {id} of {} bytes says it has {len}", buffer.len());
        let kind = if page::is_leaf(&buffer) { LEAF } else { BRANCH };
        match buffer.0 {
            BufferMemory::Heap(frame) => self.put(id, Arc::into_raw(frame).cast_mut().cast(), PAGE),
            BufferMemory::Slab(part) => {
                // It lives on as the entry.
                self.put(id, part.into_raw(), kind);
            }
        }
    }

    /// Puts in a dirty long value, created in `created_txid`.
    pub(crate) fn put_long(&self, id: u64, value: Bytes, created_txid: u64) {
        self.put(id, Box::into_raw(Box::new((value, created_txid))).cast(), LONG);
    }

    fn put(&self, id: u64, bytes: *mut u8, tag: usize) {
        assert!(bytes.addr() & TAG == 0, "memory for unit {id} is not aligned");
        let (entry, verified_units) = self.slot_or_new(id);
        verified_units.store(0, Ordering::Release);
        // After the mark is cleared: a reader that finds it set reads the map, which lacks this
        // page.
        let old = entry.swap(bytes.map_addr(|addr| addr | tag), Ordering::AcqRel);
        assert!(!points(old), "unit {id} was given out while what it held was in memory");
        self.held_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the page or long value at unit `id`, which has no entry, was verified.
    pub(crate) fn mark_verified(&self, id: u64, verified: Verified) {
        let (entry, verified_units) = self.slot_or_new(id);
        debug_assert!(verified.page_units() != Some(0), "page {id} of no units was verified");
        let (null, new) = (ptr::null_mut(), verified.entry());
        // A thread that was quicker has noted the same.
        let noted = entry.compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed);
        if let (Ok(_), Some(units)) = (noted, verified.page_units()) {
            verified_units.store(units, Ordering::Release);
        }
    }

    /// Forgets that unit `id` was verified: it is verified again at the next read.
    pub(crate) fn clear_verified(&self, id: u64) {
        let Some((entry, verified_units)) = self.slot(id) else { return };
        let (verified, null) = (entry.load(Ordering::Acquire), ptr::null_mut());
        if !points(verified) {
            verified_units.store(0, Ordering::Release);
            let _ = entry.compare_exchange(verified, null, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Unlinks what begins at unit `id`. It may be dropped at once if no held root reaches it.
    /// Nothing if there is nothing in memory; the unit has no entry then.
    pub(crate) fn take(&self, id: u64) -> Option<UnlinkedFrame> {
        let (entry, verified_units) = self.slot(id)?;
        verified_units.store(0, Ordering::Release);
        let taken = taken(entry.swap(ptr::null_mut(), Ordering::AcqRel))?;
        debug_assert!(self.held_count.load(Ordering::Relaxed) > 0, "unit {id} was not counted");
        self.held_count.fetch_sub(1, Ordering::Relaxed);
        Some(taken)
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        let held = chunks
            .flat_map(|chunk| &chunk.entries)
            .filter_map(|entry| taken(entry.load(Ordering::Acquire)));
        // No further than the last held entry: most of the table was never touched.
        held.take(self.held_count.load(Ordering::Relaxed)).for_each(drop);
    }
}

/// Whether the entry points to bytes.
fn points(entry: *mut u8) -> bool {
    !entry.is_null() && entry.addr() & TAG != VERIFIED
}

/// The owner of the memory to which an entry pointed that was just unlinked.
fn taken(entry: *mut u8) -> Option<UnlinkedFrame> {
    if !points(entry) {
        return None;
    }
    match entry.addr() & TAG {
        PAGE => {
            // SAFETY: The pointer came from `Arc::into_raw` in `put_page`, with this length; its
            // count is taken over here, once, for it was swapped out of the table.
            let frame = unsafe { Arc::from_raw(page_of(entry)) };
            let is_leaf = page::is_leaf(&frame);
            Some(UnlinkedFrame::Page(PageBuffer::from(frame), is_leaf))
        }
        tag @ (LEAF | BRANCH) => {
            // SAFETY: It came from a part of a slab in `put_page`, and becomes one again once.
            let part = unsafe { SlabPage::from_raw(bytes_of(entry)) };
            Some(UnlinkedFrame::Page(PageBuffer::from(part), tag == LEAF))
        }
        // SAFETY: The pointer came from `Box::into_raw` in `put_long`, and becomes a box again
        // once.
        _ => Some(UnlinkedFrame::Long(unsafe { Box::from_raw(long_of(entry)) })),
    }
}

/// The bytes of a page.
///
/// # Safety
///
/// `entry` was put in by `put_page`, and the page was not dropped since.
#[inline]
unsafe fn page_of(entry: *mut u8) -> *const [u8] {
    let bytes = bytes_of(entry);
    if entry.addr() & TAG != PAGE {
        return ptr::slice_from_raw_parts(bytes, UNIT_BYTES);
    }
    // SAFETY: The entry points to the whole bytes of a page, whose header says how many they are:
    // `put_page` has verified it, and they have not changed since.
    let units = unsafe { *bytes.add(page::UNITS) };
    ptr::slice_from_raw_parts(bytes, usize::from(units) * UNIT_BYTES)
}

/// Where it points to.
#[inline]
fn bytes_of(entry: *mut u8) -> *mut u8 {
    entry.map_addr(|addr| addr & !TAG)
}

#[inline]
fn long_of(entry: *mut u8) -> *mut Long {
    bytes_of(entry).cast()
}

/// Memory for one page, which has one owner: it is changed by its owner, and borrowed by readers
/// once it is in the table.
#[derive(Debug)]
pub(crate) struct PageBuffer(BufferMemory);

#[derive(Debug)]
enum BufferMemory {
    /// Held once.
    Heap(Frame),
    /// Of one unit.
    Slab(SlabPage),
}

impl PageBuffer {
    /// Whether its memory may not be used again.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(&self.0, BufferMemory::Slab(page) if page.is_closed())
    }
}

impl From<Frame> for PageBuffer {
    fn from(frame: Frame) -> PageBuffer {
        PageBuffer(BufferMemory::Heap(frame))
    }
}

impl From<SlabPage> for PageBuffer {
    fn from(part: SlabPage) -> PageBuffer {
        PageBuffer(BufferMemory::Slab(part))
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            BufferMemory::Heap(frame) => frame,
            BufferMemory::Slab(part) => part,
        }
    }
}

impl DerefMut for PageBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            BufferMemory::Heap(frame) => Arc::get_mut(frame).expect("a buffer has one owner"),
            BufferMemory::Slab(part) => part,
        }
    }
}

#[cfg(not(shuttle))]
fn new_chunk() -> TableChunk {
    // SAFETY: Zeros are null pointers and bytes of zero. Asked for so, they take no memory until
    // they are touched.
    unsafe {
        TableChunk {
            entries: Box::new_zeroed_slice(CHUNK).assume_init(),
            verified_units: Box::new_zeroed_slice(CHUNK).assume_init(),
        }
    }
}

#[cfg(shuttle)]
fn new_chunk() -> TableChunk {
    TableChunk {
        entries: (0..CHUNK).map(|_| Entry::new(ptr::null_mut())).collect(),
        verified_units: (0..CHUNK).map(|_| AtomicU8::new(0)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::memory::meta::MetaPage;
    use crate::page::PageKind;

    fn root() -> Arc<Root> {
        Root::durable(&MetaPage::empty(), Arc::new(Mutex::new(Vec::new())))
    }

    fn put_page(frames: &PageTable, id: u64, frame: &Frame) {
        frames.put_page(id, PageBuffer::from(Frame::clone(frame)));
    }

    fn page_frame(id: u64, units: usize, fill: u8) -> Frame {
        let mut bytes = vec![fill; units * UNIT_BYTES];
        page::begin(&mut bytes, PageKind::Leaf, 0, id, 7);
        Frame::from(bytes)
    }

    #[test]
    fn entries_come_out_as_they_went_in() {
        let (frames, root) = (PageTable::new(), root());
        assert_eq!(frames.find(&root, 5), UnitState::Nothing);
        assert!(frames.take(5).is_none());
        let frame = page_frame(5, 3, 1);
        put_page(&frames, 5, &frame);
        assert_eq!(frames.find(&root, 5), UnitState::Page(&frame));
        let far = (CHUNK * CHUNK_COUNT / 2) as u64;
        frames.put_long(far, Bytes::from_static(b"long"), 9);
        assert_eq!(frames.find(&root, far), UnitState::Long(b"long", 9));
        frames.mark_verified(5, Verified::page(3));
        assert_eq!(frames.find(&root, 5), UnitState::Page(&frame), "what is in memory stays");
        let taken = frames.take(5).unwrap();
        assert_eq!((taken.created_txid(), taken.len()), (7, 3 * UNIT_BYTES));
        assert_eq!(Arc::strong_count(&frame), 2);
        drop(taken);
        assert_eq!(Arc::strong_count(&frame), 1);
        for forget in [
            |frames: &PageTable| drop(frames.take(5)),
            |frames: &PageTable| frames.clear_verified(5),
        ] {
            assert!(!frames.is_verified(5, 3));
            frames.mark_verified(5, Verified::page(3));
            assert!(
                frames.is_verified(5, 3) && !frames.is_verified(5, 2) && !frames.is_verified(5, 0)
            );
            assert_eq!(frames.find(&root, 5), UnitState::Verified(Verified::page(3)));
            forget(&frames);
            assert_eq!(frames.find(&root, 5), UnitState::Nothing);
        }
        frames.mark_verified(6, Verified::long(100, 1 << 40 | 7));
        assert_eq!(frames.find(&root, 6), UnitState::Verified(Verified::long(100, 1 << 40 | 7)));
        assert_ne!(Verified::long(100, 7), Verified::long(100, 8));
        assert!(!frames.is_verified(6, 100));
        frames.clear_verified(7);
        put_page(&frames, 7, &page_frame(7, 1, 1));
        frames.clear_verified(7);
        assert!(matches!(frames.find(&root, 7), UnitState::Page(_)), "what is in memory stays");
    }

    #[test]
    fn dropped_table_gives_everything_back() {
        let (frames, frame) = (PageTable::new(), page_frame(1, 1, 2));
        let value = Bytes::from(vec![1; 100]);
        put_page(&frames, 1, &frame);
        frames.put_long(2, value.clone(), 3);
        drop(frames);
        assert_eq!(Arc::strong_count(&frame), 1);
        assert!(value.is_unique());
    }

    #[test]
    #[should_panic(expected = "was given out while what it held was in memory")]
    fn unit_that_is_taken_is_not_given_out() {
        let frames = PageTable::new();
        put_page(&frames, 1, &page_frame(1, 1, 2));
        put_page(&frames, 1, &page_frame(1, 1, 3));
    }

    #[test]
    #[should_panic(expected = "says it has")]
    fn page_of_another_length_is_refused() {
        put_page(&PageTable::new(), 1, &Frame::from(&page_frame(1, 2, 2)[..UNIT_BYTES]));
    }
}
