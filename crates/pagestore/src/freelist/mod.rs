//! Which units are free: spans by size, found and merged without a search.
//!
//! The file is cut into regions, each headed by the two places of its bitmap. Spans never cross a
//! region's border. An allocation takes the smallest class of spans that all fit, and in it the
//! lowest region, so that high regions empty; only if no span fits does the file grow.

mod pending;
mod spans;

pub(crate) use pending::Pending;

use crate::bits::Bits;
use crate::page::{HEADER_BYTES, Span, UNIT_BYTES, UNIT_COUNT_MAX};
use spans::{CLASS_COUNT, Spans, UNITS_MAX, class_fitting, class_of};

/// Units before the first region: the two meta pages.
pub(crate) const META_UNITS: u64 = 2;

/// Units at the head of each region: the two places of its bitmap.
pub(crate) const HEAD_UNITS: u64 = 2;

/// Units of a region, its head included: as many as one bitmap page has bits.
pub(crate) const REGION_UNITS: u64 = ((UNIT_BYTES - HEADER_BYTES) * 8) as u64;

const _: () = assert!(REGION_UNITS <= UNITS_MAX as u64, "a region may be one free span");

/// How many spans of a class to try if some of them may be too short.
const TRIES_MAX: usize = 32;

/// Which region a unit lies in.
pub(crate) fn region_of(unit: u64) -> usize {
    ((unit - META_UNITS) / REGION_UNITS) as usize
}

/// The first unit of a region.
pub(crate) fn region_start(region: usize) -> u64 {
    META_UNITS + region as u64 * REGION_UNITS
}

/// Free spans, and where the file ends.
pub(crate) struct Freelist {
    regions: Vec<Spans>,
    /// For each class, the regions that have a span of it.
    by_class: [Bits; CLASS_COUNT],
    /// For each class, how many those are.
    region_counts: [u32; CLASS_COUNT],
    /// One past the last unit that was ever given out.
    end: u64,
    free_units: u64,
}

impl Freelist {
    /// No free span, in a file that holds nothing but meta pages.
    pub(crate) fn new() -> Freelist {
        Freelist {
            regions: Vec::new(),
            by_class: std::array::from_fn(|_| Bits::default()),
            region_counts: [0; CLASS_COUNT],
            end: META_UNITS,
            free_units: 0,
        }
    }

    /// What is free in a file that ends at `end` if `used` are all units in use,
    /// counted from the first region on.
    pub(crate) fn restore(used: &Bits, end: u64) -> Freelist {
        let mut list = Freelist::new();
        list.end = end;
        for region in (0..).take_while(|&region| region_start(region) < end) {
            let stop = end.min(region_start(region + 1));
            let mut free_from = region_start(region) + HEAD_UNITS;
            let mut unit = free_from;
            while unit < stop {
                if used.contains(unit - META_UNITS) {
                    list.release_between(free_from, unit);
                    free_from = unit + 1;
                }
                unit += 1;
            }
            list.release_between(free_from, stop);
        }
        list
    }

    fn release_between(&mut self, from: u64, to: u64) {
        if from < to {
            let units = u32::try_from(to - from).expect("a region has fewer units");
            self.release(Span { start: from, units });
        }
    }

    /// One past the last unit that was ever given out.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn free_units(&self) -> u64 {
        self.free_units
    }

    /// All free spans, in no order.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        self.regions.iter().enumerate().flat_map(|(region, spans)| {
            spans.iter().map(move |(at, units)| Span { start: region_start(region) + at, units })
        })
    }

    /// A span of `units`, or none if the file is as long as it may be.
    pub(crate) fn allocate(&mut self, units: u32) -> Option<Span> {
        assert!(units > 0 && u64::from(units) <= REGION_UNITS - HEAD_UNITS, "{units} units");
        self.take_fitting(units).or_else(|| self.take_tried(units)).or_else(|| self.grow(units))
    }

    /// Takes a span back. It must not be free.
    pub(crate) fn release(&mut self, span: Span) {
        let region = region_of(span.start);
        while self.regions.len() <= region {
            self.regions.push(Spans::default());
        }
        let at = span.start - region_start(region);
        self.free_units += u64::from(span.units);
        let before = self.regions[region].mask();
        self.regions[region].release(at, span.units);
        self.note(region, before);
    }

    /// From the smallest class in which every span is long enough.
    fn take_fitting(&mut self, units: u32) -> Option<Span> {
        let class = (class_fitting(units)..CLASS_COUNT).find(|&c| self.region_counts[c] > 0)?;
        let region = self.by_class[class].iter().next()? as usize;
        let at = self.regions[region].newest(class)?;
        Some(self.take(region, at, units))
    }

    /// From the class that `units` itself falls into, where some spans are long enough.
    fn take_tried(&mut self, units: u32) -> Option<Span> {
        let class = class_of(units);
        if class == class_fitting(units) || self.region_counts[class] == 0 {
            return None;
        }
        let regions = self.by_class[class].iter();
        let (region, at) = regions
            .flat_map(|region| {
                let spans = self.regions[region as usize].of_class(class);
                spans.map(move |(at, len)| (region as usize, at, len))
            })
            .take(TRIES_MAX)
            .find_map(|(region, at, len)| (len >= units).then_some((region, at)))?;
        Some(self.take(region, at, units))
    }

    /// Takes the first `units` of the free span at `at`.
    fn take(&mut self, region: usize, at: u64, units: u32) -> Span {
        let before = self.regions[region].mask();
        self.regions[region].take(at, units);
        self.note(region, before);
        self.free_units -= u64::from(units);
        Span { start: region_start(region) + at, units }
    }

    /// From the end of the file, together with the free span that lies before it, if any.
    fn grow(&mut self, units: u32) -> Option<Span> {
        loop {
            if self.end + u64::from(units) + HEAD_UNITS > UNIT_COUNT_MAX {
                return None;
            }
            let region = region_of(self.end);
            let start = region_start(region);
            if self.end == start {
                self.end += HEAD_UNITS;
            }
            let room = start + REGION_UNITS - self.end;
            let tail = self.regions.get(region).and_then(|r| r.ending_at(self.end - start));
            let tail_units = tail.unwrap_or(0);
            if u64::from(units) <= room + u64::from(tail_units) {
                if tail_units > 0 {
                    let at = self.end - start - u64::from(tail_units);
                    self.take(region, at, tail_units);
                }
                let span = Span { start: self.end - u64::from(tail_units), units };
                self.end = span.end();
                return Some(span);
            }
            let rest = self.end;
            self.end = start + REGION_UNITS;
            self.release_between(rest, self.end);
        }
    }

    /// Brings the index over all regions up to date with one of them.
    fn note(&mut self, region: usize, before: u128) {
        let after = self.regions[region].mask();
        let mut changed = before ^ after;
        while changed != 0 {
            let class = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            if after >> class & 1 == 1 {
                self.by_class[class].insert(region as u64);
                self.region_counts[class] += 1;
            } else {
                self.by_class[class].remove(region as u64);
                self.region_counts[class] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
