//! The part of the log that no durable root covers yet, and the checks of each write against it.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_raftlog::{EntryRef, LogBatch};
use flotilla_region::{
    BirthOrigin, Compaction, HardState, Index, LogEntry, LogReset, LogWrite, PeerId, RegionId,
    ReplicaBirth, SPLIT_INDEX, SPLIT_TERM, Term,
};

use crate::schema::{BIRTH_KEY, BirthRecord, HARD_STATE_KEY, RELIED_ROOT_KEY, STORE_GROUP};

/// The part of the log that the last durable root does not cover.
#[derive(Debug, Default)]
pub(super) struct UncheckpointedLog {
    pub(super) hard_state_writes: BTreeMap<PeerId, HardStateWrite>,
    /// Counts calls of `write`.
    pub(super) writes: u64,
    pub(super) bytes: u64,
    /// The transaction of the last durable root, and the one that the log says it relies on.
    pub(super) root: u64,
    pub(super) relied_root: u64,
    /// How far the last durable root has applied each replica that is here.
    pub(super) durable: BTreeMap<PeerId, Index>,
    /// Groups that the log holds nothing of, with the entry before their next one.
    pub(super) absent: BTreeMap<PeerId, (Index, Term)>,
    /// Replicas of the log whose splits are applied again first, with the regions that are split:
    /// there is no row yet to copy their hard states into.
    pub(super) unborn: BTreeMap<PeerId, RegionId>,
    /// Replicas that were born by a message and have no data, with their regions: no entries, and
    /// a row of their own for the hard state.
    pub(super) uninitialised: BTreeMap<PeerId, RegionId>,
    /// Replicas that a split has taken over from `uninitialised`: their shards may not have heard
    /// of it, and write of a log that has not begun.
    pub(super) taken_over: BTreeSet<PeerId>,
    /// Replicas with an installed snapshot at which their logs do not begin yet.
    pub(super) resets_due: BTreeMap<PeerId, Index>,
    /// Replicas whose ends are published and whose groups the log still has.
    pub(super) ended: BTreeMap<PeerId, EndedGroup>,
}

/// The group of a replica that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedGroup {
    pub(super) region: RegionId,
    /// The replica that the task was for: this one, or a later one of the region.
    pub(super) by: PeerId,
    /// A durable root has the end.
    pub(super) is_rooted: bool,
}

/// The last write of a replica's hard state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HardStateWrite {
    pub(super) region: RegionId,
    pub(super) write: u64,
    pub(super) hard_state: HardState,
}

impl UncheckpointedLog {
    /// Notes in a batch that gives something up which root has it.
    pub(super) fn record_relied_root(&mut self, batch: &mut LogBatch) {
        if self.relied_root < self.root {
            // Not again for the same root: each such batch would only add a row to the newest
            // segment.
            self.relied_root = self.root;
            batch.put(STORE_GROUP, RELIED_ROOT_KEY, &self.root.to_le_bytes());
        }
    }

    pub(super) fn add(&mut self, write: &LogWrite, batch: &mut LogBatch) {
        let (region, peer) = (write.region, write.peer);
        assert!(
            write.entries.is_empty() || write.hard_state.is_some(),
            "region {region}: entries without the hard state that they were accepted under"
        );
        assert!(
            write.reset.is_none() || write.hard_state.is_some(),
            "region {region}: a reset without the hard state that it keeps"
        );
        let Some(hard_state) = write.hard_state else { return };
        let hard_state = self.with_split(peer, hard_state);
        check_entries(write, &hard_state);
        self.check_order(write, &hard_state);
        if let Some(reset) = write.reset {
            self.reset(write, reset, &hard_state, batch);
        }
        assert!(
            !self.resets_due.contains_key(&peer),
            "region {region}: a write between a snapshot and the reset of the log"
        );
        if let Some((last, term)) = self.absent.remove(&peer)
            && last > Index(0)
        {
            // Else the term of the entry before the log's first would be lost.
            batch.compact_to(peer.0, last.0 + 1, term.0);
        }
        // One batch for both: entries that are found after a crash have a term that the hard state
        // knows.
        batch.append(peer.0, write.entries.iter().map(to_logged));
        batch.put(peer.0, HARD_STATE_KEY, &hard_state.encode());
        let last_write = HardStateWrite { region, write: self.writes, hard_state };
        self.hard_state_writes.insert(peer, last_write);
    }

    /// The hard state of a write that may be from before the split that has made the replica.
    fn with_split(&mut self, peer: PeerId, hard_state: HardState) -> HardState {
        let last = self.hard_state_writes.get(&peer).filter(|_| self.taken_over.contains(&peer));
        let Some(last) = last.filter(|_| hard_state.commit < SPLIT_INDEX) else {
            self.taken_over.remove(&peer);
            return hard_state;
        };
        last.hard_state.merge(hard_state)
    }

    /// Empties a log, which begins behind an installed snapshot from then on.
    fn reset(
        &mut self,
        write: &LogWrite,
        reset: LogReset,
        hard_state: &HardState,
        batch: &mut LogBatch,
    ) {
        let LogWrite { region, peer, .. } = *write;
        let durable = self.durable.get(&peer).copied().unwrap_or_default();
        // R15. Before the root has the snapshot, a crash would find its rows and its log gone.
        assert!(
            durable >= reset.index,
            "region {region}: the log is reset to {}, but only {durable} is durable",
            reset.index
        );
        assert!(
            write.entries.is_empty() && write.sync,
            "region {region}: a reset is a synced write of its own"
        );
        assert!(
            hard_state.commit == reset.index && hard_state.term >= reset.term,
            "region {region}: {hard_state:?} beside a log that begins behind {reset:?}"
        );
        // First, because it takes the group's keys along: the vote is put back behind it.
        batch.remove_group(peer.0);
        batch.compact_to(peer.0, reset.index.0 + 1, reset.term.0);
        self.absent.remove(&peer);
        self.resets_due.remove(&peer);
    }

    /// Writes the birth of a replica.
    pub(super) fn add_birth(&mut self, birth: &ReplicaBirth, batch: &mut LogBatch) {
        let mut is_taken_over = false;
        match birth.origin {
            BirthOrigin::Split { parent, parent_hard_state, index } => {
                let (parent, parent_peer) = parent;
                // Behind the commit index of the split. So a start that finds something of the
                // replica also finds the split as committed, and applies it before the replica
                // speaks.
                assert!(
                    parent_hard_state.commit >= index,
                    "region {parent}: entry {index} is applied and not committed"
                );
                self.add_hard_state(parent, parent_peer, parent_hard_state, batch);
                // The split was applied again: the log has the replica, and maybe a vote that it
                // has given.
                if self.unborn.remove(&birth.peer).is_some() {
                    return;
                }
                batch.compact_to(birth.peer.0, SPLIT_INDEX.0 + 1, SPLIT_TERM.0);
                // In place of a birth by a message, if the replica voted before it had data: a
                // start must not take it for one without entries.
                let record = BirthRecord::Split { region: birth.region, parent, index };
                batch.put(birth.peer.0, BIRTH_KEY, &record.encode());
                is_taken_over = self.uninitialised.remove(&birth.peer).is_some();
                self.absent.remove(&birth.peer);
                self.durable.insert(birth.peer, SPLIT_INDEX);
            }
            BirthOrigin::Message => self.add_birth_by_message(birth, batch),
        }
        // With a vote that it gave before it had data.
        let hard_state = self.newest_hard_state(birth);
        self.add_hard_state(birth.region, birth.peer, hard_state, batch);
        if is_taken_over {
            self.taken_over.insert(birth.peer);
        }
    }

    fn add_birth_by_message(&mut self, birth: &ReplicaBirth, batch: &mut LogBatch) {
        // A split may have made the replica while the message was on its way: the record of that
        // birth stays, or a start would drop the replica's entries.
        if self.durable.contains_key(&birth.peer) {
            return;
        }
        let record = BirthRecord::Message { region: birth.region };
        batch.put(birth.peer.0, BIRTH_KEY, &record.encode());
        self.durable.insert(birth.peer, Index(0));
        self.uninitialised.insert(birth.peer, birth.region);
    }

    fn newest_hard_state(&self, birth: &ReplicaBirth) -> HardState {
        let last = self.hard_state_writes.get(&birth.peer);
        last.map_or(birth.hard_state, |last| birth.hard_state.merge(last.hard_state))
    }

    fn add_hard_state(
        &mut self,
        region: RegionId,
        peer: PeerId,
        hard_state: HardState,
        batch: &mut LogBatch,
    ) {
        let (hard_state, number, sync) = (Some(hard_state), 0, true);
        let (entries, reset) = (vec![], None);
        self.add(&LogWrite { region, peer, number, hard_state, entries, sync, reset }, batch);
    }

    /// A snapshot is about to take the place of the replica's rows: until the log is reset, nothing
    /// else is written of it (R15).
    pub(super) fn note_install(
        &mut self,
        region: RegionId,
        peer: PeerId,
        index: Index,
        hard_state: HardState,
    ) {
        let unborn = self.unborn.iter().find(|(_, parent)| **parent == region);
        // R15b. The snapshot is from behind the split: its rows take the place of the child's.
        assert!(
            unborn.is_none(),
            "region {region}: a snapshot is installed before the split that makes {unborn:?}"
        );
        assert!(
            !self.unborn.contains_key(&peer),
            "region {region}: a snapshot is installed for the unborn replica {peer}"
        );
        let durable = self.durable.get(&peer).copied();
        assert!(
            // As much may be durable, if the rows are damaged.
            durable.is_some_and(|durable| durable <= index),
            "region {region}: a snapshot at {index} where {durable:?} is durable"
        );
        self.check_hard_state(region, peer, &hard_state);
        self.uninitialised.remove(&peer);
        self.resets_due.insert(peer, index);
    }

    /// See `StoreLog::note_ended`.
    pub(super) fn note_ended(&mut self, region: RegionId, by: PeerId, replicas: &[PeerId]) {
        let parents = self.unborn.iter().find(|(_, parent)| **parent == region);
        // R12b. The children's rows lie in the parent's range, and would go with it. A tombstone
        // alone takes nothing.
        assert!(
            parents.is_none() || replicas.is_empty(),
            "region {region}: a replica ends before the split that makes {parents:?}"
        );
        for peer in replicas {
            assert!(
                !self.resets_due.contains_key(peer) && !self.unborn.contains_key(peer),
                "region {region}: replica {peer} ends while it installs a snapshot or is unborn"
            );
            self.ended.insert(*peer, EndedGroup { region, by, is_rooted: false });
        }
    }

    /// A late write would bring back a group that nothing removes any more. One of a replica
    /// without data may be on its way when a split makes another replica in its slot: it lies
    /// before the removal, which follows in the same queue.
    pub(super) fn check_alive(&self, write: &LogWrite) {
        let LogWrite { region, peer, .. } = *write;
        assert!(
            !self.ended.contains_key(&peer) || self.uninitialised.contains_key(&peer),
            "region {region}: a write of replica {peer}, which has ended"
        );
    }

    /// Removes the groups that the end of `peer` has left.
    pub(super) fn remove(&mut self, peer: PeerId, batch: &mut LogBatch) {
        let left = |(group, end): (&PeerId, &EndedGroup)| {
            (*group == peer || end.by == peer).then_some((*group, *end))
        };
        let groups: Vec<_> = self.ended.iter().filter_map(left).collect();
        // A replica that never was here has a tombstone and no group.
        assert!(
            !groups.is_empty() || !self.durable.contains_key(&peer),
            "the log of replica {peer} would be removed, which has not ended"
        );
        for (group, end) in groups {
            // R12. Before the root has the end, a crash brings the replica back without its log.
            assert!(
                end.is_rooted,
                "region {}: the log of replica {group} would be removed before a root has its end",
                end.region
            );
            batch.remove_group(group.0);
            self.forget_replica(group);
        }
    }

    fn forget_replica(&mut self, peer: PeerId) {
        self.ended.remove(&peer);
        self.hard_state_writes.remove(&peer);
        self.durable.remove(&peer);
        self.absent.remove(&peer);
        self.uninitialised.remove(&peer);
        self.taken_over.remove(&peer);
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
        assert!(
            write.entries.is_empty() || !self.uninitialised.contains_key(&peer),
            "region {region}: entries of a replica that has no data"
        );
        self.check_hard_state(region, peer, hard_state);
    }

    fn check_hard_state(&self, region: RegionId, peer: PeerId, hard_state: &HardState) {
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

    pub(super) fn compact(&mut self, compaction: &Compaction, batch: &mut LogBatch) {
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

fn to_logged(entry: &LogEntry) -> EntryRef<'_> {
    EntryRef {
        index: entry.index.0,
        term: entry.term.0,
        kind: entry.kind.to_byte(),
        data: &entry.data,
    }
}
