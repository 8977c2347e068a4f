//! The use of a store's disk space for operators: segments of the log with the replicas that hold
//! the oldest one, and trees of the page file.

use flotilla_pagestore::PageStore;
use flotilla_raftlog::{LogEngine, SegmentStats};
use flotilla_region::PeerId;

use crate::error::Error;
use crate::schema::STORE_GROUP;

/// The segments of a store's log.
#[derive(Clone, Debug, Default)]
pub struct LogSegments {
    /// All segments that hold batches, oldest first.
    pub segments: Vec<SegmentStats>,
    /// The holders of live records in the oldest of them: it can be removed once they need none of
    /// it. None if it is the one being written.
    pub holders: Vec<SegmentHolder>,
}

/// A holder of live records in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHolder {
    /// The replica whose log they are of; `None` for the store's own rows.
    pub replica: Option<PeerId>,
    /// Bytes of them.
    pub bytes: u64,
    /// Entries are among them.
    pub has_entries: bool,
}

/// The size of one tree of the page file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSize {
    /// Its name.
    pub name: String,
    /// Keys in it.
    pub keys: u64,
    /// Bytes of its pages and long values.
    pub bytes: u64,
}

/// The segments of a log, and the holders of the oldest one.
pub(crate) fn log_segments(log: &LogEngine) -> Result<LogSegments, Error> {
    let segments = log.segments()?;
    debug_assert!(segments.is_sorted_by_key(|segment| segment.number), "{segments:?}");
    let holders = log.blocking_groups().into_iter().map(|holder| SegmentHolder {
        replica: (holder.group != STORE_GROUP).then_some(PeerId(holder.group)),
        bytes: holder.bytes,
        has_entries: holder.entries,
    });
    Ok(LogSegments { segments, holders: holders.collect() })
}

/// The trees of the page file, as last published.
pub(crate) fn tree_sizes(pages: &PageStore) -> Result<Vec<TreeSize>, Error> {
    let view = pages.read();
    let mut sizes = Vec::new();
    for name in view.tree_names()? {
        if let Some(tree) = view.tree(&name)? {
            debug_assert!(tree.is_empty() || tree.file_bytes() > 0, "tree {name} has no pages");
            sizes.push(TreeSize { keys: tree.len(), bytes: tree.file_bytes(), name });
        }
    }
    Ok(sizes)
}
