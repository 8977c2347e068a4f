//! Rows of a backup, and the digest of a region's rows.
//!
//! A row is its key (varint length, bytes), the time at which it expires in milliseconds since 1970
//! (varint, 0 for never) and its value (varint length, bytes). Keys rise within a column family.
//!
//! The digest is CRC-64/XZ of the rows in the order of their keys, family by family; the number of
//! a family comes before its first row, and a family without rows has nothing. It does not depend
//! on where blocks end. It guards against mistakes and bits that change, as the digest of replicas
//! does (`docs/decisions/0049-replicas-are-compared-by-digests.md`), not against an attacker.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_bytes, put_varint};
use flotilla_kv::ColumnFamily;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupRow {
    /// Its key.
    pub key: Bytes,
    /// When it expires, in milliseconds since 1970; 0 for never.
    pub expires_ms: u64,
    /// Its value.
    pub value: Bytes,
}

/// Appends a row to those of a block.
pub fn put_row(out: &mut Vec<u8>, key: &[u8], expires_ms: u64, value: &[u8]) {
    put_bytes(out, key);
    put_varint(out, expires_ms);
    put_bytes(out, value);
}

/// The rows of a block, one after the other; they share its memory. The first error is the last
/// item.
pub fn rows_of(block: Bytes) -> impl Iterator<Item = Result<BackupRow, Malformed>> {
    let mut reader = FieldReader::new(block, "row of a backup");
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || reader.is_empty() {
            return None;
        }
        let row = take_row(&mut reader);
        failed = row.is_err();
        Some(row)
    })
}

fn take_row(reader: &mut FieldReader) -> Result<BackupRow, Malformed> {
    Ok(BackupRow { key: reader.bytes()?, expires_ms: reader.varint()?, value: reader.bytes()? })
}

/// The digest of a region's rows, block by block.
#[derive(Default)]
pub struct RowDigest {
    crc: crc64fast::Digest,
    family: Option<ColumnFamily>,
}

impl std::fmt::Debug for RowDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowDigest({:?})", self.family)
    }
}

impl RowDigest {
    /// Adds the rows of a block, as they are in it.
    pub fn add(&mut self, family: ColumnFamily, rows: &[u8]) {
        if self.family != Some(family) {
            self.crc.write(&[family.number()]);
            self.family = Some(family);
        }
        self.crc.write(rows);
    }

    /// The digest of all that was added.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.crc.sum64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_row_is_where_the_format_says() {
        let mut out = vec![];
        put_row(&mut out, b"k", 300, b"vv");
        put_row(&mut out, b"l", 0, b"");
        assert_eq!(out, [1, b'k', 0xac, 2, 2, b'v', b'v', 1, b'l', 0, 0]);
        let rows: Vec<_> = rows_of(out.clone().into()).collect::<Result<_, _>>().unwrap();
        let row = |key: &'static str, expires_ms, value: &'static str| BackupRow {
            key: key.into(),
            expires_ms,
            value: value.into(),
        };
        assert_eq!(rows, [row("k", 300, "vv"), row("l", 0, "")]);
        out.pop();
        let last = rows_of(out.into()).last().unwrap();
        assert!(last.is_err(), "a row that was cut");
    }

    #[test]
    fn the_digest_is_of_the_rows_and_their_families_and_not_of_the_blocks() {
        let sum = |blocks: &[(ColumnFamily, &[u8])]| {
            let mut digest = RowDigest::default();
            blocks.iter().for_each(|(family, rows)| digest.add(*family, rows));
            digest.sum()
        };
        let (default, lock) = (ColumnFamily::Default, ColumnFamily::Lock);
        let whole = sum(&[(default, b"abcdef")]);
        assert_eq!(whole, sum(&[(default, b"abc"), (default, b"def")]));
        assert_ne!(whole, sum(&[(lock, b"abcdef")]));
        assert_ne!(whole, sum(&[(default, b"abc"), (lock, b"def")]));
        assert_ne!(whole, sum(&[(default, b"abcdeg")]));
        // The check value of CRC-64/XZ, behind the number of the family.
        let mut plain = crc64fast::Digest::new();
        plain.write(b"\x00123456789");
        assert_eq!(sum(&[(default, b"123456789")]), plain.sum64());
    }
}
