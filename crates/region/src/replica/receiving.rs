//! Messages of other replicas: which are taken, what raft does not look at, what a refusal says.

use super::Replica;
use crate::convert;
use crate::effects::{LostLog, WildTerm};
use crate::ids::PeerId;
use crate::message::{Envelope, MessageKind, NoticeKind};
use crate::message_filter::{self, FilterView, Refusal};
use crate::step_context::StepContext;

/// Members of this and later configurations whose wild terms are told of.
const WILD_TERMS_MAX: usize = 16;

impl Replica {
    /// Takes a message from another store, or counts why not.
    pub(crate) fn receive(&mut self, envelope: Envelope, step: &mut StepContext<'_>) {
        match self.admit_message(&envelope, step) {
            Err(refusal) => {
                refusal.count(&mut step.stats.dropped);
                self.notice_refusal(refusal, &envelope, step);
            }
            Ok(()) => self.take_message(envelope, step),
        }
    }

    /// Some refusals concern more than the message.
    pub(super) fn notice_refusal(
        &mut self,
        refusal: Refusal,
        envelope: &Envelope,
        step: &mut StepContext<'_>,
    ) {
        let (region, from) = (self.descriptor.id, envelope.from);
        match refusal {
            Refusal::LostLog(acknowledged) => {
                let last = self.consensus.last();
                step.effects.findings.lost_logs.push(LostLog { region, from, acknowledged, last });
            }
            // Once for each member: it may repeat the message as often as it likes.
            Refusal::WildTerm
                if self.reported.wild_terms.len() < WILD_TERMS_MAX
                    && self.reported.wild_terms.insert(from.id) =>
            {
                let (term, here) = (envelope.message.term, self.consensus.term());
                step.effects.findings.wild_terms.push(WildTerm { region, from, term, here });
            }
            // It may have been away while it was removed.
            Refusal::Gone => self.tell(from.store, NoticeKind::Gone, from.id, step),
            // Another replica of the region is to be here: this one was removed.
            Refusal::Misrouted
                if envelope.to.store == self.me.store
                    && envelope.to.id > self.me.id
                    && envelope.epoch.conf_version > self.descriptor.epoch.conf_version
                    && message_filter::check_unknown(envelope).is_ok() =>
            {
                self.begin_end(step);
            }
            _ => {}
        }
    }

    fn admit_message(&self, envelope: &Envelope, step: &StepContext<'_>) -> Result<(), Refusal> {
        if self.is_installing() {
            return Err(Refusal::Installing);
        }
        message_filter::filter(envelope, &self.filter_view(envelope.from.id))?;
        let answers_reads = self.consensus.is_leader() && self.consensus.is_voter();
        let message = &envelope.message;
        match message.kind {
            // It comes by a stream of its own, with its rows.
            MessageKind::Snapshot => Err(Refusal::Malformed),
            // The writes under way have to end before the snapshot is taken.
            MessageKind::Append if self.install.is_staged() => Err(Refusal::Installing),
            // It would have to hand over at once.
            MessageKind::TimeoutNow if self.applying.damage.is_damaged() => Err(Refusal::Damaged),
            // For candidates of all terms: raft forgets its leader at the sight of a higher one,
            // while the leader still serves reads under its lease (docs/decisions/0005-leases.md).
            // A forced vote passes: the leader has ended its lease before it called for it (R22).
            MessageKind::RequestVote | MessageKind::RequestPreVote
                if self.promise.binds() && !message_filter::is_forced_vote(message) =>
            {
                Err(Refusal::VoteWithheld)
            }
            // Raft would pass it on; the follower asks the right one soon.
            MessageKind::ReadIndex if !answers_reads || self.consensus.is_read_queue_full() => {
                Err(Refusal::Stale)
            }
            MessageKind::Append
                if !message.entries.is_empty()
                    && self.applying.lags(step.config.apply_lag_bytes_max) =>
            {
                // Dropped and not queued: the leader sends the entries again, so what waits here
                // stays bounded. Heartbeats and empty appends pass, else this replica would
                // campaign against a sound leader.
                Err(Refusal::Lagging)
            }
            // As above: the leader sends them again, and goes on by a majority until there is room.
            MessageKind::Append if !message.entries.is_empty() && !self.takes_entries(step) => {
                Err(Refusal::DiskFull)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn filter_view(&self, from: PeerId) -> FilterView<'_> {
        let is_leader = self.consensus.is_leader();
        FilterView {
            descriptor: &self.descriptor,
            me: self.me,
            term: self.consensus.term(),
            last: self.consensus.last(),
            is_leader,
            leader: self.consensus.leader(),
            matched: self.consensus.matched(from).filter(|_| is_leader),
        }
    }

    fn take_message(&mut self, envelope: Envelope, step: &mut StepContext<'_>) {
        // The floor may be ahead of the commit index here, and counts only up to it.
        self.compactor.raise_floor(envelope.gc_floor.min(self.consensus.commit()));
        let (from, kind) = (envelope.from.id, envelope.message.kind);
        if self.descriptor.peer(from).is_none() {
            self.membership.note_newcomer(envelope.from);
        }
        step.stats.messages_taken += 1;
        if kind == MessageKind::ReadIndex {
            let context = &envelope.message.context;
            if let Some(answer) = self.read_path.answer(context, &self.consensus, step) {
                self.output.messages.push(convert::message_to_raft(self.me.id, from, answer));
                return;
            }
        }
        let term = envelope.message.term;
        let mut message = envelope.message;
        self.note_heard(from, &message);
        self.finish_acknowledged_snapshot(from, &message);
        if kind == MessageKind::Heartbeat && message.commit > self.consensus.last() {
            // Of an earlier term, or to a replica that has no term: raft must not see it.
            message.commit = self.consensus.last();
        }
        if kind == MessageKind::Append {
            self.hold_back(&mut message, step);
        }
        let message = convert::message_to_raft(from, self.me.id, message);
        if !self.consensus.step(message) {
            Refusal::Malformed.count(&mut step.stats.dropped);
        }
        // Heartbeats count like entries: in a region that is only read, the lease rests on nothing
        // else. Decided after raft's step, because this message may be the one that makes the
        // sender our leader.
        let is_from_leader = matches!(kind, MessageKind::Append | MessageKind::Heartbeat)
            && term == self.consensus.term()
            && self.consensus.leader() == Some(from);
        if is_from_leader {
            self.promise.make(step.config.election_ticks);
            self.membership.note_leader();
        }
        let is_answer =
            matches!(kind, MessageKind::AppendResponse | MessageKind::HeartbeatResponse);
        if is_answer && term == self.consensus.term() && self.consensus.is_leader() {
            self.transfer.note_answer(from, step.now);
        }
    }
}
