//! All entries between two bounds, from either end.
//!
//! Each end takes a leaf at a time: the bounds are looked up once in it, its keys are put together
//! in one piece of memory, and its values are slices of the page itself.

use std::ops::Bound;

use bytes::Bytes;

use crate::error::Result;
use crate::keys::joined;
use crate::leaf::{self, Value};
use crate::node::Node;
use crate::page::{Frame, PageRef};
use crate::source::Source;
use crate::tree::walk::Walk;

/// All entries between two bounds, from either end.
pub(crate) struct Range<S> {
    source: S,
    root: PageRef,
    low: Bound<Bytes>,
    high: Bound<Bytes>,
    front: Option<End<S>>,
    back: Option<End<S>>,
    done: bool,
}

/// One end of a range: a leaf, and which of its entries are still to come from this end.
struct End<S> {
    walk: Walk<S>,
    batch: Batch,
    from: usize,
    to: usize,
}

/// Which end of the range an entry is taken from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Front,
    Back,
}

impl<S: Source + Clone> Range<S> {
    pub(crate) fn new(source: S, root: PageRef, low: Bound<&[u8]>, high: Bound<&[u8]>) -> Range<S> {
        let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
        let (low, high) = (own(low), own(high));
        let done = root.is_none() || is_empty(&low, &high);
        Range { source, root, low, high, front: None, back: None, done }
    }

    /// The next entry from the front.
    pub(crate) fn next(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        self.take(Side::Front, |end, i| {
            Ok((end.batch.key(i), end.batch.value(end.walk.source(), i)?))
        })
    }

    /// The next entry from the back.
    pub(crate) fn next_back(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        self.take(Side::Back, |end, i| {
            Ok((end.batch.key(i), end.batch.value(end.walk.source(), i)?))
        })
    }

    /// The next key from the front; its value is not looked at.
    pub(crate) fn next_key(&mut self) -> Option<Result<Bytes>> {
        self.take(Side::Front, |end, i| Ok(end.batch.key(i)))
    }

    /// The next key from the back; its value is not looked at.
    pub(crate) fn next_key_back(&mut self) -> Option<Result<Bytes>> {
        self.take(Side::Back, |end, i| Ok(end.batch.key(i)))
    }

    fn take<T>(
        &mut self,
        side: Side,
        read: impl Fn(&End<S>, usize) -> Result<T>,
    ) -> Option<Result<T>> {
        if self.done {
            return None;
        }
        match self.advance(side) {
            Ok(Some(i)) => {
                let end = if side == Side::Front { &self.front } else { &self.back };
                let taken = read(end.as_ref().expect("it has just advanced"), i);
                self.done = taken.is_err();
                Some(taken)
            }
            Ok(None) => {
                self.done = true;
                None
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }

    /// Moves one end past one entry and tells the other end of it, if there is another.
    fn advance(&mut self, side: Side) -> Result<Option<usize>> {
        let Some(i) = self.step(side)? else { return Ok(None) };
        let (mine, other) = match side {
            Side::Front => (&self.front, &mut self.back),
            Side::Back => (&self.back, &mut self.front),
        };
        if let (Some(mine), Some(other)) = (mine, other) {
            let bound = Bound::Excluded(mine.batch.key(i));
            match side {
                Side::Front => self.low = bound,
                Side::Back => self.high = bound,
            }
            other.confine(&self.low, &self.high);
        }
        Ok(Some(i))
    }

    fn step(&mut self, side: Side) -> Result<Option<usize>> {
        if self.end(side).is_none() {
            *self.end(side) = self.start(side)?;
        }
        let end = match side {
            Side::Front => self.front.as_mut(),
            Side::Back => self.back.as_mut(),
        };
        let Some(end) = end else { return Ok(None) };
        end.step(side, &self.low, &self.high)
    }

    fn end(&mut self, side: Side) -> &mut Option<End<S>> {
        match side {
            Side::Front => &mut self.front,
            Side::Back => &mut self.back,
        }
    }

    /// Goes to the leaf where this end begins. From now on both ends keep the bounds up to date.
    fn start(&mut self, side: Side) -> Result<Option<End<S>>> {
        if let Some(last) = self.front.as_ref().and_then(End::last_from_front) {
            self.low = Bound::Excluded(last);
        }
        if let Some(last) = self.back.as_ref().and_then(End::last_from_back) {
            self.high = Bound::Excluded(last);
        }
        let mut walk = Walk::new(self.source.clone(), self.root);
        let bound = if side == Side::Front { &self.low } else { &self.high };
        let found = match (bound, side) {
            (Bound::Included(key) | Bound::Excluded(key), _) => walk.to(key)?,
            (Bound::Unbounded, Side::Front) => walk.first()?,
            (Bound::Unbounded, Side::Back) => walk.last()?,
        };
        Ok(found.then(|| End::new(walk, &self.low, &self.high)).flatten())
    }
}

impl<S: Source> End<S> {
    fn new(walk: Walk<S>, low: &Bound<Bytes>, high: &Bound<Bytes>) -> Option<End<S>> {
        let batch = Batch::new(walk.leaf()?);
        let mut end = End { walk, batch, from: 0, to: 0 };
        end.enter(low, high);
        Some(end)
    }

    /// Takes the entries of the leaf that lie between the bounds.
    fn enter(&mut self, low: &Bound<Bytes>, high: &Bound<Bytes>) {
        let node = Node(&self.batch.frame);
        self.from = match low {
            Bound::Unbounded => 0,
            Bound::Included(key) => node.search(key).unwrap_or_else(|i| i),
            Bound::Excluded(key) => node.search(key).map_or_else(|i| i, |i| i + 1),
        };
        self.to = match high {
            Bound::Unbounded => node.count(),
            Bound::Included(key) => node.search(key).map_or_else(|i| i, |i| i + 1),
            Bound::Excluded(key) => node.search(key).unwrap_or_else(|i| i),
        };
        self.batch.gather_keys(self.from, self.to);
    }

    /// Gives up entries that the other end has taken.
    fn confine(&mut self, low: &Bound<Bytes>, high: &Bound<Bytes>) {
        let (from, to) = (self.from, self.to);
        self.enter(low, high);
        self.from = self.from.max(from);
        self.to = self.to.min(to);
    }

    fn step(
        &mut self,
        side: Side,
        low: &Bound<Bytes>,
        high: &Bound<Bytes>,
    ) -> Result<Option<usize>> {
        while self.from >= self.to {
            // A bound inside the leaf means that what lies beyond it is not ours.
            let count = Node(&self.batch.frame).count();
            let more = match side {
                Side::Front => self.to >= count && self.walk.forward()?,
                Side::Back => self.from == 0 && self.walk.backward()?,
            };
            let Some(leaf) = self.walk.leaf().filter(|_| more) else { return Ok(None) };
            self.batch = Batch::new(leaf);
            self.enter(low, high);
        }
        match side {
            Side::Front => {
                self.from += 1;
                Ok(Some(self.from - 1))
            }
            Side::Back => {
                self.to -= 1;
                Ok(Some(self.to))
            }
        }
    }

    /// The key that came last from this end, which is the front one.
    fn last_from_front(&self) -> Option<Bytes> {
        Some(self.batch.copied_key(self.from.checked_sub(1)?))
    }

    /// The key that came last from this end, which is the back one.
    fn last_from_back(&self) -> Option<Bytes> {
        (self.to < Node(&self.batch.frame).count()).then(|| self.batch.copied_key(self.to))
    }
}

/// One leaf, ready to be handed out piece by piece.
struct Batch {
    frame: Frame,
    page: Bytes,
    keys: Bytes,
    /// The first entry whose key is in `keys`, and where each of them ends there.
    first: usize,
    ends: Vec<u32>,
}

impl Batch {
    fn new(frame: &Frame) -> Batch {
        let page = Bytes::from_owner(Frame::clone(frame));
        Batch { frame: Frame::clone(frame), page, keys: Bytes::new(), first: 0, ends: Vec::new() }
    }

    /// Puts the keys of entries `from..to` together, unless they are whole in the page.
    fn gather_keys(&mut self, from: usize, to: usize) {
        let node = Node(&self.frame);
        if node.prefix().is_empty() || !self.ends.is_empty() {
            return;
        }
        self.first = from;
        let mut keys = Vec::with_capacity((from..to).map(|i| key_len(node, i)).sum());
        for i in from..to {
            keys.extend_from_slice(node.prefix());
            keys.extend_from_slice(node.suffix(i));
            self.ends.push(u32::try_from(keys.len()).expect("a page is short"));
        }
        self.keys = Bytes::from(keys);
    }

    fn key(&self, i: usize) -> Bytes {
        let node = Node(&self.frame);
        if node.prefix().is_empty() {
            return self.page.slice_ref(node.suffix(i));
        }
        let end = self.ends[i - self.first] as usize;
        self.keys.slice(end - key_len(node, i)..end)
    }

    fn copied_key(&self, i: usize) -> Bytes {
        Bytes::from(joined(Node(&self.frame).key(i)))
    }

    fn value(&self, source: &impl Source, i: usize) -> Result<Bytes> {
        match leaf::value(Node(&self.frame), i) {
            Value::Inline(bytes) => Ok(self.page.slice_ref(bytes)),
            Value::Extent(extent) => source.extent(&extent),
        }
    }
}

fn key_len(node: Node<'_>, i: usize) -> usize {
    node.prefix().len() + node.suffix(i).len()
}

fn is_empty(low: &Bound<Bytes>, high: &Bound<Bytes>) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) => low >= high,
    }
}
