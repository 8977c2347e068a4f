//! The one writer: a draft of pages, published as a whole or not at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::MARK_BYTES_MAX;
use crate::error::{Result, refuse_over};
use crate::place::Placed;
use crate::shared::Shared;
use crate::tree_mut::TreeMut;
use crate::work::{Savepoint, Work};

/// A transaction looks at the trash once those before it owe so many units: a branch page of the
/// trash has about as many leaves.
const OWED_UNITS_MIN: u64 = 64;

/// An open write transaction, the only one.
///
/// Others see nothing of it until it is published, and all of it then. To drop it is to abort it.
pub struct WriteTxn<'a> {
    // The draft gives back its pages before the next writer is let in: fields drop in this order.
    work: Work,
    shared: &'a Arc<Shared>,
    _place: Placed<'a>,
}

impl<'a> WriteTxn<'a> {
    /// Waits for the writer's place.
    pub(crate) fn begin(shared: &'a Arc<Shared>) -> Result<WriteTxn<'a>> {
        shared.refuse_if_poisoned()?;
        let place = shared.place.enter();
        shared.space.lock().note_ended(&shared.pool);
        let work = Work::new(Arc::clone(shared), shared.current());
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
    ///
    /// [`Error::TooLarge`]: crate::Error::TooLarge
    /// [`NAME_BYTES_MAX`]: crate::NAME_BYTES_MAX
    pub fn tree(&mut self, name: &str) -> Result<TreeMut<'_>> {
        self.work.tree(name)
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
        self.work.delete_tree(name)
    }

    /// Gives the tree called `from` the name `to`. False if there is no tree `from`.
    ///
    /// # Errors
    ///
    /// [`Error::TreeExists`](crate::Error::TreeExists) if there is another tree `to`; else as
    /// [`WriteTxn::delete_tree`].
    pub fn rename_tree(&mut self, from: &str, to: &str) -> Result<bool> {
        self.work.rename_tree(from, to)
    }

    /// Sets the mark that travels with this root and those after it, until it is set again. One
    /// over [`MARK_BYTES_MAX`] keeps the transaction from being published.
    pub fn set_mark(&mut self, mark: &[u8]) {
        self.work.set_mark(mark);
    }

    /// Makes this a moment that the transaction can go back to, trees, mark, space and all. Takes
    /// the time of copying a few pointers; from then on a page that the transaction has made before
    /// is copied once before it changes, and what it gives up is free only when it is published.
    pub fn savepoint(&mut self) -> Savepoint {
        self.work.save()
    }

    /// Goes back to `point`: all that was done since is undone, also an operation that failed
    /// half-way. The savepoint stays, those after it go. Takes time for each page that has changed
    /// since.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`](crate::Error::Foreign) if the savepoint is not of this transaction, or
    /// the transaction has gone back to one before it.
    pub fn rollback_to(&mut self, point: &Savepoint) -> Result<()> {
        self.work.go_back(point)
    }

    /// Gives back about `units` units of what was cut off from the trees. Returns how many, and what
    /// was met when a page that was cut off could not be read; the transaction is whole then.
    pub(crate) fn reclaim(&mut self, units: u64) -> Result<(u64, Result<()>)> {
        self.work.refuse_if_broken()?;
        let swept = self.work.sweep(units);
        self.work.broken = swept.is_err();
        swept
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
    ///
    /// [`Error::Broken`]: crate::Error::Broken
    /// [`Error::Poisoned`]: crate::Error::Poisoned
    /// [`Error::TooLarge`]: crate::Error::TooLarge
    pub fn publish(self) -> Result<u64> {
        let WriteTxn { work, shared, _place } = self;
        // Bound after the place, so given back before it.
        let mut work = work;
        work.refuse_if_broken()?;
        refuse_over("a mark", work.mark().len(), MARK_BYTES_MAX)?;
        shared.refuse_if_poisoned()?;
        work.save_trees()?;
        if work.is_nothing() {
            return Ok(work.draft.base().txid);
        }
        give_back_owed(shared, &mut work)?;
        let root = work.next_root();
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

/// Puts what the transaction has cut off into the trash, and gives back about twice as much trash as
/// it takes: so the trash stays bounded whatever is cut off, and no transaction pays for another.
fn give_back_owed(shared: &Shared, work: &mut Work) -> Result<()> {
    // Only who has the writer's place comes here.
    let owed = &shared.counters.owed_units;
    let units = owed.load(Ordering::Relaxed) + 2 * work.draft.page_count();
    let due = if units < OWED_UNITS_MIN { 0 } else { units };
    // What cannot be read stays in the trash, and who asks for it by itself or checks the store is
    // told: no reason to refuse a transaction that has nothing to do with it.
    let (freed, _) = work.sweep(due)?;
    let left = if work.trash_units() == 0 { 0 } else { units.saturating_sub(freed) };
    owed.store(left.min(1 << 12), Ordering::Relaxed);
    Ok(())
}
