//! Errors of the store and of its reads.

use bytes::Bytes;
use flotilla_base::fields::Malformed;
use flotilla_base::redact::LogKey;
use flotilla_kv::ColumnFamily;
use flotilla_region::{Descriptor, Index, RegionId};

use crate::schema::MalformedRow;

/// Why the store could not do what was asked.
///
/// An error may occur on one replica and not on another, so none may be answered by going on: a
/// caller that gets one while logging, applying or making a checkpoint stops the store. An outcome
/// that every replica decides alike is an [`ApplyOutcome`](crate::ApplyOutcome).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The log engine failed.
    #[error("log: {0}")]
    Log(#[from] flotilla_raftlog::Error),
    /// The page store failed. If its disk is full, space can be made and a checkpoint tried again.
    #[error("pages: {0}")]
    Pages(#[from] flotilla_pagestore::Error),
    /// The data directory could not be made.
    #[error("data directory: {0}")]
    Directory(std::io::Error),
    /// This store must not be started on the data directory: a half of it is missing or of another
    /// time, or it is of a version that is not read any more. The text names the remedy.
    #[error("{0}")]
    WrongDirectory(String),
    /// The regions of the first start contradict each other. The settings are wrong.
    #[error("first regions: {0}")]
    Bootstrap(String),
    /// The data on disk cannot have been written by a sound store. Another replica may help.
    #[error("corrupt data: {0}")]
    Corrupt(String),
    /// Rows of a region are lost, and this store has its only voter.
    #[error(
        "a page of region {0} is damaged, and no other store has a replica of it: a backup may have \
         what it held (flotilla restore)"
    )]
    OnlyVoter(RegionId),
    /// A committed entry cannot be read. It was damaged, or made by a newer version. It is never
    /// skipped: the replicas would differ from then on.
    #[error("region {region}: entry {index}: {source}")]
    MalformedEntry {
        /// The region.
        region: RegionId,
        /// The entry.
        index: Index,
        /// The defect.
        source: Malformed,
    },
    /// A snapshot cannot be installed: another region holds a part of its range. Raft has taken it,
    /// so its replica cannot go on.
    #[error("region {region}: a snapshot cannot be installed, region {holder} holds its range")]
    RangeHeld {
        /// The region of the snapshot.
        region: RegionId,
        /// The other one.
        holder: RegionId,
    },
    /// Entries for a region that is not here.
    #[error("region {0} is not on this store")]
    NoRegion(RegionId),
}

impl Error {
    /// Whether the disk has no room. Nothing was written then, and it may be tried again.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(
            self,
            Self::Log(flotilla_raftlog::Error::NoSpace { .. })
                | Self::Pages(flotilla_pagestore::Error::NoSpace)
        )
    }

    /// Whether what is on disk is not what was written there.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Log(flotilla_raftlog::Error::Corrupt { .. })
                | Self::Pages(flotilla_pagestore::Error::Corrupt { .. })
                | Self::Corrupt(_)
        )
    }

    /// Whether log entries were asked for that were compacted or replaced meanwhile: nothing is
    /// wrong, and the caller reads the bounds of the log again.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        use flotilla_raftlog::Error::{Compacted, Unavailable};
        matches!(self, Self::Log(Compacted { .. } | Unavailable { .. }))
    }
}

/// Why a read was not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No such region here. The client looks it up again.
    #[error("the region is not on this store")]
    RegionNotFound,
    /// The region's range has changed since the read was admitted. The client takes this one.
    #[error("region {} has changed", .0.id)]
    EpochNotMatch(Box<Descriptor>),
    /// There is nothing to send: no entry of the region is applied yet. The sender tries later.
    #[error("no entry of the region is applied")]
    NothingApplied,
    /// The page store has ended the view that a snapshot was read from: it held too much space. The
    /// sender gives up and begins anew.
    #[error("the view of the snapshot was ended, because it held too much space")]
    SnapshotTooOld,
    /// The key is in another region. A mistake of the caller.
    #[error("key {} is not in region {}", LogKey(key), descriptor.id)]
    KeyNotInRegion {
        /// The key.
        key: Bytes,
        /// The region.
        descriptor: Box<Descriptor>,
    },
    /// The region has no such column family. A mistake of the caller.
    #[error("the space of the region has no column family {family}")]
    NoFamily {
        /// The family.
        family: ColumnFamily,
    },
    /// The rows are larger than the reader can take at once. A part of them would look like all:
    /// the caller must ask for fewer.
    #[error("the rows exceed {bytes_max} bytes")]
    TooLarge {
        /// The bound that was given.
        bytes_max: u64,
    },
    /// Rows of the region are lost here, until another replica has sent all of them again.
    #[error("the replica is damaged, and is built anew from another one")]
    Damaged,
    /// The page store failed. Reads may be tried again.
    #[error("pages: {0}")]
    Pages(#[from] flotilla_pagestore::Error),
    /// A row cannot be read. Another replica may help.
    #[error("corrupt data: {0}")]
    Corrupt(String),
}

/// The error of a store that had to read the region.
pub(crate) fn read_failed(region: RegionId, error: ReadError) -> Error {
    match error {
        ReadError::RegionNotFound => Error::NoRegion(region),
        ReadError::Pages(error) => Error::Pages(error),
        error => Error::Corrupt(error.to_string()),
    }
}

impl From<MalformedRow> for Error {
    fn from(MalformedRow(what): MalformedRow) -> Self {
        Self::Corrupt(what)
    }
}

impl From<MalformedRow> for ReadError {
    fn from(MalformedRow(what): MalformedRow) -> Self {
        Self::Corrupt(what)
    }
}
