//! Copy-on-write pages of the open write transaction: private, changed in place, freed if it is
//! dropped.

use std::sync::Arc;

use bytes::Bytes;

use crate::checkpoint::reservation::Reservation;
use crate::error::{Error, Result};
use crate::memory::page_alloc::BufferSource;
use crate::memory::page_reader::wrong_page;
use crate::memory::page_table::PageBuffer;
use crate::memory::private_pages::{Private, PrivatePages};
use crate::memory::root::Root;
use crate::memory::slab::{Slab, SlabUse, SlabValue};
use crate::page::branch::Child;
use crate::page::leaf::ValueExtent;
use crate::page::slotted::SlottedPage;
use crate::page::source::{PageSource, PrefetchHint};
use crate::page::view::{PageBytes, ValueRef};
use crate::page::{self, Frame, PageKind, PageRef, Span, UNIT_BYTES, units_for};
use crate::shared::StoreShared;
use crate::space::SpaceManager;
use crate::space::double_free::{DoubleFreeGuard, RefusedFree};
use flotilla_base::id_hash::IdMap;

/// The pages of the open write transaction.
pub(crate) struct TxnPages {
    shared: Arc<StoreShared>,
    base: Arc<Root>,
    pages: PrivatePages,
    extents: IdMap<Private<Bytes>>,
    /// Published spans that this transaction replaced, and their creating transactions.
    replaced: Vec<(Span, u64)>,
    /// Their units, as far as deferred frees were verified.
    double_free: DoubleFreeGuard,
    /// Subtrees that no tree names any more, by the order in which they were cut off.
    detached: Vec<DetachedSubtree>,
    /// The reservations of trees that were built elsewhere and put in.
    adopted: Vec<Reservation>,
    /// The savepoint epoch: how many savepoints were taken or rolled back to.
    epoch: u32,
    /// The undo log of the savepoints, applied last first; empty if there is none.
    undo: Vec<UndoStep>,
}

/// A unique token of one subtree that was detached.
pub(crate) type Ticket = Arc<()>;

/// A detached subtree: no tree names it any more.
#[derive(Clone)]
struct DetachedSubtree {
    child: Child,
    ticket: Option<Ticket>,
}

impl DetachedSubtree {
    fn is(&self, ticket: &Ticket) -> bool {
        self.ticket.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, ticket))
    }
}

/// One step of the undo log.
enum UndoStep {
    /// Frees what was made at this place, unless that has been done.
    Unmake(Span),
    /// Puts a page back as it was before it was changed.
    Restore(u64, Private<PageBuffer>),
    /// Puts a page back that was discarded; its span was not released.
    Return(u64, Private<PageBuffer>),
    /// Puts a long value back that was discarded; its span was not released.
    ReturnExtent(u64, Private<Bytes>),
}

/// A savepoint of the pages.
#[derive(Clone)]
pub(crate) struct PagesSavepoint {
    undo_len: usize,
    replaced_len: usize,
    adopted_len: usize,
    detached: Vec<DetachedSubtree>,
}

/// The writes of a transaction, handed over when it is published.
pub(crate) struct TxnWrites {
    /// New pages, private until now.
    pub(crate) pages: Vec<(u64, PageBuffer)>,
    /// New long values.
    pub(crate) extents: Vec<(u64, Bytes)>,
    /// Published spans that it replaced, and their creating transactions.
    pub(crate) replaced: Vec<(Span, u64)>,
    /// Reserved spans that it adopted; the file has their contents.
    pub(crate) adopted: Vec<Span>,
}

impl TxnWrites {
    /// Where all of it lies.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let pages = self.pages.iter().map(|(id, frame)| (*id, frame.len()));
        let extents = self.extents.iter().map(|(id, value)| (*id, value.len()));
        pages.chain(extents).map(|(start, len)| span_of(start, len)).collect()
    }
}

impl TxnPages {
    pub(crate) fn new(shared: Arc<StoreShared>, base: Arc<Root>) -> TxnPages {
        let pages = std::mem::take(&mut *shared.private_pages.lock());
        TxnPages {
            shared,
            base,
            pages,
            extents: IdMap::default(),
            replaced: Vec::new(),
            double_free: DoubleFreeGuard::default(),
            detached: Vec::new(),
            adopted: Vec::new(),
            epoch: 0,
            undo: Vec::new(),
        }
    }

    /// The root on which the transaction builds.
    pub(crate) fn base(&self) -> &Root {
        &self.base
    }

    /// The transaction's number.
    pub(crate) fn txid(&self) -> u64 {
        self.base.txid + 1
    }

    /// Whether nothing was written or replaced.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.extents.is_empty() && self.replaced.is_empty()
    }

    /// Units of the pages of this transaction.
    pub(crate) fn page_units(&self) -> u64 {
        self.pages.iter().map(|buffer| u64::from(units_for(buffer.len()))).sum()
    }

    /// Hands over the writes; no page is left then.
    pub(crate) fn take(&mut self) -> TxnWrites {
        self.double_free = DoubleFreeGuard::default();
        self.release_discarded();
        let extents = std::mem::take(&mut self.extents);
        TxnWrites {
            pages: self.pages.take(),
            extents: extents.into_iter().map(|(start, private)| (start, private.it)).collect(),
            replaced: std::mem::take(&mut self.replaced),
            adopted: self.adopted.drain(..).flat_map(Reservation::into_spans).collect(),
        }
    }

    /// Frees what was kept for the undo of a savepoint.
    fn release_discarded(&mut self) {
        if self.undo.is_empty() {
            return;
        }
        let mut space = self.shared.space.lock();
        for undo in self.undo.drain(..) {
            match undo {
                UndoStep::Return(id, private) => space.release(span_of(id, private.it.len())),
                UndoStep::ReturnExtent(start, private) => {
                    space.release(span_of(start, private.it.len()))
                }
                UndoStep::Unmake(_) | UndoStep::Restore(..) => {}
            }
        }
    }

    /// Makes this a savepoint. From now on a page of this transaction is copied before its first
    /// change.
    pub(crate) fn save(&mut self) -> PagesSavepoint {
        self.epoch += 1;
        PagesSavepoint {
            undo_len: self.undo.len(),
            replaced_len: self.replaced.len(),
            adopted_len: self.adopted.len(),
            detached: self.detached.clone(),
        }
    }

    /// Rolls back to a savepoint, before which the transaction has not rolled back since.
    pub(crate) fn roll_back(&mut self, savepoint: &PagesSavepoint) {
        let mut space = self.shared.space.lock();
        for undo in self.undo.drain(savepoint.undo_len..).rev() {
            match undo {
                UndoStep::Unmake(span) => {
                    let page = self.pages.remove(span.start).is_some();
                    if page || self.extents.remove(&span.start).is_some() {
                        space.release(span);
                    }
                }
                UndoStep::Restore(id, private) | UndoStep::Return(id, private) => {
                    self.pages.put_back(id, private);
                }
                UndoStep::ReturnExtent(start, private) => {
                    self.extents.insert(start, private);
                }
            }
        }
        drop(space);
        assert!(
            savepoint.replaced_len <= self.replaced.len(),
            "a savepoint of another transaction"
        );
        assert!(savepoint.adopted_len <= self.adopted.len(), "a savepoint of another transaction");
        self.replaced.truncate(savepoint.replaced_len);
        self.double_free = DoubleFreeGuard::default();
        self.adopted.truncate(savepoint.adopted_len);
        self.detached.clone_from(&savepoint.detached);
        self.epoch += 1;
    }

    /// A span for something new.
    fn allocate(&mut self, units: u32) -> Result<Span> {
        let span = self.shared.space.lock().allocate(units)?;
        self.note_made(span);
        Ok(span)
    }

    fn note_made(&mut self, span: Span) {
        if self.epoch > 0 {
            self.undo.push(UndoStep::Unmake(span));
        }
    }

    fn new_private<T>(&self, it: T) -> Private<T> {
        Private { it, made: self.epoch, changed: self.epoch }
    }

    /// Makes the page at `page_ref` private: itself if it is already, else a copy (copy on write).
    pub(crate) fn make_private(&mut self, page_ref: PageRef) -> Result<PageRef> {
        if let Some(private) = self.pages.get_mut(page_ref.id()) {
            verify_at(&private.it, page_ref)?;
            // The first change since the savepoint: undo needs the page as it was.
            if private.changed != self.epoch {
                let before =
                    Private { it: PageBuffer::from(Frame::from(&private.it[..])), ..*private };
                self.undo.push(UndoStep::Restore(page_ref.id(), before));
                private.changed = self.epoch;
            }
            return Ok(page_ref);
        }
        let copy = self.copy(page_ref, |space| space.allocate(page_ref.units()).map(Some))?;
        Ok(copy.expect("allocating fails or gives a span"))
    }

    /// Copies the page at `page_ref` below the limit that the space has; nothing if there is no
    /// room, or if it is private already.
    pub(crate) fn relocate(&mut self, page_ref: PageRef) -> Result<Option<PageRef>> {
        if let Some(private) = self.pages.get(page_ref.id()) {
            return verify_at(&private.it, page_ref).map(|()| None);
        }
        self.copy(page_ref, |space| Ok(space.allocate_below(page_ref.units())))
    }

    /// Copies the long value at `extent` below the limit that the space has, and says that the
    /// trees no longer name the old one; nothing if there is no room, or if it is this
    /// transaction's.
    pub(crate) fn relocate_extent(&mut self, extent: &ValueExtent) -> Result<Option<ValueExtent>> {
        if self.extents.contains_key(&extent.start) {
            return Ok(None);
        }
        let value = self.long_value(&self.extent(extent)?);
        let units = extent.span().units;
        let span = self.shared.space.lock().allocate_below(units);
        let Some(span) = span else { return Ok(None) };
        self.note_made(span);
        self.extents.insert(span.start, self.new_private(value));
        self.replaced.push((extent.span(), extent.created_txid));
        Ok(Some(ValueExtent { start: span.start, created_txid: self.txid(), ..*extent }))
    }

    /// A copy of a published page in the span that `take` gives, in place of it.
    fn copy(
        &mut self,
        page_ref: PageRef,
        take: impl FnOnce(&mut SpaceManager) -> Result<Option<Span>>,
    ) -> Result<Option<PageRef>> {
        let old = self.shared.page_reader.page(&self.base, page_ref)?;
        let (units, is_leaf) = (page_ref.units(), page::is_leaf(&old));
        // The descent has looked at a few places of it, and all of it is copied.
        if units > 1 {
            self.shared.page_reader.read_whole_if_slow(&old, page_ref.span());
        }
        debug_assert!(page::created_txid(&old) < self.txid(), "{page_ref:?} is not older");
        let (span, supply) = {
            let mut space = self.shared.space.lock();
            let Some(span) = take(&mut space)? else { return Ok(None) };
            (span, space.page_alloc.take(units, is_leaf))
        };
        let buffer = self.supplied(supply, units, is_leaf);
        let (txid, private) = (self.txid(), self.new_private(buffer));
        self.replaced.push((page_ref.span(), page::created_txid(&old)));
        if self.epoch > 0 {
            self.undo.push(UndoStep::Unmake(span));
        }
        // Last of all: a lock is a barrier that would wait until the copied bytes have left the
        // CPU's store buffer.
        let copy = self.pages.insert(span.start, private);
        SlottedPage(&old).copy_to(copy);
        page::readdress(copy, span.start, txid);
        Ok(Some(PageRef::new(span, txid)))
    }

    /// Memory for a page, with stale contents.
    fn buffer(&self, units: u32, is_leaf: bool) -> PageBuffer {
        let supply = self.shared.space.lock().page_alloc.take(units, is_leaf);
        self.supplied(supply, units, is_leaf)
    }

    /// The buffer of a source for a page of `units`; made where there is none.
    fn supplied(&self, supply: BufferSource, units: u32, is_leaf: bool) -> PageBuffer {
        let mut supply = supply;
        loop {
            let slab = match supply {
                BufferSource::Of(buffer) => return buffer,
                BufferSource::Heap => None,
                BufferSource::Slab => Slab::new(),
            };
            let Some(slab) = slab else {
                let zeros = std::iter::repeat_n(0, units as usize * UNIT_BYTES);
                return PageBuffer::from(zeros.collect::<Frame>());
            };
            let mut space = self.shared.space.lock();
            space.page_alloc.add(slab, SlabUse::Pages);
            supply = space.page_alloc.take(units, is_leaf);
        }
    }

    /// A new page without content.
    pub(crate) fn create(&mut self, kind: PageKind, level: u8, units: u32) -> Result<PageRef> {
        let span = self.allocate(units)?;
        let mut blank = self.buffer(units, kind == PageKind::Leaf);
        blank.fill(0);
        page::begin(&mut blank, kind, level, span.start, self.txid());
        self.pages.insert(span.start, self.new_private(blank));
        Ok(PageRef::new(span, self.txid()))
    }

    /// Wipes a private page, to be filled anew.
    pub(crate) fn wipe(&mut self, page_ref: PageRef, kind: PageKind, level: u8) {
        let txid = self.txid();
        let bytes = self.page_mut(page_ref);
        bytes.fill(0);
        page::begin(bytes, kind, level, page_ref.id(), txid);
    }

    /// The bytes of a page of this transaction, to change.
    pub(crate) fn page_mut(&mut self, page_ref: PageRef) -> &mut [u8] {
        let private = self.pages.get_mut(page_ref.id()).expect("only own pages are changed");
        assert_eq!(private.changed, self.epoch, "page {page_ref:?} is changed but was not owned");
        &mut private.it
    }

    /// The page at `page_ref` in memory of its own, so that the transaction can change pages
    /// meanwhile.
    pub(crate) fn owned_frame(&self, page_ref: PageRef) -> Result<Frame> {
        self.page(page_ref).map(PageBytes::into_frame)
    }

    /// Says that the trees no longer name this page.
    pub(crate) fn discard(&mut self, page_ref: PageRef) -> Result<()> {
        if !self.discard_private(page_ref) {
            let created_txid = page::created_txid(&self.page(page_ref)?);
            self.replaced.push((page_ref.span(), created_txid));
        }
        Ok(())
    }

    /// As [`TxnPages::discard`], for a page whose creating transaction is known.
    pub(crate) fn discard_created(&mut self, page_ref: PageRef, created_txid: u64) {
        if !self.discard_private(page_ref) {
            self.replaced.push((page_ref.span(), created_txid));
        }
    }

    /// Verifies that spans that the page at `named_by` names, which was cut off before this
    /// transaction, can be freed: that they are in use, and that it has not replaced them already.
    ///
    /// A free that was refused once is refused until the store is opened again: the units may be
    /// allocated meanwhile, and a later owner would lose them.
    pub(crate) fn verify_deferred(&mut self, named_by: PageRef, spans: &[Span]) -> Result<()> {
        let refused = *self.shared.background.refused_free.lock();
        if let Some(RefusedFree { page, what, .. }) = refused.filter(|one| one.named_by == named_by)
        {
            return Err(Error::Corrupt { page, what });
        }
        self.double_free.note(&self.replaced);
        let proven = self.double_free.verify_disjoint(spans).and_then(|()| {
            let space = self.shared.space.lock();
            spans.iter().try_for_each(|&span| space.verify_in_use(span))
        });
        if let Err(Error::Corrupt { page, what }) = proven {
            let refused = RefusedFree { named_by, page, what };
            *self.shared.background.refused_free.lock() = Some(refused);
        }
        proven
    }

    /// If it is private. Another page at the place of a private one, which a damaged tree may name,
    /// is refused when the transaction is published.
    fn discard_private(&mut self, page_ref: PageRef) -> bool {
        let is_private = |private: &Private<PageBuffer>| page::is_at(&private.it, page_ref);
        if !self.pages.get(page_ref.id()).is_some_and(is_private) {
            return false;
        }
        let Some(private) = self.pages.remove(page_ref.id()) else { return false };
        if private.made == self.epoch {
            self.shared.space.lock().release(page_ref.span());
        } else {
            self.undo.push(UndoStep::Return(page_ref.id(), private));
        }
        true
    }

    /// A long value in memory of its own.
    pub(crate) fn long_value(&self, value: &[u8]) -> Bytes {
        match self.piece(value.len()) {
            Some(mut piece) => {
                piece.as_mut().copy_from_slice(value);
                Bytes::from_owner(piece)
            }
            None => Bytes::copy_from_slice(value),
        }
    }

    fn piece(&self, len: usize) -> Option<SlabValue> {
        self.shared.space.lock().page_alloc.take_piece(len)
    }

    /// Puts a long value into an extent of its own.
    pub(crate) fn create_extent(&mut self, value: Bytes) -> Result<ValueExtent> {
        let span = self.allocate(units_for(value.len()))?;
        let len = u32::try_from(value.len()).expect("16 MiB at most");
        let crc = crc32c::crc32c(&value);
        self.extents.insert(span.start, self.new_private(value));
        Ok(ValueExtent { start: span.start, len, crc, created_txid: self.txid() })
    }

    /// Says that the trees no longer name this extent.
    pub(crate) fn discard_extent(&mut self, extent: &ValueExtent) {
        if !self.extents.get(&extent.start).is_some_and(|private| self.is_private(private, extent))
        {
            self.replaced.push((extent.span(), extent.created_txid));
        } else if let Some(private) = self.extents.remove(&extent.start) {
            if private.made == self.epoch {
                self.shared.space.lock().release(extent.span());
            } else {
                self.undo.push(UndoStep::ReturnExtent(extent.start, private));
            }
        }
    }

    /// Whether it is the value at `extent`, and not another that a damaged leaf names.
    fn is_private(&self, private: &Private<Bytes>, extent: &ValueExtent) -> bool {
        private.it.len() == extent.len as usize && extent.created_txid == self.txid()
    }

    /// Takes over the units of a tree that was built elsewhere.
    pub(crate) fn adopt(&mut self, reservation: Reservation) {
        self.adopted.push(reservation);
    }

    /// Whether something belongs to the store of this transaction.
    pub(crate) fn is_of(&self, shared: &Arc<StoreShared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The transaction of the oldest live snapshot.
    pub(crate) fn oldest_reader(&self) -> u64 {
        self.shared.space.lock().pending.oldest().unwrap_or(0)
    }

    /// Units of one operation that are freed at once, and not deferred.
    pub(crate) fn immediate_free_units(&self) -> u64 {
        self.shared.options.reclaim_at_once_bytes.div_ceil(UNIT_BYTES as u64)
    }

    /// Keeps a subtree that no tree names any more: until its ticket is used, or until the
    /// transaction is published, which defers its free.
    pub(crate) fn detach(&mut self, child: Child, ticket: Option<Ticket>) {
        self.detached.push(DetachedSubtree { child, ticket });
    }

    /// The subtree with this ticket, if it was not taken.
    pub(crate) fn find_detached(&self, ticket: &Ticket) -> Option<Child> {
        self.detached.iter().find(|cut| cut.is(ticket)).map(|cut| cut.child)
    }

    /// Notes that a tree names the subtree with this ticket now.
    pub(crate) fn take_detached(&mut self, ticket: &Ticket) {
        let count = self.detached.len();
        self.detached.retain(|cut| !cut.is(ticket));
        assert_eq!(self.detached.len() + 1, count, "a subtree is taken once");
    }

    /// Whether pages are read through a memory map.
    pub(crate) fn is_mapped(&self) -> bool {
        self.shared.page_reader.is_mapped()
    }

    /// Takes all detached subtrees that were not taken.
    pub(crate) fn take_all_detached(&mut self) -> Vec<Child> {
        let detached = std::mem::take(&mut self.detached).into_iter();
        detached.map(|cut| cut.child).filter(|child| !child.is_none()).collect()
    }
}

fn span_of(start: u64, len: usize) -> Span {
    Span { start, units: units_for(len) }
}

/// Verifies that a private page is the one that is meant: a damaged file may name a unit that it
/// counts as free, and that the transaction has allocated.
#[inline]
fn verify_at(page: &[u8], page_ref: PageRef) -> Result<()> {
    if page::is_at(page, page_ref) { Ok(()) } else { Err(wrong_page(page_ref.id())) }
}

impl PageSource for TxnPages {
    fn page(&self, page_ref: PageRef) -> Result<PageBytes<'_>> {
        match self.pages.get(page_ref.id()) {
            Some(private) => {
                verify_at(&private.it, page_ref).map(|()| PageBytes::Borrowed(&private.it))
            }
            None => self.shared.page_reader.page(&self.base, page_ref),
        }
    }

    fn prefetch(&self, page_ref: PageRef, wanted: PrefetchHint) {
        if !self.pages.contains(page_ref.id()) {
            self.shared.page_reader.prefetch(&self.base, page_ref, wanted);
        }
    }

    fn read_ahead(&self, pages: &mut Vec<PageRef>, probes: usize) -> bool {
        pages.retain(|page_ref| !self.pages.contains(page_ref.id()));
        self.shared.page_reader.read_ahead(&self.base, pages, probes)
    }

    fn extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>> {
        match self.extents.get(&extent.start) {
            Some(private) if self.is_private(private, extent) => {
                Ok(ValueRef::borrowed(&private.it))
            }
            Some(_) => Err(wrong_page(extent.start)),
            None => self.shared.page_reader.extent(&self.base, extent),
        }
    }
}

impl Drop for TxnPages {
    fn drop(&mut self) {
        // Reservations free themselves, and take the lock for it.
        self.adopted.clear();
        if !self.is_empty() || !self.undo.is_empty() {
            let spans = self.take().spans();
            let mut space = self.shared.space.lock();
            for span in spans {
                space.release(span);
            }
        }
        *self.shared.private_pages.lock() = std::mem::take(&mut self.pages);
    }
}
