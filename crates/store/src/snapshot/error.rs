//! Why a snapshot is not received.

use bytes::Bytes;
use flotilla_base::fields::Malformed;
use flotilla_base::redact::LogKey;
use flotilla_region::StageId;

use super::end::SnapshotEnd;
use crate::error::Error;
use crate::schema::MalformedRow;

/// Why a snapshot is not received. The store is not affected: the stage is gone, its pages are free
/// again, and the sender may begin anew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The head is not one that this store could install. A mistake of the sender.
    #[error("the snapshot is not one for this store: {0}")]
    InvalidHead(&'static str),
    /// There is no such stage: it was dropped after an error, discarded, or installed.
    #[error("there is no stage {0}")]
    NotFound(StageId),
    /// The end of the snapshot was there already.
    #[error("stage {0} is whole already")]
    Whole(StageId),
    /// Bytes that are not of the format, or of another version.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A row that is not of the format, or of another version.
    #[error("{0}")]
    MalformedRow(String),
    /// The bytes of the chunk were changed on their way.
    #[error("the checksum of chunk {expected} does not hold")]
    Checksum {
        /// The chunk that was due.
        expected: u64,
    },
    /// Another chunk was due.
    #[error("chunk {found} came where {expected} was due")]
    ChunkOrder {
        /// The chunk that was due.
        expected: u64,
        /// The chunk that came.
        found: u64,
    },
    /// The chunk is longer than any could be.
    #[error("a chunk of {bytes} bytes")]
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The keys do not rise.
    #[error("key {} is not above the one before it", LogKey(key))]
    KeyOrder {
        /// The key.
        key: Bytes,
    },
    /// A key is beyond the region's range.
    #[error("key {} is not in the region", LogKey(key))]
    KeyNotInRegion {
        /// The key.
        key: Bytes,
    },
    /// There are more rows than were offered.
    #[error("more than the {rows} rows that were offered")]
    MoreThanOffered {
        /// How many were offered.
        rows: u64,
    },
    /// The chunks were not all that the end counts.
    #[error("the snapshot has {expected:?}, but {found:?} has come")]
    Incomplete {
        /// The sender's count.
        expected: SnapshotEnd,
        /// The own one.
        found: SnapshotEnd,
    },
    /// The disk has no room.
    #[error("the disk has no room for the snapshot")]
    NoSpace,
    /// The page store could not take it.
    #[error("pages: {0}")]
    Pages(#[source] flotilla_pagestore::Error),
}

impl From<flotilla_pagestore::Error> for StageError {
    fn from(error: flotilla_pagestore::Error) -> Self {
        match error {
            flotilla_pagestore::Error::NoSpace => Self::NoSpace,
            error => Self::Pages(error),
        }
    }
}

impl From<Error> for StageError {
    fn from(error: Error) -> Self {
        match error {
            Error::Pages(error) => error.into(),
            error => Self::MalformedRow(error.to_string()),
        }
    }
}

impl From<MalformedRow> for StageError {
    fn from(MalformedRow(what): MalformedRow) -> Self {
        Self::MalformedRow(what)
    }
}
