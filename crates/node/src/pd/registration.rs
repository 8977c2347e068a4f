//! Changes of the registry by the leader of placement: starts of stores, and stores that join.

use std::pin::pin;
use std::sync::Arc;

use flotilla_identity::{RegisterRefusal, RegisterRequest, Registration, RunReport, StoreRegistry};
use flotilla_placement::LossRefusal;
use flotilla_proto::peers;
use flotilla_proto::peers::join_server::Join;
use flotilla_proto::peers::{LocateRequest, LocateResponse, RegisterResponse};
use flotilla_region::StoreId;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

use super::context::PdContext;
use super::leader::{PATIENCE, PdLeader};
use super::replica_repair;
use crate::membership::{labels_from_wire, uuid_from_wire, uuid_to_wire};
use crate::net::connection::ConnectionPeer;

impl PdLeader {
    /// Takes in the run report of a store, and writes it to the registry if it is news. Returns the
    /// registry if it is newer than the `version` that the store has.
    pub(super) fn note_run(
        self: &Arc<Self>,
        report: &RunReport,
        version: u64,
    ) -> Option<StoreRegistry> {
        let row = self.registry.lock();
        let registry = row.registry();
        let newer = (registry.version > version).then(|| registry.clone());
        if !row.is_changing()
            && let Some(changed) = registry.with_run(report)
        {
            let pd_leader = Arc::clone(self);
            drop(row);
            tokio::spawn(async move { pd_leader.write_registry(changed).await });
        }
        newer
    }

    /// Gives the store that asks an id, and writes it to the registry; the registry with it.
    /// Returns once that is committed.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if the row cannot be written now: the store asks again, and gets the same id
    /// if it was written all the same.
    pub(super) async fn register(
        self: &Arc<Self>,
        request: &RegisterRequest,
    ) -> Result<Result<(StoreId, StoreRegistry), NotRegistered>, Status> {
        let until = Instant::now() + PATIENCE;
        let mut id = None;
        loop {
            // Enabled before the look, so that no notification is missed between the two.
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            let (decision, registry) = {
                let row = self.registry.lock();
                (row.registry().register(request, id), row.registry().clone())
            };
            let changed = match decision {
                Err(refusal) => return Ok(Err(refusal.into())),
                Ok(Registration::Known(store)) => {
                    // A later leader may have declared the store gone.
                    self.confirm().await?;
                    return Ok(Ok((store, registry)));
                }
                Ok(Registration::WantsId { replaces }) => {
                    // Before an id is spent: a store that waits for this asks again and again.
                    if let Some(Err(refusal)) = replaces.map(|lost| self.check_loss(lost)) {
                        return Ok(Err(refusal.into()));
                    }
                    id = Some(StoreId(self.ids(1).await?));
                    continue;
                }
                Ok(Registration::Write(changed)) => *changed,
                Ok(Registration::Replace(lost, changed)) => {
                    // Before it is written, for a store is lost for ever.
                    if let Err(refusal) = self.check_loss(lost) {
                        return Ok(Err(refusal.into()));
                    }
                    tracing::warn!(
                        store = %lost, name = request.name, directory = %request.uuid,
                        "the store is to be replaced, and lost for ever"
                    );
                    *changed
                }
            };
            // In a task of its own: the caller may be dropped, but the outcome must be learnt.
            let pd_leader = Arc::clone(self);
            let written = tokio::spawn(async move { pd_leader.write_registry(changed).await });
            match written.await.unwrap_or(RegistryWrite::Unknown) {
                RegistryWrite::Settled => {}
                RegistryWrite::Busy => {
                    let is_changing = self.registry.lock().is_changing();
                    if is_changing && timeout_at(until, settled).await.is_err() {
                        return Err(unwritten());
                    }
                }
                RegistryWrite::Unknown => return Err(unwritten()),
            }
            if Instant::now() >= until {
                return Err(unwritten());
            }
        }
    }

    /// Writes the registry, unless another change of it is under way or came before.
    pub(super) async fn write_registry(&self, changed: StoreRegistry) -> RegistryWrite {
        let swap = self.registry.lock().begin(&changed);
        let Some(swap) = swap else { return RegistryWrite::Busy };
        let settled = self.write(swap).await;
        let is_known = {
            let mut row = self.registry.lock();
            let is_known = row.settle(changed, settled);
            let mut cluster = self.cluster.lock();
            for store in &row.registry().stores {
                cluster.learn_store(store.id.0, &store.name, &store.address, &store.labels);
            }
            replica_repair::note_standings(&mut cluster, row.registry());
            is_known
        };
        self.settled.notify_waiters();
        if is_known { RegistryWrite::Settled } else { RegistryWrite::Unknown }
    }
}

/// Why a store is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotRegistered {
    /// Nothing that happens by itself changes it.
    #[error(transparent)]
    Refused(#[from] RegisterRefusal),
    /// The store that it is to replace cannot be declared lost now.
    #[error(transparent)]
    NotNow(#[from] LossRefusal),
}

/// The outcome of a change of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistryWrite {
    /// The row was written, or found to be another one: look again.
    Settled,
    /// Another change is under way, or came before this one: look again when it has settled.
    Busy,
    /// Whether the row was written is not known.
    Unknown,
}

fn unwritten() -> Status {
    Status::unavailable("placement cannot write its registry now")
}

/// The service for stores that join.
pub(super) struct JoinService(pub(super) PdContext);

#[tonic::async_trait]
impl Join for JoinService {
    async fn locate(&self, _: Request<LocateRequest>) -> Result<Response<LocateResponse>, Status> {
        let membership = &self.0.shared.membership;
        let leader = self.0.leader().await.map(|leader| leader.address).unwrap_or_default();
        let count = |stores: usize| u32::try_from(stores).unwrap_or(u32::MAX);
        Ok(Response::new(LocateResponse {
            cluster_id: self.0.cluster_id(),
            uuid: uuid_to_wire(membership.run().0),
            settings: membership.settings().encode().into(),
            leader,
            waiting: String::new(),
            stores: count(membership.stores().len()),
            stores_connected: count(self.0.shared.connections.up_count() + 1),
        }))
    }

    async fn register(
        &self,
        request: Request<peers::RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        ConnectionPeer::of(request.extensions()).check_store(&request.get_ref().name)?;
        let wire = request.into_inner();
        let own = self.0.cluster_id();
        // Not by `check_cluster`: a store that joins always knows where.
        if wire.cluster_id != own {
            let refusal =
                format!("cluster {} is meant, and this is cluster {own}", wire.cluster_id);
            return Ok(Response::new(RegisterResponse { refusal, ..RegisterResponse::default() }));
        }
        let request = RegisterRequest {
            uuid: uuid_from_wire(&wire.uuid)?,
            name: wire.name,
            address: wire.address,
            labels: labels_from_wire(wire.labels),
            level: wire.level,
            schema: wire.schema,
            is_replacement: wire.replace,
        };
        let pd_leader = self.0.pd_leader().await?;
        let (store, registry) = match pd_leader.register(&request).await? {
            Ok(registered) => registered,
            Err(not_registered) => {
                let is_passing = matches!(not_registered, NotRegistered::NotNow(_));
                let (refusal, name) = (not_registered.to_string(), &request.name);
                if !is_passing {
                    let address = &request.address;
                    tracing::warn!(name, address, "a store may not join: {refusal}");
                }
                let response =
                    RegisterResponse { refusal, is_passing, ..RegisterResponse::default() };
                return Ok(Response::new(response));
            }
        };
        let membership = &self.0.shared.membership;
        // Before the store is answered: its first report comes here.
        if !membership.learn_registry(registry.clone()).await {
            return Err(Status::unavailable("the store stops"));
        }
        tracing::info!(%store, name = request.name, address = request.address, "a store joins");
        Ok(Response::new(RegisterResponse {
            store_id: store.0,
            registry: registry.encode().into(),
            settings: membership.settings().encode().into(),
            ..RegisterResponse::default()
        }))
    }
}
