//! Prefetch of pages into the CPU's cache, so that several misses overlap.

use flotilla_base::prefetch::line_at;
pub(crate) use flotilla_base::prefetch::{LINE_BYTES, bytes as whole, bytes_at};

/// Prefetches the lines at which a search in a page looks first: the header, the first slots, and
/// the prefix.
#[inline]
pub(crate) fn search(page: &[u8]) {
    for at in [0, LINE_BYTES, 2 * LINE_BYTES, page.len() - 1] {
        line_at(page.as_ptr().wrapping_add(at));
    }
}

/// Lines that the slots of a branch of one unit mostly take, behind those that [`search`]
/// prefetches.
const BRANCH_LINES: std::ops::Range<usize> = 3..14;

/// Prefetches the lines at which a search in a branch looks besides: all slots, since there are
/// many, and the next one to be compared depends on the comparison before.
#[inline]
pub(crate) fn search_in_branch(page: &[u8]) {
    for line in BRANCH_LINES {
        line_at(page.as_ptr().wrapping_add(line * LINE_BYTES));
    }
}
