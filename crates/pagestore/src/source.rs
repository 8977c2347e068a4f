//! Where a tree's pages come from: a published snapshot, or the open transaction.

use crate::error::Result;
use crate::leaf::Extent;
use crate::page::PageRef;
use crate::view::{PageBytes, Value};

/// What is wanted of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// To look up one key.
    Search,
    /// All that is in it.
    Whole,
}

/// Where a tree's pages come from. What it gives out stays as long as it is borrowed.
pub(crate) trait Source: Sync {
    /// The page at `place`.
    fn page(&self, place: PageRef) -> Result<PageBytes<'_>>;

    /// Says that the page at `place` is wanted soon. A hint: nothing is read.
    fn prefetch(&self, _place: PageRef, _wanted: Wanted) {}

    /// The long value at `extent`.
    fn extent(&self, extent: &Extent) -> Result<Value<'_>>;
}
