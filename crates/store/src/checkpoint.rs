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

use std::collections::{BTreeMap, BTreeSet};

use flotilla_pagestore::{PageStore, WriteTxn};
use flotilla_region::{
    EndTask, HardState, Index, PeerId, RegionChange, RegionId, SPLIT_INDEX, StageId, StoreId,
};
use parking_lot::Mutex;

use crate::apply::AppliedReplica;
use crate::error::Error;
use crate::schema::{
    self, APPLY, ApplyState, CheckpointLsn, REGION, TOMB, Tombstone, UNINITIALISED,
    UninitialisedRow,
};
use crate::snapshot::Installed;
use crate::store_log::{self, CheckpointInput, StoreLog};

/// A replica of which a durable root has more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointedReplica {
    /// The region.
    pub region: RegionId,
    /// The last entry whose effects the root has.
    pub applied: Index,
    /// The snapshot that was installed since the last checkpoint.
    pub installed: Option<StageId>,
}

/// The news of a durable root: it has them, and the one before had not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointReport {
    /// The replicas that have changed.
    pub replicas: Vec<CheckpointedReplica>,
    /// The tasks whose replicas have ended for good: no start finds them again (R12).
    pub ended: Vec<EndTask>,
}

/// The way from the last durable root to the next.
#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    since: Mutex<ChangesSince>,
    /// Held while the next is made.
    making: Mutex<()>,
}

/// The changes since the last durable root. A checkpoint costs what changed, not what is there.
#[derive(Clone, Debug, Default)]
struct ChangesSince {
    /// The replicas that were applied, by region.
    applied: BTreeMap<RegionId, AppliedSince>,
    /// The ends that were published.
    ended: BTreeSet<(RegionId, PeerId)>,
}

/// How far a replica is applied, and the snapshot that was installed since the last root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AppliedSince {
    peer: PeerId,
    index: Index,
    installed: Option<StageId>,
}

impl CheckpointState {
    /// These replicas are applied so far, in a transaction that is published: never before, or a
    /// checkpoint without it would report it.
    pub(crate) fn note_applied(&self, store: StoreId, replicas: &[AppliedReplica]) {
        let applied = &mut self.since.lock().applied;
        for replica in replicas {
            let AppliedReplica { peer, index, .. } = *replica;
            // A snapshot that no root has yet is still to be reported.
            let installed = applied.get(&replica.region).and_then(|before| before.installed);
            applied.insert(replica.region, AppliedSince { peer, index, installed });
            let splits = replica.changes.iter().filter_map(|change| match change {
                RegionChange::Split { regions, .. } => Some(regions),
                _ => None,
            });
            for regions in splits {
                let children = regions.children.iter();
                let here = children.filter_map(|child| Some((child.id, child.peer_on(store)?)));
                applied.extend(here.map(|(child, peer)| {
                    let (peer, index, installed) = (peer.id, SPLIT_INDEX, None);
                    (child, AppliedSince { peer, index, installed })
                }));
            }
        }
    }

    /// A snapshot is in the rows, in a transaction that is published.
    pub(crate) fn note_installed(&self, installed: &Installed, stage: StageId) {
        let Installed { region, peer, index, .. } = *installed;
        let installed = Some(stage);
        self.since.lock().applied.insert(region, AppliedSince { peer, index, installed });
    }

    /// A task to end a replica is carried out, in a transaction that is published, or nothing was
    /// left to do. `gone`: the region's replica was here and has ended.
    pub(crate) fn note_ended(&self, task: &EndTask, gone: bool) {
        let mut since = self.since.lock();
        if gone {
            since.applied.remove(&task.region);
        }
        since.ended.insert((task.region, task.peer));
    }

    /// Makes all applied entries, installed snapshots and ends durable. Returns what has changed
    /// since the last checkpoint, and whether there was anything to do.
    pub(crate) fn make(
        &self,
        pages: &PageStore,
        log: &StoreLog,
        store: StoreId,
    ) -> Result<(CheckpointReport, bool), Error> {
        // Two checkpoints at once could end in the wrong order, and the durable indexes would go
        // back.
        let _one = self.making.lock();
        // Before the log is written: the hard states in it are then in the log's index, and one
        // that is written later is left for the next checkpoint.
        let taken = log.checkpoint_input();
        let is_idle = || taken.is_empty() && pages.read().txid() == pages.durable().txid;
        {
            let since = self.since.lock();
            if since.applied.is_empty() && since.ended.is_empty() && is_idle() {
                return Ok((CheckpointReport::default(), false));
            }
        }
        log.engine().sync().wait()?;
        copy_hard_states(pages, log, store, &taken)?;
        // Taken before the checkpoint, so the durable root has applied at least as much. Entries
        // that are applied meanwhile are published and maybe not durable: the log must keep them.
        let ChangesSince { applied, ended } = self.since.lock().clone();
        let txid = pages.read().txid();
        log.engine().sync().wait()?;
        // The log was synced just now: no root may hold an entry that the log could still lose.
        let done = pages.checkpoint()?;
        assert!(done.txid >= txid, "checkpoint {} is older than the snapshot {txid}", done.txid);
        for (region, since) in &applied {
            check_applied(log, *region, since);
        }
        for (region, peer) in &ended {
            // R12. Its shard would hear of a replica whose slot is free.
            let here = applied.get(region).map(|since| since.peer);
            assert!(
                here.is_none_or(|here| here > *peer),
                "region {region}: a root has {here:?} and the end of {peer}"
            );
        }
        // After the root: from here on the log gives up data that only this root has.
        let indexes = applied.values().map(|since| (since.peer, since.index));
        log.complete_checkpoint(&taken, done.txid, indexes, &ended);
        // Not before: after an error the next checkpoint has to report them. Those that were
        // applied further in the meantime stay.
        let mut since = self.since.lock();
        since.applied.retain(|region, now| applied.get(region) != Some(now));
        since.ended.retain(|task| !ended.contains(task));
        drop(since);
        let replicas = applied.into_iter().map(|(region, since)| {
            let AppliedSince { index: applied, installed, .. } = since;
            CheckpointedReplica { region, applied, installed }
        });
        let ended = ended.into_iter().map(|(region, peer)| EndTask { region, peer });
        Ok((CheckpointReport { replicas: replicas.collect(), ended: ended.collect() }, true))
    }
}

/// A root that has applied entries which the log lacks could not be followed by the log any more: a
/// restart would reset the log and with it the acknowledged entries above.
fn check_applied(log: &StoreLog, region: RegionId, since: &AppliedSince) {
    let AppliedSince { peer, index: applied, installed } = *since;
    // The log of an installed snapshot is reset once this root is told.
    if installed.is_some() {
        return;
    }
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
    store: StoreId,
    taken: &CheckpointInput,
) -> Result<(), Error> {
    // Read before the groups are, which then hold every hard state up to there.
    let position = CheckpointLsn { lsn: log.engine().durable_lsn() };
    let mut txn = pages.write()?;
    for (region, peer) in taken.replicas() {
        let Some(group) = log.engine().group(peer.0) else { continue };
        let Some(newest) = store_log::hard_state(&group)? else { continue };
        // Its end is published, and the log keeps the group until a root has that.
        if has_ended(&mut txn, region, peer)? {
            continue;
        }
        let key = schema::region_key(region);
        let row = txn.tree(APPLY)?.get(&key)?.map(|row| row.to_vec());
        if taken.is_uninitialised(peer) {
            // A split or a snapshot may have given it data since `taken`; or a split has made
            // another replica. If that is the later one, this one is no member. If it is the
            // earlier one, that one ends, and the votes of this one count (R17).
            let other = other_replica(&mut txn, store, region, peer)?;
            if row.is_none() || other.is_some_and(|other| other < peer) {
                copy_uninitialised(&mut txn, region, peer, newest)?;
                continue;
            }
            if other.is_some() {
                continue;
            }
        }
        let mut state = ApplyState::decode(region, row.as_deref())?;
        state.hard_state = state.hard_state.merge(newest);
        // The hard state is written along with the entries that it was raised for.
        assert!(
            state.hard_state.term >= state.term,
            "region {region}: an entry of term {} is applied, and the log is in {:?}",
            state.term,
            state.hard_state
        );
        txn.tree(APPLY)?.put(&key, &state.encode())?;
    }
    txn.set_commit_metadata(&position.encode());
    txn.publish()?;
    Ok(())
}

fn has_ended(txn: &mut WriteTxn<'_>, region: RegionId, peer: PeerId) -> Result<bool, Error> {
    let tombstones = txn.tree(TOMB)?;
    let Some(row) = tombstones.get(&schema::region_key(region))? else { return Ok(false) };
    Ok(peer <= Tombstone::decode(region, &row)?.peer)
}

/// The replica of the region that has rows here, if it is not this one.
fn other_replica(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    region: RegionId,
    peer: PeerId,
) -> Result<Option<PeerId>, Error> {
    let regions = txn.tree(REGION)?;
    let Some(row) = regions.get(&schema::region_key(region))? else { return Ok(None) };
    let descriptor = schema::decode_descriptor(region, &row)?;
    Ok(schema::replica_here(&descriptor, store).filter(|here| *here != peer))
}

/// Puts the hard state of a replica without data into its row, so that the log may forget it.
fn copy_uninitialised(
    txn: &mut WriteTxn<'_>,
    region: RegionId,
    peer: PeerId,
    newest: HardState,
) -> Result<(), Error> {
    let key = schema::region_key(region);
    let mut rows = txn.tree(UNINITIALISED)?;
    let before = rows.get(&key)?.map(|row| row.to_vec());
    let mut row = UninitialisedRow { peer, hard_state: newest };
    if let Some(before) = before {
        let before = UninitialisedRow::decode(region, &before)?;
        if before.peer != peer {
            return Err(Error::Corrupt(format!(
                "region {region} has two replicas without data, {} and {peer}",
                before.peer
            )));
        }
        row.hard_state = newest.merge(before.hard_state);
    }
    rows.put(&key, &row.encode())?;
    Ok(())
}
