//! A shard's thread: mailbox, step, carry out, and again.
//!
//! The clock is read twice for each step: before it, once its events are taken out, and after it,
//! because what a lease has granted must not leave late. Effects are handed over in the order of the
//! lists and nothing is waited for; whatever is slow happens on a worker and comes back as a
//! completion.
//!
//! Before it takes more work the shard looks at how far its workers are behind: from a certain
//! number of bytes on it leaves clients waiting, from twice as much on also the entries of other
//! leaders. Completions, votes, heartbeats and acknowledgements always get through, so a slow
//! disk slows writers down and unseats nobody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use flotilla_region::{ApplyTask, Effects, Envelope, Event, LogFetch, Shard, StoreId};

use crate::clock::Clock;
use crate::driver::mailbox::OpenLanes;
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::driver::tickets::{TicketAnswer, Tickets};
use crate::driver::workers::applier;
use crate::driver::workers::log_writer::LogTask;
use crate::driver::workers::work_queue::WorkQueue;
use crate::failure::NodeFailure;

/// Takes messages to other stores. Never waits: a shard must not wait for a network.
pub(crate) trait MessageSink: Send + Sync + 'static {
    /// Queues a message. If one is dropped for want of room, this or an older one, returns what its
    /// region must hear.
    fn send(&self, envelope: Envelope) -> Option<Event>;
}

/// Where the effects of shards go.
pub(crate) struct EffectSinks<O> {
    pub(crate) transport: O,
    pub(crate) log: Arc<WorkQueue<LogTask>>,
    pub(crate) log_reads: Arc<WorkQueue<LogFetch>>,
    pub(crate) applies: Arc<WorkQueue<ApplyTask>>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) routes: Arc<RoutingTable>,
    /// Bytes behind which clients are left waiting.
    pub(crate) backlog_bytes_max: usize,
}

/// What the thread of one shard needs.
pub(crate) struct ShardThread<O> {
    pub(crate) shard: Shard,
    pub(crate) place: usize,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) sinks: Arc<EffectSinks<O>>,
    pub(crate) clock: Clock,
    /// Whose thread it is, for words.
    pub(crate) store: StoreId,
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
                // The last step left something to be told; there is no time to sleep.
                Some(Instant::now())
            };
            let open = self.sinks.open();
            if !self.mailboxes.at(self.place).take(&mut messages, open, deadline) {
                return;
            }
            for message in messages.drain(..) {
                match message {
                    ShardMessage::Event(event) => events.push_back(event),
                    ShardMessage::Inspect(look) => look(&self.shard),
                }
            }
            effects.clear();
            self.shard.step(self.clock.now(), events.drain(..), &mut effects);
            self.shard.drop_leases_if_late(self.clock.now(), &mut effects);
            if let Some(lost) = effects.lost_logs.first() {
                // Nothing of this step leaves the store: its disk has forgotten what it promised.
                self.failure.refuse(&format!("store {}: {lost}", self.store));
                return;
            }
            self.sinks.carry_out(&mut effects, &mut events);
        }
    }
}

impl<O: MessageSink> EffectSinks<O> {
    /// Which lanes are open, with the workers as far behind as they are.
    fn open(&self) -> OpenLanes {
        let behind = self.log.bytes().max(self.applies.bytes());
        OpenLanes {
            clients: behind <= self.backlog_bytes_max,
            appends: behind <= 2 * self.backlog_bytes_max,
        }
    }

    /// Hands everything over. What comes back at once is put into `events`, for the next step.
    fn carry_out(&self, effects: &mut Effects, events: &mut VecDeque<Event>) {
        events.extend(
            effects.messages.drain(..).filter_map(|envelope| self.transport.send(envelope)),
        );
        if !effects.log.is_empty() || !effects.compact.is_empty() {
            let writes = effects.log.drain(..).map(LogTask::Write);
            let tasks = writes.chain(effects.compact.drain(..).map(LogTask::Compact));
            self.log.push_all(tasks.map(|task| {
                let bytes = task.weight();
                (task, bytes)
            }));
        }
        if !effects.fetches.is_empty() {
            self.log_reads.push_all(effects.fetches.drain(..).map(|fetch| (fetch, 64)));
        }
        if !effects.apply.is_empty() {
            self.applies.push_all(effects.apply.drain(..).map(|task| {
                let bytes = applier::weight(&task);
                (task, bytes)
            }));
        }
        // Roles before answers: who is told that there is no leader looks at the roles next, and
        // must not find the one that has just gone.
        for change in effects.roles.drain(..) {
            tracing::debug!(
                region = %change.region, term = %change.term, leader = ?change.leader, "role"
            );
            self.routes.note(change);
        }
        for wild in effects.wild_terms.drain(..) {
            tracing::warn!("{wild}");
        }
        for grant in effects.reads.drain(..) {
            self.tickets.answer(grant.ticket, TicketAnswer::Granted(grant.index));
        }
        for (ticket, reject) in effects.rejected.drain(..) {
            self.tickets.answer(ticket, TicketAnswer::Rejected(reject));
        }
    }
}
