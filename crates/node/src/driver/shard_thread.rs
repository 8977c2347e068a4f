//! The thread of one shard: take messages, step the regions, hand over the effects, repeat.
//!
//! The clock is read twice for each step: before it, once its events are taken out, and after it,
//! because what a lease has granted must not leave late. Effects are handed over in the order of
//! the lists and nothing is waited for; slow work happens on a worker and comes back as a
//! completion.
//!
//! Backpressure: before it takes more work the shard looks at how far its workers are behind. From
//! `backlog_bytes_max` on it leaves clients waiting, from twice as much on also the entries of
//! other leaders. Completions, votes, heartbeats and acknowledgements always get through, so a slow
//! disk slows writers down and deposes no leader.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use flotilla_dispatch::OpenLanes;
use flotilla_region::{
    Effects, Envelope, Event, MembershipChange, Notice, Peer, Shard, SnapshotSend, StoreId,
};

use crate::clock::Clock;
use crate::driver::joint_changes::{JointChanges, LeftJoint};
use crate::driver::latencies::Milestone;
use crate::driver::membership_change::log_change;
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::driver::split_wishes::SplitWishes;
use crate::driver::tickets::{TicketAnswer, Tickets};
use crate::driver::workers::applier::ApplyWork;
use crate::driver::workers::log_reader::LookupTask;
use crate::driver::workers::log_writer::LogTask;
use crate::driver::workers::work_queue::WorkQueue;
use crate::failure::NodeFailure;

/// Takes messages to other stores. Never waits: a shard must not wait for a network.
pub(crate) trait MessageSink: Send + Sync + 'static {
    /// Queues a message. If one is dropped for want of room, this or an older one, returns what its
    /// region must hear.
    fn send(&self, envelope: Envelope) -> Option<Event>;

    /// Begins to send a snapshot. The region hears how it ended in every case.
    fn send_snapshot(&self, send: SnapshotSend);

    /// Sends a notice. It may be lost. Returns the answer if it is known without the receiver.
    fn send_notice(&self, notice: Notice) -> Option<Event>;
}

/// The queues and tables that take the effects of all shards.
pub(crate) struct EffectSinks<O> {
    pub(crate) transport: O,
    pub(crate) log: Arc<WorkQueue<LogTask>>,
    pub(crate) lookups: Arc<WorkQueue<LookupTask>>,
    pub(crate) applies: Arc<WorkQueue<ApplyWork>>,
    pub(crate) split_wishes: Arc<SplitWishes>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) routes: Arc<RoutingTable>,
    pub(crate) joint_changes: Arc<JointChanges>,
    /// The store, for messages.
    pub(crate) store: StoreId,
    /// Bytes of unfinished work above which clients are left waiting.
    pub(crate) backlog_bytes_max: usize,
}

/// The thread of one shard, before it runs.
pub(crate) struct ShardThread<O> {
    pub(crate) shard: Shard,
    pub(crate) place: usize,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) sinks: Arc<EffectSinks<O>>,
    pub(crate) clock: Clock,
    pub(crate) failure: NodeFailure,
}

impl<O: MessageSink> ShardThread<O> {
    /// Runs until the mailbox is closed.
    pub(crate) fn run(mut self) {
        let mut messages: VecDeque<ShardMessage> = VecDeque::new();
        let mut events: VecDeque<Event> = VecDeque::new();
        let mut effects = Effects::default();
        loop {
            let deadline = if events.is_empty() {
                self.shard.next_step().map(|time| self.clock.instant(time))
            } else {
                // The last step left events for the next one, so the thread must not sleep.
                Some(Instant::now())
            };
            let open = self.sinks.open();
            if !self.mailboxes.at(self.place).take(&mut messages, open, deadline) {
                return;
            }
            let taken = Instant::now();
            for message in messages.drain(..) {
                match message {
                    ShardMessage::Event(event) if self.sinks.is_given_up(&event, taken) => {}
                    ShardMessage::Event(event) => events.push_back(event),
                    ShardMessage::Inspect(look) => look(&self.shard),
                    ShardMessage::Reconfigure(settings, done) => {
                        self.shard.reconfigure(settings);
                        // The effects of the last step have left; an error means that the asker has
                        // gone.
                        let _ = done.send(());
                    }
                    ShardMessage::Disks(disks) => self.shard.note_disks(disks),
                }
            }
            effects.clear();
            self.shard.step(self.clock.now(), events.drain(..), &mut effects);
            // The step itself may have taken longer than a lease had left (decision 5,
            // `docs/decisions/0005-leases.md`).
            self.shard.drop_leases_if_late(self.clock.now(), &mut effects);
            if let Some(lost) = effects.findings.lost_logs.first() {
                // Nothing of this step leaves the store: its disk has forgotten what it had
                // promised.
                self.failure.refuse(&format!("store {}: {lost}", self.sinks.store));
                return;
            }
            self.sinks.carry_out(&mut effects, &mut events, &self.mailboxes);
        }
    }
}

impl<O: MessageSink> EffectSinks<O> {
    /// The lanes that are open while the workers have their present backlog.
    fn open(&self) -> OpenLanes {
        // The longer of the two queues counts: entries that are logged are applied next.
        let behind = self.log.bytes().max(self.applies.bytes());
        OpenLanes::beside(behind, self.backlog_bytes_max)
    }

    /// Whether the caller of a request that is taken now has gone, its time is over, perhaps: then
    /// it is not begun.
    fn is_given_up(&self, event: &Event, now: Instant) -> bool {
        match event {
            Event::Propose { ticket, .. } | Event::Read { ticket, .. } => {
                !self.tickets.pass(*ticket, Milestone::Taken, now)
            }
            _ => false,
        }
    }

    /// Hands all effects over. Events that come back at once are put into `events`, for the next
    /// step.
    fn carry_out(
        &self,
        effects: &mut Effects,
        events: &mut VecDeque<Event>,
        mailboxes: &Mailboxes,
    ) {
        let now = Instant::now();
        events.extend(
            effects.messages.drain(..).filter_map(|envelope| self.transport.send(envelope)),
        );
        effects.snapshots.drain(..).for_each(|send| self.transport.send_snapshot(send));
        events.extend(
            effects.notices.drain(..).filter_map(|notice| self.transport.send_notice(notice)),
        );
        if !effects.log.is_empty() {
            let writes = effects.log.writes.drain(..).map(LogTask::Write);
            let writes = writes.chain(effects.log.births.drain(..).map(LogTask::Birth));
            let tasks = writes.chain(effects.log.compact.drain(..).map(LogTask::Compact));
            let tasks = tasks.chain(effects.log.removals.drain(..).map(LogTask::Remove));
            self.log.push_all(tasks.map(|task| {
                let bytes = task.weight();
                (task, bytes)
            }));
        }
        self.hand_on_ranges(effects, mailboxes);
        self.hand_on_applies(effects, now);
        if !(effects.fetches.is_empty() && effects.unknown.is_empty()) {
            let fetches = effects.fetches.drain(..).map(LookupTask::Fetch);
            let lookups = fetches.chain(effects.unknown.drain(..).map(LookupTask::Admit));
            self.lookups.push_all(lookups.map(|task| (task, 64)));
        }
        effects.load.split_wishes.drain(..).for_each(|wish| self.split_wishes.push(wish));
        self.routes.note_loads(&effects.load.regions);
        effects.load.regions.clear();
        // Roles before answers: a request that is rejected for want of a leader looks at the roles
        // next, and must not find the leader that has just gone.
        for change in effects.roles.drain(..) {
            tracing::debug!(
                region = %change.region, term = %change.term, leader = ?change.leader, "role"
            );
            self.routes.note(change);
        }
        // Behind the roles: the applier takes the region off the routes when its replica has ended.
        self.applies.push_all(effects.ends.drain(..).map(|task| {
            self.joint_changes.forget(task.region);
            let work = ApplyWork::End(task);
            let bytes = work.weight();
            (work, bytes)
        }));
        for wild in effects.findings.wild_terms.drain(..) {
            tracing::warn!("{wild}");
        }
        for grant in effects.answers.reads.drain(..) {
            self.tickets.answer(grant.ticket, TicketAnswer::Granted(grant.index), now);
        }
        for done in effects.answers.transferred.drain(..) {
            self.tickets.answer(done.ticket, TicketAnswer::Transferred(done.leader), now);
        }
        for (ticket, reject) in effects.answers.rejected.drain(..) {
            self.tickets.answer(ticket, TicketAnswer::Rejected(reject), now);
        }
        effects.answers.undecided.drain(..).for_each(|ticket| self.tickets.leave_open(ticket));
        assert!(effects.is_empty(), "an effect was not handed over");
    }

    /// Entries, snapshots and stages that are given up go to one queue: a snapshot is installed
    /// behind all entries that were handed out before it.
    fn hand_on_applies(&self, effects: &mut Effects, now: Instant) {
        if effects.apply.is_empty() && effects.installs.is_empty() && effects.discards.is_empty() {
            return;
        }
        let committed = effects.apply.iter().flat_map(|task| &task.entries);
        for ticket in committed.flat_map(|committed| &committed.tickets) {
            // A caller that has gone leaves its entry in the log.
            self.tickets.pass(*ticket, Milestone::Committed, now);
        }
        let entries = effects.apply.drain(..).map(ApplyWork::Entries);
        let installs = effects.installs.drain(..).map(|task| ApplyWork::Install(Box::new(task)));
        let discards = effects.discards.drain(..).map(ApplyWork::Discard);
        self.applies.push_all(entries.chain(installs).chain(discards).map(|work| {
            let bytes = work.weight();
            (work, bytes)
        }));
    }

    /// New replicas go to their shards, and ranges to the routing table.
    fn hand_on_ranges(&self, effects: &mut Effects, mailboxes: &Mailboxes) {
        if effects.ranges.is_empty() && effects.created.is_empty() {
            return;
        }
        // With the region that was split: between the two there would be a hole.
        let created = effects.created.iter().map(|new| new.descriptor.clone());
        let campaigning = effects.created.iter().filter(|new| new.campaigns);
        let campaigning = campaigning.map(|new| new.descriptor.id).collect();
        let ranges: Vec<_> = effects.ranges.drain(..).chain(created).collect();
        for range in &ranges {
            tracing::debug!(region = %range.id, version = range.epoch.version, "a range is new");
            let left = self.joint_changes.note(range, Instant::now().into());
            let leads = |(_, leader): (_, Peer)| leader.store == self.store;
            if let Some(LeftJoint { cause, entered }) = left
                && self.routes.leader(range.id).is_some_and(leads)
            {
                log_change(range, &MembershipChange::LeaveJoint, entered, &cause);
            }
        }
        // Behind the log's queue: all that a new replica writes lies behind its birth. Before the
        // routes: a request that finds one of the new regions comes to its shard behind this.
        if !effects.created.is_empty() {
            mailboxes.complete_all(effects.created.drain(..).map(Event::Create));
        }
        self.routes.note_ranges(ranges, campaigning);
    }
}
