//! The cursor of a defragmentation, kept between its steps.

/// Where the relocation of pages goes on.
#[derive(Clone, Debug)]
pub(crate) struct DefragCursor {
    pub(crate) part: DefragPart,
    /// The key to go on from.
    pub(crate) key: Vec<u8>,
}

/// The trees whose pages are being relocated.
#[derive(Clone, Debug)]
pub(crate) enum DefragPart {
    /// Those of the first tree whose name is not less than this.
    Trees(String),
    /// Those of the list of deferred frees.
    DeferredFree,
    /// Those of the catalogue.
    Catalogue,
}

/// One pass through all trees.
pub(crate) struct DefragPass {
    /// Units from here on are to be emptied.
    pub(crate) limit: u64,
    pub(crate) at: DefragCursor,
    /// Bytes that it has moved so far.
    pub(crate) moved_bytes: u64,
    /// The number of the pass, from 1.
    pub(crate) number: u32,
}

impl DefragPass {
    pub(crate) fn new(limit: u64, number: u32) -> DefragPass {
        assert!(number > 0, "passes count from 1");
        let at = DefragCursor { part: DefragPart::Trees(String::new()), key: Vec::new() };
        DefragPass { limit, at, moved_bytes: 0, number }
    }
}
