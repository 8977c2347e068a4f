//! Changes of the states of stores in the registry: those that an operator asks for, and the end of
//! a store that has left.

use std::pin::pin;
use std::sync::Arc;

use flotilla_identity::{
    LevelRefusal, MEMBERSHIP_LEVEL, StateChange, StateRefusal, StoreState, TRANSFER_LEVEL,
};
use flotilla_placement::{ExitRefusal, LossRefusal};
use flotilla_region::StoreId;
use tokio::time::{Instant, timeout_at};

use super::leader::{PATIENCE, PdLeader};
use super::registration::RegistryWrite;

/// Why the state of a store is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotChanged {
    /// The registry does not allow it.
    #[error(transparent)]
    State(#[from] StateRefusal),
    /// Leaders, or replicas, do not move yet.
    #[error("store {0}: {1}")]
    Level(StoreId, LevelRefusal),
    /// The cluster would not get along without what the store has.
    #[error("store {0}: {1}")]
    Exit(StoreId, ExitRefusal),
    /// The store cannot be declared lost now.
    #[error(transparent)]
    Loss(#[from] LossRefusal),
    /// Whether it was written is not known.
    #[error("placement cannot write its registry now: ask again")]
    Unwritten,
}

/// The state of a store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrittenState {
    pub(super) state: StoreState,
    /// The registry that has it.
    pub(super) registry_version: u64,
}

impl NotChanged {
    /// Whether it may be otherwise in a moment, by itself. `is_young`: stores have not reported
    /// yet.
    pub(super) fn is_passing(&self, is_young: bool) -> bool {
        match self {
            Self::Exit(_, ExitRefusal::NoSuccessor) => is_young,
            Self::Loss(LossRefusal::YoungLeader(_)) | Self::Unwritten => true,
            Self::State(_) | Self::Level(..) | Self::Exit(..) | Self::Loss(_) => false,
        }
    }
}

impl PdLeader {
    /// Changes the state of a store; the new one. Returns once that is committed.
    pub(super) async fn change_store(
        self: &Arc<Self>,
        store: StoreId,
        change: StateChange,
    ) -> Result<WrittenState, NotChanged> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Enabled before the look, so that no notification is missed between the two.
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            let (changed, registry_version, state, name) = {
                let row = self.registry.lock();
                let changed = row.registry().with_state(store, change)?;
                let record = row.registry().store(store).cloned().unwrap_or_default();
                (changed, row.registry().version, record.state, record.name)
            };
            let Some(changed) = changed else {
                // A later leader may have changed it again.
                self.confirm().await.map_err(|_| NotChanged::Unwritten)?;
                return Ok(WrittenState { state, registry_version });
            };
            self.check_change(store, change)?;
            // In a task of its own: the caller may be dropped, but the outcome must be learnt.
            let pd_leader = Arc::clone(self);
            let to = changed.store(store).map(|record| record.state).unwrap_or_default();
            let written = tokio::spawn(async move { pd_leader.write_registry(changed).await });
            match written.await.unwrap_or(RegistryWrite::Unknown) {
                // Written, or found to be another row: the next look says which.
                RegistryWrite::Settled => {
                    let is_written = {
                        let row = self.registry.lock();
                        row.registry().store(store).is_some_and(|record| record.state == to)
                    };
                    let (from, to) = (state.word(), to.word());
                    if is_written {
                        tracing::info!(%store, name, from, to, "the state of the store has changed");
                    }
                }
                RegistryWrite::Busy => {
                    let is_changing = self.registry.lock().is_changing();
                    if is_changing && timeout_at(until, settled).await.is_err() {
                        return Err(NotChanged::Unwritten);
                    }
                }
                RegistryWrite::Unknown => return Err(NotChanged::Unwritten),
            }
            if Instant::now() >= until {
                return Err(NotChanged::Unwritten);
            }
        }
    }

    /// Whether the cluster gets along with the change.
    fn check_change(&self, store: StoreId, change: StateChange) -> Result<(), NotChanged> {
        // The store would wait until the last one is upgraded.
        let level = match change {
            StateChange::Drain => TRANSFER_LEVEL,
            StateChange::Leave => MEMBERSHIP_LEVEL,
            StateChange::Cancel | StateChange::Lost | StateChange::Removed => 0,
        };
        let known = self.registry.lock().registry().check_level(level);
        known.map_err(|why| NotChanged::Level(store, why))?;
        let (now_ms, repair) = (self.now_ms(), self.repair());
        let exit = match change {
            StateChange::Drain => self.see(|view| repair.check_drain(now_ms, view, store.0)),
            StateChange::Leave => self.see(|view| repair.check_leave(now_ms, view, store.0)),
            StateChange::Lost => return Ok(self.check_loss(store)?),
            StateChange::Cancel | StateChange::Removed => Ok(()),
        };
        exit.map_err(|why| NotChanged::Exit(store, why))
    }

    /// Removes the stores that leave and have nothing more to do here.
    pub(super) async fn remove_emptied(self: &Arc<Self>) {
        let (now_ms, here) = (self.now_ms(), self.router().identity().store.0);
        for store in self.see(|view| self.repair().emptied(now_ms, view, here)) {
            if let Err(why) = self.change_store(StoreId(store), StateChange::Removed).await {
                tracing::info!(
                    store,
                    "the store has left, and the registry does not say so yet: {why}"
                );
            }
        }
    }
}
