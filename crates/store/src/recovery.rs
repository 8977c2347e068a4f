//! From two engines on disk to replicas that raft can start from.
//!
//! The durable root of the page store says how far each region is applied; the log has everything
//! above, and hard states that may be newer than the root's copies. Where the two do not connect,
//! this is the place that mends it or says why it cannot: raft would panic.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_pagestore::PageStore;
use flotilla_raftlog::{Durability, Group, LogBatch, LogEngine};
use flotilla_region::{
    Descriptor, EndTask, HardState, Index, LogEntry, PeerId, RecoveredReplica, RegionId,
    SPLIT_INDEX, StoreId, Term, UnbornReplica, UninitialisedReplica,
};

use crate::error::Error;
use crate::log_reader;
use crate::schema::{
    self, ApplyState, BIRTH_KEY, BirthRecord, CheckpointLsn, HARD_STATE_KEY, MalformedRow,
    STORE_GROUP, Tombstone, UninitialisedRow,
};
use crate::snapshot_read::StoreSnapshot;
use crate::store_log::{self, RecoveredGroup, StoreLog};

/// The log must reach up to the mark of the durable root.
pub(crate) fn check_log_position(pages: &PageStore, log: &LogEngine) -> Result<(), Error> {
    let position = CheckpointLsn::decode(pages.read().commit_metadata())?;
    let found = log.durable_lsn();
    if found < position.lsn {
        return Err(Error::Corrupt(format!(
            "the pages follow the log up to {}, but it ends at {found}: a part of it is missing; \
             bring the whole directory back",
            position.lsn
        )));
    }
    Ok(())
}

/// The replicas of a store as a start found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredReplicas {
    /// Those with rows, in the order of their regions.
    pub replicas: Vec<RecoveredReplica>,
    /// Those that only the log has, because the split that made them is not in the durable rows. It
    /// is committed, and applied again.
    pub unborn: Vec<UnbornReplica>,
    /// Those that a message has made and that have no data, in the order of their regions.
    pub uninitialised: Vec<UninitialisedReplica>,
}

/// The result of a start.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) replicas: RecoveredReplicas,
    /// Replicas with rows that end before the store takes a message: a split has made them beside a
    /// later replica of their region (R17), and a crash came before they ended.
    pub(crate) superseded: Vec<(RecoveredReplica, EndTask)>,
}

/// All replicas of this store.
pub(crate) fn recover(
    pages: &PageStore,
    log: &StoreLog,
    store: StoreId,
) -> Result<Recovery, Error> {
    let view = StoreSnapshot::new(pages.read());
    let tombstones = view.tombstones()?;
    let has_ended = |region: RegionId, peer: PeerId| {
        tombstones.get(&region).is_some_and(|tombstone| peer <= tombstone.peer)
    };
    let mut replicas = vec![];
    for descriptor in view.descriptors()? {
        let region = descriptor.id;
        let peer = schema::replica_here(&descriptor, store).ok_or_else(|| {
            Error::Corrupt(format!("region {region} has no replica on this store"))
        })?;
        if has_ended(region, peer) {
            return Err(Error::Corrupt(format!(
                "region {region}: replica {peer} has ended, and has rows"
            )));
        }
        let state = view.state(region)?;
        replicas.push(replica(log, descriptor, peer, &state)?);
    }
    let rows = view.uninitialised()?;
    if let Some((region, row)) = rows.iter().find(|(region, row)| has_ended(**region, row.peer)) {
        return Err(Error::Corrupt(format!(
            "region {region}: replica {} has ended, and has a row without data",
            row.peer
        )));
    }
    let replicas = RecoveredReplicas { replicas, ..RecoveredReplicas::default() };
    let mut recovery = Recovery { replicas, superseded: vec![] };
    without_rows(log, rows, &tombstones, &mut recovery)?;
    Ok(recovery)
}

/// R14b: the replicas of which there is no data, before any of them hears a message. `rows` are
/// those of the ones that had none at the last checkpoint.
fn without_rows(
    log: &StoreLog,
    rows: BTreeMap<RegionId, UninitialisedRow>,
    tombstones: &BTreeMap<RegionId, Tombstone>,
    recovery: &mut Recovery,
) -> Result<(), Error> {
    let recovered = &mut recovery.replicas;
    let mut births = births(log, &rows, tombstones, &recovered.replicas)?;
    recover_unborn(log, &births, &rows, recovered)?;
    // Those that the log has forgotten have their rows only.
    for (region, row) in &rows {
        births.entry(row.peer).or_insert(BirthRecord::Message { region: *region });
    }
    let unborn: BTreeSet<_> = recovered.unborn.iter().map(|unborn| unborn.region).collect();
    for (peer, birth) in births {
        let BirthRecord::Message { region } = birth else { continue };
        let replicas = &mut recovery.replicas.replicas;
        let with_rows = replicas.iter().position(|found| found.descriptor.id == region);
        match with_rows {
            // The later replica is here: the one with rows ends, as when its shard hears of it.
            Some(at) if replicas[at].peer < peer => {
                let other = replicas.remove(at);
                let task = EndTask { region, peer: other.peer };
                recovery.superseded.push((other, task));
            }
            // A message named a replica that is no member: a split has made another one. Its votes
            // never counted.
            Some(_) => {
                remove_group(log, peer)?;
                continue;
            }
            None if unborn.contains(&region) => {
                remove_group(log, peer)?;
                continue;
            }
            None => {}
        }
        let recovered = &mut recovery.replicas;
        if recovered.uninitialised.iter().any(|found| found.region == region) {
            return Err(Error::Corrupt(format!(
                "region {region} has a second replica {peer}, which has no data"
            )));
        }
        let row = rows.get(&region).filter(|row| row.peer == peer).map(|row| row.hard_state);
        recovered.uninitialised.push(uninitialised_replica(log, region, peer, row)?);
    }
    recovery.replicas.uninitialised.sort_by_key(|found| found.region);
    Ok(())
}

/// The replicas whose splits are to be applied again.
fn recover_unborn(
    log: &StoreLog,
    births: &BTreeMap<PeerId, BirthRecord>,
    rows: &BTreeMap<RegionId, UninitialisedRow>,
    recovered: &mut RecoveredReplicas,
) -> Result<(), Error> {
    let unborn: Vec<_> = births
        .iter()
        .filter_map(|(peer, birth)| match *birth {
            BirthRecord::Split { region, parent, index } => Some((*peer, region, parent, index)),
            BirthRecord::Message { .. } => None,
        })
        .collect();
    let is_unborn = |region| unborn.iter().any(|(_, child, ..)| *child == region);
    for &(peer, region, parent, index) in &unborn {
        let made_by = recovered.replicas.iter().find(|found| found.descriptor.id == parent);
        // The parent may itself wait for its own parent's split.
        let is_due = made_by.map_or(is_unborn(parent), |parent| parent.applied.0 < index);
        if !is_due {
            return Err(Error::Corrupt(format!(
                "region {region} was split off from {parent} by its entry {index}, but the rows do \
                 not have it"
            )));
        }
        let mut replica = unborn_replica(log, region, parent, peer)?;
        // A vote that it gave before the split was applied, and that only the row has.
        let voted = rows.get(&region).filter(|row| row.peer == peer);
        if let Some(voted) = voted {
            replica.hard_state = replica.hard_state.merge(voted.hard_state);
        }
        log.note_unborn(&replica);
        recovered.unborn.push(replica);
    }
    Ok(())
}

fn remove_group(log: &StoreLog, peer: PeerId) -> Result<(), Error> {
    let mut batch = LogBatch::new();
    batch.remove_group(peer.0);
    log.engine().write(batch, Durability::Synced).wait()?;
    Ok(())
}

/// The births of the replicas in the log of which there is no data. The groups of those that have
/// ended are removed: the last step of an end, which a crash has kept from the log.
fn births(
    log: &StoreLog,
    rows: &BTreeMap<RegionId, UninitialisedRow>,
    tombstones: &BTreeMap<RegionId, Tombstone>,
    replicas: &[RecoveredReplica],
) -> Result<BTreeMap<PeerId, BirthRecord>, Error> {
    let known: BTreeSet<_> = replicas.iter().map(|replica| replica.peer).collect();
    // Rows and birth are gone, or forgotten: only the tombstone knows the region of such a group.
    let of_ended: BTreeSet<_> =
        tombstones.values().flat_map(|tombstone| tombstone.groups.iter().copied()).collect();
    let (mut births, mut ended) = (BTreeMap::new(), vec![]);
    for id in log.engine().group_ids() {
        let peer = PeerId(id);
        if id == STORE_GROUP || known.contains(&peer) {
            continue;
        }
        if of_ended.contains(&peer) {
            ended.push(peer);
            continue;
        }
        let birth = match log.engine().group(id).and_then(|group| group.get(BIRTH_KEY)) {
            Some(record) => BirthRecord::decode(record).map_err(MalformedRow::from)?,
            // The log forgot the birth when a root had its row, and has heard of a vote since.
            None => match rows.iter().find(|(_, row)| row.peer == peer) {
                Some((region, _)) => BirthRecord::Message { region: *region },
                None => {
                    return Err(Error::Corrupt(format!(
                        "the log has a replica {peer} that no region has"
                    )));
                }
            },
        };
        let tombstone = tombstones.get(&birth.region());
        if tombstone.is_some_and(|tombstone| peer <= tombstone.peer) {
            ended.push(peer);
        } else {
            births.insert(peer, birth);
        }
    }
    log.remove_ended(&ended)?;
    Ok(births)
}

fn unborn_replica(
    log: &StoreLog,
    region: RegionId,
    parent: RegionId,
    peer: PeerId,
) -> Result<UnbornReplica, Error> {
    let broken = || Error::Corrupt(format!("region {region}: the log of a new replica is broken"));
    let group = log.engine().group(peer.0).ok_or_else(broken)?;
    // In one batch with the birth.
    let hard_state = store_log::hard_state(&group)?.ok_or_else(broken)?;
    let last = Index(group.last_index());
    if group.first_index() != SPLIT_INDEX.0 + 1 || hard_state.commit > last {
        return Err(broken());
    }
    let (terms, tail) = read_log(&group, SPLIT_INDEX)?;
    Ok(UnbornReplica { region, peer, parent, hard_state, terms, last, tail })
}

/// A replica without data: the newest of its hard states, in the log and in its row.
fn uninitialised_replica(
    log: &StoreLog,
    region: RegionId,
    peer: PeerId,
    row: Option<HardState>,
) -> Result<UninitialisedReplica, Error> {
    let broken =
        || Error::Corrupt(format!("region {region}: the log of a replica without data is broken"));
    let group = log.engine().group(peer.0);
    let logged = group.as_ref().map(store_log::hard_state).transpose()?.flatten();
    // Each of the two is written in one batch with what says that the replica is here.
    let hard_state = match (logged, row) {
        (Some(logged), Some(row)) => logged.merge(row),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return Err(broken()),
    };
    if group.is_some_and(|group| !has_not_begun(&group)) || hard_state.commit != Index(0) {
        return Err(broken());
    }
    log.note_uninitialised(region, peer, hard_state, logged.is_some());
    Ok(UninitialisedReplica { region, peer, hard_state })
}

fn replica(
    log: &StoreLog,
    descriptor: Descriptor,
    peer: PeerId,
    state: &ApplyState,
) -> Result<RecoveredReplica, Error> {
    let region = descriptor.id;
    let applied = (state.applied, state.term);
    let group = log.engine().group(peer.0);
    let logged = group.as_ref().map(store_log::hard_state).transpose()?.flatten();
    let mut hard_state = logged.map_or(state.hard_state, |newer| state.hard_state.merge(newer));
    // A commit index is synced only along with entries, so it may lag behind the applied index.
    hard_state.commit = hard_state.commit.max(applied.0);

    let mut recovered = RecoveredReplica {
        descriptor,
        peer,
        hard_state,
        applied,
        truncated: applied,
        terms: vec![],
        last: applied.0,
        tail: vec![],
        is_damaged: state.is_damaged,
    };
    let continuity =
        group.as_ref().map_or(Ok(LogContinuity::Empty), |group| continuity(group, applied));
    match continuity.map_err(|what| Error::Corrupt(format!("region {region}: {what}")))? {
        LogContinuity::Connected(truncated) => {
            let group = group.as_ref().expect("only a group connects");
            recovered.truncated = truncated;
            recovered.last = Index(group.last_index());
            (recovered.terms, recovered.tail) = read_log(group, applied.0)?;
        }
        // A snapshot whose log was not reset: else the entries to come would stand behind one whose
        // term the log does not know, and the next start would take them for another log's.
        LogContinuity::Empty if applied.0 > Index(0) => reset(log, peer, applied, hard_state)?,
        LogContinuity::Empty => {}
        LogContinuity::Diverged => reset(log, peer, applied, hard_state)?,
    }
    // This store's copies of the entries between may have been counted for their majority: without
    // them it would vote for leaders that lack them.
    if hard_state.commit > recovered.last {
        return Err(Error::Corrupt(format!(
            "region {region}: entry {} is committed, but the log ends at {}",
            hard_state.commit, recovered.last
        )));
    }
    let group = log.engine().group(peer.0);
    let found = RecoveredGroup {
        durable: applied,
        hard_state,
        // Without a comparison: a row that is copied again costs nothing, a vote that the log
        // forgets too early may be given twice.
        hard_state_ahead: group.as_ref().is_some_and(|group| group.get(HARD_STATE_KEY).is_some()),
        absent: group.is_none_or(|group| has_not_begun(&group)),
    };
    log.note_recovered(region, peer, found);
    Ok(recovered)
}

/// How a log and an applied index lie to each other.
enum LogContinuity {
    /// The log goes on where the applied entries end, or reaches below. With the entry before its
    /// first.
    Connected((Index, Term)),
    /// The log holds no entry and never did, or forgot that it had.
    Empty,
    /// The log ends below the applied index, or went another way.
    Diverged,
}

fn continuity(group: &Group, applied: (Index, Term)) -> Result<LogContinuity, String> {
    let (first, last) = (group.first_index(), group.last_index());
    let index = applied.0.0;
    if has_not_begun(group) {
        return Ok(LogContinuity::Empty);
    }
    // No reset mends this, as it does for a log that ends too low: the entries between are
    // committed and gone, and only another replica has them.
    if first > index + 1 {
        return Err(format!("the log begins at {first}, but only {index} is applied"));
    }
    // The term of an entry that the log does not know is not this one either.
    if last < index || !group.term(index).is_ok_and(|term| Term(term) == applied.1) {
        return Ok(LogContinuity::Diverged);
    }
    let before = group.term(first - 1).map_err(|error| error.to_string())?;
    Ok(LogContinuity::Connected((Index(first - 1), Term(before))))
}

fn has_not_begun(group: &Group) -> bool {
    store_log::is_empty(group) && group.last_index() == 0
}

/// Runs of terms of a log, and its entries above the applied one.
type LogContents = (Vec<(Index, Term)>, Vec<LogEntry>);

fn read_log(group: &Group, applied: Index) -> Result<LogContents, Error> {
    let runs = group.term_runs().into_iter();
    let (low, high) = (Index(applied.0 + 1), Index(group.last_index() + 1));
    let tail = if low < high { log_reader::read(group, low, high, u64::MAX)? } else { vec![] };
    // Raft would panic later, at the first entry that is missing.
    let (count, missing) = (tail.len() as u64, high.0.saturating_sub(low.0));
    assert_eq!(count, missing, "entries read from {low} to below {high}");
    Ok((runs.map(|(first, term)| (Index(first), Term(term))).collect(), tail))
}

/// Empties a log that does not belong to the applied state. Term and vote are kept: they may have
/// been promised.
fn reset(
    log: &StoreLog,
    peer: PeerId,
    applied: (Index, Term),
    hard_state: HardState,
) -> Result<(), Error> {
    let mut batch = LogBatch::new();
    // First, because it takes the group's keys along: the vote is put back behind it.
    batch.remove_group(peer.0);
    batch.compact_to(peer.0, applied.0.0 + 1, applied.1.0);
    batch.put(peer.0, HARD_STATE_KEY, &hard_state.encode());
    log.engine().write(batch, Durability::Synced).wait()?;
    Ok(())
}
