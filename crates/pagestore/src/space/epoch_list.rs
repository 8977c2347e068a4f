//! Epoch-based reclamation: things wait until the last snapshot that can see them has ended.
//!
//! A thing is created in transaction `created` and replaced in a later one, `replaced`. It is
//! needed by the snapshots in `[created, replaced)` and by no other. It waits in the bucket of the
//! youngest of them; when that one ends it moves to the next older one that needs it, or is
//! released. So a snapshot pins what it can see and nothing else, however old it is.
//!
//! A bucket may be long, and the lock is held while it is collected. So the end of a snapshot only
//! queues its bucket, and its things are looked at a part at a time. Meanwhile they count as
//! needed: nothing is released too early by that, and each thing is looked at once for each
//! snapshot that it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::vec;

/// Things of one bucket lie in blocks of this length: a bucket that grows is not copied.
const BLOCK: usize = 1024;

/// Things with their creating transactions.
type EpochBlock<T> = Vec<(T, u64)>;

/// Live snapshots by transaction, each with the bucket of things that wait for its end.
pub(crate) struct EpochList<T> {
    live: BTreeMap<u64, EpochBucket<T>>,
    /// Blocks of the buckets of snapshots that have ended, with their transactions; none is empty.
    ended: VecDeque<(u64, vec::IntoIter<(T, u64)>)>,
}

struct EpochBucket<T> {
    full: Vec<EpochBlock<T>>,
    last: EpochBlock<T>,
}

impl<T> EpochBucket<T> {
    fn push(&mut self, thing: T, created: u64) {
        if self.last.len() >= BLOCK {
            self.full.push(std::mem::take(&mut self.last));
        }
        self.last.push((thing, created));
    }

    fn things(&self) -> impl Iterator<Item = &(T, u64)> {
        self.full.iter().flatten().chain(&self.last)
    }
}

impl<T> Default for EpochList<T> {
    fn default() -> EpochList<T> {
        EpochList { live: BTreeMap::new(), ended: VecDeque::new() }
    }
}

impl<T> EpochList<T> {
    /// Notes that the root of transaction `txid` may be read from now on.
    pub(crate) fn open(&mut self, txid: u64) {
        let newest = self.live.last_key_value().map(|(&txid, _)| txid);
        assert!(newest.is_none_or(|newest| newest < txid), "{txid} is opened after {newest:?}");
        let old = self.live.insert(txid, EpochBucket { full: Vec::new(), last: Vec::new() });
        assert!(old.is_none(), "transaction {txid} was published twice");
    }

    /// Notes that no reader holds, or can come to hold, the root of `txid`. Its bucket is released
    /// by [`EpochList::collect`].
    pub(crate) fn close(&mut self, txid: u64) {
        let EpochBucket { full, last } = self.live.remove(&txid).expect("only live snapshots end");
        let blocks = full.into_iter().chain([last]).filter(|block| !block.is_empty());
        self.ended.extend(blocks.map(|block| (txid, block.into_iter())));
    }

    /// Looks at up to `count` things that wait for ended snapshots, and calls `release` for each
    /// that no snapshot needs any more. Returns at how many it has looked: fewer than `count` if
    /// that was all.
    pub(crate) fn collect(&mut self, count: usize, mut release: impl FnMut(T)) -> usize {
        for done in 0..count {
            let Some((txid, block)) = self.ended.front_mut() else { return done };
            let replaced = *txid;
            let (thing, created) = block.next().expect("no piece is empty");
            if block.len() == 0 {
                self.ended.pop_front();
            }
            if let Some(thing) = self.add(thing, created, replaced) {
                release(thing);
            }
        }
        count
    }

    /// Notes a thing that was created in `created` and is replaced in `replaced`. Returned if no
    /// snapshot needs it.
    pub(crate) fn add(&mut self, thing: T, created: u64, replaced: u64) -> Option<T> {
        // Created and replaced by one transaction: no snapshot can see it.
        if created >= replaced {
            return Some(thing);
        }
        match self.live.range_mut(created..replaced).next_back() {
            None => Some(thing),
            Some((_, bucket)) => {
                bucket.push(thing, created);
                None
            }
        }
    }

    /// Notes things, with their creating transactions, that are replaced right after `newest`, the
    /// youngest snapshot.
    pub(crate) fn add_all(&mut self, things: Vec<(T, u64)>, newest: u64) {
        debug_assert!(
            self.live.range(newest + 1..).next().is_none(),
            "{newest} is not the youngest"
        );
        let bucket = self.live.get_mut(&newest).expect("the youngest snapshot is live");
        bucket.full.push(things);
    }

    /// How many snapshots are live.
    pub(crate) fn snapshot_count(&self) -> usize {
        self.live.len()
    }

    /// The transaction of the oldest live snapshot.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.live.keys().next().copied()
    }

    /// The transaction of the oldest live snapshot from `txid` on.
    pub(crate) fn oldest_from(&self, txid: u64) -> Option<u64> {
        self.live.range(txid..).next().map(|(&txid, _)| txid)
    }

    /// All things that wait, in no order.
    pub(crate) fn things(&self) -> impl Iterator<Item = &T> {
        let ended = self.ended.iter().flat_map(|(_, block)| block.as_slice());
        self.live.values().flat_map(EpochBucket::things).chain(ended).map(|(thing, _)| thing)
    }
}
