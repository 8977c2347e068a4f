//! Reading again what the last checkpoint relies on, a part at a time, to find rot before somebody
//! needs it.
//!
//! Pages and values are read as the durable root names them: as long as it is held, nobody writes to
//! them. Bitmaps, directory, meta pages and redo area are no part of a root: a checkpoint writes new
//! ones and lets go of the old. So each piece of them is read under the lock of checkpoints, which no
//! writer waits for unless it wants one.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::branch::{self, Child};
use crate::catalogue::{self, Entry};
use crate::error::{Error, Result};
use crate::keys::joined;
use crate::leaf::{self, Extent};
use crate::meta::Meta;
use crate::node::{CHILD_BYTES, Node};
use crate::page::{PageRef, UNIT_BYTES};
use crate::pool::Pool;
use crate::redo::{Area, Frames};
use crate::regions::region_count;
use crate::root::Root;
use crate::shared::{Shared, Written};
use crate::source::Source;
use crate::sync::{MutexGuard, unlock_fair};
use crate::tree::Range;
use crate::view::{PageBytes, Value};

/// How far a pass over the whole store has come. It holds nothing of the store, and can be kept as
/// long as one likes between two steps.
///
/// What is written while a pass is under way, or comes from one tree to another, may be left out by
/// it.
#[derive(Clone, Debug, Default)]
pub struct Scrub {
    part: Part,
    /// Of trees and trash: the entry of the catalogue, or of the trash's list, that it has come to.
    entry: Option<Visited>,
    /// The first key of a tree that it has not come to.
    key: Vec<u8>,
    bytes: u64,
}

/// What a pass reads, in this order.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    #[default]
    Catalogue,
    Trees,
    /// The tree of what waits in the trash.
    TrashList,
    Trash,
    /// The bitmaps, from this region's on.
    Bitmaps(usize),
    Directory,
    MetaPages,
    /// The redo area, from this position on.
    Redo(u64),
    Nothing,
}

/// An entry that names a subtree.
#[derive(Clone, Debug)]
struct Visited {
    key: Vec<u8>,
    /// Its subtree, until it is read.
    root: Option<PageRef>,
}

impl Scrub {
    /// A pass that begins with the first page.
    #[must_use]
    pub fn new() -> Scrub {
        Scrub::default()
    }

    /// Whether it has come to the end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.part, Part::Nothing)
    }

    /// Bytes that it has read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Goes on for about `bytes_max`, at least for one page, long value or frame.
    pub(crate) fn step(&mut self, shared: &Shared, bytes_max: u64) -> Result<()> {
        let root = Arc::clone(&shared.durable.read());
        let read = AtomicU64::new(0);
        let file = DurableFile { pool: &shared.pool, root: &root, read: &read };
        let stop = self.bytes.saturating_add(bytes_max.max(1));
        while !self.is_done() && self.bytes < stop {
            let outcome = match self.part {
                Part::Catalogue => self.tree(file, root.catalogue, stop, Part::Trees),
                Part::Trees => self.trees(file, stop),
                Part::TrashList => self.tree(file, root.trash.list.root, stop, Part::Trash),
                Part::Trash => self.trash(file, stop),
                Part::Bitmaps(region) => self.bitmap(shared, region),
                Part::Directory => self.directory(shared),
                Part::MetaPages => self.meta_pages(shared),
                Part::Redo(position) => self.redo(shared, position),
                Part::Nothing => Ok(()),
            };
            // A tree without a page takes time as well: to find it pages of the catalogue are read.
            self.bytes += read.swap(0, Ordering::Relaxed);
            outcome?;
        }
        Ok(())
    }

    fn begin(&mut self, part: Part) {
        *self = Scrub { part, bytes: self.bytes, ..Scrub::default() };
    }

    /// Goes on in the tree at `root`; `next` comes after it.
    fn tree(&mut self, file: DurableFile<'_>, root: PageRef, stop: u64, next: Part) -> Result<()> {
        if self.subtree(file, root, stop)? {
            self.begin(next);
        }
        Ok(())
    }

    fn trees(&mut self, file: DurableFile<'_>, stop: u64) -> Result<()> {
        let list = file.root.catalogue;
        let Some((name, bytes)) = self.entry_of(file, list)? else {
            self.begin(Part::TrashList);
            return Ok(());
        };
        catalogue::name(&name, list)?;
        // A tree that was changed since has another root, and keys in the same order.
        let root = Entry::decode(&bytes, list)?.root;
        self.entry(file, name, root, stop)
    }

    fn trash(&mut self, file: DurableFile<'_>, stop: u64) -> Result<()> {
        let list = file.root.trash.list.root;
        let Some((number, bytes)) = self.entry_of(file, list)? else {
            self.begin(Part::Bitmaps(0));
            return Ok(());
        };
        if bytes.len() != CHILD_BYTES {
            return Err(Error::Corrupt { page: list.id(), what: "entry of the trash" });
        }
        let root = Child::decode(&bytes).place;
        // Its number may have gone to another subtree since, which has other keys.
        let is_same = |entry: &Visited| entry.key == number && entry.root == Some(root);
        if !self.entry.as_ref().is_some_and(is_same) {
            self.key.clear();
        }
        self.entry(file, number, root, stop)
    }

    /// The entry that is not wholly read, or else the next one.
    fn entry_of(&self, file: DurableFile<'_>, list: PageRef) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let low = match &self.entry {
            None => Bound::Unbounded,
            Some(Visited { key, root: Some(_) }) => Bound::Included(&key[..]),
            Some(Visited { key, root: None }) => Bound::Excluded(&key[..]),
        };
        let mut entries = Range::new(&file, list, low, Bound::Unbounded);
        let entry = entries.next()?;
        let before = |key: &[u8]| match &self.entry {
            Some(Visited { key: last, root: None }) => key <= &last[..],
            Some(Visited { key: last, root: Some(_) }) => key < &last[..],
            None => false,
        };
        if entry.is_some_and(|(key, _)| before(key)) {
            return Err(Error::Corrupt { page: list.id(), what: "order of keys" });
        }
        Ok(entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    /// Goes on in the subtree that the entry `key` names.
    fn entry(
        &mut self,
        file: DurableFile<'_>,
        key: Vec<u8>,
        root: PageRef,
        stop: u64,
    ) -> Result<()> {
        if self.entry.as_ref().is_some_and(|entry| entry.key != key) {
            self.key.clear();
        }
        let is_read = self.subtree(file, root, stop);
        let root = if matches!(is_read, Ok(true)) { None } else { Some(root) };
        self.entry = Some(Visited { key, root });
        is_read.map(|_| ())
    }

    /// Goes on in a subtree from `key` on. Returns whether it has come to its end.
    fn subtree(&mut self, file: DurableFile<'_>, root: PageRef, stop: u64) -> Result<bool> {
        if root.is_none() {
            return Ok(true);
        }
        let mut walk = Walk { pool: file.pool, txid: file.root.txid, read: self.bytes, stop };
        let rest = walk.page(root, None, &self.key);
        self.bytes = walk.read;
        let rest = rest?;
        // Where keys do not rise a pass would come back again and again.
        if rest.as_ref().is_some_and(|rest| *rest <= self.key) {
            return Err(Error::Corrupt { page: root.id(), what: "order of keys" });
        }
        let is_read = rest.is_none();
        self.key = rest.unwrap_or_default();
        Ok(is_read)
    }

    fn bitmap(&mut self, shared: &Shared, region: usize) -> Result<()> {
        let written = lock(shared)?;
        if region >= region_count(written.meta.end) {
            self.part = Part::Directory;
            return Ok(());
        }
        if let Some(unit) = written.regions.bitmap_unit(region) {
            let mut bytes = vec![0; UNIT_BYTES];
            self.bytes += bytes.len() as u64;
            shared.pool.read(&mut bytes, unit)?;
            written.regions.prove_bitmap(region, &bytes, written.meta.txid)?;
        }
        self.part = Part::Bitmaps(region + 1);
        unlock_fair(written);
        Ok(())
    }

    fn directory(&mut self, shared: &Shared) -> Result<()> {
        let written = lock(shared)?;
        let directory @ Extent { len, .. } = written.meta.directory;
        if len > 0 {
            self.bytes += u64::from(len);
            shared.pool.read_extent(&directory)?;
        }
        self.part = Part::MetaPages;
        Ok(())
    }

    fn meta_pages(&mut self, shared: &Shared) -> Result<()> {
        let written = lock(shared)?;
        let mut pages = vec![0; 2 * UNIT_BYTES];
        self.bytes += pages.len() as u64;
        shared.pool.read(&mut pages, 0)?;
        for (unit, (was, is)) in written.copies.into_iter().zip(Meta::copies(&pages)).enumerate() {
            if was & !is != 0 {
                return Err(Error::Corrupt { page: unit as u64, what: "a copy of the meta page" });
            }
        }
        if Meta::newest(&pages)? != written.meta {
            let what = "another meta page than the last checkpoint has written";
            return Err(Error::Corrupt { page: written.meta.unit(), what });
        }
        self.part = Part::Redo(0);
        Ok(())
    }

    fn redo(&mut self, shared: &Shared, position: u64) -> Result<()> {
        let written = lock(shared)?;
        let synced = shared.redo.synced();
        let begin = synced.map(|(area, end)| (Area { from: position.max(area.from), ..area }, end));
        let Some((area, _)) = begin.filter(|(area, end)| area.from < *end) else {
            self.part = Part::Nothing;
            return Ok(());
        };
        let mut frames = Frames::new(area, shared.redo.file(), written.meta.number);
        let Some(_) = frames.next()? else {
            return Err(Error::Corrupt { page: area.unit(area.from), what: "redo record" });
        };
        self.bytes += frames.position() - area.from;
        self.part = Part::Redo(frames.position());
        unlock_fair(written);
        Ok(())
    }
}

/// Keeps checkpoints from writing what is no part of a root. After one that has failed nobody knows
/// what the file has of it.
fn lock(shared: &Shared) -> Result<MutexGuard<'_, Written>> {
    let written = shared.checkpoints.lock();
    shared.refuse_if_poisoned()?;
    Ok(written)
}

/// The durable state as the file has it, whatever is in memory of it.
#[derive(Clone, Copy)]
struct DurableFile<'a> {
    pool: &'a Pool,
    root: &'a Root,
    /// Bytes of pages that were read of it.
    read: &'a AtomicU64,
}

impl Source for DurableFile<'_> {
    fn page(&self, place: PageRef) -> Result<PageBytes<'_>> {
        self.read.fetch_add(place.span().bytes(), Ordering::Relaxed);
        Ok(PageBytes::Counted(self.pool.prove_page(place, self.root.txid)?))
    }

    fn extent(&self, extent: &Extent) -> Result<Value<'_>> {
        self.pool.read_extent(extent).map(Value::long)
    }
}

/// Reads a subtree.
struct Walk<'a> {
    pool: &'a Pool,
    /// No page was written later.
    txid: u64,
    read: u64,
    stop: u64,
}

impl Walk<'_> {
    /// Reads a subtree from `key` on. Returns the key to go on with if it was too much.
    fn page(&mut self, place: PageRef, level: Option<u8>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read += place.span().bytes();
        let page = self.pool.prove_page(place, self.txid)?;
        let node = Node(&page);
        if level.is_some_and(|level| level != node.level()) || node.is_leaf() != (node.level() == 0)
        {
            return Err(Error::Corrupt { page: place.id(), what: "level" });
        }
        if node.is_leaf() {
            return self.values(node, key);
        }
        let first = branch::child_index(node, key);
        for i in first..branch::child_count(node) {
            // A separator before the child is where another step can begin.
            if i > first && self.read >= self.stop {
                return Ok(Some(joined(node.key(i - 1))));
            }
            let key = if i == first { key } else { b"" };
            let rest = self.page(branch::child(node, i), Some(node.level() - 1), key)?;
            if rest.is_some() {
                return Ok(rest);
            }
        }
        Ok(None)
    }

    /// Reads the long values of a leaf from `key` on.
    fn values(&mut self, node: Node<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let first = node.search(key).unwrap_or_else(|i| i);
        let mut is_begun = false;
        for i in first..node.count() {
            let leaf::Value::Extent(extent) = leaf::value(node, i) else { continue };
            // One at least, or a step would not get on.
            if is_begun && self.read >= self.stop {
                return Ok(Some(joined(node.key(i))));
            }
            is_begun = true;
            self.read += u64::from(extent.len);
            self.pool.prove_extent(&extent)?;
        }
        Ok(None)
    }
}
