//! Dump of a file: entries of its trees, or one page of it.

use std::ops::ControlFlow;

use super::file::PageFile;
use super::problem::{FileProblem, reason};
use super::walk::{self, FileWalk, Visit};
use crate::error::{Error, Result};
use crate::page::keys::joined;
use crate::page::leaf::{self, LeafValue, ValueExtent};
use crate::page::slotted::SlottedPage;
use crate::page::{self, PAGE_UNITS_MAX, PageKind, PageRef, Span, UNIT_BYTES, branch};

const UNITS_MAX: u32 = PAGE_UNITS_MAX as u32;

/// An entry of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpEntry<'a> {
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

/// The contents of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageDump {
    /// The unit it lies in.
    pub page: u64,
    /// Its length in units, as the header says.
    pub units: u32,
    /// `leaf`, `branch` or `bitmap`.
    pub kind: &'static str,
    /// 0 in a leaf, one more than its children's in a branch.
    pub level: u8,
    /// The transaction that wrote it.
    pub created_txid: u64,
    /// Why it cannot be trusted; then no cells are shown.
    pub damage: Option<&'static str>,
    /// The common prefix of its keys.
    pub prefix: Vec<u8>,
    /// Its cells, in order.
    pub cells: Vec<CellDump>,
}

/// A cell of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellDump {
    /// The key; in a branch the separator before the child, empty for the first.
    pub key: Vec<u8>,
    /// The value or child.
    pub content: CellContent,
}

/// The contents of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellContent {
    /// A value.
    Value(Vec<u8>),
    /// A long value.
    Long {
        /// Its first unit.
        page: u64,
        /// Its length in bytes.
        len: u64,
        /// The transaction that wrote it.
        created_txid: u64,
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
        take: &mut dyn FnMut(DumpEntry<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<FileProblem>> {
        let look = &mut |_| ();
        let mut walk = FileWalk::new(self, reads_values, look);
        let trees = walk.catalogue(&mut |_| ControlFlow::Continue(()));
        let is_wanted = |name: &str| tree.is_none_or(|tree| tree == name);
        if let Some(name) = tree.filter(|_| !trees.iter().any(|(name, _)| is_wanted(name))) {
            let what = format!("there is no tree {name:?}");
            return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, what)));
        }
        for (name, entry) in trees.iter().filter(|(name, _)| is_wanted(name)) {
            let mut each = |what: Visit<'_>| match what {
                Visit::Entry(key, content) => {
                    take(DumpEntry { tree: name, key, value: value(&content) })
                }
                _ => ControlFlow::Continue(()),
            };
            if walk.tree(name, *entry, &mut each).is_break() {
                break;
            }
        }
        Ok(walk.problems.named)
    }

    /// The page in unit `page`, whether or not a tree names it.
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
        self.page_reader.file().read_exact_at(&mut bytes, page * UNIT_BYTES as u64)?;
        let kinds =
            [(PageKind::Leaf, "leaf"), (PageKind::Branch, "branch"), (PageKind::Bitmap, "bitmap")];
        let kind = kinds.into_iter().find(|(kind, _)| page::is_kind(&bytes, *kind));
        let units = page::units(&bytes);
        let (Some((kind, name)), 1..=UNITS_MAX, 2..) = (kind, units, page) else {
            return corrupt("what lies there is no page with a header");
        };
        let created_txid = page::created_txid(&bytes);
        let page_ref = PageRef::new(Span { start: page, units }, created_txid);
        bytes.resize(units as usize * UNIT_BYTES, 0);
        let whole = self
            .page_reader
            .file()
            .read_exact_at(&mut bytes, page * UNIT_BYTES as u64)
            .map_err(Error::from)
            .and_then(|()| page::verify(&bytes, page_ref, u64::MAX))
            .and_then(|()| {
                if kind == PageKind::Bitmap { Ok(()) } else { SlottedPage(&bytes).validate(page) }
            });
        let mut dump = PageDump {
            page,
            units,
            kind: name,
            level: page::level(&bytes),
            created_txid,
            damage: whole.err().map(|error| reason(&error)),
            prefix: Vec::new(),
            cells: Vec::new(),
        };
        if dump.damage.is_none() && kind != PageKind::Bitmap {
            dump.prefix = SlottedPage(&bytes).prefix().to_vec();
            dump.cells = cells(SlottedPage(&bytes));
        }
        Ok(dump)
    }
}

fn value<'a>(content: &'a walk::ValueContent<'_>) -> EntryValue<'a> {
    match *content {
        walk::ValueContent::Inline(bytes) => EntryValue::Bytes(bytes),
        walk::ValueContent::Long(ref bytes) => EntryValue::Bytes(bytes),
        walk::ValueContent::Unread(ValueExtent { start: page, len, .. }) => {
            EntryValue::Long { page, len: len.into() }
        }
        walk::ValueContent::Lost(ValueExtent { start: page, len, .. }) => {
            EntryValue::Lost { page, len: len.into() }
        }
    }
}

fn cells(node: SlottedPage<'_>) -> Vec<CellDump> {
    if !node.is_leaf() {
        let children = 0..branch::child_count(node);
        let child = children.map(|i| {
            let child = branch::sized_child(node, i);
            let key = i.checked_sub(1).map(|i| joined(node.key(i))).unwrap_or_default();
            let content = CellContent::Child {
                page: child.page_ref.id(),
                units: child.page_ref.units(),
                keys: child.size.keys,
                total_units: child.size.units,
            };
            CellDump { key, content }
        });
        return child.collect();
    }
    let entries = (0..node.count()).map(|i| {
        let content = match leaf::value(node, i) {
            LeafValue::Inline(bytes) => CellContent::Value(bytes.to_vec()),
            LeafValue::Extent(extent) => CellContent::Long {
                page: extent.start,
                len: u64::from(extent.len),
                created_txid: extent.created_txid,
            },
        };
        CellDump { key: joined(node.key(i)), content }
    });
    entries.collect()
}
