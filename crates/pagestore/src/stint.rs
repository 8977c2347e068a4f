//! Long work that lets others have the processor now and then.

use crate::sync::thread;

/// Pages that are written, or things of like cost, between two offers: some tenths of a millisecond.
const PAGES: u32 = 64;

/// Counts pages, and offers the processor after each few.
///
/// A writer waits for moments only, and mostly without sleeping. If it shares a processor with a
/// thread that works through thousands of pages, it has it back when the system's clock ticks, which
/// is up to four milliseconds later; and again, if what it waits for has not come until then.
#[derive(Debug, Default)]
pub(crate) struct Stint {
    pages: u32,
}

impl Stint {
    /// Counts one page.
    pub(crate) fn page(&mut self) {
        self.pages += 1;
        if self.pages >= PAGES {
            self.pages = 0;
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stint_ends_with_its_pages_and_the_next_is_whole() {
        let mut stint = Stint::default();
        (1..PAGES).for_each(|_| stint.page());
        assert_eq!(stint.pages, PAGES - 1);
        stint.page();
        assert_eq!(stint.pages, 0);
    }
}
