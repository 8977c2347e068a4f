//! Units, references to pages, and the header that every page begins with.
//!
//! The file is an array of units of 4 KiB. A page is a span of 1 to 15 units; its id is the number
//! of its first unit. A [`PageRef`] is what a parent knows of its child: its place, its length, and
//! the low bits of the transaction that created it, which tell it from a page that lay there
//! before.

pub(crate) mod branch;
pub(crate) mod catalogue;
pub(crate) mod deferred_free;
pub(crate) mod keys;
pub(crate) mod layout;
pub(crate) mod leaf;
pub(crate) mod prefetch;
pub(crate) mod read_timer;
pub(crate) mod slotted;
pub(crate) mod source;
pub(crate) mod subtree_size;
pub(crate) mod unit_set;
pub(crate) mod view;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The grain of the file: everything lies on multiples of it.
pub(crate) const UNIT_BYTES: usize = 4096;

/// The longest page. Offsets inside a page are 16 bits wide.
pub(crate) const PAGE_UNITS_MAX: usize = 15;

/// Bytes before the first slot.
pub(crate) const HEADER_BYTES: usize = 40;

/// One more than the highest unit number: 16 TiB.
pub(crate) const UNIT_COUNT_MAX: u64 = 1 << 32;

const _: () = assert!(PAGE_UNITS_MAX * UNIT_BYTES <= u16::MAX as usize);
const _: () = assert!(UNIT_COUNT_MAX <= 1 << ID_BITS);

const ID_BITS: u32 = 40;
const UNITS_BITS: u32 = 4;
/// How many low bits of its creating transaction a reference has.
pub(crate) const CREATED_TXID_BITS: u32 = 64 - ID_BITS - UNITS_BITS;

const CRC: usize = 0;
const KIND: usize = 4;
const LEVEL: usize = 5;
/// Where the header says how many units the page has.
pub(crate) const UNITS: usize = 6;
const ID: usize = 8;
const CREATED_TXID: usize = 16;

/// Where the checksum ends and the bytes that it covers begin.
pub(crate) const CRC_END: usize = 4;

/// The bytes of one page in memory. Once published they never change.
pub(crate) type Frame = Arc<[u8]>;

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// Keys and values.
    Leaf = 1,
    /// Separators and children.
    Branch = 2,
    /// The units of one allocation group that are used.
    Bitmap = 3,
}

/// A run of units, which are of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first unit.
    pub start: u64,
    /// How many units.
    pub units: u32,
}

impl Span {
    /// One past the last unit.
    pub(crate) fn end(self) -> u64 {
        self.start + u64::from(self.units)
    }

    /// The length in bytes.
    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.units) * UNIT_BYTES as u64
    }

    /// Where it lies in the file, in bytes.
    #[inline]
    pub(crate) fn byte_range(self) -> std::ops::Range<u64> {
        let start = self.start * UNIT_BYTES as u64;
        start..start + self.bytes()
    }
}

/// Units that hold `bytes` bytes.
pub(crate) fn units_for(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("values and pages are far below 2^32 units")
}

// A tree chooses it once: `docs/decisions/0017`.
/// The length of the pages of a tree in units; a page with a long key may be longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageSize(u8);

impl PageSize {
    /// One unit: the default of a tree, and the trees of the store itself.
    pub(crate) const UNIT: PageSize = PageSize(1);

    /// A length in units, if a page can have it.
    pub(crate) fn new(units: u32) -> Result<PageSize> {
        match u8::try_from(units) {
            Ok(units) if (1..=PAGE_UNITS_MAX).contains(&units.into()) => Ok(PageSize(units)),
            _ => Err(Error::PageUnits { units }),
        }
    }

    pub(crate) fn units(self) -> u32 {
        self.0.into()
    }

    pub(crate) const fn bytes(self) -> usize {
        self.0 as usize * UNIT_BYTES
    }

    /// Proves that a page is long enough for its tree.
    pub(crate) fn verify(self, page_ref: PageRef) -> Result<()> {
        if page_ref.units() < self.units() {
            let what = "it is shorter than pages of its tree";
            return Err(Error::Corrupt { page: page_ref.id(), what });
        }
        Ok(())
    }

    /// Refuses to put a part whose pages have this length into a tree whose pages have `tree`.
    pub(crate) fn refuse_unless(self, tree: PageSize) -> Result<()> {
        match (tree.units(), self.units()) {
            (tree, part) if tree != part => Err(Error::PageUnitsDiffer { tree, part }),
            _ => Ok(()),
        }
    }
}

/// Where a page lies, how long it is, and the low bits of the transaction that wrote it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct PageRef(u64);

impl PageRef {
    /// No page: the root of an empty tree.
    pub(crate) const NONE: PageRef = PageRef(0);

    pub(crate) fn new(span: Span, created_txid: u64) -> PageRef {
        assert!(span.start < 1 << ID_BITS, "unit {} is beyond the file's limit", span.start);
        assert!(span.units as usize <= PAGE_UNITS_MAX, "a page of {} units", span.units);
        let units = u64::from(span.units) << CREATED_TXID_BITS;
        PageRef(
            span.start << (UNITS_BITS + CREATED_TXID_BITS)
                | units
                | created_txid & ((1 << CREATED_TXID_BITS) - 1),
        )
    }

    #[inline]
    pub(crate) fn from_raw(raw: u64) -> PageRef {
        PageRef(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn id(self) -> u64 {
        self.0 >> (UNITS_BITS + CREATED_TXID_BITS)
    }

    #[inline]
    pub(crate) fn units(self) -> u32 {
        (self.0 >> CREATED_TXID_BITS) as u32 & ((1 << UNITS_BITS) - 1)
    }

    #[inline]
    pub(crate) fn span(self) -> Span {
        Span { start: self.id(), units: self.units() }
    }

    /// The latest creating transaction, not after `newest`, that the reference may mean. If it is
    /// not the only one, the others are 2^20 transactions and more before it.
    pub(crate) fn latest_created_txid(self, newest: u64) -> u64 {
        let back = newest.wrapping_sub(self.0) & ((1 << CREATED_TXID_BITS) - 1);
        newest.saturating_sub(back)
    }

    #[inline]
    fn is_created_txid(self, created_txid: u64) -> bool {
        self.0 & ((1 << CREATED_TXID_BITS) - 1) == created_txid & ((1 << CREATED_TXID_BITS) - 1)
    }
}

impl fmt::Debug for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.id(), self.units())
    }
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")))
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("a page is shorter than 64 KiB");
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Fills in the header of a page that this transaction makes.
pub(crate) fn begin(page: &mut [u8], kind: PageKind, level: u8, id: u64, created_txid: u64) {
    assert!(page.len().is_multiple_of(UNIT_BYTES), "page {id} of {} bytes", page.len());
    page[..HEADER_BYTES].fill(0);
    page[KIND] = kind as u8;
    page[LEVEL] = level;
    page[UNITS] = u8::try_from(page.len() / UNIT_BYTES).expect("15 units at most");
    page[ID..ID + 8].copy_from_slice(&id.to_le_bytes());
    page[CREATED_TXID..CREATED_TXID + 8].copy_from_slice(&created_txid.to_le_bytes());
}

/// Gives a copied page its new place and creating transaction. The rest stays.
pub(crate) fn readdress(page: &mut [u8], id: u64, created_txid: u64) {
    page[CRC..CRC_END].fill(0);
    page[ID..ID + 8].copy_from_slice(&id.to_le_bytes());
    page[CREATED_TXID..CREATED_TXID + 8].copy_from_slice(&created_txid.to_le_bytes());
}

#[inline]
pub(crate) fn is_leaf(page: &[u8]) -> bool {
    page[KIND] == PageKind::Leaf as u8
}

pub(crate) fn is_kind(page: &[u8], kind: PageKind) -> bool {
    page[KIND] == kind as u8
}

#[inline]
pub(crate) fn level(page: &[u8]) -> u8 {
    page[LEVEL]
}

/// How many units the page says that it has.
pub(crate) fn units(page: &[u8]) -> u32 {
    u32::from(page[UNITS])
}

#[inline]
pub(crate) fn created_txid(page: &[u8]) -> u64 {
    u64_at(page, CREATED_TXID)
}

/// The checksum that belongs at the page's beginning when it is written.
pub(crate) fn checksum(page: &[u8]) -> [u8; CRC_END] {
    crc32c::crc32c(&page[CRC_END..]).to_le_bytes()
}

/// Whether a page that was checked before, and lies where `page_ref` says, is the one that is
/// meant.
#[inline]
pub(crate) fn is_at(page: &[u8], page_ref: PageRef) -> bool {
    u32::from(page[UNITS]) == page_ref.units() && page_ref.is_created_txid(created_txid(page))
}

/// Proves that `page`, just read from the file, is the page that `page_ref` names, and that no
/// transaction after `newest` wrote it.
pub(crate) fn verify(page: &[u8], page_ref: PageRef, newest: u64) -> Result<()> {
    let corrupt = |what| Err(Error::Corrupt { page: page_ref.id(), what });
    if page[CRC..CRC_END] != checksum(page) {
        return corrupt("checksum");
    }
    if u64_at(page, ID) != page_ref.id() {
        return corrupt("another page lies in its place");
    }
    if u32::from(page[UNITS]) != page_ref.units() {
        return corrupt("length");
    }
    if !page_ref.is_created_txid(created_txid(page)) || created_txid(page) > newest {
        return corrupt("an older or younger page lies in its place");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_keeps_its_parts() {
        let span = Span { start: (1 << 32) - 1, units: 15 };
        let page_ref = PageRef::new(span, 0x12345678);
        assert_eq!(page_ref.span(), span);
        assert_eq!(PageRef::from_raw(page_ref.raw()), page_ref);
        assert!(page_ref.is_created_txid(0x12345678));
        assert!(!page_ref.is_created_txid(0x12345679));
        assert!(!page_ref.is_none() && PageRef::NONE.is_none());
        for newest in [0x12345678, 0x12345679, 0x12445677] {
            assert_eq!(page_ref.latest_created_txid(newest), 0x12345678);
        }
        assert_eq!(page_ref.latest_created_txid(0x12345677), 0x12245678);
    }

    #[test]
    fn page_size_is_what_a_reference_can_say() {
        for units in 1..=PAGE_UNITS_MAX as u32 {
            assert_eq!(PageSize::new(units).unwrap().bytes(), units as usize * UNIT_BYTES);
        }
        for units in [0, 16, 256, 257, u32::MAX] {
            assert!(
                matches!(PageSize::new(units), Err(Error::PageUnits { units: u }) if u == units)
            );
        }
    }

    #[test]
    fn verify_tells_what_is_wrong() {
        let page_ref = PageRef::new(Span { start: 9, units: 1 }, 7);
        let mut page = vec![0; UNIT_BYTES];
        begin(&mut page, PageKind::Leaf, 0, 9, 7);
        let crc = checksum(&page);
        page[..CRC_END].copy_from_slice(&crc);
        verify(&page, page_ref, 7).unwrap();
        let wrong = [
            (PageRef::new(Span { start: 10, units: 1 }, 7), 7),
            (PageRef::new(Span { start: 9, units: 2 }, 7), 7),
            (PageRef::new(Span { start: 9, units: 1 }, 6), 7),
            (page_ref, 6),
        ];
        for (other, newest) in wrong {
            assert!(matches!(verify(&page, other, newest), Err(Error::Corrupt { .. })));
        }
        page[4000] ^= 1;
        assert!(matches!(verify(&page, page_ref, 7), Err(Error::Corrupt { what: "checksum", .. })));
    }
}
