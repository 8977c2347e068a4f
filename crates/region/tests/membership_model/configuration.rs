//! The members of the group as the applied entries determine them: two halves while it is joint.

use std::fmt;

use crate::rules::BrokenRule;

/// A replica's number. 0 is none, and no number is above 63.
pub(crate) type ReplicaId = u8;

/// A set of replicas, a bit for each.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IdSet(u64);

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl IdSet {
    pub(crate) fn of(ids: &[ReplicaId]) -> Self {
        Self(ids.iter().fold(0, |bits, id| bits | 1 << id))
    }

    pub(crate) fn insert(&mut self, id: ReplicaId) {
        self.0 |= 1 << id;
    }

    pub(crate) fn contains(self, id: ReplicaId) -> bool {
        self.0 >> id & 1 == 1
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = ReplicaId> {
        (0..64).filter(move |id| self.contains(*id))
    }

    /// Whether more than half of `half` is in this set. A half that does not exist agrees.
    pub(crate) fn is_majority_of(self, half: Self) -> bool {
        half.is_empty() || Self(self.0 & half.0).len() * 2 > half.len()
    }
}

/// The effect of an entry on the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing; the first entry of each leader.
    None,
    AddLearner(ReplicaId),
    /// Begins a joint configuration: the old voters and the new ones both decide.
    EnterJoint {
        promoted: IdSet,
        demoted: IdSet,
    },
    /// Only the new voters decide; the others of the old ones become learners.
    LeaveJoint,
    RemoveLearner(ReplicaId),
}

/// One place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) term: u32,
    pub(crate) change: Change,
}

/// The members, by role.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) voters: IdSet,
    /// The old half of a joint configuration; else empty.
    pub(crate) outgoing: IdSet,
    pub(crate) learners: IdSet,
    /// All that ever were members.
    pub(crate) listed: IdSet,
    /// The greatest number that a member ever had.
    pub(crate) floor: ReplicaId,
    /// Counts the replicas whose role changed.
    pub(crate) version: usize,
}

impl Configuration {
    pub(crate) fn of_founders(voters: &[ReplicaId]) -> Self {
        let floor = voters.iter().copied().max().expect("a group has founders");
        let voters = IdSet::of(voters);
        Self { voters, listed: voters, floor, ..Default::default() }
    }

    /// The configuration after `entries`.
    pub(crate) fn after(mut self, entries: &[Entry], broken: Option<BrokenRule>) -> Self {
        for entry in entries {
            self.apply(entry.change, broken);
        }
        self
    }

    fn apply(&mut self, change: Change, broken: Option<BrokenRule>) {
        match change {
            Change::None => {}
            Change::AddLearner(id) => {
                if id > self.floor || broken == Some(BrokenRule::IdsMayShrink) {
                    self.learners.insert(id);
                    self.listed.insert(id);
                    self.floor = self.floor.max(id);
                    self.version += 1;
                }
            }
            Change::EnterJoint { promoted, demoted } => {
                if broken == Some(BrokenRule::SwapWithoutJoint) {
                    self.learners = self.learners.with(demoted);
                } else {
                    self.outgoing = self.voters;
                }
                self.voters = self.voters.with(promoted).without(demoted);
                self.learners = self.learners.without(promoted);
                self.version += promoted.len() + demoted.len();
            }
            Change::LeaveJoint => {
                if broken != Some(BrokenRule::VoterRemovedInOneStep) {
                    self.learners = self.learners.with(self.outgoing.without(self.voters));
                }
                self.outgoing = IdSet::default();
                self.version += 1;
            }
            Change::RemoveLearner(id) => {
                self.learners = self.learners.without(IdSet::of(&[id]));
                self.version += 1;
            }
        }
    }

    pub(crate) fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// All that have a vote.
    pub(crate) fn electors(&self) -> IdSet {
        self.voters.with(self.outgoing)
    }

    pub(crate) fn members(&self) -> IdSet {
        self.electors().with(self.learners)
    }

    /// Whether the members no longer list a replica that they once listed.
    pub(crate) fn is_gone(&self, id: ReplicaId) -> bool {
        id <= self.floor && !self.members().contains(id)
    }

    /// Whether `agreeing` decides: a majority of each half.
    pub(crate) fn is_quorum(&self, agreeing: IdSet, broken: Option<BrokenRule>) -> bool {
        let new = agreeing.is_majority_of(self.voters);
        let old = agreeing.is_majority_of(self.outgoing);
        match broken {
            Some(BrokenRule::OldHalfNotAsked) => new,
            Some(BrokenRule::NewHalfNotAsked) if self.is_joint() => old,
            _ => new && old,
        }
    }
}
