//! The rows of the system region: their keys, their bytes, and how they are changed.
//!
//! [`CLUSTER_KEY`], [`IDS_KEY`] and [`TSO_KEY`] hold one number each: a version byte, then eight
//! bytes, most significant first. Two others are the cluster's registry and settings, whose
//! bytes are those of the copies that each store keeps (`docs/durability.md`). A row changes by a
//! compare-and-swap only, so that of two leaders that both believe to be in office, at most one
//! succeeds.

use thiserror::Error;

/// The row that holds the cluster's id. Written once.
pub const CLUSTER_KEY: &[u8] = b"placement/cluster";
/// The row that holds the first id that is not leased.
pub const IDS_KEY: &[u8] = b"placement/ids";
/// The row that holds the first millisecond of which no timestamp may have been handed out.
pub const TSO_KEY: &[u8] = b"placement/tso";

/// The row that holds all stores of the cluster.
pub const STORES_KEY: &[u8] = b"placement/stores";
/// The row that holds the settings on which all stores agree.
pub const SETTINGS_KEY: &[u8] = b"placement/settings";

/// The row that holds the keyspaces that were made, as [`crate::Keyspaces`] has it.
pub const KEYSPACES_KEY: &[u8] = b"placement/keyspaces";

/// The row of the restore of a backup, as [`crate::RestoreMark`] has it.
pub const RESTORE_KEY: &[u8] = b"placement/restore";
/// The row that holds what operators have said of repair: a number, as those above. Its lowest byte
/// is 1 while repair is paused; the bits above it are the number of replicas, 0 if it was never
/// set.
pub const REPAIR_KEY: &[u8] = b"placement/repair";

const VERSION: u8 = 1;
const ROW_BYTES: usize = 9;

/// One change of a row that the driver is asked to replicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSwap {
    /// The key of the row.
    pub key: &'static [u8],
    /// The value that the row must hold for the change to happen; `None` if it must not exist.
    pub expected: Option<Vec<u8>>,
    /// The value that it holds afterwards.
    pub value: Vec<u8>,
}

/// The result of a [`RowSwap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapResult {
    /// The row holds the new value.
    Done,
    /// The row held something else and is unchanged.
    Refused {
        /// The value that it holds.
        current: Option<Vec<u8>>,
    },
    /// The result is not known; the change may have happened, or may still happen.
    Unknown,
}

/// A row that cannot be what this version of the program wrote. The leader must not serve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RowError {
    /// Its length or its version is wrong.
    #[error("row {} holds {bytes} bytes that are not a number of version {VERSION}", key.escape_ascii())]
    Malformed {
        /// The key of the row.
        key: &'static [u8],
        /// How long it is.
        bytes: usize,
    },
    /// It is gone, or smaller than it was.
    #[error("row {} went back from {from} to {to:?}", key.escape_ascii())]
    WentBack {
        /// The key of the row.
        key: &'static [u8],
        /// The former value.
        from: u64,
        /// The value now.
        to: Option<u64>,
    },
}

/// A number as a row holds it.
#[must_use]
pub fn encode(number: u64) -> Vec<u8> {
    let mut row = Vec::with_capacity(ROW_BYTES);
    row.push(VERSION);
    row.extend_from_slice(&number.to_be_bytes());
    row
}

/// The number that a row holds.
///
/// # Errors
///
/// [`RowError::Malformed`] if the row was not made by [`encode`].
pub fn decode(key: &'static [u8], row: &[u8]) -> Result<u64, RowError> {
    match row.split_first() {
        Some((&VERSION, number)) => number.try_into().ok().map(u64::from_be_bytes),
        _ => None,
    }
    .ok_or(RowError::Malformed { key, bytes: row.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        for number in [0, 1, 255, 256, 1_000_000, u64::MAX] {
            assert_eq!(decode(IDS_KEY, &encode(number)), Ok(number));
        }
        assert_eq!(encode(258), [1, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn what_is_no_row_is_refused() {
        for row in
            [&[][..], &[1], &[1, 0, 0, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0, 0, 0, 0, 1], &[1; 10]]
        {
            assert_eq!(
                decode(TSO_KEY, row),
                Err(RowError::Malformed { key: TSO_KEY, bytes: row.len() })
            );
        }
    }
}
