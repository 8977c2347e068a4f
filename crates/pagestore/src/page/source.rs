//! The source of a tree's pages: a published snapshot, or the open transaction.

use crate::error::Result;
use crate::page::PageRef;
use crate::page::leaf::ValueExtent;
use crate::page::view::{PageBytes, ValueRef};

/// The part of a page to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefetchHint {
    /// To look up one key.
    Search,
    /// All that is in it.
    Whole,
}

/// The source of a tree's pages. Its pages stay as long as they are
/// borrowed.
pub(crate) trait PageSource: Sync {
    /// The page at `page_ref`.
    fn page(&self, page_ref: PageRef) -> Result<PageBytes<'_>>;

    /// Prefetches the page at `page_ref`. A hint: nothing is read.
    fn prefetch(&self, _place: PageRef, _wanted: PrefetchHint) {}

    /// Asks the disk for all of `pages` at once, unless they seem to be in memory. To find out, it
    /// looks at the last of them and at so many in all as `probes` says. Returns whether it has
    /// asked. May change the order of `pages`, and drop some.
    fn read_ahead(&self, _pages: &mut Vec<PageRef>, _probes: usize) -> bool {
        false
    }

    /// The long value at `extent`.
    fn extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>>;
}
