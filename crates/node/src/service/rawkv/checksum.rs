//! `RawChecksum`: the checksum of all rows of some ranges, as TiKV computes it
//! (`tikv/src/storage/mod.rs`, `raw_checksum`). For each row the CRC-64 of its key and its value,
//! one behind the other; of all rows the exclusive or. So a client may join the answers of several
//! regions, whatever their borders.

use crc64fast::Digest;
use flotilla_proto::kvrpcpb::{ChecksumAlgorithm, RawChecksumRequest, RawChecksumResponse};
use flotilla_store::{ReadError, RegionSnapshot, ScanRequest};

use super::errors::RequestFailure;
use super::range::{self, KeyBounds};
use super::reads::{PART_BYTES, RANGES_MAX, RowReader};
use super::service::RawKv;

impl RawKv {
    pub(super) async fn checksum(
        &self,
        request: RawChecksumRequest,
    ) -> Result<RawChecksumResponse, RequestFailure> {
        let RawChecksumRequest { context, algorithm, ranges } = request;
        let rules = self.rules("raw_checksum");
        rules.version(context.as_ref())?;
        if algorithm != i32::from(ChecksumAlgorithm::Crc64Xor) {
            let words = format!("unknown checksum algorithm {algorithm}");
            return Err(RequestFailure::Refused(words));
        }
        if ranges.len() > RANGES_MAX {
            let words = format!("{} ranges, at most {RANGES_MAX}", ranges.len());
            return Err(RequestFailure::Refused(words));
        }
        let checked = self.check_context(context)?.at_known_version();
        let (mut probes, mut clipped) = (vec![], vec![]);
        for range in ranges {
            rules.range(&range.start_key, &range.end_key)?;
            let found = range::forward(&checked.descriptor, range.start_key, range.end_key);
            probes.extend(found.probe);
            clipped.extend(found.range);
        }
        let checked = checked.touching(&probes);
        let reading =
            RangeChecksum { ranges: clipped, next: 0, rest: None, sum: RowSum::default() };
        let RowSum { checksum, rows, bytes } = self.read_rows(checked, reading).await?;
        Ok(RawChecksumResponse {
            checksum,
            total_kvs: rows,
            total_bytes: bytes,
            ..RawChecksumResponse::default()
        })
    }
}

/// A sum over rows, in any order.
#[derive(Debug, Default, PartialEq, Eq)]
struct RowSum {
    checksum: u64,
    rows: u64,
    /// Of keys and values.
    bytes: u64,
}

impl RowSum {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut digest = Digest::new();
        digest.write(key);
        digest.write(value);
        self.checksum ^= digest.sum64();
        self.rows += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

/// The sum over ranges, part by part. It keeps no row.
struct RangeChecksum {
    ranges: Vec<KeyBounds>,
    /// The range after the one that is being read.
    next: usize,
    /// The rest of the range that is being read.
    rest: Option<ScanRequest>,
    sum: RowSum,
}

impl RowReader for RangeChecksum {
    type Output = RowSum;

    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError> {
        let before = self.sum.bytes;
        while self.sum.bytes - before < PART_BYTES {
            let Some(request) = self.rest.take().or_else(|| self.next_range()) else {
                return Ok(true);
            };
            let part_bytes = PART_BYTES - (self.sum.bytes - before);
            let sum = &mut self.sum;
            self.rest = view.scan_part(&request, part_bytes, |key, value| sum.add(key, value))?;
            if self.rest.is_some() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn take(&mut self) -> RowSum {
        (self.next, self.rest) = (0, None);
        std::mem::take(&mut self.sum)
    }
}

impl RangeChecksum {
    fn next_range(&mut self) -> Option<ScanRequest> {
        let KeyBounds { start, end } = self.ranges.get(self.next)?.clone();
        self.next += 1;
        let (limit, bytes_max) = (u64::MAX, u64::MAX);
        Some(ScanRequest { start, end, limit, reverse: false, key_only: false, bytes_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_by_the_crc_of_its_key_and_value() {
        // The check value of CRC-64/XZ.
        let check = 0x995d_c9bb_df19_39fa;
        let sum = |rows: &[(&str, &str)]| {
            let mut sum = RowSum::default();
            rows.iter().for_each(|(key, value)| sum.add(key.as_bytes(), value.as_bytes()));
            sum
        };
        assert_eq!(sum(&[("1234", "56789")]), RowSum { checksum: check, rows: 1, bytes: 9 });
        assert_eq!(sum(&[("", "123456789")]).checksum, check);
        let (one, other) = (("a", "1"), ("b", ""));
        assert_eq!(sum(&[one, other]), sum(&[other, one]));
        assert_eq!(sum(&[one, other, other]), RowSum { rows: 3, bytes: 4, ..sum(&[one]) });
        assert_eq!(sum(&[]), RowSum::default());
    }
}
