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

use std::collections::BTreeMap;

use flotilla_pagestore::PageStore;
use flotilla_region::{Index, PeerId, RegionChange, RegionId, SPLIT_INDEX, StoreId};
use parking_lot::Mutex;

use crate::apply::AppliedReplica;
use crate::error::Error;
use crate::schema::{self, APPLY, ApplyState, CheckpointLsn};
use crate::store_log::{self, StoreLog};

/// The way from the last durable root to the next.
#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    /// The replicas that were applied since, by region. A checkpoint costs what changed, not what
    /// is there.
    applied: Mutex<BTreeMap<RegionId, (PeerId, Index)>>,
    /// Held while the next is made.
    making: Mutex<()>,
}

impl CheckpointState {
    /// These replicas are applied so far, in a transaction that is published: never before, or a
    /// checkpoint without it would report it.
    pub(crate) fn note_applied(&self, store: StoreId, replicas: &[AppliedReplica]) {
        let mut applied = self.applied.lock();
        for replica in replicas {
            applied.insert(replica.region, (replica.peer, replica.index));
            for RegionChange::Split { regions, .. } in &replica.changes {
                let children = regions.children.iter();
                let here = children.filter_map(|child| Some((child.id, child.peer_on(store)?)));
                applied.extend(here.map(|(child, peer)| (child, (peer.id, SPLIT_INDEX))));
            }
        }
    }

    /// Makes all applied entries durable. Returns the applied index of each region that was applied
    /// since the last checkpoint, and whether there was anything to do.
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
        let is_idle = || taken.is_empty() && pages.read().txid() == pages.durable().txid;
        if self.applied.lock().is_empty() && is_idle() {
            return Ok((vec![], false));
        }
        log.engine().sync().wait()?;
        copy_hard_states(pages, log, taken.replicas())?;
        // Taken before the checkpoint, so the durable root has applied at least as much. Entries
        // that are applied meanwhile are published and maybe not durable: the log must keep them.
        let applied = self.applied.lock().clone();
        let txid = pages.read().txid();
        log.engine().sync().wait()?;
        // The log was synced just now: no root may hold an entry that the log could still lose.
        let done = pages.checkpoint()?;
        assert!(done.txid >= txid, "checkpoint {} is older than the snapshot {txid}", done.txid);
        for (region, (peer, applied)) in &applied {
            check_applied(log, *region, *peer, *applied);
        }
        // After the root: from here on the log gives up data that only this root has.
        log.complete_checkpoint(&taken, done.txid, applied.values().copied());
        // Not before: after an error the next checkpoint has to report them. Those that were
        // applied further in the meantime stay.
        self.applied.lock().retain(|region, now| applied.get(region) != Some(now));
        let durable = applied.into_iter().map(|(region, (_, applied))| (region, applied));
        Ok((durable.collect(), true))
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
