//! One file of the faulty disk: the bytes that programs see, and the bytes that are durable.
//!
//! The visible bytes are kept whole. Of the durable ones only those are kept that differ: each
//! write first saves the sectors it touches, if they were not saved since the last sync. If they
//! were, what they hold is kept as well: a disk may have it when the power goes.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;

use super::sparse::SparseBytes;
use super::temporary::TemporaryImage;
use crate::AnonymousMap;

/// The atomic unit of a disk's writes.
pub(super) const SECTOR_BYTES: u64 = 512;

/// How many contents of a sector between its durable and its visible one are kept, the newest.
const INTERMEDIATE_MAX: usize = 2;

type Sector = [u8; SECTOR_BYTES as usize];

/// Durable content of sectors that were changed since the last sync.
#[derive(Clone, Debug)]
struct DurableSectors {
    sectors: u64,
    /// May be shorter than the sectors: the rest was zero or beyond the end.
    bytes: Vec<u8>,
}

/// One file of the faulty disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    visible: SparseBytes,
    durable_len: u64,
    /// By first sector; they do not overlap.
    durable_sectors: BTreeMap<u64, DurableSectors>,
    /// Contents of sectors between two writes since the last sync.
    intermediate: BTreeMap<u64, Vec<Sector>>,
    /// Of a temporary file the visible bytes once more, to be mapped.
    image: Option<Arc<TemporaryImage>>,
    /// Handles of the running program.
    pub(super) handles: u32,
}

impl Inode {
    /// A file that the power takes along.
    pub(super) fn temporary(image: TemporaryImage) -> Self {
        Self { image: Some(Arc::new(image)), ..Self::default() }
    }

    pub(super) fn is_temporary(&self) -> bool {
        self.image.is_some()
    }

    /// Puts `range` of `memory` on the file. Only temporary files can be mapped.
    pub(super) fn remap(
        &self,
        memory: &AnonymousMap,
        range: Range<usize>,
        offset: u64,
    ) -> io::Result<bool> {
        let Some(image) = &self.image else { return Ok(false) };
        if offset.checked_add(range.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        image.remap(memory, range, offset)
    }

    /// Copies the visible bytes of `range` to the image, after a change.
    fn copy_to_image(&self, range: &Range<u64>) {
        if let Some(image) = &self.image {
            let end = range.end.min(self.len());
            let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
            self.visible.read(&mut bytes, range.start);
            image.write(&bytes, range.start, self.len());
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.visible.len()
    }

    /// Where the last block ends that was written.
    pub(super) fn data_end(&self) -> u64 {
        self.visible.data_end()
    }

    pub(super) fn space(&self) -> u64 {
        self.visible.space()
    }

    pub(super) fn space_wanted(&self, range: &Range<u64>) -> u64 {
        self.visible.space_wanted(range)
    }

    /// Fills `buf` from `offset` on; returns how many bytes lie inside the file.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let inside = self.len().saturating_sub(offset).min(buf.len() as u64) as usize;
        self.visible.read(&mut buf[..inside], offset);
        inside
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        let range = offset..offset + data.len() as u64;
        self.keep_intermediate(&range);
        self.save(&range);
        self.visible.write(data, offset);
        self.copy_to_image(&range);
    }

    pub(super) fn reserve(&mut self, range: &Range<u64>) {
        self.visible.reserve(range);
        self.copy_to_image(&(range.end..range.end));
    }

    pub(super) fn punch(&mut self, range: &Range<u64>) {
        self.keep_intermediate(range);
        self.save(range);
        self.visible.punch(range);
        self.copy_to_image(range);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len() {
            self.save(&(len..self.len()));
        }
        self.visible.set_len(len);
        self.copy_to_image(&(len..len));
    }

    /// Makes everything durable. Returns how many bytes had to be written for it.
    pub(super) fn sync(&mut self) -> u64 {
        let sectors: u64 =
            self.durable_sectors.values().map(|durable_sectors| durable_sectors.sectors).sum();
        self.durable_sectors.clear();
        self.intermediate.clear();
        self.durable_len = self.len();
        sectors * SECTOR_BYTES
    }

    /// A failed sync: some sectors fall back to their durable content, and count as clean.
    pub(super) fn drop_unsynced(&mut self, rng: &mut Rng) {
        let len = self.len();
        for (&first, durable_sectors) in &self.durable_sectors {
            revert_some(&mut self.visible, first, durable_sectors, len, rng);
        }
        // The length is kept: the next sync finds nothing left to do but that.
        self.visible.set_len(len);
        self.copy_to_image(&(0..len));
    }

    /// A power loss: each unsynced sector, and the length, is kept or lost.
    pub(super) fn lose_power(&mut self, rng: &mut Rng) {
        let (old_len, new_len) = (self.durable_len, self.len());
        for (&first, durable_sectors) in &self.durable_sectors {
            revert_some(&mut self.visible, first, durable_sectors, new_len, rng);
        }
        // Draws of its own, so that older seeds lose what they always lost.
        let mut choice = rng.clone();
        if choice.bool() {
            for (sector, contents) in &self.intermediate {
                let at = sector * SECTOR_BYTES;
                if at + SECTOR_BYTES <= new_len && choice.u8(0..4) == 0 {
                    self.visible.write(&contents[choice.usize(..contents.len())], at);
                }
            }
        }
        let len = match rng.u8(0..3) {
            0 => old_len,
            1 => new_len,
            _ if new_len > old_len => rng.u64(old_len..=new_len),
            _ => old_len,
        };
        self.visible.set_len(len);
        self.durable_sectors.clear();
        self.intermediate.clear();
        self.durable_len = len;
        self.handles = 0;
    }

    /// Changes one bit of what is there, on the medium as well.
    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.visible.read(&mut byte, offset);
        byte[0] ^= 1 << bit;
        self.visible.write(&byte, offset);
    }

    /// Keeps what those sectors of `range` hold that were changed since the last sync already.
    fn keep_intermediate(&mut self, range: &Range<u64>) {
        if range.is_empty() || self.durable_sectors.is_empty() {
            return;
        }
        for sector in range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES) {
            let before = self.durable_sectors.range(..=sector).next_back();
            if before
                .is_some_and(|(first, durable_sectors)| sector < first + durable_sectors.sectors)
            {
                let mut content = [0; SECTOR_BYTES as usize];
                self.read(&mut content, sector * SECTOR_BYTES);
                let contents = self.intermediate.entry(sector).or_default();
                if contents.len() == INTERMEDIATE_MAX {
                    contents.remove(0);
                }
                contents.push(content);
            }
        }
    }

    /// Saves the durable content of the sectors of `range`, where it is not saved yet.
    fn save(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut at, end) = (range.start / SECTOR_BYTES, range.end.div_ceil(SECTOR_BYTES));
        if let Some((&first, before)) = self.durable_sectors.range(..=at).next_back() {
            at = at.max(first + before.sectors);
        }
        while at < end {
            let next = self
                .durable_sectors
                .range(at..)
                .next()
                .map(|(&first, durable_sectors)| (first, durable_sectors.sectors));
            let gap_end = next.map_or(end, |(first, _)| first.min(end));
            if gap_end > at {
                self.durable_sectors.insert(at, self.durable(at..gap_end));
            }
            match next {
                Some((first, sectors)) if first < end => at = first + sectors,
                _ => break,
            }
        }
    }

    /// The durable content of sectors that were not changed since the last sync.
    fn durable(&self, sectors: Range<u64>) -> DurableSectors {
        let start = sectors.start * SECTOR_BYTES;
        let end = (sectors.end * SECTOR_BYTES).min(self.durable_len);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        self.visible.read(&mut bytes, start);
        DurableSectors { sectors: sectors.end - sectors.start, bytes }
    }
}

/// Restores the saved content of some sectors; those beyond `len` always, as nothing else was
/// written to them.
fn revert_some(
    visible: &mut SparseBytes,
    first: u64,
    durable_sectors: &DurableSectors,
    len: u64,
    rng: &mut Rng,
) {
    let mode = rng.u8(0..4);
    for i in 0..durable_sectors.sectors {
        let at = (first + i) * SECTOR_BYTES;
        let lost = match mode {
            0 => true,
            1 => false,
            _ => rng.bool(),
        };
        if lost || at >= len {
            let mut sector = [0; SECTOR_BYTES as usize];
            let from = ((i * SECTOR_BYTES) as usize).min(durable_sectors.bytes.len());
            let rest = &durable_sectors.bytes[from..];
            let count = rest.len().min(sector.len());
            sector[..count].copy_from_slice(&rest[..count]);
            visible.write(&sector, at);
        }
    }
}
