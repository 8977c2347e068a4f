//! A read handle of one group: its bounds, terms and keys from memory, its entries from disk.

use crate::batch::frame::EntryRun;
use crate::batch::log_batch::Entry;
use crate::error::Error;
use crate::index::groups::SharedIndex;
use crate::read::block_cache::BlockCache;
use crate::read::range_read::RangeRead;
use crate::segments::segment::Segments;
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// How many runs are looked up under one lock.
const RUNS_AT_ONCE: usize = 64;

type RunList = SmallVec<[EntryRun; 4]>;

/// A handle of one group, to read from.
///
/// It sees all writes that are applied after it was taken. Once the group is removed it sees an
/// empty log, and nothing of a group that has the same id later.
#[derive(Clone, Debug)]
pub struct Group {
    id: u64,
    index: SharedIndex,
    segments: Arc<Segments>,
    cache: Arc<BlockCache>,
}

impl Group {
    pub(crate) fn new(
        id: u64,
        index: SharedIndex,
        segments: Arc<Segments>,
        cache: Arc<BlockCache>,
    ) -> Group {
        Group { id, index, segments, cache }
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

    /// The append that holds an entry, if the entry is there.
    pub(crate) fn run_of(&self, index: u64) -> Option<EntryRun> {
        let held = self.index.read();
        (held.first() <= index && index < held.next()).then(|| held.run_at(index))
    }

    /// The entries of `range`, or as many from its beginning as have at most `max_bytes` of data
    /// together, but at least one. All are from one state of the log. Never waits for a write.
    ///
    /// Data that is not compressed is not copied: it stays in the mapped file, and such a file is
    /// kept, even if it is purged, until its last entry is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range ends before it begins; [`Error::Compacted`] and
    /// [`Error::Unavailable`] if not all of it is there; [`Error::Corrupt`] if an entry is not what
    /// was written; [`Error::Io`].
    pub fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<Entry>, Error> {
        if range.end < range.start {
            let Range { start, end } = range;
            return Err(Error::Invalid(format!(
                "group {id}: a range from {start} that ends before it begins, at {end}",
                id = self.id
            )));
        }
        let mut read = RangeRead::new(self.id, &self.cache, range, max_bytes);
        while !read.wanted.is_empty() {
            let runs = self.look_up(&mut read)?;
            for runs in runs.chunk_by(|a, b| a.segment == b.segment) {
                // A segment goes only when nothing in it is live: the log has changed since.
                let Some(segment) = self.segments.get(runs[0].segment) else { break };
                if !read.runs(&segment, runs)? {
                    return Ok(read.entries);
                }
            }
        }
        Ok(read.entries)
    }

    /// The next runs that hold wanted entries. If entries that were read before have been replaced
    /// since, the read begins again.
    fn look_up(&self, read: &mut RangeRead<'_>) -> Result<RunList, Error> {
        let index = self.index.read();
        let is_current = |last: &EntryRun| {
            let at = read.wanted.start - 1;
            at >= index.first() && at < index.next() && index.run_at(at).is_same_item(last)
        };
        if !read.last.as_ref().is_none_or(is_current) {
            read.restart();
        }
        if read.wanted.start < index.first() {
            return Err(Error::Compacted { first: index.first() });
        }
        if read.wanted.end > index.next() {
            return Err(Error::Unavailable { last: index.next() - 1 });
        }
        let mut bytes = 0;
        let is_wanted = |run: &EntryRun| {
            let is_wanted = run.first < read.wanted.end && bytes <= read.budget;
            bytes += u64::from(run.item_bytes);
            is_wanted
        };
        let runs = index.runs_from(read.wanted.start);
        let runs: RunList = runs.take(RUNS_AT_ONCE).take_while(is_wanted).collect();
        // Else the caller would look it up for ever.
        assert!(!runs.is_empty(), "group {}: {:?} lies in no run", self.id, read.wanted);
        Ok(runs)
    }
}
