//! Free space that was given back to the file system, and that must be reserved before it is written.
//!
//! Long free runs that stay free over some checkpoints become holes of the file. A unit of a hole that
//! is given out is reserved again by the checkpoint that is going to write it, before that takes its
//! cut: a disk that is full is so found when nothing has happened yet. Which regions have holes
//! stands in their records, before the first hole is made; after opening all that is free there
//! counts as one.

use std::collections::VecDeque;

use crate::bits::Bits;
use crate::freelist::{Freelist, META_UNITS, region_of};
use crate::page::Span;

/// Shorter runs stay: 1 MiB.
const RUN_UNITS_MIN: u32 = 256;

/// So many checkpoints lie between two looks at the free runs. What both see becomes a hole.
const CHECKPOINTS: u64 = 8;

/// So many units become holes in one checkpoint: 1 GiB.
const UNITS_MAX: u64 = 1 << 18;

/// Free space that the file system has back.
#[derive(Default)]
pub(crate) struct Holes {
    /// Units of holes, counted from the first region on.
    units: Bits,
    count: u64,
    /// How many of them each region has.
    by_region: Vec<u32>,
    /// What was given out of them, and is not reserved yet.
    unreserved: VecDeque<Span>,
    /// The long free runs of the last look, rising.
    seen: Vec<Span>,
}

impl Holes {
    /// How many units are holes.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether a region has holes.
    pub(crate) fn has(&self, region: usize) -> bool {
        self.by_region.get(region).is_some_and(|&count| count > 0)
    }

    /// Takes note that a free span is a hole now.
    pub(crate) fn add(&mut self, span: Span) {
        let region = region_of(span.start);
        if self.by_region.len() <= region {
            self.by_region.resize(region + 1, 0);
        }
        for unit in span.start..span.end() {
            if self.units.insert(unit - META_UNITS) {
                self.count += 1;
                self.by_region[region] += 1;
            }
        }
    }

    /// Takes note that a span was given out.
    pub(crate) fn give_out(&mut self, span: Span) {
        if self.count > 0 && self.has(region_of(span.start)) && self.forget(span) {
            self.unreserved.push_back(span);
        }
    }

    /// Takes note that a span is no part of the file any more, or no hole. True if some of it was.
    pub(crate) fn forget(&mut self, span: Span) -> bool {
        let region = region_of(span.start);
        let before = self.count;
        for unit in span.start..span.end() {
            if self.units.remove(unit - META_UNITS) {
                self.count -= 1;
                self.by_region[region] -= 1;
            }
        }
        self.count < before
    }

    /// Whether something has to be reserved before the next checkpoint writes.
    pub(crate) fn are_unreserved(&self) -> bool {
        !self.unreserved.is_empty()
    }

    /// What has to be reserved of a file that ends at `end`, in the order in which it was given out.
    pub(crate) fn unreserved_before(&mut self, end: u64) -> &[Span] {
        self.unreserved.retain_mut(|span| {
            let units = end.saturating_sub(span.start).min(u64::from(span.units));
            span.units = units as u32;
            units > 0
        });
        self.unreserved.make_contiguous()
    }

    /// Takes note that the first of them is reserved now.
    pub(crate) fn note_reserved(&mut self) {
        self.unreserved.pop_front();
    }

    /// What checkpoint `number` shall make holes of: long runs that were free when it was looked last
    /// and are free now. They are taken from the freelist.
    pub(crate) fn choose(&mut self, freelist: &mut Freelist, number: u64) -> Vec<Span> {
        if !number.is_multiple_of(CHECKPOINTS) {
            return Vec::new();
        }
        let now = freelist.long_runs(RUN_UNITS_MIN);
        let mut chosen = Vec::new();
        let mut units = 0;
        for span in common(&self.seen, &now) {
            let is_hole = |unit: u64| self.units.contains(unit - META_UNITS);
            let wanted = span.units >= RUN_UNITS_MIN && !(span.start..span.end()).all(is_hole);
            if wanted && units < UNITS_MAX {
                units += u64::from(span.units);
                freelist.take_free(span);
                chosen.push(span);
            }
        }
        self.seen = now;
        chosen
    }
}

/// What lies in a span of both lists, which rise.
fn common(one: &[Span], other: &[Span]) -> Vec<Span> {
    let (mut i, mut j) = (0, 0);
    let mut common = Vec::new();
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let (start, end) = (a.start.max(b.start), a.end().min(b.end()));
        if start < end {
            common.push(Span { start, units: (end - start) as u32 });
        }
        if a.end() < b.end() { i += 1 } else { j += 1 }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, units: u32) -> Span {
        Span { start, units }
    }

    #[test]
    fn what_both_have_is_common() {
        let one = [span(10, 10), span(30, 5), span(50, 10)];
        let other = [span(0, 12), span(15, 20), span(55, 1), span(58, 9)];
        let both = [span(10, 2), span(15, 5), span(30, 5), span(55, 1), span(58, 2)];
        assert_eq!(common(&one, &other), both);
        assert_eq!(common(&other, &one), both);
    }

    #[test]
    fn runs_become_holes_that_stay_free() {
        let mut list = Freelist::new();
        let all = list.allocate(3000).unwrap();
        let part = |from: u64, units| span(all.start + from, units);
        for run in [part(0, 300), part(1000, 255), part(2000, 900)] {
            list.release(run);
        }
        let mut holes = Holes::default();
        assert_eq!(holes.choose(&mut list, 8), []);
        assert_eq!(holes.choose(&mut list, 9), []);
        let taken = part(0, 270);
        list.take_free(taken);
        let chosen = holes.choose(&mut list, 16);
        assert_eq!(chosen, [part(2000, 900)]);
        for &span in &chosen {
            list.release(span);
            holes.add(span);
        }
        assert_eq!((holes.count(), holes.has(0), holes.has(1)), (900, true, false));
        assert_eq!(holes.choose(&mut list, 24), []);
        holes.give_out(taken);
        assert!(!holes.are_unreserved());
        holes.give_out(part(1999, 2));
        assert_eq!((holes.count(), holes.unreserved_before(u64::MAX)), (899, &[part(1999, 2)][..]));
        holes.give_out(part(2500, 10));
        let end = all.start + 2504;
        assert_eq!(holes.unreserved_before(end), [part(1999, 2), part(2500, 4)]);
        holes.note_reserved();
        assert_eq!(holes.unreserved_before(all.start + 2500), []);
        assert!(!holes.are_unreserved());
    }
}
