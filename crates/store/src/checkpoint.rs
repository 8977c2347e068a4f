//! Checkpoints: the pages become durable, so that the log may be shortened.
//!
//! The order is what matters:
//! 1. All batches queued so far are written to the log, so that its index has the newest hard
//!    states.
//! 2. They are copied into the rows, with the place in the log up to which this is all of them.
//! 3. The log is synced: no root may know of an entry, applied or committed, that a power loss
//!    could still take from the log.
//! 4. The pages are written, synced, and the root is flipped.
//! 5. Only now the log may forget what this root holds.

use flotilla_pagestore::PageStore;
use flotilla_region::{Index, PeerId, RegionId, StoreId};
use parking_lot::Mutex;

use crate::error::Error;
use crate::schema::{self, APPLY, ApplyState, CheckpointLsn};
use crate::snapshot_read::StoreSnapshot;
use crate::store_log::{self, StoreLog};

/// The last durable root, and the way to the next.
#[derive(Debug)]
pub(crate) struct CheckpointState {
    store: StoreId,
    /// How far each region is applied in the last durable root.
    durable: Mutex<Vec<(RegionId, Index)>>,
    /// Held while the next is made.
    making: Mutex<()>,
}

impl CheckpointState {
    pub(crate) fn new(store: StoreId, durable: Vec<(RegionId, Index)>) -> Self {
        Self { store, durable: Mutex::new(durable), making: Mutex::new(()) }
    }

    /// How far each region is applied in the last durable root.
    pub(crate) fn durable(&self) -> Vec<(RegionId, Index)> {
        self.durable.lock().clone()
    }

    /// Makes all applied entries durable. Returns the applied index of each region, and whether
    /// there was anything to do.
    pub(crate) fn make(
        &self,
        pages: &PageStore,
        log: &StoreLog,
    ) -> Result<(Vec<(RegionId, Index)>, bool), Error> {
        // Two checkpoints at once could end in the wrong order, and the durable indexes would go
        // back.
        let _one = self.making.lock();
        // Before the log is written: the hard states in it are then in the log's index, and one
        // that is written later is left for the next checkpoint.
        let taken = log.checkpoint_input();
        if taken.is_empty() && pages.read().txid() == pages.durable().txid {
            return Ok((self.durable(), false));
        }
        log.engine().sync().wait()?;
        copy_hard_states(pages, log, taken.replicas())?;
        // Taken before the checkpoint, so the durable root has applied at least as much.
        let view = StoreSnapshot::new(pages.read());
        log.engine().sync().wait()?;
        // The log was synced just now: no root may hold an entry that the log could still lose.
        let done = pages.checkpoint()?;
        assert!(
            done.txid >= view.txid(),
            "checkpoint {} is older than the snapshot {}",
            done.txid,
            view.txid()
        );
        // Of that snapshot and not of the newest one: entries that were applied meanwhile are
        // published and not durable, and the log must keep them.
        let states = view.states()?;
        let durable: Vec<_> = states.iter().map(|(region, s)| (*region, s.applied)).collect();
        let mut replicas = vec![];
        for (descriptor, (region, applied)) in view.descriptors()?.iter().zip(&durable) {
            assert!(descriptor.id == *region, "rows of {} and of {region}", descriptor.id);
            let Some(peer) = descriptor.peer_on(self.store) else { continue };
            check_applied(log, *region, peer.id, *applied);
            replicas.push((peer.id, *applied));
        }
        // After the root: from here on the log gives up data that only this root has.
        log.complete_checkpoint(&taken, done.txid, replicas.into_iter());
        self.durable.lock().clone_from(&durable);
        Ok((durable, true))
    }
}

/// A root that has applied entries which the log lacks could not be followed by the log any more: a
/// restart would reset the log and with it the acknowledged entries above.
fn check_applied(log: &StoreLog, region: RegionId, peer: PeerId, applied: Index) {
    let Some(group) = log.engine().group(peer.0) else { return };
    let last = group.last_index();
    // A group without entries holds a hard state only: its log was forgotten.
    assert!(
        last == 0 || applied.0 <= last,
        "region {region}: entry {applied} is applied, but the log ends at {last}"
    );
}

/// Publishes a root with every hard state that the log holds.
fn copy_hard_states(
    pages: &PageStore,
    log: &StoreLog,
    replicas: impl Iterator<Item = (RegionId, PeerId)>,
) -> Result<(), Error> {
    // Read before the groups are, which then hold every hard state up to there.
    let position = CheckpointLsn { lsn: log.engine().durable_lsn() };
    let mut txn = pages.write()?;
    let mut states = txn.tree(APPLY)?;
    for (region, peer) in replicas {
        let Some(group) = log.engine().group(peer.0) else { continue };
        let Some(newest) = store_log::hard_state(&group)? else { continue };
        let key = schema::region_key(region);
        let mut state = ApplyState::decode(region, states.get(&key)?.as_deref())?;
        state.hard_state = state.hard_state.merge(newest);
        // The hard state is written along with the entries that it was raised for.
        assert!(
            state.hard_state.term >= state.term,
            "region {region}: an entry of term {} is applied, and the log is in {:?}",
            state.term,
            state.hard_state
        );
        states.put(&key, &state.encode())?;
    }
    txn.set_commit_metadata(&position.encode());
    txn.publish()?;
    Ok(())
}
