//! The errors of a log: one variant for each way in which a caller acts on it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// An error of a log.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused while the log was opened, read or purged. Nothing was lost; the
    /// caller may ask again.
    #[error("input or output failed: {0}")]
    Io(Arc<io::Error>),
    /// Bytes on disk are not what was written. Nothing was changed; an operator must decide.
    #[error("segment {segment} is corrupt at byte {offset}: {what}")]
    Corrupt {
        /// The segment's number; its file is named after it.
        segment: u64,
        /// Where in the file the damage begins, as far as that is known.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// The entries were compacted away. The caller needs a snapshot instead.
    #[error("entries below {first} are compacted")]
    Compacted {
        /// The first index that is still there.
        first: u64,
    },
    /// The entries have not been appended, or were replaced by a shorter log.
    #[error("entries above {last} do not exist")]
    Unavailable {
        /// The last index that there is.
        last: u64,
    },
    /// An append or truncation would leave a hole. The caller's view of the group is wrong; nothing
    /// was written.
    #[error("group {group}: {got} is behind a hole, {expected} is next")]
    Gap {
        /// The group.
        group: u64,
        /// The greatest index at which an append or truncation may begin.
        expected: u64,
        /// The index at which it would have begun.
        got: u64,
    },
    /// An append or truncation below the first index, which is compacted. Nothing was written.
    #[error("group {group}: {got} is stale, the log begins at {first}")]
    Stale {
        /// The group.
        group: u64,
        /// The least index at which an append or truncation may begin.
        first: u64,
        /// The index at which it would have begun.
        got: u64,
    },
    /// The request makes no sense, whatever the log holds. Nothing was written.
    #[error("not a valid request: {0}")]
    Invalid(String),
    /// The batch is over the limit of [`crate::Config::batch_bytes_max`]. The caller splits it.
    #[error("a batch of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// The batch's size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Backpressure: too many bytes are queued already, see [`crate::Config::queue_bytes_max`]. The
    /// caller waits for a commit that it holds, or flushes, and builds the batch again.
    #[error("{bytes} bytes are queued, the limit is {limit}")]
    Busy {
        /// Bytes queued and not yet completed.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A write or a sync has failed: the state on disk beyond the last good sync is unknown. The
    /// batch is not acknowledged, and the log takes no more of them until it is opened again.
    /// Entries synced before can still be read.
    #[error("the log takes no more writes since one failed: {0}")]
    Poisoned(Arc<io::Error>),
    /// Another process, or another engine in this one, has the directory open.
    #[error("the log in {dir} is in use by somebody else", dir = dir.display())]
    Locked {
        /// The log's directory.
        dir: PathBuf,
    },
    /// The disk has no room for another segment. Nothing of the batch was written; once there is
    /// room, writes go on. Small batches that only free space still find a reserve.
    #[error("no space left for another segment in {dir}", dir = dir.display())]
    NoSpace {
        /// The log's directory.
        dir: PathBuf,
    },
    /// The log was opened for reading only. Nothing was written.
    #[error("the log is open for reading only")]
    ReadOnly,
    /// There is no such directory, or no file of a log in it.
    #[error("there is no log in {dir}", dir = dir.display())]
    NoLog {
        /// The directory.
        dir: PathBuf,
    },
    /// The log was written by another version, which this one cannot read. Nothing was changed.
    #[error(
        "segment {segment} has version {version} of the format, which this program cannot read"
    )]
    UnknownFormat {
        /// The segment.
        segment: u64,
        /// Its version.
        version: u32,
    },
    /// The disk quota allows no other segment, see [`crate::Config::disk_bytes_max`]. Nothing of
    /// the batch was written; once purge has removed segments, writes go on. Batches that only free
    /// space pass.
    #[error("the log would take {bytes} bytes of disk, the limit for what adds to it is {limit}")]
    Full {
        /// Bytes that the log would take with another segment.
        bytes: u64,
        /// The limit, less the room that purge needs for rewrites.
        limit: u64,
    },
    /// The group that was asked for is not there.
    #[error("there is no group {group}")]
    NoGroup {
        /// The group.
        group: u64,
    },
    /// A group cannot be imported where it is already. Nothing of it was written.
    #[error("group {group} is there already")]
    GroupExists {
        /// The group.
        group: u64,
    },
    /// A stream is not what an export has written.
    #[error("the stream is damaged at byte {offset}: {what}")]
    Stream {
        /// How many bytes of it were read by then, about.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// The engine went away before it wrote the batch.
    #[error("the log was closed before the batch was written")]
    Closed,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(Arc::new(error))
    }
}
