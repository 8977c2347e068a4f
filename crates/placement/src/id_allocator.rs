//! The id allocator: numbers of regions, peers and stores, unique in the cluster, never used twice.
//!
//! A leader leases blocks of ids by raising a row and hands out only ids of a block of its own. The
//! rest of a block is lost when leadership goes, which costs nothing.

use crate::rows::{IDS_KEY, RowError, RowSwap, SwapResult};
use crate::watermark::HighWatermark;
use std::ops::Range;

/// How many ids a leader leases at once.
pub const BLOCK_COUNT: u64 = 10_000;
/// The first id that is handed out. Below it lie the ids of the first stores, regions and peers,
/// which every store derives from the initial cluster.
pub const FLOOR: u64 = 1_000_000;

/// The allocator of one leader.
#[derive(Clone, Debug)]
pub struct IdAllocator {
    watermark: HighWatermark,
    free: Range<u64>,
    /// The largest count that a request waits for.
    wanted_count: u64,
}

impl IdAllocator {
    /// The allocator of a new leader, which has read the row [`IDS_KEY`] in a linearizable way.
    ///
    /// # Errors
    ///
    /// The row is not a number.
    pub fn recover(row: Option<&[u8]>) -> Result<Self, RowError> {
        let watermark = HighWatermark::recover(IDS_KEY, row, FLOOR)?;
        Ok(Self { watermark, free: 0..0, wanted_count: 0 })
    }

    /// Takes `count` ids that follow each other. `None` if they have to be leased first: write
    /// what [`IdAllocator::wants`] says and ask again.
    pub fn take(&mut self, count: u64) -> Option<Range<u64>> {
        if self.free.end - self.free.start < count {
            // Remembered, or a request for more than a block would be refused for ever.
            self.wanted_count = self.wanted_count.max(count);
            return None;
        }
        let first = self.free.start;
        self.free.start += count;
        Some(first..self.free.start)
    }

    /// Hands out no id below `floor` from now on: those were given by a cluster whose backup is
    /// restored. Ids that are leased already are lost.
    pub fn raise_floor(&mut self, floor: u64) {
        if self.watermark.end() < floor {
            self.watermark.raise_floor(floor);
            self.free = 0..0;
        }
        self.free.start = self.free.start.max(floor).min(self.free.end);
    }

    /// The row to write now, if too few ids are left.
    pub fn wants(&mut self) -> Option<RowSwap> {
        let left_count = self.free.end - self.free.start;
        // A quarter is left: the next block is written while this one is handed out.
        if left_count >= self.wanted_count.max(BLOCK_COUNT / 4) {
            return None;
        }
        let to = self.watermark.end().checked_add(self.wanted_count.max(BLOCK_COUNT))?;
        self.watermark.raise(to)
    }

    /// Learns what became of the row.
    ///
    /// # Errors
    ///
    /// The row is not what this allocator may find; the leader must stop.
    pub fn complete(&mut self, result: SwapResult) -> Result<(), RowError> {
        if let Some(block) = self.watermark.complete(result)? {
            self.wanted_count = 0;
            // Blocks that follow each other are one; else the rest of the old one is lost.
            if self.free.end == block.start {
                self.free.end = block.end;
            } else {
                self.free = block;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{decode, encode};
    use std::collections::BTreeSet;

    #[test]
    fn nothing_is_handed_out_before_the_row_is_written() {
        let mut ids = IdAllocator::recover(None).unwrap();
        assert_eq!(ids.take(1), None);
        let swap = ids.wants().unwrap();
        assert_eq!((swap.key, &swap.expected), (IDS_KEY, &None));
        assert_eq!(ids.take(1), None);
        assert_eq!(ids.wants(), None, "one write at a time");
        ids.complete(SwapResult::Done).unwrap();
        assert_eq!(ids.take(2), Some(FLOOR..FLOOR + 2));
        assert_eq!(ids.take(1), Some(FLOOR + 2..FLOOR + 3));
        assert_eq!(ids.wants(), None);
    }

    #[test]
    fn a_large_wish_gets_a_large_block() {
        let mut ids = IdAllocator::recover(Some(&encode(FLOOR + 7))).unwrap();
        assert_eq!(ids.take(3 * BLOCK_COUNT), None);
        let swap = ids.wants().unwrap();
        assert_eq!(decode(IDS_KEY, &swap.value), Ok(FLOOR + 7 + 3 * BLOCK_COUNT));
        ids.complete(SwapResult::Done).unwrap();
        assert_eq!(ids.take(3 * BLOCK_COUNT), Some(FLOOR + 7..FLOOR + 7 + 3 * BLOCK_COUNT));
    }

    #[test]
    fn nothing_below_a_raised_floor_is_handed_out() {
        let mut ids = IdAllocator::recover(None).unwrap();
        ids.wants().unwrap();
        ids.complete(SwapResult::Done).unwrap();
        assert_eq!(ids.take(1), Some(FLOOR..FLOOR + 1));
        let floor = FLOOR + 5 * BLOCK_COUNT;
        ids.raise_floor(floor);
        assert_eq!(ids.take(1), None);
        let swap = ids.wants().unwrap();
        assert_eq!(decode(IDS_KEY, &swap.value), Ok(floor + BLOCK_COUNT));
        ids.complete(SwapResult::Done).unwrap();
        assert_eq!(ids.take(1), Some(floor..floor + 1));
        // A second time, as a restore that goes on asks for it.
        ids.raise_floor(floor);
        assert_eq!(ids.take(1), Some(floor + 1..floor + 2));
        ids.raise_floor(floor + 100);
        assert_eq!(ids.take(1), Some(floor + 100..floor + 101));
    }

    /// Several leaders at once, late writes, lost answers: an id is given out once.
    #[test]
    fn no_id_twice_whoever_leads() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut row: Option<Vec<u8>> = None;
            let mut leaders: Vec<IdAllocator> = vec![IdAllocator::recover(None).unwrap()];
            let mut late: Vec<RowSwap> = Vec::new();
            let mut given = BTreeSet::new();
            for _ in 0..400 {
                let at = random.usize(..leaders.len());
                match random.u8(..8) {
                    0 => leaders.push(IdAllocator::recover(row.as_deref()).unwrap()),
                    1 => late.extend(leaders[at].wants()),
                    2 if !late.is_empty() => {
                        // A write whose sender has given up waiting happens now.
                        let swap = late.swap_remove(random.usize(..late.len()));
                        if row == swap.expected {
                            row = Some(swap.value);
                        }
                    }
                    3 => leaders[at].complete(SwapResult::Unknown).unwrap(),
                    4 | 5 => {
                        if let Some(swap) = leaders[at].wants() {
                            let result = if row == swap.expected {
                                row = Some(swap.value);
                                SwapResult::Done
                            } else {
                                SwapResult::Refused { current: row.clone() }
                            };
                            leaders[at].complete(result).unwrap();
                        }
                    }
                    _ => {
                        for id in leaders[at].take(random.u64(1..600)).into_iter().flatten() {
                            assert!(given.insert(id), "seed {seed}: {id} was given twice");
                        }
                    }
                }
            }
        }
    }
}
