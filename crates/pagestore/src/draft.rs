//! The pages of the open write transaction: private, changed in place, given back if it is dropped.

use std::sync::Arc;

use bytes::Bytes;

use crate::branch::Child;
use crate::buffers::Supply;
use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::frames::Buffer;
use crate::given::{Given, Refused};
use crate::leaf::Extent;
use crate::node::Node;
use crate::own::{ById, Own, OwnPages};
use crate::page::{self, Frame, Kind, PageRef, Span, UNIT_BYTES, units_for};
use crate::pool::not_there;
use crate::root::Root;
use crate::shared::Shared;
use crate::slab::{Piece, Slab, Use};
use crate::source::{Source, Wanted};
use crate::space::Space;
use crate::view::{PageBytes, Value};

/// The pages of the open write transaction.
pub(crate) struct Draft {
    shared: Arc<Shared>,
    base: Arc<Root>,
    pages: OwnPages,
    extents: ById<Own<Bytes>>,
    /// Published spans that this transaction replaced, and their births.
    replaced: Vec<(Span, u64)>,
    /// The units of it, as far as somebody asked.
    given: Given,
    /// Subtrees that no tree names any more, by the order in which they were cut off.
    cut_off: Vec<CutOff>,
    /// Where the trees lie that were built elsewhere and put in.
    adopted: Vec<Claim>,
    /// How many savepoints were taken or gone back to.
    era: u32,
    /// What has to be done, last first, to go back to a savepoint; empty if there is none.
    undo: Vec<Undo>,
}

/// What names one subtree that was cut off; no two are alike.
pub(crate) type Ticket = Arc<()>;

/// A subtree that no tree names any more.
#[derive(Clone)]
struct CutOff {
    child: Child,
    ticket: Option<Ticket>,
}

impl CutOff {
    fn is(&self, ticket: &Ticket) -> bool {
        self.ticket.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, ticket))
    }
}

/// One step back.
enum Undo {
    /// Gives back what was made at this place, unless that has been done.
    Unmake(Span),
    /// Puts a page back as it was before it was changed.
    Restore(u64, Own<Buffer>),
    /// Puts a page back that was discarded; its span was not released.
    Return(u64, Own<Buffer>),
    /// Puts a long value back that was discarded; its span was not released.
    ReturnExtent(u64, Own<Bytes>),
}

/// A moment of the draft to go back to.
#[derive(Clone)]
pub(crate) struct Moment {
    undo_len: usize,
    replaced_len: usize,
    adopted_len: usize,
    cut_off: Vec<CutOff>,
}

/// What a transaction leaves behind when it is published.
pub(crate) struct Written {
    /// New pages, private until now.
    pub(crate) pages: Vec<(u64, Buffer)>,
    /// New long values.
    pub(crate) extents: Vec<(u64, Bytes)>,
    /// Published spans that it replaced, and their births.
    pub(crate) replaced: Vec<(Span, u64)>,
    /// Claimed spans that it took over; the file has what is in them.
    pub(crate) adopted: Vec<Span>,
}

impl Written {
    /// Where all of it lies.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let pages = self.pages.iter().map(|(id, frame)| (*id, frame.len()));
        let extents = self.extents.iter().map(|(id, value)| (*id, value.len()));
        pages.chain(extents).map(|(start, len)| span_of(start, len)).collect()
    }
}

impl Draft {
    pub(crate) fn new(shared: Arc<Shared>, base: Arc<Root>) -> Draft {
        let pages = std::mem::take(&mut *shared.own_pages.lock());
        Draft {
            shared,
            base,
            pages,
            extents: ById::default(),
            replaced: Vec::new(),
            given: Given::default(),
            cut_off: Vec::new(),
            adopted: Vec::new(),
            era: 0,
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

    /// Hands over what was written; the draft is empty then.
    pub(crate) fn take(&mut self) -> Written {
        self.given = Given::default();
        self.release_discarded();
        let extents = std::mem::take(&mut self.extents);
        Written {
            pages: self.pages.take(),
            extents: extents.into_iter().map(|(start, own)| (start, own.it)).collect(),
            replaced: std::mem::take(&mut self.replaced),
            adopted: self.adopted.drain(..).flat_map(Claim::into_spans).collect(),
        }
    }

    /// Gives back what was kept for going back to a savepoint.
    fn release_discarded(&mut self) {
        if self.undo.is_empty() {
            return;
        }
        let mut space = self.shared.space.lock();
        for undo in self.undo.drain(..) {
            match undo {
                Undo::Return(id, own) => space.release(span_of(id, own.it.len())),
                Undo::ReturnExtent(start, own) => space.release(span_of(start, own.it.len())),
                Undo::Unmake(_) | Undo::Restore(..) => {}
            }
        }
    }

    /// Makes this a moment to go back to. From now on a page of this transaction is copied before
    /// its first change.
    pub(crate) fn save(&mut self) -> Moment {
        self.era += 1;
        Moment {
            undo_len: self.undo.len(),
            replaced_len: self.replaced.len(),
            adopted_len: self.adopted.len(),
            cut_off: self.cut_off.clone(),
        }
    }

    /// Goes back to a moment, from which the draft has not gone further back since.
    pub(crate) fn go_back(&mut self, moment: &Moment) {
        let mut space = self.shared.space.lock();
        for undo in self.undo.drain(moment.undo_len..).rev() {
            match undo {
                Undo::Unmake(span) => {
                    let page = self.pages.remove(span.start).is_some();
                    if page || self.extents.remove(&span.start).is_some() {
                        space.release(span);
                    }
                }
                Undo::Restore(id, own) | Undo::Return(id, own) => {
                    self.pages.put_back(id, own);
                }
                Undo::ReturnExtent(start, own) => {
                    self.extents.insert(start, own);
                }
            }
        }
        drop(space);
        self.replaced.truncate(moment.replaced_len);
        self.given = Given::default();
        self.adopted.truncate(moment.adopted_len);
        self.cut_off.clone_from(&moment.cut_off);
        self.era += 1;
    }

    /// A span for something new.
    fn allocate(&mut self, units: u32) -> Result<Span> {
        let span = self.shared.space.lock().allocate(units)?;
        self.note_made(span);
        Ok(span)
    }

    fn note_made(&mut self, span: Span) {
        if self.era > 0 {
            self.undo.push(Undo::Unmake(span));
        }
    }

    fn new_own<T>(&self, it: T) -> Own<T> {
        Own { it, made: self.era, changed: self.era }
    }

    /// Makes the page at `place` this transaction's own: itself if it is already, else a copy.
    pub(crate) fn own(&mut self, place: PageRef) -> Result<PageRef> {
        if let Some(own) = self.pages.get_mut(place.id()) {
            prove_at(&own.it, place)?;
            if own.changed != self.era {
                let before = Own { it: Buffer::from(Frame::from(&own.it[..])), ..*own };
                self.undo.push(Undo::Restore(place.id(), before));
                own.changed = self.era;
            }
            return Ok(place);
        }
        let copy = self.copy(place, |space| space.allocate(place.units()).map(Some))?;
        Ok(copy.expect("allocating fails or gives a span"))
    }

    /// Makes the page at `place` this transaction's own and moves it below the line that the space
    /// has; nothing if there is no room, or if it is its own already.
    pub(crate) fn relocate(&mut self, place: PageRef) -> Result<Option<PageRef>> {
        if let Some(own) = self.pages.get(place.id()) {
            return prove_at(&own.it, place).map(|()| None);
        }
        self.copy(place, |space| Ok(space.allocate_below(place.units())))
    }

    /// Copies the long value at `extent` below the line that the space has, and says that the trees
    /// no longer name the old one; nothing if there is no room, or if it is this transaction's.
    pub(crate) fn relocate_extent(&mut self, extent: &Extent) -> Result<Option<Extent>> {
        if self.extents.contains_key(&extent.start) {
            return Ok(None);
        }
        let value = self.long_value(&self.extent(extent)?);
        let units = extent.span().units;
        let span = self.shared.space.lock().allocate_below(units);
        let Some(span) = span else { return Ok(None) };
        self.note_made(span);
        self.extents.insert(span.start, self.new_own(value));
        self.replaced.push((extent.span(), extent.birth));
        Ok(Some(Extent { start: span.start, birth: self.txid(), ..*extent }))
    }

    /// A copy of a published page in the span that `take` gives, in place of it.
    fn copy(
        &mut self,
        place: PageRef,
        take: impl FnOnce(&mut Space) -> Result<Option<Span>>,
    ) -> Result<Option<PageRef>> {
        let old = self.shared.pool.page(&self.base, place)?;
        let (units, is_leaf) = (place.units(), page::is_leaf(&old));
        let (span, supply) = {
            let mut space = self.shared.space.lock();
            let Some(span) = take(&mut space)? else { return Ok(None) };
            (span, space.buffers.take(units, is_leaf))
        };
        let buffer = self.supplied(supply, units, is_leaf);
        let (txid, own) = (self.txid(), self.new_own(buffer));
        self.replaced.push((place.span(), page::birth(&old)));
        if self.era > 0 {
            self.undo.push(Undo::Unmake(span));
        }
        // Last of all: as long as what was copied is on its way to memory, a lock would wait for it.
        let copy = self.pages.insert(span.start, own);
        Node(&old).copy_to(copy);
        page::readdress(copy, span.start, txid);
        Ok(Some(PageRef::new(span, txid)))
    }

    /// Memory for a page, with whatever is in it.
    fn buffer(&self, units: u32, is_leaf: bool) -> Buffer {
        let supply = self.shared.space.lock().buffers.take(units, is_leaf);
        self.supplied(supply, units, is_leaf)
    }

    /// What was found for a page of so many units; made where there was nothing.
    fn supplied(&self, supply: Supply, units: u32, is_leaf: bool) -> Buffer {
        let mut supply = supply;
        loop {
            let slab = match supply {
                Supply::Of(buffer) => return buffer,
                Supply::Heap => None,
                Supply::Slab => Slab::new(),
            };
            let Some(slab) = slab else {
                let zeros = std::iter::repeat_n(0, units as usize * UNIT_BYTES);
                return Buffer::from(zeros.collect::<Frame>());
            };
            let mut space = self.shared.space.lock();
            space.buffers.add(slab, Use::Pages);
            supply = space.buffers.take(units, is_leaf);
        }
    }

    /// A new page without content.
    pub(crate) fn create(&mut self, kind: Kind, level: u8, units: u32) -> Result<PageRef> {
        let span = self.allocate(units)?;
        let mut blank = self.buffer(units, kind == Kind::Leaf);
        blank.fill(0);
        page::begin(&mut blank, kind, level, span.start, self.txid());
        self.pages.insert(span.start, self.new_own(blank));
        Ok(PageRef::new(span, self.txid()))
    }

    /// Wipes a page of this transaction, to be filled anew.
    pub(crate) fn wipe(&mut self, place: PageRef, kind: Kind, level: u8) {
        let txid = self.txid();
        let bytes = self.page_mut(place);
        bytes.fill(0);
        page::begin(bytes, kind, level, place.id(), txid);
    }

    /// The bytes of a page of this transaction, to change.
    pub(crate) fn page_mut(&mut self, place: PageRef) -> &mut [u8] {
        let own = self.pages.get_mut(place.id()).expect("only own pages are changed");
        assert_eq!(own.changed, self.era, "page {place:?} is changed but was not owned");
        &mut own.it
    }

    /// A copy of the page at `place`, so that the draft can be changed meanwhile.
    pub(crate) fn held(&self, place: PageRef) -> Result<Frame> {
        self.page(place).map(PageBytes::into_frame)
    }

    /// Says that the trees no longer name this page.
    pub(crate) fn discard(&mut self, place: PageRef) -> Result<()> {
        if !self.discard_own(place) {
            let birth = page::birth(&self.page(place)?);
            self.replaced.push((place.span(), birth));
        }
        Ok(())
    }

    /// As [`Draft::discard`], for a page whose birth is known.
    pub(crate) fn discard_born(&mut self, place: PageRef, birth: u64) {
        if !self.discard_own(place) {
            self.replaced.push((place.span(), birth));
        }
    }

    /// Proves that spans that the page at `named_by` names, which was cut off before this transaction, can
    /// be given back: that they are in use, and that it has not replaced them already.
    ///
    /// What was refused once is refused until the store is opened again: somebody may be given the units,
    /// who would lose them.
    pub(crate) fn prove_garbage(&mut self, named_by: PageRef, spans: &[Span]) -> Result<()> {
        let refused = *self.shared.upkeep.refused_garbage.lock();
        if let Some(Refused { page, what, .. }) = refused.filter(|one| one.named_by == named_by) {
            return Err(Error::Corrupt { page, what });
        }
        self.given.note(&self.replaced);
        let proven = self.given.prove_others(spans).and_then(|()| {
            let space = self.shared.space.lock();
            spans.iter().try_for_each(|&span| space.prove_in_use(span))
        });
        if let Err(Error::Corrupt { page, what }) = proven {
            let refused = Refused { named_by, page, what };
            *self.shared.upkeep.refused_garbage.lock() = Some(refused);
        }
        proven
    }

    /// If it is this transaction's: what lies where one of its pages does and is another, because a
    /// tree names what it cannot have, is refused when it is published.
    fn discard_own(&mut self, place: PageRef) -> bool {
        let is_own = |own: &Own<Buffer>| page::is_at(&own.it, place);
        if !self.pages.get(place.id()).is_some_and(is_own) {
            return false;
        }
        let Some(own) = self.pages.remove(place.id()) else { return false };
        if own.made == self.era {
            self.shared.space.lock().release(place.span());
        } else {
            self.undo.push(Undo::Return(place.id(), own));
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

    /// A long value of so many bytes in memory of its own, which are 0 before `fill` writes them.
    pub(crate) fn long_value_filled(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
        match self.piece(len) {
            Some(mut piece) => {
                piece.as_mut().fill(0);
                fill(piece.as_mut());
                Bytes::from_owner(piece)
            }
            None => {
                let mut bytes = vec![0; len];
                fill(&mut bytes);
                Bytes::from(bytes)
            }
        }
    }

    fn piece(&self, len: usize) -> Option<Piece> {
        self.shared.space.lock().buffers.take_piece(len)
    }

    /// Puts a long value into an extent of its own.
    pub(crate) fn create_extent(&mut self, value: Bytes) -> Result<Extent> {
        let span = self.allocate(units_for(value.len()))?;
        let len = u32::try_from(value.len()).expect("16 MiB at most");
        let crc = crc32c::crc32c(&value);
        self.extents.insert(span.start, self.new_own(value));
        Ok(Extent { start: span.start, len, crc, birth: self.txid() })
    }

    /// Says that the trees no longer name this extent.
    pub(crate) fn discard_extent(&mut self, extent: &Extent) {
        if !self.extents.get(&extent.start).is_some_and(|own| self.is_own(own, extent)) {
            self.replaced.push((extent.span(), extent.birth));
        } else if let Some(own) = self.extents.remove(&extent.start) {
            if own.made == self.era {
                self.shared.space.lock().release(extent.span());
            } else {
                self.undo.push(Undo::ReturnExtent(extent.start, own));
            }
        }
    }

    /// Whether it is the value at `extent`, and not another that lies where a leaf names what it cannot
    /// have.
    fn is_own(&self, own: &Own<Bytes>, extent: &Extent) -> bool {
        own.it.len() == extent.len as usize && extent.birth == self.txid()
    }

    /// Takes over the units of a tree that was built elsewhere.
    pub(crate) fn adopt(&mut self, claim: Claim) {
        self.adopted.push(claim);
    }

    /// Whether something belongs to the store of this transaction.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The transaction of the oldest root that somebody may read.
    pub(crate) fn oldest_reader(&self) -> u64 {
        self.shared.space.lock().pending.oldest().unwrap_or(0)
    }

    /// So much of what an operation cuts off is given back at once.
    pub(crate) fn at_once_units(&self) -> u64 {
        self.shared.options.reclaim_at_once_bytes.div_ceil(UNIT_BYTES as u64)
    }

    /// Keeps a subtree that no tree names any more: until somebody with its ticket takes it, or until
    /// it is published, as trash.
    pub(crate) fn cut_off(&mut self, child: Child, ticket: Option<Ticket>) {
        self.cut_off.push(CutOff { child, ticket });
    }

    /// The subtree with this ticket, if nobody has taken it.
    pub(crate) fn find_cut_off(&self, ticket: &Ticket) -> Option<Child> {
        self.cut_off.iter().find(|cut| cut.is(ticket)).map(|cut| cut.child)
    }

    /// Says that a tree names the subtree with this ticket now.
    pub(crate) fn take_cut_off(&mut self, ticket: &Ticket) {
        self.cut_off.retain(|cut| !cut.is(ticket));
    }

    /// Takes all subtrees that were cut off and that nobody has taken.
    pub(crate) fn take_all_cut_off(&mut self) -> Vec<Child> {
        let cut_off = std::mem::take(&mut self.cut_off).into_iter();
        cut_off.map(|cut| cut.child).filter(|child| !child.is_none()).collect()
    }
}

fn span_of(start: u64, len: usize) -> Span {
    Span { start, units: units_for(len) }
}

/// Proves that a page of the transaction is the one that is meant: a file may name a unit that it
/// counts as free, and that the transaction was given.
#[inline]
fn prove_at(page: &[u8], place: PageRef) -> Result<()> {
    if page::is_at(page, place) { Ok(()) } else { Err(not_there(place.id())) }
}

impl Source for Draft {
    fn page(&self, place: PageRef) -> Result<PageBytes<'_>> {
        match self.pages.get(place.id()) {
            Some(own) => prove_at(&own.it, place).map(|()| PageBytes::Borrowed(&own.it)),
            None => self.shared.pool.page(&self.base, place),
        }
    }

    fn prefetch(&self, place: PageRef, wanted: Wanted) {
        if !self.pages.contains(place.id()) {
            self.shared.pool.prefetch(&self.base, place, wanted);
        }
    }

    fn extent(&self, extent: &Extent) -> Result<Value<'_>> {
        match self.extents.get(&extent.start) {
            Some(own) if self.is_own(own, extent) => Ok(Value::borrowed(&own.it)),
            Some(_) => Err(not_there(extent.start)),
            None => self.shared.pool.extent(&self.base, extent),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // They give themselves back, and take the lock for it.
        self.adopted.clear();
        if !self.is_empty() || !self.undo.is_empty() {
            let spans = self.take().spans();
            let mut space = self.shared.space.lock();
            for span in spans {
                space.release(span);
            }
        }
        *self.shared.own_pages.lock() = std::mem::take(&mut self.pages);
    }
}
