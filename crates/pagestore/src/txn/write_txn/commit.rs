//! Commit: publishes a write transaction, and makes it durable if that is wanted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::WriteTxn;
use crate::checkpoint::{self, CheckpointScope};
use crate::config::COMMIT_METADATA_BYTES_MAX;
use crate::error::{Result, refuse_over};
use crate::redo::{AppendUrgency, RedoRecorder};
use crate::shared::StoreShared;
use crate::shared::writer_lock::WriterGuard;
use crate::txn::txn_state::TxnState;

/// Units owed after which a transaction does deferred frees: a branch page of them has about as
/// many leaves.
const OWED_UNITS_MIN: u64 = 64;

/// The durability that a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitDurability {
    /// None: a crash before the next checkpoint, or the next commit that is synced, takes it back.
    Memory,
    /// Durable: no crash takes it back, nor any transaction before it.
    Sync,
}

impl WriteTxn<'_> {
    /// [`WriteTxn::commit`] with [`CommitDurability::Memory`]: makes all that was done visible and
    /// touches no file.
    ///
    /// # Errors
    ///
    /// Those of [`WriteTxn::commit`].
    pub fn publish(self) -> Result<u64> {
        self.commit(CommitDurability::Memory)
    }

    /// Makes all that was done visible to all later reads, as a whole. Returns the transaction's
    /// number, or that of the one before if there was nothing to do.
    ///
    /// With [`CommitDurability::Sync`] it returns once the transaction is durable, and so are all
    /// before it. Others read it, and build on it, before that: a caller that must not waits for
    /// [`PageStore::durable_txid`](crate::PageStore::durable_txid). It costs its share of a group
    /// commit, one append to the redo area and one sync; the next transaction begins meanwhile.
    /// Where that is not possible it costs a checkpoint, and the next transaction begins after it:
    /// the first time of all, which makes the area; if the area is full; if the changes since the
    /// last checkpoint or synced commit are more than a quarter of it; and without one
    /// ([`Options::redo_bytes`](crate::Options::redo_bytes) is 0).
    ///
    /// # Errors
    ///
    /// [`Error::Broken`] if an operation failed half-way, [`Error::Poisoned`] if a checkpoint or a
    /// commit has failed meanwhile, [`Error::TooLarge`] if the commit metadata is too long,
    /// [`Error::NoSpace`] if the file has to grow for the checkpoint and cannot; [`Error::Corrupt`]
    /// also if the trees name units that are not in use, or a page twice; else an error of reading
    /// a page. Nothing is published then.
    ///
    /// [`Error::Io`] and [`Error::Poisoned`] of a commit that is to be durable may also say that
    /// writing it failed: it was seen, and whether it is durable shows when the store is opened
    /// again, which takes no more writes until then. [`Error::NoSpace`] of one that costs a
    /// checkpoint may also say that a [`TreeBuilder`](crate::TreeBuilder) took the room meanwhile:
    /// it was seen, and is durable with the next checkpoint.
    ///
    /// [`Error::Broken`]: crate::Error::Broken
    /// [`Error::Corrupt`]: crate::Error::Corrupt
    /// [`Error::Io`]: crate::Error::Io
    /// [`Error::NoSpace`]: crate::Error::NoSpace
    /// [`Error::Poisoned`]: crate::Error::Poisoned
    /// [`Error::TooLarge`]: crate::Error::TooLarge
    pub fn commit(self, durability: CommitDurability) -> Result<u64> {
        let WriteTxn { state, shared, writer_guard } = self;
        // Bound after the guard, so dropped before it.
        let mut state = state;
        save(&mut state, shared)?;
        if state.is_nothing() {
            let txid = state.pages.base().txid;
            drop(state);
            return match durability {
                CommitDurability::Memory => Ok(txid),
                CommitDurability::Sync => sync_with_guard(shared, writer_guard).map(|_| txid),
            };
        }
        free_owed(shared, &mut state)?;
        let txid = state.pages.txid();
        match durability {
            CommitDurability::Memory => {
                let recorder = publish(state, shared)?;
                shared.redo.push(txid, recorder, AppendUrgency::Later);
            }
            CommitDurability::Sync if is_admitted(&mut state, shared) => {
                let recorder = publish(state, shared)?;
                // Under the writer lock, so records are queued in the order of transactions.
                shared.redo.push(txid, recorder, AppendUrgency::Now);
                // The next transaction runs while this one waits for the sync.
                drop(writer_guard);
                wait(shared, txid)?;
            }
            CommitDurability::Sync => {
                checkpoint::make_room(shared, CheckpointScope::WithRedo)?;
                let recorder = publish(state, shared)?;
                shared.redo.push(txid, recorder, AppendUrgency::Later);
                // No transaction is published before it is durable, so it leaves no gap behind.
                checkpoint::run(shared, CheckpointScope::WithRedo)?;
            }
        }
        debug_assert!(
            durability == CommitDurability::Memory || shared.redo.durable() >= txid,
            "{txid} is acknowledged before it is durable"
        );
        Ok(txid)
    }

    /// Publishes a replayed transaction, also if it changes nothing here: so each transaction gets
    /// the number that it had.
    pub(crate) fn replay(self) -> Result<()> {
        let WriteTxn { state, shared, .. } = self;
        let mut state = state;
        save(&mut state, shared)?;
        free_owed(shared, &mut state)?;
        let txid = state.pages.txid();
        let recorder = publish(state, shared)?;
        shared.redo.push(txid, recorder, AppendUrgency::Later);
        Ok(())
    }
}

/// Makes durable what is published. Returns the last durable transaction.
pub(crate) fn sync(shared: &Arc<StoreShared>) -> Result<u64> {
    shared.refuse_if_poisoned()?;
    let seen = shared.current().txid;
    match shared.redo.last() {
        Some(last) if last >= seen => wait(shared, last).map(|()| last),
        // A visible transaction gets its record a moment later, from the holder of the writer lock.
        _ => sync_with_guard(shared, shared.writer_lock.lock()),
    }
}

fn sync_with_guard(shared: &StoreShared, writer_guard: WriterGuard<'_>) -> Result<u64> {
    if let Some(last) = shared.redo.last() {
        drop(writer_guard);
        return wait(shared, last).map(|()| last);
    }
    checkpoint::run(shared, CheckpointScope::WithRedo)?;
    Ok(shared.redo.durable())
}

fn wait(shared: &StoreShared, txid: u64) -> Result<()> {
    let outcome = shared.redo.wait(txid);
    if outcome.is_err() {
        shared.poison();
    }
    outcome
}

/// Refuses what may not be published, and writes what has changed about the trees into the
/// catalogue.
fn save(state: &mut TxnState, shared: &StoreShared) -> Result<()> {
    state.refuse_if_broken()?;
    refuse_over("a mark", state.commit_metadata().len(), COMMIT_METADATA_BYTES_MAX)?;
    shared.refuse_if_poisoned()?;
    state.save_trees()
}

/// Whether the record can be appended to the redo area.
fn is_admitted(state: &mut TxnState, shared: &StoreShared) -> bool {
    let txid = state.pages.txid();
    state.recorder.finish(txid).is_some_and(|record| shared.redo.admits(record))
}

/// Defers the free of the subtrees that the transaction has detached, and frees about twice as many
/// deferred units as it takes: so the backlog stays bounded whatever is cut off, and no transaction
/// pays for another.
fn free_owed(shared: &StoreShared, state: &mut TxnState) -> Result<()> {
    // Only the holder of the writer lock comes here, so the load and the store need not be one
    // operation.
    let owed = &shared.counters.owed_units;
    let units = owed.load(Ordering::Relaxed) + 2 * state.pages.page_units();
    let due = if units < OWED_UNITS_MIN { 0 } else { units };
    // Deferred pages that cannot be read stay deferred, and `reclaim` and `check` report them: no
    // reason to refuse an unrelated transaction.
    let (freed, _) = state.free_deferred(due)?;
    let left = if state.deferred_free_units() == 0 { 0 } else { units.saturating_sub(freed) };
    // Bounded, so that one transaction does not pay for all after a burst.
    owed.store(left.min(1 << 12), Ordering::Relaxed);
    Ok(())
}

/// Makes what was done the last published state.
///
/// # Errors
///
/// [`Error::Corrupt`](crate::Error::Corrupt) if the trees named units that are not in use: nothing
/// is published then.
fn publish(mut state: TxnState, shared: &StoreShared) -> Result<RedoRecorder> {
    let txid = state.pages.txid();
    assert!(shared.writer_lock.is_locked(), "{txid} is published without the writer lock");
    debug_assert_eq!(txid, shared.current.read().txid + 1, "transactions do not follow each other");
    let written = state.pages.take();
    let spans = written.spans();
    for (id, frame) in written.pages {
        shared.page_reader.put_dirty(id, frame);
    }
    for (start, value) in written.extents {
        shared.page_reader.put_extent(start, value, txid);
    }
    let mut space = shared.space.lock();
    space.adopt(&written.adopted);
    if let Err(error) = space.leave_all(&written.replaced) {
        space.take_back(&shared.page_reader, &spans, &written.adopted);
        return Err(error);
    }
    // A root is made only if it is opened, because its drop says that it has ended.
    // Pages are in the table before the root is current: its readers find them there.
    space.open(txid);
    *shared.current.write() = state.next_root();
    // The state pins the root that it was built on; without it, pages that no reader needs are free
    // now.
    let recorder = state.into_recorder();
    space.publish(&shared.page_reader, txid, &spans, &written.replaced);
    let grown_bytes = space.grown_bytes();
    let garbage = space.page_alloc.take_garbage();
    let asks_for_slabs = space.page_alloc.asks_for_slabs();
    drop(space);
    drop(garbage);
    if asks_for_slabs || grown_bytes >= shared.options.dirty_soft_bytes {
        shared.background.notify.signal();
    }
    Ok(recorder)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use flotilla_vfs::FileSystem;
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::{Options, PageStore};

    #[test]
    fn sync_makes_durable_what_was_seen_though_its_record_is_still_to_come() {
        let fs = FaultFs::new(1);
        fs.create_dir_all(Path::new("/data")).unwrap();
        let store =
            PageStore::open_with(Arc::new(fs), Path::new("/data/pages"), Options::default())
                .unwrap();
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(b"a", b"1").unwrap();
        let first = txn.commit(CommitDurability::Sync).unwrap();
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(b"a", b"2").unwrap();
        // The steps of `commit`, stopped half-way.
        let WriteTxn { mut state, shared, writer_guard } = txn;
        save(&mut state, shared).unwrap();
        let recorder = publish(state, shared).unwrap();
        let seen = store.read().txid();
        assert_eq!(seen, first + 1);
        thread::scope(|scope| {
            let synced = scope.spawn(|| store.sync().unwrap());
            while !synced.is_finished() && shared.writer_lock.queue_len() < 2 {
                thread::yield_now();
            }
            shared.redo.push(seen, recorder, AppendUrgency::Later);
            drop(writer_guard);
            assert_eq!(synced.join().unwrap(), seen);
        });
        assert_eq!(store.durable_txid(), seen);
    }
}
