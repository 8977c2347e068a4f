//! One store of the model: the slot of the group in memory, its part of the log, and the root.

use std::collections::BTreeMap;

use crate::configuration::{Entry, ReplicaId};

/// A replica, with or without data. Without, it has no entries, and nothing is applied.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelReplica {
    pub(crate) id: ReplicaId,
    pub(crate) is_initialised: bool,
    pub(crate) term: u32,
    /// 0 is none.
    pub(crate) vote: ReplicaId,
    pub(crate) log: Vec<Entry>,
    pub(crate) commit: usize,
    pub(crate) applied: usize,
    pub(crate) leads: bool,
}

impl ModelReplica {
    /// A replica that the first rows of the group made.
    pub(crate) fn founder(id: ReplicaId) -> Self {
        Self { id, is_initialised: true, term: 1, ..Default::default() }
    }

    pub(crate) fn uninitialised(id: ReplicaId) -> Self {
        Self { id, ..Default::default() }
    }

    /// Term and index of the last entry, in the order in which raft compares logs.
    pub(crate) fn last(&self) -> (u32, usize) {
        (self.log.last().map_or(0, |entry| entry.term), self.log.len())
    }

    /// The commit index and its term.
    pub(crate) fn commit_info(&self) -> (usize, u32) {
        let term = self.commit.checked_sub(1).map_or(0, |at| self.log[at].term);
        (self.commit, term)
    }

    /// Takes a term that is above the own one.
    pub(crate) fn see_term(&mut self, term: u32) {
        if term > self.term {
            self.term = term;
            self.vote = 0;
            self.leads = false;
        }
    }

    /// Learns from a vote or its refusal that more is committed.
    pub(crate) fn see_commit(&mut self, (index, term): (usize, u32)) {
        let has_entry = index > 0 && self.log.get(index - 1).is_some_and(|own| own.term == term);
        if has_entry && !self.leads {
            self.commit = self.commit.max(index);
        }
    }
}

/// A vote that a candidate asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VoteRequest {
    pub(crate) to: ReplicaId,
    pub(crate) candidate: ReplicaId,
    pub(crate) term: u32,
    pub(crate) last: (u32, usize),
    pub(crate) commit: (usize, u32),
}

/// The place of the group on a store.
#[derive(Clone, Debug, Default)]
pub(crate) enum Slot {
    #[default]
    Absent,
    /// The region's parent holds the range here: no replica, and the last vote asked for waits.
    Held(Option<VoteRequest>),
    /// The log has a child whose split is to be applied again.
    Unborn,
    Replica(ModelReplica),
    /// Ended, and no root has it yet.
    Ending(ReplicaId),
}

/// How a group came into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Birth {
    Founded,
    Message,
    Split,
}

/// The log's part of one replica. It is durable when anything follows from it.
#[derive(Clone, Debug)]
pub(crate) struct LogGroup {
    pub(crate) birth: Birth,
    pub(crate) replica: ModelReplica,
}

/// The region that the group was split from, on one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ParentHere {
    /// It has no replica here yet, and may come by a snapshot from before the split.
    Arriving,
    /// It holds the range, for it has not applied the split.
    Holds,
    /// It has applied the split, or left, or will come without the range.
    #[default]
    Past,
}

/// The durable root of the pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    /// Number, whether it has data, and the applied index.
    pub(crate) replica: Option<(ReplicaId, bool, usize)>,
    pub(crate) tombstone: ReplicaId,
    pub(crate) parent: ParentHere,
}

/// One store.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelStore {
    pub(crate) slot: Slot,
    /// In memory; the root may be behind.
    pub(crate) tombstone: ReplicaId,
    pub(crate) parent: ParentHere,
    pub(crate) log: BTreeMap<ReplicaId, LogGroup>,
    pub(crate) root: Root,
}

impl ModelStore {
    pub(crate) fn founded(id: ReplicaId) -> Self {
        let replica = ModelReplica::founder(id);
        let group = LogGroup { birth: Birth::Founded, replica: replica.clone() };
        Self {
            slot: Slot::Replica(replica),
            log: BTreeMap::from([(id, group)]),
            root: Root { replica: Some((id, true, 0)), ..Default::default() },
            ..Default::default()
        }
    }

    /// A store that has to apply the split before it has the group.
    pub(crate) fn before_split(parent: ParentHere) -> Self {
        Self { parent, root: Root { parent, ..Default::default() }, ..Default::default() }
    }

    pub(crate) fn replica(&self) -> Option<&ModelReplica> {
        match &self.slot {
            Slot::Replica(replica) => Some(replica),
            _ => None,
        }
    }

    pub(crate) fn replica_mut(&mut self) -> Option<&mut ModelReplica> {
        match &mut self.slot {
            Slot::Replica(replica) => Some(replica),
            _ => None,
        }
    }

    /// Whether a replica is here with its data, or comes back with it by a split.
    pub(crate) fn has_data(&self, id: ReplicaId) -> bool {
        match &self.slot {
            Slot::Replica(own) => own.id == id && own.is_initialised,
            Slot::Unborn => self.log.contains_key(&id),
            Slot::Absent | Slot::Held(_) | Slot::Ending(_) => false,
        }
    }

    /// Whether the slot is in a state that mostly the log alone remembers.
    pub(crate) fn loses_by_a_crash(&self) -> bool {
        match &self.slot {
            Slot::Replica(own) => !own.is_initialised,
            Slot::Ending(_) => true,
            Slot::Absent | Slot::Held(_) | Slot::Unborn => false,
        }
    }

    /// Writes the replica to the log, synced.
    pub(crate) fn write_log(&mut self) {
        let Slot::Replica(replica) = &self.slot else { return };
        let replica = ModelReplica { leads: false, ..replica.clone() };
        let birth = self.log.get(&replica.id).map_or(Birth::Message, |group| group.birth);
        self.log.insert(replica.id, LogGroup { birth, replica });
    }

    /// Makes a root of what is in memory. The end of a replica counts from here on, and the log
    /// gives its group up. Returns the replica whose end the root is the first to have.
    pub(crate) fn write_root(&mut self) -> Option<ReplicaId> {
        let ended = match self.slot {
            Slot::Ending(id) => {
                self.slot = Slot::Absent;
                Some(id)
            }
            _ => None,
        };
        let replica = match &self.slot {
            Slot::Replica(replica) => Some((replica.id, replica.is_initialised, replica.applied)),
            // Its rows come with the split; a row without data stays until then.
            Slot::Unborn => self.root.replica,
            _ => None,
        };
        self.root = Root { replica, tombstone: self.tombstone, parent: self.parent };
        let tombstone = self.tombstone;
        self.log.retain(|id, _| *id > tombstone);
        ended
    }
}
