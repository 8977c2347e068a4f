//! Snapshots: a published root, pinned, and reads of its trees.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::error::Result;
use crate::memory::root::Root;
use crate::page::catalogue::{self, TreeEntry};
use crate::page::leaf::ValueExtent;
use crate::page::source::{PageSource, PrefetchHint};
use crate::page::view::{PageBytes, ValueRef};
use crate::page::{PageRef, UNIT_BYTES, keys};
use crate::shared::StoreShared;
use crate::tree::{self, KeyIter, Range};

/// The store as one transaction left it.
///
/// No later change is seen through it, and no page that it sees goes away while it, a clone, or a
/// [`Tree`] of it is held. It keeps the space of replaced pages from being used again, of those
/// only that it can see. One that holds much for long may be ended: then its reads, and those of
/// its trees, are [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
#[derive(Clone)]
pub struct Snapshot {
    shared: Arc<StoreShared>,
    root: Arc<Root>,
    /// The root's: it is compared with each page, and the root's cache line is written to by all
    /// threads that take snapshots.
    txid: u64,
}

impl Snapshot {
    pub(crate) fn new(shared: Arc<StoreShared>) -> Snapshot {
        let root = shared.current();
        let txid = root.txid;
        Snapshot { shared, root, txid }
    }

    /// The transaction that published this state.
    pub fn txid(&self) -> u64 {
        self.root.txid
    }

    /// The commit metadata that the transaction, or one before it, has set.
    pub fn commit_metadata(&self) -> &[u8] {
        &self.root.commit_metadata
    }

    /// The tree called `name`, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn tree(&self, name: &str) -> Result<Option<Tree>> {
        Ok(self.entry(name)?.map(|entry| Tree { snapshot: self.clone(), entry }))
    }

    pub(crate) fn entry(&self, name: &str) -> Result<Option<TreeEntry>> {
        self.shared.old_versions.horizon.verify(self.txid)?;
        self.root.tree(name, || {
            let bytes = tree::get(self, self.root.catalogue, name.as_bytes())?;
            bytes.map(|bytes| TreeEntry::decode(&bytes, self.root.catalogue)).transpose()
        })
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The names of all trees, sorted.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn tree_names(&self) -> Result<Vec<String>> {
        let mut keys = KeyIter::new(Range::new(self, self.root.catalogue, ..));
        let mut names = Vec::new();
        while let Some(name) = keys.next()? {
            names.push(catalogue::name(name, self.root.catalogue)?);
        }
        Ok(names)
    }
}

impl PageSource for Snapshot {
    #[inline]
    fn page(&self, page_ref: PageRef) -> Result<PageBytes<'_>> {
        self.shared.old_versions.horizon.verify(self.txid)?;
        self.shared.page_reader.page(&self.root, page_ref)
    }

    #[inline]
    fn prefetch(&self, page_ref: PageRef, wanted: PrefetchHint) {
        self.shared.page_reader.prefetch(&self.root, page_ref, wanted);
    }

    fn read_ahead(&self, pages: &mut Vec<PageRef>, probes: usize) -> bool {
        self.shared.page_reader.read_ahead(&self.root, pages, probes)
    }

    fn extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>> {
        self.shared.old_versions.horizon.verify(self.txid)?;
        self.shared.page_reader.extent(&self.root, extent)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("txid", &self.root.txid).finish_non_exhaustive()
    }
}

/// One tree of a snapshot, which it holds.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) snapshot: Snapshot,
    pub(crate) entry: TreeEntry,
}

impl Tree {
    /// How many keys there are. Costs nothing.
    pub fn len(&self) -> u64 {
        self.entry.size.keys
    }

    /// Bytes of its pages and long values in the file. Costs nothing.
    pub fn file_bytes(&self) -> u64 {
        self.entry.size.units * UNIT_BYTES as u64
    }

    /// The snapshot that the tree is of.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entry.size.keys == 0
    }

    /// How many units of 4 KiB its pages are long; see [`TreeOptions::page_units`].
    ///
    /// [`TreeOptions::page_units`]: crate::TreeOptions::page_units
    pub fn page_units(&self) -> u32 {
        self.entry.page_size.units()
    }

    /// The value of `key`, where it lies.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn get(&self, key: &[u8]) -> Result<Option<ValueRef<'_>>> {
        tree::get(&self.snapshot, self.entry.root, key)
    }

    /// Looks up a batch of keys, which may come in any order: calls `each` with the number of every
    /// key in `keys` and its value, if it has one, in the order of the keys. Takes less time than a
    /// get for each, since the keys share their way down, and their cache misses overlap; takes
    /// memory for each key, some 50 bytes.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt; some keys may have had their
    /// call then.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        tree::multi_get(&self.snapshot, self.entry.root, keys, &mut each)
    }

    /// All entries whose keys begin with `prefix`, from either end.
    pub fn prefix(&self, prefix: &[u8]) -> Range<'_> {
        let end = keys::successor(prefix);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.range((Bound::Included(prefix), end))
    }

    /// All entries of a range of keys, from either end.
    pub fn range<'k>(&self, keys: impl RangeBounds<&'k [u8]>) -> Range<'_> {
        Range::new(&self.snapshot, self.entry.root, keys)
    }

    /// The keys of a range, from either end. Long values are not read.
    pub fn keys<'k>(&self, keys: impl RangeBounds<&'k [u8]>) -> KeyIter<'_> {
        KeyIter::new(self.range(keys))
    }
}
