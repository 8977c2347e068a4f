//! The bytes of a data file: a header, blocks of rows, and an end that counts them.
//!
//! | bytes | header |
//! |---|---|
//! | 8 | `flbkrows` |
//! | 1 | the version, 1 |
//!
//! | bytes | block |
//! |---|---|
//! | `01` | a block follows |
//! | 1 | the number of the column family of its rows |
//! | 4 | length of the rows |
//! | 4 | length of the stored bytes |
//! | 4 | CRC-32C of the bytes before it in the block, and of the stored bytes |
//! | to the length | the rows as one lz4 block; as they are if the two lengths are equal |
//!
//! | bytes | end |
//! |---|---|
//! | `02` | nothing follows the end |
//! | 8, 8, 8 | number of rows, their length, their digest |
//! | 4 | CRC-32C of the bytes before it in the end |
//!
//! Numbers are little-endian. The same rows in the same blocks are the same bytes.

use std::io::Read;

use bytes::Bytes;
use flotilla_kv::ColumnFamily;

use crate::error::BackupError;
use crate::rows::RowDigest;

const MAGIC: &[u8; 8] = b"flbkrows";
const VERSION: u8 = 1;
const BLOCK: u8 = 1;
const END: u8 = 2;
/// Bytes of a block before the stored ones, without the checksum.
const BLOCK_HEAD_BYTES: usize = 10;
const END_HEAD_BYTES: usize = 25;
const CRC_BYTES: usize = 4;

/// The rows of a block take no more bytes: a reader takes so much memory at most, whatever a
/// damaged length says.
pub const BLOCK_BYTES_MAX: usize = 64 << 20;

/// The count of all rows of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowTotals {
    /// Their number.
    pub rows: u64,
    /// The bytes that they take in the blocks, before compression.
    pub bytes: u64,
    /// Their digest.
    pub digest: u64,
}

/// A block that was read and is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowBlock {
    /// The column family of its rows.
    pub family: ColumnFamily,
    /// The rows, for [`crate::rows_of`].
    pub rows: Bytes,
}

/// The first bytes of a file.
#[must_use]
pub fn file_header() -> Vec<u8> {
    [&MAGIC[..], &[VERSION]].concat()
}

/// The bytes of a block. Compresses the rows.
///
/// # Panics
///
/// If the rows take more than [`BLOCK_BYTES_MAX`].
#[must_use]
pub fn encode_block(family: ColumnFamily, rows: &[u8]) -> Vec<u8> {
    assert!(rows.len() <= BLOCK_BYTES_MAX, "a block of {} bytes", rows.len());
    let compressed = lz4_flex::block::compress(rows);
    let stored = if compressed.len() < rows.len() { &compressed[..] } else { rows };
    let mut out = Vec::with_capacity(BLOCK_HEAD_BYTES + CRC_BYTES + stored.len());
    out.extend_from_slice(&[BLOCK, family.number()]);
    for length in [rows.len(), stored.len()] {
        let length = u32::try_from(length).expect("a block is shorter than its bound");
        out.extend_from_slice(&length.to_le_bytes());
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), stored);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(stored);
    out
}

/// The last bytes of a file.
#[must_use]
pub fn encode_end(totals: RowTotals) -> Vec<u8> {
    let mut out = vec![END];
    for number in [totals.rows, totals.bytes, totals.digest] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Reads a file block by block, and checks each byte of it.
#[derive(Debug)]
pub struct DataFileReader<R> {
    source: R,
    digest: RowDigest,
    read: RowTotals,
    is_at_end: bool,
}

impl<R: Read> DataFileReader<R> {
    /// Begins to read at the first byte.
    ///
    /// # Errors
    ///
    /// The file is no data file, of another version, or cannot be read.
    pub fn open(mut source: R) -> Result<Self, BackupError> {
        let header: [u8; 9] = take(&mut source)?;
        if header[..8] != MAGIC[..] {
            return Err(BackupError::damaged("it is no data file of a backup"));
        }
        if header[8] != VERSION {
            let (what, version, known) = ("the data file", header[8], VERSION);
            return Err(BackupError::Version { what, version, known });
        }
        let (digest, read) = (RowDigest::default(), RowTotals::default());
        Ok(Self { source, digest, read, is_at_end: false })
    }

    /// The next block; `None` behind the last, once the end has proved that all blocks have come.
    ///
    /// # Errors
    ///
    /// The file is damaged, or cannot be read.
    pub fn next_block(&mut self) -> Result<Option<RowBlock>, BackupError> {
        if self.is_at_end {
            return Ok(None);
        }
        let [kind] = take(&mut self.source)?;
        match kind {
            BLOCK => self.block().map(Some),
            END => self.end().map(|()| None),
            _ => Err(self.damaged("is neither a block nor the end")),
        }
    }

    /// All that was read so far; behind the last block, all of the file.
    #[must_use]
    pub fn totals(&self) -> RowTotals {
        RowTotals { digest: self.digest.sum(), ..self.read }
    }

    fn block(&mut self) -> Result<RowBlock, BackupError> {
        let rest: [u8; BLOCK_HEAD_BYTES - 1] = take(&mut self.source)?;
        let crc: [u8; CRC_BYTES] = take(&mut self.source)?;
        let head = [&[BLOCK], &rest[..]].concat();
        let length = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("four bytes are a number");
            u32::from_le_bytes(bytes) as usize
        };
        let (rows_bytes, stored_bytes) = (length(2), length(6));
        if rows_bytes > BLOCK_BYTES_MAX || stored_bytes > rows_bytes {
            return Err(self.damaged("has a length that cannot be"));
        }
        let mut stored = vec![];
        let taken = (&mut self.source).take(stored_bytes as u64).read_to_end(&mut stored)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head), &stored);
        if taken < stored_bytes || sum != u32::from_le_bytes(crc) {
            return Err(self.damaged("does not have its checksum"));
        }
        let family = ColumnFamily::of_number(head[1]);
        let family = family.ok_or_else(|| self.damaged("has an unknown column family"))?;
        let rows = if stored_bytes == rows_bytes {
            stored
        } else {
            lz4_flex::block::decompress(&stored, rows_bytes)
                .ok()
                .filter(|rows| rows.len() == rows_bytes)
                .ok_or_else(|| self.damaged("cannot be decompressed"))?
        };
        self.digest.add(family, &rows);
        self.read.bytes += rows.len() as u64;
        let count = crate::rows::rows_of(rows.clone().into()).try_fold(0, |count, row| {
            row.map(|_| count + 1).map_err(|_| self.damaged("has rows that are malformed"))
        })?;
        self.read.rows += count;
        Ok(RowBlock { family, rows: rows.into() })
    }

    fn end(&mut self) -> Result<(), BackupError> {
        let rest: [u8; END_HEAD_BYTES - 1] = take(&mut self.source)?;
        let crc: [u8; CRC_BYTES] = take(&mut self.source)?;
        let head = [&[END], &rest[..]].concat();
        if crc32c::crc32c(&head) != u32::from_le_bytes(crc) {
            return Err(BackupError::damaged("the end does not have its checksum"));
        }
        if encode_end(self.totals())[..END_HEAD_BYTES] != head[..] {
            return Err(BackupError::damaged("the rows are not those that the end counts"));
        }
        if self.source.read(&mut [0])? > 0 {
            return Err(BackupError::damaged("there are bytes behind the end"));
        }
        self.is_at_end = true;
        Ok(())
    }

    fn damaged(&self, what: &str) -> BackupError {
        BackupError::Damaged(format!("the block behind {} bytes of rows {what}", self.read.bytes))
    }
}

fn take<const N: usize>(source: &mut impl Read) -> Result<[u8; N], BackupError> {
    let mut bytes = [0; N];
    source.read_exact(&mut bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => BackupError::damaged("the file ends too early"),
        _ => error.into(),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::put_row;

    fn file() -> (Vec<u8>, RowTotals) {
        let (mut digest, mut totals) = (RowDigest::default(), RowTotals::default());
        let mut out = file_header();
        for (family, key, value) in [
            (ColumnFamily::Default, "a", vec![7; 500]),
            (ColumnFamily::Default, "b", b"v".to_vec()),
            (ColumnFamily::Write, "a", vec![]),
        ] {
            let mut rows = vec![];
            put_row(&mut rows, key.as_bytes(), 0, &value);
            digest.add(family, &rows);
            totals = RowTotals {
                rows: totals.rows + 1,
                bytes: totals.bytes + rows.len() as u64,
                digest: digest.sum(),
            };
            out.extend(encode_block(family, &rows));
        }
        out.extend(encode_end(totals));
        (out, totals)
    }

    fn read(bytes: &[u8]) -> Result<(Vec<RowBlock>, RowTotals), BackupError> {
        let mut reader = DataFileReader::open(bytes)?;
        let mut blocks = vec![];
        while let Some(block) = reader.next_block()? {
            blocks.push(block);
        }
        assert_eq!(reader.next_block()?, None, "again");
        Ok((blocks, reader.totals()))
    }

    #[test]
    fn blocks_come_back_as_they_were_written() {
        let (bytes, totals) = file();
        let (blocks, read_totals) = read(&bytes).unwrap();
        assert_eq!(read_totals, totals);
        let families: Vec<_> = blocks.iter().map(|block| block.family).collect();
        assert_eq!(families, [ColumnFamily::Default, ColumnFamily::Default, ColumnFamily::Write]);
        assert_eq!(blocks[1].rows, [1, b'b', 0, 1, b'v'][..]);
        assert!(bytes.len() < 200, "the long value is compressed: {}", bytes.len());
    }

    #[test]
    fn every_byte_is_where_the_tables_say() {
        let block = encode_block(ColumnFamily::Lock, &[1, b'k', 0, 0]);
        assert_eq!(block[..10], [1, 1, 4, 0, 0, 0, 4, 0, 0, 0]);
        let crc = crc32c::crc32c(&[&block[..10], &[1, b'k', 0, 0]].concat());
        assert_eq!(block[10..14], crc.to_le_bytes());
        assert_eq!(block[14..], [1, b'k', 0, 0]);
        let end = encode_end(RowTotals { rows: 1, bytes: 4, digest: 258 });
        assert_eq!((end[0], end[1], end[9], &end[17..19]), (2, 1, 4, &[2, 1][..]));
        assert_eq!(end[25..], crc32c::crc32c(&end[..25]).to_le_bytes());
        assert_eq!(file_header(), *b"flbkrows\x01");
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_found() {
        let (good, _) = file();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                assert!(read(&bytes).is_err(), "bit {bit} of byte {at}");
            }
            assert!(read(&good[..at]).is_err(), "cut at {at}");
        }
        assert!(read(&[&good[..], b"x"].concat()).is_err(), "a byte too much");
    }
}
