//! Redo records: the logical operations of one transaction.
//!
//! ```text
//! | txid u64 | bytes of the operations u32 | operation | operation | ...
//! | 1 | name           |  the operations that follow are about this tree, which is made if missing
//! | 2 | key | value    |  put
//! | 3 | key            |  delete
//! | 4 | start | end    |  delete a range
//! | 5 | start          |  delete a range that has no end
//! | 6 | mark           |  set the mark
//! | 7 | name           |  delete a tree
//! | 8 | from | to      |  give a tree another name
//! | 9 | name | options |  make a tree; of the options the first byte is the units of its pages
//! ```
//!
//! Each name, key, value, commit metadata and row of options has its length before it: seven bits a
//! byte, the lowest first.

use std::ops::Range;

use crate::config::TreeOptions;
use crate::page::{u32_at, u64_at};

const TREE: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const DELETE_FROM: u8 = 5;
const COMMIT_METADATA: u8 = 6;
const DELETE_TREE: u8 = 7;
const RENAME_TREE: u8 = 8;
const CREATE_TREE: u8 = 9;

/// Bytes before the operations.
const HEAD_BYTES: usize = 12;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedoOp<'a> {
    /// The following operations are about the tree of this name.
    Tree(&'a [u8]),
    /// A key and its value.
    Put(&'a [u8], &'a [u8]),
    /// A key.
    Delete(&'a [u8]),
    /// From one key up to another, or to the last.
    DeleteRange(&'a [u8], Option<&'a [u8]>),
    /// The commit metadata of the caller.
    CommitMetadata(&'a [u8]),
    /// A tree's name.
    DeleteTree(&'a [u8]),
    /// A tree's name, and the one it gets.
    RenameTree(&'a [u8], &'a [u8]),
    /// The name of a new tree, and what was chosen for it.
    CreateTree(&'a [u8], TreeOptions),
}

/// A savepoint of a recorder.
#[derive(Clone, Debug)]
pub(crate) struct RecorderSavepoint {
    len: usize,
    tree: Range<usize>,
}

/// Records the operations of the open transaction.
#[derive(Debug)]
pub(crate) struct RedoRecorder {
    bytes: Vec<u8>,
    /// It gives up beyond this many bytes; 0 if it has.
    bytes_max: usize,
    /// The place of the name of the tree that the last operation is about.
    tree: Range<usize>,
}

impl RedoRecorder {
    /// Records into `bytes`, whatever they hold, and gives up beyond `bytes_max`. With 0 it records
    /// nothing.
    pub(crate) fn new(mut bytes: Vec<u8>, bytes_max: usize) -> RedoRecorder {
        bytes.clear();
        bytes.resize(HEAD_BYTES, 0);
        RedoRecorder { bytes, bytes_max, tree: 0..0 }
    }

    pub(crate) fn tree(&mut self, name: &str) {
        let name = name.as_bytes();
        if self.tree.is_empty() || self.bytes[self.tree.clone()] != *name {
            self.write(TREE, name, None);
            let end = self.bytes.len();
            self.tree = end.saturating_sub(name.len())..end;
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.write(PUT, key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.write(DELETE, key, None);
    }

    pub(crate) fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        let kind = if end.is_some() { DELETE_RANGE } else { DELETE_FROM };
        self.write(kind, start, end);
    }

    pub(crate) fn commit_metadata(&mut self, commit_metadata: &[u8]) {
        self.write(COMMIT_METADATA, commit_metadata, None);
    }

    pub(crate) fn delete_tree(&mut self, name: &str) {
        self.write(DELETE_TREE, name.as_bytes(), None);
        self.tree = 0..0;
    }

    pub(crate) fn rename_tree(&mut self, from: &str, to: &str) {
        self.write(RENAME_TREE, from.as_bytes(), Some(to.as_bytes()));
        self.tree = 0..0;
    }

    pub(crate) fn create_tree(&mut self, name: &str, options: TreeOptions) {
        let units = u8::try_from(options.page_units).expect("15 units at most");
        self.write(CREATE_TREE, name.as_bytes(), Some(&[units]));
        self.tree = 0..0;
    }

    /// Makes this a savepoint to go back to.
    pub(crate) fn save(&self) -> RecorderSavepoint {
        RecorderSavepoint { len: self.bytes.len(), tree: self.tree.clone() }
    }

    /// Forgets the operations since. If it has given up meanwhile it stays so.
    pub(crate) fn roll_back(&mut self, savepoint: &RecorderSavepoint) {
        if self.bytes_max > 0 {
            assert!(savepoint.len <= self.bytes.len(), "a savepoint of another recorder");
            self.bytes.truncate(savepoint.len);
            debug_assert!(savepoint.tree.end <= self.bytes.len(), "the name was cut off");
            self.tree = savepoint.tree.clone();
        }
    }

    /// The record of transaction `txid`, if all its operations were recorded.
    pub(crate) fn finish(&mut self, txid: u64) -> Option<&[u8]> {
        if self.bytes_max == 0 {
            return None;
        }
        let len = u32::try_from(self.bytes.len() - HEAD_BYTES).ok()?;
        self.bytes[..8].copy_from_slice(&txid.to_le_bytes());
        self.bytes[8..HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
        Some(&self.bytes)
    }

    /// The memory, to be used again.
    pub(crate) fn into_spare(self) -> Vec<u8> {
        self.bytes
    }

    fn write(&mut self, kind: u8, first: &[u8], second: Option<&[u8]>) {
        if self.bytes_max == 0 {
            return;
        }
        // The longest lengths take three bytes.
        let wanted = 1 + 2 * 5 + first.len() + second.map_or(0, <[u8]>::len);
        if self.bytes.len() + wanted > self.bytes_max {
            self.give_up();
            return;
        }
        self.bytes.reserve(wanted);
        self.bytes.push(kind);
        for part in [Some(first), second].into_iter().flatten() {
            put_len(&mut self.bytes, part.len());
            self.bytes.extend_from_slice(part);
        }
    }

    /// Gives up: the transaction has an operation that no record can express.
    pub(crate) fn give_up(&mut self) {
        *self = RedoRecorder::new(std::mem::take(&mut self.bytes), 0);
    }
}

fn put_len(bytes: &mut Vec<u8>, len: usize) {
    let mut rest = len;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// One transaction's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedoRecord<'a> {
    /// The transaction.
    pub(crate) txid: u64,
    ops: &'a [u8],
}

impl<'a> RedoRecord<'a> {
    /// The operations. Ends with an error where the bytes make no sense.
    pub(crate) fn ops(self) -> impl Iterator<Item = Result<RedoOp<'a>, MalformedRecord>> {
        let mut rest = self.ops;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let op = take_op(&mut rest).ok_or(MalformedRecord);
            if op.is_err() {
                rest = &[];
            }
            Some(op)
        })
    }
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedRecord;

/// The records that stand one behind the other in `bytes`. Ends with an error where they make no
/// sense.
pub(crate) fn records(
    bytes: &[u8],
) -> impl Iterator<Item = Result<RedoRecord<'_>, MalformedRecord>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = take_record(&mut rest).ok_or(MalformedRecord);
        if record.is_err() {
            rest = &[];
        }
        Some(record)
    })
}

fn take_record<'a>(rest: &mut &'a [u8]) -> Option<RedoRecord<'a>> {
    let head = rest.get(..HEAD_BYTES)?;
    let end = HEAD_BYTES.checked_add(u32_at(head, 8) as usize)?;
    let ops = rest.get(HEAD_BYTES..end)?;
    *rest = &rest[end..];
    Some(RedoRecord { txid: u64_at(head, 0), ops })
}

fn take_op<'a>(rest: &mut &'a [u8]) -> Option<RedoOp<'a>> {
    let kind = *rest.split_off_first()?;
    let first = take_part(rest)?;
    Some(match kind {
        TREE => RedoOp::Tree(first),
        PUT => RedoOp::Put(first, take_part(rest)?),
        DELETE => RedoOp::Delete(first),
        DELETE_RANGE => RedoOp::DeleteRange(first, Some(take_part(rest)?)),
        DELETE_FROM => RedoOp::DeleteRange(first, None),
        COMMIT_METADATA => RedoOp::CommitMetadata(first),
        DELETE_TREE => RedoOp::DeleteTree(first),
        RENAME_TREE => RedoOp::RenameTree(first, take_part(rest)?),
        CREATE_TREE => {
            let &[units] = take_part(rest)? else { return None };
            RedoOp::CreateTree(first, TreeOptions::default().page_units(units.into()))
        }
        _ => return None,
    })
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut len = 0_usize;
    for shift in (0..35).step_by(7) {
        let byte = *rest.split_off_first()?;
        len |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return rest.split_off(..len);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> RedoRecorder {
        RedoRecorder::new(vec![9; 20], 1 << 20)
    }

    #[test]
    fn what_is_written_down_is_read_again() {
        let long = vec![7; 300_000];
        let mut recorder = recorder();
        recorder.tree("");
        recorder.put(b"a", b"");
        recorder.tree("a");
        recorder.put(b"", &long);
        recorder.tree("a");
        recorder.delete(&long[..200]);
        recorder.delete_range(b"b", Some(b"c"));
        recorder.delete_range(b"", None);
        recorder.commit_metadata(b"m");
        recorder.delete_tree("a");
        recorder.tree("a");
        recorder.rename_tree("a", "b");
        let savepoint = recorder.save();
        recorder.tree("c");
        recorder.put(b"undone", b"");
        recorder.roll_back(&savepoint);
        recorder.tree("c");
        recorder.create_tree("d", TreeOptions::default().page_units(15));
        let mut bytes = recorder.finish(5).unwrap().to_vec();
        bytes.extend(RedoRecorder::new(Vec::new(), 100).finish(6).unwrap());
        let records: Vec<_> = records(&bytes).map(Result::unwrap).collect();
        assert_eq!(records.iter().map(|r| r.txid).collect::<Vec<_>>(), [5, 6]);
        let ops: Vec<_> = records[0].ops().map(Result::unwrap).collect();
        let expected = [
            RedoOp::Tree(b""),
            RedoOp::Put(b"a", b""),
            RedoOp::Tree(b"a"),
            RedoOp::Put(b"", &long),
            RedoOp::Delete(&long[..200]),
            RedoOp::DeleteRange(b"b", Some(b"c")),
            RedoOp::DeleteRange(b"", None),
            RedoOp::CommitMetadata(b"m"),
            RedoOp::DeleteTree(b"a"),
            RedoOp::Tree(b"a"),
            RedoOp::RenameTree(b"a", b"b"),
            RedoOp::Tree(b"c"),
            RedoOp::CreateTree(b"d", TreeOptions::default().page_units(15)),
        ];
        assert_eq!(ops, expected);
        assert_eq!(records[1].ops().count(), 0);
    }

    #[test]
    fn a_tree_is_named_once_in_a_row() {
        let mut recorder = recorder();
        for name in ["a", "a", "b", "a"] {
            recorder.tree(name);
            recorder.delete(b"k");
        }
        let bytes = recorder.finish(1).unwrap();
        let ops: Vec<_> = records(bytes).next().unwrap().unwrap().ops().collect();
        let trees = ops.iter().filter(|op| matches!(op, Ok(RedoOp::Tree(_)))).count();
        assert_eq!((ops.len(), trees), (7, 3));
    }

    #[test]
    fn too_much_or_no_words_is_no_record() {
        let mut recorder = RedoRecorder::new(Vec::new(), 100);
        recorder.put(b"a", &[1; 60]);
        assert!(recorder.finish(1).is_some());
        recorder.put(b"a", &[1; 60]);
        assert!(recorder.finish(1).is_none());
        recorder.put(b"a", b"b");
        recorder.tree("t");
        assert!(recorder.finish(1).is_none());
        let mut recorder = RedoRecorder::new(Vec::new(), 100);
        recorder.give_up();
        assert!(recorder.finish(1).is_none());
    }

    #[test]
    fn bytes_without_sense_are_an_error() {
        let mut recorder = recorder();
        recorder.tree("tree");
        recorder.put(b"key", b"value");
        recorder.create_tree("other", TreeOptions::default());
        let bytes = recorder.finish(5).unwrap().to_vec();
        for cut in 1..bytes.len() {
            assert!(records(&bytes[..cut]).any(|r| r.is_err()), "cut to {cut}");
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] ^= flip;
                // It neither panics nor loops for ever, with any result.
                let ops = records(&wrong).flatten().flat_map(RedoRecord::ops).count();
                assert!(ops <= wrong.len());
            }
        }
    }
}
