//! The progress of a scrub: the place to which a pass over the file has come.

use crate::page::PageRef;

/// The progress of a pass over the whole store. It holds nothing of the store, and can be kept as
/// long as one likes between two steps.
///
/// Pages that are written while a pass is under way, or that come from one tree to another, may be
/// left out by it.
#[derive(Clone, Debug, Default)]
pub struct Scrub {
    pub(crate) part: ScrubPart,
    /// The entry of the catalogue, or of the list of deferred frees, to which the pass has come.
    pub(crate) entry: Option<ScrubEntry>,
    /// The first key of a tree that it has not come to.
    pub(crate) key: Vec<u8>,
    pub(crate) bytes: u64,
}

/// The parts of a pass, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum ScrubPart {
    #[default]
    Catalogue,
    Trees,
    /// The tree that lists the deferred frees.
    DeferredFreeList,
    DeferredFree,
    /// The bitmaps, from this group's on.
    Bitmaps(usize),
    Directory,
    MetaPages,
    /// The redo area, from this position on.
    Redo(u64),
    Nothing,
}

/// An entry that names a subtree.
#[derive(Clone, Debug)]
pub(crate) struct ScrubEntry {
    pub(crate) key: Vec<u8>,
    /// Its subtree, until it is read.
    pub(crate) root: Option<PageRef>,
}

impl Scrub {
    /// A pass that begins with the first page.
    #[must_use]
    pub fn new() -> Scrub {
        Scrub::default()
    }

    /// Whether it has come to the end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.part, ScrubPart::Nothing)
    }

    /// Bytes that it has read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
