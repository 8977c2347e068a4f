//! A replica as recovery found it on disk, and the checks of what raft takes for granted.

use crate::descriptor::Descriptor;
use crate::entry::{HardState, LogEntry};
use crate::error::CreateReplicaError;
use crate::ids::{Index, PeerId, RegionId, Term};

/// A replica as it was found. The store has mended the seam of its two engines already: a log that
/// does not connect with the applied state was reset, term and vote are the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredReplica {
    /// The region, in the form that it had at `applied`.
    pub descriptor: Descriptor,
    /// The replica on this store.
    pub peer: PeerId,
    /// The newest hard state. Its commit index may lag behind `applied`.
    pub hard_state: HardState,
    /// The last entry whose effects are in the region's data, and its term.
    pub applied: (Index, Term),
    /// The entry before the first of the log, and its term.
    pub truncated: (Index, Term),
    /// The runs of terms in the log: the first entry of each term, in order.
    pub terms: Vec<(Index, Term)>,
    /// The last entry of the log; that of `truncated` if it is empty.
    pub last: Index,
    /// Every entry above `applied`.
    pub tail: Vec<LogEntry>,
    /// Whether rows of it are lost here.
    pub is_damaged: bool,
}

/// The entry that the log of a region made by a split begins behind, and its term. Every replica
/// starts with them, so that none is ever sent from the log's first entry, which would lack the
/// rows that the parent had.
pub const SPLIT_INDEX: Index = Index(5);
/// The term of [`SPLIT_INDEX`].
pub const SPLIT_TERM: Term = Term(5);

/// A replica that only the log holds: the split that made it is not in the durable rows. It takes
/// no message until that split is applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnbornReplica {
    /// The region.
    pub region: RegionId,
    /// The replica on this store.
    pub peer: PeerId,
    /// The region that was split.
    pub parent: RegionId,
    /// The hard state that is in the log.
    pub hard_state: HardState,
    /// The runs of terms in the log.
    pub terms: Vec<(Index, Term)>,
    /// The last entry of the log; [`SPLIT_INDEX`] if it is empty.
    pub last: Index,
    /// All its entries.
    pub tail: Vec<LogEntry>,
}

/// A replica that a message has made, and that has no rows yet: its state is all that the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UninitialisedReplica {
    /// The region.
    pub region: RegionId,
    /// The replica on this store.
    pub peer: PeerId,
    /// The hard state that is in the log.
    pub hard_state: HardState,
}

impl UnbornReplica {
    /// The replica, of a region as its split has made it.
    pub(crate) fn born(self, descriptor: Descriptor) -> RecoveredReplica {
        let Self { region, peer, parent: _, hard_state, terms, last, tail } = self;
        assert_eq!(region, descriptor.id, "another region than the log's");
        let (applied, truncated) = ((SPLIT_INDEX, SPLIT_TERM), (SPLIT_INDEX, SPLIT_TERM));
        RecoveredReplica {
            descriptor,
            peer,
            hard_state,
            applied,
            truncated,
            terms,
            last,
            tail,
            is_damaged: false,
        }
    }
}

impl RecoveredReplica {
    /// The hard state that a replica made by a split starts with.
    #[must_use]
    pub fn hard_state_of_split() -> HardState {
        HardState { term: SPLIT_TERM, vote: None, commit: SPLIT_INDEX }
    }

    /// A replica that no other one has heard of: of a region as a split has made it, with this hard
    /// state.
    pub(crate) fn of_split(descriptor: Descriptor, peer: PeerId, hard_state: HardState) -> Self {
        let begin = (SPLIT_INDEX, SPLIT_TERM);
        Self::behind(descriptor, peer, hard_state, begin)
    }

    /// A replica whose rows hold an entry, and whose log begins behind it and is empty.
    pub(crate) fn behind(
        descriptor: Descriptor,
        peer: PeerId,
        hard_state: HardState,
        begin: (Index, Term),
    ) -> Self {
        Self {
            descriptor,
            peer,
            hard_state,
            applied: begin,
            truncated: begin,
            terms: vec![],
            last: begin.0,
            tail: vec![],
            is_damaged: false,
        }
    }

    /// A replica without any state.
    #[must_use]
    pub fn fresh(descriptor: Descriptor, peer: PeerId) -> Self {
        Self::behind(descriptor, peer, HardState::default(), (Index(0), Term(0)))
    }

    /// The commit index to start from: what is applied was committed.
    pub(crate) fn commit(&self) -> Index {
        self.hard_state.commit.max(self.applied.0)
    }

    /// The term of an entry of the log, as far as the runs have it.
    fn term(&self, index: Index) -> Option<Term> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        let runs = self.terms.partition_point(|(first, _)| *first <= index);
        let inside = index > self.truncated.0 && index <= self.last;
        runs.checked_sub(1).filter(|_| inside).map(|run| self.terms[run].1)
    }

    /// Checks all that raft would panic about, and that its lease and vote rules rest on.
    pub(crate) fn check(&self) -> Result<(), CreateReplicaError> {
        let region = self.descriptor.id;
        self.check_members()?;
        let order = [
            ("truncated and applied", self.truncated.0, self.applied.0),
            ("applied and last", self.applied.0, self.last),
            // A leader may have counted this replica's copy of the entries that are gone towards
            // the majority that committed them.
            ("committed and last", self.commit(), self.last),
        ];
        for (what, low, high) in order {
            if low > high {
                return Err(CreateReplicaError::IndexOrder { region, what, low, high });
            }
        }
        let broken = |index| CreateReplicaError::InvalidLog { region, index };
        self.check_terms().map_err(broken)?;
        self.check_tail().map_err(broken)
    }

    fn check_members(&self) -> Result<(), CreateReplicaError> {
        if self.descriptor.has_sound_members() && self.descriptor.peer(self.peer).is_some() {
            return Ok(());
        }
        Err(CreateReplicaError::NotMember { region: self.descriptor.id, peer: self.peer })
    }

    /// The runs cover the log from its first entry on, and their terms grow.
    fn check_terms(&self) -> Result<(), Index> {
        let first = Index(self.truncated.0.0 + 1);
        let covered = self.terms.first().is_some_and(|run| run.0 <= first);
        if !covered && self.last != self.truncated.0 {
            return Err(first);
        }
        if self.truncated.1 > self.hard_state.term {
            return Err(self.truncated.0);
        }
        let mut before = None;
        for &(index, term) in &self.terms {
            let grows = before.is_none_or(|(i, t)| i < index && t < term);
            // A log of a later term than the hard state has lost the vote of that term, and would
            // vote again.
            if !grows || index > self.last || term > self.hard_state.term {
                return Err(index);
            }
            before = Some((index, term));
        }
        if self.term(self.applied.0) == Some(self.applied.1) { Ok(()) } else { Err(self.applied.0) }
    }

    fn check_tail(&self) -> Result<(), Index> {
        let mut next = Index(self.applied.0.0 + 1);
        for entry in &self.tail {
            if entry.index != next || self.term(next) != Some(entry.term) {
                return Err(next);
            }
            next = Index(next.0 + 1);
        }
        if next.0 == self.last.0 + 1 { Ok(()) } else { Err(next) }
    }
}
