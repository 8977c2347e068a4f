//! Why the page store could not do what was asked.

use std::io;

/// Why the page store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused to read or write. Reads may be tried again; after a checkpoint that
    /// failed so, the store takes neither writes nor checkpoints until it is opened again.
    #[error("the page file could not be read or written: {0}")]
    Io(#[from] io::Error),
    /// Bytes in the file are not what was written. Nothing was changed; an operator must decide.
    #[error("page {page} is corrupt: {what}")]
    Corrupt {
        /// The number of the page, or of the first page of an extent.
        page: u64,
        /// The fault that was found.
        what: &'static str,
    },
    /// A stream of a backup is damaged, or not one of the row that it was given in. Nothing was
    /// made of it.
    #[error("stream {stream} of the backup cannot be used: {what}")]
    Backup {
        /// The number of the stream among those that were given, from 0.
        stream: u64,
        /// The fault of the stream.
        what: &'static str,
    },
    /// The disk has no room for the checkpoint. Nothing was written; make room and ask again.
    #[error("the disk has no room for the page file to grow")]
    NoSpace,
    /// A key, a value, a name or commit metadata is over its limit. The transaction is as it was.
    #[error("{what} of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The largest size in bytes.
        limit: usize,
    },
    /// There is a tree of this name already. The transaction is as it was.
    #[error("there is a tree called {name:?} already")]
    TreeExists {
        /// The name.
        name: String,
    },
    /// Keys must rise, and here one does not. Nothing was changed.
    #[error("keys must rise: {what}")]
    OutOfOrder {
        /// The keys that do not rise.
        what: &'static str,
    },
    /// The pages of a tree cannot have this length. Nothing was changed.
    #[error("the pages of a tree cannot be {units} units long, only 1 to 15")]
    PageUnits {
        /// The length that was asked for, in units of 4 KiB.
        units: u32,
    },
    /// The tree to be joined has pages of another length. Nothing was changed.
    #[error("pages of {part} units cannot be put into a tree whose pages have {tree}")]
    PageUnitsDiffer {
        /// How many units the pages of the tree are long.
        tree: u32,
        /// How many those of the other are.
        part: u32,
    },
    /// An argument belongs to another transaction or store, or to a savepoint before which this
    /// transaction has rolled back since. Nothing was changed.
    #[error("{what} does not belong to this transaction any more")]
    Foreign {
        /// The argument.
        what: &'static str,
    },
    /// The snapshot was ended: old ones held more disk space than
    /// [`Options::old_version_disk_bytes`](crate::Options::old_version_disk_bytes), and it was the
    /// oldest. Drop it, and take another one: what it saw goes with it. A reader of a long range
    /// goes on behind the last key that it has, or begins again.
    #[error("the snapshot of transaction {txid} is too old: snapshots hold too much disk space")]
    SnapshotTooOld {
        /// The transaction that it is of.
        txid: u64,
    },
    /// Another process has the file open.
    #[error("the page file is in use by another process")]
    Locked,
    /// A checkpoint failed, so nothing is known about what the disk holds. Reads go on; open the
    /// store again for the rest.
    #[error("a checkpoint failed; the page file must be opened again")]
    Poisoned,
    /// An operation of this transaction failed half-way, so it cannot be published. Drop it.
    #[error("an operation of this transaction failed; it can only be dropped")]
    Broken,
    /// The file is of a format that this version does not know.
    #[error("the page file has format {version}, which this version does not know")]
    Unsupported {
        /// The format that the file names.
        version: u32,
    },
}

/// A failure of the caller's own making, or of the disk's; see [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Refuses what is over a limit.
pub(crate) fn refuse_over(what: &'static str, size: usize, limit: usize) -> Result<()> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}
