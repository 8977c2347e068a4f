//! Builder of one page, filled from the left to the right.

use std::ops::Range;

use crate::page::keys::shared_len;
use crate::page::slotted::{Cell, SLOT_BYTES, SLOTS_AT, bytes_for};

/// Cells for one page.
#[derive(Default)]
pub(crate) struct PageBuilder {
    bytes: Vec<u8>,
    cells: Vec<CellRanges>,
    /// The length of the common prefix.
    prefix_len: usize,
    /// Bytes of the cells with their whole keys.
    cell_bytes: usize,
}

/// Where a cell's three parts lie.
struct CellRanges {
    lead: Range<usize>,
    key: Range<usize>,
    tail: Range<usize>,
}

impl PageBuilder {
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn first_key(&self) -> Option<&[u8]> {
        self.cells.first().map(|ranges| &self.bytes[ranges.key.clone()])
    }

    /// The bytes of a page with all cells and one more.
    pub(crate) fn bytes_with(&self, key: &[u8], lead: usize, tail: usize) -> usize {
        let prefix_len = self.prefix_with(key);
        let count = self.cells.len() + 1;
        let cells = self.cell_bytes + SLOT_BYTES + lead + key.len() + tail;
        SLOTS_AT + prefix_len + cells - count * prefix_len
    }

    fn prefix_with(&self, key: &[u8]) -> usize {
        match self.first_key() {
            Some(first) => self.prefix_len.min(shared_len((&[], first), (&[], key))),
            None => key.len(),
        }
    }

    /// Puts a cell behind the others.
    pub(crate) fn push(&mut self, key: &[u8], lead: &[u8], tail: &[u8]) {
        self.prefix_len = self.prefix_with(key);
        self.cell_bytes += SLOT_BYTES + lead.len() + key.len() + tail.len();
        let ranges =
            CellRanges { lead: self.append(lead), key: self.append(key), tail: self.append(tail) };
        self.cells.push(ranges);
    }

    fn append(&mut self, part: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(part);
        start..self.bytes.len()
    }

    /// The cells, to be laid out.
    pub(crate) fn cells(&self) -> Vec<Cell<'_>> {
        let part = |range: &Range<usize>| &self.bytes[range.clone()];
        let cell = |ranges: &CellRanges| Cell {
            key: (&[][..], part(&ranges.key)),
            lead: part(&ranges.lead),
            tail: part(&ranges.tail),
        };
        let cells: Vec<_> = self.cells.iter().map(cell).collect();
        let saved = self.cells.len() * self.prefix_len;
        let bytes = SLOTS_AT + self.prefix_len + self.cell_bytes - saved;
        debug_assert_eq!(bytes, bytes_for(&cells), "the count of bytes drifted");
        cells
    }

    /// Forgets the cells and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.cells.clear();
        (self.prefix_len, self.cell_bytes) = (0, 0);
    }
}
