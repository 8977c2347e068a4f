//! Stubs of services that clients expect of a placement driver: the meta storage answers at once
//! that it has nothing, which saves clients the seconds that they would spend on retries.

use flotilla_proto::meta_storagepb::meta_storage_server::MetaStorage;
use flotilla_proto::meta_storagepb::{GetRequest, GetResponse, ResponseHeader};
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
