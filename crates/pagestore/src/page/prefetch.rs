//! Which bytes of a page are wanted soon, so that several of them come at once.

use flotilla_vfs::prefetch::line_at;
pub(crate) use flotilla_vfs::prefetch::{LINE_BYTES, bytes as whole, bytes_at};

/// Wants what a search in a page looks at first: the header, the first slots, and the prefix.
#[inline]
pub(crate) fn search(page: &[u8]) {
    for at in [0, LINE_BYTES, 2 * LINE_BYTES, page.len() - 1] {
        line_at(page.as_ptr().wrapping_add(at));
    }
}

/// Lines that the slots of a branch of one unit mostly take, behind those that [`search`] wants.
const BRANCH_LINES: std::ops::Range<usize> = 3..14;

/// Wants what a search in a branch looks at besides: all slots, since there are many, and which of them
/// it looks at is not known before it has seen others.
#[inline]
pub(crate) fn search_in_branch(page: &[u8]) {
    for line in BRANCH_LINES {
        line_at(page.as_ptr().wrapping_add(line * LINE_BYTES));
    }
}
