//! Stubs of services that clients expect of a placement driver. They answer at once that they have
//! nothing, which saves clients the seconds that they would spend on retries.

use flotilla_proto::keyspacepb::keyspace_server::Keyspace;
use flotilla_proto::keyspacepb::{LoadKeyspaceRequest, LoadKeyspaceResponse};
use flotilla_proto::meta_storagepb::meta_storage_server::MetaStorage;
use flotilla_proto::meta_storagepb::{GetRequest, GetResponse, ResponseHeader};
use flotilla_proto::pdpb;
use tonic::{Request, Response, Status};

use super::context::PdContext;

/// The meta storage, which has no keys.
pub(super) struct EmptyMetaStorage(pub(super) PdContext);

#[tonic::async_trait]
impl MetaStorage for EmptyMetaStorage {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let header = request.into_inner().header.unwrap_or_default();
        self.0.check_cluster(header.cluster_id)?;
        let cluster_id = self.0.cluster_id();
        let header = Some(ResponseHeader { cluster_id, ..ResponseHeader::default() });
        Ok(Response::new(GetResponse { header, ..GetResponse::default() }))
    }
}

/// Keyspaces, which need API V2: none.
pub(super) struct EmptyKeyspaces(pub(super) PdContext);

#[tonic::async_trait]
impl Keyspace for EmptyKeyspaces {
    async fn load_keyspace(
        &self,
        request: Request<LoadKeyspaceRequest>,
    ) -> Result<Response<LoadKeyspaceResponse>, Status> {
        let header = request.into_inner().header.unwrap_or_default();
        self.0.check_cluster(header.cluster_id)?;
        let error = pdpb::Error {
            r#type: pdpb::ErrorType::EntryNotFound.into(),
            message: "there are no keyspaces: API V2 is not spoken here, use V1".to_owned(),
        };
        let cluster_id = self.0.cluster_id();
        let header = Some(pdpb::ResponseHeader { cluster_id, error: Some(error) });
        Ok(Response::new(LoadKeyspaceResponse { header, ..LoadKeyspaceResponse::default() }))
    }
}
