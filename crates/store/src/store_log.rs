//! The log of all regions of the store: batches of the log engine, and the part of the log that no
//! durable root of the page store covers yet.
//!
//! Invariants:
//! - A group's entries are forgotten only up to what the last durable root has applied.
//! - The log gives up data together with the number of the root that has it, so that older pages
//!   are never taken for those that belong to it.
//! - A log is emptied behind a snapshot only once a durable root has the snapshot.
//! - The group of an ended replica is removed only once a durable root has the end.
//! - A group's hard state is forgotten only if the last durable root has the same, and no other is
//!   on its way: it might be a vote that was given already.

mod uncheckpointed_log;

use std::collections::{BTreeMap, BTreeSet};

use flotilla_identity::{ClusterSettings, PeerWrite};
use flotilla_raftlog::{Commit, Durability, Group, LogBatch, LogEngine};
use flotilla_region::{
    BirthOrigin, Compaction, HardState, Index, LogWrite, PeerId, RegionId, ReplicaBirth,
    SPLIT_INDEX, Term, UnbornReplica,
};
use parking_lot::Mutex;

use crate::error::Error;
use crate::schema::{BIRTH_KEY, HARD_STATE_KEY};
use crate::store_group;
use uncheckpointed_log::{HardStateWrite, UncheckpointedLog};

/// The log engine, with the part of the log that no checkpoint covers yet.
#[derive(Debug)]
pub(crate) struct StoreLog {
    engine: LogEngine,
    uncheckpointed: Mutex<UncheckpointedLog>,
}

/// The part of the log that a checkpoint has to cover.
#[derive(Debug, Default)]
pub(crate) struct CheckpointInput {
    hard_state_writes: BTreeMap<PeerId, HardStateWrite>,
    uninitialised: BTreeSet<PeerId>,
    bytes: u64,
}

impl CheckpointInput {
    /// The replicas whose hard states were written since the last checkpoint.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (RegionId, PeerId)> {
        self.hard_state_writes.iter().map(|(peer, last_write)| (last_write.region, *peer))
    }

    /// Whether the replica had no data when this was taken.
    pub(crate) fn is_uninitialised(&self, peer: PeerId) -> bool {
        self.uninitialised.contains(&peer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hard_state_writes.is_empty() && self.bytes == 0
    }
}

impl StoreLog {
    /// A log whose pages have this durable root.
    pub(crate) fn new(engine: LogEngine, root: u64) -> Result<Self, Error> {
        let relied_root = store_group::relied_root(&engine)?;
        assert!(
            relied_root <= root,
            "the log relies on root {relied_root}, the pages are at {root}"
        );
        Ok(Self {
            engine,
            uncheckpointed: Mutex::new(UncheckpointedLog {
                root,
                relied_root,
                ..UncheckpointedLog::default()
            }),
        })
    }

    pub(crate) fn engine(&self) -> &LogEngine {
        &self.engine
    }

    /// Queues everything as one batch.
    pub(crate) fn write(
        &self,
        writes: &[LogWrite],
        births: &[ReplicaBirth],
        compactions: &[Compaction],
        removals: &[PeerId],
    ) -> Commit {
        let mut batch = LogBatch::new();
        // Held until the batch is queued: no hard state may be forgotten while it is replaced.
        let mut uncheckpointed = self.uncheckpointed.lock();
        uncheckpointed.writes += 1;
        for write in writes {
            uncheckpointed.check_alive(write);
            uncheckpointed.add(write, &mut batch);
        }
        for birth in births {
            uncheckpointed.add_birth(birth, &mut batch);
        }
        for compaction in compactions {
            uncheckpointed.compact(compaction, &mut batch);
        }
        for peer in removals {
            uncheckpointed.remove(*peer, &mut batch);
        }
        // In the same batch as what is given up: if that is found after a crash, so is the root
        // that older pages are refused by.
        let gives_up = !(compactions.is_empty() && removals.is_empty());
        if gives_up || writes.iter().any(|write| write.reset.is_some()) {
            uncheckpointed.record_relied_root(&mut batch);
        }
        uncheckpointed.bytes += batch.bytes();
        // R14: a replica that was born by a message votes next, and nothing else knows of it.
        let speaks = births.iter().any(|birth| birth.origin == BirthOrigin::Message);
        let synced = speaks || writes.iter().any(|write| write.sync);
        // A mere commit index is found again after a crash, so it waits for no sync.
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        if batch.is_empty() {
            // All that was asked for is done already; earlier batches may still be on their way.
            return self.engine.sync();
        }
        self.engine.write(batch, durability)
    }

    /// Remembers a start of another store, durably.
    pub(crate) fn remember_peer(&self, write: &PeerWrite) -> Result<(), Error> {
        self.write_own(|engine| store_group::put_peer_run(engine, write))
    }

    /// Keeps settings of the cluster, durably.
    pub(crate) fn keep_settings(&self, settings: &ClusterSettings) -> Result<(), Error> {
        self.write_own(|engine| store_group::put_settings(engine, settings))
    }

    fn write_own(&self, put: impl FnOnce(&LogEngine) -> Commit) -> Result<(), Error> {
        // A rewrite of the store's own group holds this lock as well: between its reading and its
        // writing no newer row may be queued.
        let uncheckpointed = self.uncheckpointed.lock();
        let commit = put(&self.engine);
        // The log writer needs the lock for its next batch, and must not wait for this sync.
        drop(uncheckpointed);
        commit.wait()?;
        Ok(())
    }

    /// Writes the store's own group again, as it is once the queue is written. Holds the lock of
    /// those that change it: else a value that was read here would overwrite a newer one.
    pub(crate) fn rewrite_own_group(&self) -> Result<(), Error> {
        let uncheckpointed = self.uncheckpointed.lock();
        // Reads do not see the queue. No callback runs here that could want the lock: the store
        // sets none.
        self.engine.flush();
        let commit = store_group::rewrite(&self.engine);
        drop(uncheckpointed);
        commit.wait()?;
        Ok(())
    }

    /// Bytes of batches that no checkpoint has taken yet.
    pub(crate) fn bytes_ahead(&self) -> u64 {
        self.uncheckpointed.lock().bytes
    }

    /// Tells what was found when the store was opened.
    pub(crate) fn note_recovered(&self, region: RegionId, peer: PeerId, found: RecoveredGroup) {
        let mut uncheckpointed = self.uncheckpointed.lock();
        uncheckpointed.durable.insert(peer, found.durable.0);
        // As if it had been written just now: until a checkpoint has copied it, the log must not
        // forget it.
        if found.hard_state_ahead {
            uncheckpointed
                .hard_state_writes
                .insert(peer, HardStateWrite { region, write: 0, hard_state: found.hard_state });
        }
        if found.absent {
            uncheckpointed.absent.insert(peer, found.durable);
        }
    }

    /// Tells of a replica that was found in the log, and in no durable row.
    pub(crate) fn note_unborn(&self, unborn: &UnbornReplica) {
        let mut uncheckpointed = self.uncheckpointed.lock();
        let UnbornReplica { region, peer, parent, hard_state, .. } = *unborn;
        assert!(
            !uncheckpointed.durable.contains_key(&peer),
            "region {region}: replica {peer} has rows, and is said to have none"
        );
        uncheckpointed.durable.insert(peer, SPLIT_INDEX);
        uncheckpointed
            .hard_state_writes
            .insert(peer, HardStateWrite { region, write: 0, hard_state });
        uncheckpointed.unborn.insert(peer, parent);
    }

    /// Tells of a replica that was found without data. `is_in_log`: the log has a hard state of it,
    /// which its row may not have.
    pub(crate) fn note_uninitialised(
        &self,
        region: RegionId,
        peer: PeerId,
        hard_state: HardState,
        is_in_log: bool,
    ) {
        let durable = (Index(0), Term(0));
        let absent = true;
        let found = RecoveredGroup { durable, hard_state, hard_state_ahead: is_in_log, absent };
        self.note_recovered(region, peer, found);
        self.uncheckpointed.lock().uninitialised.insert(peer, region);
    }

    /// The replicas of a region that have no data. Their births may still be on their way to disk.
    pub(crate) fn uninitialised_of(&self, region: RegionId) -> Vec<PeerId> {
        let uncheckpointed = self.uncheckpointed.lock();
        let here = uncheckpointed.uninitialised.iter().filter(|(_, of)| **of == region);
        here.map(|(peer, _)| *peer).collect()
    }

    /// These replicas of a region are about to end, by a task for `by`.
    ///
    /// # Panics
    ///
    /// If one of them may not end now.
    pub(crate) fn note_ended(&self, region: RegionId, by: PeerId, replicas: &[PeerId]) {
        self.uncheckpointed.lock().note_ended(region, by, replicas);
    }

    /// Whether a replica has ended, and its group waits to be removed.
    pub(crate) fn is_removal_due(&self, peer: PeerId) -> bool {
        self.uncheckpointed.lock().ended.contains_key(&peer)
    }

    /// Removes the groups of replicas whose ends the durable root has: the last step of those,
    /// which a crash has kept from the log. Only before any of the replicas is told of.
    pub(crate) fn remove_ended(&self, groups: &[PeerId]) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let mut batch = LogBatch::new();
        groups.iter().for_each(|peer| batch.remove_group(peer.0));
        self.uncheckpointed.lock().record_relied_root(&mut batch);
        self.engine.write(batch, Durability::Synced).wait()?;
        Ok(())
    }

    /// A snapshot is about to take the place of a replica's rows.
    ///
    /// # Panics
    ///
    /// If the replica may not take one now.
    pub(crate) fn note_install(
        &self,
        region: RegionId,
        peer: PeerId,
        index: Index,
        hard_state: HardState,
    ) {
        self.uncheckpointed.lock().note_install(region, peer, index, hard_state);
    }

    /// Whether a snapshot of the replica was installed, and its log does not begin there yet.
    pub(crate) fn is_reset_due(&self, peer: PeerId) -> bool {
        self.uncheckpointed.lock().resets_due.contains_key(&peer)
    }

    /// How far the last durable root has applied a replica.
    pub(crate) fn durable(&self, peer: PeerId) -> Index {
        self.uncheckpointed.lock().durable.get(&peer).copied().unwrap_or_default()
    }

    /// The writes that were queued up to now and that no checkpoint has covered.
    pub(crate) fn checkpoint_input(&self) -> CheckpointInput {
        let uncheckpointed = self.uncheckpointed.lock();
        let born = |peer: &PeerId| !uncheckpointed.unborn.contains_key(peer);
        let writes = uncheckpointed.hard_state_writes.iter().filter(|(peer, _)| born(peer));
        let hard_state_writes: BTreeMap<_, _> =
            writes.map(|(peer, write)| (*peer, *write)).collect();
        let has_no_data = |peer: &&PeerId| uncheckpointed.uninitialised.contains_key(*peer);
        CheckpointInput {
            uninitialised: hard_state_writes.keys().filter(has_no_data).copied().collect(),
            hard_state_writes,
            bytes: uncheckpointed.bytes,
        }
    }

    /// A durable root now covers `input`, and holds these applied indexes and ends.
    pub(crate) fn complete_checkpoint(
        &self,
        input: &CheckpointInput,
        root: u64,
        durable: impl Iterator<Item = (PeerId, Index)>,
        ended: &BTreeSet<(RegionId, PeerId)>,
    ) {
        let mut uncheckpointed = self.uncheckpointed.lock();
        assert!(root >= uncheckpointed.root, "root {root} after {}", uncheckpointed.root);
        uncheckpointed.root = root;
        // Else the count would wrap and every look at it would want a checkpoint.
        assert!(
            input.bytes <= uncheckpointed.bytes,
            "a checkpoint covers {} bytes of {}",
            input.bytes,
            uncheckpointed.bytes
        );
        uncheckpointed.bytes -= input.bytes;
        // Hard states that were written again in the meantime are still uncovered.
        uncheckpointed
            .hard_state_writes
            .retain(|peer, last_write| input.hard_state_writes.get(peer) != Some(last_write));
        for (peer, applied) in durable {
            let before = uncheckpointed.durable.insert(peer, applied).unwrap_or_default();
            assert!(applied >= before, "peer {peer}: durable index {applied} after {before}");
        }
        for end in uncheckpointed.ended.values_mut() {
            end.is_rooted |= ended.contains(&(end.region, end.by));
        }
    }

    /// Lets the log forget what groups hold only for a restart that the last durable root serves
    /// as well. Returns false if there was nothing of the kind.
    pub(crate) fn forget(&self, groups: impl Iterator<Item = u64>) -> Result<bool, Error> {
        let mut batch = LogBatch::new();
        let mut uncheckpointed = self.uncheckpointed.lock();
        for id in groups {
            let peer = PeerId(id);
            // Not while a hard state is newer than the durable root: it may be a vote that was
            // given, and is nowhere else. The store's own group is never in this map.
            let idle = uncheckpointed.durable.contains_key(&peer)
                && !uncheckpointed.hard_state_writes.contains_key(&peer);
            let Some(group) = self.engine.group(id).filter(|_| idle) else { continue };
            if is_empty(&group) {
                let last = (Index(group.last_index()), Term(group.term(group.last_index())?));
                // A log is emptied up to the durable index at most, by compactions or by a reset.
                let durable = uncheckpointed.durable[&peer];
                assert!(
                    last.0 <= durable,
                    "peer {peer}: the log forgets entries up to {}, only {durable} is durable",
                    last.0
                );
                uncheckpointed.absent.insert(peer, last);
                batch.remove_group(id);
            } else {
                let held = [HARD_STATE_KEY, BIRTH_KEY];
                for key in held.into_iter().filter(|key| group.get(key).is_some()) {
                    batch.delete(id, key);
                }
            }
        }
        if batch.is_empty() {
            return Ok(false);
        }
        uncheckpointed.record_relied_root(&mut batch);
        // Not synced: a deletion that a crash takes back costs a segment for a while, and nothing
        // else.
        let commit = self.engine.write(batch, Durability::Buffered);
        drop(uncheckpointed);
        commit.wait()?;
        Ok(true)
    }
}

/// The state of one replica's log group as recovery found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoveredGroup {
    /// How far the durable root has applied it.
    pub(crate) durable: (Index, Term),
    /// The newest hard state, of the log and the root.
    pub(crate) hard_state: HardState,
    /// The log has a hard state that the root may not have.
    pub(crate) hard_state_ahead: bool,
    /// The log holds nothing of it.
    pub(crate) absent: bool,
}

/// The hard state that a group holds.
pub(crate) fn hard_state(group: &Group) -> Result<Option<HardState>, Error> {
    let Some(bytes) = group.get(HARD_STATE_KEY) else { return Ok(None) };
    let decoded = HardState::decode(bytes);
    Ok(Some(decoded.map_err(|error| Error::Corrupt(format!("in the log: {error}")))?))
}

pub(crate) fn is_empty(group: &Group) -> bool {
    group.last_index() < group.first_index()
}
