//! The entries of one group: their items, segments and terms.
//!
//! Three lists, each sorted by index: the items, in chunks; the extents, one for each stretch of
//! neighbouring entries in one segment; the terms, one row for each stretch of one term. So an
//! entry that was appended alone takes 8 bytes, and a look-up is a binary search.
//!
//! Invariants:
//! - An extent's bytes are those of its items. An item that is live in part counts whole: it stays
//!   whole on disk, and a rewrite copies all of it.
//! - No two neighbouring extents have one segment, and no two neighbouring rows one term.
//! - Holes lie between entries, never at an end. There are some only where part of a log is
//!   unknown: while segments are replayed, and in the net change of a single segment.

use crate::batch::frame::EntryRun;
use crate::format::item::{TermRun, TermRuns};
use crate::index::item_chunk::{self, ItemChunk, ItemLocation};
use crate::index::segment_usage::LiveUsage;
use std::collections::VecDeque;

/// No segment has this number; an extent of it is a hole.
const NOWHERE: u64 = 0;

/// The first capacity of a chunk that has others before it.
const CHUNK_ROOM: usize = 32;

/// The entries of one group, or some of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    chunks: VecDeque<ItemChunk>,
    extents: Vec<SegmentExtent>,
    /// First index and term of each stretch of entries with one term.
    terms: Vec<(u64, u64)>,
}

/// Neighbouring entries that lie in one segment. It ends where the next begins.
#[derive(Clone, Copy, Debug)]
struct SegmentExtent {
    first: u64,
    segment: u64,
    bytes: u64,
}

impl Extents {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The first entry, if there are any.
    pub(crate) fn first(&self) -> Option<u64> {
        self.chunks.front().map(ItemChunk::first)
    }

    /// The index after the last entry, if there are any.
    pub(crate) fn end(&self) -> Option<u64> {
        self.chunks.back().map(ItemChunk::end)
    }

    /// How many stretches there are with a hole between each two.
    pub(crate) fn stretch_count(&self) -> usize {
        let holes = self.extents.iter().filter(|extent| extent.segment == NOWHERE).count();
        if self.is_empty() { 0 } else { holes + 1 }
    }

    /// The item of the last entries, if there are any.
    pub(crate) fn last_item(&self) -> Option<ItemLocation> {
        self.chunks.back().map(|chunk| chunk.item(chunk.item_count() - 1).0)
    }

    pub(crate) fn has_hole(&self) -> bool {
        self.extents.iter().any(|extent| extent.segment == NOWHERE)
    }

    /// The term of an entry, which must be there.
    pub(crate) fn term(&self, index: u64) -> u64 {
        self.terms[self.terms.partition_point(|(first, _)| *first <= index) - 1].1
    }

    pub(crate) fn term_runs(&self) -> &[(u64, u64)] {
        &self.terms
    }

    /// The items that hold entries, from the one that holds `index`, or the next, on.
    pub(crate) fn runs_from(&self, index: u64) -> EntryRuns<'_> {
        let chunk = self.chunks.partition_point(|chunk| chunk.end() <= index);
        let inside = self.chunks.get(chunk).filter(|chunk| chunk.first() < index);
        let item = inside.map_or(0, |chunk| chunk.position(index));
        let extent = self.extents.partition_point(|extent| extent.first <= index).saturating_sub(1);
        EntryRuns { extents: self, chunk, item, extent }
    }

    /// The items of one segment, in the order of their entries.
    pub(crate) fn runs_in(&self, segment: u64) -> impl Iterator<Item = EntryRun> {
        let places = (0..self.extents.len()).filter(move |at| self.extents[*at].segment == segment);
        places.flat_map(move |at| {
            let (first, end) = (self.extents[at].first, self.extent_end(at));
            self.runs_from(first).take_while(move |run| run.first < end)
        })
    }

    /// The terms of the entries `first .. end`, which must be there.
    pub(crate) fn terms_of(&self, first: u64, end: u64) -> TermRuns {
        let mut terms = TermRuns::new();
        let mut at = self.terms.partition_point(|(from, _)| *from <= first) - 1;
        let mut from = first;
        while from < end {
            let next = self.terms.get(at + 1).map_or(end, |(next, _)| end.min(*next));
            terms.push((next - from, self.terms[at].1));
            (from, at) = (next, at + 1);
        }
        terms
    }

    /// Bytes in the log of all items with live entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).sum()
    }

    /// The live entries and bytes by segment; a segment may come more than once.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, LiveUsage)> {
        let holds = |at: usize| {
            let SegmentExtent { first, segment, bytes } = self.extents[at];
            (segment, LiveUsage { entries: self.extent_end(at) - first, keys: 0, bytes })
        };
        (0..self.extents.len()).map(holds).filter(|(segment, _)| *segment != NOWHERE)
    }

    /// Memory that the lists take beside the three headers, by their capacities.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let lists = self.chunks.capacity() * size_of::<ItemChunk>()
            + self.extents.capacity() * size_of::<SegmentExtent>()
            + self.terms.capacity() * size_of::<(u64, u64)>();
        lists as u64 + self.chunks.iter().map(ItemChunk::memory_bytes).sum::<u64>()
    }

    /// Adds entries behind those that there are, with a hole between if they do not follow. `terms`
    /// cover them.
    pub(crate) fn push(&mut self, run: EntryRun, terms: &[TermRun]) {
        self.push_extent(run.first, run.segment, u64::from(run.item_bytes));
        let item = ItemLocation { offset: run.offset, bytes: run.item_bytes };
        let count = u32::try_from(run.end - run.first).expect("an item has less than 2^32 entries");
        // A log that has full chunks will fill another.
        let room = if self.chunks.is_empty() { 1 } else { CHUNK_ROOM };
        self.push_item(run.first, item, count, room);
        self.push_terms(run.first, terms);
        let covered: u64 = terms.iter().map(|(count, _)| count).sum();
        debug_assert_eq!(covered, run.end - run.first, "terms of other entries than {run:?}");
        self.check_ends();
    }

    /// Adds `item_count` consecutive items behind those that there are; a hole may be before them.
    /// `next` returns the location of each and its number of entries. Their terms are missing until
    /// [`Extents::push_terms`] adds them.
    ///
    /// # Errors
    ///
    /// Those of `next`; more entries than there are indexes.
    pub(crate) fn push_items(
        &mut self,
        mut first: u64,
        segment: u64,
        item_count: usize,
        mut next: impl FnMut() -> Result<(ItemLocation, u32), &'static str>,
    ) -> Result<(), &'static str> {
        let mut left = item_count;
        while left > 0 {
            // One chunk at a time, so that the lists are updated once for all of its items.
            let (chunk, bytes) = ItemChunk::of_items(first, left, &mut next)?;
            let end = first.checked_add(chunk.entry_count()).filter(|end| *end < u64::MAX);
            let end = end.ok_or("entries go beyond the last index")?;
            left -= chunk.item_count();
            self.push_extent(first, segment, bytes);
            self.push_chunk(chunk);
            first = end;
        }
        Ok(())
    }

    /// Adds the terms of entries from `first` on that were pushed just before.
    pub(crate) fn push_terms(&mut self, first: u64, terms: &[TermRun]) {
        let mut first = first;
        for (count, term) in terms {
            self.push_term(first, *term);
            first += count;
        }
    }

    fn push_item(&mut self, first: u64, item: ItemLocation, count: u32, left: usize) {
        let last = self.chunks.back_mut().filter(|chunk| chunk.end() == first);
        if last.is_some_and(|chunk| chunk.push(item, count)) {
            return;
        }
        let mut chunk = ItemChunk::new(first, left);
        let fits = chunk.push(item, count);
        assert!(fits, "a new chunk has no room for an item of {count} entries");
        self.push_chunk(chunk);
    }

    /// Puts entries in the place of those that have the same indexes, or into a hole.
    ///
    /// # Errors
    ///
    /// An item that is there would be cut in two.
    pub(crate) fn relocate(
        &mut self,
        stretch: Extents,
        freed: impl FnMut(u64, LiveUsage),
    ) -> Result<(), &'static str> {
        let (Some(first), Some(end)) = (stretch.first(), stretch.end()) else { return Ok(()) };
        if self.end().is_none_or(|end| end <= first) {
            self.join(stretch);
            return Ok(());
        }
        let is_cut = |index| self.runs_from(index).next().is_some_and(|run| run.first < index);
        if is_cut(first) || is_cut(end) {
            return Err("an append is moved in part");
        }
        let behind = self.split_off(end);
        self.truncate(first, freed);
        self.join(stretch);
        self.join(behind);
        Ok(())
    }

    /// Adds entries that all come behind those that there are.
    pub(crate) fn join(&mut self, mut behind: Extents) {
        let Some(first) = behind.first() else { return };
        assert!(self.end().is_none_or(|end| end <= first), "{first} is not behind the others");
        if self.is_empty() {
            *self = behind;
            return;
        }
        let is_next = self.end() == Some(first);
        self.push_extent(first, behind.extents[0].segment, behind.extents[0].bytes);
        self.extents.extend_from_slice(&behind.extents[1..]);
        let last = self.chunks.back_mut().filter(|_| is_next);
        let absorbed = match (last, behind.chunks.pop_front()) {
            (Some(last), Some(chunk)) => last.absorb(chunk),
            (_, chunk) => chunk,
        };
        absorbed.into_iter().chain(behind.chunks).for_each(|chunk| self.push_chunk(chunk));
        behind.terms.iter().for_each(|(first, term)| self.push_term(*first, *term));
        self.check_ends();
    }

    /// Takes out the entries before the first hole, or all if there is none.
    pub(crate) fn take_stretch(&mut self) -> Extents {
        let hole = self.extents.iter().position(|extent| extent.segment == NOWHERE);
        match hole {
            None => std::mem::take(self),
            Some(hole) => {
                let behind = self.split_off(self.extent_end(hole));
                std::mem::replace(self, behind)
            }
        }
    }

    /// Sets the segment of all entries.
    pub(crate) fn set_segment(&mut self, segment: u64) {
        for extent in self.extents.iter_mut().filter(|extent| extent.segment != NOWHERE) {
            extent.segment = segment;
        }
    }

    /// Drops the entries from `from` on, and reports the freed usage of each segment.
    pub(crate) fn truncate(&mut self, from: u64, mut freed: impl FnMut(u64, LiveUsage)) {
        let Some(mut end) = self.end().filter(|end| from < *end) else { return };
        while let Some(extent) = self.extents.pop_if(|extent| from <= extent.first) {
            free(extent, end - extent.first, extent.bytes, &mut freed);
            end = extent.first;
        }
        let bytes = self.bytes_of(from, end);
        if let Some(last) = self.extents.last_mut().filter(|_| from < end) {
            assert!(bytes <= last.bytes, "{bytes} bytes of the items of {last:?}");
            last.bytes -= bytes;
            free(*last, end - from, bytes, &mut freed);
        }
        self.chunks.truncate(self.chunks.partition_point(|chunk| chunk.first() < from));
        if let Some(chunk) = self.chunks.back_mut().filter(|chunk| from < chunk.end()) {
            chunk.truncate(from);
        }
        self.terms.truncate(self.terms.partition_point(|(first, _)| *first < from));
        self.trim_hole();
        if self.is_empty() {
            // Frees the lists: many groups are idle with an empty log.
            *self = Extents::default();
        }
        self.check_ends();
    }

    /// Drops the entries below `first`, and reports the freed usage of each segment.
    pub(crate) fn drop_prefix(&mut self, first: u64, mut freed: impl FnMut(u64, LiveUsage)) {
        if self.end().is_none_or(|end| end <= first) {
            return self.truncate(0, freed);
        }
        let gone = self.extents.partition_point(|extent| extent.first <= first).saturating_sub(1);
        for at in 0..gone {
            let extent = self.extents[at];
            free(extent, self.extent_end(at) - extent.first, extent.bytes, &mut freed);
        }
        self.extents.drain(..gone);
        item_chunk::shrink(&mut self.extents);
        let front = self.extents[0];
        if front.segment == NOWHERE {
            self.extents.remove(0);
        } else if front.first < first {
            let kept = self.runs_from(first).next().map_or(first, |run| run.first);
            let bytes = self.bytes_of(front.first, kept);
            assert!(bytes <= front.bytes, "{bytes} bytes of the items of {front:?}");
            free(front, first - front.first, bytes, &mut freed);
            self.extents[0] = SegmentExtent { first, bytes: front.bytes - bytes, ..front };
        }
        self.chunks.drain(..self.chunks.partition_point(|chunk| chunk.end() <= first));
        if self.chunks.capacity() > 8 && self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
        if let Some(chunk) = self.chunks.front_mut().filter(|chunk| chunk.first() < first) {
            chunk.drop_prefix(first);
        }
        let first = self.extents[0].first;
        self.terms.drain(..self.terms.partition_point(|(from, _)| *from <= first) - 1);
        item_chunk::shrink(&mut self.terms);
        self.terms[0].0 = first;
        self.check_ends();
    }

    /// Takes the entries from `from` on out; no item is cut by it.
    fn split_off(&mut self, from: u64) -> Extents {
        let Some(end) = self.end().filter(|end| from < *end) else { return Extents::default() };
        let mut behind = Extents::default();
        let at = self.extents.partition_point(|extent| extent.first < from);
        let next = self.extents.get(at).map_or(end, |next| next.first);
        let bytes = self.bytes_of(from, next);
        let cut = at.checked_sub(1).map(|at| &mut self.extents[at]);
        if let Some(extent) = cut.filter(|extent| from < next && extent.segment != NOWHERE) {
            assert!(bytes <= extent.bytes, "{bytes} bytes of the items of {extent:?}");
            extent.bytes -= bytes;
            behind.extents.push(SegmentExtent { first: from, bytes, ..*extent });
        }
        behind.extents.extend(self.extents.drain(at..));
        behind.chunks = self.chunks.split_off(self.chunks.partition_point(|c| c.end() <= from));
        if let Some(chunk) = behind.chunks.front_mut().filter(|chunk| chunk.first() < from) {
            let right = chunk.split_off(from);
            self.push_chunk(std::mem::replace(chunk, right));
        }
        let first = behind.first().unwrap_or(from);
        behind.push_term(first, self.term(first));
        let later = self.terms.partition_point(|(from, _)| *from <= first);
        behind.terms.extend(self.terms.drain(later..));
        self.terms.truncate(self.terms.partition_point(|(at, _)| *at < from));
        self.trim_hole();
        behind
    }

    /// The three lists begin with the same entry, and no hole is at an end.
    fn check_ends(&self) {
        let first = self.first();
        debug_assert_eq!(self.extents.first().map(|extent| extent.first), first);
        debug_assert_eq!(self.terms.first().map(|(first, _)| *first), first);
        debug_assert!(self.extents.first().is_none_or(|extent| extent.segment != NOWHERE));
        debug_assert!(self.extents.last().is_none_or(|extent| extent.segment != NOWHERE));
    }

    /// A hole needs entries behind it.
    fn trim_hole(&mut self) {
        self.extents.pop_if(|extent| extent.segment == NOWHERE);
    }

    fn push_extent(&mut self, first: u64, segment: u64, bytes: u64) {
        let end = self.end().unwrap_or(first);
        assert!(end <= first, "entries from {first} on come behind those up to {end}");
        if end < first {
            item_chunk::grow(&mut self.extents, usize::MAX);
            self.extents.push(SegmentExtent { first: end, segment: NOWHERE, bytes: 0 });
        }
        match self.extents.last_mut() {
            Some(last) if last.segment == segment => last.bytes += bytes,
            _ => {
                item_chunk::grow(&mut self.extents, usize::MAX);
                self.extents.push(SegmentExtent { first, segment, bytes });
            }
        }
    }

    fn push_chunk(&mut self, chunk: ItemChunk) {
        if self.chunks.len() == self.chunks.capacity() {
            self.chunks.reserve_exact((self.chunks.len() / 4).max(1));
        }
        self.chunks.push_back(chunk);
    }

    fn push_term(&mut self, first: u64, term: u64) {
        if self.terms.last().is_none_or(|(_, last)| *last != term) {
            item_chunk::grow(&mut self.terms, usize::MAX);
            self.terms.push((first, term));
        }
    }

    fn extent_end(&self, at: usize) -> u64 {
        self.extents.get(at + 1).map_or_else(|| self.end().unwrap_or(0), |next| next.first)
    }

    /// Bytes of the items whose first live entry is in `from .. end`.
    fn bytes_of(&self, from: u64, end: u64) -> u64 {
        let begin = self.chunks.partition_point(|chunk| chunk.end() <= from);
        let chunks = self.chunks.range(begin..).take_while(|chunk| chunk.first() < end);
        chunks.map(|chunk| chunk.bytes_of(from, end)).sum()
    }
}

fn free(extent: SegmentExtent, entries: u64, bytes: u64, freed: &mut impl FnMut(u64, LiveUsage)) {
    if extent.segment != NOWHERE {
        freed(extent.segment, LiveUsage { entries, keys: 0, bytes });
    }
}

/// Items in the order of their entries.
#[derive(Clone, Debug)]
pub(crate) struct EntryRuns<'a> {
    extents: &'a Extents,
    chunk: usize,
    item: usize,
    extent: usize,
}

impl Iterator for EntryRuns<'_> {
    type Item = EntryRun;

    fn next(&mut self) -> Option<EntryRun> {
        let chunk = self.extents.chunks.get(self.chunk)?;
        let (item, first, end) = chunk.item(self.item);
        self.item += 1;
        if self.item == chunk.item_count() {
            (self.chunk, self.item) = (self.chunk + 1, 0);
        }
        while self.extents.extents.get(self.extent + 1).is_some_and(|next| next.first <= first) {
            self.extent += 1;
        }
        let segment = self.extents.extents[self.extent].segment;
        Some(EntryRun { first, end, segment, offset: item.offset, item_bytes: item.bytes })
    }
}

#[cfg(test)]
mod tests;
