//! The thread of a store's shard: takes events, steps the regions, hands over the effects. The
//! order and the two looks at the clock are those of the node
//! (`crates/node/src/driver/shard_thread.rs`).

use super::cluster::{Answer, Cluster, STORES, StoreContext};
use super::workers::{self, LogTask};
use crate::log::Result;
use flotilla_region::{Effects, Event, Shard};
use std::collections::VecDeque;
use std::time::Instant;

/// Bytes of unfinished work above which clients wait: the node's default.
const BACKLOG_BYTES_MAX: usize = 32 << 20;

/// Runs until the mailbox is closed.
pub fn run(cluster: &Cluster, context: &StoreContext, mut shard: Shard) -> Result<()> {
    let mut events: VecDeque<Event> = VecDeque::new();
    let mut effects = Effects::default();
    loop {
        let deadline: Option<Instant> = shard.next_step().map(|time| cluster.instant(time));
        let behind = context.writes.bytes().max(context.applies.bytes());
        if !context.mailbox.take(&mut events, behind <= BACKLOG_BYTES_MAX, deadline) {
            return Ok(());
        }
        effects.clear();
        shard.step(cluster.now(), events.drain(..), &mut effects);
        shard.drop_leases_if_late(cluster.now(), &mut effects);
        if let Some(lost) = effects.findings.lost_logs.first() {
            return Err(lost.to_string().into());
        }
        carry_out(cluster, context, &mut effects);
        if !effects.is_empty() {
            return Err("an effect was not handed over".into());
        }
    }
}

fn carry_out(cluster: &Cluster, context: &StoreContext, effects: &mut Effects) {
    let mut messages: [Vec<Event>; STORES] = std::array::from_fn(|_| Vec::new());
    for envelope in effects.messages.drain(..) {
        messages[envelope.to.store.0 as usize - 1].push(Event::Message(envelope));
    }
    for (to, messages) in messages.into_iter().enumerate() {
        cluster.send(to, messages);
    }
    if !effects.log.is_empty() || !effects.log.compact.is_empty() {
        let writes = effects.log.writes.drain(..).map(LogTask::Write);
        let tasks = writes.chain(effects.log.compact.drain(..).map(LogTask::Compact));
        context.writes.push_all(tasks.map(|task| {
            let bytes = task.weight();
            (task, bytes)
        }));
    }
    if !effects.fetches.is_empty() {
        context.fetches.push_all(effects.fetches.drain(..).map(|fetch| (fetch, 64)));
    }
    if !effects.apply.is_empty() {
        context.applies.push_all(effects.apply.drain(..).map(|task| {
            let bytes = workers::weight(&task);
            (task, bytes)
        }));
    }
    for change in effects.roles.drain(..).filter(|change| change.is_leader) {
        cluster.note_leader(change.region, context.at);
    }
    if !effects.answers.reads.is_empty() || !effects.answers.rejected.is_empty() {
        let granted = effects.answers.reads.drain(..).map(|grant| Answer::Granted(grant.ticket));
        let rejected =
            effects.answers.rejected.drain(..).map(|(t, reject)| Answer::Rejected(t, reject));
        cluster.answer(granted.chain(rejected));
    }
    effects.findings.wild_terms.clear();
}
