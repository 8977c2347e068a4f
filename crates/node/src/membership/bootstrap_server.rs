//! Serves the bootstrap protocol before a store is a member; every other call gets `UNAVAILABLE`,
//! the status that makes clients retry.

use flotilla_proto::peers::peers_server::{Peers, PeersServer};
use flotilla_proto::peers::{
    BeginRequest, BootstrapResponse, Done, FormRequest, Frame, HelloResponse, PrepareRequest,
    SnapshotPart, SnapshotVerdict, StoreHello,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::bootstrap::BootstrapDriver;
use super::convert::{WireQuestion, bootstrap_from_wire, bootstrap_response_to_wire};
use super::join_server::WaitingStore;
use crate::net::bounded_calls::BoundedCalls;
use crate::net::dial::PEER_MESSAGE_BYTES_MAX;

/// The services of a store that is no member yet.
pub(super) fn routes(bootstrap: &BootstrapDriver) -> Routes {
    let peers = PeersServer::new(BootstrapServer { bootstrap: bootstrap.clone() })
        .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX);
    waiting(bootstrap).serve(Routes::new(BoundedCalls(peers)))
}

fn waiting(bootstrap: &BootstrapDriver) -> WaitingStore {
    let state = bootstrap.clone();
    WaitingStore::new(bootstrap.uuid(), move || state.waiting())
}

/// Answers for a store that is no member yet.
struct BootstrapServer {
    bootstrap: BootstrapDriver,
}

impl BootstrapServer {
    async fn answer(&self, question: WireQuestion) -> Result<Response<BootstrapResponse>, Status> {
        let request = bootstrap_from_wire(question)?;
        let response = self.bootstrap.answer(request).await?;
        Ok(Response::new(bootstrap_response_to_wire(response)))
    }
}

#[tonic::async_trait]
impl Peers for BootstrapServer {
    async fn urgent(&self, _: Request<Streaming<Frame>>) -> Result<Response<Done>, Status> {
        Err(no_cluster(&self.bootstrap))
    }

    async fn appends(&self, _: Request<Streaming<Frame>>) -> Result<Response<Done>, Status> {
        Err(no_cluster(&self.bootstrap))
    }

    type SnapshotStream = tokio_stream::Empty<Result<SnapshotVerdict, Status>>;

    async fn snapshot(
        &self,
        _: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(no_cluster(&self.bootstrap))
    }

    async fn hello(&self, hello: Request<StoreHello>) -> Result<Response<HelloResponse>, Status> {
        let hello = hello.into_inner();
        let by = format!("{} at {}", hello.name, hello.address);
        self.bootstrap.dialled(hello.cluster_id, hello.to_store, by);
        Err(no_cluster(&self.bootstrap))
    }

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        self.answer(WireQuestion::Prepare(request.into_inner())).await
    }

    async fn form(
        &self,
        request: Request<FormRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        self.answer(WireQuestion::Form(request.into_inner())).await
    }

    async fn begin(
        &self,
        request: Request<BeginRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        self.answer(WireQuestion::Begin(request.into_inner())).await
    }
}

fn no_cluster(bootstrap: &BootstrapDriver) -> Status {
    waiting(bootstrap).no_cluster()
}
