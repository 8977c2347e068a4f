//! The baseline: free pages in one sorted array, searched from its beginning.
//!
//! The free list that many page stores began with. To allocate is to look for enough neighbours one
//! after the other; to take them out or put them back moves all that lie behind.

/// The numbers of all free pages, rising, and where the file ends.
pub(crate) struct Array {
    pages: Vec<u64>,
    end: u64,
}

impl Array {
    pub(crate) fn new(pages: Vec<u64>, end: u64) -> Array {
        Array { pages, end }
    }

    /// The first of `count` neighbours; from the end of the file if no such are free.
    pub(crate) fn allocate(&mut self, count: u32) -> u64 {
        let (mut first, count) = (0, count as usize);
        for i in 0..self.pages.len() {
            if i > first && self.pages[i] != self.pages[i - 1] + 1 {
                first = i;
            }
            if i + 1 - first == count {
                let start = self.pages[first];
                self.pages.drain(first..=i);
                return start;
            }
        }
        let start = self.end;
        self.end += count as u64;
        start
    }

    pub(crate) fn release(&mut self, start: u64, count: u32) {
        let at = self.pages.partition_point(|&page| page < start);
        self.pages.splice(at..at, start..start + u64::from(count));
    }
}
