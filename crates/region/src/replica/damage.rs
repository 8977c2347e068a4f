//! A damaged replica: it leaves the lead to others, serves nothing, and asks for a snapshot.

use raft::eraftpb;

use super::Replica;
use crate::error::Reject;
use crate::ids::{Index, PeerId, Term};
use crate::message::Message;
use crate::message_filter::Refusal;
use crate::step_context::StepContext;

impl Replica {
    /// Rows of the replica are lost.
    pub(crate) fn damaged(&mut self, step: &mut StepContext<'_>) {
        self.applying.damage.note();
        // No row that they wait for or would change is here.
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

    /// Time has passed. Returns whether the replica becomes a candidate if it hears of no leader.
    pub(super) fn may_campaign(&mut self, step: &StepContext<'_>) -> bool {
        // Raft forgets its leader only when it campaigns itself.
        let has_leader = self.consensus.is_leader() || self.promise.binds();
        self.applying.damage.tick_leader(has_leader, step.config.election_ticks)
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
            // Before that no leader can send one that reaches as far, and while it is asked to it
            // sends no entries, which may be what it lacks to commit those here.
            && self.consensus.commit() == self.consensus.last()
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

    /// Cuts an append off at the end of the log, which must not grow until a snapshot comes. What
    /// the log has is acknowledged, and so are the first entries of a new term: before those the
    /// leader may be able to commit nothing, and its snapshot has to reach as far.
    pub(super) fn hold_back(&self, append: &mut Message, step: &mut StepContext<'_>) {
        if self.applying.damage.takes_entries(step.config.election_ticks)
            || self.consensus.last_term() < append.term
        {
            return;
        }
        let known = self.consensus.last().0.saturating_sub(append.index.0);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        if append.entries.len() > known {
            append.entries.truncate(known);
            Refusal::Damaged.count(&mut step.stats.dropped);
            let end = append.index.0 + append.entries.len() as u64;
            assert!(end <= self.consensus.last().0.max(append.index.0), "entries up to {end}");
        }
    }

    /// Whether a staged snapshot may take the place of rows and log: the log has no entry behind it
    /// that its sender may count on. To a sound replica raft says.
    pub(super) fn may_replace_log(&self, index: Index, term: Term) -> bool {
        !self.applying.damage.is_damaged()
            || index >= self.consensus.last()
            // The entries behind one that the leader does not have are not the leader's either.
            || self.consensus.window().term_of(index) != Some(term)
    }
}
