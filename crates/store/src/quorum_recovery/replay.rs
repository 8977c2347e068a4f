//! Applies logs without a node: what is known to be committed, as every start does, and for some
//! regions all that the log has.
//!
//! The same rules decide as in a node, those of `flotilla_region`: a split makes its regions, a
//! removed replica ends. No time passes and nothing is sent, so no replica campaigns.

use flotilla_region::{
    Config, CreateReplicaError, Effects, Event, RecoveredReplica, RegionId, Shard, Time,
    UnbornReplica,
};

use crate::checkpoint::{CheckpointReport, CheckpointedReplica};
use crate::error::Error;
use crate::recovery::RecoveredReplicas;
use crate::store::Store;

const NOW: Time = Time(0);

/// Applies the logs of all replicas. Those of regions for which `to_end` holds are applied to the
/// end, whether or not it is known that a majority had the entries.
pub(super) fn replay(
    store: &Store,
    recovered: RecoveredReplicas,
    to_end: impl Fn(RegionId) -> bool,
) -> Result<(), Error> {
    let refused = |error: CreateReplicaError| Error::Corrupt(error.to_string());
    let mut shard = Shard::new(Config::default());
    let RecoveredReplicas { replicas, unborn, uninitialised } = recovered;
    for mut found in replicas {
        if to_end(found.descriptor.id) {
            commit_all(&mut found);
        }
        shard.create(NOW, found, false).map_err(refused)?;
    }
    for mut found in unborn {
        if to_end(found.region) {
            let UnbornReplica { hard_state, last, .. } = &mut found;
            hard_state.commit = hard_state.commit.max(*last);
        }
        shard.keep_unborn(found).map_err(refused)?;
    }
    for found in uninitialised {
        shard.keep_uninitialised(found).map_err(refused)?;
    }
    let (mut events, mut effects) = (vec![], Effects::default());
    loop {
        effects.clear();
        shard.step(NOW, events.drain(..), &mut effects);
        events = carry_out(store, &effects)?;
        if events.is_empty() {
            break;
        }
    }
    for region in shard.regions().filter(|region| to_end(*region)) {
        let status = shard.status(region).expect("the shard has just named the region");
        let (applied, last) = (status.applied, status.last);
        assert!(applied == last, "region {region}: applied up to {applied}, the log has {last}");
    }
    Ok(())
}

fn commit_all(found: &mut RecoveredReplica) {
    found.hard_state.commit = found.hard_state.commit.max(found.last);
}

/// Carries out effects in the order of their fields, and returns what has come of them. Messages,
/// notices and wishes go nowhere.
fn carry_out(store: &Store, effects: &Effects) -> Result<Vec<Event>, Error> {
    let mut events = vec![];
    let log = &effects.log;
    if !log.is_empty() {
        store.write_log(&log.writes, &log.births, &log.compact, &log.removals).wait()?;
        let done = |write: &flotilla_region::LogWrite| Event::Persisted {
            region: write.region,
            number: write.number,
        };
        events.extend(log.writes.iter().map(done));
    }
    for fetch in &effects.fetches {
        let (region, peer, context) = (fetch.region, fetch.peer, fetch.context);
        let entries = store.fetch(fetch)?;
        events.push(Event::Fetched { region, peer, context, entries });
    }
    events.extend(effects.created.iter().cloned().map(Event::Create));
    if !effects.apply.is_empty() {
        let applied = store.apply(&effects.apply)?;
        events.extend(applied.replicas.into_iter().map(|replica| Event::Applied {
            region: replica.region,
            index: replica.index,
            changes: replica.changes,
            size: replica.size,
        }));
    }
    // Stages do not outlive a process, so none can be installed.
    assert!(effects.installs.is_empty(), "{} snapshots without rows", effects.installs.len());
    if !effects.ends.is_empty() {
        for task in &effects.ends {
            store.end(task)?;
        }
        let CheckpointReport { replicas, ended } = store.checkpoint()?;
        events.extend(replicas.into_iter().map(|replica| {
            let CheckpointedReplica { region, applied, installed } = replica;
            Event::Checkpointed { region, applied, installed }
        }));
        events.extend(ended.into_iter().map(|task| {
            let (region, peer) = (task.region, task.peer);
            Event::Ended { region, peer }
        }));
    }
    Ok(events)
}
