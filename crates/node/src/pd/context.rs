//! The state that the services and tasks of the placement driver share.

use std::sync::Arc;
use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use flotilla_region::StoreId;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::errors::not_leader;
use super::leader::PdLeader;
use crate::border_codec::BorderCodec;
use crate::driver::router::Router;
use crate::membership::{KnownStore, Membership};
use crate::net::dial::Dialer;
use crate::transport::PeerConnections;

/// Limits and targets of the placement driver.
#[derive(Clone, Copy, Debug)]
pub struct PdConfig {
    /// How long an answer waits for a leader to be known, or for a fresh heartbeat of one whose
    /// store has fallen silent. Some clients give up after a second and a half.
    pub leader_wait: Duration,
    /// Answers that may wait so; more are given at once from what is known.
    pub leader_wait_count_max: usize,
}

impl Default for PdConfig {
    fn default() -> Self {
        Self { leader_wait: Duration::from_millis(1_000), leader_wait_count_max: 1024 }
    }
}

/// Handle on the shared state. Cheap to clone.
#[derive(Clone)]
pub(super) struct PdContext {
    pub(super) shared: Arc<PdShared>,
}

pub(super) struct PdShared {
    pub(super) router: Router,
    pub(super) membership: Membership,
    /// Which other stores this one reaches.
    pub(super) connections: PeerConnections,
    pub(super) settings: PdConfig,
    /// The state of the leader while this store leads the system region.
    pub(super) pd_leader: watch::Sender<Option<Arc<PdLeader>>>,
    /// The store that takes this store's heartbeats; `None` while there is none.
    pub(super) reported_to: watch::Sender<Option<StoreId>>,
    pub(super) leader_waits: Semaphore,
    /// Whether this store hands its leaders over, to stop.
    pub(super) stopping: watch::Sender<bool>,
}

impl PdContext {
    pub(super) fn new(
        router: Router,
        membership: Membership,
        connections: PeerConnections,
        settings: PdConfig,
    ) -> Self {
        let shared = PdShared {
            router,
            membership,
            connections,
            settings,
            pd_leader: watch::Sender::new(None),
            reported_to: watch::Sender::new(None),
            leader_waits: Semaphore::new(settings.leader_wait_count_max),
            stopping: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The form of borders on the wire of clients.
    pub(super) fn borders(&self) -> BorderCodec {
        BorderCodec(self.shared.membership.settings().api)
    }

    pub(super) fn cluster_id(&self) -> u64 {
        self.shared.router.identity().cluster_id
    }

    /// Refuses a caller that names another cluster. A caller that names none is let in.
    pub(super) fn check_cluster(&self, claimed: u64) -> Result<(), Status> {
        let mine = self.cluster_id();
        if claimed != 0 && claimed != mine {
            return Err(Status::failed_precondition(format!(
                "mismatch cluster id, need {mine} but got {claimed}"
            )));
        }
        Ok(())
    }

    /// The leader's state of this store, if it leads. Just elected, it may still be reading its
    /// rows.
    pub(super) async fn pd_leader(&self) -> Result<Arc<PdLeader>, Status> {
        let mut pd_leader = self.shared.pd_leader.subscribe();
        let until = Instant::now() + self.shared.settings.leader_wait;
        let leads = self.shared.router.leads(SYSTEM_REGION);
        let held = pd_leader.borrow_and_update().clone();
        let found = match held {
            None if leads => {
                let taken_up = timeout_at(until, pd_leader.wait_for(Option::is_some)).await;
                taken_up.ok().and_then(Result::ok).and_then(|pd_leader| pd_leader.clone())
            }
            held => held,
        };
        found.ok_or_else(not_leader)
    }

    /// The leader of placement: the store that takes this store's heartbeats. A leader that was
    /// only heard of may be dead, and clients that are sent to it give up; so a caller in the
    /// moments between two leaders waits a little, and gets hearsay only then.
    pub(super) async fn leader(&self) -> Option<KnownStore> {
        let shared = &self.shared;
        let until = Instant::now() + shared.settings.leader_wait;
        let mut reported_to = shared.reported_to.subscribe();
        let known = timeout_at(until, reported_to.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(Result::ok).and_then(|store| *store);
        let store = known.or_else(|| Some(shared.router.leader(SYSTEM_REGION)?.1.store))?;
        self.member(store)
    }

    /// The way to other stores, and their URLs.
    pub(super) fn dialer(&self) -> &Dialer {
        self.shared.membership.dialer()
    }

    pub(super) fn member(&self, store: StoreId) -> Option<KnownStore> {
        self.shared.membership.store(store)
    }
}
