//! What a file says: entries of its trees, or one page of it.

use std::ops::ControlFlow;

use super::file::PageFile;
use super::problem::{Problem, reason};
use super::walk::{self, Visit, Walk};
use crate::branch;
use crate::error::{Error, Result};
use crate::keys::joined;
use crate::leaf::{self, Extent, Value};
use crate::node::Node;
use crate::page::{self, Kind, PAGE_UNITS_MAX, PageRef, Span, UNIT_BYTES};

const UNITS_MAX: u32 = PAGE_UNITS_MAX as u32;

/// An entry of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dumped<'a> {
    /// The tree.
    pub tree: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: EntryValue<'a>,
}

/// The value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryValue<'a> {
    /// The value itself.
    Bytes(&'a [u8]),
    /// A long value that was not asked for.
    Long {
        /// Its first unit.
        page: u64,
        /// Its length.
        len: u64,
    },
    /// A long value that cannot be read.
    Lost {
        /// Its first unit.
        page: u64,
        /// Its length.
        len: u64,
    },
}

/// What a page says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageDump {
    /// The unit it lies in.
    pub page: u64,
    /// How long it says that it is.
    pub units: u32,
    /// `leaf`, `branch` or `bitmap`.
    pub kind: &'static str,
    /// 0 in a leaf, one more than its children's in a branch.
    pub level: u8,
    /// The transaction that wrote it.
    pub birth: u64,
    /// Why it cannot be trusted; then no cells are shown.
    pub damage: Option<&'static str>,
    /// What all its keys begin with.
    pub prefix: Vec<u8>,
    /// What it holds, in order.
    pub cells: Vec<Cell>,
}

/// A cell of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The key; in a branch the separator before the child, empty for the first.
    pub key: Vec<u8>,
    /// What it has.
    pub content: Content,
}

/// What a cell has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A value.
    Value(Vec<u8>),
    /// A long value.
    Long {
        /// Its first unit.
        page: u64,
        /// Its length in bytes.
        len: u64,
        /// The transaction that wrote it.
        birth: u64,
    },
    /// A child.
    Child {
        /// The page.
        page: u64,
        /// Its length in units.
        units: u32,
        /// Keys below it.
        keys: u64,
        /// Units of all below it, itself included.
        total_units: u64,
    },
}

impl PageFile {
    /// Hands out the entries of one tree, or of all, by name and key, until `take` breaks. Long
    /// values are read if `reads_values`. Returns what could not be read.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the kind `NotFound` if there is no such tree.
    pub fn dump(
        &self,
        tree: Option<&str>,
        reads_values: bool,
        take: &mut dyn FnMut(Dumped<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<Problem>> {
        let look = &mut |_| ();
        let mut walk = Walk::new(self, reads_values, look);
        let trees = walk.catalogue(&mut |_| ControlFlow::Continue(()));
        let is_wanted = |name: &str| tree.is_none_or(|tree| tree == name);
        if let Some(name) = tree.filter(|_| !trees.iter().any(|(name, _)| is_wanted(name))) {
            let what = format!("there is no tree {name:?}");
            return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, what)));
        }
        for (name, entry) in trees.iter().filter(|(name, _)| is_wanted(name)) {
            let mut each = |what: Visit<'_>| match what {
                Visit::Entry(key, content) => {
                    take(Dumped { tree: name, key, value: value(&content) })
                }
                _ => ControlFlow::Continue(()),
            };
            if walk.tree(name, *entry, &mut each).is_break() {
                break;
            }
        }
        Ok(walk.problems.named)
    }

    /// What lies in unit `page`, read as a page, whether or not anybody names it.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if it lies beyond the end of the file, or if what lies there has no
    /// header of a page: a long value, a meta page, or nothing. [`Error::Io`].
    pub fn page(&self, page: u64) -> Result<PageDump> {
        let corrupt = |what| Err(Error::Corrupt { page, what });
        if page >= self.bytes / UNIT_BYTES as u64 {
            return corrupt("it lies beyond the end of the file");
        }
        let mut bytes = vec![0; UNIT_BYTES];
        self.pool.file().read_exact_at(&mut bytes, page * UNIT_BYTES as u64)?;
        let kinds = [(Kind::Leaf, "leaf"), (Kind::Branch, "branch"), (Kind::Bitmap, "bitmap")];
        let kind = kinds.into_iter().find(|(kind, _)| page::is_kind(&bytes, *kind));
        let units = page::units(&bytes);
        let (Some((kind, name)), 1..=UNITS_MAX, 2..) = (kind, units, page) else {
            return corrupt("what lies there is no page with a header");
        };
        let birth = page::birth(&bytes);
        let place = PageRef::new(Span { start: page, units }, birth);
        bytes.resize(units as usize * UNIT_BYTES, 0);
        let whole = self
            .pool
            .file()
            .read_exact_at(&mut bytes, page * UNIT_BYTES as u64)
            .map_err(Error::from)
            .and_then(|()| page::verify(&bytes, place, u64::MAX))
            .and_then(|()| if kind == Kind::Bitmap { Ok(()) } else { Node(&bytes).validate(page) });
        let mut dump = PageDump {
            page,
            units,
            kind: name,
            level: page::level(&bytes),
            birth,
            damage: whole.err().map(|error| reason(&error)),
            prefix: Vec::new(),
            cells: Vec::new(),
        };
        if dump.damage.is_none() && kind != Kind::Bitmap {
            dump.prefix = Node(&bytes).prefix().to_vec();
            dump.cells = cells(Node(&bytes));
        }
        Ok(dump)
    }
}

fn value<'a>(content: &'a walk::Content<'_>) -> EntryValue<'a> {
    let place = |extent: &Extent| (extent.start, u64::from(extent.len));
    match content {
        walk::Content::Inline(bytes) => EntryValue::Bytes(bytes),
        walk::Content::Long(bytes) => EntryValue::Bytes(bytes),
        walk::Content::Unread(extent) => {
            let (page, len) = place(extent);
            EntryValue::Long { page, len }
        }
        walk::Content::Lost(extent) => {
            let (page, len) = place(extent);
            EntryValue::Lost { page, len }
        }
    }
}

fn cells(node: Node<'_>) -> Vec<Cell> {
    if !node.is_leaf() {
        let children = 0..branch::child_count(node);
        let child = children.map(|i| {
            let child = branch::sized_child(node, i);
            let key = i.checked_sub(1).map(|i| joined(node.key(i))).unwrap_or_default();
            let content = Content::Child {
                page: child.place.id(),
                units: child.place.units(),
                keys: child.size.keys,
                total_units: child.size.units,
            };
            Cell { key, content }
        });
        return child.collect();
    }
    let entries = (0..node.count()).map(|i| {
        let content = match leaf::value(node, i) {
            Value::Inline(bytes) => Content::Value(bytes.to_vec()),
            Value::Extent(extent) => Content::Long {
                page: extent.start,
                len: u64::from(extent.len),
                birth: extent.birth,
            },
        };
        Cell { key: joined(node.key(i)), content }
    });
    entries.collect()
}
