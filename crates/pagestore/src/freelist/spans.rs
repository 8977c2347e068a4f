//! Free spans of one region, by size class and by both ends.
//!
//! The maps from start to length and from end to length are plain arrays over the region's units:
//! what a release looks at, its two neighbours, lies beside what it writes, and nothing is hashed.
//!
//! Invariants:
//! - Two free spans never touch; they would be one.
//! - `forward[s] = n` exactly if a free span of `n` units starts at `s`; then `backward[s + n - 1]`
//!   is `n` too, and `classes[class_of(n)][place[s]]` is `s`.

/// Spans of up to so many units have a class of their own.
const EXACT_UNITS_MAX: u32 = 64;

/// The longest span that a class exists for.
pub(crate) const UNITS_MAX: u32 = (1 << 15) - 1;

/// One class for each length up to 64, then two for each power of two.
pub(crate) const CLASS_COUNT: usize = 82;

const _: () = assert!(CLASS_COUNT <= 128, "a mask of classes has 128 bits");

/// What is known of one unit.
#[derive(Clone, Copy, Default)]
struct Tag {
    /// The length of the free span that starts here, or 0.
    forward: u32,
    /// The length of the free span whose last unit this is, or 0.
    backward: u32,
    /// Where the list of its class names the span that starts here.
    place: u32,
}

/// Free spans of one region; offsets count from its start.
#[derive(Default)]
pub(crate) struct Spans {
    tags: Vec<Tag>,
    classes: Vec<Vec<u32>>,
    mask: u128,
}

/// The class of spans of this length.
pub(crate) fn class_of(units: u32) -> usize {
    if units <= EXACT_UNITS_MAX {
        return units as usize - 1;
    }
    let power = units.ilog2();
    let half = units >> (power - 1) & 1;
    (EXACT_UNITS_MAX + (power - 6) * 2 + half) as usize
}

/// The first class in which every span has at least so many units.
pub(crate) fn class_fitting(units: u32) -> usize {
    let class = class_of(units);
    let exact = units <= EXACT_UNITS_MAX || units.trailing_zeros() + 1 >= units.ilog2();
    if exact { class } else { class + 1 }
}

impl Spans {
    /// One bit for each class that has a span.
    pub(crate) fn mask(&self) -> u128 {
        self.mask
    }

    /// All free spans: offset and length.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        (0..self.classes.len()).flat_map(|class| self.of_class(class))
    }

    /// The free spans of one class: offset and length.
    pub(crate) fn of_class(&self, class: usize) -> impl Iterator<Item = (u64, u32)> {
        let starts = self.classes.get(class).map(Vec::as_slice).unwrap_or_default();
        starts.iter().map(|&at| (u64::from(at), self.tags[at as usize].forward))
    }

    /// The span of a class that came last.
    pub(crate) fn newest(&self, class: usize) -> Option<u64> {
        self.classes.get(class)?.last().map(|&at| u64::from(at))
    }

    /// The length of the free span that ends before unit `at`.
    pub(crate) fn ending_at(&self, at: u64) -> Option<u32> {
        let last = usize::try_from(at).ok()?.checked_sub(1)?;
        self.tags.get(last).map(|tag| tag.backward).filter(|&units| units > 0)
    }

    /// Makes a span free and merges it with the free spans on both sides.
    pub(crate) fn release(&mut self, at: u64, units: u32) {
        let mut at = u32::try_from(at).expect("a region is short");
        let mut units = units;
        let end = (at + units) as usize;
        if self.tags.len() < end {
            self.tags.resize(end, Tag::default());
        }
        assert_eq!(self.tags[at as usize].forward, 0, "unit {at} of a region is freed twice");
        if let Some(before) = self.ending_at(u64::from(at)) {
            at -= before;
            units += before;
            self.unlink(at);
        }
        let after = self.tags.get(end).map_or(0, |tag| tag.forward);
        if after > 0 {
            self.unlink(end as u32);
            units += after;
        }
        self.link(at, units);
    }

    /// Takes the first `units` of the free span at `at`.
    pub(crate) fn take(&mut self, at: u64, units: u32) {
        let at = u32::try_from(at).expect("a region is short");
        let rest = self.tags[at as usize].forward - units;
        self.unlink(at);
        if rest > 0 {
            self.link(at + units, rest);
        }
    }

    fn link(&mut self, at: u32, units: u32) {
        let class = class_of(units);
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Vec::new);
        }
        let list = &mut self.classes[class];
        let tag = &mut self.tags[at as usize];
        tag.forward = units;
        tag.place = u32::try_from(list.len()).expect("a region is short");
        list.push(at);
        self.tags[(at + units - 1) as usize].backward = units;
        self.mask |= 1 << class;
    }

    fn unlink(&mut self, at: u32) {
        let Tag { forward: units, place, .. } = self.tags[at as usize];
        self.tags[at as usize].forward = 0;
        self.tags[(at + units - 1) as usize].backward = 0;
        let class = class_of(units);
        let list = &mut self.classes[class];
        list.swap_remove(place as usize);
        if let Some(&moved) = list.get(place as usize) {
            self.tags[moved as usize].place = place;
        }
        if list.is_empty() {
            self.mask &= !(1 << class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_and_fit() {
        let max = UNITS_MAX;
        for units in 1..max {
            assert!(class_of(units) <= class_of(units + 1));
            assert!(class_of(units + 1) < CLASS_COUNT);
            let fitting = class_fitting(units);
            assert!(fitting == class_of(units) || fitting == class_of(units) + 1);
            if units > 1 {
                assert!(class_of(units - 1) < fitting, "a shorter span than {units} would fit");
            }
        }
        assert_eq!(class_fitting(96), class_of(96));
        assert_eq!(class_fitting(97), class_of(96) + 1);
        assert_eq!(class_fitting(128), class_of(128));
    }
}
