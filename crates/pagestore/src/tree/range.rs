//! All entries between two bounds, from either end.
//!
//! Each end is a leaf and a place in it. A bound is looked up once in a leaf, where it says how far
//! the end may go; if both ends have come to one leaf, each is the other's bound.

use std::ops::{Bound, RangeBounds};

use crate::error::Result;
use crate::page::PageRef;
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::tree::entry::{Entry, EntryReader};
use crate::tree::walk::LeafWalk;

/// Entries between two bounds, taken from either end. An entry that it hands out stays until it is
/// asked again; a `for` loop, as [`Range::copied`], takes copies. After an error it ends.
pub struct Range<'a> {
    source: &'a dyn PageSource,
    root: PageRef,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    front: Option<RangeEnd<'a>>,
    back: Option<RangeEnd<'a>>,
    /// Both ends are in one leaf.
    met: bool,
    done: bool,
}

/// One end of a range: a leaf, how many of its entries lie before this end, and how far it may go.
struct RangeEnd<'a> {
    walk: LeafWalk<'a>,
    entries: EntryReader<'a>,
    at: usize,
    limit: usize,
}

/// The end of the range that an entry is taken from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RangeSide {
    Front,
    Back,
}

impl<'a> Range<'a> {
    pub(crate) fn new<'k>(
        source: &'a dyn PageSource,
        root: PageRef,
        keys: impl RangeBounds<&'k [u8]>,
    ) -> Range<'a> {
        let (low, high) = (keys.start_bound().cloned(), keys.end_bound().cloned());
        let done = root.is_none() || is_empty(&low, &high);
        let (low, high) = (low.map(<[u8]>::to_vec), high.map(<[u8]>::to_vec));
        Range { source, root, low, high, front: None, back: None, met: false, done }
    }

    /// The next entry from the front.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "what it gives out is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>> {
        let Some(i) = self.advance()? else { return Ok(None) };
        entry(self.front.as_mut(), i, &mut self.done)
    }

    /// The next entry from the back.
    ///
    /// # Errors
    ///
    /// As [`Range::next`].
    #[inline]
    pub fn next_back(&mut self) -> Result<Option<Entry<'_>>> {
        let Some(i) = self.retreat()? else { return Ok(None) };
        entry(self.back.as_mut(), i, &mut self.done)
    }

    /// An iterator over copies of the entries that are left.
    #[must_use]
    pub fn copied(self) -> Copied<'a> {
        Copied { range: self }
    }

    /// Moves the front past one entry.
    #[inline]
    fn advance(&mut self) -> Result<Option<usize>> {
        let within = |end: &RangeEnd<'_>| end.at < end.limit;
        if !self.front.as_ref().is_some_and(within) && !self.turn(RangeSide::Front)? {
            return Ok(None);
        }
        let Some(front) = &mut self.front else { return Ok(None) };
        debug_assert!(front.at < front.limit, "the front went past the back");
        front.at += 1;
        if self.met
            && let Some(back) = &mut self.back
        {
            back.limit = front.at;
        }
        Ok(Some(front.at - 1))
    }

    /// Moves the back past one entry.
    #[inline]
    fn retreat(&mut self) -> Result<Option<usize>> {
        let within = |end: &RangeEnd<'_>| end.at > end.limit;
        if !self.back.as_ref().is_some_and(within) && !self.turn(RangeSide::Back)? {
            return Ok(None);
        }
        let Some(back) = &mut self.back else { return Ok(None) };
        debug_assert!(back.at > back.limit, "the back went past the front");
        back.at -= 1;
        if self.met
            && let Some(front) = &mut self.front
        {
            front.limit = back.at;
        }
        Ok(Some(back.at))
    }

    /// Brings one end to the next leaf in which it has entries to give. False if there is none.
    #[inline(never)]
    fn turn(&mut self, side: RangeSide) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let turned = self.try_turn(side);
        self.done = !matches!(turned, Ok(true));
        turned
    }

    fn try_turn(&mut self, side: RangeSide) -> Result<bool> {
        if side == RangeSide::Front && self.front.is_none() {
            self.front = Some(self.start(side)?);
        } else if side == RangeSide::Back && self.back.is_none() {
            self.back = Some(self.start(side)?);
        } else if !self.move_on(side)? {
            return Ok(false);
        }
        loop {
            self.enter(side);
            let end = if side == RangeSide::Front { &self.front } else { &self.back };
            let Some(end) = end else { return Ok(false) };
            let has_more = match side {
                RangeSide::Front => end.at < end.limit,
                RangeSide::Back => end.at > end.limit,
            };
            if has_more {
                return Ok(true);
            }
            if !self.move_on(side)? {
                return Ok(false);
            }
        }
    }

    /// Goes to the leaf where this end begins, and to the place in it.
    fn start(&self, side: RangeSide) -> Result<RangeEnd<'a>> {
        let mut walk = LeafWalk::new(self.source, self.root);
        let bound = if side == RangeSide::Front { &self.low } else { &self.high };
        match (bound, side) {
            (Bound::Included(key) | Bound::Excluded(key), _) => walk.to(key)?,
            (Bound::Unbounded, RangeSide::Front) => walk.first()?,
            (Bound::Unbounded, RangeSide::Back) => walk.last()?,
        };
        let at = match (walk.leaf(), side) {
            (Some(leaf), RangeSide::Front) => before_low(leaf, &self.low),
            (Some(leaf), RangeSide::Back) => before_high(leaf, &self.high),
            (None, _) => 0,
        };
        Ok(RangeEnd { walk, entries: EntryReader::new(self.source), at, limit: at })
    }

    /// Goes on to the neighbouring leaf. A bound inside the leaf means that all beyond it is
    /// outside of the range; and where the other end is, nothing is left beyond either.
    fn move_on(&mut self, side: RangeSide) -> Result<bool> {
        let end = if side == RangeSide::Front { &mut self.front } else { &mut self.back };
        let Some(end) = end else { return Ok(false) };
        let count = end.walk.leaf().map_or(0, SlottedPage::count);
        let bounded = end.limit != if side == RangeSide::Front { count } else { 0 };
        if self.met || bounded {
            return Ok(false);
        }
        let moved = match side {
            RangeSide::Front => end.walk.forward()?,
            RangeSide::Back => end.walk.backward()?,
        };
        let count = end.walk.leaf().map_or(0, SlottedPage::count);
        end.at = if side == RangeSide::Front { 0 } else { count };
        Ok(moved)
    }

    /// Finds out how far an end that has come to its leaf may go there.
    fn enter(&mut self, side: RangeSide) {
        let (mine, other) = match side {
            RangeSide::Front => (&mut self.front, &self.back),
            RangeSide::Back => (&mut self.back, &self.front),
        };
        let Some(RangeEnd { walk, entries, limit, .. }) = mine else { return };
        let Some(leaf) = walk.leaf() else { return };
        entries.enter(leaf);
        self.met = other.as_ref().is_some_and(|other| other.walk.page_ref() == walk.page_ref());
        *limit = match (other, side) {
            (Some(other), _) if self.met => other.at,
            (Some(_), RangeSide::Front) => leaf.count(),
            (Some(_), RangeSide::Back) => 0,
            (None, RangeSide::Front) => before_high(leaf, &self.high),
            (None, RangeSide::Back) => before_low(leaf, &self.low),
        };
    }
}

#[inline]
fn entry<'b>(
    end: Option<&'b mut RangeEnd<'_>>,
    i: usize,
    done: &mut bool,
) -> Result<Option<Entry<'b>>> {
    let Some(RangeEnd { walk, entries, .. }) = end else { return Ok(None) };
    let Some(leaf) = walk.leaf() else { return Ok(None) };
    let entry = entries.entry(leaf, i);
    *done |= entry.is_err();
    entry.map(Some)
}

/// How many entries of the leaf lie before a range that begins at `low`.
fn before_low(leaf: SlottedPage<'_>, low: &Bound<Vec<u8>>) -> usize {
    match low {
        Bound::Unbounded => 0,
        Bound::Included(key) => leaf.search(key).unwrap_or_else(|i| i),
        Bound::Excluded(key) => leaf.search(key).map_or_else(|i| i, |i| i + 1),
    }
}

/// How many entries of the leaf lie before the end of a range that ends at `high`.
fn before_high(leaf: SlottedPage<'_>, high: &Bound<Vec<u8>>) -> usize {
    match high {
        Bound::Unbounded => leaf.count(),
        Bound::Included(key) => leaf.search(key).map_or_else(|i| i, |i| i + 1),
        Bound::Excluded(key) => leaf.search(key).unwrap_or_else(|i| i),
    }
}

fn is_empty(low: &Bound<&[u8]>, high: &Bound<&[u8]>) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) => low >= high,
    }
}

/// Keys between two bounds, taken from either end; values are not looked at. A key that it hands
/// out stays until it is asked again. After an error it ends.
pub struct KeyIter<'a> {
    range: Range<'a>,
}

impl<'a> KeyIter<'a> {
    pub(crate) fn new(range: Range<'a>) -> KeyIter<'a> {
        KeyIter { range }
    }

    /// The next key from the front.
    ///
    /// # Errors
    ///
    /// As [`Range::next`].
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "what it gives out is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let Some(i) = self.range.advance()? else { return Ok(None) };
        Ok(key(self.range.front.as_mut(), i))
    }

    /// The next key from the back.
    ///
    /// # Errors
    ///
    /// As [`Range::next`].
    #[inline]
    pub fn next_back(&mut self) -> Result<Option<&[u8]>> {
        let Some(i) = self.range.retreat()? else { return Ok(None) };
        Ok(key(self.range.back.as_mut(), i))
    }
}

#[inline]
fn key<'b>(end: Option<&'b mut RangeEnd<'_>>, i: usize) -> Option<&'b [u8]> {
    let RangeEnd { walk, entries, .. } = end?;
    Some(entries.key(walk.leaf()?, i))
}

/// Copies of the entries of a [`Range`], one by one. After an error it ends.
pub struct Copied<'a> {
    range: Range<'a>,
}

fn copy((key, value): Entry<'_>) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), value.to_vec())
}

impl<'a> IntoIterator for Range<'a> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    type IntoIter = Copied<'a>;

    fn into_iter(self) -> Copied<'a> {
        self.copied()
    }
}

impl Iterator for Copied<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.range.next().map(|entry| entry.map(copy)).transpose()
    }
}

impl DoubleEndedIterator for Copied<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().map(|entry| entry.map(copy)).transpose()
    }
}
