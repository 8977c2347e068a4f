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
use crate::consistency_check::ConsistencyCheck;
use crate::convert;
use crate::descriptor::{Descriptor, Peer, RegionSize};
use crate::effects::{ApplyTask, Committed, ReadGrant, ReplicaBirth, RoleChange};
use crate::entry::LogEntry;
use crate::epoch::{self, ReplicaStanding};
use crate::error::Reject;
use crate::event::{RegionChange, RequestPrecondition};
use crate::ids::{Index, PeerId, StageId, Term, Ticket, Time};
use crate::invariants::{self, ProgressNumbers};
use crate::leader_transfer::LeaderTransfer;
use crate::lease::Promise;
use crate::membership::MembershipState;
use crate::message::{Envelope, Message, MessageKind};
use crate::persistence::{EarlierWrites, InflightWrites, ReadyOutput};
use crate::proposals::ProposalQueue;
use crate::read_path::ReadPath;
use crate::recovered_replica::RecoveredReplica;
use crate::snapshot_install::SnapshotInstall;
use crate::split_policy::SplitPolicy;
use crate::status::Role;
use crate::step_context::StepContext;

mod consistency;
mod damage;
mod disks;
mod ending;
mod log_gc;
mod membership;
mod numbers;
mod receiving;
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
    membership: MembershipState,
    consistency: ConsistencyCheck,
    output: StepOutput,
    reported: Reported,
}

/// All that is handed out at the end of a step.
#[derive(Default)]
struct StepOutput {
    messages: Vec<eraftpb::Message>,
    /// Births of replicas by a split of this step.
    births: Vec<ReplicaBirth>,
}

/// The last that the driver was told, and that steps were checked by.
struct Reported {
    /// The term and the leader.
    role: (Term, Option<PeerId>),
    /// Members that have sent wild terms.
    wild_terms: BTreeSet<PeerId>,
    /// The numbers of the replica at the end of the last step, which the next is compared with.
    numbers: ProgressNumbers,
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
            applying: ApplyProgress::new(applied, found.is_damaged),
            install: SnapshotInstall::default(),
            promise,
            compactor: Compactor::new(applied),
            split_policy: SplitPolicy::default(),
            transfer: LeaderTransfer::default(),
            membership: MembershipState::default(),
            consistency: ConsistencyCheck::default(),
            output: StepOutput::default(),
            reported: Reported {
                role: (term, None),
                wild_terms: BTreeSet::new(),
                numbers: ProgressNumbers::default(),
            },
            descriptor: found.descriptor,
        };
        // The first step is compared with what was found on disk; compared with zeros, it could
        // lose a committed entry unnoticed.
        replica.reported.numbers = replica.numbers();
        replica
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(crate) fn peer(&self) -> PeerId {
        self.me.id
    }

    /// Time has passed, once.
    pub(crate) fn tick(&mut self, step: &mut StepContext<'_>) {
        // A campaign would read entries that are gone (R15). The promise stays as it is.
        if self.is_installing() {
            return;
        }
        // It takes part in nothing any more.
        if self.is_ending() {
            return;
        }
        self.consensus.window_mut().snapshots().tick(step.now);
        self.promise.tick();
        // Raft's own election timer needs no look at the promise: the same message of the leader
        // sets both anew, and the timer is never the shorter one.
        let may_campaign = self.may_campaign(step);
        self.consensus.tick(may_campaign);
        self.compactor.tick();
        let leader = self.leader();
        self.read_path.tick(leader, &mut self.consensus, step);
        self.want_split(step);
        self.leave_full_disk(step);
        self.tick_membership(step);
        self.tick_consistency(step);
        self.tick_damage(step);
    }

    /// Whether a tick alone leaves nothing to be finished: it follows, and has nothing to say, to
    /// write, to apply or to answer. Its log goes by events, not by the time.
    pub(crate) fn is_idle_follower(&self) -> bool {
        self.consensus.role() == Role::Follower
            && (self.consensus.term(), self.consensus.leader()) == self.reported.role
            && !self.consensus.has_ready()
            && self.output.messages.is_empty()
            && self.proposals.queued() == 0
            && self.read_path.count() == 0
            && !self.transfer.is_pending()
            && !self.install.is_staged()
            && !self.is_installing()
            && !self.is_ending()
            && !self.applying.damage.is_damaged()
    }

    /// Tries to become leader, unless another leader may count on this replica.
    pub(crate) fn campaign(&mut self) {
        // A leader may serve reads under a lease that rests on the promise. Raft would let a
        // replica without a vote campaign.
        let may_lead = !self.is_installing() && !self.applying.damage.is_damaged();
        if !self.promise.binds() && may_lead && self.consensus.is_voter() {
            self.consensus.campaign();
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
            .and_then(|()| self.check_damage())
            .and_then(|()| self.check_room(precondition, step))
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
        let checked = epoch::check(precondition, &self.standing(), leader_only);
        match checked.and_then(|()| self.check_damage()) {
            Ok(()) => {
                self.split_policy.note_request(precondition.span.as_ref(), 0);
                self.read_path.admit(ticket, follower, &self.consensus, step);
            }
            Err(why) => step.reject(ticket, why),
        }
    }

    /// The settings that leases rest on are other ones.
    pub(crate) fn settle_lease(&mut self, now: Time) {
        self.read_path.settle_lease(now);
    }

    /// Takes back a grant of a step that was late: a quorum is asked in the next one.
    pub(crate) fn revoke_grant(
        &mut self,
        grant: &ReadGrant,
        served: Time,
        step: &mut StepContext<'_>,
    ) {
        if self.is_installing() || self.is_ending() {
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
        let is_quiet = self.is_installing() || self.is_ending();
        if !is_quiet && !self.consensus.is_read_queue_full() {
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
        self.output.messages.extend(messages);
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
        // Before raft counts the entries as applied (R18): in between it would campaign over a
        // change that it does not know.
        for change in changes {
            match change {
                RegionChange::Split { index, regions } => {
                    self.become_parent(index, regions, step);
                }
                RegionChange::Membership { change, descriptor, .. } => {
                    self.change_members(&change, descriptor, step);
                }
                RegionChange::Forgotten { peer, descriptor, .. } => {
                    self.forget_removed(peer, descriptor, step);
                }
                RegionChange::DigestDue { index } => self.consistency.begin(index, step.now),
                // No verdict is about entries that are still to come, whatever it says.
                RegionChange::Compared { index, verdict } => {
                    self.consistency.end(verdict.index.min(index));
                }
            }
        }
        self.applying.complete(index, &mut self.consensus);
        self.transfer.note_applied(index);
        self.consensus.announce_commits(self.transfer.has_change());
        self.membership.note_applied(index);
        if let Some(size) = size {
            self.split_policy.note_size(size);
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
        if self.is_ending() {
            return self.finish_end(has_unborn, step);
        }
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
        self.leave_joint(step);
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
        self.consensus.announce_commits(false);
        self.membership.restart();
        self.consistency.restart();
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
            self.transfer.note_change(index);
            // Until its followers apply the split, a new region has one replica.
            self.consensus.announce_commits(true);
        }
        step.stats.entries_proposed += 1;
        step.stats.proposals_joined += joined.count as u64;
    }

    fn carry_out(&mut self, taken: ReadyOutput, step: &mut StepContext<'_>) {
        self.output.messages.extend(taken.messages);
        for state in taken.read_states {
            self.read_path.confirm(&state, step);
        }
        let region = self.descriptor.id;
        step.effects.log.writes.extend(taken.write);
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
        self.drain_as(&Reject::NotLeader { leader: None }, step)
    }

    fn drain_as(
        &mut self,
        why: &Reject,
        step: &mut StepContext<'_>,
    ) -> impl Iterator<Item = Ticket> + use<> {
        self.proposals.reject_queued(why, |ticket, why| step.reject(ticket, why));
        // Reads may be rejected wherever they wait: they have no effect that could be in doubt.
        self.read_path.drain(why, step);
        self.proposals.abandon().chain(self.transfer.abandon())
    }

    /// Checks the whole state.
    pub(crate) fn check(&self) {
        invariants::check_state(&self.numbers());
        assert!(self.output.messages.is_empty(), "messages were left behind");
        self.inflight_writes.check();
        // The log is another one already than the rows.
        if self.is_installing() {
            return;
        }
        self.consensus.check();
        // It has given up what raft still waits for.
        if self.is_ending() {
            return;
        }
        self.proposals.check(self.applying.handed_out());
        self.read_path.check(self.consensus.applied_index());
        self.transfer.check(&self.consensus, self.read_path.is_lease_void(self.consensus.term()));
        self.applying.check(&self.consensus);
        self.consensus.check_members(&self.descriptor);
        let is_transferring = self.consensus.is_transferring();
        let applied = self.consensus.applied_index();
        self.membership.check(&self.descriptor, applied, is_transferring);
    }

    fn leader(&self) -> Option<Peer> {
        self.consensus.leader().and_then(|peer| self.address(peer))
    }

    /// The address of a member, or of one that is to be.
    fn address(&self, peer: PeerId) -> Option<Peer> {
        self.descriptor.peer(peer).or_else(|| self.membership.newcomer(peer))
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
