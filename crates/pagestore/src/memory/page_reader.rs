//! Reads pages and long values by address: from the page table if they are dirty, else from the
//! file, verified.
//!
//! Dirty pages lie in [`PageTable`]. Clean ones are borrowed from the memory map of the file, once
//! they were verified there; where the file is not mapped they are read into the [`PageCache`],
//! verified, and counted. A page that was verified is trusted until its unit is allocated again.
//! `docs/decisions/0013` says why the file is mapped once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flotilla_vfs::{File, FileMap, MapAdvice};

use crate::config::{Options, ReadMode};
use crate::error::{Error, Result};
use crate::memory::page_cache::PageCache;
use crate::memory::page_table::{PageBuffer, PageTable, UnitState, UnlinkedFrame, Verified};
use crate::memory::root::Root;
use crate::page::leaf::ValueExtent;
use crate::page::read_timer::ReadTimer;
use crate::page::slotted::SlottedPage;
use crate::page::source::PrefetchHint;
use crate::page::view::{PageBytes, ValueRef};
use crate::page::{self, Frame, PageKind, PageRef, Span, UNIT_BYTES, prefetch};

/// Pages and long values by address.
pub(crate) struct PageReader {
    file: Arc<dyn File>,
    map: Option<FileMap>,
    page_table: PageTable,
    cache: PageCache,
    reads: AtomicU64,
}

/// Length of the map, if the kernel allows it: half of the longest file. Pages beyond are read into
/// the cache.
const MAP_BYTES: u64 = 8 << 40;

/// The shortest map that is tried where the kernel has a lower limit.
const MAP_BYTES_MIN: u64 = 1 << 30;

impl PageReader {
    pub(crate) fn new(file: Arc<dyn File>, options: &Options) -> Result<PageReader> {
        let map = match options.read_mode {
            ReadMode::Mapped => map(&*file)?,
            ReadMode::Cached => None,
        };
        Ok(PageReader {
            file,
            map,
            page_table: PageTable::new(),
            cache: PageCache::new(options.cache_bytes.max(1 << 20)),
            reads: AtomicU64::new(0),
        })
    }

    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }

    /// Bytes of clean pages that were read into memory.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Pages and long values that were read from the file, or checked in the map, so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// The page at `page_ref`, as `root` sees it.
    #[inline]
    pub(crate) fn page<'a>(&'a self, root: &'a Root, page_ref: PageRef) -> Result<PageBytes<'a>> {
        let Some(bytes) = self.resident(root, page_ref) else { return self.load(root, page_ref) };
        prefetch::search(bytes);
        // Verified once, but perhaps overwritten by a later page: the parent's reference tells.
        if page::is_at(bytes, page_ref) {
            return Ok(PageBytes::Borrowed(bytes));
        }
        Err(wrong_page(page_ref.id()))
    }

    /// Prefetches the page at `page_ref`. Reads nothing from the file.
    #[inline]
    pub(crate) fn prefetch(&self, root: &Root, page_ref: PageRef, wanted: PrefetchHint) {
        match (self.resident(root, page_ref), wanted) {
            (Some(bytes), PrefetchHint::Search) => prefetch::search(bytes),
            (Some(bytes), PrefetchHint::Whole) => prefetch::whole(bytes),
            (None, _) => {}
        }
    }

    /// Whether pages are read through a memory map.
    pub(crate) fn is_mapped(&self) -> bool {
        self.map.is_some()
    }

    /// Asks the disk for all of `pages` at once, unless the last of them and so many in all as
    /// `probes` says are in memory. Returns whether it has asked.
    pub(crate) fn read_ahead(&self, root: &Root, pages: &mut Vec<PageRef>, probes: usize) -> bool {
        let Some(map) = &self.map else { return false };
        pages.retain(|page_ref| {
            page_ref.span().byte_range().end <= map.len_bytes()
                && !matches!(self.page_table.find(root, page_ref.id()), UnitState::Page(_))
        });
        let distance = pages.len().div_ceil(probes.max(1)).max(1);
        let is_resident = |page: &PageRef| map.is_resident(page.span().byte_range().start);
        if pages.iter().rev().step_by(distance).all(is_resident) {
            return false;
        }
        pages.sort_unstable_by_key(|page_ref| page_ref.id());
        // Neighbours are one range: a system call each, and a request to the disk.
        for run in pages.chunk_by(|one, next| one.span().end() == next.id()) {
            let (first, last) = (run[0].span(), run[run.len() - 1].span());
            debug_assert!(first.start < last.end(), "{first:?} and {last:?} in one run");
            self.file.will_need(first.byte_range().start..last.byte_range().end);
        }
        true
    }

    /// Asks the disk for a span as a whole, for it is not known to be in memory: its pages would be
    /// read one by one. Costs a system call, so one unit is not asked for.
    fn read_whole(&self, span: Span) {
        if span.units > 1 {
            self.file.will_need(span.byte_range());
        }
    }

    /// As [`PageReader::read_whole`], for `bytes` that may have been borrowed from the map at
    /// `span` and that are mostly in memory: asks only if a look at them took so long that the disk
    /// was read.
    pub(crate) fn read_whole_if_slow(&self, bytes: &[u8], span: Span) {
        if span.units > 1 && ReadTimer::start().is_slow_after(|| bytes[bytes.len() / 2]) {
            self.file.will_need(span.byte_range());
        }
    }

    /// The page at `page_ref`, if nothing has to be read or proven for it.
    #[inline]
    fn resident<'a>(&'a self, root: &'a Root, page_ref: PageRef) -> Option<&'a [u8]> {
        if self.page_table.is_verified(page_ref.id(), page_ref.units()) {
            return Some(self.map.as_ref()?.bytes(page_ref.span().byte_range()));
        }
        match self.page_table.find(root, page_ref.id()) {
            UnitState::Page(bytes) => Some(bytes),
            _ => None,
        }
    }

    #[inline(never)]
    fn load<'a>(&'a self, root: &'a Root, page_ref: PageRef) -> Result<PageBytes<'a>> {
        match self.page_table.find(root, page_ref.id()) {
            UnitState::Nothing => {}
            // Another thread has just verified it.
            UnitState::Verified(verified) if verified == Verified::page(page_ref.units()) => {}
            // Another length was verified there, so the reference is stale.
            _ => return Err(wrong_page(page_ref.id())),
        }
        if let Some(map) = self.map_of(page_ref.span())? {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.read_whole(page_ref.span());
            let bytes = map.bytes(page_ref.span().byte_range());
            check_page(bytes, page_ref, root.txid)?;
            self.page_table.mark_verified(page_ref.id(), Verified::page(page_ref.units()));
            return Ok(PageBytes::Borrowed(bytes));
        }
        if let Some(frame) = self.cache.get(page_ref.id()) {
            if !page::is_at(&frame, page_ref) {
                return Err(wrong_page(page_ref.id()));
            }
            return Ok(PageBytes::Counted(frame));
        }
        let frame = self.read_page(page_ref, root.txid)?;
        Ok(PageBytes::Counted(self.cache.put(page_ref.id(), frame)))
    }

    /// The map, if the span lies inside it, and inside the file.
    fn map_of(&self, span: Span) -> Result<Option<&FileMap>> {
        let end = span.byte_range().end;
        let Some(map) = self.map.as_ref().filter(|map| end <= map.len_bytes()) else {
            return Ok(None);
        };
        if end > self.file.len()? {
            return Err(past_end(span.start));
        }
        Ok(Some(map))
    }

    /// Reads the page from the file, whatever memory holds, and checks it.
    pub(crate) fn read_page(&self, page_ref: PageRef, newest: u64) -> Result<Frame> {
        let mut bytes = vec![0; page_ref.units() as usize * UNIT_BYTES];
        self.read(&mut bytes, page_ref.id())?;
        check_page(&bytes, page_ref, newest)?;
        Ok(Frame::from(bytes))
    }

    /// As [`PageReader::read_page`]; if it is not whole, the next reader of the map gets an error
    /// as well, even if the page was whole before.
    pub(crate) fn verify_page(&self, page_ref: PageRef, newest: u64) -> Result<Frame> {
        self.read_page(page_ref, newest).inspect_err(|_| self.clear_verified(page_ref.id()))
    }

    /// As [`PageReader::read_extent`], and as [`PageReader::verify_page`].
    pub(crate) fn verify_extent(&self, extent: &ValueExtent) -> Result<()> {
        self.read_extent(extent).map(|_| ()).inspect_err(|_| self.clear_verified(extent.start))
    }

    /// Forgets the verified marks of units that are free: the file no longer has the old bytes, and
    /// a forged file may name them nonetheless.
    pub(crate) fn clear_all_verified(&self, units: Range<u64>) {
        units.for_each(|unit| self.clear_verified(unit));
    }

    fn clear_verified(&self, id: u64) {
        self.page_table.clear_verified(id);
        self.cache.remove(id);
    }

    /// The long value at `extent`, as `root` sees it.
    pub(crate) fn extent<'a>(
        &'a self,
        root: &'a Root,
        extent: &ValueExtent,
    ) -> Result<ValueRef<'a>> {
        match (self.page_table.find(root, extent.start), &self.map) {
            (UnitState::Long(bytes, created_txid), _)
                if bytes.len() == extent.len as usize && created_txid == extent.created_txid =>
            {
                Ok(ValueRef::borrowed(bytes))
            }
            (UnitState::Verified(verified), Some(map))
                if verified == Verified::long(extent.len, extent.created_txid) =>
            {
                let bytes = map.bytes(extent.byte_range());
                self.read_whole_if_slow(bytes, extent.span());
                Ok(ValueRef::borrowed(bytes))
            }
            (UnitState::Nothing, _) => self.load_extent(extent),
            _ => Err(wrong_page(extent.start)),
        }
    }

    fn load_extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>> {
        let Some(map) = self.map_of(extent.span())? else {
            return self.read_extent(extent).map(ValueRef::long);
        };
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_whole(extent.span());
        let bytes = map.bytes(extent.byte_range());
        check_extent(bytes, extent)?;
        self.page_table
            .mark_verified(extent.start, Verified::long(extent.len, extent.created_txid));
        Ok(ValueRef::borrowed(bytes))
    }

    /// Reads the long value from the file, whatever memory holds, and checks it.
    pub(crate) fn read_extent(&self, extent: &ValueExtent) -> Result<Bytes> {
        let mut bytes = vec![0; extent.len as usize];
        self.read(&mut bytes, extent.start)?;
        check_extent(&bytes, extent)?;
        Ok(Bytes::from(bytes))
    }

    /// Reads from a unit on.
    pub(crate) fn read(&self, bytes: &mut [u8], unit: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(bytes, unit * UNIT_BYTES as u64).map_err(|error| {
            match error.kind() {
                std::io::ErrorKind::UnexpectedEof => past_end(unit),
                _ => Error::Io(error),
            }
        })
    }

    /// Puts in a page that the file does not have.
    pub(crate) fn put_dirty(&self, id: u64, buffer: PageBuffer) {
        self.page_table.put_page(id, buffer);
    }

    /// Puts in a dirty long value, created in `created_txid`.
    pub(crate) fn put_extent(&self, start: u64, value: Bytes, created_txid: u64) {
        self.page_table.put_long(start, value, created_txid);
    }

    /// The page or long value that lies at `id`, is not in the file, and is reached by `root`.
    pub(crate) fn dirty<'a>(&'a self, root: &'a Root, id: u64) -> Option<DirtyData<'a>> {
        match self.page_table.find(root, id) {
            UnitState::Page(bytes) => Some(DirtyData::Page(bytes)),
            UnitState::Long(bytes, _) => Some(DirtyData::Extent(bytes)),
            UnitState::Nothing | UnitState::Verified(_) => None,
        }
    }

    /// Prefetches `bytes` bytes of the dirty page at `id`.
    #[inline]
    pub(crate) fn prefetch_dirty(&self, id: u64, bytes: usize) {
        self.page_table.prefetch(id, bytes);
    }

    /// Marks the page or long value at `id` as clean. Readers may have borrowed the returned
    /// memory, so the caller retires it until all of them have ended.
    pub(crate) fn mark_clean(&self, id: u64) -> Option<UnlinkedFrame> {
        // The map shows what was just written: the kernel has these bytes from this process, so
        // they need no verification.
        let mapped_bytes = self.map.as_ref().map_or(0, FileMap::len_bytes);
        let taken = self.page_table.take(id)?;
        debug_assert!(taken.len() > 0, "unit {id} held no bytes");
        let (verified, units) = match &taken {
            UnlinkedFrame::Page(buffer, _) => {
                let units = page::units_for(buffer.len());
                (Verified::page(units), units)
            }
            UnlinkedFrame::Long(long) => {
                let len = u32::try_from(long.0.len()).expect("16 MiB at most");
                (Verified::long(len, long.1), page::units_for(long.0.len()))
            }
        };
        if (Span { start: id, units }).byte_range().end <= mapped_bytes {
            self.page_table.mark_verified(id, verified);
        } else if let UnlinkedFrame::Page(buffer, _) = &taken {
            self.cache.put(id, Frame::from(&buffer[..]));
        }
        Some(taken)
    }

    /// Drops all state of a span that becomes free, so that no held root reaches it. Returns its
    /// memory.
    pub(crate) fn forget(&self, span: Span) -> Option<UnlinkedFrame> {
        self.cache.remove(span.start);
        self.page_table.take(span.start)
    }
}

/// Maps the file far beyond its end, as far as the kernel allows, to be read at random: else each
/// page fault of a file larger than memory would read as much as the disk is set up to read ahead,
/// and evict as much for it. Scans read ahead by themselves.
fn map(file: &dyn File) -> Result<Option<FileMap>> {
    let mut len = MAP_BYTES;
    loop {
        match file.map_ahead(len) {
            // A limit of the address space, as `ulimit -v` sets: a shorter map still covers most
            // files.
            Err(_) if len > MAP_BYTES_MIN => len /= 2,
            other => {
                let map = other?;
                map.iter().for_each(|map| map.advise(MapAdvice::Random));
                return Ok(map);
            }
        }
    }
}

fn check_page(bytes: &[u8], page_ref: PageRef, newest: u64) -> Result<()> {
    let corrupt = |what| Err(Error::Corrupt { page: page_ref.id(), what });
    if page_ref.is_none() || page_ref.units() == 0 {
        return corrupt("reference");
    }
    page::verify(bytes, page_ref, newest)?;
    if !page::is_kind(bytes, PageKind::Leaf) && !page::is_kind(bytes, PageKind::Branch) {
        return corrupt("kind");
    }
    SlottedPage(bytes).validate(page_ref.id())
}

fn check_extent(bytes: &[u8], extent: &ValueExtent) -> Result<()> {
    if crc32c::crc32c(bytes) != extent.crc {
        return Err(Error::Corrupt { page: extent.start, what: "checksum of a long value" });
    }
    Ok(())
}

/// The page, or long value, is another than the parent names.
#[cold]
pub(crate) fn wrong_page(page: u64) -> Error {
    Error::Corrupt { page, what: "an older or younger page lies in its place" }
}

#[cold]
fn past_end(page: u64) -> Error {
    Error::Corrupt { page, what: "it lies beyond the end of the file" }
}

/// A dirty page or long value, as the next checkpoint writes it.
pub(crate) enum DirtyData<'a> {
    /// A page; its checksum is not yet in it.
    Page(&'a [u8]),
    /// A long value.
    Extent(&'a [u8]),
}

impl DirtyData<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            DirtyData::Page(bytes) | DirtyData::Extent(bytes) => bytes,
        }
    }
}
