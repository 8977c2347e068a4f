//! Consistency check: every page is reachable, free or pending, and only one of them.

pub(crate) mod scrub;

use crate::error::{Error, Result};
use crate::memory::page_reader::{DirtyData, PageReader};
use crate::memory::root::Root;
use crate::page::branch::{self, Child};
use crate::page::catalogue::TreeEntry;
use crate::page::deferred_free::DeferredFree;
use crate::page::keys::joined;
use crate::page::layout::{HEAD_UNITS, META_UNITS, group_of, group_start};
use crate::page::leaf::{self, LeafValue, ValueExtent};
use crate::page::slotted::{CHILD_BYTES, SlottedPage};
use crate::page::subtree_size::SubtreeSize;
use crate::page::unit_set::UnitSet;
use crate::page::view::PageBytes;
use crate::page::{PageRef, PageSize, Span, UNIT_BYTES};
use crate::shared::StoreShared;
use crate::space::SpaceManager;

/// Counts of [`PageStore::check`](crate::PageStore::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageCheckReport {
    /// Trees.
    pub tree_count: u64,
    /// Keys of all trees.
    pub key_count: u64,
    /// Pages that the published state reaches.
    pub page_count: u64,
    /// Long values that it reaches.
    pub extent_count: u64,
    /// Bytes that the published state uses, with the directory of free space.
    pub used_bytes: u64,
    /// Bytes of them whose free is deferred.
    pub deferred_free_bytes: u64,
    /// Bytes of trees that are being built, or wait to be put in.
    pub reservation_bytes: u64,
    /// Bytes that wait for snapshots to end, or for the next checkpoint.
    pub pending_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes for meta pages and bitmaps.
    pub reserved_bytes: u64,
}

/// Checks the whole store.
pub(crate) fn run(shared: &StoreShared) -> Result<PageCheckReport> {
    let _writer_guard = shared.writer_lock.lock();
    let written = shared.last_checkpoint.lock();
    let mut space = shared.space.lock();
    space.reclaim_ended(&shared.page_reader, usize::MAX);
    let current = shared.current();
    let durable = std::sync::Arc::clone(&shared.durable.read());
    // No writer and no checkpoint is under way, so nothing that is looked at below changes, and
    // readers need none of these locks.
    let end = space.freelist.end();
    let mut published = CheckWalk::new(&shared.page_reader, &current, end, false);
    published.all_trees()?;
    if written.meta.directory.len > 0 {
        published.see(written.meta.directory.span())?;
        shared.page_reader.read_extent(&written.meta.directory)?;
    }
    if let Some(area) = written.meta.redo {
        published.see(area.span)?;
    }
    let mut on_disk = CheckWalk::new(&shared.page_reader, &durable, end, true);
    on_disk.all_trees()?;
    verify_owners(&space, &published.spans, &on_disk.spans)?;
    verify_bitmap(&space, &published.units)?;
    let bytes = |units: u64| units * UNIT_BYTES as u64;
    let used = published.units.iter().count() as u64;
    let (pending, free) = (space.pending.units(), space.freelist.free_units());
    let units = |spans: &mut dyn Iterator<Item = Span>| spans.map(|s| u64::from(s.units)).sum();
    assert_eq!(pending, units(&mut space.pending.spans()), "the count of pending units drifted");
    assert_eq!(free, units(&mut space.freelist.spans()), "the count of free units drifted");
    let reservations = space.reservations().map(|span| u64::from(span.units)).sum();
    Ok(PageCheckReport {
        used_bytes: bytes(used),
        reservation_bytes: bytes(reservations),
        pending_bytes: bytes(pending),
        free_bytes: bytes(free),
        reserved_bytes: bytes(end - used - reservations - pending - free),
        ..published.report
    })
}

/// Proves that each unit belongs to one owner, and that none of the durable ones is free.
fn verify_owners(space: &SpaceManager, published: &[Span], durable: &[Span]) -> Result<()> {
    let end = space.freelist.end();
    let mut owners = UnitOwners { seen: UnitSet::default(), end };
    for start in (0..).map(group_start).take_while(|&start| start < end) {
        let head = Span { start, units: HEAD_UNITS as u32 };
        owners.add(head, "a region's head is in use")?;
    }
    for &span in published {
        owners.add(span, "a used page is in use twice")?;
    }
    for span in space.pending.spans() {
        owners.add(span, "a pending page is in use")?;
    }
    let kept = owners.seen.clone();
    for span in space.reservations() {
        owners.add(span, "a claimed page is in use")?;
    }
    for span in space.freelist.spans() {
        owners.add(span, "a free page is in use")?;
    }
    if let Some(page) = (META_UNITS..end).find(|&unit| !owners.seen.contains(unit)) {
        return Err(Error::Corrupt { page, what: "neither reachable nor free" });
    }
    match durable.iter().flat_map(|span| span.start..span.end()).find(|&unit| !kept.contains(unit))
    {
        Some(page) => Err(Error::Corrupt { page, what: "a page of the durable state is free" }),
        None => Ok(()),
    }
}

/// Proves that the bitmap names exactly the units that the published root reaches.
fn verify_bitmap(space: &SpaceManager, reached: &UnitSet) -> Result<()> {
    let wrong = |&unit: &u64| {
        let used = space.published.contains(unit - META_UNITS);
        let head = unit < group_start(group_of(unit)) + HEAD_UNITS;
        used != reached.contains(unit) || used && head
    };
    match (META_UNITS..space.freelist.end()).find(wrong) {
        Some(page) => Err(Error::Corrupt { page, what: "the bitmap is wrong" }),
        None => Ok(()),
    }
}

/// Units that have an owner.
struct UnitOwners {
    seen: UnitSet,
    end: u64,
}

impl UnitOwners {
    fn add(&mut self, span: Span, what: &'static str) -> Result<()> {
        for unit in span.start..span.end() {
            if unit < META_UNITS || unit >= self.end || !self.seen.insert(unit) {
                return Err(Error::Corrupt { page: unit, what });
            }
        }
        Ok(())
    }
}

/// Called with each key and, if it is inline, its value.
type Each<'a> = dyn FnMut(&[u8], Option<Vec<u8>>) + 'a;

/// Keys that a subtree may have: from the low one on, up to, not including, the high one.
pub(crate) type Bounds<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// Proves that a page may stand where it does: that its level is the one expected, and its keys
/// rise, lie between the bounds and are found by their heads. Returns them.
pub(crate) fn verify_cells(
    node: SlottedPage<'_>,
    page: u64,
    level: Option<u8>,
    bounds: Bounds<'_>,
) -> Result<Vec<Vec<u8>>> {
    let corrupt = |what| Err(Error::Corrupt { page, what });
    if level.is_some_and(|level| level != node.level()) || node.is_leaf() != (node.level() == 0) {
        return corrupt("level");
    }
    let keys: Vec<Vec<u8>> = (0..node.count()).map(|i| joined(node.key(i))).collect();
    let rising = keys.windows(2).all(|pair| pair[0] < pair[1]);
    let above = keys.first().zip(bounds.0).is_none_or(|(key, low)| &key[..] >= low);
    let below = keys.last().zip(bounds.1).is_none_or(|(key, high)| &key[..] < high);
    if !rising || !above || !below {
        return corrupt("order of keys");
    }
    if keys.iter().enumerate().any(|(i, key)| node.search(key) != Ok(i)) {
        return corrupt("heads of keys");
    }
    if node.is_leaf() && keys.is_empty() {
        return corrupt("empty leaf");
    }
    Ok(keys)
}

/// A walk over all pages of one root.
struct CheckWalk<'a> {
    page_reader: &'a PageReader,
    root: &'a Root,
    /// One past the last unit in use.
    end: u64,
    /// Takes nothing from memory.
    from_file: bool,
    /// No page of the tree that is walked is shorter.
    page_size: PageSize,
    spans: Vec<Span>,
    units: UnitSet,
    report: PageCheckReport,
}

impl<'a> CheckWalk<'a> {
    fn new(
        page_reader: &'a PageReader,
        root: &'a Root,
        end: u64,
        from_file: bool,
    ) -> CheckWalk<'a> {
        let report = PageCheckReport::default();
        let (spans, units, page_size) = (Vec::new(), UnitSet::default(), PageSize::UNIT);
        CheckWalk { page_reader, root, end, from_file, page_size, spans, units, report }
    }

    fn all_trees(&mut self) -> Result<()> {
        let catalogue = self.root.catalogue;
        let mut entries = Vec::new();
        self.tree(catalogue, &mut |name, value| {
            entries.push((name.to_vec(), value));
        })?;
        for (_, value) in entries {
            let Some(bytes) = value else {
                let what = "entry of the catalogue";
                return Err(Error::Corrupt { page: catalogue.id(), what });
            };
            let entry = TreeEntry::decode(&bytes, catalogue)?;
            let mut keys = 0;
            self.page_size = entry.page_size;
            let size = self.tree(entry.root, &mut |_, _| keys += 1)?;
            self.page_size = PageSize::UNIT;
            if size != entry.size || size.keys != keys {
                return Err(Error::Corrupt { page: entry.root.id(), what: "size of a tree" });
            }
            self.report.tree_count += 1;
            self.report.key_count += keys;
        }
        self.deferred_free()
    }

    /// Checks the subtrees whose free is deferred, as if they were still in a tree.
    fn deferred_free(&mut self) -> Result<()> {
        let DeferredFree { list, units } = self.root.deferred_free;
        let corrupt = |what| Err(Error::Corrupt { page: list.root.id(), what });
        let mut subtrees = Vec::new();
        let size = self.tree(list.root, &mut |_, value| subtrees.push(value))?;
        if size != list.size {
            return corrupt("size of the trash");
        }
        let mut sum = 0;
        for bytes in subtrees {
            let Some(bytes) = bytes.filter(|bytes| bytes.len() == CHILD_BYTES) else {
                return corrupt("entry of the trash");
            };
            let child = Child::decode(&bytes);
            if self.tree(child.page_ref, &mut |_, _| ())? != child.size {
                return corrupt("size of a subtree in the trash");
            }
            sum += child.size.units;
        }
        if sum != units {
            return corrupt("units in the trash");
        }
        self.report.deferred_free_bytes = units * UNIT_BYTES as u64;
        Ok(())
    }

    /// Checks one tree and calls `each` with every key and, if it is inline, its value. Returns
    /// what the tree holds and takes.
    fn tree(&mut self, root: PageRef, each: &mut Each<'_>) -> Result<SubtreeSize> {
        if root.is_none() {
            return Ok(SubtreeSize::default());
        }
        self.page(root, None, (None, None), each)
    }

    fn page(
        &mut self,
        page_ref: PageRef,
        level: Option<u8>,
        bounds: Bounds<'_>,
        each: &mut Each<'_>,
    ) -> Result<SubtreeSize> {
        self.see(page_ref.span())?;
        self.page_size.verify(page_ref)?;
        self.report.page_count += 1;
        let dirty =
            if self.from_file { None } else { self.page_reader.dirty(self.root, page_ref.id()) };
        let frame = match dirty {
            Some(DirtyData::Page(frame)) => PageBytes::Borrowed(frame),
            _ => PageBytes::Counted(self.page_reader.read_page(page_ref, self.root.txid)?),
        };
        let node = SlottedPage(&frame);
        let keys = verify_cells(node, page_ref.id(), level, bounds)?;
        if node.is_leaf() {
            self.values(node, &keys, each)?;
            return Ok(branch::size(node));
        }
        for i in 0..branch::child_count(node) {
            let low = i.checked_sub(1).map(|i| &keys[i][..]).or(bounds.0);
            let high = keys.get(i).map(|key| &key[..]).or(bounds.1);
            let child = branch::sized_child(node, i);
            let size = self.page(child.page_ref, Some(node.level() - 1), (low, high), each)?;
            if size != child.size {
                return Err(Error::Corrupt {
                    page: child.page_ref.id(),
                    what: "size of a subtree",
                });
            }
        }
        Ok(branch::size(node))
    }

    fn values(
        &mut self,
        node: SlottedPage<'_>,
        keys: &[Vec<u8>],
        each: &mut Each<'_>,
    ) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            match leaf::value(node, i) {
                LeafValue::Inline(bytes) => each(key, Some(bytes.to_vec())),
                LeafValue::Extent(extent) => {
                    self.extent(&extent)?;
                    each(key, None);
                }
            }
        }
        Ok(())
    }

    fn extent(&mut self, extent: &ValueExtent) -> Result<()> {
        self.see(extent.span())?;
        self.report.extent_count += 1;
        if self.from_file {
            self.page_reader.read_extent(extent)?;
        } else {
            self.page_reader.extent(self.root, extent)?;
        }
        Ok(())
    }

    fn see(&mut self, span: Span) -> Result<()> {
        self.spans.push(span);
        for unit in span.start..span.end() {
            if unit >= self.end || !self.units.insert(unit) {
                let what = "it is reached twice, or beyond the end";
                return Err(Error::Corrupt { page: unit, what });
            }
        }
        Ok(())
    }
}
