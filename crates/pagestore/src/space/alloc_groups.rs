//! Free space on disk: a bitmap for each allocation group, and the deltas since it was written.
//!
//! A bitmap page says which units of its group a durable root used. It has two places at the head
//! of the group, written in turn. To keep write amplification low it is not written at each
//! checkpoint that changes the group: the *directory*, an extent that each checkpoint writes anew
//! and the meta page names with its checksum, has a record for each group and behind all records
//! the *bitmap deltas*, the units in which the group now differs from its bitmap. Only a group that
//! has gathered many, or many more than others when there is no room for all, gets a new bitmap. So
//! a checkpoint pays 16 bytes for each group there is, two for each unit that has changed of late,
//! and now and then 4 KiB (`docs/decisions/0015`).
//!
//! A record names the place that counts and the checksum of the page there; the other place, which
//! a crashed checkpoint may have written, is never looked at. A group that uses nothing names none.
//!
//! ```text
//! | which u32 | crc32c u32 | used units u32 | deltas u32 |
//!   which: 0 none, 1 first place, 2 second; high bit: the group has holes
//! ```

use flotilla_vfs::File;

use crate::error::{Error, Result};
use crate::page::layout::{GROUP_UNITS, group_start};
use crate::page::unit_set::UnitSet;
use crate::page::{
    self, CRC_END, HEADER_BYTES, PageKind, PageRef, Span, UNIT_BYTES, u16_at, u32_at, units_for,
};

/// Bytes of one record.
const RECORD_BYTES: usize = 16;

const DELTA_BYTES: usize = 2;

/// A group with more deltas gets a new bitmap: 256 bytes in each directory against 4 KiB once.
const GROUP_DELTAS_MAX: usize = 128;

/// With more deltas in all, the groups with the most get new bitmaps, until a quarter is free
/// again.
const DELTAS_MAX: usize = 16 << 10;

const GROUP_WORDS: usize = GROUP_UNITS as usize / 64;

const _: () = assert!(GROUP_WORDS * 8 + HEADER_BYTES == UNIT_BYTES);

/// The record of one group's bitmap: its place and checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GroupRecord {
    which: u32,
    crc: u32,
    used_units: u32,
    /// Some of its free space may be given back to the file system.
    has_holes: bool,
}

impl GroupRecord {
    fn decode(fields: &[u8]) -> GroupRecord {
        GroupRecord {
            which: u32_at(fields, 0) & !HOLES,
            crc: u32_at(fields, 4),
            used_units: u32_at(fields, 8),
            has_holes: u32_at(fields, 0) & HOLES != 0,
        }
    }
}

/// Flag in the field of `which`: the group has holes.
const HOLES: u32 = 1 << 31;

/// The records of all groups, and the bitmaps and deltas that they stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocGroups {
    records: Vec<GroupRecord>,
    /// The bitmaps that the records name, counted from the first group on.
    saved: UnitSet,
    /// For each group, the units in which it differs from that; rising.
    deltas: Vec<Vec<u16>>,
}

/// The bitmaps and deltas that a checkpoint is going to write.
pub(crate) struct BitmapPlan {
    /// Groups that get a new bitmap.
    renewed: Vec<usize>,
    /// How many deltas are left.
    delta_count: usize,
}

impl BitmapPlan {
    /// The most bytes that the directory will have: for `group_count` groups, and if it replaces
    /// one of `old_units`, whose units become deltas as well.
    pub(crate) fn directory_bytes(&self, group_count: usize, old_units: u32) -> usize {
        directory_bytes(group_count, self.delta_count, old_units)
    }
}

/// The most bytes that any directory of a file with `group_count` groups has.
pub(crate) fn directory_bytes_max(group_count: usize) -> usize {
    let units = units_for(directory_bytes(group_count, DELTAS_MAX, 0));
    directory_bytes(group_count, DELTAS_MAX, 2 * units)
}

fn directory_bytes(group_count: usize, delta_count: usize, old_units: u32) -> usize {
    let bytes = group_count * RECORD_BYTES + (delta_count + old_units as usize) * DELTA_BYTES;
    // Its own units: a sixteenth of a unit is enough to say that 128 have changed.
    bytes + units_for(bytes).div_ceil(128) as usize * 256 + 256
}

impl AllocGroups {
    /// The directory of the `count` first groups, padded with zeros to `len` bytes.
    pub(crate) fn encode(&self, count: usize, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        for group in 0..count {
            let record = self.records.get(group).copied().unwrap_or_default();
            let deltas = self.deltas.get(group).map_or(0, Vec::len);
            let deltas = u32::try_from(deltas).expect("a group is short");
            let which = record.which | if record.has_holes { HOLES } else { 0 };
            for field in [which, record.crc, record.used_units, deltas] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
        }
        for delta in self.deltas.iter().take(count).flatten() {
            bytes.extend_from_slice(&delta.to_le_bytes());
        }
        assert!(bytes.len() <= len, "a directory of {} bytes in {len}", bytes.len());
        bytes.resize(len, 0);
        bytes
    }

    /// Reads a directory of `count` groups, which lies at unit `at`, and all bitmaps that it names.
    /// Returns as well the units in use, counted from the first group on.
    pub(crate) fn load(
        directory: &[u8],
        at: u64,
        count: usize,
        file: &dyn File,
        txid: u64,
    ) -> Result<(AllocGroups, UnitSet)> {
        let corrupt = |what| Err(Error::Corrupt { page: at, what });
        let mut groups = AllocGroups::default();
        let mut used = UnitSet::default();
        let mut bytes = vec![0; UNIT_BYTES];
        let mut rest = count * RECORD_BYTES;
        if directory.len() < rest {
            return corrupt("the directory is too short");
        }
        let records: Vec<GroupRecord> =
            directory.chunks_exact(RECORD_BYTES).take(count).map(GroupRecord::decode).collect();
        if records.iter().any(|record| record.which > 2) {
            return corrupt("the place of a bitmap");
        }
        // They lie far from one another: all are prefetched before the first is waited for.
        for (group, record) in records.iter().enumerate().filter(|(_, record)| record.which != 0) {
            let at = bitmap_unit_at(group, record.which) * UNIT_BYTES as u64;
            file.will_need(at..at + UNIT_BYTES as u64);
        }
        for (group, (record, fields)) in
            records.iter().zip(directory.chunks_exact(RECORD_BYTES)).enumerate()
        {
            if record.which == 0 {
                bytes[HEADER_BYTES..].fill(0);
            } else {
                let unit = bitmap_unit_at(group, record.which);
                file.read_exact_at(&mut bytes, unit * UNIT_BYTES as u64)?;
                verify(&bytes, unit, record, txid)?;
            }
            groups.saved.extend(&bytes[HEADER_BYTES..]);
            used.extend(&bytes[HEADER_BYTES..]);
            let end =
                rest.saturating_add((u32_at(fields, 12) as usize).saturating_mul(DELTA_BYTES));
            let Some(deltas) = directory.get(rest..end) else {
                return corrupt("the directory is too short");
            };
            rest = end;
            let deltas: Vec<u16> =
                deltas.chunks_exact(DELTA_BYTES).map(|delta| u16_at(delta, 0) as u16).collect();
            let rising = deltas.is_sorted_by(|a, b| a < b);
            if !rising || deltas.last().is_some_and(|&last| u64::from(last) >= GROUP_UNITS) {
                return corrupt("toggles of the directory");
            }
            for &delta in &deltas {
                used.flip(group as u64 * GROUP_UNITS + u64::from(delta));
            }
            if ones(used.words(group * GROUP_WORDS, GROUP_WORDS)) != record.used_units {
                return corrupt("count of used units");
            }
            groups.deltas.push(deltas);
        }
        groups.records = records;
        Ok((groups, used))
    }

    /// The unit of the bitmap of a group, if it has one.
    pub(crate) fn bitmap_unit(&self, group: usize) -> Option<u64> {
        let record = self.records.get(group).filter(|record| record.which != 0)?;
        Some(bitmap_unit_at(group, record.which))
    }

    /// Proves that what was read from there is the bitmap that belongs to transaction `txid`.
    pub(crate) fn verify_bitmap(&self, group: usize, bytes: &[u8], txid: u64) -> Result<()> {
        let (record, unit) =
            (&self.records[group], bitmap_unit_at(group, self.records[group].which));
        verify(bytes, unit, record, txid)?;
        if bytes[HEADER_BYTES..] != self.saved.bytes(group * GROUP_WORDS, GROUP_WORDS) {
            return Err(Error::Corrupt { page: unit, what: "another bitmap than was written" });
        }
        Ok(())
    }

    /// The plan of a checkpoint if `used` is to be durable and only groups in `changed` differ from
    /// the last durable bitmaps.
    pub(crate) fn plan(&self, changed: &UnitSet, used: &UnitSet) -> BitmapPlan {
        let mut counts: Vec<usize> = self.deltas.iter().map(Vec::len).collect();
        for group in changed.iter().map(|group| group as usize) {
            if counts.len() <= group {
                counts.resize(group + 1, 0);
            }
            counts[group] =
                self.differing(group, used).map(|(_, word)| word.count_ones() as usize).sum();
        }
        let mut renewed: Vec<usize> =
            (0..counts.len()).filter(|&group| counts[group] > GROUP_DELTAS_MAX).collect();
        for &group in &renewed {
            counts[group] = 0;
        }
        let mut delta_count = counts.iter().sum();
        if delta_count > DELTAS_MAX {
            let mut by_count: Vec<usize> = (0..counts.len()).collect();
            by_count.sort_unstable_by_key(|&group| std::cmp::Reverse(counts[group]));
            for group in by_count {
                if delta_count <= DELTAS_MAX / 4 * 3 {
                    break;
                }
                delta_count -= counts[group];
                renewed.push(group);
            }
        }
        BitmapPlan { renewed, delta_count }
    }

    /// Brings the records up to date in the groups of `changed`, and in those that the plan wants
    /// to have new bitmaps. Returns these and the units where they go: the places that do not count
    /// yet. From now on they do.
    pub(crate) fn update(
        &mut self,
        plan: &BitmapPlan,
        changed: &UnitSet,
        used: &UnitSet,
        txid: u64,
    ) -> Vec<(u64, Vec<u8>)> {
        for group in changed.iter().map(|group| group as usize) {
            if self.records.len() <= group {
                self.records.resize(group + 1, GroupRecord::default());
                self.deltas.resize_with(group + 1, Vec::new);
            }
            let used_units = ones(used.words(group * GROUP_WORDS, GROUP_WORDS));
            self.records[group].used_units = used_units;
            // An empty group needs no bitmap, so opening the store reads none for it.
            if used_units == 0 {
                self.records[group] = GroupRecord::default();
                self.saved.copy_words(&UnitSet::default(), group * GROUP_WORDS, GROUP_WORDS);
            }
            self.deltas[group] = self.differing(group, used).flat_map(units_of).collect();
            let is_rising = self.deltas[group].is_sorted_by(|a, b| a < b);
            debug_assert!(is_rising, "deltas of group {group} do not rise");
        }
        let renewed = plan.renewed.iter().filter(|&&group| self.records[group].used_units > 0);
        let renewed: Vec<usize> = renewed.copied().collect();
        renewed.into_iter().map(|group| self.renew(group, used, txid)).collect()
    }

    /// Notes which of the `count` first groups have holes.
    pub(crate) fn note_holes(&mut self, count: usize, has_holes: impl Fn(usize) -> bool) {
        if self.records.len() < count {
            self.records.resize(count, GroupRecord::default());
            self.deltas.resize_with(count, Vec::new);
        }
        for (group, record) in self.records.iter_mut().enumerate() {
            record.has_holes = has_holes(group);
        }
    }

    /// Whether a group may have holes.
    pub(crate) fn has_holes(&self, group: usize) -> bool {
        self.records.get(group).is_some_and(|record| record.has_holes)
    }

    fn renew(&mut self, group: usize, used: &UnitSet, txid: u64) -> (u64, Vec<u8>) {
        let record = &mut self.records[group];
        // The other place: the durable directory names this one until the checkpoint is durable.
        record.which = if record.which == 1 { 2 } else { 1 };
        let unit = bitmap_unit_at(group, record.which);
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend_from_slice(&used.bytes(group * GROUP_WORDS, GROUP_WORDS));
        page::begin(&mut bytes, PageKind::Bitmap, 0, unit, txid);
        let crc = page::checksum(&bytes);
        bytes[..CRC_END].copy_from_slice(&crc);
        record.crc = u32::from_le_bytes(crc);
        self.saved.copy_words(used, group * GROUP_WORDS, GROUP_WORDS);
        self.deltas[group] = Vec::new();
        (unit, bytes)
    }

    /// The words of a group in which `used` differs from its bitmap: where, and which bits.
    fn differing(&self, group: usize, used: &UnitSet) -> impl Iterator<Item = (usize, u64)> {
        let saved = self.saved.words(group * GROUP_WORDS, GROUP_WORDS);
        let used = used.words(group * GROUP_WORDS, GROUP_WORDS);
        let word = |words: &[u64], i: usize| words.get(i).copied().unwrap_or(0);
        let count = saved.len().max(used.len());
        (0..count).map(move |i| (i, word(saved, i) ^ word(used, i))).filter(|(_, bits)| *bits != 0)
    }
}

/// The units that the bits of a word of a group stand for.
fn units_of((word, bits): (usize, u64)) -> impl Iterator<Item = u16> {
    let units = (0..64).filter(move |bit| bits >> bit & 1 == 1);
    units.map(move |bit| u16::try_from(word * 64 + bit).expect("a group is short"))
}

fn ones(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

fn bitmap_unit_at(group: usize, which: u32) -> u64 {
    assert!(matches!(which, 1 | 2), "a bitmap has no place {which}");
    group_start(group) + u64::from(which - 1)
}

fn verify(bytes: &[u8], unit: u64, record: &GroupRecord, txid: u64) -> Result<()> {
    let created_txid = page::created_txid(bytes);
    let page_ref = PageRef::new(Span { start: unit, units: 1 }, created_txid);
    page::verify(bytes, page_ref, txid)?;
    let vouched = bytes[..CRC_END] == record.crc.to_le_bytes();
    if !page::is_kind(bytes, PageKind::Bitmap) || !vouched {
        return Err(Error::Corrupt { page: unit, what: "another bitmap than the directory names" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};

    use super::*;

    /// A file, what vouches for its space, and the directory that counts.
    struct Disk {
        file: Arc<dyn File>,
        groups: AllocGroups,
        count: usize,
        directory: Vec<u8>,
        bitmap_count: usize,
    }

    impl Disk {
        fn new(count: usize) -> Disk {
            let fs = FaultFs::new(1);
            fs.create_dir_all(Path::new("/d")).unwrap();
            let file = fs.open(Path::new("/d/f"), OpenMode::CreateNew).unwrap();
            let (groups, directory) = (AllocGroups::default(), vec![0; count * RECORD_BYTES]);
            Disk { file, groups, count, directory, bitmap_count: 0 }
        }

        /// The steps of a checkpoint; returns the bytes that it writes.
        fn checkpoint(&mut self, changed: &UnitSet, used: &UnitSet, txid: u64) -> usize {
            let plan = self.groups.plan(changed, used);
            let bitmaps = self.groups.update(&plan, changed, used, txid);
            let len = plan.directory_bytes(self.count, 0);
            assert!(len <= directory_bytes_max(self.count), "{len}");
            for (unit, bytes) in &bitmaps {
                self.file.write_at(bytes, unit * UNIT_BYTES as u64).unwrap();
            }
            self.directory = self.groups.encode(self.count, len);
            self.bitmap_count += bitmaps.len();
            bitmaps.len() * UNIT_BYTES + len
        }

        fn load(&self) -> Result<UnitSet> {
            let loaded = AllocGroups::load(&self.directory, 9, self.count, &*self.file, u64::MAX);
            loaded.map(|(_, used)| used)
        }
    }

    fn same(one: &UnitSet, other: &UnitSet) -> bool {
        one.iter().eq(other.iter())
    }

    #[test]
    fn directory_says_what_is_used() {
        for seed in 0..6 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut disk = Disk::new(5);
            let mut used = UnitSet::default();
            for txid in 1..40 {
                let mut changed = UnitSet::default();
                for _ in 0..rng.usize(..4) {
                    let group = rng.u64(..5);
                    let (from, count) =
                        (rng.u64(2..30_000), rng.u64(1..[40, 400][seed as usize % 2]));
                    for unit in from..from + count {
                        used.flip(group * GROUP_UNITS + unit);
                    }
                    changed.insert(group);
                }
                if rng.u32(..10) == 0 {
                    // All of a group is given back.
                    used.copy_words(&UnitSet::default(), GROUP_WORDS, GROUP_WORDS);
                    changed.insert(1);
                }
                let (before, directory) = (disk.load().unwrap(), disk.directory.clone());
                disk.checkpoint(&changed, &used, txid);
                assert!(same(&disk.load().unwrap(), &used));
                // The directory before still counts when the bitmaps are written already.
                let new = std::mem::replace(&mut disk.directory, directory);
                assert!(same(&disk.load().unwrap(), &before), "a bitmap that counts was lost");
                disk.directory = new;
            }
            assert!(disk.bitmap_count > 1, "{}", disk.bitmap_count);
        }
    }

    #[test]
    fn directory_that_lies_is_found() {
        let mut disk = Disk::new(2);
        let (mut used, mut changed) = (UnitSet::default(), UnitSet::default());
        for unit in [5, 6, 9] {
            used.insert(unit);
        }
        changed.insert(0);
        disk.checkpoint(&changed, &used, 1);
        let whole = disk.directory.clone();
        // Count of used units, count of deltas, order of deltas, delta beyond the group.
        for (at, byte) in [(8, 1), (12, 200), (13, 255), (32, 7), (37, 0x7f)] {
            disk.directory = whole.clone();
            disk.directory[at] = byte;
            assert!(matches!(disk.load(), Err(Error::Corrupt { page: 9, .. })), "{at}");
        }
        disk.directory = whole[..RECORD_BYTES + 3].to_vec();
        assert!(matches!(disk.load(), Err(Error::Corrupt { page: 9, .. })));
    }

    #[test]
    fn little_is_written_for_a_hundred_pages_of_millions() {
        // 1 M free pages of 2 M, each second one; a list of them has 8 MB.
        let mut rng = fastrand::Rng::with_seed(1);
        let mut disk = Disk::new(62);
        let units = 62 * GROUP_UNITS;
        let (mut used, mut changed) = (UnitSet::default(), UnitSet::default());
        for unit in (2..units).step_by(2) {
            used.insert(unit);
            changed.insert(unit / GROUP_UNITS);
        }
        disk.checkpoint(&changed, &used, 1);
        let mut bytes = 0;
        for txid in 2..202 {
            let mut changed = UnitSet::default();
            for _ in 0..100 {
                let (old, new) = (rng.u64(2..units) & !1, rng.u64(2..units / 50) | 1);
                for unit in [old, new] {
                    used.flip(unit);
                    changed.insert(unit / GROUP_UNITS);
                }
            }
            let written = disk.checkpoint(&changed, &used, txid);
            bytes += if txid > 102 { written } else { 0 };
        }
        assert!(bytes / 100 < 16 << 10, "{} bytes a checkpoint", bytes / 100);
    }
}
