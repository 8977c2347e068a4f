//! Where a tree's pages come from: a published snapshot, or the open transaction.

use crate::error::Result;
use crate::page::PageRef;
use crate::page::leaf::ValueExtent;
use crate::page::view::{PageBytes, ValueRef};

/// What is wanted of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefetchHint {
    /// To look up one key.
    Search,
    /// All that is in it.
    Whole,
}

/// Where a tree's pages come from. What it gives out stays as long as it is borrowed.
pub(crate) trait PageSource: Sync {
    /// The page at `page_ref`.
    fn page(&self, page_ref: PageRef) -> Result<PageBytes<'_>>;

    /// Says that the page at `page_ref` is wanted soon. A hint: nothing is read.
    fn prefetch(&self, _place: PageRef, _wanted: PrefetchHint) {}

    /// The long value at `extent`.
    fn extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>>;
}
