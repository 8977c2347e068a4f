//! The operators of a term: one a region at most, and how the last of each region ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::region_operator::RegionOperator;
use super::replica_choice::RepairReason;
use crate::route_table::RegionInfo;

/// Ends of operators that are remembered.
const ENDED_MAX: usize = 1_024;

/// How far the last operator of a region is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorState {
    /// It goes on.
    UnderWay {
        /// Its reason.
        reason: RepairReason,
        /// Why the present step is not done yet, if its store has said so.
        note: String,
    },
    /// The region has the replicas that it should have.
    Done,
    /// It was given up.
    Failed(String),
}

/// All operators.
#[derive(Clone, Debug, Default)]
pub(super) struct OperatorTable {
    operators: BTreeMap<u64, RegionOperator>,
    /// Regions whose last operator has failed, and when.
    failed_ms: BTreeMap<u64, u64>,
    /// The last ends, the newest last.
    ended: VecDeque<(u64, Result<(), String>)>,
}

impl OperatorTable {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.operators.len()
    }

    pub(super) fn get(&self, region: u64) -> Option<&RegionOperator> {
        self.operators.get(&region)
    }

    /// The operators by region.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &RegionOperator)> {
        self.operators.iter().map(|(region, operator)| (*region, operator))
    }

    /// The operators by region, to take their turns.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut RegionOperator)> {
        self.operators.iter_mut().map(|(region, operator)| (*region, operator))
    }

    /// Whether a region has no operator, and none has failed just now.
    pub(super) fn is_free(&self, region: u64) -> bool {
        !self.operators.contains_key(&region) && !self.failed_ms.contains_key(&region)
    }

    /// Whether an operator brings a replica to `store`.
    pub(super) fn names(&self, store: u64) -> bool {
        self.operators.values().any(|operator| operator.names(store))
    }

    /// Begins to bring a region over `way` to its last set of stores.
    pub(super) fn begin(
        &mut self,
        region: &RegionInfo,
        way: Vec<BTreeSet<u64>>,
        reason: RepairReason,
        ends_ms: u64,
    ) {
        self.operators.insert(region.id, RegionOperator::new(region, way, reason, ends_ms));
    }

    /// Notes why the present step of a region is not done yet.
    pub(super) fn note(&mut self, region: u64, note: String) {
        if let Some(operator) = self.operators.get_mut(&region) {
            operator.note = note;
        }
    }

    /// Ends the operator of a region, if it has one.
    pub(super) fn end(&mut self, now_ms: u64, region: u64, end: Result<(), String>) {
        if self.operators.remove(&region).is_none() {
            return;
        }
        if end.is_err() {
            self.failed_ms.insert(region, now_ms);
        }
        self.ended.retain(|(ended, _)| *ended != region);
        self.ended.push_back((region, end));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    /// Ends all operators but those that an operator has asked for.
    pub(super) fn keep_asked(&mut self) {
        self.operators.retain(|_, operator| operator.reason == RepairReason::Asked);
    }

    /// Forgets failures that are older than `retry_ms`.
    pub(super) fn forget_failures(&mut self, now_ms: u64, retry_ms: u64) {
        self.failed_ms.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < retry_ms);
    }

    /// How far the last operator of a region is.
    pub(super) fn state(&self, region: u64) -> Option<OperatorState> {
        if let Some(RegionOperator { reason, note, .. }) = self.operators.get(&region) {
            return Some(OperatorState::UnderWay { reason: *reason, note: note.clone() });
        }
        let (_, end) = self.ended.iter().rev().find(|(ended, _)| *ended == region)?;
        Some(match end {
            Ok(()) => OperatorState::Done,
            Err(why) => OperatorState::Failed(why.clone()),
        })
    }
}
