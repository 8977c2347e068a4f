//! Split, append and ingest of whole trees: one path each, however large they are.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::page::PageSize;
use crate::page::branch::Child;
use crate::tree;
use crate::tree::ingest::BuiltTree;
use crate::tree::txn_pages::Ticket;
use crate::txn::tree_mut::TreeMut;

/// A part of a tree that no tree names; see [`TreeMut::split_off`].
#[derive(Clone, Debug)]
pub struct DetachedTree {
    ticket: Ticket,
    len: u64,
    page_size: PageSize,
}

impl DetachedTree {
    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl TreeMut<'_> {
    /// Takes off the keys from `key` on, to be put behind those of another tree of this transaction
    /// by [`TreeMut::append`]. If that does not happen, they are freed when it is published.
    ///
    /// Takes the time of a few puts.
    ///
    /// # Errors
    ///
    /// An error of reading or allocating a page: then the transaction can only be dropped.
    pub fn split_off(&mut self, key: &[u8]) -> Result<DetachedTree> {
        let (tree, page_size) = (self.entry.child(), self.entry.page_size);
        let (left, right) = self.attempt(|pages| tree::split_off(pages, page_size, tree, key))?;
        self.set(left);
        self.recorder.give_up();
        let ticket = Arc::new(());
        self.pages.detach(right, Some(Arc::clone(&ticket)));
        Ok(DetachedTree { ticket, len: right.size.keys, page_size })
    }

    /// Puts a detached tree of this transaction behind the keys of this one. That can be done once.
    ///
    /// Takes the time of a few puts.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfOrder`] unless all keys of `part` are greater than all that are here,
    /// [`Error::PageUnitsDiffer`] unless its pages are as long as those of this tree,
    /// [`Error::Foreign`] if it is another transaction's, was put somewhere already, or was taken
    /// off after the moment to which the transaction has gone back: nothing was changed. Else an
    /// error of reading or allocating a page: then the transaction can only be dropped.
    pub fn append(&mut self, part: &DetachedTree) -> Result<()> {
        let Some(right) = self.pages.find_detached(&part.ticket) else {
            return Err(Error::Foreign { what: "a detached tree" });
        };
        part.page_size.refuse_unless(self.entry.page_size)?;
        self.join(right)?;
        self.pages.take_detached(&part.ticket);
        Ok(())
    }

    /// Puts a tree that was built concurrently in place of the keys from `start` up to, not
    /// including, `end`, or to the last if there is no end. Returns how many keys were there.
    ///
    /// Takes the time of a few puts, and 1 us or less for each MiB of the tree. A commit of the
    /// transaction that is synced makes a checkpoint, since there is no record of what was built.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfOrder`] unless all keys of the tree lie in the range,
    /// [`Error::PageUnitsDiffer`] unless its pages are as long as those of this tree,
    /// [`Error::Foreign`] if it was built for another store: nothing was changed, and what was
    /// built is gone. Else an error of reading or allocating a page: then the transaction can only
    /// be dropped.
    pub fn ingest(&mut self, start: &[u8], end: Option<&[u8]>, built: BuiltTree) -> Result<u64> {
        if !self.pages.is_of(built.reservation.shared()) {
            return Err(Error::Foreign { what: "a tree that was built" });
        }
        let page_size = self.entry.page_size;
        built.page_size.refuse_unless(page_size)?;
        if let Some((first, last)) = &built.ends
            && (first[..] < *start || end.is_some_and(|end| last[..] >= *end))
        {
            return Err(Error::OutOfOrder {
                what: "the tree that was built has keys beyond the range",
            });
        }
        let (keys, new_keys) = (self.len(), built.len());
        let BuiltTree { root, reservation, .. } = built;
        let removed = self.delete_range(start, end)?;
        let tree = self.entry.child();
        let joined = self.attempt(|pages| {
            pages.adopt(reservation);
            let (left, right) = tree::split_off(pages, page_size, tree, start)?;
            let left = tree::join(pages, page_size, left, root)?;
            tree::join(pages, page_size, left, right)
        })?;
        self.set(joined);
        assert_eq!(self.len(), keys - removed + new_keys, "the keys around a tree stay");
        self.recorder.give_up();
        Ok(removed)
    }

    /// Puts a tree behind this one.
    fn join(&mut self, right: Child) -> Result<()> {
        let (left, size) = (self.entry.child(), self.entry.page_size);
        match self.attempt(|pages| tree::join(pages, size, left, right)) {
            Ok(joined) => {
                self.set(joined);
                self.recorder.give_up();
                Ok(())
            }
            Err(error) => {
                // Found before anything was changed.
                *self.broken &= !matches!(error, Error::OutOfOrder { .. });
                Err(error)
            }
        }
    }

    fn set(&mut self, tree: Child) {
        self.entry.root = tree.page_ref;
        self.entry.size = tree.size;
    }
}
