//! Where a tree's pages come from: a published snapshot, or the open transaction.

use bytes::Bytes;

use crate::error::Result;
use crate::leaf::Extent;
use crate::page::{Frame, PageRef};

/// Where a tree's pages come from.
pub(crate) trait Source {
    /// The page at `place`.
    fn page(&self, place: PageRef) -> Result<Frame>;

    /// The long value at `extent`.
    fn extent(&self, extent: &Extent) -> Result<Bytes>;
}

impl<S: Source> Source for &S {
    fn page(&self, place: PageRef) -> Result<Frame> {
        S::page(self, place)
    }

    fn extent(&self, extent: &Extent) -> Result<Bytes> {
        S::extent(self, extent)
    }
}
