//! A walk over all that a checkpoint reaches, which goes on behind what is damaged.
//!
//! Each page is checked by itself and against its parent: checksum, place, creating transaction,
//! level, order and bounds of keys, sizes. A page that fails is a problem, and the walk leaves out
//! all below it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::file::PageFile;
use super::problem::{FilePart, FileProblem, FileProblems, reason};
use crate::check::{self, Bounds};
use crate::error::{Error, Result};
use crate::page::branch::{self, Child};
use crate::page::catalogue::TreeEntry;
use crate::page::keys::joined;
use crate::page::layout::{HEAD_UNITS, META_UNITS, group_of, group_start};
use crate::page::leaf::{self, LeafValue, ValueExtent};
use crate::page::slotted::{CHILD_BYTES, SlottedPage};
use crate::page::subtree_size::SubtreeSize;
use crate::page::unit_set::UnitSet;
use crate::page::{Frame, PageRef, PageSize, Span, UNIT_BYTES};
use crate::tree::LostKeys;

/// Progress of a long scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes in all, as far as that is known.
    pub bytes: u64,
}

/// A page, value or entry that a walk visits.
pub(super) enum Visit<'v> {
    /// A page.
    Page(Span),
    /// The place of a long value.
    Extent(Span),
    /// An entry of a tree that is not the catalogue, and not of deferred frees.
    Entry(&'v [u8], ValueContent<'v>),
}

/// The value of an entry.
pub(super) enum ValueContent<'v> {
    Inline(&'v [u8]),
    /// A long value that was not asked for.
    Unread(ValueExtent),
    Long(Bytes),
    /// A long value that cannot be read.
    Lost(ValueExtent),
}

/// Called for each visit; may end the walk.
pub(super) type Visitor<'a> = dyn FnMut(Visit<'_>) -> ControlFlow<()> + 'a;

/// A walk over all that a checkpoint reaches.
pub(super) struct FileWalk<'a> {
    file: &'a PageFile,
    /// Whether long values are read.
    reads_values: bool,
    part: FilePart,
    /// No page of the tree that is walked is shorter.
    page_size: PageSize,
    /// Units that were reached.
    pub(super) seen: UnitSet,
    pub(super) problems: FileProblems,
    /// Whether something could not be read, so that what lies below it is not known.
    pub(super) is_cut: bool,
    progress: ScanProgress,
    look: &'a mut dyn FnMut(ScanProgress),
}

/// The trees of a file. A name that is no text is one here, see [`escaped`].
pub(super) type Trees = Vec<(String, TreeEntry)>;

impl<'a> FileWalk<'a> {
    pub(super) fn new(
        file: &'a PageFile,
        reads_values: bool,
        look: &'a mut dyn FnMut(ScanProgress),
    ) -> FileWalk<'a> {
        FileWalk {
            file,
            reads_values,
            part: FilePart::Catalogue,
            page_size: PageSize::UNIT,
            seen: UnitSet::default(),
            problems: FileProblems::default(),
            is_cut: false,
            progress: ScanProgress::default(),
            look,
        }
    }

    /// Walks the catalogue and returns the trees that it names.
    pub(super) fn catalogue(&mut self, visit: &mut Visitor<'_>) -> Trees {
        self.part = FilePart::Catalogue;
        let root = self.file.meta.catalogue;
        let mut found = Vec::new();
        let mut take = |what: Visit<'_>| match what {
            Visit::Entry(name, content) => {
                found.push((name.to_vec(), content.inline()));
                ControlFlow::Continue(())
            }
            other => visit(other),
        };
        let _ = self.root(root, None, &mut take);
        let taken: BTreeSet<String> =
            found.iter().filter_map(|(name, _)| String::from_utf8(name.clone()).ok()).collect();
        let mut trees = Vec::new();
        for (name, value) in found {
            let name = String::from_utf8(name).unwrap_or_else(|error| {
                self.add(root.id(), "name of a tree", None);
                escaped(error.as_bytes(), &taken)
            });
            let entry = value.ok_or(Error::Corrupt { page: root.id(), what: "" });
            match entry.and_then(|bytes| TreeEntry::decode(&bytes, root)) {
                Ok(entry) => trees.push((name, entry)),
                Err(_) => self.add(root.id(), "entry of the catalogue", None),
            }
        }
        let units = |trees: &Trees| trees.iter().map(|(_, tree)| tree.size.units).sum::<u64>();
        self.progress.bytes = units(&trees).saturating_mul(UNIT_BYTES as u64);
        trees
    }

    /// Walks one tree.
    pub(super) fn tree(
        &mut self,
        name: &str,
        entry: TreeEntry,
        visit: &mut Visitor<'_>,
    ) -> ControlFlow<()> {
        self.part = FilePart::Tree(name.to_owned());
        self.page_size = entry.page_size;
        let walked = self.root(entry.root, Some(entry.size), visit);
        self.page_size = PageSize::UNIT;
        walked
    }

    /// Walks the subtrees whose free is deferred.
    pub(super) fn deferred_free(&mut self, visit: &mut Visitor<'_>) {
        self.part = FilePart::DeferredFree;
        let deferred_free = self.file.meta.deferred_free;
        let mut children = Vec::new();
        let mut take = |what: Visit<'_>| match what {
            Visit::Entry(_, content) => {
                children.push(content.inline());
                ControlFlow::Continue(())
            }
            other => visit(other),
        };
        let _ = self.root(deferred_free.list.root, Some(deferred_free.list.size), &mut take);
        let page = deferred_free.list.root.id();
        let mut units = 0_u64;
        for bytes in children {
            let Some(bytes) = bytes.filter(|bytes| bytes.len() == CHILD_BYTES) else {
                self.add(page, "entry of the trash", None);
                continue;
            };
            let child = Child::decode(&bytes);
            units = units.saturating_add(child.size.units);
            let mut pages = |what: Visit<'_>| match what {
                Visit::Entry(..) => ControlFlow::Continue(()),
                other => visit(other),
            };
            let _ = self.root(child.page_ref, Some(child.size), &mut pages);
        }
        if units != deferred_free.units && !self.is_cut {
            self.add(page, "units in the trash", None);
        }
    }

    /// Notes a span that is no page of a tree.
    pub(super) fn note_owned(&mut self, span: Span, part: FilePart) {
        self.part = part;
        if let Err(error) = self.see(span) {
            self.add(span.start, reason(&error), None);
        }
    }

    /// Notes a problem that was found elsewhere.
    pub(super) fn note(&mut self, error: &Error, page: u64, part: FilePart) {
        let page = match error {
            Error::Corrupt { page, .. } => *page,
            _ => page,
        };
        self.problems.add(FileProblem { page, part, what: reason(error), lost: None });
    }

    fn add(&mut self, page: u64, what: &'static str, lost: Option<LostKeys>) {
        self.problems.add(FileProblem { page, part: self.part.clone(), what, lost });
    }

    fn root(
        &mut self,
        page_ref: PageRef,
        size: Option<SubtreeSize>,
        visit: &mut Visitor<'_>,
    ) -> ControlFlow<()> {
        let wanted = size.unwrap_or_default();
        let found = match page_ref.is_none() {
            true => SubtreeSize::default(),
            false => self.page(Child { page_ref, size: wanted }, None, (None, None), visit)?,
        };
        if size.is_some_and(|size| size != found) {
            self.add(page_ref.id(), "size of a tree", None);
        }
        ControlFlow::Continue(())
    }

    /// Walks a page and what is below it. Returns what it holds; if it cannot be read, what its
    /// parent says.
    fn page(
        &mut self,
        child: Child,
        level: Option<u8>,
        bounds: Bounds<'_>,
        visit: &mut Visitor<'_>,
    ) -> ControlFlow<(), SubtreeSize> {
        let page_ref = child.page_ref;
        let frame = match self.read(page_ref, level, bounds) {
            Ok(frame) => frame,
            Err(error) => {
                let [start, end] = [bounds.0, bounds.1].map(|key| key.map(<[u8]>::to_vec));
                let lost = LostKeys { start, end, count: child.size.keys };
                self.add(page_ref.id(), reason(&error), Some(lost));
                self.is_cut = true;
                return ControlFlow::Continue(child.size);
            }
        };
        visit(Visit::Page(page_ref.span()))?;
        if let Err(error) = self.page_size.verify(page_ref) {
            // It is whole nonetheless, and so is what lies below it.
            self.add(page_ref.id(), reason(&error), None);
        }
        let node = SlottedPage(&frame);
        if node.is_leaf() {
            self.entries(node, page_ref, visit)?;
            return ControlFlow::Continue(branch::size(node));
        }
        let keys: Vec<Vec<u8>> = (0..node.count()).map(|i| joined(node.key(i))).collect();
        for i in 0..branch::child_count(node) {
            let low = i.checked_sub(1).map(|i| &keys[i][..]).or(bounds.0);
            let high = keys.get(i).map(|key| &key[..]).or(bounds.1);
            let child = branch::sized_child(node, i);
            let size = self.page(child, Some(node.level() - 1), (low, high), visit)?;
            if size != child.size {
                self.add(child.page_ref.id(), "size of a subtree", None);
            }
        }
        ControlFlow::Continue(branch::size(node))
    }

    /// Reads a page and proves that it may stand where it does.
    fn read(&mut self, page_ref: PageRef, level: Option<u8>, bounds: Bounds<'_>) -> Result<Frame> {
        if page_ref.is_none() || page_ref.units() == 0 {
            return Err(Error::Corrupt { page: page_ref.id(), what: "reference" });
        }
        self.see(page_ref.span())?;
        let frame = self.file.page_reader.read_page(page_ref, self.file.meta.txid)?;
        let node = SlottedPage(&frame);
        check::verify_cells(node, page_ref.id(), level, bounds)?;
        Ok(frame)
    }

    fn entries(
        &mut self,
        node: SlottedPage<'_>,
        page_ref: PageRef,
        visit: &mut Visitor<'_>,
    ) -> ControlFlow<()> {
        for i in 0..node.count() {
            let key = joined(node.key(i));
            let content = match leaf::value(node, i) {
                LeafValue::Inline(bytes) => ValueContent::Inline(bytes),
                LeafValue::Extent(extent) => self.value(&key, extent, page_ref, visit)?,
            };
            visit(Visit::Entry(&key, content))?;
        }
        ControlFlow::Continue(())
    }

    fn value(
        &mut self,
        key: &[u8],
        extent: ValueExtent,
        leaf: PageRef,
        visit: &mut Visitor<'_>,
    ) -> ControlFlow<(), ValueContent<'static>> {
        let read = match extent.len {
            0 => Err(Error::Corrupt { page: leaf.id(), what: "a long value of no length" }),
            _ => self.see(extent.span()).and_then(|()| {
                let wanted = self.reads_values;
                wanted.then(|| self.file.page_reader.read_extent(&extent)).transpose()
            }),
        };
        if read.is_ok() {
            visit(Visit::Extent(extent.span()))?;
        }
        ControlFlow::Continue(match read {
            Ok(None) => ValueContent::Unread(extent),
            Ok(Some(bytes)) => ValueContent::Long(bytes),
            Err(error) => {
                let end = [key, &[0]].concat();
                let lost = LostKeys { start: Some(key.to_vec()), end: Some(end), count: 1 };
                self.add(extent.start, reason(&error), Some(lost));
                ValueContent::Lost(extent)
            }
        })
    }

    /// Notes a span, which must lie in the file, where a span may be allocated, and have no other
    /// owner.
    fn see(&mut self, span: Span) -> Result<()> {
        let end = self.file.meta.end.min(self.file.bytes / UNIT_BYTES as u64);
        if span.start >= end || span.end() > end {
            return Err(Error::Corrupt { page: span.start, what: "it lies beyond the end" });
        }
        if let Some((page, what)) = taken_place(span) {
            return Err(Error::Corrupt { page, what });
        }
        let is_new = |seen: &mut UnitSet, unit| seen.insert(unit);
        let is_single = (span.start..span.end()).all(|unit| is_new(&mut self.seen, unit));
        if !is_single {
            return Err(Error::Corrupt { page: span.start, what: "it is reached twice" });
        }
        self.progress.bytes_done += span.bytes();
        (self.look)(self.progress);
        Ok(())
    }
}

/// The unit of a span that is reserved, and why: an allocated span lies in one group, behind its
/// bitmaps.
fn taken_place(span: Span) -> Option<(u64, &'static str)> {
    if span.start < META_UNITS {
        return Some((span.start, "a meta page's place is in use"));
    }
    let group = group_of(span.start);
    let next = group_start(group + 1);
    let what = "a bitmap's place is in use";
    if span.start < group_start(group) + HEAD_UNITS {
        return Some((span.start, what));
    }
    (span.end() > next).then_some((next, what))
}

/// A text for a name that is not UTF-8, from which its bytes can be told: its valid parts, with
/// `\\` for each backslash, and `\x` with two digits for each other byte. Not the name of another
/// tree.
fn escaped(name: &[u8], taken: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    while taken.contains(&text) {
        text.push('\'');
    }
    text
}

impl ValueContent<'_> {
    fn inline(self) -> Option<Vec<u8>> {
        match self {
            ValueContent::Inline(bytes) => Some(bytes.to_vec()),
            _ => None,
        }
    }
}
