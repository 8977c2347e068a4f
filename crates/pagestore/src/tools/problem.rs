//! Problems of a file: the page, its owner, and the keys that are lost.

use crate::error::Error;
use crate::tree::LostKeys;

/// Problems that are named; the others are counted.
const PROBLEMS_MAX: usize = 1000;

/// The part of a file to which a page belongs.
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
    /// Subtrees whose free is deferred.
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

/// A problem: bytes that are not as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// The page, or the first page of a long value or of what else is longer.
    pub page: u64,
    /// The part to which it belongs.
    pub part: FilePart,
    /// The fault.
    pub what: &'static str,
    /// The keys that cannot be read because of it, if that can be told. Keys of the catalogue are
    /// names of trees.
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

/// The fault that a read error means.
pub(super) fn reason(error: &Error) -> &'static str {
    match error {
        Error::Corrupt { what, .. } => what,
        _ => "the system could not read it",
    }
}
