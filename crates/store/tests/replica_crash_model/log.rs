//! The log of the store: batches in one order, of which a crash leaves a prefix.

use crate::truth::{Index, Operation, RegionId, ReplicaId};

/// Term, vote and commit index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VoteState {
    pub(crate) term: u32,
    /// 0 is none.
    pub(crate) vote: u32,
    pub(crate) commit: Index,
}

/// Why a group began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Birth {
    Message,
    /// By a split that this replica applies at this index.
    Split(ReplicaId, Index),
}

/// One item of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Entry(Index, Operation),
    State(VoteState),
    Birth(Birth),
    /// The group is emptied and goes on behind this index.
    Reset(Index),
}

/// An item and its group, which is that of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogItem {
    pub(crate) replica: ReplicaId,
    pub(crate) region: RegionId,
    pub(crate) item: Item,
}

/// The log.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelLog {
    pub(crate) batches: Vec<Vec<LogItem>>,
    /// Batches that a crash leaves in any case.
    pub(crate) synced: usize,
}

impl ModelLog {
    pub(crate) fn write(&mut self, batch: Vec<LogItem>) {
        self.batches.push(batch);
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = (usize, &LogItem)> {
        let batches = self.batches.iter().enumerate();
        batches.flat_map(|(lsn, batch)| batch.iter().map(move |item| (lsn, item)))
    }
}
