//! The free space as the file holds it: a bitmap for each region, and one record that vouches for
//! it.
//!
//! A bitmap page says which units of its region the durable root uses. It has two places at the
//! head of the region, written in turn, and only when the bitmap has changed; so a checkpoint pays
//! 4 KiB for each region that it changed and 16 bytes for each region there is. The records stand
//! together in an extent, the directory, that the meta page names with its checksum. A record names
//! the place that counts and the checksum of the page there; whatever a broken-off checkpoint left
//! in the other place is never looked at.
//!
//! ```text
//! | which u32: 0 none yet, 1 first place, 2 second | crc32c u32 | used units u32 | zero u32 |
//! ```

use flotilla_vfs::File;

use crate::bits::Bits;
use crate::error::{Error, Result};
use crate::freelist::{META_UNITS, REGION_UNITS, region_start};
use crate::page::{self, CRC_END, HEADER_BYTES, Kind, PageRef, Span, UNIT_BYTES, u32_at};

/// Bytes of one record.
pub(crate) const RECORD_BYTES: usize = 16;

const REGION_WORDS: usize = REGION_UNITS as usize / 64;

const _: () = assert!(REGION_WORDS * 8 + HEADER_BYTES == UNIT_BYTES);

/// What vouches for the bitmap of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    which: u32,
    crc: u32,
    used_units: u32,
}

/// The records of all regions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    records: Vec<Record>,
}

impl Regions {
    /// The directory, padded to `count` records.
    pub(crate) fn encode(&self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count * RECORD_BYTES);
        for record in &self.records {
            for field in [record.which, record.crc, record.used_units, 0] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
        }
        bytes.resize(count * RECORD_BYTES, 0);
        bytes
    }

    /// The records of the `count` first regions.
    pub(crate) fn decode(bytes: &[u8], count: usize) -> Regions {
        let records = bytes.chunks_exact(RECORD_BYTES).take(count).map(|record| Record {
            which: u32_at(record, 0),
            crc: u32_at(record, 4),
            used_units: u32_at(record, 8),
        });
        Regions { records: records.collect() }
    }

    /// The bitmap page for a region that has changed, and the unit where it goes: the place that
    /// does not count yet. From now on it does.
    pub(crate) fn renew(&mut self, region: usize, used: &Bits, txid: u64) -> (u64, Vec<u8>) {
        if self.records.len() <= region {
            self.records.resize(region + 1, Record::default());
        }
        let record = &mut self.records[region];
        record.which = if record.which == 1 { 2 } else { 1 };
        let unit = place(region, record.which);
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend_from_slice(&used.bytes(region * REGION_WORDS, REGION_WORDS));
        page::begin(&mut bytes, Kind::Bitmap, 0, unit, txid);
        let crc = page::checksum(&bytes);
        bytes[..CRC_END].copy_from_slice(&crc);
        record.crc = u32::from_le_bytes(crc);
        record.used_units = bytes[HEADER_BYTES..].iter().map(|byte| byte.count_ones()).sum();
        (unit, bytes)
    }

    /// Reads all bitmaps that count: the units in use, counted from the first region on.
    pub(crate) fn load(&self, file: &dyn File, txid: u64) -> Result<Bits> {
        let mut used = Bits::default();
        let mut bytes = vec![0; UNIT_BYTES];
        for (region, record) in self.records.iter().enumerate() {
            if record.which == 0 {
                bytes[HEADER_BYTES..].fill(0);
            } else {
                let unit = place(region, record.which);
                file.read_exact_at(&mut bytes, unit * UNIT_BYTES as u64)?;
                verify(&bytes, unit, record, txid)?;
            }
            used.extend(&bytes[HEADER_BYTES..]);
        }
        Ok(used)
    }
}

/// How many regions a file that ends at `end` has.
pub(crate) fn region_count(end: u64) -> usize {
    (end - META_UNITS).div_ceil(REGION_UNITS) as usize
}

fn place(region: usize, which: u32) -> u64 {
    region_start(region) + u64::from(which - 1)
}

fn verify(bytes: &[u8], unit: u64, record: &Record, txid: u64) -> Result<()> {
    let born = page::birth(bytes);
    let place = PageRef::new(Span { start: unit, units: 1 }, born);
    page::verify(bytes, place, txid)?;
    let vouched = bytes[..CRC_END] == record.crc.to_le_bytes();
    if !page::is_kind(bytes, Kind::Bitmap) || !vouched {
        return Err(Error::Corrupt { page: unit, what: "another bitmap than the directory names" });
    }
    Ok(())
}
