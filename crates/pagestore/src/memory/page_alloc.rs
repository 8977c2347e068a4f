//! Allocator of page buffers: free lists, slabs and the heap.
//!
//! A page of one unit lies in a slab, except the first few of a store, which come from the heap: a
//! small store needs no slab. A buffer that held a branch is reused for branches first: these are
//! few and written often, so it is likely to be in the CPU's cache. Long values have slabs of their
//! own (`value_alloc`).

use std::sync::Arc;
use std::time::Duration;

use crate::memory::page_table::{PageBuffer, UnlinkedFrame};
use crate::memory::slab::{SLAB_BYTES, Slab, SlabUse, SlabValue};
use crate::memory::value_alloc::{UsedSlab, ValueAlloc};
use crate::page::UNIT_BYTES;

/// Buffers that come from the heap before the first slab is made, at most.
const HEAP_MAX: usize = 256;

/// Prefaulted slabs that are kept ready once there are slabs. To make one takes a millisecond or
/// several, because the kernel clears it, and in a virtual machine gets it from the host.
const READY_MAX: usize = 2;

/// Prefaulted slabs that are kept ready while long values want slabs. Of values of 16 KiB each a
/// slab takes 127, which are put in half a millisecond.
const READY_FOR_VALUES_MAX: usize = 4;

/// The time without a publish after which unused slabs go back to the kernel.
const QUIET: Duration = Duration::from_secs(60);

/// The source of a page buffer.
#[derive(Debug)]
pub(crate) enum BufferSource {
    /// A buffer, with stale contents.
    Of(PageBuffer),
    /// From the heap.
    Heap,
    /// From a new slab, which the caller makes, without a lock, and adds by [`PageAlloc::add`];
    /// then it asks again.
    Slab,
}

/// Memory for pages.
pub(crate) struct PageAlloc {
    /// Free lists of buffers of one unit: those that held branches, and leaves.
    free: [Vec<PageBuffer>; 2],
    /// Buffers that are not reused and that no reader needs.
    garbage: Vec<UnlinkedFrame>,
    slabs: Vec<UsedSlab>,
    /// The slab that was taken from last.
    current: usize,
    /// Slabs that were not yet taken from.
    ready: Vec<Arc<Slab>>,
    ready_for_values: Vec<Arc<Slab>>,
    /// The background was notified that slabs should be made ready.
    has_asked: bool,
    heap_count: usize,
    heap_max: usize,
    /// Memory for long values.
    values: ValueAlloc,
    /// The last transaction that was seen, and when first.
    quiet: (u64, Duration),
    /// Slabs of which nothing is given out: a checkpoint is going to spill them.
    closed: Vec<ClosedSlab>,
    /// Slabs that were spilled.
    spilled: Vec<Arc<Slab>>,
    /// There are closed slabs, in the lists or in the hands of a checkpoint.
    has_closed: bool,
}

/// A slab of which nothing is given out, and its use.
#[derive(Debug)]
pub(crate) struct ClosedSlab {
    pub(crate) slab: Arc<Slab>,
    made_for: SlabUse,
}

impl Default for PageAlloc {
    fn default() -> PageAlloc {
        PageAlloc {
            free: Default::default(),
            garbage: Vec::new(),
            slabs: Vec::new(),
            current: 0,
            ready: Vec::new(),
            ready_for_values: Vec::new(),
            has_asked: false,
            heap_count: 0,
            heap_max: HEAP_MAX,
            values: ValueAlloc::default(),
            quiet: Default::default(),
            closed: Vec::new(),
            spilled: Vec::new(),
            has_closed: false,
        }
    }
}

impl PageAlloc {
    /// Takes no more than `bytes` from the heap before the first slab: memory of the heap cannot be
    /// spilled.
    pub(crate) fn limit_heap(&mut self, bytes: u64) {
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.heap_max = HEAP_MAX.min(bytes_max / UNIT_BYTES);
        self.values.limit_heap(bytes);
    }

    /// Memory for a page of `units`.
    pub(crate) fn take(&mut self, units: u32, is_leaf: bool) -> BufferSource {
        if units != 1 {
            return BufferSource::Heap;
        }
        let [other, first] = [!is_leaf, is_leaf].map(usize::from);
        if let Some(buffer) = self.free[first].pop().or_else(|| self.free[other].pop()) {
            debug_assert_eq!(buffer.len(), UNIT_BYTES, "a buffer of another length was recycled");
            return BufferSource::Of(buffer);
        }
        if self.heap_count < self.heap_max {
            self.heap_count += 1;
            return BufferSource::Heap;
        }
        self.take_of_slab().map_or(BufferSource::Slab, BufferSource::Of)
    }

    fn take_of_slab(&mut self) -> Option<PageBuffer> {
        let count = self.slabs.len();
        debug_assert!(self.current <= count, "slab {} of {count}", self.current);
        for i in (self.current..count).chain(0..self.current) {
            let used = &mut self.slabs[i];
            if let Some(part) = used.slab.take() {
                used.was_needed = true;
                self.current = i;
                return Some(PageBuffer::from(part));
            }
        }
        let slab = self.ready.pop()?;
        let buffer = slab.take().map(PageBuffer::from);
        self.slabs.push(UsedSlab { slab, was_needed: true });
        self.current = count;
        buffer
    }

    /// Memory for a long value of `len` bytes; nothing if it shall come from the heap.
    pub(crate) fn take_piece(&mut self, len: usize) -> Option<SlabValue> {
        let PageAlloc { values, ready_for_values, .. } = self;
        values.take(len, || ready_for_values.pop())
    }

    /// Takes a new slab.
    pub(crate) fn add(&mut self, slab: Arc<Slab>, made_for: SlabUse) {
        debug_assert!(slab.is_idle(), "a slab that is ready is in use");
        match made_for {
            SlabUse::Pages => self.ready.push(slab),
            SlabUse::Values => self.ready_for_values.push(slab),
        }
    }

    /// Whether slabs should be made ready; says so once until [`PageAlloc::wants_slab`] says that
    /// there are enough.
    pub(crate) fn asks_for_slabs(&mut self) -> bool {
        let is_new = !self.has_asked && self.is_short().is_some();
        self.has_asked |= is_new;
        is_new
    }

    /// The use of one more slab that should be made ready, if that was asked for.
    pub(crate) fn wants_slab(&mut self) -> Option<SlabUse> {
        let short = self.is_short().filter(|_| self.has_asked);
        self.has_asked = short.is_some();
        short
    }

    fn is_short(&self) -> Option<SlabUse> {
        // A writer that needs a page waits until its slab is made; a long value falls back to the
        // heap.
        if !self.slabs.is_empty() && self.ready.len() < READY_MAX {
            return Some(SlabUse::Pages);
        }
        let is_short = self.ready_for_values.len() < READY_FOR_VALUES_MAX;
        (self.values.wants_slabs() && is_short).then_some(SlabUse::Values)
    }

    /// How many slabs are ready for long values.
    #[cfg(test)]
    pub(crate) fn ready_for_values_count(&self) -> usize {
        self.ready_for_values.len()
    }

    /// Takes back the memory of a page or a long value.
    pub(crate) fn recycle(&mut self, taken: UnlinkedFrame) {
        match taken {
            UnlinkedFrame::Page(buffer, is_leaf)
                if buffer.len() == UNIT_BYTES && !(self.has_closed && buffer.is_closed()) =>
            {
                self.free[usize::from(is_leaf)].push(buffer);
            }
            taken => self.garbage.push(taken),
        }
    }

    /// Hands over buffers that are not reused, to be dropped outside of the lock.
    pub(crate) fn take_garbage(&mut self) -> Vec<UnlinkedFrame> {
        std::mem::take(&mut self.garbage)
    }

    /// Hands over the free lists: buffers of slabs go back to them when they are dropped, outside
    /// of the lock.
    pub(crate) fn take_free(&mut self) -> [Vec<PageBuffer>; 2] {
        self.heap_count = 0;
        self.values.reset();
        std::mem::take(&mut self.free)
    }

    /// Closes all slabs in use: their pages and values stay, and nothing new comes into them.
    pub(crate) fn close_slabs(&mut self) {
        let of = |made_for| move |used: UsedSlab| ClosedSlab { slab: used.slab, made_for };
        let values = self.values.take_slabs().into_iter().map(of(SlabUse::Values));
        let pages = self.slabs.drain(..).map(of(SlabUse::Pages));
        self.closed.extend(pages.chain(values));
        self.current = 0;
        self.has_closed = true;
        self.closed.iter().for_each(|closed| closed.slab.set_closed(true));
        // Buffers that would be used again lie in them. They are dropped outside of the lock.
        for (i, free) in self.free.iter_mut().enumerate() {
            let buffers = free.drain(..);
            self.garbage.extend(buffers.map(|buffer| UnlinkedFrame::Page(buffer, i == 1)));
        }
    }

    /// Hands over the closed slabs. They stay closed until [`PageAlloc::reopen`].
    pub(crate) fn take_closed(&mut self) -> Vec<ClosedSlab> {
        std::mem::take(&mut self.closed)
    }

    /// Takes slabs back that were closed, to be used as before. Those that were spilled stay
    /// closed.
    pub(crate) fn reopen(&mut self, closed: Vec<ClosedSlab>) {
        self.has_closed = !self.spilled.is_empty();
        for ClosedSlab { slab, made_for } in closed {
            slab.set_closed(false);
            let used = UsedSlab { slab, was_needed: false };
            match made_for {
                SlabUse::Pages => self.slabs.push(used),
                SlabUse::Values => self.values.add_slab(used),
            }
        }
    }

    /// Takes a slab that was spilled.
    pub(crate) fn add_spilled(&mut self, slab: Arc<Slab>) {
        self.spilled.push(slab);
    }

    /// Bytes of pages and values in slabs that were spilled.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        let units: usize = self.spilled.iter().map(|slab| slab.taken_units()).sum();
        units as u64 * UNIT_BYTES as u64
    }

    /// Bytes of the slabs that were spilled.
    pub(crate) fn spill_file_bytes(&self) -> u64 {
        self.spilled.len() as u64 * SLAB_BYTES as u64
    }

    /// Hands over slabs that are not in use, and were not since the last call, to be dropped
    /// outside of the lock.
    pub(crate) fn idle_slabs(&mut self) -> Vec<Arc<Slab>> {
        let idle = self
            .slabs
            .extract_if(.., |used| !std::mem::take(&mut used.was_needed) && used.slab.is_idle());
        let mut idle: Vec<Arc<Slab>> = idle.map(|used| used.slab).collect();
        self.current = 0;
        idle.append(&mut self.values.idle_slabs(false));
        idle.extend(self.spilled.extract_if(.., |slab| slab.is_idle()));
        idle
    }

    /// As [`PageAlloc::idle_slabs`], for those that were needed lately or are ready as well, if the
    /// last transaction was `txid` for a minute.
    pub(crate) fn quiet_slabs(&mut self, txid: u64, now: Duration) -> Vec<Arc<Slab>> {
        if self.quiet.0 != txid {
            self.quiet = (txid, now);
        }
        if now.saturating_sub(self.quiet.1) < QUIET {
            return Vec::new();
        }
        // Buffers that readers released since the last checkpoint are still on the free lists.
        // Nothing was written for a minute, so no writer waits for this.
        drop(self.take_free());
        self.slabs.iter_mut().for_each(|used| used.was_needed = false);
        let mut idle = self.idle_slabs();
        idle.append(&mut self.values.idle_slabs(true));
        idle.append(&mut self.ready);
        idle.append(&mut self.ready_for_values);
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::page_table::PageTable;
    use crate::page::{self, Frame, PageKind};

    /// A page in memory that came from `page_alloc`, put into the table and taken out again.
    fn page(
        page_alloc: &mut PageAlloc,
        frames: &PageTable,
        id: u64,
        kind: PageKind,
    ) -> UnlinkedFrame {
        let taken = take(page_alloc, kind == PageKind::Leaf);
        let mut buffer =
            taken.unwrap_or_else(|| PageBuffer::from(Frame::from(vec![0; UNIT_BYTES])));
        page::begin(&mut buffer, kind, 0, id, 1);
        frames.put_page(id, buffer);
        frames.take(id).expect("put in just now")
    }

    /// Memory from a slab, if there can be slabs and enough came from the heap.
    fn take(page_alloc: &mut PageAlloc, is_leaf: bool) -> Option<PageBuffer> {
        loop {
            match page_alloc.take(1, is_leaf) {
                BufferSource::Of(buffer) => return Some(buffer),
                BufferSource::Heap => return None,
                BufferSource::Slab => page_alloc.add(Slab::new()?, SlabUse::Pages),
            }
        }
    }

    #[test]
    fn memory_is_used_again_for_the_same_kind() {
        let (mut page_alloc, frames) = (PageAlloc::default(), PageTable::new());
        for of_slab in [false, true] {
            let branch = page(&mut page_alloc, &frames, 1, PageKind::Branch);
            let leaf = page(&mut page_alloc, &frames, 2, PageKind::Leaf);
            let place = |taken: &UnlinkedFrame| match taken {
                UnlinkedFrame::Page(buffer, _) => buffer.as_ptr(),
                UnlinkedFrame::Long(_) => panic!("a page was put in"),
            };
            let places = [place(&branch), place(&leaf)];
            page_alloc.recycle(branch);
            page_alloc.recycle(leaf);
            let branch = page(&mut page_alloc, &frames, 3, PageKind::Branch);
            let leaf = page(&mut page_alloc, &frames, 4, PageKind::Leaf);
            assert_eq!([place(&branch), place(&leaf)], places, "{of_slab}");
            page_alloc.heap_count = HEAP_MAX;
        }
        assert!(matches!(page_alloc.take(2, true), BufferSource::Heap));
    }

    #[test]
    #[cfg(not(any(miri, shuttle)))]
    fn slabs_go_when_nobody_needs_them() {
        let (mut page_alloc, frames) = (PageAlloc::default(), PageTable::new());
        let mut pages: Vec<UnlinkedFrame> =
            (0..1000).map(|id| page(&mut page_alloc, &frames, id, PageKind::Leaf)).collect();
        assert_eq!(page_alloc.slabs.len(), 2);
        let distinct: std::collections::BTreeSet<_> = pages
            .iter()
            .map(|taken| match taken {
                UnlinkedFrame::Page(buffer, _) => buffer.as_ptr().addr(),
                UnlinkedFrame::Long(_) => panic!("pages were put in"),
            })
            .collect();
        assert_eq!(distinct.len(), 1000);
        let held = pages.pop();
        pages.into_iter().for_each(|taken| page_alloc.recycle(taken));
        drop(page_alloc.take_free());
        assert_eq!(page_alloc.idle_slabs().len(), 0, "both were needed");
        assert_eq!(page_alloc.idle_slabs().len(), 1, "one is in use");
        drop(held);
        assert_eq!(page_alloc.idle_slabs().len(), 1);
        assert!(page_alloc.slabs.is_empty());
        let pages: Vec<UnlinkedFrame> = (0..=HEAP_MAX as u64)
            .map(|id| page(&mut page_alloc, &frames, id, PageKind::Leaf))
            .collect();
        pages.into_iter().for_each(|taken| page_alloc.recycle(taken));
        let second = Duration::from_secs(1);
        assert_eq!(page_alloc.quiet_slabs(7, second).len(), 0);
        assert_eq!(page_alloc.quiet_slabs(7, QUIET).len(), 0);
        assert_eq!(page_alloc.quiet_slabs(8, QUIET + second).len(), 0, "something was published");
        assert_eq!(page_alloc.quiet_slabs(8, 2 * QUIET + second).len(), 1);
        assert!(page_alloc.slabs.is_empty());
    }

    #[test]
    #[cfg(not(any(miri, shuttle)))]
    fn slabs_are_asked_for_before_they_are_needed() {
        let mut page_alloc = PageAlloc::default();
        assert!(!page_alloc.asks_for_slabs(), "what comes from the heap needs none");
        let mut held: Vec<PageBuffer> =
            (0..=HEAP_MAX).filter_map(|_| take(&mut page_alloc, true)).collect();
        assert_eq!(held.len(), 1);
        assert_eq!(page_alloc.wants_slab(), None, "nobody was told");
        assert!(page_alloc.asks_for_slabs());
        assert!(!page_alloc.asks_for_slabs(), "said once");
        for _ in 0..READY_MAX {
            assert_eq!(page_alloc.wants_slab(), Some(SlabUse::Pages));
            page_alloc.add(Slab::new().unwrap(), SlabUse::Pages);
        }
        assert!(page_alloc.wants_slab().is_none() && !page_alloc.asks_for_slabs());
        for _ in 0..511 {
            assert!(!page_alloc.asks_for_slabs());
            match page_alloc.take(1, true) {
                BufferSource::Of(buffer) => held.push(buffer),
                other => panic!("{other:?}, and slabs are ready"),
            }
        }
        assert!(page_alloc.asks_for_slabs(), "one that was ready is taken from");
        assert_eq!(page_alloc.wants_slab(), Some(SlabUse::Pages));
        drop(held);
        assert_eq!(page_alloc.quiet_slabs(1, Duration::ZERO).len(), 0);
        assert_eq!(page_alloc.quiet_slabs(1, QUIET).len(), 3);
        assert_eq!(page_alloc.wants_slab(), None, "there are none again");
    }
}
