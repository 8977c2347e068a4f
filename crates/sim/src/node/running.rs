//! A running member: the core, its executor, and the state between them.

use flotilla_dispatch::{Lane, OpenLanes};
use flotilla_region::{Effects, Event, LeaderTransferred, MessageKind, Reject, Shard, StoreId};

use super::disk::DiskWatch;
use super::handshakes::HandshakeDriver;
use super::snapshot_streams::SnapshotStreams;
use crate::clock::LocalClock;
use crate::coverage::{BoundsCoverage, MembershipCoverage, SplitWishCoverage};
use crate::event_queue::SimTime;
use crate::executor::{Executor, RowWork};
use crate::placement_watch::StepRanges;
use crate::reference_model::{CheckFailure, ReferenceModel};
use crate::request::ClientReply;
use crate::task::{Outbox, StopReason, Task};

use super::leader_waits::LeaderWaits;
use super::outgoing::OutgoingQueues;
use super::power_cuts::PowerCuts;
use super::silence::SilentReplicas;
use super::stall::Stall;

/// A store that is up.
pub(super) struct RunningStore {
    pub(super) shard: Shard,
    pub(super) executor: Executor,
    pub(super) handshakes: HandshakeDriver,
    pub(super) streams: SnapshotStreams,
    pub(super) effects: Effects,
    pub(super) inbox: Vec<Event>,
    pub(super) is_step_scheduled: bool,
    pub(super) wake: Option<SimTime>,
    pub(super) outgoing: OutgoingQueues,
    pub(super) waits: LeaderWaits,
    pub(super) cuts: PowerCuts,
    pub(super) stall: Stall,
    pub(super) silent: SilentReplicas,
    pub(super) disks: DiskWatch,
    pub(super) counts: RunningCounts,
}

/// Counts that are kept beside the parts.
#[derive(Default)]
pub(super) struct RunningCounts {
    pub(super) membership: MembershipCoverage,
    pub(super) wishes: SplitWishCoverage,
    pub(super) bounds: BoundsCoverage,
}

impl RunningStore {
    /// The events that the next step takes, as a shard takes them from its mailbox: completions
    /// first, then lane by lane.
    pub(super) fn take_events(&mut self, open: OpenLanes) -> Vec<Event> {
        let is_open = |event: &mut Event| Lane::of(event).is_none_or(|lane| open.includes(lane));
        let mut taken: Vec<_> = self.inbox.extract_if(.., is_open).collect();
        taken.sort_by_key(Lane::of);
        self.outgoing.coverage.left += self.inbox.len() as u64;
        taken
    }

    /// Notes the leaders that the last step has made, and those that speak. How many it has made.
    pub(super) fn note_leaders(
        &self,
        reference_model: &mut ReferenceModel,
    ) -> Result<u64, CheckFailure> {
        let mut made = 0;
        for role in self.effects.roles.iter().filter(|role| role.is_leader) {
            made += 1;
            let leader = role.leader.expect("a leader knows itself");
            let region = self.shard.descriptor(role.region);
            let voters = region.map_or(0, |it| it.peers.iter().filter(|it| it.votes()).count());
            // The only voter elects itself before its term is on disk. Until then nothing leaves
            // its store, and a crash may take the term back.
            if voters > 1 || self.executor.terms().has(leader.id, role.term) {
                reference_model.lead(role.region, role.term, leader)?;
            }
        }
        for envelope in &self.effects.messages {
            let message = &envelope.message;
            if matches!(message.kind, MessageKind::Append | MessageKind::Heartbeat) {
                reference_model.lead(envelope.region, message.term, envelope.from)?;
            }
        }
        Ok(made)
    }

    /// Hands out the effects of the last step, as the node's thread does: after another reading of
    /// the clock.
    pub(super) fn dispatch_effects(
        &mut self,
        clock: LocalClock,
        now: SimTime,
        store: StoreId,
        reference_model: &ReferenceModel,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        // Before anything leaves, and by another reading of the clock, as the node's shard thread
        // does.
        self.shard.drop_leases_if_late(clock.read(now), &mut self.effects);
        self.shard.check_invariants();
        // A failure here, and not a refusal: no disk of the simulator loses what it has synced, and
        // a swapped one is found by its greetings.
        if let Some(lost) = self.effects.findings.lost_logs.first() {
            return Err(StopReason::CheckFailure(format!("store {store}: {lost}")));
        }
        self.stall
            .check(store, &self.effects, reference_model)
            .map_err(StopReason::CheckFailure)?;
        self.silent.check(store, &self.effects).map_err(StopReason::CheckFailure)?;
        let is_change = |answer: &&(_, Reject)| matches!(answer.1, Reject::InvalidMembership(_));
        let refused = self.effects.answers.rejected.iter().filter(is_change);
        self.counts.membership.refused += refused.count() as u64;
        let rejects = self.effects.answers.rejected.iter();
        rejects.for_each(|(_, reject)| self.counts.bounds.count(reject));
        self.check_messages().map_err(StopReason::CheckFailure)?;
        self.carry_out(out)?;
        self.schedule_wake(clock, now, out);
        Ok(())
    }

    /// Checks each message against the term that its store has on disk.
    fn check_messages(&mut self) -> Result<(), CheckFailure> {
        for envelope in &self.effects.messages {
            self.executor.terms().check(envelope)?;
            let message = &envelope.message;
            let is_vote = message.kind == MessageKind::RequestVoteResponse && !message.reject;
            let has_data = self.shard.descriptor(envelope.region).is_some();
            self.streams.coverage.uninitialised_votes += u64::from(is_vote && !has_data);
        }
        Ok(())
    }

    /// Queues messages and notices. Where the power is to go, they are on their way before it does.
    fn queue_messages(&mut self, is_cut: bool, out: &mut Outbox) {
        let had = self.inbox.len();
        for envelope in self.effects.messages.drain(..) {
            self.inbox.extend(self.outgoing.push(envelope, out));
        }
        // The next step comes at once.
        if self.inbox.len() > had && !std::mem::replace(&mut self.is_step_scheduled, true) {
            out.tasks.push((1, Task::Step));
        }
        for notice in self.effects.notices.drain(..) {
            self.outgoing.push_notice(notice, out);
        }
        if is_cut {
            self.outgoing.flush(out);
        }
    }

    /// Carries out the core's effects, list by list. Proofs of a lost log were handled before; wild
    /// terms are counted by the core.
    fn carry_out(&mut self, out: &mut Outbox) -> Result<(), StopReason> {
        self.effects.findings.wild_terms.clear();
        // A step without effects has no lists to die between.
        let mut lists_left = self.cuts.lists_left.filter(|_| !self.effects.is_empty());
        if !self.effects.log.births.is_empty() {
            lists_left = self.cuts.at_birth.take().or(lists_left);
        }
        self.queue_messages(lists_left.is_some(), out);
        let effects = &mut self.effects;
        let mut goes_on = || match &mut lists_left {
            None => Ok(()),
            Some(0) => Err(StopReason::Died),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        };
        goes_on()?;
        for send in effects.snapshots.drain(..) {
            let task = Task::SendSnapshot(Box::new(send));
            out.tasks.push((self.executor.notify_delay_us(), task));
        }
        goes_on()?;
        if !effects.log.is_empty() {
            self.executor.write(&effects.log, out);
        }
        goes_on()?;
        out.ranges.extend(take_ranges(effects));
        for new in effects.created.drain(..) {
            let created = Task::Post(vec![Event::Create(new)]);
            out.tasks.push((self.executor.notify_delay_us(), created));
        }
        // Nothing that is simulated depends on them.
        effects.load.regions.clear();
        for wish in effects.load.split_wishes.drain(..) {
            out.tasks.push((self.executor.split_delay_us(), Task::Split(wish)));
        }
        for fetch in effects.fetches.drain(..) {
            out.tasks.push((self.executor.notify_delay_us(), Task::Fetch(fetch)));
        }
        goes_on()?;
        let entries = effects.apply.drain(..).map(RowWork::Entries);
        let installs = effects.installs.drain(..).map(|task| RowWork::Install(Box::new(task)));
        let ends = effects.ends.drain(..).map(RowWork::End);
        let discards = effects.discards.drain(..).map(RowWork::Discard);
        self.executor.queue(entries.chain(installs).chain(ends).chain(discards), out);
        goes_on()?;
        for envelope in effects.unknown.drain(..) {
            let task = Task::Admit(Box::new(envelope));
            out.tasks.push((self.executor.notify_delay_us(), task));
        }
        goes_on()?;
        for grant in effects.answers.reads.drain(..) {
            out.tasks.push((self.executor.notify_delay_us(), Task::Read(grant)));
        }
        goes_on()?;
        let done = |done: LeaderTransferred| (done.ticket, ClientReply::Transferred(done.leader));
        out.replies.extend(effects.answers.transferred.drain(..).map(done));
        let refused = |(ticket, reject)| (ticket, ClientReply::Refused(reject));
        out.replies.extend(effects.answers.rejected.drain(..).map(refused));
        self.streams.coverage.undecided += effects.answers.undecided.len() as u64;
        out.undecided.append(&mut effects.answers.undecided);
        goes_on()?;
        out.roles.append(&mut effects.roles);
        goes_on()
    }

    fn schedule_wake(&mut self, clock: LocalClock, now: SimTime, out: &mut Outbox) {
        let next = self.shard.next_step().map(|time| clock.moment(time, now + 1));
        // Planned once: a wish that has not changed is in the queue already.
        if next != self.wake {
            self.wake = next;
            out.tasks.extend(next.map(|moment| (moment - now, Task::Wake(moment))));
        }
    }
}

/// The ranges of a step, with those of its new replicas: the node reports them together.
fn take_ranges(effects: &mut Effects) -> Option<StepRanges> {
    let created = effects.created.iter();
    let campaigning = created.clone().filter(|new| new.campaigns).map(|new| new.descriptor.id);
    let campaigning = campaigning.collect();
    let created = created.map(|new| new.descriptor.clone());
    let ranges: Vec<_> = effects.ranges.drain(..).chain(created).collect();
    (!ranges.is_empty()).then_some(StepRanges { ranges, campaigning })
}
