//! Scrubbing: reads again what the last checkpoint relies on, a part at a time, to find bit rot
//! before a reader needs it.
//!
//! Pages and values are read as the durable root names them: as long as it is held, their units are
//! not written to. Bitmaps, directory, meta pages and redo area are no part of a root: a checkpoint
//! writes new ones and releases the old. So each piece of them is read under the checkpoint lock,
//! for which no writer waits unless it needs a checkpoint.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::memory::meta::MetaPage;
use crate::memory::page_reader::PageReader;
use crate::memory::root::Root;
use crate::page::branch::{self, Child};
use crate::page::catalogue::{self, TreeEntry};
use crate::page::keys::joined;
use crate::page::layout::group_count;
use crate::page::leaf::{self, ValueExtent};
use crate::page::slotted::{CHILD_BYTES, SlottedPage};
use crate::page::source::PageSource;
use crate::page::view::{PageBytes, ValueRef};
use crate::page::{PageRef, UNIT_BYTES};
use crate::redo::{FrameReader, RedoArea};
use crate::shared::scrub_progress::{Scrub, ScrubEntry, ScrubPart};
use crate::shared::{LastCheckpoint, StoreShared};
use crate::tree::Range;
use flotilla_base::sync::{MutexGuard, unlock_fair};

impl Scrub {
    /// Goes on for about `bytes_max`, at least for one page, long value or frame.
    pub(crate) fn step(&mut self, shared: &StoreShared, bytes_max: u64) -> Result<()> {
        let root = Arc::clone(&shared.durable.read());
        let read = AtomicU64::new(0);
        let file = DurableFile { page_reader: &shared.page_reader, root: &root, read: &read };
        let stop = self.bytes.saturating_add(bytes_max.max(1));
        while !self.is_done() && self.bytes < stop {
            let outcome = match self.part {
                ScrubPart::Catalogue => self.tree(file, root.catalogue, stop, ScrubPart::Trees),
                ScrubPart::Trees => self.trees(file, stop),
                ScrubPart::DeferredFreeList => {
                    self.tree(file, root.deferred_free.list.root, stop, ScrubPart::DeferredFree)
                }
                ScrubPart::DeferredFree => self.deferred_free(file, stop),
                ScrubPart::Bitmaps(group) => self.bitmap(shared, group),
                ScrubPart::Directory => self.directory(shared),
                ScrubPart::MetaPages => self.meta_pages(shared),
                ScrubPart::Redo(position) => self.redo(shared, position),
                ScrubPart::Nothing => Ok(()),
            };
            // A tree without a page takes time as well: to find it pages of the catalogue are read.
            self.bytes += read.swap(0, Ordering::Relaxed);
            outcome?;
        }
        Ok(())
    }

    fn begin(&mut self, part: ScrubPart) {
        *self = Scrub { part, bytes: self.bytes, ..Scrub::default() };
    }

    /// Goes on in the tree at `root`; `next` comes after it.
    fn tree(
        &mut self,
        file: DurableFile<'_>,
        root: PageRef,
        stop: u64,
        next: ScrubPart,
    ) -> Result<()> {
        if self.subtree(file, root, stop)? {
            self.begin(next);
        }
        Ok(())
    }

    fn trees(&mut self, file: DurableFile<'_>, stop: u64) -> Result<()> {
        let list = file.root.catalogue;
        let Some((name, bytes)) = self.entry_of(file, list)? else {
            self.begin(ScrubPart::DeferredFreeList);
            return Ok(());
        };
        catalogue::name(&name, list)?;
        // A tree that was changed since has another root, and keys in the same order.
        let root = TreeEntry::decode(&bytes, list)?.root;
        self.entry(file, name, root, stop)
    }

    fn deferred_free(&mut self, file: DurableFile<'_>, stop: u64) -> Result<()> {
        let list = file.root.deferred_free.list.root;
        let Some((number, bytes)) = self.entry_of(file, list)? else {
            self.begin(ScrubPart::Bitmaps(0));
            return Ok(());
        };
        if bytes.len() != CHILD_BYTES {
            return Err(Error::Corrupt { page: list.id(), what: "entry of the trash" });
        }
        let root = Child::decode(&bytes).page_ref;
        // Its number may have gone to another subtree since, which has other keys.
        let is_same = |entry: &ScrubEntry| entry.key == number && entry.root == Some(root);
        if !self.entry.as_ref().is_some_and(is_same) {
            self.key.clear();
        }
        self.entry(file, number, root, stop)
    }

    /// The entry that is not wholly read, or else the next one.
    fn entry_of(&self, file: DurableFile<'_>, list: PageRef) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let low = match &self.entry {
            None => Bound::Unbounded,
            Some(ScrubEntry { key, root: Some(_) }) => Bound::Included(&key[..]),
            Some(ScrubEntry { key, root: None }) => Bound::Excluded(&key[..]),
        };
        let mut entries = Range::new(&file, list, low, Bound::Unbounded);
        let entry = entries.next()?;
        let before = |key: &[u8]| match &self.entry {
            Some(ScrubEntry { key: last, root: None }) => key <= &last[..],
            Some(ScrubEntry { key: last, root: Some(_) }) => key < &last[..],
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
        self.entry = Some(ScrubEntry { key, root });
        is_read.map(|_| ())
    }

    /// Goes on in a subtree from `key` on. Returns whether it has come to its end.
    fn subtree(&mut self, file: DurableFile<'_>, root: PageRef, stop: u64) -> Result<bool> {
        if root.is_none() {
            return Ok(true);
        }
        let mut walk = ScrubWalk {
            page_reader: file.page_reader,
            txid: file.root.txid,
            read: self.bytes,
            stop,
        };
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

    fn bitmap(&mut self, shared: &StoreShared, group: usize) -> Result<()> {
        let written = lock(shared)?;
        if group >= group_count(written.meta.end) {
            self.part = ScrubPart::Directory;
            return Ok(());
        }
        if let Some(unit) = written.groups.bitmap_unit(group) {
            let mut bytes = vec![0; UNIT_BYTES];
            self.bytes += bytes.len() as u64;
            shared.page_reader.read(&mut bytes, unit)?;
            written.groups.verify_bitmap(group, &bytes, written.meta.txid)?;
        }
        self.part = ScrubPart::Bitmaps(group + 1);
        unlock_fair(written);
        Ok(())
    }

    fn directory(&mut self, shared: &StoreShared) -> Result<()> {
        let written = lock(shared)?;
        let directory @ ValueExtent { len, .. } = written.meta.directory;
        if len > 0 {
            self.bytes += u64::from(len);
            shared.page_reader.read_extent(&directory)?;
        }
        self.part = ScrubPart::MetaPages;
        Ok(())
    }

    fn meta_pages(&mut self, shared: &StoreShared) -> Result<()> {
        let written = lock(shared)?;
        let mut pages = vec![0; 2 * UNIT_BYTES];
        self.bytes += pages.len() as u64;
        shared.page_reader.read(&mut pages, 0)?;
        for (unit, (was, is)) in
            written.copies.into_iter().zip(MetaPage::copies(&pages)).enumerate()
        {
            if was & !is != 0 {
                return Err(Error::Corrupt { page: unit as u64, what: "a copy of the meta page" });
            }
        }
        if MetaPage::newest(&pages)? != written.meta {
            let what = "another meta page than the last checkpoint has written";
            return Err(Error::Corrupt { page: written.meta.unit(), what });
        }
        self.part = ScrubPart::Redo(0);
        Ok(())
    }

    fn redo(&mut self, shared: &StoreShared, position: u64) -> Result<()> {
        let written = lock(shared)?;
        let synced = shared.redo.synced();
        let begin =
            synced.map(|(area, end)| (RedoArea { from: position.max(area.from), ..area }, end));
        let Some((area, _)) = begin.filter(|(area, end)| area.from < *end) else {
            self.part = ScrubPart::Nothing;
            return Ok(());
        };
        let mut frames = FrameReader::new(area, shared.redo.file(), written.meta.number);
        let Some(_) = frames.next()? else {
            return Err(Error::Corrupt { page: area.unit(area.from), what: "redo record" });
        };
        self.bytes += frames.position() - area.from;
        self.part = ScrubPart::Redo(frames.position());
        unlock_fair(written);
        Ok(())
    }
}

/// Keeps checkpoints from writing what is no part of a root. After one that has failed the contents
/// of the file are unknown.
fn lock(shared: &StoreShared) -> Result<MutexGuard<'_, LastCheckpoint>> {
    let written = shared.last_checkpoint.lock();
    shared.refuse_if_poisoned()?;
    Ok(written)
}

/// The durable state as the file has it, whatever is in memory of it.
#[derive(Clone, Copy)]
struct DurableFile<'a> {
    page_reader: &'a PageReader,
    root: &'a Root,
    /// Bytes of pages that were read of it.
    read: &'a AtomicU64,
}

impl PageSource for DurableFile<'_> {
    fn page(&self, page_ref: PageRef) -> Result<PageBytes<'_>> {
        self.read.fetch_add(page_ref.span().bytes(), Ordering::Relaxed);
        Ok(PageBytes::Counted(self.page_reader.verify_page(page_ref, self.root.txid)?))
    }

    fn extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>> {
        self.page_reader.read_extent(extent).map(ValueRef::long)
    }
}

/// Reads a subtree.
struct ScrubWalk<'a> {
    page_reader: &'a PageReader,
    /// No page was written later.
    txid: u64,
    read: u64,
    stop: u64,
}

impl ScrubWalk<'_> {
    /// Reads a subtree from `key` on. Returns the key to go on with if it was too much.
    fn page(
        &mut self,
        page_ref: PageRef,
        level: Option<u8>,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        self.read += page_ref.span().bytes();
        let page = self.page_reader.verify_page(page_ref, self.txid)?;
        let node = SlottedPage(&page);
        if level.is_some_and(|level| level != node.level()) || node.is_leaf() != (node.level() == 0)
        {
            return Err(Error::Corrupt { page: page_ref.id(), what: "level" });
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
    fn values(&mut self, node: SlottedPage<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let first = node.search(key).unwrap_or_else(|i| i);
        let mut is_begun = false;
        for i in first..node.count() {
            let leaf::LeafValue::Extent(extent) = leaf::value(node, i) else { continue };
            // One at least, or a step would not get on.
            if is_begun && self.read >= self.stop {
                return Ok(Some(joined(node.key(i))));
            }
            is_begun = true;
            self.read += u64::from(extent.len);
            self.page_reader.verify_extent(&extent)?;
        }
        Ok(None)
    }
}
