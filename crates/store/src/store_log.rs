//! The log of all regions of the store: batches of the log engine, and the part of the log that no
//! durable root of the page store covers yet.
//!
//! Invariants:
//! - A group's entries are forgotten only up to what the last durable root has applied.
//! - The log gives up data together with the number of the root that has it, so that older pages
//!   are never taken for those that belong to it.
//! - A group's hard state is forgotten only if the last durable root has the same, and no other is
//!   on its way: it might be a vote that was given already.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_identity::PeerWrite;
use flotilla_raftlog::{Commit, Durability, EntryRef, Group, LogBatch, LogEngine};
use flotilla_region::{
    Compaction, HardState, Index, LogEntry, LogWrite, PeerId, RegionId, ReplicaBirth, SPLIT_INDEX,
    SPLIT_TERM, Term, UnbornReplica,
};
use parking_lot::Mutex;

use crate::error::Error;
use crate::schema::{BIRTH_KEY, BirthRecord, HARD_STATE_KEY, RELIED_ROOT_KEY, STORE_GROUP};
use crate::store_group;

/// The log engine, with the part of the log that no checkpoint covers yet.
#[derive(Debug)]
pub(crate) struct StoreLog {
    engine: LogEngine,
    uncheckpointed: Mutex<UncheckpointedLog>,
}

/// The part of the log that the last durable root does not cover.
#[derive(Debug, Default)]
struct UncheckpointedLog {
    hard_state_writes: BTreeMap<PeerId, HardStateWrite>,
    /// Counts calls of `write`.
    writes: u64,
    bytes: u64,
    /// The transaction of the last durable root, and the one that the log says it relies on.
    root: u64,
    relied_root: u64,
    /// How far the last durable root has applied each replica.
    durable: BTreeMap<PeerId, Index>,
    /// Groups that the log holds nothing of, with the entry before their next one.
    absent: BTreeMap<PeerId, (Index, Term)>,
    /// Replicas of the log whose splits are applied again first: there is no row yet to copy their
    /// hard states into.
    unborn: BTreeSet<PeerId>,
}

/// The last write of a replica's hard state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HardStateWrite {
    region: RegionId,
    write: u64,
    hard_state: HardState,
}

/// The part of the log that a checkpoint has to cover.
#[derive(Debug, Default)]
pub(crate) struct CheckpointInput {
    hard_state_writes: BTreeMap<PeerId, HardStateWrite>,
    bytes: u64,
}

impl CheckpointInput {
    /// The replicas whose hard states were written since the last checkpoint.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (RegionId, PeerId)> {
        self.hard_state_writes.iter().map(|(peer, last_write)| (last_write.region, *peer))
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
    ) -> Commit {
        let mut batch = LogBatch::new();
        // Held until the batch is queued: no hard state may be forgotten while it is replaced.
        let mut uncheckpointed = self.uncheckpointed.lock();
        uncheckpointed.writes += 1;
        for write in writes {
            uncheckpointed.add(write, &mut batch);
        }
        for birth in births {
            uncheckpointed.add_birth(birth, &mut batch);
        }
        for compaction in compactions {
            uncheckpointed.compact(compaction, &mut batch);
        }
        // In the same batch as the compactions: if these are found after a crash, so is the root
        // that older pages are refused by.
        if !compactions.is_empty() {
            uncheckpointed.record_relied_root(&mut batch);
        }
        uncheckpointed.bytes += batch.bytes();
        let synced = writes.iter().any(|write| write.sync);
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
        // A rewrite of the store's own group holds this lock as well: between its reading and its
        // writing no newer row may be queued.
        let uncheckpointed = self.uncheckpointed.lock();
        let commit = store_group::put_peer_run(&self.engine, write);
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
        let UnbornReplica { region, peer, hard_state, .. } = *unborn;
        assert!(
            !uncheckpointed.durable.contains_key(&peer),
            "region {region}: replica {peer} has rows, and is said to have none"
        );
        uncheckpointed.durable.insert(peer, SPLIT_INDEX);
        uncheckpointed
            .hard_state_writes
            .insert(peer, HardStateWrite { region, write: 0, hard_state });
        uncheckpointed.unborn.insert(peer);
    }

    /// How far the last durable root has applied a replica.
    pub(crate) fn durable(&self, peer: PeerId) -> Index {
        self.uncheckpointed.lock().durable.get(&peer).copied().unwrap_or_default()
    }

    /// The writes that were queued up to now and that no checkpoint has covered.
    pub(crate) fn checkpoint_input(&self) -> CheckpointInput {
        let uncheckpointed = self.uncheckpointed.lock();
        let born = |peer: &PeerId| !uncheckpointed.unborn.contains(peer);
        let writes = uncheckpointed.hard_state_writes.iter().filter(|(peer, _)| born(peer));
        CheckpointInput {
            hard_state_writes: writes.map(|(peer, write)| (*peer, *write)).collect(),
            bytes: uncheckpointed.bytes,
        }
    }

    /// A durable root now covers `input`, and holds these applied indexes.
    pub(crate) fn complete_checkpoint(
        &self,
        input: &CheckpointInput,
        root: u64,
        durable: impl Iterator<Item = (PeerId, Index)>,
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

impl UncheckpointedLog {
    /// Notes in a batch that gives something up which root has it.
    fn record_relied_root(&mut self, batch: &mut LogBatch) {
        if self.relied_root < self.root {
            // Not again for the same root: each such batch would only add a row to the newest
            // segment.
            self.relied_root = self.root;
            batch.put(STORE_GROUP, RELIED_ROOT_KEY, &self.root.to_le_bytes());
        }
    }

    fn add(&mut self, write: &LogWrite, batch: &mut LogBatch) {
        let group = write.peer.0;
        assert!(
            write.entries.is_empty() || write.hard_state.is_some(),
            "region {}: entries without the hard state that they were accepted under",
            write.region
        );
        let Some(hard_state) = write.hard_state else { return };
        check_entries(write, &hard_state);
        self.check_order(write, &hard_state);
        if let Some((last, term)) = self.absent.remove(&write.peer)
            && last > Index(0)
        {
            // Else the term of the entry before the log's first would be lost.
            batch.compact_to(group, last.0 + 1, term.0);
        }
        // One batch for both: entries that are found after a crash have a term that the hard state
        // knows.
        batch.append(group, write.entries.iter().map(to_logged));
        batch.put(group, HARD_STATE_KEY, &hard_state.encode());
        let last_write = HardStateWrite { region: write.region, write: self.writes, hard_state };
        self.hard_state_writes.insert(write.peer, last_write);
    }

    /// Writes the birth of a replica behind the commit index of the split that made it. So a start
    /// that finds something of the replica also finds the split as committed, and applies it before
    /// the replica speaks.
    fn add_birth(&mut self, birth: &ReplicaBirth, batch: &mut LogBatch) {
        let (parent, parent_peer) = birth.parent;
        assert!(
            birth.parent_hard_state.commit >= birth.index,
            "region {parent}: entry {} is applied and not committed",
            birth.index
        );
        self.add_hard_state(parent, parent_peer, birth.parent_hard_state, batch);
        // The split was applied again: the log has the replica, and maybe a vote that it has given.
        if self.unborn.remove(&birth.peer) {
            return;
        }
        let group = birth.peer.0;
        let record = BirthRecord { region: birth.region, parent, index: birth.index };
        batch.compact_to(group, SPLIT_INDEX.0 + 1, SPLIT_TERM.0);
        batch.put(group, BIRTH_KEY, &record.encode());
        self.durable.insert(birth.peer, SPLIT_INDEX);
        self.add_hard_state(birth.region, birth.peer, birth.hard_state, batch);
    }

    fn add_hard_state(
        &mut self,
        region: RegionId,
        peer: PeerId,
        hard_state: HardState,
        batch: &mut LogBatch,
    ) {
        let entries = vec![];
        let (hard_state, number, sync) = (Some(hard_state), 0, true);
        self.add(&LogWrite { region, peer, number, hard_state, entries, sync }, batch);
    }

    /// Checks a write against earlier ones of the replica: a vote that is taken back elects two
    /// leaders, and an entry that is applied durably can not be applied again.
    fn check_order(&self, write: &LogWrite, hard_state: &HardState) {
        let LogWrite { region, peer, .. } = *write;
        let durable = self.durable.get(&peer).copied().unwrap_or_default();
        assert!(
            write.entries.first().is_none_or(|first| first.index > durable),
            "region {region}: an entry at or below the durably applied {durable} is replaced"
        );
        let Some(last) = self.hard_state_writes.get(&peer) else { return };
        assert_eq!(last.region, region, "peer {peer} belongs to one region");
        let before = last.hard_state;
        assert!(
            hard_state.term >= before.term && hard_state.commit >= before.commit,
            "region {region}: the hard state went back from {before:?} to {hard_state:?}"
        );
        assert!(
            hard_state.term > before.term
                || before.vote.is_none()
                || hard_state.vote == before.vote,
            "region {region}: a second vote in one term, {before:?} and {hard_state:?}"
        );
    }

    fn compact(&mut self, compaction: &Compaction, batch: &mut LogBatch) {
        let Compaction { peer, first, .. } = *compaction;
        let durable = self.durable.get(&peer).copied().unwrap_or_default();
        assert!(
            first.0 <= durable.0 + 1,
            "region {}: the log would begin at {first}, but only {durable} is durable",
            compaction.region
        );
        // A late one would bring back a group that the log has forgotten, and hold a segment.
        if !self.absent.contains_key(&peer) {
            batch.compact_to(peer.0, first.0, compaction.term_before.0);
        }
    }
}

/// Checks the entries of one write, which raft takes for granted after a restart.
fn check_entries(write: &LogWrite, hard_state: &HardState) {
    let region = write.region;
    for pair in write.entries.windows(2) {
        let (one, next) = (&pair[0], &pair[1]);
        assert!(
            next.index.0 == one.index.0 + 1 && next.term >= one.term,
            "region {region}: entry {} of term {} follows {} of term {}",
            next.index,
            next.term,
            one.index,
            one.term
        );
    }
    // The last entry has the highest term.
    assert!(
        write.entries.last().is_none_or(|last| last.term <= hard_state.term),
        "region {region}: an entry of a later term than {hard_state:?}"
    );
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

fn to_logged(entry: &LogEntry) -> EntryRef<'_> {
    EntryRef {
        index: entry.index.0,
        term: entry.term.0,
        kind: entry.kind.to_byte(),
        data: &entry.data,
    }
}
