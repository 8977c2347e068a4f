//! One tree of the open write transaction: reads and changes.

use std::collections::BTreeSet;
use std::ops::RangeBounds;

use bytes::Bytes;

use crate::config::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::{Error, Result, refuse_over};
use crate::page::catalogue::TreeEntry;
use crate::page::leaf;
use crate::page::view::ValueRef;
use crate::redo::RedoRecorder;
use crate::tree::txn_pages::TxnPages;
use crate::tree::{self, LostKeys, Range};

/// One tree of the open transaction. Reads see what it has written.
pub struct TreeMut<'a> {
    pub(crate) pages: &'a mut TxnPages,
    pub(crate) entry: &'a mut TreeEntry,
    /// Is told of each operation once it is done.
    pub(crate) recorder: &'a mut RedoRecorder,
    /// Whether an operation of the transaction failed half-way.
    pub(crate) broken: &'a mut bool,
}

impl TreeMut<'_> {
    /// How many keys there are. Costs nothing.
    pub fn len(&self) -> u64 {
        self.entry.size.keys
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

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// [`Error`] if a page cannot be read or is corrupt.
    pub fn get(&self, key: &[u8]) -> Result<Option<ValueRef<'_>>> {
        tree::get(&*self.pages, self.entry.root, key)
    }

    /// Reads the pages for puts and deletes of `keys` that are to come, in any order: those that
    /// are not in memory come from the disk all at once, where the operations would read one after
    /// the other. Returns whether the disk was asked. Where all is in memory, the way down costs a
    /// part of a put and saves nothing: a caller may leave it out once the disk was not asked. Does
    /// nothing without memory-mapped reads.
    ///
    /// A page that cannot be read is left to the operation that meets it.
    pub fn read_ahead<K: AsRef<[u8]>>(&self, keys: &[K]) -> bool {
        self.pages.is_mapped()
            && tree::read_leaves(&*self.pages, self.entry.root, keys).unwrap_or(true)
    }

    /// Puts `value` under `key`, in place of what is there.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if key or value is over its limit; else an error of reading or
    /// allocating a page: then the transaction can only be dropped.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        refuse_over("a key", key.len(), KEY_BYTES_MAX)?;
        refuse_over("a value", value.len(), VALUE_BYTES_MAX)?;
        let TreeEntry { root, page_size, .. } = *self.entry;
        let changed = self.attempt(|pages| {
            let value = match value.len() <= leaf::inline_bytes_max(page_size) {
                true => leaf::LeafValue::Inline(value),
                false => leaf::LeafValue::Extent(pages.create_extent(pages.long_value(value))?),
            };
            tree::put(pages, page_size, root, key, value)
        })?;
        self.entry.change(changed);
        self.recorder.put(key, value);
        Ok(())
    }

    /// Puts `value` under `key` unless there is something. Returns whether there was nothing.
    ///
    /// # Errors
    ///
    /// As [`TreeMut::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        if tree::contains(&*self.pages, self.entry.root, key)? {
            return Ok(false);
        }
        self.put(key, value).map(|()| true)
    }

    /// Puts `value` under `key` and returns what was there.
    ///
    /// # Errors
    ///
    /// As [`TreeMut::put`].
    pub fn replace(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Bytes>> {
        let old = self.get(key)?.map(ValueRef::into_bytes);
        self.put(key, value).map(|()| old)
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// An error of reading or allocating a page: then the transaction can only be dropped.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let TreeEntry { root, page_size, .. } = *self.entry;
        let changed = self.attempt(|pages| tree::remove(pages, page_size, root, key))?;
        let Some(changed) = changed else { return Ok(false) };
        self.entry.change(changed);
        self.recorder.delete(key);
        Ok(true)
    }

    /// Removes the keys from `start` up to, not including, `end`; to the last if there is no end.
    /// Returns how many there were.
    ///
    /// Takes the time of a few puts, however many there were: the subtree between the two edges is
    /// cut off, and its count is known. A small one is freed at once; the free of a large one is
    /// deferred: each transaction that is published frees about twice what it takes, and
    /// [`PageStore::reclaim`] as much as is asked for.
    ///
    /// [`PageStore::reclaim`]: crate::PageStore::reclaim
    ///
    /// # Errors
    ///
    /// An error of reading or allocating a page: then the transaction can only be dropped.
    pub fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) -> Result<u64> {
        let before = self.entry.size.keys;
        let root = self.entry.child();
        let size = self.entry.page_size;
        let changed = self.attempt(|pages| tree::delete_range(pages, size, root, start, end))?;
        self.entry.change(changed);
        self.recorder.delete_range(start, end);
        Ok(before.saturating_sub(self.entry.size.keys))
    }

    /// Takes the pages that begin at these units of 4 KiB out of the tree, with all that lies below
    /// them, and returns which keys those pages held: as [`Error::Corrupt`] names pages, so that a
    /// tree of which a part is lost can be used again. Pages of other trees, and long values, are
    /// not found: then nothing is returned and nothing has changed.
    ///
    /// Reads all branches of the tree. The space of a leaf without long values comes back; that of
    /// any other page, and of all that lies below it, is lost until the store is compacted, and
    /// [`PageStore::check`] names it.
    ///
    /// [`PageStore::check`]: crate::PageStore::check
    ///
    /// # Errors
    ///
    /// An error of reading or allocating a page; [`Error::Corrupt`] if another page is corrupt that
    /// has to be read: the transaction can only be dropped.
    pub fn drop_pages(&mut self, units: &BTreeSet<u64>) -> Result<Vec<LostKeys>> {
        let TreeEntry { page_size, .. } = *self.entry;
        let root = self.entry.child();
        let (page_ref, change, lost) =
            self.attempt(|pages| tree::drop_pages(pages, page_size, root, units))?;
        if !lost.is_empty() {
            self.entry.change((page_ref, change));
            // No record says what was lost.
            self.recorder.give_up();
        }
        Ok(lost)
    }

    /// All entries of a range of keys, from either end.
    pub fn range<'k>(&self, keys: impl RangeBounds<&'k [u8]>) -> Range<'_> {
        Range::new(self.pages, self.entry.root, keys)
    }

    pub(crate) fn attempt<T>(
        &mut self,
        change: impl FnOnce(&mut TxnPages) -> Result<T>,
    ) -> Result<T> {
        if *self.broken {
            return Err(Error::Broken);
        }
        let result = change(self.pages);
        *self.broken = result.is_err();
        result
    }
}
