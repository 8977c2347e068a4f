//! How far a defragmentation has come.

/// Where the moving of pages goes on.
#[derive(Clone, Debug)]
pub(crate) struct DefragCursor {
    pub(crate) part: DefragPart,
    /// The key to go on from.
    pub(crate) key: Vec<u8>,
}

/// Whose pages are being moved.
#[derive(Clone, Debug)]
pub(crate) enum DefragPart {
    /// Those of the first tree whose name is not less than this.
    Trees(String),
    /// Those of the list of what was cut off.
    DeferredFree,
    /// Those of the catalogue.
    Catalogue,
}

/// One way through all trees.
pub(crate) struct DefragPass {
    /// Units from here on are to be emptied.
    pub(crate) limit: u64,
    pub(crate) at: DefragCursor,
    /// Bytes that it has moved so far.
    pub(crate) moved_bytes: u64,
    /// Which one it is, from 1.
    pub(crate) number: u32,
}

impl DefragPass {
    pub(crate) fn new(limit: u64, number: u32) -> DefragPass {
        let at = DefragCursor { part: DefragPart::Trees(String::new()), key: Vec::new() };
        DefragPass { limit, at, moved_bytes: 0, number }
    }
}
