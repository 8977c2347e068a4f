//! The outcome of a proposal, the same on every replica.

use bytes::Bytes;
use flotilla_base::redact::LogKey;
use flotilla_region::{Descriptor, Index, MembershipError, SplitError};

/// The outcome of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// It was carried out.
    Done,
    /// It was carried out, and its last operation that compares came to this.
    Swapped {
        /// Whether the key had the expected value, and has the new one now.
        succeeded: bool,
        /// The former value of the key; `None` if it was not there.
        previous: Option<Bytes>,
    },
    /// It was carried out, and its last operation that removes expired rows has removed so many.
    RemovedExpired {
        /// How many.
        rows: u64,
    },
    /// It asks each replica for a digest of its rows, as they are behind this entry.
    DigestDue {
        /// The entry.
        index: Index,
    },
    /// It had no effect, neither here nor on any other replica.
    Rejected(ApplyReject),
}

/// Why a proposal had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyReject {
    /// The range has changed since the proposal was admitted. The client goes to the regions that
    /// now hold it.
    #[error("the region has changed")]
    EpochNotMatch {
        /// The regions that hold the range now.
        current: Vec<Descriptor>,
    },
    /// The region cannot be split in this way.
    #[error(transparent)]
    InvalidSplit(SplitError),
    /// The region's replicas cannot be changed in this way.
    #[error(transparent)]
    InvalidMembership(MembershipError),
    /// A key lies outside of the region, though the claim that admitted it said otherwise.
    #[error("key {} is not in the region", LogKey(key))]
    KeyNotInRegion {
        /// The first such key.
        key: Bytes,
    },
    /// A key or a value is longer than a row can be.
    #[error("{what} of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// The part that is too long.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The largest size in bytes.
        limit: u64,
    },
}
