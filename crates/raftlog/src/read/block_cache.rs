//! The block cache: decompressed blocks, in a bounded amount of memory, evicted by the clock
//! algorithm.
//!
//! To insert a block and evict another costs as much as to decompress a few KiB. So a block is
//! admitted only when it is missed twice within a short time: the second reader inserts it.
//!
//! Blocks are spread over shards, each with its own lock and an equal part of the memory. When a
//! shard is full, its clock hand goes round: it spares once a block that was used since the hand
//! last passed, and evicts any other.

use bytes::Bytes;
use flotilla_base::id_hash::IdHasher;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// The least memory of a shard, so that a few blocks fit.
const SHARD_BYTES_MIN: u64 = 1 << 20;
const SHARD_COUNT_MAX: u64 = 16;
/// How many misses are remembered, about: a short time.
const MISSED_COUNT: usize = 1024;
/// Memory of a block besides its data: its entries in the map and the ring, and the owner of the
/// data.
const BLOCK_OVERHEAD_BYTES: u64 = 192;

/// The key of a block: segment numbers are never used again, nor are offsets in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId {
    pub(crate) segment: u64,
    /// Where the append begins in the segment.
    pub(crate) offset: u32,
    /// The block's place among those of the append.
    pub(crate) number: u32,
}

/// Decompressed blocks.
#[derive(Debug)]
pub(crate) struct BlockCache {
    shards: Vec<Mutex<CacheShard>>,
    shard_bytes_max: u64,
    /// Hashes of missed blocks, each at an index that follows from it; zeros at first.
    missed: Vec<AtomicU64>,
}

#[derive(Debug, Default)]
struct CacheShard {
    places: HashMap<BlockId, usize, BuildHasherDefault<IdHasher>>,
    ring: Vec<CachedBlock>,
    hand: usize,
    bytes: u64,
}

#[derive(Debug)]
struct CachedBlock {
    id: BlockId,
    raw: Bytes,
    is_used: bool,
}

impl BlockCache {
    /// A cache of up to `bytes_max`; an empty one if that is zero.
    pub(crate) fn new(bytes_max: u64) -> BlockCache {
        let shard_count = (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX);
        let shards = (0..shard_count).map(|_| Mutex::default()).collect();
        let missed = (0..MISSED_COUNT).map(|_| AtomicU64::default()).collect();
        BlockCache { shards, shard_bytes_max: bytes_max / shard_count, missed }
    }

    pub(crate) fn get(&self, id: BlockId) -> Option<Bytes> {
        let mut shard = self.shard(id).lock();
        let place = *shard.places.get(&id)?;
        let kept = &mut shard.ring[place];
        kept.is_used = true;
        Some(kept.raw.clone())
    }

    /// Whether a missed block should be inserted, since it was missed a short time ago too. A block
    /// with the same hash may be taken for it, which does no harm.
    pub(crate) fn wants(&self, id: BlockId) -> bool {
        let hash = id.hash32();
        let missed = &self.missed[hash as usize % MISSED_COUNT];
        missed.swap(hash, Ordering::Relaxed) == hash
    }

    /// Inserts a block, unless it is larger than a shard may be.
    pub(crate) fn insert(&self, id: BlockId, raw: &Bytes) {
        let bytes = kept_bytes(raw);
        if bytes > self.shard_bytes_max {
            return;
        }
        let mut shard = self.shard(id).lock();
        // Two readers may have missed it at once.
        if shard.places.contains_key(&id) {
            return;
        }
        while shard.bytes + bytes > self.shard_bytes_max {
            shard.evict();
        }
        let place = shard.ring.len();
        shard.places.insert(id, place);
        shard.ring.push(CachedBlock { id, raw: raw.clone(), is_used: false });
        shard.bytes += bytes;
    }

    /// Memory of the blocks that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    fn shard(&self, id: BlockId) -> &Mutex<CacheShard> {
        &self.shards[(id.hash32() % self.shards.len() as u64) as usize]
    }
}

impl BlockId {
    fn hash32(self) -> u64 {
        self.spread() >> 32
    }

    fn spread(self) -> u64 {
        let place = self.segment.rotate_left(32) ^ u64::from(self.offset);
        let place = place ^ u64::from(self.number) << 32;
        place.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Hash for BlockId {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.spread());
    }
}

impl CacheShard {
    /// Evicts one block. There must be one.
    fn evict(&mut self) {
        loop {
            self.hand %= self.ring.len();
            let kept = &mut self.ring[self.hand];
            if !std::mem::take(&mut kept.is_used) {
                break;
            }
            self.hand += 1;
        }
        let gone = self.ring.swap_remove(self.hand);
        self.places.remove(&gone.id);
        if let Some(moved) = self.ring.get(self.hand) {
            self.places.insert(moved.id, self.hand);
        }
        assert!(kept_bytes(&gone.raw) <= self.bytes, "{} bytes of blocks", self.bytes);
        self.bytes -= kept_bytes(&gone.raw);
        debug_assert_eq!(self.ring.len(), self.places.len(), "a block is in one list only");
    }
}

fn kept_bytes(raw: &Bytes) -> u64 {
    raw.len() as u64 + BLOCK_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> BlockId {
        BlockId { segment: 1, offset: 64, number }
    }

    fn raw(number: u32, len: usize) -> Bytes {
        vec![number as u8; len].into()
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let cache = BlockCache::new(4 * 1000);
        (0..4).for_each(|number| cache.insert(id(number), &raw(number, 808)));
        assert_eq!(cache.bytes(), 4000);
        assert!(cache.get(id(0)).is_some() && cache.get(id(2)).is_some());
        cache.insert(id(4), &raw(4, 808));
        cache.insert(id(5), &raw(5, 808));
        assert_eq!(cache.bytes(), 4000);
        let left: Vec<_> = (0..6).map(|number| cache.get(id(number))).collect();
        for (number, is_left) in
            [(0, true), (1, false), (2, true), (3, false), (4, true), (5, true)]
        {
            let wanted = is_left.then(|| raw(number, 808));
            assert_eq!(left[number as usize], wanted, "block {number}");
        }
    }

    #[test]
    fn only_what_is_missed_twice_within_a_short_time_is_wanted() {
        let cache = BlockCache::new(1 << 20);
        assert!(!cache.wants(id(1)) && !cache.wants(id(2)));
        assert!(cache.wants(id(1)) && cache.wants(id(2)));
        let again = |number| cache.wants(id(number)) || cache.wants(id(number));
        assert!((3..20_000).all(again));
        assert!(!cache.wants(id(1)));
    }

    #[test]
    fn it_never_takes_more_than_it_may() {
        for bytes_max in [0, 1, 191, 192, 5_000, 100_000, 3 << 20, 64 << 20] {
            let cache = BlockCache::new(bytes_max);
            let mut rng = fastrand::Rng::with_seed(bytes_max);
            for _ in 0..3_000 {
                let number = rng.u32(0..500);
                match cache.get(id(number)) {
                    Some(found) => assert_eq!(found, raw(number, number as usize * 40)),
                    None => cache.insert(id(number), &raw(number, number as usize * 40)),
                }
                assert!(cache.bytes() <= bytes_max);
            }
            for shard in &cache.shards {
                let shard = shard.lock();
                assert_eq!(
                    shard.bytes,
                    shard.ring.iter().map(|kept| kept_bytes(&kept.raw)).sum::<u64>()
                );
                assert!(shard.ring.iter().zip(0..).all(|(kept, at)| shard.places[&kept.id] == at));
                assert_eq!(shard.ring.len(), shard.places.len());
            }
            assert!(bytes_max < 5_000 || cache.bytes() > bytes_max.min(1 << 20) / 2);
        }
    }
}
