//! A file with so many free pages, and what is done to it: the same for both freelists.

use flotilla_pagestore::{Freelist, Span};

use crate::array::Array;

/// Operations of both free lists.
pub(crate) trait Pages {
    fn allocate(&mut self, units: u32) -> u64;
    fn release(&mut self, start: u64, units: u32);
}

impl Pages for Freelist {
    fn allocate(&mut self, units: u32) -> u64 {
        Freelist::allocate(self, units).expect("the file is far from its limit").start
    }

    fn release(&mut self, start: u64, units: u32) {
        Freelist::release(self, Span { start, units });
    }
}

impl Pages for Array {
    fn allocate(&mut self, units: u32) -> u64 {
        Array::allocate(self, units)
    }

    fn release(&mut self, start: u64, units: u32) {
        Array::release(self, start, units);
    }
}

/// How the free pages lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Runs of 1 to 8 free pages between runs of 1 to 8 used ones.
    Runs,
    /// Each second page.
    Scattered,
}

/// A file: its used spans, its free spans, its end.
pub(crate) struct File {
    used: Vec<(u64, u32)>,
    free: Vec<(u64, u32)>,
    list: Freelist,
    rng: fastrand::Rng,
}

impl File {
    /// A file with about `free` free pages.
    pub(crate) fn new(layout: Layout, free: u64) -> File {
        let mut rng = fastrand::Rng::with_seed(free);
        let mut list = Freelist::new();
        let (mut used, mut holes) = (Vec::new(), Vec::new());
        let mut made = 0;
        while made < free {
            let mut length = || if layout == Layout::Runs { rng.u32(1..=8) } else { 1 };
            let (hole, kept) = (length(), length());
            for (units, kind) in [(hole, &mut holes), (kept, &mut used)] {
                kind.push((Pages::allocate(&mut list, units), units));
            }
            made += u64::from(hole);
        }
        for &(start, units) in &holes {
            list.release(Span { start, units });
        }
        rng.shuffle(&mut used);
        File { used, free: holes, list, rng }
    }

    /// The freelist of the page store for this file, and what else is needed to use it.
    pub(crate) fn segregated(self) -> Load<Freelist> {
        Load { pages: self.list, used: self.used, next: 0, held: Vec::new(), rng: self.rng }
    }

    /// The baseline for this file.
    pub(crate) fn array(self) -> Load<Array> {
        let mut pages: Vec<u64> =
            self.free.iter().flat_map(|&(start, units)| start..start + u64::from(units)).collect();
        pages.sort_unstable();
        let end = self.list.end();
        let pages = Array::new(pages, end);
        Load { pages, used: self.used, next: 0, held: Vec::new(), rng: self.rng }
    }
}

/// A freelist, and the spans that are in use beside it.
pub(crate) struct Load<P> {
    pages: P,
    /// In a random order, so that going along them goes anywhere in the file.
    used: Vec<(u64, u32)>,
    next: usize,
    held: Vec<(u64, u32)>,
    rng: fastrand::Rng,
}

impl<P: Pages> Load<P> {
    /// Allocates 1 to 8 pages and releases what was allocated 64 calls ago.
    pub(crate) fn recent(&mut self) {
        let units = self.rng.u32(1..=8);
        let span = (self.pages.allocate(units), units);
        if self.held.len() < 64 {
            self.held.push(span);
            return;
        }
        let slot = self.rng.usize(..64);
        let (start, units) = std::mem::replace(&mut self.held[slot], span);
        self.pages.release(start, units);
    }

    /// Releases a span anywhere in the file and allocates as many pages, as a copy on write does.
    pub(crate) fn anywhere(&mut self) {
        self.next = (self.next + 1) % self.used.len();
        let (start, units) = self.used[self.next];
        self.used[self.next] = (self.pages.allocate(units), units);
        self.pages.release(start, units);
    }
}
