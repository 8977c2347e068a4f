//! The one writer: a draft of pages, published as a whole or not at all.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::catalogue::Entry;
use crate::config::{KEY_BYTES_MAX, MARK_BYTES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::leaf::{self, INLINE_BYTES_MAX};
use crate::page::PageRef;
use crate::place::Placed;
use crate::shared::Shared;
use crate::tree::{self, Range};
use crate::view::Value;

/// An open write transaction, the only one.
///
/// Others see nothing of it until it is published, and all of it then. To drop it is to abort it.
pub struct WriteTxn<'a> {
    // The draft gives back its pages before the next writer is let in: fields drop in this order.
    work: Work,
    shared: &'a Arc<Shared>,
    _place: Placed<'a>,
}

/// What the transaction has done so far.
struct Work {
    draft: Draft,
    catalogue: PageRef,
    trees: BTreeMap<String, OpenTree>,
    mark: Vec<u8>,
    /// An operation failed half-way, so the trees may not be whole.
    broken: bool,
}

/// A tree that the transaction has looked at.
struct OpenTree {
    entry: Entry,
    /// What the catalogue says of it; nothing if it is new.
    saved: Option<Entry>,
}

impl<'a> WriteTxn<'a> {
    /// Waits for the writer's place.
    pub(crate) fn begin(shared: &'a Arc<Shared>) -> Result<WriteTxn<'a>> {
        shared.refuse_if_poisoned()?;
        let place = shared.place.enter();
        shared.space.lock().note_ended(&shared.pool);
        let base = shared.current();
        let work = Work {
            catalogue: base.catalogue,
            mark: base.mark.to_vec(),
            draft: Draft::new(Arc::clone(shared), base),
            trees: BTreeMap::new(),
            broken: false,
        };
        Ok(WriteTxn { work, shared, _place: place })
    }

    /// The number that this transaction will have.
    pub fn txid(&self) -> u64 {
        self.work.draft.txid()
    }

    /// The tree called `name`, made if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the name is over [`NAME_BYTES_MAX`]; else what reading its page met.
    pub fn tree(&mut self, name: &str) -> Result<TreeMut<'_>> {
        let work = &mut self.work;
        if !work.trees.contains_key(name) {
            refuse_over("a tree's name", name.len(), NAME_BYTES_MAX)?;
            let bytes = tree::get(&work.draft, work.catalogue, name.as_bytes())?;
            let saved = bytes.map(|bytes| Entry::decode(&bytes, work.catalogue)).transpose()?;
            let entry = saved.unwrap_or(Entry::EMPTY);
            work.trees.insert(name.to_owned(), OpenTree { entry, saved });
        }
        let open = work.trees.get_mut(name).expect("put in just now if it was missing");
        Ok(TreeMut { draft: &mut work.draft, entry: &mut open.entry, broken: &mut work.broken })
    }

    /// Sets the mark that travels with this root and those after it, until it is set again. One
    /// over [`MARK_BYTES_MAX`] keeps the transaction from being published.
    pub fn set_mark(&mut self, mark: &[u8]) {
        self.work.mark = mark.to_vec();
    }

    /// Makes all that was done visible to everybody who reads from now on. Touches no file: a crash
    /// before the next checkpoint takes it back. Returns the transaction's number, or that of the
    /// one before if there was nothing to do.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`] if an operation failed half-way, [`Error::Poisoned`] if a checkpoint has
    /// failed meanwhile, [`Error::TooLarge`] if the mark is too long; else what reading a page met.
    /// Nothing is published then.
    pub fn publish(self) -> Result<u64> {
        let WriteTxn { work, shared, _place } = self;
        // Bound after the place, so given back before it.
        let mut work = work;
        if work.broken {
            return Err(Error::Broken);
        }
        refuse_over("a mark", work.mark.len(), MARK_BYTES_MAX)?;
        shared.refuse_if_poisoned()?;
        work.save_trees()?;
        let base = work.draft.base();
        if work.draft.is_empty() && work.mark[..] == base.mark[..] {
            return Ok(base.txid);
        }
        let root = base.next(work.catalogue, &work.mark);
        let txid = root.txid;
        let written = work.draft.take();
        let spans = written.spans();
        for (id, frame) in written.pages {
            shared.pool.put_dirty(id, frame);
        }
        for (start, value) in written.extents {
            shared.pool.put_extent(start, value);
        }
        // The draft pins the root that it was built on; without it, what nobody reads is free now.
        drop(work);
        let mut space = shared.space.lock();
        space.pending.open(txid);
        *shared.current.write() = root;
        space.publish(&shared.pool, txid, &spans, &written.replaced);
        Ok(txid)
    }
}

impl Work {
    /// Writes what has changed about the trees into the catalogue.
    fn save_trees(&mut self) -> Result<()> {
        for (name, open) in &self.trees {
            if open.saved != Some(open.entry) {
                let value = open.entry.encode();
                let put = tree::put(
                    &mut self.draft,
                    self.catalogue,
                    name.as_bytes(),
                    leaf::Value::Inline(&value),
                )?;
                self.catalogue = put.0;
            }
        }
        Ok(())
    }
}

/// One tree of the open transaction. Reads see what it has written.
pub struct TreeMut<'a> {
    draft: &'a mut Draft,
    entry: &'a mut Entry,
    broken: &'a mut bool,
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

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// [`Error`] if a page cannot be read or is corrupt.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>> {
        tree::get(&*self.draft, self.entry.root, key)
    }

    /// Puts `value` under `key`, in place of what is there.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if key or value is over its limit; else what reading or allocating a
    /// page met: then the transaction can only be dropped.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        refuse_over("a key", key.len(), KEY_BYTES_MAX)?;
        refuse_over("a value", value.len(), VALUE_BYTES_MAX)?;
        let root = self.entry.root;
        let changed = self.attempt(|draft| {
            if value.len() <= INLINE_BYTES_MAX {
                return tree::put(draft, root, key, leaf::Value::Inline(value));
            }
            let extent = draft.create_extent(value)?;
            tree::put(draft, root, key, leaf::Value::Extent(extent))
        })?;
        self.entry.change(changed);
        Ok(())
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// What reading or allocating a page met: then the transaction can only be dropped.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let root = self.entry.root;
        let changed = self.attempt(|draft| tree::remove(draft, root, key))?;
        let Some(changed) = changed else { return Ok(false) };
        self.entry.change(changed);
        Ok(true)
    }

    /// Removes the keys from `start` up to, not including, `end`; to the last if there is no end.
    /// Returns how many there were. Takes time for each page of them, and no memory.
    ///
    /// # Errors
    ///
    /// What reading or allocating a page met: then the transaction can only be dropped.
    pub fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) -> Result<u64> {
        let before = self.entry.size.keys;
        let root = self.entry.child();
        let changed = self.attempt(|draft| tree::delete_range(draft, root, start, end))?;
        self.entry.change(changed);
        Ok(before - self.entry.size.keys)
    }

    /// All entries between two bounds, from either end.
    pub fn range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Range<'_> {
        Range::new(self.draft, self.entry.root, start, end)
    }

    fn attempt<T>(&mut self, change: impl FnOnce(&mut Draft) -> Result<T>) -> Result<T> {
        if *self.broken {
            return Err(Error::Broken);
        }
        let result = change(self.draft);
        *self.broken = result.is_err();
        result
    }
}

fn refuse_over(what: &'static str, size: usize, limit: usize) -> Result<()> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}
