//! Asynchronous fetches: reads of old entries that raft waits for while another thread carries them
//! out.
//!
//! Raft asks again at every heartbeat while an answer is under way, so one fetch serves all
//! requests from the same entry on.

use crate::codec;
use flotilla_raftlog::{Entry as LogEntry, Error, LogEngine};
use raft::GetEntriesContext;
use raft::eraftpb::Entry;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// The most fetches under way, and requests for one. Beyond, raft asks again.
const FETCHES_MAX: usize = 16;

/// A read that raft waits for. It may be carried out by any thread; if it is dropped instead, raft
/// asks again.
#[derive(Debug)]
pub struct Fetch {
    log: LogEngine,
    group: u64,
    range: Range<u64>,
    bytes_max: u64,
    alive: Arc<()>,
}

/// The outcome of a [`Fetch`], for the node whose storage asked.
#[derive(Debug)]
pub struct Fetched {
    pub(crate) low: u64,
    pub(crate) result: Result<Vec<Entry>, Error>,
    _alive: Arc<()>,
}

impl Fetch {
    /// The group to read.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.group
    }

    /// Reads from the log. This waits for the disk.
    #[must_use]
    pub fn read(self) -> Fetched {
        let result = read(&self.log, self.group, self.range.clone(), self.bytes_max);
        Fetched { low: self.range.start, result, _alive: self.alive }
    }
}

/// The reads of one group that are under way.
#[derive(Debug, Default)]
pub(crate) struct PendingFetches {
    /// By first entry: whether the fetch still exists, and the requests that it serves.
    pending: BTreeMap<u64, (Weak<()>, Vec<GetEntriesContext>)>,
    new: Vec<Fetch>,
    /// The fetched entries, while raft reads them.
    pub(crate) fetched: Vec<Entry>,
}

impl PendingFetches {
    /// Adds a request for the range.
    pub(crate) fn want(
        &mut self,
        log: &LogEngine,
        group: u64,
        range: Range<u64>,
        bytes_max: u64,
        asker: GetEntriesContext,
    ) {
        let low = range.start;
        self.pending.retain(|_, (alive, _)| alive.strong_count() > 0);
        if let Some((_, askers)) = self.pending.get_mut(&low) {
            if askers.len() < FETCHES_MAX {
                askers.push(asker);
            }
        } else if self.pending.len() < FETCHES_MAX {
            let alive = Arc::new(());
            self.pending.insert(low, (Arc::downgrade(&alive), vec![asker]));
            self.new.push(Fetch { log: log.clone(), group, range, bytes_max, alive });
        }
    }

    pub(crate) fn take_new(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.new)
    }

    /// Ends a fetch. Returns the requests that it serves.
    pub(crate) fn end(&mut self, low: u64) -> Vec<GetEntriesContext> {
        self.pending.remove(&low).map(|(_, askers)| askers).unwrap_or_default()
    }
}

/// Entries from the log, up to `bytes_max` bytes of data and at least one.
pub(crate) fn read(
    log: &LogEngine,
    group: u64,
    range: Range<u64>,
    bytes_max: u64,
) -> Result<Vec<Entry>, Error> {
    let Some(held) = log.group(group) else { return Err(Error::Unavailable { last: 0 }) };
    let from_log = |entry: LogEntry| {
        let index = entry.index;
        let wrong = |what| Error::Invalid(format!("group {group}, entry {index}: {what}"));
        codec::entry_from_log(entry).map_err(wrong)
    };
    held.entries(range, bytes_max)?.into_iter().map(from_log).collect()
}
