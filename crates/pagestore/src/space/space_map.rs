//! Map of the space of an open store: the use of each part of the file, in cells of equal length.
//!
//! The bitmaps are copied a group at a time, and counted without the lock: it is held for 8 KiB of
//! copying, about as long as for an allocation. So each group is as of one moment, and two groups
//! may be as of different ones.

use crate::page::UNIT_BYTES;
use crate::page::layout::{GROUP_UNITS, HEAD_UNITS, META_UNITS, group_count, group_start};
use crate::space::SpaceManager;

/// Words of a group's bitmap.
const GROUP_WORDS: usize = GROUP_UNITS as usize / 64;

const _: () = assert!(GROUP_UNITS.is_multiple_of(64), "no word has units of two groups");

/// The use of each part of the file, see [`PageStore::space_map`](crate::PageStore::space_map).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSpaceMap {
    /// Bytes of the file that a cell stands for.
    pub cell_bytes: u64,
    /// The cells, in the order of the file. The last one may be shorter.
    pub cells: Vec<SpaceCell>,
}

/// The use of one part of the file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceCell {
    /// The last published state has them, or they say which parts of the file are free.
    pub used_bytes: u64,
    /// They can be given out.
    pub free_bytes: u64,
    /// They were replaced and wait for a snapshot to end or for a checkpoint, or belong to a
    /// transaction or a bulk load that is under way.
    pub pending_bytes: u64,
}

/// One group's bitmaps of what is published and of what is free.
struct GroupBits {
    published: [u64; GROUP_WORDS],
    free: [u64; GROUP_WORDS],
    /// The end of the file.
    end: u64,
}

/// Cells for a file whose units are told by `read_group`, `count_max` at most.
fn cells_of(
    end: u64,
    count_max: usize,
    mut read_group: impl FnMut(usize) -> GroupBits,
) -> StoreSpaceMap {
    // Whole words, so that no word has units of two cells.
    let cell_units = end.div_ceil(count_max.max(1) as u64).next_multiple_of(64);
    let count = (end - META_UNITS).div_ceil(cell_units).max(1) as usize;
    debug_assert!(count <= count_max.max(1), "{count} cells, {count_max} are wanted");
    let mut cells = vec![SpaceCell::default(); count];
    cells[0].used_bytes = META_UNITS * UNIT_BYTES as u64;
    for group in 0..group_count(end) {
        let bits = read_group(group);
        let first = group_start(group);
        for word in 0..GROUP_WORDS {
            let unit = first + word as u64 * 64;
            let inside = mask(bits.end.min(end).saturating_sub(unit));
            // The places of the bitmap are no pages, and never free.
            let heads = if word == 0 { mask(HEAD_UNITS) } else { 0 };
            let used = (bits.published[word] | heads) & inside;
            let free = bits.free[word] & inside;
            debug_assert_eq!(used & free, 0, "units from {unit} on are in use and free");
            let cell = &mut cells[((unit - META_UNITS) / cell_units) as usize];
            let bytes = |units: u64| u64::from(units.count_ones()) * UNIT_BYTES as u64;
            cell.used_bytes += bytes(used);
            cell.free_bytes += bytes(free);
            cell.pending_bytes += bytes(inside & !used & !free);
            if unit + 64 >= end {
                break;
            }
        }
    }
    StoreSpaceMap { cell_bytes: cell_units * UNIT_BYTES as u64, cells }
}

/// The map of a store whose space `with_space` locks, once for each group.
pub(crate) fn read(
    count_max: usize,
    with_space: impl Fn(&mut dyn FnMut(&SpaceManager)),
) -> StoreSpaceMap {
    let mut end = META_UNITS;
    with_space(&mut |space| end = space.freelist.end());
    cells_of(end, count_max, |group| {
        let mut bits = GroupBits { published: [0; GROUP_WORDS], free: [0; GROUP_WORDS], end: 0 };
        with_space(&mut |space| {
            bits.end = space.freelist.end();
            copy(&mut bits.published, space.published.words(group * GROUP_WORDS, GROUP_WORDS));
            copy(&mut bits.free, space.freelist.group_words(group));
        });
        bits
    })
}

fn copy(to: &mut [u64; GROUP_WORDS], from: &[u64]) {
    to[..from.len()].copy_from_slice(from);
}

/// The bits of the first `units` units of a word.
fn mask(units: u64) -> u64 {
    if units >= 64 { u64::MAX } else { (1 << units) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(end: u64, published: impl Fn(u64) -> bool, free: impl Fn(u64) -> bool) -> GroupBits {
        let word = |is_set: &dyn Fn(u64) -> bool, word: usize| {
            let units = (0..64).filter(|bit| is_set(META_UNITS + word as u64 * 64 + bit));
            units.fold(0, |word, bit| word | 1 << bit)
        };
        GroupBits {
            published: std::array::from_fn(|at| word(&published, at)),
            free: std::array::from_fn(|at| word(&free, at)),
            end,
        }
    }

    #[test]
    fn each_unit_is_counted_once_whatever_the_length_of_a_cell() {
        let end = 10_000;
        let (published, free) = (|unit| unit < 6_000 && unit > 3, |unit| unit >= 7_000);
        for count in [1, 2, 3, 7, 64, 1_000] {
            let map = cells_of(end, count, |_| bits(end, published, free));
            assert!(map.cells.len() <= count, "{} of {count}", map.cells.len());
            let sum = |part: fn(&SpaceCell) -> u64| {
                map.cells.iter().map(part).sum::<u64>() / UNIT_BYTES as u64
            };
            assert_eq!(sum(|cell| cell.used_bytes), 6_000, "meta pages and bitmaps too");
            assert_eq!(sum(|cell| cell.free_bytes), 3_000);
            assert_eq!(sum(|cell| cell.pending_bytes), 1_000);
            assert!(map.cell_bytes * map.cells.len() as u64 >= (end - META_UNITS) * 4096);
        }
    }

    #[test]
    fn a_file_that_has_become_shorter_has_nothing_beyond_its_end() {
        let map = cells_of(10_000, 10, |_| bits(5_000, |_| false, |unit| unit >= 4));
        let free: u64 = map.cells.iter().map(|cell| cell.free_bytes).sum();
        assert_eq!(free, (5_000 - 4) * UNIT_BYTES as u64);
    }

    #[test]
    fn a_new_file_is_one_cell() {
        let map = cells_of(META_UNITS, 100, |_| unreachable!("there is no group"));
        let used_bytes = META_UNITS * UNIT_BYTES as u64;
        assert_eq!(map.cells, [SpaceCell { used_bytes, ..SpaceCell::default() }]);
    }
}
