//! How far a defragmentation has come.

/// Where the moving of pages goes on.
#[derive(Clone, Debug)]
pub(crate) struct Moving {
    pub(crate) part: Part,
    /// The key to go on from.
    pub(crate) key: Vec<u8>,
}

/// Whose pages are being moved.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// Those of the first tree whose name is not less than this.
    Trees(String),
    /// Those of the list of what was cut off.
    Trash,
    /// Those of the catalogue.
    Catalogue,
}

/// One way through all trees.
pub(crate) struct Pass {
    /// Units from here on are to be emptied.
    pub(crate) line: u64,
    pub(crate) at: Moving,
    /// Bytes that it has moved so far.
    pub(crate) moved_bytes: u64,
    /// Which one it is, from 1.
    pub(crate) number: u32,
}

impl Pass {
    pub(crate) fn new(line: u64, number: u32) -> Pass {
        let at = Moving { part: Part::Trees(String::new()), key: Vec::new() };
        Pass { line, at, moved_bytes: 0, number }
    }
}
