//! A published root and the promise that its pages stay.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalogue::Entry;
use crate::error::Result;
use crate::leaf::Extent;
use crate::page::{Frame, PageRef};
use crate::root::Root;
use crate::shared::Shared;
use crate::source::Source;
use crate::tree;

/// The store as one transaction left it.
///
/// Nothing that happens later is seen through it, and nothing that it sees goes away while it, a
/// clone, or a [`Tree`] of it is held. It keeps the space of replaced pages from being used again,
/// of those only that it can see.
#[derive(Clone)]
pub struct Snapshot {
    shared: Arc<Shared>,
    root: Arc<Root>,
}

impl Snapshot {
    pub(crate) fn new(shared: Arc<Shared>) -> Snapshot {
        let root = shared.current();
        Snapshot { shared, root }
    }

    /// The transaction that published this state.
    pub fn txid(&self) -> u64 {
        self.root.txid
    }

    /// The mark that the transaction, or one before it, has set.
    pub fn mark(&self) -> &[u8] {
        &self.root.mark
    }

    /// The tree called `name`, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn tree(&self, name: &str) -> Result<Option<Tree>> {
        let Some(bytes) = tree::get(self, self.root.catalogue, name.as_bytes())? else {
            return Ok(None);
        };
        let entry = Entry::decode(&bytes, self.root.catalogue)?;
        Ok(Some(Tree { snapshot: self.clone(), entry }))
    }

    /// The names of all trees, sorted.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn tree_names(&self) -> Result<Vec<String>> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let mut names = tree::Range::new(self.clone(), self.root.catalogue, all.0, all.1);
        let name = |key: Bytes| String::from_utf8_lossy(&key).into_owned();
        std::iter::from_fn(|| names.next_key()).map(|key| key.map(name)).collect()
    }
}

impl Source for Snapshot {
    fn page(&self, place: PageRef) -> Result<Frame> {
        self.shared.pool.page(place, self.root.txid)
    }

    fn extent(&self, extent: &Extent) -> Result<Bytes> {
        self.shared.pool.extent(extent)
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
    snapshot: Snapshot,
    entry: Entry,
}

impl Tree {
    /// How many keys there are. Costs nothing.
    pub fn len(&self) -> u64 {
        self.entry.size.keys
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entry.size.keys == 0
    }

    /// The value of `key`. A value of up to a quarter page is copied; a longer one is shared.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        tree::get(&self.snapshot, self.entry.root, key)
    }

    /// All entries between two bounds, from either end.
    ///
    /// Keys and values are parts of the pages they were found in, which stay in memory as long as
    /// any of them is held.
    pub fn range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Range {
        Range { inner: self.open(start, end) }
    }

    /// The keys between two bounds, from either end. Long values are not read.
    pub fn keys(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Keys {
        Keys { inner: self.open(start, end) }
    }

    /// A place before the first entry, to be moved about.
    pub fn cursor(&self) -> Cursor {
        Cursor { inner: tree::Cursor::new(self.snapshot.clone(), self.entry.root) }
    }

    fn open(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> tree::Range<Snapshot> {
        tree::Range::new(self.snapshot.clone(), self.entry.root, start, end)
    }
}

/// Entries between two bounds; see [`Tree::range`]. After an error it ends.
pub struct Range {
    inner: tree::Range<Snapshot>,
}

impl Iterator for Range {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.inner.next()
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.inner.next_back()
    }
}

/// Keys between two bounds; see [`Tree::keys`]. After an error it ends.
pub struct Keys {
    inner: tree::Range<Snapshot>,
}

impl Iterator for Keys {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        self.inner.next_key()
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.inner.next_key_back()
    }
}

/// A place between two entries of a tree; see [`Tree::cursor`].
pub struct Cursor {
    inner: tree::Cursor<Snapshot>,
}

impl Cursor {
    /// Goes before the first entry whose key is not less than `key`.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt; the place is then unknown.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.inner.seek(key)
    }

    /// Goes before the first entry.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    pub fn seek_first(&mut self) -> Result<()> {
        self.inner.seek_first()
    }

    /// Goes behind the last entry.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    pub fn seek_last(&mut self) -> Result<()> {
        self.inner.seek_last()
    }

    /// The entry behind the place, which moves behind it. Nothing, and no move, at the end.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "a cursor goes both ways; a range iterates")]
    pub fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        self.inner.next()
    }

    /// The entry before the place, which moves before it. Nothing, and no move, at the beginning.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        self.inner.prev()
    }
}
