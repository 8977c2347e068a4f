//! The gRPC service: each call to its handler.

use flotilla_proto::kvrpcpb::{
    RawBatchDeleteRequest, RawBatchDeleteResponse, RawBatchGetRequest, RawBatchGetResponse,
    RawBatchPutRequest, RawBatchPutResponse, RawBatchScanRequest, RawBatchScanResponse,
    RawCasRequest, RawCasResponse, RawDeleteRangeRequest, RawDeleteRangeResponse, RawDeleteRequest,
    RawDeleteResponse, RawGetKeyTtlRequest, RawGetKeyTtlResponse, RawGetRequest, RawGetResponse,
    RawPutRequest, RawPutResponse, RawScanRequest, RawScanResponse,
};
use flotilla_proto::tikvpb::BatchCommandsRequest;
use flotilla_proto::tikvpb::tikv_server::Tikv;
use tonic::{Request, Response, Status, Streaming};

use super::batch;
use super::errors::answer;
use super::rawkv::RawKv;
use super::wire::RawKvServer;

impl RawKv {
    /// The service as a server takes it, with the limit on messages set.
    #[must_use]
    pub fn into_server(self) -> RawKvServer {
        let message_bytes_max = self.limits().message_bytes_max;
        RawKvServer::new(self, message_bytes_max)
    }
}

macro_rules! unary {
    ($($method:ident($request:ident) -> $response:ident by $handler:ident;)*) => {
        #[tonic::async_trait]
        impl Tikv for RawKv {
            $(async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                answer(self.$handler(request.into_inner()).await).map(Response::new)
            })*

            type BatchCommandsStream = batch::Answers;

            async fn batch_commands(
                &self,
                request: Request<Streaming<BatchCommandsRequest>>,
            ) -> Result<Response<batch::Answers>, Status> {
                Ok(Response::new(batch::serve(self.clone(), request.into_inner())))
            }
        }
    };
}

unary! {
    raw_get(RawGetRequest) -> RawGetResponse by get;
    raw_batch_get(RawBatchGetRequest) -> RawBatchGetResponse by batch_get;
    raw_put(RawPutRequest) -> RawPutResponse by put;
    raw_batch_put(RawBatchPutRequest) -> RawBatchPutResponse by batch_put;
    raw_delete(RawDeleteRequest) -> RawDeleteResponse by delete;
    raw_batch_delete(RawBatchDeleteRequest) -> RawBatchDeleteResponse by batch_delete;
    raw_scan(RawScanRequest) -> RawScanResponse by scan;
    raw_batch_scan(RawBatchScanRequest) -> RawBatchScanResponse by batch_scan;
    raw_delete_range(RawDeleteRangeRequest) -> RawDeleteRangeResponse by delete_range;
    raw_get_key_ttl(RawGetKeyTtlRequest) -> RawGetKeyTtlResponse by get_key_ttl;
    raw_compare_and_swap(RawCasRequest) -> RawCasResponse by compare_and_swap;
}
