//! Entries from the log, for followers that are far behind and for the start.

use flotilla_raftlog::{Entry, Group, LogEngine};
use flotilla_region::{EntryKind, Index, LogEntry, LogFetch, Term};

use crate::error::Error;

/// The entries that a region asks for: at least one, and not many more bytes than it wants.
pub(crate) fn fetch(engine: &LogEngine, fetch: &LogFetch) -> Result<Vec<LogEntry>, Error> {
    // A group that the log holds nothing of has been compacted to its end.
    let group = engine.group(fetch.peer.0).ok_or(compacted(fetch.high))?;
    read(&group, fetch.low, fetch.high, fetch.bytes_max)
}

/// The entries from `low` to below `high`, or fewer after `bytes_max` bytes, but at least one.
pub(crate) fn read(
    group: &Group,
    low: Index,
    high: Index,
    bytes_max: u64,
) -> Result<Vec<LogEntry>, Error> {
    let entries = group.entries(low.0..high.0, bytes_max)?;
    let (first, last) = (entries.first(), entries.last());
    // Raft takes them as they come.
    assert!(
        first.is_some_and(|first| first.index == low.0)
            && last.is_some_and(|last| last.index < high.0),
        "entries from {low} to below {high} are {:?} to {:?}",
        first.map(|first| first.index),
        last.map(|last| last.index)
    );
    entries.into_iter().map(from_logged).collect()
}

fn compacted(first: Index) -> Error {
    flotilla_raftlog::Error::Compacted { first: first.0 }.into()
}

fn from_logged(entry: Entry) -> Result<LogEntry, Error> {
    let kind = EntryKind::from_byte(entry.kind)
        .map_err(|error| Error::Corrupt(format!("entry {} in the log: {error}", entry.index)))?;
    Ok(LogEntry { index: Index(entry.index), term: Term(entry.term), kind, data: entry.data })
}
