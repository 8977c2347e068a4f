//! Serves the protocol of joins before a store is a member: it has no cluster, and says what it
//! waits for.

use std::sync::Arc;

use flotilla_identity::StoreUuid;
use flotilla_proto::peers::join_server::{Join, JoinServer};
use flotilla_proto::peers::{LocateRequest, LocateResponse, RegisterRequest, RegisterResponse};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::convert::uuid_to_wire;
use crate::net::bounded_calls::BoundedCalls;

/// A store without a cluster. Cheap to clone.
#[derive(Clone)]
pub(super) struct WaitingStore {
    uuid: StoreUuid,
    waiting: Arc<dyn Fn() -> String + Send + Sync>,
}

impl WaitingStore {
    /// The store whose directory is `uuid`; `waiting` says what it waits for.
    pub(super) fn new(
        uuid: StoreUuid,
        waiting: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        Self { uuid, waiting: Arc::new(waiting) }
    }

    /// The status of each call that needs a cluster, which makes clients retry.
    pub(super) fn no_cluster(&self) -> Status {
        Status::unavailable(format!("no cluster yet: waiting for {}", (self.waiting)()))
    }

    /// `routes` with what every store without a cluster answers.
    pub(super) fn serve(self, routes: Routes) -> Routes {
        let (_, health) = tonic_health::server::health_reporter();
        let mut routes = routes
            .add_service(BoundedCalls(health))
            .add_service(BoundedCalls(JoinServer::new(self.clone())));
        let router = std::mem::take(routes.axum_router_mut());
        *routes.axum_router_mut() = router.fallback(move || {
            let store = self.clone();
            async move { store.no_cluster().into_http::<tonic::body::Body>() }
        });
        routes.prepare()
    }
}

#[tonic::async_trait]
impl Join for WaitingStore {
    async fn locate(&self, _: Request<LocateRequest>) -> Result<Response<LocateResponse>, Status> {
        Ok(Response::new(LocateResponse {
            uuid: uuid_to_wire(self.uuid),
            waiting: (self.waiting)(),
            ..LocateResponse::default()
        }))
    }

    async fn register(
        &self,
        _: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        Err(self.no_cluster())
    }
}
