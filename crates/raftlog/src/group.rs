//! One group, to read: its bounds, terms and keys from memory, its entries from disk.

use crate::batch::Entry;
use crate::error::Error;
use crate::extents::Run;
use crate::groups::SharedIndex;
use crate::item::{self, AppendHead, Row};
use crate::segment::{Segment, Segments};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// How much of an append is read at once, before it is known where the wanted entries are.
const FIRST_READ_BYTES: u32 = 64 << 10;
/// How many runs are looked up under one lock.
const RUNS_AT_ONCE: usize = 64;

/// A handle of one group, to read from.
///
/// It sees what is written after it was taken. Once the group is removed it sees an empty log, and
/// nothing of a group that has the same id later.
#[derive(Clone, Debug)]
pub struct Group {
    id: u64,
    index: SharedIndex,
    segments: Arc<Segments>,
}

impl Group {
    pub(crate) fn new(id: u64, index: SharedIndex, segments: Arc<Segments>) -> Group {
        Group { id, index, segments }
    }

    /// The first index there is or, if the log is empty, the next. 1 if it has not begun.
    #[must_use]
    pub fn first_index(&self) -> u64 {
        self.index.read().first()
    }

    /// The last index there is; one less than the first if the log is empty.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.index.read().next() - 1
    }

    /// Bytes that the group's entries take in the log: of each append with an entry that is still
    /// there, all of it. Costs a look at each stretch of neighbouring entries in one segment.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.index.read().entry_bytes()
    }

    /// The term of an entry, or of the one just before the first. Never reads from disk.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] below, [`Error::Unavailable`] above what there is.
    pub fn term(&self, index: u64) -> Result<u64, Error> {
        self.index.read().term(index)
    }

    /// First index and term of each run of entries that have one term.
    #[must_use]
    pub fn term_runs(&self) -> Vec<(u64, u64)> {
        self.index.read().term_runs()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.index.read().get(key)
    }

    /// All keys and values, by key.
    #[must_use]
    pub fn scan(&self) -> Vec<(Bytes, Bytes)> {
        self.index.read().scan()
    }

    /// The entries of `range`, or as many from its beginning as have at most `max_bytes` of data
    /// together, but at least one. All are from one state of the log. Never waits for a write.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range ends before it begins; [`Error::Compacted`] and
    /// [`Error::Unavailable`] if not all of it is there; [`Error::Corrupt`] if an entry is not what
    /// was written; [`Error::Io`].
    pub fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<Entry>, Error> {
        if range.end < range.start {
            return Err(Error::Invalid("a range that ends before it begins"));
        }
        let mut read = Read { wanted: range, budget: max_bytes, entries: Vec::new(), last: None };
        while !read.wanted.is_empty() {
            let runs = self.look_up(&mut read, max_bytes)?;
            for run in runs {
                // A segment goes only when nothing in it is live: the log has changed since.
                let Some(segment) = self.segments.get(run.segment) else { break };
                if !read.run(self.id, &segment, run)? {
                    return Ok(read.entries);
                }
            }
        }
        Ok(read.entries)
    }

    /// The next runs that hold wanted entries. If what was read before has been replaced since, the
    /// read begins again.
    fn look_up(&self, read: &mut Read, max_bytes: u64) -> Result<Vec<Run>, Error> {
        let index = self.index.read();
        let is_current = |last: &Run| {
            let at = read.wanted.start - 1;
            at >= index.first() && at < index.next() && index.run_at(at).is_same_item(last)
        };
        if !read.last.as_ref().is_none_or(is_current) {
            read.restart(max_bytes);
        }
        if read.wanted.start < index.first() {
            return Err(Error::Compacted { first: index.first() });
        }
        if read.wanted.end > index.next() {
            return Err(Error::Unavailable { last: index.next() - 1 });
        }
        Ok(index.runs_from(read.wanted.start, RUNS_AT_ONCE))
    }
}

/// A read of a range in progress.
struct Read {
    /// What is still to be read.
    wanted: Range<u64>,
    budget: u64,
    entries: Vec<Entry>,
    /// The run that held the last entry.
    last: Option<Run>,
}

impl Read {
    fn restart(&mut self, max_bytes: u64) {
        self.wanted.start -= self.entries.len() as u64;
        self.budget = max_bytes;
        self.entries.clear();
        self.last = None;
    }

    /// Reads what is wanted of the run. False once there is no room for more.
    fn run(&mut self, group: u64, segment: &Segment, run: Run) -> Result<bool, Error> {
        let corrupt =
            |what| Error::Corrupt { segment: run.segment, offset: u64::from(run.offset), what };
        let mut bytes = read_item(segment, run, 0..run.item_bytes.min(FIRST_READ_BYTES))?;
        let head_bytes = AppendHead::length(&bytes).map_err(corrupt)?;
        if head_bytes > bytes.len() {
            let head_bytes = u32::try_from(head_bytes).ok().filter(|b| *b <= run.item_bytes);
            let head_bytes = head_bytes.ok_or_else(|| corrupt("an append is cut short"))?;
            bytes = read_item(segment, run, 0..head_bytes)?;
        }
        let head = AppendHead::decode(&bytes).map_err(corrupt)?;
        let past = self.wanted.start.checked_sub(head.first).map(|past| past as usize);
        let rows = past.and_then(|past| head.rows.split_at_checked(past));
        let Some((past, rows)) = rows.filter(|_| head.group == group) else {
            return Err(corrupt("an append is not the one that was written"));
        };
        let rows = self.fitting(rows, run.end);
        let begin = head.head_bytes as u64 + data_bytes(past);
        let end = begin + data_bytes(rows);
        if end > u64::from(run.item_bytes) {
            return Err(corrupt("an append is cut short"));
        }
        let data = if end <= bytes.len() as u64 {
            Bytes::from(bytes).slice(begin as usize..end as usize)
        } else {
            Bytes::from(read_item(segment, run, begin as u32..end as u32)?)
        };
        self.take(group, &head, rows, data).map_err(corrupt)?;
        self.last = Some(run);
        Ok(self.wanted.start == run.end)
    }

    /// The rows, from the first on, that are wanted and fit into the budget.
    fn fitting<'a>(&self, rows: &'a [Row], end: u64) -> &'a [Row] {
        let wanted = self.wanted.end.min(end) - self.wanted.start;
        let mut budget = self.budget;
        let mut is_first = self.entries.is_empty();
        let fits = |row: &&Row| {
            let fits = is_first || row.data_bytes <= budget;
            budget = budget.saturating_sub(row.data_bytes);
            is_first = false;
            fits
        };
        let count = rows.iter().take(wanted as usize).take_while(fits).count();
        &rows[..count]
    }

    /// Proves each entry and keeps it.
    fn take(
        &mut self,
        group: u64,
        head: &AppendHead,
        rows: &[Row],
        mut data: Bytes,
    ) -> Result<(), &'static str> {
        for row in rows {
            let index = self.wanted.start;
            let term = head.term(index).ok_or("the terms of an append do not cover its entries")?;
            let data = data.split_to(row.data_bytes as usize);
            if item::entry_checksum(group, index, term, row.kind, &data) != row.checksum {
                return Err("an entry fails its checksum");
            }
            self.entries.push(Entry { index, term, kind: row.kind, data });
            self.budget = self.budget.saturating_sub(row.data_bytes);
            self.wanted.start += 1;
        }
        Ok(())
    }
}

fn read_item(segment: &Segment, run: Run, part: Range<u32>) -> Result<Vec<u8>, Error> {
    let offset = u64::from(run.offset) + u64::from(part.start);
    Ok(segment.read(offset, (part.end - part.start) as usize)?)
}

fn data_bytes(rows: &[Row]) -> u64 {
    // Rows come from disk: wrong ones must not wrap around, so that the sum is seen to be too big.
    rows.iter().fold(0, |sum, row| sum.saturating_add(row.data_bytes).min(u64::MAX / 4))
}
