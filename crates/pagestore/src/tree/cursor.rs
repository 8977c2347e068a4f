//! A place between two entries that can be moved in both directions.

use crate::error::Result;
use crate::page::PageRef;
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::tree::entry::{Entry, EntryReader};
use crate::tree::walk::LeafWalk;

/// A place between two entries of a tree, to be moved about. An entry that it hands out stays until
/// it is moved.
pub struct Cursor<'a> {
    walk: LeafWalk<'a>,
    entries: EntryReader<'a>,
    /// How many entries of the leaf lie before the place.
    before: usize,
}

impl<'a> Cursor<'a> {
    /// Before the first entry; nothing is read yet.
    pub(crate) fn new(source: &'a dyn PageSource, root: PageRef) -> Cursor<'a> {
        Cursor { walk: LeafWalk::new(source, root), entries: EntryReader::new(source), before: 0 }
    }

    /// Goes before the first entry whose key is not less than `key`.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt; the place is then unknown.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.walk.to(key)?;
        let search = |leaf: SlottedPage<'_>| leaf.search(key).unwrap_or_else(|i| i);
        self.before = self.walk.leaf().map_or(0, search);
        self.enter();
        Ok(())
    }

    /// Goes before the first entry.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    pub fn seek_first(&mut self) -> Result<()> {
        self.walk.first()?;
        self.before = 0;
        self.enter();
        Ok(())
    }

    /// Goes behind the last entry.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    pub fn seek_last(&mut self) -> Result<()> {
        self.walk.last()?;
        self.before = self.count();
        self.enter();
        Ok(())
    }

    /// The entry behind the place, which moves behind it. Nothing, and no move, at the end.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "what it gives out is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>> {
        if self.walk.leaf().is_none() {
            self.seek_first()?;
        }
        while self.before == self.count() {
            if !self.walk.forward()? {
                return Ok(None);
            }
            self.before = 0;
            self.enter();
        }
        self.before += 1;
        self.entry(self.before - 1)
    }

    /// The entry before the place, which moves before it. Nothing, and no move, at the beginning.
    ///
    /// # Errors
    ///
    /// As [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<Option<Entry<'_>>> {
        while self.before == 0 {
            if self.walk.leaf().is_none() || !self.walk.backward()? {
                return Ok(None);
            }
            self.before = self.count();
            self.enter();
        }
        self.before -= 1;
        self.entry(self.before)
    }

    fn count(&self) -> usize {
        self.walk.leaf().map_or(0, SlottedPage::count)
    }

    fn enter(&mut self) {
        if let Some(leaf) = self.walk.leaf() {
            self.entries.enter(leaf);
        }
    }

    fn entry(&mut self, i: usize) -> Result<Option<Entry<'_>>> {
        debug_assert!(i < self.count(), "entry {i} of a leaf of {}", self.count());
        match self.walk.leaf() {
            Some(leaf) => self.entries.entry(leaf, i).map(Some),
            None => Ok(None),
        }
    }
}
