//! Proves that every page is reachable, free or pending, and only one of them.

use crate::bits::Bits;
use crate::branch::{self, Child};
use crate::catalogue::Entry;
use crate::error::{Error, Result};
use crate::freelist::{HEAD_UNITS, META_UNITS, region_of, region_start};
use crate::keys::joined;
use crate::leaf::{self, Extent, Value};
use crate::node::{CHILD_BYTES, Node};
use crate::page::{PageRef, PageSize, Span, UNIT_BYTES};
use crate::pool::{Dirty, Pool};
use crate::root::Root;
use crate::shared::Shared;
use crate::size::Size;
use crate::space::Space;
use crate::trash::Trash;
use crate::view::PageBytes;

/// What [`PageStore::check`](crate::PageStore::check) has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
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
    /// Bytes of them that were cut off from the trees and are given back by and by.
    pub trash_bytes: u64,
    /// Bytes of trees that are being built, or wait to be put in.
    pub claimed_bytes: u64,
    /// Bytes that wait for snapshots to end, or for the next checkpoint.
    pub pending_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes for meta pages and bitmaps.
    pub reserved_bytes: u64,
}

/// Checks the whole store.
pub(crate) fn run(shared: &Shared) -> Result<CheckReport> {
    let _place = shared.place.enter();
    let written = shared.checkpoints.lock();
    let mut space = shared.space.lock();
    space.note_ended(&shared.pool, usize::MAX);
    let current = shared.current();
    let durable = std::sync::Arc::clone(&shared.durable.read());
    // No writer and no checkpoint is under way, so nobody changes what is looked at below, and
    // readers need none of these locks.
    let end = space.freelist.end();
    let mut published = Walk::new(&shared.pool, &current, end, false);
    published.all_trees()?;
    if written.meta.directory.len > 0 {
        published.see(written.meta.directory.span())?;
        shared.pool.read_extent(&written.meta.directory)?;
    }
    if let Some(area) = written.meta.redo {
        published.see(area.span)?;
    }
    let mut on_disk = Walk::new(&shared.pool, &durable, end, true);
    on_disk.all_trees()?;
    prove_owners(&space, &published.spans, &on_disk.spans)?;
    prove_bitmap(&space, &published.units)?;
    let bytes = |units: u64| units * UNIT_BYTES as u64;
    let used = published.units.iter().count() as u64;
    let (pending, free) = (space.pending.units(), space.freelist.free_units());
    let claimed = space.claimed().map(|span| u64::from(span.units)).sum();
    Ok(CheckReport {
        used_bytes: bytes(used),
        claimed_bytes: bytes(claimed),
        pending_bytes: bytes(pending),
        free_bytes: bytes(free),
        reserved_bytes: bytes(end - used - claimed - pending - free),
        ..published.report
    })
}

/// Proves that each unit belongs to one owner, and that none of the durable ones is free.
fn prove_owners(space: &Space, published: &[Span], durable: &[Span]) -> Result<()> {
    let end = space.freelist.end();
    let mut owners = Owners { seen: Bits::default(), end };
    for start in (0..).map(region_start).take_while(|&start| start < end) {
        let head = Span { start, units: HEAD_UNITS as u32 };
        owners.claim(head, "a region's head is in use")?;
    }
    for &span in published {
        owners.claim(span, "a used page is in use twice")?;
    }
    for span in space.pending.spans() {
        owners.claim(span, "a pending page is in use")?;
    }
    let kept = owners.seen.clone();
    for span in space.claimed() {
        owners.claim(span, "a claimed page is in use")?;
    }
    for span in space.freelist.spans() {
        owners.claim(span, "a free page is in use")?;
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
fn prove_bitmap(space: &Space, reached: &Bits) -> Result<()> {
    let wrong = |&unit: &u64| {
        let used = space.published.contains(unit - META_UNITS);
        let head = unit < region_start(region_of(unit)) + HEAD_UNITS;
        used != reached.contains(unit) || used && head
    };
    match (META_UNITS..space.freelist.end()).find(wrong) {
        Some(page) => Err(Error::Corrupt { page, what: "the bitmap is wrong" }),
        None => Ok(()),
    }
}

/// Units that somebody has claimed.
struct Owners {
    seen: Bits,
    end: u64,
}

impl Owners {
    fn claim(&mut self, span: Span, what: &'static str) -> Result<()> {
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

/// Proves that a page may stand where it does: that its level is the one expected, and its keys rise,
/// lie between the bounds and are found by their heads. Returns them.
pub(crate) fn prove_node(
    node: Node<'_>,
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
struct Walk<'a> {
    pool: &'a Pool,
    root: &'a Root,
    /// One past the last unit in use.
    end: u64,
    /// Takes nothing from memory.
    from_file: bool,
    /// No page of the tree that is walked is shorter.
    page_size: PageSize,
    spans: Vec<Span>,
    units: Bits,
    report: CheckReport,
}

impl<'a> Walk<'a> {
    fn new(pool: &'a Pool, root: &'a Root, end: u64, from_file: bool) -> Walk<'a> {
        let report = CheckReport::default();
        let (spans, units, page_size) = (Vec::new(), Bits::default(), PageSize::UNIT);
        Walk { pool, root, end, from_file, page_size, spans, units, report }
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
            let entry = Entry::decode(&bytes, catalogue)?;
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
        self.trash()
    }

    /// Checks what was cut off, as if it were still in a tree.
    fn trash(&mut self) -> Result<()> {
        let Trash { list, units } = self.root.trash;
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
            if self.tree(child.place, &mut |_, _| ())? != child.size {
                return corrupt("size of a subtree in the trash");
            }
            sum += child.size.units;
        }
        if sum != units {
            return corrupt("units in the trash");
        }
        self.report.trash_bytes = units * UNIT_BYTES as u64;
        Ok(())
    }

    /// Checks one tree and calls `each` with every key and, if it is inline, its value. Returns
    /// what the tree holds and takes.
    fn tree(&mut self, root: PageRef, each: &mut Each<'_>) -> Result<Size> {
        if root.is_none() {
            return Ok(Size::default());
        }
        self.page(root, None, (None, None), each)
    }

    fn page(
        &mut self,
        place: PageRef,
        level: Option<u8>,
        bounds: Bounds<'_>,
        each: &mut Each<'_>,
    ) -> Result<Size> {
        self.see(place.span())?;
        self.page_size.prove(place)?;
        self.report.page_count += 1;
        let dirty = if self.from_file { None } else { self.pool.dirty(self.root, place.id()) };
        let frame = match dirty {
            Some(Dirty::Page(frame)) => PageBytes::Borrowed(frame),
            _ => PageBytes::Counted(self.pool.read_page(place, self.root.txid)?),
        };
        let node = Node(&frame);
        let keys = prove_node(node, place.id(), level, bounds)?;
        if node.is_leaf() {
            self.values(node, &keys, each)?;
            return Ok(branch::size(node));
        }
        for i in 0..branch::child_count(node) {
            let low = i.checked_sub(1).map(|i| &keys[i][..]).or(bounds.0);
            let high = keys.get(i).map(|key| &key[..]).or(bounds.1);
            let child = branch::sized_child(node, i);
            let size = self.page(child.place, Some(node.level() - 1), (low, high), each)?;
            if size != child.size {
                return Err(Error::Corrupt { page: child.place.id(), what: "size of a subtree" });
            }
        }
        Ok(branch::size(node))
    }

    fn values(&mut self, node: Node<'_>, keys: &[Vec<u8>], each: &mut Each<'_>) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            match leaf::value(node, i) {
                Value::Inline(bytes) => each(key, Some(bytes.to_vec())),
                Value::Extent(extent) => {
                    self.extent(&extent)?;
                    each(key, None);
                }
            }
        }
        Ok(())
    }

    fn extent(&mut self, extent: &Extent) -> Result<()> {
        self.see(extent.span())?;
        self.report.extent_count += 1;
        if self.from_file {
            self.pool.read_extent(extent)?;
        } else {
            self.pool.extent(self.root, extent)?;
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
