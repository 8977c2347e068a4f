//! A damaged replica: it leads no more, serves nothing, and asks for a snapshot.

use raft::eraftpb;

use super::Replica;
use crate::error::Reject;
use crate::ids::{Index, PeerId};
use crate::step_context::StepContext;

impl Replica {
    /// Rows of the replica are lost; entries up to `skipped` were left out.
    pub(crate) fn damaged(&mut self, skipped: Option<Index>, step: &mut StepContext<'_>) {
        self.applying.damage.note(skipped);
        // They wait for entries that are not applied any more.
        let why = Reject::NotLeader { leader: None };
        self.read_path.drain(&why, step);
        self.proposals.reject_queued(&why, |ticket, why| step.reject(ticket, why));
    }

    /// Refuses a request that would need the rows, or an entry applied.
    pub(super) fn check_damage(&self) -> Result<(), Reject> {
        if self.applying.damage.is_damaged() {
            Err(Reject::NotLeader { leader: None })
        } else {
            Ok(())
        }
    }

    /// Hands the lead over, or asks the leader for a snapshot.
    pub(super) fn tick_damage(&mut self, step: &mut StepContext<'_>) {
        if !self.applying.damage.is_damaged() || self.install.is_staged() {
            return;
        }
        if self.consensus.is_leader() {
            if !self.transfer.is_pending()
                && !self.proposals.has_queued_admin()
                && let Ok(to) = self.choose_successor(None, step)
            {
                self.begin_transfer(to, None, step);
            }
            return;
        }
        if self.applying.damage.tick(step.config.election_ticks)
            // It goes past the writes that other messages wait for.
            && self.inflight_writes.has_term(self.consensus.term())
            && let Some(leader) = self.consensus.leader()
        {
            self.ask_for_snapshot(leader);
            step.stats.snapshots_requested += 1;
        }
    }

    /// A snapshot has to reach up to the end of the log: it takes the place of all of it.
    fn ask_for_snapshot(&mut self, leader: PeerId) {
        let last = self.consensus.last().0;
        self.output.messages.push(eraftpb::Message {
            msg_type: eraftpb::MessageType::MsgAppendResponse,
            from: self.me.id.0,
            to: leader.0,
            term: self.consensus.term().0,
            index: last,
            commit: self.consensus.commit().0,
            reject: true,
            reject_hint: last,
            request_snapshot: last,
            ..Default::default()
        });
    }

    /// Whether a staged snapshot may take the place of rows and log. To a sound replica raft says.
    pub(super) fn reaches_log_end(&self, index: Index) -> bool {
        !self.applying.damage.is_damaged() || index >= self.consensus.last()
    }
}
