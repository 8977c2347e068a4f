//! Things that nobody will need once certain snapshots have ended.
//!
//! A thing is born in transaction `birth` and dies in a later one, `death`. It is needed by the
//! snapshots in `[birth, death)` and by no other. It waits on the list of the youngest of them; when
//! that one ends it moves to the next older one that needs it, or nobody needs it any more. So a
//! snapshot pins what it can see and nothing else, however old it is.

use std::collections::BTreeMap;

/// Live snapshots by transaction, each with the things that wait for its end, and their births.
pub(crate) struct Waits<T> {
    live: BTreeMap<u64, Vec<(T, u64)>>,
}

impl<T> Default for Waits<T> {
    fn default() -> Waits<T> {
        Waits { live: BTreeMap::new() }
    }
}

impl<T> Waits<T> {
    /// Says that the root of transaction `txid` may be read from now on.
    pub(crate) fn open(&mut self, txid: u64) {
        let old = self.live.insert(txid, Vec::new());
        assert!(old.is_none(), "transaction {txid} was published twice");
    }

    /// Says that nobody reads, or can come to read, the root of `txid` any more. Calls `release`
    /// for everything that nobody needs any more.
    pub(crate) fn close(&mut self, txid: u64, mut release: impl FnMut(T)) {
        let waiting = self.live.remove(&txid).expect("only live snapshots end");
        for (thing, birth) in waiting {
            if let Some(thing) = self.add(thing, birth, txid) {
                release(thing);
            }
        }
    }

    /// Notes a thing that was born in `birth` and dies in `death`. Returned if nobody needs it.
    pub(crate) fn add(&mut self, thing: T, birth: u64, death: u64) -> Option<T> {
        if birth >= death {
            return Some(thing);
        }
        match self.live.range_mut(birth..death).next_back() {
            None => Some(thing),
            Some((_, waiting)) => {
                waiting.push((thing, birth));
                None
            }
        }
    }

    /// Notes things, with their births, that die right after `newest`, the youngest snapshot.
    pub(crate) fn add_all(&mut self, things: impl IntoIterator<Item = (T, u64)>, newest: u64) {
        let waiting = self.live.get_mut(&newest).expect("the youngest snapshot is live");
        waiting.extend(things);
    }

    /// How many snapshots are live.
    pub(crate) fn snapshot_count(&self) -> usize {
        self.live.len()
    }

    /// The transaction of the oldest live snapshot.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.live.keys().next().copied()
    }

    /// All things that wait, in no order.
    pub(crate) fn things(&self) -> impl Iterator<Item = &T> {
        self.live.values().flatten().map(|(thing, _)| thing)
    }
}
