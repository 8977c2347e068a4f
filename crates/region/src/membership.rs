//! The state of a replica's membership beside its descriptor: the change under way, the silence of
//! its leader, senders that it does not know yet, and its own end.

use crate::descriptor::{Descriptor, Peer};
use crate::ids::{Index, PeerId};
use crate::membership_check;
use crate::removed_replicas::RemovedReplicas;

/// A replica that hears no leader for so many election timeouts asks whether it is still listed.
const SILENT_ELECTIONS: u32 = 10;
/// Senders that are remembered until their addition is applied here.
const NEWCOMERS_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct Membership {
    /// The last change that this leader has proposed, until it is applied.
    proposed: Option<Index>,
    removed: RemovedReplicas,
    /// Ticks since a leader was heard.
    silent_ticks: u32,
    /// Members of a later configuration than the one that is applied here.
    newcomers: Vec<Peer>,
    end: EndPhase,
}

/// How far a replica's end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndPhase {
    #[default]
    None,
    /// It waits until nothing of the replica is under way.
    Waiting,
    /// The store was asked.
    Asked,
}

impl Membership {
    /// The replica has another leader or term.
    pub(crate) fn restart(&mut self) {
        self.proposed = None;
        self.removed.restart();
    }

    /// A change was proposed.
    pub(crate) fn note_proposed(&mut self, index: Index) {
        self.proposed = Some(index);
    }

    /// Whether a change that this leader has proposed waits to be applied.
    pub(crate) fn has_proposed(&self) -> bool {
        self.proposed.is_some()
    }

    /// Entries were applied.
    pub(crate) fn note_applied(&mut self, index: Index) {
        self.proposed = self.proposed.filter(|proposed| *proposed > index);
    }

    /// The removed replicas whose ends are not confirmed.
    pub(crate) fn removed(&mut self) -> &mut RemovedReplicas {
        &mut self.removed
    }

    /// Whether a replica still votes when a joint configuration is left.
    pub(crate) fn keeps_vote(&self, descriptor: &Descriptor, peer: PeerId) -> bool {
        membership_check::keeps_vote(descriptor, peer)
    }

    /// A message of the leader was received.
    pub(crate) fn note_leader(&mut self) {
        self.silent_ticks = 0;
    }

    /// Time has passed, once, for a replica that does not lead: whether it asks others now if they
    /// list it.
    pub(crate) fn tick(&mut self, election_ticks: u32) -> bool {
        self.silent_ticks += 1;
        let asks = self.silent_ticks >= SILENT_ELECTIONS * election_ticks;
        if asks {
            self.silent_ticks = 0;
        }
        asks
    }

    /// A sender above the peer floor is a member of a later configuration: it gets its answer.
    pub(crate) fn note_newcomer(&mut self, from: Peer) {
        if self.newcomers.contains(&from) {
            return;
        }
        self.newcomers.retain(|known| known.id != from.id);
        if self.newcomers.len() == NEWCOMERS_MAX {
            self.newcomers.remove(0);
        }
        self.newcomers.push(from);
    }

    /// The address of one.
    pub(crate) fn newcomer(&self, id: PeerId) -> Option<Peer> {
        self.newcomers.iter().copied().find(|known| known.id == id)
    }

    /// The region has these members.
    pub(crate) fn retain(&mut self, descriptor: &Descriptor) {
        self.newcomers.retain(|known| known.id > descriptor.floor());
    }

    pub(crate) fn end(&self) -> EndPhase {
        self.end
    }

    /// The replica's end goes on.
    pub(crate) fn set_end(&mut self, end: EndPhase) {
        let is_next = matches!(
            (self.end, end),
            (EndPhase::None, EndPhase::Waiting) | (EndPhase::Waiting, EndPhase::Asked)
        );
        assert!(is_next, "an end goes from {:?} to {end:?}", self.end);
        self.end = end;
    }
}
