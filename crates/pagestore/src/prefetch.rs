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
