//! The pages of the open write transaction: private, changed in place, given back if it is dropped.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::error::Result;
use crate::leaf::Extent;
use crate::page::{self, Frame, Kind, PageRef, Span, UNIT_BYTES, units_for};
use crate::root::Root;
use crate::shared::Shared;
use crate::source::Source;
use crate::view::{PageBytes, Value};

type ById<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// The pages of the open write transaction.
pub(crate) struct Draft {
    shared: Arc<Shared>,
    base: Arc<Root>,
    pages: ById<Frame>,
    extents: ById<Bytes>,
    /// Published spans that this transaction replaced, and their births.
    replaced: Vec<(Span, u64)>,
}

/// What a transaction leaves behind when it is published.
pub(crate) struct Written {
    /// New pages, private until now.
    pub(crate) pages: ById<Frame>,
    /// New long values.
    pub(crate) extents: ById<Bytes>,
    /// Published spans that it replaced, and their births.
    pub(crate) replaced: Vec<(Span, u64)>,
}

impl Written {
    /// Where all of it lies.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let pages = self.pages.iter().map(|(&id, frame)| (id, frame.len()));
        let extents = self.extents.iter().map(|(&id, value)| (id, value.len()));
        pages.chain(extents).map(|(start, len)| Span { start, units: units_for(len) }).collect()
    }
}

impl Draft {
    pub(crate) fn new(shared: Arc<Shared>, base: Arc<Root>) -> Draft {
        Draft {
            shared,
            base,
            pages: ById::default(),
            extents: ById::default(),
            replaced: Vec::new(),
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

    /// Hands over what was written; the draft is empty then.
    pub(crate) fn take(&mut self) -> Written {
        Written {
            pages: std::mem::take(&mut self.pages),
            extents: std::mem::take(&mut self.extents),
            replaced: std::mem::take(&mut self.replaced),
        }
    }

    /// Makes the page at `place` this transaction's own: itself if it is already, else a copy.
    pub(crate) fn own(&mut self, place: PageRef) -> Result<PageRef> {
        if self.pages.contains_key(&place.id()) {
            return Ok(place);
        }
        let old = self.shared.pool.page(place, self.base.txid)?;
        let (span, spare) = {
            let mut space = self.shared.space.lock();
            (space.allocate(place.units())?, space.spare_frame(place.units()))
        };
        let mut frame = match spare {
            None => Frame::from(&old[..]),
            Some(mut frame) => {
                let bytes = Arc::get_mut(&mut frame).expect("spare frames have no other owner");
                bytes.copy_from_slice(&old);
                frame
            }
        };
        let bytes = Arc::get_mut(&mut frame).expect("nobody else knows the copy");
        page::readdress(bytes, span.start, self.txid());
        self.pages.insert(span.start, frame);
        self.replaced.push((place.span(), page::birth(&old)));
        Ok(PageRef::new(span, self.txid()))
    }

    /// A new page without content.
    pub(crate) fn create(&mut self, kind: Kind, level: u8, units: u32) -> Result<PageRef> {
        let span = self.shared.space.lock().allocate(units)?;
        self.put_blank(span, kind, level);
        Ok(PageRef::new(span, self.txid()))
    }

    /// Wipes a page of this transaction, to be filled anew.
    pub(crate) fn wipe(&mut self, place: PageRef, kind: Kind, level: u8) {
        let old = self.put_blank(place.span(), kind, level);
        assert!(old.is_some(), "page {place:?} is wiped by a transaction that does not own it");
    }

    fn put_blank(&mut self, span: Span, kind: Kind, level: u8) -> Option<Frame> {
        let len = span.units as usize * UNIT_BYTES;
        let mut frame: Frame = std::iter::repeat_n(0, len).collect();
        let bytes = Arc::get_mut(&mut frame).expect("nobody else knows the page");
        page::begin(bytes, kind, level, span.start, self.txid());
        self.pages.insert(span.start, frame)
    }

    /// The bytes of a page of this transaction, to change.
    pub(crate) fn page_mut(&mut self, place: PageRef) -> &mut [u8] {
        let frame = self.pages.get_mut(&place.id()).expect("only own pages are changed");
        // Whoever holds the page apart sees it as it was; then, and only then, this copies it.
        Arc::make_mut(frame)
    }

    /// The page at `place`, held apart, so that the draft can be changed meanwhile. Costs a count if
    /// it is the transaction's own, and may cost a copy if it is not.
    pub(crate) fn held(&self, place: PageRef) -> Result<Frame> {
        match self.pages.get(&place.id()) {
            Some(frame) => Ok(Arc::clone(frame)),
            None => Ok(self.shared.pool.page(place, self.base.txid)?.into_frame()),
        }
    }

    /// Says that the trees no longer name this page.
    pub(crate) fn discard(&mut self, place: PageRef) -> Result<()> {
        if self.pages.remove(&place.id()).is_some() {
            self.shared.space.lock().release(place.span());
            return Ok(());
        }
        let birth = page::birth(&self.page(place)?);
        self.replaced.push((place.span(), birth));
        Ok(())
    }

    /// Puts a long value into an extent of its own.
    pub(crate) fn create_extent(&mut self, value: &[u8]) -> Result<Extent> {
        let span = self.shared.space.lock().allocate(units_for(value.len()))?;
        self.extents.insert(span.start, Bytes::copy_from_slice(value));
        let len = u32::try_from(value.len()).expect("16 MiB at most");
        Ok(Extent { start: span.start, len, crc: crc32c::crc32c(value), birth: self.txid() })
    }

    /// Says that the trees no longer name this extent.
    pub(crate) fn discard_extent(&mut self, extent: &Extent) {
        if self.extents.remove(&extent.start).is_some() {
            self.shared.space.lock().release(extent.span());
        } else {
            self.replaced.push((extent.span(), extent.birth));
        }
    }
}

impl Source for Draft {
    fn page(&self, place: PageRef) -> Result<PageBytes<'_>> {
        match self.pages.get(&place.id()) {
            Some(frame) => Ok(PageBytes::Borrowed(frame)),
            None => self.shared.pool.page(place, self.base.txid),
        }
    }

    fn extent(&self, extent: &Extent) -> Result<Value<'_>> {
        match self.extents.get(&extent.start) {
            Some(value) => Ok(Value::borrowed(value)),
            None => self.shared.pool.extent(extent),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        let spans = self.take().spans();
        let mut space = self.shared.space.lock();
        for span in spans {
            space.release(span);
        }
    }
}

/// Spreads page ids, which are dense and not chosen by an adversary.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
