//! The two meta pages, written in turn; the newer valid one names the durable root.
//!
//! Checkpoint n writes meta page n mod 2, so the one before stays whole while the new one is
//! written. A meta page is eight copies of one record of 512 bytes, a sector each: a write that
//! tears between sectors leaves the old or the new record readable, and so does a rotten byte.
//!
//! ```text
//! | magic 8 | version u32 | crc32c u32 | number u64 | txid u64 | catalogue u64 | end u64 |
//! | directory 24 | length u16 | commit metadata 64 | deferred frees 24 |
//! | redo area: first unit u64 | units u32 | from u64 | zeros to 512 |
//! ```

use crate::config::COMMIT_METADATA_BYTES_MAX;
use crate::error::{Error, Result};
use crate::page::deferred_free::{DEFERRED_FREE_BYTES, DeferredFree};
use crate::page::layout::META_UNITS;
use crate::page::leaf::ValueExtent;
use crate::page::slotted::EXTENT_BYTES;
use crate::page::{PageRef, Span, UNIT_BYTES, UNIT_COUNT_MAX, put_u16, u16_at, u32_at, u64_at};
use crate::redo::RedoArea;

const MAGIC: [u8; 8] = *b"FLOTPAGE";
const VERSION: u32 = 2;
const SECTOR_BYTES: usize = 512;

/// No store comes so far by itself.
const NUMBER_MAX: u64 = 1 << 62;

const VERSION_AT: usize = MAGIC.len();
const CRC_AT: usize = VERSION_AT + 4;
const NUMBER_AT: usize = CRC_AT + 4;
const TXID_AT: usize = NUMBER_AT + 8;
const CATALOGUE_AT: usize = TXID_AT + 8;
const END_AT: usize = CATALOGUE_AT + 8;
const DIRECTORY_AT: usize = END_AT + 8;
const COMMIT_METADATA_LEN_AT: usize = DIRECTORY_AT + EXTENT_BYTES;
const COMMIT_METADATA_AT: usize = COMMIT_METADATA_LEN_AT + 2;

const DEFERRED_FREE_AT: usize = COMMIT_METADATA_AT + COMMIT_METADATA_BYTES_MAX;
const REDO_AT: usize = DEFERRED_FREE_AT + DEFERRED_FREE_BYTES;
const REDO_UNITS_AT: usize = REDO_AT + 8;
const REDO_FROM_AT: usize = REDO_UNITS_AT + 4;
const FIELDS_END: usize = REDO_FROM_AT + 8;

const _: () = assert!(FIELDS_END <= SECTOR_BYTES);
const _: () = assert!(UNIT_BYTES == SECTOR_BYTES * u8::BITS as usize);

/// All copies of a meta page.
pub(crate) const ALL_COPIES: u8 = u8::MAX;

/// The contents of one meta page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetaPage {
    /// The number of the checkpoint that wrote it.
    pub(crate) number: u64,
    /// The durable transaction.
    pub(crate) txid: u64,
    /// The tree of trees.
    pub(crate) catalogue: PageRef,
    /// One past the last unit in use.
    pub(crate) end: u64,
    /// The extent of the directory of allocation groups; of length 0 if there is none.
    pub(crate) directory: ValueExtent,
    /// The commit metadata of the caller.
    pub(crate) commit_metadata: Vec<u8>,
    /// Subtrees whose free is deferred.
    pub(crate) deferred_free: DeferredFree,
    /// The redo area, if there is one.
    pub(crate) redo: Option<RedoArea>,
}

impl MetaPage {
    /// The meta page of a new file.
    pub(crate) fn empty() -> MetaPage {
        MetaPage {
            number: 0,
            txid: 0,
            catalogue: PageRef::NONE,
            end: META_UNITS,
            directory: ValueExtent { start: 0, len: 0, crc: 0, created_txid: 0 },
            commit_metadata: Vec::new(),
            deferred_free: DeferredFree::EMPTY,
            redo: None,
        }
    }

    /// The unit that it is written to.
    pub(crate) fn unit(&self) -> u64 {
        self.number % 2
    }

    /// The whole page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(
            self.commit_metadata.len() <= COMMIT_METADATA_BYTES_MAX,
            "it would overwrite fields"
        );
        let mut record = [0; SECTOR_BYTES];
        record[..VERSION_AT].copy_from_slice(&MAGIC);
        record[VERSION_AT..CRC_AT].copy_from_slice(&VERSION.to_le_bytes());
        record[NUMBER_AT..TXID_AT].copy_from_slice(&self.number.to_le_bytes());
        record[TXID_AT..CATALOGUE_AT].copy_from_slice(&self.txid.to_le_bytes());
        record[CATALOGUE_AT..END_AT].copy_from_slice(&self.catalogue.raw().to_le_bytes());
        record[END_AT..DIRECTORY_AT].copy_from_slice(&self.end.to_le_bytes());
        record[DIRECTORY_AT..COMMIT_METADATA_LEN_AT].copy_from_slice(&self.directory.encode());
        put_u16(&mut record, COMMIT_METADATA_LEN_AT, self.commit_metadata.len());
        record[COMMIT_METADATA_AT..COMMIT_METADATA_AT + self.commit_metadata.len()]
            .copy_from_slice(&self.commit_metadata);
        record[DEFERRED_FREE_AT..DEFERRED_FREE_AT + DEFERRED_FREE_BYTES]
            .copy_from_slice(&self.deferred_free.encode());
        if let Some(RedoArea { span, from }) = self.redo {
            record[REDO_AT..REDO_UNITS_AT].copy_from_slice(&span.start.to_le_bytes());
            record[REDO_UNITS_AT..REDO_FROM_AT].copy_from_slice(&span.units.to_le_bytes());
            record[REDO_FROM_AT..FIELDS_END].copy_from_slice(&from.to_le_bytes());
        }
        let crc = checksum(&record);
        record[CRC_AT..NUMBER_AT].copy_from_slice(&crc.to_le_bytes());
        record.repeat(UNIT_BYTES / SECTOR_BYTES)
    }

    /// The contents of the meta page in `unit`, if any of its copies is whole: the newest of them.
    /// An older one may stand before it, if the power went while the page was written. If that
    /// counted, the newer one would lie there still when its checkpoint's pages are long
    /// overwritten.
    fn decode(page: &[u8], unit: u64) -> Result<Option<MetaPage>> {
        let whole = || page.chunks_exact(SECTOR_BYTES).filter(|&copy| is_whole(copy));
        let mut versions = whole().map(|record| u32_at(record, VERSION_AT));
        if let Some(version) = versions.find(|&version| version != VERSION) {
            return Err(Error::Unsupported { version });
        }
        let number = |record: &[u8]| u64_at(record, NUMBER_AT);
        let commit_metadata_len = |record: &[u8]| u16_at(record, COMMIT_METADATA_LEN_AT);
        let fitting = whole().filter(|record| {
            number(record) % 2 == unit && commit_metadata_len(record) <= COMMIT_METADATA_BYTES_MAX
        });
        let Some(record) = fitting.max_by_key(|record| number(record)) else { return Ok(None) };
        let (number, commit_metadata_len) = (number(record), commit_metadata_len(record));
        let span = Span { start: u64_at(record, REDO_AT), units: u32_at(record, REDO_UNITS_AT) };
        Ok(Some(MetaPage {
            number,
            txid: u64_at(record, TXID_AT),
            catalogue: PageRef::from_raw(u64_at(record, CATALOGUE_AT)),
            end: u64_at(record, END_AT),
            directory: ValueExtent::decode(&record[DIRECTORY_AT..COMMIT_METADATA_LEN_AT]),
            commit_metadata: record[COMMIT_METADATA_AT..COMMIT_METADATA_AT + commit_metadata_len]
                .to_vec(),
            deferred_free: DeferredFree::decode(
                &record[DEFERRED_FREE_AT..DEFERRED_FREE_AT + DEFERRED_FREE_BYTES],
            ),
            redo: (span.units > 0).then_some(RedoArea { span, from: u64_at(record, REDO_FROM_AT) }),
        }))
    }

    /// The newer of two meta pages, given as the first bytes of the file.
    pub(crate) fn newest(pages: &[u8]) -> Result<MetaPage> {
        let newest = MetaPage::both(pages)?.into_iter().flatten().max_by_key(|meta| meta.number);
        newest.ok_or(Error::Corrupt { page: 0, what: "neither meta page is valid" })
    }

    /// Proves that what it names can lie in a file, and that no sum about it overflows: numbers
    /// only grow by one at a time, and the position in the redo area by bytes that were written.
    pub(crate) fn verify_places(&self) -> Result<()> {
        let is_inside = |span: Span| {
            let end = span.start.saturating_add(u64::from(span.units));
            span.start >= META_UNITS && end <= self.end
        };
        let is_sound = (META_UNITS..=UNIT_COUNT_MAX).contains(&self.end)
            && (self.directory.len == 0 || is_inside(self.directory.span()))
            && self.redo.is_none_or(|area| is_inside(area.span));
        let corrupt = |what| Err(Error::Corrupt { page: self.unit(), what });
        if !is_sound {
            return corrupt("places that the meta page names");
        }
        if self.number >= NUMBER_MAX || self.txid >= NUMBER_MAX {
            return corrupt("numbers that the meta page names");
        }
        let begins = |area: RedoArea| {
            area.from < NUMBER_MAX && area.from.is_multiple_of(SECTOR_BYTES as u64)
        };
        if !self.redo.is_none_or(begins) {
            return corrupt("where redo records begin by the meta page");
        }
        Ok(())
    }

    /// The contents of both meta pages.
    pub(crate) fn both(pages: &[u8]) -> Result<[Option<MetaPage>; 2]> {
        let (first, second) = pages.split_at(UNIT_BYTES);
        Ok([MetaPage::decode(first, 0)?, MetaPage::decode(second, 1)?])
    }

    /// A mask of the whole copies of each meta page, the first copy in the lowest bit.
    pub(crate) fn copies(pages: &[u8]) -> [u8; 2] {
        let (first, second) = pages.split_at(UNIT_BYTES);
        [first, second].map(|page| {
            let copies = page.chunks_exact(SECTOR_BYTES).enumerate();
            copies.fold(0, |mask, (i, copy)| mask | u8::from(is_whole(copy)) << i)
        })
    }
}

fn is_whole(record: &[u8]) -> bool {
    record[..VERSION_AT] == MAGIC && u32_at(record, CRC_AT) == checksum(record)
}

/// The checksum of a record, which does not cover itself.
fn checksum(record: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&record[..CRC_AT]);
    crc32c::crc32c_append(crc, &record[NUMBER_AT..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(number: u64) -> MetaPage {
        let area = RedoArea { span: Span { start: 9, units: 5 }, from: 1 << 40 };
        let redo = (number > 3).then_some(area);
        MetaPage {
            number,
            txid: 7 * number,
            commit_metadata: vec![1; 64],
            redo,
            ..MetaPage::empty()
        }
    }

    #[test]
    fn newer_valid_page_wins() {
        let pages = [meta(4).encode(), meta(3).encode()].concat();
        assert_eq!(MetaPage::newest(&pages).unwrap(), meta(4));
        let mut torn = pages.clone();
        torn[..UNIT_BYTES].fill(9);
        assert_eq!(MetaPage::newest(&torn).unwrap(), meta(3));
        assert!(matches!(MetaPage::newest(&[9; 8192]), Err(Error::Corrupt { page: 0, .. })));
    }

    #[test]
    fn one_whole_sector_is_enough() {
        let mut pages = [meta(4).encode(), meta(3).encode()].concat();
        pages[..7 * 512].fill(0);
        assert_eq!(MetaPage::newest(&pages).unwrap(), meta(4));
        for at in 0..pages.len() {
            let mut rotten = [meta(4).encode(), meta(3).encode()].concat();
            rotten[at] ^= 0x10;
            assert_eq!(MetaPage::newest(&rotten).unwrap(), meta(4));
        }
    }

    #[test]
    fn newest_copy_of_a_torn_page_counts() {
        let (old, new) = (meta(4).encode(), meta(6).encode());
        for written in 1..8_u32 {
            // In whatever order the sectors come to the disk.
            for rotation in 0..8 {
                let is_new = |sector: usize| (sector + rotation) % 8 < written as usize;
                let torn = (0..8).flat_map(|sector| {
                    let from = if is_new(sector) { &new } else { &old };
                    from[sector * SECTOR_BYTES..][..SECTOR_BYTES].iter().copied()
                });
                let pages = [torn.collect(), meta(5).encode()].concat();
                assert_eq!(MetaPage::newest(&pages).unwrap(), meta(6), "{written} {rotation}");
            }
        }
    }

    #[test]
    fn page_in_the_wrong_place_does_not_count() {
        let pages = [meta(3).encode(), meta(4).encode()].concat();
        assert!(MetaPage::newest(&pages).is_err());
    }

    #[test]
    fn other_formats_are_refused() {
        for version in [1, VERSION + 1] {
            assert_refused(version);
        }
    }

    fn assert_refused(other: u32) {
        let mut page = meta(4).encode();
        for record in page.chunks_exact_mut(SECTOR_BYTES) {
            record[VERSION_AT..CRC_AT].copy_from_slice(&other.to_le_bytes());
            let crc = checksum(record);
            record[CRC_AT..NUMBER_AT].copy_from_slice(&crc.to_le_bytes());
        }
        page.extend(meta(3).encode());
        let error = MetaPage::newest(&page).unwrap_err();
        assert!(matches!(error, Error::Unsupported { version } if version == other), "{error}");
    }
}
