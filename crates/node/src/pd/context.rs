//! What the services and tasks of the placement driver share.

use std::sync::Arc;
use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use flotilla_region::StoreId;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::errors::not_leader;
use super::leader::Office;
use crate::driver::router::Router;
use crate::membership::{KnownStore, Membership};

/// How patient the placement driver is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long an answer waits for a leader to be known, or for fresher word of one whose store
    /// has fallen silent. Some clients give up after a second and a half.
    pub hold: Duration,
    /// Answers that may wait so; more are given at once with what is known.
    pub held_count_max: usize,
    /// How many replicas a region should have.
    pub replica_count: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { hold: Duration::from_millis(1_000), held_count_max: 1024, replica_count: 3 }
    }
}

/// What the services share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) router: Router,
    pub(super) membership: Membership,
    pub(super) settings: Settings,
    /// What this store holds while it leads the system region.
    pub(super) office: watch::Sender<Option<Arc<Office>>>,
    /// The store that takes this store's reports; `None` while nobody does.
    pub(super) reported_to: watch::Sender<Option<StoreId>>,
    pub(super) holds: Semaphore,
}

impl Driver {
    pub(super) fn new(router: Router, membership: Membership, settings: Settings) -> Self {
        let shared = Shared {
            router,
            membership,
            settings,
            office: watch::Sender::new(None),
            reported_to: watch::Sender::new(None),
            holds: Semaphore::new(settings.held_count_max),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn cluster_id(&self) -> u64 {
        self.shared.router.identity().cluster_id
    }

    /// Refuses who means another cluster. Who does not say which is let in.
    pub(super) fn check_cluster(&self, claimed: u64) -> Result<(), Status> {
        let mine = self.cluster_id();
        if claimed != 0 && claimed != mine {
            return Err(Status::failed_precondition(format!(
                "mismatch cluster id, need {mine} but got {claimed}"
            )));
        }
        Ok(())
    }

    /// The office of this store, if it leads. Just elected, it may still be reading its rows.
    pub(super) async fn office(&self) -> Result<Arc<Office>, Status> {
        let mut office = self.shared.office.subscribe();
        let until = Instant::now() + self.shared.settings.hold;
        let leads = self.shared.router.leads(SYSTEM_REGION);
        let held = office.borrow_and_update().clone();
        let found = match held {
            None if leads => {
                let taken_up = timeout_at(until, office.wait_for(Option::is_some)).await;
                taken_up.ok().and_then(Result::ok).and_then(|office| office.clone())
            }
            held => held,
        };
        found.ok_or_else(not_leader)
    }

    /// Who leads placement: the one that takes this store's reports. A leader that was only heard
    /// of may be dead, and clients that are sent to it give up; so who asks in the moments between
    /// two leaders waits a little, and is told hearsay only then.
    pub(super) async fn leader(&self) -> Option<KnownStore> {
        let shared = &self.shared;
        let until = Instant::now() + shared.settings.hold;
        let mut reported_to = shared.reported_to.subscribe();
        let known = timeout_at(until, reported_to.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(Result::ok).and_then(|store| *store);
        let store = known.or_else(|| Some(shared.router.leader(SYSTEM_REGION)?.1.store))?;
        self.member(store)
    }

    pub(super) fn member(&self, store: StoreId) -> Option<KnownStore> {
        self.shared.membership.store(store)
    }
}
