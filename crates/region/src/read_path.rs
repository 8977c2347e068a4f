//! The read path: a read is served at once under a lease, or after a quorum or the leader was
//! asked.

use bytes::Bytes;
use raft::ReadState;

use crate::config::ReadConfig;
use crate::consensus::Consensus;
use crate::descriptor::Peer;
use crate::effects::ReadGrant;
use crate::error::Reject;
use crate::ids::{Index, PeerId, RegionId, Term, Ticket, Time};
use crate::lease::Lease;
use crate::message::{Message, MessageKind};
use crate::read_index::{PendingRead, ReadIndexQueue};
use crate::step_context::StepContext;

pub(crate) struct ReadPath {
    reads: ReadIndexQueue,
    lease: Lease,
    /// Names of the requests of followers that were answered under the lease, and at which step's
    /// time: a step that turns out to be late takes its answers back.
    answered: (Time, Vec<Bytes>),
}

impl ReadPath {
    pub(crate) fn new(peer: PeerId, run: u64) -> Self {
        let answered = (Time(0), vec![]);
        Self { reads: ReadIndexQueue::new(peer, run), lease: Lease::default(), answered }
    }

    /// How many reads wait.
    pub(crate) fn count(&self) -> usize {
        self.reads.count()
    }

    /// Admits a checked read. It is granted at the end of this step if the replica may answer alone
    /// and has applied all committed entries.
    pub(crate) fn admit(
        &mut self,
        ticket: Ticket,
        follower: bool,
        consensus: &Consensus,
        step: &mut StepContext<'_>,
    ) {
        if self.reads.count() >= step.config.queue.count_max {
            return step.reject(ticket, Reject::Busy { reason: "too many reads wait" });
        }
        let mut read = new_read(ticket, follower, step.now, &step.config.reads);
        if consensus.is_leader() {
            self.lease.mark_used(step.now);
        }
        if self.may_answer_alone(consensus, step) {
            read.leased = Some(step.now);
            // A leader that has committed in its term, and whose lease holds, knows every write
            // that was answered before as committed.
            self.reads.wait_for(consensus.commit(), read);
            step.stats.reads_by_lease += 1;
        } else {
            self.reads.wait(read);
            step.stats.reads_by_index += 1;
        }
    }

    /// Answers a follower's request for a read index, if this replica may answer alone. If not,
    /// raft has to ask the quorum first.
    pub(crate) fn answer(
        &mut self,
        context: &Bytes,
        consensus: &Consensus,
        step: &mut StepContext<'_>,
    ) -> Option<Message> {
        // Also if there is none: then the next tick asks for one.
        self.lease.mark_used(step.now);
        if !self.may_answer_alone(consensus, step) {
            return None;
        }
        step.stats.followers_answered += 1;
        // The answers of former steps have left: only those of this one can be taken back.
        if self.answered.0 != step.now {
            self.answered = (step.now, vec![]);
        }
        self.answered.1.push(context.clone());
        Some(Message {
            kind: MessageKind::ReadIndexResponse,
            term: consensus.term(),
            index: consensus.commit(),
            context: context.clone(),
            ..Message::default()
        })
    }

    /// Whether the replica leads, has committed in its term, and no other replica can lead now.
    fn may_answer_alone(&self, consensus: &Consensus, step: &StepContext<'_>) -> bool {
        // Before it has committed an entry of its own term, a leader does not know how far its
        // predecessor has answered, and its commit index may lie below that.
        step.config.reads.leases
            && consensus.is_leader()
            && consensus.committed_in_term()
            && self.lease.holds(consensus.term(), step.now)
    }

    /// Repeats what was not answered, gives up what waited too long, and keeps the lease.
    pub(crate) fn tick(
        &mut self,
        leader: Option<Peer>,
        consensus: &mut Consensus,
        step: &mut StepContext<'_>,
    ) {
        let now = step.now;
        self.reads.tick(now, &step.config.reads, |ticket, why| step.reject(ticket, why), leader);
        let may_renew =
            step.config.reads.leases && consensus.is_leader() && consensus.committed_in_term();
        let wants = || self.lease.wants_renewal(consensus.term(), now, step.config.lease_ms());
        // A round that is under way renews the lease by itself.
        if may_renew && self.reads.is_quiet() && wants() {
            self.send_round(consensus, step);
        }
    }

    /// Asks for all reads that wait, if raft would not drop the request.
    pub(crate) fn ask(&mut self, consensus: &mut Consensus, step: &mut StepContext<'_>) {
        if self.reads.wants_round() && consensus.can_request_read_index() {
            self.send_round(consensus, step);
        }
    }

    fn send_round(&mut self, consensus: &mut Consensus, step: &mut StepContext<'_>) {
        let term = consensus.is_leader().then(|| consensus.term());
        let context = self.reads.ask(step.now, term);
        consensus.request_read_index(&context);
        step.stats.read_rounds += 1;
    }

    /// A quorum, or the leader, has answered. A leader has a new lease.
    pub(crate) fn confirm(&mut self, state: &ReadState, step: &StepContext<'_>) {
        let confirmed = self.reads.confirm(&state.request_ctx, Index(state.index));
        if let Some((asked, term)) = confirmed {
            // From the asking, not from the answer: the followers' promises began after the one,
            // and the other may have waited anywhere since (docs/decisions/0005-leases.md).
            self.lease.renew(term, asked, step.config.lease_ms());
        }
    }

    /// Grants what waits for entries that are applied now.
    pub(crate) fn release(&mut self, region: RegionId, applied: Index, step: &mut StepContext<'_>) {
        let now = step.now;
        let grants = &mut step.effects.answers.reads;
        self.reads.release(applied, |read, index| {
            let PendingRead { ticket, follower, leased, .. } = read;
            // A read that an earlier step admitted was right then, and waited for the apply index
            // only.
            let by_lease = leased == Some(now);
            grants.push(ReadGrant { region, ticket, by_lease, follower, index });
        });
    }

    /// The step was late: the lease is over, and what it granted has to ask a quorum.
    pub(crate) fn revoke_grant(
        &mut self,
        grant: &ReadGrant,
        served: Time,
        step: &mut StepContext<'_>,
    ) {
        self.lease.drop_now();
        let ReadGrant { ticket, follower, .. } = *grant;
        // Its time begins anew: it could not be served while the driver stood still.
        self.reads.wait(new_read(ticket, follower, served, &step.config.reads));
        step.stats.reads_turned_back += 1;
    }

    /// The step was late: whether this is the name of a request that it answered under the lease,
    /// which is over then.
    pub(crate) fn revoke_answer(&mut self, context: &Bytes, step: &mut StepContext<'_>) -> bool {
        let (answered_at, names) = &self.answered;
        let was_leased = *answered_at == step.now && names.contains(context);
        if was_leased {
            self.lease.drop_now();
            step.stats.reads_turned_back += 1;
        }
        was_leased
    }

    /// The leader of `term` hands over: from now on a quorum confirms each read of the term, also
    /// if the transfer fails.
    pub(crate) fn void_lease(&mut self, term: Term) {
        self.lease.void(term);
    }

    /// The settings that leases rest on are other ones.
    pub(crate) fn settle_lease(&mut self, now: Time) {
        self.lease.settle(now);
    }

    /// Whether the term has no lease, for good.
    pub(crate) fn is_lease_void(&self, term: Term) -> bool {
        self.lease.is_void(term)
    }

    /// Another leader or term.
    pub(crate) fn restart(&mut self, is_leader: bool, why: &Reject, step: &mut StepContext<'_>) {
        self.reads.restart(is_leader, why, |ticket, why| step.reject(ticket, why));
    }

    /// Gives back all.
    pub(crate) fn drain(&mut self, why: &Reject, step: &mut StepContext<'_>) {
        self.reads.drain(why, |ticket, why| step.reject(ticket, why));
    }

    pub(crate) fn check(&self, applied: Index) {
        self.reads.check(applied);
    }
}

fn new_read(ticket: Ticket, follower: bool, now: Time, limits: &ReadConfig) -> PendingRead {
    let expires = now.after_ms(limits.retry_ms * u64::from(limits.tries_max));
    PendingRead { ticket, follower, expires, leased: None }
}
