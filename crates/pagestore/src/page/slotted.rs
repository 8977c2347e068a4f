//! The slotted page: layout, search, insertion and compaction of cells, for leaves and branches
//! alike.
//!
//! ```text
//! | header 56 | slots, 8 bytes each, by key | free | cells, newest lowest | prefix |
//! ```
//!
//! A slot holds the first four bytes of its key, big-endian, so that a search seldom leaves the
//! slots; then where the cell lies and how long its key is. The common prefix of all keys of the
//! page is kept once, at the page's end, and cut from every key. A cell is `lead`, key, `tail`;
//! `leaf` and `branch` define the length of lead and tail.
//!
//! Invariants:
//! - Keys rise strictly from slot to slot.
//! - Every key of the page begins with the prefix.
//! - `heap_low` is the lowest byte of any cell; `garbage` counts the bytes of cells without a slot.

use std::cmp::Ordering;

use crate::config::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::{Error, Result};
use crate::page::keys::{Key, begins_as_ends, begins_with, copy_key, head, shared_len};
use crate::page::layout::META_UNITS;
use crate::page::{
    self, HEADER_BYTES, PageSize, UNIT_COUNT_MAX, put_u16, u16_at, u32_at, u64_at, units_for,
};

const COUNT: usize = 24;
const HEAP_LOW: usize = 26;
const GARBAGE: usize = 28;
const PREFIX_LEN: usize = 30;
const LEFTMOST: usize = 32;

/// Bytes before the first slot: a header like any other page's, then the child before the first
/// separator.
pub(crate) const SLOTS_AT: usize = HEADER_BYTES + 16;

const _: () = assert!(LEFTMOST + CHILD_BYTES <= SLOTS_AT && SLOTS_AT.is_multiple_of(SLOT_BYTES));

/// Bytes that a branch has of each child.
pub(crate) const CHILD_BYTES: usize = 18;

/// Bytes of one slot.
pub(crate) const SLOT_BYTES: usize = 8;

/// In place of a value's length: the cell's tail is an extent's address.
pub(crate) const EXTENT_TAG: usize = 0xffff;

/// More than any tree of a file of 16 TiB can have.
const LEVEL_COUNT_MAX: u8 = 48;

/// Bytes of an extent's address.
pub(crate) const EXTENT_BYTES: usize = 24;

/// One cell with its whole key, as read from a page or as it shall be written.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    /// The whole key.
    pub(crate) key: Key<'a>,
    /// The bytes before the key.
    pub(crate) lead: &'a [u8],
    /// The bytes after the key.
    pub(crate) tail: &'a [u8],
}

/// Where a cell lies in its page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellOffsets {
    at: usize,
    tail: usize,
    tail_len: usize,
}

impl Cell<'_> {
    fn key_len(&self) -> usize {
        self.key.0.len() + self.key.1.len()
    }

    /// Bytes that the cell and its slot take in a page without prefix.
    pub(crate) fn bytes(&self) -> usize {
        SLOT_BYTES + self.lead.len() + self.key_len() + self.tail.len()
    }
}

/// A page of slots, to read.
#[derive(Clone, Copy)]
pub(crate) struct SlottedPage<'a>(pub(crate) &'a [u8]);

impl<'a> SlottedPage<'a> {
    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        page::is_leaf(self.0)
    }

    #[inline]
    pub(crate) fn level(self) -> u8 {
        page::level(self.0)
    }

    #[inline]
    pub(crate) fn count(self) -> usize {
        u16_at(self.0, COUNT)
    }

    /// How many cells in a row, the last of them right before cell `i`, came one after the other,
    /// and after all others of the page. Cells lie in the order in which they came, the newest
    /// lowest; a page that was laid out anew looks as if its cells had come in the order of keys.
    pub(crate) fn run_before(self, i: usize) -> usize {
        let mut low = self.heap_low();
        let is_in_run = |&i: &usize| {
            let is_newest = self.cell_at(i).0 == low;
            low += self.cell_bytes(i);
            is_newest
        };
        (0..i).rev().take_while(is_in_run).count()
    }

    fn heap_low(self) -> usize {
        u16_at(self.0, HEAP_LOW)
    }

    fn garbage(self) -> usize {
        u16_at(self.0, GARBAGE)
    }

    /// The child before the first separator; only in a branch.
    #[inline]
    pub(crate) fn leftmost(self) -> &'a [u8; CHILD_BYTES] {
        self.0[LEFTMOST..LEFTMOST + CHILD_BYTES].try_into().expect("as many bytes as it says")
    }

    #[inline]
    pub(crate) fn prefix(self) -> &'a [u8] {
        &self.0[self.0.len() - u16_at(self.0, PREFIX_LEN)..]
    }

    #[inline]
    fn slots(self) -> &'a [[u8; SLOT_BYTES]] {
        self.0[SLOTS_AT..SLOTS_AT + self.count() * SLOT_BYTES].as_chunks().0
    }

    /// Where cell `i` begins, and the length of its key without prefix.
    #[inline]
    fn cell_at(self, i: usize) -> (usize, usize) {
        let slot = &self.slots()[i];
        (u16_at(slot, 4), u16_at(slot, 6))
    }

    #[inline]
    fn lead_bytes(self) -> usize {
        if self.is_leaf() { 2 } else { CHILD_BYTES }
    }

    /// The key of cell `i` without the prefix.
    #[inline]
    pub(crate) fn suffix(self, i: usize) -> &'a [u8] {
        let (at, len) = self.cell_at(i);
        let at = at + self.lead_bytes();
        &self.0[at..at + len]
    }

    /// The key of cell `i`.
    pub(crate) fn key(self, i: usize) -> Key<'a> {
        (self.prefix(), self.suffix(i))
    }

    /// Lead and tail of cell `i`: the bytes before its key and after it.
    #[inline]
    pub(crate) fn payload(self, i: usize) -> (&'a [u8], &'a [u8]) {
        let (at, key_len) = self.cell_at(i);
        let lead = &self.0[at..at + self.lead_bytes()];
        let tail = at + lead.len() + key_len;
        (lead, &self.0[tail..tail + self.tail_bytes(lead)])
    }

    /// Where the tail of cell `i` lies in the page.
    #[inline]
    pub(crate) fn tail(self, i: usize) -> std::ops::Range<usize> {
        let (at, key_len) = self.cell_at(i);
        let lead = &self.0[at..at + self.lead_bytes()];
        let start = at + lead.len() + key_len;
        start..start + self.tail_bytes(lead)
    }

    /// Where cell `i` lies in the page.
    pub(crate) fn spot(self, i: usize) -> CellOffsets {
        let (at, key_len) = self.cell_at(i);
        let lead = &self.0[at..at + self.lead_bytes()];
        CellOffsets { at, tail: at + lead.len() + key_len, tail_len: self.tail_bytes(lead) }
    }

    #[inline]
    fn tail_bytes(self, lead: &[u8]) -> usize {
        match (self.is_leaf(), lead) {
            (true, lead) if u16_at(lead, 0) == EXTENT_TAG => EXTENT_BYTES,
            (true, lead) => u16_at(lead, 0),
            (false, _) => 0,
        }
    }

    pub(crate) fn cell(self, i: usize) -> Cell<'a> {
        let (lead, tail) = self.payload(i);
        Cell { key: self.key(i), lead, tail }
    }

    fn cell_bytes(self, i: usize) -> usize {
        let (lead, tail) = self.payload(i);
        lead.len() + self.cell_at(i).1 + tail.len()
    }

    pub(crate) fn cells(self) -> impl Iterator<Item = Cell<'a>> {
        (0..self.count()).map(move |i| self.cell(i))
    }

    /// The cell with `key`, or where it would have to be put.
    #[inline]
    pub(crate) fn search(self, key: &[u8]) -> std::result::Result<usize, usize> {
        let (prefix_len, slots) = (u16_at(self.0, PREFIX_LEN), self.slots());
        if !begins_as_ends(key, self.0, prefix_len) {
            return Err(if key < self.prefix() { 0 } else { slots.len() });
        }
        let rest = &key[prefix_len..];
        let head = head(rest);
        let head_of = |slot: &[u8; SLOT_BYTES]| u32_at(slot, 0);
        let has_head = |i: usize| slots.get(i).is_some_and(|slot| head_of(slot) == head);
        // A branch on the comparison would be mispredicted half of the time; the library's search
        // is branch-free.
        let mut low = slots.partition_point(|slot| head_of(slot) < head);
        let mut high = low + usize::from(has_head(low));
        if has_head(low + 1) {
            high = low + slots[low..].partition_point(|slot| head_of(slot) == head);
        }
        while low < high {
            let middle = low.midpoint(high);
            match self.suffix(middle).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Bytes that are neither free nor garbage.
    pub(crate) fn used(self) -> usize {
        self.0.len() - self.free() - self.garbage()
    }

    fn free(self) -> usize {
        self.heap_low() - SLOTS_AT - self.count() * SLOT_BYTES
    }

    /// Copies the page, but for what is free between slots and cells: there `to` keeps what it has.
    pub(crate) fn copy_to(self, to: &mut [u8]) {
        let (slots_end, heap_low) = (SLOTS_AT + self.count() * SLOT_BYTES, self.heap_low());
        to[..slots_end].copy_from_slice(&self.0[..slots_end]);
        to[heap_low..].copy_from_slice(&self.0[heap_low..]);
    }

    /// Proves that no offset leads out of the page, that its level can be, and that no long value
    /// lies beyond what a file can have, so that nothing below can panic.
    pub(crate) fn validate(self, id: u64) -> Result<()> {
        let corrupt = |what| Err(Error::Corrupt { page: id, what });
        if self.is_leaf() != (self.level() == 0) || self.level() > LEVEL_COUNT_MAX {
            return corrupt("level");
        }
        let heap_end = match self.0.len().checked_sub(u16_at(self.0, PREFIX_LEN)) {
            Some(end) if end >= SLOTS_AT => end,
            _ => return corrupt("prefix"),
        };
        if self.heap_low() > heap_end || SLOTS_AT + self.count() * SLOT_BYTES > self.heap_low() {
            return corrupt("slots");
        }
        let lead_bytes = self.lead_bytes();
        let mut cells = 0;
        for slot in self.slots() {
            let (at, key_len) = (u16_at(slot, 4), u16_at(slot, 6));
            if at < self.heap_low() || at + lead_bytes > heap_end {
                return corrupt("cell");
            }
            let tail = self.tail_bytes(&self.0[at..at + lead_bytes]);
            if at + lead_bytes + key_len + tail > heap_end {
                return corrupt("cell");
            }
            if u16_at(self.0, PREFIX_LEN) + key_len > KEY_BYTES_MAX {
                return corrupt("length of a key");
            }
            if self.is_leaf() && u16_at(self.0, at) == EXTENT_TAG {
                let address = &self.0[at + lead_bytes + key_len..][..EXTENT_BYTES];
                if !is_address(u64_at(address, 0), u32_at(address, 8)) {
                    return corrupt("address of a long value");
                }
            }
            cells += lead_bytes + key_len + tail;
        }
        if cells + self.garbage() != heap_end - self.heap_low() {
            return corrupt("garbage");
        }
        if !self.is_leaf() && u64_at(self.0, LEFTMOST) == 0 {
            return corrupt("leftmost child");
        }
        Ok(())
    }
}

/// Whether a value of `len` bytes can lie at unit `start` of a file.
fn is_address(start: u64, len: u32) -> bool {
    let units = u64::from(units_for(len as usize));
    len as usize <= VALUE_BYTES_MAX && (META_UNITS..=UNIT_COUNT_MAX - units).contains(&start)
}

/// A page of slots, to change.
pub(crate) struct SlottedPageMut<'a>(pub(crate) &'a mut [u8]);

impl SlottedPageMut<'_> {
    fn node(&self) -> SlottedPage<'_> {
        SlottedPage(self.0)
    }

    /// The bytes of child `i` of a branch, to be overwritten.
    pub(crate) fn child_mut(&mut self, i: usize) -> &mut [u8; CHILD_BYTES] {
        debug_assert!(!self.node().is_leaf(), "a leaf has no child");
        let at = match i.checked_sub(1) {
            None => LEFTMOST,
            Some(cell) => self.node().cell_at(cell).0,
        };
        let bytes = &mut self.0[at..at + CHILD_BYTES];
        bytes.try_into().expect("as many bytes as it says")
    }

    pub(crate) fn set_leftmost(&mut self, child: &[u8; CHILD_BYTES]) {
        self.0[LEFTMOST..LEFTMOST + CHILD_BYTES].copy_from_slice(child);
    }

    /// Makes the page hold exactly `cells`, which must fit: see [`bytes_for`].
    pub(crate) fn fill(&mut self, cells: &[Cell<'_>]) {
        self.fill_with_prefix(cells, prefix_len(cells));
    }

    fn fill_with_prefix(&mut self, cells: &[Cell<'_>], prefix_len: usize) {
        let end = self.0.len() - prefix_len;
        if let Some(first) = cells.first() {
            copy_key(&mut self.0[end..], first.key, 0, prefix_len);
        }
        put_u16(self.0, COUNT, 0);
        put_u16(self.0, GARBAGE, 0);
        put_u16(self.0, PREFIX_LEN, prefix_len);
        put_u16(self.0, HEAP_LOW, end);
        let mut low = end;
        for (i, cell) in cells.iter().enumerate() {
            let key_len = cell.key_len() - prefix_len;
            low -= cell.lead.len() + key_len + cell.tail.len();
            self.write_cell(low, cell, prefix_len);
            let slot = SLOTS_AT + i * SLOT_BYTES;
            self.write_slot(slot, low, cell.lead.len(), key_len);
        }
        assert!(low >= SLOTS_AT + cells.len() * SLOT_BYTES, "{} cells do not fit", cells.len());
        put_u16(self.0, COUNT, cells.len());
        put_u16(self.0, HEAP_LOW, low);
    }

    /// Puts a cell before cell `i`. False, and nothing changed, if it does not fit or its key does
    /// not begin with the page's prefix: then the page must be laid out anew.
    pub(crate) fn insert(&mut self, i: usize, cell: &Cell<'_>) -> bool {
        let node = self.node();
        let count = node.count();
        let prefix = node.prefix();
        let prefix_len = prefix.len();
        if count == 0 || !begins_with(cell.key, prefix) {
            return false;
        }
        debug_assert!(i <= count, "cell {i} of {count}");
        let need = cell.bytes() - prefix_len;
        if need > node.free() {
            if need > node.free() + node.garbage() {
                return false;
            }
            self.compact();
        }
        debug_assert!(need <= self.node().free(), "compaction has freed too little");
        let low = self.node().heap_low() - (need - SLOT_BYTES);
        self.write_cell(low, cell, prefix_len);
        let slot = SLOTS_AT + i * SLOT_BYTES;
        let slots_end = SLOTS_AT + count * SLOT_BYTES;
        self.0.copy_within(slot..slots_end, slot + SLOT_BYTES);
        self.write_slot(slot, low, cell.lead.len(), cell.key_len() - prefix_len);
        put_u16(self.0, COUNT, count + 1);
        put_u16(self.0, HEAP_LOW, low);
        true
    }

    /// Takes cells `range` out.
    pub(crate) fn remove(&mut self, range: std::ops::Range<usize>) {
        let node = self.node();
        let count = node.count();
        debug_assert!(range.start <= range.end && range.end <= count, "{range:?} of {count} cells");
        let dead: usize = range.clone().map(|i| node.cell_bytes(i)).sum();
        let garbage = node.garbage() + dead;
        let slot = |i| SLOTS_AT + i * SLOT_BYTES;
        self.0.copy_within(slot(range.end)..slot(count), slot(range.start));
        put_u16(self.0, GARBAGE, garbage);
        put_u16(self.0, COUNT, count - range.len());
    }

    /// Writes over lead and tail of cell `i`. False, and nothing changed, if their length differs.
    pub(crate) fn replace(&mut self, i: usize, lead: &[u8], tail: &[u8]) -> bool {
        let spot = self.node().spot(i);
        self.replace_at(spot, lead, tail)
    }

    /// As [`SlottedPageMut::replace`], for a cell whose place is known: nothing of it is read.
    pub(crate) fn replace_at(&mut self, spot: CellOffsets, lead: &[u8], tail: &[u8]) -> bool {
        if self.node().lead_bytes() != lead.len() || spot.tail_len != tail.len() {
            return false;
        }
        self.0[spot.at..spot.at + lead.len()].copy_from_slice(lead);
        self.0[spot.tail..spot.tail + tail.len()].copy_from_slice(tail);
        true
    }

    /// Gathers the free bytes in one piece. The prefix stays: a longer one, which the keys that are
    /// here now might share, need not fit the key that is about to come.
    fn compact(&mut self) {
        let old = self.0.to_vec();
        let cells: Vec<Cell<'_>> = SlottedPage(&old).cells().collect();
        self.fill_with_prefix(&cells, SlottedPage(&old).prefix().len());
    }

    fn write_cell(&mut self, at: usize, cell: &Cell<'_>, prefix_len: usize) {
        let key_at = at + cell.lead.len();
        let tail_at = key_at + cell.key_len() - prefix_len;
        self.0[at..key_at].copy_from_slice(cell.lead);
        copy_key(&mut self.0[key_at..tail_at], cell.key, prefix_len, tail_at - key_at);
        self.0[tail_at..tail_at + cell.tail.len()].copy_from_slice(cell.tail);
    }

    /// Writes the slot of the cell that has just been written at `cell_at`.
    fn write_slot(&mut self, slot: usize, cell_at: usize, lead_bytes: usize, key_len: usize) {
        let key_at = cell_at + lead_bytes;
        let head = head(&self.0[key_at..key_at + key_len]);
        self.0[slot..slot + 4].copy_from_slice(&head.to_le_bytes());
        put_u16(self.0, slot + 4, cell_at);
        put_u16(self.0, slot + 6, key_len);
    }
}

/// The bytes of a page that holds `cells`, header and prefix included.
pub(crate) fn bytes_for(cells: &[Cell<'_>]) -> usize {
    let prefix_len = prefix_len(cells);
    let cells_bytes: usize = cells.iter().map(|cell| cell.bytes() - prefix_len).sum();
    SLOTS_AT + prefix_len + cells_bytes
}

/// The fewest units for a page that holds `cells`, but not fewer than pages of the tree have.
pub(crate) fn units_of(cells: &[Cell<'_>], size: PageSize) -> u32 {
    size.units().max(units_for(bytes_for(cells)))
}

/// How many bytes all keys share. Keys are sorted, so first and last tell.
fn prefix_len(cells: &[Cell<'_>]) -> usize {
    match (cells.first(), cells.last()) {
        (Some(first), Some(last)) => shared_len(first.key, last.key),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
