//! Encodes rows as protobuf fields of an answer: one copy, from a page to the bytes that are sent.
//!
//! All answers with rows have them in the same field, a pair of key and value each, so that their
//! bytes can be written before the kind of the answer and the number of rows are known.

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::sched::YieldBudget;

/// The field of an answer that has the rows, and the fields of a row.
const ROWS_FIELD: u32 = 2;
const KEY_FIELD: u32 = 2;
const VALUE_FIELD: u32 = 3;

/// Bytes of a chunk, when there are many. The longest answer needs no more in one piece, and a
/// connection takes one chunk at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes of the name and the length of a field at most, twice.
const HEADS_BYTES_MAX: usize = 2 * (5 + 10);

/// Encoded rows, in pieces that follow each other.
#[derive(Debug, Default)]
pub(super) struct RowEncoder {
    full: Vec<Bytes>,
    open: Vec<u8>,
    /// Bytes of the full pieces.
    full_bytes: usize,
    copying: YieldBudget,
}

impl RowEncoder {
    /// Adds a row behind the others. Yields the core each few rows.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        let bytes = field_bytes(KEY_FIELD, key) + field_bytes(VALUE_FIELD, value);
        self.head(ROWS_FIELD, bytes);
        self.field(KEY_FIELD, key);
        self.field(VALUE_FIELD, value);
        self.copying.spend(bytes);
    }

    /// Bytes of all rows.
    pub(super) fn encoded_len(&self) -> usize {
        self.full_bytes + self.open.len()
    }

    /// The rows, from the first on.
    pub(super) fn into_pieces(mut self) -> Vec<Bytes> {
        self.close();
        self.full
    }

    /// A field. An empty one is left out, as proto3 wants it.
    fn field(&mut self, field: u32, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.head(field, bytes.len());
        let mut left = bytes;
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(self.spare_capacity()));
            self.open.extend_from_slice(now);
            left = later;
        }
    }

    fn head(&mut self, field: u32, bytes: usize) {
        if PIECE_BYTES - self.open.len() < HEADS_BYTES_MAX {
            self.close();
        }
        encode_key(field, WireType::LengthDelimited, &mut self.open);
        encode_varint(bytes as u64, &mut self.open);
    }

    /// Bytes that can be added, at least one. A chunk grows by doubling, so that few rows take
    /// little memory.
    fn spare_capacity(&mut self) -> usize {
        if self.open.len() >= PIECE_BYTES {
            self.close();
        }
        if self.open.len() == self.open.capacity() {
            let more = if self.full.is_empty() { self.open.len().max(4096) } else { PIECE_BYTES };
            self.open.reserve_exact(more.min(PIECE_BYTES - self.open.len()));
        }
        self.open.capacity().min(PIECE_BYTES) - self.open.len()
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.full_bytes += self.open.len();
            self.full.push(Bytes::from(std::mem::take(&mut self.open)));
        }
    }
}

/// Bytes of a field with its name and length.
fn field_bytes(field: u32, bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    key_len(field) + encoded_len_varint(bytes.len() as u64) + bytes.len()
}

#[cfg(test)]
mod tests {
    use flotilla_proto::kvrpcpb::{
        KvPair, RawBatchGetResponse, RawBatchScanResponse, RawScanResponse,
    };
    use prost::Message;

    use super::*;

    /// Rows of all lengths, and what the library makes of them.
    fn encoded(kvs: &[KvPair]) -> (Vec<u8>, usize) {
        let mut rows = RowEncoder::default();
        kvs.iter().for_each(|row| rows.push(&row.key, &row.value));
        let bytes = rows.encoded_len();
        let pieces = rows.into_pieces();
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES && !piece.is_empty()));
        let all = pieces.concat();
        assert_eq!(all.len(), bytes);
        (all, pieces.len())
    }

    #[test]
    fn rows_are_what_the_library_makes_of_them() {
        let mut chance = fastrand::Rng::with_seed(1);
        for lengths_max in [1, 3, 200, 20_000, 70_000, 1 << 20] {
            let mut bytes = || {
                let length_max = chance.usize(..=lengths_max);
                Bytes::from(vec![chance.u8(..); chance.usize(..=length_max)])
            };
            let kvs: Vec<_> = (0..60).map(|_| KvPair { key: bytes(), value: bytes() }).collect();
            let (rows, _) = encoded(&kvs);
            let scan = RawScanResponse { kvs: kvs.clone(), ..Default::default() };
            assert!(rows == scan.encode_to_vec(), "up to {lengths_max}");
            let scans = RawBatchScanResponse { kvs: kvs.clone(), ..Default::default() };
            assert!(rows == scans.encode_to_vec(), "up to {lengths_max}");
            let gets = RawBatchGetResponse { pairs: kvs, ..Default::default() };
            assert!(rows == gets.encode_to_vec(), "up to {lengths_max}");
        }
    }

    #[test]
    fn a_row_of_any_length_goes_through_pieces_of_one() {
        for bytes in [0, 1, PIECE_BYTES - 40, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7] {
            for before in 0..40 {
                let value = Bytes::from(vec![7; bytes]);
                let first = KvPair { key: vec![1; before].into(), value: Bytes::new() };
                let kvs = vec![first, KvPair { key: Bytes::from_static(b"k"), value }];
                let (rows, pieces) = encoded(&kvs);
                assert!(rows == RawScanResponse { kvs, ..Default::default() }.encode_to_vec());
                assert!(pieces <= bytes / PIECE_BYTES + 2, "{pieces} for {bytes}");
            }
        }
    }

    #[test]
    fn no_rows_are_no_bytes() {
        assert_eq!(encoded(&[]), (vec![], 0));
    }
}
