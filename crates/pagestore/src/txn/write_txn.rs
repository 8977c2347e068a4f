//! Write transactions: one at a time, published as a whole or not at all.

mod commit;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::TreeOptions;
use crate::error::{Error, Result};
use crate::shared::StoreShared;
use crate::shared::defrag_cursor::DefragCursor;
use crate::shared::write_throttle::DiskFull;
use crate::shared::writer_lock::WriterGuard;
use crate::space::ENDED_MIN;
use crate::tree::RelocateBudget;
use crate::txn::tree_mut::TreeMut;
use crate::txn::txn_state::{Savepoint, TxnState};

pub use commit::CommitDurability;
pub(crate) use commit::sync;

/// An open write transaction, the only one.
///
/// Readers see nothing of it until it is published, and all of it then. To drop it is to abort it.
pub struct WriteTxn<'a> {
    // The state frees its pages before the next writer gets the lock: fields drop in this order.
    state: TxnState,
    shared: &'a Arc<StoreShared>,
    writer_guard: WriterGuard<'a>,
}

impl<'a> WriteTxn<'a> {
    /// Waits for the writer lock, and for the write throttle.
    pub(crate) fn begin(shared: &'a Arc<StoreShared>) -> Result<WriteTxn<'a>> {
        shared.refuse_if_poisoned()?;
        let writer_guard = shared.writer_lock.lock();
        hold_back(shared)?;
        Ok(WriteTxn::with_guard(shared, writer_guard))
    }

    /// Never waits. Nothing if the writer lock is taken.
    pub(crate) fn try_begin(shared: &'a Arc<StoreShared>) -> Result<Option<WriteTxn<'a>>> {
        shared.refuse_if_poisoned()?;
        Ok(shared
            .writer_lock
            .try_lock()
            .map(|writer_guard| WriteTxn::with_guard(shared, writer_guard)))
    }

    fn with_guard(shared: &'a Arc<StoreShared>, writer_guard: WriterGuard<'a>) -> WriteTxn<'a> {
        shared.reclaim_ended(ENDED_MIN);
        let state = TxnState::new(Arc::clone(shared), shared.current());
        WriteTxn { state, shared, writer_guard }
    }

    /// The number that this transaction will have.
    pub fn txid(&self) -> u64 {
        self.state.pages.txid()
    }

    /// The tree called `name`, made with the default of [`TreeOptions`] if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the name is over [`NAME_BYTES_MAX`]; else an error of reading its
    /// page.
    ///
    /// [`Error::TooLarge`]: crate::Error::TooLarge
    /// [`NAME_BYTES_MAX`]: crate::NAME_BYTES_MAX
    pub fn tree(&mut self, name: &str) -> Result<TreeMut<'_>> {
        self.state.tree(name)
    }

    /// A new tree called `name`, with options of its own, which it keeps as long as it is there.
    ///
    /// # Errors
    ///
    /// [`Error::TreeExists`] if there is a tree of this name, [`Error::PageUnits`] if its pages
    /// cannot have this length: the transaction is as it was. Else as [`WriteTxn::tree`].
    pub fn create_tree(&mut self, name: &str, options: TreeOptions) -> Result<TreeMut<'_>> {
        self.state.create_tree(name, options)
    }

    /// Removes the tree called `name` with all that is in it. Returns how many keys it had, or
    /// nothing if there is no such tree. Takes as long as [`TreeMut::delete_range`], however large
    /// the tree is.
    ///
    /// # Errors
    ///
    /// As [`WriteTxn::tree`], and [`Error::Broken`](crate::Error::Broken) if an operation failed
    /// half-way before.
    pub fn delete_tree(&mut self, name: &str) -> Result<Option<u64>> {
        self.state.delete_tree(name)
    }

    /// Gives the tree called `from` the name `to`. False if there is no tree `from`.
    ///
    /// # Errors
    ///
    /// [`Error::TreeExists`](crate::Error::TreeExists) if there is another tree `to`; else as
    /// [`WriteTxn::delete_tree`].
    pub fn rename_tree(&mut self, from: &str, to: &str) -> Result<bool> {
        self.state.rename_tree(from, to)
    }

    /// Sets the commit metadata that travels with this root and those after it, until it is set
    /// again. One over [`COMMIT_METADATA_BYTES_MAX`](crate::COMMIT_METADATA_BYTES_MAX) keeps the
    /// transaction from being published.
    pub fn set_commit_metadata(&mut self, commit_metadata: &[u8]) {
        self.state.set_commit_metadata(commit_metadata);
    }

    /// Makes this a savepoint that the transaction can roll back to, trees, commit metadata, space
    /// and all. Takes the time of copying a few pointers; from then on a page that the transaction
    /// has made before is copied once before it changes, and the units that it frees are free only
    /// when it is published.
    pub fn savepoint(&mut self) -> Savepoint {
        self.state.save()
    }

    /// Rolls back to `point`: all that was done since is undone, also an operation that failed
    /// half-way. The savepoint stays, those after it go. Takes time for each page that has changed
    /// since.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`](crate::Error::Foreign) if the savepoint is not of this transaction, or
    /// the transaction has gone back to one before it.
    pub fn rollback_to(&mut self, point: &Savepoint) -> Result<()> {
        self.state.roll_back(point)
    }

    #[cfg(test)]
    pub(crate) fn put_raw_tree_name(&mut self, name: &[u8]) {
        self.state.put_raw_tree_name(name);
    }

    /// Frees about `units` units of the deferred ones. Returns how many, and the error that was met
    /// when a page of them could not be read; the transaction is whole then.
    pub(crate) fn reclaim(&mut self, units: u64) -> Result<(u64, Result<()>)> {
        self.state.refuse_if_broken()?;
        let swept = self.state.free_deferred(units);
        self.state.broken = swept.is_err();
        swept
    }

    /// Frees the subtrees whose free is deferred and that have a damaged page, or long value, which
    /// begins at one of these units. A page that cannot be read is lost with all below it, until
    /// the store is compacted, and [`PageStore::check`] names it. Returns whether there was one.
    ///
    /// Reads the branches of all such subtrees, and their leaves with long values.
    ///
    /// [`PageStore::check`]: crate::PageStore::check
    ///
    /// # Errors
    ///
    /// An error of reading or allocating a page: then the transaction can only be dropped.
    pub fn drop_deferred(&mut self, units: &BTreeSet<u64>) -> Result<bool> {
        self.state.refuse_if_broken()?;
        let dropped = self.state.drop_deferred(units);
        self.state.broken = dropped.is_err();
        if matches!(dropped, Ok(true)) {
            self.shared.background.policy.lock().note_readable();
        }
        dropped
    }

    /// Relocates pages beyond the limit; see [`TxnState::relocate`].
    pub(crate) fn relocate(
        &mut self,
        at: DefragCursor,
        budget: &mut RelocateBudget,
    ) -> Result<Option<DefragCursor>> {
        let moved = self.state.relocate(at, budget);
        self.state.broken = moved.is_err();
        moved
    }
}

/// Throttles the writer, which holds the writer lock, if there are too many dirty bytes.
fn hold_back(shared: &StoreShared) -> Result<()> {
    let dirty_bytes = || shared.refuse_if_poisoned().ok().map(|()| shared.grown_bytes());
    let held = shared.background.write_throttle.throttle(shared.options.limits(), dirty_bytes);
    held.map_err(|DiskFull| Error::NoSpace)?;
    shared.refuse_if_poisoned()
}
