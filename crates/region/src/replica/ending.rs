//! The end of a replica: it takes nothing more, applies what is committed, waits until nothing of
//! it is under way, and asks the store to take it away (R12).

use super::Replica;
use crate::effects::{EndTask, RoleChange};
use crate::error::Reject;
use crate::membership::EndPhase;
use crate::step_context::StepContext;

impl Replica {
    /// Whether the replica has begun to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.membership.end() != EndPhase::None
    }

    /// Whether the store was asked to end it.
    pub(crate) fn has_asked_for_end(&self) -> bool {
        self.membership.end() == EndPhase::Asked
    }

    /// The region does not list the replica any more. It gives back all that waits: the fate of
    /// entries in its log is not learned here.
    pub(crate) fn begin_end(&mut self, step: &mut StepContext<'_>) {
        // An install ends first. The word that the replica is gone is repeated.
        if self.is_ending() || self.is_installing() {
            return;
        }
        self.membership.set_end(EndPhase::Waiting);
        step.effects.discards.extend(self.install.take_staged().map(|staged| staged.stage));
        let region = self.descriptor.id;
        let undecided: Vec<_> = self.drain_as(&Reject::RegionNotFound(region), step).collect();
        step.effects.answers.undecided.extend(undecided);
        let term = self.consensus.term();
        step.effects.roles.push(RoleChange { region, term, leader: None, is_leader: false });
    }

    /// Asks the store for the end, once nothing of the replica is under way: no write, and nothing
    /// that was handed out and is not applied and heard.
    ///
    /// `has_unborn`: whether a split of this region that made a replica here has to be repeated.
    pub(super) fn finish_end(&mut self, has_unborn: bool, step: &mut StepContext<'_>) {
        // R12b: what is committed is applied first. A split may be among it whose children have
        // spoken, and at a start nothing of it was handed out yet.
        self.take_readies(step);
        self.output.messages.clear();
        // Of splits that were applied on the way to the end: the children live on.
        self.bear(step);
        let applied = self.consensus.applied_index();
        let is_done = self.inflight_writes.are_done()
            && self.applying.handed_out() == applied
            && self.consensus.commit() == applied;
        // R12b: the rows of an unborn child lie in the range of its parent.
        if self.membership.end() == EndPhase::Waiting && is_done && !has_unborn {
            self.membership.set_end(EndPhase::Asked);
            assert!(
                self.output.births.is_empty(),
                "region {}: a child is not born",
                self.descriptor.id
            );
            let (region, peer) = (self.descriptor.id, self.me.id);
            step.effects.ends.push(EndTask { region, peer });
        }
    }
}
