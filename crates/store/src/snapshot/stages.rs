//! The receiver's side: snapshots that are on their way, beside the rows.
//!
//! A stage is some trees that are being built in the page file and that no root names, and a
//! promise in the range map. Only the memory knows of it. A stage takes about two chunks of memory.
//!
//! Invariants:
//! - A region has one stage at most.
//! - The range of each stage is promised to its region, until the stage is dropped or installed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_base::fields::Malformed;
use flotilla_kv::ColumnFamily;
use flotilla_pagestore::{BuiltTree, Error as PagesError, PageStore, TreeBuilder};
use flotilla_region::{
    EndTask, Index, PeerId, RegionId, RegionSize, SnapshotHead, StageId, StoreId, Term,
};
use parking_lot::Mutex;

use super::chunk::ReceivedChunk;
use super::end::SnapshotEnd;
use super::error::StageError;
use crate::range_map::{self, RangeMap};
use crate::schema::{self, DataRow, FamilyTrees};

/// Stages that a store has at a time.
const STAGES_MAX: usize = 4;

/// The answer to the offer of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageOffer {
    /// The chunks may come.
    Go(StageId),
    /// The region has a stage already, or the store has all that it takes at a time. The sender
    /// tries again later.
    Busy,
    /// This other region holds a part of the range here, or was promised one.
    Held(RegionId),
}

/// The stages of a store.
#[derive(Debug, Default)]
pub(crate) struct SnapshotStages {
    table: Mutex<StageTable>,
}

#[derive(Debug, Default)]
struct StageTable {
    /// The last number that was given: none is given twice.
    last: u64,
    stages: BTreeMap<StageId, (StageOwner, Arc<Mutex<Stage>>)>,
}

/// The replica that gets a snapshot.
#[derive(Clone, Copy, Debug)]
struct StageOwner {
    region: RegionId,
    to: PeerId,
}

/// One snapshot on its way.
#[derive(Debug)]
struct Stage {
    to: PeerId,
    head: SnapshotHead,
    rows_max: u64,
    next_chunk: u64,
    received: SnapshotEnd,
    trees: StageTrees,
}

#[derive(Debug)]
enum StageTrees {
    /// For each column family of the space.
    Growing(Vec<GrowingTrees>),
    Whole(Vec<BuiltTrees>),
    /// An error was met, or it is being installed.
    Taken,
}

/// The rows of a column family that have come so far, and the times at which some of them expire.
#[derive(Debug)]
struct GrowingTrees {
    family: ColumnFamily,
    rows: TreeBuilder,
    expiries: TreeBuilder,
}

/// The rows of a column family of a snapshot, and the times at which some of them expire.
#[derive(Debug)]
pub(crate) struct BuiltTrees {
    pub(crate) family: ColumnFamily,
    pub(crate) rows: BuiltTree,
    pub(crate) expiries: BuiltTree,
}

/// A snapshot that has come whole.
#[derive(Debug)]
pub(crate) struct CompleteStage {
    pub(crate) to: PeerId,
    pub(crate) head: SnapshotHead,
    /// For each column family of the space.
    pub(crate) trees: Vec<BuiltTrees>,
    /// Bytes of keys and values.
    pub(crate) bytes: u64,
    /// The region's watermark at the index of the head.
    pub(crate) watermark_ms: u64,
}

impl SnapshotStages {
    /// Makes a stage, if the range is free.
    pub(crate) fn begin(
        &self,
        pages: &PageStore,
        ranges: &RangeMap,
        store: StoreId,
        (to, head): (PeerId, &SnapshotHead),
        total: RegionSize,
    ) -> Result<StageOffer, StageError> {
        check_head(store, to, head)?;
        let region = head.descriptor.id;
        let mut table = self.table.lock();
        let is_here = table.stages.values().any(|(owner, _)| owner.region == region);
        if is_here || table.stages.len() >= STAGES_MAX {
            return Ok(StageOffer::Busy);
        }
        if let Err(holder) = ranges.promise(region, head.descriptor.range()) {
            // One of the region itself is being installed.
            let is_own = holder == region;
            return Ok(if is_own { StageOffer::Busy } else { StageOffer::Held(holder) });
        }
        let growing = |trees: &FamilyTrees| GrowingTrees {
            family: trees.family,
            rows: pages.tree_builder(),
            expiries: pages.tree_builder(),
        };
        let trees = schema::trees_of(head.descriptor.space).iter().map(growing).collect();
        table.last += 1;
        let id = StageId(table.last);
        let stage = Stage {
            to,
            head: head.clone(),
            rows_max: total.keys,
            next_chunk: 0,
            received: SnapshotEnd::default(),
            trees: StageTrees::Growing(trees),
        };
        let owner = StageOwner { region, to };
        table.stages.insert(id, (owner, Arc::new(Mutex::new(stage))));
        Ok(StageOffer::Go(id))
    }

    /// Takes the next chunk. After an error the stage is gone.
    pub(crate) fn push(
        &self,
        ranges: &RangeMap,
        id: StageId,
        chunk: Bytes,
    ) -> Result<(), StageError> {
        // The other stages go on while this one writes.
        let outcome = self.find(id)?.lock().push(id, chunk);
        self.drop_after_error(ranges, id, outcome)
    }

    /// Ends a stage. After an error it is gone.
    pub(crate) fn finish(
        &self,
        ranges: &RangeMap,
        id: StageId,
        end: SnapshotEnd,
    ) -> Result<(), StageError> {
        let outcome = self.find(id)?.lock().finish(id, end);
        self.drop_after_error(ranges, id, outcome)
    }

    fn find(&self, id: StageId) -> Result<Arc<Mutex<Stage>>, StageError> {
        let table = self.table.lock();
        let (_, stage) = table.stages.get(&id).ok_or(StageError::NotFound(id))?;
        Ok(Arc::clone(stage))
    }

    fn drop_after_error(
        &self,
        ranges: &RangeMap,
        id: StageId,
        outcome: Result<(), StageError>,
    ) -> Result<(), StageError> {
        if outcome.is_err() {
            self.discard(ranges, id);
        }
        outcome
    }

    /// Drops a stage, if it is there.
    pub(crate) fn discard(&self, ranges: &RangeMap, id: StageId) {
        let mut table = self.table.lock();
        let Some((owner, stage)) = table.stages.remove(&id) else { return };
        ranges.withdraw(owner.region);
        drop(table);
        // Also if a chunk is being taken: its pages are free once that has ended.
        stage.lock().trees = StageTrees::Taken;
    }

    /// Drops the stage of a replica that ends: its range is promised to no one any more.
    pub(crate) fn end(&self, ranges: &RangeMap, task: &EndTask) {
        let table = self.table.lock();
        let is_its = |owner: &StageOwner| owner.region == task.region && owner.to <= task.peer;
        let stage = table.stages.iter().find(|(_, (owner, _))| is_its(owner)).map(|(id, _)| *id);
        drop(table);
        if let Some(stage) = stage {
            self.discard(ranges, stage);
        }
    }

    /// Takes a stage that is whole. The range stays promised until it is installed.
    pub(crate) fn take(&self, id: StageId) -> Option<CompleteStage> {
        let (_, stage) = self.table.lock().stages.remove(&id)?;
        let mut stage = stage.lock();
        let StageTrees::Whole(trees) = std::mem::replace(&mut stage.trees, StageTrees::Taken)
        else {
            return None;
        };
        let SnapshotEnd { bytes, watermark_ms, .. } = stage.received;
        Some(CompleteStage { to: stage.to, head: stage.head.clone(), trees, bytes, watermark_ms })
    }
}

/// A head whose installation could not be started from is refused before any row comes.
fn check_head(store: StoreId, to: PeerId, head: &SnapshotHead) -> Result<(), StageError> {
    let invalid = |what| Err(StageError::InvalidHead(what));
    let SnapshotHead { index, term, ref descriptor } = *head;
    if index == Index(0) || term == Term(0) {
        return invalid("it is of no entry");
    }
    if range_map::is_empty(&descriptor.range()) {
        return invalid("the region has no keys");
    }
    if descriptor.peer_on(store).map(|peer| peer.id) != Some(to) {
        return invalid("the region has no such replica here");
    }
    let ids = || descriptor.peers.iter().map(|peer| peer.id);
    if ids().any(|id| id == PeerId(0) || ids().filter(|other| *other == id).count() > 1) {
        return invalid("a replica is doubled or has no id");
    }
    Ok(())
}

impl GrowingTrees {
    fn finish(self) -> Result<BuiltTrees, StageError> {
        let Self { family, rows, expiries } = self;
        let built = BuiltTrees { family, rows: rows.finish()?, expiries: expiries.finish()? };
        assert!(built.expiries.len() <= built.rows.len(), "a stage has a time without a row");
        Ok(built)
    }
}

impl Stage {
    fn push(&mut self, id: StageId, bytes: Bytes) -> Result<(), StageError> {
        let Self { ref head, ref mut trees, received, rows_max, next_chunk, .. } = *self;
        let trees = match trees {
            StageTrees::Growing(trees) => trees,
            StageTrees::Whole(_) => return Err(StageError::Whole(id)),
            StageTrees::Taken => return Err(StageError::NotFound(id)),
        };
        let chunk = ReceivedChunk::check(bytes, next_chunk)?;
        let growing = trees.iter_mut().find(|trees| trees.family == chunk.family);
        let trees = growing.ok_or(StageError::Malformed(Malformed { what: "column family" }))?;
        let mut left = rows_max.saturating_sub(received.rows);
        let rows = chunk.for_each(|key, row| {
            if !head.descriptor.contains(key) {
                return Err(StageError::KeyNotInRegion { key: Bytes::copy_from_slice(key) });
            }
            left = left.checked_sub(1).ok_or(StageError::MoreThanOffered { rows: rows_max })?;
            let expires_ms = DataRow::decode(row)?.expires_ms;
            match trees.rows.push(key, row) {
                Err(PagesError::OutOfOrder { .. }) => {
                    return Err(StageError::KeyOrder { key: Bytes::copy_from_slice(key) });
                }
                pushed => pushed?,
            }
            if expires_ms > 0 {
                trees.expiries.push(key, &schema::encode_expiry(expires_ms))?;
            }
            Ok(())
        })?;
        self.received.add(rows, &chunk.rows);
        self.next_chunk += 1;
        Ok(())
    }

    fn finish(&mut self, id: StageId, expected: SnapshotEnd) -> Result<(), StageError> {
        match self.trees {
            StageTrees::Growing(_) => {}
            StageTrees::Whole(_) => return Err(StageError::Whole(id)),
            StageTrees::Taken => return Err(StageError::NotFound(id)),
        }
        // The watermark alone is the sender's to say.
        let found = SnapshotEnd { watermark_ms: expected.watermark_ms, ..self.received };
        if found != expected {
            return Err(StageError::Incomplete { expected, found });
        }
        let StageTrees::Growing(trees) = std::mem::replace(&mut self.trees, StageTrees::Taken)
        else {
            unreachable!("it was looked at above")
        };
        let built = trees.into_iter().map(GrowingTrees::finish);
        let built = built.collect::<Result<Vec<_>, StageError>>()?;
        let rows: u64 = built.iter().map(|built| built.rows.len()).sum();
        assert_eq!(rows, found.rows, "a stage loses rows");
        self.received = found;
        self.trees = StageTrees::Whole(built);
        Ok(())
    }
}
