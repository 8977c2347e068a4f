//! What is wrong with a file, named as well as it can be.

use crate::error::Error;

/// So many problems are named; of the others there is a count.
const PROBLEMS_MAX: usize = 1000;

/// What a page belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilePart {
    /// The meta pages.
    Meta,
    /// Bitmaps and the directory.
    FreeSpace,
    /// The redo area.
    Redo,
    /// The tree of trees.
    Catalogue,
    /// The tree of this name.
    Tree(String),
    /// What was cut off and waits to be given back.
    DeferredFree,
}

impl std::fmt::Display for FilePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FilePart::Meta => "meta page",
            FilePart::FreeSpace => "free space",
            FilePart::Redo => "redo area",
            FilePart::Catalogue => "catalogue",
            FilePart::Tree(name) => return write!(f, "tree {name:?}"),
            FilePart::DeferredFree => "trash",
        })
    }
}

/// Keys that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostKeys {
    /// They are not less than this, if there is a bound.
    pub start: Option<Vec<u8>>,
    /// They are less than this, if there is a bound.
    pub end: Option<Vec<u8>>,
    /// How many there are.
    pub count: u64,
}

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// The page, or the first page of a long value or of what else is longer.
    pub page: u64,
    /// What it belongs to.
    pub part: FilePart,
    /// What is wrong.
    pub what: &'static str,
    /// What cannot be read because of it, if that can be told. Keys of the catalogue are names of
    /// trees.
    pub lost: Option<LostKeys>,
}

/// Problems, up to a limit.
#[derive(Debug, Default)]
pub(super) struct FileProblems {
    pub(super) named: Vec<FileProblem>,
    pub(super) left_out: u64,
}

impl FileProblems {
    pub(super) fn add(&mut self, problem: FileProblem) {
        if self.named.len() < PROBLEMS_MAX {
            self.named.push(problem);
        } else {
            self.left_out += 1;
        }
    }
}

/// What an error of reading says of a page.
pub(super) fn reason(error: &Error) -> &'static str {
    match error {
        Error::Corrupt { what, .. } => what,
        _ => "the system could not read it",
    }
}
