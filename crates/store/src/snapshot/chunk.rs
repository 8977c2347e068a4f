//! The bytes of a snapshot's chunks.
//!
//! | bytes | chunk |
//! |---|---|
//! | `01` | the format |
//! | 4, little-endian | CRC-32C of all that follows |
//! | varint | number of the chunk, from 0 |
//! | 1 | the number of the column family of the rows |
//! | to the end | one row or more: key (varint length, bytes), row as in the tree (likewise) |

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_bytes, put_varint, varint_bytes};
use flotilla_kv::ColumnFamily;
use flotilla_pagestore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::error::StageError;
use crate::schema::DataRow;

/// The first byte of a chunk and of an end.
const FORMAT: u8 = 1;
/// The bytes before those that the checksum is of.
const HEAD_BYTES: usize = 1 + 4;

/// The rows of a chunk take at most this, unless one row alone takes more.
pub(crate) const ROWS_BYTES_MAX: usize = 4 << 20;
/// No chunk is longer.
const CHUNK_BYTES_MAX: usize = ROWS_BYTES_MAX + KEY_BYTES_MAX + VALUE_BYTES_MAX + 64;

/// Some rows of a column family of a snapshot, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotChunk {
    /// The number of the chunk, from 0.
    pub number: u64,
    /// Its bytes, with a checksum of their own.
    pub bytes: Bytes,
}

/// A row of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRow<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The time at which it expires, in milliseconds since 1970; 0 for never.
    pub expires_ms: u64,
    /// Its value.
    pub value: &'a [u8],
}

impl SnapshotChunk {
    /// Calls `each` with every row, in the order of their keys, and returns their column family.
    ///
    /// # Errors
    ///
    /// The bytes are damaged.
    pub fn for_each_row(
        &self,
        mut each: impl FnMut(SnapshotRow<'_>),
    ) -> Result<ColumnFamily, StageError> {
        let received = ReceivedChunk::check(self.bytes.clone(), self.number)?;
        received.for_each(|key, row| {
            let DataRow { expires_ms, value } = DataRow::decode(row)?;
            each(SnapshotRow { key, expires_ms, value });
            Ok(())
        })?;
        Ok(received.family)
    }
}

/// A chunk that is being filled.
#[derive(Debug)]
pub(crate) struct ChunkBuilder {
    number: u64,
    out: Vec<u8>,
    rows_at: usize,
    pub(crate) rows: u64,
}

impl ChunkBuilder {
    pub(crate) fn new(number: u64, family: ColumnFamily, rows_bytes: usize) -> Self {
        let mut out = Vec::with_capacity(rows_bytes + 32);
        out.push(FORMAT);
        out.extend_from_slice(&[0; 4]);
        put_varint(&mut out, number);
        out.push(family.number());
        let rows_at = out.len();
        Self { number, out, rows_at, rows: 0 }
    }

    /// The bytes that the rows would take with one more.
    pub(crate) fn bytes_with(&self, key: &[u8], row: &[u8]) -> usize {
        let lens = varint_bytes(key.len() as u64) + varint_bytes(row.len() as u64);
        self.rows().len() + lens + key.len() + row.len()
    }

    pub(crate) fn push(&mut self, key: &[u8], row: &[u8]) {
        put_bytes(&mut self.out, key);
        put_bytes(&mut self.out, row);
        self.rows += 1;
    }

    /// The bytes of the rows so far.
    pub(crate) fn rows(&self) -> &[u8] {
        &self.out[self.rows_at..]
    }

    pub(crate) fn finish(mut self) -> SnapshotChunk {
        let crc = crc32c::crc32c(&self.out[HEAD_BYTES..]);
        self.out[1..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        SnapshotChunk { number: self.number, bytes: self.out.into() }
    }
}

/// A chunk that was received: its number is right and its bytes are whole; its rows are not looked
/// at yet.
#[derive(Debug)]
pub(crate) struct ReceivedChunk {
    pub(crate) family: ColumnFamily,
    pub(crate) rows: Bytes,
}

impl ReceivedChunk {
    /// Checks the chunk that has to be number `expected`.
    pub(crate) fn check(bytes: Bytes, expected: u64) -> Result<Self, StageError> {
        const WHAT: &str = "chunk of a snapshot";
        if bytes.len() > CHUNK_BYTES_MAX {
            return Err(StageError::TooLarge { bytes: bytes.len() as u64 });
        }
        let malformed = || StageError::Malformed(Malformed { what: WHAT });
        let &[FORMAT, a, b, c, d, ..] = &bytes[..] else { return Err(malformed()) };
        let body = bytes.slice(HEAD_BYTES..);
        if crc32c::crc32c(&body) != u32::from_le_bytes([a, b, c, d]) {
            return Err(StageError::Checksum { expected });
        }
        let mut reader = FieldReader::new(body, WHAT);
        let number = reader.varint()?;
        if number != expected {
            return Err(StageError::ChunkOrder { expected, found: number });
        }
        let family = ColumnFamily::of_number(reader.byte()?).ok_or_else(malformed)?;
        // A chunk without rows would let a sender go on for ever.
        if reader.is_empty() {
            return Err(malformed());
        }
        Ok(Self { family, rows: bytes.slice(HEAD_BYTES + varint_bytes(number) + 1..) })
    }

    /// Calls `each` with every row, and returns how many there are.
    pub(crate) fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<(), StageError>,
    ) -> Result<u64, StageError> {
        let mut reader = FieldReader::new(self.rows.clone(), "row of a snapshot");
        let mut rows = 0;
        while !reader.is_empty() {
            let (key, row) = (reader.bytes()?, reader.bytes()?);
            each(&key, &row)?;
            rows += 1;
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_where_the_table_says() {
        let mut builder = ChunkBuilder::new(300, ColumnFamily::Write, 10);
        assert_eq!(builder.bytes_with(b"k", b"\0v"), 5);
        builder.push(b"k", b"\0v");
        assert_eq!(builder.rows(), [1, b'k', 2, 0, b'v']);
        let chunk = builder.finish();
        let body = [0xac, 2, 2, 1, b'k', 2, 0, b'v'];
        let crc = crc32c::crc32c(&body).to_le_bytes();
        assert_eq!(chunk.bytes, [&[1][..], &crc, &body].concat());
        let received = ReceivedChunk::check(chunk.bytes.clone(), 300).unwrap();
        assert_eq!(received.family, ColumnFamily::Write);
        let mut rows = vec![];
        let count = received.for_each(|key, row| {
            rows.push((key.to_vec(), row.to_vec()));
            Ok(())
        });
        assert_eq!((count.unwrap(), rows), (1, vec![(b"k".to_vec(), b"\0v".to_vec())]));
        let wrong = ReceivedChunk::check(chunk.bytes, 299).unwrap_err();
        assert!(matches!(wrong, StageError::ChunkOrder { expected: 299, found: 300 }));
    }

    #[test]
    fn the_rows_of_a_chunk_have_their_times() {
        let mut builder = ChunkBuilder::new(3, ColumnFamily::Lock, 10);
        builder.push(b"a", b"\0v");
        builder.push(b"b", &[1, 2, 1, 0, 0, 0, 0, 0, 0, b'w']);
        let mut rows = vec![];
        let chunk = builder.finish();
        let family = chunk.for_each_row(|row| {
            rows.push((row.key.to_vec(), row.expires_ms, row.value.to_vec()));
        });
        assert_eq!(family.unwrap(), ColumnFamily::Lock);
        assert_eq!(rows, [(b"a".into(), 0, b"v".into()), (b"b".into(), 258, b"w".into())]);
        let mut builder = ChunkBuilder::new(0, ColumnFamily::Default, 10);
        builder.push(b"a", &[9]);
        let refused = builder.finish().for_each_row(|_| ()).unwrap_err();
        assert!(matches!(refused, StageError::MalformedRow(_)), "{refused}");
    }

    #[test]
    fn a_chunk_that_was_cut_or_changed_is_refused() {
        let mut builder = ChunkBuilder::new(0, ColumnFamily::Default, 10);
        builder.push(b"key", b"\0value");
        let good = builder.finish().bytes;
        for len in 0..good.len() {
            assert!(ReceivedChunk::check(good.slice(..len), 0).is_err(), "cut at {len}");
        }
        for at in 0..good.len() {
            let mut bytes = good.to_vec();
            bytes[at] ^= 0x10;
            assert!(ReceivedChunk::check(bytes.into(), 0).is_err(), "byte {at}");
        }
        let empty = ChunkBuilder::new(0, ColumnFamily::Default, 0).finish().bytes;
        let refused = ReceivedChunk::check(empty, 0).unwrap_err();
        assert!(matches!(refused, StageError::Malformed(_)), "no rows: {refused}");
        let long = Bytes::from(vec![FORMAT; CHUNK_BYTES_MAX + 1]);
        assert!(matches!(ReceivedChunk::check(long, 0), Err(StageError::TooLarge { .. })));
    }
}
