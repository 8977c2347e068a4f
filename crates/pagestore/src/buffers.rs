//! Memory for the pages that the file does not have: what is given up is used again.
//!
//! A page of one unit lies in a slab, but for the first few of a store, which come from the heap: a
//! small store needs no slab. What held branches is given out for branches first: these are few and
//! written often, so that memory is likely to be near the processor. Long values have slabs of their
//! own (`pieces`).

use std::sync::Arc;
use std::time::Duration;

use crate::frames::{Buffer, Taken};
use crate::page::UNIT_BYTES;
use crate::pieces::Pieces;
use crate::slab::{Piece, Slab, Use};

/// So many buffers come from the heap before the first slab is made.
const HEAP_MAX: usize = 256;

/// Once there are slabs, so many more are kept ready. To make one takes a millisecond or several, because
/// the system clears it, and where the system is a virtual one gets it from its host.
const READY_MAX: usize = 2;

/// So many are kept ready while long values want slabs. Of values of 16 KiB each a slab takes 127, which
/// are put in half a millisecond.
const READY_FOR_VALUES_MAX: usize = 4;

/// How long nothing is published before slabs are given back that nobody needs now.
const QUIET: Duration = Duration::from_secs(60);

/// Where memory comes from.
#[derive(Debug)]
pub(crate) enum Supply {
    /// Here it is, with whatever is in it.
    Of(Buffer),
    /// From the heap.
    Heap,
    /// From a new slab, which the caller makes, without a lock, and adds by [`Buffers::add`]; then it
    /// asks again.
    Slab,
}

/// Memory for pages.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Of pages of one unit that are gone: of branches and of leaves.
    spare: [Vec<Buffer>; 2],
    /// What was in memory, is not used again, and nobody needs.
    dead: Vec<Taken>,
    slabs: Vec<Used>,
    /// The slab that was taken from last.
    current: usize,
    /// Slabs that were not yet taken from.
    ready: Vec<Arc<Slab>>,
    ready_for_values: Vec<Arc<Slab>>,
    /// Somebody was told that slabs should be made ready.
    has_asked: bool,
    heap_count: usize,
    /// Memory for long values.
    pieces: Pieces,
    /// The last transaction that was seen, and when first.
    quiet: (u64, Duration),
}

/// A slab, and whether it was taken from since [`Buffers::idle_slabs`] was asked last.
struct Used {
    slab: Arc<Slab>,
    was_needed: bool,
}

impl Buffers {
    /// Memory for a page of so many units.
    pub(crate) fn take(&mut self, units: u32, is_leaf: bool) -> Supply {
        if units != 1 {
            return Supply::Heap;
        }
        let [other, first] = [!is_leaf, is_leaf].map(usize::from);
        if let Some(buffer) = self.spare[first].pop().or_else(|| self.spare[other].pop()) {
            return Supply::Of(buffer);
        }
        if self.heap_count < HEAP_MAX {
            self.heap_count += 1;
            return Supply::Heap;
        }
        self.take_of_slab().map_or(Supply::Slab, Supply::Of)
    }

    fn take_of_slab(&mut self) -> Option<Buffer> {
        let count = self.slabs.len();
        for i in (self.current..count).chain(0..self.current) {
            let used = &mut self.slabs[i];
            if let Some(part) = used.slab.take() {
                used.was_needed = true;
                self.current = i;
                return Some(Buffer::from(part));
            }
        }
        let slab = self.ready.pop()?;
        let buffer = slab.take().map(Buffer::from);
        self.slabs.push(Used { slab, was_needed: true });
        self.current = count;
        buffer
    }

    /// Memory for a long value of so many bytes; nothing if it shall come from the heap.
    pub(crate) fn take_piece(&mut self, len: usize) -> Option<Piece> {
        let Buffers { pieces, ready_for_values, .. } = self;
        pieces.take(len, || ready_for_values.pop())
    }

    /// Takes a new slab.
    pub(crate) fn add(&mut self, slab: Arc<Slab>, made_for: Use) {
        match made_for {
            Use::Pages => self.ready.push(slab),
            Use::Values => self.ready_for_values.push(slab),
        }
    }

    /// Whether slabs should be made ready; says so once until [`Buffers::wants_slab`] says that there
    /// are enough.
    pub(crate) fn asks_for_slabs(&mut self) -> bool {
        let is_new = !self.has_asked && self.is_short().is_some();
        self.has_asked |= is_new;
        is_new
    }

    /// For what one more slab should be made ready, if that was asked for.
    pub(crate) fn wants_slab(&mut self) -> Option<Use> {
        let short = self.is_short().filter(|_| self.has_asked);
        self.has_asked = short.is_some();
        short
    }

    fn is_short(&self) -> Option<Use> {
        // A writer who needs a page waits until its slab is made, but nobody for one of long values.
        if !self.slabs.is_empty() && self.ready.len() < READY_MAX {
            return Some(Use::Pages);
        }
        let is_short = self.ready_for_values.len() < READY_FOR_VALUES_MAX;
        (self.pieces.wants_slabs() && is_short).then_some(Use::Values)
    }

    /// How many slabs are ready for long values.
    #[cfg(test)]
    pub(crate) fn ready_for_values_count(&self) -> usize {
        self.ready_for_values.len()
    }

    /// Takes back what a page or a long value was in.
    pub(crate) fn keep(&mut self, taken: Taken) {
        match taken {
            Taken::Page(buffer, is_leaf) if buffer.len() == UNIT_BYTES => {
                self.spare[usize::from(is_leaf)].push(buffer);
            }
            taken => self.dead.push(taken),
        }
    }

    /// Hands over what is not used again, to be dropped where it holds nobody up.
    pub(crate) fn take_dead(&mut self) -> Vec<Taken> {
        std::mem::take(&mut self.dead)
    }

    /// Hands over all spare memory: what is of slabs goes back to them when it is dropped, which holds
    /// nobody up.
    pub(crate) fn take_spare(&mut self) -> [Vec<Buffer>; 2] {
        self.heap_count = 0;
        self.pieces.begin_again();
        std::mem::take(&mut self.spare)
    }

    /// Hands over slabs that are not in use, and were not since this was called last, to be dropped
    /// where it holds nobody up.
    pub(crate) fn idle_slabs(&mut self) -> Vec<Arc<Slab>> {
        let idle = self
            .slabs
            .extract_if(.., |used| !std::mem::take(&mut used.was_needed) && used.slab.is_idle());
        let mut idle: Vec<Arc<Slab>> = idle.map(|used| used.slab).collect();
        self.current = 0;
        idle.append(&mut self.pieces.idle_slabs(false));
        idle
    }

    /// As [`Buffers::idle_slabs`], for those that were needed lately or are ready as well, if the last transaction
    /// was `txid` for a minute.
    pub(crate) fn quiet_slabs(&mut self, txid: u64, now: Duration) -> Vec<Arc<Slab>> {
        if self.quiet.0 != txid {
            self.quiet = (txid, now);
        }
        if now.saturating_sub(self.quiet.1) < QUIET {
            return Vec::new();
        }
        // What a reader has ended for since the last checkpoint is here still. Nobody has written for a minute
        // who could be held up.
        drop(self.take_spare());
        self.slabs.iter_mut().for_each(|used| used.was_needed = false);
        let mut idle = self.idle_slabs();
        idle.append(&mut self.pieces.idle_slabs(true));
        idle.append(&mut self.ready);
        idle.append(&mut self.ready_for_values);
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use crate::page::{self, Frame, Kind};

    /// A page in memory that came from `buffers`, put into the table and taken out again.
    fn page(buffers: &mut Buffers, frames: &Frames, id: u64, kind: Kind) -> Taken {
        let taken = take(buffers, kind == Kind::Leaf);
        let mut buffer = taken.unwrap_or_else(|| Buffer::from(Frame::from(vec![0; UNIT_BYTES])));
        page::begin(&mut buffer, kind, 0, id, 1);
        frames.put_page(id, buffer);
        frames.take(id).expect("put in just now")
    }

    /// Memory from a slab, if there can be slabs and enough came from the heap.
    fn take(buffers: &mut Buffers, is_leaf: bool) -> Option<Buffer> {
        loop {
            match buffers.take(1, is_leaf) {
                Supply::Of(buffer) => return Some(buffer),
                Supply::Heap => return None,
                Supply::Slab => buffers.add(Slab::new()?, Use::Pages),
            }
        }
    }

    #[test]
    fn memory_is_used_again_for_the_same_kind() {
        let (mut buffers, frames) = (Buffers::default(), Frames::new());
        for of_slab in [false, true] {
            let branch = page(&mut buffers, &frames, 1, Kind::Branch);
            let leaf = page(&mut buffers, &frames, 2, Kind::Leaf);
            let place = |taken: &Taken| match taken {
                Taken::Page(buffer, _) => buffer.as_ptr(),
                Taken::Long(_) => panic!("a page was put in"),
            };
            let places = [place(&branch), place(&leaf)];
            buffers.keep(branch);
            buffers.keep(leaf);
            let branch = page(&mut buffers, &frames, 3, Kind::Branch);
            let leaf = page(&mut buffers, &frames, 4, Kind::Leaf);
            assert_eq!([place(&branch), place(&leaf)], places, "{of_slab}");
            buffers.heap_count = HEAP_MAX;
        }
        assert!(matches!(buffers.take(2, true), Supply::Heap));
    }

    #[test]
    #[cfg(not(any(miri, shuttle)))]
    fn slabs_go_when_nobody_needs_them() {
        let (mut buffers, frames) = (Buffers::default(), Frames::new());
        let mut pages: Vec<Taken> =
            (0..1000).map(|id| page(&mut buffers, &frames, id, Kind::Leaf)).collect();
        assert_eq!(buffers.slabs.len(), 2);
        let distinct: std::collections::BTreeSet<_> = pages
            .iter()
            .map(|taken| match taken {
                Taken::Page(buffer, _) => buffer.as_ptr().addr(),
                Taken::Long(_) => panic!("pages were put in"),
            })
            .collect();
        assert_eq!(distinct.len(), 1000);
        let held = pages.pop();
        pages.into_iter().for_each(|taken| buffers.keep(taken));
        drop(buffers.take_spare());
        assert_eq!(buffers.idle_slabs().len(), 0, "both were needed");
        assert_eq!(buffers.idle_slabs().len(), 1, "one is in use");
        drop(held);
        assert_eq!(buffers.idle_slabs().len(), 1);
        assert!(buffers.slabs.is_empty());
        let pages: Vec<Taken> =
            (0..=HEAP_MAX as u64).map(|id| page(&mut buffers, &frames, id, Kind::Leaf)).collect();
        pages.into_iter().for_each(|taken| buffers.keep(taken));
        let second = Duration::from_secs(1);
        assert_eq!(buffers.quiet_slabs(7, second).len(), 0);
        assert_eq!(buffers.quiet_slabs(7, QUIET).len(), 0);
        assert_eq!(buffers.quiet_slabs(8, QUIET + second).len(), 0, "something was published");
        assert_eq!(buffers.quiet_slabs(8, 2 * QUIET + second).len(), 1);
        assert!(buffers.slabs.is_empty());
    }

    #[test]
    #[cfg(not(any(miri, shuttle)))]
    fn slabs_are_asked_for_before_they_are_needed() {
        let mut buffers = Buffers::default();
        assert!(!buffers.asks_for_slabs(), "what comes from the heap needs none");
        let mut held: Vec<Buffer> =
            (0..=HEAP_MAX).filter_map(|_| take(&mut buffers, true)).collect();
        assert_eq!(held.len(), 1);
        assert_eq!(buffers.wants_slab(), None, "nobody was told");
        assert!(buffers.asks_for_slabs());
        assert!(!buffers.asks_for_slabs(), "said once");
        for _ in 0..READY_MAX {
            assert_eq!(buffers.wants_slab(), Some(Use::Pages));
            buffers.add(Slab::new().unwrap(), Use::Pages);
        }
        assert!(buffers.wants_slab().is_none() && !buffers.asks_for_slabs());
        for _ in 0..511 {
            assert!(!buffers.asks_for_slabs());
            match buffers.take(1, true) {
                Supply::Of(buffer) => held.push(buffer),
                other => panic!("{other:?}, and slabs are ready"),
            }
        }
        assert!(buffers.asks_for_slabs(), "one that was ready is taken from");
        assert_eq!(buffers.wants_slab(), Some(Use::Pages));
        drop(held);
        assert_eq!(buffers.quiet_slabs(1, Duration::ZERO).len(), 0);
        assert_eq!(buffers.quiet_slabs(1, QUIET).len(), 3);
        assert_eq!(buffers.wants_slab(), None, "there are none again");
    }
}
