//! Segregated free list: free runs by size class, found and merged without a search.
//!
//! The file is cut into allocation groups, each headed by the two places of its bitmap. Runs never
//! cross a group's border. An allocation takes the smallest class of runs that all fit (best fit),
//! and in it the lowest group, so that high groups empty; only if no run fits does the file grow.
//!
//! The cost does not depend on how much is free: a mask says which classes have a run, a set for
//! each class in which groups, and the group where (`alloc_group.rs`). Runs that were free when the
//! store was opened are counted then, but listed only in groups that something is taken from.

mod alloc_group;
mod classes;
mod group_set;
mod pending;

pub(crate) use pending::PendingSpans;

use std::ops::Range;

use crate::page::layout::{GROUP_UNITS, HEAD_UNITS, META_UNITS, group_of, group_start, offset_of};
use crate::page::unit_set::UnitSet;
use crate::page::{Span, UNIT_COUNT_MAX};
use alloc_group::{AllocGroup, UNITS, WORDS};
use classes::{CLASS_COUNT, UNITS_MAX, class_fitting, class_of};
use group_set::GroupSet;

const _: () = assert!(GROUP_UNITS <= UNITS_MAX as u64, "a group may be one free run");

/// In how many groups to look for a run if some of the class may be too short.
const GROUP_TRIES_MAX: usize = 8;

/// The free list of a file: its free units, and its end. The store has one of its own; it is public
/// for benchmarks, and for use with another file.
///
/// Spans are given out from the lowest group that has a run of the best fitting size; the file
/// grows only if there is none. Costs do not depend on how much is free.
pub struct Freelist {
    groups: Vec<AllocGroup>,
    /// For each class, the groups that have a run of it.
    by_class: [GroupSet; CLASS_COUNT],
    /// One bit for each class that has a run somewhere.
    mask: u128,
    /// One past the last unit that was ever given out.
    end: u64,
    free_units: u64,
    /// Units from here on are given out only if none below fit.
    limit: Option<u64>,
}

impl Default for Freelist {
    fn default() -> Freelist {
        Freelist::new()
    }
}

impl Freelist {
    /// No free unit, in a file that holds nothing but meta pages.
    #[must_use]
    pub fn new() -> Freelist {
        Freelist {
            groups: Vec::new(),
            by_class: std::array::from_fn(|_| GroupSet::default()),
            mask: 0,
            end: META_UNITS,
            free_units: 0,
            limit: None,
        }
    }

    /// The free list of a file that ends at `end` if `used` are all units in use, counted from the
    /// first group on.
    pub(crate) fn restore(used: &UnitSet, end: u64) -> Freelist {
        let mut list = Freelist::new();
        list.end = end;
        for index in (0..).take_while(|&index| group_start(index) < end) {
            let words = used.words(index * WORDS, WORDS);
            let stop = (end - group_start(index)).min(GROUP_UNITS) as u32;
            let group = AllocGroup::restore(words, HEAD_UNITS as u32, stop);
            list.free_units += group.free_units();
            list.groups.push(group);
            list.note(index, 0);
        }
        list
    }

    fn release_between(&mut self, from: u64, to: u64) {
        if from < to {
            let units = u32::try_from(to - from).expect("a group has fewer units");
            self.release(Span { start: from, units });
        }
    }

    /// One past the last unit that was ever given out.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many units are free.
    pub fn free_units(&self) -> u64 {
        self.free_units
    }

    /// All free spans, rising; two touch only at the border of a group.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        self.spans_of(|_| true)
    }

    /// All free spans of some groups, rising.
    pub(crate) fn spans_of(&self, wanted: impl Fn(usize) -> bool) -> impl Iterator<Item = Span> {
        let groups = self.groups.iter().enumerate().filter(move |(index, _)| wanted(*index));
        groups.flat_map(|(index, group)| {
            let span = move |(at, units)| Span { start: group_start(index) + u64::from(at), units };
            group.runs().map(span)
        })
    }

    /// A span of `units`, or none if the file is as long as it may be: 2^32 units.
    ///
    /// # Panics
    ///
    /// If `units` is 0, or more than a group has: 32446.
    pub fn allocate(&mut self, units: u32) -> Option<Span> {
        assert!(units > 0 && u64::from(units) <= GROUP_UNITS - HEAD_UNITS, "{units} units");
        let anywhere = usize::MAX;
        (self.limit.and_then(|_| self.allocate_below(units)))
            .or_else(|| self.take_fitting(units, anywhere))
            .or_else(|| self.take_tried(units, anywhere))
            .or_else(|| self.grow(units))
    }

    /// Takes a span back.
    ///
    /// # Panics
    ///
    /// If some of it is free already.
    pub fn release(&mut self, span: Span) {
        let index = group_of(span.start);
        assert!(
            span.units > 0 && span.end() <= self.end,
            "{span:?} of a file that ends at {}",
            self.end
        );
        let at = offset_of(span.start);
        assert!(u64::from(at) >= HEAD_UNITS, "{span:?} is a bitmap's place");
        assert!(at + span.units <= UNITS, "{span:?} crosses the border of a group");
        while self.groups.len() <= index {
            self.groups.push(AllocGroup::new());
            let limited = self.limit.filter(|&limit| group_of(limit) + 1 == self.groups.len());
            if let (Some(limit), Some(group)) = (limited, self.groups.last_mut()) {
                group.set_limit(offset_of(limit));
            }
        }
        self.free_units += u64::from(span.units);
        let group = &mut self.groups[index];
        let before = group.mask();
        group.release(offset_of(span.start), span.units);
        self.note(index, before);
    }

    /// From now on, until this is called again, units from `limit` on are given out only if none
    /// below fit.
    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        let old = std::mem::replace(&mut self.limit, limit);
        for (limit, offset) in [(old, UNITS), (limit, limit.map_or(UNITS, offset_of))] {
            if let Some(index) = limit.map(group_of).filter(|&index| index < self.groups.len()) {
                let before = self.groups[index].mask();
                self.groups[index].set_limit(offset);
                self.note(index, before);
            }
        }
    }

    /// A span of `units` below the limit, if there is one. The file does not grow.
    pub(crate) fn allocate_below(&mut self, units: u32) -> Option<Span> {
        let last = self.limit.map_or(usize::MAX, group_of);
        self.take_fitting(units, last).or_else(|| self.take_tried(units, last))
    }

    /// The free runs of at least `units_min` units in some groups, rising.
    pub(crate) fn long_runs(&self, groups: Range<usize>, units_min: u32) -> Vec<Span> {
        let end = groups.end.min(self.groups.len());
        let groups = groups.start.min(end)..end;
        let runs = groups.flat_map(|index| {
            let span = move |(at, units)| Span { start: group_start(index) + u64::from(at), units };
            self.groups[index].long_runs(units_min).map(span)
        });
        runs.collect()
    }

    /// The bitmap of a group's free units; no words if it never had one.
    pub(crate) fn group_words(&self, index: usize) -> &[u64] {
        self.groups.get(index).map_or(&[], AllocGroup::words)
    }

    /// How many groups have ever had a free unit, those between them included.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Whether all of a span is free.
    pub(crate) fn is_free(&self, span: Span) -> bool {
        let group = self.groups.get(group_of(span.start)).filter(|_| span.end() <= self.end);
        let at = offset_of(span.start);
        group.is_some_and(|group| group.run_start(at + span.units) <= at)
    }

    /// Takes a span that is free.
    pub(crate) fn take_free(&mut self, span: Span) {
        let at = offset_of(span.start);
        self.take_from(group_of(span.start), span.units, |group| {
            group.take(at, span.units);
            at
        });
    }

    /// Gives up the free run at the end of the file, if it has at least `units_min` units. They are
    /// no part of the file then.
    pub(crate) fn trim(&mut self, units_min: u64) -> bool {
        let end = self.used_end();
        if end == self.end || self.end - end < units_min {
            return false;
        }
        while self.end > end {
            let index = group_of(self.end - 1);
            let from = end.max(group_start(index) + HEAD_UNITS);
            if from < self.end {
                let (at, units) = (offset_of(from), (self.end - from) as u32);
                self.take_from(index, units, |group| {
                    group.take(at, units);
                    at
                });
            }
            self.end = end.max(group_start(index));
        }
        self.groups.truncate(end.saturating_sub(META_UNITS).div_ceil(GROUP_UNITS) as usize);
        true
    }

    /// One past the last unit that is not free. A group of which nothing is used counts as free.
    pub(crate) fn used_end(&self) -> u64 {
        let mut end = self.end;
        while end > META_UNITS {
            let index = group_of(end - 1);
            let at = (end - group_start(index)) as u32;
            let run = self.groups.get(index).map_or(at, |group| group.run_start(at));
            if u64::from(run) > HEAD_UNITS {
                return group_start(index) + u64::from(run);
            }
            end = group_start(index);
        }
        end
    }

    /// From the smallest class in which every run is long enough, in groups up to `last`.
    fn take_fitting(&mut self, units: u32, last: usize) -> Option<Span> {
        let mut fitting = self.mask >> class_fitting(units) << class_fitting(units);
        while fitting != 0 {
            let class = fitting.trailing_zeros() as usize;
            let index = self.by_class[class].lowest().expect("the mask says that there is one");
            if index <= last {
                return Some(self.take_from(index, units, |group| group.take_of(class, units)));
            }
            fitting &= fitting - 1;
        }
        None
    }

    /// From the class that `units` itself falls into, where some runs are long enough, in groups up
    /// to `last`.
    fn take_tried(&mut self, units: u32, last: usize) -> Option<Span> {
        let class = class_of(units);
        if class == class_fitting(units) || self.mask >> class & 1 == 0 {
            return None;
        }
        let mut tries = 0;
        let groups = &mut self.groups;
        let candidates = self.by_class[class].iter().take_while(|&index| index <= last);
        let (index, before, at) = candidates.take(GROUP_TRIES_MAX).find_map(|index| {
            let before = groups[index].mask();
            let at = groups[index].try_of(class, units, &mut tries)?;
            Some((index, before, at))
        })?;
        self.note(index, before);
        self.free_units -= u64::from(units);
        Some(Span { start: group_start(index) + u64::from(at), units })
    }

    /// Takes units from a group; `take` says where they lie.
    fn take_from(
        &mut self,
        index: usize,
        units: u32,
        take: impl FnOnce(&mut AllocGroup) -> u32,
    ) -> Span {
        let group = &mut self.groups[index];
        let before = group.mask();
        debug_assert!(
            self.free_units >= u64::from(units),
            "{units} units of group {index} were not counted"
        );
        let at = take(group);
        self.note(index, before);
        self.free_units -= u64::from(units);
        Span { start: group_start(index) + u64::from(at), units }
    }

    /// From the end of the file, together with the free run that lies before it, if any.
    fn grow(&mut self, units: u32) -> Option<Span> {
        loop {
            if self.end + u64::from(units) + HEAD_UNITS > UNIT_COUNT_MAX {
                return None;
            }
            let index = group_of(self.end);
            let start = group_start(index);
            if self.end == start {
                self.end += HEAD_UNITS;
            }
            let at = (self.end - start) as u32;
            let tail = self.groups.get(index).map_or(0, |group| at - group.run_start(at));
            if units <= UNITS - at + tail {
                if tail > 0 {
                    self.take_from(index, tail, |group| {
                        group.take(at - tail, tail);
                        at - tail
                    });
                }
                let span = Span { start: self.end - u64::from(tail), units };
                self.end = self.end.max(span.end());
                assert!(self.end <= UNIT_COUNT_MAX, "the file ends at {}", self.end);
                if span.end() < self.end {
                    self.release(Span { start: span.end(), units: tail - units });
                }
                return Some(span);
            }
            // Spans do not cross a group's border: the rest of the group is free, the span in the
            // next.
            let rest = self.end;
            self.end = start + GROUP_UNITS;
            self.release_between(rest, self.end);
        }
    }

    /// Brings the index over all groups up to date with one of them.
    fn note(&mut self, index: usize, before: u128) {
        let after = self.groups[index].mask();
        let mut changed = before ^ after;
        while changed != 0 {
            let class = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let groups = &mut self.by_class[class];
            if after >> class & 1 == 1 {
                groups.insert(index);
                self.mask |= 1 << class;
            } else {
                groups.remove(index);
                if groups.lowest().is_none() {
                    self.mask &= !(1 << class);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
