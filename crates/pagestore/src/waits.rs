//! Things that nobody will need once certain snapshots have ended.
//!
//! A thing is born in transaction `birth` and dies in a later one, `death`. It is needed by the
//! snapshots in `[birth, death)` and by no other. It waits on the list of the youngest of them; when
//! that one ends it moves to the next older one that needs it, or nobody needs it any more. So a
//! snapshot pins what it can see and nothing else, however old it is.
//!
//! A list may be long, and whoever settles it holds up others. So the end of a snapshot only puts its
//! list aside, and what is on it is looked at a part at a time. Meanwhile it counts as needed: nothing
//! is let go too early by that, and each thing is looked at once for each snapshot that it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::vec;

/// Things on one list lie in pieces of so many: a list that grows is not copied.
const PIECE: usize = 1024;

/// Things with their births.
type Piece<T> = Vec<(T, u64)>;

/// Live snapshots by transaction, each with the things that wait for its end.
pub(crate) struct Waits<T> {
    live: BTreeMap<u64, List<T>>,
    /// Pieces of the lists of snapshots that have ended, with their transactions; none is empty.
    ended: VecDeque<(u64, vec::IntoIter<(T, u64)>)>,
}

struct List<T> {
    full: Vec<Piece<T>>,
    last: Piece<T>,
}

impl<T> List<T> {
    fn push(&mut self, thing: T, birth: u64) {
        if self.last.len() >= PIECE {
            self.full.push(std::mem::take(&mut self.last));
        }
        self.last.push((thing, birth));
    }

    fn things(&self) -> impl Iterator<Item = &(T, u64)> {
        self.full.iter().flatten().chain(&self.last)
    }
}

impl<T> Default for Waits<T> {
    fn default() -> Waits<T> {
        Waits { live: BTreeMap::new(), ended: VecDeque::new() }
    }
}

impl<T> Waits<T> {
    /// Says that the root of transaction `txid` may be read from now on.
    pub(crate) fn open(&mut self, txid: u64) {
        let old = self.live.insert(txid, List { full: Vec::new(), last: Vec::new() });
        assert!(old.is_none(), "transaction {txid} was published twice");
    }

    /// Says that nobody reads, or can come to read, the root of `txid` any more. What waits for that is
    /// let go by [`Waits::settle`].
    pub(crate) fn close(&mut self, txid: u64) {
        let List { full, last } = self.live.remove(&txid).expect("only live snapshots end");
        let pieces = full.into_iter().chain([last]).filter(|piece| !piece.is_empty());
        self.ended.extend(pieces.map(|piece| (txid, piece.into_iter())));
    }

    /// Looks at up to `count` things that wait for snapshots that have ended, and calls `release` for
    /// each that nobody needs any more. Returns at how many it has looked: fewer than `count` if that
    /// was all.
    pub(crate) fn settle(&mut self, count: usize, mut release: impl FnMut(T)) -> usize {
        for done in 0..count {
            let Some((txid, piece)) = self.ended.front_mut() else { return done };
            let death = *txid;
            let (thing, birth) = piece.next().expect("no piece is empty");
            if piece.len() == 0 {
                self.ended.pop_front();
            }
            if let Some(thing) = self.add(thing, birth, death) {
                release(thing);
            }
        }
        count
    }

    /// Notes a thing that was born in `birth` and dies in `death`. Returned if nobody needs it.
    pub(crate) fn add(&mut self, thing: T, birth: u64, death: u64) -> Option<T> {
        if birth >= death {
            return Some(thing);
        }
        match self.live.range_mut(birth..death).next_back() {
            None => Some(thing),
            Some((_, waiting)) => {
                waiting.push(thing, birth);
                None
            }
        }
    }

    /// Notes things, with their births, that die right after `newest`, the youngest snapshot.
    pub(crate) fn add_all(&mut self, things: Vec<(T, u64)>, newest: u64) {
        let waiting = self.live.get_mut(&newest).expect("the youngest snapshot is live");
        waiting.full.push(things);
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
        let ended = self.ended.iter().flat_map(|(_, piece)| piece.as_slice());
        self.live.values().flat_map(List::things).chain(ended).map(|(thing, _)| thing)
    }
}
