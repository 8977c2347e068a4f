//! The founder, the first store of the list: it asks all for a round, then sends all of them one
//! plan.

use std::collections::BTreeSet;

use crate::spec::{BootstrapPlan, ClusterSpec};
use crate::store_identity::{IdentityState, StoreIdentity, StoreUuid};

/// How far the founder is. In memory only: a founder that restarts asks anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Founder {
    /// It waits for promises.
    Asking {
        /// The round that it asks for.
        round: u64,
        /// The directories that promised, by place in the list.
        uuids: Vec<Option<StoreUuid>>,
    },
    /// It waits until all listed stores keep the rows of its plan.
    Forming {
        /// The plan.
        plan: Box<BootstrapPlan>,
        /// The places that do.
        formed: BTreeSet<usize>,
    },
}

impl Founder {
    /// Asks for a round above all that its own directory and `above` know of.
    pub(crate) fn ask(own: &StoreIdentity, above: u64, stores: usize) -> Self {
        let round = own.promised.max(own.round).max(above) + 1;
        let mut uuids = vec![None; stores];
        uuids[0] = Some(own.uuid);
        Self::Asking { round, uuids }
    }

    /// The store at `place` promised.
    pub(crate) fn promised(&mut self, place: usize, by: StoreUuid, of: u64) {
        if let Self::Asking { round, uuids } = self
            && *round == of
        {
            // Of this round only: a late promise of an earlier one may name a directory that is
            // gone.
            uuids[place] = Some(by);
        }
    }

    /// The store at `place` keeps the rows of a plan.
    pub(crate) fn formed(&mut self, place: usize, cluster_id: u64, round: u64) {
        if let Self::Forming { plan, formed } = self
            && (plan.cluster_id, plan.round) == (cluster_id, round)
        {
            formed.insert(place);
        }
    }

    /// Whether all listed stores have promised.
    pub(crate) fn is_promised(&self) -> bool {
        matches!(self, Self::Asking { uuids, .. } if uuids.iter().all(Option::is_some))
    }

    /// Whether all others keep the rows, and the founder's own directory still does.
    pub(crate) fn is_formed(&self, own: &StoreIdentity) -> bool {
        let Self::Forming { plan, formed } = self else { return false };
        // All stores, not a majority: one that has not answered may be a member of an older plan,
        // and is the only one that could say so (docs/decisions/0019-one-bootstrap.md).
        own.state == IdentityState::Forming
            && (own.cluster_id, own.round) == (plan.cluster_id, plan.round)
            && formed.len() + 1 == plan.spec.stores.len()
    }

    /// The plan, once all have promised. `None` also if the own directory has promised as much to
    /// another founder meanwhile.
    pub(crate) fn draw(
        &self,
        own: &StoreIdentity,
        cluster_id: u64,
        spec: &ClusterSpec,
    ) -> Option<BootstrapPlan> {
        let Self::Asking { round, uuids } = self else { return None };
        if own.promised.max(own.round) >= *round {
            return None;
        }
        let uuids = uuids.iter().copied().collect::<Option<Vec<_>>>()?;
        let regions = Vec::new();
        Some(BootstrapPlan { cluster_id, round: *round, uuids, spec: spec.clone(), regions })
    }
}
