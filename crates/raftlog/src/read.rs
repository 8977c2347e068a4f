//! Reads a range of a group's entries: from mapped files, one append after the other.
//!
//! Data that is stored as it is comes back without a copy, as slices of the map; who holds such a
//! slice holds the segment. Compressed blocks are decompressed once and kept for a while. Each entry
//! is proved by its checksum before it is handed out.

use crate::batch::Entry;
use crate::block::{self, Block, Codec};
use crate::cache::{BlockCache, BlockId};
use crate::error::Error;
use crate::extents::Run;
use crate::item::{self, AppendHead, Row, TermRun};
use crate::segment::Segment;
use bytes::Bytes;
use flotilla_vfs::View;
use std::ops::Range;
use std::sync::Arc;

/// A read of a range in progress.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    group: u64,
    cache: &'a BlockCache,
    /// What is still to be read.
    pub(crate) wanted: Range<u64>,
    max_bytes: u64,
    pub(crate) budget: u64,
    pub(crate) entries: Vec<Entry>,
    /// The run that held the last entry.
    pub(crate) last: Option<Run>,
}

/// Stored bytes, and the segment that they lie in: its file is used for something else only when
/// nobody holds it.
#[derive(Debug)]
struct Stored {
    view: View,
    _segment: Arc<Segment>,
}

/// An append that is being read.
struct Item<'a> {
    segment: &'a Arc<Segment>,
    run: Run,
    view: &'a View,
    head: AppendHead<'a>,
}

/// One block of it.
struct Part {
    number: u32,
    block: Block,
    /// Its first entry.
    first: u64,
    /// Where in the item its bytes begin.
    begin: usize,
}

impl<'a> Read<'a> {
    pub(crate) fn new(
        group: u64,
        cache: &'a BlockCache,
        wanted: Range<u64>,
        max_bytes: u64,
    ) -> Read<'a> {
        let entries = Vec::new();
        Read { group, cache, wanted, max_bytes, budget: max_bytes, entries, last: None }
    }

    /// Forgets what was read, and begins again.
    pub(crate) fn restart(&mut self) {
        self.wanted.start -= self.entries.len() as u64;
        self.budget = self.max_bytes;
        self.entries.clear();
        self.last = None;
    }

    /// Reads what is wanted of the run, in which the next wanted entry lies. False once nothing is
    /// wanted any more or there is no room for it.
    pub(crate) fn run(&mut self, segment: &Arc<Segment>, run: Run) -> Result<bool, Error> {
        let begin = u64::from(run.offset);
        let view = segment.file.view(begin..begin + u64::from(run.item_bytes))?;
        let corrupt = |what| Error::Corrupt { segment: run.segment, offset: begin, what };
        let head = AppendHead::decode(&view).map_err(corrupt)?;
        let item_bytes = (head.stored_bytes).saturating_add(head.head_bytes as u64);
        let holds = |index| index >= head.first && index - head.first < head.count;
        if head.group != self.group || !holds(self.wanted.start) || item_bytes != view.len() as u64
        {
            return Err(corrupt("an append is not the one that was written"));
        }
        let item = Item { segment, run, view: &view, head };
        self.item(&item).map_err(corrupt)?;
        self.last = Some(run);
        Ok(self.wanted.start == run.end)
    }

    fn item(&mut self, item: &Item<'_>) -> Result<(), &'static str> {
        let stop = self.wanted.end.min(item.run.end);
        let (mut first, mut begin) = (item.head.first, item.head.head_bytes);
        let mut rows = item.head.rows().zip(each_term(item.head.terms()));
        for (block, number) in item.head.blocks().zip(0..) {
            let end = first + block.entries;
            if end > self.wanted.start {
                let part = Part { number, block, first, begin };
                let is_full = !self.part(item, &part, rows.clone(), stop)?;
                if is_full || self.wanted.start == stop {
                    return Ok(());
                }
            }
            (first, begin) = (end, begin + block.stored_bytes as usize);
            if let Some(others) = (block.entries as usize).checked_sub(1) {
                rows.nth(others);
            }
        }
        Err("an append has fewer entries than it says")
    }

    /// Reads what is wanted of one block; `rows` are its own and those behind it. False once there
    /// is no room for more.
    fn part(
        &mut self,
        item: &Item<'_>,
        part: &Part,
        rows: impl Iterator<Item = (Row, u64)> + Clone,
        stop: u64,
    ) -> Result<bool, &'static str> {
        let rows = rows.take(part.block.entries as usize);
        let mut raw: Option<Bytes> = None;
        let mut at = 0;
        for ((row, term), index) in rows.clone().zip(part.first..stop) {
            let end = at + row.data_bytes as usize;
            if index == self.wanted.start {
                if !self.has_room(&row) {
                    return Ok(false);
                }
                let raw = match &raw {
                    Some(raw) => raw,
                    None => raw.insert(self.raw(item, part, rows.clone())?),
                };
                let data = raw.get(at..end).ok_or("an append is cut short")?;
                if item::entry_checksum(self.group, index, term, row.kind, data) != row.checksum {
                    return Err("an entry fails its checksum");
                }
                self.entries.push(Entry { index, term, kind: row.kind, data: raw.slice(at..end) });
                self.budget = self.budget.saturating_sub(row.data_bytes);
                self.wanted.start += 1;
            }
            at = end;
        }
        Ok(true)
    }

    fn has_room(&self, row: &Row) -> bool {
        self.entries.is_empty() || row.data_bytes <= self.budget
    }

    /// The raw bytes of a block.
    fn raw(
        &self,
        item: &Item<'_>,
        part: &Part,
        rows: impl Iterator<Item = (Row, u64)>,
    ) -> Result<Bytes, &'static str> {
        let end = part.begin + part.block.stored_bytes as usize;
        let stored = item.view.get(part.begin..end).ok_or("an append is cut short")?;
        if part.block.codec == Codec::Raw {
            let (view, segment) = (item.view.slice(part.begin..end), item.segment.clone());
            return Ok(Bytes::from_owner(Stored { view, _segment: segment }));
        }
        let (segment, offset) = (item.run.segment, item.run.offset);
        let id = BlockId { segment, offset, number: part.number };
        if let Some(raw) = self.cache.get(id) {
            return Ok(raw);
        }
        let raw_bytes = rows.map(|(row, _)| row.data_bytes).sum::<u64>();
        let raw = Bytes::from(block::decompress(stored, raw_bytes as usize)?);
        self.cache.insert(id, &raw);
        Ok(raw)
    }
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        &self.view
    }
}

/// The term of each entry.
fn each_term(terms: impl Iterator<Item = TermRun> + Clone) -> impl Iterator<Item = u64> + Clone {
    terms.flat_map(|(count, term)| std::iter::repeat_n(term, count as usize))
}
