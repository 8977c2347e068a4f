//! Where a tree's pages come from: a published snapshot, or the open transaction.

use crate::error::Result;
use crate::leaf::Extent;
use crate::page::PageRef;
use crate::view::{PageBytes, Value};

/// Where a tree's pages come from. What it gives out stays as long as it is borrowed.
pub(crate) trait Source: Sync {
    /// The page at `place`.
    fn page(&self, place: PageRef) -> Result<PageBytes<'_>>;

    /// Says that the page at `place` is wanted soon. A hint: nothing is read.
    fn prefetch(&self, _place: PageRef) {}

    /// The long value at `extent`.
    fn extent(&self, extent: &Extent) -> Result<Value<'_>>;
}
