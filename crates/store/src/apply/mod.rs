//! Applying: committed entries of many regions become rows in one page-store transaction.
//!
//! Data, applied index and the rest of a region's state change in the same transaction, so every
//! root, and with it every snapshot and every state after a crash, holds a region at exactly one
//! index. Outcomes are handed out only when the transaction is published.
//!
//! Applying is deterministic: it depends on the rows and the entry only, and has the same result on
//! each replica. Hence an entry that cannot be read stops the store, and is never skipped.
//!
//! A damaged replica has lost rows, so for it only the region itself changes: its range, its
//! members, its applied index. Its rows come with a snapshot.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use flotilla_kv::raw;
use flotilla_pagestore::{PageStore, WriteTxn};
use flotilla_region::entry_data::{self, Proposal};
use flotilla_region::{
    AdminCommand, ApplyTask, Committed, Descriptor, Index, LogEntry, PeerId, RegionChange,
    RegionId, RegionSize, SplitRegions, StoreId, Ticket,
};

use crate::damage::{self, DamagedReplica, DamagedReplicas};
use crate::error::Error;
use crate::range_map::RangeMap;
use crate::schema::{self, APPLY, ApplyState, REGION};
use crate::store_log::StoreLog;

mod admin;
mod consistency;
mod membership;
mod outcome;
mod row_read_ahead;
mod rows;
mod split;

pub(crate) use consistency::{DigestCut, cut, verdicts};
pub use outcome::{ApplyOutcome, ApplyReject};
pub(crate) use row_read_ahead::RowReadAhead;

/// The result of applying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// How far the replica of each region of the tasks is applied now. A region is there again for
    /// the entries behind one that asks for a digest.
    pub replicas: Vec<AppliedReplica>,
    /// The outcomes of the proposals that have a ticket here, in the order of the log.
    pub outcomes: Vec<(Ticket, ApplyOutcome)>,
    /// How many entries were applied; those that were applied before do not count.
    pub entries: u64,
    /// The tickets of proposals for rows of a damaged replica: what came of them is known to other
    /// replicas only.
    pub undecided: Vec<Ticket>,
    /// Replicas that were found to be damaged on the way, also of other regions than the tasks'.
    pub damaged: Vec<DamagedReplica>,
}

impl Applied {
    /// Adds the result of later tasks.
    pub(crate) fn extend(&mut self, later: Self) {
        self.replicas.extend(later.replicas);
        self.outcomes.extend(later.outcomes);
        self.entries += later.entries;
        self.undecided.extend(later.undecided);
        self.damaged.extend(later.damaged);
    }
}

/// How far a replica is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedReplica {
    /// The region.
    pub region: RegionId,
    /// The replica on this store, also if an entry of the task has removed it.
    pub peer: PeerId,
    /// The last entry whose effects are visible to reads.
    pub index: Index,
    /// The changes of the region that the entries of the task have made, in order. A split names
    /// the new regions that it has made on this store.
    pub changes: Vec<RegionChange>,
    /// Bytes of keys and values that the entries of the task have put.
    pub written_bytes: u64,
    /// How large the region is now, if it was time to look.
    pub size: Option<RegionSize>,
    /// Whether the replica is damaged, so that only the region itself has changed.
    pub is_damaged: bool,
}

/// A region as this transaction has it so far.
struct ReplicaState {
    peer: PeerId,
    descriptor: Descriptor,
    state: ApplyState,
    changes: Vec<RegionChange>,
    /// The region before each of its splits, and what came of it here.
    splits: Vec<(Descriptor, SplitRegions)>,
    written_bytes: u64,
}

/// The store that the entries are applied on.
#[derive(Clone, Copy)]
pub(crate) struct ApplyPlace<'a> {
    pub(crate) store: StoreId,
    pub(crate) pages: &'a PageStore,
    pub(crate) log: &'a StoreLog,
    pub(crate) ranges: &'a RangeMap,
    pub(crate) damaged: &'a DamagedReplicas,
    pub(crate) row_read_ahead: &'a RowReadAhead,
}

/// Carries out all tasks and publishes them at once; after an error, none of them, and `at` is the
/// region whose task it met.
pub(crate) fn apply(
    place: ApplyPlace<'_>,
    tasks: &[ApplyTask],
    at: &mut Option<RegionId>,
) -> Result<Applied, Error> {
    let store = place.store;
    let mut applied = Applied::default();
    if tasks.is_empty() {
        return Ok(applied);
    }
    let mut txn = place.pages.write()?;
    place.row_read_ahead.read(&mut txn, tasks);
    let mut replicas = BTreeMap::new();
    for task in tasks {
        let replica: &mut ReplicaState = match replicas.entry(task.region) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(load(&mut txn, store, task.region)?),
        };
        *at = Some(task.region);
        let is_admin = |committed: &Committed| AdminCommand::is_in(&committed.entry);
        // Runs of entries that share a range, and between them those that may change it.
        for entries in task.entries.chunk_by(|one, next| !is_admin(one) && !is_admin(next)) {
            if is_admin(&entries[0]) {
                let [committed] = entries else { unreachable!("a chunk of its own") };
                if advance(&mut replica.state, task.region, &committed.entry) {
                    applied.entries += 1;
                    replica.apply_admin(&mut txn, place, committed, &mut applied.outcomes)?;
                }
                continue;
            }
            replica.apply_rows(&mut txn, entries, &mut applied)?;
        }
    }
    // In the transaction of the rows: an index of its own could come to disk without them, or they
    // without it, and a compare-and-swap that is applied twice has another result.
    let mut states = txn.tree(APPLY)?;
    *at = None;
    for (region, replica) in replicas {
        states.put(&schema::region_key(region), &replica.state.encode())?;
        for (before, made) in &replica.splits {
            place.ranges.split(before, made);
            if replica.state.is_damaged {
                let children = made.children.iter();
                let here = children.filter_map(|child| damage::replica_of(child, store));
                place.damaged.note(&here.collect::<Vec<_>>());
            }
        }
        let ReplicaState { peer, state, changes, written_bytes, .. } = replica;
        let ApplyState { applied: index, is_damaged, .. } = state;
        let size = None;
        let replica =
            AppliedReplica { region, peer, index, changes, written_bytes, size, is_damaged };
        applied.replicas.push(replica);
    }
    txn.publish()?;
    Ok(applied)
}

impl ReplicaState {
    /// Carries out entries that change rows.
    fn apply_rows(
        &mut self,
        txn: &mut WriteTxn<'_>,
        entries: &[Committed],
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let region = self.descriptor.id;
        if self.state.is_damaged {
            for committed in entries {
                if advance(&mut self.state, region, &committed.entry) {
                    applied.entries += 1;
                    applied.undecided.extend(&committed.tickets);
                }
            }
            return Ok(());
        }
        let watermark_ms = self.state.watermark_ms;
        let mut rows = rows::RegionRows::new(txn, &self.descriptor, watermark_ms);
        for committed in entries {
            if advance(&mut self.state, region, &committed.entry) {
                applied.entries += 1;
                apply_entry(&mut rows, region, committed, &mut applied.outcomes)?;
            }
        }
        self.written_bytes += rows.written_bytes();
        let watermark_ms = rows.watermark_ms();
        assert!(
            watermark_ms >= self.state.watermark_ms,
            "region {region}: its watermark falls to {watermark_ms}"
        );
        self.state.watermark_ms = watermark_ms;
        Ok(())
    }
}

fn load(txn: &mut WriteTxn<'_>, store: StoreId, region: RegionId) -> Result<ReplicaState, Error> {
    let key = schema::region_key(region);
    let regions = txn.tree(REGION)?;
    let row = regions.get(&key)?.ok_or(Error::NoRegion(region))?;
    let descriptor = schema::decode_descriptor(region, &row)?;
    drop(row);
    let state = ApplyState::decode(region, txn.tree(APPLY)?.get(&key)?.as_deref())?;
    // Before the entries: one of them may remove it.
    let peer = schema::replica_here(&descriptor, store).ok_or(Error::NoRegion(region))?;
    let (changes, splits) = (vec![], vec![]);
    Ok(ReplicaState { peer, descriptor, state, changes, splits, written_bytes: 0 })
}

/// Moves the applied index to the entry; false if it is there already.
fn advance(state: &mut ApplyState, region: RegionId, entry: &LogEntry) -> bool {
    // After a crash entries are applied again from the durable root on.
    if entry.index <= state.applied {
        return false;
    }
    let next = Index(state.applied.0 + 1);
    // A gap is never filled later: this replica's rows would differ from the others' for good.
    assert!(entry.index == next, "region {region}: entry {} where {next} is due", entry.index);
    assert!(
        entry.term >= state.term,
        "region {region}: entry {next} of term {} after one of term {}",
        entry.term,
        state.term
    );
    state.applied = entry.index;
    state.term = entry.term;
    true
}

fn apply_entry(
    rows: &mut rows::RegionRows<'_, '_>,
    region: RegionId,
    committed: &Committed,
    outcomes: &mut Vec<(Ticket, ApplyOutcome)>,
) -> Result<(), Error> {
    let index = committed.entry.index;
    let malformed = |source| Error::MalformedEntry { region, index, source };
    let mut tickets = committed.tickets.iter();
    // A leader's first entry of a term is empty: it only advances the index.
    for proposal in entry_data::proposals(&committed.entry.data) {
        let Proposal { version, command } = proposal.map_err(malformed)?;
        let command = raw::decode(command).map_err(malformed)?;
        // Without a ticket as well: the proposal came from another store's client, or from before a
        // restart.
        let outcome = rows.execute(version, &command)?;
        if let Some(ticket) = tickets.next() {
            outcomes.push((*ticket, outcome));
        }
    }
    assert!(
        tickets.next().is_none(),
        "region {region}: entry {index} has more tickets than proposals"
    );
    Ok(())
}
