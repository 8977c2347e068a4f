//! Digests of a region's state, to compare replicas: version [`DIGEST_VERSION`].
//!
//! The digest is of the region as its log has made it, and not of pages: the descriptor, the
//! watermark, and of each column family the rows and the times at which they expire, in the order
//! of their keys. Two replicas that have applied the same entries have the same digest, whatever
//! their stores have done since. All numbers are little-endian, and a length comes before bytes.
//!
//! | bytes | part |
//! |---|---|
//! | 8, n | length and bytes of the descriptor, as of keys and values below |
//! | 8 | the watermark in milliseconds, 0 if there is none |
//! | `01`, 8, n, 8, 8, n | of each row: key, the time at which it expires or 0, value |
//! | `00` | the end of the rows of a family |
//! | `01`, 8, n, 8 | of each row of the expiry tree: key, time |
//! | `00` | the end of the expiry tree of a family; then the next family |

use flotilla_pagestore::{Error as PagesError, Tree};
use flotilla_region::{Index, RegionId};

use crate::data_range::end_bound;
use crate::error::{Error, ReadError, read_failed};
use crate::schema::{self, DataRow};
use crate::snapshot_read::StoreSnapshot;

/// The version of the digest. Another content has another number: stores of different versions
/// then compute none, and nothing is compared.
pub const DIGEST_VERSION: u64 = 1;

const ROW: &[u8] = &[1];
const END: &[u8] = &[0];
/// Bytes that are gathered for the checksum: it is slow for a few at a time.
const BUFFER_BYTES: usize = 16 << 10;

/// The applied index of a region, and the digest of its state.
pub(crate) fn digest(view: &StoreSnapshot, region: RegionId) -> Result<(Index, u64), Error> {
    let failed = |error| read_failed(region, error);
    let (index, mut digester) = RegionDigester::open(view, region).map_err(failed)?;
    loop {
        if let DigestProgress::Done { digest, .. } = digester.advance(u64::MAX).map_err(failed)? {
            return Ok((index, digest));
        }
    }
}

/// How far a digest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestProgress {
    /// So many bytes were read, and there are more.
    More { bytes: u64 },
    /// All were.
    Done { bytes: u64, digest: u64 },
}

/// Computes the digest of a region part by part. While it lives, the pages that it sees are not
/// used again, unless the page store ends its view.
pub(crate) struct RegionDigester {
    start: Vec<u8>,
    end: bytes::Bytes,
    /// The trees that are left, the next one last.
    trees: Vec<DigestedTree>,
    /// The last key of the next tree that was read.
    last_key: Option<Vec<u8>>,
    hash: StateHash,
}

struct DigestedTree {
    /// None if nothing was ever written to it.
    tree: Option<Tree>,
    has_values: bool,
}

impl RegionDigester {
    pub(crate) fn open(view: &StoreSnapshot, region: RegionId) -> Result<(Index, Self), ReadError> {
        let replica = view.region(region, None)?;
        let state = view.state(region).map_err(|error| match error {
            Error::Pages(error) => error.into(),
            error => ReadError::Corrupt(error.to_string()),
        })?;
        let mut trees = vec![];
        for family in replica.families() {
            let family = family?;
            trees.push(DigestedTree { tree: family.rows().cloned(), has_values: true });
            trees.push(DigestedTree { tree: family.expiries()?, has_values: false });
        }
        trees.reverse();
        let descriptor = replica.descriptor();
        let mut hash = StateHash::default();
        hash.add_bytes(&descriptor.encode());
        hash.add(&state.watermark_ms.to_le_bytes());
        let (start, end) = (descriptor.start.to_vec(), descriptor.end.clone());
        Ok((state.applied, Self { start, end, trees, last_key: None, hash }))
    }

    /// Reads on for about this many bytes.
    ///
    /// # Errors
    ///
    /// [`ReadError::SnapshotTooOld`] if the page store has ended the view; else it failed. The
    /// digest is of no use then.
    pub(crate) fn advance(&mut self, bytes_max: u64) -> Result<DigestProgress, ReadError> {
        let mut bytes = 0;
        while let Some(next) = self.trees.last() {
            if let Some(tree) = &next.tree {
                let low = match &self.last_key {
                    Some(last) => std::ops::Bound::Excluded(&last[..]),
                    None => std::ops::Bound::Included(&self.start[..]),
                };
                let mut rows = tree.range((low, end_bound(&self.end)));
                while let Some((key, row)) = rows.next().map_err(named)? {
                    self.hash.add(ROW);
                    self.hash.add_bytes(key);
                    if next.has_values {
                        let DataRow { expires_ms, value } = DataRow::decode(row)?;
                        self.hash.add(&expires_ms.to_le_bytes());
                        self.hash.add_bytes(value);
                    } else {
                        self.hash.add(&schema::decode_expiry(row)?.to_le_bytes());
                    }
                    bytes += (key.len() + row.len()) as u64;
                    if bytes >= bytes_max {
                        assert!(self.last_key.as_deref() < Some(key), "keys that do not rise");
                        self.last_key = Some(key.to_vec());
                        return Ok(DigestProgress::More { bytes });
                    }
                }
            }
            self.hash.add(END);
            self.trees.pop();
            self.last_key = None;
        }
        Ok(DigestProgress::Done { bytes, digest: self.hash.sum() })
    }
}

/// A view that was ended is no failure of the disk: the caller has to tell them apart.
fn named(error: PagesError) -> ReadError {
    match error {
        PagesError::SnapshotTooOld { .. } => ReadError::SnapshotTooOld,
        error => error.into(),
    }
}

/// CRC-64/XZ: the same on every machine, and fast. It guards against mistakes and against bits that
/// change, not against an attacker that wants two replicas to look alike.
#[derive(Default)]
struct StateHash {
    crc: crc64fast::Digest,
    buffer: Vec<u8>,
}

impl StateHash {
    fn add(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES {
            self.crc.write(&self.buffer);
            self.buffer.clear();
        }
    }

    /// With the length first, so that the border between key and value counts.
    fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
    }

    fn sum(&mut self) -> u64 {
        self.crc.write(&self.buffer);
        self.buffer.clear();
        self.crc.sum64()
    }
}
