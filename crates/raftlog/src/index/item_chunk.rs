//! A chunk of a few hundred neighbouring items of one group: the location and the entries of each.
//!
//! An item takes 8 bytes here if each holds one entry, which is what most appends are. Once one
//! holds more, each item takes 4 bytes on top, for the index of its first entry.
//!
//! Invariants:
//! - The items' entries follow one another without holes, and there is at least one item.
//! - Only live entries are counted. The item on disk may hold more, before and behind them.

/// The most items of a chunk. More would make a cut at its front expensive, fewer would make the
/// headers of chunks count.
pub(crate) const ITEMS_MAX: usize = 512;

/// The location of an item in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemLocation {
    /// From the beginning of the segment.
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// Items whose entries follow one another.
#[derive(Clone, Debug)]
pub(crate) struct ItemChunk {
    first: u64,
    /// How many entries.
    count: u32,
    items: Vec<ItemLocation>,
    /// If some item holds more than one entry.
    firsts: Option<Box<FirstOffsets>>,
}

/// The first entry of each item, counted from the first of the chunk.
#[derive(Clone, Debug)]
struct FirstOffsets(Vec<u32>);

impl ItemChunk {
    /// A chunk with a first capacity, which grows.
    pub(crate) fn new(first: u64, room: usize) -> ItemChunk {
        let items = Vec::with_capacity(room.min(ITEMS_MAX));
        ItemChunk { first, count: 0, items, firsts: None }
    }

    /// A chunk of the first of `left` items, as many as it takes, and their bytes. `next` returns
    /// the location of each and its number of entries.
    ///
    /// # Errors
    ///
    /// Those of `next`; a chunk cannot count the entries of its items.
    #[inline]
    pub(crate) fn of_items(
        first: u64,
        left: usize,
        next: &mut impl FnMut() -> Result<(ItemLocation, u32), &'static str>,
    ) -> Result<(ItemChunk, u64), &'static str> {
        let mut chunk = ItemChunk::new(first, left);
        let mut bytes = 0;
        for _ in 0..left.min(ITEMS_MAX) {
            let (item, count) = next()?;
            bytes += u64::from(item.bytes);
            // Nearly all hold one entry.
            if count == 1 && chunk.firsts.is_none() && chunk.count < u32::MAX {
                chunk.items.push(item);
                chunk.count += 1;
            } else if !chunk.push(item, count) {
                return Err("items hold more entries than there can be");
            }
        }
        Ok((chunk, bytes))
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    pub(crate) fn entry_count(&self) -> u64 {
        self.count.into()
    }

    pub(crate) fn item_count(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let firsts =
            |f: &FirstOffsets| size_of::<FirstOffsets>() + f.0.capacity() * size_of::<u32>();
        let firsts = self.firsts.as_deref().map_or(0, firsts);
        (self.items.capacity() * size_of::<ItemLocation>() + firsts) as u64
    }

    /// Adds an item with `count` entries. False if the chunk is full.
    pub(crate) fn push(&mut self, item: ItemLocation, count: u32) -> bool {
        assert!(count > 0, "an item without entries at {}", item.offset);
        if self.items.len() >= ITEMS_MAX || self.count.checked_add(count).is_none() {
            return false;
        }
        if count != 1 {
            self.firsts_mut();
        }
        if let Some(firsts) = &mut self.firsts {
            grow(&mut firsts.0, ITEMS_MAX);
            firsts.0.push(self.count);
        }
        grow(&mut self.items, ITEMS_MAX);
        self.items.push(item);
        self.count += count;
        true
    }

    /// Takes the items of the chunk that follows, if there is room; else gives it back.
    pub(crate) fn absorb(&mut self, next: ItemChunk) -> Option<ItemChunk> {
        debug_assert_eq!(self.end(), next.first, "chunks that do not follow one another");
        let fits = self.items.len() + next.items.len() <= ITEMS_MAX
            && self.count.checked_add(next.count).is_some();
        if !fits {
            return Some(next);
        }
        if self.firsts.is_some() || next.firsts.is_some() {
            let count = self.count;
            let firsts = self.firsts_mut();
            make_room(firsts, next.items.len());
            firsts.extend((0..next.items.len()).map(|at| count + next.relative_first(at)));
        }
        make_room(&mut self.items, next.items.len());
        self.items.extend_from_slice(&next.items);
        self.count += next.count;
        None
    }

    /// The position of the item that holds the entry, which must be in the chunk.
    pub(crate) fn position(&self, index: u64) -> usize {
        debug_assert!((self.first..self.end()).contains(&index), "{index} is elsewhere");
        let past = (index - self.first) as u32;
        match &self.firsts {
            None => past as usize,
            Some(firsts) => firsts.0.partition_point(|first| *first <= past) - 1,
        }
    }

    /// The item at a position, with its first entry and the end of its entries.
    pub(crate) fn item(&self, at: usize) -> (ItemLocation, u64, u64) {
        let end = if at + 1 < self.items.len() { self.relative_first(at + 1) } else { self.count };
        let first = self.first + u64::from(self.relative_first(at));
        (self.items[at], first, self.first + u64::from(end))
    }

    /// Bytes of the items whose first entry is in `from .. end`.
    pub(crate) fn bytes_of(&self, from: u64, end: u64) -> u64 {
        // The first item of which the first entry is not below `index`.
        let at = |index: u64| {
            let past = u32::try_from(index.saturating_sub(self.first)).unwrap_or(u32::MAX);
            match &self.firsts {
                None => (past as usize).min(self.items.len()),
                Some(firsts) => firsts.0.partition_point(|first| *first < past),
            }
        };
        self.items[at(from)..at(end)].iter().map(|item| u64::from(item.bytes)).sum()
    }

    /// Drops the entries from `from` on, which is behind the first.
    pub(crate) fn truncate(&mut self, from: u64) {
        assert!(from > self.first, "nothing would be left of a chunk");
        let keep = self.position(from - 1) + 1;
        self.items.truncate(keep);
        if let Some(firsts) = &mut self.firsts {
            firsts.0.truncate(keep);
        }
        self.count = (from - self.first) as u32;
    }

    /// Drops the entries below `first`, which is before the end.
    pub(crate) fn drop_prefix(&mut self, first: u64) {
        assert!(first < self.end(), "nothing would be left of a chunk");
        let at = self.position(first);
        let past = (first - self.first) as u32;
        self.items.drain(..at);
        if let Some(firsts) = &mut self.firsts {
            firsts.0.drain(..at);
            firsts.0.iter_mut().for_each(|first| *first = first.saturating_sub(past));
            shrink(&mut firsts.0);
        }
        shrink(&mut self.items);
        (self.first, self.count) = (first, self.count - past);
    }

    /// Takes the entries from `from` on out; an item begins there.
    pub(crate) fn split_off(&mut self, from: u64) -> ItemChunk {
        assert!(from > self.first, "nothing would be left of a chunk");
        let (at, past) = (self.position(from), (from - self.first) as u32);
        let firsts = self.firsts.as_mut().map(|firsts| {
            let firsts = firsts.0.split_off(at).into_iter().map(|first| first - past).collect();
            Box::new(FirstOffsets(firsts))
        });
        let items = self.items.split_off(at);
        let tail = ItemChunk { first: from, count: self.count - past, items, firsts };
        self.count = past;
        tail
    }

    fn relative_first(&self, at: usize) -> u32 {
        self.firsts.as_ref().map_or(at as u32, |firsts| firsts.0[at])
    }

    /// The list of first entries, made if there is none yet.
    fn firsts_mut(&mut self) -> &mut Vec<u32> {
        let count = self.items.len() as u32;
        let firsts =
            self.firsts.get_or_insert_with(|| Box::new(FirstOffsets((0..count).collect())));
        &mut firsts.0
    }
}

/// Makes room for one more in a list of at most `most`. It grows by a quarter: doubling would waste
/// a third on average.
pub(crate) fn grow<T>(list: &mut Vec<T>, most: usize) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 4).max(2).min(most - list.len()));
    }
}

/// Makes room for `count` more in a list of a chunk.
fn make_room<T>(list: &mut Vec<T>, count: usize) {
    if list.len() + count > list.capacity() {
        list.reserve_exact((list.len() / 4).max(count).min(ITEMS_MAX - list.len()));
    }
}

/// Frees memory if most of it is not used.
pub(crate) fn shrink<T>(list: &mut Vec<T>) {
    if list.capacity() > 8 && list.len() < list.capacity() / 4 {
        list.shrink_to(list.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32) -> ItemLocation {
        ItemLocation { offset, bytes: 10 }
    }

    fn chunk(first: u64, counts: &[u32]) -> ItemChunk {
        let mut chunk = ItemChunk::new(first, 1);
        for (offset, count) in (0..).zip(counts) {
            assert!(chunk.push(at(offset), *count));
        }
        chunk
    }

    /// First and end of the entries of each item.
    fn ranges(chunk: &ItemChunk) -> Vec<(u64, u64)> {
        let range = |place| (chunk.item(place).1, chunk.item(place).2);
        (0..chunk.item_count()).map(range).collect()
    }

    #[test]
    fn items_of_one_entry_need_no_list_of_firsts() {
        let mut chunk = chunk(5, &[1, 1, 1]);
        assert!(chunk.firsts.is_none() && chunk.memory_bytes() <= 4 * 8);
        assert!(chunk.push(at(3), 4) && chunk.push(at(4), 1));
        assert_eq!(ranges(&chunk), [(5, 6), (6, 7), (7, 8), (8, 12), (12, 13)]);
        assert_eq!([5, 7, 8, 11, 12].map(|index| chunk.position(index)), [0, 2, 3, 3, 4]);
        assert_eq!(
            (chunk.bytes_of(5, 13), chunk.bytes_of(8, 9), chunk.bytes_of(9, 12)),
            (50, 10, 0)
        );
    }

    #[test]
    fn a_cut_may_go_through_an_item() {
        let mut a = chunk(5, &[4, 1, 4]);
        a.truncate(12);
        a.drop_prefix(7);
        assert_eq!(ranges(&a), [(7, 9), (9, 10), (10, 12)]);
        let tail = a.split_off(9);
        assert_eq!((ranges(&a), ranges(&tail)), (vec![(7, 9)], vec![(9, 10), (10, 12)]));
        assert!(a.absorb(tail).is_none());
        assert_eq!(ranges(&a), [(7, 9), (9, 10), (10, 12)]);
        a.drop_prefix(11);
        assert_eq!((ranges(&a), a.item(0).0.offset), (vec![(11, 12)], 2));
    }

    #[test]
    fn a_chunk_is_full_at_some_time() {
        let mut full = chunk(1, &[1; ITEMS_MAX]);
        assert!(!full.push(at(0), 1));
        assert!(full.absorb(chunk(full.end(), &[1])).is_some());
        let mut wide = chunk(1, &[u32::MAX - 1]);
        assert!(!wide.push(at(0), 2) && wide.absorb(chunk(wide.end(), &[2])).is_some());
        assert!(wide.push(at(0), 1));
    }
}
