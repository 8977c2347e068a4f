//! The end of a snapshot: the sender's count of all its chunks.
//!
//! | bytes | end |
//! |---|---|
//! | `01` or `02` | the format |
//! | varint | number of rows |
//! | varint | number of bytes of the rows, as they are in the chunks |
//! | 4, little-endian | CRC-32C of those bytes, of all chunks in order |
//! | varint | the region's watermark, not 0; in format 2 only |

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_varint};

/// The first byte of an end.
const FORMAT: u8 = 1;
/// The first byte of an end with a watermark.
const FORMAT_WITH_WATERMARK: u8 = 2;

/// The end of a snapshot: all that was in its chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotEnd {
    /// How many rows there are.
    pub rows: u64,
    /// How many bytes they take in the chunks.
    pub bytes: u64,
    /// CRC-32C of these bytes.
    pub digest: u32,
    /// The latest time that the region's log has named for what expires, in milliseconds since
    /// 1970; 0 before there is one.
    pub watermark_ms: u64,
}

impl SnapshotEnd {
    /// The bytes that [`SnapshotEnd::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let has_watermark = self.watermark_ms > 0;
        let mut out = vec![if has_watermark { FORMAT_WITH_WATERMARK } else { FORMAT }];
        put_varint(&mut out, self.rows);
        put_varint(&mut out, self.bytes);
        out.extend_from_slice(&self.digest.to_le_bytes());
        if has_watermark {
            put_varint(&mut out, self.watermark_ms);
        }
        out.into()
    }

    /// Reads what [`SnapshotEnd::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = FieldReader::new(bytes, "end of a snapshot");
        let has_watermark = match reader.byte()? {
            FORMAT => false,
            FORMAT_WITH_WATERMARK => true,
            _ => return Err(reader.malformed()),
        };
        let (rows, bytes) = (reader.varint()?, reader.varint()?);
        let digest = [reader.byte()?, reader.byte()?, reader.byte()?, reader.byte()?];
        let watermark_ms = if has_watermark { reader.varint()? } else { 0 };
        reader.finish()?;
        Ok(Self { rows, bytes, digest: u32::from_le_bytes(digest), watermark_ms })
    }

    /// Adds the rows of a chunk.
    pub(crate) fn add(&mut self, rows: u64, bytes: &[u8]) {
        self.rows += rows;
        self.bytes += bytes.len() as u64;
        self.digest = crc32c::crc32c_append(self.digest, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_where_the_table_says() {
        let end = SnapshotEnd { rows: 2, bytes: 300, digest: 0x0102_0304, watermark_ms: 0 };
        assert_eq!(end.encode(), [1, 2, 0xac, 2, 4, 3, 2, 1][..]);
        assert_eq!(SnapshotEnd::decode(end.encode()), Ok(end));
        let end = SnapshotEnd { watermark_ms: 300, ..end };
        assert_eq!(end.encode(), [2, 2, 0xac, 2, 4, 3, 2, 1, 0xac, 2][..]);
        assert_eq!(SnapshotEnd::decode(end.encode()), Ok(end));
        for wrong in [&[1, 2, 3, 4, 3, 2][..], &[2, 2, 3, 4, 3, 2, 1], &[1, 2, 3, 4, 3, 2, 1, 0]] {
            assert!(SnapshotEnd::decode(Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
        }
    }
}
