//! The range map: which region of the store holds which keys, and which ranges are promised to
//! snapshots on their way.
//!
//! The rows of the regions are the truth; the map finds those that a range meets without reading
//! all of them. It changes while the transaction that changes the rows holds the writer lock, just
//! before that is published.
//!
//! Invariants:
//! - It holds the ranges of the rows as the last transaction has them.
//! - No two of its ranges meet: neither two held ones, nor two promised ones, nor a promised one
//!   and that of another region.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_region::{Descriptor, KeyRange, RegionId, Space, SplitRegions};
use parking_lot::Mutex;

/// The ranges of a store.
#[derive(Debug, Default)]
pub(crate) struct RangeMap {
    ranges: Mutex<Ranges>,
}

/// By space and start: the end, and the region.
type HeldRanges = BTreeMap<(Space, Bytes), (Bytes, RegionId)>;

#[derive(Debug, Default)]
struct Ranges {
    held: HeldRanges,
    promised: BTreeMap<RegionId, KeyRange>,
}

impl RangeMap {
    pub(crate) fn new<'a>(regions: impl Iterator<Item = &'a Descriptor>) -> Self {
        let map = Self::default();
        regions.for_each(|region| map.ranges.lock().hold(region));
        map
    }

    /// A region, other than `except`, that holds a part of the range or was promised one.
    pub(crate) fn holder(&self, range: &KeyRange, except: Option<RegionId>) -> Option<RegionId> {
        self.ranges.lock().holder(range, except)
    }

    /// Promises a range to a region, unless another one holds a part of it or was promised one: the
    /// error names that. It names the region itself if that was promised a range already.
    pub(crate) fn promise(&self, region: RegionId, range: KeyRange) -> Result<(), RegionId> {
        let mut ranges = self.ranges.lock();
        if ranges.promised.contains_key(&region) {
            return Err(region);
        }
        if let Some(holder) = ranges.holder(&range, Some(region)) {
            return Err(holder);
        }
        ranges.promised.insert(region, range);
        Ok(())
    }

    /// Takes a promise back.
    pub(crate) fn withdraw(&self, region: RegionId) {
        self.ranges.lock().promised.remove(&region);
    }

    /// The regions, other than `except`, whose rows say whether the range is free: those that meet
    /// it, and the ones before and behind it.
    pub(crate) fn neighbours(&self, range: &KeyRange, except: RegionId) -> Vec<RegionId> {
        let ranges = self.ranges.lock();
        let others = |(_, id): &(Bytes, RegionId)| (*id != except).then_some(*id);
        let at = (range.space, range.start.clone());
        let before = ranges.held.range(..&at).rev().take_while(|(key, _)| key.0 == range.space);
        let before = before.filter_map(|(_, held)| others(held)).next();
        let mut near: Vec<_> = before.into_iter().collect();
        for (key, held) in ranges.held.range(&at..).take_while(|(key, _)| key.0 == range.space) {
            near.extend(others(held));
            if !range.end.is_empty() && key.1 >= range.end && others(held).is_some() {
                break;
            }
        }
        near
    }

    /// A region was split. Children that were not made here are left out.
    pub(crate) fn split(&self, before: &Descriptor, regions: &SplitRegions) {
        let mut ranges = self.ranges.lock();
        ranges.held.remove(&(before.space, before.start.clone()));
        for region in regions.children.iter().chain([&regions.parent]) {
            ranges.hold(region);
        }
        // A snapshot of the parent from before the split is not wanted any more.
        let parent = regions.parent.id;
        let held = ranges.promised.get(&parent).and_then(|old| ranges.holder(old, Some(parent)));
        if held.is_some() {
            ranges.promised.remove(&parent);
        }
    }

    /// A region has the range that it was promised, in place of the one before.
    pub(crate) fn install(&self, before: Option<&Descriptor>, now: &Descriptor) {
        let mut ranges = self.ranges.lock();
        if let Some(before) = before {
            ranges.held.remove(&(before.space, before.start.clone()));
        }
        ranges.promised.remove(&now.id);
        // R16. Both would answer for the keys.
        let holder = ranges.holder(&now.range(), Some(now.id));
        assert!(holder.is_none(), "region {} takes keys of {holder:?}", now.id);
        ranges.hold(now);
    }

    /// The replica of a region has ended: its range is free (R16). Roots keep the order of
    /// transactions, so none has the next holder and not the end.
    pub(crate) fn end(&self, region: &Descriptor) {
        let mut ranges = self.ranges.lock();
        let held = ranges.held.remove(&(region.space, region.start.clone()));
        assert_eq!(held, Some((region.end.clone(), region.id)), "the range map is not of the rows");
    }

    /// The ranges that are held, in order.
    pub(crate) fn held(&self) -> Vec<(RegionId, KeyRange)> {
        let ranges = self.ranges.lock();
        let held = ranges.held.iter().map(|((space, start), (end, region))| {
            (*region, KeyRange { space: *space, start: start.clone(), end: end.clone() })
        });
        held.collect()
    }

    /// The ranges that are promised.
    pub(crate) fn promised(&self) -> Vec<(RegionId, KeyRange)> {
        let ranges = self.ranges.lock();
        ranges.promised.iter().map(|(region, range)| (*region, range.clone())).collect()
    }
}

impl Ranges {
    fn hold(&mut self, region: &Descriptor) {
        let key = (region.space, region.start.clone());
        let before = self.held.insert(key, (region.end.clone(), region.id));
        // It would be gone from the map, and its range free.
        assert!(before.is_none(), "{} begins where {before:?} does", region.id);
    }

    fn holder(&self, range: &KeyRange, except: Option<RegionId>) -> Option<RegionId> {
        let is_other = |region: RegionId| except != Some(region);
        let at = (range.space, range.start.clone());
        let in_space = |key: &(Space, Bytes)| key.0 == range.space;
        // Held ranges are disjoint, so only the last one before the range may reach into it.
        let before = self
            .held
            .range(..&at)
            .next_back()
            .filter(|(key, (end, _))| in_space(key) && (end.is_empty() || *end > range.start));
        let inside = self
            .held
            .range(&at..)
            .take_while(|(key, _)| in_space(key) && (range.end.is_empty() || key.1 < range.end));
        let mut held = before.into_iter().chain(inside).map(|(_, (_, region))| *region);
        held.find(|region| is_other(*region)).or_else(|| {
            let mut promised = self.promised.iter();
            let other = promised.find(|(region, other)| is_other(**region) && meet(range, other));
            other.map(|(region, _)| *region)
        })
    }
}

/// Whether a key is in both ranges.
pub(crate) fn meet(one: &KeyRange, other: &KeyRange) -> bool {
    let below = |start: &Bytes, end: &Bytes| end.is_empty() || start < end;
    one.space == other.space && below(&one.start, &other.end) && below(&other.start, &one.end)
}

/// Whether no key is in the range.
pub(crate) fn is_empty(range: &KeyRange) -> bool {
    !range.end.is_empty() && range.start >= range.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use flotilla_region::RemovedPeers;

    fn range(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange { space: Space::Raw, start: start.into(), end: end.into() }
    }

    fn map(ranges: &[(u64, &'static str, &'static str)]) -> RangeMap {
        let map = RangeMap::default();
        for (id, start, end) in ranges {
            let KeyRange { space, start, end } = range(start, end);
            map.ranges.lock().hold(&Descriptor {
                removed: RemovedPeers::default(),
                id: RegionId(*id),
                space,
                start,
                end,
                epoch: flotilla_region::Epoch::default(),
                peers: vec![],
            });
        }
        map
    }

    #[test]
    fn a_range_is_free_if_no_other_region_meets_it() {
        let map = map(&[(1, "b", "d"), (2, "f", "h"), (3, "p", "")]);
        let holder = |start, end| map.holder(&range(start, end), None).map(|region| region.0);
        for (start, end) in [("", "b"), ("d", "f"), ("d", "e"), ("h", "p")] {
            assert_eq!(holder(start, end), None, "{start} to {end}");
        }
        for (start, end, expected) in [
            ("", "", 1),
            ("", "bb", 1),
            ("c", "cc", 1),
            ("c", "z", 1),
            ("d", "", 2),
            ("g", "j", 2),
            ("h", "", 3),
            ("q", "r", 3),
        ] {
            assert_eq!(holder(start, end), Some(expected), "{start} to {end}");
        }
        assert_eq!(map.holder(&range("b", "e"), Some(RegionId(1))), None);
        assert_eq!(map.holder(&range("b", "g"), Some(RegionId(1))), Some(RegionId(2)));
        let system = KeyRange { space: Space::System, ..range("", "") };
        assert_eq!(map.holder(&system, None), None);
        let inverted = range("z", "a");
        assert!(is_empty(&inverted) && map.holder(&inverted, None).is_some());
    }

    #[test]
    fn a_promised_range_is_no_other_regions() {
        let map = map(&[(1, "b", "d")]);
        assert_eq!(map.promise(RegionId(5), range("c", "e")), Err(RegionId(1)));
        map.promise(RegionId(5), range("d", "f")).unwrap();
        assert_eq!(map.promise(RegionId(6), range("e", "g")), Err(RegionId(5)));
        assert_eq!(map.promise(RegionId(5), range("d", "e")), Err(RegionId(5)), "a second one");
        assert_eq!(map.holder(&range("a", "b"), None), None);
        assert_eq!(map.holder(&range("e", ""), None), Some(RegionId(5)));
        map.withdraw(RegionId(5));
        map.promise(RegionId(6), range("e", "g")).unwrap();
        let near = |start, end| map.neighbours(&range(start, end), RegionId(9));
        assert_eq!(near("d", "e"), [RegionId(1)]);
        assert_eq!(near("a", "b"), [RegionId(1)]);
        assert_eq!(near("c", "e"), [RegionId(1)]);
    }
}
