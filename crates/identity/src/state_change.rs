//! Changes of the state of a store in the registry: an operator drains a store
//! for a restart, has it leave, or declares it lost; placement removes one that has left.
//!
//! ```text
//! up <-> draining
//! up, draining <-> leaving -> removed
//! up, draining, leaving -> lost
//! ```
//!
//! Lost and removed are for ever: other stores have given up what only that directory could prove.

use flotilla_region::StoreId;

use crate::registry::{StoreRegistry, StoreState};

/// A change of the state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// Its leaders go elsewhere, and no replicas come.
    Drain,
    /// Its replicas go elsewhere, and then it does.
    Leave,
    /// It takes part again.
    Cancel,
    /// Its directory is gone for ever.
    Lost,
    /// It has no replica any more and has left. Placement says so, no operator.
    Removed,
}

/// Why the state of a store does not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateRefusal {
    /// The registry has no such store.
    #[error("there is no store {0}")]
    Unknown(StoreId),
    /// It is lost or removed, and stays so.
    #[error("store {store} is {}, and that is for ever", .state.word())]
    Gone {
        /// The store.
        store: StoreId,
        /// Its state.
        state: StoreState,
    },
    /// It leaves, which is more than to be drained.
    #[error("store {0} is leaving: cancel that first")]
    Leaving(StoreId),
    /// Only a store that leaves is removed.
    #[error("store {0} does not leave")]
    NotLeaving(StoreId),
}

impl StoreRegistry {
    /// The registry with another state of a store; none if the store has it already.
    ///
    /// # Errors
    ///
    /// [`StateRefusal`], in words for an operator.
    pub fn with_state(
        &self,
        store: StoreId,
        change: StateChange,
    ) -> Result<Option<Self>, StateRefusal> {
        let at = self.stores.iter().position(|record| record.id == store);
        let at = at.ok_or(StateRefusal::Unknown(store))?;
        let state = self.stores[at].state;
        let to = match (change, state) {
            (StateChange::Lost, StoreState::Lost) | (StateChange::Removed, StoreState::Removed) => {
                return Ok(None);
            }
            (_, StoreState::Lost | StoreState::Removed) => {
                return Err(StateRefusal::Gone { store, state });
            }
            (StateChange::Drain, StoreState::Leaving) => return Err(StateRefusal::Leaving(store)),
            (StateChange::Removed, StoreState::Up | StoreState::Draining) => {
                return Err(StateRefusal::NotLeaving(store));
            }
            (StateChange::Drain, _) => StoreState::Draining,
            (StateChange::Leave, _) => StoreState::Leaving,
            (StateChange::Cancel, _) => StoreState::Up,
            (StateChange::Lost, _) => StoreState::Lost,
            (StateChange::Removed, _) => StoreState::Removed,
        };
        if to == state {
            return Ok(None);
        }
        let mut changed = self.clone();
        changed.version += 1;
        changed.stores[at].state = to;
        changed.raise_level();
        Ok(Some(changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::StoreRecord;
    use StateChange::{Cancel, Drain, Leave};
    use StoreState::{Draining, Leaving, Lost, Removed, Up};

    const STORE: StoreId = StoreId(2);

    fn registry(state: StoreState) -> StoreRegistry {
        let record = |id| StoreRecord { id: StoreId(id), ..StoreRecord::default() };
        let mut stores = vec![record(1), record(2)];
        stores[1].state = state;
        StoreRegistry { version: 5, level: 1, stores }
    }

    #[test]
    fn each_change_leads_where_it_should_and_none_leads_back_from_gone() {
        for (state, change, expected) in [
            (Up, Drain, Some(Draining)),
            (Up, Leave, Some(Leaving)),
            (Up, StateChange::Lost, Some(Lost)),
            (Draining, Leave, Some(Leaving)),
            (Draining, Cancel, Some(Up)),
            (Draining, StateChange::Lost, Some(Lost)),
            (Leaving, Cancel, Some(Up)),
            (Leaving, StateChange::Lost, Some(Lost)),
            (Leaving, StateChange::Removed, Some(Removed)),
            // As it is already.
            (Up, Cancel, None),
            (Draining, Drain, None),
            (Leaving, Leave, None),
            (Lost, StateChange::Lost, None),
            (Removed, StateChange::Removed, None),
        ] {
            let before = registry(state);
            let after = before.with_state(STORE, change).unwrap();
            let found = after.as_ref().map(|after| after.store(STORE).unwrap().state);
            assert_eq!(found, expected, "{state:?} {change:?}");
            if let Some(after) = after {
                assert!(after.version == 6 && after.continues(&before));
                assert_eq!(after.store(StoreId(1)), before.store(StoreId(1)));
            }
        }
        for change in [Drain, Leave, Cancel, StateChange::Removed] {
            let refusal = registry(Lost).with_state(STORE, change).unwrap_err();
            assert_eq!(refusal.to_string(), "store 2 is lost, and that is for ever");
        }
        for change in [Drain, Leave, Cancel, StateChange::Lost] {
            let refusal = registry(Removed).with_state(STORE, change).unwrap_err();
            assert!(matches!(refusal, StateRefusal::Gone { state: Removed, .. }));
        }
        let refusal = registry(Leaving).with_state(STORE, Drain).unwrap_err();
        assert!(refusal.to_string().contains("leaving: cancel that first"));
        for state in [Up, Draining] {
            let refusal = registry(state).with_state(STORE, StateChange::Removed).unwrap_err();
            assert_eq!(refusal, StateRefusal::NotLeaving(STORE));
        }
        let refusal = registry(Up).with_state(StoreId(9), Drain).unwrap_err();
        assert_eq!(refusal, StateRefusal::Unknown(StoreId(9)));
    }
}
