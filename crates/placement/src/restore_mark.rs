//! The mark of a restore: which backup is restored into the cluster, and how many of its regions
//! are there. A restore that was interrupted goes on by it, from whichever machine.
//!
//! | bytes | row |
//! |---|---|
//! | `01` | the version |
//! | 1 | `01` while it is under way, `02` once it is done |
//! | 8, most significant first | regions that are restored |
//! | to the end | the name of the backup |

use thiserror::Error;

use crate::rows::{RESTORE_KEY, RowSwap};

const VERSION: u8 = 1;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;
const HEAD_BYTES: usize = 10;
/// Bytes of the name of a backup at most.
const NAME_BYTES_MAX: usize = 64;

/// The mark as its row has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreMark {
    backup: Vec<u8>,
    regions_done: u64,
    is_under_way: bool,
    row: Option<Vec<u8>>,
}

/// Why a step of a restore is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RestoreRefusal {
    /// A cluster with rows is never written over.
    #[error("the cluster holds rows: a backup is restored into one that was just bootstrapped")]
    HoldsRows,
    /// The cluster has a part of another backup.
    #[error(
        "the restore of another backup was begun and is not done: bootstrap the cluster anew, or \
         go on with that one"
    )]
    OtherBackup,
    /// The step is of a restore that was not begun, or is done.
    #[error("no restore of this backup is under way")]
    NotUnderWay,
    /// The name is empty or too long.
    #[error("the name of a backup has 1 to {NAME_BYTES_MAX} bytes")]
    Name,
    /// The row is not what this version writes.
    #[error("row {}: bytes that are no mark of a restore", RESTORE_KEY.escape_ascii())]
    Malformed,
}

impl RestoreMark {
    /// The mark of a row; without one nothing was restored.
    ///
    /// # Errors
    ///
    /// [`RestoreRefusal::Malformed`].
    pub fn recover(row: Option<&[u8]>) -> Result<Self, RestoreRefusal> {
        let Some(row) = row else { return Ok(Self::default()) };
        let (head, backup) = row.split_at_checked(HEAD_BYTES).ok_or(RestoreRefusal::Malformed)?;
        let is_under_way = match head[..2] {
            [VERSION, UNDER_WAY] => true,
            [VERSION, DONE] => false,
            _ => return Err(RestoreRefusal::Malformed),
        };
        let regions_done = u64::from_be_bytes(head[2..].try_into().expect("eight bytes are left"));
        Ok(Self { backup: backup.to_vec(), regions_done, is_under_way, row: Some(row.to_vec()) })
    }

    /// Begins the restore of a backup, or goes on with it: the write that is needed, and how many
    /// regions are there already.
    ///
    /// # Errors
    ///
    /// Why there can be none.
    pub fn begin(
        &self,
        backup: &[u8],
        holds_rows: bool,
    ) -> Result<(Option<RowSwap>, u64), RestoreRefusal> {
        if !(1..=NAME_BYTES_MAX).contains(&backup.len()) {
            return Err(RestoreRefusal::Name);
        }
        match (self.is_under_way, self.backup == backup) {
            (true, true) => Ok((None, self.regions_done)),
            (true, false) => Err(RestoreRefusal::OtherBackup),
            (false, _) if holds_rows => Err(RestoreRefusal::HoldsRows),
            (false, _) => Ok((Some(self.swap(backup, 0, UNDER_WAY)), 0)),
        }
    }

    /// So many regions are restored, in the order of the backup.
    ///
    /// # Errors
    ///
    /// [`RestoreRefusal::NotUnderWay`].
    pub fn advance(&self, backup: &[u8], regions_done: u64) -> Result<RowSwap, RestoreRefusal> {
        self.check_under_way(backup)?;
        Ok(self.swap(backup, self.regions_done.max(regions_done), UNDER_WAY))
    }

    /// All regions are restored. `None` if that was written already.
    ///
    /// # Errors
    ///
    /// [`RestoreRefusal::NotUnderWay`].
    pub fn end(&self, backup: &[u8]) -> Result<Option<RowSwap>, RestoreRefusal> {
        if self.row.is_some() && !self.is_under_way && self.backup == backup {
            return Ok(None);
        }
        self.check_under_way(backup)?;
        Ok(Some(self.swap(backup, self.regions_done, DONE)))
    }

    fn check_under_way(&self, backup: &[u8]) -> Result<(), RestoreRefusal> {
        let is_this = self.is_under_way && self.backup == backup;
        if is_this { Ok(()) } else { Err(RestoreRefusal::NotUnderWay) }
    }

    fn swap(&self, backup: &[u8], regions_done: u64, state: u8) -> RowSwap {
        let value = [&[VERSION, state], &regions_done.to_be_bytes()[..], backup].concat();
        RowSwap { key: RESTORE_KEY, expected: self.row.clone(), value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(swap: RowSwap) -> RestoreMark {
        assert_eq!(swap.key, RESTORE_KEY);
        RestoreMark::recover(Some(&swap.value)).unwrap()
    }

    #[test]
    fn a_restore_that_was_interrupted_goes_on_with_its_backup_alone() {
        let none = RestoreMark::recover(None).unwrap();
        let (swap, done) = none.begin(b"one", false).unwrap();
        let mark = after(swap.clone().unwrap());
        assert_eq!((swap.unwrap().value, done), (b"\x01\x01\0\0\0\0\0\0\0\0one".to_vec(), 0));
        let mark = after(mark.advance(b"one", 3).unwrap());
        assert_eq!(mark.begin(b"one", true), Ok((None, 3)), "its own rows are there");
        assert_eq!(mark.begin(b"two", true), Err(RestoreRefusal::OtherBackup));
        assert_eq!(mark.advance(b"two", 1), Err(RestoreRefusal::NotUnderWay));
        let mark = after(mark.advance(b"one", 2).unwrap());
        assert_eq!(mark.begin(b"one", true), Ok((None, 3)), "a late answer takes nothing back");
        let mark = after(mark.end(b"one").unwrap().unwrap());
        assert_eq!(mark.end(b"one"), Ok(None), "sent twice");
        assert_eq!(mark.advance(b"one", 4), Err(RestoreRefusal::NotUnderWay));
        assert_eq!(mark.begin(b"one", true), Err(RestoreRefusal::HoldsRows));
        assert!(mark.begin(b"two", false).unwrap().0.is_some(), "all rows were deleted");
    }

    #[test]
    fn a_cluster_with_rows_is_refused_and_so_is_a_step_that_was_not_begun() {
        let none = RestoreMark::recover(None).unwrap();
        assert_eq!(none.begin(b"one", true), Err(RestoreRefusal::HoldsRows));
        assert_eq!(none.advance(b"one", 1), Err(RestoreRefusal::NotUnderWay));
        assert_eq!(none.end(b"one"), Err(RestoreRefusal::NotUnderWay));
        assert_eq!(none.begin(b"", false), Err(RestoreRefusal::Name));
        assert_eq!(none.begin(&[7; 65], false), Err(RestoreRefusal::Name));
    }

    #[test]
    fn other_bytes_are_no_mark() {
        let row = RestoreMark::default().begin(b"one", false).unwrap().0.unwrap().value;
        for len in 0..HEAD_BYTES {
            assert_eq!(RestoreMark::recover(Some(&row[..len])), Err(RestoreRefusal::Malformed));
        }
        for (place, byte) in [(0, 2), (1, 0), (1, 3)] {
            let mut changed = row.clone();
            changed[place] = byte;
            assert_eq!(RestoreMark::recover(Some(&changed)), Err(RestoreRefusal::Malformed));
        }
    }
}
