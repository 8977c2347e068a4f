//! One replica: composes raft and the small state machines around it, and alone knows them all.
//!
//! Events are taken one by one and change state only; [`Replica::finish`] then turns the changes
//! into effects, once a step. So proposals of a step share an entry, reads a request, and messages
//! and writes a Ready.

use std::collections::BTreeSet;

use bytes::Bytes;
use raft::eraftpb;

use crate::applying::ApplyProgress;
use crate::compaction::Compactor;
use crate::config::Config;
use crate::consensus::Consensus;
use crate::convert;
use crate::descriptor::{Descriptor, Peer, RegionSize};
use crate::effects::{
    ApplyTask, Committed, LostLog, ReadGrant, ReplicaBirth, RoleChange, WildTerm,
};
use crate::entry::LogEntry;
use crate::epoch::{self, ReplicaStanding};
use crate::error::Reject;
use crate::event::{RegionChange, RequestPrecondition};
use crate::ids::{Index, PeerId, StageId, Term, Ticket, Time};
use crate::invariants::{self, ProgressNumbers};
use crate::leader_transfer::LeaderTransfer;
use crate::lease::Promise;
use crate::message::{Envelope, Message, MessageKind};
use crate::message_filter::{self, FilterView, Refusal};
use crate::persistence::{EarlierWrites, InflightWrites, ReadyOutput};
use crate::proposals::ProposalQueue;
use crate::read_path::ReadPath;
use crate::recovered_replica::RecoveredReplica;
use crate::snapshot_install::SnapshotInstall;
use crate::split_policy::SplitPolicy;
use crate::step_context::StepContext;

mod log_gc;
mod numbers;
mod sending;
mod snapshots;
mod splits;
mod transfer;

pub(crate) struct Replica {
    descriptor: Descriptor,
    me: Peer,
    consensus: Consensus,
    inflight_writes: InflightWrites,
    proposals: ProposalQueue,
    read_path: ReadPath,
    applying: ApplyProgress,
    install: SnapshotInstall,
    promise: Promise,
    compactor: Compactor,
    split_policy: SplitPolicy,
    transfer: LeaderTransfer,
    /// To be sent at the end of the step.
    outgoing: Vec<eraftpb::Message>,
    /// Births of replicas by a split of this step.
    births: Vec<ReplicaBirth>,
    reported: Reported,
    /// At the end of the last step.
    before: ProgressNumbers,
}

/// The last that the driver was told.
struct Reported {
    /// The term and the leader.
    role: (Term, Option<PeerId>),
    /// Members that have sent wild terms.
    wild_terms: BTreeSet<PeerId>,
}

impl Replica {
    /// Starts a replica on what was found, which must have been checked to be sound.
    pub(crate) fn new(
        found: RecoveredReplica,
        promise: Promise,
        earlier: EarlierWrites,
        config: &Config,
    ) -> Self {
        let consensus = Consensus::new(&found, config);
        let me = found.descriptor.peer(found.peer).expect("it was checked to be a member");
        let applied = found.applied.0;
        let term = found.hard_state.term;
        let mut replica = Self {
            me,
            consensus,
            inflight_writes: InflightWrites::new(term, earlier),
            proposals: ProposalQueue::default(),
            read_path: ReadPath::new(me.id, config.seed),
            applying: ApplyProgress::new(applied),
            install: SnapshotInstall::default(),
            promise,
            compactor: Compactor::new(applied),
            split_policy: SplitPolicy::default(),
            transfer: LeaderTransfer::default(),
            outgoing: vec![],
            births: vec![],
            reported: Reported { role: (term, None), wild_terms: BTreeSet::new() },
            before: ProgressNumbers::default(),
            descriptor: found.descriptor,
        };
        // The first step is compared with what was found on disk; compared with zeros, it could
        // lose a committed entry unnoticed.
        replica.before = replica.numbers();
        replica
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Time has passed, once.
    pub(crate) fn tick(&mut self, step: &mut StepContext<'_>) {
        // A campaign would read entries that are gone (R15). The promise stays as it is.
        if self.is_installing() {
            return;
        }
        self.consensus.window_mut().snapshots().tick(step.now);
        self.promise.tick();
        // Raft's own election timer needs no look at the promise: the same message of the leader
        // sets both anew, and the timer is never the shorter one.
        self.consensus.tick();
        self.compactor.tick();
        let leader = self.leader();
        self.read_path.tick(leader, &mut self.consensus, step);
        self.want_split(step);
    }

    /// Tries to become leader, unless another leader may count on this replica.
    pub(crate) fn campaign(&mut self) {
        // A leader may serve reads under a lease that rests on the promise.
        if !self.promise.binds() && !self.is_installing() {
            self.consensus.campaign();
        }
    }

    /// Takes a message from another store, or counts why not.
    pub(crate) fn receive(&mut self, envelope: Envelope, step: &mut StepContext<'_>) {
        match self.admit_message(&envelope, step.config) {
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
            Refusal::WildTerm if self.reported.wild_terms.insert(from.id) => {
                let (term, here) = (envelope.message.term, self.consensus.term());
                step.effects.findings.wild_terms.push(WildTerm { region, from, term, here });
            }
            _ => {}
        }
    }

    fn admit_message(&self, envelope: &Envelope, config: &Config) -> Result<(), Refusal> {
        if self.is_installing() {
            return Err(Refusal::Installing);
        }
        message_filter::filter(envelope, &self.filter_view(envelope.from.id))?;
        let is_leader = self.consensus.is_leader();
        let message = &envelope.message;
        match message.kind {
            // It comes by a stream of its own, with its rows.
            MessageKind::Snapshot => Err(Refusal::Malformed),
            // The writes under way have to end before the snapshot is taken.
            MessageKind::Append if self.install.is_staged() => Err(Refusal::Installing),
            // For candidates of all terms: raft forgets its leader at the sight of a higher one,
            // while the leader still serves reads under its lease (docs/decisions/0005-leases.md).
            // A forced vote passes: the leader has ended its lease before it called for it (R22).
            MessageKind::RequestVote | MessageKind::RequestPreVote
                if self.promise.binds() && !message_filter::is_forced_vote(message) =>
            {
                Err(Refusal::VoteWithheld)
            }
            // Raft would pass it on; the follower asks the right one soon.
            MessageKind::ReadIndex if !is_leader || self.consensus.is_read_queue_full() => {
                Err(Refusal::Stale)
            }
            MessageKind::Append
                if !message.entries.is_empty()
                    && self.applying.lags(config.apply_lag_bytes_max) =>
            {
                // Dropped and not queued: the leader sends the entries again, so what waits here
                // stays bounded. Heartbeats and empty appends pass, else this replica would
                // campaign against a sound leader.
                Err(Refusal::Lagging)
            }
            _ => Ok(()),
        }
    }

    fn filter_view(&self, from: PeerId) -> FilterView<'_> {
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
        step.stats.messages_taken += 1;
        if kind == MessageKind::ReadIndex {
            let context = &envelope.message.context;
            if let Some(answer) = self.read_path.answer(context, &self.consensus, step) {
                self.outgoing.push(convert::message_to_raft(self.me.id, from, answer));
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
        }
        let is_answer =
            matches!(kind, MessageKind::AppendResponse | MessageKind::HeartbeatResponse);
        if is_answer && term == self.consensus.term() && self.consensus.is_leader() {
            self.transfer.note_answer(from, step.now);
        }
    }

    /// Checks a proposal and queues it for an entry.
    pub(crate) fn propose(
        &mut self,
        ticket: Ticket,
        precondition: &RequestPrecondition,
        command: Bytes,
        step: &mut StepContext<'_>,
    ) {
        let (version, bytes) = (self.descriptor.epoch.version, command.len());
        let admitted = epoch::check(precondition, &self.standing(), true)
            .and_then(|()| self.proposals.admit(ticket, version, command, step.config));
        match admitted {
            Ok(()) => self.split_policy.note_request(precondition.span.as_ref(), bytes),
            Err(why) => step.reject(ticket, why),
        }
    }

    /// Checks a read and queues it to be granted.
    pub(crate) fn read(
        &mut self,
        ticket: Ticket,
        precondition: &RequestPrecondition,
        follower: bool,
        step: &mut StepContext<'_>,
    ) {
        // The rows are about to be those of the snapshot, whose descriptor is not here yet.
        let leader_only = !follower || self.is_installing();
        match epoch::check(precondition, &self.standing(), leader_only) {
            Ok(()) => {
                self.split_policy.note_request(precondition.span.as_ref(), 0);
                self.read_path.admit(ticket, follower, &self.consensus, step);
            }
            Err(why) => step.reject(ticket, why),
        }
    }

    /// Takes back a grant of a step that was late: a quorum is asked in the next one.
    pub(crate) fn revoke_grant(
        &mut self,
        grant: &ReadGrant,
        served: Time,
        step: &mut StepContext<'_>,
    ) {
        if self.is_installing() {
            return step.reject(grant.ticket, Reject::NotLeader { leader: self.leader() });
        }
        self.read_path.revoke_grant(grant, served, step);
    }

    /// Whether a step that was late has answered this under a lease. Then the message must not
    /// leave; a quorum is asked instead.
    pub(crate) fn revoke_answer(&mut self, answer: &Envelope, step: &mut StepContext<'_>) -> bool {
        let context = &answer.message.context;
        if !self.read_path.revoke_answer(context, step) {
            return false;
        }
        if !self.is_installing() && !self.consensus.is_read_queue_full() {
            let kind = MessageKind::ReadIndex;
            let question = Message { kind, context: context.clone(), ..Message::default() };
            let question = convert::message_to_raft(answer.to.id, self.me.id, question);
            // If raft does not want it, the follower asks again soon.
            let _ = self.consensus.step(question);
        }
        true
    }

    /// A write reached the disk.
    pub(crate) fn persisted(&mut self, number: u64, step: &mut StepContext<'_>) {
        let messages = self.inflight_writes.persisted(number, &mut self.consensus);
        self.outgoing.extend(messages);
        self.end_install(step);
    }

    /// Entries became visible to reads, and have changed the region.
    pub(crate) fn applied(
        &mut self,
        index: Index,
        changes: Vec<RegionChange>,
        size: Option<RegionSize>,
        step: &mut StepContext<'_>,
    ) {
        self.applying.complete(index, &mut self.consensus);
        self.transfer.note_applied(index);
        if let Some(size) = size {
            self.split_policy.note_size(size);
        }
        for change in changes {
            match change {
                RegionChange::Split { index, regions } => self.become_parent(index, regions, step),
            }
        }
    }

    /// Old entries were read from disk.
    pub(crate) fn fetched(&mut self, context: u64, entries: Vec<LogEntry>) {
        let (low, high, askers) = self.consensus.window_mut().fetches().end(context);
        // Of the time when it led.
        if self.is_installing() {
            return;
        }
        // Raft sends on what it is lent as its own log, so entries from another place must not
        // pass.
        let first = entries.first().map(|entry| entry.index.0);
        assert_eq!(first, Some(low), "a fetch from {low} gave other entries");
        let last = entries.last().map(|entry| entry.index.0);
        assert!(last < Some(high), "a fetch below {high} gave {last:?}");
        let entries = entries.into_iter().map(convert::entry_to_raft).collect();
        self.consensus.fetched(entries, askers);
    }

    /// They could not be; raft asks again with the next heartbeat.
    pub(crate) fn fetch_failed(&mut self, context: u64) {
        self.consensus.window_mut().fetches().end(context);
    }

    /// The page store holds the region durably.
    pub(crate) fn checkpointed(&mut self, applied: Index, installed: Option<StageId>) {
        if let Some(stage) = installed {
            self.rooted(stage);
        }
        self.compactor.raise_durable(applied);
    }

    /// Messages to a replica do not get through.
    pub(crate) fn unreachable(&mut self, peer: PeerId) {
        if self.is_installing() {
            return;
        }
        self.consensus.unreachable(peer);
    }

    /// Turns what came of the step's events into effects.
    ///
    /// `has_unborn`: whether a split of this region that made a replica here has to be repeated.
    pub(crate) fn finish(&mut self, has_unborn: bool, step: &mut StepContext<'_>) {
        if !self.is_installing() {
            self.finish_step(step);
            if self.install.is_staged() {
                // As they are before the snapshot: they stay so until it is installed.
                self.note_numbers();
                self.take_staged(has_unborn, step);
            }
        }
        self.bear(step);
        self.reset_log(step);
        if !self.is_installing() {
            self.weigh_log(step);
        }
        self.send(step);
        if !self.is_installing() {
            self.compact(step);
            self.note_numbers();
        }
    }

    fn finish_step(&mut self, step: &mut StepContext<'_>) {
        // The role comes first: a deposed leader proposes nothing, and rejects what was queued.
        self.notice_role(step);
        self.settle_transfer(step);
        self.propose_entry(step);
        // Before the Readies, so that the question leaves with this step's messages.
        self.read_path.ask(&mut self.consensus, step);
        self.take_readies(step);
        // After the Readies: a quorum's answer that came in this step grants its reads in this
        // step.
        let region = self.descriptor.id;
        self.read_path.release(region, self.consensus.applied_index(), step);
        // At the end of the step, when raft has asked for all of them.
        let fetches = self.consensus.window_mut().fetches().take_unsent(region, self.me.id);
        step.effects.fetches.extend(fetches);
    }

    fn take_readies(&mut self, step: &mut StepContext<'_>) {
        let region = self.descriptor.id;
        while self.consensus.has_ready() {
            let taken = self.inflight_writes.take(region, self.me.id, &mut self.consensus);
            self.carry_out(taken, step);
        }
    }

    /// Reports another leader or term, and rejects requests that only the former leader could
    /// serve.
    fn notice_role(&mut self, step: &mut StepContext<'_>) {
        let (term, leader) = (self.consensus.term(), self.consensus.leader());
        if (term, leader) == self.reported.role {
            return;
        }
        self.reported.role = (term, leader);
        let leader = self.leader();
        let is_leader = self.consensus.is_leader();
        let region = self.descriptor.id;
        step.effects.roles.push(RoleChange { region, term, leader, is_leader });
        let why = Reject::NotLeader { leader };
        self.read_path.restart(is_leader, &why, step);
        self.split_policy.restart();
        self.compactor.restart();
        self.transfer.restart(self.consensus.last());
        if !is_leader {
            // Only those that are not in the log: an entry of this leader may still be committed by
            // the next one, and a client that was refused would see its write happen.
            self.proposals.reject_queued(&why, |ticket, why| step.reject(ticket, why));
        }
    }

    /// Joins what waits to one entry, unless enough is under way.
    fn propose_entry(&mut self, step: &mut StepContext<'_>) {
        let config = step.config;
        // A leader that commits faster than it applies would keep ever more entries in memory;
        // proposals wait in the queue instead, which is bounded and refuses.
        // Raft refuses proposals while the lead is handed over.
        let may = self.consensus.is_leader()
            && !self.consensus.is_transferring()
            && self.inflight_writes.depth() < config.pipeline_depth
            && !self.applying.lags(config.apply_lag_bytes_max);
        if !may {
            return;
        }
        let has_room = |bytes| self.consensus.has_room(bytes, config.uncommitted_bytes_max);
        let Some(joined) = self.proposals.join(config, has_room) else { return };
        let (index, term) = self.consensus.propose(joined.data);
        self.proposals.place(index, term, joined.count);
        if joined.is_admin {
            self.transfer.note_split(index);
        }
        step.stats.entries_proposed += 1;
        step.stats.proposals_joined += joined.count as u64;
    }

    fn carry_out(&mut self, taken: ReadyOutput, step: &mut StepContext<'_>) {
        self.outgoing.extend(taken.messages);
        for state in taken.read_states {
            self.read_path.confirm(&state, step);
        }
        let region = self.descriptor.id;
        step.effects.log.extend(taken.write);
        if !taken.committed.is_empty() {
            // While the entries are in the window, from which their bytes are counted.
            self.applying.hand_out(&taken.committed, self.consensus.window());
            let entries = taken.committed.into_iter().map(|entry| {
                let entry = convert::entry_from_raft(entry);
                let reject = |ticket, why| step.reject(ticket, why);
                let tickets = self.proposals.take_tickets(entry.index, entry.term, reject);
                Committed { entry, tickets }
            });
            let entries = entries.collect();
            step.effects.apply.push(ApplyTask { region, entries });
        }
    }

    /// Gives back every ticket: those that had no effect through `reject`, those whose fate is
    /// open as the result.
    pub(crate) fn drain(
        &mut self,
        step: &mut StepContext<'_>,
    ) -> impl Iterator<Item = Ticket> + use<> {
        let why = Reject::NotLeader { leader: None };
        self.proposals.reject_queued(&why, |ticket, why| step.reject(ticket, why));
        // Reads may be rejected wherever they wait: they have no effect that could be in doubt.
        self.read_path.drain(&why, step);
        self.proposals.abandon().chain(self.transfer.abandon())
    }

    /// Checks the whole state.
    pub(crate) fn check(&self) {
        invariants::check_state(&self.numbers());
        assert!(self.outgoing.is_empty(), "messages were left behind");
        self.inflight_writes.check();
        // The log is another one already than the rows.
        if self.is_installing() {
            return;
        }
        self.consensus.check();
        self.proposals.check(self.applying.handed_out());
        self.read_path.check(self.consensus.applied_index());
        self.transfer.check(&self.consensus, self.read_path.is_lease_void(self.consensus.term()));
        self.applying.check(&self.consensus);
    }

    fn leader(&self) -> Option<Peer> {
        self.consensus.leader().and_then(|peer| self.descriptor.peer(peer))
    }

    fn standing(&self) -> ReplicaStanding<'_> {
        ReplicaStanding {
            descriptor: &self.descriptor,
            peer: self.me.id,
            term: self.consensus.term(),
            is_leader: self.consensus.is_leader(),
            leader: self.leader(),
        }
    }
}
