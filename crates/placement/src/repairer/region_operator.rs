//! An operator of one region: the stores that it should be brought to, and how far that is.
//!
//! It is kept in memory only. A step is done when the region's report shows it; until then it is
//! asked for again. The operator ends when the region has changed in another way than by its steps:
//! it was made for a region that is no more.

use std::collections::{BTreeSet, VecDeque};
use std::mem::{Discriminant, discriminant};

use super::replica_choice::RepairReason;
use crate::replica_plan::{MembershipStep, PlannedStep, ReplicaPlan};
use crate::route_table::{RegionInfo, ReplicaInfo, ReplicaRole};

/// The bounds of a turn.
#[derive(Clone, Copy)]
pub(super) struct TurnLimits {
    /// A step is asked for again after this time.
    pub(super) step_ms: u64,
    /// Whether the leader's store may send data of one more region.
    pub(super) may_send: bool,
}

/// The change of one region.
#[derive(Clone, Debug)]
pub(super) struct RegionOperator {
    /// The stores to be reached, one set after the other.
    stages: VecDeque<BTreeSet<u64>>,
    pub(super) reason: RepairReason,
    /// When it is given up.
    ends_ms: u64,
    /// The versions that the region has before and behind the present step.
    versions: [u64; 3],
    given: Option<GivenStep>,
    attempt: usize,
    /// The last step, and why it was not done when it was asked for.
    pub(super) note: String,
}

#[derive(Clone, Debug)]
struct GivenStep {
    at_ms: u64,
    version: u64,
    kind: Discriminant<MembershipStep>,
}

/// The next deed for an operator.
pub(super) enum Turn {
    /// Nothing now.
    Wait,
    /// This step is to be asked for.
    Give(MembershipStep),
    /// The region is where it should be.
    Done,
    /// It will not get there.
    Failed(String),
}

impl RegionOperator {
    pub(super) fn new(
        region: &RegionInfo,
        stages: Vec<BTreeSet<u64>>,
        reason: RepairReason,
        ends_ms: u64,
    ) -> Self {
        Self {
            stages: stages.into(),
            reason,
            ends_ms,
            versions: [region.conf_version; 3],
            given: None,
            attempt: 0,
            note: String::new(),
        }
    }

    /// The stores that the region has in the end.
    pub(super) fn wanted(&self) -> Option<&BTreeSet<u64>> {
        self.stages.back()
    }

    /// Whether a replica on `store` is a part of its way.
    pub(super) fn names(&self, store: u64) -> bool {
        self.stages.iter().any(|stage| stage.contains(&store))
    }

    /// The stores that the region is brought to now.
    pub(super) fn stage(&self) -> Option<&BTreeSet<u64>> {
        self.stages.front()
    }

    /// Whether data of the region may be on its way, or was asked for.
    pub(super) fn is_sending(&self, region: &RegionInfo) -> bool {
        let is_new = |at: &ReplicaInfo| {
            let stage = self.stage();
            at.role == ReplicaRole::Learner && stage.is_some_and(|to| to.contains(&at.store))
        };
        let asked = discriminant(&MembershipStep::Add { store: 0 });
        let is_asked =
            |given: &GivenStep| given.kind == asked && given.version == region.conf_version;
        region.replicas.iter().any(is_new) || self.given.as_ref().is_some_and(is_asked)
    }

    /// Looks at the region as it is. `leader` is known to lead just now.
    pub(super) fn turn(
        &mut self,
        now_ms: u64,
        region: &RegionInfo,
        leader: Option<ReplicaInfo>,
        able: &BTreeSet<u64>,
        limits: TurnLimits,
    ) -> Turn {
        let version = region.conf_version;
        if !self.versions.contains(&version) {
            return Turn::Failed("its replicas were changed by others meanwhile".to_owned());
        }
        if now_ms >= self.ends_ms {
            let note = if self.note.is_empty() { "a step was not done" } else { &self.note };
            return Turn::Failed(format!("it took too long: {note}"));
        }
        let Some(leader) = leader else {
            "the region has no leader".clone_into(&mut self.note);
            return Turn::Wait;
        };
        let is_sending = self.is_sending(region);
        loop {
            let Some(wanted) = self.stages.front() else { return Turn::Done };
            let plan = ReplicaPlan { wanted, able, attempt: self.attempt };
            let step = match plan.next_step(region, leader) {
                PlannedStep::Next(step) => step,
                PlannedStep::Done => {
                    self.stages.pop_front();
                    continue;
                }
                PlannedStep::Blocked(why) => {
                    self.note = why.to_string();
                    return Turn::Wait;
                }
            };
            let kind = discriminant(&step);
            let is_same = |given: &GivenStep| given.version == version && given.kind == kind;
            match self.given.as_ref().filter(|given| is_same(given)) {
                Some(given) if now_ms.saturating_sub(given.at_ms) < limits.step_ms => {
                    return Turn::Wait;
                }
                Some(_) => {
                    self.attempt += 1;
                    self.given = None;
                    // Perhaps of another successor.
                    continue;
                }
                None => {}
            }
            let is_add = matches!(step, MembershipStep::Add { .. });
            if is_add && !is_sending && !limits.may_send {
                "the leader's store sends others".clone_into(&mut self.note);
                return Turn::Wait;
            }
            if !matches!(step, MembershipStep::TransferLeader { .. }) {
                self.attempt = 0;
            }
            let behind = version + step.growth(region);
            let left = if step.is_joint() { behind + step.growth(region) } else { behind };
            self.versions = [version, behind, left];
            self.given = Some(GivenStep { at_ms: now_ms, version, kind });
            return Turn::Give(step);
        }
    }
}
