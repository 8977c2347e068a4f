//! A read of a range of entries: from mapped files, one append after the other.
//!
//! Uncompressed data is returned without a copy, as slices of the mapping; such a slice keeps the
//! segment's file. Compressed blocks are decompressed once and cached for a while. Each entry is
//! checked by its checksum before it is returned. Reads are mapped by
//! `docs/decisions/0011-mapped-reads.md`.

use crate::batch::frame::EntryRun;
use crate::batch::log_batch::Entry;
use crate::error::Error;
use crate::format::block::{BlockCodec, PlacedBlock};
use crate::format::item::{self, AppendHead};
use crate::format::lz4;
use crate::read::block_cache::{BlockCache, BlockId};
use crate::read::read_ahead::{self, RUNS_PER_LOOK};
use crate::segments::segment::Segment;
use bytes::Bytes;
use flotilla_base::prefetch;
use flotilla_vfs::View;
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// The first capacity for entries; the list grows from there.
const ROOM_MAX: u64 = 64;
/// The length of a head without its rows, about.
const HEAD_PREFIX_BYTES: usize = 24;
/// The length of a row of the head, at most.
const HEAD_ROW_BYTES: usize = 8;
/// This many stored bytes have one row in the block table, about: 4 KiB that compress to the half.
const STORED_BYTES_OF_BLOCK: usize = 2 << 10;
const BLOCK_ROW_BYTES: usize = 9;
/// Of a longer head, and of the bytes before and behind the expected place of an entry, no more
/// than this is prefetched.
const AHEAD_BYTES: usize = 2 << 10;

const CUT_SHORT: &str = "an append is cut short";

/// A read of a range in progress.
#[derive(Debug)]
pub(crate) struct RangeRead<'a> {
    group: u64,
    cache: &'a BlockCache,
    /// The entries that are still to be read.
    pub(crate) wanted: Range<u64>,
    max_bytes: u64,
    pub(crate) budget: u64,
    pub(crate) entries: Vec<Entry>,
    /// The run that held the last entry.
    pub(crate) last: Option<EntryRun>,
}

/// Stored bytes, and the segment that they lie in: its file is recycled only when no reader holds
/// it.
#[derive(Debug)]
struct PinnedView {
    view: View,
    _segment: Arc<Segment>,
}

/// Mapped bytes of a segment, of which entries are slices.
struct MappedItems<'a> {
    segment: &'a Arc<Segment>,
    view: View,
    /// Their offset in the segment.
    begin: u64,
    /// The same bytes, once an entry is a slice of them: all entries share one owner.
    shared: OnceCell<Bytes>,
}

/// The block of the entry that was read last.
struct EntryBlock {
    block: PlacedBlock,
    /// Its raw bytes, if they are not a slice of the mapping.
    unpacked: Option<Bytes>,
}

impl<'a> RangeRead<'a> {
    pub(crate) fn new(
        group: u64,
        cache: &'a BlockCache,
        wanted: Range<u64>,
        max_bytes: u64,
    ) -> RangeRead<'a> {
        let entries = Vec::with_capacity((wanted.end - wanted.start).min(ROOM_MAX) as usize);
        RangeRead { group, cache, wanted, max_bytes, budget: max_bytes, entries, last: None }
    }

    /// Forgets what was read, and begins again.
    pub(crate) fn restart(&mut self) {
        let next = self.entries.last().map(|entry| entry.index + 1);
        debug_assert!(next.is_none_or(|next| next == self.wanted.start), "{:?}", self.wanted);
        self.wanted.start -= self.entries.len() as u64;
        self.budget = self.max_bytes;
        self.entries.clear();
        self.last = None;
    }

    /// Reads the wanted entries of consecutive runs, all in `segment`; the first run holds the next
    /// wanted entry. False once no entry is wanted any more or there is no room for it.
    pub(crate) fn runs(
        &mut self,
        segment: &Arc<Segment>,
        runs: &[EntryRun],
    ) -> Result<bool, Error> {
        let of_all = MappedItems::of_all(segment, runs)?;
        let mut is_announced = false;
        for (number, run) in runs.iter().enumerate() {
            let own;
            let source = match &of_all {
                Some(source) => source,
                None => {
                    own = MappedItems::of(segment, run)?;
                    &own
                }
            };
            if number == 0 || of_all.is_none() {
                prefetch_item(source.item(run), run, self.wanted.start);
            }
            if !is_announced && number.is_multiple_of(RUNS_PER_LOOK) {
                let rest = if of_all.is_some() { &runs[number..] } else { &runs[number..=number] };
                let (view, begin) = (&source.view, source.begin);
                is_announced = read_ahead::look(&*segment.file, view, begin, rest, &self.wanted);
            }
            if let (Some(next), Some(source)) = (runs.get(number + 1), &of_all) {
                prefetch_item(source.item(next), next, next.first);
            }
            let offset = u64::from(run.offset);
            let corrupt = |what| Error::Corrupt { segment: run.segment, offset, what };
            self.run(source, *run).map_err(corrupt)?;
            self.last = Some(*run);
            if self.wanted.start != run.end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn run(&mut self, source: &MappedItems<'_>, run: EntryRun) -> Result<(), &'static str> {
        debug_assert!((run.first..run.end).contains(&self.wanted.start), "{:?}", self.wanted);
        let begin = (u64::from(run.offset) - source.begin) as usize;
        let item = source.item(&run);
        let head = AppendHead::open(item)?;
        let item_bytes = head.stored_bytes.saturating_add(head.head_bytes as u64);
        if head.group != self.group
            || !head.holds(self.wanted.start, 1)
            || item_bytes != item.len() as u64
        {
            return Err("an append is not the one that was written");
        }
        let stop = self.wanted.end.min(run.end).min(head.first + head.count);
        let mut terms = head.terms();
        let (mut term, mut term_end) = (0, head.first);
        let mut part: Option<EntryBlock> = None;
        while self.wanted.start < stop {
            let index = self.wanted.start;
            while term_end <= index {
                let (count, of_run) = terms.next().ok_or("an entry of an append has no term")?;
                (term, term_end) = (of_run, term_end.saturating_add(count));
            }
            let at = index - head.first;
            let (row, raw) = head.row(at)?;
            // The first entry always comes, or a long one could never be read.
            if !self.entries.is_empty() && row.data_bytes > self.budget {
                return Ok(());
            }
            let part = match &mut part {
                Some(part) if part.block.entries.contains(&at) => part,
                other => {
                    let block = head.block_of(at)?;
                    other.insert(self.part(&run, item, &head, block, at..stop - head.first)?)
                }
            };
            let (data, place) = part.data(source, begin, &raw)?;
            if item::entry_checksum(self.group, index, term, row.kind, &data[place.clone()])
                != row.checksum
            {
                return Err("an entry fails its checksum");
            }
            self.entries.push(Entry { index, term, kind: row.kind, data: data.slice(place) });
            self.budget = self.budget.saturating_sub(row.data_bytes);
            self.wanted.start += 1;
        }
        Ok(())
    }

    /// A block, or the beginning of it up to the last of the `wanted` entries, some of which may
    /// lie in later blocks.
    fn part(
        &self,
        run: &EntryRun,
        item: &[u8],
        head: &AppendHead<'_>,
        block: PlacedBlock,
        wanted: Range<u64>,
    ) -> Result<EntryBlock, &'static str> {
        if block.codec == BlockCodec::Raw {
            return Ok(EntryBlock { block, unpacked: None });
        }
        // The next block is prefetched while this one is decompressed.
        let ahead = if wanted.end > block.entries.end { AHEAD_BYTES } else { 0 };
        let wanted = wanted.start..wanted.end.min(block.entries.end);
        let id = BlockId { segment: run.segment, offset: run.offset, number: block.number };
        // Several entries that are a whole block: to decompress it is as quick as to fetch it from
        // memory that was not used for a while.
        let is_cached = wanted != block.entries || wanted.end - wanted.start == 1;
        if let Some(raw) = is_cached.then(|| self.cache.get(id)).flatten() {
            return Ok(EntryBlock { block, unpacked: Some(raw) });
        }
        let stored = item.get(block.stored.clone()).ok_or(CUT_SHORT)?;
        prefetch::bytes(stored);
        let (raw_bytes, is_kept) = (block.raw_bytes(), is_cached && self.cache.wants(id));
        let (_, last) = head.row(wanted.end - 1)?;
        let needed = last.end.checked_sub(block.raw.start).ok_or(CUT_SHORT)? as usize;
        let needed = if is_kept { raw_bytes } else { needed.min(raw_bytes) };
        let raw = Bytes::from(lz4::decompress(stored, raw_bytes, needed, ahead)?);
        if is_kept {
            self.cache.insert(id, &raw);
        }
        Ok(EntryBlock { block, unpacked: Some(raw) })
    }
}

/// Prefetches the bytes that a read of the entry `index` of an append will need: the head, and the
/// place of the entry if all are equally long. Both come from memory at once, where the second
/// would wait for the first: measured, a tenth of the time of reading one entry. A wrong guess
/// costs no more than that.
fn prefetch_item(item: &[u8], run: &EntryRun, index: u64) {
    let count = usize::try_from(run.end - run.first).unwrap_or(usize::MAX).max(1);
    let past = (index.saturating_sub(run.first) as usize).min(count - 1);
    let blocks_bytes = item.len() / STORED_BYTES_OF_BLOCK * BLOCK_ROW_BYTES;
    let head_bytes = count.saturating_mul(HEAD_ROW_BYTES).saturating_add(HEAD_PREFIX_BYTES);
    let head_bytes = head_bytes.saturating_add(blocks_bytes).min(item.len());
    prefetch::bytes(&item[..head_bytes.min(AHEAD_BYTES)]);
    let entry_bytes = (item.len() - head_bytes) / count;
    let begin = head_bytes + entry_bytes * past;
    // An entry is read from the beginning of its block on, so those before it are needed too.
    let end = begin + entry_bytes.min(AHEAD_BYTES);
    prefetch::bytes(&item[begin.saturating_sub(AHEAD_BYTES)..end]);
}

impl EntryBlock {
    /// The shared bytes that hold the range `raw` of the append's data, and its range in them. The
    /// append is at `begin` of the source.
    fn data<'s>(
        &'s self,
        source: &'s MappedItems<'_>,
        begin: usize,
        raw: &Range<u64>,
    ) -> Result<(&'s Bytes, Range<usize>), &'static str> {
        let from = raw.start.checked_sub(self.block.raw.start).ok_or(CUT_SHORT)? as usize;
        let to = raw.end.checked_sub(self.block.raw.start).ok_or(CUT_SHORT)? as usize;
        if to > self.block.raw_bytes() {
            return Err(CUT_SHORT);
        }
        let (bytes, begin) = match &self.unpacked {
            Some(bytes) => (bytes, 0),
            None => (source.shared(), begin + self.block.stored.start),
        };
        let place = begin + from..begin + to;
        if place.end > bytes.len() { Err(CUT_SHORT) } else { Ok((bytes, place)) }
    }
}

impl<'a> MappedItems<'a> {
    /// The bytes of one run.
    fn of(segment: &'a Arc<Segment>, run: &EntryRun) -> Result<MappedItems<'a>, Error> {
        let begin = u64::from(run.offset);
        let view = segment.file.view(begin..begin + u64::from(run.item_bytes))?;
        Ok(MappedItems { segment, view, begin, shared: OnceCell::new() })
    }

    /// The bytes of all runs, and those between them, if that costs no copy. All of them were
    /// written before the last run was, and do not change any more.
    fn of_all(
        segment: &'a Arc<Segment>,
        runs: &[EntryRun],
    ) -> Result<Option<MappedItems<'a>>, Error> {
        if runs.len() < 2 {
            return Ok(None);
        }
        let begins = runs.iter().map(|run| u64::from(run.offset));
        let ends = runs.iter().map(|run| u64::from(run.offset) + u64::from(run.item_bytes));
        let (Some(begin), Some(end)) = (begins.min(), ends.max()) else { return Ok(None) };
        let view = segment.file.view_mapped(begin..end)?;
        Ok(view.map(|view| MappedItems { segment, view, begin, shared: OnceCell::new() }))
    }

    /// The bytes of one of the runs.
    fn item(&self, run: &EntryRun) -> &[u8] {
        let begin = (u64::from(run.offset) - self.begin) as usize;
        &self.view[begin..begin + run.item_bytes as usize]
    }

    fn shared(&self) -> &Bytes {
        self.shared.get_or_init(|| {
            let (view, segment) = (self.view.clone(), self.segment.clone());
            Bytes::from_owner(PinnedView { view, _segment: segment })
        })
    }
}

impl AsRef<[u8]> for PinnedView {
    fn as_ref(&self) -> &[u8] {
        &self.view
    }
}
